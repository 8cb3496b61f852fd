/* Distances of all pairs of rows, |x_i - y_j|_p, and their gradient, in the tensors' own type.
 *
 * The differences are exact where rows are near each other, which a product of matrices is not.
 * Forward, a vector holds the distances of one row of x to neighbouring rows of y, which are turned
 * for it; back, it holds neighbouring numbers of one row.  A row of the result is one thread's, and
 * its sums have one order; each slice is added up by itself, so that sums of long rows keep their
 * digits. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "vector.h"

enum { VECS = 4, SLICE = 128, ROWS = 16 };

typedef int32_t mask_f32 __attribute__((vector_size(AX_BYTES), aligned(4), may_alias));
typedef int64_t mask_f64 __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));

#define T float
#define V ax_vec_f32
#define MASK mask_f32
#define FN(name) name##_f32
#define FMA AX_VFMA_f32
#define POW powf
#define SQRT sqrtf
#define STRANGE(v) (!((v) >= 0x1p-90f && (v) <= 0x1p100f)) /* also 0 and what is not finite */
#include "distance_of.h"
#undef T
#undef V
#undef MASK
#undef FN
#undef FMA
#undef POW
#undef SQRT

#define T double
#define V ax_vec_f64
#define MASK mask_f64
#define FN(name) name##_f64
#define FMA AX_VFMA_f64
#define POW pow
#define SQRT sqrt
#define STRANGE(v) ((v) == 0) /* of the gradient, whose w is 0 then */
#include "distance_of.h"

ax_status ax_cpu__distance_cdist(const ax_call *call)
{
  if (call->out[0]->numel == 0) return AX_OK;
  return call->in[0]->dtype == AX_F64 ? forward_f64(call) : forward_f32(call);
}

ax_status ax_cpu__distance_cdist_backward(const ax_call *call)
{
  if (call->in[1]->numel == 0) return AX_OK;
  return call->in[1]->dtype == AX_F64 ? backward_f64(call) : backward_f32(call);
}
