/* Eigenvalues of matrices that are not symmetric, and L D L^T: by LAPACK. See
 * core/ops/factor.def. */
#include "lapack.h"

#include <limits.h>

#define SHOWN(call) ax_lapack_shown((call)->op, (char[40]){ 0 }, 40)
#define PLACE(x, i) ax_lapack_place(x, i, (char[224]){ 0 }, 224)

enum { NOT_FINITE = -1 };

typedef void (*geev_real)(const char *, const char *, const int *n, void *a, const int *lda, void *re,
                          void *im, void *left, const int *, void *right, const int *, void *work,
                          const int *lwork, int *info, size_t, size_t);
typedef void (*geev_complex)(const char *, const char *, const int *n, void *a, const int *lda, void *values,
                             void *left, const int *, void *right, const int *, void *work, const int *lwork,
                             void *reals, int *info, size_t, size_t);
typedef void (*sytrf_fn)(const char *uplo, const int *n, void *a, const int *lda, int *pivots, void *work,
                         const int *lwork, int *info, size_t);
typedef void (*sytrs_fn)(const char *uplo, const int *n, const int *nrhs, const void *a, const int *lda,
                         const int *pivots, void *b, const int *ldb, int *info, size_t);

typedef struct job {
  void *fn;
  ax_dtype part; /* float32 or float64 */
  size_t item, real, side;
  int n, k, lwork;
  bool complex, vectors;
  const char *a, *b;
  char *values, *x;
  const int *pivots_in;
  int *pivots;
  size_t at[5], end; /* places in scratch memory */
} job;

static ax_status begin(const ax_call *call, const char *name, job *j)
{
  const ax_tensor *a = call->in[0];
  const ax_dtype d = (ax_dtype)a->dtype;
  *j = (job){ .part = d == AX_C64    ? AX_F32
                      : d == AX_C128 ? AX_F64
                                     : d,
              .item = ax_itemsize(a),
              .n = (int)AX_COLS(a),
              .complex = ax_is_complex(d),
              .a = ax_data(a) };
  j->real = ax_dtype_size(j->part);
  return ax_lapack_function(call->op, d, name, &j->fn);
}

static size_t matrix(const job *j) { return j->item * (size_t)j->n * (size_t)j->n; }
static void room(job *j, int i, size_t bytes)
{
  j->at[i] = j->end;
  j->end += ax_lines(bytes);
}

/* ---- eigenvalues; scratch: the matrix, the vectors, both parts of the values, work space, the
 * complex
 * vectors of real matrices */

static void call_geev(const job *j, void *a, void *values, void *imaginary, void *right, void *work,
                      int lwork, void *reals, int *info)
{
  const char *const wants = j->vectors ? "V" : "N";
  const int n = j->n, ld = n > 1 ? n : 1, one = 1;
  if (j->complex)
    ((geev_complex)j->fn)("N", wants, &n, a, &ld, values, NULL, &one, right, &ld, work, &lwork, reals, info,
                          1, 1);
  else
    ((geev_real)j->fn)("N", wants, &n, a, &ld, values, imaginary, NULL, &one, right, &ld, work, &lwork, info,
                       1, 1);
}

/* Real matrices: complex numbers of the values' parts, and of the vectors column by column.  A pair
 * of conjugate values has both parts of its first vector in two columns. */
#define SPREAD(name, T) \
  static void name(int64_t n, const void *parts, const void *vectors, void *pairs, void *out) \
  { \
    const T *re = parts, *im = re + n, *right = vectors; \
    T *values = pairs, *columns = out; \
    for (int64_t c = 0; c < n; c++) values[2 * c] = re[c], values[2 * c + 1] = im[c]; \
    for (int64_t c = 0; columns && c < n; c++, columns += 2 * n) { \
      const T *real = right + (im[c] < 0 && c > 0 ? c - 1 : c) * n, *imaginary = real + n; \
      if (im[c] == 0 || imaginary == right + n * n) \
        for (int64_t r = 0; r < n; r++) columns[2 * r] = real[r], columns[2 * r + 1] = 0; \
      else \
        for (int64_t r = 0; r < n; r++) \
          columns[2 * r] = real[r], columns[2 * r + 1] = im[c] < 0 ? -imaginary[r] : imaginary[r]; \
    } \
  }
