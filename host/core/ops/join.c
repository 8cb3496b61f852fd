/* Rows that do the work of a call that waits (later.c) on their way, so that its result never goes
 * through memory:
 *
 *   relu(batch_norm(x))               one pass over x behind the statistics
 *   relu(batch_norm(x) + residual)    likewise
 *   batch_norm's gradient of relu's   relu's gradient never is in memory, or is written on the way
 *   x + dropout(y)                    reads x and y
 *   norm(x + y), y may be a dropout   reads x and y, writes the sum and the norm
 *   autocast's cast of a norm         the norm writes the half type; float32 when a script reads it
 *
 * Each gives the bits of the calls one by one: numbers are rounded where those would round.
 *
 * Who talks to whom: the dispatcher offers each call to ax_join before its kernel runs.  ax_join
 * does nothing, or leaves the call for later (ax_later_add), or finds that an input waits
 * (ax_later_of) and runs one kernel for both: the function that JOIN names in the call's row.  The
 * gradients of batch norm ask here too (ax_join_batch_norm_backward).  The traits WAITS0 and WAITS1
 * say which inputs a row takes while they wait.  Calls wait where the backend defers them; on the
 * CPU none does. */
#include "core/ops/join.h"
#include "core/ops/later.h"
#include "core/ops/rules.h"

#include <string.h>

static uint64_t next_made(void)
{
  static _Thread_local uint64_t n;
  return ++n;
}

static bool same_layout(const ax_tensor *a, const ax_tensor *b)
{
  if (a->dtype != b->dtype || !ax_same_shape(a, b->ndim, b->shape)) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) return false;
  return true;
}

static bool on_16_bytes(const ax_tensor *t)
{
  return ((uintptr_t)t->storage->data + (size_t)t->offset * ax_itemsize(t)) % 16 == 0;
}

static bool joins_norms(const ax_tensor *t)
{
  const ax_backend *backend;
  return ax_backend_of(t->device, &backend) == AX_OK && backend->joins_norms;
}

static ax_status settle(int n, ax_tensor *const *in)
{
  ax_status st = AX_OK;
  for (int k = 0; k < n && st == AX_OK; k++)
    if (in[k]) st = ax_tensor_ready(in[k], AX_READ);
  return st;
}

/* ---- batch norm, relu and a residual */

/* Statistics at once; the pass that writes y waits. */
ax_status ax_join_batch_norm(const ax_infer *q, ax_tensor **out, bool *done)
{
  ax_tensor *const x = q->args->in[0], *scale = NULL, *shift = NULL;
  const ax_attrs a = AX_ATTRS(scale_shift, .relu = false);
  ax_status st = AX_OK;

  if (q->a.batch_norm_train.relu || !ax_later_possible(x) || x->storage->exposed ||
      !ax_strides_are_channels_last(x->ndim, x->shape, x->strides))
    return AX_OK;
  for (int k = 1; k < q->args->n_in; k++)
    if (q->args->in[k] && !ax_tensor_is_contiguous(q->args->in[k])) return AX_OK;
  AX_TRY(ax_tensor_new_on(x->device, q->out[1].dtype, 1, x->shape + 1, &scale));
  AX_TRY(ax_tensor_new_on(x->device, q->out[1].dtype, 1, x->shape + 1, &shift));
  AX_TRY(ax_kernel_call(AX_OP_BATCH_NORM_TRAIN, &q->a, q->args->n_in, q->args->in, 5,
                        (ax_tensor *[]){ out[0], out[1], out[2], scale, shift }, NULL));
  *done = true;
  if (ax_later_add(AX_OP_SCALE_SHIFT, &a, 3, (ax_tensor *[]){ x, scale, shift }, out[0], NULL))
    out[1]->storage->made = out[0]->storage->made = next_made();
  else st = ax_kernel_call(AX_OP_SCALE_SHIFT, &a, 3, (ax_tensor *[]){ x, scale, shift }, 1, out, NULL);
out:
  ax_tensor_release(scale), ax_tensor_release(shift);
  return st;
}

