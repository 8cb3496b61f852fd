/* Gradients of QR, of singular values and of eigenvalues; the rules are in factor.c. */
#include "core/ops/matrices.h"

/* The vectors s as rows, and as columns, of the matrices of a batch. */
static ax_arg row_of(ax_grad *c, ax_arg s) { return unsqueeze(c, s, s.t ? s.t->ndim - 1 : 0); }
static ax_arg column_of(ax_grad *c, ax_arg s) { return unsqueeze(c, s, s.t ? s.t->ndim : 0); }
static ax_arg plus(ax_grad *c, ax_arg a, ax_arg b) { return !a.t ? b : !b.t ? a : bin(c, AX_OP_ADD, a, b); }

/* x - x^T */
static ax_arg skew(ax_grad *c, ax_arg x) { return sub(c, x, mt(c, x)); }

/* s_k - s_j in row j and column k, 1 on the diagonal. */
static ax_arg differences(ax_grad *c, ax_arg s)
{
  const ax_arg between = sub(c, row_of(c, s), column_of(c, s));
  return between.t ? bin(c, AX_OP_ADD, between, identity(c, between, COLS(between.t))) : between;
}

/* ---- QR */

/* Q R = A, R square:  dA = [dQ + Q sym(triu(dR R^T - Q^T dQ))] R^-T, where sym(M) = M + M^T with
 * half the diagonal. */
static ax_arg qr_square(ax_grad *c, ax_arg gq, ax_arg gr, ax_arg q, ax_arg r)
{
  ax_arg middle = { 0 };
  if (gr.t) middle = mm(c, gr, mt(c, r));
  if (gq.t) {
    const ax_arg inner = mm(c, mt(c, q), gq);
    middle = middle.t ? sub(c, middle, inner) : un(c, AX_OP_NEG, inner);
  }
  const ax_arg above = triu(c, middle, 0), strict = triu(c, middle, 1);
  const ax_arg sum = plus(c, mm(c, q, bin(c, AX_OP_ADD, above, mt(c, strict))), gq);
  return mt(c, solve_triangular(c, r, mt(c, sum), true, false, false)); /* .. R^-T */
}

RULE(linalg_qr)
{
  const int64_t mode = A->linalg_qr.mode;
  const ax_meta *m = META(0);
  const int64_t rows = m->shape[m->ndim - 2], cols = m->shape[m->ndim - 1];
  const ax_arg q = OUT(0), r = OUT(1), gq = { .t = c->g[0] }, gr = { .t = c->g[1] };

  if (c->st != AX_OK) return;
  if (mode == AX_QR_R || (mode == AX_QR_COMPLETE && rows > cols)) {
    c->st =
        ax_fail(AX_EGRAD,
                mode == AX_QR_R
                    ? "linalg.qr: the gradient needs Q, which mode \"r\" does not compute; use \"reduced\""
                    : "linalg.qr: has no gradient with mode \"complete\" where there are more rows than "
                      "columns; use \"reduced\"");
    return;
  }
  if (rows >= cols) {
    give(c, 0, qr_square(c, gq, gr, q, r));
    return;
  }
  /* A = [X Y], R = [U V]: X = Q U and Y = Q V */
  const int last = m->ndim - 1;
  const ax_arg u = narrow(c, r, last, 0, rows), v = narrow(c, r, last, rows, cols - rows);
  if (!gr.t) {
    const ax_arg dx = qr_square(c, gq, gr, q, u);
    give(c, 0, joined(c, dx, mul(c, v, NUM(0)), -1));
    return;
  }
  const ax_arg gu = narrow(c, gr, last, 0, rows), gv = narrow(c, gr, last, rows, cols - rows);
  const ax_arg y = mm(c, q, v), gq_all = plus(c, gq, mm(c, y, mt(c, gv)));
  give(c, 0, joined(c, qr_square(c, gq_all, gu, q, u), mm(c, q, gv), -1));
}

/* ---- singular values */

/* U S V^T = A, with E_jk = S_k^2 - S_j^2 off the diagonal:
 *     dA = U [(skew(U^T dU) / E) S + S (skew(V^T dV) / E) + diag(dS)] V^T
 * and what of dU, dV is outside the space of U, V:
 *     + (dU - U U^T dU) S^-1 V^T + U S^-1 (dV - V V^T dV)^T */
