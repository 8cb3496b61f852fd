/* Rules of factorisations, and the gradients of those that solve: Cholesky, LU, inverse,
 * determinant.
 *
 * Gradients are built of rows, so that they can be differentiated again.  The formulas are written
 * for one matrix; products and solutions run over the batch.  Rows whose results are differentiable
 * as complex functions (CONJUGATES) have formulas with plain transposition; in the others ^H,
 * mh(), is that and conjugation. */
#include "core/ops/matrices.h"

#define X INPUT(0)

static ax_status need_matrix(const ax_infer *q, const ax_tensor *t, const char *what)
{
  if (t->dtype != AX_F32 && t->dtype != AX_F64 && !ax_is_complex((ax_dtype)t->dtype))
    return ax_fail(AX_EDTYPE, "%s: %s must be float32, float64 or complex, got %s %s", ax_op_shown(q->op),
                   what, TYPE(t), TEXT(t));
  if (t->ndim < 2)
    return ax_fail(AX_ESHAPE, "%s: %s must have at least two dims, got %s", ax_op_shown(q->op), what,
                   TEXT(t));
  for (int d = t->ndim - 2; d < t->ndim; d++)
    if (t->shape[d] > INT32_MAX)
      return ax_fail(AX_ESHAPE, "%s: %s is %s; LAPACK takes at most %d rows and columns", ax_op_shown(q->op),
                     what, TEXT(t), INT32_MAX);
  return AX_OK;
}

static ax_status need_square(const ax_infer *q, const ax_tensor *t, const char *what)
{
  const ax_status st = need_matrix(q, t, what);
  if (st != AX_OK || ROWS(t) == COLS(t)) return st;
  return ax_fail(AX_ESHAPE, "%s: %s must be square matrices, got %s", ax_op_shown(q->op), what, TEXT(t));
}

/* b of a's type and batch, with as many rows as a has columns (solutions) or rows. */
static ax_status need_side(const ax_infer *q, const ax_tensor *a, const ax_tensor *b)
{
  const ax_status st = need_matrix(q, b, "b");
  if (st != AX_OK) return st;
  if (a->dtype != b->dtype)
    return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and %s %s", ax_op_shown(q->op), TYPE(a),
                   TEXT(a), TYPE(b), TEXT(b));
  if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)(a->ndim - 1)) != 0)
    return ax_fail(AX_ESHAPE, "%s: the batch and the rows of both must agree, got %s and %s",
                   ax_op_shown(q->op), TEXT(a), TEXT(b));
  return AX_OK;
}

/* Result k: the batch of x with one matrix (rows, cols), one vector (cols is -1) or one number
 * (rows is -1, too) for each of its matrices. */
static void out_each(ax_infer *q, int k, ax_dtype dtype, int64_t rows, int64_t cols)
{
  int64_t shape[AX_MAX_DIMS];
  int n = X->ndim - 2;
  memcpy(shape, X->shape, sizeof shape);
  if (rows >= 0) shape[n++] = rows;
  if (cols >= 0) shape[n++] = cols;
  q->contiguous = ~0u;
  out_like(q, k, dtype, n, shape);
}
#define FLOATS ((ax_dtype)X->dtype)
#define REALS (ax_is_complex(FLOATS) ? ax_part_dtype(FLOATS) : FLOATS)

ax_status ax_infer_linalg_cholesky(ax_infer *q)
{
  const ax_status st = need_square(q, X, "x");
  if (st != AX_OK) return st;
  out_each(q, 0, FLOATS, ROWS(X), COLS(X));
  out_each(q, 1, AX_I32, -1, -1);
  return AX_OK;
}

ax_status ax_infer_linalg_lu(ax_infer *q)
{
  const ax_status st = need_matrix(q, X, "x");
  if (st != AX_OK) return st;
  out_each(q, 0, FLOATS, ROWS(X), COLS(X));
  out_each(q, 1, AX_I32, ROWS(X) < COLS(X) ? ROWS(X) : COLS(X), -1);
  out_each(q, 2, AX_I32, -1, -1);
  return AX_OK;
}

