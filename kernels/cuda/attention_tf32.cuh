/* Attention in float32, and in half types whose rows or head sizes the kernels of flash*.cu do not
 * take, on tensor cores: forward and gradient, heads to 256, any strides.
 *
 * Rows are in shared memory as float32; the tensor cores multiply numbers of 11 bits (TF32).  EXACT
 * splits each number x into big (x in TF32) and small (x - big; 11 of its bits count) and adds
 * small big + big small + big big: the relative error of a product is 2^-22.  Tensor cores round
 * sums toward zero, so only few products are summed there (16 columns, or the keys of a tile); the
 * rest is added in float32.  Without EXACT (half types, which TF32 holds exactly, and float32 where
 * the script allows TF32) there is one product.
 *
 * A warp has 16 MT rows of one side and walks over the other in tiles, as in flash_forward.cu.
 * What differs is the layout.  Row i of eight in a fragment is row `turn(i)` of the tile, so that
 * columns 2c and 2c + 1 of fragment d, which a lane has, are rows c and c + 4 of the walked tile:
 * columns c and c + 4 of fragment a, which it needs for the next product.  Four columns of an
 * output group of 32 are one lane's as well.  Every read of shared memory is then of 16 bytes, and
 * with rows of D + 4 elements no eight lanes meet in a bank: turn(2i) and turn(2i + 1) are 4 rows
 * (16 banks) apart.
 *
 * The lower bound for GPT-2 124M in float32 (B 8, H 12, T 1024, D 64, causal), computed, not
 * measured: 2 products, 12.9 GFLOP, three times: on an H200 (495 TFLOP/s of dense TF32, mma.sync
 * reaching some 60%) 130 us, the gradient with 7 products 460 us.  Without tensor cores (67
 * TFLOP/s) 193 and 670 us at full rate.  The plain kernels are far from that: for 1000 products of
 * scores they have 56 instructions of a warp, these have 12 (sm_90, blocks of 128 queries). */
#ifndef AX_CUDA_ATTENTION_TF32_H
#define AX_CUDA_ATTENTION_TF32_H

#include "flash.cuh"

/* Own rows have SPLIT warps each, which share its columns of output: sums of 256 columns do not fit
 * into a warp's registers. */
template <int D, int MT, bool BACKWARD> struct layout {
  static const int split = BACKWARD && D > 128 ? 2 : 1, own = 16 * MT * FLASH_WARPS / split,
                   walk = D <= 64 ? 32 : 16, pitch = D + 4, tile = walk * pitch;
  /* of a mask's rows, which are queries: the elements that a warp reads at once are in different
   * banks */
  static const int mask_pitch = walk + 4, mask_pitch_keys = 24;
};

/* The place of row i of a fragment's eight in shared memory. */
static __device__ __forceinline__ int turn(int i) { return i >> 1 | (i & 1) << 2; }

/* x = big + small, in TF32 (of small the tensor cores read 11 bits).  Rounding is that of cvt.rna,
 * in one instruction less: a NaN may lose its bits in big, and is in small.  An infinity has a NaN
 * in small: it would be multiplied by parts of either sign. */
template <bool EXACT> static __device__ __forceinline__ void split(float x, uint32_t &big, uint32_t &small)
{
  if (EXACT) {
    big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(big));
  } else {
    big = ax_cuda_to_tf32(x);
    small = 0;
  }
}

/* d += a b of split fragments. */
template <bool EXACT>
static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[2][4],
                                                const uint32_t (&b)[2][2])
{
  if (EXACT) {
    ax_cuda_mma_tf32(d, a[1], b[0][0], b[0][1]);
    ax_cuda_mma_tf32(d, a[0], b[1][0], b[1][1]);
  }
  ax_cuda_mma_tf32(d, a[0], b[0][0], b[0][1]);
}

