/* Dense matrices row by row: products, triangles, LU, Cholesky and QR of our own, in float32 and
 * float64.
 *
 * The factorisations are LAPACK's blocked ones, with our threads inside the products and the same
 * order of additions for any number of them.  Where a function takes a `room`, it is scratch memory
 * of ax_dense_room bytes, aligned to 64, that no other thread uses meanwhile. */
#ifndef AX_CPU_DENSE_H
#define AX_CPU_DENSE_H

#include "cpu/cpu.h"

#include <math.h>

#define AX_DENSE_FEW 16   /* rows of the matrices that lu factorises one column after the other */
#define AX_DENSE_NARROW 4 /* this few sides are solved one by one */
#define AX_DENSE_WIDE 16  /* elements of every type fill whole vectors */

/* What a product does with its result. */
enum { AX_DENSE_SET, AX_DENSE_ADD, AX_DENSE_SUB };

typedef struct ax_dense {
  /* c (m, n) =, += or -= a (m, k) x b (k, n).  Row and column steps are in elements and may be
   * negative; c's columns are adjacent. */
  void (*product)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_col, const void *b,
                  int64_t b_row, int64_t b_col, void *c, int64_t c_row, int how, void *room);
  /* b (n, k) becomes x with a x = b, or a^T x = b.  The other triangle of a, and with `unit` the
   * diagonal, is not read. */
  void (*triangular)(int64_t n, int64_t k, const void *a, int64_t ld, bool upper, bool transposed, bool unit,
                     void *b, int64_t b_row, void *room);
  /* P L U = a, in place.  pivots: [min(m, n)], row i was swapped with row pivots[i] - 1.  Returns
   * 0, or the number (from 1) of the first zero on U's diagonal. */
  int (*lu)(int64_t m, int64_t n, void *a, int64_t ld, int *pivots, void *room);
  /* x (n, n) = the inverse, from lu's results; lu is overwritten. */
  void (*inverse)(int64_t n, void *lu, const int *pivots, void *x, void *room);
  /* The lower triangle of a becomes L with L L^T = a; the other one is overwritten.  Returns 0, or
   * the order of the first leading minor that is not positive. */
  int (*cholesky)(int64_t n, void *a, int64_t ld, void *room);
  /* Q R = a: R from the diagonal on, and below it the vectors of the reflections
   * I - tau v v^T, whose element on the diagonal is 1; tau: [min(m, n)]. */
  void (*qr)(int64_t m, int64_t n, void *a, int64_t ld, void *tau, void *room);
  /* q (m, cols) becomes Q q, or Q^T q, for the reflections in the first k columns of a.
   * `identity`: q is the identity, whose zeros are not multiplied. */
  void (*reflect)(int64_t m, int64_t k, const void *a, int64_t ld, const void *tau, bool transposed,
                  bool identity, int64_t cols, void *q, int64_t q_row, void *room);
  /* Up to `lanes` systems at once, adjacent, of n <= AX_DENSE_FEW unknowns.  lu_few: lu of each of
   * `count` matrices, n > 0.  Returns a bit for each that only lu can factorise: a singular one, or
   * one with numbers that are not finite.  solve_few: with such factors and k <= AX_DENSE_NARROW
   * sides, b (n, k) of each becomes x. */
  int lanes;
  uint32_t (*lu_few)(int64_t count, int64_t n, const void *a, void *lu, int *pivots);
  void (*solve_few)(int64_t count, int64_t n, int64_t k, const void *lu, const int *pivots, void *b);
  /* values (n), ascending, and vectors (n, n), one a column: those of x (n, n), whose lower
   * triangle alone is read, or its upper one.  Without vectors, values and e (n - 1) are a
   * tridiagonal matrix with x's eigenvalues.  memory: ax_dense_symmetric_room.  Returns whether it
   * converged. */
  bool (*symmetric)(int64_t n, const void *x, bool upper, void *values, void *e, void *vectors, void *memory);
  /* The Schur form of h (n, n), whose rows and columns lo .. hi are Hessenberg and whose others are
   * triangular: h becomes it, z (n, n) is multiplied by its vectors, re and im (n) are the
   * eigenvalues.  z: NULL where they alone are sought; h is of no use then.  Column by column, as
   * in LAPACK, whose lanv2 is given; ld: a multiple of AX_DENSE_WIDE, as many finite numbers stand
   * behind both matrices.  Returns whether it converged. */
  bool (*schur)(int64_t n, int64_t lo, int64_t hi, void *h, int64_t ld, void *re, void *im, void *z,
                void *lanv2);
  /* Q^T a P of a (m, n), m >= n, is upper bidiagonal: d (n) and e (n - 1).  Row by row, `ld` apart,
   * a multiple of AX_DENSE_WIDE, with zeros behind column n.  Q's reflections are in a as qr()
   * leaves them, with tau_q (n); those of P are in the rows of a, from one column right of the
   * diagonal on, with tau_p (n).  panel: ax_dense_bidiagonal_panel bytes. */
  void (*bidiagonal)(int64_t m, int64_t n, void *a, int64_t ld, void *d, void *e, void *tau_q, void *tau_p,
                     void *panel, void *room);
} ax_dense;

const ax_dense *ax_dense_of(ax_dtype dtype);

/* For matrices, sides included, of at most `rows` and `cols`. */
size_t ax_dense_room(ax_dtype dtype, int64_t rows, int64_t cols);
size_t ax_dense_symmetric_room(ax_dtype dtype, int64_t n, bool vectors);
size_t ax_dense_bidiagonal_panel(ax_dtype dtype, int64_t m, int64_t ld);

/* How a matrix is scaled whose squares could leave the type's range: its elements times `first`
 * times `second`, which are in range each, are elements / 2^power. */
typedef struct ax_dense_scale {
  int power;
  double first, second;
} ax_dense_scale;

/* most: the largest element; sizes between 1 / far and far stay as they are. */
static inline ax_dense_scale ax_dense_scale_of(double most, double far)
{
  int power = 0;
  if (most > far || (most > 0 && most < 1 / far)) (void)frexp(most, &power);
  return (ax_dense_scale){ power, ldexp(1, -power / 2), ldexp(1, -power - -power / 2) };
}

#endif
