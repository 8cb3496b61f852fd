/* Cholesky, LU, inverse, determinant, solutions of linear systems: see core/ops/factor.def.  The
 * work is done by dense.h, row by row; LAPACK serves complex matrices (dense_complex.h) and the
 * cofactors of singular ones. */
#include "dense_complex.h"
#include "lapack.h"

#include <complex.h>
#include <math.h>

#define SHOWN(call) ax_lapack_shown((call)->op, (char[40]){ 0 }, 40)
#define PLACE(x, i) ax_lapack_place(x, i, (char[224]){ 0 }, 224)

typedef struct job {
  const ax_lapack *lapack;
  const ax_dense *dense;
  ax_dtype dtype;
  bool is_complex;
  size_t item, room; /* bytes of an element, of dense.h's room */
  int m, n, k;       /* rows and columns of a; columns of b */
  bool flag, transposed, unit;
  const char *a, *b;
  const int *pivots_in;
  char *x, *lu;
  int *pivots;
} job;

static size_t dense_room(const job *j, int64_t rows, int64_t cols)
{
  return j->is_complex ? ax_dense_complex_room(j->dtype, rows, cols) : ax_dense_room(j->dtype, rows, cols);
}

static ax_status begin(const ax_call *call, job *j)
{
  const ax_tensor *a = call->in[0];
  const ax_dtype d = (ax_dtype)a->dtype;
  *j = (job){ .dense = ax_is_complex(d) ? ax_dense_complex_of(d) : ax_dense_of(d),
              .dtype = d,
              .is_complex = ax_is_complex(d),
              .item = ax_itemsize(a),
              .m = (int)AX_ROWS(a),
              .n = (int)AX_COLS(a),
              .a = ax_data(a),
              .x = ax_data(call->out[0]) };
  j->room = ax_lines(dense_room(j, j->m, j->n));
  return j->is_complex ? ax_dense_complex_open(call->op, d) : AX_OK;
}

static int64_t cube(const job *j) { return (int64_t)j->m * j->n * (j->m < j->n ? j->m : j->n); }
static size_t matrix(const job *j) { return j->item * (size_t)j->m * (size_t)j->n; }
static int least(int n) { return n > 1 ? n : 1; } /* a leading dimension is at least 1 */

/* ---- Cholesky */

static int factor_positive(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n;
  const char *const a = j->a + (size_t)i * matrix(j);
  char *const x = j->x + (size_t)i * matrix(j), *const own = j->flag ? scratch + j->room : x;

  if (j->flag) ax_lapack_transpose(j->item, n, n, a, own);
  else memcpy(own, a, matrix(j));
  const int info = j->dense->cholesky(n, own, n, scratch);
  for (int row = 0; row < n; row++) /* the other triangle */
    memset(own + ((size_t)row * (size_t)n + (size_t)row + 1) * j->item, 0, (size_t)(n - row - 1) * j->item);
  if (j->flag) ax_lapack_transpose(j->item, n, n, own, x);
  return info;
}

ax_status ax_cpu__linalg_cholesky(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t count = ax_matrices(x);
  int *const info = ax_data(call->out[1]);
  job j;

  ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  j.flag = call->a->linalg_cholesky.upper;
  st = ax_dense_each(count, cube(&j) * count / 3, j.room + (j.flag ? matrix(&j) : 0), factor_positive, &j,
                     info);
  const int64_t bad = st == AX_OK && call->a->linalg_cholesky.check ? ax_lapack_failed(info, count) : -1;
  if (bad < 0) return st;
  return ax_fail(AX_EINVAL, "%s: %s is not positive-definite: its leading minor of order %d is not positive",
                 SHOWN(call), PLACE(x, bad), info[bad]);
}

/* ---- LU */

/* Factorises `a` in place.  A NaN would lead the search for pivots astray: all of the result is NaN
 * then. */
static int factor_lu(const job *j, int m, int n, char *a, int *pivots, char *room)
{
  const int k = m < n ? m : n;
  if (!ax_lapack_has_nan(j->dtype, a, (int64_t)m * n)) return j->dense->lu(m, n, a, n, pivots, room);
  ax_lapack_fill(j->dtype, a, (int64_t)m * n, NAN);
  for (int i = 0; i < k; i++) pivots[i] = i + 1;
  return 0;
}

