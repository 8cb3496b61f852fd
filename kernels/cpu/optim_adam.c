/* Optimizers that divide a running mean of gradients by the root of a mean of squares: Adam (Kingma
 * and Ba 2015), AdamW (Loshchilov and Hutter 2019), Adamax, NAdam (Dozat 2016), RAdam (Liu et al.
 * 2020). */
#include "optim.h"

#include "optim_numbers.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* torch.optim.Adam, and AdamW with decoupled_weight_decay. */

#define ADAM(S, T, SQRT, MAX) \
  static void adam_##S(const ax_segment *s, int64_t at, int64_t n, const ax_adam_numbers *a) \
  { \
    T *p = (T *)s->param + at, *m = (T *)s->state[0] + at, *v = (T *)s->state[1] + at, \
      *top = AX_OPTIM_STATE(T, s, 2, at); \
    const T *grad = (const T *)s->grad + at; \
    const T sign = (T)a->sign, l2 = (T)a->l2, keep = (T)a->keep, w1 = (T)a->w1, beta2 = (T)a->beta2, \
            w2 = (T)a->w2; \
    const T step = (T)a->step, root = (T)a->root, eps = (T)a->eps; \
    if (top) { \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T c = m[i] + w1 * (g - m[i]); const T b = beta2 * v[i] + w2 * g * g; \
                    const T u = MAX(top[i], b); m[i] = c; v[i] = b; top[i] = u; \
                    p[i] = keep * p[i] - step * c / (SQRT(u) * root + eps);) \
      return; \
    } \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                  const T c = m[i] + w1 * (g - m[i]); const T b = beta2 * v[i] + w2 * g * g; m[i] = c; \
                  v[i] = b; p[i] = keep * p[i] - step * c / (SQRT(b) * root + eps);) \
  }

/* NaN where either is, as torch.maximum. */
#define MAX_OF(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
ADAM(f64, double, sqrt, MAX_OF)

void ax_cpu_adam_f64(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h)
{
  const ax_adam_numbers a = ax_adam_numbers_of(s, h);
  adam_f64(s, at, n, &a);
}

/* Square root and division share a unit with one of the multipliers, and 16 elements occupy it for
 * 20 cycles, longer than memory takes.  So the division here is a 14-bit approximation and one step
 * of Newton's method, good to the last bit or two, and code for options that are off is compiled
 * out. The end of a run uses the same code under a mask: the result for an element must not depend
 * on where threads divide the work. */
#ifdef __AVX512F__
typedef struct adam_16 {
  __m512i sign;
  __m512 l2, w1, beta2, w2, keep, step, root, eps;
} adam_16;

enum { WITH_L2 = 1, WITH_TOP = 2, WITH_WORK = 4, AHEAD = 512, FAR = 1 << 21 };

static inline __attribute__((always_inline)) void adam_some(float *p, float *m, float *v, float *top,
                                                            uint16_t *work, const float *grad,
                                                            const adam_16 *c, int with, __mmask16 some)
{
  const __m512 old_p = _mm512_maskz_loadu_ps(some, p), old_m = _mm512_maskz_loadu_ps(some, m);
  const __m512 signed_g =
      _mm512_castsi512_ps(_mm512_xor_si512(c->sign, _mm512_castps_si512(_mm512_maskz_loadu_ps(some, grad))));
  const __m512 g = with & WITH_L2 ? _mm512_fmadd_ps(c->l2, old_p, signed_g) : signed_g;
  const __m512 a = _mm512_fmadd_ps(c->w1, _mm512_sub_ps(g, old_m), old_m);
  const __m512 b =
      _mm512_fmadd_ps(_mm512_mul_ps(c->w2, g), g, _mm512_mul_ps(c->beta2, _mm512_maskz_loadu_ps(some, v)));
  __m512 under = b;
  /* max returns its second operand when either is NaN: b's NaN comes from that, top's from the
   * second selection */
  if (with & WITH_TOP) {
    const __m512 old = _mm512_maskz_loadu_ps(some, top);
    under = _mm512_mask_mov_ps(_mm512_max_ps(old, b), _mm512_cmp_ps_mask(old, old, _CMP_UNORD_Q), old);
    _mm512_mask_storeu_ps(top, some, under);
  }
  /* limits the divisor, since infinity times its reciprocal is NaN; min returns its second operand
   * when that is NaN */
  const __m512 divisor =
      _mm512_min_ps(_mm512_set1_ps(0x1p125f), _mm512_fmadd_ps(_mm512_sqrt_ps(under), c->root, c->eps));
  const __m512 about = _mm512_rcp14_ps(divisor);
  const __m512 inverse = _mm512_mul_ps(about, _mm512_fnmadd_ps(divisor, about, _mm512_set1_ps(2)));
  const __m512 new_p = _mm512_fnmadd_ps(_mm512_mul_ps(c->step, a), inverse, _mm512_mul_ps(c->keep, old_p));
  _mm512_mask_storeu_ps(m, some, a);
  _mm512_mask_storeu_ps(v, some, b);
  _mm512_mask_storeu_ps(p, some, new_p);
  if (with & WITH_WORK) { /* ax_float_to_bf16 */
    const __m512i u = _mm512_castps_si512(new_p), high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up =
        _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i bits = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(new_p, new_p, _CMP_UNORD_Q), high,
                                              _mm512_set1_epi32(0x40));
    _mm512_mask_cvtepi32_storeu_epi16(work, some, bits);
  }
}

