/* dist/call.c: a call of a collective as other ranks see it: its text, and how two of them differ.
 *
 * Every transport compares calls before data moves. */
#include <stdio.h>
#include <string.h>

#include "dist.h"

static const char *const op_names[AX_COLLECTIVES] = {
  [AX_ALL_REDUCE] = "all_reduce",
  [AX_BROADCAST] = "broadcast",
  [AX_ALL_GATHER] = "all_gather",
  [AX_REDUCE_SCATTER] = "reduce_scatter",
  [AX_GATHER] = "gather",
  [AX_REDUCE] = "reduce",
  [AX_SCATTER] = "scatter",
  [AX_ALL_TO_ALL] = "all_to_all",
  [AX_SEND] = "send",
  [AX_RECV] = "recv",
  [AX_BARRIER] = "barrier",
  [AX_JOIN] = "joining of the ranks' GPUs",
  [AX_RECORDING] = "a captured step",
  [AX_REPLAY] = "a replay of a captured step",
};

const char *ax_collective_name(ax_collective_op op)
{
  return (unsigned)op < AX_COLLECTIVES ? op_names[op] : "?";
}

bool ax_collective_same(const ax_collective *a, const ax_collective *b)
{
  const bool pair = (a->op == AX_SEND && b->op == AX_RECV) || (a->op == AX_RECV && b->op == AX_SEND);
  return (pair || (a->op == b->op && a->op != AX_SEND && a->op != AX_RECV && a->root == b->root)) &&
         a->dtype == b->dtype && a->reduction == b->reduction && a->count == b->count &&
         a->model == b->model && a->kind == b->kind && a->ndim == b->ndim &&
         memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

const char *ax_collective_text(const ax_collective *c, char *buf, size_t size)
{
  const bool to = c->op == AX_GATHER || c->op == AX_REDUCE || c->op == AX_SEND;
  char extra[64] = "", model[24] = "", in[AX_GROUP_TEXT + 4] = "";
  size_t n = 0;

  if (ax_collective_reduces(c->op))
    n = (size_t)snprintf(extra, sizeof extra, ", %s", ax_reduction_name(c->reduction));
  if (ax_collective_has_root(c->op) || c->op == AX_SEND || c->op == AX_RECV)
    snprintf(extra + n, sizeof extra - n, ", %s rank %d", to ? "to" : "from", c->root);
  if (c->group[0]) snprintf(in, sizeof in, " in %.*s", AX_GROUP_TEXT, c->group);
  if (c->model) snprintf(model, sizeof model, ", model %d", c->model);
  if (c->op == AX_BARRIER) snprintf(buf, size, "barrier()%s", in);
  else if (c->op == AX_RECORDING || c->op == AX_REPLAY)
    snprintf(buf, size, "%s with %lld collective%s (digest %x)%s", ax_collective_name(c->op),
             (long long)c->count, c->count == 1 ? "" : "s", (unsigned)c->model, in);
  else if (c->op == AX_JOIN) snprintf(buf, size, "the %s()%s", ax_collective_name(c->op), in);
  else if (c->op == AX_ALL_TO_ALL)
    snprintf(buf, size, "all_to_all(%s%s)%s",
             (unsigned)c->dtype < AX_DTYPE_COUNT ? ax_dtype_name(c->dtype) : "?",
             c->kind != AX_CPU ? ", on the GPU" : "", in);
  else
    snprintf(buf, size, "%s(%s, %lld element%s%s%s%s)%s", ax_collective_name(c->op),
             (unsigned)c->dtype < AX_DTYPE_COUNT ? ax_dtype_name(c->dtype) : "?", (long long)c->count,
             c->count == 1 ? "" : "s", extra, model, c->kind != AX_CPU ? ", on the GPU" : "", in);
  return buf;
}

ax_status ax_splits_fit(int n, const int64_t *const *splits, const int *names)
{
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++)
      if (splits[a][b] != splits[b][n + a])
        return ax_fail(AX_EMISMATCH,
                       "all_to_all: rank %d sends %lld elements to rank %d, which expects %lld "
                       "(input_split_sizes, output_split_sizes)",
                       names ? names[a] : a, (long long)splits[a][b], names ? names[b] : b,
                       (long long)splits[b][n + a]);
  return AX_OK;
}

/* " of shape [2, 3]": added to the message where only the shape differs. */
static const char *shape_text(const ax_collective *c, bool show, char *buf, size_t size)
{
  size_t n = 0;

  buf[0] = '\0';
  for (int d = 0; show && d < c->ndim && n < size; d++)
    n += (size_t)snprintf(buf + n, size - n, "%s%lld%s", d ? ", " : " of shape [", (long long)c->shape[d],
                          d == c->ndim - 1 ? "]" : "");
  return buf;
}

static void describe(int rank, const ax_collective_call *w, const ax_collective_call *other, char *buf,
                     size_t size)
{
  ax_collective reshaped = other->facts;
  char text[128], shape[200];

  reshaped.ndim = w->facts.ndim;
  memcpy(reshaped.shape, w->facts.shape, sizeof reshaped.shape);
  snprintf(buf, size, "rank %d calls %s%s%s%.*s", rank, ax_collective_text(&w->facts, text, sizeof text),
           shape_text(&w->facts, ax_collective_same(&w->facts, &reshaped), shape, sizeof shape),
           w->where[0] ? " at " : "", AX_WHERE_TEXT, w->where);
}

ax_status ax_calls_differ(int a, const ax_collective_call *wa, int b, const ax_collective_call *wb)
{
  char left[500], right[500];

  describe(a, wa, wb, left, sizeof left);
  describe(b, wb, wa, right, sizeof right);
  return ax_fail(AX_EMISMATCH, "ranks disagree in collective #%llu: %s; %s", (unsigned long long)wa->number,
                 left, right);
}