static int factor_rows(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int k = j->m < j->n ? j->m : j->n;
  char *const x = j->x + (size_t)i * matrix(j);
  memcpy(x, j->a + (size_t)i * matrix(j), matrix(j));
  return factor_lu(j, j->m, j->n, x, j->pivots + i * k, scratch);
}

ax_status ax_cpu__linalg_lu(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  const ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  j.pivots = ax_data(call->out[1]);
  return ax_dense_each(count, cube(&j) * count, j.room, factor_rows, &j, ax_data(call->out[2]));
}

/* Row i was swapped with row pivots[i] - 1, one after the other. */
ax_status ax_cpu__linalg_permutation(const ax_call *call)
{
  const ax_tensor *pivots = call->in[0], *p = call->out[0];
  const int64_t rows = AX_ROWS(p), k = AX_COLS(pivots), count = ax_matrices(p);
  const size_t bytes = sizeof(int64_t) * (size_t)rows + 1;
  void *room = NULL;
  const ax_status st = ax_alloc(bytes, &room);
  int64_t *const at = room;
  char text[40];

  if (st != AX_OK) return st;
  memset(ax_data(p), 0, (size_t)p->numel * ax_itemsize(p));
  for (int64_t i = 0; i < count; i++) {
    const int *v = (const int *)ax_data(pivots) + i * k;
    for (int64_t r = 0; r < rows; r++) at[r] = r;
    for (int64_t r = 0; r < k; r++) {
      if (v[r] < 1 || v[r] > rows) {
        ax_free(room, bytes);
        return ax_fail(AX_ERANGE, "%s: pivots count rows from 1 to %lld, got %d",
                       ax_lapack_shown(AX_OP_LINALG_LU, text, sizeof text), (long long)rows, v[r]);
      }
      const int64_t other = at[v[r] - 1];
      at[v[r] - 1] = at[r];
      at[r] = other;
    }
    for (int64_t r = 0; r < rows; r++)
      ax_store_double((ax_dtype)p->dtype, ax_data(p), (i * rows + at[r]) * rows + r, 1);
  }
  ax_free(room, bytes);
  return AX_OK;
}

static ax_status singular(const ax_call *call, const int *info, int64_t count)
{
  const int64_t bad = ax_lapack_failed(info, count);
  if (bad < 0) return AX_OK;
  return ax_fail(AX_EINVAL, "%s: %s is singular: diagonal element %d of its factor U is zero", SHOWN(call),
                 PLACE(call->in[0], bad), info[bad]);
}

/* ---- solutions */

static void swap_rows(const job *j, char *x, const int *pivots, bool backwards)
{
  const size_t bytes = j->item * (size_t)j->k;
  for (int t = 0; t < j->n; t++) {
    const int r = backwards ? j->n - 1 - t : t;
    char *a = x + (size_t)r * bytes, *b = x + (size_t)(pivots[r] - 1) * bytes, kept[256];
    for (size_t left = a == b ? 0 : bytes, n; left; left -= n, a += n, b += n) {
      n = left < sizeof kept ? left : sizeof kept;
      memcpy(kept, a, n);
      memcpy(a, b, n);
      memcpy(b, kept, n);
    }
  }
}

/* x (n, k), b at first: a = P L U, so a x = b is L U x = P^T b, and a^T x = b is U^T L^T P^T x =
 * b. */
static void solve_with(const job *j, const char *lu, const int *pivots, bool transposed, char *x, char *room)
{
  const int n = j->n, k = j->k;
  if (n == 0 || k == 0) return;
  if (!transposed) swap_rows(j, x, pivots, false);
  j->dense->triangular(n, k, lu, n, transposed, transposed, !transposed, x, k, room);
  j->dense->triangular(n, k, lu, n, !transposed, transposed, transposed, x, k, room);
  if (transposed) swap_rows(j, x, pivots, true);
}

