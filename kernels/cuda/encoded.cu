/* Encoded matrices (core/encodings.def).  A thread decodes 32 neighbouring values, at places that
 * the encoding chooses, and a warp so many times 32: its tile, in shared memory.  From there the
 * threads take the values in order, so that what they read and write of other memory lies side by
 * side.  A few rows of x: a warp has a row of the matrix, and memory gives the codes alone.  More
 * rows: the matrix is decoded into scratch memory for the ordinary product.  The formulas of
 * kernels/decode.h are compiled without contraction, as on the CPU; sums are fused. */
#include "gemm.cuh"
#include "rows.cuh"

#include "decode.h"

enum { FEW = 4, WARPS = 4 }; /* rows of x that are multiplied as they come; warps of a block */
/* A lane's values have one place more than they need: lanes that decode are in different banks. */
enum { PITCH = 33, TILE = 32 * PITCH };
static __device__ __forceinline__ int tile_place(int i) { return i + i / 32; }

/* 32 values from column `col` on; `plain`: the codes of int8 themselves. */
static __device__ __forceinline__ void decode(const ax_encoded &e, bool plain, int64_t row, int64_t col,
                                              float *out)
{
  const int n = e.cols - col < 32 ? (int)(e.cols - col) : 32;
  if (!plain) ax_decode_32(&e, row, col, out);
  else
    for (int i = 0; i < n; i++) out[i] = (float)(int8_t)e.codes[row * e.cols + col + i];
}

/* A group is what a thread decodes: 32 values of a row, or those left at its end.  A tile is 32
 * groups, whose values follow each other in the matrix. */
struct tiling {
  int64_t cols, groups; /* of a row */
  /* The number of the first value of group k. */
  __device__ __forceinline__ int64_t first(int64_t k) const
  {
    const int64_t row = ax_cuda_divided(k, groups);
    return row * cols + (k - row * groups) * 32;
  }
  /* The place of value i in the tile that begins with group k and value `from`. */
  __device__ __forceinline__ int place(int64_t k, int64_t from, int64_t i) const
  {
    if (cols % 32 == 0) return tile_place((int)(i - from));
    const int64_t row = ax_cuda_divided(i, cols), col = i - row * cols;
    return tile_place((int)(row * groups + col / 32 - k) * 32 + (int)(col % 32));
  }
};

/* V values are 16 bytes, which a thread stores at once; at the ends of a tile one by one. */
template <class S> static __global__ void decode_all(ax_encoded e, bool plain, S *y)
{
  constexpr int V = 16 / (int)sizeof(S);
  __shared__ float tiles[WARPS][TILE];
  float *const tile = tiles[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const tiling t = { e.cols, (e.cols + 31) / 32 };
  const int64_t all = e.rows * t.groups;
  for (int64_t k = AX_FIRST - lane; k < all; k += AX_STEP) {
    const int64_t first = t.first(k), end = t.first(k + 32 < all ? k + 32 : all);
    if (k + lane < all) {
      const int64_t row = ax_cuda_divided(k + lane, t.groups);
      decode(e, plain, row, (k + lane - row * t.groups) * 32, tile + lane * PITCH);
    }
    __syncwarp();
    /* from an address that is a multiple of 16 on */
    const int before = (int)((uintptr_t)(y + first) % 16 / sizeof(S));
    for (int64_t i = first - before + lane * V; i < end; i += 32 * V) {
      if (i >= first && i + V <= end) {
        compute<S> v[V];
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = tile[t.place(k, first, i + j)];
        ax_cuda_put(y, i, v);
      } else
        for (int j = 0; j < V; j++)
          if (i + j >= first && i + j < end) y[i + j] = ax_cuda_store<S>(tile[t.place(k, first, i + j)]);
    }
    __syncwarp(); /* the tile is about to be written again */
  }
}

template <class S> static ax_status decode_into(ax_device d, const ax_encoded &e, bool plain, S *y)
{
  return ax_cuda_launch("decode", d, ax_cuda_blocks(e.rows * ((e.cols + 31) / 32), 32 * WARPS, d.index),
                        32 * WARPS, decode_all<S>, e, plain, y);
}

AX_CUDA_KERNEL(_decode)
{
  const ax_tensor *y = call->out[0];
  if (y->numel == 0) return AX_OK;
  const auto &a = call->a->decode;
  const ax_encoded e = ax_encoded_of(call, 0, a.encoding, a.rows, a.cols, a.size);
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    return decode_into(y->device, e, false, ax_cuda_data<AX_TYPE_OF(tag)>(y));
  });
}

/* ---- products */

