/* Scaled dot-product attention and its gradient in memory linear in the sequence: y = softmax(q k^T
 * scale + mask) v in tiles of scores with a running softmax.  The gradient computes its tiles again
 * from the log-sum-exp that the forward pass saved (the formulas are in kernels/cpu/attention.c).
 *
 * This file reads the calls and chooses who computes them: cuDNN; tensor cores, for bfloat16 and
 * float16 with aligned rows (flash_forward.cu, flash_backward.cu) and for everything else
 * (attention_tf32*.cu); or the plain kernels (attention_plain.cu).  See `way_of`. */
#include "attention.cuh"
#include "mma.cuh"

#include "cuda/runtime/stats.h"
#include "cuda/vendor/cudnn.h"

#include <atomic>
#include <stdio.h>

enum { MOST_HEAD = 256 };

typedef ax_cuda_side side;
typedef ax_cuda_attention_job job;

/* ---- the rows of the op table */

static side side_of(const ax_tensor *t)
{
  side s = { ax_data(t), {} };
  for (int d = 0; d < 4; d++) s.step[d] = t->strides[d];
  return s;
}

/* Swaps heads and rows: (batch, rows, heads, columns) -> (batch, heads, rows, columns). */
static side turned(const ax_tensor *t)
{
  side s = side_of(t);
  const int64_t rows = s.step[1];
  s.step[1] = s.step[2];
  s.step[2] = rows;
  return s;
}

static ax_status plan(const ax_call *call, const ax_tensor *q, const ax_tensor *k, const ax_tensor *v,
                      const ax_tensor *mask, job *j)
{
  const double p = call->a->attention.dropout_p;
  *j = job{};
  if (q->shape[3] > MOST_HEAD || v->shape[3] > MOST_HEAD)
    return ax_fail(AX_ENOIMPL,
                   "scaled_dot_product_attention: the cuda backend takes heads of up to %d elements, got "
                   "%lld (values: %lld)",
                   MOST_HEAD, (long long)q->shape[3], (long long)v->shape[3]);
  j->q = side_of(q), j->k = side_of(k), j->v = side_of(v);
  ax_cuda_expect(k, (ax_dtype)q->dtype);
  ax_cuda_expect(v, (ax_dtype)q->dtype);
  if (mask) {
    j->mask = side_of(mask);
    j->mask_dtype = mask->dtype;
  }
  j->batch = q->shape[0], j->heads = q->shape[1], j->group = k->shape[1] ? q->shape[1] / k->shape[1] : 1;
  j->queries = q->shape[2], j->keys = k->shape[2], j->head = (int)q->shape[3],
  j->value_head = (int)v->shape[3];
  j->causal = call->a->attention.is_causal;
  j->scale = call->a->attention.scale;
  j->dropout = p > 0;
  j->least = p >= 1 ? UINT32_MAX : (uint32_t)(p * 0x1p32);
  j->kept = p >= 1 ? 0 : 1 / (1 - p);
  j->quads = (j->keys + 3) / 4;
  j->draw = ax_cuda_draw_of(call);
  return AX_OK;
}

/* Runs the call by cuDNN where it has an engine; dropout needs our own random bits. */
static ax_status try_cudnn(const job &j, ax_device d, ax_dtype dtype, bool backward, bool *done)
{
  const side *const sides[] = { &j.q, &j.k, &j.v, &j.y, &j.g, &j.dq, &j.dk, &j.dv };
  ax_cuda_attention a = { j.batch,      j.heads, j.group ? j.heads / j.group : 0,
                          j.queries,    j.keys,  j.head,
                          j.value_head, {},      {},
                          {},           {},      {},
                          {},           {},      {},
                          j.scale,      j.causal };
  int64_t *const steps[] = { a.q, a.k, a.v, a.y, a.g, a.dq, a.dk, a.dv };
  const ax_cuda_attention_data data = { j.q.data,          j.k.data,          j.v.data,
                                        j.g.data,          (void *)j.y.data,  j.lse,
                                        (void *)j.dq.data, (void *)j.dk.data, (void *)j.dv.data };

  *done = false;
  if (j.mask.data || j.dropout) return AX_OK;
  for (int k = 0; k < (backward ? 8 : 4); k++) memcpy(steps[k], sides[k]->step, sizeof a.q);
  return ax_cudnn_attention(d, backward, &a, dtype, &data, done);
}

/* ---- the choice of the kernel */

enum way { PLAIN, TF32, FLASH, WAYS };

/* Whether the rows of s, of sizes n, start at multiples of 16 bytes and have adjacent elements of 2
 * bytes. */
static bool lies_well(const side &s, int64_t batch, int64_t heads, int64_t rows)
{
  const int64_t n[3] = { batch, heads, rows };
  bool well = (uintptr_t)s.data % 16 == 0 && s.step[3] == 1;
  for (int i = 0; i < 3; i++) well &= s.step[i] % 8 == 0 || n[i] <= 1;
  return well;
}

/* Whether the kernels of flash*.cu take the rows and heads of the call. */
static bool fits_flash(const job &j, bool backward)
{
  const int64_t b = j.batch, h = j.heads, hk = j.heads / j.group;
  if (j.head % 8 || j.value_head % 8 || j.head < 8 || j.value_head < 8 || j.head > AX_FLASH_MOST_HEAD ||
      j.value_head > AX_FLASH_MOST_HEAD)
    return false;
  if (!lies_well(j.q, b, h, j.queries) || !lies_well(j.k, b, hk, j.keys) || !lies_well(j.v, b, hk, j.keys) ||
      !lies_well(j.y, b, h, j.queries))
    return false;
  return !backward || (lies_well(j.g, b, h, j.queries) && lies_well(j.dq, b, h, j.queries) &&
                       lies_well(j.dk, b, hk, j.keys) && lies_well(j.dv, b, hk, j.keys));
}