static size_t side(const job *j) { return j->item * (size_t)j->n * (size_t)j->k; }
static size_t room_to_solve(const job *j)
{
  const size_t room = dense_room(j, j->n, j->k);
  return j->room > room ? j->room : room;
}

static int solve_one(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const lu = j->lu + (size_t)i * matrix(j), *const x = j->x + (size_t)i * side(j);
  int *const pivots = j->pivots + i * j->n;
  memcpy(lu, j->a + (size_t)i * matrix(j), matrix(j));
  memcpy(x, j->b + (size_t)i * side(j), side(j));
  const int info = factor_lu(j, j->n, j->n, lu, pivots, scratch);
  solve_with(j, lu, pivots, false, x, scratch);
  return info;
}

ax_status ax_cpu__linalg_solve(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1];
  const int64_t count = ax_matrices(a);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *info = NULL;
  job j;
  ax_status st;

  if ((st = begin(call, &j)) != AX_OK || (st = ax_alloc(bytes, &info)) != AX_OK) return st;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.lu = ax_data(call->out[1]);
  j.pivots = ax_data(call->out[2]);
  st = ax_dense_each(count, (cube(&j) + (int64_t)j.n * j.n * j.k) * count, room_to_solve(&j), solve_one, &j,
                     info);
  if (st == AX_OK && call->a->linalg_solve.check) st = singular(call, info, count);
  ax_free(info, bytes);
  return st;
}

static int solve_factored(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int *const pivots = j->pivots_in + i * j->n;
  char *const x = j->x + (size_t)i * side(j);
  for (int r = 0; r < j->n; r++) /* no swap with a row outside the matrix */
    if (pivots[r] < 1 || pivots[r] > j->n) return r + 1;
  memcpy(x, j->b + (size_t)i * side(j), side(j));
  solve_with(j, j->a + (size_t)i * matrix(j), pivots, j->transposed, x, scratch);
  return 0;
}

ax_status ax_cpu__linalg_lu_solve(const ax_call *call)
{
  const ax_tensor *b = call->in[2];
  const int64_t count = ax_matrices(call->in[0]);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *room = NULL;
  job j;
  ax_status st;

  if ((st = begin(call, &j)) != AX_OK || (st = ax_alloc(bytes, &room)) != AX_OK) return st;
  int *const info = room;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.pivots_in = ax_data(call->in[1]);
  j.transposed = call->a->linalg_lu_solve.transposed;
  st =
      ax_dense_each(count, 2 * (int64_t)j.n * j.n * j.k * count, room_to_solve(&j), solve_factored, &j, info);
  const int64_t bad = st == AX_OK ? ax_lapack_failed(info, count) : -1;
  if (bad >= 0)
    st = ax_fail(AX_ERANGE, "%s: pivots count rows from 1 to %d, got %d", SHOWN(call), j.n,
                 j.pivots_in[bad * j.n + info[bad] - 1]);
  ax_free(room, bytes);
  return st;
}

static int solve_triangle(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const x = j->x + (size_t)i * side(j);
  if (side(j) == 0) return 0;
  memcpy(x, j->b + (size_t)i * side(j), side(j));
  j->dense->triangular(j->n, j->k, j->a + (size_t)i * matrix(j), j->n, j->flag, j->transposed, j->unit, x,
                       j->k, scratch);
  return 0;
}

ax_status ax_cpu__linalg_solve_triangular(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  const ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  j.b = ax_data(call->in[1]);
  j.k = (int)AX_COLS(call->in[1]);
  j.flag = call->a->linalg_solve_triangular.upper;
  j.transposed = call->a->linalg_solve_triangular.transposed;
  j.unit = call->a->linalg_solve_triangular.unitriangular;
  return ax_dense_each(count, (int64_t)j.n * j.n * j.k * count, room_to_solve(&j), solve_triangle, &j, NULL);
}

/* ---- inverse; scratch: dense.h's room, pivots, the factors */

static size_t pivots_of(const job *j) { return ax_lines(sizeof(int) * (size_t)j->n); }
static size_t room_to_invert(const job *j) { return j->room + pivots_of(j) + ax_lines(matrix(j)); }