/* s[m][n] = rows 16 m of `own` times rows 8 n of `walked`, over `width` columns. */
template <int PITCH, bool EXACT, int MT, int COLUMNS>
static __device__ __forceinline__ void dots(float (&s)[MT][COLUMNS][4], const float *own, const float *walked,
                                            int width)
{
  const int lane = flash_anew(threadIdx.x) % 32, at = turn(lane / 4) * PITCH + lane % 4 * 4;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll 1
  for (int c = 0; c < width; c += 16) { /* columns c + 4 (lane % 4) + 0..3: two products' */
    uint32_t a[MT][2][2][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float4 x = *(const float4 *)(own + at + (16 * m + 8 * half) * PITCH + c);
        split<EXACT>(x.x, a[m][0][0][half], a[m][0][1][half]);
        split<EXACT>(x.y, a[m][0][0][half + 2], a[m][0][1][half + 2]);
        split<EXACT>(x.z, a[m][1][0][half], a[m][1][1][half]);
        split<EXACT>(x.w, a[m][1][0][half + 2], a[m][1][1][half + 2]);
      }
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
      const float4 y = *(const float4 *)(walked + at + 8 * n * PITCH + c);
      uint32_t b[2][2][2];
      split<EXACT>(y.x, b[0][0][0], b[0][1][0]);
      split<EXACT>(y.y, b[0][0][1], b[0][1][1]);
      split<EXACT>(y.z, b[1][0][0], b[1][1][0]);
      split<EXACT>(y.w, b[1][0][1], b[1][1][1]);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        float part[4] = { 0, 0, 0, 0 };
        multiply<EXACT>(part, a[m][0], b[0]);
        multiply<EXACT>(part, a[m][1], b[1]);
        for (int i = 0; i < 4; i++) s[m][n][i] += part[i];
      }
    }
  }
}

/* sum[m] = sum[m] by[m] + p[m] times the walked rows, whose first `width` columns count. */
template <int PITCH, bool EXACT, int MT, int COLUMNS, int GROUPS>
static __device__ __forceinline__ void add_rows(float (&sum)[MT][GROUPS * 4][4], const float (&by)[MT][2],
                                                const float (&p)[MT][COLUMNS][4], const float *walked,
                                                int width)
{
  const int lane = flash_anew(threadIdx.x) % 32, at = lane % 4 * PITCH + turn(lane / 4) * 4;
  uint32_t a[MT][COLUMNS][2][4];
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int k = 0; k < COLUMNS; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) /* d: rows 0, 0, 8, 8, columns 0, 4, 0, 4; a: rows first */
        split<EXACT>(p[m][k][i], a[m][k][0][i / 2 + i % 2 * 2], a[m][k][1][i / 2 + i % 2 * 2]);
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    if (32 * g >= width) break;
    float part[MT][4][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int j = 0; j < 4; j++) part[m][j][0] = part[m][j][1] = part[m][j][2] = part[m][j][3] = 0;
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
      const float4 x = *(const float4 *)(walked + at + 8 * k * PITCH + 32 * g),
                   y = *(const float4 *)(walked + at + (8 * k + 4) * PITCH + 32 * g);
      const float xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t b[2][2];
        split<EXACT>(xs[j], b[0][0], b[1][0]);
        split<EXACT>(ys[j], b[0][1], b[1][1]);
#pragma unroll
        for (int m = 0; m < MT; m++) multiply<EXACT>(part[m][j], a[m][k], b);
      }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          sum[m][4 * g + j][i] = fmaf(sum[m][4 * g + j][i], by[m][i / 2], part[m][j][i]);
  }
}

/* ---- rows between global and shared memory */

/* Rows of a plane.  wide: they have runs of 16 bytes. */
struct plane_rows {
  char *data;
  int64_t row, step; /* in elements */
  int width, dtype;
  bool wide;
  __device__ __forceinline__ plane_rows(const ax_cuda_side &s, int64_t b, int64_t h, int width, int dtype)
      : row(s.step[2]), step(s.step[3]), width(width), dtype(dtype)
  {
    const int size = dtype == AX_F32 ? 4 : 2;
    data = (char *)s.data + (b * s.step[0] + h * s.step[1]) * size;
    wide = step == 1 && (((uintptr_t)data | (uintptr_t)(row * size) | (uintptr_t)(width * size)) & 15) == 0;
  }
};