ax_status ax_join_relu(const ax_infer *q, ax_tensor **out, bool *done)
{
  const ax_tensor *x = q->args->in[0];
  ax_later *const l = x ? ax_batch_norm_later(x) : NULL;

  if (!l || !same_layout(x, out[0])) return AX_OK;
  ax_attrs a = l->a;
  a.scale_shift.relu = true;
  out[0]->storage->made = x->storage->made;
  *done = true;
  return ax_kernel_call(AX_OP_SCALE_SHIFT, &a, l->n_in, l->in, 1, out, NULL);
}

static ax_status residual(const ax_infer *q, ax_tensor **out, bool *done)
{
  for (int k = 0; k < 2 && !*done; k++) {
    ax_tensor *const x = q->args->in[k], *const other = q->args->in[1 - k];
    ax_later *l = ax_batch_norm_later(x);
    if (!l || l->n_in != 3 || x->storage == other->storage || !same_layout(x, other) ||
        !same_layout(x, out[0]))
      continue;
    const ax_status st = settle(1, &other);
    if (st != AX_OK) return st;
    ax_attrs a = l->a;
    a.scale_shift.rounded = true;
    *done = ax_later_add(AX_OP_SCALE_SHIFT, &a, 4, (ax_tensor *[]){ l->in[0], l->in[1], l->in[2], other },
                         out[0], NULL);
    if (*done) out[0]->storage->made = next_made();
  }
  return AX_OK;
}

/* The gradient of such a relu waits. */
ax_status ax_join_relu_backward(const ax_infer *q, ax_tensor **out, bool *done)
{
  ax_tensor *const *in = q->args->in;
  if (q->args->n_in == 2 && in[0] && in[1] && in[1]->storage->made && same_layout(in[0], in[1]) &&
      same_layout(in[0], out[0]) &&
      ax_strides_are_channels_last(out[0]->ndim, out[0]->shape, out[0]->strides))
    *done = ax_later_add(q->op, &q->a, 2, in, out[0], NULL);
  return AX_OK;
}

ax_status ax_batch_norm_backward_results(ax_tensor *const *in, ax_tensor **out)
{
  const ax_tensor *x = in[1];
  ax_status st = AX_OK;
  for (int k = 0; k < 3 && st == AX_OK; k++) {
    if (out[k]) continue;
    const ax_dtype d = (ax_dtype)(k == 0 ? x : in[k + 1] ? in[k + 1] : in[4])->dtype;
    st = ax_tensor_new_on(x->device, d, k ? 1 : x->ndim, x->shape + (k != 0), &out[k]);
    if (st == AX_OK && k == 0) memcpy(out[0]->strides, x->strides, sizeof x->strides);
  }
  return st;
}

/* The norm's gradient of g, which waits for relu's; the kernel writes g as well, for whoever else
 * holds it. */
static ax_status with_mask(ax_later *l, ax_tensor *const *in, ax_tensor **out)
{
  const ax_attrs a = AX_ATTRS(batch_norm_backward, .relu = false);
  const ax_status st = ax_batch_norm_backward_results(in, out);

  if (st != AX_OK) return st;
  ax_later_take(l);
  return ax_later_taken(l, ax_kernel_call(AX_OP_BATCH_NORM_BACKWARD, &a, 7,
                                          (ax_tensor *[]){ l->in[0], in[1], in[2], in[3], in[4], in[5],
                                                           l->in[1] },
                                          4, (ax_tensor *[]){ out[0], out[1], out[2], in[0] }, NULL));
}

ax_status ax_join_batch_norm_backward(ax_tensor **in, bool *relu, ax_tensor **out, bool *done)
{
  ax_later *const l = ax_later_of(in[0]);

  *done = false;
  if (!l || l->op != AX_OP_RELU_BACKWARD || *relu || !same_layout(in[0], in[1])) return AX_OK;
  if (l->in[1]->storage->made == in[4]->storage->made) { /* relu of this norm: its kernel knows the mask */
    in[0] = l->in[0];
    *relu = true;
    return AX_OK;
  }
  if (!joins_norms(in[1])) return AX_OK;
  for (int k = 2; k < 6; k++)
    if (in[k] && (ax_is_later(in[k]) || !ax_tensor_is_contiguous(in[k]))) return AX_OK;
  *done = true;
  return with_mask(l, in, out);
}