/* y (m, rows) = x (m, cols) times the matrix transposed, + bias of type `bias_type` */
template <class S>
static __global__ void few_rows(ax_encoded e, bool plain, int m, const S *x, int bias_type, const void *bias,
                                S *y)
{
  typedef ax_cuda_team<false> team;
  __shared__ float tiles[WARPS][TILE];
  float *const tile = tiles[threadIdx.x / 32];
  const int lane = team::rank();
  for (int64_t r = team::first_row(); r < e.rows; r += team::row_step()) {
    float sum[FEW] = { 0 };
    for (int64_t col = 0; col < e.cols; col += 32 * 32) {
      const int n = e.cols - col < 32 * 32 ? (int)(e.cols - col) : 32 * 32;
      if (32 * lane < n) decode(e, plain, r, col + 32 * lane, tile + lane * PITCH);
      __syncwarp();
      for (int k = lane; k < n; k += 32) {
        const float w = tile[tile_place(k)];
        for (int i = 0; i < m; i++) sum[i] = fmaf(w, (float)ax_cuda_load(x[i * e.cols + col + k]), sum[i]);
      }
      __syncwarp(); /* the tile is about to be written again */
    }
    for (int i = 0; i < m; i++) {
      const float all = team::sum(sum[i], (float *)NULL);
      if (team::rank() == 0)
        y[i * e.rows + r] = ax_cuda_store<S>(all + (bias ? (float)ax_cuda_number_at(bias_type, bias, r) : 0));
    }
  }
}

static __global__ void round_bias(int to, void *y, int from, const void *x, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) ax_cuda_number_put(to, y, i, ax_cuda_number_at(from, x, i));
}

/* The bias in the product's type: itself, or rounded into *own. */
static ax_status bias_as(ax_device d, const ax_tensor *bias, ax_dtype dtype, size_t bytes, void **own,
                         const void **out)
{
  ax_status st;
  *out = bias ? ax_data(bias) : NULL;
  if (!bias || bias->dtype == dtype) return AX_OK;
  if ((st = ax_cuda_take(d, bytes, own)) != AX_OK) return st;
  *out = *own;
  return ax_cuda_launch("linear", d, ax_cuda_blocks(bias->numel, 256, d.index), 256, round_bias, (int)dtype,
                        *own, (int)bias->dtype, (const void *)ax_data(bias), bias->numel);
}

template <class S>
static ax_status many_rows(ax_op op, ax_device d, ax_dtype dtype, const ax_encoded &e, bool plain, int64_t m,
                           const S *x, const ax_tensor *bias, S *y)
{
  const size_t bytes = (size_t)(e.rows * e.cols) * sizeof(S), bias_bytes = (size_t)e.rows * sizeof(S);
  void *matrix = NULL, *own_bias = NULL;
  const void *b = NULL;
  ax_cuda_gemm g = {};
  ax_status st;

  g.dtype = g.out = dtype, g.batch = 1, g.m = m, g.n = e.rows, g.k = e.cols;
  g.a[1] = e.cols, g.a[2] = 1, g.b[1] = 1, g.b[2] = e.cols, g.c[1] = e.rows;
  g.bias = bias != NULL;
  AX_TRY(ax_cuda_take(d, bytes, &matrix));
  AX_TRY(decode_into(d, e, plain, (S *)matrix));
  AX_TRY(bias_as(d, bias, dtype, bias_bytes, &own_bias, &b));
  st = ax_cuda_product(op, d, &g, x, matrix, b, y);
out:
  if (matrix) ax_cuda_give(d, matrix, bytes);
  if (own_bias) ax_cuda_give(d, own_bias, bias_bytes);
  return st;
}

template <class S>
static ax_status multiply(ax_op op, ax_device d, ax_dtype dtype, const ax_encoded &e, bool plain, int64_t m,
                          const S *x, const ax_tensor *bias, S *y)
{
  if (m > FEW || dtype == AX_F64) return many_rows(op, d, dtype, e, plain, m, x, bias, y);
  return ax_cuda_launch("linear", d, ax_cuda_blocks(e.rows * 32, 128, d.index), 128, few_rows<S>, e, plain,
                        (int)m, x, bias ? (int)bias->dtype : 0, bias ? (const void *)ax_data(bias) : NULL, y);
}

/* ---- LLM.int8: x in 8 bits, but for columns with a large element */

static __device__ __forceinline__ float half_at(int type, const void *x, int64_t i)
{
  return ax_half_to_float(ax_float_to_half((float)ax_cuda_number_at(type, x, i)));
}

