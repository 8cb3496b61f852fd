/* Matrix products by oneDNN, whose versions 2 (Debian 12) and 3 (Ubuntu 24.04) differ in how a
 * primitive is described.  dnnl.h keeps the primitives of a thread's last shapes. */
#include "gemm.h"

#include <stdio.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "dnnl.h"

/* ---- differences between the versions */

typedef dnnl_memory_desc_t desc; /* version 3: a pointer, to be destroyed; version 2: a structure */

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
  return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t matmul_create(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *a,
                                   const desc *b, const desc *bias, const desc *c,
                                   const_dnnl_primitive_attr_t attr)
{
  return dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}

#else

static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
static dnnl_status_t matmul_create(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *a,
                                   const desc *b, const desc *bias, const desc *c,
                                   const_dnnl_primitive_attr_t attr)
{
  dnnl_matmul_desc_t d;
  const dnnl_status_t st = dnnl_matmul_desc_init(&d, a, b, bias, c);
  return st == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, engine, NULL) : st;
}

#endif

/* ---- the cache of a thread */

typedef struct entry {
  ax_dnnl_head head;
  ax_gemm key;
  int64_t *calls;
} entry;
_Static_assert(offsetof(entry, key) == sizeof(ax_dnnl_head), "the key follows the head");

static __thread entry entries[AX_DNNL_SETS * AX_DNNL_WAYS];
static __thread ax_dnnl_cache cache;

/* One matrix of a batch; a repeated matrix gets a batch dim of 1, which oneDNN broadcasts. */
static dnnl_status_t matrix(desc *d, const ax_gemm *g, dnnl_data_type_t type, int64_t rows, int64_t cols,
                            int64_t batch_step, int64_t row_step, int64_t col_step)
{
  const int64_t size[3] = { batch_step ? g->batch : 1, rows, cols };
  const int64_t step[3] = { batch_step ? batch_step : rows * cols, row_step, col_step };
  const int ndims = g->batch == 1 ? 2 : 3;
  dnnl_dims_t dims = { 0 }, strides = { 0 };

  memcpy(dims, size + 3 - ndims, (size_t)ndims * sizeof(*dims));
  memcpy(strides, step + 3 - ndims, (size_t)ndims * sizeof(*strides));
  return ax_dnnl_desc_init(d, ndims, dims, type, strides);
}

static dnnl_data_type_t type_of(ax_dtype d)
{
  return d == AX_F32 ? dnnl_f32 : d == AX_BF16 ? dnnl_bf16 : dnnl_f16;
}

static dnnl_status_t entry_build(void *ud, const void *key)
{
  entry *e = ud;
  const ax_gemm *g = key;
  const dnnl_data_type_t type = type_of((ax_dtype)g->dtype);
  desc a = { 0 }, b = { 0 }, bias = { 0 }, c = { 0 };
  dnnl_primitive_attr_t attr = NULL;
  dnnl_post_ops_t ops = NULL;
  dnnl_primitive_desc_t pd = NULL;
  const char *code = "";
  char name[96];
  dnnl_status_t st;

  DNNL_TRY(matrix(&a, g, type, g->m, g->k, g->a[0], g->a[1], g->a[2]));
  DNNL_TRY(matrix(&b, g, type, g->k, g->n, g->b[0], g->b[1], g->b[2]));
  DNNL_TRY(matrix(&c, g, type_of(ax_gemm_out(g)), g->m, g->n, g->c[0], g->c[1], 1));
  if (g->bias) DNNL_TRY(matrix(&bias, g, type_of(ax_gemm_bias(g)), 1, g->n, 0, g->n, 1));
  if (g->accumulate) {
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    DNNL_TRY(dnnl_post_ops_create(&ops));
    DNNL_TRY(append_sum(ops));
    DNNL_TRY(dnnl_primitive_attr_set_post_ops(attr, ops));
  }
  DNNL_TRY(matmul_create(&pd, cache.engine, &a, &b, g->bias ? &bias : NULL, &c, attr));
  DNNL_TRY(ax_dnnl_code(pd, &code));
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_SRC, ax_dnnl_shown(&a), cache.engine));
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_WEIGHTS, ax_dnnl_shown(&b), cache.engine));
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_DST, ax_dnnl_shown(&c), cache.engine));
  if (g->bias) DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_BIAS, ax_dnnl_shown(&bias), cache.engine));
  DNNL_TRY(dnnl_primitive_create(&e->head.primitive, pd));
  snprintf(name, sizeof(name), "mm %s -> %s, oneDNN %s", ax_dtype_name((ax_dtype)g->dtype),
           ax_dtype_name(ax_gemm_out(g)), code);
  e->calls = ax_cpu_counter(name);
