/* Reductions on the device.
 *
 * A reducer R defines the accumulator, how an element joins it, how two are joined, and the result;
 * dims, blocks and order are handled here.  There are two ways through memory.  Rows: one block for
 * each result, with its threads side by side along the reduced positions.  Columns: one thread for
 * each result, or for a few adjacent ones.  Both read 16 bytes at once where
 * elements are aligned, and memory bounds both.
 *
 * Where there are few results and much to reduce, the reduced positions are cut into chunks; a
 * second kernel joins their accumulators.  The number of chunks and the order of joining follow
 * from the sizes and strides alone. */
#ifndef AX_CUDA_REDUCE_H
#define AX_CUDA_REDUCE_H

#include "rows.cuh"

/* The least elements of a row, or rows of columns, in a chunk. */
enum {
  AX_REDUCE_THREADS = 256,
  AX_REDUCE_CHUNK = 16384,
  AX_REDUCE_ROWS = 32,
  AX_REDUCE_CHUNKS = 512,
  AX_REDUCE_FOLD = 16
};

/* strides in bytes */
struct ax_dims {
  int n;
  int64_t count, shape[AX_MAX_DIMS], in[AX_MAX_DIMS], out[AX_MAX_DIMS];
};

struct ax_reduction {
  const char *in;
  char *out;
  ax_dims kept, reduced;
  int64_t chunks;
};

static __host__ __device__ __forceinline__ int64_t ax_cuda_in_at(const ax_dims &d, int64_t p)
{
  int64_t at = 0;
  if (d.n == 1) return p * d.in[0];
  for (int k = d.n - 1; k >= 0; k--) {
    at += p % d.shape[k] * d.in[k];
    p /= d.shape[k];
  }
  return at;
}

static __host__ __device__ __forceinline__ int64_t ax_cuda_out_at(const ax_dims &d, int64_t p)
{
  int64_t at = 0;
  for (int k = d.n - 1; k >= 0; k--) {
    at += p % d.shape[k] * d.out[k];
    p /= d.shape[k];
  }
  return at;
}

/* The reduced positions [*lo, *hi) of chunk c. */
static __host__ __device__ __forceinline__ void ax_cuda_chunk(const ax_reduction &r, int64_t c, int64_t *lo,
                                                              int64_t *hi)
{
  const int64_t size = r.reduced.count / r.chunks, more = r.reduced.count % r.chunks;
  *lo = size * c + (c < more ? c : more);
  *hi = *lo + size + (c < more);
}

/* Joins accumulators of any size over a block through shared memory, in the order of the
 * threads. */
template <class R>
static __device__ __forceinline__ typename R::acc ax_cuda_join_block(const R &reducer, typename R::acc a,
                                                                     typename R::acc *shared)
{
  __syncthreads();
  shared[threadIdx.x] = a;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half)
      shared[threadIdx.x] = reducer.join(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}

/* One block for each (result, chunk).  partial NULL: writes the result.  PACKED: the reduced
 * positions are adjacent, at least two packs. */
template <bool PACKED, class R, class S>
static __global__ void __launch_bounds__(AX_REDUCE_THREADS, 4)
    ax_cuda_reduce_rows(R reducer, ax_reduction r, typename R::acc *partial)
{
  typedef typename R::acc acc;
  __shared__ acc shared[AX_REDUCE_THREADS];
  for (int64_t b = blockIdx.x; b < r.kept.count * r.chunks; b += gridDim.x) {
    const int64_t result = b / r.chunks, c = b % r.chunks;
    const char *from = r.in + ax_cuda_in_at(r.kept, result);
    int64_t lo, hi;
    ax_cuda_chunk(r, c, &lo, &hi);
    acc a = reducer.start();
    if (PACKED) {
      constexpr int U = sizeof(acc) > 8 ? 2 : 4; /* for four blocks on a multiprocessor */
      const S *line = (const S *)from + lo;
      ax_cuda_read<16 / (int)sizeof(S), U, ax_cuda_team<true>>(line, hi - lo, [&](int64_t i, auto &v) {
        for (int k = 0; k < AX_WIDTH_OF(v); k++) a = reducer.add(a, v[k], lo + i + k, result);
      });
    } else
      for (int64_t p = lo + threadIdx.x; p < hi; p += blockDim.x)
        a = reducer.add(a, ax_cuda_load(*(const S *)(from + ax_cuda_in_at(r.reduced, p))), p, result);
    a = ax_cuda_join_block(reducer, a, shared);
    if (threadIdx.x) continue;
    if (partial) partial[c * r.kept.count + result] = a;
    else reducer.finish(r.out + ax_cuda_out_at(r.kept, result), a, r.reduced.count, result);
  }
}

