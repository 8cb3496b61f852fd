/* Rules and the gradient of ctc_loss.  The user's row checks lengths on the CPU and makes targets
 * that come in one row a matrix. */
#include "core/ops/rule.h"

ax_status ax_infer_ctc_rows(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *targets = INPUT(1);
  const int64_t n = x->shape[1], t = x->shape[0];
  ax_status st;
  AX_TRY(need_float(q, x));
  AX_TRY(need_within("ctc_loss", "blank", q->a.ctc.blank, 0, x->shape[2] - 1));
  q->contiguous = 15;
  out_like(q, 0, (ax_dtype)x->dtype, 1, &n);
  out_like(q, 1, AX_F64, 3, (int64_t[]){ n, t, 2 * targets->shape[1] + 1 });
out:
  return st;
}

ax_status ax_infer_ctc_backward(ax_infer *q)
{
  q->contiguous = 127;
  out_like(q, 0, (ax_dtype)INPUT(1)->dtype, 3, INPUT(1)->shape);
  return AX_OK;
}

/* ---- the user's row */

static ax_status check_lengths(const ax_infer *q, const ax_tensor *given, const ax_tensor *own, int64_t n,
                               int64_t most, const char *what)
{
  const ax_status st = need_dtype(q, given, AX_I64, what);
  if (st != AX_OK) return st;
  if (own->numel != n || own->ndim > 1)
    return ax_fail(AX_ESHAPE, "%s: %s must have one number for each of %lld sequences, got %s", q->name, what,
                   (long long)n, TEXT(given));
  const int64_t *v = ax_data(own);
  for (int64_t i = 0; i < n; i++)
    if (v[i] < 0 || v[i] > most)
      return ax_fail(AX_ERANGE, "%s: %s must be within 0 and %lld, got %lld for sequence %lld", q->name, what,
                     (long long)most, (long long)v[i], (long long)i + 1);
  return AX_OK;
}

/* A contiguous copy on the CPU, or the tensor itself. */
static ax_status readable(ax_tensor *t, ax_tensor **out)
{
  ax_tensor *here = NULL;
  ax_status st;
  AX_TRY(bring(t, (ax_device){ AX_CPU, 0 }, &here));
  st = run_list(AX_OP_CONTIGUOUS, here, -1, NULL, out);
out:
  ax_tensor_release(here);
  return st;
}

/* Targets of any form as a matrix (n, longest) of `device`. */
static ax_status as_matrix(const ax_infer *q, ax_tensor *given, const ax_tensor *own,
                           const ax_tensor *lengths, int64_t n, ax_tensor **out)
{
  const int64_t *length = ax_data(lengths), *from = ax_data(own);
  ax_tensor *made = NULL;
  int64_t all = 0, most = 0, *to;
  ax_status st;

  if (given->ndim == 2) {
    *out = ax_tensor_retain(given);
    return AX_OK;
  }
  for (int64_t i = 0; i < n; i++) {
    all += length[i];
    if (length[i] > most) most = length[i];
  }
  if (all != own->numel)
    return ax_fail(AX_ESHAPE, "%s: target_lengths add up to %lld, and targets has %lld elements", q->name,
                   (long long)all, (long long)own->numel);
  AX_TRY(ax_tensor_new_on((ax_device){ AX_CPU, 0 }, AX_I64, 2, (int64_t[]){ n, most }, &made));
  to = ax_data(made);
  memset(to, 0, (size_t)(n * most) * sizeof *to);
  for (int64_t i = 0; i < n; i++, to += most) {
    memcpy(to, from, (size_t)length[i] * sizeof *to);
    from += length[i];
  }
  st = bring(made, given->device, out);
out:
  ax_tensor_release(made);
  return st;
}

static ax_status check_targets(const ax_infer *q, const ax_tensor *targets, const ax_tensor *lengths,
                               int64_t classes)
{
  const int64_t *v = ax_data(targets), *length = ax_data(lengths), wide = targets->shape[1];
  for (int64_t i = 0; i < targets->shape[0]; i++)
    for (int64_t s = 0; s < length[i]; s++)
      if (v[i * wide + s] < 0 || v[i * wide + s] >= classes)
        return ax_fail(AX_ERANGE, "%s: target %lld of sequence %lld must be within 0 and %lld, got %lld",
                       q->name, (long long)s + 1, (long long)i + 1, (long long)classes - 1,
                       (long long)v[i * wide + s]);
  return AX_OK;
}

