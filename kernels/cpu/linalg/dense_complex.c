/* The functions of dense.h for complex matrices: LAPACK's and the BLAS's.
 *
 * To Fortran a matrix that stands row by row is the transposed one.  Triangles and Cholesky's
 * factor are computed on that, as they stand; the others on a transposed copy in the room.
 *
 * Functions are looked up when a row opens the library, so before any of them is called. */
#include "dense_complex.h"

#include "lapack.h"

#include <pthread.h>

typedef void (*potrf_fn)(const char *uplo, const int *n, void *a, const int *lda, int *info, size_t);
typedef void (*getrf_fn)(const int *m, const int *n, void *a, const int *lda, int *pivots, int *info);
typedef void (*getri_fn)(const int *n, void *a, const int *lda, const int *pivots, void *work,
                         const int *lwork, int *info);
typedef void (*trsm_fn)(const char *side, const char *uplo, const char *trans, const char *diag, const int *m,
                        const int *n, const void *alpha, const void *a, const int *lda, void *b,
                        const int *ldb, size_t, size_t, size_t, size_t);
typedef void (*geqrf_fn)(const int *m, const int *n, void *a, const int *lda, void *tau, void *work,
                         const int *lwork, int *info);
typedef void (*unmqr_fn)(const char *side, const char *trans, const int *m, const int *n, const int *k,
                         const void *a, const int *lda, const void *tau, void *q, const int *ldq, void *work,
                         const int *lwork, int *info, size_t, size_t);

static struct functions {
  potrf_fn potrf;
  getrf_fn getrf;
  getri_fn getri;
  trsm_fn trsm;
  geqrf_fn geqrf;
  unmqr_fn unmqr;
} of[2]; /* complex64, complex128 */

enum { BLOCK = 64 }; /* LAPACK's blocks: work space for that many rows or columns */

static int least(int64_t n) { return n > 1 ? (int)n : 1; }

static size_t bytes(size_t item, int64_t rows, int64_t cols)
{
  return ax_lines(item * (size_t)rows * (size_t)cols);
}

/* to (cols, rows): a (rows, cols), whose rows are ld apart, transposed. */
static void turned(size_t item, int64_t rows, int64_t cols, const char *a, int64_t ld, char *to)
{
  if (ld == cols) {
    ax_lapack_transpose(item, rows, cols, a, to);
    return;
  }
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++)
      memcpy(to + item * (size_t)(j * rows + i), a + item * (size_t)(i * ld + j), item);
}

/* a (rows, cols), whose rows are ld apart: from (cols, rows) transposed. */
static void turned_back(size_t item, int64_t rows, int64_t cols, const char *from, char *a, int64_t ld)
{
  for (int64_t i = 0; ld != cols && i < rows; i++)
    for (int64_t j = 0; j < cols; j++)
      memcpy(a + item * (size_t)(i * ld + j), from + item * (size_t)(j * rows + i), item);
  if (ld == cols) ax_lapack_transpose(item, cols, rows, from, a);
}

/* op(a) x = b is x^T op(a)^T = b^T. */
static void triangular(const struct functions *f, const void *one, int64_t n, int64_t k, const void *a,
                       int64_t ld, bool upper, bool transposed, bool unit, void *b, int64_t b_row)
{
  const int rows = (int)k, cols = (int)n, lda = least(ld), ldb = least(b_row);
  if (n > 0 && k > 0)
    f->trsm("R", upper ? "L" : "U", transposed ? "T" : "N", unit ? "U" : "N", &rows, &cols, one, a, &lda, b,
            &ldb, 1, 1, 1, 1);
}

static int lu(const struct functions *f, size_t item, int64_t m, int64_t n, void *a, int64_t ld, int *pivots,
              char *room)
{
  const int rows = (int)m, cols = (int)n, lda = least(m);
  int info = 0;
  if (m == 0 || n == 0) return 0;
  turned(item, m, n, a, ld, room);
  f->getrf(&rows, &cols, room, &lda, pivots, &info);
  turned_back(item, m, n, room, a, ld);
  return info;
}

static void inverse(const struct functions *f, size_t item, int64_t n, const void *lu, const int *pivots,
                    void *x, char *room)
{
  const int size = (int)n, lda = least(n), lwork = BLOCK * least(n);
  int info = 0;
  turned(item, n, n, lu, n, room);
  f->getri(&size, room, &lda, pivots, room + bytes(item, n, n), &lwork, &info);
  turned_back(item, n, n, room, x, n);
}

/* conj(a) = U^H U, so a = U^T conj(U): to Fortran, a's lower triangle is conj(a)'s upper one. */
static int cholesky(const struct functions *f, int64_t n, void *a, int64_t ld)
{
  const int size = (int)n, lda = least(ld);
  int info = 0;
  if (n > 0) f->potrf("U", &size, a, &lda, &info, 1);
  return info;
}