SPREAD(spread_f32, float)
SPREAD(spread_f64, double)

static int decompose(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int64_t n = j->n;
  const char *const from = j->a + (size_t)i * matrix(j);
  char *const right = scratch + j->at[1], *const parts = scratch + j->at[2],
              *const values = j->values + (size_t)i * 2 * j->real * (size_t)n,
              *const x = j->x + (size_t)i * 2 * j->real * (size_t)(n * n);
  int info = 0;

  if (n == 0) return 0;
  if (ax_lapack_not_finite(j->part, from, j->complex ? 2 * n * n : n * n)) return NOT_FINITE;
  ax_lapack_transpose(j->item, n, n, from, scratch);
  call_geev(j, scratch, j->complex ? values : parts, parts + j->real * (size_t)n, right, scratch + j->at[3],
            j->lwork, parts, &info);
  if (info) return info > 0 ? info : 1;
  char *const columns = j->complex ? right : j->vectors ? scratch + j->at[4] : NULL;
  if (!j->complex) (j->part == AX_F64 ? spread_f64 : spread_f32)(n, parts, right, values, columns);
  if (j->vectors) ax_lapack_transpose(2 * j->real, n, n, columns, x);
  return 0;
}

ax_status ax_cpu__linalg_eig(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t count = ax_matrices(x);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  double answer[2] = { 0 }, none[2] = { 0 };
  void *info = NULL;
  int status = 0;
  job j;
  ax_status st = begin(call, "geev", &j);

  if (st != AX_OK) return st;
  j.vectors = call->a->linalg_eig.vectors;
  j.values = ax_data(call->out[0]);
  j.x = ax_data(call->out[1]);
  if (70.0 * j.n * 2 > INT_MAX)
    return ax_fail(AX_ESHAPE, "%s: a matrix of %d x %d needs more work space than LAPACK can count",
                   SHOWN(call), j.n, j.n);
  /* cgeev writes into `reals` during the query, too */
  call_geev(&j, none, none, none, none, answer, -1, none, &status);
  j.lwork = (int)ax_lapack_work(j.part, answer);
  if (j.lwork < 4 * j.n) j.lwork = 4 * j.n;
  room(&j, 0, matrix(&j));
  room(&j, 1, j.vectors ? matrix(&j) : 0);
  room(&j, 2, 2 * j.real * (size_t)j.n);
  room(&j, 3, j.item * (size_t)j.lwork);
  room(&j, 4, j.vectors && !j.complex ? 2 * matrix(&j) : 0);
  if ((st = ax_alloc(bytes, &info)) != AX_OK) return st;
  st = ax_lapack_each(count, 25 * (int64_t)j.n * j.n * j.n * count, j.end, decompose, &j, info);
  const int64_t bad = st == AX_OK ? ax_lapack_failed(info, count) : -1;
  if (bad >= 0 && ((int *)info)[bad] == NOT_FINITE)
    st = ax_fail(AX_EINVAL, "%s: %s has elements that are not finite", SHOWN(call), PLACE(x, bad));
  else if (bad >= 0)
    st = ax_fail(AX_EINVAL, "%s: the eigenvalues of %s did not converge (LAPACK says %d)", SHOWN(call),
                 PLACE(x, bad), ((int *)info)[bad]);
  ax_free(info, bytes);
  return st;
}

/* ---- L D L^T; scratch: the matrix, work space */