ax_status ax_infer_linalg_permutation(ax_infer *q)
{
  const int64_t rows = q->a.linalg_permutation.rows;
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_dtype(q, X, AX_I32, "pivots");
  if (st != AX_OK) return st;
  if (X->ndim < 1 || X->ndim == AX_MAX_DIMS || rows < X->shape[X->ndim - 1] || rows > INT32_MAX)
    return ax_fail(AX_ESHAPE, "%s: pivots %s do not fit %lld rows", ax_op_shown(q->op), TEXT(X),
                   (long long)rows);
  memcpy(shape, X->shape, sizeof shape);
  shape[X->ndim - 1] = shape[X->ndim] = rows;
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)q->a.linalg_permutation.dtype, X->ndim + 1, shape);
  return AX_OK;
}

ax_status ax_infer_linalg_solve(ax_infer *q)
{
  ax_status st;
  AX_TRY(need_square(q, X, "a"));
  AX_TRY(need_side(q, X, INPUT(1)));
  out_each(q, 0, FLOATS, ROWS(X), COLS(INPUT(1)));
  out_each(q, 1, FLOATS, ROWS(X), COLS(X));
  out_each(q, 2, AX_I32, ROWS(X), -1);
out:
  return st;
}

ax_status ax_infer_linalg_lu_solve(ax_infer *q)
{
  const ax_tensor *pivots = INPUT(1);
  ax_status st;
  AX_TRY(need_square(q, X, "LU"));
  AX_TRY(need_side(q, X, INPUT(2)));
  AX_TRY(need_dtype(q, pivots, AX_I32, "pivots"));
  if (!ax_same_shape(pivots, X->ndim - 1, X->shape))
    return ax_fail(AX_ESHAPE, "%s: pivots must have the shape of LU without its last dim, got %s and %s",
                   ax_op_shown(q->op), TEXT(pivots), TEXT(X));
  out_each(q, 0, FLOATS, ROWS(X), COLS(INPUT(2)));
out:
  return st;
}

ax_status ax_infer_linalg_solve_triangular(ax_infer *q)
{
  ax_status st;
  AX_TRY(need_square(q, X, "a"));
  AX_TRY(need_side(q, X, INPUT(1)));
  out_each(q, 0, FLOATS, ROWS(X), COLS(INPUT(1)));
out:
  return st;
}

ax_status ax_infer_linalg_inv(ax_infer *q) { return ax_infer_linalg_cholesky(q); }

ax_status ax_infer_linalg_cofactor(ax_infer *q)
{
  const ax_status st = need_square(q, X, "x");
  if (st == AX_OK) out_each(q, 0, FLOATS, ROWS(X), COLS(X));
  return st;
}

ax_status ax_infer_linalg_det(ax_infer *q)
{
  const ax_status st = need_square(q, X, "x");
  if (st == AX_OK) out_each(q, 0, FLOATS, -1, -1);
  return st;
}

ax_status ax_infer_linalg_slogdet(ax_infer *q)
{
  const ax_status st = ax_infer_linalg_det(q);
  if (st == AX_OK) out_each(q, 1, REALS, -1, -1);
  return st;
}

ax_status ax_infer_linalg_qr(ax_infer *q)
{
  const int64_t mode = q->a.linalg_qr.mode;
  const ax_status st = need_matrix(q, X, "x");
  if (st != AX_OK) return st;
  const int64_t m = ROWS(X), n = COLS(X), least = m < n ? m : n, k = mode == AX_QR_COMPLETE ? m : least;
  out_each(q, 0, FLOATS, mode == AX_QR_R ? 0 : m, mode == AX_QR_R ? 0 : k);
  out_each(q, 1, FLOATS, k, n);
  return AX_OK;
}

ax_status ax_infer_linalg_svd(ax_infer *q)
{
  const bool vectors = q->a.linalg_svd.vectors, full = q->a.linalg_svd.full_matrices;
  const ax_status st = need_matrix(q, X, "x");
  if (st != AX_OK) return st;
  const int64_t m = ROWS(X), n = COLS(X), k = m < n ? m : n;
  out_each(q, 0, FLOATS, vectors ? m : 0, vectors ? full ? m : k : 0);
  out_each(q, 1, REALS, k, -1);
  out_each(q, 2, FLOATS, vectors ? full ? n : k : 0, vectors ? n : 0);
  return AX_OK;
}

