/* dist.c: what every transport has in common: checks, the group of one, collectives on tensors. */
#include "dist.h"
#include "capture.h"

#include <stdio.h>
#include <string.h>

#include "core/core.h"

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

/* ---- the group of one ------------------------------------------------------------------------ */

static ax_status copy_own(const ax_collective *c)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype);
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

void ax_dist_set_world(ax_group *g)
{
  world = g ? g : &group_of_one;
  ax_random_set_rank(world->rank);
}

void ax_dist_set_timeout(double seconds)
{
  if (world->transport->set_timeout) world->transport->set_timeout(world, seconds);
}

void ax_dist_leave(void)
{
  if (world == &group_of_one || world->closed) return;
  world->closed = true;
  if (world->transport->leave) world->transport->leave(world, false);
  ax_dist_leave_device(); /* others that still wait for this rank can see that it has left */
}

/* ---- running a collective -------------------------------------------------------------------- */

/* Refuses what does not depend on the other ranks before they take part, so that the message is
 * about this call alone. */
static ax_status check(const ax_group *g, const ax_collective *c)
{
  if (g->closed)
    return ax_fail(AX_EINVAL,
                   "this rank has left the process group (end_training or destroy_process_group was called)");
  if (ax_collective_reduces(c->op) && c->dtype == AX_BOOL && c->reduction != AX_MAX && c->reduction != AX_MIN)
    return ax_fail(AX_EDTYPE,
                   "%s of bool tensors is not defined: use max (any) or min (all), or convert to int64",
                   ax_reduction_name(c->reduction));
  if (ax_collective_reduces(c->op) && ax_is_complex(c->dtype))
    return ax_fail(AX_EDTYPE, "%s of %s tensors is not defined: reduce x:view_as_real() instead",
                   ax_reduction_name(c->reduction), ax_dtype_name(c->dtype));
  if (ax_collective_reduces(c->op) && c->reduction == AX_MEAN && !ax_is_float(c->dtype))
    return ax_fail(AX_EDTYPE, "mean of %s tensors is not defined: convert to float32 first",
                   ax_dtype_name(c->dtype));
  if (ax_collective_has_root(c->op) && (c->root < 0 || c->root >= g->size))
    return ax_fail(AX_ERANGE, "rank %d does not exist: ranks are 0 to %d", c->root, g->size - 1);
  if (c->count < 0)
    return ax_fail(AX_EINVAL, "the number of elements is negative: %lld", (long long)c->count);
  return AX_OK;
}

static ax_status issue_in_world(const ax_collective *c, ax_work **work)
{
  uint64_t ticket;
  const ax_status st = world->transport->issue(world, c, 1, &ticket);

  return st != AX_OK ? st : ax_work_new(world, ticket, work);
}

ax_status ax_dist_run(const ax_collective *c, ax_work **work)
{
  ax_work *started = NULL;
  ax_status st;

  AX_TRY(check(world, c));
  AX_TRY(c->kind == AX_CPU ? issue_in_world(c, &started) : ax_device_issue(world, c, c, 1, &started));
  if (!work) return ax_work_wait(started);
out:
  if (work) *work = started;
  return st;
}

