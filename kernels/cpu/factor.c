/* Cholesky, LU, inverse, determinant, solutions of linear systems: see core/ops/factor.def.
 *
 * LAPACK takes a matrix column by column.  A matrix of ours, row by row, is the transposed one to
 * it; most functions work on that directly, and only the others transpose. */
#include "lapack.h"

#include <math.h>

#define SHOWN(call) ax_lapack_shown((call)->op, (char[40]){ 0 }, 40)
#define PLACE(x, i) ax_lapack_place(x, i, (char[224]){ 0 }, 224)

typedef struct job {
  const ax_lapack *lapack;
  ax_dtype dtype;
  size_t item;
  int m, n, k; /* rows and columns of a; columns of b */
  bool flag, transposed, by_columns, unit;
  const char *a, *b;
  const int *pivots_in;
  char *x, *lu;
  int *pivots;
  int64_t lwork;
} job;

static ax_status begin(const ax_call *call, job *j)
{
  const ax_tensor *a = call->in[0];
  *j = (job){ .dtype = (ax_dtype)a->dtype,
              .item = ax_itemsize(a),
              .m = (int)AX_ROWS(a),
              .n = (int)AX_COLS(a),
              .a = ax_data(a),
              .x = ax_data(call->out[0]) };
  return ax_lapack_open(call->op, j->dtype, &j->lapack);
}

static int64_t cube(const job *j) { return (int64_t)j->m * j->n * (j->m < j->n ? j->m : j->n); }
static size_t matrix(const job *j) { return j->item * (size_t)j->m * (size_t)j->n; }
static int least(int n) { return n > 1 ? n : 1; } /* a leading dimension is at least 1 */

/* ---- Cholesky */

static int factor_positive(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n, ld = least(n);
  char *const x = j->x + (size_t)i * matrix(j);
  int info = 0;

  memcpy(x, j->a + (size_t)i * matrix(j), matrix(j));
  j->lapack->potrf(j->flag ? "L" : "U", &n, x, &ld, &info, 1);
  for (int row = 0; row < n; row++) /* the other triangle */
    if (j->flag) memset(x + (size_t)row * (size_t)n * j->item, 0, (size_t)row * j->item);
    else
      memset(x + ((size_t)row * (size_t)n + (size_t)row + 1) * j->item, 0, (size_t)(n - row - 1) * j->item);
  return info;
}

ax_status ax_cpu__linalg_cholesky(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t count = ax_matrices(x);
  int *const info = ax_data(call->out[1]);
  job j;
  ax_status st = begin(call, &j);

  j.flag = call->a->linalg_cholesky.upper;
  if (st == AX_OK) st = ax_lapack_each(count, cube(&j) * count, 0, factor_positive, &j, info);
  const int64_t bad = st == AX_OK && call->a->linalg_cholesky.check ? ax_lapack_failed(info, count) : -1;
  if (bad < 0) return st;
  return ax_fail(AX_EINVAL, "%s: %s is not positive-definite: its leading minor of order %d is not positive",
                 SHOWN(call), PLACE(x, bad), info[bad]);
}

/* ---- LU */

/* Factorises `a`, column by column, in place.  A NaN would lead the search for pivots astray: all
 * of the result is NaN then. */
static int factor_lu(const job *j, int m, int n, char *a, int *pivots)
{
  const int ld = least(m), k = m < n ? m : n;
  int info = 0;
  if (ax_lapack_has_nan(j->dtype, a, (int64_t)m * n)) {
    ax_lapack_fill(j->dtype, a, (int64_t)m * n, NAN);
    for (int i = 0; i < k; i++) pivots[i] = i + 1;
  } else if (k > 0) j->lapack->getrf(&m, &n, a, &ld, pivots, &info);
  return info;
}

static int factor_rows(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int k = j->m < j->n ? j->m : j->n;
  ax_lapack_transpose(j->item, j->m, j->n, j->a + (size_t)i * matrix(j), scratch);
  const int info = factor_lu(j, j->m, j->n, scratch, j->pivots + i * k);
  ax_lapack_transpose(j->item, j->n, j->m, scratch, j->x + (size_t)i * matrix(j));
  return info;
}

