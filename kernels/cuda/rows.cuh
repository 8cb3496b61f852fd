/* Rows of memory: a warp for a short row, a block for a long one; elements in runs of 16 bytes
 * where rows are aligned for that. */
#ifndef AX_CUDA_ROWS_H
#define AX_CUDA_ROWS_H

#include "common.cuh"

enum { AX_SHORT_ROW = 1024, AX_WARP_ROWS = 4 }; /* AX_WARP_ROWS: rows of a block where each has a warp */

template <class S, int V> struct alignas(sizeof(S) * V) ax_cuda_pack {
  S v[V];
};

/* The two elements of a half type in a word; the lower one comes first. */
static __device__ __forceinline__ void ax_cuda_split(ax_cuda_bf16, uint32_t word, float *low, float *high)
{
  *low = ax_bits_to_float(word << 16);
  *high = ax_bits_to_float(word & 0xffff0000u);
}
static __device__ __forceinline__ void ax_cuda_split(ax_cuda_f16, uint32_t word, float *low, float *high)
{
  *low = ax_half_to_float((uint16_t)word);
  *high = ax_half_to_float((uint16_t)(word >> 16));
}
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ uint32_t ax_cuda_word(ax_cuda_bf16, float low, float high)
{
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
static __device__ __forceinline__ uint32_t ax_cuda_word(ax_cuda_f16, float low, float high)
{
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#else
template <class S> static inline uint32_t ax_cuda_word(S, float low, float high)
{
  return ax_cuda_store<S>(low).bits | (uint32_t)ax_cuda_store<S>(high).bits << 16;
}
#endif

/* The elements of a pack in the type computed in, and back: two of a half type at a time. */
template <class S, int V>
constexpr bool ax_cuda_words = sizeof(S) == 2 && sizeof(compute<S>) == 4 && V % 2 == 0;
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_unpack(const ax_cuda_pack<S, V> &pack, compute<S> (&v)[V])
{
  if constexpr (ax_cuda_words<S, V>) {
    uint32_t word[V / 2];
    memcpy(word, &pack, sizeof word);
#pragma unroll
    for (int j = 0; j < V; j += 2) ax_cuda_split(S(), word[j / 2], &v[j], &v[j + 1]);
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = ax_cuda_load(pack.v[j]);
  }
}
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_repack(ax_cuda_pack<S, V> &pack, const compute<S> (&v)[V])
{
  if constexpr (ax_cuda_words<S, V>) {
    uint32_t word[V / 2];
#pragma unroll
    for (int j = 0; j < V; j += 2) word[j / 2] = ax_cuda_word(S(), v[j], v[j + 1]);
    memcpy(&pack, word, sizeof word);
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) pack.v[j] = ax_cuda_store<S>(v[j]);
  }
}

/* So many bytes of memory that are loaded or stored at once.  nvcc takes structs apart where a loop
 * has choices in it, and vector types too where it stores them.  Eight stores of 16 bits take
 * several times as long as one of 128. */
template <int BYTES> struct ax_cuda_vector {
  struct alignas(BYTES) type {
    uint4 part[BYTES / 16];
  };
};
template <> struct ax_cuda_vector<1> {
  typedef uint8_t type;
};
template <> struct ax_cuda_vector<2> {
  typedef uint16_t type;
};
template <> struct ax_cuda_vector<4> {
  typedef uint32_t type;
};
template <> struct ax_cuda_vector<8> {
  typedef uint2 type;
};
template <> struct ax_cuda_vector<16> {
  typedef uint4 type;
};

/* Stores v at `to`, which is in global memory. */
template <class T> static __device__ __forceinline__ void ax_cuda_write(T *to, const T &v) { *to = v; }
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ void ax_cuda_write(uint2 *to, uint2 v)
{
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(to), "r"(v.x), "r"(v.y) : "memory");
}
static __device__ __forceinline__ void ax_cuda_write(uint4 *to, uint4 v)
{
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
#endif

/* A run of V elements as it is in memory, and its elements in the type computed in. */
template <class S, int V> struct ax_cuda_run {
  typedef typename ax_cuda_vector<(int)sizeof(S) * V>::type vector;
  vector bits;
  __device__ __forceinline__ void load(const S *x) { bits = *(const vector *)x; }
  __device__ __forceinline__ void store(S *x) const { ax_cuda_write((vector *)x, bits); }
  __device__ __forceinline__ void open(compute<S> (&v)[V]) const
  {
    ax_cuda_pack<S, V> pack;
    memcpy(&pack, &bits, sizeof pack);
    ax_cuda_unpack(pack, v);
  }
  __device__ __forceinline__ void close(const compute<S> (&v)[V])
  {
    ax_cuda_pack<S, V> pack;
    ax_cuda_repack(pack, v);
    memcpy(&bits, &pack, sizeof bits);
  }
};

/* Loads elements i .. i + V - 1 in the type computed in; and stores them. */
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_get(const S *x, int64_t i, compute<S> (&v)[V])
{
  ax_cuda_run<S, V> run;
  run.load(x + i);
  run.open(v);
}
template <int V, class S>
static __device__ __forceinline__ void ax_cuda_put(S *x, int64_t i, const compute<S> (&v)[V])
{
  ax_cuda_run<S, V> run;
  run.close(v);
  run.store(x + i);
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

/* Likewise calls f(i, v) with the elements v[W] themselves, in the type computed in.  A thread
 * loads U runs before it uses the first: with one at a time the memory would wait for the
 * thread. */
template <int V, int U, class TEAM, class S, class F>
static __device__ __forceinline__ void ax_cuda_read(const S *from, int64_t n, F f)
{
  const int rank = TEAM::rank(), size = TEAM::size();
  const int head = V == 1 ? 0 : (int)((16 - (uintptr_t)from % 16) % 16 / sizeof(S));
  const int64_t runs = (n - head) / V, tail = head + runs * V;
  compute<S> one[1];
  if (rank < head) {
    ax_cuda_get(from, rank, one);
    f((int64_t)rank, one);
  }
  for (int64_t q = rank; q < runs; q += U * size) {
    ax_cuda_run<S, V> run[U];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (q + u * size < runs) run[u].load(from + head + (q + u * size) * V);
#pragma unroll
    for (int u = 0; u < U; u++)
      if (q + u * size < runs) {
        compute<S> v[V];
        run[u].open(v);
        f(head + (q + u * size) * V, v);
      }
  }
  if (V > 1 && tail + rank < n) {
    ax_cuda_get(from, tail + rank, one);
    f(tail + rank, one);
  }
}
#define AX_WIDTH_OF(v) ((int)(sizeof(v) / sizeof(v[0])))

/* The sum of terms exp(x - top) under a rising top; starts with top -infinity and sum 0. */
static __device__ __forceinline__ float ax_cuda_term(float x, float top)
{
  return ax_exp2_part((x - top) * AX_LOG2E);
}
static __device__ __forceinline__ double ax_cuda_term(double x, double top) { return exp(x - top); }
static __device__ __forceinline__ float ax_cuda_row_log(float x) { return ax_log_f32(x); }
static __device__ __forceinline__ double ax_cuda_row_log(double x) { return log(x); }

/* The larger number; one that is NaN does not count. */
static __device__ __forceinline__ float ax_cuda_larger(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double ax_cuda_larger(double a, double b) { return fmax(a, b); }

template <class T> struct ax_cuda_exps {
  T top = -(T)INFINITY, sum = 0;
  template <int V> __device__ __forceinline__ void add(const T (&v)[V])
  {
    T most = v[0];
    for (int j = 1; j < V; j++) most = ax_cuda_larger(most, v[j]);
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
