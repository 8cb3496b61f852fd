/* mm, bmm, linear: the choice of the implementation.  cuBLASLt computes float types with one
 * adjacent dim; other float matrices are packed first where that pays.  The rest (integers, cases
 * for which cuBLASLt has no algorithm) uses a plain tiled kernel, which shared memory bounds. */
#include "gemm.cuh"
#include "batched_matmul.h"
#include "cuda/runtime/stats.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- our own kernel: one block for TILE x TILE results, one thread for each, any strides */

enum { TILE = 16 };

/* The type that products are summed in: integers wrap around in an unsigned type of their width. */
template <class S> struct accumulator {
  typedef compute<S> type;
};
template <> struct accumulator<int64_t> {
  typedef uint64_t type;
};
template <> struct accumulator<int32_t> {
  typedef uint32_t type;
};
template <> struct accumulator<uint8_t> {
  typedef uint32_t type;
};

template <class S, class O>
static __global__ void gemm_tile(ax_cuda_gemm g, const S *a, const S *b, const O *bias, O *c)
{
  typedef typename accumulator<S>::type T;
  __shared__ T ta[TILE][TILE + 1], tb[TILE][TILE + 1];
  const int64_t x = (int64_t)blockIdx.x * TILE + threadIdx.x, tiles = (g.m + TILE - 1) / TILE;

  /* equal for the whole block */
  for (int64_t at = blockIdx.z * (int64_t)gridDim.y + blockIdx.y; at < g.batch * tiles;
       at += (int64_t)gridDim.y * gridDim.z) {
    const int64_t i = at / tiles, y = at % tiles * TILE + threadIdx.y;
    T sum = 0;
    for (int64_t k0 = 0; k0 < g.k; k0 += TILE) {
      const int64_t ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
      ta[threadIdx.y][threadIdx.x] =
          y < g.m && ka < g.k ? (T)ax_cuda_load(a[i * g.a[0] + y * g.a[1] + ka * g.a[2]]) : (T)0;
      tb[threadIdx.y][threadIdx.x] =
          x < g.n && kb < g.k ? (T)ax_cuda_load(b[i * g.b[0] + kb * g.b[1] + x * g.b[2]]) : (T)0;
      __syncthreads();
      for (int k = 0; k < TILE; k++) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
      __syncthreads();
    }
    if (y < g.m && x < g.n) {
      O *to = c + i * g.c[0] + y * g.c[1] + x;
      if (g.bias) sum += (T)ax_cuda_load(bias[x]);
      if (g.accumulate) sum += (T)ax_cuda_load(*to);
      *to = ax_cuda_store<O>(sum);
    }
  }
}

template <class S, class O>
static ax_status own_of(ax_op op, ax_device d, const ax_cuda_gemm *g, const void *a, const void *b,
                        const void *bias, void *c)
{
  const int64_t across = (g->n + TILE - 1) / TILE, down = (g->m + TILE - 1) / TILE * g->batch;
  const int64_t y = down < 65535 ? down : 65535, z = down / y < 65535 ? down / y : 65535;
  if (across > INT32_MAX)
    return ax_fail(AX_ESHAPE, "%s: %lld columns are more than the plain kernel takes", ax_ops[op].name,
                   (long long)g->n);
  return ax_cuda_launch(ax_ops[op].name, d, dim3((unsigned)across, (unsigned)y, (unsigned)z),
                        dim3(TILE, TILE), gemm_tile<S, O>, *g, (const S *)a, (const S *)b, (const O *)bias,
                        (O *)c);
}

static ax_status own(ax_op op, ax_device d, const ax_cuda_gemm *g, const void *a, const void *b,
                     const void *bias, void *c)
{
  static int64_t *calls[AX_DTYPE_COUNT][2];
  const bool wide = g->out != g->dtype;
  int64_t *&count = calls[g->dtype][wide];

  if (!count) {
    char name[96];
    snprintf(name, sizeof name, "mm %s -> %s, own kernel", ax_dtype_name((ax_dtype)g->dtype),
             ax_dtype_name((ax_dtype)g->out));
    count = ax_cuda_counter(name);
  }
  ++*count;
  switch ((ax_dtype)g->dtype) {
  case AX_I64: return own_of<int64_t, int64_t>(op, d, g, a, b, bias, c);
  case AX_I32: return own_of<int32_t, int32_t>(op, d, g, a, b, bias, c);
  case AX_U8: return own_of<uint8_t, uint8_t>(op, d, g, a, b, bias, c);
  case AX_F16:
    return wide ? own_of<ax_cuda_f16, float>(op, d, g, a, b, bias, c)
                : own_of<ax_cuda_f16, ax_cuda_f16>(op, d, g, a, b, bias, c);
  case AX_BF16:
    return wide ? own_of<ax_cuda_bf16, float>(op, d, g, a, b, bias, c)
                : own_of<ax_cuda_bf16, ax_cuda_bf16>(op, d, g, a, b, bias, c);
  case AX_F64: return own_of<double, double>(op, d, g, a, b, bias, c);
  case AX_F32: return own_of<float, float>(op, d, g, a, b, bias, c);
  default: return ax_cuda_no_dtype(op, (ax_dtype)g->dtype);
  }
}

