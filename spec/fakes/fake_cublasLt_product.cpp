/* The stand-in for cuBLASLt: the product, in plain loops, and what a call of it may not do. */
#include "fake_cublasLt.h"

#include <math.h>
#include <vector>

static float from_bf16(uint16_t v)
{
  const uint32_t w = (uint32_t)v << 16;
  float f;
  memcpy(&f, &w, 4);
  return f;
}
static uint16_t to_bf16(float f)
{
  uint32_t w;
  memcpy(&w, &f, 4);
  if (f != f) return 0x7fff;
  return (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}
static float from_half(uint16_t v)
{
  const int e = v >> 10 & 31, m = v & 1023;
  const float f = e == 31 ? (m ? NAN : INFINITY)
                  : e     ? ldexpf((float)(1024 + m), e - 25)
                          : ldexpf((float)m, -24);
  return v >> 15 ? -f : f;
}
static uint16_t to_half(float f)
{
  const uint16_t sign = signbit(f) ? 0x8000 : 0;
  const float a = fabsf(f);
  if (f != f) return 0x7fff;
  if (a >= 65520) return (uint16_t)(sign | 0x7c00);
  if (a < ldexpf(1, -14)) return (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(a, 24)));
  int e;
  const float m = frexpf(a, &e); /* a = m 2^e, m in 0.5 .. 1 */
  return (uint16_t)(sign | (((uint32_t)(e + 13) << 10) + (uint32_t)nearbyintf(ldexpf(m, 11))));
}
static float to_tf32(float f)
{
  uint32_t w;
  memcpy(&w, &f, 4);
  if (f == f) w = (w + 0xfff + (w >> 13 & 1)) & ~0x1fffu;
  memcpy(&f, &w, 4);
  return f;
}

/* E4M3 and E5M2: bits of exponent with their bias, of mantissa, and whether there are
 * infinities. */
static float from_float8(uint8_t v, bool e4m3)
{
  const int bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, most = e4m3 ? 15 : 31;
  const int e = v >> bits & most, m = v & ((1 << bits) - 1);
  float f = e ? ldexpf((float)((1 << bits) + m), e - bias - bits) : ldexpf((float)m, 1 - bias - bits);
  if (e == most && e4m3 && m == 7) f = NAN;
  if (e == most && !e4m3) f = m ? NAN : INFINITY;
  return v >> 7 ? -f : f;
}

static double get(uint32_t type, const void *p, int64_t i)
{
  switch (type) {
  case CUDA_R_64F: return ((const double *)p)[i];
  case CUDA_R_8F_E4M3: return from_float8(((const uint8_t *)p)[i], true);
  case CUDA_R_8F_E5M2: return from_float8(((const uint8_t *)p)[i], false);
  case CUDA_R_16F: return from_half(((const uint16_t *)p)[i]);
  case CUDA_R_16BF: return from_bf16(((const uint16_t *)p)[i]);
  default: return ((const float *)p)[i];
  }
}
static void set(uint32_t type, void *p, int64_t i, double v)
{
  switch (type) {
  case CUDA_R_64F: ((double *)p)[i] = v; break;
  case CUDA_R_16F: ((uint16_t *)p)[i] = to_half((float)v); break;
  case CUDA_R_16BF: ((uint16_t *)p)[i] = to_bf16((float)v); break;
  default: ((float *)p)[i] = (float)v;
  }
}
static int64_t at(const matrix &m, int64_t r, int64_t c)
{
  return m.order == CUBLASLT_ORDER_COL ? c * m.ld + r : r * m.ld + c;
}

