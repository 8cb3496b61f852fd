/* Matrices of eight bits.  The cast reads a tile once and writes it, its transpose and the largest
 * size.  Products are cuBLASLt's where the GPU multiplies eight bits (sm_89 and later); elsewhere
 * the bits are widened to bfloat16, which holds them exactly. */
#include "float8_scale.h"
#include "gemm.cuh"
#include "rows.cuh"

enum { TILE = 64, PITCH = TILE + 4, THREADS = 256, RUN = 8 };

template <class Q> struct format;
template <> struct format<ax_cuda_e4m3> {
  static constexpr float most = AX_E4M3_MOST;
};
template <> struct format<ax_cuda_e5m2> {
  static constexpr float most = AX_E5M2_MOST;
};

static __device__ __forceinline__ unsigned size_bits(float v) { return ax_float_to_bits(v) & 0x7fffffffu; }

/* The largest of the warp's, to *at: bits of sizes, whose order is that of the sizes. */
static __device__ __forceinline__ void note_largest(unsigned size, float *at)
{
  for (int step = 16; step; step /= 2) {
    const unsigned other = __shfl_xor_sync(~0u, size, step);
    size = other > size ? other : size;
  }
  if ((threadIdx.x & 31) == 0 && size) atomicMax((unsigned *)at, size);
}

template <class S> static __global__ void find_amax(const S *x, int64_t n, float *scales)
{
  unsigned size = 0;
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) {
    const unsigned one = size_bits(ax_cuda_load(x[i]));
    size = one > size ? one : size;
  }
  note_largest(size, &scales[1]);
}

struct cast {
  int64_t rows, cols, wide; /* wide: the elements of a row of the transpose */
  int64_t across;           /* tiles of a row of tiles */
  const float *scale;       /* NULL: from scales[1], which is complete */
  float *scales;
  bool vectors; /* rows begin at runs of RUN */
};

/* RUN elements of row r from column c on; zeros outside. */
template <class S>
static __device__ __forceinline__ void load_run(const cast &j, const S *x, int64_t r, int64_t c, float *v)
{
  if (r < j.rows && j.vectors && c < j.cols) {
    const ax_cuda_pack<S, RUN> run = *(const ax_cuda_pack<S, RUN> *)(x + r * j.cols + c);
#pragma unroll
    for (int i = 0; i < RUN; i++) v[i] = ax_cuda_load(run.v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < RUN; i++)
    v[i] = r < j.rows && c + i < j.cols ? (float)ax_cuda_load(x[r * j.cols + c + i]) : 0.0f;
}

template <class S, class Q>
static __global__ void __launch_bounds__(THREADS) cast_tiles(cast j, const S *x, Q *y, Q *turned)
{
  __shared__ uint32_t words[TILE * PITCH / 4];
  Q *const tile = (Q *)words; /* a column of the matrix is a row here */
  const float most = format<Q>::most, scale = j.scale ? *j.scale : ax_float8_scale(j.scales[1], most);
  const int64_t row = blockIdx.x / j.across * TILE, col = blockIdx.x % j.across * TILE;
  const int place = threadIdx.x / (TILE / RUN), first = threadIdx.x % (TILE / RUN) * RUN;
  unsigned size = 0;

  for (int down = place; down < TILE; down += THREADS / (TILE / RUN)) {
    float v[RUN];
    ax_cuda_pack<Q, RUN> out;
    const int64_t r = row + down, c = col + first;
    load_run(j, x, r, c, v);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      const unsigned one = size_bits(v[i]);
      size = one > size ? one : size;
      out.v[i] = ax_cuda_store<Q>(ax_float8_limit(v[i], scale, most));
      tile[(first + i) * PITCH + down] = out.v[i];
    }
    if (r >= j.rows || c >= j.cols) continue;
    if (j.vectors) *(ax_cuda_pack<Q, RUN> *)(y + r * j.cols + c) = out;
    else
      for (int i = 0; i < RUN && c + i < j.cols; i++) y[r * j.cols + c + i] = out.v[i];
  }
  if (j.scale) note_largest(size, &j.scales[1]);
  if (blockIdx.x == 0 && threadIdx.x == 0) j.scales[0] = 1 / scale;
  if (!turned) return;
  __syncthreads();
  const int across = threadIdx.x / (TILE / 16), part = threadIdx.x % (TILE / 16) * 16;
  if (col + across >= j.cols || row + part >= j.wide) return;
  ax_cuda_pack<uint32_t, 4> sixteen;
  for (int i = 0; i < 4; i++) sixteen.v[i] = words[(across * PITCH + part) / 4 + i];
  *(ax_cuda_pack<uint32_t, 4> *)(turned + (col + across) * j.wide + row + part) = sixteen;
}

