/* Rows of memory: a warp for a short row, a block for a long one; elements in runs of 16 bytes
 * where rows are aligned for that. */
#ifndef AX_CUDA_ROWS_H
#define AX_CUDA_ROWS_H

#include "common.cuh"

enum { AX_SHORT_ROW = 1024, AX_WARP_ROWS = 4 }; /* AX_WARP_ROWS: rows of a block where each has a warp */

template <class S, int V> struct alignas(sizeof(S) * V) ax_cuda_pack {
  S v[V];
};

/* Loads elements i .. i + V - 1 in the type computed in; and stores them. */
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_get(const S *x, int64_t i, compute<S> (&v)[V])
{
  const ax_cuda_pack<S, V> pack = *(const ax_cuda_pack<S, V> *)(x + i);
  for (int j = 0; j < V; j++) v[j] = ax_cuda_load(pack.v[j]);
}
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_put(S *x, int64_t i, const compute<S> (&v)[V])
{
  ax_cuda_pack<S, V> pack;
  for (int j = 0; j < V; j++) pack.v[j] = ax_cuda_store<S>(v[j]);
  *(ax_cuda_pack<S, V> *)(x + i) = pack;
}

/* The threads that share a row: a warp or, with WIDE, a block. */
template <bool WIDE> struct ax_cuda_team {
  static __device__ __forceinline__ int rank() { return WIDE ? (int)threadIdx.x : (int)(threadIdx.x % 32); }
  static __device__ __forceinline__ int size() { return WIDE ? (int)blockDim.x : 32; }
  static __device__ __forceinline__ int64_t first_row()
  {
    return WIDE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  }
  static __device__ __forceinline__ int64_t row_step()
  {
    return WIDE ? (int64_t)gridDim.x : (int64_t)gridDim.x * (blockDim.x / 32);
  }
  /* Combines all values; every thread gets the result.  `shared`: 32 places, used by blocks. */
  template <class T, class F> static __device__ __forceinline__ T join(T v, F combine, T *shared)
  {
    if (WIDE) return ax_cuda_block_reduce(v, combine, shared);
    return ax_cuda_warp_reduce(v, combine);
  }
  template <class T> static __device__ __forceinline__ T sum(T v, T *shared)
  {
    return join(
        v, [](T a, T b) { return a + b; }, shared);
  }
  template <class T> static __device__ __forceinline__ T most(T v, T *shared)
  {
    return join(
        v, [](T a, T b) { return a > b ? a : b; }, shared);
  }
};

/* The number of threads of a block that has a row of n elements to itself.  It follows from n
 * alone, and so does the order of the row's sums.  At most 512: 1024 threads would have 64
 * registers each, and kernels in float64 need more. */
static inline int ax_cuda_row_threads(int64_t n) { return n <= 4096 ? 256 : 512; }

/* Calls f(V, WIDE), as types with a `value`, for rows of n elements of size `item` whose starts are
 * all aligned like `address`, the OR of addresses. */
template <int N> struct ax_cuda_int {
  static const int value = N;
};
template <class S, class F> static ax_status ax_cuda_with_rows(int64_t n, uintptr_t address, F f)
{
  constexpr int V = 16 / (int)sizeof(S);
  const bool aligned = n % V == 0 && address % 16 == 0;
  if (n > AX_SHORT_ROW)
    return aligned ? f(ax_cuda_int<V>(), ax_cuda_int<1>()) : f(ax_cuda_int<1>(), ax_cuda_int<1>());
  return aligned ? f(ax_cuda_int<V>(), ax_cuda_int<0>()) : f(ax_cuda_int<1>(), ax_cuda_int<0>());
}
#define AX_VALUE_OF(tag) decltype(tag)::value

