/* Devices: their names and numbers, and moving elements between them. */
#include "core/core.h"
#include "core/device/meta.h"
#include "core/core.h"
#include "core/dist/watch.h"

#include <stdio.h>

const char *ax_device_text(ax_device d, char *buf, size_t size)
{
  if (d.kind == AX_CPU) return "cpu";
  if (d.kind == AX_META) return "meta";
  snprintf(buf, size, "cuda:%d", d.index);
  return buf;
}

int ax_device_count(ax_device_kind kind)
{
  const ax_backend *backend;
  if (ax_backend_of((ax_device){ (uint8_t)kind, 0 }, &backend) != AX_OK) return 0;
  return backend->memory ? backend->memory->count() : 1;
}

static int chosen = -1;

ax_status ax_device_choose(ax_device d)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(d, &backend);
  if (st == AX_OK && backend->memory && backend->memory->choose) backend->memory->choose(d.index);
  if (st == AX_OK && d.kind == AX_CUDA) chosen = d.index;
  return st;
}

int ax_device_chosen(void) { return chosen; }

ax_status ax_device_bus(ax_device d, char id[32])
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(d, &backend);
  id[0] = '\0';
  return st == AX_OK && backend->memory && backend->memory->bus ? backend->memory->bus(d.index, id) : st;
}

ax_status ax_device_synchronize(ax_device d)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(d, &backend);
  if (st != AX_OK || !backend->memory) return st;
  return backend->memory->synchronize(d.index);
}

/* Bytes of a contiguous tensor to a contiguous one. */
static ax_status move_bytes(ax_tensor *dst, const ax_tensor *src, bool later)
{
  const ax_device there = dst->device.kind != AX_CPU ? dst->device : src->device;
  const ax_backend *backend;
  ax_status st = ax_backend_of(there, &backend);
  if (st != AX_OK || src->numel == 0) return st;
  ax_launch_begin(dst->device, "copy");
  st = (later && backend->memory->copy_later ? backend->memory->copy_later
                                             : backend->memory->copy)(dst->device, ax_data(dst), src->device,
                                                                      ax_data(src),
                                                                      (size_t)src->numel * ax_itemsize(src));
  ax_launch_end();
  return st;
}

/* The source is cast and made contiguous on its own device; bytes are copied after that. */
ax_status ax_transfer(ax_tensor *dst, ax_tensor *src, bool later)
{
  ax_tensor *packed = NULL, *landed = NULL;
  ax_status st = AX_OK;

  AX_TRY(ax_tensor_ready(src, AX_READ)); /* before its place among the work of the device is fixed */
  AX_TRY(ax_tensor_ready(dst, AX_WRITE));
  if (src->dtype != dst->dtype || !ax_tensor_is_contiguous(src)) {
    AX_TRY(ax_tensor_new_on(src->device, (ax_dtype)dst->dtype, src->ndim, src->shape, &packed));
    AX_TRY(ax_copy(packed, src));
  } else packed = ax_tensor_retain(src);
  if (ax_tensor_is_contiguous(dst)) st = move_bytes(dst, packed, later);
  else {
    AX_TRY(ax_tensor_new_on(dst->device, (ax_dtype)dst->dtype, dst->ndim, dst->shape, &landed));
    AX_TRY(move_bytes(landed, packed, false));
    st = ax_copy(dst, landed);
  }
out:
  ax_tensor_release(packed);
  ax_tensor_release(landed);
  return st;
}

/* ---- pinned memory, and what is sent ahead */

ax_status ax_tensor_new_pinned(ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out)
{
  int64_t numel, strides[AX_MAX_DIMS];
  ax_storage *s = NULL;
  size_t bytes;
  ax_status st;

  *out = NULL;
  if ((st = ax_shape_checked_bytes(ndim, shape, ax_dtype_size(dtype), &numel, &bytes)) != AX_OK ||
      (st = ax_storage_new_pinned(bytes, &s)) != AX_OK)
    return st;
  ax_strides_contiguous(ndim, shape, strides);
  st = ax_tensor_over(s, dtype, ndim, shape, strides, 0, out);
  ax_storage_release(s);
  return st;
}

