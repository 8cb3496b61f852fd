/* unicode.c: properties, case, normal forms and grapheme clusters of Unicode's characters. */
#include "text/unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode_data.inc"

uint32_t ax_unicode_bits[AX_UC_LAST + 1];

enum { PAIRS = 1024, SHORT = 6144, HANGUL = 0xAC00, HANGULS = 11172, L_BASE = 0x1100, V_BASE = 0x1161 };
enum { T_BASE = 0x11A7, V_COUNT = 21, T_COUNT = 28, N_COUNT = V_COUNT * T_COUNT };
static const int n_mappings = sizeof mappings / sizeof *mappings;

/* Canonical pairs by their characters, sorted; and the beginning of each entry of `mappings`. */
static struct pair {
  uint32_t a, b, to;
} pairs[PAIRS];
static int n_pairs;
static uint16_t entries[SHORT];
static int n_entries;

static uint32_t category_bits(int category)
{
  switch (category) {
  case UC_Lu:
  case UC_Lt: return AX_UC_LETTER | AX_UC_UPPER;
  case UC_Ll: return AX_UC_LETTER | AX_UC_LOWER;
  case UC_Lm:
  case UC_Lo: return AX_UC_LETTER;
  case UC_Mn: return AX_UC_MARK | AX_UC_NONSPACING | AX_UC_WORD;
  case UC_Mc:
  case UC_Me: return AX_UC_MARK | AX_UC_WORD;
  case UC_Nd: return AX_UC_NUMBER | AX_UC_WORD;
  case UC_Nl:
  case UC_No: return AX_UC_NUMBER;
  case UC_Zs:
  case UC_Zl:
  case UC_Zp: return AX_UC_SPACE;
  case UC_Cc:
  case UC_Cf:
  case UC_Co: return AX_UC_OTHER;
  case UC_Pc: return AX_UC_PUNCTUATION | AX_UC_WORD;
  case UC_Pd:
  case UC_Ps:
  case UC_Pe:
  case UC_Po:
  case UC_Pi:
  case UC_Pf: return AX_UC_PUNCTUATION;
  case UC_Sm:
  case UC_Sc:
  case UC_Sk:
  case UC_So: return AX_UC_SYMBOL;
  }
  return 0;
}

static int by_characters(const void *x, const void *y)
{
  const struct pair *p = x, *q = y;
  if (p->a != q->a) return p->a < q->a ? -1 : 1;
  return p->b < q->b ? -1 : p->b > q->b;
}

static void unpack_mappings(void)
{
  for (int i = 0; i < n_mappings; i += 1 + (int)(mappings[i] & 63)) {
    const uint32_t head = mappings[i], code = head >> 8;
    const int n = head & 63;
    ax_unicode_bits[code] |= head & 128 ? AX_UC_COMPAT : AX_UC_CANONICAL;
    if (n_entries < SHORT) entries[n_entries++] = (uint16_t)i;
    if (!(head & 192) && n == 2 && n_pairs < PAIRS)
      pairs[n_pairs++] = (struct pair){ mappings[i + 1], mappings[i + 2], code };
  }
  for (int i = 0; i < n_pairs; i++) ax_unicode_bits[pairs[i].b] |= AX_UC_SECOND;
  for (uint32_t c = V_BASE; c < V_BASE + V_COUNT; c++) ax_unicode_bits[c] |= AX_UC_SECOND;
  for (uint32_t c = T_BASE + 1; c < T_BASE + T_COUNT; c++) ax_unicode_bits[c] |= AX_UC_SECOND;
  qsort(pairs, (size_t)n_pairs, sizeof *pairs, by_characters);
}

