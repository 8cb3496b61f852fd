/* QR, singular values, symmetric eigenvalues, least squares: see core/ops/factor.def.
 *
 * QR is dense.h's.  For LAPACK matrices are transposed into scratch memory and back, so that it
 * factorises the matrix itself and the signs of vectors are those that it gives. */
#include "core/ops/factor.h"

#include <limits.h>
#include <math.h>

#include "dense.h"
#include "lapack.h"

#define SHOWN(call) ax_lapack_shown((call)->op, (char[40]){ 0 }, 40)
#define PLACE(x, i) ax_lapack_place(x, i, (char[224]){ 0 }, 224)

typedef struct job {
  const ax_lapack *lapack;
  const ax_dense *dense;
  ax_dtype dtype;
  size_t item;
  int m, n, k; /* rows, columns, the lesser of them */
  int mode, nrhs, most, lwork, liwork;
  bool full, vectors, upper;
  double rcond;
  const char *a, *b;
  char *q, *r, *s; /* results, in the order of the row */
  int64_t *rank;
  size_t at[6], end; /* places in scratch memory */
} job;

static void describe(const ax_call *call, job *j)
{
  const ax_tensor *a = call->in[0];
  *j = (job){ .dtype = (ax_dtype)a->dtype,
              .item = ax_itemsize(a),
              .m = (int)AX_ROWS(a),
              .n = (int)AX_COLS(a),
              .a = ax_data(a) };
  j->k = j->m < j->n ? j->m : j->n;
  j->most = j->m > j->n ? j->m : j->n;
}

static ax_status begin(const ax_call *call, job *j)
{
  describe(call, j);
  return ax_lapack_open(call->op, j->dtype, &j->lapack);
}

static int64_t cube(const job *j) { return (int64_t)j->m * j->n * j->k; }
static size_t elements(const job *j, int64_t n) { return j->item * (size_t)n; }
static size_t matrix(const job *j) { return elements(j, (int64_t)j->m * j->n); }
static int least(int n) { return n > 1 ? n : 1; }

/* Reserves a place in scratch memory. */
static void room(job *j, int i, size_t bytes)
{
  j->at[i] = j->end;
  j->end += ax_lines(bytes);
}

/* LAPACK's sizes are int: so must the work space be that it wants. */
static ax_status work_fits(const ax_call *call, const job *j, double size)
{
  if (size < INT_MAX) return AX_OK;
  return ax_fail(AX_ESHAPE, "%s: a matrix of %d x %d needs more work space than LAPACK can count",
                 SHOWN(call), j->m, j->n);
}

/* The matrix with number i, transposed into scratch memory. */
static char *load(const job *j, int64_t i, char *to)
{
  ax_lapack_transpose(j->item, j->m, j->n, j->a + (size_t)i * matrix(j), to);
  return to;
}

/* An identity matrix of `rows` and `cols`, for matrices without elements. */
static void store_identity(const job *j, char *to, int64_t rows, int64_t cols)
{
  memset(to, 0, elements(j, rows * cols));
  for (int64_t i = 0; i < rows && i < cols; i++) ax_store_double(j->dtype, to, i * (cols + 1), 1);
}

/* ---- QR; scratch: dense.h's room, the matrix, tau */

static int factor_qr(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int m = j->m, n = j->n, cols = j->mode == AX_QR_COMPLETE ? m : j->k;
  char *const a = scratch + j->at[1], *const tau = scratch + j->at[2],
              *const r = j->r + (size_t)i * elements(j, (int64_t)cols * n);

  memcpy(a, j->a + (size_t)i * matrix(j), matrix(j));
  j->dense->qr(m, n, a, n, tau, scratch);
  for (int64_t row = 0; row < cols; row++) {
    const int64_t below = row < n ? row : n;
    memset(r + elements(j, row * n), 0, elements(j, below));
    memcpy(r + elements(j, row * n + below), a + elements(j, row * n + below), elements(j, n - below));
  }
  if (j->mode == AX_QR_R) return 0;
  char *const q = j->q + (size_t)i * elements(j, (int64_t)m * cols);
  store_identity(j, q, m, cols);
  j->dense->reflect(m, j->k, a, n, tau, false, true, cols, q, cols, scratch);
  return 0;
}

