/* Reading at positions: index_select, gather, embedding, one_hot, and the positions of a mask.  A
 * bad index is reported when the host next waits for the device (common.cuh); its element becomes
 * 0.  Memory bounds these kernels. */
#include "scan.cuh"

/* ---- runs of memory, moved in the largest pieces that addresses and sizes allow */

struct alignas(16) sixteen {
  uint64_t half[2];
};

struct picks {
  int op;
  /* x is (outer, size, run), the result (outer, picked, run); run is counted in pieces */
  int64_t outer, size, picked, run;
  const int64_t *index;
  ax_cuda_fault *fault;
};

template <class U> static __global__ void pick(picks k, U *y, const U *x)
{
  const int64_t all = k.outer * k.picked * k.run;
  for (int64_t p = AX_FIRST; p < all; p += AX_STEP) {
    int64_t row, at, outer, i;
    if (all < INT64_C(1) << 31) { /* 32-bit division is several times faster */
      row = (uint32_t)p / (uint32_t)k.run;
      outer = (uint32_t)row / (uint32_t)k.picked;
    } else {
      row = p / k.run;
      outer = row / k.picked;
    }
    at = p - row * k.run;
    i = row - outer * k.picked;
    const int64_t from = k.index[i];
    if (ax_cuda_in_range(k.fault, AX_FAULT_INDEX, k.op, from, i, k.size))
      y[p] = x[(outer * k.size + from) * k.run + at];
    else y[p] = U{};
  }
}

static ax_status pick_rows(const ax_call *call, picks k, const void *x, void *y, int64_t run_bytes)
{
  const ax_device d = call->out[0]->device;
  const uintptr_t shape = (uintptr_t)x | (uintptr_t)y | (uintptr_t)run_bytes;
  k.op = call->op;
  k.fault = ax_cuda_fault_place(d);
  if (!k.fault) return AX_ENOMEM;
  auto run = [&](auto tag) {
    typedef AX_TYPE_OF(tag) U;
    k.run = run_bytes / (int64_t)sizeof(U);
    return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(k.outer * k.picked * k.run, 256, d.index),
                          256, pick<U>, k, (U *)y, (const U *)x);
  };
  if (shape % 16 == 0) return run(ax_cuda_type<sixteen>());
  if (shape % 8 == 0) return run(ax_cuda_type<uint64_t>());
  if (shape % 4 == 0) return run(ax_cuda_type<uint32_t>());
  if (shape % 2 == 0) return run(ax_cuda_type<uint16_t>());
  return run(ax_cuda_type<uint8_t>());
}

AX_CUDA_KERNEL(index_select)
{
  const ax_tensor *x = call->in[0], *index = call->in[1], *y = call->out[0];
  const int64_t dim = call->a->index_select.dim;
  picks k = {};
  int64_t inner = 1;
  if (y->numel == 0) return AX_OK;
  k.outer = 1;
  for (int d = 0; d < x->ndim; d++) *(d < dim ? &k.outer : &inner) *= d == dim ? 1 : x->shape[d];
  k.size = x->ndim ? x->shape[dim] : 1;
  k.picked = index->numel;
  k.index = ax_cuda_data<int64_t>(index);
  return pick_rows(call, k, ax_data(x), ax_data(y), inner * (int64_t)ax_itemsize(x));
}

AX_CUDA_KERNEL(embedding)
{
  const ax_tensor *input = call->in[0], *w = call->in[1], *y = call->out[0];
  picks k = {};
  if (y->numel == 0) return AX_OK;
  k.outer = 1;
  k.size = w->shape[0];
  k.picked = input->numel;
  k.index = ax_cuda_data<int64_t>(input);
  return pick_rows(call, k, ax_data(w), ax_data(y), w->shape[1] * (int64_t)ax_itemsize(w));
}

/* ---- gather: an index for each element, with any strides */

struct gathering {
  int op, ndim, dim;
  int64_t numel, size, shape[AX_MAX_DIMS], step_x[AX_MAX_DIMS], step_i[AX_MAX_DIMS];
  const int64_t *index;
  ax_cuda_fault *fault;
};

