/* Convolutions by oneDNN (dnnl_shim.c has the matrix products).  Versions 2 and 3 differ in how a
 * primitive is described.
 *
 * dnnl.h keeps the primitives of a thread's last shapes.  Images are passed as they are; the small
 * weights are reordered for each call, since oneDNN's code needs them in blocks. */
#include "conv.h"
#include "gemm.h"

#include <stdio.h>

#include "dnnl.h"

typedef ax_dnnl_desc desc;

/* The dims of a convolution as oneDNN takes them; one without depth is flat. */
typedef struct geometry {
  bool flat;
  int ndims; /* of the weights: groups where there are several, channels, window */
  dnnl_dims_t sizes, steps, stride, dilation, pad, pad_end;
} geometry;

/* ---- differences between the versions */

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t desc_any(dnnl_memory_desc_t *d, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type)
{
  return dnnl_memory_desc_create_with_tag(d, ndims, dims, type, dnnl_format_tag_any);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *pd, dnnl_primitive_desc_t hint, dnnl_engine_t engine,
                              const ax_conv *v, desc x, desc w, desc bias, desc y, const geometry *g)
{
  if (!hint && v->what != AX_CONV_FORWARD) return dnnl_invalid_arguments;
  if (v->what == AX_CONV_INPUT && hint)
    return dnnl_convolution_backward_data_primitive_desc_create(pd, engine, dnnl_convolution_direct, x, w, y,
                                                                g->stride, g->dilation, g->pad, g->pad_end,
                                                                hint, NULL);
  if (v->what == AX_CONV_WEIGHT && hint)
    return dnnl_convolution_backward_weights_primitive_desc_create(pd, engine, dnnl_convolution_direct, x, w,
                                                                   NULL, y, g->stride, g->dilation, g->pad,
                                                                   g->pad_end, hint, NULL);
  return dnnl_convolution_forward_primitive_desc_create(pd, engine, dnnl_forward_training,
                                                        dnnl_convolution_direct, x, w, bias, y, g->stride,
                                                        g->dilation, g->pad, g->pad_end, NULL);
}
static dnnl_status_t describe_hint(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, desc x, desc w, desc y,
                                   const geometry *g)
{
  return dnnl_convolution_forward_primitive_desc_create(pd, engine, dnnl_forward_training,
                                                        dnnl_convolution_direct, x, w, NULL, y, g->stride,
                                                        g->dilation, g->pad, g->pad_end, NULL);
}

#else

static dnnl_status_t desc_any(dnnl_memory_desc_t *d, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type)
{
  return dnnl_memory_desc_init_by_tag(d, ndims, dims, type, dnnl_format_tag_any);
}

static dnnl_status_t describe_hint(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, desc x, desc w, desc y,
                                   const geometry *g)
{
  dnnl_convolution_desc_t d;
  const dnnl_status_t st =
      dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, x, w,
                                                 NULL, y, g->stride, g->dilation, g->pad, g->pad_end);
  return st == dnnl_success ? dnnl_primitive_desc_create(pd, &d, NULL, engine, NULL) : st;
}
static dnnl_status_t describe(dnnl_primitive_desc_t *pd, dnnl_primitive_desc_t hint, dnnl_engine_t engine,
                              const ax_conv *v, desc x, desc w, desc bias, desc y, const geometry *g)
{
  dnnl_convolution_desc_t d;
  dnnl_status_t st;
  if (v->what == AX_CONV_INPUT)
    st = dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, x, w, y, g->stride,
                                                          g->dilation, g->pad, g->pad_end);
  else if (v->what == AX_CONV_WEIGHT)
    st = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, x, w, NULL, y,
                                                             g->stride, g->dilation, g->pad, g->pad_end);
  else
    st = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, x, w,
                                                    bias, y, g->stride, g->dilation, g->pad, g->pad_end);
  return st == dnnl_success ? dnnl_primitive_desc_create(pd, &d, NULL, engine, hint) : st;
}

#endif

/* ---- the cache of a thread */

typedef struct entry {
  ax_dnnl_head head;
  ax_conv key;
  size_t packed_bytes;
  bool divides_sums;
} entry;
_Static_assert(offsetof(entry, key) == sizeof(ax_dnnl_head), "the key follows the head");

static __thread entry entries[AX_DNNL_SETS * AX_DNNL_WAYS];
static __thread ax_dnnl_cache cache;

static dnnl_status_t reorder_create(entry *e, desc from, desc to)
{
  dnnl_primitive_desc_t pd = NULL;
  dnnl_status_t st;
  DNNL_TRY(dnnl_reorder_primitive_desc_create(&pd, from, cache.engine, to, cache.engine, NULL));
  DNNL_TRY(dnnl_primitive_create(&e->head.reorder, pd));
out:
  if (pd) dnnl_primitive_desc_destroy(pd);
  return st;
}

