/* What factorisations and solutions (factor.c) share with determinants (determinant.c): the call,
 * and LU. */
#ifndef AX_CPU_FACTOR_H
#define AX_CPU_FACTOR_H

#include "dense_complex.h"
#include "lapack.h"

typedef struct ax_factor_job {
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
  int *pivots, *info;
  int64_t count; /* of matrices */
  int group;     /* how many are factorised at once */
} ax_factor_job;

/* Reads call->in[0] and call->out[0]. */
ax_status ax_factor_begin(const ax_call *call, ax_factor_job *j);
/* Factorises `a` in place.  A NaN would lead the search for pivots astray: all of the result is NaN
 * then. */
int ax_factor_lu(const ax_factor_job *j, int m, int n, char *a, int *pivots, char *room);
/* Matrices of group i, at most j->group of them: the first, and how many. */
static inline int64_t ax_factor_first(const ax_factor_job *j, int64_t i) { return i * j->group; }
static inline int64_t ax_factor_of(const ax_factor_job *j, int64_t i)
{
  const int64_t left = j->count - i * j->group;
  return left < j->group ? left : j->group;
}
static inline int64_t ax_factor_groups(const ax_factor_job *j)
{
  return (j->count + j->group - 1) / j->group;
}
/* lu, pivots and info of each matrix (n, n) of group i. */
void ax_factor_group(const ax_factor_job *j, int64_t i, char *lu, int *pivots, int *info, char *room);
/* x = a^-1.  scratch: ax_factor_room_to_invert bytes. */
int ax_factor_invert(const ax_factor_job *j, const char *a, char *x, char *scratch);

static inline int64_t ax_factor_cube(const ax_factor_job *j)
{
  return (int64_t)j->m * j->n * (j->m < j->n ? j->m : j->n);
}
static inline size_t ax_factor_matrix(const ax_factor_job *j)
{
  return j->item * (size_t)j->m * (size_t)j->n;
}
static inline size_t ax_factor_pivots(const ax_factor_job *j) { return ax_lines(sizeof(int) * (size_t)j->n); }
static inline size_t ax_factor_room_to_invert(const ax_factor_job *j)
{
  return j->room + ax_factor_pivots(j) + ax_lines(ax_factor_matrix(j));
}

#endif