static int invert(const job *j, const char *a, char *x, char *scratch)
{
  const int n = j->n;
  int *const pivots = (int *)(scratch + j->room);
  char *const lu = (char *)pivots + pivots_of(j);
  memcpy(lu, a, matrix(j));
  const int info = factor_lu(j, n, n, lu, pivots, scratch);
  if (info) ax_lapack_fill(j->dtype, x, (int64_t)n * n, NAN);
  else if (n) j->dense->inverse(n, lu, pivots, x, scratch);
  return info;
}

static int invert_one(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  return invert(j, j->a + (size_t)i * matrix(j), j->x + (size_t)i * matrix(j), scratch);
}

ax_status ax_cpu__linalg_inv(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  int *const info = ax_data(call->out[1]);
  job j;

  ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  st = ax_dense_each(count, 3 * cube(&j) * count, room_to_invert(&j), invert_one, &j, info);
  return st == AX_OK && call->a->linalg_inv.check ? singular(call, info, count) : st;
}

/* ---- determinant */

/* The diagonal's element r, in double. */
static double diagonal(const job *j, const char *a, int r)
{
  return ax_load_double(j->dtype, a, (int64_t)r * (j->n + 1));
}

/* Factorises a copy behind the room, with the pivots before it; returns the sign of the
 * permutation. */
static double factor_copy(const job *j, int64_t i, char *scratch, char **lu)
{
  int *const pivots = (int *)(scratch + j->room);
  double sign = 1;
  *lu = (char *)pivots + pivots_of(j);
  memcpy(*lu, j->a + (size_t)i * matrix(j), matrix(j));
  factor_lu(j, j->n, j->n, *lu, pivots, scratch);
  for (int r = 0; r < j->n; r++)
    if (pivots[r] != r + 1) sign = -sign;
  return sign;
}

/* The product is formed as mantissa and exponent: it may leave the range on the way. */
static double product(const job *j, const char *lu, double sign)
{
  double value = sign;
  int64_t exponent = 0;
  for (int r = 0; r < j->n; r++) {
    int e = 0;
    value = frexp(value * diagonal(j, lu, r), &e);
    exponent += e;
  }
  return ldexp(value, exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : (int)exponent);
}

/* Elements of complex matrices. */
static double complex number(const job *j, const char *a, int64_t at)
{
  const ax_dtype part = ax_part_dtype(j->dtype);
  return CMPLX(ax_load_double(part, a, 2 * at), ax_load_double(part, a, 2 * at + 1));
}
static void store_number(const job *j, char *a, int64_t at, double complex v)
{
  const ax_dtype part = ax_part_dtype(j->dtype);
  ax_store_double(part, a, 2 * at, creal(v));
  ax_store_double(part, a, 2 * at + 1, cimag(v));
}

/* product of complex numbers */
static double complex complex_product(const job *j, const char *lu, double sign)
{
  double complex value = sign;
  int64_t exponent = 0;
  for (int r = 0; r < j->n; r++) {
    int e = 0;
    value *= number(j, lu, (int64_t)r * (j->n + 1));
    frexp(fmax(fabs(creal(value)), fabs(cimag(value))), &e);
    value = CMPLX(ldexp(creal(value), -e), ldexp(cimag(value), -e));
    exponent += e;
  }
  const int e = exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : (int)exponent;
  return CMPLX(ldexp(creal(value), e), ldexp(cimag(value), e));
}

static int determine(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *lu;
  const double sign = factor_copy(j, i, scratch, &lu);
  if (j->is_complex) store_number(j, j->x, i, complex_product(j, lu, sign));
  else ax_store_double(j->dtype, j->x, i, product(j, lu, sign));
  return 0;
}

ax_status ax_cpu__linalg_det(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;
  const ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  return ax_dense_each(count, cube(&j) * count, room_to_invert(&j), determine, &j, NULL);
}

