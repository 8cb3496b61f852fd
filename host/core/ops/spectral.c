/* Gradients of QR, of singular values and of eigenvalues; the rules are in factor.c. */
#include "core/device/meta.h"
#include "core/ops/matrices.h"

/* The vectors s as rows, and as columns, of the matrices of a batch. */
static ax_arg row_of(ax_grad *c, ax_arg s) { return unsqueeze(c, s, s.t ? s.t->ndim - 1 : 0); }
static ax_arg column_of(ax_grad *c, ax_arg s) { return unsqueeze(c, s, s.t ? s.t->ndim : 0); }
static ax_arg plus(ax_grad *c, ax_arg a, ax_arg b) { return !a.t ? b : !b.t ? a : bin(c, AX_OP_ADD, a, b); }

/* x - x^H */
static ax_arg skew(ax_grad *c, ax_arg x) { return sub(c, x, mh(c, x)); }
static ax_arg without_diagonal(ax_grad *c, ax_arg x)
{
  return bin(c, AX_OP_ADD, tril(c, x, -1), triu(c, x, 1));
}
static bool complex_matrices(ax_arg x) { return x.t && ax_is_complex((ax_dtype)x.t->dtype); }
static ax_arg diagonal_of(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 2;
  return call1(c, AX_OP_DIAGONAL, x, &AX_ATTRS(diagonal, .offset = 0, .dim1 = n - 2, .dim2 = n - 1));
}

/* Complex vectors are free up to their angles.  A loss that depends on these has no gradient:
 * `turn`, its slope in them, must be 0. */
enum { PERCENT = 100 };
static void check_angles(ax_grad *c, const char *name, const char *vectors, ax_arg turn)
{
  ax_tensor *size = NULL, *most = NULL;
  double value = 0;
  if (c->st != AX_OK || !turn.t || turn.t->numel == 0 || turn.t->device.kind == AX_META) return;
  const bool former = ax_grad_set_enabled(false);
  c->st = ax_run1(AX_OP_ABS, turn.t, &size);
  if (c->st == AX_OK) c->st = run_list(AX_OP_AMAX, size, -1, NULL, &most);
  if (c->st == AX_OK) c->st = ax_item(most, &value);
  ax_grad_set_enabled(former);
  ax_tensor_release(size), ax_tensor_release(most);
  if (c->st == AX_OK && value * PERCENT > 1)
    c->st = ax_fail(AX_EGRAD,
                    "linalg.%s: the loss depends on the angles of complex %s, which are not determined, so "
                    "it has no gradient; use what does not depend on them, as absolute values",
                    name, vectors);
}

/* s_k - s_j in row j and column k, 1 on the diagonal. */
static ax_arg differences(ax_grad *c, ax_arg s)
{
  const ax_arg between = sub(c, row_of(c, s), column_of(c, s));
  return between.t ? bin(c, AX_OP_ADD, between, identity(c, between, COLS(between.t))) : between;
}

/* ---- QR */

/* Q R = A, R square:  dA = [dQ + Q sym(triu(dR R^H - Q^H dQ))] R^-H, where sym(M) = M + M^H with
 * half the diagonal, whose imaginary part is 0: LAPACK's R has a real diagonal. */
static ax_arg qr_square(ax_grad *c, ax_arg gq, ax_arg gr, ax_arg q, ax_arg r)
{
  ax_arg middle = { 0 };
  if (gr.t) middle = mm(c, gr, mh(c, r));
  if (gq.t) {
    const ax_arg inner = mm(c, mh(c, q), gq);
    middle = middle.t ? sub(c, middle, inner) : un(c, AX_OP_NEG, inner);
  }
  const ax_arg above = triu(c, middle, 0), strict = triu(c, middle, 1);
  ax_arg sym = bin(c, AX_OP_ADD, above, mh(c, strict));
  if (complex_matrices(sym)) sym = mul(c, bin(c, AX_OP_ADD, sym, mh(c, sym)), NUM(0.5));
  const ax_arg sum = plus(c, mm(c, q, sym), gq);
  return mh(c, solve_triangular(c, r, mh(c, sum), true, false, false)); /* .. R^-H */
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
  const ax_arg y = mm(c, q, v), gq_all = plus(c, gq, mm(c, y, mh(c, gv)));
  give(c, 0, joined(c, qr_square(c, gq_all, gu, q, u), mm(c, q, gv), -1));
}