/* ---- packing */

extern "C" ax_status ax_cuda__copy(const ax_call *call);

/* Packs the matrix (or a batch of them) contiguously into scratch memory; changes its steps.  For
 * expanded gradients and slices with a step. */
static ax_status pack(ax_op op, ax_device d, const ax_cuda_gemm *g, int64_t rows, int64_t cols, int64_t *step,
                      const void **src, void **own_memory, size_t *bytes)
{
  const int64_t batch = step[0] ? g->batch : 1, item = (int64_t)ax_dtype_size((ax_dtype)g->dtype);
  const int64_t shape[3] = { batch, rows, cols }, order[3] = { rows * cols, cols, 1 };
  ax_tensor like = {}; /* the copy reads only its device */
  ax_tensor *one = &like;
  const ax_attrs attrs = {};
  ax_iter it = {};
  ax_status st;

  like.device = d;
  like.dtype = (uint8_t)g->dtype;
  *bytes = (size_t)(batch * rows * cols * item);
  if ((st = ax_cuda_take(d, *bytes, own_memory)) != AX_OK) return st;
  it.ndim = 3, it.n = 2, it.numel = batch * rows * cols;
  it.op[0].data = (char *)*own_memory, it.op[1].data = (char *)*src;
  it.op[0].dtype = it.op[1].dtype = (ax_dtype)g->dtype;
  for (int k = 0; k < 3; k++)
    it.shape[k] = shape[k], it.op[0].stride[k] = order[k] * item, it.op[1].stride[k] = step[k] * item;
  ax_call call = {};
  call.op = op, call.a = &attrs, call.n_in = call.n_out = 1, call.in = call.out = &one, call.iter = &it;
  step[0] = step[0] ? rows * cols : 0, step[1] = cols, step[2] = 1;
  *src = *own_memory;
  return ax_cuda__copy(&call);
}

/* ---- the choice for each product */

/* The largest batch that one launch of cuBLASLt's kernels takes. */
enum { BATCH = 65535 };

static ax_status some(ax_op op, ax_device d, const ax_cuda_gemm *whole, const void *a, const void *b,
                      const void *bias, void *c)
{
  ax_cuda_gemm g = *whole;
  void *own_a = NULL, *own_b = NULL;
  size_t bytes_a = 0, bytes_b = 0;
  bool done = false;
  ax_status st = AX_OK;

  if (g.k > 0 && ax_is_float((ax_dtype)g.dtype)) {
    const bool large = g.m * g.n >= 32 * 32; /* a small product takes less time than packing */
    ax_tidy_steps(g.m, g.k, g.a);
    ax_tidy_steps(g.k, g.n, g.b);
    if (large && !ax_blas_takes(g.m, g.k, g.a)) st = pack(op, d, &g, g.m, g.k, g.a, &a, &own_a, &bytes_a);
    if (st == AX_OK && large && !ax_blas_takes(g.k, g.n, g.b))
      st = pack(op, d, &g, g.k, g.n, g.b, &b, &own_b, &bytes_b);
    const ax_cuda_gemm_data data = { a, b, (void *)bias, NULL, c };
    if (st == AX_OK) st = ax_cublaslt_gemm(d, &g, &data, &done);
  }
  if (st == AX_OK && !done) st = own(op, d, &g, a, b, bias, c);
  if (own_a) ax_cuda_give(d, own_a, bytes_a);
  if (own_b) ax_cuda_give(d, own_b, bytes_b);
  return st;
}

/* The elements at the end of a dim of n that fill no run of 16 bytes, where rows `step` apart begin
 * at such runs.  Where they do not, no kernel can read runs. */