static ax_status reduced(const ax_infer *q, ax_tensor *loss, ax_tensor *lengths, ax_tensor **out)
{
  enum { MEAN, SUM };
  ax_tensor *least = NULL, *each = NULL;
  ax_status st;

  if (q->a.ctc_loss.reduction == SUM) return run_list(AX_OP_SUM, loss, -1, NULL, out);
  if (q->a.ctc_loss.reduction != MEAN) {
    *out = ax_tensor_retain(loss);
    return AX_OK;
  }
  AX_TRY(run_with(AX_OP_CLAMP, lengths, &AX_ATTRS(clamp, .min = 1, .max = NAN), &least));
  AX_TRY(ax_run2(AX_OP_DIV, loss, least, &each));
  st = run_list(AX_OP_MEAN, each, -1, NULL, out);
out:
  ax_tensor_release(least), ax_tensor_release(each);
  return st;
}

ax_status ax_infer_ctc_loss(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *given = INPUT(1), *batch = NULL, *own = NULL, *in_lengths = NULL, *lengths = NULL;
  ax_tensor *matrix = NULL, *here = NULL, *ins = NULL, *outs = NULL, *least = NULL, *wide = NULL;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  int64_t n;
  ax_status st;

  AX_TRY(need_float(q, x));
  if (x->ndim != 2 && x->ndim != 3)
    AX_TRY(ax_fail(AX_ESHAPE, "%s: log_probs must be (t, n, classes) or (t, classes), got %s", q->name,
                   TEXT(x)));
  if (ax_is_half((ax_dtype)x->dtype))
    AX_TRY(run_with(AX_OP_CAST, x, &AX_ATTRS(cast, .dtype = AX_F32), &wide));
  else wide = ax_tensor_retain(x);
  if (x->ndim == 2) AX_TRY(run_unsqueeze(wide, 1, &batch));
  else batch = ax_tensor_retain(wide);
  n = batch->shape[1];
  AX_TRY(need_within(q->name, "blank", q->a.ctc_loss.blank, 0, batch->shape[2] - 1));
  AX_TRY(need_dtype(q, given, AX_I64, "targets"));
  if (given->ndim < 1 || given->ndim > 2 || (given->ndim == 2 && given->shape[0] != n))
    AX_TRY(ax_fail(AX_ESHAPE, "%s: targets must be (%lld, longest) or one row of all, got %s", q->name,
                   (long long)n, TEXT(given)));
  AX_TRY(readable(given, &own));
  AX_TRY(readable(INPUT(2), &in_lengths));
  AX_TRY(readable(INPUT(3), &lengths));
  AX_TRY(check_lengths(q, INPUT(2), in_lengths, n, batch->shape[0], "input_lengths"));
  AX_TRY(check_lengths(q, INPUT(3), lengths, n, given->shape[given->ndim - 1], "target_lengths"));
  AX_TRY(as_matrix(q, given, own, lengths, n, &matrix));
  AX_TRY(readable(matrix, &here));
  AX_TRY(check_targets(q, here, lengths, batch->shape[2]));
  AX_TRY(run_list(AX_OP_RESHAPE, INPUT(2), 1, &n, &ins));
  AX_TRY(run_list(AX_OP_RESHAPE, INPUT(3), 1, &n, &outs));
  AX_TRY(ax_run(AX_OP_CTC_ROWS,
                &(ax_args){ .n_in = 4,
                            .in = (ax_tensor *[]){ batch, matrix, ins, outs },
                            .a = AX_ATTRS(ctc, .blank = q->a.ctc_loss.blank,
                                          .zero_infinity = q->a.ctc_loss.zero_infinity) },
                results));
  AX_TRY(reduced(q, results[0], outs, &least));
  if (x->ndim == 2 && least->ndim == 1) st = run_select(least, 0, 0, &q->result[0]);
  else q->result[0] = ax_tensor_retain(least);
out:
  ax_tensor_release(batch), ax_tensor_release(own), ax_tensor_release(in_lengths);
  ax_tensor_release(lengths), ax_tensor_release(matrix), ax_tensor_release(here);
  ax_tensor_release(ins), ax_tensor_release(outs), ax_tensor_release(least);
  ax_tensor_release(wide), ax_tensor_release(results[0]), ax_tensor_release(results[1]);
  return st;
}

RULE(ctc_rows)
{
  if (!WANTS(0)) return;
  give(c, 0,
       call(c, AX_OP_CTC_BACKWARD, 7, (ax_arg[]){ G, IN(0), IN(1), IN(2), IN(3), OUT(0), OUT(1) },
            &AX_ATTRS(ctc, .blank = A->ctc.blank, .zero_infinity = A->ctc.zero_infinity)));
}
