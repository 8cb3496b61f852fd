/* QR, singular values, symmetric eigenvalues, least squares: see core/ops/factor.def.
 *
 * QR, and eigenvalues of real matrices that are not small, are dense.h's.  For LAPACK matrices are
 * transposed into scratch memory and back, so that it factorises the matrix itself and the signs of
 * vectors are those that it gives. */
#include "core/ops/factor.h"

#include <limits.h>
#include <math.h>

#include "dense_complex.h"
#include "lapack.h"

typedef struct job {
  const ax_lapack *lapack;
  void *fn, *second; /* of complex matrices; second: bdsdc, too */
  const ax_dense *dense;
  ax_dtype dtype, part; /* float32 or float64: the type of singular values */
  bool is_complex;
  size_t item, real; /* bytes of an element, of a part of it */
  int m, n, k;       /* rows, columns, the lesser of them */
  int mode, nrhs, most, lwork, liwork, lrwork;
  bool full, vectors, upper;
  double rcond;
  const char *a, *b;
  char *q, *r, *s; /* results, in the order of the row */
  int64_t *rank;
  size_t at[8], end; /* places in scratch memory */
} job;

static void describe(const ax_call *call, job *j)
{
  const ax_tensor *a = call->in[0];
  const ax_dtype d = (ax_dtype)a->dtype;
  *j = (job){ .dtype = d,
              .part = ax_is_complex(d) ? ax_part_dtype(d) : d,
              .is_complex = ax_is_complex(d),
              .item = ax_itemsize(a),
              .m = (int)AX_ROWS(a),
              .n = (int)AX_COLS(a),
              .a = ax_data(a) };
  j->real = ax_dtype_size(j->part);
  j->k = j->m < j->n ? j->m : j->n;
  j->most = j->m > j->n ? j->m : j->n;
}

/* The functions of real matrices are in j->lapack, the one of complex ones is j->fn. */
static ax_status begin(const ax_call *call, const char *complex_name, job *j)
{
  describe(call, j);
  const ax_status st = ax_lapack_open(call->op, j->part, &j->lapack);
  return st == AX_OK && j->is_complex ? ax_lapack_function(call->op, j->dtype, complex_name, &j->fn) : st;
}

static ax_status begin_dense(const ax_call *call, job *j)
{
  describe(call, j);
  j->dense = j->is_complex ? ax_dense_complex_of(j->dtype) : ax_dense_of(j->dtype);
  return j->is_complex ? ax_dense_complex_open(call->op, j->dtype) : AX_OK;
}

static size_t dense_room(const job *j, int64_t cols)
{
  return j->is_complex ? ax_dense_complex_room(j->dtype, j->m, cols) : ax_dense_room(j->dtype, j->m, cols);
}

static int64_t cube(const job *j) { return (int64_t)j->m * j->n * j->k; }
static size_t elements(const job *j, int64_t n) { return j->item * (size_t)n; }
static size_t reals(const job *j, int64_t n) { return j->real * (size_t)n; }
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
                 ax_op_shown(call->op), j->m, j->n);
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

  const ax_status st = begin_dense(call, &j);
  if (st != AX_OK) return st;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  return ax_dense_each(count, 2 * cube(&j) * count, dense_room(&j, j.n), factor_kept, &j, NULL);
}

ax_status ax_cpu__linalg_qr(const ax_call *call)
{
  const int64_t count = ax_matrices(call->in[0]);
  job j;

  const ax_status st = begin_dense(call, &j);
  if (st != AX_OK) return st;
  j.mode = (int)call->a->linalg_qr.mode;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  const int64_t cols = j.mode == AX_QR_COMPLETE ? j.m : j.k;
  room(&j, 0, dense_room(&j, j.n > cols ? j.n : cols));
  room(&j, 1, matrix(&j));
  room(&j, 2, elements(&j, j.k));
  return ax_dense_each(count, 4 * cube(&j) * count, j.end, factor_qr, &j, NULL);
}