ax_status ax_tensor_pinned(ax_tensor *t, ax_tensor **out)
{
  char text[16];
  ax_status st;

  *out = NULL;
  if (t->device.kind != AX_CPU)
    return ax_fail(AX_EINVAL, "pin_memory: only tensors of the CPU can be pinned, this one lies on %s",
                   ax_device_text(t->device, text, sizeof text));
  if (ax_storage_is_pinned(t->storage)) {
    *out = ax_tensor_retain(t);
    return AX_OK;
  }
  if ((st = ax_tensor_new_pinned((ax_dtype)t->dtype, t->ndim, t->shape, out)) != AX_OK ||
      (st = ax_copy(*out, t)) == AX_OK)
    return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

ax_status ax_tensor_bring(ax_tensor *t, ax_tensor **out)
{
  ax_status st;

  if (t->device.kind == AX_CPU)
    return (st = ax_tensor_ready(t, AX_READ)) == AX_OK ? ax_contiguous(t, out) : st;
  if ((st = ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, out)) != AX_OK ||
      (st = ax_transfer(*out, t, false)) == AX_OK)
    return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

ax_status ax_tensor_send(ax_tensor *t, ax_device to, ax_tensor **out, uint64_t *ticket)
{
  const ax_backend *backend;
  ax_tensor *packed = NULL;
  ax_storage *s = NULL;
  void *data;
  ax_status st;

  *out = NULL;
  if ((st = ax_backend_of(to, &backend)) != AX_OK || t->device.kind != AX_CPU || to.kind == AX_CPU ||
      !backend->memory->send || t->requires_grad || t->numel == 0)
    return st;
  if ((st = ax_tensor_ready(t, AX_READ)) != AX_OK || (st = ax_contiguous(t, &packed)) != AX_OK) return st;
  const size_t bytes = (size_t)packed->numel * ax_itemsize(packed);
  st = backend->memory->send(to.index, ax_data(packed), bytes, &data, ticket);
  if (st == AX_ENOMEM) st = AX_OK; /* the ordinary path makes room, or reports what is live */
  else if (st == AX_OK && (st = ax_storage_adopt(to, backend->memory, data, bytes, &s)) == AX_OK) {
    int64_t strides[AX_MAX_DIMS];
    ax_strides_contiguous(packed->ndim, packed->shape, strides);
    if ((st = ax_tensor_over(s, (ax_dtype)packed->dtype, packed->ndim, packed->shape, strides, 0, out)) ==
        AX_OK)
      (*out)->device = to;
    ax_storage_release(s);
  }
  ax_tensor_release(packed);
  return st;
}

ax_status ax_device_arrive(ax_device d, uint64_t ticket)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(d, &backend);
  return st != AX_OK || !backend->memory || !backend->memory->arrive
             ? st
             : backend->memory->arrive(d.index, ticket);
}

ax_status ax_item(ax_tensor *t, double *out)
{
  ax_tensor *here = NULL;
  ax_status st = AX_OK;

  if (t->numel != 1)
    return ax_fail(AX_ESHAPE, "item: expected a tensor of one element, got %s",
                   ax_shape_text(t->ndim, t->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT));
  if (t->device.kind == AX_CPU) {
    AX_TRY(ax_tensor_ready(t, AX_READ));
    here = ax_tensor_retain(t);
  } else {
    AX_TRY(ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, &here));
    AX_TRY(ax_transfer(here, t, false));
  }
  *out = ax_is_float((ax_dtype)t->dtype) ? ax_load_double((ax_dtype)t->dtype, ax_data(here), 0)
                                         : (double)ax_load_int((ax_dtype)t->dtype, ax_data(here), 0);
out:
  ax_tensor_release(here);
  return st;
}