/* Begins to load rows [first, first + ROWS) of a plane of `count`; zeros beyond it, and beyond the
 * width up to the next multiple of 16 columns.  All threads of the block take part. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_rows(float *to, const plane_rows &s, int first, int count)
{
  constexpr int PITCH = D + 4;
  const int columns = (s.width + 15) & ~15;
  if (s.wide && s.dtype == AX_F32) {
#pragma unroll 4
    for (int p = flash_anew(threadIdx.x); p < ROWS * (D / 4); p += FLASH_THREADS) {
      const int r = p / (D / 4), c = p % (D / 4) * 4;
      const bool in = first + r < count && c < s.width;
      const float *const from = (const float *)s.data + (in ? (first + r) * s.row + c : 0);
      if (c < columns) ax_cuda_copy_async<16>(to + r * PITCH + c, from, in);
    }
  } else if (s.wide) {
#pragma unroll 1
    for (int p = flash_anew(threadIdx.x); p < ROWS * (D / 8); p += FLASH_THREADS) {
      const int r = p / (D / 8), c = p % (D / 8) * 8;
      float v[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
      if (c >= columns) continue;
      if (first + r < count && c < s.width) {
        if (s.dtype == AX_BF16) ax_cuda_get<8>((const ax_cuda_bf16 *)s.data, (first + r) * s.row + c, v);
        else ax_cuda_get<8>((const ax_cuda_f16 *)s.data, (first + r) * s.row + c, v);
      }
      *(float4 *)(to + r * PITCH + c) = float4{ v[0], v[1], v[2], v[3] };
      *(float4 *)(to + r * PITCH + c + 4) = float4{ v[4], v[5], v[6], v[7] };
    }
  } else {
#pragma unroll 1
    for (int p = flash_anew(threadIdx.x); p < ROWS * D; p += FLASH_THREADS) {
      const int r = p / D, c = p % D;
      const bool in = first + r < count && c < s.width;
      const int64_t at = in ? (first + r) * s.row + c * s.step : 0;
      if (c >= columns) continue;
      if (s.dtype == AX_F32) ax_cuda_copy_async<4>(to + r * PITCH + c, (const float *)s.data + at, in);
      else if (!in) to[r * PITCH + c] = 0;
      else if (s.dtype == AX_BF16) to[r * PITCH + c] = ax_cuda_load(((const ax_cuda_bf16 *)s.data)[at]);
      else to[r * PITCH + c] = ax_cuda_load(((const ax_cuda_f16 *)s.data)[at]);
    }
  }
}

/* Writes a warp's sums, times by0 and by1 (rows 0-7 and 8-15), into its rows in shared memory. */
template <int PITCH, int GROUPS>
static __device__ __forceinline__ void keep_sums(float *own, const float (&sum)[GROUPS * 4][4], float by0,
                                                 float by1, int width)
{
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    if (32 * g >= width) break;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float by = i < 2 ? by0 : by1;
      *(float4 *)(own + (turn(lane / 4) + i / 2 * 8) * PITCH + 32 * g + i % 2 * 16 + lane % 4 * 4) =
          float4{ sum[4 * g][i] * by, sum[4 * g + 1][i] * by, sum[4 * g + 2][i] * by,
                  sum[4 * g + 3][i] * by };
    }
  }
}