ax_status ax_infer_linalg_eigh(ax_infer *q)
{
  const int64_t n = q->a.linalg_eigh.vectors ? ROWS(X) : 0;
  const ax_status st = need_square(q, X, "x");
  if (st != AX_OK) return st;
  out_each(q, 0, REALS, ROWS(X), -1);
  out_each(q, 1, FLOATS, n, n);
  return AX_OK;
}

ax_status ax_infer_linalg_eig(ax_infer *q)
{
  const ax_dtype d = ax_is_complex((ax_dtype)X->dtype) ? (ax_dtype)X->dtype
                     : X->dtype == AX_F64              ? AX_C128
                                                       : AX_C64;
  const ax_status st = need_square(q, X, "x");
  if (st != AX_OK) return st;
  const int64_t n = q->a.linalg_eig.vectors ? ROWS(X) : 0;
  out_each(q, 0, d, ROWS(X), -1);
  out_each(q, 1, d, n, n);
  return AX_OK;
}

ax_status ax_infer_linalg_geqrf(ax_infer *q)
{
  const ax_status st = need_matrix(q, X, "x");
  if (st != AX_OK) return st;
  out_each(q, 0, FLOATS, ROWS(X), COLS(X));
  out_each(q, 1, FLOATS, ROWS(X) < COLS(X) ? ROWS(X) : COLS(X), -1);
  return AX_OK;
}

ax_status ax_infer_linalg_ldl(ax_infer *q)
{
  const ax_status st = need_square(q, X, "x");
  if (st != AX_OK) return st;
  out_each(q, 0, FLOATS, ROWS(X), COLS(X));
  out_each(q, 1, AX_I32, ROWS(X), -1);
  out_each(q, 2, AX_I32, -1, -1);
  return AX_OK;
}

ax_status ax_infer_linalg_ldl_solve(ax_infer *q) { return ax_infer_linalg_lu_solve(q); }

ax_status ax_infer_linalg_lstsq(ax_infer *q)
{
  const int64_t driver = q->a.linalg_lstsq.driver;
  const bool values = driver == AX_LSTSQ_GELSD || driver == AX_LSTSQ_GELSS;
  ax_status st;
  AX_TRY(need_matrix(q, X, "a"));
  AX_TRY(need_side(q, X, INPUT(1)));
  out_each(q, 0, FLOATS, COLS(X), COLS(INPUT(1)));
  out_each(q, 1, AX_I64, -1, -1);
  out_each(q, 2, REALS, values ? ROWS(X) < COLS(X) ? ROWS(X) : COLS(X) : 0, -1);
out:
  return st;
}

ax_status ax_infer_linalg_pinv(ax_infer *q)
{
  const ax_tensor *p = INPUT(1);
  const ax_status st = need_matrix(q, X, "x");
  if (st != AX_OK) return st;
  if (p->dtype != X->dtype || p->ndim != X->ndim || ROWS(p) != COLS(X) || COLS(p) != ROWS(X))
    return ax_fail(AX_ESHAPE, "%s: the inverse of %s %s cannot be %s %s", ax_op_shown(q->op), TYPE(X),
                   TEXT(X), TYPE(p), TEXT(p));
  return ax_run1(AX_OP_CLONE, INPUT(1), &q->result[0]);
}

/* ---- gradients */

/* With L L^H = A:  dA = L^-H phi(L^H dL) L^-1, made Hermitian.  phi takes the lower triangle and
 * half the diagonal. */
RULE(linalg_cholesky)
{
  const bool upper = A->linalg_cholesky.upper;
  const ax_arg factor = OUT(0);
  if (!c->g[0]) return;
  const ax_arg l = upper ? mh(c, factor) : factor, gl = upper ? mh(c, G) : G;
  const ax_arg product = mm(c, mh(c, l), gl), turned = upper ? factor : conjugated(c, factor);
  const bool hermitian = ax_is_complex(META(0)->dtype);
  const ax_arg strict = tril(c, product, -1);
  const ax_arg phi = bin(c, AX_OP_ADD, tril(c, product, 0), hermitian ? mh(c, strict) : strict);
  const ax_arg half = solve_triangular(c, turned, phi, upper, !upper, false); /* L^-H phi */
  const ax_arg both = mh(c, solve_triangular(c, turned, mh(c, half), upper, !upper, false));
  /* phi is Hermitian but for the diagonal's imaginary part, which PyTorch's gradient has, too */
  if (hermitian) give(c, 0, mul(c, both, NUM(0.5)));
  else give(c, 0, mul(c, bin(c, AX_OP_ADD, both, mh(c, both)), NUM(0.25)));
}

