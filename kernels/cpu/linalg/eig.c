/* Eigenvalues of matrices that are not symmetric, by dense.h's Schur form between LAPACK's
 * reduction to Hessenberg form and its eigenvectors of triangles; those of small or complex ones,
 * and L D L^T, by LAPACK.  See core/ops/factor.def. */
#include <limits.h>
#include <math.h>

#include "dense.h"
#include "lapack.h"

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

/* What our own Schur form leaves to LAPACK. */
typedef struct schur_functions {
  void (*gebal)(const char *, const int *n, void *a, const int *lda, int *lo, int *hi, void *scale, int *info,
                size_t);
  void (*gehrd)(const int *n, const int *lo, const int *hi, void *a, const int *lda, void *tau, void *work,
                const int *lwork, int *info);
  void (*orghr)(const int *n, const int *lo, const int *hi, void *a, const int *lda, const void *tau,
                void *work, const int *lwork, int *info);
  void (*trevc3)(const char *side, const char *which, const int *select, const int *n, const void *t,
                 const int *ldt, void *left, const int *, void *right, const int *, const int *room,
                 int *found, void *work, const int *lwork, int *info, size_t, size_t);
  void (*gebak)(const char *, const char *, const int *n, const int *lo, const int *hi, const void *scale,
                const int *m, void *v, const int *ldv, int *info, size_t, size_t);
  void *lanv2;
} schur_functions;

