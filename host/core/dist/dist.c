/* dist.c: what every transport has in common: checks, the group of one, collectives on tensors. */
#include "dist.h"
#include "capture.h"

#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/dist/peers.h"

static const char *const reduction_names[AX_REDUCTIONS] = {
  [AX_SUM] = "sum", [AX_MEAN] = "mean", [AX_MAX] = "max", [AX_MIN] = "min", [AX_PROD] = "prod",
};
static char script_line[AX_WHERE_TEXT];

const char *ax_reduction_name(ax_reduction r)
{
  return (unsigned)r < AX_REDUCTIONS ? reduction_names[r] : "?";
}

ax_status ax_reduction_parse(const char *name, ax_reduction *out)
{
  for (int r = 0; r < AX_REDUCTIONS; r++)
    if (strcmp(name, reduction_names[r]) == 0) {
      *out = (ax_reduction)r;
      return AX_OK;
    }
  return ax_fail(AX_EINVAL, "expected a reduction, one of sum, mean, max, min, prod; got '%s'", name);
}

void ax_dist_set_where(const char *where) { snprintf(script_line, sizeof script_line, "%s", where); }
const char *ax_dist_where(void) { return script_line; }

/* ---- the group of one */

static ax_status copy_own(const ax_collective *c)
{
  const size_t bytes = (size_t)(c->op == AX_ALL_TO_ALL ? c->splits[0] : c->count) * ax_dtype_size(c->dtype);
  const ax_device d = { c->kind, c->index };
  const ax_backend *backend;
  ax_status st;

  if (!c->out || c->out == c->in || bytes == 0) return AX_OK;
  if (c->kind == AX_CPU) {
    memcpy(c->out, c->in, bytes);
    return AX_OK;
  }
  st = ax_backend_of(d, &backend);
  return st != AX_OK ? st : backend->memory->copy(d, c->out, d, c->in, bytes);
}

ax_status ax_dist_alone(const ax_collective *c, int n)
{
  ax_status st = AX_OK;

  for (int k = 0; k < n && st == AX_OK; k++) st = copy_own(&c[k]);
  return st;
}

static ax_status alone_issue(ax_group *g, const ax_collective *c, int n, uint64_t *ticket)
{
  *ticket = 0;
  return ax_dist_alone(c, n);
}

static const ax_transport alone = { .name = "alone", .issue = alone_issue };
static ax_group group_of_one = { .transport = &alone, .size = 1, .local_size = 1 };
static ax_group *world = &group_of_one;

ax_group *ax_dist_world(void) { return world; }

/* This process is a fork of a rank: the groups that it knows are those of its parent. */
static bool forgotten;

void ax_dist_forget(void)
{
  forgotten = true;
  ax_device_forget();
  ax_peers_forget();
}

void ax_dist_set_world(ax_group *g)
{
  forgotten = false;
  world = g ? g : &group_of_one;
  ax_random_set_rank(world->rank);
}

/* ---- groups of some ranks */

int ax_group_world_rank(const ax_group *g, int rank) { return g->members ? g->members[rank] : rank; }

ax_group *ax_group_retain(ax_group *g)
{
  if (g->members) g->refs++;
  return g;
}

void ax_group_release(ax_group *g)
{
  if (!g || !g->members || --g->refs > 0 || forgotten) return;
  if (g->link) ax_device_retire(g);
  else ax_group_free(g);
}

void ax_group_free(ax_group *g)
{
  if (g->state && g->transport->leave) g->transport->leave(g, false);
  ax_mfree(g->members);
  ax_mfree(g);
}

/* "tp[0,1]", shortened where there are many. */
static void name_group(ax_group *g, const char *name)
{
  size_t n = (size_t)snprintf(g->name, sizeof g->name, "%.12s[", name);

  for (int k = 0; k < g->size; k++) {
    char rank[16];
    const bool last = k == g->size - 1;
    const size_t more = (size_t)snprintf(rank, sizeof rank, "%s%d", k ? "," : "", g->members[k]);
    if (n + more + (last ? 2 : 8) > sizeof g->name) {
      snprintf(g->name + n, sizeof g->name - n, ",..%d]", g->members[g->size - 1]);
      return;
    }
    memcpy(g->name + n, rank, more + 1);
    n += more;
  }
  snprintf(g->name + n, sizeof g->name - n, "]");
}

typedef struct choice {
  int64_t colour, key;
} choice;