static int64_t rest_of(int64_t n, int64_t run, int64_t step) { return step % run ? 0 : n % run; }

/* cuBLASLt's fast kernels for tensor cores move runs of 16 bytes, and its heuristic takes them only
 * for adjacent dims of whole runs.  For 50,257 classes in padded rows it takes kernels that move
 * single elements: on an H200 6.7 and 8.2 ms for 0.9.  So the last elements of such a dim, fewer
 * than a run, are a product of their own. */
static ax_status in_runs(ax_op op, ax_device d, const ax_cuda_gemm *whole, const void *a, const void *b,
                         const void *bias, void *c)
{
  const int64_t item = (int64_t)ax_dtype_size((ax_dtype)whole->dtype), run = 16 / item,
                out_item = (int64_t)ax_dtype_size((ax_dtype)whole->out), out_run = 16 / out_item;
  const bool cores = whole->dtype == AX_F16 || whole->dtype == AX_BF16 ||
                     (whole->dtype == AX_F32 && ax_float32_matmul_precision() != AX_PRECISION_HIGHEST);
  const double work = (double)whole->m * (double)whole->n * (double)whole->k;
  ax_cuda_gemm g = *whole;
  int64_t rest;
  ax_status st;

  if (!cores || g.batch != 1 || work < 0x1p28 || g.m < run || g.n < run || g.k < run)
    return some(op, d, whole, a, b, bias, c);
  const int64_t along_a = g.a[2] == 1 ? g.a[1] : 1, along_b = g.b[1] == 1 ? g.b[2] : 1;
  if ((rest = rest_of(g.n, run, g.b[2] == 1 ? g.b[1] : 0)) && g.c[1] % out_run == 0) { /* columns of c */
    g.n -= rest;
    if ((st = in_runs(op, d, &g, a, b, bias, c)) != AX_OK) return st;
    b = (const char *)b + g.n * g.b[2] * item;
    bias = bias ? (const char *)bias + g.n * out_item : NULL;
    c = (char *)c + g.n * out_item;
    g.n = rest;
    return some(op, d, &g, a, b, bias, c);
  }
  if ((along_a > 1 || along_b > 1) && /* the sums' dim: the few first, which are rounded, then the others */
      (rest = rest_of(g.k, run, along_a > 1 ? along_a : along_b)) != 0) {
    const int64_t most = g.k - rest;
    g.k = rest, g.bias = 0;
    if ((st = some(op, d, &g, (const char *)a + most * g.a[2] * item, (const char *)b + most * g.b[1] * item,
                   NULL, c)) != AX_OK)
      return st;
    g.k = most, g.bias = whole->bias, g.accumulate = 1;
    return in_runs(op, d, &g, a, b, bias, c);
  }
  if (g.a[1] == 1 && (rest = rest_of(g.m, run, g.a[2])) != 0) { /* rows of c */
    g.m -= rest;
    if ((st = in_runs(op, d, &g, a, b, bias, c)) != AX_OK) return st;
    a = (const char *)a + g.m * item;
    c = (char *)c + g.m * g.c[1] * out_item;
    g.m = rest;
    return some(op, d, &g, a, b, bias, c);
  }
  return some(op, d, whole, a, b, bias, c);
}

ax_status ax_cuda_product(ax_op op, ax_device d, const ax_cuda_gemm *all, const void *a, const void *b,
                          const void *bias, void *c)
{
  const int64_t item = (int64_t)ax_dtype_size((ax_dtype)all->dtype),
                out_item = (int64_t)ax_dtype_size((ax_dtype)all->out);
  ax_cuda_gemm g = *all;
  ax_status st = AX_OK;

  if (g.batch == 0 || g.m == 0 || g.n == 0) return AX_OK;
  for (int64_t at = 0; st == AX_OK && at < all->batch; at += BATCH) {
    g.batch = all->batch - at < BATCH ? all->batch - at : BATCH;
    st = in_runs(op, d, &g, (const char *)a + at * g.a[0] * item, (const char *)b + at * g.b[0] * item, bias,
                 (char *)c + at * g.c[0] * out_item);
  }
  return st;
}

static ax_status gemm(const ax_call *call, const ax_cuda_gemm *g, const void *a, const void *b,
                      const void *bias, void *c)
{
  ax_cuda_expect(call->in[1], (ax_dtype)call->in[0]->dtype); /* the two factors, in each of the rows below */
  if (ax_cuda_mistake.size) return ax_cuda_refuse_mistake(ax_ops[call->op].name);
  return ax_cuda_product(call->op, call->out[0]->device, g, a, b, bias, c);
}

