/* What batch normalisation (norm_batch.cu) shares with its gradient (norm_batch_backward.cu): sums
 * over rows of channels.  The channels are innermost, so neighbouring threads have neighbouring
 * channels.
 *
 * A block has a tile of the channels, 128 bytes of a row, and every `chunks`-th group of the rows.
 * A thread has a run of V channels (16 bytes) of four rows of a group, which are in flight at once.
 * The block adds its threads' parts of a channel in order.  The last block of a tile to finish then
 * adds the chunks' sums in float64, in their order, so no kernel has to follow for that.
 *
 * Groups, chunks and tiles follow from the sizes alone, and V does not change the order of
 * additions: any alignment gives the same bits.
 *
 * Sums go through the rows from the last one to the first, and what follows them from the first one
 * to the last: in both cases the rows that were used last are still in the cache. */
#ifndef AX_CUDA_NORM_BATCH_H
#define AX_CUDA_NORM_BATCH_H

#include "rows.cuh"

enum {
  BATCH_THREADS = 256,
  BATCH_MOST_BLOCKS = 264, /* that sum: two for each multiprocessor of an H100 */
  BATCH_LANES = 8,         /* runs of channels in a tile, at most; */
  BATCH_LANES_ALONE = 32,  /* where a run is one channel */
  BATCH_AHEAD = 4,         /* rows of a thread in a group */
  /* tiles that are divided into chunks, at most: those of single channels of a half type */
  BATCH_TILES = BATCH_MOST_BLOCKS / 2 * 8
};

struct batch_job {
  int64_t rows, channels;
  int across, down;           /* runs of channels in a tile; rows that the threads of a block stand for */
  int64_t groups;             /* of down * BATCH_AHEAD rows */
  int64_t chunks, each, more; /* each + (k < more) groups are chunk k's */
  bool relu;
  bool rounded; /* to the type of the rows before a residual is added */
};

static inline batch_job batch_job_of(const ax_tensor *x)
{
  batch_job j = {};
  j.channels = x->shape[1];
  j.rows = j.channels ? x->numel / j.channels : 0;
  const int64_t most = 16 / (int64_t)ax_itemsize(x), V = j.channels % most ? 1 : most, runs = j.channels / V,
                lanes = V == 1 ? BATCH_LANES_ALONE : BATCH_LANES,
                tiles = runs > lanes ? (runs + lanes - 1) / lanes : 1;
  j.across = runs ? (int)((runs + tiles - 1) / tiles) : 1;
  j.down = BATCH_THREADS / j.across;
  const int64_t group = (int64_t)j.down * BATCH_AHEAD, blocks = BATCH_MOST_BLOCKS / tiles;
  j.groups = (j.rows + group - 1) / group;
  j.chunks = blocks < 1 ? 1 : blocks < j.groups ? blocks : j.groups;
  if (j.chunks < 1) j.chunks = 1;
  const int64_t longest = (j.groups + j.chunks - 1) / j.chunks;
  if (longest) j.chunks = (j.groups + longest - 1) / longest;
  j.each = j.groups / j.chunks;
  j.more = j.groups % j.chunks;
  return j;
}

/* A block for each tile of runs of V channels (x) and for each chunk of rows (y). */
static inline dim3 batch_grid(const batch_job &j, int V, int64_t chunks)
{
  const int64_t tile = (int64_t)j.across * V;
  return dim3((unsigned)((j.channels + tile - 1) / tile), (unsigned)chunks);
}

/* For passes that write each row: as many blocks as keep the device busy. */
static inline dim3 batch_grid_of_pass(const batch_job &j, int V, int device)
{
  const int64_t tiles = batch_grid(j, V, 1).x, most = (int64_t)ax_cuda_multiprocessors(device) * 8 / tiles;
  return batch_grid(j, V, most < 1 ? 1 : most < j.groups ? most : j.groups);
}

/* A tensor with one number for each channel, of any floating type, or none. */
struct batch_each {
  const void *data;
  int dtype;
};
static inline batch_each batch_each_of(const ax_tensor *t)
{
  return t ? batch_each{ ax_data(t), t->dtype } : batch_each{ NULL, 0 };
}
static __device__ __forceinline__ double batch_number(const batch_each &e, int64_t c, double otherwise)
{
  return e.data ? ax_cuda_number_at(e.dtype, e.data, c) : otherwise;
}

/* y = x a + b.  a and b come from the rounded mean and invstd, so that the backward pass computes
 * the same numbers and finds where relu cut off. */
