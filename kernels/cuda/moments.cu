/* var, std, norm and logsumexp: sums of a function of each element.
 *
 * float64, and norm in all types, add in float64.  var and logsumexp of the other types use no
 * float64 for an element, which most GPUs compute at 1/32 or 1/64 of float32's rate:
 *
 *   var         reads twice: for the mean, kept as a sum of two floats, then for the squares about
 *               it.  A square is off by 5 units of 2^-24 at most; sums carry their rounding errors
 *               along (below), so var is off by 6 such units, whatever the number of elements and
 *               however large the mean is beside the deviation.
 *   logsumexp   reads once, under a top that rises in whole numbers.  The sum of exponentials is
 *               off by 10 units of 2^-24, and so is its log, absolutely. */
#include "reduce.cuh"

enum term { SUM, SQUARES, SIZES, COUNTS, EXPS, POWERS, TOP, WIDEST, LEAST };
enum ending { AS_IS, MEAN, TOP_OF, VARIANCE, DEVIATION, ADD_LOG, ROOT, ANY_ROOT };

/* Called, not inlined: float64's exp and pow are hundreds of instructions, and a kernel has a copy
 * of its element's function for each element of a run and each step of an unrolled loop. */
AX_CUDA_CALLED double power_of(double x, double p) { return pow(x, p); }
AX_CUDA_CALLED double exp_of(double x) { return exp(x); }

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
    case EXPS: return exp_of(x - c);
    case POWERS: return power_of(fabs(x), number);
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
    case ANY_ROOT: a = power_of(a, 1 / number); break;
    default: break;
    }
    *(O *)out = ax_cuda_store<O>(a);
  }
};

/* ---- float32 and the half types */

/* The sum of two floats: hi is it rounded, lo what that leaves. */
struct two_floats {
  float hi, lo;
};

/* Knuth's sum of two numbers: what rounding takes from hi goes to lo. */
static __device__ __forceinline__ two_floats plus(two_floats a, float b)
{
  const float s = a.hi + b, part = s - a.hi;
  return two_floats{ s, a.lo + ((a.hi - (s - part)) + (b - part)) };
}
static __device__ __forceinline__ two_floats plus(two_floats a, two_floats b)
{
  const two_floats s = plus(a, b.hi);
  return two_floats{ s.hi, s.lo + b.lo };
}
/* Of infinite sums lo is NaN. */
static __device__ __forceinline__ double value_of(two_floats a)
{
  return isinf(a.hi) ? (double)a.hi : (double)a.hi + (double)a.lo;
}

/* The mean as two floats, for the second pass. */
struct mean_of {
  typedef two_floats acc;
  two_floats *means;
  __device__ __forceinline__ acc start() const { return acc{ 0, 0 }; }
  __device__ __forceinline__ acc add(acc a, float v, int64_t, int64_t) const { return plus(a, v); }
  __device__ __forceinline__ acc join(acc a, acc b) const { return plus(a, b); }
  __device__ __forceinline__ void finish(char *, acc a, int64_t count, int64_t result) const
  {
    const double mean = value_of(a) / (double)count;
    const float hi = (float)mean;
    means[result] = two_floats{ hi, isinf(hi) ? 0 : (float)(mean - (double)hi) };
  }
};

template <class O> struct squares_about {
  typedef two_floats acc;
  const two_floats *means;
  double correction;
  bool root;
  __device__ __forceinline__ acc start() const { return acc{ 0, 0 }; }
  __device__ __forceinline__ acc add(acc a, float v, int64_t, int64_t result) const
  {
    const two_floats c = means[result];
    const float d = (v - c.hi) - c.lo; /* v - c.hi is exact where v is near the mean */
    return plus(a, d * d);
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return plus(a, b); }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t count, int64_t result) const
  {
    const double n = (double)count - correction;
    const double y = value_of(a) / (n > 0 ? n : 0) + (double)means[result].hi * 0; /* of no elements: NaN */
    *(O *)out = ax_cuda_store<O>(root ? sqrt(y) : y);
  }
};

/* exp(x - top) added up.  The top is a whole number from the largest element up, so that each rise
 * makes what was added before smaller by a factor of e at least, and its rounding errors too. */