ax_status ax_cpu__linalg_lu(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK) return st;
  j.pivots = ax_data(call->out[1]);
  return ax_lapack_each(count, cube(&j) * count, matrix(&j), factor_rows, &j, ax_data(call->out[2]));
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

/* x = b's solution for a factorised matrix.  `trans` is "T" where LAPACK's matrix is a^T. */
static void solve_with(const job *j, int64_t i, const char *trans, const char *lu, const int *pivots,
                       char *scratch)
{
  const int n = j->n, k = j->k, ld = least(n);
  const size_t side = j->item * (size_t)n * (size_t)k;
  int info = 0;
  if (side == 0) return;
  ax_lapack_transpose(j->item, n, k, j->b + (size_t)i * side, scratch);
  j->lapack->getrs(trans, &n, &k, lu, &ld, pivots, scratch, &ld, &info, 1);
  ax_lapack_transpose(j->item, k, n, scratch, j->x + (size_t)i * side);
}

static int solve_one(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const lu = j->lu + (size_t)i * matrix(j);
  int *const pivots = j->pivots + i * j->n;
  memcpy(lu, j->a + (size_t)i * matrix(j), matrix(j));
  const int info = factor_lu(j, j->n, j->n, lu, pivots);
  solve_with(j, i, "T", lu, pivots, scratch);
  return info;
}

ax_status ax_cpu__linalg_solve(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1];
  const int64_t count = ax_matrices(a);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *info = NULL;
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK || (st = ax_alloc(bytes, &info)) != AX_OK) return st;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.lu = ax_data(call->out[1]);
  j.pivots = ax_data(call->out[2]);
  st = ax_lapack_each(count, (cube(&j) + (int64_t)j.n * j.n * j.k) * count,
                      j.item * (size_t)j.n * (size_t)j.k, solve_one, &j, info);
  if (st == AX_OK && call->a->linalg_solve.check) st = singular(call, info, count);
  ax_free(info, bytes);
  return st;
}

static int solve_factored(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const char *lu = j->a + (size_t)i * matrix(j);
  char *const rest = scratch + ax_lines(matrix(j));
  if (!j->by_columns) {
    ax_lapack_transpose(j->item, j->n, j->n, lu, scratch);
    lu = scratch;
  }
  for (int r = 0; r < j->n; r++) /* LAPACK would swap rows outside the matrix */
    if (j->pivots_in[i * j->n + r] < 1 || j->pivots_in[i * j->n + r] > j->n) return r + 1;
  solve_with(j, i, j->transposed != j->by_columns ? "T" : "N", lu, j->pivots_in + i * j->n, rest);
  return 0;
}

ax_status ax_cpu__linalg_lu_solve(const ax_call *call)
{
  const ax_tensor *b = call->in[2];
  const int64_t count = ax_matrices(call->in[0]);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *room = NULL;
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK || (st = ax_alloc(bytes, &room)) != AX_OK) return st;
  int *const info = room;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.pivots_in = ax_data(call->in[1]);
  j.transposed = call->a->linalg_lu_solve.transposed;
  j.by_columns = call->a->linalg_lu_solve.by_columns;
  st = ax_lapack_each(count, 2 * (int64_t)j.n * j.n * j.k * count,
                      ax_lines(matrix(&j)) + j.item * (size_t)j.n * (size_t)j.k, solve_factored, &j, info);
  const int64_t bad = st == AX_OK ? ax_lapack_failed(info, count) : -1;
  if (bad >= 0)
    st = ax_fail(AX_ERANGE, "%s: pivots count rows from 1 to %d, got %d", SHOWN(call), j.n,
                 j.pivots_in[bad * j.n + info[bad] - 1]);
  ax_free(room, bytes);
  return st;
}

