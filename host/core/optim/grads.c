/* Norms of many gradients at once, and what is done with them: scaling, clamping, clipping, taking
 * the loss scale out. */
#include "core/ops/later.h"

#include "capture.h"
#include "ax.h"
#include "core/offload/scratch.h"

#include <math.h>
#include <string.h>

/* what the kernels take; other types go by a copy or by ops */
static const ax_dtype dtypes[] = { AX_F32, AX_F64 };

/* Sets *d to the next device: that of the first tensor from *at on with a device of its own, which
 * no earlier tensor is on.  Moves *at behind that tensor.  False at the end. */
static bool next_device(int n, ax_tensor *const *list, int *at, ax_device *d)
{
  while (*at < n) {
    const ax_tensor *t = list[(*at)++];
    bool seen = !t;
    for (int k = 0; !seen && k < *at - 1; k++) {
      if (!list[k]) continue;
      seen = ax_same_device(list[k]->device, t->device); /* mostly true for list[0] */
    }
    if (seen) continue;
    *d = t->device;
    return true;
  }
  return false;
}

/* Collects the tensors of a list that can go through one kernel call: contiguous ones of `dtype` on
 * `d`.  Neighbours are not merged: a norm must not depend on the tensors' addresses. */
static int segments_of(ax_device d, ax_dtype dtype, int n, ax_tensor *const *list, ax_segment *segs)
{
  int m = 0;
  for (int k = 0; k < n; k++)
    if (list[k] && list[k]->dtype == dtype && ax_same_device(list[k]->device, d) &&
        ax_tensor_is_contiguous(list[k])) {
      if (ax_recording) ax_capture_hold(list[k]->storage);
      segs[m++] = (ax_segment){ .grad = ax_data(list[k]), .n = list[k]->numel };
    }
  return m;
}

/* Gradients that rest in files do not stay in memory because they were looked at. */
static void let_go(int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k] && list[k]->device.kind == AX_CPU && list[k]->storage->data)
      ax_stretch_forget((char *)list[k]->storage->data + (size_t)list[k]->offset * ax_itemsize(list[k]),
                        (size_t)list[k]->numel * ax_itemsize(list[k]));
}

static ax_status new_segments(int n, ax_segment **out)
{
  *out = ax_calloc((size_t)(n ? n : 1), sizeof **out);
  return *out ? AX_OK : AX_ENOMEM;
}

static bool stands_alone(const ax_tensor *t)
{
  return t && ((t->dtype != AX_F32 && t->dtype != AX_F64) || !ax_tensor_is_contiguous(t));
}

static ax_status check_all_float(const char *what, int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k] && !ax_is_float((ax_dtype)list[k]->dtype))
      return ax_fail(AX_EDTYPE, "%s: tensor %d is %s; all must be of a floating-point type", what, k + 1,
                     ax_dtype_name((ax_dtype)list[k]->dtype));
  return AX_OK;
}

/* The sum, or the extreme, of two parts of a norm; a NaN wins. */
static double joined(double p, double a, double b)
{
  if (!isinf(p)) return a + b;
  if (a != a) return a;
  return b != b || (p > 0 ? b > a : b < a) ? b : a;
}

/* Adds what a float32 or float64 copy of `t` brings. */
static ax_status add_norm_of(ax_tensor *t, double p, double *sum)
{
  const ax_backend *backend;
  const ax_dtype dtype = t->dtype == AX_F64 ? AX_F64 : AX_F32;
  ax_tensor *cast = NULL, *flat = NULL;
  double part;
  ax_status st;

  AX_TRY(ax_backend_of(t->device, &backend));
  AX_TRY(ax_cast(t, dtype, &cast));
  AX_TRY(ax_contiguous(cast, &flat));
  AX_TRY(backend->grads->norm(t->device, dtype, &(ax_segment){ .grad = ax_data(flat), .n = flat->numel }, 1,
                              p, &part));
  *sum = joined(p, *sum, part);
out:
  ax_tensor_release(flat);
  ax_tensor_release(cast);
  return st;
}