static ax_arg part(ax_grad *c, ax_arg x, int dim, int64_t from, int64_t to)
{
  return narrow(c, x, x.t ? x.t->ndim + dim : 0, from, to - from);
}

/* With P L U = A and k = min(m, n): L is (m, k), U is (k, n).  Below the square part, L2 = A2 U^-1;
 * right of it, U2 = L^-1 A2. */
RULE(linalg_lu)
{
  const ax_meta *m = META(0);
  const int64_t rows = m->shape[m->ndim - 2], cols = m->shape[m->ndim - 1], k = rows < cols ? rows : cols;
  if (!c->g[0]) return;
  const ax_arg lu = OUT(0), square = part(c, part(c, lu, -2, 0, k), -1, 0, k);
  const ax_arg g = G, g1 = part(c, part(c, g, -2, 0, k), -1, 0, k);
  const ax_arg l1 = unit_lower(c, square), u1 = triu(c, square, 0);
  ax_arg lower = mm(c, mt(c, l1), tril(c, g1, -1)), upper = mm(c, triu(c, g1, 0), mt(c, u1));
  ax_arg rest = { 0 };
  if (rows > k) { /* dA2 = dL2 U^-T */
    const ax_arg g2 = part(c, g, -2, k, rows), l2 = part(c, lu, -2, k, rows);
    rest = mt(c, solve_triangular(c, square, mt(c, g2), true, false, false));
    upper = sub(c, upper, mm(c, mt(c, l2), g2));
  } else if (cols > k) { /* dA2 = L^-T dU2 */
    const ax_arg g2 = part(c, g, -1, k, cols), u2 = part(c, lu, -1, k, cols);
    rest = solve_triangular(c, square, g2, false, true, true);
    lower = sub(c, lower, mm(c, g2, mt(c, u2)));
  }
  const ax_arg middle = bin(c, AX_OP_ADD, tril(c, lower, -1), triu(c, upper, 0));
  const ax_arg left = solve_triangular(c, square, middle, false, true, true);     /* L^-T middle */
  ax_arg d = mt(c, solve_triangular(c, square, mt(c, left), true, false, false)); /* .. U^-T */
  if (rest.t) d = joined(c, d, rest, rows > k ? -2 : -1);
  give(c, 0, mm(c, permutation(c, OUT(1), rows, m->dtype), d));
}

/* dB = A^-T dX, dA = -dB X^T.  The factorisation serves again unless the gradient itself is to be
 * differentiated. */
RULE(linalg_solve)
{
  const ax_arg g = G;
  const ax_arg db = ax_grad_enabled() ? call(c, AX_OP_LINALG_SOLVE, 2, (ax_arg[]){ mt(c, IN(0)), g },
                                             &AX_ATTRS(linalg_solve, .check = 0))
                                      : call(c, AX_OP_LINALG_LU_SOLVE, 3, (ax_arg[]){ OUT(1), OUT(2), g },
                                             &AX_ATTRS(linalg_lu_solve, .transposed = 1));
  give(c, 1, db);
  if (WANTS(0)) give(c, 0, un(c, AX_OP_NEG, mm(c, db, mt(c, OUT(0)))));
}

RULE(linalg_lu_solve)
{
  if (WANTS(0)) { /* tensor.linalg solves with the triangles one by one where LU has a gradient */
    if (c->st == AX_OK)
      c->st = ax_fail(AX_EGRAD, "linalg.lu_solve: the gradient of LU comes from its triangles");
    return;
  }
  give(c, 2,
       call(c, AX_OP_LINALG_LU_SOLVE, 3, (ax_arg[]){ IN(0), IN(1), G },
            &AX_ATTRS(linalg_lu_solve, .transposed = !A->linalg_lu_solve.transposed)));
}

RULE(linalg_solve_triangular)
{
  const bool upper = A->linalg_solve_triangular.upper, transposed = A->linalg_solve_triangular.transposed,
             unit = A->linalg_solve_triangular.unitriangular;
  const ax_arg db = solve_triangular(c, IN(0), G, upper, !transposed, unit);
  give(c, 1, db);
  if (!WANTS(0)) return;
  const ax_arg x = OUT(0), whole = transposed ? mm(c, x, mt(c, db)) : mm(c, db, mt(c, x));
  give(c, 0, un(c, AX_OP_NEG, upper ? triu(c, whole, unit) : tril(c, whole, unit ? -1 : 0)));
}

