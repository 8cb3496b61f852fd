/* mm, bmm, linear.  cuBLASLt takes float types with one adjacent dim; the rest (integers, odd strides) goes to a plain tiled kernel. */
#include "gemm.cuh"

/* ---- our own kernel: a tile of TILE x TILE results a block, one result a thread, any strides */

enum { TILE = 16 };

/* What products of a type are summed in: integers wrap around in their own. */
template <class S> struct accumulator { typedef compute<S> type; };
template <> struct accumulator<int64_t> { typedef uint64_t type; };
template <> struct accumulator<int32_t> { typedef uint32_t type; };
template <> struct accumulator<uint8_t> { typedef uint32_t type; };

template <class S, class O> static __global__ void gemm_tile(ax_gemm g, const S *a, const S *b, const O *bias, O *c)
{
  typedef typename accumulator<S>::type T;
  __shared__ T ta[TILE][TILE + 1], tb[TILE][TILE + 1];
  const int64_t y = (int64_t)blockIdx.y * TILE + threadIdx.y, x = (int64_t)blockIdx.x * TILE + threadIdx.x;

  for (int64_t i = blockIdx.z; i < g.batch; i += gridDim.z) {
    T sum = 0;
    for (int64_t k0 = 0; k0 < g.k; k0 += TILE) {
      const int64_t ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
      ta[threadIdx.y][threadIdx.x] = y < g.m && ka < g.k ? (T)ax_load(a[i * g.a[0] + y * g.a[1] + ka * g.a[2]]) : (T)0;
      tb[threadIdx.y][threadIdx.x] = x < g.n && kb < g.k ? (T)ax_load(b[i * g.b[0] + kb * g.b[1] + x * g.b[2]]) : (T)0;
      __syncthreads();
      for (int k = 0; k < TILE; k++) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
      __syncthreads();
    }
    if (y < g.m && x < g.n) {
      O *to = c + i * g.c[0] + y * g.c[1] + x;
      if (g.bias) sum += (T)ax_load(bias[x]);
      if (g.accumulate) sum += (T)ax_load(*to);
      *to = ax_store<O>(sum);
    }
  }
}

template <class S, class O> static ax_status own(ax_op op, ax_device d, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  const int64_t down = (g->m + TILE - 1) / TILE, z = g->batch < 65535 ? g->batch : 65535;
  if (down > 65535) return ax_fail(AX_ESHAPE, "%s: %lld rows are more than the plain kernel takes", ax_ops[op].name, (long long)g->m);
  return ax_launch(ax_ops[op].name, d, dim3((unsigned)((g->n + TILE - 1) / TILE), (unsigned)down, (unsigned)z), dim3(TILE, TILE), gemm_tile<S, O>, *g,
                   (const S *)a, (const S *)b, (const O *)bias, (O *)c);
}

ax_status ax_cuda_product(ax_op op, ax_device d, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  const bool wide = g->out != g->dtype;
  bool done = false;

  if (g->batch == 0 || g->m == 0 || g->n == 0) return AX_OK;
  if (g->k > 0) {
    const ax_status st = ax_cublaslt_gemm(d, g, a, b, bias, c, &done);
    if (st != AX_OK || done) return st;
  }
  switch ((ax_dtype)g->dtype) {
  case AX_I64: return own<int64_t, int64_t>(op, d, g, a, b, bias, c);
  case AX_I32: return own<int32_t, int32_t>(op, d, g, a, b, bias, c);
  case AX_U8: return own<uint8_t, uint8_t>(op, d, g, a, b, bias, c);
  case AX_F16: return wide ? own<ax_f16, float>(op, d, g, a, b, bias, c) : own<ax_f16, ax_f16>(op, d, g, a, b, bias, c);
  case AX_BF16: return wide ? own<ax_bf16, float>(op, d, g, a, b, bias, c) : own<ax_bf16, ax_bf16>(op, d, g, a, b, bias, c);
  case AX_F64: return own<double, double>(op, d, g, a, b, bias, c);
  case AX_F32: return own<float, float>(op, d, g, a, b, bias, c);
  default: return ax_cuda_no_dtype(op, (ax_dtype)g->dtype);
  }
}

static ax_status gemm(const ax_call *call, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  return ax_cuda_product(call->op, call->out[0]->device, g, a, b, bias, c);
}

/* ---- the rows */