/* a x = b is x^T a^T = b^T, and that is how LAPACK sees our rows. */
static int solve_triangle(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n, k = j->k, lda = least(n), ldb = least(k);
  const size_t side = j->item * (size_t)n * (size_t)k;
  const double one = 1;
  const float one_float = 1;
  char *const x = j->x + (size_t)i * side;

  if (side == 0) return 0;
  memcpy(x, j->b + (size_t)i * side, side);
  j->lapack->trsm("R", j->flag ? "L" : "U", j->transposed ? "T" : "N", j->unit ? "U" : "N", &k, &n,
                  j->dtype == AX_F32 ? (const void *)&one_float : &one, j->a + (size_t)i * matrix(j), &lda, x,
                  &ldb, 1, 1, 1, 1);
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
  return ax_lapack_each(count, (int64_t)j.n * j.n * j.k * count, 0, solve_triangle, &j, NULL);
}

/* ---- inverse */

/* Inverts `a` in place; scratch: pivots and work space. */
static int invert(const job *j, char *a, char *scratch)
{
  const int n = j->n, ld = least(n), lwork = (int)j->lwork;
  int *const pivots = (int *)scratch;
  int info = factor_lu(j, n, n, a, pivots), ignored = 0;
  if (info == 0 && n > 0)
    j->lapack->getri(&n, a, &ld, pivots, scratch + ax_lines(sizeof(int) * (size_t)n), &lwork, &ignored);
  if (info > 0) ax_lapack_fill(j->dtype, a, (int64_t)n * n, NAN);
  return info;
}

static size_t room_to_invert(job *j)
{
  const int n = j->n, ld = least(n), query = -1;
  double answer = 0;
  int info, pivot = 0;
  j->lapack->getri(&n, &answer, &ld, &pivot, &answer, &query, &info);
  j->lwork = ax_lapack_work(j->dtype, &answer);
  if (j->lwork < n) j->lwork = n;
  return ax_lines(sizeof(int) * (size_t)n) + j->item * (size_t)(j->lwork + 1);
}

static int invert_one(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const x = j->x + (size_t)i * matrix(j);
  memcpy(x, j->a + (size_t)i * matrix(j), matrix(j));
  return invert(j, x, scratch);
}

ax_status ax_cpu__linalg_inv(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  int *const info = ax_data(call->out[1]);
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK) return st;
  st = ax_lapack_each(count, 3 * cube(&j) * count, room_to_invert(&j), invert_one, &j, info);
  return st == AX_OK && call->a->linalg_inv.check ? singular(call, info, count) : st;
}

/* ---- determinant */

/* The diagonal's element r, in double. */
static double diagonal(const job *j, const char *a, int r)
{
  return ax_load_double(j->dtype, a, (int64_t)r * (j->n + 1));
}

/* Factorises a copy in scratch, with the pivots behind it; returns the sign of the permutation. */
static double factor_copy(const job *j, int64_t i, char *scratch)
{
  int *const pivots = (int *)(scratch + ax_lines(matrix(j)));
  double sign = 1;
  memcpy(scratch, j->a + (size_t)i * matrix(j), matrix(j));
  factor_lu(j, j->n, j->n, scratch, pivots);
  for (int r = 0; r < j->n; r++)
    if (pivots[r] != r + 1) sign = -sign;
  return sign;
}

static size_t room_to_factor(const job *j) { return ax_lines(matrix(j)) + sizeof(int) * (size_t)j->n; }

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

static int determine(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const double sign = factor_copy(j, i, scratch);
  ax_store_double(j->dtype, j->x, i, product(j, scratch, sign));
  return 0;
}

ax_status ax_cpu__linalg_det(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;
  const ax_status st = begin(call, &j);
  return st != AX_OK ? st : ax_lapack_each(count, cube(&j) * count, room_to_factor(&j), determine, &j, NULL);
}

