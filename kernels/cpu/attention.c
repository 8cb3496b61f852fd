/* Scaled dot-product attention, y = softmax(q k^T scale + mask) v, and its gradient, in memory
 * linear in the sequence (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018 for the
 * running softmax).
 *
 * Blocks of QUERIES queries meet blocks of KEYS keys.  Each query keeps the largest score so far
 * and the sum of exponentials about it, and rescales its partial result when the maximum rises.
 * The gradient computes the blocks again from the log-sum-exp that the forward pass saved:
 *     P = exp(S - lse)    dP = dO V^T    dS = P * (dP - delta)
 *     delta = the sum of dO * O over the columns
 *
 * float32 and the half types compute in float32, float64 in float64.  Threads share blocks of
 * queries (forward) or heads of keys (backward); no sum crosses two pieces of work.  The products
 * bound the kernel: it does 4 T^2 D operations forward for a head, on tiles that stay in the
 * caches. */
#include "cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "philox.h"
#include "philox_lanes.h"
#include "pointwise.h"
#include "vector.h"

#define BYTES AX_BYTES
#if AX_BYTES == 64
#define MAX_NV 4 /* vectors of a register tile: 6 x 4 of 32 registers */
#else
#define MAX_NV 2 /* 6 x 2 of 16 */
#endif
#define MR 6
#define QUERIES 48      /* a multiple of MR and of every vector */
#define KEYS 144        /* a multiple of MR and of 4 */
#define NEVER (1 << 20) /* no diagonal: beyond the width of any block */

/* A tensor (batch, heads, rows, columns); step: bytes. */
typedef struct side {
  char *data;
  ax_dtype dtype;
  int64_t size[4], step[4];
} side;

typedef struct job {
  const ax_attrs *a;
  side q, k, v, y, g, dq, dk, dv, mask_side;
  const void *mask; /* NULL: none */
  void *lse;
  int64_t batch, heads, group, queries, keys, head, value_head;
  int64_t width, value_width; /* head sizes rounded up to whole vectors */
  double scale;
  bool causal, dropout, back;
  uint32_t least; /* dropout: an element stays when its word is at least this */
  double kept;    /* and is then multiplied by this */
  int64_t quads;  /* Philox blocks for a row of scores */
  char *scratch;
  size_t scratch_bytes; /* for one thread */
} job;

/* exp(x) for x <= 0 up to rounding: needs no upper limit, and gives 0 where a float would be
 * subnormal. */
AX_FN float exp_below_f32(float x)
{
  float r;
  const uint32_t n = ax_exp_reduce(x, &r); /* the low bits are the power of two */
  const float p = AX_FMAF(AX_FMAF(ax_exp_tail(r), r, 1.0f), r, 1.0f);
  const float y = ax_as_float(ax_as_bits(p) + (n << 23));
  return x < -87.0f ? 0.0f : y;
}

#define sizeof_type(T) (sizeof(T) == 4 ? AX_F32 : AX_F64)

#define T float
#define N(name) name##_f32
#define VEC ax_vec_f32
#define EXP exp_below_f32
#define LOG ax_log_f32
#define FMA AX_VFMA_f32
#include "attention_tile.inc"
#include "attention_pass.inc"
#undef T
#undef N
#undef EXP
#undef LOG
#undef FMA
#undef VEC

#define T double
#define N(name) name##_f64
#define VEC ax_vec_f64
#define EXP exp
#define LOG log
#define FMA AX_VFMA_f64
#include "attention_tile.inc"
#include "attention_pass.inc"
#undef T
#undef N
#undef EXP
#undef LOG
#undef FMA
#undef VEC

#include "attention_few.inc"

static side side_of(const ax_tensor *t)
{
  side s = { .data = ax_data(t), .dtype = (ax_dtype)t->dtype };
  for (int d = 0; d < 4; d++) {
    s.size[d] = t->shape[d];
    s.step[d] = t->strides[d] * (int64_t)ax_itemsize(t);
  }
  return s;
}