AX_CUDA_KERNEL(mm)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  ax_gemm g = {};
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
  ax_gemm g = {};
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
  ax_gemm g = {};
  g.dtype = a->dtype, g.out = c->dtype, g.batch = 1;
  g.m = g.n = 1, g.k = a->shape[0];
  g.a[1] = a->shape[0], g.a[2] = a->strides[0];
  g.b[1] = b->strides[0], g.b[2] = 1;
  g.c[1] = 1;
  return gemm(call, &g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

/* Stacks of any strides, broadcast against each other.  The result lies in order; its leading dims are merged as far as all three step
 * evenly, the innermost is one batch, and the others are walked. */
AX_CUDA_KERNEL(_matmul_stacks)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const int batch = c->ndim - 2;
  const int64_t item = (int64_t)ax_itemsize(a), out_item = (int64_t)ax_itemsize(c);
  int64_t shape[AX_MAX_DIMS] = { 1 }, sa[AX_MAX_DIMS] = { 0 }, sb[AX_MAX_DIMS] = { 0 }, sc[AX_MAX_DIMS] = { 0 }, calls = 1;
  ax_status st = AX_OK;
  ax_gemm g = {};
  int n = 0;

  if (c->numel == 0) return AX_OK;
  for (int d = 0; d < batch; d++) {
    const int da = d - (c->ndim - a->ndim), db = d - (c->ndim - b->ndim);
    const int64_t ta = da < 0 || a->shape[da] == 1 ? 0 : a->strides[da], tb = db < 0 || b->shape[db] == 1 ? 0 : b->strides[db], tc = c->strides[d];
    if (c->shape[d] == 1) continue;
    if (n && sa[n - 1] == ta * c->shape[d] && sb[n - 1] == tb * c->shape[d] && sc[n - 1] == tc * c->shape[d]) n--;
    else shape[n] = 1;
    shape[n] *= c->shape[d];
    sa[n] = ta, sb[n] = tb, sc[n] = tc;
    n++;
  }
  if (n) n--; /* the last one is the batch */
  g.dtype = a->dtype, g.out = c->dtype, g.batch = shape[n];
  g.m = c->shape[batch], g.n = c->shape[batch + 1], g.k = a->shape[a->ndim - 1];
  g.a[0] = sa[n], g.a[1] = a->strides[a->ndim - 2], g.a[2] = a->strides[a->ndim - 1];
  g.b[0] = sb[n], g.b[1] = b->strides[b->ndim - 2], g.b[2] = b->strides[b->ndim - 1];
  g.c[0] = sc[n], g.c[1] = c->strides[batch];
  g.accumulate = call->a->accumulate;
  for (int d = 0; d < n; d++) calls *= shape[d];
  for (int64_t p = 0; st == AX_OK && p < calls; p++) {
    int64_t at_a = 0, at_b = 0, at_c = 0, rest = p;
    for (int d = n - 1; d >= 0; d--) {
      at_a += rest % shape[d] * sa[d], at_b += rest % shape[d] * sb[d], at_c += rest % shape[d] * sc[d];
      rest /= shape[d];
    }
    st = gemm(call, &g, (char *)ax_data(a) + at_a * item, (char *)ax_data(b) + at_b * item, NULL, (char *)ax_data(c) + at_c * out_item);
  }
  return st;
}

static __global__ void cast_bias(int to, void *y, int from, const void *x, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) ax_number_put(to, y, i, ax_number_at(from, x, i));
}

AX_CUDA_KERNEL(linear)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL, *y = call->out[0];
  const int64_t in = w->shape[1], out = w->shape[0];
  ax_gemm g = {};
  g.dtype = x->dtype, g.out = y->dtype, g.batch = 1;
  g.m = out ? y->numel / out : 0, g.k = in, g.n = out;
  g.a[1] = in, g.a[2] = 1;
  g.b[1] = w->strides[1], g.b[2] = w->strides[0];
  g.c[1] = out;
  g.bias = bias != NULL;
  g.accumulate = call->a->accumulate && !bias;
  if (bias && bias->dtype != y->dtype) { /* float32 beside half operands: rounded to the result's type, which is what cuBLASLt adds */
    const ax_device d = y->device;
    const size_t bytes = (size_t)out * ax_itemsize(y);
    void *own;
    ax_status st = ax_cuda_take(d, bytes ? bytes : 1, &own);
    if (st != AX_OK) return st;
    if (out) st = ax_launch("linear", d, ax_blocks(out, 256, d.index), 256, cast_bias, (int)y->dtype, own, (int)bias->dtype, (const void *)ax_data(bias), out);
    if (st == AX_OK) st = gemm(call, &g, ax_data(x), ax_data(w), own, ax_data(y));
    ax_cuda_give(d, own, bytes ? bytes : 1);
    return st;
  }
  return gemm(call, &g, ax_data(x), ax_data(w), bias ? ax_data(bias) : NULL, ax_data(y));
}
