/* How a reduction gets to the device.
 *
 * A reducer R says what an accumulator is, how an element joins it, how two are joined, and what the result is; everything about dims,
 * blocks and order is here.  Two ways through memory.  Rows: a block for each result, its threads side by side along the reduced positions.
 * Columns (the last dim is kept): a thread for each result, neighbours side by side.  Few results with much to reduce are cut into chunks,
 * whose number follows from the sizes alone and whose accumulators are joined in order by a second kernel. */
#ifndef AX_CUDA_REDUCE_H
#define AX_CUDA_REDUCE_H

#include "common.cuh"

enum { AX_REDUCE_THREADS = 256, AX_REDUCE_CHUNK = 16384, AX_REDUCE_CHUNKS = 256 };

struct ax_dims { int n; int64_t count, shape[AX_MAX_DIMS], in[AX_MAX_DIMS], out[AX_MAX_DIMS]; }; /* strides in bytes */

struct ax_reduction {
  const char *in;
  char *out;
  ax_dims kept, reduced;
  int64_t chunks;
};

static __host__ __device__ __forceinline__ int64_t ax_in_at(const ax_dims &d, int64_t p)
{
  int64_t at = 0;
  if (d.n == 1) return p * d.in[0];
  for (int k = d.n - 1; k >= 0; k--) {
    at += p % d.shape[k] * d.in[k];
    p /= d.shape[k];
  }
  return at;
}

static __host__ __device__ __forceinline__ int64_t ax_out_at(const ax_dims &d, int64_t p)
{
  int64_t at = 0;
  for (int k = d.n - 1; k >= 0; k--) {
    at += p % d.shape[k] * d.out[k];
    p /= d.shape[k];
  }
  return at;
}

/* Reduced positions of chunk c: [*lo, *hi). */
static __host__ __device__ __forceinline__ void ax_chunk(const ax_reduction &r, int64_t c, int64_t *lo, int64_t *hi)
{
  const int64_t size = r.reduced.count / r.chunks, more = r.reduced.count % r.chunks;
  *lo = size * c + (c < more ? c : more);
  *hi = *lo + size + (c < more);
}

/* Combines accumulators of any size over a block through shared memory, in the order of the threads. */
template <class R> static __device__ __forceinline__ typename R::acc ax_join_block(const R &reducer, typename R::acc a, typename R::acc *shared)
{
  __syncthreads();
  shared[threadIdx.x] = a;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half) shared[threadIdx.x] = reducer.join(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}

/* A block for each (result, chunk).  partial NULL: the result is written. */
template <class R, class S> static __global__ void ax_reduce_rows(R reducer, ax_reduction r, typename R::acc *partial)
{
  typedef typename R::acc acc;
  __shared__ acc shared[AX_REDUCE_THREADS];
  for (int64_t b = blockIdx.x; b < r.kept.count * r.chunks; b += gridDim.x) {
    const int64_t result = b / r.chunks, c = b % r.chunks;
    const char *from = r.in + ax_in_at(r.kept, result);
    int64_t lo, hi;
    ax_chunk(r, c, &lo, &hi);
    acc a = reducer.start();
    for (int64_t p = lo + threadIdx.x; p < hi; p += blockDim.x) a = reducer.add(a, ax_load(*(const S *)(from + ax_in_at(r.reduced, p))), p, result);
    a = ax_join_block(reducer, a, shared);
    if (threadIdx.x) continue;
    if (partial) partial[c * r.kept.count + result] = a;
    else reducer.finish(r.out + ax_out_at(r.kept, result), a, r.reduced.count, result);
  }
}

/* A thread for each (result, chunk). */
template <class R, class S> static __global__ void ax_reduce_columns(R reducer, ax_reduction r, typename R::acc *partial)
{
  typedef typename R::acc acc;
  for (int64_t i = AX_FIRST; i < r.kept.count * r.chunks; i += AX_STEP) {
    const int64_t c = i / r.kept.count, result = i % r.kept.count;
    const char *from = r.in + ax_in_at(r.kept, result);
    int64_t lo, hi;
    ax_chunk(r, c, &lo, &hi);
    acc a = reducer.start();
    for (int64_t p = lo; p < hi; p++) a = reducer.add(a, ax_load(*(const S *)(from + ax_in_at(r.reduced, p))), p, result);
    if (partial) partial[i] = a;
    else reducer.finish(r.out + ax_out_at(r.kept, result), a, r.reduced.count, result);
  }
}