static int log_determine(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *lu;
  double sign = factor_copy(j, i, scratch, &lu), sum = 0;
  if (j->is_complex) {
    double complex turn = sign;
    for (int r = 0; r < j->n; r++) {
      const double complex d = number(j, lu, (int64_t)r * (j->n + 1));
      sum += log(cabs(d));
      turn *= d == 0 ? 0 : d / cabs(d);
    }
    store_number(j, j->x, i, turn);
    ax_store_double(ax_part_dtype(j->dtype), j->lu, i, sum);
    return 0;
  }
  for (int r = 0; r < j->n; r++) {
    const double d = diagonal(j, lu, r);
    sum += log(fabs(d));
    sign *= d > 0 ? 1 : d < 0 ? -1 : d; /* 0, or NaN */
  }
  ax_store_double(j->dtype, j->x, i, sign);
  ax_store_double(j->dtype, j->lu, i, sum);
  return 0;
}

ax_status ax_cpu__linalg_slogdet(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;
  const ax_status st = begin(call, &j);
  if (st != AX_OK) return st;
  j.lu = ax_data(call->out[1]);
  return ax_dense_each(count, cube(&j) * count, room_to_invert(&j), log_determine, &j, NULL);
}

/* ---- cofactors */

/* det(A) A^-T.  Where A is singular: A = U S V^T has the cofactors det(U) det(V) U S' V^T, in which
 * S' holds the products of all other singular values. */
typedef struct cofactor_room {
  size_t u, vt, s, reals, work; /* offsets in scratch */
  int lwork;
} cofactor_room;
typedef void (*gesvd_fn)(const char *jobu, const char *jobvt, const int *m, const int *n, void *a,
                         const int *lda, void *s, void *u, const int *ldu, void *vt, const int *ldvt,
                         void *work, const int *lwork, void *reals, int *info, size_t, size_t);
typedef struct cofactor_job {
  job j;
  cofactor_room at;
  gesvd_fn gesvd; /* of complex matrices */
} cofactor_job;

static void call_gesvd(const cofactor_job *c, char *a, char *s, char *u, char *vt, void *work, int lwork,
                       char *reals, int *info)
{
  const int n = c->j.n, ld = least(n);
  if (c->gesvd) c->gesvd("A", "A", &n, &n, a, &ld, s, u, &ld, vt, &ld, work, &lwork, reals, info, 1, 1);
  else c->j.lapack->gesvd("A", "A", &n, &n, a, &ld, s, u, &ld, vt, &ld, work, &lwork, info, 1, 1);
}

/* The phases of u and vt times conj(u S' vt), transposed; u and vt are overwritten. */
static void complex_cofactors(const job *j, char *u, const char *s, char *vt, char *x, char *room)
{
  const int n = j->n;
  int *const pivots = (int *)(room + j->room);
  double complex turn = 1;

  for (int64_t k = 0; k < (int64_t)n * n; k++) {
    double complex sum = 0;
    for (int q = 0; q < n; q++) {
      double others = 1;
      for (int p = 0; p < n; p++)
        if (p != q) others *= ax_load_double(ax_part_dtype(j->dtype), s, p);
      sum += others * conj(number(j, vt, k / n * n + q) * number(j, u, (int64_t)q * n + k % n));
    }
    store_number(j, x, k, sum);
  }
  for (int both = 0; both < 2; both++) {
    char *const unitary = both ? vt : u;
    factor_lu(j, n, n, unitary, pivots, room);
    for (int r = 0; r < n; r++) {
      const double complex d = number(j, unitary, (int64_t)r * (n + 1));
      turn *= (pivots[r] == r + 1 ? 1 : -1) * (d / cabs(d));
    }
  }
  for (int64_t k = 0; k < (int64_t)n * n; k++) store_number(j, x, k, turn * number(j, x, k));
}

static double sign_of(const job *j, char *orthogonal, char *room)
{
  int *const pivots = (int *)(room + j->room);
  double sign = 1;
  factor_lu(j, j->n, j->n, orthogonal, pivots, room);
  for (int r = 0; r < j->n; r++) sign *= (pivots[r] == r + 1) == (diagonal(j, orthogonal, r) > 0) ? 1 : -1;
  return sign;
}