/* ---- singular values; scratch: the matrix, U, V^T, work space, integers, the matrix again */

/* Calls fn for each of x's matrices.  Fails with the place of the first one that fn refused: it or
 * what is `beside` it is not finite, or, as LAPACK's number says, it `failed`. */
static ax_status each_with(ax_each_fn *batch, const ax_call *call, const ax_tensor *x, int64_t cost,
                           ax_matrix_fn fn, job *j, const char *beside, const char *failed)
{
  const int64_t count = ax_matrices(x);
  int64_t bad;
  int info;
  const ax_status st = ax_lapack_try(batch, count, cost * cube(j) * count, j->end, fn, j, &bad, &info);

  if (bad >= 0 && info == AX_NOT_FINITE)
    return ax_fail(AX_EINVAL, "%s: %s%s has elements that are not finite", ax_op_shown(call->op),
                   AX_PLACE(x, bad), beside);
  if (bad >= 0)
    return ax_fail(AX_EINVAL, "%s: %s %s (LAPACK says %d)", ax_op_shown(call->op), AX_PLACE(x, bad), failed,
                   info);
  return st;
}

static ax_status each(const ax_call *call, const ax_tensor *x, int64_t cost, ax_matrix_fn fn, job *j,
                      const char *beside, const char *failed)
{
  return each_with(ax_lapack_each, call, x, cost, fn, j, beside, failed);
}

typedef void (*gesdd_fn)(const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s,
                         void *u, const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork,
                         void *reals, int *iwork, int *info, size_t);
typedef void (*gesvd_fn)(const char *jobu, const char *jobvt, const int *m, const int *n, void *a,
                         const int *lda, void *s, void *u, const int *ldu, void *vt, const int *ldvt,
                         void *work, const int *lwork, void *reals, int *info, size_t, size_t);

/* gesdd, or gesvd, which is slower and converges where the other may not. */
static void call_svd(const job *j, bool slow, char *a, char *s, char *u, char *vt, void *work, int lwork,
                     void *reals, int *integers, int *info)
{
  const char *const wants = !j->vectors ? "N" : j->full ? "A" : "S";
  const int *const m = &j->m, *const n = &j->n, lda = least(j->m), ldvt = least(j->full ? j->n : j->k);
  if (j->is_complex && slow)
    ((gesvd_fn)j->second)(wants, wants, m, n, a, &lda, s, u, &lda, vt, &ldvt, work, &lwork, reals, info, 1,
                          1);
  else if (j->is_complex)
    ((gesdd_fn)j->fn)(wants, m, n, a, &lda, s, u, &lda, vt, &ldvt, work, &lwork, reals, integers, info, 1);
  else if (slow)
    j->lapack->gesvd(wants, wants, m, n, a, &lda, s, u, &lda, vt, &ldvt, work, &lwork, info, 1, 1);
  else j->lapack->gesdd(wants, m, n, a, &lda, s, u, &lda, vt, &ldvt, work, &lwork, integers, info, 1);
}

static int split(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int m = j->m, n = j->n, k = j->k, u_cols = j->full ? m : k, vt_rows = j->full ? n : k;
  char *const u_out = j->q + (size_t)i * elements(j, (int64_t)m * u_cols),
              *const s = j->r + (size_t)i * reals(j, k),
              *const vt_out = j->s + (size_t)i * elements(j, (int64_t)vt_rows * n);
  char *const a = scratch, *const u = scratch + j->at[1], *const vt = scratch + j->at[2],
              *const work = scratch + j->at[3];
  int *const integers = (int *)(scratch + j->at[4]);
  int info = 0;

  if (k == 0) {
    if (j->vectors) store_identity(j, u_out, m, u_cols), store_identity(j, vt_out, vt_rows, n);
    return 0;
  }
  if (ax_lapack_not_finite(j->dtype, j->a + (size_t)i * matrix(j), (int64_t)m * n)) return AX_NOT_FINITE;
  call_svd(j, false, load(j, i, a), s, u, vt, work, j->lwork, scratch + j->at[5], integers, &info);
  if (info > 0)
    call_svd(j, true, load(j, i, a), s, u, vt, work, j->lwork, scratch + j->at[5], integers, &info);
  if (j->vectors) {
    ax_lapack_transpose(j->item, u_cols, m, u, u_out);
    ax_lapack_transpose(j->item, n, vt_rows, vt, vt_out);
  }
  return info;
}

