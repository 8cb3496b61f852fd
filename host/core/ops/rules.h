/* Declares every rule and gradient that ops.def names, once each. */
#ifndef AX_RULES_H
#define AX_RULES_H

#include "core/ops/infer.h"

/* A rule may serve many rows: C allows repeating a declaration.  (ax_grad_NONE gets declared too;
 * nothing defines or calls it.) */
#define OP(ID, name, sig, form, rule, gradient, ...) \
  ax_status ax_infer_##rule(ax_infer *q); \
  void ax_grad_##gradient(ax_grad *c);
#include "core/ops/ops.def"
#undef OP

#endif