/* ---- tensors --------------------------------------------------------------------------------- */

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
static ax_status in_place(ax_tensor *t, ax_collective *c)
{
  ax_tensor *flat = NULL;
  ax_status st;

  AX_TRY(ax_tensor_ready(t, AX_WRITE));
  AX_TRY(ax_contiguous(t, &flat));
  c->count = t->numel;
  take_tensor(c, t);
  c->in = c->out = ax_data(flat);
  AX_TRY(ax_dist_run(c, NULL));
  if (flat != t) AX_TRY(ax_copy(t, flat)); /* counts the write */
  else ax_touch(t);
out:
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_all_reduce(ax_tensor *t, ax_reduction r, int model)
{
  ax_collective c = { .op = AX_ALL_REDUCE, .reduction = r, .model = model };
  return in_place(t, &c);
}

ax_status ax_dist_all_reduce_begin(ax_tensor *t, ax_reduction r, int model, ax_work **work)
{
  ax_collective c = { .op = AX_ALL_REDUCE, .reduction = r, .model = model, .count = t->numel };
  ax_status st;

  *work = NULL;
  if (!ax_tensor_is_contiguous(t))
    return ax_fail(AX_EINVAL, "all_reduce: a tensor that is reduced without waiting must be contiguous");
  if ((st = ax_tensor_ready(t, AX_WRITE)) != AX_OK) return st;
  take_tensor(&c, t);
  c.in = c.out = ax_data(t);
  if ((st = ax_dist_run(&c, work)) == AX_OK) ax_touch(t);
  return st;
}

ax_status ax_dist_broadcast(ax_tensor *t, int root)
{
  ax_collective c = { .op = AX_BROADCAST, .root = root };
  return in_place(t, &c);
}

ax_status ax_dist_broadcast_all(int n, ax_tensor *const *list, int root)
{
  ax_collective as_one = { .op = AX_BROADCAST, .dtype = AX_U8, .root = root }, *all = NULL;
  ax_work *work = NULL;
  ax_status st = AX_OK;
  bool together = n > 1;

  for (int k = 0; k < n; k++)
    together = together && list[k]->device.kind == AX_CUDA &&
               ax_same_device(list[k]->device, list[0]->device) && ax_tensor_is_contiguous(list[k]);
  if (!together) {
    for (int k = 0; k < n && st == AX_OK; k++) st = ax_dist_broadcast(list[k], root);
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
    AX_TRY(check(world, &all[k]));
    as_one.count += list[k]->numel * (int64_t)ax_itemsize(list[k]);
  }
  as_one.kind = AX_CUDA;
  as_one.index = list[0]->device.index;
  AX_TRY(ax_device_issue(world, &as_one, all, n, &work));
  AX_TRY(ax_work_wait(work));
  for (int k = 0; k < n; k++) ax_touch(list[k]);
out:
  ax_mfree(all);
  return st;
}

/* Runs `c` from t into a fresh tensor with t's shape but `first` as size of dim 0; `wanted` false:
 * there is no result here. */
static ax_status into_new(ax_tensor *t, ax_collective *c, int64_t first, int64_t count, bool wanted,
                          ax_tensor **out)
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
  AX_TRY(ax_dist_run(c, NULL));
  *out = made;
  made = NULL;
out:
  ax_tensor_release(made);
  ax_tensor_release(flat);
  return st;
}

ax_status ax_dist_all_gather(ax_tensor *t, ax_tensor **out)
{
  ax_collective c = { .op = AX_ALL_GATHER };
  return into_new(t, &c, (t->ndim > 0 ? t->shape[0] : 1) * world->size, t->numel, true, out);
}

ax_status ax_dist_gather(ax_tensor *t, int root, ax_tensor **out)
{
  ax_collective c = { .op = AX_GATHER, .root = root };
  return into_new(t, &c, (t->ndim > 0 ? t->shape[0] : 1) * world->size, t->numel, world->rank == root, out);
}

ax_status ax_dist_reduce_scatter(ax_tensor *t, ax_reduction r, ax_tensor **out)
{
  ax_collective c = { .op = AX_REDUCE_SCATTER, .reduction = r };
  char text[AX_SHAPE_TEXT];

  *out = NULL;
  if (t->ndim == 0 || t->shape[0] % world->size != 0)
    return ax_fail(
        AX_ESHAPE,
        "reduce_scatter: the first size must be a multiple of the number of ranks (%d); the shape is %s",
        world->size, ax_shape_text(t->ndim, t->shape, text, sizeof text));
  return into_new(t, &c, t->shape[0] / world->size, t->numel / world->size, true, out);
}

ax_status ax_dist_barrier(void)
{
  const ax_collective c = { .op = AX_BARRIER };
  return ax_dist_run(&c, NULL);
}