/* ---- the rows */

AX_CUDA_KERNEL(mm)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  ax_cuda_gemm g = {};
  g.dtype = a->dtype, g.out = c->dtype, g.batch = 1;
  g.m = a->shape[0], g.k = a->shape[1], g.n = b->shape[1];
  g.a[1] = a->strides[0], g.a[2] = a->strides[1];
  g.b[1] = b->strides[0], g.b[2] = b->strides[1];
  g.c[1] = c->strides[0];
  g.accumulate = call->a->accumulate;
  return gemm(call, &g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

AX_CUDA_KERNEL(bmm)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  ax_cuda_gemm g = {};
  g.dtype = a->dtype, g.out = c->dtype, g.batch = a->shape[0];
  g.m = a->shape[1], g.k = a->shape[2], g.n = b->shape[2];
  for (int d = 0; d < 3; d++) g.a[d] = a->strides[d], g.b[d] = b->strides[d];
  g.c[0] = c->strides[0], g.c[1] = c->strides[1];
  g.accumulate = call->a->accumulate;
  return gemm(call, &g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

AX_CUDA_KERNEL(dot)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  ax_cuda_gemm g = {};
  g.dtype = a->dtype, g.out = c->dtype, g.batch = 1;
  g.m = g.n = 1, g.k = a->shape[0];
  g.a[1] = a->shape[0], g.a[2] = a->strides[0];
  g.b[1] = b->strides[0], g.b[2] = 1;
  g.c[1] = 1;
  return gemm(call, &g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

AX_CUDA_KERNEL(_batched_matmul)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const int64_t item = (int64_t)ax_itemsize(a), out_item = (int64_t)ax_itemsize(c);
  const int la = a->ndim - 2, lb = b->ndim - 2, lc = c->ndim - 2;
  ax_status st = AX_OK;
  ax_cuda_gemm g = {};

  if (c->numel == 0) return AX_OK;
  const ax_batched_matmul s = ax_batched_matmul_of(a, b, c);
  g.dtype = a->dtype, g.out = c->dtype, g.batch = s.batch;
  g.m = c->shape[lc], g.n = c->shape[lc + 1], g.k = a->shape[la + 1];
  g.a[0] = s.a[s.n], g.a[1] = a->strides[la], g.a[2] = a->strides[la + 1];
  g.b[0] = s.b[s.n], g.b[1] = b->strides[lb], g.b[2] = b->strides[lb + 1];
  g.c[0] = s.c[s.n], g.c[1] = c->strides[lc];
  g.accumulate = call->a->accumulate;
  for (int64_t p = 0; st == AX_OK && p < s.calls; p++) {
    int64_t at_a, at_b, at_c;
    ax_batched_matmul_at(&s, p, &at_a, &at_b, &at_c);
    st = gemm(call, &g, (char *)ax_data(a) + at_a * item, (char *)ax_data(b) + at_b * item, NULL,
              (char *)ax_data(c) + at_c * out_item);
  }
  return st;
}

static __global__ void cast_bias(int to, void *y, int from, const void *x, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) ax_cuda_number_put(to, y, i, ax_cuda_number_at(from, x, i));
}

/* Rounds a float32 bias beside half operands to the result's type, which cuBLASLt requires.  The
 * caller gives *own back. */
static ax_status fitting_bias(const ax_tensor *bias, const ax_tensor *y, void **out, void **own)
{
  const ax_device d = y->device;
  ax_status st;
  *own = NULL;
  *out = bias ? ax_data(bias) : NULL;
  if (!bias || bias->dtype == y->dtype || bias->numel == 0) return AX_OK;
  if ((st = ax_cuda_take(d, (size_t)bias->numel * ax_itemsize(y), own)) != AX_OK) return st;
  *out = *own;
  st = ax_cuda_launch("linear", d, ax_cuda_blocks(bias->numel, 256, d.index), 256, cast_bias, (int)y->dtype,
                      *own, (int)bias->dtype, (const void *)ax_data(bias), bias->numel);
  if (st == AX_OK) return AX_OK;
  ax_cuda_give(d, *own, (size_t)bias->numel * ax_itemsize(y));
  *own = NULL;
  return st;
}

static ax_cuda_gemm linear_of(const ax_call *call, const ax_tensor *y)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
  const int64_t in = w->shape[1], out = w->shape[0];
  ax_cuda_gemm g = {};
  g.dtype = x->dtype, g.out = y->dtype, g.batch = 1;
  g.m = out ? y->numel / out : 0, g.k = in, g.n = out;
  g.a[1] = in, g.a[2] = 1;
  g.b[1] = w->strides[1], g.b[2] = w->strides[0];
  g.c[1] = y->ndim > 1 && g.m > 1 ? y->strides[y->ndim - 2] : out; /* long rows are padded */
  g.bias = bias != NULL;
  g.accumulate = call->a->accumulate && !bias;
  return g;
}

