/* What batch normalisation (norm_batch.cu) shares with its gradient (norm_batch_backward.cu): sums
 * over rows of channels.  The channels are innermost, so neighbouring threads have neighbouring
 * channels.
 *
 * A block has a chunk of the rows and a tile of the channels.  A thread has a run of V channels (16
 * bytes) of every TY-th row of the chunk, with four rows in flight; the block adds its TY parts of
 * a channel in order.  Chunks, tiles and TY follow from the sizes alone, and V does not change the
 * order of additions: any alignment gives the same bits.  A warp then combines a channel's chunks
 * in float64. */
#ifndef AX_CUDA_NORM_BATCH_H
#define AX_CUDA_NORM_BATCH_H

#include "rows.cuh"

enum {
  BATCH_MOST_BLOCKS = 1024,
  BATCH_LEAST_ROWS = 8,
  BATCH_THREADS = 256,
  BATCH_LANES = 32,
  BATCH_WARPS = 4
};

struct batch_job {
  int64_t rows, channels, chunks;
  /* runs of channels in a tile, a power of two up to BATCH_LANES; the other threads of a block are
   * rows */
  int across;
  bool relu;
  bool rounded; /* to the type of the rows before a residual is added */
};

/* V: the channels of a run where memory is aligned. */
static inline batch_job batch_job_of(const ax_tensor *x)
{
  const int64_t V = 16 / (int64_t)ax_itemsize(x);
  batch_job j = {};
  j.channels = x->shape[1];
  j.rows = j.channels ? x->numel / j.channels : 0;
  const int64_t runs = (j.channels + V - 1) / V;
  for (j.across = 1; j.across < BATCH_LANES && j.across < runs;) j.across *= 2;
  const int64_t tiles = runs > j.across ? (runs + j.across - 1) / j.across : 1,
                most = BATCH_MOST_BLOCKS / tiles > 0 ? BATCH_MOST_BLOCKS / tiles : 1,
                each = (int64_t)BATCH_THREADS / j.across * BATCH_LEAST_ROWS;
  j.chunks = j.rows / each < 1 ? 1 : j.rows / each < most ? j.rows / each : most;
  return j;
}

/* One block for each tile of `across` runs of V channels and each chunk of rows. */
static inline unsigned batch_blocks(const batch_job &j, int V)
{
  const int64_t tile = (int64_t)j.across * V, blocks = (j.channels + tile - 1) / tile * j.chunks;
  return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
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

static __device__ __forceinline__ int64_t batch_first_row(const batch_job &j, int64_t chunk)
{
  return j.rows * chunk / j.chunks;
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

/* Two sums over each chunk's rows, of what term(row, channel, loaded..., sums...) adds for V
 * neighbouring channels; written to sums[chunk][0 and 1][channel]. */
template <int V, class T, class L>
static __device__ __forceinline__ void batch_chunk_sums(const batch_job &j, T *sums, const L &of)
{
  __shared__ T shared[2][BATCH_THREADS * V];
  const int tx = threadIdx.x % j.across, ty = threadIdx.x / j.across, down = BATCH_THREADS / j.across,
            width = j.across * V;
  const int64_t tiles = (j.channels + width - 1) / width;

  for (int64_t t = blockIdx.x; t < tiles * j.chunks; t += gridDim.x) {
    const int64_t k = t / tiles, c0 = t % tiles * width, c = c0 + tx * V, lo = batch_first_row(j, k),
                  hi = batch_first_row(j, k + 1);
    T one[V], two[V];
    for (int i = 0; i < V; i++) one[i] = two[i] = 0;
    if (c < j.channels) { /* V divides the channels when it is not 1 */
      L mine = of;
      mine.begin(j, lo, c);
      int64_t r = lo + ty;
      for (; r + (L::AHEAD - 1) * down < hi; r += L::AHEAD * down) {
        typename L::loaded v[L::AHEAD];
#pragma unroll
        for (int i = 0; i < L::AHEAD; i++) mine.load((r + i * down) * j.channels + c, v[i]);
#pragma unroll
        for (int i = 0; i < L::AHEAD; i++) mine.add(j, v[i], one, two);
      }
      for (; r < hi; r += down) {
        typename L::loaded v;
        mine.load(r * j.channels + c, v);
        mine.add(j, v, one, two);
      }
    }
    __syncthreads(); /* the last tile's may still be in use */
    for (int i = 0; i < V; i++) {
      shared[0][ty * width + tx * V + i] = one[i];
      shared[1][ty * width + tx * V + i] = two[i];
    }
    __syncthreads();
    for (int p = threadIdx.x; p < 2 * width; p += BATCH_THREADS) {
      const int which = p / width, at = p % width;
      T sum = 0;
      for (int y = 0; y < down; y++) sum += shared[which][y * width + at];
      if (c0 + at < j.channels) sums[(2 * k + which) * j.channels + c0 + at] = sum;
    }
  }
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

#endif