/* ---- the same of large real matrices, by dense.h's bidiagonal form and LAPACK's bdsdc */

enum { OWN_LEAST = 48 }; /* rows and columns; smaller matrices are faster in LAPACK */

typedef void (*bdsdc_fn)(const char *uplo, const char *compq, const int *n, void *d, void *e, void *u,
                         const int *ldu, void *vt, const int *ldvt, void *q, int *iq, void *work, int *iwork,
                         int *info, size_t, size_t);

/* Places behind j->at[6]: the matrix, tall or turned so; reflections; both sides' vectors, work. */
typedef struct own_places {
  int64_t m, n, ld, cols; /* m >= n; cols: of the left vectors */
  char *a, *panel, *e, *tau_q, *tau_p, *u, *vt, *left, *work, *room;
  int *integers;
  size_t bytes;
} own_places;

static own_places own_of(const job *j, char *scratch)
{
  own_places p = { .m = j->most, .n = j->k };
  p.ld = (p.n + 2 * AX_DENSE_WIDE - 1) / AX_DENSE_WIDE * AX_DENSE_WIDE;
  p.cols = j->full ? p.m : p.n;
  const int64_t n = p.n, square = j->vectors ? n * n : 0,
                moved = p.m * p.n > 4 * n * n ? p.m * p.n : 4 * n * n;
  const size_t sizes[] = { elements(j, p.m * p.ld),
                           ax_dense_bidiagonal_panel(j->dtype, p.m, p.ld),
                           elements(j, n),
                           elements(j, n),
                           elements(j, n),
                           elements(j, square),
                           elements(j, square),
                           elements(j, j->vectors ? p.m * p.cols : 0),
                           elements(j, moved + 8 * n),
                           sizeof(int) * 8 * (size_t)n,
                           ax_dense_room(j->dtype, p.m, p.m) };
  char **const places[] = { &p.a,   &p.panel, &p.e,    &p.tau_q, &p.tau_p,
                            &p.u,   &p.vt,    &p.left, &p.work,  (char **)&p.integers,
                            &p.room };
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    *places[k] = scratch ? scratch + p.bytes : NULL;
    p.bytes += ax_lines(sizes[k]);
  }
  return p;
}

/* The matrix, turned where it is wide, in rows `ld` apart, times a power of 2 that keeps squares in
 * range.  Returns the power. */
#define LOAD_TALL(name, T, FAR) \
  static int name(const own_places *p, const T *from) \
  { \
    T most = 0, *const a = (T *)p->a; \
    for (int64_t i = 0; i < p->m * p->n; i++) { \
      const T size = from[i] < 0 ? -from[i] : from[i]; \
      most = size > most ? size : most; \
    } \
    const ax_dense_scale scale = ax_dense_scale_of((double)most, FAR); \
    const T factor = (T)scale.first, again = (T)scale.second; \
    for (int64_t r = 0; r < p->m; r++) { \
      for (int64_t c = 0; c < p->n; c++) a[r * p->ld + c] = from[r * p->n + c] * factor * again; \
      memset(a + r * p->ld + p->n, 0, sizeof(T) * (size_t)(p->ld - p->n)); \
    } \
    return scale.power; \
  }
LOAD_TALL(load_tall_f32, float, 0x1p60)
LOAD_TALL(load_tall_f64, double, 0x1p400)

