/* charsmap.c: SentencePiece's compiled normalization table: the size of a double array in bytes,
 * the array (Darts, 32-bit units), and texts with NULs behind them that its values point to.
 *
 * A grapheme cluster of fewer than six bytes is looked up whole; the shortest text of the table
 * that it begins with stands for it.  Else its characters are looked up one by one. */
#include "text/flow.h"

typedef struct ax_charsmap {
  uint32_t *units;
  uint32_t n_units;
  char *texts;
  size_t n_texts;
  int32_t ascii[128]; /* where the text for one character begins; -1: it stays */
} ax_charsmap;

static uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }

/* Where the text for the shortest entry that s begins with starts; -1: there is none. */
static int32_t look_up(const ax_charsmap *m, const char *s, int64_t n)
{
  uint32_t at, unit;

  if (m->n_units == 0) return -1;
  at = offset_of(m->units[0]);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t c = (uint8_t)s[i];
    at ^= c;
    if (c == 0 || at >= m->n_units) return -1;
    unit = m->units[at];
    if ((unit & (1u << 31 | 0xFF)) != c) return -1;
    at ^= offset_of(unit);
    if (at >= m->n_units) return -1;
    if (unit >> 8 & 1) {
      const uint32_t value = m->units[at] & ~(1u << 31);
      return value < m->n_texts ? (int32_t)value : -1;
    }
  }
  return -1;
}

ax_status ax_charsmap_new(const char *bytes, size_t n, ax_charsmap **out)
{
  ax_charsmap *m;
  uint32_t size;

  *out = NULL;
  if (n < 4 || (memcpy(&size, bytes, 4), size % 4 != 0) || size > n - 4)
    return ax_fail(AX_EINVAL, "precompiled_charsmap: %zu bytes do not hold the array that they announce", n);
  if (!(m = ax_calloc(1, sizeof *m))) return AX_ENOMEM;
  m->n_units = size / 4;
  m->n_texts = n - 4 - size;
  m->units = ax_malloc(size);
  m->texts = ax_malloc(m->n_texts + 1);
  if (!m->units || !m->texts) {
    ax_charsmap_free(m);
    return AX_ENOMEM;
  }
  memcpy(m->units, bytes + 4, size);
  memcpy(m->texts, bytes + 4 + size, m->n_texts);
  m->texts[m->n_texts] = '\0';
  if (ax_utf8_valid(m->texts, m->n_texts) != m->n_texts) {
    ax_charsmap_free(m);
    return ax_fail(AX_EINVAL, "precompiled_charsmap: its texts are not UTF-8");
  }
  for (int c = 0; c < 128; c++) m->ascii[c] = look_up(m, (const char[]){ (char)c }, 1);
  *out = m;
  return AX_OK;
}

void ax_charsmap_free(ax_charsmap *m)
{
  if (!m) return;
  ax_mfree(m->units);
  ax_mfree(m->texts);
  ax_mfree(m);
}

/* A value of a damaged table may point into the middle of a character: then the text begins with
 * the next one. */
static ax_status put(const ax_charsmap *m, int32_t text, const ax_flow *in, int64_t at, int64_t n,
                     ax_flow *out)
{
  const char *s = m->texts + text;
  while ((*s & 0xC0) == 0x80) s++;
  return ax_flow_replace(out, s, strlen(s), in, at, n);
}

static int64_t cluster_end(const ax_flow *in, int64_t at)
{
  int size, state = 0;
  uint32_t before = ax_utf8_next(in->s + at, &size);

  for (at += size; at < in->n; at += size) {
    const uint32_t after = ax_utf8_next(in->s + at, &size);
    if (ax_grapheme_ends(before, after, &state)) break;
    before = after;
  }
  return at;
}

ax_status ax_charsmap_run(const ax_charsmap *m, const ax_flow *in, ax_flow *out)
{
  ax_status st = ax_flow_reserve(out, in->n);

  for (int64_t at = 0, end; at < in->n && st == AX_OK; at = end) {
    const uint8_t c = (uint8_t)in->s[at], next = at + 1 < in->n ? (uint8_t)in->s[at + 1] : 0;
    int32_t text;
    if (c < 128 && next < 128 && c != '\r') { /* a cluster by itself */
      end = at + 1;
      st = m->ascii[c] < 0 ? ax_flow_copy(out, in, at, 1) : put(m, m->ascii[c], in, at, 1, out);
      continue;
    }
    end = cluster_end(in, at);
    if (end - at < 6 && (text = look_up(m, in->s + at, end - at)) >= 0) {
      st = put(m, text, in, at, end - at, out);
      continue;
    }
    for (int size; at < end && st == AX_OK; at += size) {
      ax_utf8_next(in->s + at, &size);
      text = look_up(m, in->s + at, size);
      st = text < 0 ? ax_flow_copy(out, in, at, size) : put(m, text, in, at, size, out);
    }
  }
  return st;
}