static void unpack(void)
{
  const int n_runs = sizeof class_runs / sizeof *class_runs,
            n_breaks = sizeof break_runs / sizeof *break_runs;
  for (int i = 0; i < n_runs; i++) {
    const uint32_t v = class_runs[i] & 255, end = i + 1 < n_runs ? class_runs[i + 1] >> 8 : AX_UC_LAST + 1;
    uint32_t bits = category_bits(v & 31);
    if (v & 32) bits |= AX_UC_IN_8;
    if (v & 64) bits |= AX_UC_IN_9;
    if (v & 128) bits |= AX_UC_WORD;
    for (uint32_t c = class_runs[i] >> 8; bits && c < end; c++) ax_unicode_bits[c] = bits;
  }
  for (uint32_t c = 9; c <= 13; c++) ax_unicode_bits[c] |= AX_UC_SPACE;
  ax_unicode_bits[0x85] |= AX_UC_SPACE;
  ax_unicode_bits[0x200C] |= AX_UC_WORD;
  ax_unicode_bits[0x200D] |= AX_UC_WORD;
  for (int i = 0; i < n_breaks; i++) {
    const uint32_t v = break_runs[i] & 255, end = i + 1 < n_breaks ? break_runs[i + 1] >> 8 : AX_UC_LAST + 1;
    for (uint32_t c = break_runs[i] >> 8; v && c < end; c++) ax_unicode_bits[c] |= v << AX_UC_BREAK_SHIFT;
  }
  for (size_t i = 0; i < sizeof lower_rows / sizeof *lower_rows; i += 4)
    for (int c = lower_rows[i]; c <= lower_rows[i + 1]; c += lower_rows[i + 2])
      ax_unicode_bits[c] |= AX_UC_HAS_LOWER;
  for (size_t i = 0; i < sizeof combining_rows / sizeof *combining_rows; i += 3)
    for (int c = combining_rows[i]; c <= combining_rows[i + 1]; c++) ax_unicode_bits[c] |= AX_UC_COMBINES;
  unpack_mappings();
}

void ax_unicode_open(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, unpack);
}

/* ---- UTF-8 */

int ax_utf8_put(char *s, uint32_t c)
{
  if (c < 0x80) return s[0] = (char)c, 1;
  if (c < 0x800) {
    s[0] = (char)(0xC0 | c >> 6);
    s[1] = (char)(0x80 | (c & 63));
    return 2;
  }
  if (c < 0x10000) {
    s[0] = (char)(0xE0 | c >> 12);
    s[1] = (char)(0x80 | (c >> 6 & 63));
    s[2] = (char)(0x80 | (c & 63));
    return 3;
  }
  s[0] = (char)(0xF0 | c >> 18);
  s[1] = (char)(0x80 | (c >> 12 & 63));
  s[2] = (char)(0x80 | (c >> 6 & 63));
  s[3] = (char)(0x80 | (c & 63));
  return 4;
}

int ax_utf8_check(const char *s, size_t n, int *bad)
{
  const uint8_t *p = (const uint8_t *)s, c = p[0];
  const int length = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;

  *bad = 1;
  for (int i = 1; i < length; i++) {
    /* no overlong forms, surrogates, nor code points beyond the last */
    const uint8_t least = i > 1 ? 0x80 : c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    const uint8_t most = i > 1 ? 0xBF : c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    *bad = i;
    if ((size_t)i >= n || p[i] < least || p[i] > most) return 0;
  }
  return length;
}

size_t ax_utf8_valid(const char *s, size_t n)
{
  size_t at = 0;
  int length, bad;

  while (at < n) {
    uint64_t word;
    if (n - at >= 8 && (memcpy(&word, s + at, 8), !(word & 0x8080808080808080u))) {
      at += 8;
      continue;
    }
    if (!(length = ax_utf8_check(s + at, n - at, &bad))) break;
    at += (size_t)length;
  }
  return at;
}

/* ---- case and normal forms */

/* The row of `rows` that holds the code point, or NULL. */
static const int32_t *find_row(const int32_t *rows, int n, int width, uint32_t code)
{
  int lo = 0, hi = n / width - 1;
  while (lo <= hi) {
    const int middle = (lo + hi) / 2;
    const int32_t *row = rows + middle * width;
    if ((int32_t)code < row[0]) hi = middle - 1;
    else if ((int32_t)code > row[1]) lo = middle + 1;
    else return row;
  }
  return NULL;
}

uint32_t ax_unicode_lower(uint32_t code)
{
  const int32_t *row;
  if (!(ax_unicode_bits[code] & AX_UC_HAS_LOWER)) return code;
  row = find_row(lower_rows, sizeof lower_rows / sizeof *lower_rows, 4, code);
  return row ? code + (uint32_t)row[3] : code;
}

int ax_unicode_combining(uint32_t code)
{
  const int32_t *row;
  if (!(ax_unicode_bits[code] & AX_UC_COMBINES)) return 0;
  row = find_row(combining_rows, sizeof combining_rows / sizeof *combining_rows, 3, code);
  return row ? row[2] : 0;
}