static void qr(const struct functions *f, size_t item, int64_t m, int64_t n, void *a, int64_t ld, void *tau,
               char *room)
{
  const int rows = (int)m, cols = (int)n, lda = least(m), lwork = BLOCK * least(n);
  int info = 0;
  if (m == 0 || n == 0) return;
  turned(item, m, n, a, ld, room);
  f->geqrf(&rows, &cols, room, &lda, tau, room + bytes(item, m, n), &lwork, &info);
  turned_back(item, m, n, room, a, ld);
}

/* Q q, or Q^H q. */
static void reflect(const struct functions *f, size_t item, int64_t m, int64_t k, const void *a, int64_t ld,
                    const void *tau, bool transposed, int64_t cols, void *q, int64_t q_row, char *room)
{
  const int rows = (int)m, width = (int)cols, count = (int)k, lda = least(m), lwork = BLOCK * least(cols);
  char *const own = room + bytes(item, m, k), *const work = own + bytes(item, m, cols);
  int info = 0;
  if (m == 0 || cols == 0 || k == 0) return;
  turned(item, m, k, a, ld, room);
  turned(item, m, cols, q, q_row, own);
  f->unmqr("L", transposed ? "C" : "N", &rows, &width, &count, room, &lda, tau, own, &lda, work, &lwork,
           &info, 1, 1);
  turned_back(item, m, cols, own, q, q_row);
}

/* ---- the tables */

#define FUNCTIONS(S, at, item, ONE) \
  static void triangular_##S(int64_t n, int64_t k, const void *a, int64_t ld, bool upper, bool transposed, \
                             bool unit, void *b, int64_t b_row, void *room) \
  { \
    (void)room; \
    triangular(&of[at], ONE, n, k, a, ld, upper, transposed, unit, b, b_row); \
  } \
  static int lu_##S(int64_t m, int64_t n, void *a, int64_t ld, int *pivots, void *room) \
  { \
    return lu(&of[at], item, m, n, a, ld, pivots, room); \
  } \
  static void inverse_##S(int64_t n, void *factors, const int *pivots, void *x, void *room) \
  { \
    inverse(&of[at], item, n, factors, pivots, x, room); \
  } \
  static int cholesky_##S(int64_t n, void *a, int64_t ld, void *room) \
  { \
    (void)room; \
    return cholesky(&of[at], n, a, ld); \
  } \
  static void qr_##S(int64_t m, int64_t n, void *a, int64_t ld, void *tau, void *room) \
  { \
    qr(&of[at], item, m, n, a, ld, tau, room); \
  } \
  static void reflect_##S(int64_t m, int64_t k, const void *a, int64_t ld, const void *tau, bool transposed, \
                          bool identity, int64_t cols, void *q, int64_t q_row, void *room) \
  { \
    (void)identity; \
    reflect(&of[at], item, m, k, a, ld, tau, transposed, cols, q, q_row, room); \
  }
FUNCTIONS(c64, 0, 8, ((const float[2]){ 1, 0 }))
FUNCTIONS(c128, 1, 16, ((const double[2]){ 1, 0 }))

#define TABLE(S) \
  { \
    .triangular = triangular_##S, .lu = lu_##S, .inverse = inverse_##S, .cholesky = cholesky_##S, \
    .qr = qr_##S, .reflect = reflect_##S \
  }

const ax_dense *ax_dense_complex_of(ax_dtype dtype)
{
  static const ax_dense tables[2] = { TABLE(c64), TABLE(c128) };
  return &tables[dtype == AX_C128];
}

size_t ax_dense_complex_room(ax_dtype dtype, int64_t rows, int64_t cols)
{
  const size_t item = ax_dtype_size(dtype);
  const int64_t most = rows > cols ? rows : cols;
  return 2 * bytes(item, rows, cols) + bytes(item, BLOCK, most > 1 ? most : 1) + 128;
}

ax_status ax_dense_complex_open(ax_op op, ax_dtype dtype)
{
  struct functions *const f = &of[dtype == AX_C128];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  ax_status st = AX_OK;
  const struct {
    const char *name;
    void *place;
  } wanted[] = { { "potrf", &f->potrf }, { "getrf", &f->getrf }, { "getri", &f->getri },
                 { "trsm", &f->trsm },   { "geqrf", &f->geqrf }, { "unmqr", &f->unmqr } };

  pthread_mutex_lock(&lock);
  for (size_t i = 0; !f->unmqr && st == AX_OK && i < sizeof wanted / sizeof *wanted; i++)
    st = ax_lapack_function(op, dtype, wanted[i].name, wanted[i].place);
  pthread_mutex_unlock(&lock);
  return st;
}
