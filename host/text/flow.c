/* flow.c: growing arrays, and a text with the ranges that its characters come from. */
#include "text/flow.h"

ax_status ax_text_grow(void **list, int64_t *room, int64_t used, int64_t n, size_t size)
{
  int64_t wanted = *room ? *room : 32;
  void *grown;

  if (n <= *room) return AX_OK;
  while (wanted < n) wanted *= 2;
  if (!(grown = ax_malloc((size_t)wanted * size))) return AX_ENOMEM;
  if (used) memcpy(grown, *list, (size_t)used * size);
  ax_mfree(*list);
  *list = grown;
  *room = wanted;
  return AX_OK;
}

ax_status ax_text_too_long(int64_t most)
{
  return ax_fail(AX_ERANGE,
                 "the tokenizer's steps make more than %lld bytes of a text; "
                 "it may become %d times as long and %d bytes",
                 (long long)most, AX_GROWTH, AX_GROWTH_LEAST);
}

void ax_flow_free(ax_flow *f)
{
  ax_mfree(f->s);
  ax_mfree(f->from);
  ax_mfree(f->to);
  memset(f, 0, sizeof *f);
}

void ax_flow_clear(ax_flow *f, bool spans)
{
  f->n = 0;
  f->spans = spans;
}

ax_status ax_flow_reserve(ax_flow *f, int64_t more)
{
  const int64_t want = f->n + more;

  if (f->most && want > f->most) return ax_text_too_long(f->most);
  if (want > f->room) {
    const ax_status st = ax_text_grow((void **)&f->s, &f->room, f->n, want, 1);
    if (st != AX_OK) return st;
  }
  if (f->spans && want > f->span_room) {
    int64_t room = f->span_room;
    ax_status st = ax_text_grow((void **)&f->from, &room, f->n, want, sizeof *f->from);
    if (st != AX_OK) return st;
    room = f->span_room;
    if ((st = ax_text_grow((void **)&f->to, &room, f->n, want, sizeof *f->to)) != AX_OK) return st;
    f->span_room = room;
  }
  return AX_OK;
}

ax_status ax_flow_copy(ax_flow *f, const ax_flow *in, int64_t at, int64_t n)
{
  ax_status st;

  if (n <= 0) return AX_OK;
  if ((st = ax_flow_reserve(f, n)) != AX_OK) return st;
  memcpy(f->s + f->n, in->s + at, (size_t)n);
  if (f->spans) {
    memcpy(f->from + f->n, in->from + at, (size_t)n * sizeof *f->from);
    memcpy(f->to + f->n, in->to + at, (size_t)n * sizeof *f->to);
  }
  f->n += n;
  return AX_OK;
}

ax_status ax_flow_put(ax_flow *f, uint32_t code, const ax_flow *in, int64_t at)
{
  char bytes[4];
  const ax_status st = ax_flow_reserve(f, 4);

  if (st != AX_OK) return st;
  ax_flow_add(f, bytes, ax_utf8_put(bytes, code), ax_flow_from(in, at), ax_flow_to(in, at));
  return AX_OK;
}

/* New character i stands for old character i; those beyond the last one share its range. */
ax_status ax_flow_replace(ax_flow *f, const char *s, size_t length, const ax_flow *in, int64_t at, int64_t n)
{
  const ax_status st = ax_flow_reserve(f, (int64_t)length);
  int64_t old = at;

  if (st != AX_OK) return st;
  for (size_t i = 0; i < length;) {
    int bytes, size;
    ax_utf8_next(s + i, &bytes);
    ax_flow_add(f, s + i, bytes, ax_flow_from(in, old), ax_flow_to(in, old));
    i += (size_t)bytes;
    ax_utf8_next(in->s + old, &size);
    if (old + size < at + n) old += size;
  }
  return AX_OK;
}

ax_status ax_flow_substitute(ax_flow *f, const char *s, size_t length, const ax_flow *in, int64_t end)
{
  const ax_status st = ax_flow_reserve(f, (int64_t)length);
  if (st != AX_OK) return st;
  for (size_t i = 0; i < length; i++)
    ax_flow_add(f, s + i, 1, ax_flow_from(in, end - 1), ax_flow_to(in, end - 1));
  return AX_OK;
}
