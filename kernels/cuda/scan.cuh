/* Running sums along lines of any length, in three kernels: chunks of fixed size add up their
 * elements, one block for each line adds up its chunks, and every chunk computes its running sums
 * from the total of the chunks before it. */
#ifndef AX_CUDA_SCAN_H
#define AX_CUDA_SCAN_H

#include "common.cuh"

enum { AX_SCAN_THREADS = 256, AX_SCAN_CHUNK = 2048 };

/* The sum of the values of all threads up to this one; *total: the sum over all threads; *ahead,
 * unless it is NULL: the sum of the values of the threads before this one.  That is not the
 * difference of the others: an infinity or a NaN here must not reach it.  `shared`: 32 places. */
template <class T>
static __device__ __forceinline__ T ax_cuda_block_scan(T v, T *shared, T *total, T *ahead = NULL)
{
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  T before = 0, all = 0;
  for (int by = 1; by < 32; by *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, v, by);
    if (lane >= by) v = other + v;
  }
  __syncthreads(); /* the last use may still read `shared` */
  if (lane == 31) shared[warp] = v;
  __syncthreads();
  for (int w = 0; w < warps; w++) {
    if (w == warp) before = all;
    all += shared[w];
  }
  *total = all;
  if (ahead) {
    const T former = __shfl_up_sync(0xffffffffu, v, 1);
    *ahead = lane ? before + former : before;
  }
  return before + v;
}

/* F: `T load(line, i)`, and `void store(line, i, T up_to, T own)` with the sum of elements 0 ..
 * i. */
template <class T, class F>
static __global__ void ax_cuda_scan_sums(F f, int64_t lines, int64_t n, int64_t chunks, T *sums)
{
  __shared__ T shared[32];
  for (int64_t b = blockIdx.x; b < lines * chunks; b += gridDim.x) {
    const int64_t line = b / chunks, lo = b % chunks * AX_SCAN_CHUNK,
                  hi = lo + AX_SCAN_CHUNK < n ? lo + AX_SCAN_CHUNK : n;
    T sum = 0;
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x) sum += f.load(line, i);
    sum = ax_cuda_block_reduce(
        sum, [](T a, T b) { return a + b; }, shared);
    if (threadIdx.x == 0) sums[b] = sum;
  }
}

/* Replaces each line's sums of chunks by the sums of the chunks before them. */
template <class T> static __global__ void ax_cuda_scan_chunks(T *sums, int64_t lines, int64_t chunks)
{
  __shared__ T shared[32];
  for (int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
    T carry = 0, total, ahead;
    for (int64_t lo = 0; lo < chunks; lo += blockDim.x) {
      const int64_t i = lo + threadIdx.x;
      ax_cuda_block_scan(i < chunks ? sums[line * chunks + i] : (T)0, shared, &total, &ahead);
      if (i < chunks) sums[line * chunks + i] = carry + ahead;
      carry += total;
    }
  }
}

template <class T, class F>
static __global__ void ax_cuda_scan_apply(F f, int64_t lines, int64_t n, int64_t chunks, const T *sums)
{
  __shared__ T shared[32];
  for (int64_t b = blockIdx.x; b < lines * chunks; b += gridDim.x) {
    const int64_t line = b / chunks, lo = b % chunks * AX_SCAN_CHUNK,
                  hi = lo + AX_SCAN_CHUNK < n ? lo + AX_SCAN_CHUNK : n;
    T carry = sums ? sums[b] : (T)0, total;
    for (int64_t at = lo; at < hi; at += blockDim.x) {
      const int64_t i = at + threadIdx.x;
      const T own = i < hi ? f.load(line, i) : (T)0, up_to = ax_cuda_block_scan(own, shared, &total);
      if (i < hi) f.store(line, i, carry + up_to, own);
      carry += total;
    }
  }
}

template <class T, class F>
static ax_status ax_cuda_scan(const char *what, ax_device d, int64_t lines, int64_t n, F f)
{
  const int64_t chunks = (n + AX_SCAN_CHUNK - 1) / AX_SCAN_CHUNK, all = lines * chunks,
                most = (int64_t)ax_cuda_multiprocessors(d.index) * 32;
  const unsigned blocks = (unsigned)(all < most ? all : most);
  const size_t bytes = (size_t)all * sizeof(T);
  const int threads = n <= 32 ? 32 : n <= 64 ? 64 : AX_SCAN_THREADS;
  T *sums = NULL;
  ax_status st = AX_OK;

  if (lines == 0 || n == 0) return AX_OK;
  if (chunks > 1) {
    if ((st = ax_cuda_take(d, bytes, (void **)&sums)) != AX_OK) return st;
    st = ax_cuda_launch(what, d, blocks, threads, ax_cuda_scan_sums<T, F>, f, lines, n, chunks, sums);
    if (st == AX_OK)
      st = ax_cuda_launch(what, d, (unsigned)(lines < most ? lines : most), chunks < 1024 ? 128 : 1024,
                          ax_cuda_scan_chunks<T>, sums, lines, chunks);
  }
  if (st == AX_OK)
    st = ax_cuda_launch(what, d, blocks, threads, ax_cuda_scan_apply<T, F>, f, lines, n, chunks,
                        (const T *)sums);
  if (sums) ax_cuda_give(d, sums, bytes);
  return st;
}

#endif