AX_CUDA_KERNEL(linear)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL,
                  *y = call->out[0];
  const ax_cuda_gemm g = linear_of(call, y);
  void *b, *own;
  ax_status st = fitting_bias(bias, y, &b, &own);
  if (st != AX_OK) return st;
  st = gemm(call, &g, ax_data(x), ax_data(w), b, ax_data(y));
  if (own) ax_cuda_give(y->device, own, (size_t)bias->numel * ax_itemsize(y));
  return st;
}

/* ---- rows with an epilogue: by cuBLASLt, or by kernels one after the other */

extern "C" ax_status ax_cuda_gelu(const ax_call *call);
extern "C" ax_status ax_cuda__gelu_backward(const ax_call *call);
extern "C" ax_status ax_cuda_sum(const ax_call *call);

/* Whether products use epilogues: bits of ACCEL_CUDA_EPILOGUES (default: all), for measuring them
 * one by one.  1 gelu, 2 its derivative, 4 row sums. */
static bool wanted(int epilogue)
{
  static int bits = -1;
  const char *said = bits < 0 ? getenv("ACCEL_CUDA_EPILOGUES") : NULL;
  if (bits < 0) bits = said && *said ? atoi(said) : 7;
  return bits >> (epilogue - 1) & 1;
}

static ax_status try_epilogue(ax_device d, ax_cuda_gemm g, int epilogue, const ax_cuda_gemm_data *data,
                              bool *done)
{
  *done = false;
  if (!wanted(epilogue) || g.m == 0 || g.n == 0 || g.k == 0 || g.dtype == AX_F64) return AX_OK;
  if (data->aux && g.c[1] % 8) return AX_OK; /* cuBLASLt needs rows of multiples of eight there */
  g.epilogue = epilogue;
  return ax_cublaslt_gemm(d, &g, data, done);
}

/* Runs f over y and its inputs: contiguous, of one type. */
static ax_status pointwise(ax_kernel f, ax_op op, ax_tensor *y, int n, ax_tensor *const *in)
{
  ax_attrs attrs = {};
  ax_iter it = {};
  ax_call call = {};

  if (y->numel == 0) return AX_OK;
  attrs.gelu_backward.approximate = 1; /* with tanh */
  it.ndim = 1, it.shape[0] = it.numel = y->numel, it.n = 1 + n;
  for (int k = 0; k <= n; k++) {
    const ax_tensor *t = k ? in[k - 1] : y;
    it.op[k].data = (char *)ax_data(t), it.op[k].dtype = (ax_dtype)t->dtype,
    it.op[k].stride[0] = (int64_t)ax_itemsize(t);
  }
  call.op = op, call.a = &attrs, call.n_in = n, call.n_out = 1, call.in = in, call.out = &y, call.iter = &it;
  return f(&call);
}

AX_CUDA_KERNEL(linear_gelu)
{
  ax_tensor *y = call->out[0], *pre = call->out[1];
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
  const ax_cuda_gemm g = linear_of(call, y);
  bool done;
  void *b, *own;
  ax_status st = fitting_bias(bias, y, &b, &own);
  if (st != AX_OK) return st;
  const ax_cuda_gemm_data data = { ax_data(x), ax_data(w), b, ax_data(pre), ax_data(y) };
  st = try_epilogue(y->device, g, AX_GEMM_GELU, &data, &done);
  if (st == AX_OK && !done) {
    st = gemm(call, &g, data.a, data.b, b, ax_data(pre));
    if (st == AX_OK) st = pointwise(ax_cuda_gelu, AX_OP_GELU, y, 1, &pre);
  }
  if (own) ax_cuda_give(y->device, own, (size_t)bias->numel * ax_itemsize(y));
  return st;
}

