/* var, std, norm and logsumexp: sums of a function of each element, in float64.  var and logsumexp
 * read their elements twice: first for a centre c (the mean, the maximum), then for the sum of (x -
 * c)^2 or exp(x - c). */
#include "reduce.cuh"

enum term { SUM, SQUARES, SIZES, COUNTS, EXPS, POWERS, TOP, WIDEST, LEAST };
enum ending { AS_IS, MEAN, TOP_OF, VARIANCE, DEVIATION, ADD_LOG, ROOT, ANY_ROOT };

/* O void: the result is the centre for a second pass, in float64. */
template <class O> struct moment {
  typedef double acc;
  term what;
  ending end;
  double number;   /* correction or power */
  double *centres; /* [results]: written by the first pass, read by the second; NULL: 0 */

  __device__ __forceinline__ bool chooses() const { return what >= TOP; }
  __device__ __forceinline__ acc start() const
  {
    return what == LEAST ? (double)INFINITY : chooses() ? -(double)INFINITY : 0.0;
  }
  template <class V> __device__ __forceinline__ double term_of(V v, double c) const
  {
    const double x = (double)v;
    switch (what) {
    case SQUARES: return (x - c) * (x - c);
    case SIZES:
    case WIDEST:
    case LEAST: return fabs(x);
    case COUNTS: return x != 0;
    case EXPS: return exp(x - c);
    case POWERS: return pow(fabs(x), number);
    default: return x;
    }
  }
  template <class V> __device__ __forceinline__ acc add(acc a, V v, int64_t, int64_t result) const
  {
    const bool about = what == SQUARES || what == EXPS;
    return join(a, term_of(v, about && centres ? centres[result] : 0.0));
  }
  __device__ __forceinline__ acc join(acc a, acc b) const
  {
    if (!chooses()) return a + b;
    if (a != a || b != b) return a != a ? a : b;
    return (what == LEAST ? b < a : b > a) ? b : a;
  }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t count, int64_t result) const
  {
    const double c = centres ? centres[result] : 0.0;
    switch (end) {
    case MEAN: centres[result] = a / (double)count; return;
    case TOP_OF: centres[result] = isinf(a) ? 0 : a; return; /* (-inf) - (-inf) would be NaN */
    case VARIANCE:
    case DEVIATION: {
      const double n = (double)count - number;
      a = a / (n > 0 ? n : 0) + c * 0; /* of no elements: NaN */
      if (end == DEVIATION) a = sqrt(a);
      break;
    }
    case ADD_LOG: a = c + log(a); break;
    case ROOT: a = sqrt(a); break;
    case ANY_ROOT: a = pow(a, 1 / number); break;
    default: break;
    }
    *(O *)out = ax_cuda_store<O>(a);
  }
};

static ax_status pass(const ax_call *call, term what, ending end, double number, double *centres)
{
  return ax_cuda_with_float(call->op, call->iter->op[1].dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const ax_status st = ax_cuda_reduces_to<S>(call);
    return st != AX_OK ? st : ax_cuda_reduce<S>(call, moment<S>{ what, end, number, centres });
  });
}

static ax_status two_passes(const ax_call *call, term first, ending centre, term second, ending end,
                            double number)
{
  const ax_device d = call->out[0]->device;
  const size_t bytes = (size_t)(call->out[0]->numel ? call->out[0]->numel : 1) * sizeof(double);
  double *centres;
  ax_status st = ax_cuda_take(d, bytes, (void **)&centres);
  if (st != AX_OK) return st;
  st = pass(call, first, centre, number, centres);
  if (st == AX_OK) st = pass(call, second, end, number, centres);
  ax_cuda_give(d, centres, bytes);
  return st;
}

AX_CUDA_KERNEL(var) { return two_passes(call, SUM, MEAN, SQUARES, VARIANCE, call->a->var.correction); }
AX_CUDA_KERNEL(std) { return two_passes(call, SUM, MEAN, SQUARES, DEVIATION, call->a->std.correction); }
AX_CUDA_KERNEL(logsumexp) { return two_passes(call, TOP, TOP_OF, EXPS, ADD_LOG, 0); }

AX_CUDA_KERNEL(norm)
{
  const double p = call->a->norm.p;
  if (p == 2) return pass(call, SQUARES, ROOT, 0, NULL);
  if (p == 1) return pass(call, SIZES, AS_IS, 0, NULL);
  if (p == 0) return pass(call, COUNTS, AS_IS, 0, NULL);
  if (isinf(p)) return pass(call, p > 0 ? WIDEST : LEAST, AS_IS, 0, NULL);
  return pass(call, POWERS, ANY_ROOT, p, NULL);
}