/* One thread for each (W adjacent results, chunk). */
template <int W, class R, class S>
static __global__ void ax_cuda_reduce_columns(R reducer, ax_reduction r, typename R::acc *partial)
{
  typedef typename R::acc acc;
  const int64_t lanes = r.kept.count / W;
  for (int64_t i = AX_FIRST; i < lanes * r.chunks; i += AX_STEP) {
    const int64_t c = i / lanes, result = i % lanes * W;
    const char *from = r.in + ax_cuda_in_at(r.kept, result);
    int64_t lo, hi;
    ax_cuda_chunk(r, c, &lo, &hi);
    acc a[W];
    for (int k = 0; k < W; k++) a[k] = reducer.start();
#pragma unroll 8
    for (int64_t p = lo; p < hi; p++) {
      compute<S> v[W];
      ax_cuda_get((const S *)(from + ax_cuda_in_at(r.reduced, p)), 0, v);
      for (int k = 0; k < W; k++) a[k] = reducer.add(a[k], v[k], p, result + k);
    }
    for (int k = 0; k < W; k++)
      if (partial) partial[c * r.kept.count + result + k] = a[k];
      else reducer.finish(r.out + ax_cuda_out_at(r.kept, result + k), a[k], r.reduced.count, result + k);
  }
}

/* One block for 32 results: each has FOLD threads, which take every FOLD-th chunk. */
template <class R>
static __global__ void ax_cuda_reduce_chunks(R reducer, ax_reduction r, const typename R::acc *partial)
{
  typedef typename R::acc acc;
  __shared__ acc part[AX_REDUCE_FOLD][32];
  for (int64_t first = (int64_t)blockIdx.x * 32; first < r.kept.count; first += (int64_t)gridDim.x * 32) {
    const int64_t result = first + threadIdx.x;
    acc a = reducer.start();
    if (result < r.kept.count)
      for (int64_t c = threadIdx.y; c < r.chunks; c += AX_REDUCE_FOLD)
        a = reducer.join(a, partial[c * r.kept.count + result]);
    part[threadIdx.y][threadIdx.x] = a;
    __syncthreads();
    if (threadIdx.y == 0 && result < r.kept.count) {
      for (int k = 1; k < AX_REDUCE_FOLD; k++) a = reducer.join(a, part[k][threadIdx.x]);
      reducer.finish(r.out + ax_cuda_out_at(r.kept, result), a, r.reduced.count, result);
    }
    __syncthreads();
  }
}

/* Divides an ax_iter into kept and reduced dims; returns whether to reduce columns: where the
 * results of the last kept dim are nearer in memory than the elements of a result, such as those of
 * an image whose channels are last, or where a result has too few elements for a warp. */
static inline bool ax_cuda_reduction_of(const ax_iter *it, ax_reduction *r)
{
  int64_t result = INT64_MAX, element = INT64_MAX; /* the steps to a neighbour */
  *r = ax_reduction{};
  r->in = it->op[1].data;
  r->out = it->op[0].data;
  r->kept.count = r->reduced.count = r->chunks = 1;
  for (int d = 0; d < it->ndim; d++) {
    const int64_t step = it->op[1].stride[d] < 0 ? -it->op[1].stride[d] : it->op[1].stride[d];
    ax_dims *to = it->op[0].stride[d] ? &r->kept : &r->reduced;
    if (to == &r->kept) result = step;
    else if (step < element) element = step;
    to->shape[to->n] = it->shape[d];
    to->in[to->n] = it->op[1].stride[d];
    to->out[to->n++] = it->op[0].stride[d];
    to->count *= it->shape[d];
  }
  return r->kept.n && (result < element || r->reduced.count < 32);
}

/* The number of chunks that the reduced positions of `groups` blocks are cut into. */
static inline int64_t ax_cuda_reduce_chunks_for(int64_t groups, int64_t count, int64_t least)
{
  int64_t chunks = groups < AX_REDUCE_CHUNKS ? AX_REDUCE_CHUNKS / groups : 1;
  if (chunks > count / least) chunks = count / least;
  return chunks < 4 ? 1 : chunks; /* a few chunks would not pay for the second kernel */
}

/* Whether columns can be read W at a time: the innermost kept dim is adjacent and a multiple of W,
 * and all strides and the start are aligned. */