/* ---- a sum and its norm, and the norm in autocast's type */

/* Rows that the kernel holds in registers, in runs of 16 bytes. */
static bool held(const ax_tensor *t, int last)
{
  int64_t n = 1;
  for (int d = t->ndim - last; d < t->ndim; d++) n *= t->shape[d];
  return n % 8 == 0 && n <= 8192 && ax_tensor_is_contiguous(t) && on_16_bytes(t);
}

/* A dropout waits for a sum that reads it, with its draw; the gradient draws again anyway. */
ax_status ax_join_dropout(const ax_infer *q, ax_tensor **out, bool *done)
{
  ax_tensor *const *in = q->args->in;
  if (ax_later_possible(out[0]) && joins_norms(out[0]) && out[0]->dtype != AX_F64 && out[0]->ndim > 1 &&
      q->a.dropout_apply.p < 1 && held(in[0], 1))
    *done = ax_later_add(q->op, &q->a, 1, in, out[0], NULL);
  return AX_OK;
}

/* Lets x + dropout(y) wait as one call of y and x; the dropout waits on for who else reads it. */
static ax_status dropped_sum(const ax_infer *q, ax_tensor **out, bool *done)
{
  for (int k = 0; k < 2; k++) {
    const ax_later *const l = ax_later_of(q->args->in[k]);
    ax_tensor *const other = q->args->in[1 - k];
    if (!l || l->op != AX_OP_DROPOUT_APPLY || l->n_in != 1 || other == q->args->in[k]) continue;
    if (other->dtype != out[0]->dtype) return AX_OK;
    const ax_attrs a = l->a;
    ax_tensor *const term = ax_tensor_retain(l->in[0]); /* l may run, and end, with `other` */
    const ax_status st = settle(1, &other);
    if (st == AX_OK)
      *done = ax_later_add(AX_OP_DROPOUT_APPLY, &a, 2, (ax_tensor *[]){ term, other }, out[0], NULL);
    ax_tensor_release(term);
    return st;
  }
  return AX_OK;
}

ax_status ax_join_sum(const ax_infer *q, ax_tensor **out, bool *done)
{
  ax_tensor *const *in = q->args->in;
  const ax_dtype d = (ax_dtype)out[0]->dtype;

  if (q->args->n_in != 2 || !in[0] || !in[1]) return AX_OK;
  const ax_status st = residual(q, out, done);
  if (st != AX_OK || *done || out[0]->ndim < 2 || !ax_later_possible(out[0]) || !joins_norms(out[0]) ||
      !ax_is_float(d) || d == AX_F64)
    return st;
  for (int k = 0; k < 2; k++)
    if (!ax_same_shape(in[k], out[0]->ndim, out[0]->shape) || !held(in[k], 1) ||
        (in[k]->dtype != d && !(d == AX_F32 && ax_is_half((ax_dtype)in[k]->dtype))))
      return AX_OK;
  if (in[0]->dtype != d && in[1]->dtype != d) return AX_OK;
  const ax_status dropped = dropped_sum(q, out, done);
  if (dropped != AX_OK || *done) return dropped;
  if (settle(2, in) != AX_OK) return AX_OK; /* (once more, and with its error, before the kernel) */
  *done = ax_later_add(q->op, &q->a, 2, in, out[0], NULL);
  return AX_OK;
}

/* The two terms (borrowed) of the sum l that a norm over x takes over, in x's type and in `other`,
 * and the dropout's attributes; false where their types are others. */