ax_status ax_norm_all(int n, ax_tensor *const *list, double p, double *out)
{
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_segment *segs = NULL;
  double sum = p == -INFINITY ? INFINITY : 0;
  int64_t elements = 0;
  ax_device device;
  int at = 0;
  ax_status st;

  *out = 0;
  if (p == 0 || p != p) st = ax_fail(AX_ERANGE, "norm: norm_type must be a number other than 0, got %g", p);
  else st = check_all_float("norm", n, list);
  if (st != AX_OK) goto out;
  AX_TRY(new_segments(n, &segs));
  for (int k = 0; k < n; k++)
    if (list[k]) AX_TRY(ax_tensor_ready(list[k], AX_READ));
  while (next_device(n, list, &at, &device)) {
    AX_TRY(ax_backend_of(device, &backend));
    for (int d = 0; d < 2; d++) {
      const int m = segments_of(device, dtypes[d], n, list, segs);
      double part;
      if (!m) continue;
      AX_TRY(backend->grads->norm(device, dtypes[d], segs, m, p, &part));
      sum = joined(p, sum, part);
    }
  }
  for (int k = 0; k < n; k++) {
    if (list[k]) elements += list[k]->numel;
    if (stands_alone(list[k])) AX_TRY(add_norm_of(list[k], p, &sum));
  }
  *out = !elements ? 0 : isinf(p) ? sum : p == 2 ? sqrt(sum) : p == 1 ? sum : pow(sum, 1 / p);
out:
  let_go(n, list);
  ax_grad_set_enabled(recording);
  ax_mfree(segs);
  return st;
}

/* Runs a kernel that rewrites float32 and float64 tensors, and an op on the others. */
static ax_status rewrite_all(const char *what, int n, ax_tensor *const *list, double number, bool clamp)
{
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_segment *segs = NULL;
  ax_device device;
  int at = 0;
  ax_status st;

  AX_TRY(check_all_float(what, n, list));
  AX_TRY(new_segments(n, &segs));
  for (int k = 0; k < n; k++)
    if (list[k]) AX_TRY(ax_tensor_ready(list[k], AX_WRITE));
  while (next_device(n, list, &at, &device)) {
    AX_TRY(ax_backend_of(device, &backend));
    for (int d = 0; d < 2; d++) {
      const int m = segments_of(device, dtypes[d], n, list, segs);
      if (m)
        AX_TRY((clamp ? backend->grads->clamp : backend->grads->scale)(device, dtypes[d], segs, m, number));
    }
  }
  for (int k = 0; k < n; k++) {
    if (!list[k]) continue;
    if (!stands_alone(list[k])) {
      ax_touch(list[k]);
      continue;
    }
    ax_args args = { .n_in = 2, .in = (ax_tensor *[]){ list[k], NULL }, .scalars = 2, .num = { 0, number } };
    if (!clamp) AX_TRY(ax_run_inplace(AX_OP_MUL, &args, list[k]));
    else {
      AX_TRY(ax_run_inplace(AX_OP_MINIMUM, &args, list[k]));
      args.num[1] = -number;
      AX_TRY(ax_run_inplace(AX_OP_MAXIMUM, &args, list[k]));
    }
  }
out:
  let_go(n, list);
  ax_grad_set_enabled(recording);
  ax_mfree(segs);
  return st;
}

ax_status ax_scale_all(int n, ax_tensor *const *list, double factor)
{
  return rewrite_all("scale", n, list, factor, false);
}
ax_status ax_clamp_all(int n, ax_tensor *const *list, double limit)
{
  return rewrite_all("clamp", n, list, limit, true);
}

/* ---- without a wait: the numbers stay on the tensors' device */

/* The one device that all tensors are on; the CPU where there are no tensors. */
static ax_status one_device(const char *what, int n, ax_tensor *const *list, ax_device *d)
{
  const ax_tensor *first = NULL;
  char a[16], b[16];

  *d = (ax_device){ AX_CPU, 0 };
  for (int k = 0; k < n; k++) {
    if (!list[k]) continue;
    if (!first) first = list[k];
    if (!ax_same_device(first->device, list[k]->device))
      return ax_fail(AX_EINVAL, "%s: tensor %d lies on %s and others on %s; all must lie on one device", what,
                     k + 1, ax_device_text(list[k]->device, a, sizeof a),
                     ax_device_text(first->device, b, sizeof b));
  }
  if (first) *d = first->device;
  return check_all_float(what, n, list);
}