template <class T>
static __device__ __forceinline__ void batch_coefficients(const batch_each &weight, const batch_each &bias,
                                                          T mean, T invstd, int64_t c, T *a, T *b)
{
  const double w = batch_number(weight, c, 1) * (double)invstd;
  *a = (T)w;
  *b = (T)(batch_number(bias, c, 0) - (double)mean * w);
}

/* p % n for positions: most are below 2^32, where division is several times faster. */
static __device__ __forceinline__ int64_t batch_channel_of(int64_t p, int64_t n)
{
  return p >> 32 ? p % n : (int64_t)((uint32_t)p % (uint32_t)n);
}

/* Numbers of V neighbouring channels, in runs of 16 bytes. */
template <int V, class T>
static __device__ __forceinline__ void batch_channel_numbers(const T *from, int64_t c, T (&v)[V])
{
  constexpr int W = V * (int)sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
#pragma unroll
  for (int k = 0; k < V; k += W) {
    const ax_cuda_pack<T, W> pack = *(const ax_cuda_pack<T, W> *)(from + c + k);
    for (int i = 0; i < W; i++) v[k + i] = pack.v[i];
  }
}

template <int V, class T> static __device__ __forceinline__ void batch_put_numbers(T *to, const T (&v)[V])
{
  constexpr int W = V * (int)sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
#pragma unroll
  for (int k = 0; k < V; k += W) {
    ax_cuda_pack<T, W> pack;
    for (int i = 0; i < W; i++) pack.v[i] = v[k + i];
    *(ax_cuda_pack<T, W> *)(to + k) = pack;
  }
}

/* A thread's place in its tile. */
struct batch_place {
  int tx, ty, width;
  int64_t c0, c; /* the first channel of the tile, and of the thread */
  bool there;    /* whether the thread has channels */
};
template <int V> static __device__ __forceinline__ batch_place batch_place_of(const batch_job &j)
{
  batch_place p;
  p.tx = (int)threadIdx.x % j.across;
  p.ty = (int)threadIdx.x / j.across;
  p.width = j.across * V;
  p.c0 = (int64_t)blockIdx.x * p.width;
  p.c = p.c0 + p.tx * V;
  p.there = p.ty < j.down && p.c < j.channels; /* V divides the channels when it is not 1 */
  return p;
}

/* The rows of chunk k.  The last group, which may be short, is chunk 0's. */
static __device__ __forceinline__ int64_t batch_rows_of(const batch_job &j, int64_t k)
{
  const int64_t group = (int64_t)j.down * BATCH_AHEAD;
  return (j.each + (k < j.more)) * group - (k == 0 ? j.groups * group - j.rows : 0);
}
/* The first row of the group that chunk k begins with. */
static __device__ __forceinline__ int64_t batch_first_row(const batch_job &j, int64_t k)
{
  return (j.groups - 1 - k) * j.down * BATCH_AHEAD;
}

/* Blocks of each tile that have finished; 0 between two kernels.  One kernel of a device runs at a
 * time. */
static __device__ unsigned batch_finished[BATCH_TILES];

