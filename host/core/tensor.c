/* Tensors: counted views over storages.  What a tensor means to autograd is in autograd.c; here are
 * its bytes and its life. */
#include "core/core.h"
#include "core/memory/lasting.h"
#include "core/tape/graph.h"

#include <string.h>

static ax_tensor *new_struct(void)
{
  ax_tensor *t = ax_spare_new(sizeof *t);
  if (!t) return NULL;
  memset(t, 0, sizeof *t);
  t->refs = 1;
  return t;
}

static void version_release(ax_version *v)
{
  if (v->refs > 0 && --v->refs == 0) ax_mfree(v);
}

static ax_version *version_retain(ax_version *v)
{
  if (v->refs > 0) v->refs++;
  return v;
}

typedef ax_status new_storage(ax_device device, size_t bytes, bool *zeros, ax_storage **out);

/* A new tensor; *zeros says whether its elements are known to be 0. */
static ax_status new_fresh(new_storage *new, ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                           bool *zeros, ax_tensor **out)
{
  ax_status st;
  ax_storage *s = NULL;
  int64_t numel, strides[AX_MAX_DIMS];
  size_t bytes;

  *out = NULL;
  AX_TRY(ax_shape_checked_bytes(ndim, shape, ax_dtype_size(dtype), &numel, &bytes));
  AX_TRY(new (device, bytes, zeros, &s));
  ax_strides_contiguous(ndim, shape, strides);
  st = ax_tensor_over(s, dtype, ndim, shape, strides, 0, out);
out:
  ax_storage_release(s);
  return st;
}

ax_status ax_tensor_new_on(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out)
{
  bool zeros;
  return new_fresh(ax_storage_new_fresh, device, dtype, ndim, shape, &zeros, out);
}

ax_status ax_tensor_new_padded(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                               ax_tensor **out)
{
  int64_t strides[AX_MAX_DIMS], numel;
  ax_storage *s = NULL;
  size_t bytes;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_shape_checked_bytes(ndim, shape, ax_dtype_size(dtype), &numel, &bytes));
  numel = ax_strides_padded(ndim, shape, strides);
  AX_TRY(ax_shape_checked_bytes(1, &numel, ax_dtype_size(dtype), &numel, &bytes));
  AX_TRY(ax_storage_new(device, bytes, &s));
  st = ax_tensor_over(s, dtype, ndim, shape, strides, 0, out);
out:
  ax_storage_release(s);
  return st;
}