/* The descriptor of an image with channels innermost; one without depth is flat. */
static dnnl_status_t image(dnnl_memory_desc_t *out, dnnl_data_type_t type, bool flat, int64_t n, int64_t c,
                           int64_t d, int64_t h, int64_t w)
{
  const dnnl_dims_t dims = { n, c, d, h, w }, strides = { d * h * w * c, 1, h * w * c, w * c, c };
  const dnnl_dims_t flat_dims = { n, c, h, w }, flat_strides = { h * w * c, 1, w * c, c };
  if (flat) return ax_dnnl_desc_init(out, 4, flat_dims, type, flat_strides);
  return ax_dnnl_desc_init(out, 5, dims, type, strides);
}

static bool is_flat(const ax_conv *v) { return v->d == 1 && v->kd == 1 && v->padding[0] == 0; }

/* Would the code write behind its scratch memory?  oneDNN 2.6 gathers the pixels of a strided 1 x 1
 * convolution first.  Without AVX-512's masks it stores 8 channels of each, also where there are
 * fewer, and reserves no room for them. */
static bool overruns(const ax_conv *v, const char *code)
{
  const bool strided = v->stride[0] > 1 || v->stride[1] > 1 || v->stride[2] > 1;
  return strided && v->c / v->groups < 8 && strstr(code, "1x1") && !strstr(code, "avx512");
}

static geometry geometry_of(const ax_conv *v)
{
  const int64_t og = v->o / v->groups, cg = v->c / v->groups, plane = v->kh * v->kw, taps = v->kd * plane;
  const int64_t out[3] = { v->od, v->oh, v->ow }, in[3] = { v->d, v->h, v->w },
                kernel[3] = { v->kd, v->kh, v->kw }, step[3] = { plane, v->kw, 1 };
  geometry g = { .flat = is_flat(v) };
  const int dims = g.flat ? 2 : 3;

  if (v->groups > 1) g.sizes[g.ndims] = v->groups, g.steps[g.ndims++] = og * cg * taps;
  g.sizes[g.ndims] = og, g.steps[g.ndims++] = cg * taps;
  g.sizes[g.ndims] = cg, g.steps[g.ndims++] = taps;
  for (int k = 0; k < dims; k++) {
    const int d = 3 - dims + k;
    g.stride[k] = v->stride[d];
    g.dilation[k] = v->dilation[d] - 1;
    g.pad[k] = v->padding[d];
    g.sizes[g.ndims] = kernel[d], g.steps[g.ndims++] = step[d];
    /* how far the last window reaches past the end; negative where the stride leaves input
     * unused */
    g.pad_end[k] = (out[d] - 1) * v->stride[d] + v->dilation[d] * (kernel[d] - 1) + 1 - in[d] - v->padding[d];
  }
  return g;
}

static dnnl_status_t entry_build(void *ud, const void *key)
{
  entry *e = ud;
  const ax_conv *v = key;
  const dnnl_engine_t engine = cache.engine;
  const dnnl_data_type_t type = v->dtype == AX_F32 ? dnnl_f32 : dnnl_bf16,
                         weight_type = v->what == AX_CONV_WEIGHT ? dnnl_f32 : type;
  const geometry g = geometry_of(v);
  const dnnl_dims_t channels = { v->o }, one = { 1 };
  dnnl_memory_desc_t x = { 0 }, w = { 0 }, any = { 0 }, bias = { 0 }, y = { 0 };
  dnnl_primitive_desc_t hint = NULL, pd = NULL;
  const char *code = "";
  dnnl_status_t st;

  DNNL_TRY(image(&x, type, g.flat, v->n, v->c, v->d, v->h, v->w));
  DNNL_TRY(image(&y, type, g.flat, v->n, v->o, v->od, v->oh, v->ow));
  DNNL_TRY(ax_dnnl_desc_init(&w, g.ndims, g.sizes, weight_type, g.steps));
  DNNL_TRY(desc_any(&any, g.ndims, g.sizes, weight_type));
  if (v->bias) DNNL_TRY(ax_dnnl_desc_init(&bias, 1, channels, type, one));
  if (v->what != AX_CONV_FORWARD) {
    dnnl_memory_desc_t forward_any = { 0 };
    st = desc_any(&forward_any, g.ndims, g.sizes, type);
    if (st == dnnl_success)
      st =
          describe_hint(&hint, engine, ax_dnnl_shown(&x), ax_dnnl_shown(&forward_any), ax_dnnl_shown(&y), &g);
    ax_dnnl_desc_clear(&forward_any);
    if (st != dnnl_success) goto out;
  }
  DNNL_TRY(describe(&pd, hint, engine, v, ax_dnnl_shown(&x), ax_dnnl_shown(&any),
                    v->bias ? ax_dnnl_shown(&bias) : NULL, ax_dnnl_shown(&y), &g));
  DNNL_TRY(ax_dnnl_code(pd, &code));
  if (overruns(v, code)) {
    st = dnnl_unimplemented;
    goto out;
  }
  e->divides_sums = strstr(code, "gemm") && ax_dnnl_divides_sums();
  const desc packed = dnnl_primitive_desc_query_md(pd,
                                                   v->what == AX_CONV_WEIGHT ? dnnl_query_diff_weights_md
                                                                             : dnnl_query_weights_md,
                                                   0);
  if (!dnnl_memory_desc_equal(packed, ax_dnnl_shown(&w))) {
    e->packed_bytes = dnnl_memory_desc_get_size(packed);
    DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_PACKED, packed, engine));
    if (v->what == AX_CONV_WEIGHT) DNNL_TRY(reorder_create(e, packed, ax_dnnl_shown(&w)));
    else DNNL_TRY(reorder_create(e, ax_dnnl_shown(&w), packed));
  }
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_SRC, ax_dnnl_shown(&x), engine));
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_WEIGHTS, ax_dnnl_shown(&w), engine));
  DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_DST, ax_dnnl_shown(&y), engine));
  if (v->bias) DNNL_TRY(ax_dnnl_operand(&e->head, AX_DNNL_BIAS, ax_dnnl_shown(&bias), engine));
  DNNL_TRY(dnnl_primitive_create(&e->head.primitive, pd));
