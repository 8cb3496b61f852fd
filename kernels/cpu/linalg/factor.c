/* Cholesky, LU, inverse, solutions of linear systems: see core/ops/factor.def.  The work is done by
 * dense.h, row by row; LAPACK serves complex matrices (dense_complex.h). */
#include "factor.h"

#include <math.h>

typedef ax_factor_job job;

static size_t ax_factor_room(const job *j, int64_t rows, int64_t cols)
{
  return j->is_complex ? ax_dense_complex_room(j->dtype, rows, cols) : ax_dense_room(j->dtype, rows, cols);
}

ax_status ax_factor_begin(const ax_call *call, job *j)
{
  const ax_tensor *a = call->in[0];
  const ax_dtype d = (ax_dtype)a->dtype;
  *j = (job){ .dense = ax_is_complex(d) ? ax_dense_complex_of(d) : ax_dense_of(d),
              .dtype = d,
              .is_complex = ax_is_complex(d),
              .item = ax_itemsize(a),
              .count = ax_matrices(a),
              .group = 1,
              .m = (int)AX_ROWS(a),
              .n = (int)AX_COLS(a),
              .a = ax_data(a),
              .x = ax_data(call->out[0]) };
  j->room = ax_lines(ax_factor_room(j, j->m, j->n));
  /* Three matrices or more: lanes pay, and the bits are the same either way. */
  if (!j->is_complex && j->m == j->n && j->n > 1 && j->n <= AX_DENSE_FEW && j->count > 2)
    j->group = j->dense->lanes;
  return j->is_complex ? ax_dense_complex_open(call->op, d) : AX_OK;
}

/* ---- Cholesky */

static int factor_positive(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n;
  const char *const a = j->a + (size_t)i * ax_factor_matrix(j);
  char *const x = j->x + (size_t)i * ax_factor_matrix(j), *const own = j->flag ? scratch + j->room : x;

  if (j->flag) ax_lapack_transpose(j->item, n, n, a, own);
  else memcpy(own, a, ax_factor_matrix(j));
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

  ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  j.flag = call->a->linalg_cholesky.upper;
  st = ax_dense_each(count, ax_factor_cube(&j) * count / 3, j.room + (j.flag ? ax_factor_matrix(&j) : 0),
                     factor_positive, &j, info);
  const int64_t bad = st == AX_OK && call->a->linalg_cholesky.check ? ax_lapack_failed(info, count) : -1;
  if (bad < 0) return st;
  return ax_fail(AX_EINVAL, "%s: %s is not positive-definite: its leading minor of order %d is not positive",
                 ax_op_shown(call->op), AX_PLACE(x, bad), info[bad]);
}

/* ---- LU */

int ax_factor_lu(const job *j, int m, int n, char *a, int *pivots, char *room)
{
  const int k = m < n ? m : n;
  if (!ax_lapack_has_nan(j->dtype, a, (int64_t)m * n)) return j->dense->lu(m, n, a, n, pivots, room);
  ax_lapack_fill(j->dtype, a, (int64_t)m * n, NAN);
  for (int i = 0; i < k; i++) pivots[i] = i + 1;
  return 0;
}

void ax_factor_group(const job *j, int64_t i, char *lu, int *pivots, int *info, char *room)
{
  const int64_t count = ax_factor_of(j, i);
  const char *const a = j->a + (size_t)ax_factor_first(j, i) * ax_factor_matrix(j);
  const uint32_t alone = count > 1 ? j->dense->lu_few(count, j->n, a, lu, pivots) : 1;
  for (int64_t t = 0; t < count; t++) {
    const size_t at = (size_t)t * ax_factor_matrix(j);
    info[t] = 0;
    if (!(alone >> t & 1)) continue;
    memcpy(lu + at, a + at, ax_factor_matrix(j));
    info[t] = ax_factor_lu(j, j->n, j->n, lu + at, pivots + t * j->n, room);
  }
}

static int factor_rows(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int k = j->m < j->n ? j->m : j->n;
  char *const x = j->x + (size_t)i * ax_factor_matrix(j);
  memcpy(x, j->a + (size_t)i * ax_factor_matrix(j), ax_factor_matrix(j));
  return ax_factor_lu(j, j->m, j->n, x, j->pivots + i * k, scratch);
}

