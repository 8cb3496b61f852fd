/* What layer_norm, rms_norm and group_norm (norm.cu) share with their gradients
 * (norm_backward.cu): the rows of a call. */
#ifndef AX_CUDA_NORM_H
#define AX_CUDA_NORM_H

#include "rows.cuh"

/* The most elements of a row that a thread keeps in registers. */
enum { NORM_HELD = 32 };

struct norm_job {
  int64_t rows, n;          /* n: elements of a row */
  int64_t groups, channels; /* group_norm: a row is `channels` runs of `plane` elements; else groups is 0 */
  int64_t plane;
  double eps;
  bool centred;
};

/* The index of the weight for element i of row r. */
static __device__ __forceinline__ int64_t norm_parameter_at(const norm_job &j, int64_t r, int64_t i)
{
  if (!j.groups) return i;
  return r % j.groups * j.channels +
         (j.n < INT64_C(1) << 31 ? (int64_t)((uint32_t)i / (uint32_t)j.plane) : i / j.plane);
}

/* The sizes of a job over x; groups 0: over the last `last` dims. */
static inline norm_job norm_plan(const ax_tensor *x, int last, int64_t groups)
{
  norm_job j = {};
  j.rows = j.n = j.channels = j.plane = 1;
  j.groups = groups;
  if (groups) {
    for (int d = 2; d < x->ndim; d++) j.plane *= x->shape[d];
    j.rows = x->shape[0] * groups;
    j.channels = x->shape[1] / groups;
    j.n = j.plane * j.channels;
  } else
    for (int d = 0; d < x->ndim; d++) *(d < x->ndim - last ? &j.rows : &j.n) *= x->shape[d];
  return j;
}

#endif
