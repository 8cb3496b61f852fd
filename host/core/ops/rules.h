/* Declares every rule, gradient and other function that ops.def names, once each. */
#ifndef AX_RULES_H
#define AX_RULES_H

#include "core/ops/infer.h"

/* A rule may serve many rows: C allows repeating a declaration.  (ax_grad_NONE gets declared too;
 * nothing defines or calls it.) */
#define JOIN(fn) ax_status ax_join_##fn(const ax_infer *q, ax_tensor **out, bool *done);
#define COMPOSED(fn) ax_status ax_complex_##fn(ax_infer *q);
#define FLOPS(fn) int64_t ax_flops_##fn(const ax_args *args, ax_tensor *const *out);
#define CALL(fn)
#define OP(ID, name, sig, form, rule, gradient, saves, autocast, traits, summary, ...) \
  ax_status ax_infer_##rule(ax_infer *q); \
  void ax_grad_##gradient(ax_grad *c); \
  __VA_ARGS__
#include "core/ops/ops.def"
#undef OP
#undef JOIN
#undef COMPOSED
#undef FLOPS
#undef CALL

#endif