static int cofactors_of_singular(const cofactor_job *c, int64_t i, char *scratch)
{
  const job *j = &c->j;
  const int n = j->n;
  char *const u = scratch + c->at.u, *const vt = scratch + c->at.vt, *const s = scratch + c->at.s,
              *const x = j->x + (size_t)i * matrix(j);
  char *const copy = scratch + j->room;
  int info = 0;

  memcpy(copy, j->a + (size_t)i * matrix(j), matrix(j));
  if (ax_lapack_not_finite(j->dtype, copy, (int64_t)n * n)) info = 1;
  else call_gesvd(c, copy, s, u, vt, scratch + c->at.work, c->at.lwork, scratch + c->at.reals, &info);
  if (info) {
    ax_lapack_fill(j->dtype, x, (int64_t)n * n, NAN);
    return 0;
  }
  if (j->is_complex) {
    complex_cofactors(j, u, s, vt, x, scratch);
    return 0;
  }
  /* to LAPACK, u S vt is A^T: row q of A's U is column q of vt, and A's V is u */
  ax_lapack_fill(j->dtype, x, (int64_t)n * n, 0);
  for (int q = 0; q < n; q++) {
    double others = 1;
    for (int p = 0; p < n; p++)
      if (p != q) others *= ax_load_double(j->dtype, s, p);
    for (int64_t k = 0; others != 0 && k < (int64_t)n * n; k++)
      ax_store_double(j->dtype, x, k,
                      ax_load_double(j->dtype, x, k) +
                          others * ax_load_double(j->dtype, vt, k / n * n + q) *
                              ax_load_double(j->dtype, u, (int64_t)q * n + k % n));
  }
  const double sign = sign_of(j, u, scratch) * sign_of(j, vt, scratch);
  for (int64_t k = 0; k < (int64_t)n * n; k++)
    ax_store_double(j->dtype, x, k, sign * ax_load_double(j->dtype, x, k));
  return 0;
}

static int cofactors(int64_t i, char *scratch, const void *ud)
{
  const cofactor_job *c = ud;
  const job *j = &c->j;
  const int n = j->n;
  char *const x = j->x + (size_t)i * matrix(j), *lu;

  if (n == 0) return 0;
  const double sign = factor_copy(j, i, scratch, &lu), det = j->is_complex ? 0 : product(j, lu, sign);
  const double complex z = j->is_complex ? complex_product(j, lu, sign) : 0;
  if (invert(j, j->a + (size_t)i * matrix(j), scratch + c->at.u, scratch))
    return cofactors_of_singular(c, i, scratch);
  ax_lapack_transpose(j->item, n, n, scratch + c->at.u, x);
  for (int64_t k = 0; k < (int64_t)n * n; k++)
    if (j->is_complex) store_number(j, x, k, z * number(j, x, k));
    else ax_store_double(j->dtype, x, k, det * ax_load_double(j->dtype, x, k));
  return 0;
}

ax_status ax_cpu__linalg_cofactor(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  cofactor_job c = { 0 };
  double answer[2] = { 0 };
  int info;
  ax_status st = begin(call, &c.j);

  if (st != AX_OK || (st = ax_lapack_open(call->op, c.j.dtype, &c.j.lapack)) != AX_OK) return st;
  if (c.j.is_complex && (st = ax_lapack_function(call->op, c.j.dtype, "gesvd", &c.gesvd)) != AX_OK) return st;
  const ax_dtype part = c.j.is_complex ? ax_part_dtype(c.j.dtype) : c.j.dtype;
  const int n = c.j.n;
  call_gesvd(&c, NULL, NULL, NULL, NULL, answer, -1, NULL, &info);
  c.at.lwork = (int)ax_lapack_work(part, answer);
  c.at.u = ax_lines(room_to_invert(&c.j));
  c.at.vt = c.at.u + ax_lines(matrix(&c.j));
  c.at.s = c.at.vt + ax_lines(matrix(&c.j));
  c.at.reals = c.at.s + ax_lines(c.j.item * (size_t)n);
  c.at.work = c.at.reals + ax_lines(c.j.is_complex ? c.j.item * 5 * (size_t)n : 0);
  return ax_lapack_each(count, 4 * cube(&c.j) * count, c.at.work + c.j.item * (size_t)c.at.lwork, cofactors,
                        &c, NULL);
}