AX_CUDA_KERNEL(_mm_dgelu)
{
  const ax_tensor *a = call->in[0], *b = call->in[1];
  ax_tensor *c = call->out[0], *both[2] = { c, call->in[2] };
  ax_cuda_gemm g = {};
  bool done;
  g.dtype = a->dtype, g.out = c->dtype, g.batch = 1;
  g.m = a->shape[0], g.k = a->shape[1], g.n = b->shape[1];
  g.a[1] = a->strides[0], g.a[2] = a->strides[1];
  g.b[1] = b->strides[0], g.b[2] = b->strides[1];
  g.c[1] = g.n;
  const ax_cuda_gemm_data data = { ax_data(a), ax_data(b), NULL, ax_data(both[1]), ax_data(c) };
  ax_status st = try_epilogue(c->device, g, AX_GEMM_DGELU, &data, &done);
  if (st != AX_OK || done) return st;
  st = gemm(call, &g, data.a, data.b, NULL, data.c);
  return st != AX_OK ? st : pointwise(ax_cuda__gelu_backward, AX_OP_GELU_BACKWARD, c, 2, both);
}

static __global__ void add_to(int dtype, void *y, const void *x, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP)
    ax_cuda_number_put(dtype, y, i, ax_cuda_number_at(dtype, y, i) + ax_cuda_number_at(dtype, x, i));
}

/* The sums over rows of g (rows, out). */
static ax_status column_sums(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *db = call->out[1];
  const int64_t rows = g->shape[0], out = g->shape[1], item = (int64_t)ax_itemsize(g);
  ax_attrs attrs = {};
  ax_iter it = {};
  ax_call sum = {};
  attrs.accumulate = call->a->linear_backward.add_bias != 0;
  it.ndim = 2, it.n = 2, it.numel = rows * out;
  it.shape[0] = rows, it.shape[1] = out;
  it.op[0].data = (char *)ax_data(db), it.op[0].dtype = (ax_dtype)db->dtype,
  it.op[0].stride[1] = (int64_t)ax_itemsize(db);
  it.op[1].data = (char *)ax_data(g), it.op[1].dtype = (ax_dtype)g->dtype,
  it.op[1].stride[0] = g->strides[0] * item, it.op[1].stride[1] = item;
  sum.op = AX_OP_SUM, sum.a = &attrs, sum.n_in = sum.n_out = 1, sum.in = call->in, sum.out = call->out + 1,
  sum.iter = &it;
  return out ? ax_cuda_sum(&sum) : AX_OK;
}

/* dweight (out, in) = g^T x, dbias (out) = the sums of g's columns, which are rows in the product;
 * either may be added to what is there.  The epilogue overwrites its sums, so sums to be added are
 * written to scratch memory first. */
AX_CUDA_KERNEL(_linear_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *dw = call->out[0], *db = call->out[1];
  const ax_device d = g->device;
  const size_t bytes = (size_t)db->numel * ax_itemsize(db);
  ax_cuda_gemm p = {};
  void *own = NULL;
  bool done = false;
  ax_status st = AX_OK;

  p.dtype = g->dtype, p.out = dw->dtype, p.batch = 1;
  p.m = g->shape[1], p.k = g->shape[0], p.n = x->shape[1];
  p.a[1] = 1, p.a[2] = p.k > 1 ? g->strides[0] : p.m;
  p.b[1] = p.n, p.b[2] = 1;
  p.c[1] = p.n;
  p.accumulate = call->a->linear_backward.add_weight;
  if (db->dtype == dw->dtype && wanted(AX_GEMM_ROW_SUMS)) {
    if (call->a->linear_backward.add_bias && bytes && (st = ax_cuda_take(d, bytes, &own)) != AX_OK) return st;
    const ax_cuda_gemm_data data = { ax_data(g), ax_data(x), own ? own : ax_data(db), NULL, ax_data(dw) };
    st = try_epilogue(d, p, AX_GEMM_ROW_SUMS, &data, &done);
    if (st == AX_OK && done && own)
      st = ax_cuda_launch("linear_backward", d, ax_cuda_blocks(db->numel, 256, d.index), 256, add_to,
                          (int)db->dtype, (void *)ax_data(db), (const void *)own, db->numel);
    if (own) ax_cuda_give(d, own, bytes);
  }
  if (st != AX_OK || done) return st;
  st = gemm(call, &p, ax_data(g), ax_data(x), NULL, ax_data(dw));
  return st != AX_OK ? st : column_sums(call);
}