ax_status ax_cpu__linalg_lu(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  const ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  j.pivots = ax_data(call->out[1]);
  return ax_dense_each(count, ax_factor_cube(&j) * count, j.room, factor_rows, &j, ax_data(call->out[2]));
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

  if (st != AX_OK) return st;
  memset(ax_data(p), 0, (size_t)p->numel * ax_itemsize(p));
  for (int64_t i = 0; i < count; i++) {
    const int *v = (const int *)ax_data(pivots) + i * k;
    for (int64_t r = 0; r < rows; r++) at[r] = r;
    for (int64_t r = 0; r < k; r++) {
      if (v[r] < 1 || v[r] > rows) {
        ax_free(room, bytes);
        return ax_fail(AX_ERANGE, "%s: pivots count rows from 1 to %lld, got %d",
                       ax_op_shown(AX_OP_LINALG_LU), (long long)rows, v[r]);
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

/* AX_OK where no info is set; else EINVAL, for the first that is. */
static ax_status check_regular(const ax_call *call, const int *info, int64_t count)
{
  const int64_t bad = ax_lapack_failed(info, count);
  if (bad < 0) return AX_OK;
  return ax_fail(AX_EINVAL, "%s: %s is singular: diagonal element %d of its factor U is zero",
                 ax_op_shown(call->op), AX_PLACE(call->in[0], bad), info[bad]);
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
  const size_t room = ax_factor_room(j, j->n, j->k);
  return j->room > room ? j->room : room;
}

static int solve_group(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int64_t first = ax_factor_first(j, i), count = ax_factor_of(j, i);
  char *const lu = j->lu + (size_t)first * ax_factor_matrix(j), *const x = j->x + (size_t)first * side(j);
  int *const pivots = j->pivots + first * j->n;
  memcpy(x, j->b + (size_t)first * side(j), (size_t)count * side(j));
  ax_factor_group(j, i, lu, pivots, j->info + first, scratch);
  if (count > 1 && j->k > 0 && j->k <= AX_DENSE_NARROW) j->dense->solve_few(count, j->n, j->k, lu, pivots, x);
  else
    for (int64_t t = 0; t < count; t++)
      solve_with(j, lu + (size_t)t * ax_factor_matrix(j), pivots + t * j->n, false, x + (size_t)t * side(j),
                 scratch);
  return 0;
}

ax_status ax_cpu__linalg_solve(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1];
  const size_t bytes = sizeof(int) * (size_t)ax_matrices(a) + 1;
  void *info = NULL;
  job j;
  ax_status st;

  if ((st = ax_factor_begin(call, &j)) != AX_OK || (st = ax_alloc(bytes, &info)) != AX_OK) return st;
  j.info = info;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.lu = ax_data(call->out[1]);
  j.pivots = ax_data(call->out[2]);
  st = ax_dense_each(ax_factor_groups(&j), (ax_factor_cube(&j) + (int64_t)j.n * j.n * j.k) * j.count,
                     room_to_solve(&j), solve_group, &j, NULL);
  if (st == AX_OK && call->a->linalg_solve.check) st = check_regular(call, info, j.count);
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
  solve_with(j, j->a + (size_t)i * ax_factor_matrix(j), pivots, j->transposed, x, scratch);
  return 0;
}

ax_status ax_cpu__linalg_lu_solve(const ax_call *call)
{
  const ax_tensor *b = call->in[2];
  const int64_t count = ax_matrices(call->in[0]);
  int64_t bad;
  int info;
  job j;
  ax_status st = ax_factor_begin(call, &j);

  if (st != AX_OK) return st;
  j.b = ax_data(b);
  j.k = (int)AX_COLS(b);
  j.pivots_in = ax_data(call->in[1]);
  j.transposed = call->a->linalg_lu_solve.transposed;
  st = ax_lapack_try(ax_dense_each, count, 2 * (int64_t)j.n * j.n * j.k * count, room_to_solve(&j),
                     solve_factored, &j, &bad, &info);
  if (bad >= 0)
    return ax_fail(AX_ERANGE, "%s: pivots count rows from 1 to %d, got %d", ax_op_shown(call->op), j.n,
                   j.pivots_in[bad * j.n + info - 1]);
  return st;
}

static int solve_triangle(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const x = j->x + (size_t)i * side(j);
  if (side(j) == 0) return 0;
  memcpy(x, j->b + (size_t)i * side(j), side(j));
  j->dense->triangular(j->n, j->k, j->a + (size_t)i * ax_factor_matrix(j), j->n, j->flag, j->transposed,
                       j->unit, x, j->k, scratch);
  return 0;
}

ax_status ax_cpu__linalg_solve_triangular(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  const ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  j.b = ax_data(call->in[1]);
  j.k = (int)AX_COLS(call->in[1]);
  j.flag = call->a->linalg_solve_triangular.upper;
  j.transposed = call->a->linalg_solve_triangular.transposed;
  j.unit = call->a->linalg_solve_triangular.unitriangular;
  return ax_dense_each(count, (int64_t)j.n * j.n * j.k * count, room_to_solve(&j), solve_triangle, &j, NULL);
}

/* ---- inverse; scratch: dense.h's room, pivots, the factors */

int ax_factor_invert(const job *j, const char *a, char *x, char *scratch)
{
  const int n = j->n;
  int *const pivots = (int *)(scratch + j->room);
  char *const lu = (char *)pivots + ax_factor_pivots(j);
  memcpy(lu, a, ax_factor_matrix(j));
  const int info = ax_factor_lu(j, n, n, lu, pivots, scratch);
  if (info) ax_lapack_fill(j->dtype, x, (int64_t)n * n, NAN);
  else if (n) j->dense->inverse(n, lu, pivots, x, scratch);
  return info;
}

static int invert_one(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  return ax_factor_invert(j, j->a + (size_t)i * ax_factor_matrix(j), j->x + (size_t)i * ax_factor_matrix(j),
                          scratch);
}

ax_status ax_cpu__linalg_inv(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  int *const info = ax_data(call->out[1]);
  job j;

  ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  st = ax_dense_each(count, 3 * ax_factor_cube(&j) * count, ax_factor_room_to_invert(&j), invert_one, &j,
                     info);
  return st == AX_OK && call->a->linalg_inv.check ? check_regular(call, info, count) : st;
}
