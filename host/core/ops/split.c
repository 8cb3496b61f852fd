/* split and unbind: ops with as many results as the caller likes.  The tape sees them as a function
 * of its own kind, because an op of the table has at most AX_MAX_OUT results, and a view for each
 * of k parts would cost k gradients of the whole. */
#include "core/ops/infer.h"

#include <string.h>

enum { MOST = 255 }; /* results of one node */

/* What the gradient needs to know of the tensor that was taken apart. */
typedef struct parts {
  int64_t dim;
  bool unbound;
  ax_dtype dtype;
  ax_device device;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  int64_t sizes[]; /* the parts' sizes along dim */
} parts;

/* Only one part has a gradient: it goes into zeros. */
static ax_status place_one(const parts *p, int64_t start, ax_tensor *g, ax_tensor **out)
{
  ax_args args = { .n_in = 1,
                   .in = &g,
                   .a = { .slice_backward = { .dim = p->dim, .start = start, .step = 1 },
                          .n_list = p->ndim } };
  ax_tensor *results[AX_MAX_OUT] = { 0 }, *wide[AX_MAX_OUT] = { 0 };
  ax_status st = AX_OK;

  memcpy(args.a.list, p->shape, sizeof args.a.list);
  if (p->unbound) {
    AX_TRY(ax_run(AX_OP_UNSQUEEZE, &(ax_args){ .n_in = 1, .in = &g, .a = AX_ATTRS(unsqueeze, .dim = p->dim) },
                  wide));
    args.in = wide;
  }
  AX_TRY(ax_run(AX_OP_SLICE_BACKWARD, &args, results));
  *out = results[0];
out:
  ax_tensor_release(wide[0]);
  return st;
}

static ax_status zeros_for(const parts *p, int k, ax_tensor **out)
{
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < p->ndim; d++)
    if (d != p->dim) shape[n++] = p->shape[d];
    else if (!p->unbound) shape[n++] = p->sizes[k];
  return ax_tensor_zeros_on(p->device, p->dtype, n, shape, out);
}

static ax_status join(void *ud, int n, ax_tensor *const *grads, int n_in, ax_tensor **result)
{
  const parts *p = ud;
  ax_tensor **list = NULL, *results[AX_MAX_OUT] = { 0 };
  int64_t start = 0, at = 0;
  int given = 0, last = 0;
  ax_status st = AX_OK;

  for (int k = 0; k < n; at += p->sizes[k++])
    if (grads[k]) {
      given++;
      last = k;
      start = at;
    }
  if (given == 1) return place_one(p, start, grads[last], result);
  if (!(list = ax_calloc((size_t)n, sizeof *list))) return AX_ENOMEM;
  for (int k = 0; k < n; k++) {
    if (grads[k]) list[k] = ax_tensor_retain(grads[k]);
    else AX_TRY(zeros_for(p, k, &list[k]));
  }
  AX_TRY(ax_run(p->unbound ? AX_OP_STACK : AX_OP_CAT,
                &(ax_args){ .n_in = n, .in = list, .a = AX_ATTRS(joined, .dim = p->dim) }, results));
  result[0] = results[0];
out:
  for (int k = 0; k < n; k++) ax_tensor_release(list[k]);
  ax_mfree(list);
  return st;
}

static void drop(void *ud) { ax_mfree(ud); }