out:
  if (pd) dnnl_primitive_desc_destroy(pd);
  if (ops) dnnl_post_ops_destroy(ops);
  if (attr) dnnl_primitive_attr_destroy(attr);
  ax_dnnl_desc_clear(&a);
  ax_dnnl_desc_clear(&b);
  ax_dnnl_desc_clear(&bias);
  ax_dnnl_desc_clear(&c);
  return st;
}

ax_status ax_dnnl_gemm(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c, bool *done)
{
  dnnl_status_t st;
  char what[128];
  void *found;

  *done = false;
  DNNL_TRY(ax_dnnl_lookup(&cache, entries, sizeof(entry), g, sizeof(*g), entry_build, &found));
  entry *e = found;
  if (!e->head.primitive) return AX_OK;

  const void *const data[AX_DNNL_OPERANDS] = { a, b, c, bias };
  const dnnl_memory_t *const m = e->head.operand;
  const dnnl_exec_arg_t args[4] = { { DNNL_ARG_SRC, m[AX_DNNL_SRC] },
                                    { DNNL_ARG_WEIGHTS, m[AX_DNNL_WEIGHTS] },
                                    { DNNL_ARG_DST, m[AX_DNNL_DST] },
                                    { DNNL_ARG_BIAS, m[AX_DNNL_BIAS] } };
  DNNL_TRY(ax_dnnl_give(&e->head, data));
  DNNL_TRY(dnnl_primitive_execute(e->head.primitive, cache.stream, g->bias ? 4 : 3, args));
  ++*e->calls;
  *done = true;
  return AX_OK;
out:
  snprintf(what, sizeof what, "a product of %lld x %lld and %lld x %lld", (long long)g->m, (long long)g->k,
           (long long)g->k, (long long)g->n);
  return ax_dnnl_fail(st, what);
}

/* Intel's cores from Golden Cove on, the first with AVX512-FP16, have fast units for bfloat16 in
 * AMX alone: where a hypervisor hides it, an MLP's step with vdpbf16ps took 1.7 times as long as in
 * float32, and 1.05 times with widened products. */
static bool bf16_is_slow(void)
{
#ifdef __x86_64__
  unsigned a, b, c, d;
  return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AVX512FP16);
#else
  return false;
#endif
}

bool ax_dnnl_multiplies_bf16(void)
{
  static __thread int known; /* 1: no, 2: yes; a virtual machine answers cpuid in microseconds */
  if (!known) {
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), least = dnnl_cpu_isa_avx512_core_bf16,
                   tiles = dnnl_cpu_isa_avx512_core_amx;
    known = (isa & tiles) == tiles || ((isa & least) == least && !bf16_is_slow()) ? 2 : 1;
  }
  return known == 2;
}

bool ax_dnnl_divides_sums(void)
{
  static __thread int known; /* 1: no, 2: yes */
  if (!known) {
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), least = dnnl_cpu_isa_avx512_core;
    known = (isa & least) == least ? 1 : 2;
  }
  return known == 2;
}

const char *ax_dnnl_version(void)
{
  static char text[32];
  const dnnl_version_t *v = dnnl_version();
  snprintf(text, sizeof(text), "%d.%d.%d", v->major, v->minor, v->patch);
  return text;
}