/* A float32 or float64 copy of `t` that is contiguous, or `t` itself where it is that. */
static ax_status plain_copy(ax_tensor *t, ax_tensor **out)
{
  ax_tensor *cast;
  ax_status st = ax_cast(t, t->dtype == AX_F64 ? AX_F64 : AX_F32, &cast);
  if (st == AX_OK) st = ax_contiguous(cast, out);
  ax_tensor_release(cast);
  return st;
}

/* The norm of tensors that no single call of the kernel takes, in `count` parts: those of either
 * type, and each that stands alone.  Parts add up, or the extreme of extremes is taken. */
static ax_status norm_of_parts(const ax_backend *backend, ax_device device, int n, ax_tensor *const *list,
                               double p, ax_segment *segs, int64_t count, ax_tensor *total)
{
  const double root = isinf(p) ? 1 : p, join = isinf(p) ? p : 1;
  ax_tensor *parts = NULL, *plain = NULL;
  double *at;
  ax_status st;

  AX_TRY(ax_tensor_new_on(device, AX_F64, 1, &count, &parts));
  at = ax_data(parts);
  for (int d = 0; d < 2; d++) {
    const int m = segments_of(device, dtypes[d], n, list, segs);
    if (m) AX_TRY(backend->grads->norm_into(device, dtypes[d], segs, m, p, 1, at++));
  }
  for (int k = 0; k < n; k++) {
    if (!stands_alone(list[k])) continue;
    AX_TRY(plain_copy(list[k], &plain));
    AX_TRY(backend->grads->norm_into(device, (ax_dtype)plain->dtype,
                                     &(ax_segment){ .grad = ax_data(plain), .n = plain->numel }, 1, p, 1,
                                     at++));
    ax_tensor_release(plain);
    plain = NULL;
  }
  AX_TRY(backend->grads->norm_into(device, AX_F64, &(ax_segment){ .grad = ax_data(parts), .n = count }, 1,
                                   join, root, ax_data(total)));
out:
  ax_tensor_release(parts);
  ax_tensor_release(plain);
  return st;
}

ax_status ax_norm_tensor(int n, ax_tensor *const *list, double p, ax_tensor **out)
{
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_tensor *total = NULL;
  ax_segment *segs = NULL;
  int64_t elements = 0;
  int m[2], alone = 0;
  ax_device device;
  ax_status st;

  *out = NULL;
  if (p == 0 || p != p) {
    st = ax_fail(AX_ERANGE, "norm: norm_type must be a number other than 0, got %g", p);
    goto out;
  }
  AX_TRY(one_device("norm", n, list, &device));
  AX_TRY(ax_backend_of(device, &backend));
  AX_TRY(new_segments(n, &segs));
  AX_TRY(ax_tensor_new_on(device, AX_F64, 0, NULL, &total));
  for (int k = 0; k < n; k++) {
    if (list[k]) AX_TRY(ax_tensor_ready(list[k], AX_READ));
    if (list[k]) elements += list[k]->numel;
    alone += stands_alone(list[k]);
  }
  for (int d = 0; d < 2; d++) m[d] = segments_of(device, dtypes[d], n, list, segs);
  const int64_t count = (m[0] > 0) + (m[1] > 0) + alone;
  if (elements == 0) AX_TRY(ax_fill(total, 0));
  else if (count == 1 && !alone) { /* nearly always */ const ax_dtype dtype = m[0] ? AX_F32 : AX_F64;
    AX_TRY(backend->grads->norm_into(device, dtype, segs, segments_of(device, dtype, n, list, segs), p,
                                     isinf(p) ? 1 : p, ax_data(total)));
  } else AX_TRY(norm_of_parts(backend, device, n, list, p, segs, count, total));
  *out = total;
  total = NULL;
out:
  let_go(n, list);
  ax_grad_set_enabled(recording);
  ax_tensor_release(total);
  ax_mfree(segs);
  return st;
}