/* left = Q [U 0; 0 I]; vt, as the columns of V, becomes P V. */
static void multiply_back(const job *j, const own_places *p)
{
  const int64_t n = p->n, below = n - 1;
  ax_lapack_transpose(j->item, n, n, p->u, p->work);
  for (int64_t r = 0; r < p->m; r++) {
    char *const row = p->left + elements(j, r * p->cols);
    const int64_t from = r < n ? n : 0;
    if (r < n) memcpy(row, p->work + elements(j, r * n), elements(j, n));
    memset(row + elements(j, from), 0, elements(j, p->cols - from));
    if (r >= n && r < p->cols) ax_store_double(j->dtype, row, r, 1);
  }
  j->dense->reflect(p->m, n, p->a, p->ld, p->tau_q, false, false, p->cols, p->left, p->cols, p->room);
  char *const turned = p->work + elements(j, n * n);
  for (int64_t r = 0; r < below; r++)
    memcpy(p->work + elements(j, r * below), p->a + elements(j, r * p->ld + 1), elements(j, below));
  ax_lapack_transpose(j->item, below, below, p->work, turned);
  j->dense->reflect(below, below, turned, below, p->tau_p, false, false, n, p->vt + elements(j, n), n,
                    p->room);
}

static int split_own(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const own_places p = own_of(j, scratch + j->at[6]);
  const int n = (int)p.n;
  const bool wide = j->m < j->n;
  const char *from = j->a + (size_t)i * matrix(j);
  char *const s = j->r + (size_t)i * reals(j, n);
  int info = 0;

  if (ax_lapack_not_finite(j->dtype, from, p.m * p.n)) return AX_NOT_FINITE;
  if (wide) ax_lapack_transpose(j->item, j->m, j->n, from, p.work), from = p.work;
  const int power =
      j->dtype == AX_F64 ? load_tall_f64(&p, (const double *)from) : load_tall_f32(&p, (const float *)from);
  j->dense->bidiagonal(p.m, n, p.a, p.ld, s, p.e, p.tau_q, p.tau_p, p.panel, p.room);
  const int threads = ax_lapack_begin();
  ((bdsdc_fn)j->second)("U", j->vectors ? "I" : "N", &n, s, p.e, p.u, &n, p.vt, &n, NULL, NULL, p.work,
                        p.integers, &info, 1, 1);
  const bool found = info == 0;
  if (!found) info = split(i, scratch, ud);
  ax_lapack_end(threads);
  if (!found) return info;
  for (int64_t k = 0; power && k < n; k++)
    ax_store_double(j->dtype, s, k, ldexp(ax_load_double(j->dtype, s, k), power));
  if (!j->vectors) return 0;
  multiply_back(j, &p);
  char *const u_out = j->q + (size_t)i * elements(j, (int64_t)j->m * (j->full ? j->m : j->k)),
              *const vt_out = j->s + (size_t)i * elements(j, (int64_t)(j->full ? j->n : j->k) * j->n);
  if (wide) {
    memcpy(u_out, p.vt, elements(j, (int64_t)n * n));
    ax_lapack_transpose(j->item, p.m, p.cols, p.left, vt_out);
  } else {
    memcpy(u_out, p.left, elements(j, p.m * p.cols));
    ax_lapack_transpose(j->item, n, n, p.vt, vt_out);
  }
  return 0;
}

/* The larger of what gesdd and gesvd want. */
static ax_status room_to_split(const ax_call *call, job *j)
{
  const double k = j->k;
  double answer[2] = { 0 }, other[2] = { 0 };
  int info, integer;
  const ax_status st = work_fits(call, j, 5 * k * k + 7 * k + 64.0 * ((double)j->m + j->n));

  if (st != AX_OK || j->k == 0) return st;
  call_svd(j, false, NULL, NULL, NULL, NULL, answer, -1, NULL, &integer, &info);
  call_svd(j, true, NULL, NULL, NULL, NULL, other, -1, NULL, &integer, &info);
  const int64_t first = ax_lapack_work(j->part, answer), second = ax_lapack_work(j->part, other);
  j->lwork = (int)(first > second ? first : second);
  return AX_OK;
}