static int log_determine(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  double sign = factor_copy(j, i, scratch), sum = 0;
  for (int r = 0; r < j->n; r++) {
    const double d = diagonal(j, scratch, r);
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
  return ax_lapack_each(count, cube(&j) * count, room_to_factor(&j), log_determine, &j, NULL);
}

/* ---- cofactors */

/* det(A) A^-T.  Where A is singular: A = U S V^T has the cofactors det(U) det(V) U S' V^T, in which
 * S' holds the products of all other singular values. */
typedef struct cofactor_room {
  size_t u, vt, s, work, end; /* offsets in scratch */
  int lwork;
} cofactor_room;
typedef struct cofactor_job {
  job j;
  cofactor_room at;
} cofactor_job;

static double sign_of(const job *j, char *orthogonal, int *pivots)
{
  double sign = 1;
  factor_lu(j, j->n, j->n, orthogonal, pivots);
  for (int r = 0; r < j->n; r++) sign *= (pivots[r] == r + 1) == (diagonal(j, orthogonal, r) > 0) ? 1 : -1;
  return sign;
}

static int cofactors_of_singular(const cofactor_job *c, int64_t i, char *scratch)
{
  const job *j = &c->j;
  const int n = j->n;
  char *const u = scratch + c->at.u, *const vt = scratch + c->at.vt, *const s = scratch + c->at.s,
              *const x = j->x + (size_t)i * matrix(j);
  int *const pivots = (int *)(scratch + c->at.work); /* gesvd is through with its work space then */
  int info = 0;

  memcpy(scratch, j->a + (size_t)i * matrix(j), matrix(j));
  if (ax_lapack_not_finite(j->dtype, scratch, (int64_t)n * n)) info = 1;
  else
    j->lapack->gesvd("A", "A", &n, &n, scratch, &n, s, u, &n, vt, &n, scratch + c->at.work, &c->at.lwork,
                     &info, 1, 1);
  if (info) {
    ax_lapack_fill(j->dtype, x, (int64_t)n * n, NAN);
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
  const double sign = sign_of(j, u, pivots) * sign_of(j, vt, pivots);
  for (int64_t k = 0; k < (int64_t)n * n; k++)
    ax_store_double(j->dtype, x, k, sign * ax_load_double(j->dtype, x, k));
  return 0;
}

static int cofactors(int64_t i, char *scratch, const void *ud)
{
  const cofactor_job *c = ud;
  const job *j = &c->j;
  const int n = j->n;
  char *const x = j->x + (size_t)i * matrix(j);

  if (n == 0) return 0;
  const double det = product(j, scratch, factor_copy(j, i, scratch));
  memcpy(scratch + c->at.u, j->a + (size_t)i * matrix(j), matrix(j));
  if (invert(j, scratch + c->at.u, scratch + c->at.work)) return cofactors_of_singular(c, i, scratch);
  ax_lapack_transpose(j->item, n, n, scratch + c->at.u, x);
  for (int64_t k = 0; k < (int64_t)n * n; k++)
    ax_store_double(j->dtype, x, k, det * ax_load_double(j->dtype, x, k));
  return 0;
}

ax_status ax_cpu__linalg_cofactor(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  cofactor_job c = { 0 };
  double answer = 0;
  int info, query = -1;
  const ax_status st = begin(call, &c.j);

  if (st != AX_OK) return st;
  const int n = c.j.n, ld = least(n);
  const size_t to_invert = room_to_invert(&c.j);
  c.j.lapack->gesvd("A", "A", &n, &n, NULL, &ld, NULL, NULL, &ld, NULL, &ld, &answer, &query, &info, 1, 1);
  c.at.lwork = (int)ax_lapack_work(c.j.dtype, &answer);
  c.at.u = ax_lines(room_to_factor(&c.j));
  c.at.vt = c.at.u + ax_lines(matrix(&c.j));
  c.at.s = c.at.vt + ax_lines(matrix(&c.j));
  c.at.work = c.at.s + ax_lines(c.j.item * (size_t)n);
  const size_t to_split = c.j.item * (size_t)c.at.lwork + sizeof(int) * (size_t)n;
  c.at.end = c.at.work + (to_split > to_invert ? to_split : to_invert);
  return ax_lapack_each(count, 4 * cube(&c.j) * count, c.at.end, cofactors, &c, NULL);
}
