/* A few rows of x times a matrix in four bits, without decoded numbers in memory.
 *
 * A step takes 16 bytes of codes: 16 low halves and 16 high ones, which name numbers of a table in
 * registers.  Each half is multiplied with the 16 elements of x that belong to it, and the sum gets
 * the scale of its group; what the format adds to each number of a group is multiplied with the sum
 * of those elements.  x is arranged beforehand, step by step, and so are its sums. */
#include "four.h"

#if defined(__AVX2__)

#define LANES (AX_BYTES / 4)
enum { PARTS = 16 / LANES };

/* ---- 16 numbers in registers */

typedef struct table {
#if defined(__AVX512F__)
  __m512 all;
#else
  __m256 low, high;
#endif
} table;

static inline __attribute__((always_inline)) table load_table(const float t[16])
{
#if defined(__AVX512F__)
  return (table){ _mm512_loadu_ps(t) };
#else
  return (table){ _mm256_loadu_ps(t), _mm256_loadu_ps(t + 8) };
#endif
}

/* The numbers of the low and of the high halves of LANES bytes. */
static inline __attribute__((always_inline)) void look_up(const table *t, const uint8_t *p, ax_vec_f32 *low,
                                                          ax_vec_f32 *high)
{
#if defined(__AVX512F__)
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
  *low = (ax_vec_f32)_mm512_permutexvar_ps(bytes, t->all);
  *high = (ax_vec_f32)_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), t->all);
#else
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
  const __m256i above = _mm256_srli_epi32(bytes, 4);
  *low = (ax_vec_f32)_mm256_blendv_ps(_mm256_permutevar8x32_ps(t->low, bytes),
                                      _mm256_permutevar8x32_ps(t->high, bytes),
                                      (__m256)_mm256_slli_epi32(bytes, 28));
  *high = (ax_vec_f32)_mm256_blendv_ps(_mm256_permutevar8x32_ps(t->low, above),
                                       _mm256_permutevar8x32_ps(t->high, above),
                                       (__m256)_mm256_slli_epi32(above, 28));
#endif
}

/* ---- formats */

/* One step: its codes, and scale and addend of the low and of the high halves. */
typedef struct step {
  const uint8_t *codes;
  float scale[2], add[2];
} step;

static inline __attribute__((always_inline)) step one_scale(const uint8_t *codes, float scale, float add)
{
  return (step){ codes, { scale, scale }, { add, add } };
}

/* Step s of a row, whose codes begin at `base`; `encoding` is a constant where this is inlined. */
static inline __attribute__((always_inline)) step step_at(const ax_encoded *e, int encoding, int64_t row,
                                                          int64_t s)
{
  const int64_t at = row * (e->cols / 32) + s;
  const uint8_t *b;

  switch (encoding) {
  case AX_ENC_NF4:
  case AX_ENC_FP4: return one_scale(e->codes + 16 * at, ax_scale_at(e, at * 32 >> e->shift), 0);
  case AX_ENC_AFFINE4: {
    const int64_t group = row * ax_groups_of(e) + (s * 32 >> e->shift);
    return one_scale(e->codes + 16 * at, e->scales[group], -e->scales[group] * (float)e->zeros[group]);
  }
  case AX_ENC_Q4_1: b = e->codes + 20 * at; return one_scale(b + 4, ax_half_at(b), ax_half_at(b + 2));
  case AX_ENC_MXFP4: b = e->codes + 17 * at; return one_scale(b + 1, ax_e8m0_half(b[0]), 0);
  case AX_ENC_Q4_K: {
    step r;
    const int g = (int)(s % 8) & 6; /* two steps share 32 bytes, and their groups */
    b = e->codes + 144 * (at / 8);
    r.codes = b + 16 + 16 * (s % 8);
    for (int k = 0; k < 2; k++) {
      float scale, least;
      ax_k_scale(b + 4, g + k, &scale, &least);
      r.scale[k] = ax_half_at(b) * scale;
      r.add[k] = -(ax_half_at(b + 2) * least);
    }
    return r;
  }
  default: b = e->codes + 18 * at; return one_scale(b + 2, ax_half_at(b), 0); /* Q4_0, IQ4_NL */
  }
}

static void numbers_of(int encoding, float t[16])
{
  switch (encoding) {
  case AX_ENC_NF4: ax_nf4_table(1, t); break;
  case AX_ENC_FP4: ax_fp4_table(1, t); break;
  case AX_ENC_IQ4_NL: ax_iq4_table(1, t); break;
  case AX_ENC_MXFP4: ax_mxfp4_table(1, t); break;
  default: ax_even_table(encoding == AX_ENC_Q4_0 ? 8 : 0, 1, t);
  }
}