typedef struct job {
  schur_functions own;
  const ax_dense *dense;
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
  static void name(int64_t n, int64_t ld, const void *parts, const void *vectors, void *pairs, void *out) \
  { \
    const T *re = parts, *im = re + n, *right = vectors; \
    T *values = pairs, *columns = out; \
    for (int64_t c = 0; c < n; c++) values[2 * c] = re[c], values[2 * c + 1] = im[c]; \
    for (int64_t c = 0; columns && c < n; c++, columns += 2 * n) { \
      const T *real = right + (im[c] < 0 && c > 0 ? c - 1 : c) * ld, *imaginary = real + ld; \
      if (im[c] == 0 || imaginary == right + n * ld) \
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
  if (ax_lapack_not_finite(j->part, from, j->complex ? 2 * n * n : n * n)) return AX_NOT_FINITE;
  ax_lapack_transpose(j->item, n, n, from, scratch);
  call_geev(j, scratch, j->complex ? values : parts, parts + j->real * (size_t)n, right, scratch + j->at[3],
            j->lwork, parts, &info);
  if (info) return info > 0 ? info : 1;
  char *const columns = j->complex ? right : j->vectors ? scratch + j->at[4] : NULL;
  if (!j->complex) (j->part == AX_F64 ? spread_f64 : spread_f32)(n, n, parts, right, values, columns);
  if (j->vectors) ax_lapack_transpose(2 * j->real, n, n, columns, x);
  return 0;
}

/* ---- the same by dense.h's Schur form; scratch: the matrix; its vectors; both parts of the
 * values,
 * what balancing scaled, tau; work space; the complex vectors */

enum { OWN_LEAST = 48 }; /* rows; smaller matrices are faster in geev */

/* Column stride; never a power of 2, to avoid cache conflicts. */
static int64_t padded(int64_t n) { return (n + 2 * AX_DENSE_WIDE - 1) / AX_DENSE_WIDE * AX_DENSE_WIDE; }

/* a (n, n), row by row, as columns `ld` apart, times a power of 2 that keeps squares in range.
 * Returns the power.  `room`: (n, n). */
#define LOAD(name, T, FAR) \
  static int name(int64_t n, const T *a, T *to, int64_t ld, T *room) \
  { \
    T most = 0; \
    for (int64_t i = 0; i < n * n; i++) { \
      const T size = a[i] < 0 ? -a[i] : a[i]; \
      most = size > most ? size : most; \
    } \
    const ax_dense_scale scale = ax_dense_scale_of((double)most, FAR); \
    const T factor = (T)scale.first, again = (T)scale.second; \
    ax_lapack_transpose(sizeof(T), n, n, a, room); \
    memset(to, 0, sizeof(T) * (size_t)((n + 1) * ld)); \
    for (int64_t c = 0; c < n; c++) \
      for (int64_t r = 0; r < n; r++) to[c * ld + r] = room[c * n + r] * factor * again; \
    return scale.power; \
  }
LOAD(load_f32, float, 0x1p40)
LOAD(load_f64, double, 0x1p400)

/* Vectors of length 1; of a complex one, the largest element has no imaginary part (geev). */
#define NORMALISE(name, T) \
  static void name(int64_t n, const T *im, T *v, int64_t ld) \
  { \
    for (int64_t c = 0; c < n; c++, v += ld) { \
      T *const w = v + ld; \
      const bool pair = im[c] > 0 && c + 1 < n; \
      double sums[8] = { 0 }, sum = 0, most = -1, re = 1, imaginary = 0; \
      for (int64_t r = 0; r < n; r++) { \
        const double size = (double)v[r] * v[r] + (pair ? (double)w[r] * w[r] : 0); \
        sums[r % 8] += size; \
        if (size > most) most = size, re = v[r], imaginary = pair ? w[r] : 0; \
      } \
      for (int k = 0; k < 8; k++) sum += sums[k]; \
      const double length = sqrt(sum), root = hypot(re, imaginary); \
      if (!(length > 0)) continue; \
      if (!pair) { \
        for (int64_t r = 0; r < n; r++) v[r] = (T)(v[r] / length); \
        continue; \
      } \
      const T cos = (T)(re / root / length), sin = (T)(imaginary / root / length); \
      for (int64_t r = 0; r < n; r++) { \
        const T a = v[r], b = w[r]; \
        v[r] = cos * a + sin * b; \
        w[r] = (double)a == re && (double)b == imaginary ? 0 : cos * b - sin * a; \
      } \
      c++, v += ld; \
    } \
  }
NORMALISE(normalise_f32, float)
NORMALISE(normalise_f64, double)

static int decompose_own(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  const schur_functions *f = &j->own;
  const int n = j->n, ld = (int)padded(n);
  const bool wide = j->part == AX_F64;
  const char *const from = j->a + (size_t)i * matrix(j);
  char *const a = scratch, *const z = scratch + j->at[1], *const re = scratch + j->at[2],
              *const im = re + j->real * (size_t)n, *const work = scratch + j->at[3],
              *const scale = im + j->real * (size_t)n, *const tau = scale + j->real * (size_t)n,
              *const values = j->values + (size_t)i * 2 * j->real * (size_t)n,
              *const x = j->x + (size_t)i * 2 * j->real * (size_t)(n * n);
  const int which[1] = { 0 };
  int info = 0, lo, hi, found;

  if (ax_lapack_not_finite(j->part, from, (int64_t)n * n)) return AX_NOT_FINITE;
  const int power = wide ? load_f64(n, (const double *)from, (double *)a, ld, (double *)z)
                         : load_f32(n, (const float *)from, (float *)a, ld, (float *)z);
  f->gebal("B", &n, a, &ld, &lo, &hi, scale, &info, 1);
  f->gehrd(&n, &lo, &hi, a, &ld, tau, work, &j->lwork, &info);
  if (j->vectors) {
    memcpy(z, a, j->real * (size_t)((n + 1) * ld));
    f->orghr(&n, &lo, &hi, z, &ld, tau, work, &j->lwork, &info);
  }
  if (!j->dense->schur(n, lo - 1, hi - 1, a, ld, re, im, j->vectors ? z : NULL, f->lanv2)) return 1;
  char *columns = NULL;
  if (j->vectors) {
    f->trevc3("R", "B", which, &n, a, &ld, NULL, &ld, z, &ld, &n, &found, work, &j->lwork, &info, 1, 1);
    f->gebak("B", "R", &n, &lo, &hi, scale, &n, z, &ld, &info, 1, 1);
    if (wide) normalise_f64(n, (double *)im, (double *)z, ld);
    else normalise_f32(n, (float *)im, (float *)z, ld);
    columns = scratch + j->at[4];
  }
  (wide ? spread_f64 : spread_f32)(n, ld, re, z, values, columns);
  if (j->vectors) ax_lapack_transpose(2 * j->real, n, n, columns, x);
  for (int64_t k = 0; power && k < 2 * n; k++)
    ax_store_double(j->part, values, k, ldexp(ax_load_double(j->part, values, k), power));
  return info;
}

/* Whether the LAPACK of this system has all that decompose_own calls. */
static bool find_own(const ax_call *call, job *j)
{
  const struct {
    const char *name;
    void *place;
  } needed[] = { { "gebal", &j->own.gebal }, { "gehrd", &j->own.gehrd },   { "orghr", &j->own.orghr },
                 { "gebak", &j->own.gebak }, { "trevc3", &j->own.trevc3 }, { "lanv2", &j->own.lanv2 } };
  for (size_t k = 0; k < sizeof needed / sizeof *needed; k++)
    if (ax_lapack_function(call->op, j->part, needed[k].name, needed[k].place) != AX_OK) return false;
  j->dense = ax_dense_of(j->part);
  return true;
}

static void room_for_own(job *j)
{
  const size_t column = j->real * (size_t)padded(j->n);
  j->lwork = 140 * j->n + 65 * 64; /* blocks of gehrd and of trevc3 */
  room(j, 0, column * (size_t)(j->n + 1));
  room(j, 1, column * (size_t)(j->n + 1));
  room(j, 2, 4 * j->real * (size_t)j->n);
  room(j, 3, j->real * (size_t)j->lwork);
  room(j, 4, j->vectors ? 2 * matrix(j) : 0);
}

static void room_for_geev(job *j)
{
  double answer[2] = { 0 }, none[2] = { 0 };
  int status = 0;
  /* cgeev writes into `reals` during the query, too */
  call_geev(j, none, none, none, none, answer, -1, none, &status);
  j->lwork = (int)ax_lapack_work(j->part, answer);
  if (j->lwork < 4 * j->n) j->lwork = 4 * j->n;
  room(j, 0, matrix(j));
  room(j, 1, j->vectors ? matrix(j) : 0);
  room(j, 2, 2 * j->real * (size_t)j->n);
  room(j, 3, j->item * (size_t)j->lwork);
  room(j, 4, j->vectors && !j->complex ? 2 * matrix(j) : 0);
}

ax_status ax_cpu__linalg_eig(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t count = ax_matrices(x);
  int64_t bad;
  int info;
  job j;
  ax_status st = begin(call, "geev", &j);

  if (st != AX_OK) return st;
  j.vectors = call->a->linalg_eig.vectors;
  j.values = ax_data(call->out[0]);
  j.x = ax_data(call->out[1]);
  if (140.0 * j.n + 65 * 64 > INT_MAX)
    return ax_fail(AX_ESHAPE, "%s: a matrix of %d x %d needs more work space than LAPACK can count",
                   ax_op_shown(call->op), j.n, j.n);
  const bool own = !j.complex && j.n >= OWN_LEAST && find_own(call, &j);
  if (own) room_for_own(&j);
  else room_for_geev(&j);
  st = ax_lapack_try(ax_lapack_each, count, 25 * (int64_t)j.n * j.n * j.n * count, j.end,
                     own ? decompose_own : decompose, &j, &bad, &info);
  if (bad >= 0 && info == AX_NOT_FINITE)
    return ax_fail(AX_EINVAL, "%s: %s has elements that are not finite", ax_op_shown(call->op),
                   AX_PLACE(x, bad));
  if (bad >= 0)
    return ax_fail(AX_EINVAL, "%s: the eigenvalues of %s did not converge (LAPACK says %d)",
                   ax_op_shown(call->op), AX_PLACE(x, bad), info);
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
  int64_t bad;
  int info;
  job j;
  const bool turned = call->a->linalg_ldl_solve.hermitian && ax_is_complex((ax_dtype)x->dtype);
  ax_status st = begin(call, turned ? "hetrs" : "sytrs", &j);

  if (st != AX_OK) return st;
  j.k = (int)AX_COLS(call->in[2]);
  j.side = j.item * (size_t)j.n * (size_t)j.k;
  j.b = ax_data(call->in[2]);
  j.pivots_in = ax_data(call->in[1]);
  j.x = ax_data(call->out[0]);
  room(&j, 0, matrix(&j));
  room(&j, 1, j.side);
  st = ax_lapack_try(ax_lapack_each, count, 2 * (int64_t)j.n * j.n * j.k * count, j.end, solve_symmetric, &j,
                     &bad, &info);
  if (bad >= 0)
    return ax_fail(AX_ERANGE, "%s: the pivots of %s are none of ldl_factor's", ax_op_shown(call->op),
                   AX_PLACE(x, bad));
  return st;
}