static const uint32_t *find_mapping(uint32_t code)
{
  int lo = 0, hi = n_entries - 1;
  while (lo <= hi) {
    const int middle = (lo + hi) / 2;
    const uint32_t *m = mappings + entries[middle];
    if (code < m[0] >> 8) hi = middle - 1;
    else if (code > m[0] >> 8) lo = middle + 1;
    else return m;
  }
  return NULL;
}

static int expand(uint32_t code, bool compat, uint32_t *out, int n)
{
  const uint32_t *m;

  if (code >= HANGUL && code < HANGUL + HANGULS && n + 3 <= AX_DECOMPOSED) {
    const uint32_t s = code - HANGUL;
    out[n++] = L_BASE + s / N_COUNT;
    out[n++] = V_BASE + s % N_COUNT / T_COUNT;
    if (s % T_COUNT) out[n++] = T_BASE + s % T_COUNT;
    return n;
  }
  if (ax_unicode_bits[code] & (AX_UC_CANONICAL | (compat ? AX_UC_COMPAT : 0)) &&
      (m = find_mapping(code)) != NULL) {
    for (uint32_t i = 1; i <= (m[0] & 63); i++) n = expand(m[i], compat, out, n);
    return n;
  }
  if (n < AX_DECOMPOSED) out[n++] = code;
  return n;
}

int ax_unicode_decompose(uint32_t code, bool compat, uint32_t *out) { return expand(code, compat, out, 0); }

uint32_t ax_unicode_compose(uint32_t a, uint32_t b)
{
  const struct pair key = { a, b, 0 }, *p;

  if (a - L_BASE < 19 && b - V_BASE < V_COUNT)
    return HANGUL + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
  if (a - HANGUL < HANGULS && (a - HANGUL) % T_COUNT == 0 && b > T_BASE && b < T_BASE + T_COUNT)
    return a + (b - T_BASE);
  p = bsearch(&key, pairs, (size_t)n_pairs, sizeof *pairs, by_characters);
  return p ? p->to : 0;
}

/* ---- grapheme clusters (Unicode Standard Annex 29) */

enum { ODD_REGIONAL = 1, PICTURE = 2, PICTURE_JOINED = 4 };

static ax_break break_of(uint32_t code) { return ax_unicode_bits[code] >> AX_UC_BREAK_SHIFT & 15; }

static bool ends(ax_break a, ax_break b, int state)
{
  if (a == AX_BREAK_CR && b == AX_BREAK_LF) return false;
  if (a == AX_BREAK_CR || a == AX_BREAK_LF || a == AX_BREAK_CONTROL) return true;
  if (b == AX_BREAK_CR || b == AX_BREAK_LF || b == AX_BREAK_CONTROL) return true;
  if (a == AX_BREAK_L && (b == AX_BREAK_L || b == AX_BREAK_V || b == AX_BREAK_LV || b == AX_BREAK_LVT))
    return false;
  if ((a == AX_BREAK_LV || a == AX_BREAK_V) && (b == AX_BREAK_V || b == AX_BREAK_T)) return false;
  if ((a == AX_BREAK_LVT || a == AX_BREAK_T) && b == AX_BREAK_T) return false;
  if (b == AX_BREAK_EXTEND || b == AX_BREAK_ZWJ || b == AX_BREAK_SPACING || a == AX_BREAK_PREPEND)
    return false;
  if (b == AX_BREAK_PICTURE && state & PICTURE_JOINED) return false;
  return !(a == AX_BREAK_REGIONAL && b == AX_BREAK_REGIONAL && state & ODD_REGIONAL);
}

bool ax_grapheme_ends(uint32_t before, uint32_t after, int *state)
{
  const ax_break a = break_of(before), b = break_of(after);
  int now = *state;

  if (a == AX_BREAK_PICTURE) now = PICTURE;
  else if (a == AX_BREAK_EXTEND) now &= PICTURE;
  else if (a == AX_BREAK_ZWJ) now = now & PICTURE ? PICTURE_JOINED : 0;
  else if (a == AX_BREAK_REGIONAL) now = now & ODD_REGIONAL ? 0 : ODD_REGIONAL;
  else now = 0;
  *state = now;
  if (!ends(a, b, now)) return false;
  *state = 0;
  return true;
}