out:
  if (pd) dnnl_primitive_desc_destroy(pd);
  if (hint) dnnl_primitive_desc_destroy(hint);
  ax_dnnl_desc_clear(&x);
  ax_dnnl_desc_clear(&w);
  ax_dnnl_desc_clear(&any);
  ax_dnnl_desc_clear(&bias);
  ax_dnnl_desc_clear(&y);
  return st;
}

/* Moves the weights from one operand to another: into blocks, or out of them. */
static dnnl_status_t reorder(const entry *e, int from, int to)
{
  const dnnl_exec_arg_t args[2] = { { DNNL_ARG_FROM, e->head.operand[from] },
                                    { DNNL_ARG_TO, e->head.operand[to] } };
  return dnnl_primitive_execute(e->head.reorder, cache.stream, 2, args);
}

static dnnl_status_t execute(const entry *e, const ax_conv *v)
{
  const dnnl_memory_t *const m = e->head.operand;
  const dnnl_memory_t w = m[AX_DNNL_PACKED] ? m[AX_DNNL_PACKED] : m[AX_DNNL_WEIGHTS];
  const dnnl_exec_arg_t args[4] = {
    { v->what == AX_CONV_INPUT ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, m[AX_DNNL_SRC] },
    { v->what == AX_CONV_WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, w },
    { v->what == AX_CONV_FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, m[AX_DNNL_DST] },
    { DNNL_ARG_BIAS, m[AX_DNNL_BIAS] }
  };
  return dnnl_primitive_execute(e->head.primitive, cache.stream, v->bias ? 4 : 3, args);
}

static ax_status failure(const ax_conv *v, dnnl_status_t st)
{
  char what[256];
  snprintf(what, sizeof what,
           "a convolution of %lld x %lld x %lld x %lld x %lld by %lld x %lld x %lld x %lld", (long long)v->n,
           (long long)v->c, (long long)v->d, (long long)v->h, (long long)v->w, (long long)v->o,
           (long long)v->kd, (long long)v->kh, (long long)v->kw);
  return ax_dnnl_fail(st, what);
}

static ax_status lookup(const ax_conv *v, entry **out)
{
  void *found;
  const dnnl_status_t st = ax_dnnl_lookup(&cache, entries, sizeof(entry), v, sizeof(*v), entry_build, &found);

  *out = found;
  return st == dnnl_success ? AX_OK : failure(v, st);
}

ax_status ax_dnnl_conv_scratch(const ax_conv *v, size_t *bytes)
{
  entry *e;
  const ax_status st = lookup(v, &e);
  *bytes = st == AX_OK ? e->packed_bytes : 0;
  return st;
}

bool ax_dnnl_conv_divides_sums(const ax_conv *v)
{
  entry *e;
  return lookup(v, &e) == AX_OK && e->divides_sums;
}

ax_status ax_dnnl_conv(const ax_conv *v, const ax_conv_data *d, void *packed, bool *done)
{
  entry *e;
  dnnl_status_t st = dnnl_success;
  const ax_status found = lookup(v, &e);

  *done = false;
  if (found != AX_OK || !e->head.primitive) return found;
  const void *const data[AX_DNNL_OPERANDS] = { d->x, d->w, d->y, d->bias, packed };
  const bool moves = e->head.operand[AX_DNNL_PACKED] != NULL;
  DNNL_TRY(ax_dnnl_give(&e->head, data));
  if (moves && v->what != AX_CONV_WEIGHT) DNNL_TRY(reorder(e, AX_DNNL_WEIGHTS, AX_DNNL_PACKED));
  DNNL_TRY(execute(e, v));
  if (moves && v->what == AX_CONV_WEIGHT) DNNL_TRY(reorder(e, AX_DNNL_PACKED, AX_DNNL_WEIGHTS));
  *done = true;
  return AX_OK;
out:
  return failure(v, st);
}
