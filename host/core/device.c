/* Devices: their names and numbers, and moving elements between them. */
#include "core/core.h"

#include <stdio.h>

const char *ax_device_text(ax_device d, char *buf, size_t size)
{
  if (d.kind == AX_CPU) return "cpu";
  snprintf(buf, size, "cuda:%d", d.index);
  return buf;
}

int ax_device_count(ax_device_kind kind)
{
  const ax_backend *backend;
  if (ax_backend_of((ax_device){ (uint8_t)kind, 0 }, &backend) != AX_OK) return 0;
  return backend->memory ? backend->memory->count() : 1;
}

ax_status ax_device_synchronize(ax_device d)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(d, &backend);
  if (st != AX_OK || !backend->memory) return st;
  return backend->memory->synchronize(d.index);
}

/* Bytes of a contiguous tensor to a contiguous one. */
static ax_status move_bytes(ax_tensor *dst, const ax_tensor *src)
{
  const ax_device there = dst->device.kind != AX_CPU ? dst->device : src->device;
  const ax_backend *backend;
  const ax_status st = ax_backend_of(there, &backend);
  if (st != AX_OK || src->numel == 0) return st;
  return backend->memory->copy(dst->device, ax_data(dst), src->device, ax_data(src), (size_t)src->numel * ax_itemsize(src));
}

/* The source is cast and made contiguous where it lies; only then do bytes travel. */
ax_status ax_transfer(ax_tensor *dst, ax_tensor *src)
{
  ax_tensor *packed = NULL, *landed = NULL;
  ax_status st = AX_OK;

  if (src->dtype != dst->dtype || !ax_tensor_is_contiguous(src)) {
    AX_TRY(ax_tensor_new_on(src->device, (ax_dtype)dst->dtype, src->ndim, src->shape, &packed));
    AX_TRY(ax_copy(packed, src));
  } else packed = ax_tensor_retain(src);
  if (ax_tensor_is_contiguous(dst)) st = move_bytes(dst, packed);
  else {
    AX_TRY(ax_tensor_new_on(dst->device, (ax_dtype)dst->dtype, dst->ndim, dst->shape, &landed));
    AX_TRY(move_bytes(landed, packed));
    st = ax_copy(dst, landed);
  }
out:
  ax_tensor_release(packed);
  ax_tensor_release(landed);
  return st;
}

ax_status ax_item(ax_tensor *t, double *out)
{
  ax_tensor *here = NULL;
  ax_status st = AX_OK;

  if (t->numel != 1)
    return ax_fail(AX_ESHAPE, "item: expected a tensor of one element, got %s", ax_shape_text(t->ndim, t->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT));
  if (t->device.kind == AX_CPU) here = ax_tensor_retain(t);
  else {
    AX_TRY(ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, &here));
    AX_TRY(ax_transfer(here, t));
  }
  *out = ax_is_float((ax_dtype)t->dtype) ? ax_load_double((ax_dtype)t->dtype, ax_data(here), 0) : (double)ax_load_int((ax_dtype)t->dtype, ax_data(here), 0);
out:
  ax_tensor_release(here);
  return st;
}