/* The real numbers that gesdd and gesvd of complex matrices want beside their work space. */
static int64_t reals_to_split(const job *j)
{
  const int64_t k = j->k, most = j->most;
  if (!j->is_complex) return 0;
  if (!j->vectors) return 7 * k;
  return 5 * k * k + 5 * k > 2 * most * k + 2 * k * k + k ? 5 * k * k + 5 * k : 2 * most * k + 2 * k * k + k;
}

#define SVD_FAILED "did not converge: it is ill-conditioned or has too many equal singular values"

ax_status ax_cpu__linalg_svd(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  job j;
  ax_status st = begin(call, "gesdd", &j);

  if (st == AX_OK && j.is_complex) st = ax_lapack_function(call->op, j.dtype, "gesvd", &j.second);
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
  room(&j, 5, reals(&j, reals_to_split(&j)));
  /* a matrix that is much longer one way is reduced to a square one first, by LAPACK */
  if (j.is_complex || j.k < OWN_LEAST || j.most > j.k + j.k / 2)
    return each(call, x, 20, split, &j, "", SVD_FAILED);
  if ((st = ax_lapack_function(call->op, j.dtype, "bdsdc", &j.second)) != AX_OK) return st;
  j.dense = ax_dense_of(j.dtype);
  j.at[6] = j.end;
  j.end += own_of(&j, NULL).bytes;
  /* one matrix: all threads; of several, each is one thread's, as its part in LAPACK must be */
  return each_with(ax_matrices(x) > 1 ? ax_lapack_each : ax_dense_each, call, x, 20, split_own, &j, "",
                   SVD_FAILED);
}

/* ---- symmetric eigenvalues: dense.h's for large real matrices; scratch: its room, e.  LAPACK's
 * for
 * others; scratch: the matrix, work space, integers, real work space */

typedef void (*heevd_fn)(const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w,
                         void *work, const int *lwork, void *reals, const int *lrwork, int *iwork,
                         const int *liwork, int *info, size_t, size_t);
typedef void (*sterf_fn)(const int *n, void *d, void *e, int *info);

static void call_eigh(const job *j, char *a, char *values, void *work, int lwork, void *numbers, int lrwork,
                      int *integers, int liwork, int *info)
{
  const char *const wants = j->vectors ? "V" : "N", *const part = j->upper ? "U" : "L";
  const int ld = least(j->n);
  if (j->is_complex)
    ((heevd_fn)j->fn)(wants, part, &j->n, a, &ld, values, work, &lwork, numbers, &lrwork, integers, &liwork,
                      info, 1, 1);
  else j->lapack->syevd(wants, part, &j->n, a, &ld, values, work, &lwork, integers, &liwork, info, 1, 1);
}

/* The imaginary part of a number on the diagonal is not read. */
static bool finite_on_diagonal(const job *j, const char *a, int64_t at)
{
  return isfinite(ax_load_double(j->part, a, j->is_complex ? 2 * at : at));
}

/* The other triangle is not read: NaN may stand there. */
static bool finite_triangle(const job *j, const char *a)
{
  const int64_t n = j->n;
  for (int64_t row = 0; row < n; row++) {
    const int64_t from = j->upper ? row + 1 : 0, count = j->upper ? n - from : row;
    if (!finite_on_diagonal(j, a, row * (n + 1)) ||
        ax_lapack_not_finite(j->dtype, a + elements(j, row * n + from), count))
      return false;
  }
  return true;
}

static int decompose(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const int n = j->n;
  char *const values = j->q + (size_t)i * reals(j, n), *const vectors = j->r + (size_t)i * matrix(j);
  int info = 0;

  if (n == 0) return 0;
  if (!finite_triangle(j, j->a + (size_t)i * matrix(j))) return AX_NOT_FINITE;
  char *const a = load(j, i, scratch);
  call_eigh(j, a, values, scratch + j->at[1], j->lwork, scratch + j->at[3], j->lrwork,
            (int *)(scratch + j->at[2]), j->liwork, &info);
  if (j->vectors) ax_lapack_transpose(j->item, n, n, a, vectors);
  return info;
}