/* ---- singular values */

/* U S V^H = A, with E_jk = S_k^2 - S_j^2 off the diagonal:
 *     dA = U [(skew(U^H dU) / E) S + S (skew(V^H dV) / E) + diag(dS + i imag(U^H dU) / S)] V^H
 * and what of dU, dV is outside the space of U, V:
 *     + (dU - U U^H dU) S^-1 V^H + U S^-1 (dV - V V^H dV)^H */
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
  ax_arg turn = { 0 };
  for (int side = 0; side < 2; side++) {
    if (!(side ? gvh.t : gu.t)) continue;
    const ax_arg inner = side ? mm(c, vh, mh(c, gvh)) : mm(c, mh(c, u), gu);
    const ax_arg rates = without_diagonal(c, over(c, skew(c, inner), e));
    core = plus(c, core, mul(c, rates, side ? column_of(c, s) : row_of(c, s)));
    if (!complex_matrices(u)) continue;
    const ax_arg angle = un(c, AX_OP_IMAG, diagonal_of(c, inner));
    turn = plus(c, turn, angle);
    if (side == 0)
      core =
          plus(c, core, diagonal_matrix(c, bin(c, AX_OP_COMPLEX, mul(c, angle, NUM(0)), over(c, angle, s))));
  }
  check_angles(c, "svd", "singular vectors", turn);
  out = mm(c, u, in_type_of(c, core, u));
  if (gu.t && rows > k) {
    const ax_arg outside = sub(c, gu, mm(c, u, mm(c, mh(c, u), gu)));
    out = plus(c, out, over(c, outside, row_of(c, s)));
  }
  out = mm(c, out, vh);
  if (gvh.t && cols > k) {
    const ax_arg outside = sub(c, gvh, mm(c, mm(c, gvh, mh(c, vh)), vh));
    out = plus(c, out, mm(c, over(c, u, row_of(c, s)), outside));
  }
  give(c, 0, out);
}

/* ---- symmetric eigenvalues */

/* V L V^H = A, with E_jk = L_k - L_j off the diagonal:  dA = V [(V^H dV) / E + diag(dL)] V^H, of
 * which the Hermitian part is taken, as in PyTorch: a step along it stays among such matrices. */
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
    const ax_arg inner = mm(c, mh(c, v), gv);
    if (complex_matrices(v))
      check_angles(c, "eigh", "eigenvectors", un(c, AX_OP_IMAG, diagonal_of(c, inner)));
    const ax_arg rates = without_diagonal(c, over(c, inner, differences(c, l)));
    core = mul(c, bin(c, AX_OP_ADD, rates, mh(c, rates)), NUM(0.5));
  }
  if (gl.t) core = plus(c, core, diagonal_matrix(c, gl));
  give(c, 0, mm(c, mm(c, v, in_type_of(c, core, v)), mh(c, v)));
}

/* ---- eigenvalues of any matrix */

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
  const ax_arg vh = mh(c, v);
  if (gv.t) {
    const ax_arg turned = mm(c, vh, gv), diagonal = diagonal_of(c, turned),
                 along = un(c, AX_OP_REAL, diagonal);
    check_angles(c, "eig", "eigenvectors", un(c, AX_OP_IMAG, diagonal));
    const ax_arg rest = sub(c, turned, mm(c, vh, mul(c, v, row_of(c, along))));
    const ax_arg all = over(c, rest, un(c, AX_OP_CONJ_COPY, differences(c, l)));
    core = without_diagonal(c, all);
  }
  if (gl.t) core = plus(c, core, diagonal_matrix(c, gl));
  give(c, 0,
       call(c, AX_OP_LINALG_SOLVE, 2, (ax_arg[]){ vh, mm(c, core, vh) },
            &AX_ATTRS(linalg_solve, .check = 0)));
}