RULE(linalg_svd)
{
  const ax_meta *m = META(0);
  const int nd = m->ndim;
  const int64_t rows = m->shape[nd - 2], cols = m->shape[nd - 1], k = rows < cols ? rows : cols;
  ax_arg u = OUT(0), s = OUT(1), vh = OUT(2), gu = { .t = c->g[0] }, gs = { .t = c->g[1] },
         gvh = { .t = c->g[2] };

  if (c->st != AX_OK || k == 0) {
    if (c->st == AX_OK) give(c, 0, filled(c, 0, 0));
    return;
  }
  if (!A->linalg_svd.vectors) {
    c->st = ax_fail(AX_EGRAD, "linalg.svd: the gradient needs the singular vectors, which were not computed");
    return;
  }
  u = narrow(c, u, nd - 1, 0, k);
  vh = narrow(c, vh, nd - 2, 0, k);
  if (gu.t) gu = narrow(c, gu, nd - 1, 0, k);
  if (gvh.t) gvh = narrow(c, gvh, nd - 2, 0, k);
  const ax_arg e = gu.t || gvh.t ? differences(c, mul(c, s, s)) : (ax_arg){ 0 };
  ax_arg core = gs.t ? diagonal_matrix(c, gs) : (ax_arg){ 0 }, out;
  if (gu.t) core = plus(c, core, mul(c, over(c, skew(c, mm(c, mt(c, u), gu)), e), row_of(c, s)));
  if (gvh.t) core = plus(c, core, mul(c, column_of(c, s), over(c, skew(c, mm(c, vh, mt(c, gvh))), e)));
  out = mm(c, u, core);
  if (gu.t && rows > k) {
    const ax_arg outside = sub(c, gu, mm(c, u, mm(c, mt(c, u), gu)));
    out = plus(c, out, over(c, outside, row_of(c, s)));
  }
  out = mm(c, out, vh);
  if (gvh.t && cols > k) {
    const ax_arg outside = sub(c, gvh, mm(c, mm(c, gvh, mt(c, vh)), vh));
    out = plus(c, out, mm(c, over(c, u, row_of(c, s)), outside));
  }
  give(c, 0, out);
}

/* ---- symmetric eigenvalues */

/* V L V^T = A, with E_jk = L_k - L_j off the diagonal:  dA = V [(V^T dV) / E + diag(dL)] V^T. */
RULE(linalg_eigh)
{
  const ax_arg l = OUT(0), v = OUT(1), gl = { .t = c->g[0] }, gv = { .t = c->g[1] };
  ax_arg core = { 0 };

  if (c->st != AX_OK) return;
  if (!A->linalg_eigh.vectors) {
    c->st = ax_fail(AX_EGRAD, "linalg.eigh: the gradient needs the eigenvectors, which were not computed");
    return;
  }
  if (gv.t) {
    const ax_arg turned = over(c, mm(c, mt(c, v), gv), differences(c, l)); /* no part of it on the diagonal */
    core = bin(c, AX_OP_ADD, tril(c, turned, -1), triu(c, turned, 1));
  }
  if (gl.t) core = plus(c, core, diagonal_matrix(c, gl));
  give(c, 0, mm(c, mm(c, v, core), mt(c, v)));
}

/* ---- eigenvalues of any matrix */

static ax_arg adjoint(ax_grad *c, ax_arg x) { return un(c, AX_OP_CONJ_COPY, mt(c, x)); }

/* x with a x = b for complex matrices, by the real system of both parts. */
static ax_arg solve_complex(ax_grad *c, ax_arg a, ax_arg b)
{
  const ax_arg re = un(c, AX_OP_REAL, a), im = un(c, AX_OP_IMAG, a);
  const ax_arg top = joined(c, re, un(c, AX_OP_NEG, im), -1), bottom = joined(c, im, re, -1);
  const ax_arg sides = joined(c, un(c, AX_OP_REAL, b), un(c, AX_OP_IMAG, b), -2);
  const ax_arg x = call(c, AX_OP_LINALG_SOLVE, 2, (ax_arg[]){ joined(c, top, bottom, -2), sides },
                        &AX_ATTRS(linalg_solve, .check = 0));
  if (!x.t) return x;
  const int rows = x.t->ndim - 2;
  const int64_t n = x.t->shape[rows] / 2;
  return bin(c, AX_OP_COMPLEX, narrow(c, x, rows, 0, n), narrow(c, x, rows, n, n));
}

/* V L V^-1 = A, with E_jk = conj(L_k - L_j) off the diagonal:
 *     dA = V^-H [(V^H dV - V^H V diag(real(V^H dV))) / E + diag(dL)] V^H
 * The second term is there because the columns of V have norm 1. */
RULE(linalg_eig)
{
  const ax_arg l = OUT(0), v = OUT(1), gl = { .t = c->g[0] }, gv = { .t = c->g[1] };
  ax_arg core = { 0 };

  if (c->st != AX_OK) return;
  if (!A->linalg_eig.vectors) {
    c->st = ax_fail(AX_EGRAD, "linalg.eig: the gradient needs the eigenvectors, which were not computed");
    return;
  }
  const ax_arg vh = adjoint(c, v);
  if (gv.t) {
    const int nd = gv.t->ndim;
    const ax_arg turned = mm(c, vh, gv);
    const ax_arg along = un(c, AX_OP_REAL,
                            call1(c, AX_OP_DIAGONAL, turned,
                                  &AX_ATTRS(diagonal, .offset = 0, .dim1 = nd - 2, .dim2 = nd - 1)));
    const ax_arg rest = sub(c, turned, mm(c, vh, mul(c, v, row_of(c, along))));
    const ax_arg all = over(c, rest, un(c, AX_OP_CONJ_COPY, differences(c, l)));
    core = bin(c, AX_OP_ADD, tril(c, all, -1), triu(c, all, 1));
  }
  if (gl.t) core = plus(c, core, diagonal_matrix(c, gl));
  give(c, 0, solve_complex(c, vh, mm(c, core, vh)));
}