/* The members that chose this rank's colour, by key and then by rank. */
static void choose_members(const ax_group *from, const choice *all, ax_group *g)
{
  for (int r = 0; r < from->size; r++) {
    int at = g->size;
    if (all[r].colour < 0 || all[r].colour != all[from->rank].colour) continue;
    for (; at > 0; at--) { /* keys of those before, as ranks of `from` */
      if (all[g->members[at - 1]].key <= all[r].key) break;
      g->members[at] = g->members[at - 1];
    }
    g->members[at] = r;
    g->size++;
  }
  for (int k = 0; k < g->size; k++) {
    if (g->members[k] == from->rank) g->rank = k;
    g->members[k] = ax_group_world_rank(from, g->members[k]);
  }
}

ax_status ax_group_split(ax_group *from, int colour, int key, const char *name, ax_group **out)
{
  choice mine = { colour, key }, *all = NULL;
  ax_collective c = { .op = AX_ALL_GATHER, .dtype = AX_I64, .count = 2, .in = &mine };
  ax_group *g = NULL;
  ax_status st = AX_ENOMEM;

  *out = NULL;
  if (from->size > 1 && !from->transport->split)
    return ax_fail(AX_ENOIMPL, "ranks whose memory is carried by %s make no groups", from->transport->name);
  if (!(all = ax_malloc((size_t)from->size * sizeof *all)) || !(g = ax_calloc(1, sizeof *g)) ||
      !(g->members = ax_calloc((size_t)from->size, sizeof *g->members)))
    goto out;
  *g = (ax_group){
    .refs = 1, .members = g->members, .rank = -1, .local_rank = from->local_rank, .transport = &alone
  };
  c.out = all;
  AX_TRY(ax_device_before_split(from));
  AX_TRY(ax_dist_run(from, &c, NULL));
  choose_members(from, all, g);
  g->local_size = g->size;
  name_group(g, name);
  if (from->size > 1) AX_TRY(from->transport->split(from, g));
  AX_TRY(ax_device_split(from, g));
  if (g->rank >= 0) {
    *out = g;
    g = NULL;
  }
out:
  ax_mfree(all);
  if (g && g->members) ax_group_free(g);
  else ax_mfree(g);
  return st;
}

void ax_dist_set_timeout(double seconds)
{
  if (world->transport->set_timeout && !forgotten) world->transport->set_timeout(world, seconds);
}

void ax_dist_leave(void)
{
  if (world == &group_of_one || world->closed || forgotten) return;
  world->closed = true;
  if (world->transport->leave) world->transport->leave(world, false);
  ax_dist_leave_device(); /* others that still wait for this rank can see that it has left */
}

/* ---- running a collective */

/* Refuses what does not depend on the other ranks before they take part, so that the message is
 * about this call alone. */
static ax_status check(const ax_group *g, const ax_collective *c)
{
  if (forgotten)
    return ax_fail(AX_EINVAL,
                   "%s in a loader's worker process: only the ranks themselves take part in collectives",
                   ax_collective_name(c->op));
  if (g->closed || world->closed)
    return ax_fail(AX_EINVAL,
                   "this rank has left the process group (end_training or destroy_process_group was called)");
  if (ax_collective_reduces(c->op) && c->dtype == AX_BOOL && c->reduction != AX_MAX && c->reduction != AX_MIN)
    return ax_fail(AX_EDTYPE,
                   "%s of bool tensors is not defined: use max (any) or min (all), or convert to int64",
                   ax_reduction_name(c->reduction));
  if (ax_collective_reduces(c->op) && ax_is_complex(c->dtype))
    return ax_fail(AX_EDTYPE, "%s of %s tensors is not defined: reduce x:view_as_real() instead",
                   ax_reduction_name(c->reduction), ax_dtype_name(c->dtype));
  if (ax_collective_reduces(c->op) && ax_is_float8(c->dtype))
    return ax_fail(AX_EDTYPE, "%s of %s tensors is not defined: convert to float32 first",
                   ax_reduction_name(c->reduction), ax_dtype_name(c->dtype));
  if (ax_collective_reduces(c->op) && c->reduction == AX_MEAN && !ax_is_float(c->dtype))
    return ax_fail(AX_EDTYPE, "mean of %s tensors is not defined: convert to float32 first",
                   ax_dtype_name(c->dtype));
  if ((ax_collective_has_root(c->op) || c->op == AX_SEND || c->op == AX_RECV) &&
      (c->root < 0 || c->root >= g->size))
    return ax_fail(AX_ERANGE, "rank %d does not exist%s%s: ranks are 0 to %d", c->root,
                   *g->name ? " in " : "", g->name, g->size - 1);
  if ((c->op == AX_SEND || c->op == AX_RECV) && c->root == g->rank)
    return ax_fail(AX_EINVAL, "%s: rank %d is this rank itself", ax_collective_name(c->op), c->root);
  if (c->count < 0)
    return ax_fail(AX_EINVAL, "the number of elements is negative: %lld", (long long)c->count);
  return AX_OK;
}

