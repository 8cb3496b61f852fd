/* Events of the profiler, and the formulas of floating-point operations. */
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "core/ops/infer.h"

_Thread_local bool ax_profiling;
_Thread_local int32_t ax_profile_place;

/* Memory here is malloc's own: what is measured must not grow by measuring. */
static _Thread_local struct {
  ax_profile_options wanted;
  ax_profile_where where;
  ax_profile_event *list;
  int32_t n, size, current; /* current: the innermost event under way, -1: none */
  uint32_t run;             /* counts clearings: ends of events from before are ignored */
  int64_t dropped;
} p = { .current = -1 };

/* ---- texts: a table of strings, and an open hash of their numbers */

static _Thread_local struct {
  char **text;
  int32_t n, size;
  int32_t *slot;
  uint32_t slots;
} texts;

static uint32_t hash_of(const char *s)
{
  uint32_t h = 2166136261u; /* FNV-1a */
  for (; *s; s++) h = (h ^ (uint8_t)*s) * 16777619u;
  return h;
}

static bool grow_texts(void)
{
  const int32_t size = texts.size ? 2 * texts.size : 256;
  char **text = realloc(texts.text, sizeof *text * (size_t)size);
  int32_t *slot;

  if (!text) return false;
  texts.text = text;
  if (!(slot = calloc((size_t)size * 2, sizeof *slot))) return false;
  free(texts.slot);
  texts.slot = slot;
  texts.slots = (uint32_t)size * 2;
  texts.size = size;
  for (int32_t k = 0; k < texts.n; k++) {
    uint32_t at = hash_of(text[k]) & (texts.slots - 1);
    while (slot[at]) at = (at + 1) & (texts.slots - 1);
    slot[at] = k + 1;
  }
  return true;
}

int32_t ax_profile_text(const char *text)
{
  uint32_t at;

  if (texts.n == texts.size && !grow_texts()) return 0;
  for (at = hash_of(text) & (texts.slots - 1); texts.slot[at]; at = (at + 1) & (texts.slots - 1))
    if (strcmp(texts.text[texts.slot[at] - 1], text) == 0) return texts.slot[at];
  if (!(texts.text[texts.n] = strdup(text))) return 0;
  return texts.slot[at] = ++texts.n;
}

const char *ax_profile_text_of(int32_t number)
{
  return number > 0 && number <= texts.n ? texts.text[number - 1] : NULL;
}

/* ---- events */

static int64_t live_bytes(void)
{
  ax_memory_stats s = { 0 };
  ax_memory_get(&s);
  return s.live_bytes;
}

void ax_profile_clear(void)
{
  free(p.list);
  p.list = NULL;
  p.n = p.size = 0;
  p.current = -1;
  p.dropped = 0;
  p.run++;
  ax_profile_place = 0;
}

void ax_profile_start(ax_profile_options o, ax_profile_where where)
{
  p.wanted = o;
  p.where = where;
  p.current = -1;
  p.run++; /* what began before has no end here */
  ax_profiling = true;
}

void ax_profile_stop(void)
{
  const int64_t end = ax_monotonic_ns();
  ax_profiling = false;
  ax_profile_place = 0;
  for (int32_t k = p.current; k >= 0; k = p.list[k].parent) p.list[k].end = end;
  p.current = -1;
  p.run++;
}

const ax_profile_event *ax_profile_events(int32_t *n, int64_t *dropped)
{
  *n = p.n;
  *dropped = p.dropped;
  return p.list;
}

/* A new event, or -1. */
static int32_t add(void)
{
  if (p.n == p.size) {
    const int32_t size = p.size ? p.size < INT32_MAX / 2 ? 2 * p.size : p.size : 4096;
    ax_profile_event *list = size > p.size ? realloc(p.list, sizeof *list * (size_t)size) : NULL;
    if (!list) {
      p.dropped++;
      return -1;
    }
    p.list = list;
    p.size = size;
  }
  return p.n++;
}