/* Stores rows [first, first + ROWS) from shared memory. */
template <int D, int ROWS>
static __device__ __forceinline__ void store_rows(const float *own, const plane_rows &s, int first, int count)
{
  constexpr int PITCH = D + 4;
  if (s.wide) {
#pragma unroll 1
    for (int p = threadIdx.x; p < ROWS * (D / 8); p += FLASH_THREADS) {
      const int r = p / (D / 8), c = p % (D / 8) * 8;
      const int64_t at = (first + r) * s.row + c;
      if (first + r >= count || c >= s.width) continue;
      const float4 x = *(const float4 *)(own + r * PITCH + c), y = *(const float4 *)(own + r * PITCH + c + 4);
      const float v[8] = { x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w };
      if (s.dtype == AX_F32) {
        *(float4 *)((float *)s.data + at) = x;
        if (c + 4 < s.width) *(float4 *)((float *)s.data + at + 4) = y;
      } else if (s.dtype == AX_BF16) ax_cuda_put<8>((ax_cuda_bf16 *)s.data, at, v);
      else ax_cuda_put<8>((ax_cuda_f16 *)s.data, at, v);
    }
  } else {
#pragma unroll 1
    for (int p = threadIdx.x; p < ROWS * D; p += FLASH_THREADS) {
      const int r = p / D, c = p % D;
      const int64_t at = (first + r) * s.row + c * s.step;
      if (first + r >= count || c >= s.width) continue;
      const float v = own[r * PITCH + c];
      if (s.dtype == AX_F32) ((float *)s.data)[at] = v;
      else if (s.dtype == AX_BF16) ((ax_cuda_bf16 *)s.data)[at] = ax_cuda_store<ax_cuda_bf16>(v);
      else ((ax_cuda_f16 *)s.data)[at] = ax_cuda_store<ax_cuda_f16>(v);
    }
  }
}

/* ---- scores: masks, the diagonal, dropout.  Element i of column tile n is row turn(lane / 4) + 8
 * (i / 2) and column 8 n + lane % 4 + 4 (i % 2). */

/* Scores times the scale, plus the mask; -infinity where a query does not see a key. */
template <bool KEYS, int WALK, int PITCH, int COLUMNS>
static __device__ __forceinline__ void mask_scores(const ax_cuda_attention_job &j, float (&s)[COLUMNS][4],
                                                   int q0, int k0, const float *mask)
{
  const int lane = flash_anew(threadIdx.x) % 32, row = turn(lane / 4), column = lane % 4;
  const int per_query = flash_same_mask(j) ? 0 : PITCH;
  const float scale = (float)j.scale;
  const bool edge =
      (KEYS ? k0 + 16 : k0 + WALK) > j.keys || (j.causal && (KEYS ? k0 + 15 : k0 + WALK - 1) > q0);
#pragma unroll
  for (int n = 0; n < COLUMNS; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int r = row + i / 2 * 8, c = 8 * n + column + i % 2 * 4, q = KEYS ? c : r, k = KEYS ? r : c;
      s[n][i] = j.mask.data ? fmaf(s[n][i], scale, mask[q * per_query + k]) : s[n][i] * scale;
      if (edge && (k0 + k >= j.keys || (j.causal && k0 + k > q0 + q))) s[n][i] = -INFINITY;
    }
}

/* Which elements stay: bit 4 n of kept[i].  A Philox block is four keys of one query, and no two
 * lanes compute the same one. */
template <bool KEYS, int COLUMNS>
static __device__ __forceinline__ void keep(const ax_cuda_attention_job &j, int64_t plane, int q0, int k0,
                                            uint32_t (&kept)[4])
{
  const int lane = flash_anew(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const int q = KEYS ? c + (g >> 2) * 4 : turn(g) + (c >> 1) * 8, quad = KEYS ? g & 3 : c & 1;
  const uint64_t block = (uint64_t)((plane * j.queries + q0 + q) * j.quads + k0 / 4 + quad);
  const int64_t next = KEYS ? 8 * j.quads : 2;
  const ax_cuda_draw draw = flash_draw(j.draw);
  uint32_t own = 0;
#pragma unroll 4
  for (int n = 0; n < COLUMNS; n++) own |= flash_nibble(draw, j.least, block + (uint64_t)(next * n)) << 4 * n;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int from = KEYS ? ((g & 1) | (i & 2) | (i & 1) << 2) * 4 + c : (lane & ~3) | i;
    kept[i] = __shfl_sync(0xffffffffu, own, from) >> (KEYS ? g >> 1 : c);
  }
}

/* ---- the host's side */

/* Calls f(ax_cuda_int<1>()) where a product of float32 needs all its digits. */
template <class F> static ax_status tf32_with_digits(ax_dtype dtype, F f)
{
  if (dtype == AX_F32 && ax_float32_matmul_precision() == AX_PRECISION_HIGHEST) return f(ax_cuda_int<1>());
  return f(ax_cuda_int<0>());
}

#endif