/* With Y = A^-1:  dA = -Y^T dY Y^T. */
RULE(linalg_inv)
{
  if (!c->g[0]) return;
  const ax_arg yt = mt(c, OUT(0));
  give(c, 0, un(c, AX_OP_NEG, mm(c, mm(c, yt, G), yt)));
}

static ax_arg inverse_transposed(ax_grad *c, ax_arg x)
{
  return mt(c, call(c, AX_OP_LINALG_INV, 1, &x, &AX_ATTRS(linalg_inv, .check = 0)));
}

/* dA = (dl + i imag(ds conj(s))) A^-H for the sign s and the logarithm l; a real sign is flat. */
RULE(linalg_slogdet)
{
  const bool turns = ax_is_complex(META(0)->dtype) && c->g[0];
  ax_arg g = { .t = c->g[1] };
  if (turns) {
    const ax_arg turn = un(c, AX_OP_IMAG, mul(c, G, conjugated(c, OUT(0))));
    g = bin(c, AX_OP_COMPLEX, g.t ? g : mul(c, turn, NUM(0)), turn);
  }
  if (g.t) give(c, 0, mul(c, each(c, g), conjugated(c, inverse_transposed(c, IN(0)))));
}

RULE(linalg_det) { give(c, 0, mul(c, each(c, G), un(c, AX_OP_LINALG_COFACTOR, IN(0)))); }

/* C = det(A) Y^T with Y = A^-1:  dA = sum(dC Y^T) C - C dC^T Y^T. */
RULE(linalg_cofactor)
{
  const ax_arg whole = OUT(0), yt = inverse_transposed(c, IN(0)), g = G;
  const int n = g.t ? g.t->ndim : 2;
  const ax_arg inner = reduce_over(c, AX_OP_SUM, mul(c, g, yt), 2, (int64_t[]){ n - 2, n - 1 }, true);
  give(c, 0, sub(c, mul(c, inner, whole), mm(c, mm(c, whole, mt(c, g)), yt)));
}

/* With P = A^+ and dP, its gradient (formulas of Golub and Pereyra); the rank does not change. */
static ax_arg pinv_gradient(ax_grad *c, ax_arg g, ax_arg p, ax_arg a)
{
  const ax_arg ph = mh(c, p), gh = mh(c, g);
  if (!a.t || !p.t) return a;
  if (ROWS(a.t) <= COLS(a.t)) {
    const ax_arg k = mm(c, gh, p), kph = mm(c, k, ph);
    const ax_arg first = sub(c, kph, mh(c, mm(c, p, k)));
    const ax_arg second = sub(c, first, mm(c, mm(c, a, p), kph));
    return bin(c, AX_OP_ADD, second, mm(c, mm(c, ph, p), sub(c, gh, mm(c, k, a))));
  }
  const ax_arg k = mm(c, p, gh), phk = mm(c, ph, k);
  const ax_arg first = sub(c, mm(c, mm(c, sub(c, gh, mm(c, a, k)), p), ph), mh(c, mm(c, k, p)));
  return bin(c, AX_OP_ADD, first, sub(c, phk, mm(c, mm(c, phk, p), a)));
}

RULE(linalg_pinv) { give(c, 0, pinv_gradient(c, G, OUT(0), IN(0))); }

/* X = A^+ B, A of full rank. */
RULE(linalg_lstsq)
{
  const ax_arg a = IN(0), b = IN(1);
  if (!c->g[0] || !a.t || !b.t) return;
  const ax_arg p = call(c, AX_OP_LINALG_LSTSQ, 2, (ax_arg[]){ a, identity(c, a, ROWS(a.t)) },
                        &AX_ATTRS(linalg_lstsq, .driver = AX_LSTSQ_GELSD, .rcond = A->linalg_lstsq.rcond));
  if (WANTS(1)) give(c, 1, mm(c, mh(c, p), G));
  if (WANTS(0)) give(c, 0, pinv_gradient(c, mm(c, G, mh(c, b)), p, a));
}