AX_CUDA_KERNEL(_float8_cast)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *turned = call->out[1];
  const ax_device d = x->device;
  const int64_t rows = x->shape[0], cols = x->shape[1];
  cast j = {};

  j.rows = rows, j.cols = cols, j.across = (cols + TILE - 1) / TILE;
  j.wide = (rows + 15) / 16 * 16;
  j.scale = ax_cuda_data<float>(call->in[1]);
  j.scales = ax_cuda_data<float>(call->out[2]);
  ax_status st = ax_cuda_clear("float8_cast", d, j.scales, 2 * sizeof(float));
  if (st != AX_OK) return st;
  return ax_cuda_with_narrow(call->op, (ax_dtype)x->dtype, [&](auto from) {
    typedef AX_TYPE_OF(from) S;
    const S *const data = ax_cuda_data<S>(x);
    j.vectors = cols % RUN == 0 && (uintptr_t)data % (sizeof(S) * RUN) == 0;
    if (!j.scale && x->numel)
      st = ax_cuda_launch("float8_cast", d, ax_cuda_blocks(x->numel, THREADS, d.index), THREADS, find_amax<S>,
                          data, x->numel, j.scales);
    if (st != AX_OK) return st;
    /* (one block for an empty matrix, which writes the scale) */
    const int64_t tiles = (rows + TILE - 1) / TILE * j.across;
    if (j.across == 0) j.across = 1;
    const auto launch = [&](auto to) {
      typedef AX_TYPE_OF(to) Q;
      return ax_cuda_launch("float8_cast", d, ax_cuda_tiles(tiles, 1), THREADS, cast_tiles<S, Q>, j, data,
                            ax_cuda_data<Q>(y), turned->numel ? ax_cuda_data<Q>(turned) : (Q *)NULL);
    };
    return y->dtype == AX_E4M3 ? launch(ax_cuda_type<ax_cuda_e4m3>()) : launch(ax_cuda_type<ax_cuda_e5m2>());
  });
}

/* ---- products */

template <class Q> static __global__ void widen(const Q *x, int64_t n, ax_cuda_bf16 *y)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) y[i] = ax_cuda_store<ax_cuda_bf16>(ax_cuda_load(x[i]));
}

static ax_status in_bfloat16(const ax_tensor *t, void **out)
{
  const ax_device d = t->device;
  ax_status st = ax_cuda_take(d, (size_t)t->numel * 2, out);
  if (st != AX_OK) return st;
  const unsigned blocks = ax_cuda_blocks(t->numel, THREADS, d.index);
  if (t->dtype == AX_E4M3)
    return ax_cuda_launch("float8_product", d, blocks, THREADS, widen<ax_cuda_e4m3>,
                          ax_cuda_data<ax_cuda_e4m3>(t), t->numel, (ax_cuda_bf16 *)*out);
  return ax_cuda_launch("float8_product", d, blocks, THREADS, widen<ax_cuda_e5m2>,
                        ax_cuda_data<ax_cuda_e5m2>(t), t->numel, (ax_cuda_bf16 *)*out);
}

