/* Gradients that rows of several families share, and steps of their rules. */
#include "core/ops/rule.h"

/* For fused backward rows: their results can be used, but not differentiated once more. */
RULE(once)
{
  const char *name = ax_ops[c->node->op].name;
  if (c->st == AX_OK)
    c->st = ax_fail(AX_EGRAD, "%s: its gradient cannot be differentiated again; it comes from a fused kernel",
                    name);
}

/* May a kernel write g-like values into the slot?  In its type, or in float32 while they are
 * halves: then the sums are never rounded. */
static bool fits(const ax_tensor *slot, int ndim, const ax_tensor *g)
{
  return slot->ndim == ndim && g->storage != slot->storage &&
         (slot->dtype == g->dtype || (slot->dtype == AX_F32 && ax_is_half((ax_dtype)g->dtype)));
}

/* d(input k) = a b, straight into the leaf's slot of the flat gradient when there is one: no
 * temporary, no second pass. */
void give_product(ax_grad *c, int k, ax_arg a, ax_arg b)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_grad_slot_of(c, k, &accumulate) : NULL;
  if (slot && fits(slot, 2, a.t) && fits(slot, 2, b.t)) {
    c->st =
        ax_run_into(AX_OP_MM,
                    &(ax_args){
                        .n_in = 2,
                        .in = (ax_tensor *[]){ a.t, b.t },
                        .a = { .n_list = -1, .accumulate = accumulate, .wide = slot->dtype != a.t->dtype } },
                    slot);
    if (c->st == AX_OK) ax_grad_slot_written(c, k);
  } else give(c, k, bin(c, AX_OP_MM, a, b));
}

void give_row_sum(ax_grad *c, int k, ax_arg g)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_grad_slot_of(c, k, &accumulate) : NULL;
  const bool wide = c->st == AX_OK && META(k)->dtype == AX_F32 && ax_is_half((ax_dtype)g.t->dtype);
  if (slot && fits(slot, 1, g.t)) {
    c->st = ax_run_into(AX_OP_SUM,
                        &(ax_args){ .n_in = 1,
                                    .in = &g.t,
                                    .a = { .n_list = 1,
                                           .list = { 0 },
                                           .accumulate = accumulate,
                                           .wide = slot->dtype != g.t->dtype } },
                        slot);
    if (c->st == AX_OK) ax_grad_slot_written(c, k);
  } else give(c, k, call(c, AX_OP_SUM, 1, &g, &(ax_attrs){ .n_list = 1, .list = { 0 }, .wide = wide }));
}

/* Gives input k the sum of g (n, channels, ..) over all dims but the channels.  Sums in the order
 * of memory where channels are innermost. */
void give_channel_sum(ax_grad *c, int k, ax_arg g)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_grad_slot_of(c, k, &accumulate) : NULL;
  int64_t order[AX_MAX_DIMS], dims[AX_MAX_DIMS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
  const int n = g.t ? g.t->ndim : 0;
  for (int d = 0; d < n; d++) order[d] = d == n - 1 ? 1 : d == 0 ? 0 : d + 1;
  const ax_arg rows = n > 2 ? with_list(c, AX_OP_PERMUTE, g, n, order) : g;
  if (slot && fits(slot, 1, g.t) && c->st == AX_OK) {
    ax_args args = { .n_in = 1,
                     .in = &rows.t,
                     .a = { .n_list = n - 1, .accumulate = accumulate, .wide = slot->dtype != g.t->dtype } };
    memcpy(args.a.list, dims, sizeof dims);
    c->st = ax_run_into(AX_OP_SUM, &args, slot);
    if (c->st == AX_OK) ax_grad_slot_written(c, k);
  } else give(c, k, with_list(c, AX_OP_SUM, rows, n - 1, dims));
}

ax_status run_narrow_as(const ax_tensor *x, int dims, ax_tensor *y, ax_tensor **out)
{
  ax_tensor *less = NULL;
  ax_status st = AX_OK;
  if (x->ndim == dims + 1) {
    AX_TRY(run_select(y, 0, 0, &less));
    ax_tensor_release(y);
    y = less;
  }
  if (dims == 1) {
    AX_TRY(run_list(AX_OP_SQUEEZE, y, 1, (int64_t[]){ y->ndim - 2 }, &less));
    ax_tensor_release(y);
    y = less;
  }
  *out = y;
  ax_view_own(y); /* nobody else sees what it is a view of */
  y = NULL;
out:
  ax_tensor_release(y);
  return st;
}

ax_status run_magnitude(ax_tensor *t, double *most)
{
  double high = 0, low = 0;
  ax_status st = AX_OK;
  if (t->numel) {
    AX_TRY(ax_value_of(AX_OP_MAX, t, &high));
    AX_TRY(ax_value_of(AX_OP_MIN, t, &low));
  }
  *most *= fmax(high, -low);
out:
  return st;
}

ax_status run_whole(ax_infer *q, double most)
{
  ax_tensor *in[AX_MAX_INPUTS] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  ax_args args = *q->args;
  ax_status st = AX_OK;

  for (int k = 1; k < args.n_in; k++)
    if (INPUT(k) && INPUT(k)->dtype != INPUT(0)->dtype)
      return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and %s %s", q->name, TYPE(INPUT(0)),
                     TEXT(INPUT(0)), TYPE(INPUT(k)), TEXT(INPUT(k)));
  if (most > 0x1p53)
    return ax_fail(
        AX_ERANGE,
        "%s: results may reach %g, and integers are computed in float64, which is exact up to 2^53", q->name,
        most);
  for (int k = 0; k < args.n_in; k++)
    if (INPUT(k)) AX_TRY(ax_cast(INPUT(k), AX_F64, &in[k]));
  args.in = in;
  AX_TRY(ax_run(q->op, &args, results));
  AX_TRY(ax_cast(results[0], (ax_dtype)INPUT(0)->dtype, &q->result[0]));
  for (int k = 1; k < AX_MAX_OUT; k++) {
    q->result[k] = results[k];
    results[k] = NULL;
  }
out:
  for (int k = 0; k < AX_MAX_INPUTS; k++) ax_tensor_release(in[k]);
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return st;
}
