/* Gradients that rows of several families share. */
#include "core/ops/rule.h"

/* For fused backward rows: their results can be used, but not differentiated once more. */
RULE(once)
{
  const char *name = ax_ops[c->node->op].name;
  if (c->st == AX_OK)
    c->st = ax_fail(AX_EGRAD, "%s: its gradient cannot be differentiated again; it comes from a fused kernel", name);
}

/* d(input k) = a b, straight into the leaf's slot of the flat gradient when there is one: no temporary, no second pass. */
void give_product(ax_grad *c, int k, ax_arg a, ax_arg b)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_sink(c, k, &accumulate) : NULL;
  if (slot && slot->dtype == a.t->dtype && slot->ndim == 2 && a.t->storage != slot->storage && b.t->storage != slot->storage) {
    c->st = ax_run_into(AX_OP_MM, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ a.t, b.t }, .a = { .n_list = -1, .accumulate = accumulate } }, slot);
    if (c->st == AX_OK) ax_sunk(c, k);
  } else give(c, k, bin(c, AX_OP_MM, a, b));
}

void give_row_sum(ax_grad *c, int k, ax_arg g)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_sink(c, k, &accumulate) : NULL;
  if (slot && slot->dtype == g.t->dtype && slot->ndim == 1 && g.t->storage != slot->storage) {
    c->st = ax_run_into(AX_OP_SUM, &(ax_args){ .n_in = 1, .in = &g.t, .a = { .n_list = 1, .list = { 0 }, .accumulate = accumulate } }, slot);
    if (c->st == AX_OK) ax_sunk(c, k);
  } else give(c, k, with_list(c, AX_OP_SUM, g, 1, (int64_t[]){ 0 }, 0));
}