/* Whether all other blocks of this tile have finished; what they wrote is then visible. */
static __device__ __forceinline__ bool batch_is_last(const batch_job &j)
{
  __shared__ bool last;
  if (j.chunks > 1) __threadfence();
  __syncthreads();
  if (j.chunks == 1) return true;
  if (threadIdx.x == 0) {
    last = atomicAdd(&batch_finished[blockIdx.x], 1u) == (unsigned)j.chunks - 1;
    if (last) batch_finished[blockIdx.x] = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

/* Two sums over the rows of a channel, for all channels.  `of` (statistics, products) has
 *
 *   row                        what a thread loads of a row
 *   load(p, v)                 loads it, of the V channels from position p on begin(j, place)
 *   called once by all threads, behind the first loads add(j, p, v, counts, one, two)     adds a
 *   row that counts to V sums each SHIFTED, shift(j, k, c)    whether chunk k's sums are about a
 *   number of its own, and that number base(shift0)               from that of chunk 0 join(j, k,
 *   base, shift, a, b, one, two)   adds chunk k's sums to those over all rows finish(j, c, base,
 *   one, two)       takes the sums over all rows
 *
 * sums: (chunks, 2 or 3, channels). */
template <int V, class L, class T>
static __device__ __forceinline__ void batch_sums(const batch_job &j, L &of, T *sums)
{
  constexpr int A = BATCH_AHEAD, P = L::SHIFTED ? 3 : 2;
  __shared__ ax_cuda_pack<double, 2> held[2][BATCH_THREADS * V / 2];
  double *const shared[2] = { held[0]->v, held[1]->v };
  const batch_place place = batch_place_of<V>(j);
  const int64_t group = (int64_t)j.down * A, step = j.down * j.channels, k = blockIdx.y;
  const int mine = place.ty * place.width + place.tx * V;
  {
    T one[V], two[V];
    typename L::row v[A];
    int64_t g = j.groups - 1 - k;
    const int64_t first = g * group + place.ty;
    for (int i = 0; i < V; i++) one[i] = two[i] = 0;
      /* rows that are not there are loaded from one that is, and count for 0: behind conditions,
     * loads would not be in flight together */
#pragma unroll
    for (int i = 0; i < A; i++) {
      const int64_t r = first + i * j.down < j.rows ? first + i * j.down : j.rows - 1;
      of.load(place.there ? r * j.channels + place.c : 0, v[i]);
    }
    of.begin(j, place);
#pragma unroll
    for (int i = 0; i < A; i++)
      of.add(j, (first + i * j.down) * j.channels + place.c, v[i], place.there && first + i * j.down < j.rows,
             one, two);
    for (g = place.there ? g - j.chunks : -1; g >= 0; g -= j.chunks) {
      const int64_t at = (g * group + place.ty) * j.channels + place.c;
#pragma unroll
      for (int i = 0; i < A; i++) of.load(at + i * step, v[i]);
#pragma unroll
      for (int i = 0; i < A; i++) of.add(j, at + i * step, v[i], true, one, two);
    }
    if (place.ty < j.down) {
      batch_put_numbers((T *)shared[0] + mine, one);
      batch_put_numbers((T *)shared[1] + mine, two);
    }
  }
  __syncthreads();
  for (int p = threadIdx.x; p < place.width && place.c0 + p < j.channels; p += BATCH_THREADS) {
    const int64_t c = place.c0 + p;
    T one = 0, two = 0;
    if (L::SHIFTED) sums[(P * k + 2) * j.channels + c] = of.shift(j, k, c);
#pragma unroll 8
    for (int y = 0; y < j.down; y++) {
      one += ((const T *)shared[0])[y * place.width + p];
      two += ((const T *)shared[1])[y * place.width + p];
    }
    sums[P * k * j.channels + c] = one;
    sums[(P * k + 1) * j.channels + c] = two;
  }
  if (!batch_is_last(j)) return;

  if (place.there) {
    double base[V], one[V], two[V];
    T a[V], b[V], shift[V];
    if (L::SHIFTED) batch_channel_numbers(sums, 2 * j.channels + place.c, shift);
    for (int i = 0; i < V; i++) {
      base[i] = L::SHIFTED ? of.base(shift[i]) : 0;
      one[i] = two[i] = 0;
    }
    for (int64_t q = place.ty; q < j.chunks; q += j.down) {
      batch_channel_numbers(sums, P * q * j.channels + place.c, a);
      batch_channel_numbers(sums, (P * q + 1) * j.channels + place.c, b);
      if (L::SHIFTED) batch_channel_numbers(sums, (P * q + 2) * j.channels + place.c, shift);
      of.join(j, q, base, shift, a, b, one, two);
    }
    batch_put_numbers(shared[0] + mine, one);
    batch_put_numbers(shared[1] + mine, two);
  }
  __syncthreads();
  const int parts = j.chunks < j.down ? (int)j.chunks : j.down;
  for (int p = threadIdx.x; p < place.width && place.c0 + p < j.channels; p += BATCH_THREADS) {
    double one = 0, two = 0;
#pragma unroll 8
    for (int y = 0; y < parts; y++) {
      one += shared[0][y * place.width + p];
      two += shared[1][y * place.width + p];
    }
    const int64_t c = place.c0 + p;
    of.finish(j, c, L::SHIFTED ? of.base(sums[2 * j.channels + c]) : 0, one, two);
  }
}

/* Calls f(at, rows) for the block's groups of rows, from the first to the last: positions at, at +
 * step, .. of the thread's channels in `rows` rows, BATCH_AHEAD but at the end.  Whole groups have
 * their number as a constant. */
template <class F>
static __device__ __forceinline__ void batch_pass(const batch_job &j, const batch_place &place, F f)
{
  const int64_t group = (int64_t)j.down * BATCH_AHEAD;
  if (!place.there) return;
  for (int64_t g = blockIdx.y; g < j.groups; g += gridDim.y) {
    const int64_t row = g * group + place.ty, at = row * j.channels + place.c;
    if (row + (BATCH_AHEAD - 1) * j.down < j.rows) f(at, ax_cuda_int<BATCH_AHEAD>());
    else
      for (int64_t r = row, p = at; r < j.rows; r += j.down, p += j.down * j.channels) f(p, ax_cuda_int<1>());
  }
}

#endif