static int decompose_own(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const char *const a = j->a + (size_t)i * matrix(j);
  char *const values = j->q + (size_t)i * reals(j, j->n), *const e = scratch + j->at[1];
  int info = 0;

  if (!finite_triangle(j, a)) return AX_NOT_FINITE;
  const bool found = j->dense->symmetric(j->n, a, j->upper, values, e,
                                         j->vectors ? j->r + (size_t)i * matrix(j) : NULL, scratch);
  if (!found) return 1;
  if (!j->vectors) ((sterf_fn)j->fn)(&j->n, values, e, &info);
  return info;
}

#define EIGH_FAILED "did not converge: it is ill-conditioned or has too many equal eigenvalues"

static ax_status own_eigh(const ax_call *call, job *j)
{
  const ax_status st = ax_lapack_function(call->op, j->dtype, "sterf", &j->fn);
  if (st != AX_OK) return st;
  j->dense = ax_dense_of(j->dtype);
  room(j, 0, ax_dense_symmetric_room(j->dtype, j->n, j->vectors));
  room(j, 1, elements(j, j->n));
  return each_with(ax_dense_each, call, call->in[0], 10, decompose_own, j, "", EIGH_FAILED);
}

ax_status ax_cpu__linalg_eigh(const ax_call *call)
{
  double answer[2] = { 0 }, numbers = 0;
  int status;
  job j;
  ax_status st = begin(call, "heevd", &j);

  if (st != AX_OK) return st;
  j.upper = call->a->linalg_eigh.upper;
  j.vectors = call->a->linalg_eigh.vectors;
  j.q = ax_data(call->out[0]);
  j.r = ax_data(call->out[1]);
  if (!j.is_complex && j.n >= OWN_LEAST) return own_eigh(call, &j);
  if ((st = work_fits(call, &j, 2.0 * j.n * j.n + 70.0 * j.n + 1)) != AX_OK) return st;
  call_eigh(&j, NULL, NULL, answer, -1, &numbers, -1, &j.liwork, -1, &status);
  j.lwork = least((int)ax_lapack_work(j.part, answer));
  j.lrwork = least(j.is_complex ? (int)ax_lapack_work(j.part, &numbers) : 0);
  j.liwork = least(j.liwork);
  room(&j, 0, matrix(&j));
  room(&j, 1, elements(&j, j.lwork));
  room(&j, 2, sizeof(int) * (size_t)j.liwork);
  room(&j, 3, j.is_complex ? reals(&j, j.lrwork) : 0);
  return each(call, call->in[0], 10, decompose, &j, "", EIGH_FAILED);
}

/* ---- least squares; scratch: a, b (max(m, n) rows), work space, integers, singular values */

typedef void (*gels_fn)(const char *trans, const int *m, const int *n, const int *nrhs, void *a,
                        const int *lda, void *b, const int *ldb, void *work, const int *lwork, int *info,
                        size_t);
typedef void (*gelsy_fn)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
                         const int *ldb, int *jpvt, const void *rcond, int *rank, void *work,
                         const int *lwork, void *reals, int *info);
typedef void (*gelsd_fn)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
                         const int *ldb, void *s, const void *rcond, int *rank, void *work, const int *lwork,
                         void *reals, int *iwork, int *info);
typedef void (*gelss_fn)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
                         const int *ldb, void *s, const void *rcond, int *rank, void *work, const int *lwork,
                         void *reals, int *info);