/* At most MOST parts; sizes NULL: unbind. */
static ax_status take_apart(ax_tensor *x, int dim, int n, const int64_t *sizes, ax_tensor **out)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], at = x->offset;
  parts *p = NULL;
  int m = 0;
  ax_status st = AX_OK;

  for (int d = 0; d < x->ndim; d++) {
    if (!sizes && d == dim) continue;
    shape[m] = x->shape[d];
    strides[m++] = x->strides[d];
  }
  for (int k = 0; k < n; k++) {
    if (sizes) shape[dim] = sizes[k];
    AX_TRY(ax_tensor_view(x, m, shape, strides, shape[dim] || !sizes ? at : x->offset, &out[k]));
    ax_view_of(out[k], x);
    at += (sizes ? sizes[k] : 1) * x->strides[dim];
  }
  if (!ax_would_record(1, &x)) return AX_OK;
  if (!(p = ax_malloc(sizeof *p + sizeof *p->sizes * (size_t)n))) {
    st = AX_ENOMEM;
    goto out;
  }
  *p = (parts){
    .dim = dim, .unbound = !sizes, .dtype = (ax_dtype)x->dtype, .device = x->device, .ndim = x->ndim
  };
  memcpy(p->shape, x->shape, sizeof p->shape);
  for (int k = 0; k < n; k++) p->sizes[k] = sizes ? sizes[k] : 1;
  AX_TRY(ax_custom_record(sizes ? "split" : "unbind", 1, &x, n, out, join, drop, p));
  return AX_OK;
out:
  ax_mfree(p);
  for (int k = 0; k < n; k++) {
    ax_tensor_release(out[k]);
    out[k] = NULL;
  }
  return st;
}

static ax_status check(const char *name, ax_tensor *x, int dim, int64_t total)
{
  char text[AX_SHAPE_TEXT];
  if (x->ndim == 0) return ax_fail(AX_ESHAPE, "%s: a 0-d tensor has no dim to take apart", name);
  if (total != x->shape[dim])
    return ax_fail(AX_ESHAPE, "%s: the sizes add up to %lld, but dim %d of shape %s has %lld positions", name,
                   (long long)total, dim + 1, ax_shape_text(x->ndim, x->shape, text, sizeof text),
                   (long long)x->shape[dim]);
  return ax_grad_enabled() ? ax_history(x) : AX_OK;
}

/* In groups where one node has no room: the groups are parts themselves. */
static ax_status in_groups(ax_tensor *x, int dim, int n, const int64_t *sizes, ax_tensor **out)
{
  const int groups = (n + MOST - 1) / MOST;
  int64_t *wide = ax_calloc((size_t)groups, sizeof *wide);
  ax_tensor **group = ax_calloc((size_t)groups, sizeof *group);
  ax_status st = wide && group ? AX_OK : AX_ENOMEM;
  int k = 0;

  if (st != AX_OK) goto out;
  for (int j = 0; j < n; j++) wide[j / MOST] += sizes ? sizes[j] : 1;
  AX_TRY((groups > MOST ? in_groups : take_apart)(x, dim, groups, wide, group));
  for (; k < groups; k++)
    AX_TRY(take_apart(group[k], dim, k + 1 < groups ? MOST : n - k * MOST, sizes ? sizes + k * MOST : NULL,
                      out + k * MOST));
out:
  if (st != AX_OK)
    for (int j = 0; j < k * MOST; j++) {
      ax_tensor_release(out[j]);
      out[j] = NULL;
    }
  for (int j = 0; group && j < groups; j++) ax_tensor_release(group[j]);
  ax_mfree(group);
  ax_mfree(wide);
  return st;
}

ax_status ax_split_into(ax_tensor *x, int dim, int n, const int64_t *sizes, ax_tensor **out)
{
  int64_t total = 0;
  ax_status st;

  memset(out, 0, sizeof *out * (size_t)n);
  for (int k = 0; k < n; k++)
    if (sizes[k] < 0 || __builtin_add_overflow(total, sizes[k], &total))
      return ax_fail(AX_ERANGE, "split: size %d is %lld", k + 1, (long long)sizes[k]);
  if ((st = check("split", x, dim, total)) != AX_OK) return st;
  return n == 0 ? AX_OK
                : (n > MOST && ax_would_record(1, &x) ? in_groups : take_apart)(x, dim, n, sizes, out);
}

ax_status ax_unbind_into(ax_tensor *x, int dim, int n, ax_tensor **out)
{
  ax_status st;

  memset(out, 0, sizeof *out * (size_t)n);
  if ((st = check("unbind", x, dim, n)) != AX_OK) return st;
  return n == 0 ? AX_OK : (n > MOST && ax_would_record(1, &x) ? in_groups : take_apart)(x, dim, n, NULL, out);
}