/* The place in x, counted from the row's begin, of element i of a half (0: low) of step s. */
static int64_t place(int encoding, int64_t s, int half, int i)
{
  switch (encoding) {
  case AX_ENC_NF4:
  case AX_ENC_FP4: return 32 * s + 2 * i + !half;
  case AX_ENC_AFFINE4: return 32 * s + 2 * i + half;
  case AX_ENC_Q4_K: return 32 * (s & ~1) + 32 * half + 16 * (s & 1) + i;
  default: return 32 * s + 16 * half + i;
  }
}

/* ---- the product */

static inline __attribute__((always_inline)) void rows_of(const ax_four_job *j, int encoding, bool adds,
                                                          int m, int64_t lo, int64_t hi)
{
  const int64_t steps = j->e->cols / 32;
  float numbers[16];
  numbers_of(encoding, numbers);
  const table t = load_table(numbers);

  for (int64_t r = lo; r < hi; r++) {
    ax_vec_f32 sum[AX_FOUR_ROWS][2] = { { { 0 } } };
    float added[AX_FOUR_ROWS] = { 0 };
    for (int64_t s = 0; s < steps; s++) {
      const step at = step_at(j->e, encoding, r, s);
      ax_vec_f32 part[AX_FOUR_ROWS][2] = { { { 0 } } };
      for (int k = 0; k < PARTS; k++) {
        ax_vec_f32 low, high;
        look_up(&t, at.codes + k * LANES, &low, &high);
        AX_UNROLL
        for (int i = 0; i < m; i++) {
          const float *x = j->x + (i * steps + s) * 32 + k * LANES;
          part[i][0] = AX_VFMA_f32(low, *(const ax_vec_f32 *)x, part[i][0]);
          part[i][1] = AX_VFMA_f32(high, *(const ax_vec_f32 *)(x + 16), part[i][1]);
        }
      }
      AX_UNROLL
      for (int i = 0; i < m; i++) {
        const float *sums = j->sums + (i * steps + s) * 2;
        for (int k = 0; k < 2; k++)
          sum[i][k] = AX_VFMA_f32(part[i][k], at.scale[k] - (ax_vec_f32){ 0 }, sum[i][k]);
        if (adds) added[i] += at.add[0] * sums[0] + at.add[1] * sums[1];
      }
    }
    for (int i = 0; i < m; i++)
      j->y[i * j->e->rows + r] = ax_vec_sum(sum[i][0] + sum[i][1]) + added[i] + (j->bias ? j->bias[r] : 0);
  }
}

#define FORMAT(ID, adds) \
  static void rows_##ID(int64_t lo, int64_t hi, void *ud) \
  { \
    const ax_four_job *j = ud; \
    if (j->m == 1) rows_of(j, AX_ENC_##ID, adds, 1, lo, hi); \
    else rows_of(j, AX_ENC_##ID, adds, (int)j->m, lo, hi); \
  }
FORMAT(NF4, false)
FORMAT(FP4, false)
FORMAT(AFFINE4, true)
FORMAT(Q4_0, false)
FORMAT(Q4_1, true)
FORMAT(Q4_K, true)
FORMAT(IQ4_NL, false)
FORMAT(MXFP4, false)
#undef FORMAT

static const ax_range_fn formats[AX_ENCODING_COUNT] = {
  [AX_ENC_NF4] = rows_NF4,       [AX_ENC_FP4] = rows_FP4,     [AX_ENC_AFFINE4] = rows_AFFINE4,
  [AX_ENC_Q4_0] = rows_Q4_0,     [AX_ENC_Q4_1] = rows_Q4_1,   [AX_ENC_Q4_K] = rows_Q4_K,
  [AX_ENC_IQ4_NL] = rows_IQ4_NL, [AX_ENC_MXFP4] = rows_MXFP4,
};

bool ax_cpu_four_takes(const ax_encoded *e) { return formats[e->encoding] && e->cols % 32 == 0; }

/* Arranges x as (m, steps, 2, 16), and sums the halves of steps: (m, steps, 2). */
static void arrange(const ax_four_job *j, const float *x, float *to, float *sums)
{
  const int64_t steps = j->e->cols / 32;
  for (int64_t i = 0; i < j->m * steps; i++) {
    const float *row = x + i / steps * j->e->cols;
    for (int half = 0; half < 2; half++) {
      float sum = 0;
      for (int k = 0; k < 16; k++)
        sum += to[i * 32 + half * 16 + k] = row[place(j->e->encoding, i % steps, half, k)];
      sums[i * 2 + half] = sum;
    }
  }
}

ax_status ax_cpu_four(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y)
{
  return ax_four_run(e, m, x, bias, y, 16, arrange, formats[e->encoding]);
}

#else

bool ax_cpu_four_takes(const ax_encoded *e) { return false; }
ax_status ax_cpu_four(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y)
{
  return ax_fail(AX_ENOIMPL, "linear: products of four bits need AVX2");
}

#endif