/* The sums times both scales (NULL: they are in the sums), with the bias, rounded. */
template <class S>
static __global__ void finish(const float *sums, const float *a, const float *b, const S *bias, int64_t n,
                              int64_t cols, S *y)
{
  const float factor = a ? *a * *b : 1;
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP)
    y[i] = ax_cuda_store<S>(sums[i] * factor + (bias ? ax_cuda_load(bias[i % cols]) : 0.0f));
}

static ax_status finished(const ax_call *call, const float *sums, bool scaled)
{
  const ax_tensor *y = call->out[0];
  const float *const a = scaled ? NULL : ax_cuda_data<float>(call->in[2]), *const b =
                                                                               scaled ? NULL
                                                                                      : ax_cuda_data<float>(
                                                                                            call->in[3]);
  return ax_cuda_with_narrow(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("float8_product", y->device, ax_cuda_blocks(y->numel, THREADS, y->device.index),
                          THREADS, finish<S>, sums, a, b, (const S *)ax_cuda_data<S>(call->in[4]), y->numel,
                          y->shape[1], ax_cuda_data<S>(y));
  });
}

static ax_cuda_gemm shape_of(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1];
  ax_cuda_gemm g = {};
  g.batch = 1, g.m = a->shape[0], g.n = b->shape[0], g.k = a->shape[1];
  g.a[1] = g.k, g.a[2] = 1;
  g.b[1] = 1, g.b[2] = g.k;
  g.c[1] = g.n;
  return g;
}

/* In bfloat16, with sums in float32. */
static ax_status widened(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
  const ax_device d = y->device;
  void *wide_a = NULL, *wide_b = NULL, *sums = NULL;
  ax_cuda_gemm g = shape_of(call);
  ax_status st;

  g.dtype = AX_BF16, g.out = AX_F32;
  if ((st = ax_cuda_take(d, (size_t)y->numel * 4, &sums)) != AX_OK) return st;
  if ((st = in_bfloat16(a, &wide_a)) == AX_OK && (st = in_bfloat16(b, &wide_b)) == AX_OK &&
      (st = ax_cuda_product(call->op, d, &g, wide_a, wide_b, NULL, sums)) == AX_OK)
    st = finished(call, (const float *)sums, false);
  if (wide_a) ax_cuda_give(d, wide_a, (size_t)a->numel * 2);
  if (wide_b) ax_cuda_give(d, wide_b, (size_t)b->numel * 2);
  ax_cuda_give(d, sums, (size_t)y->numel * 4);
  return st;
}

AX_CUDA_KERNEL(_float8_product)
{
  const ax_tensor *bias = call->in[4], *y = call->out[0];
  /* cuBLASLt adds no bias of float32 here */
  const bool apart = bias && y->dtype == AX_F32;
  ax_cuda_gemm g = shape_of(call);
  bool done = false;

  if (y->numel == 0) return AX_OK;
  if (g.k == 0) {
    const ax_status st = ax_cuda_clear("float8_product", y->device, ax_data(y),
                                       ax_dtype_size((ax_dtype)y->dtype) * (size_t)y->numel);
    return st == AX_OK && bias ? finished(call, NULL, true) : st;
  }
  g.dtype = call->in[0]->dtype, g.dtype_b = call->in[1]->dtype, g.out = y->dtype;
  g.fast = call->a->float8_product.fast != 0;
  g.bias = bias && !apart;
  ax_cuda_gemm_data data = { ax_data(call->in[0]), ax_data(call->in[1]), NULL, NULL, ax_data(y) };
  data.scale_a = ax_cuda_data<float>(call->in[2]);
  data.scale_b = ax_cuda_data<float>(call->in[3]);
  if (g.bias) data.bias = ax_data(bias);
  const ax_status st = ax_cublaslt_gemm(y->device, &g, &data, &done);
  if (st != AX_OK) return st;
  if (!done) return widened(call);
  return apart ? finished(call, ax_cuda_data<float>(y), true) : AX_OK;
}