static int factor_kept(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  char *const a = j->q + (size_t)i * matrix(j);
  memcpy(a, j->a + (size_t)i * matrix(j), matrix(j));
  j->dense->qr(j->m, j->n, a, j->n, j->r + (size_t)i * elements(j, j->k), scratch);
  return 0;
}

ax_status ax_cpu__linalg_geqrf(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  describe(call, &j);
  j.dense = ax_dense_of(j.dtype);
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  return ax_dense_each(count, 2 * cube(&j) * count, ax_dense_room(j.dtype, j.m, j.n), factor_kept, &j, NULL);
}

ax_status ax_cpu__linalg_qr(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  describe(call, &j);
  j.dense = ax_dense_of(j.dtype);
  j.mode = (int)call->a->linalg_qr.mode;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  const int64_t cols = j.mode == AX_QR_COMPLETE ? j.m : j.k;
  room(&j, 0, ax_dense_room(j.dtype, j.m, j.n > cols ? j.n : cols));
  room(&j, 1, matrix(&j));
  room(&j, 2, elements(&j, j.k));
  return ax_dense_each(count, 4 * cube(&j) * count, j.end, factor_qr, &j, NULL);
}

/* ---- singular values; scratch: the matrix, U, V^T, work space, integers, the matrix again */

enum { NOT_FINITE = -1 };

/* Calls fn for each of x's matrices.  Fails with the place of the first one that fn refused: it or
 * what is `beside` it is not finite, or, as LAPACK's number says, it `failed`. */
static ax_status each(const ax_call *call, const ax_tensor *x, int64_t cost, ax_matrix_fn fn, job *j,
                      const char *beside, const char *failed)
{
  const int64_t count = ax_matrices(x);
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *info = NULL;
  ax_status st;

  if ((st = ax_alloc(bytes, &info)) != AX_OK) return st;
  st = ax_lapack_each(count, cost * cube(j) * count, j->end, fn, j, info);
  const int64_t bad = st == AX_OK ? ax_lapack_failed(info, count) : -1;
  if (bad >= 0 && ((int *)info)[bad] == NOT_FINITE)
    st = ax_fail(AX_EINVAL, "%s: %s%s has elements that are not finite", SHOWN(call), PLACE(x, bad), beside);
  else if (bad >= 0)
    st = ax_fail(AX_EINVAL, "%s: %s %s (LAPACK says %d)", SHOWN(call), PLACE(x, bad), failed,
                 ((int *)info)[bad]);
  ax_free(info, bytes);
  return st;
}

static int split(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int m = j->m, n = j->n, k = j->k, lda = least(m), u_cols = j->full ? m : k, vt_rows = j->full ? n : k,
            ldvt = least(vt_rows);
  char *const u_out = j->q + (size_t)i * elements(j, (int64_t)m * u_cols),
              *const s = j->r + (size_t)i * elements(j, k),
              *const vt_out = j->s + (size_t)i * elements(j, (int64_t)vt_rows * n);
  char *const a = scratch, *const u = scratch + j->at[1], *const vt = scratch + j->at[2],
              *const work = scratch + j->at[3];
  const char *const job_of = !j->vectors ? "N" : j->full ? "A" : "S";
  int info = 0;

  if (k == 0) {
    if (j->vectors) store_identity(j, u_out, m, u_cols), store_identity(j, vt_out, vt_rows, n);
    return 0;
  }
  if (ax_lapack_not_finite(j->dtype, j->a + (size_t)i * matrix(j), (int64_t)m * n)) return NOT_FINITE;
  j->lapack->gesdd(job_of, &m, &n, load(j, i, a), &lda, s, u, &lda, vt, &ldvt, work, &j->lwork,
                   (int *)(scratch + j->at[4]), &info, 1);
  if (info > 0) /* slower, and converges where the other may not */
    j->lapack->gesvd(job_of, job_of, &m, &n, load(j, i, a), &lda, s, u, &lda, vt, &ldvt, work, &j->lwork,
                     &info, 1, 1);
  if (j->vectors) {
    ax_lapack_transpose(j->item, u_cols, m, u, u_out);
    ax_lapack_transpose(j->item, n, vt_rows, vt, vt_out);
  }
  return info;
}