template <class S> static __global__ void gather_kernel(gathering g, S *y, const S *x)
{
  for (int64_t p = AX_FIRST; p < g.numel; p += AX_STEP) {
    int64_t rest = p, from = 0, i = 0;
    for (int d = g.ndim - 1; d >= 0; d--) {
      const int64_t c = rest % g.shape[d];
      rest /= g.shape[d];
      i += c * g.step_i[d];
      if (d != g.dim) from += c * g.step_x[d];
    }
    const int64_t at = g.index[i];
    const bool good = ax_cuda_in_range(g.fault, AX_FAULT_INDEX, g.op, at, p, g.size);
    y[p] = good ? x[from + (g.ndim ? at * g.step_x[g.dim] : 0)] : (S)0;
  }
}

AX_CUDA_KERNEL(gather)
{
  const ax_tensor *x = call->in[0], *index = call->in[1], *y = call->out[0];
  const ax_device d = y->device;
  gathering g = {};
  if (y->numel == 0) return AX_OK;
  g.op = call->op;
  g.dim = (int)call->a->gather.dim;
  g.ndim = y->ndim;
  g.numel = y->numel;
  g.size = x->ndim ? x->shape[g.dim] : 1;
  for (int k = 0; k < y->ndim; k++) {
    g.shape[k] = y->shape[k];
    g.step_i[k] = index->ndim ? index->strides[k] : 0;
    g.step_x[k] = x->ndim ? x->strides[k] : 0;
  }
  g.index = ax_cuda_data<int64_t>(index);
  g.fault = ax_cuda_fault_place(d);
  if (!g.fault) return AX_ENOMEM;
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("gather", d, ax_cuda_blocks(g.numel, 256, d.index), 256, gather_kernel<S>, g,
                          ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

/* ---- one_hot */

static __global__ void one_hot_kernel(int op, int64_t *y, const int64_t *x, int64_t n, int64_t classes,
                                      ax_cuda_fault *fault)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP)
    if (ax_cuda_in_range(fault, AX_FAULT_CLASS, op, x[i], i, classes)) y[i * classes + x[i]] = 1;
}

AX_CUDA_KERNEL(_one_hot)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  ax_cuda_fault *fault = ax_cuda_fault_place(y->device);
  if (!fault) return AX_ENOMEM;
  const ax_status st = ax_cuda_clear("one_hot", y->device, ax_data(y), (size_t)y->numel * sizeof(int64_t));
  if (st != AX_OK || x->numel == 0) return st;
  return ax_cuda_launch("one_hot", y->device, ax_cuda_blocks(x->numel, 256, y->device.index), 256,
                        one_hot_kernel, (int)call->op, ax_cuda_data<int64_t>(y), ax_cuda_data<int64_t>(x),
                        x->numel, call->a->one_hot_of.num_classes, fault);
}

/* ---- positions of the true elements: a running count gives the place of each.  The caller has
 * counted them and made the result that long. */

struct trues {
  const uint8_t *mask;
  int64_t *to, room;
  int ndim; /* 0: flat positions; else a row of ndim of them */
  int64_t shape[AX_MAX_DIMS];
  __device__ __forceinline__ int64_t load(int64_t, int64_t i) const { return mask[i] != 0; }
  __device__ __forceinline__ void store(int64_t, int64_t i, int64_t up_to, int64_t own) const
  {
    if (!own || up_to > room) return;
    if (ndim == 0) to[up_to - 1] = i;
    for (int d = ndim - 1; d >= 0; d--) {
      to[(up_to - 1) * ndim + d] = i % shape[d];
      i /= shape[d];
    }
  }
};

AX_CUDA_KERNEL(_mask_indices)
{
  const ax_tensor *mask = call->in[0], *y = call->out[0];
  trues t = {};
  t.mask = ax_cuda_data<uint8_t>(mask);
  t.to = ax_cuda_data<int64_t>(y);
  t.room = y->numel;
  return y->numel ? ax_cuda_scan<int64_t>("masked_select", y->device, 1, mask->numel, t) : AX_OK;
}

AX_CUDA_KERNEL(_nonzero)
{
  const ax_tensor *mask = call->in[0], *y = call->out[0];
  trues t = {};
  if (y->numel == 0) return AX_OK;
  t.mask = ax_cuda_data<uint8_t>(mask);
  t.to = ax_cuda_data<int64_t>(y);
  t.room = y->shape[0];
  t.ndim = mask->ndim;
  for (int d = 0; d < mask->ndim; d++) t.shape[d] = mask->shape[d];
  return ax_cuda_scan<int64_t>("nonzero", y->device, 1, mask->numel, t);
}