static ax_status new_zeros(new_storage *new, ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                           ax_tensor **out)
{
  bool zeros;
  ax_status st = new_fresh(new, device, dtype, ndim, shape, &zeros, out);

  if (st == AX_OK && !zeros && (st = ax_fill(*out, 0)) != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

ax_status ax_tensor_zeros_on(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                             ax_tensor **out)
{
  return new_zeros(ax_storage_new_fresh, device, dtype, ndim, shape, out);
}

ax_status ax_tensor_zeros_lasting(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                  ax_tensor **out)
{
  return new_zeros(ax_storage_new_lasting, device, dtype, ndim, shape, out);
}

ax_status ax_tensor_new(ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out)
{
  return ax_tensor_new_on((ax_device){ AX_CPU, 0 }, dtype, ndim, shape, out);
}

ax_status ax_tensor_over(ax_storage *s, ax_dtype dtype, int ndim, const int64_t *shape,
                         const int64_t *strides, int64_t offset, ax_tensor **out)
{
  ax_tensor *t = new_struct();
  *out = t;
  if (!t) return AX_ENOMEM;
  t->dtype = (uint8_t)dtype;
  t->ndim = (uint8_t)ndim;
  t->device = s->device;
  t->offset = offset;
  t->numel = 1;
  for (int d = 0; d < ndim; d++) {
    t->shape[d] = shape[d];
    t->strides[d] = strides[d];
    t->numel *= shape[d];
  }
  t->storage = ax_storage_retain(s);
  t->version = &s->version;
  return AX_OK;
}

ax_status ax_tensor_window(const ax_tensor *t, int ndim, const int64_t *shape, const int64_t *strides,
                           int64_t offset, ax_tensor **out)
{
  const size_t item = ax_itemsize(t), held = t->storage->bytes / item;
  char text[2][AX_SHAPE_TEXT];
  int64_t numel, step, last = offset;
  size_t bytes;
  bool fits = offset >= 0;
  ax_status st;

  *out = NULL;
  if ((st = ax_shape_checked_bytes(ndim, shape, item, &numel, &bytes)) != AX_OK) return st;
  for (int d = 0; d < ndim && fits; d++) {
    fits = strides[d] >= 0;
    if (numel > 0)
      fits = fits && !__builtin_mul_overflow(shape[d] - 1, strides[d], &step) &&
             !__builtin_add_overflow(last, step, &last);
  }
  if (!fits || (uint64_t)last > held || (numel > 0 && (uint64_t)last == held))
    return ax_fail(AX_ERANGE, "sizes %s at strides %s from element %lld on do not fit memory of %zu elements",
                   ax_shape_text(ndim, shape, text[0], sizeof text[0]),
                   ax_shape_text(ndim, strides, text[1], sizeof text[1]), (long long)offset, held);
  return ax_tensor_over(t->storage, (ax_dtype)t->dtype, ndim, shape, strides, offset, out);
}

ax_status ax_tensor_view(const ax_tensor *t, int ndim, const int64_t *shape, const int64_t *strides,
                         int64_t offset, ax_tensor **out)
{
  const ax_status st = ax_tensor_over(t->storage, (ax_dtype)t->dtype, ndim, shape, strides, offset, out);
  if (st != AX_OK) return st;
  (*out)->version = version_retain(t->version);
  return AX_OK;
}

ax_status ax_tensor_alias(const ax_tensor *t, ax_tensor **out)
{
  return ax_tensor_view(t, t->ndim, t->shape, t->strides, t->offset, out);
}

ax_status ax_tensor_alias_shared(ax_tensor *t, ax_tensor **out)
{
  const ax_status st = ax_tensor_alias(t, out);
  if (st == AX_OK) (*out)->shared = t->shared = true;
  return st;
}

/* The strides of `t` in elements `ratio` times as large (or, where `smaller`, as small). */
static ax_status strides_in(const ax_tensor *t, ax_dtype d, bool smaller, int64_t ratio, int64_t *strides)
{
  const char *from = ax_dtype_name((ax_dtype)t->dtype), *to = ax_dtype_name(d);
  const int last = t->ndim - 1;
  char text[AX_SHAPE_TEXT];

  if (ratio == 1) return AX_OK;
  if (last < 0)
    return ax_fail(AX_ESHAPE, "view: one %s has another size than one %s, and a 0-d tensor has no dim for it",
                   from, to);
  if (strides[last] != 1)
    return ax_fail(AX_ESHAPE, "view: %s as %s needs elements side by side in the last dim, got strides %s",
                   from, to, ax_shape_text(t->ndim, strides, text, sizeof text));
  if (!smaller && (t->shape[last] % ratio || t->offset % ratio))
    return ax_fail(
        AX_ESHAPE,
        "view: %lld %s make one %s, which the last dim of shape %s or its place (%lld) is no multiple of",
        (long long)ratio, from, to, ax_shape_text(t->ndim, t->shape, text, sizeof text),
        (long long)t->offset);
  for (int i = 0; i < last; i++) {
    if (!smaller && strides[i] % ratio)
      return ax_fail(AX_ESHAPE, "view: %lld %s make one %s, which the strides %s are no multiples of",
                     (long long)ratio, from, to, ax_shape_text(t->ndim, t->strides, text, sizeof text));
    strides[i] = smaller ? strides[i] * ratio : strides[i] / ratio;
  }
  return AX_OK;
}

ax_status ax_tensor_view_as(ax_tensor *t, ax_dtype d, ax_tensor **out)
{
  const int64_t was = (int64_t)ax_itemsize(t), is = (int64_t)ax_dtype_size(d);
  const int64_t ratio = was > is ? was / is : is / was;
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], offset = t->offset;
  ax_status st;

  memcpy(shape, t->shape, sizeof shape);
  memcpy(strides, t->strides, sizeof strides);
  if (d == AX_BOOL && t->dtype != AX_BOOL)
    return ax_fail(AX_EDTYPE,
                   "view: the bytes of %s need not be 0 or 1, as those of bool are; x:ne(0) compares",
                   ax_dtype_name((ax_dtype)t->dtype));
  if ((st = strides_in(t, d, was > is, ratio, strides)) != AX_OK) return st;
  if (was > is) shape[t->ndim - 1] *= ratio, offset *= ratio;
  if (was < is) shape[t->ndim - 1] /= ratio, offset /= ratio;
  if ((uintptr_t)t->storage->data % (uintptr_t)is)
    return ax_fail(AX_ESHAPE,
                   "view: the memory of this %s tensor does not begin where a %s may; clone it first",
                   ax_dtype_name((ax_dtype)t->dtype), ax_dtype_name(d));
  st = ax_tensor_view(t, t->ndim, shape, strides, offset, out);
  if (st != AX_OK) return st;
  (*out)->dtype = (uint8_t)d;
  (*out)->shared = t->shared = true;
  return AX_OK;
}

ax_status ax_tensor_scalar(ax_dtype dtype, double value, ax_tensor **out)
{
  const ax_status st = ax_tensor_new(dtype, 0, NULL, out);
  if (st == AX_OK) ax_store_double(dtype, ax_data(*out), 0, value);
  return st;
}

ax_tensor *ax_tensor_retain(ax_tensor *t)
{
  t->refs++;
  return t;
}

/* Releasing a graph must not recurse: a chain of a million ops is freed by ax_node_release's own
 * list.  (A leaf's accumulate node holds the leaf, so there is none any more when a leaf goes.) */
void ax_tensor_release(ax_tensor *t)
{
  if (!t || --t->refs > 0) return;
  ax_node *node = t->grad_fn;
  t->grad_fn = NULL;
  ax_hooks_drop(&t->hooks);
  ax_tensor_release(t->grad);
  ax_tensor_release(t->base); /* (a base has none itself) */
  version_release(t->version);
  ax_storage_release(t->storage);
  ax_spare_free(t, sizeof *t);
  if (node) ax_node_release(node);
}

bool ax_tensor_is_contiguous(const ax_tensor *t)
{
  return ax_strides_are_contiguous(t->ndim, t->shape, t->strides);
}

/* ---- moving a tensor to other memory */

/* Swaps what t looks at; takes nothing, retains s.  A parameter leaves its flat layout. */
static void point_at(ax_tensor *t, ax_storage *s, int64_t offset, ax_version *version)
{
  t->flat = NULL;
  ax_storage_retain(s);
  version_release(t->version); /* it may lie inside the storage, so it goes first */
  ax_storage_release(t->storage);
  t->storage = s;
  t->offset = offset;
  t->device = s->device;
  t->version = version;
  ax_view_forget(t);
}

ax_status ax_tensor_unshare(ax_tensor *t)
{
  ax_tensor *laid;
  ax_storage *former = t->storage;
  ax_status st = ax_tensor_new_on(t->device, (ax_dtype)t->dtype, t->ndim, t->shape, &laid);

  if (st != AX_OK) return st;
  if ((st = ax_copy(laid, t)) == AX_OK) {
    /* what was saved of t outside the graph compares with it */
    laid->storage->version.edits = t->version->edits;
    t->storage = ax_storage_retain(laid->storage);
    t->version = &t->storage->version;
    t->offset = 0;
    memcpy(t->strides, laid->strides, sizeof t->strides);
    ax_storage_release(former);
  }
  ax_tensor_release(laid);
  return st;
}

void ax_tensor_become(ax_tensor *t, const ax_tensor *place, ax_version *own)
{
  point_at(t, place->storage, place->offset, own);
  memcpy(t->strides, place->strides, sizeof t->strides);
}

ax_status ax_tensor_set_data(ax_tensor *t, const ax_tensor *src)
{
  ax_version *own;
  if (t->grad_fn)
    return ax_fail(AX_EGRAD, "data: the tensor is the result of %s; only a leaf's data can be set",
                   ax_grad_fn_name(t));
  if (t->requires_grad && !ax_has_gradient((ax_dtype)src->dtype))
    return ax_fail(AX_EDTYPE, "data: a tensor that requires a gradient cannot hold %s",
                   ax_dtype_name((ax_dtype)src->dtype));
  if (!(own = ax_malloc(sizeof *own))) return AX_ENOMEM;
  *own = (ax_version){ .refs = 1, .edits = t->version->edits + 1 };
  point_at(t, src->storage, src->offset, own);
  t->dtype = src->dtype;
  t->ndim = src->ndim;
  t->numel = src->numel;
  memcpy(t->shape, src->shape, sizeof t->shape);
  memcpy(t->strides, src->strides, sizeof t->strides);
  return AX_OK;
}