template <class R> static __global__ void ax_reduce_chunks(R reducer, ax_reduction r, const typename R::acc *partial)
{
  for (int64_t result = AX_FIRST; result < r.kept.count; result += AX_STEP) {
    typename R::acc a = partial[result];
    for (int64_t c = 1; c < r.chunks; c++) a = reducer.join(a, partial[c * r.kept.count + result]);
    reducer.finish(r.out + ax_out_at(r.kept, result), a, r.reduced.count, result);
  }
}

/* Takes an ax_iter apart; true when the last dim is kept. */
static inline bool ax_reduction_of(const ax_iter *it, ax_reduction *r)
{
  bool columns = false;
  *r = ax_reduction{};
  r->in = it->op[1].data;
  r->out = it->op[0].data;
  r->kept.count = r->reduced.count = r->chunks = 1;
  for (int d = 0; d < it->ndim; d++) {
    columns = it->op[0].stride[d] != 0;
    ax_dims *to = columns ? &r->kept : &r->reduced;
    to->shape[to->n] = it->shape[d];
    to->in[to->n] = it->op[1].stride[d];
    to->out[to->n++] = it->op[0].stride[d];
    to->count *= it->shape[d];
  }
  const int64_t groups = columns ? (r->kept.count + AX_REDUCE_THREADS - 1) / AX_REDUCE_THREADS : r->kept.count;
  const int64_t each = columns ? r->reduced.count * AX_REDUCE_THREADS : r->reduced.count;
  if (groups > 0 && groups < AX_REDUCE_CHUNKS && each >= 2 * AX_REDUCE_CHUNK) {
    r->chunks = each / AX_REDUCE_CHUNK < AX_REDUCE_CHUNKS / groups ? each / AX_REDUCE_CHUNK : AX_REDUCE_CHUNKS / groups;
    if (r->chunks > r->reduced.count) r->chunks = r->reduced.count;
    if (r->chunks < 1) r->chunks = 1;
  }
  return columns;
}

/* Runs reducer R over elements of storage type S. */
template <class S, class R> static ax_status ax_reduce(const ax_call *call, R reducer)
{
  typedef typename R::acc acc;
  const ax_device d = call->out[0]->device;
  const char *name = ax_ops[call->op].name;
  const unsigned most = (unsigned)ax_cuda_multiprocessors(d.index) * 32;
  ax_reduction r;
  acc *partial = NULL;
  ax_status st;

  const bool columns = ax_reduction_of(call->iter, &r);
  if (r.kept.count == 0) return AX_OK;
  const size_t bytes = (size_t)(r.kept.count * r.chunks) * sizeof(acc);
  if (r.chunks > 1 && (st = ax_cuda_take(d, bytes, (void **)&partial)) != AX_OK) return st;
  if (columns) st = ax_launch(name, d, ax_blocks(r.kept.count * r.chunks, AX_REDUCE_THREADS, d.index), AX_REDUCE_THREADS, ax_reduce_columns<R, S>, reducer, r, partial);
  else {
    int threads = AX_REDUCE_THREADS;
    while (threads > 32 && threads / 2 >= r.reduced.count) threads /= 2;
    const int64_t blocks = r.kept.count * r.chunks;
    st = ax_launch(name, d, (unsigned)(blocks < most ? blocks : most), threads, ax_reduce_rows<R, S>, reducer, r, partial);
  }
  if (st == AX_OK && partial)
    st = ax_launch(name, d, ax_blocks(r.kept.count, AX_REDUCE_THREADS, d.index), AX_REDUCE_THREADS, ax_reduce_chunks<R>, reducer, r, (const acc *)partial);
  if (partial) ax_cuda_give(d, partial, bytes);
  return st;
}

#endif