/* The larger of what gesdd and gesvd want. */
static ax_status room_to_split(const ax_call *call, job *j)
{
  const int lda = least(j->m), ldvt = least(j->full ? j->n : j->k), query = -1;
  const char *const job_of = !j->vectors ? "N" : j->full ? "A" : "S";
  const double k = j->k;
  double answer = 0, other = 0;
  int info, integer;
  const ax_status st = work_fits(call, j, 4 * k * k + 7 * k + 64.0 * ((double)j->m + j->n));

  if (st != AX_OK || j->k == 0) return st;
  j->lapack->gesdd(job_of, &j->m, &j->n, NULL, &lda, NULL, NULL, &lda, NULL, &ldvt, &answer, &query, &integer,
                   &info, 1);
  j->lapack->gesvd(job_of, job_of, &j->m, &j->n, NULL, &lda, NULL, NULL, &lda, NULL, &ldvt, &other, &query,
                   &info, 1, 1);
  const int64_t first = ax_lapack_work(j->dtype, &answer), second = ax_lapack_work(j->dtype, &other);
  j->lwork = (int)(first > second ? first : second);
  return AX_OK;
}

ax_status ax_cpu__linalg_svd(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK) return st;
  j.full = call->a->linalg_svd.full_matrices;
  j.vectors = call->a->linalg_svd.vectors;
  if ((st = room_to_split(call, &j)) != AX_OK) return st;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  j.s = ax_data(call->out[2]);
  room(&j, 0, matrix(&j));
  room(&j, 1, j.vectors ? elements(&j, (int64_t)j.m * (j.full ? j.m : j.k)) : 0);
  room(&j, 2, j.vectors ? elements(&j, (int64_t)j.n * (j.full ? j.n : j.k)) : 0);
  room(&j, 3, elements(&j, j.lwork));
  room(&j, 4, sizeof(int) * 8 * (size_t)j.k);
  return each(call, x, 20, split, &j, "",
              "did not converge: it is ill-conditioned or has too many equal singular values");
}

/* ---- symmetric eigenvalues; scratch: the matrix, work space, integers */

static int decompose(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n, ld = least(n);
  int info = 0;

  if (n == 0) return 0;
  char *const a = load(j, i, scratch);
  /* the other triangle is not read: NaN may stand there */
  for (int64_t col = 0; col < n; col++)
    for (int64_t row = j->upper ? 0 : col, end = j->upper ? col + 1 : n; row < end; row++)
      if (!isfinite(ax_load_double(j->dtype, a, col * n + row))) return NOT_FINITE;
  j->lapack->syevd(j->vectors ? "V" : "N", j->upper ? "U" : "L", &n, a, &ld,
                   j->q + (size_t)i * elements(j, n), scratch + j->at[1], &j->lwork,
                   (int *)(scratch + j->at[2]), &j->liwork, &info, 1, 1);
  if (j->vectors) ax_lapack_transpose(j->item, n, n, a, j->r + (size_t)i * matrix(j));
  return info;
}

ax_status ax_cpu__linalg_eigh(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  double answer = 0;
  int status, query = -1;
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK) return st;
  j.upper = call->a->linalg_eigh.upper;
  j.vectors = call->a->linalg_eigh.vectors;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  if ((st = work_fits(call, &j, 2.0 * j.n * j.n + 70.0 * j.n)) != AX_OK) return st;
  const int ld = least(j.n);
  j.lapack->syevd(j.vectors ? "V" : "N", "L", &j.n, NULL, &ld, NULL, &answer, &query, &j.liwork, &query,
                  &status, 1, 1);
  j.lwork = least((int)ax_lapack_work(j.dtype, &answer));
  j.liwork = least(j.liwork);
  room(&j, 0, matrix(&j));
  room(&j, 1, elements(&j, j.lwork));
  room(&j, 2, sizeof(int) * (size_t)j.liwork);
  return each(call, x, 10, decompose, &j, "",
              "did not converge: it is ill-conditioned or has too many equal eigenvalues");
}

/* ---- least squares; scratch: a, b (max(m, n) rows), work space, integers, singular values */

