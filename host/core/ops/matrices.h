/* What the gradients of factorisations (factor.c, spectral.c) are written with: products, triangles
 * and solutions over the last two dims. */
#ifndef AX_MATRICES_H
#define AX_MATRICES_H

#include "core/ops/rule.h"
#include "core/ops/factor.h"

#define ROWS(t) ((t)->shape[(t)->ndim - 2])
#define COLS(t) ((t)->shape[(t)->ndim - 1])

static inline ax_arg mm(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_MATMUL, a, b); }
static inline ax_arg mt(ax_grad *c, ax_arg x)
{
  return x.t ? transpose(c, x, x.t->ndim - 2, x.t->ndim - 1) : x;
}
/* x^H: of real x the transposed one. */
static inline ax_arg conjugated(ax_grad *c, ax_arg x)
{
  return x.t && ax_is_complex((ax_dtype)x.t->dtype) ? un(c, AX_OP_CONJ_COPY, x) : x;
}
static inline ax_arg mh(ax_grad *c, ax_arg x) { return conjugated(c, mt(c, x)); }
static inline ax_arg tril(ax_grad *c, ax_arg x, int64_t diagonal)
{
  return call1(c, AX_OP_TRIL, x, &AX_ATTRS(tril, .diagonal = diagonal));
}
static inline ax_arg triu(ax_grad *c, ax_arg x, int64_t diagonal)
{
  return call1(c, AX_OP_TRIU, x, &AX_ATTRS(triu, .diagonal = diagonal));
}

/* One number for each matrix, as a matrix of one element. */
static inline ax_arg each(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 0;
  return unsqueeze(c, unsqueeze(c, x, n), n + 1);
}

/* The vectors of x's last dim on the diagonals of matrices. */
static inline ax_arg diagonal_matrix(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 1;
  return call1(c, AX_OP_DIAG_EMBED, x, &AX_ATTRS(diag_embed, .offset = 0, .dim1 = n - 1, .dim2 = n));
}

/* A tensor of ones like x, without history: (batch of x, n). */
static inline ax_arg ones(ax_grad *c, ax_arg x, int64_t n)
{
  int64_t shape[AX_MAX_DIMS];
  ax_tensor *t = NULL;
  if (c->st != AX_OK || !x.t) return (ax_arg){ 0 };
  memcpy(shape, x.t->shape, sizeof shape);
  shape[x.t->ndim - 2] = n;
  ax_status st = ax_tensor_new_on(x.t->device, (ax_dtype)x.t->dtype, x.t->ndim - 1, shape, &t);
  if (st == AX_OK) st = ax_fill(t, 1);
  return keep(c, st, t);
}

/* Identity matrices of n rows, one for each matrix of x. */
static inline ax_arg identity(ax_grad *c, ax_arg x, int64_t n) { return diagonal_matrix(c, ones(c, x, n)); }

/* The lower triangle of square x with ones on the diagonal. */
static inline ax_arg unit_lower(ax_grad *c, ax_arg x)
{
  return x.t ? bin(c, AX_OP_ADD, tril(c, x, -1), identity(c, x, ROWS(x.t))) : x;
}

static inline ax_arg solve_triangular(ax_grad *c, ax_arg a, ax_arg b, bool upper, bool transposed, bool unit)
{
  return call(c, AX_OP_LINALG_SOLVE_TRIANGULAR, 2, (ax_arg[]){ a, b },
              &AX_ATTRS(linalg_solve_triangular, .upper = upper, .transposed = transposed,
                        .unitriangular = unit));
}

/* The matrix of the pivots, which have no gradient. */
static inline ax_arg permutation(ax_grad *c, ax_arg pivots, int64_t rows, ax_dtype dtype)
{
  ax_tensor *plain = NULL;
  if (c->st != AX_OK || !pivots.t) return (ax_arg){ 0 };
  const ax_status st = ax_tensor_alias(pivots.t, &plain);
  return call1(c, AX_OP_LINALG_PERMUTATION, keep(c, st, plain),
               &AX_ATTRS(linalg_permutation, .rows = rows, .dtype = dtype));
}

/* x in y's type: a product wants one type. */
static inline ax_arg in_type_of(ax_grad *c, ax_arg x, ax_arg y)
{
  return x.t && y.t && x.t->dtype != y.t->dtype
             ? call1(c, AX_OP_CAST, x, &AX_ATTRS(cast, .dtype = (ax_dtype)y.t->dtype))
             : x;
}

/* a and b one after the other along dim -1 or -2. */
static inline ax_arg joined(ax_grad *c, ax_arg a, ax_arg b, int dim)
{
  return a.t ? call(c, AX_OP_CAT, 2, (ax_arg[]){ a, b }, &AX_ATTRS(cat, .dim = a.t->ndim + dim)) : a;
}

#endif
