/* mm, bmm, linear: the choice of the implementation.  oneDNN computes float32 and the half types.
 * A case for which it has no fast code is passed to it in another form (copied, or in float32) or
 * goes to our own kernel (gemm.c), which also computes float64 and integers. */
#include "gemm.h"
#include "batched_matmul.h"

#include <stdio.h>
#include <string.h>

/* Packs matrix `src` in type `to` into scratch memory, row by row; changes its steps. */
static ax_status pack(ax_dtype to, const ax_gemm *g, int64_t rows, int64_t cols, int64_t *step,
                      const void *src, void **out, size_t *bytes)
{
  const int64_t batch = step[0] ? g->batch : 1, shape[3] = { batch, rows, cols };
  ax_status st;

  *bytes = (size_t)(batch * rows * cols) * ax_dtype_size(to);
  AX_TRY(ax_alloc(*bytes, out));
  ax_cpu_copy_strided(3, shape, to, *out, (ax_dtype)g->dtype, src, step);
  step[0] = step[0] ? rows * cols : 0;
  step[1] = cols;
  step[2] = 1;
  ax_tidy_steps(rows, cols, step);
out:
  return st;
}

/* pack, to float32.  A transposed matrix stays one: reading along its memory is faster. */
static ax_status widen(const ax_gemm *g, int64_t rows, int64_t cols, int64_t *step, const void *src,
                       void **out, size_t *bytes)
{
  int64_t turned[3] = { step[0], step[2], step[1] };
  ax_status st;

  if (step[1] != 1 || step[2] == 1) return pack(AX_F32, g, rows, cols, step, src, out, bytes);
  st = pack(AX_F32, g, cols, rows, turned, src, out, bytes);
  step[0] = turned[0];
  step[1] = turned[2];
  step[2] = turned[1];
  return st;
}