/* Runs `change` over all of a list, with a copy in between where the kernels do not take the tensor
 * as it is. */
typedef ax_status (*changer)(const ax_backend *b, ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                             const void *ud);

static ax_status change_all(const char *what, int n, ax_tensor *const *list, changer change, const void *ud)
{
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_segment *segs = NULL;
  ax_tensor *plain = NULL;
  ax_device device;
  ax_status st;

  AX_TRY(one_device(what, n, list, &device));
  AX_TRY(ax_backend_of(device, &backend));
  AX_TRY(new_segments(n, &segs));
  for (int k = 0; k < n; k++) {
    if (list[k]) AX_TRY(ax_tensor_ready(list[k], AX_WRITE));
    if (list[k] && !stands_alone(list[k])) ax_touch(list[k]);
  }
  for (int d = 0; d < 2; d++) {
    const int m = segments_of(device, dtypes[d], n, list, segs);
    if (m) AX_TRY(change(backend, device, dtypes[d], segs, m, ud));
  }
  for (int k = 0; k < n; k++) {
    if (!stands_alone(list[k])) continue;
    AX_TRY(plain_copy(list[k], &plain));
    AX_TRY(change(backend, device, (ax_dtype)plain->dtype,
                  &(ax_segment){ .grad = ax_data(plain), .n = plain->numel }, 1, ud));
    AX_TRY(ax_copy(list[k], plain));
    ax_tensor_release(plain);
    plain = NULL;
  }
out:
  let_go(n, list);
  ax_grad_set_enabled(recording);
  ax_tensor_release(plain);
  ax_mfree(segs);
  return st;
}

/* Is `t` one number of type `dtype` on the device of the first tensor of the list? */
static ax_status check_number(const char *what, const char *name, const ax_tensor *t, ax_dtype dtype, int n,
                              ax_tensor *const *list)
{
  char a[16], b[16];
  int k = 0;

  while (k < n && !list[k]) k++;
  if (ax_recording) ax_capture_hold(t->storage);
  if (t->dtype != dtype || t->numel != 1)
    return ax_fail(AX_EDTYPE, "%s: %s must be one %s, got %lld of %s", what, name, ax_dtype_name(dtype),
                   (long long)t->numel, ax_dtype_name((ax_dtype)t->dtype));
  if (k < n && !ax_same_device(t->device, list[k]->device))
    return ax_fail(AX_EINVAL, "%s: %s lies on %s and the tensors on %s", what, name,
                   ax_device_text(t->device, a, sizeof a), ax_device_text(list[k]->device, b, sizeof b));
  return AX_OK;
}

struct clip_numbers {
  double max_norm;
  const double *norm;
};
static ax_status clip(const ax_backend *b, ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                      const void *ud)
{
  const struct clip_numbers *c = ud;
  return b->grads->clip(d, dtype, segs, n, c->max_norm, c->norm);
}

enum { FEW = 16 };

/* The storages of the list, at most FEW; 0 where there are more, or a tensor that a kernel does not
 * take as it is. */
static int storages_of(int n, ax_tensor *const *list, const ax_tensor **first)
{
  int m = 0;
  for (int k = 0; k < n; k++) {
    int i = 0;
    if (!list[k]) continue;
    if (stands_alone(list[k]) || list[k]->grad_fn) return 0;
    while (i < m && first[i]->storage != list[k]->storage) i++;
    if (i == FEW) return 0;
    if (i == m) first[m++] = list[k];
    if (list[k]->dtype != first[i]->dtype) return 0;
  }
  return m;
}

/* Lets clipping wait for the optimizer's pass, a call for each storage (ops/later.c); *from: the
 * tensors that could not wait, in `rest`. */