ax_profile_mark ax_profile_begin(const char *name, ax_profile_kind kind, int32_t place)
{
  const int32_t at = add();
  ax_profile_event *e;

  if (at < 0) return (ax_profile_mark){ -1, p.run };
  e = &p.list[at];
  *e = (ax_profile_event){ .parent = p.current, .kind = kind, .name = ax_profile_text(name) };
  if (p.current >= 0) {
    const ax_profile_event *outer = &p.list[p.current];
    e->depth = outer->depth + 1;
    e->place = outer->place;
    e->stack = outer->stack;
    e->modules = outer->modules;
  }
  /* inside a range the script may have moved on; inside an op it has not */
  if (p.current < 0 || p.list[p.current].kind == AX_PROFILE_RANGE) p.where(&p.wanted, e);
  if (place) e->place = place;
  ax_profile_place = e->place;
  p.current = at;
  if (p.wanted.memory) e->bytes = -live_bytes();
  e->start = ax_monotonic_ns(); /* last: what this function costs belongs to the event around */
  return (ax_profile_mark){ at, p.run };
}

void ax_profile_end(ax_profile_mark m)
{
  const int64_t end = ax_monotonic_ns();
  ax_profile_event *e;

  if (m.at < 0 || m.run != p.run || !ax_profiling) return;
  e = &p.list[m.at];
  e->end = end;
  if (p.wanted.memory) e->bytes += live_bytes();
  p.current = e->parent;
  ax_profile_place = p.current >= 0 ? p.list[p.current].place : 0;
}

/* ---- ops */

/* Multiplications and additions; 0 for what is no product. */
static int64_t flops_of(ax_op op, const ax_args *args, ax_tensor *const *out)
{
  const bool product = ax_op_impls[op].flops && out[0] && args->n_in > 1 && args->in[0] && args->in[1];
  return product ? ax_op_impls[op].flops(args, out) : 0;
}

static int32_t shapes_text(const ax_args *args)
{
  char text[512], one[AX_SHAPE_TEXT];
  size_t at = (size_t)snprintf(text, sizeof text, "[");

  for (int k = 0; k < args->n_in && at + AX_SHAPE_TEXT + 8 < sizeof text; k++) {
    const ax_tensor *t = args->in[k];
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", k ? ", " : "",
                           t ? ax_shape_text(t->ndim, t->shape, one, sizeof one) : "[]");
  }
  snprintf(text + at, sizeof text - at, "]");
  return ax_profile_text(text);
}

void ax_profile_wait(ax_device device)
{
  const ax_backend *backend;
  if (p.wanted.wait && device.kind != AX_CPU && ax_backend_of(device, &backend) == AX_OK && backend->memory)
    backend->memory->synchronize(device.index);
}

static void wait_for(const ax_args *args, ax_tensor *const *out)
{
  const ax_tensor *t = out[0];
  for (int k = 0; !t && k < args->n_in; k++) t = args->in[k];
  if (t) ax_profile_wait(t->device);
}

ax_status ax_profile_run(ax_op op, const ax_args *args, ax_tensor **result, bool inplace,
                         ax_status (*run)(ax_op, const ax_args *, ax_tensor **))
{
  char name[64];
  const char *const row = ax_ops[op].name;
  const ax_profile_options wanted = p.wanted;
  int32_t shapes = 0;
  ax_profile_mark m;
  ax_status st;

  snprintf(name, sizeof name, "%s_", ax_op_shown(op));
  if (wanted.shapes) shapes = shapes_text(args);
  m = ax_profile_begin(inplace ? name : row, AX_PROFILE_OP, 0);
  st = run(op, args, result);
  if (st == AX_OK) wait_for(args, result);
  if (m.at >= 0 && m.run == p.run) {
    p.list[m.at].shapes = shapes;
    if (wanted.flops && st == AX_OK) p.list[m.at].flops = flops_of(op, args, result);
  }
  ax_profile_end(m);
  return st;
}