static ax_status run(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

/* float32, and half types where oneDNN has them. */
static ax_status by_dnnl(ax_gemm g, const void *a, const void *b, const void *bias, void *c, bool *done)
{
  void *own_a = NULL, *own_b = NULL;
  size_t bytes_a = 0, bytes_b = 0;
  ax_status st = AX_OK;

  *done = false;
  if (g.k == 0) return AX_OK;
  ax_tidy_steps(g.m, g.k, g.a);
  ax_tidy_steps(g.k, g.n, g.b);
  if (g.m == 1) g.c[1] = g.n;
  if (g.batch == 1) g.a[0] = g.b[0] = g.c[0] = 0;
  const bool deep = ax_dnnl_too_deep(&g);
  /* half results would be rounded after each slice */
  if (!ax_blas_takes(g.m, g.k, g.a) || (deep && ax_gemm_out(&g) != AX_F32)) {
    AX_TRY(pack((ax_dtype)g.dtype, &g, g.m, g.k, g.a, a, &own_a, &bytes_a));
    a = own_a;
  }
  if (!ax_blas_takes(g.k, g.n, g.b)) {
    AX_TRY(pack((ax_dtype)g.dtype, &g, g.k, g.n, g.b, b, &own_b, &bytes_b));
    b = own_b;
  }
  if (g.dtype == AX_F32 && ax_dnnl_divides_sums()) {
    *done = true;
    AX_TRY(ax_dnnl_gemm_pieces(&g, a, b, bias, c));
  } else AX_TRY((deep && !own_a ? ax_dnnl_gemm_slices : ax_dnnl_gemm)(&g, a, b, bias, c, done));
out:
  if (own_a) ax_free(own_a, bytes_a);
  if (own_b) ax_free(own_b, bytes_b);
  return st;
}

/* Computes half types in float32: converts both operands, and rounds the result once unless it is
 * wide. */
ax_status ax_cpu_widened_product(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  const ax_dtype d = (ax_dtype)g->dtype;
  const int64_t c_shape[3] = { g->batch, g->m, g->n }, c_step[3] = { g->c[0], g->c[1], 1 };
  ax_gemm wide = *g;
  void *wa = NULL, *wb = NULL, *wc = NULL, *wbias = NULL;
  size_t na = 0, nb = 0, nc = (size_t)(g->batch * g->m * g->n) * 4, nbias = (size_t)g->n * 4;
  ax_status st;

  AX_TRY(widen(g, g->m, g->k, wide.a, a, &wa, &na));
  AX_TRY(widen(g, g->k, g->n, wide.b, b, &wb, &nb));
  if (g->bias && !g->wide_bias) {
    AX_TRY(ax_alloc(nbias, &wbias));
    ax_cpu_half_to_float(d, bias, 2, wbias, g->n);
    bias = wbias;
  }
  wide.dtype = AX_F32;
  wide.wide = wide.wide_bias = 0;
  if (g->wide) {
    st = run(&wide, wa, wb, bias, c);
    goto out;
  }
  AX_TRY(ax_alloc(nc, &wc));
  if (g->accumulate) ax_cpu_copy_strided(3, c_shape, AX_F32, wc, d, c, c_step);
  wide.c[0] = g->m * g->n;
  wide.c[1] = g->n;
  AX_TRY(run(&wide, wa, wb, bias, wc));
  for (int64_t i = 0; i < g->batch; i++)
    for (int64_t y = 0; y < g->m; y++)
      ax_cpu_float_to_half(d, (float *)wc + (i * g->m + y) * g->n,
                           (char *)c + 2 * (i * g->c[0] + y * g->c[1]), 2, g->n);
out:
  if (wa) ax_free(wa, na);
  if (wb) ax_free(wb, nb);
  if (wc) ax_free(wc, nc);
  if (wbias) ax_free(wbias, nbias);
  return st;
}

/* Counts a product that oneDNN did not take. */
static void count(const ax_gemm *g, bool widens)
{
  static __thread int64_t *calls[AX_DTYPE_COUNT][2][2];
  int64_t **at = &calls[g->dtype][g->wide != 0][widens];
  char name[96];

  if (!*at) {
    snprintf(name, sizeof(name), "mm %s -> %s, %s", ax_dtype_name((ax_dtype)g->dtype),
             ax_dtype_name(ax_gemm_out(g)), widens ? "through float32" : "own kernel");
    *at = ax_cpu_counter(name);
  }
  ++**at;
}

/* Products of one row and one column are dot products; a matrix product would spend its time on
 * setup. */
typedef struct dots {
  const ax_gemm *g;
  const void *a, *b;
  void *c;
} dots;

#define DOTS(name, T) \
  static void dots_##name(int64_t lo, int64_t hi, void *ud) \
  { \
    enum { LANES = 32 }; \
    const dots *d = ud; \
    const ax_gemm *g = d->g; \
    const int64_t sa = g->a[2], sb = g->b[1], k = g->k; \
    for (int64_t i = lo; i < hi; i++) { \
      const T *a = (const T *)d->a + i * g->a[0], *b = (const T *)d->b + i * g->b[0]; \
      T lane[LANES] = { 0 }, sum = 0; \
      int64_t p = 0; \
      if (sa == 1 && sb == 1) \
        for (; p + LANES <= k; p += LANES) { \
          AX_SIMD \
          for (int l = 0; l < LANES; l++) lane[l] += a[p + l] * b[p + l]; \
        } \
      for (int l = 0; l < LANES && p; l++) sum += lane[l]; \
      for (; p < k; p++) sum += a[p * sa] * b[p * sb]; \
      T *c = (T *)d->c + i * g->c[0]; \
      *c = g->accumulate ? *c + sum : sum; \
    } \
  }
DOTS(f32, float)
DOTS(f64, double)

/* A matrix with contiguous rows times a vector: a dot product for each row. */
static bool is_rows_by_vector(const ax_gemm *g)
{
  return g->batch == 1 && g->m > 1 && g->n == 1 && g->a[2] == 1 && g->b[1] == 1 && !g->accumulate &&
         g->dtype == AX_F32;
}

static void dot_rows(ax_gemm g, const void *a, const void *b, void *c)
{
  g.batch = g.m;
  g.a[0] = g.a[1];
  g.b[0] = 0;
  g.c[0] = g.c[1];
  ax_cpu_for(g.m, g.m * g.k, dots_f32, &(dots){ &g, a, b, c });
}

static ax_status run(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  bool done = false;
  ax_status st = AX_OK;

  if (g->batch == 0 || g->m == 0 || g->n == 0) return AX_OK;
  if (g->m == 1 && g->n == 1 && !g->bias && (g->dtype == AX_F32 || g->dtype == AX_F64)) {
    ax_cpu_for(g->batch, g->batch * g->k, g->dtype == AX_F32 ? dots_f32 : dots_f64, &(dots){ g, a, b, c });
    return AX_OK;
  }
  if (!bias && is_rows_by_vector(g)) {
    dot_rows(*g, a, b, c);
    return AX_OK;
  }
  if (ax_cpu_narrow_takes(g)) {
    count(g, false);
    return ax_cpu_narrow(g, a, b, bias, c);
  }
  if (g->dtype == AX_F32 || g->dtype == AX_F16 || (g->dtype == AX_BF16 && ax_dnnl_multiplies_bf16()))
    AX_TRY(by_dnnl(*g, a, b, bias, c, &done));
  if (done) return AX_OK;
  if (ax_is_half((ax_dtype)g->dtype)) {
    count(g, true);
    return ax_cpu_widened_product(g, a, b, bias, c);
  }
  count(g, false);
  ax_cpu_gemm_bias(*g, a, b, bias, c);
out:
  return st;
}

ax_status ax_cpu_product(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  return run(g, a, b, bias, c);
}

static bool is_wide(const ax_tensor *half, const ax_tensor *t)
{
  return ax_is_half((ax_dtype)half->dtype) && t->dtype == AX_F32;
}

static ax_status check(const ax_call *call)
{
  const ax_dtype d = (ax_dtype)call->in[0]->dtype;
  return d == AX_BOOL ? ax_cpu_no_dtype(call->op, d) : AX_OK;
}

ax_status ax_cpu_mm(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const ax_gemm g = { .dtype = a->dtype,
                      .batch = 1,
                      .m = a->shape[0],
                      .n = b->shape[1],
                      .k = a->shape[1],
                      .a = { 0, a->strides[0], a->strides[1] },
                      .b = { 0, b->strides[0], b->strides[1] },
                      .c = { 0, c->strides[0] },
                      .accumulate = call->a->accumulate,
                      .wide = is_wide(a, c) };
  const ax_status st = check(call);
  return st != AX_OK ? st : run(&g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

ax_status ax_cpu_bmm(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const ax_gemm g = { .dtype = a->dtype,
                      .batch = a->shape[0],
                      .m = a->shape[1],
                      .n = b->shape[2],
                      .k = a->shape[2],
                      .a = { a->strides[0], a->strides[1], a->strides[2] },
                      .b = { b->strides[0], b->strides[1], b->strides[2] },
                      .c = { c->strides[0], c->strides[1] },
                      .accumulate = call->a->accumulate,
                      .wide = is_wide(a, c) };
  const ax_status st = check(call);
  return st != AX_OK ? st : run(&g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

ax_status ax_cpu_dot(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const ax_gemm g = { .dtype = a->dtype,
                      .batch = 1,
                      .m = 1,
                      .n = 1,
                      .k = a->shape[0],
                      .a = { 0, a->shape[0], a->strides[0] },
                      .b = { 0, b->strides[0], 1 },
                      .c = { 0, 1 } };
  return run(&g, ax_data(a), ax_data(b), NULL, ax_data(c));
}

ax_status ax_cpu__batched_matmul(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *c = call->out[0];
  const int64_t item = (int64_t)ax_itemsize(a), out_item = (int64_t)ax_itemsize(c);
  ax_status st = check(call);

  if (st != AX_OK || c->numel == 0) return st;
  const ax_batched_matmul s = ax_batched_matmul_of(a, b, c);
  const int la = a->ndim - 2, lb = b->ndim - 2, lc = c->ndim - 2;
  const ax_gemm g = { .dtype = a->dtype,
                      .batch = s.batch,
                      .m = c->shape[lc],
                      .n = c->shape[lc + 1],
                      .k = a->shape[la + 1],
                      .a = { s.a[s.n], a->strides[la], a->strides[la + 1] },
                      .b = { s.b[s.n], b->strides[lb], b->strides[lb + 1] },
                      .c = { s.c[s.n], c->strides[lc] },
                      .accumulate = call->a->accumulate,
                      .wide = is_wide(a, c) };
  for (int64_t p = 0; st == AX_OK && p < s.calls; p++) {
    int64_t at_a, at_b, at_c;
    ax_batched_matmul_at(&s, p, &at_a, &at_b, &at_c);
    st = run(&g, (char *)ax_data(a) + at_a * item, (char *)ax_data(b) + at_b * item, NULL,
             (char *)ax_data(c) + at_c * out_item);
  }
  return st;
}

/* g (rows, out), x (rows, in) -> dweight = g^T x, dbias = the sums of g's columns, computed as the
 * rows mm and sum compute them. */
ax_status ax_cpu__linear_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *dw = call->out[0], *db = call->out[1];
  const int64_t rows = g->shape[0], out = g->shape[1], in = x->shape[1], item = (int64_t)ax_itemsize(g),
                to = (int64_t)ax_itemsize(db);
  const ax_gemm product = { .dtype = g->dtype,
                            .batch = 1,
                            .m = out,
                            .n = in,
                            .k = rows,
                            .a = { 0, 1, out },
                            .b = { 0, in, 1 },
                            .c = { 0, in },
                            .accumulate = call->a->linear_backward.add_weight,
                            .wide = is_wide(g, dw) };
  const ax_attrs a = { .n_list = 1,
                       .accumulate = call->a->linear_backward.add_bias != 0,
                       .wide = is_wide(g, db) };
  ax_iter it = { .numel = rows * out,
                 .n = 2,
                 .op = { { .data = ax_data(db), .dtype = db->dtype },
                         { .data = ax_data(g), .dtype = g->dtype } } };
  ax_status st = check(call);

  if (st == AX_OK) st = run(&product, ax_data(g), ax_data(x), NULL, ax_data(dw));
  if (rows != 1) it.shape[it.ndim] = rows, it.op[1].stride[it.ndim++] = out * item;
  if (out != 1) it.shape[it.ndim] = out, it.op[0].stride[it.ndim] = to, it.op[1].stride[it.ndim++] = item;
  if (st != AX_OK || out == 0) return st;
  return ax_cpu_sum(&(ax_call){
      .op = AX_OP_SUM, .a = &a, .n_in = 1, .n_out = 1, .in = call->in, .out = call->out + 1, .iter = &it });
}

/* Runs f over y, and over x where there is one: contiguous and of one type. */
static ax_status pointwise(ax_kernel f, ax_op op, ax_tensor *y, int n, ax_tensor *const *in)
{
  const ax_attrs a = { .gelu_backward = { .approximate = 1 }, .n_list = -1 }; /* with tanh */
  ax_iter it = { .ndim = 1, .shape = { y->numel }, .numel = y->numel, .n = 1 + n };
  for (int k = 0; k <= n; k++) {
    ax_tensor *t = k ? in[k - 1] : y;
    it.op[k] = (ax_operand){ .data = ax_data(t), .dtype = t->dtype, .stride = { (int64_t)ax_itemsize(t) } };
  }
  if (y->numel == 0) return AX_OK;
  return f(&(ax_call){ .op = op, .a = &a, .n_in = n, .n_out = 1, .in = in, .out = &y, .iter = &it });
}

ax_status ax_cpu_linear_gelu(const ax_call *call)
{
  ax_call linear = *call;
  linear.n_out = 1;
  linear.out = call->out + 1;
  const ax_status st = ax_cpu_linear(&linear);
  return st != AX_OK ? st : pointwise(ax_cpu_gelu, AX_OP_GELU, call->out[0], 1, call->out + 1);
}

ax_status ax_cpu__mm_dgelu(const ax_call *call)
{
  ax_call mm = *call;
  mm.n_in = 2;
  const ax_status st = ax_cpu_mm(&mm);
  return st != AX_OK ? st
                     : pointwise(ax_cpu__gelu_backward, AX_OP_GELU_BACKWARD, call->out[0], 2,
                                 (ax_tensor *[]){ call->out[0], call->in[2] });
}

/* x (.., in), weight (out, in), bias (out) -> (.., out): one product, whose rows are x's leading
 * dims. */
ax_status ax_cpu_linear(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL,
                  *y = call->out[0];
  const int64_t in = w->shape[1], out = w->shape[0];
  int64_t rows = 1;
  ax_gemm g = { .dtype = x->dtype,
                .batch = 1,
                .n = out,
                .k = in,
                .a = { 0, in, 1 },
                .b = { 0, w->strides[1], w->strides[0] },
                .c = { 0, out },
                .bias = bias != NULL,
                .accumulate = call->a->accumulate && !bias,
                .wide = is_wide(x, y),
                .wide_bias = bias && is_wide(x, bias) };
  const ax_status st = check(call);

  for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
  g.m = rows;
  return st != AX_OK ? st : run(&g, ax_data(x), ax_data(w), bias ? ax_data(bias) : NULL, ax_data(y));
}