static void run_driver(const job *j, char *a, char *b, char *s, char *work, int *integers, int *rank,
                       int *info)
{
  const int lda = least(j->m), ldb = least(j->most), m = j->m, n = j->n, nrhs = j->nrhs;
  double rcond = 0;
  ax_store_double(j->dtype, &rcond, 0, j->rcond);
  switch (j->mode) {
  case AX_LSTSQ_GELS: j->lapack->gels("N", &m, &n, &nrhs, a, &lda, b, &ldb, work, &j->lwork, info, 1); break;
  case AX_LSTSQ_GELSY:
    j->lapack->gelsy(&m, &n, &nrhs, a, &lda, b, &ldb, integers, &rcond, rank, work, &j->lwork, info);
    break;
  case AX_LSTSQ_GELSD:
    j->lapack->gelsd(&m, &n, &nrhs, a, &lda, b, &ldb, s, &rcond, rank, work, &j->lwork, integers, info);
    break;
  default: j->lapack->gelss(&m, &n, &nrhs, a, &lda, b, &ldb, s, &rcond, rank, work, &j->lwork, info);
  }
}

static int fit(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int m = j->m, n = j->n, nrhs = j->nrhs;
  const char *const from = j->b + (size_t)i * elements(j, (int64_t)m * nrhs);
  char *const b = scratch + j->at[1], *const to = j->q + (size_t)i * elements(j, (int64_t)n * nrhs);
  int *const integers = (int *)(scratch + j->at[3]);
  int info = 0, rank = 0;

  j->rank[i] = 0;
  if (j->k == 0 || nrhs == 0) {
    memset(to, 0, elements(j, (int64_t)n * nrhs));
    if (j->k) j->rank[i] = j->k; /* nothing to fit: not looked for */
    return 0;
  }
  if (ax_lapack_not_finite(j->dtype, j->a + (size_t)i * matrix(j), (int64_t)m * n) ||
      ax_lapack_not_finite(j->dtype, from, (int64_t)m * nrhs))
    return NOT_FINITE;
  for (int64_t row = 0; row < m; row++)
    for (int64_t col = 0; col < nrhs; col++)
      memcpy(b + elements(j, col * j->most + row), from + elements(j, row * nrhs + col), j->item);
  memset(integers, 0, sizeof(int) * (size_t)n); /* gelsy: no column comes first */
  run_driver(j, load(j, i, scratch), b, scratch + j->at[4], scratch + j->at[2], integers, &rank, &info);
  for (int64_t row = 0; row < n; row++)
    for (int64_t col = 0; col < nrhs; col++)
      memcpy(to + elements(j, row * nrhs + col), b + elements(j, col * j->most + row), j->item);
  j->rank[i] = j->mode == AX_LSTSQ_GELS ? j->k : rank;
  if (j->mode == AX_LSTSQ_GELSD || j->mode == AX_LSTSQ_GELSS)
    memcpy(j->s + (size_t)i * elements(j, j->k), scratch + j->at[4], elements(j, j->k));
  return info;
}

ax_status ax_cpu__linalg_lstsq(const ax_call *call)
{
  const ax_tensor *a = call->in[0];
  double answer = 0;
  int status = 0, rank, integers = 0;
  job j;
  ax_status st = begin(call, &j);

  if (st != AX_OK) return st;
  j.mode = (int)call->a->linalg_lstsq.driver;
  j.rcond = call->a->linalg_lstsq.rcond;
  j.nrhs = (int)AX_COLS(call->in[1]);
  j.b = ax_data(call->in[1]);
  j.q = ax_data(call->out[0]);
  j.rank = ax_data(call->out[1]);
  j.s = ax_data(call->out[2]);
  if ((st = work_fits(call, &j, 8.0 * j.k * j.k + 64.0 * ((double)j.m + j.n + j.nrhs))) != AX_OK) return st;
  j.lwork = -1;
  if (j.k > 0 && j.nrhs > 0) run_driver(&j, NULL, NULL, NULL, (char *)&answer, &integers, &rank, &status);
  j.lwork = least((int)ax_lapack_work(j.dtype, &answer));
  if (j.mode != AX_LSTSQ_GELSD) integers = 0;
  room(&j, 0, matrix(&j));
  room(&j, 1, elements(&j, (int64_t)j.most * j.nrhs));
  room(&j, 2, elements(&j, j.lwork));
  room(&j, 3, sizeof(int) * (size_t)(integers > j.n ? integers : j.n));
  room(&j, 4, elements(&j, j.k));
  return each(call, a, 6, fit, &j, " or its right-hand side",
              "does not have full rank, or its singular values did not converge");
}