static inline __attribute__((always_inline)) void adam_all(const ax_segment *s, int64_t at, int64_t n,
                                                           const adam_16 *c, int with)
{
  float *p = (float *)s->param + at, *m = (float *)s->state[0] + at, *v = (float *)s->state[1] + at;
  float *top = with & WITH_TOP ? (float *)s->state[2] + at : p; /* p as a placeholder: not read */
  uint16_t *work = with & WITH_WORK ? (uint16_t *)s->work + at : (uint16_t *)p;
  const float *grad = (const float *)s->grad + at;
  /* what is in no cache: a core waits for less of memory where lines are fetched 2 KB ahead */
  const bool far = s->n >= FAR;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    if (far) {
      __builtin_prefetch(p + i + AHEAD, 1);
      __builtin_prefetch(m + i + AHEAD, 1);
      __builtin_prefetch(v + i + AHEAD, 1);
      if (with & WITH_TOP) __builtin_prefetch(top + i + AHEAD, 1);
      __builtin_prefetch(grad + i + AHEAD);
    }
    adam_some(p + i, m + i, v + i, top + i, work + i, grad + i, c, with, 0xffff);
  }
  if (i < n)
    adam_some(p + i, m + i, v + i, top + i, work + i, grad + i, c, with, (__mmask16)((1u << (n - i)) - 1));
}

void ax_cpu_adam_f32(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h)
{
  const ax_adam_numbers a = ax_adam_numbers_of(s, h);
  const adam_16 c = { _mm512_set1_epi32(h->maximize ? INT32_MIN : 0),
                      _mm512_set1_ps((float)a.l2),
                      _mm512_set1_ps((float)a.w1),
                      _mm512_set1_ps((float)a.beta2),
                      _mm512_set1_ps((float)a.w2),
                      _mm512_set1_ps((float)a.keep),
                      _mm512_set1_ps((float)a.step),
                      _mm512_set1_ps((float)a.root),
                      _mm512_set1_ps((float)a.eps) };

  switch ((a.l2 != 0 ? WITH_L2 : 0) | (s->state[2] ? WITH_TOP : 0) | (s->work ? WITH_WORK : 0)) {
  case 0: adam_all(s, at, n, &c, 0); break;
  case WITH_WORK: adam_all(s, at, n, &c, WITH_WORK); break;
  case WITH_L2: adam_all(s, at, n, &c, WITH_L2); break;
  case WITH_L2 | WITH_WORK: adam_all(s, at, n, &c, WITH_L2 | WITH_WORK); break;
  case WITH_TOP:
  case WITH_TOP | WITH_L2: adam_all(s, at, n, &c, WITH_TOP | WITH_L2); break;
  default: adam_all(s, at, n, &c, WITH_TOP | WITH_L2 | WITH_WORK); break;
  }
}
#else
ADAM(f32, float, sqrtf, MAX_OF)

void ax_cpu_adam_f32(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h)
{
  const ax_adam_numbers a = ax_adam_numbers_of(s, h);
  adam_f32(s, at, n, &a);
}
#endif

/* torch.optim.Adamax (Kingma and Ba 2015): the divisor is u = max(beta2 * u, |g| + eps) instead of
 * a root of mean squares. */
#define ADAMAX(S, T, ABS) \
  void ax_cpu_adamax_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *m = (T *)s->state[0] + at, *top = (T *)s->state[1] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, w1 = (T)(1 - h->betas[0]), \
            beta2 = (T)h->betas[1], eps = (T)h->eps; \
    const T step = (T)(h->lr / (1 - pow(h->betas[0], (double)s->step))); \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                  const T c = m[i] + w1 * (g - m[i]); const T old = beta2 * top[i]; \
                  const T now = ABS(g) + eps; const T u = MAX_OF(old, now); m[i] = c; top[i] = u; \
                  p[i] -= step * c / u;) \
  }
ADAMAX(f32, float, fabsf)
ADAMAX(f64, double, fabs)

/* The steps of torch.optim.NAdam and RAdam. */
#define MIXED(S, T, SQRT) \
  static void mixed_##S(const ax_segment *s, int64_t at, int64_t n, const ax_mixed_numbers *x) \
  { \
    T *p = (T *)s->param + at, *m = (T *)s->state[0] + at, *v = (T *)s->state[1] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = (T)x->sign, l2 = (T)x->l2, keep = (T)x->keep, w1 = (T)x->w1, beta2 = (T)x->beta2, \
            w2 = (T)x->w2; \
    const T root = x->divide ? (T)x->root : 0, eps = x->divide ? (T)x->eps : 1, by_grad = (T)x->by_grad, \
            by_mean = (T)x->by_mean; \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                  const T c = m[i] + w1 * (g - m[i]); const T b = beta2 * v[i] + w2 * g * g; m[i] = c; \
                  v[i] = b; p[i] = keep * p[i] - (by_grad * g + by_mean * c) / (SQRT(b) * root + eps);) \
  } \
  void ax_cpu_nadam_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    const ax_mixed_numbers x = ax_nadam_numbers_of(s, h); \
    mixed_##S(s, at, n, &x); \
  } \
  void ax_cpu_radam_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    const ax_mixed_numbers x = ax_radam_numbers_of(s, h); \
    mixed_##S(s, at, n, &x); \
  }
MIXED(f32, float, sqrtf)
MIXED(f64, double, sqrt)