static bool take_terms(ax_later *l, const ax_tensor *x, ax_dtype other, ax_tensor **terms, ax_attrs *a)
{
  const bool drops = l->op == AX_OP_DROPOUT_APPLY;
  const int first = drops ? 1 : l->in[0]->dtype != x->dtype;

  if (l->in[first]->dtype != x->dtype || (ax_dtype)l->in[1 - first]->dtype != other) return false;
  for (int k = 0; k < 2; k++) terms[k] = l->in[k ? 1 - first : first];
  if (drops) {
    a->dropped = l->a.dropout_apply.p;
    a->rng = l->a.rng;
  }
  ax_later_take(l);
  return true;
}

/* Whether weight k of a norm is as the kernel reads it. */
static bool plain(const ax_infer *q, int k)
{
  const ax_tensor *t = k < q->args->n_in ? q->args->in[k] : NULL;
  return !t || (t->dtype == q->args->in[0]->dtype && ax_tensor_is_contiguous(t) && on_16_bytes(t) &&
                !ax_is_later(t));
}

ax_status ax_join_norm(const ax_infer *q, ax_tensor **out, bool *done)
{
  ax_tensor *const *in = q->args->in, *const x = in[0], *terms[2] = { 0 }, *half = NULL;
  const bool rounds = ax_autocast_now.enabled && x->dtype == AX_F32 && ax_is_half(ax_autocast_now.dtype) &&
                      ax_later_possible(x);
  const ax_dtype other = rounds ? ax_autocast_now.dtype : (ax_dtype)x->dtype;
  ax_later *l = ax_later_of(x), *rounded;
  ax_attrs a = q->a;
  ax_status st = AX_OK;

  if (l && l->op != AX_OP_ADD && !(l->op == AX_OP_DROPOUT_APPLY && l->n_in == 2)) l = NULL;
  if ((!l && !rounds) || !joins_norms(x) || x->dtype == AX_F64 || !held(x, q->a.n_list) || !plain(q, 1) ||
      !plain(q, 2))
    return AX_OK;
  if (l && !take_terms(l, x, other, terms, &a)) l = NULL;
  if (!l) {
    if (!rounds) return AX_OK;
    AX_TRY(settle(1, in));
  }
  *done = true;
  if (rounds) AX_TRY(ax_tensor_new_on(x->device, other, x->ndim, x->shape, &half));
  st = ax_kernel_call(q->op, &a, l ? 5 : q->args->n_in,
                      (ax_tensor *[]){ x, q->args->n_in > 1 ? in[1] : NULL, q->args->n_in > 2 ? in[2] : NULL,
                                       terms[0], terms[1] },
                      q->n_out, (ax_tensor *[]){ half ? half : out[0], out[1], out[2] }, NULL);
  if (l) ax_later_taken(l, st);
  l = NULL;
  if (st != AX_OK || !rounds) goto out;
  if (ax_later_add(q->op, &q->a, q->args->n_in, in, out[0], &rounded)) {
    rounded->half = ax_tensor_retain(half);
    for (int k = 1; k < q->n_out; k++) rounded->more[k - 1] = ax_tensor_retain(out[k]);
  } else st = ax_kernel_call(q->op, &q->a, q->args->n_in, in, q->n_out, out, NULL);
out:
  if (l) ax_later_taken(l, st); /* no memory for `half` */
  ax_tensor_release(half);
  return st;
}

/* ---- for the dispatcher */

ax_status ax_join_cast(const ax_infer *q, ax_tensor **out, bool *done)
{
  *done = ax_later_cast(q->args->in[0], out[0]);
  return AX_OK;
}

ax_status ax_join(const ax_infer *q, ax_tensor **out, bool *done)
{
  const ax_op_impl *const impl = &ax_op_impls[q->op];
  const ax_backend *backend;
  ax_status st;

  *done = false;
  if (out[0]->device.kind == AX_CPU || (!impl->join && !(impl->traits & NARROW))) return AX_OK;
  st = ax_backend_of(out[0]->device, &backend);
  if (st != AX_OK || !backend->defers) return st;
  if (impl->join) st = impl->join(q, out, done);
  return st == AX_OK && !*done ? settle(q->args->n_in, q->args->in) : st;
}
