/* Batched products for C and CUDA: the walk over their leading dims. */
#ifndef AX_BATCHED_MATMUL_H
#define AX_BATCHED_MATMUL_H

#include "plugin.h"

/* c (.., m, n) = a (.., m, k) x b (.., k, n), with leading dims of any strides, broadcast against
 * each other.  Leading dims are merged as far as all three operands have even steps.  The innermost
 * of the merged dims is the batch of one call; the others, shape[0 .. n - 1] with steps in
 * elements, are walked. */
typedef struct ax_batched_matmul {
  int n;
  int64_t calls, batch;
  /* at index n: the batch and its steps */
  int64_t shape[AX_MAX_DIMS], a[AX_MAX_DIMS], b[AX_MAX_DIMS], c[AX_MAX_DIMS];
} ax_batched_matmul;

static inline ax_batched_matmul ax_batched_matmul_of(const ax_tensor *a, const ax_tensor *b,
                                                     const ax_tensor *c)
{
  ax_batched_matmul s;
  int n = 0;

  s.shape[0] = 1, s.a[0] = s.b[0] = s.c[0] = 0;
  for (int d = 0; d < c->ndim - 2; d++) {
    const int da = d - (c->ndim - a->ndim), db = d - (c->ndim - b->ndim);
    const int64_t ta = da < 0 || a->shape[da] == 1 ? 0 : a->strides[da],
                  tb = db < 0 || b->shape[db] == 1 ? 0 : b->strides[db], tc = c->strides[d];
    if (c->shape[d] == 1) continue;
    if (n && s.a[n - 1] == ta * c->shape[d] && s.b[n - 1] == tb * c->shape[d] &&
        s.c[n - 1] == tc * c->shape[d])
      n--;
    else s.shape[n] = 1;
    s.shape[n] *= c->shape[d];
    s.a[n] = ta, s.b[n] = tb, s.c[n] = tc;
    n++;
  }
  s.n = n ? n - 1 : 0;
  s.batch = s.shape[s.n];
  s.calls = 1;
  for (int d = 0; d < s.n; d++) s.calls *= s.shape[d];
  return s;
}

/* The offsets of call p, in elements. */
static inline void ax_batched_matmul_at(const ax_batched_matmul *s, int64_t p, int64_t *a, int64_t *b,
                                        int64_t *c)
{
  *a = *b = *c = 0;
  for (int d = s->n - 1; d >= 0; d--) {
    const int64_t i = p % s->shape[d];
    p /= s->shape[d];
    *a += i * s->a[d], *b += i * s->b[d], *c += i * s->c[d];
  }
}

/* Rewrites steps (batch, row, column) as libraries expect them: a dim of size 1 steps as in a
 * contiguous matrix. */
static inline void ax_tidy_steps(int64_t rows, int64_t cols, int64_t *step)
{
  if (cols == 1) step[2] = 1;
  if (rows == 1) step[1] = step[2] == 1 ? cols : 1;
}

/* Whether a BLAS accepts the matrix: one dim is adjacent, and the other one does not overlap. */
static inline bool ax_blas_takes(int64_t rows, int64_t cols, const int64_t *step)
{
  return step[0] >= 0 && ((step[2] == 1 && step[1] >= cols) || (step[1] == 1 && step[2] >= rows));
}

#endif
