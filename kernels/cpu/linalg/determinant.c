/* Determinants, their logarithms and cofactors: see core/ops/factor.def.  LU by dense.h, row by
 * row; LAPACK serves the cofactors of singular matrices. */
#include "factor.h"

#include <complex.h>
#include <math.h>

typedef ax_factor_job job;

static int least(int n) { return n > 1 ? n : 1; } /* a leading dimension is at least 1 */

/* ---- determinant */

/* The diagonal's element r, in double. */
static double diagonal(const job *j, const char *a, int r)
{
  return ax_load_double(j->dtype, a, (int64_t)r * (j->n + 1));
}

/* ax_factor_group of copies behind the room: the factors, their pivots, whether they are
 * singular. */
static char *factor_copies(const job *j, int64_t i, char *scratch, int **pivots)
{
  char *const lu = scratch + j->room;
  int *const info = (int *)(lu + ax_lines((size_t)j->group * ax_factor_matrix(j)));
  *pivots = info + j->group;
  ax_factor_group(j, i, lu, *pivots, info, scratch);
  return lu;
}
static size_t room_for_copies(const job *j)
{
  return j->room + ax_lines((size_t)j->group * ax_factor_matrix(j)) +
         sizeof(int) * (size_t)j->group * (size_t)(j->n + 1);
}

static double sign_of_swaps(const job *j, const int *pivots)
{
  double sign = 1;
  for (int r = 0; r < j->n; r++)
    if (pivots[r] != r + 1) sign = -sign;
  return sign;
}

/* Products of two such numbers stay in the range. */
static bool is_near_1(double v) { return fabs(v) > 0x1p-500 && fabs(v) < 0x1p500; }

/* The product is formed as mantissa and exponent where it would leave the range on the way. */
static double product(const job *j, const char *lu, double sign)
{
  double value = sign;
  int64_t exponent = 0;
  for (int r = 0; r < j->n; r++) {
    const double d = diagonal(j, lu, r), next = value * d;
    int e = 0;
    if (is_near_1(d) && is_near_1(next)) {
      value = next;
      continue;
    }
    value = frexp(value, &e);
    exponent += e;
    value = frexp(value * d, &e);
    exponent += e;
  }
  const int e = exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : (int)exponent;
  return e ? ldexp(value, e) : value;
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
  int *pivots;
  const char *lu = factor_copies(j, i, scratch, &pivots);
  for (int64_t t = ax_factor_first(j, i), until = t + ax_factor_of(j, i); t < until;
       t++, lu += ax_factor_matrix(j), pivots += j->n) {
    const double sign = sign_of_swaps(j, pivots);
    if (j->is_complex) store_number(j, j->x, t, complex_product(j, lu, sign));
    else ax_store_double(j->dtype, j->x, t, product(j, lu, sign));
  }
  return 0;
}

ax_status ax_cpu__linalg_det(const ax_call *call)
{
  job j;
  const ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  return ax_dense_each(ax_factor_groups(&j), ax_factor_cube(&j) * j.count, room_for_copies(&j), determine, &j,
                       NULL);
}

/* Of matrix t. */
static void log_determinant(const job *j, int64_t t, const char *lu, double sign)
{
  double sum = 0;
  if (j->is_complex) {
    double complex turn = sign;
    for (int r = 0; r < j->n; r++) {
      const double complex d = number(j, lu, (int64_t)r * (j->n + 1));
      sum += log(cabs(d));
      turn *= d == 0 ? 0 : d / cabs(d);
    }
    store_number(j, j->x, t, turn);
    ax_store_double(ax_part_dtype(j->dtype), j->lu, t, sum);
    return;
  }
  for (int r = 0; r < j->n; r++) {
    const double d = diagonal(j, lu, r);
    sum += log(fabs(d));
    sign *= d > 0 ? 1 : d < 0 ? -1 : d; /* 0, or NaN */
  }
  ax_store_double(j->dtype, j->x, t, sign);
  ax_store_double(j->dtype, j->lu, t, sum);
}

static int log_determine(int64_t i, char *scratch, const void *ud)
{
  const job *j = ud;
  int *pivots;
  const char *lu = factor_copies(j, i, scratch, &pivots);
  for (int64_t t = ax_factor_first(j, i), until = t + ax_factor_of(j, i); t < until;
       t++, lu += ax_factor_matrix(j), pivots += j->n)
    log_determinant(j, t, lu, sign_of_swaps(j, pivots));
  return 0;
}

ax_status ax_cpu__linalg_slogdet(const ax_call *call)
{
  job j;
  const ax_status st = ax_factor_begin(call, &j);
  if (st != AX_OK) return st;
  j.lu = ax_data(call->out[1]);
  return ax_dense_each(ax_factor_groups(&j), ax_factor_cube(&j) * j.count, room_for_copies(&j), log_determine,
                       &j, NULL);
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
    ax_factor_lu(j, n, n, unitary, pivots, room);
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
  ax_factor_lu(j, j->n, j->n, orthogonal, pivots, room);
  for (int r = 0; r < j->n; r++) sign *= (pivots[r] == r + 1) == (diagonal(j, orthogonal, r) > 0) ? 1 : -1;
  return sign;
}

static int cofactors_of_singular(const cofactor_job *c, int64_t i, char *scratch)
{
  const job *j = &c->j;
  const int n = j->n;
  char *const u = scratch + c->at.u, *const vt = scratch + c->at.vt, *const s = scratch + c->at.s,
              *const x = j->x + (size_t)i * ax_factor_matrix(j);
  char *const copy = scratch + j->room;
  int info = 0;

  memcpy(copy, j->a + (size_t)i * ax_factor_matrix(j), ax_factor_matrix(j));
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
  char *const x = j->x + (size_t)i * ax_factor_matrix(j);
  int *pivots;

  if (n == 0) return 0;
  const char *const lu = factor_copies(j, i, scratch, &pivots);
  const double sign = sign_of_swaps(j, pivots), det = j->is_complex ? 0 : product(j, lu, sign);
  const double complex z = j->is_complex ? complex_product(j, lu, sign) : 0;
  if (ax_factor_invert(j, j->a + (size_t)i * ax_factor_matrix(j), scratch + c->at.u, scratch))
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
  ax_status st = ax_factor_begin(call, &c.j);

  if (st != AX_OK || (st = ax_lapack_open(call->op, c.j.dtype, &c.j.lapack)) != AX_OK) return st;
  if (c.j.is_complex && (st = ax_lapack_function(call->op, c.j.dtype, "gesvd", &c.gesvd)) != AX_OK) return st;
  const ax_dtype part = c.j.is_complex ? ax_part_dtype(c.j.dtype) : c.j.dtype;
  const int n = c.j.n;
  call_gesvd(&c, NULL, NULL, NULL, NULL, answer, -1, NULL, &info);
  c.at.lwork = (int)ax_lapack_work(part, answer);
  c.j.group = 1;
  const size_t copies = room_for_copies(&c.j), invert = ax_factor_room_to_invert(&c.j);
  c.at.u = ax_lines(copies > invert ? copies : invert);
  c.at.vt = c.at.u + ax_lines(ax_factor_matrix(&c.j));
  c.at.s = c.at.vt + ax_lines(ax_factor_matrix(&c.j));
  c.at.reals = c.at.s + ax_lines(c.j.item * (size_t)n);
  c.at.work = c.at.reals + ax_lines(c.j.is_complex ? c.j.item * 5 * (size_t)n : 0);
  return ax_lapack_each(count, 4 * ax_factor_cube(&c.j) * count, c.at.work + c.j.item * (size_t)c.at.lwork,
                        cofactors, &c, NULL);
}
