/* A contiguous tensor seen as (outer, n, inner), where n is one of its dims. */
#ifndef AX_AROUND_H
#define AX_AROUND_H

typedef struct ax_around {
  int64_t outer, n, inner;
} ax_around;

static inline ax_around ax_around_dim(const ax_tensor *x, int64_t dim)
{
  ax_around s = { 1, 1, 1 };
  for (int d = 0; d < x->ndim; d++)
    if (d < dim) s.outer *= x->shape[d];
    else if (d == dim) s.n = x->shape[d];
    else s.inner *= x->shape[d];
  return s;
}

#endif