static inline bool ax_cuda_reduce_aligned(const ax_reduction &r, int64_t item, int64_t W)
{
  const int last = r.kept.n - 1;
  if (r.kept.in[last] != item || r.kept.shape[last] % W || (uintptr_t)r.in % (size_t)(item * W)) return false;
  for (int d = 0; d < last; d++)
    if (r.kept.in[d] % (item * W)) return false;
  for (int d = 0; d < r.reduced.n; d++)
    if (r.reduced.in[d] % (item * W)) return false;
  return true;
}

template <int W, class S, class R>
static ax_status ax_cuda_launch_columns(const char *name, ax_device d, R reducer, const ax_reduction &r,
                                        typename R::acc *partial)
{
  return ax_cuda_launch(name, d, ax_cuda_blocks(r.kept.count / W * r.chunks, AX_REDUCE_THREADS, d.index),
                        AX_REDUCE_THREADS, ax_cuda_reduce_columns<W, R, S>, reducer, r, partial);
}

template <class S, class R>
static ax_status ax_cuda_launch_lines(const char *name, ax_device d, R reducer, const ax_reduction &r,
                                      typename R::acc *partial)
{
  const int64_t blocks = r.kept.count * r.chunks, most = (int64_t)ax_cuda_multiprocessors(d.index) * 32;
  const unsigned grid = (unsigned)(blocks < most ? blocks : most);
  const bool packed = r.reduced.n == 1 && r.reduced.in[0] == (int64_t)sizeof(S) &&
                      r.reduced.count / r.chunks >= 32 / (int64_t)sizeof(S);
  int threads = AX_REDUCE_THREADS;
  while (threads > 32 && threads / 2 >= r.reduced.count) threads /= 2;
  return packed
             ? ax_cuda_launch(name, d, grid, threads, ax_cuda_reduce_rows<true, R, S>, reducer, r, partial)
             : ax_cuda_launch(name, d, grid, threads, ax_cuda_reduce_rows<false, R, S>, reducer, r, partial);
}

/* Is the result stored as O, which the reducer writes? */
template <class O> static ax_status ax_cuda_reduces_to(const ax_call *call)
{
  return ax_cuda_holds<O>(call->iter->op[0].dtype) ? AX_OK : ax_cuda_wrong_operand(call, 0, "another type");
}

/* Runs reducer R over elements of storage type S. */
template <class S, class R> static ax_status ax_cuda_reduce(const ax_call *call, R reducer)
{
  typedef typename R::acc acc;
  constexpr int W = sizeof(S) >= 2 && sizeof(acc) <= 12 ? 8 / (int)sizeof(S) < 4 ? 8 / (int)sizeof(S) : 4 : 1;
  const ax_device d = call->out[0]->device;
  const char *name = ax_ops[call->op].name;
  ax_reduction r;
  acc *partial = NULL;
  ax_status st;

  if (!ax_cuda_holds<S>(call->iter->op[1].dtype)) return ax_cuda_wrong_operand(call, 1, "another type");
  const bool columns = ax_cuda_reduction_of(call->iter, &r);
  if (r.kept.count == 0) return AX_OK;
  const bool wide = columns && W > 1 && ax_cuda_reduce_aligned(r, (int64_t)sizeof(S), W);
  const int64_t threads = r.kept.count / (wide ? W : 1);
  r.chunks = columns ? ax_cuda_reduce_chunks_for((threads + AX_REDUCE_THREADS - 1) / AX_REDUCE_THREADS,
                                                 r.reduced.count, AX_REDUCE_ROWS)
                     : ax_cuda_reduce_chunks_for(r.kept.count, r.reduced.count, AX_REDUCE_CHUNK);
  const size_t bytes = (size_t)(r.kept.count * r.chunks) * sizeof(acc);
  if (r.chunks > 1 && (st = ax_cuda_take(d, bytes, (void **)&partial)) != AX_OK) return st;
  if (wide) st = ax_cuda_launch_columns<W, S>(name, d, reducer, r, partial);
  else
    st = columns ? ax_cuda_launch_columns<1, S>(name, d, reducer, r, partial)
                 : ax_cuda_launch_lines<S>(name, d, reducer, r, partial);
  if (st == AX_OK && partial)
    st = ax_cuda_launch(name, d, ax_cuda_blocks(r.kept.count, 32, d.index), dim3(32, AX_REDUCE_FOLD),
                        ax_cuda_reduce_chunks<R>, reducer, r, (const acc *)partial);
  if (partial) ax_cuda_give(d, partial, bytes);
  return st;
}

#endif