static int factor_symmetric(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n, ld = n > 1 ? n : 1;
  char *const x = j->x + (size_t)i * matrix(j);
  int info = 0;

  if (n == 0) return 0;
  ax_lapack_transpose(j->item, n, n, j->a + (size_t)i * matrix(j), scratch);
  ((sytrf_fn)j->fn)("L", &n, scratch, &ld, j->pivots + i * n, scratch + j->at[1], &j->lwork, &info, 1);
  ax_lapack_transpose(j->item, n, n, scratch, x);
  for (int row = 0; row + 1 < n; row++)
    memset(x + ((size_t)row * (size_t)n + (size_t)row + 1) * j->item, 0, (size_t)(n - row - 1) * j->item);
  return info;
}

ax_status ax_cpu__linalg_ldl(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;
  const bool turned = call->a->linalg_ldl.hermitian && ax_is_complex((ax_dtype)call->in[0]->dtype);
  const ax_status st = begin(call, turned ? "hetrf" : "sytrf", &j);

  if (st != AX_OK) return st;
  j.x = ax_data(call->out[0]);
  j.pivots = ax_data(call->out[1]);
  j.lwork = j.n > INT_MAX / 64 ? j.n : 64 * (j.n > 1 ? j.n : 1);
  room(&j, 0, matrix(&j));
  room(&j, 1, j.item * (size_t)j.lwork);
  return ax_lapack_each(count, (int64_t)j.n * j.n * j.n * count, j.end, factor_symmetric, &j,
                        ax_data(call->out[2]));
}

/* Pivots of LAPACK's form: k is a row from k on, or two neighbours have the same -k. */
static bool pivots_fit(const int *pivots, int n)
{
  for (int r = 0; r < n; r++) {
    const int p = pivots[r];
    if (p > 0 ? p < r + 1 || p > n : p >= 0 || -p < r + 2 || -p > n || r + 1 == n || pivots[r + 1] != p)
      return false;
    r += p < 0;
  }
  return true;
}

static int solve_symmetric(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n, k = j->k, ld = n > 1 ? n : 1;
  const int *const pivots = j->pivots_in + (int64_t)i * n;
  char *const b = scratch + j->at[1];
  int info = 0;

  if (!pivots_fit(pivots, n)) return 1; /* LAPACK would swap rows outside the matrix */
  if (n == 0 || k == 0) return 0;
  ax_lapack_transpose(j->item, n, n, j->a + (size_t)i * matrix(j), scratch);
  ax_lapack_transpose(j->item, n, k, j->b + (size_t)i * j->side, b);
  ((sytrs_fn)j->fn)("L", &n, &k, scratch, &ld, pivots, b, &ld, &info, 1);
  ax_lapack_transpose(j->item, k, n, b, j->x + (size_t)i * j->side);
  return 0;
}

ax_status ax_cpu__linalg_ldl_solve(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t count = ax_matrices(x);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *info = NULL;
  job j;
  const bool turned = call->a->linalg_ldl_solve.hermitian && ax_is_complex((ax_dtype)x->dtype);
  ax_status st = begin(call, turned ? "hetrs" : "sytrs", &j);

  if (st != AX_OK || (st = ax_alloc(bytes, &info)) != AX_OK) return st;
  j.k = (int)AX_COLS(call->in[2]);
  j.side = j.item * (size_t)j.n * (size_t)j.k;
  j.b = ax_data(call->in[2]);
  j.pivots_in = ax_data(call->in[1]);
  j.x = ax_data(call->out[0]);
  room(&j, 0, matrix(&j));
  room(&j, 1, j.side);
  st = ax_lapack_each(count, 2 * (int64_t)j.n * j.n * j.k * count, j.end, solve_symmetric, &j, info);
  const int64_t bad = st == AX_OK ? ax_lapack_failed(info, count) : -1;
  if (bad >= 0)
    st = ax_fail(AX_ERANGE, "%s: the pivots of %s are none of ldl_factor's", SHOWN(call), PLACE(x, bad));
  ax_free(info, bytes);
  return st;
}