/* Launches a kernel with one team for every row of n elements. */
template <class... P, class... A>
static ax_status ax_cuda_launch_rows(const char *what, ax_device d, int64_t rows, int64_t n,
                                     void (*kernel)(P...), A... arguments)
{
  const int64_t blocks = n > AX_SHORT_ROW ? rows : (rows + AX_WARP_ROWS - 1) / AX_WARP_ROWS,
                most = (int64_t)ax_cuda_multiprocessors(d.index) * 64;
  return ax_cuda_launch(what, d, (unsigned)(blocks < most ? blocks : most),
                        n > AX_SHORT_ROW ? ax_cuda_row_threads(n) : 32 * AX_WARP_ROWS, kernel, arguments...);
}

/* ---- rows that start anywhere, such as those of 50,257 half-precision classes: single elements up
 * to the first address that is a multiple of 16, then packs, then the rest.  Rows that are walked
 * together have the same distance to such an address. */

/* Calls f(V, WIDE) as ax_cuda_with_rows does, for rows with one alignment.  `apart`: the OR of the
 * addresses' differences (by ^); where it shows different alignments, V is 1. */
template <class S, class F> static ax_status ax_cuda_with_any_rows(int64_t n, uintptr_t apart, F f)
{
  constexpr int V = 16 / (int)sizeof(S);
  const bool alike = apart % 16 == 0 && n >= 2 * V;
  if (n > AX_SHORT_ROW)
    return alike ? f(ax_cuda_int<V>(), ax_cuda_int<1>()) : f(ax_cuda_int<1>(), ax_cuda_int<1>());
  return alike ? f(ax_cuda_int<V>(), ax_cuda_int<0>()) : f(ax_cuda_int<1>(), ax_cuda_int<0>());
}

/* Calls f(i, ax_cuda_int<W>()) for elements i .. i + W - 1 of a row that starts at `from`, until
 * the team has covered all n. */
template <int V, class TEAM, class S, class F>
static __device__ __forceinline__ void ax_cuda_walk(const S *from, int64_t n, F f)
{
  const int rank = TEAM::rank(), size = TEAM::size();
  if (V == 1) {
    for (int64_t i = rank; i < n; i += size) f(i, ax_cuda_int<1>());
    return;
  }
  const int head = (int)((16 - (uintptr_t)from % 16) % 16 / sizeof(S)); /* fewer than V, and less than n */
  const int64_t packs = (n - head) / V, tail = head + packs * V;
  if (rank < head) f((int64_t)rank, ax_cuda_int<1>());
  for (int64_t q = rank; q < packs; q += size) f(head + q * V, ax_cuda_int<V>());
  /* fewer than V, and every team has at least V threads */
  if (tail + rank < n) f(tail + rank, ax_cuda_int<1>());
}

/* The sum of terms exp(x - top) under a rising top; starts with top -infinity and sum 0. */
static __device__ __forceinline__ float ax_cuda_term(float x, float top)
{
  return ax_exp2_part((x - top) * AX_LOG2E);
}
static __device__ __forceinline__ double ax_cuda_term(double x, double top) { return exp(x - top); }
static __device__ __forceinline__ float ax_cuda_row_log(float x) { return ax_log_f32(x); }
static __device__ __forceinline__ double ax_cuda_row_log(double x) { return log(x); }

template <class T> struct ax_cuda_exps {
  T top = -(T)INFINITY, sum = 0;
  template <int V> __device__ __forceinline__ void add(const T (&v)[V])
  {
    T most = v[0];
    for (int j = 1; j < V; j++) most = v[j] > most ? v[j] : most;
    if (most > top) {
      sum *= ax_cuda_term(top, most);
      top = most;
    }
    const T base = top == -(T)INFINITY ? (T)0 : top; /* (-infinity) - (-infinity) would be NaN */
    for (int j = 0; j < V; j++) sum += ax_cuda_term(v[j], base);
  }
  /* Combines a team's sums; a row of -infinity gives NaN, as in PyTorch: (-inf) - (-inf). */
  template <class TEAM> __device__ __forceinline__ void join(T *shared)
  {
    const T all = TEAM::most(top, shared);
    sum = TEAM::sum(sum * (top == all ? (T)1 : ax_cuda_term(top, all)), shared);
    if (all == -(T)INFINITY) sum = sum * 0 + (T)NAN;
    top = all;
  }
};

#endif