/* GELU is the form with tanh. */
static const double GELU_A = 0.7978845608028654, GELU_B = 0.044715;
static double gelu(double x) { return 0.5 * x * (1 + tanh(GELU_A * (x + GELU_B * x * x * x))); }
static double gelu_slope(double x)
{
  const double t = tanh(GELU_A * (x + GELU_B * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x);
}

/* op(A) by rows, op(B) by columns, as doubles, k innermost. */
static void gather(const problem &p, const matrix &m, const void *data, int64_t lines, bool lines_are_rows,
                   bool transposed, std::vector<double> &out)
{
  const bool round = p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  out.resize((size_t)(lines * p.k));
  for (int64_t l = 0; l < lines; l++)
    for (int64_t k = 0; k < p.k; k++) {
      const bool as_row = lines_are_rows != transposed;
      const double v = get(m.type, data, as_row ? at(m, l, k) : at(m, k, l));
      out[(size_t)(l * p.k + k)] = round ? to_tf32((float)v) : v;
    }
}

static void compute(const problem &p, double alpha, double beta, const char *a, const char *b, const char *c,
                    char *d)
{
  const uint32_t e = p.d.epilogue, out = p.dd.type;
  const size_t item = size_of(p.a.type), item_b = size_of(p.b.type), out_item = size_of(out);
  const double scale = (p.d.scale_a ? *p.d.scale_a : 1.0) * (p.d.scale_b ? *p.d.scale_b : 1.0);
  std::vector<double> rows, cols;

  for (int64_t i = 0; i < p.dd.batch; i++) {
    gather(p, p.a, a + (size_t)(i * p.a.stride) * item, p.m, true, p.d.op[0] != CUBLAS_OP_N, rows);
    gather(p, p.b, b + (size_t)(i * p.b.stride) * item_b, p.n, false, p.d.op[1] != CUBLAS_OP_N, cols);
    const char *ci = c + (size_t)(i * p.c.stride) * out_item;
    char *di = d + (size_t)(i * p.dd.stride) * out_item;
    const char *bias = (const char *)p.d.bias + (size_t)(i * p.d.bias_stride) * out_item;
    char *aux = (char *)p.d.aux + (size_t)(i * p.d.aux_stride) * out_item;
    for (int64_t n = 0; n < p.n; n++)
      for (int64_t m = 0; m < p.m; m++) {
        const double *x = &rows[(size_t)(m * p.k)], *y = &cols[(size_t)(n * p.k)];
        double v = 0;
        for (int64_t k = 0; k < p.k; k++) v += x[k] * y[k];
        v *= alpha * scale;
        if (beta != 0) v += beta * get(out, ci, at(p.c, m, n));
        if (has_bias(e)) v += get(out, bias, m);
        if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
          v *= gelu_slope(get(out, aux, n * p.d.aux_ld + m));
        else if (has_aux(e)) set(out, aux, n * p.d.aux_ld + m, v);
        if (e & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
        set(out, di, at(p.dd, m, n), v);
      }
    if (!has_bias_gradient(e)) continue;
    const int64_t length = e == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
    for (int64_t l = 0; l < length; l++) {
      double sum = 0;
      if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
        for (int64_t n = 0; n < p.n; n++) sum += get(out, di, at(p.dd, l, n));
      else
        for (int64_t k = 0; k < p.k; k++)
          sum += (e == CUBLASLT_EPILOGUE_BGRADA ? rows : cols)[(size_t)(l * p.k + k)];
      set(out, (void *)p.d.bias, l, sum);
    }
  }
}

static bool on_device(const matrix &m, const void *p)
{
  return p && (uintptr_t)p % size_of(m.type) == 0 &&
         emulator->owns(p, (size_t)((m.batch - 1) * m.stride + extent(m)) * size_of(m.type));
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t dp, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t ap, const void *b,
                                     cublasLtMatrixLayout_t bp, const void *beta, const void *c,
                                     cublasLtMatrixLayout_t cp, void *d, cublasLtMatrixLayout_t ddp,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_bytes, cudaStream_t stream)
{
  problem p;
  algorithm al;
  const cublasStatus_t s = check_problem(h, dp, ap, bp, cp, ddp, &p);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  if (!alpha || !beta) INVALID("alpha and beta are needed");
  const double al_v = p.d.scale == CUDA_R_64F ? *(const double *)alpha : *(const float *)alpha,
               be_v = p.d.scale == CUDA_R_64F ? *(const double *)beta : *(const float *)beta;
  if (!algo) INVALID("no algorithm: the stand-in has no implicit search");
  memcpy(&al, algo, sizeof al);
  if (al.magic != ALGORITHM) INVALID("not an algorithm that the heuristic gave");
  if (al.problem != print_of(p)) INVALID("the algorithm was found for another problem");
  if (!on_device(p.a, a) || !on_device(p.b, b) || !on_device(p.dd, d))
    INVALID("A, B or D does not lie in the device's memory");
  for (const float *const scale : { p.d.scale_a, p.d.scale_b })
    if (scale && !emulator->owns(scale, sizeof *scale))
      INVALID("a scale does not lie in the device's memory");
  if (be_v != 0 && !on_device(p.c, c)) INVALID("C does not lie in the device's memory");
  if (c == d && (p.c.ld != p.dd.ld || p.c.stride != p.dd.stride || p.c.order != p.dd.order))
    INVALID("D in place of C, with another layout");
  const void *const all[6] = { a,
                               b,
                               be_v != 0 ? c : NULL,
                               d,
                               has_bias(p.d.epilogue) || has_bias_gradient(p.d.epilogue) ? p.d.bias : NULL,
                               has_aux(p.d.epilogue) ? p.d.aux : NULL };
  if (is_float8(p.a.type) && ((uintptr_t)a % 16 || (uintptr_t)b % 16 || (uintptr_t)d % 16))
    INVALID("matrices of eight bits that do not begin at 16 bytes");
  for (int i = 0; i < 6; i++)
    if ((uintptr_t)all[i] % al.align[i])
      INVALID("operand %d lies at %p, the algorithm was found for an alignment of %u", i, all[i],
              al.align[i]);
  const int64_t bias_length = p.d.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
  if ((has_bias(p.d.epilogue) || has_bias_gradient(p.d.epilogue)) &&
      !(p.d.bias && emulator->owns(p.d.bias, (size_t)((p.dd.batch - 1) * p.d.bias_stride + bias_length) *
                                                 size_of(p.dd.type))))
    INVALID("the epilogue needs a bias of %lld in the device's memory", (long long)bias_length);
  if (has_aux(p.d.epilogue) &&
      !(p.d.aux &&
        emulator->owns(p.d.aux, (size_t)((p.dd.batch - 1) * p.d.aux_stride + (p.n - 1) * p.d.aux_ld + p.m) *
                                    size_of(p.dd.type))))
    INVALID("the epilogue needs an aux matrix in the device's memory");
  if (workspace_bytes < al.workspace)
    INVALID("a workspace of %zu bytes, the algorithm needs %llu", workspace_bytes,
            (unsigned long long)al.workspace);
  if (workspace_bytes && ((uintptr_t)workspace % 256 || !emulator->owns(workspace, workspace_bytes)))
    INVALID("the workspace is not aligned to 256 bytes, or not the device's");
  if (number_in("FAKE_CUBLASLT_IDLE")) return CUBLAS_STATUS_SUCCESS;
  const size_t one = size_of(p.a.type), result = (size_t)(p.m * p.n * p.dd.batch) * size_of(p.dd.type);
  const bool reads_aux =
      p.d.epilogue == CUBLASLT_EPILOGUE_DGELU || p.d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  const size_t read = (size_t)(p.m * p.k * p.a.batch + p.n * p.k * p.b.batch) * one +
                      (size_t)((be_v != 0) + reads_aux) * result,
               written = (size_t)(1 + (has_aux(p.d.epilogue) && !reads_aux)) * result;
  const cudaError_t failed = emulator->work(stream, [=]() {
    emulator->moved("product", read, written);
    if (al.workspace) memset(workspace, 0xff, al.workspace); /* whatever lay there is lost */
    compute(p, al_v, be_v, (const char *)a, (const char *)b, (const char *)c, (char *)d);
  });
  return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