/* Swaps heads and rows: (batch, rows, heads, columns) -> (batch, heads, rows, columns). */
static side turned(const ax_tensor *t)
{
  side s = side_of(t), r = s;
  r.size[1] = s.size[2], r.size[2] = s.size[1];
  r.step[1] = s.step[2], r.step[2] = s.step[1];
  return r;
}

static void plan(job *j, const ax_call *call, const ax_tensor *q, const ax_tensor *k, const ax_tensor *v,
                 const ax_tensor *mask)
{
  const double p = call->a->attention.dropout_p;
  /* `turn` transposes four columns at a time */
  const int64_t vector = BYTES / (q->dtype == AX_F64 ? 8 : 4), lanes = vector < 4 ? 4 : vector;

  j->a = call->a;
  j->q = side_of(q), j->k = side_of(k), j->v = side_of(v);
  if (mask) {
    j->mask = ax_data(mask);
    j->mask_side = side_of(mask);
  }
  j->batch = q->shape[0], j->heads = q->shape[1], j->group = k->shape[1] ? q->shape[1] / k->shape[1] : 1;
  j->queries = q->shape[2], j->keys = k->shape[2], j->head = q->shape[3], j->value_head = v->shape[3];
  j->width = (j->head + lanes - 1) / lanes * lanes;
  j->value_width = (j->value_head + lanes - 1) / lanes * lanes;
  j->causal = call->a->attention.is_causal;
  j->scale = call->a->attention.scale;
  j->dropout = p > 0;
  j->least = p >= 1 ? UINT32_MAX : (uint32_t)(p * 0x1p32);
  j->kept = p >= 1 ? 0 : 1 / (1 - p);
  j->quads = (j->keys + 3) / 4;
}

static ax_status run(job *j, int64_t pieces, ax_range_fn f32, ax_range_fn f64)
{
  const bool wide = j->q.dtype == AX_F64;
  const int threads = omp_get_max_threads();
  ax_status st;

  if (pieces == 0) return AX_OK;
  if (f32 == few_range) j->scratch_bytes = few_scratch(j);
  else if (wide) {
    scratch_f64 w;
    j->scratch_bytes = scratch_size_f64(j, &w, NULL);
  } else {
    scratch_f32 w;
    j->scratch_bytes = scratch_size_f32(j, &w, NULL);
  }
  if ((st = ax_alloc(j->scratch_bytes * (size_t)threads, (void **)&j->scratch)) != AX_OK) return st;
  ax_cpu_for(pieces, j->batch * j->heads * j->queries * j->keys * 8, wide ? f64 : f32, j);
  ax_free(j->scratch, j->scratch_bytes * (size_t)threads);
  return AX_OK;
}

/* in: query, key, value, mask; out: y (batch, queries, heads, columns), log-sum-exp (batch, heads,
 * queries). */
ax_status ax_cpu__attention(const ax_call *call)
{
  job j = { 0 };
  plan(&j, call, call->in[0], call->in[1], call->in[2], call->n_in > 3 ? call->in[3] : NULL);
  j.y = turned(call->out[0]);
  j.lse = ax_data(call->out[1]);
  if (few_takes(&j)) return run(&j, j.batch * j.heads, few_range, NULL);
  return run(&j, j.batch * j.heads * ((j.queries + QUERIES - 1) / QUERIES), forward_range_f32,
             forward_range_f64);
}

/* in: g, query, key, value, mask, y, log-sum-exp; out: gradients of query, key, value. */
ax_status ax_cpu__attention_backward(const ax_call *call)
{
  job j = { .back = true };
  plan(&j, call, call->in[1], call->in[2], call->in[3], call->in[4]);
  j.g = turned(call->in[0]);
  j.y = turned(call->in[5]);
  j.lse = ax_data(call->in[6]);
  j.dq = side_of(call->out[0]), j.dk = side_of(call->out[1]), j.dv = side_of(call->out[2]);
  return run(&j, j.batch * (j.heads / j.group), backward_range_f32, backward_range_f64);
}