static __global__ void find_large(int type, const void *x, int64_t m, int64_t cols, float threshold,
                                  uint8_t *large)
{
  for (int64_t c = AX_FIRST; c < cols; c += AX_STEP) {
    bool found = false;
    for (int64_t i = 0; i < m && threshold > 0; i++)
      found |= fabsf(half_at(type, x, i * cols + c)) >= threshold;
    large[c] = found;
  }
}

static __global__ void encode_rows(int type, const void *x, int64_t m, int64_t cols, const uint8_t *large,
                                   float *codes, float *scales)
{
  typedef ax_cuda_team<false> team;
  for (int64_t i = team::first_row(); i < m; i += team::row_step()) {
    float most = 0;
    for (int64_t c = team::rank(); c < cols; c += team::size())
      if (!large[c]) most = fmaxf(most, fabsf(half_at(type, x, i * cols + c)));
    most = team::most(most, (float *)NULL);
    const float scale = most > 0 ? 1.0f / most * 127.0f : 0; /* rounded twice, as in PyTorch */
    for (int64_t c = team::rank(); c < cols; c += team::size())
      codes[i * cols + c] = large[c] ? 0 : rintf(half_at(type, x, i * cols + c) * scale);
    if (team::rank() == 0) scales[i] = most;
  }
}

/* A warp has an element of y. */
static __global__ void finish(ax_encoded e, int64_t m, int type, const void *x, const uint8_t *large,
                              const float *scales, const float *product, int bias_type, const void *bias,
                              void *y)
{
  typedef ax_cuda_team<false> team;
  for (int64_t k = team::first_row(); k < m * e.rows; k += team::row_step()) {
    const int64_t i = k / e.rows, r = k - i * e.rows;
    float sum = 0;
    for (int64_t c = team::rank(); c < e.cols; c += team::size())
      if (large[c])
        sum += (float)ax_cuda_number_at(type, x, i * e.cols + c) *
               ((float)(int8_t)e.codes[r * e.cols + c] * e.scales[r] * AX_INT8_UNIT);
    sum = team::sum(sum, (float *)NULL);
    if (team::rank() == 0)
      ax_cuda_number_put(type, y, k,
                         product[k] * (scales[i] * e.scales[r]) * (1.0f / (127.0f * 127.0f)) +
                             (bias ? (float)ax_cuda_number_at(bias_type, bias, r) : 0) + sum);
  }
}

static ax_status by_int8(const ax_call *call, const ax_encoded &e, int64_t m, float threshold)
{
  const ax_tensor *x = call->in[0], *bias = call->in[4], *y = call->out[0];
  const ax_device d = y->device;
  const int type = x->dtype;
  const void *const data = ax_data(x);
  const size_t codes = (size_t)(m * e.cols) * 4, products = (size_t)y->numel * 4, scales = (size_t)m * 4,
               bytes = codes + products + scales + (size_t)e.cols;
  void *room = NULL;
  ax_status st;

  AX_TRY(ax_cuda_take(d, bytes, &room));
  {
    float *const c = (float *)room, *const p = (float *)((char *)room + codes), *const s = p + y->numel;
    uint8_t *const large = (uint8_t *)(s + m);
    AX_TRY(ax_cuda_launch("linear", d, ax_cuda_blocks(e.cols, 256, d.index), 256, find_large, type, data, m,
                          e.cols, threshold, large));
    AX_TRY(ax_cuda_launch("linear", d, ax_cuda_blocks(m * 32, 128, d.index), 128, encode_rows, type, data, m,
                          e.cols, (const uint8_t *)large, c, s));
    AX_TRY(multiply(call->op, d, AX_F32, e, true, m, (const float *)c, NULL, p));
    AX_TRY(ax_cuda_launch("linear", d, ax_cuda_blocks(y->numel * 32, 128, d.index), 128, finish, e, m, type,
                          data, (const uint8_t *)large, (const float *)s, (const float *)p,
                          bias ? (int)bias->dtype : 0, bias ? (const void *)ax_data(bias) : NULL,
                          (void *)ax_data(y)));
  }
out:
  if (room) ax_cuda_give(d, room, bytes);
  return st;
}

AX_CUDA_KERNEL(_linear_encoded)
{
  const ax_tensor *x = call->in[0], *bias = call->in[4], *y = call->out[0];
  const auto &a = call->a->linear_encoded;
  if (y->numel == 0) return AX_OK;
  const ax_encoded e = ax_encoded_of(call, 1, a.encoding, a.rows, a.cols, a.size);
  const int64_t m = y->numel / e.rows;
  if (a.threshold == a.threshold) return by_int8(call, e, m, (float)a.threshold);
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return multiply(call->op, y->device, (ax_dtype)y->dtype, e, false, m, (const S *)ax_cuda_data<S>(x), bias,
                    ax_cuda_data<S>(y));
  });
}