static void run_complex_driver(const job *j, char *a, char *b, char *s, char *work, void *numbers,
                               int *integers, int *rank, int *info)
{
  const int lda = least(j->m), ldb = least(j->most), m = j->m, n = j->n, nrhs = j->nrhs;
  double rcond = 0;
  ax_store_double(j->part, &rcond, 0, j->rcond);
  switch (j->mode) {
  case AX_LSTSQ_GELS: ((gels_fn)j->fn)("N", &m, &n, &nrhs, a, &lda, b, &ldb, work, &j->lwork, info, 1); break;
  case AX_LSTSQ_GELSY:
    ((gelsy_fn)j->fn)(&m, &n, &nrhs, a, &lda, b, &ldb, integers, &rcond, rank, work, &j->lwork, numbers,
                      info);
    break;
  case AX_LSTSQ_GELSD:
    ((gelsd_fn)j->fn)(&m, &n, &nrhs, a, &lda, b, &ldb, s, &rcond, rank, work, &j->lwork, numbers, integers,
                      info);
    break;
  default:
    ((gelss_fn)j->fn)(&m, &n, &nrhs, a, &lda, b, &ldb, s, &rcond, rank, work, &j->lwork, numbers, info);
  }
}

static void run_driver(const job *j, char *a, char *b, char *s, char *work, void *numbers, int *integers,
                       int *rank, int *info)
{
  if (j->is_complex) {
    run_complex_driver(j, a, b, s, work, numbers, integers, rank, info);
    return;
  }

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
    return AX_NOT_FINITE;
  for (int64_t row = 0; row < m; row++)
    for (int64_t col = 0; col < nrhs; col++)
      memcpy(b + elements(j, col * j->most + row), from + elements(j, row * nrhs + col), j->item);
  memset(integers, 0, sizeof(int) * (size_t)n); /* gelsy: no column comes first */
  run_driver(j, load(j, i, scratch), b, scratch + j->at[4], scratch + j->at[2], scratch + j->at[5], integers,
             &rank, &info);
  for (int64_t row = 0; row < n; row++)
    for (int64_t col = 0; col < nrhs; col++)
      memcpy(to + elements(j, row * nrhs + col), b + elements(j, col * j->most + row), j->item);
  j->rank[i] = j->mode == AX_LSTSQ_GELS ? j->k : rank;
  if (j->mode == AX_LSTSQ_GELSD || j->mode == AX_LSTSQ_GELSS)
    memcpy(j->s + (size_t)i * reals(j, j->k), scratch + j->at[4], reals(j, j->k));
  return info;
}

ax_status ax_cpu__linalg_lstsq(const ax_call *call)
{
  const ax_tensor *a = call->in[0];
  static const char *const drivers[] = { [AX_LSTSQ_GELS] = "gels",
                                         [AX_LSTSQ_GELSY] = "gelsy",
                                         [AX_LSTSQ_GELSD] = "gelsd",
                                         [AX_LSTSQ_GELSS] = "gelss" };
  double answer[2] = { 0 }, numbers = 0;
  int status = 0, rank, integers = 0;
  job j;
  ax_status st = begin(call, drivers[call->a->linalg_lstsq.driver], &j);

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
  if (j.k > 0 && j.nrhs > 0)
    run_driver(&j, NULL, NULL, NULL, (char *)answer, &numbers, &integers, &rank, &status);
  j.lwork = least((int)ax_lapack_work(j.part, answer));
  j.lrwork = j.mode == AX_LSTSQ_GELSD ? (int)ax_lapack_work(j.part, &numbers) : 5 * j.most;
  if (j.mode != AX_LSTSQ_GELSD) integers = 0;
  room(&j, 0, matrix(&j));
  room(&j, 1, elements(&j, (int64_t)j.most * j.nrhs));
  room(&j, 2, elements(&j, j.lwork));
  room(&j, 3, sizeof(int) * (size_t)(integers > j.n ? integers : j.n));
  room(&j, 4, reals(&j, j.k));
  room(&j, 5, j.is_complex ? reals(&j, least(j.lrwork)) : 0);
  return each(call, a, 6, fit, &j, " or its right-hand side",
              "does not have full rank, or its singular values did not converge");
}