static ax_status issue_on_host(ax_group *g, const ax_collective *c, ax_work **work)
{
  uint64_t ticket;
  const ax_status st = g->transport->issue(g, c, 1, &ticket);

  return st != AX_OK ? st : ax_work_new(g, ticket, work);
}

/* EMISMATCH, on all ranks, where a rank of an all_to_all sends more or less than another
 * expects. */
static ax_status compare_splits(ax_group *g, const ax_collective *c)
{
  const size_t n = (size_t)g->size;
  int64_t *all = ax_malloc(2 * n * n * sizeof *all);
  const int64_t **rows = ax_malloc(n * sizeof *rows);
  const ax_collective tell = {
    .op = AX_ALL_GATHER, .dtype = AX_I64, .count = (int64_t)(2 * n), .in = c->splits, .out = all
  };
  ax_status st = all && rows ? ax_dist_run(g, &tell, NULL) : AX_ENOMEM;

  for (size_t r = 0; st == AX_OK && r < n; r++) rows[r] = all + 2 * n * r;
  if (st == AX_OK) st = ax_splits_fit(g->size, rows, g->members);
  ax_mfree(rows);
  ax_mfree(all);
  return st;
}

static ax_status issue_on_device(ax_group *g, const ax_collective *c, ax_work **work)
{
  ax_status st = c->op == AX_ALL_TO_ALL && g->size > 1 ? compare_splits(g, c) : AX_OK;
  return st == AX_OK ? ax_device_issue(g, c, c, 1, work) : st;
}

ax_status ax_dist_run(ax_group *g, const ax_collective *given, ax_work **work)
{
  ax_collective c = *given;
  ax_work *started = NULL;
  ax_status st;

  memcpy(c.group, g->name, sizeof c.group);
  AX_TRY(check(g, &c));
  AX_TRY(c.kind == AX_CPU ? issue_on_host(g, &c, &started) : issue_on_device(g, &c, &started));
  if (!work) return ax_work_wait(started);
out:
  if (work) *work = started;
  return st;
}

/* ---- tensors */

/* A 0-d tensor counts as [1]. */
static void take_tensor(ax_collective *c, const ax_tensor *t)
{
  if (ax_recording) ax_capture_hold(t->storage);
  c->dtype = (ax_dtype)t->dtype;
  c->kind = t->device.kind;
  c->index = t->device.index;
  c->ndim = t->ndim > 0 ? t->ndim : 1;
  c->shape[0] = 1;
  memcpy(c->shape, t->shape, (size_t)t->ndim * sizeof *c->shape);
}