static ax_status clip_later(int n, ax_tensor *const *list, double max_norm, ax_tensor *norm, ax_tensor **rest)
{
  const ax_tensor *first[FEW];
  const int m = storages_of(n, list, first);
  ax_span *runs = ax_malloc((size_t)(n ? n : 1) * sizeof *runs);
  ax_status st = AX_OK;

  if (!runs) return AX_ENOMEM;
  memcpy(rest, list, (size_t)n * sizeof *rest);
  for (int i = 0; i < m; i++) {
    ax_storage *const s = first[i]->storage;
    int64_t elements = 0;
    int count = 0;
    for (int k = 0; k < n; k++) {
      if (!list[k] || list[k]->storage != s || !list[k]->numel) continue;
      runs[count++] = (ax_span){ list[k]->offset, list[k]->numel };
      elements += list[k]->numel;
    }
    if (elements < AX_LATER_LEAST) continue;
    for (int k = 0; k < n; k++)
      if (list[k] && list[k]->storage == s) AX_TRY(ax_tensor_ready(list[k], AX_WRITE));
    if (!ax_later_clip(s, (ax_dtype)first[i]->dtype, count, runs, max_norm, norm)) continue;
    for (int k = 0; k < n; k++)
      if (list[k] && list[k]->storage == s) {
        ax_touch(list[k]);
        rest[k] = NULL;
      }
  }
out:
  ax_mfree(runs);
  return st;
}

ax_status ax_clip_all(int n, ax_tensor *const *list, double max_norm, ax_tensor *norm)
{
  const struct clip_numbers numbers = { max_norm, ax_data(norm) };
  ax_tensor **rest = NULL;
  ax_device device;
  ax_status st;

  AX_TRY(check_number("clip", "norm", norm, AX_F64, n, list));
  AX_TRY(one_device("clip", n, list, &device));
  rest = ax_malloc((size_t)(n ? n : 1) * sizeof *rest);
  if (!rest) return AX_ENOMEM;
  AX_TRY(ax_tensor_ready(norm, AX_READ));
  AX_TRY(clip_later(n, list, max_norm, norm, rest));
  st = change_all("clip", n, rest, clip, &numbers);
out:
  ax_mfree(rest);
  return st;
}

struct scale_numbers {
  const float *scale;
  float *found;
};
static ax_status unscale(const ax_backend *b, ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                         const void *ud)
{
  const struct scale_numbers *s = ud;
  return b->grads->unscale(d, dtype, segs, n, s->scale, s->found);
}

ax_status ax_unscale_all(int n, ax_tensor *const *list, ax_tensor *scale, ax_tensor *found)
{
  ax_status st = check_number("unscale", "scale", scale, AX_F32, n, list);
  if (st == AX_OK) st = check_number("unscale", "found", found, AX_F32, n, list);
  if (st == AX_OK) st = ax_tensor_ready(scale, AX_READ);
  if (st == AX_OK) st = ax_tensor_ready(found, AX_WRITE);
  if (st != AX_OK) return st;
  ax_touch(found);
  return change_all("unscale", n, list, unscale, &(struct scale_numbers){ ax_data(scale), ax_data(found) });
}

ax_status ax_scale_update(ax_tensor *state, ax_tensor *found, double growth, double backoff, int64_t interval)
{
  const ax_backend *backend;
  ax_status st = check_number("scale update", "found", found, AX_F32, 1, &state);

  if (st != AX_OK) return st;
  if (state->dtype != AX_F64 || state->numel != 2 || !ax_tensor_is_contiguous(state))
    return ax_fail(AX_EDTYPE, "scale update: state must be two float64 numbers, got %lld of %s",
                   (long long)state->numel, ax_dtype_name((ax_dtype)state->dtype));
  if ((st = ax_backend_of(state->device, &backend)) != AX_OK) return st;
  if (ax_recording) ax_capture_hold(state->storage);
  if ((st = ax_tensor_ready(state, AX_WRITE)) != AX_OK || (st = ax_tensor_ready(found, AX_READ)) != AX_OK)
    return st;
  ax_touch(state);
  return backend->grads->scale_update(state->device, ax_data(state), ax_data(found), growth, backoff,
                                      interval);
}
