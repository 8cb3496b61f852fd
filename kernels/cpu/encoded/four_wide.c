/* A few rows of x times a matrix in nf4, fp4 or affine4, whose codes are bytes in a row.
 *
 * A step takes a vector of codes as it is in memory, eight halves in each lane of 32 bits.  What
 * looks numbers up reads the lowest four bits of each lane, so that a shift is all that stands
 * between two look-ups.  x is arranged beforehand in the order in which the halves come: k is the
 * half of a lane, (step, k, lane) -> value.  A scale has at least half the step. */
#include "four.h"

#if defined(__AVX512F__)

enum { LANES = 16, HALVES = 8, STEP = HALVES * LANES /* values of a step */ };

/* The numbers that the lowest four bits of each lane name. */
static inline __attribute__((always_inline)) ax_vec_f32 look_up(__m512 numbers, __m512i at)
{
  return (ax_vec_f32)_mm512_permutexvar_ps(at, numbers);
}

static __m512 numbers_of(int encoding)
{
  float t[16];
  if (encoding == AX_ENC_NF4) ax_nf4_table(1, t);
  else if (encoding == AX_ENC_FP4) ax_fp4_table(1, t);
  else ax_even_table(0, 1, t);
  return _mm512_loadu_ps(t);
}

/* ---- the product */

/* Half of a step's lanes has a, the other half b. */
static inline __attribute__((always_inline)) ax_vec_f32 halves(float a, float b)
{
  return (ax_vec_f32)_mm512_mask_broadcastss_ps(_mm512_set1_ps(a), 0xff00, _mm_set_ss(b));
}

/* Scale and addend of the values of step s of a row. */
static inline __attribute__((always_inline)) void scales_at(const ax_encoded *e, bool adds, int64_t row,
                                                            int64_t s, ax_vec_f32 *scale, ax_vec_f32 *add)
{
  if (!adds) {
    const int64_t at = (row * e->cols + s * STEP) >> e->shift,
                  next = (row * e->cols + s * STEP + STEP / 2) >> e->shift;
    *scale = halves(ax_scale_at(e, at), ax_scale_at(e, next));
    return;
  }
  const int64_t first = row * ax_groups_of(e), at = first + (s * STEP >> e->shift),
                next = first + ((s * STEP + STEP / 2) >> e->shift);
  *scale = halves(e->scales[at], e->scales[next]);
  *add = -*scale * halves((float)e->zeros[at], (float)e->zeros[next]);
}

static inline __attribute__((always_inline)) void rows_of(const ax_four_job *j, int encoding, int m,
                                                          int64_t lo, int64_t hi)
{
  const ax_encoded *e = j->e;
  const bool adds = encoding == AX_ENC_AFFINE4;
  const int64_t steps = e->cols / STEP;
  const __m512 numbers = numbers_of(encoding);

  for (int64_t r = lo; r < hi; r++) {
    ax_vec_f32 sum[AX_FOUR_ROWS] = { { 0 } };
    for (int64_t s = 0; s < steps; s++) {
      __m512i codes = _mm512_loadu_si512(e->codes + r * (e->cols / 2) + s * (STEP / 2));
      ax_vec_f32 part[AX_FOUR_ROWS][2] = { { { 0 } } }, scale, add = { 0 };
      AX_UNROLL
      for (int k = 0; k < HALVES; k++) {
        const ax_vec_f32 w = look_up(numbers, codes);
        codes = _mm512_srli_epi32(codes, 4);
        AX_UNROLL
        for (int i = 0; i < m; i++)
          part[i][k & 1] =
              AX_VFMA_f32(w, *(const ax_vec_f32 *)(j->x + ((i * steps + s) * HALVES + k) * LANES),
                          part[i][k & 1]);
      }
      scales_at(e, adds, r, s, &scale, &add);
      AX_UNROLL
      for (int i = 0; i < m; i++) {
        sum[i] = AX_VFMA_f32(part[i][0] + part[i][1], scale, sum[i]);
        if (adds) sum[i] = AX_VFMA_f32(*(const ax_vec_f32 *)(j->sums + (i * steps + s) * LANES), add, sum[i]);
      }
    }
    for (int i = 0; i < m; i++) j->y[i * e->rows + r] = ax_vec_sum(sum[i]) + (j->bias ? j->bias[r] : 0);
  }
}

#define FORMAT(ID) \
  static void rows_##ID(int64_t lo, int64_t hi, void *ud) \
  { \
    const ax_four_job *j = ud; \
    if (j->m == 1) rows_of(j, AX_ENC_##ID, 1, lo, hi); \
    else rows_of(j, AX_ENC_##ID, (int)j->m, lo, hi); \
  }
FORMAT(NF4)
FORMAT(FP4)
FORMAT(AFFINE4)
#undef FORMAT

static const ax_range_fn formats[AX_ENCODING_COUNT] = {
  [AX_ENC_NF4] = rows_NF4,
  [AX_ENC_FP4] = rows_FP4,
  [AX_ENC_AFFINE4] = rows_AFFINE4,
};

bool ax_cpu_four_wide_takes(const ax_encoded *e)
{
  return formats[e->encoding] && e->cols % STEP == 0 && (int64_t)1 << e->shift >= STEP / 2;
}

/* Arranges x as (m, steps, HALVES, LANES), and sums the values of each lane: (m, steps, LANES). */
static void arrange(const ax_four_job *j, const float *x, float *to, float *sums)
{
  const bool high_first = j->e->encoding != AX_ENC_AFFINE4;
  for (int64_t s = 0; s < j->m * (j->e->cols / STEP); s++)
    for (int lane = 0; lane < LANES; lane++) {
      float sum = 0;
      for (int k = 0; k < HALVES; k++)
        sum += to[(s * HALVES + k) * LANES + lane] = x[s * STEP + lane * HALVES + (high_first ? k ^ 1 : k)];
      sums[s * LANES + lane] = sum;
    }
}

ax_status ax_cpu_four_wide(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y)
{
  return ax_four_run(e, m, x, bias, y, HALVES, arrange, formats[e->encoding]);
}

#else

bool ax_cpu_four_wide_takes(const ax_encoded *e) { return false; }
ax_status ax_cpu_four_wide(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y)
{
  return ax_fail(AX_ENOIMPL, "linear: products of four bits need AVX-512");
}

#endif