/* Runs `c` in place over t's elements; t's strides do not matter. */
static ax_status in_place(ax_group *g, ax_tensor *t, ax_collective *c)
{
  ax_tensor *flat = NULL;
  ax_status st;

  AX_TRY(ax_tensor_ready(t, AX_WRITE));
  AX_TRY(ax_contiguous(t, &flat));
  c->count = t->numel;
  take_tensor(c, t);
  c->in = c->out = ax_data(flat);
  AX_TRY(ax_dist_run(g, c, NULL));
  if (flat != t) AX_TRY(ax_copy(t, flat)); /* counts the write */
  else ax_touch(t);
out:
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_all_reduce(ax_group *g, ax_tensor *t, ax_reduction r, int model)
{
  ax_collective c = { .op = AX_ALL_REDUCE, .reduction = r, .model = model };
  return in_place(g, t, &c);
}

ax_status ax_dist_all_reduce_begin(ax_group *g, ax_tensor *t, ax_reduction r, int model, ax_work **work)
{
  ax_collective c = { .op = AX_ALL_REDUCE, .reduction = r, .model = model, .count = t->numel };
  ax_status st;

  *work = NULL;
  if (!ax_tensor_is_contiguous(t))
    return ax_fail(AX_EINVAL, "all_reduce: a tensor that is reduced without waiting must be contiguous");
  if ((st = ax_tensor_ready(t, AX_WRITE)) != AX_OK) return st;
  take_tensor(&c, t);
  c.in = c.out = ax_data(t);
  if ((st = ax_dist_run(g, &c, work)) == AX_OK) ax_touch(t);
  return st;
}

ax_status ax_dist_broadcast(ax_group *g, ax_tensor *t, int root)
{
  ax_collective c = { .op = AX_BROADCAST, .root = root };
  return in_place(g, t, &c);
}

ax_status ax_dist_broadcast_all(ax_group *g, int n, ax_tensor *const *list, int root)
{
  ax_collective as_one = { .op = AX_BROADCAST, .dtype = AX_U8, .root = root }, *all = NULL;
  ax_work *work = NULL;
  ax_status st = AX_OK;
  bool together = n > 1;

  for (int k = 0; k < n; k++)
    together = together && list[k]->device.kind != AX_CPU &&
               ax_same_device(list[k]->device, list[0]->device) && ax_tensor_is_contiguous(list[k]);
  if (!together) {
    for (int k = 0; k < n && st == AX_OK; k++) st = ax_dist_broadcast(g, list[k], root);
    return st;
  }
  if (!(all = ax_calloc((size_t)n, sizeof *all))) return AX_ENOMEM;
  for (int k = 0; k < n; k++) {
    AX_TRY(ax_tensor_ready(list[k], AX_WRITE));
    all[k] = (ax_collective){ .op = AX_BROADCAST,
                              .root = root,
                              .count = list[k]->numel,
                              .in = ax_data(list[k]),
                              .out = ax_data(list[k]) };
    take_tensor(&all[k], list[k]);
    AX_TRY(check(g, &all[k]));
    as_one.count += list[k]->numel * (int64_t)ax_itemsize(list[k]);
  }
  as_one.kind = list[0]->device.kind;
  as_one.index = list[0]->device.index;
  memcpy(as_one.group, g->name, sizeof as_one.group);
  AX_TRY(ax_device_issue(g, &as_one, all, n, &work));
  AX_TRY(ax_work_wait(work));
  for (int k = 0; k < n; k++) ax_touch(list[k]);
out:
  ax_mfree(all);
  return st;
}

/* Runs `c` from t into a fresh tensor with t's shape but `first` as size of dim 0; `wanted` false:
 * there is no result here. */
static ax_status into_new(ax_group *g, ax_tensor *t, ax_collective *c, int64_t first, int64_t count,
                          bool wanted, ax_tensor **out)
{
  ax_tensor *flat = NULL, *made = NULL;
  int64_t shape[AX_MAX_DIMS] = { first };
  ax_status st;

  *out = NULL;
  AX_TRY(ax_tensor_ready(t, AX_READ));
  AX_TRY(ax_contiguous(t, &flat));
  if (t->ndim > 1) memcpy(shape + 1, t->shape + 1, (size_t)(t->ndim - 1) * sizeof *shape);
  if (wanted)
    AX_TRY(ax_tensor_new_on(t->device, (ax_dtype)t->dtype, t->ndim > 0 ? t->ndim : 1, shape, &made));
  c->count = count;
  take_tensor(c, t);
  c->in = ax_data(flat);
  c->out = made ? ax_data(made) : NULL;
  AX_TRY(ax_dist_run(g, c, NULL));
  *out = made;
  made = NULL;
out:
  ax_tensor_release(made);
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_all_gather(ax_group *g, ax_tensor *t, ax_tensor **out)
{
  ax_collective c = { .op = AX_ALL_GATHER };
  return into_new(g, t, &c, (t->ndim > 0 ? t->shape[0] : 1) * g->size, t->numel, true, out);
}

ax_status ax_dist_gather(ax_group *g, ax_tensor *t, int root, ax_tensor **out)
{
  ax_collective c = { .op = AX_GATHER, .root = root };
  return into_new(g, t, &c, (t->ndim > 0 ? t->shape[0] : 1) * g->size, t->numel, g->rank == root, out);
}

ax_status ax_dist_reduce_scatter(ax_group *g, ax_tensor *t, ax_reduction r, ax_tensor **out)
{
  ax_collective c = { .op = AX_REDUCE_SCATTER, .reduction = r };
  char text[AX_SHAPE_TEXT];

  *out = NULL;
  if (t->ndim == 0 || t->shape[0] % g->size != 0)
    return ax_fail(
        AX_ESHAPE,
        "reduce_scatter: the first size must be a multiple of the number of ranks (%d); the shape is %s",
        g->size, ax_shape_text(t->ndim, t->shape, text, sizeof text));
  return into_new(g, t, &c, t->shape[0] / g->size, t->numel / g->size, true, out);
}

ax_status ax_dist_reduce_to(ax_group *g, ax_tensor *t, ax_reduction r, int root)
{
  ax_collective c = { .op = AX_REDUCE, .reduction = r, .root = root };
  ax_tensor *flat = NULL;
  ax_status st;

  if (g->rank == root) return in_place(g, t, &c);
  AX_TRY(ax_tensor_ready(t, AX_READ));
  AX_TRY(ax_contiguous(t, &flat));
  c.count = t->numel;
  take_tensor(&c, t);
  c.in = ax_data(flat);
  st = ax_dist_run(g, &c, NULL);
out:
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_send(ax_group *g, ax_tensor *t, int to)
{
  ax_collective c = { .op = AX_SEND, .root = to, .count = t->numel };
  ax_tensor *flat = NULL;
  ax_status st;

  AX_TRY(ax_tensor_ready(t, AX_READ));
  AX_TRY(ax_contiguous(t, &flat));
  take_tensor(&c, t);
  c.in = c.out = ax_data(flat);
  st = ax_dist_run(g, &c, NULL);
out:
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_recv(ax_group *g, ax_tensor *t, int from)
{
  ax_collective c = { .op = AX_RECV, .root = from };
  return in_place(g, t, &c);
}

ax_status ax_dist_scatter(ax_group *g, ax_tensor *t, ax_tensor *like, int root, ax_tensor **out)
{
  const bool sends = g->rank == root;
  ax_collective c = { .op = AX_SCATTER, .root = root };
  ax_tensor *flat = NULL, *made = NULL, *shown = sends ? t : like;
  int64_t shape[AX_MAX_DIMS];
  char text[AX_SHAPE_TEXT];
  ax_status st;

  *out = NULL;
  if (sends && (t->ndim == 0 || t->shape[0] % g->size != 0))
    return ax_fail(AX_ESHAPE,
                   "scatter: the first size must be a multiple of the number of ranks (%d); the shape is %s",
                   g->size, ax_shape_text(t->ndim, t->shape, text, sizeof text));
  memcpy(shape, shown->shape, sizeof shape);
  if (sends) shape[0] /= g->size;
  AX_TRY(ax_tensor_new_on(shown->device, (ax_dtype)shown->dtype, shown->ndim, shape, &made));
  if (sends) {
    AX_TRY(ax_tensor_ready(t, AX_READ));
    AX_TRY(ax_contiguous(t, &flat));
    c.in = ax_data(flat);
  }
  c.count = made->numel;
  take_tensor(&c, made);
  c.out = ax_data(made);
  AX_TRY(ax_dist_run(g, &c, NULL));
  *out = made;
  made = NULL;
out:
  ax_tensor_release(made);
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_all_to_all(ax_group *g, ax_tensor *t, const int64_t *splits, ax_tensor **out)
{
  const int n = g->size;
  ax_collective c = { .op = AX_ALL_TO_ALL };
  ax_tensor *flat = NULL, *made = NULL;
  int64_t shape[AX_MAX_DIMS], *elements = NULL, given = 0, row;
  char text[AX_SHAPE_TEXT];
  ax_status st = AX_OK;

  *out = NULL;
  for (int k = 0; k < n; k++) given += splits[k];
  if (t->ndim == 0 || given != t->shape[0])
    return ax_fail(AX_ESHAPE,
                   "all_to_all: the input split sizes add up to %lld rows, and the tensor has shape %s",
                   (long long)given, ax_shape_text(t->ndim, t->shape, text, sizeof text));
  memcpy(shape, t->shape, sizeof shape);
  shape[0] = 0;
  for (int k = 0; k < n; k++) shape[0] += splits[n + k];
  row = 1;
  for (int d = 1; d < t->ndim; d++) row *= t->shape[d];
  if (!(elements = ax_malloc(2 * (size_t)n * sizeof *elements))) return AX_ENOMEM;
  for (int k = 0; k < 2 * n; k++) elements[k] = splits[k] * row;
  AX_TRY(ax_tensor_ready(t, AX_READ));
  AX_TRY(ax_contiguous(t, &flat));
  AX_TRY(ax_tensor_new_on(t->device, (ax_dtype)t->dtype, t->ndim, shape, &made));
  take_tensor(&c, t);
  c.shape[0] = 0; /* may differ */
  c.splits = elements;
  c.in = ax_data(flat);
  c.out = ax_data(made);
  AX_TRY(ax_dist_run(g, &c, NULL));
  *out = made;
  made = NULL;
out:
  ax_mfree(elements);
  ax_tensor_release(made);
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_barrier(ax_group *g)
{
  const ax_collective c = { .op = AX_BARRIER };
  return ax_dist_run(g, &c, NULL);
}