/* The choice depends on the call and the model of GPU alone (mma: it has tensor cores; shared: the
 * most shared memory of a block).  Calls that cuDNN took (try_cudnn) do not come here. */
static way way_of(const job &j, ax_dtype dtype, bool backward, bool mma, size_t shared)
{
  const int64_t most = INT32_MAX / 2, planes = j.batch * j.heads;
  if (!mma || dtype == AX_F64 || planes < 1 || j.heads < j.group || j.queries > most || j.keys > most ||
      planes > most / 2 || (j.queries + j.keys) / 32 + 1 > most / planes)
    return PLAIN;
  if (dtype != AX_F32 && fits_flash(j, backward) &&
      (backward ? ax_cuda_flash_backward_shared(&j) : ax_cuda_flash_forward_shared(&j)) <= shared)
    return FLASH;
  return (backward ? ax_cuda_tf32_backward_shared(&j) : ax_cuda_tf32_forward_shared(&j)) <= shared ? TF32
                                                                                                   : PLAIN;
}

static way choose(ax_device d, const job &j, ax_dtype dtype, bool backward)
{
  static const char *const names[WAYS] = { "plain", "tensor cores in tf32", "tensor cores" };
  size_t shared;
  const bool mma = ax_cuda_has_mma(d, &shared);
  const way w = way_of(j, dtype, backward, mma, shared);
  static std::atomic<int64_t *> counters[2][WAYS][AX_DTYPE_COUNT]; /* looked up by name once */
  std::atomic<int64_t *> &counter = counters[backward][w][dtype];
  if (!counter) {
    char name[64];
    snprintf(name, sizeof name, "attention%s %s, %s", backward ? " gradient" : "", ax_dtype_name(dtype),
             names[w]);
    counter = ax_cuda_counter(name);
  }
  ++*counter;
  return w;
}

/* Kernels and cuDNN read every side as the queries' type, the log-sum-exp as what that is computed
 * in. */
static ax_status check_types(const ax_tensor *y, const ax_tensor *q, const ax_tensor *lse)
{
  const ax_dtype d = (ax_dtype)q->dtype;
  ax_cuda_expect(y, d);
  ax_cuda_expect(lse, ax_is_half(d) ? AX_F32 : d);
  return ax_cuda_mistake.size ? ax_cuda_refuse_mistake("scaled_dot_product_attention") : AX_OK;
}

/* in: query, key, value, mask; out: y (batch, queries, heads, columns), log-sum-exp (batch, heads,
 * queries). */
AX_CUDA_KERNEL(_attention)
{
  const ax_tensor *q = call->in[0], *y = call->out[0];
  job j;
  ax_status st = plan(call, q, call->in[1], call->in[2], call->n_in > 3 ? call->in[3] : NULL, &j);

  if (st != AX_OK || j.batch * j.heads * j.queries == 0) return st;
  j.y = turned(y);
  j.lse = ax_data(call->out[1]);
  if ((st = check_types(y, q, call->out[1])) != AX_OK) return st;
  bool done;
  if ((st = try_cudnn(j, q->device, (ax_dtype)q->dtype, false, &done)) != AX_OK || done) return st;
  const way w = choose(q->device, j, (ax_dtype)q->dtype, false);
  if (w == FLASH) return ax_cuda_flash_forward(q->device, (ax_dtype)q->dtype, &j);
  if (w == TF32) return ax_cuda_tf32_forward(q->device, (ax_dtype)q->dtype, &j);
  return ax_cuda_plain_forward(call->op, q->device, (ax_dtype)q->dtype, &j);
}

/* in: g, query, key, value, mask, y, log-sum-exp; out: gradients of query, key, value. */
AX_CUDA_KERNEL(_attention_backward)
{
  const ax_tensor *q = call->in[1], *k = call->in[2];
  const ax_device d = q->device;
  job j;
  ax_status st = plan(call, q, k, call->in[3], call->in[4], &j);

  if (st != AX_OK) return st;
  j.g = turned(call->in[0]);
  j.y = turned(call->in[5]);
  j.lse = ax_data(call->in[6]);
  j.dq = side_of(call->out[0]), j.dk = side_of(call->out[1]), j.dv = side_of(call->out[2]);
  for (int i = 0; i < 3; i++) ax_cuda_expect(call->out[i], (ax_dtype)q->dtype);
  ax_cuda_expect(call->in[0], (ax_dtype)q->dtype);
  if ((st = check_types(call->in[5], q, call->in[6])) != AX_OK) return st;
  bool done;
  if ((st = try_cudnn(j, d, (ax_dtype)q->dtype, true, &done)) != AX_OK || done) return st;
  const way w = choose(d, j, (ax_dtype)q->dtype, true);
  const int64_t all = j.batch * j.heads * j.queries;
  const size_t bytes = (size_t)(all ? all : 1) * (q->dtype == AX_F64 ? sizeof(double) : sizeof(float));
  if ((st = ax_cuda_take(d, bytes, &j.delta)) != AX_OK) return st;
  if (w == FLASH) st = ax_cuda_flash_backward(d, (ax_dtype)q->dtype, &j);
  else if (all) st = ax_cuda_attention_deltas(call->op, d, (ax_dtype)q->dtype, &j);
  if (st == AX_OK && w == TF32) st = ax_cuda_tf32_backward(d, (ax_dtype)q->dtype, &j);
  if (st == AX_OK && w == PLAIN) st = ax_cuda_plain_backward(call->op, d, (ax_dtype)q->dtype, &j);
  ax_cuda_give(d, j.delta, bytes);
  return st;
}