struct exps {
  float top;
  two_floats sum;
};
template <class O> struct log_of_exps {
  typedef exps acc;
  __device__ __forceinline__ acc start() const { return acc{ -INFINITY, { 0, 0 } }; }
  static __device__ __forceinline__ acc raised(acc a, float top)
  {
    const float by = ax_cuda_term(a.top, top); /* 0 from -infinity */
    return acc{ top, { a.sum.hi * by, a.sum.lo * by } };
  }
  __device__ __forceinline__ acc add(acc a, float v, int64_t, int64_t) const
  {
    if (v > a.top) a = raised(a, ceilf(v));
    /* infinities leave no finite difference */
    const float x = isinf(v) ? (v > 0 ? v : 0.0f) : isinf(a.top) && v == v ? 0.0f : ax_cuda_term(v, a.top);
    a.sum = plus(a.sum, x);
    return a;
  }
  __device__ __forceinline__ acc join(acc a, acc b) const
  {
    if (b.top > a.top) a = raised(a, b.top);
    else if (a.top > b.top) b = raised(b, a.top);
    a.sum = plus(a.sum, b.sum);
    return a;
  }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t, int64_t) const
  {
    *(O *)out = ax_cuda_store<O>((isinf(a.top) ? 0 : (double)a.top) + log(value_of(a.sum)));
  }
};

/* ---- the rows */

static ax_status pass(const ax_call *call, term what, ending end, double number, double *centres)
{
  return ax_cuda_with_float(call->op, call->iter->op[1].dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const ax_status st = ax_cuda_reduces_to<S>(call);
    return st != AX_OK ? st : ax_cuda_reduce<S>(call, moment<S>{ what, end, number, centres });
  });
}

/* Calls f(centres) with room for one C for each result. */
template <class C, class F> static ax_status with_centres(const ax_call *call, F f)
{
  const ax_device d = call->out[0]->device;
  const size_t bytes = (size_t)(call->out[0]->numel ? call->out[0]->numel : 1) * sizeof(C);
  C *centres;
  ax_status st = ax_cuda_take(d, bytes, (void **)&centres);
  if (st != AX_OK) return st;
  st = f(centres);
  ax_cuda_give(d, centres, bytes);
  return st;
}

static ax_status variance(const ax_call *call, double correction, bool root)
{
  if (call->iter->op[1].dtype == AX_F64)
    return with_centres<double>(call, [&](double *means) {
      const ax_status st = pass(call, SUM, MEAN, 0, means);
      return st != AX_OK ? st : pass(call, SQUARES, root ? DEVIATION : VARIANCE, correction, means);
    });
  return with_centres<two_floats>(call, [&](two_floats *means) {
    return ax_cuda_with_narrow(call->op, call->iter->op[1].dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      ax_status st = ax_cuda_reduces_to<S>(call);
      if (st == AX_OK) st = ax_cuda_reduce<S>(call, mean_of{ means });
      return st != AX_OK ? st : ax_cuda_reduce<S>(call, squares_about<S>{ means, correction, root });
    });
  });
}

AX_CUDA_KERNEL(var) { return variance(call, call->a->var.correction, false); }
AX_CUDA_KERNEL(std) { return variance(call, call->a->std.correction, true); }

AX_CUDA_KERNEL(logsumexp)
{
  if (call->iter->op[1].dtype == AX_F64)
    return with_centres<double>(call, [&](double *tops) {
      const ax_status st = pass(call, TOP, TOP_OF, 0, tops);
      return st != AX_OK ? st : pass(call, EXPS, ADD_LOG, 0, tops);
    });
  return ax_cuda_with_narrow(call->op, call->iter->op[1].dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const ax_status st = ax_cuda_reduces_to<S>(call);
    return st != AX_OK ? st : ax_cuda_reduce<S>(call, log_of_exps<S>{});
  });
}

AX_CUDA_KERNEL(norm)
{
  const double p = call->a->norm.p;
  if (p == 2) return pass(call, SQUARES, ROOT, 0, NULL);
  if (p == 1) return pass(call, SIZES, AS_IS, 0, NULL);
  if (p == 0) return pass(call, COUNTS, AS_IS, 0, NULL);
  if (isinf(p)) return pass(call, p > 0 ? WIDEST : LEAST, AS_IS, 0, NULL);
  return pass(call, POWERS, ANY_ROOT, p, NULL);
}
