/* LLM.int8 on the side of x. */
#include "int8.h"

#include <math.h>

#include "cpu/cpu.h"
#include "cpu/vector.h"

enum { RUN = 512, PARTS = 16 };

/* codes = x rounded to float16 */
static void round_to_half(const float *x, float *codes, int64_t n)
{
  uint16_t half[RUN];
  for (int64_t c = 0; c < n; c += RUN) {
    const int64_t k = n - c < RUN ? n - c : RUN;
    ax_cpu_float_to_half(AX_F16, x + c, (char *)half, 2, k);
    ax_cpu_half_to_float(AX_F16, (const char *)half, 2, codes + c, k);
  }
}

/* The largest magnitude; what is no number does not count. */
static float largest(const float *v, int64_t n)
{
  float part[PARTS] = { 0 }, most = 0;
  int64_t c = 0;
  for (; c + PARTS <= n; c += PARTS)
    for (int k = 0; k < PARTS; k++) part[k] = fabsf(v[c + k]) > part[k] ? fabsf(v[c + k]) : part[k];
  for (; c < n; c++) most = fabsf(v[c]) > most ? fabsf(v[c]) : most;
  for (int k = 0; k < PARTS; k++) most = part[k] > most ? part[k] : most;
  return most;
}

/* Lists the columns with an element of at least `threshold`. */
static void find_large(float threshold, ax_int8_rows *r)
{
  if (!(threshold > 0) || largest(r->codes, r->m * r->cols) < threshold) return;
  for (int64_t c = 0; c < r->cols; c++) {
    bool large = false;
    for (int64_t i = 0; i < r->m; i++) large |= fabsf(r->codes[i * r->cols + c]) >= threshold;
    if (large) r->large[r->n_large++] = c;
  }
}

/* Row i, which is rounded to float16, in whole numbers; false: some of it is no number. */
static bool encode_row(int64_t i, ax_int8_rows *r)
{
  float *codes = r->codes + i * r->cols;
  bool numbers = true;

  for (int64_t k = 0; k < r->n_large; k++) codes[r->large[k]] = 0;
  const float most = r->scales[i] = largest(codes, r->cols);
  const float scale = most > 0 ? 1.0f / most * 127.0f : 0; /* rounded twice, as in PyTorch */
  for (int64_t c = 0; c < r->cols; c++) {
    codes[c] = rintf(codes[c] * scale);
    numbers &= codes[c] == codes[c];
  }
  return numbers;
}

ax_status ax_int8_rows_of(const float *x, int64_t m, int64_t cols, double threshold, ax_int8_rows *r)
{
  void *codes = NULL, *scales = NULL, *large = NULL, *whole = NULL;
  bool numbers = true;
  ax_status st;

  r->m = m;
  r->cols = cols;
  AX_TRY(ax_alloc((size_t)(m * cols) * sizeof(float), &codes));
  r->codes = codes;
  AX_TRY(ax_alloc((size_t)m * sizeof(float), &scales));
  r->scales = scales;
  AX_TRY(ax_alloc((size_t)cols * sizeof(int64_t), &large));
  r->large = large;
  round_to_half(x, r->codes, m * cols);
  find_large((float)threshold, r);
  for (int64_t i = 0; i < m; i++) numbers &= encode_row(i, r);
  if (numbers && m <= AX_INT8_ROWS && cols <= AX_INT8_COLS) {
    AX_TRY(ax_alloc((size_t)(m * cols) * sizeof(int16_t), &whole));
    r->whole = whole;
    for (int64_t c = 0; c < m * cols; c++) r->whole[c] = (int16_t)r->codes[c];
  }
out:
  return st;
}

void ax_int8_rows_free(ax_int8_rows *r)
{
  if (r->codes) ax_free(r->codes, (size_t)(r->m * r->cols) * sizeof(float));
  if (r->scales) ax_free(r->scales, (size_t)r->m * sizeof(float));
  if (r->large) ax_free(r->large, (size_t)r->cols * sizeof(int64_t));
  if (r->whole) ax_free(r->whole, (size_t)(r->m * r->cols) * sizeof(int16_t));
}

/* ---- products of whole numbers: sums of pairs of neighbours, in 32 bits */

#if defined(__AVX512BW__)
typedef __m512i sums;
#define WIDTH 32
#define WIDEN(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define ADD_PAIRS(sum, w, p) _mm512_add_epi32(sum, _mm512_madd_epi16(w, _mm512_loadu_si512(p)))
#elif defined(__AVX2__)
typedef __m256i sums;
#define WIDTH 16
#define WIDEN(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define ADD_PAIRS(sum, w, p) \
  _mm256_add_epi32(sum, _mm256_madd_epi16(w, _mm256_loadu_si256((const __m256i *)(p))))
#elif defined(__SSE4_1__)
typedef __m128i sums;
#define WIDTH 8
#define WIDEN(p) _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(p)))
#define ADD_PAIRS(sum, w, p) _mm_add_epi32(sum, _mm_madd_epi16(w, _mm_loadu_si128((const __m128i *)(p))))
#endif

typedef struct product {
  const ax_int8_rows *r;
  const int8_t *codes;
  int64_t rows;
  float *y;
} product;

static inline __attribute__((always_inline)) void rows_of(const product *p, int m, int64_t lo, int64_t hi)
{
  const int64_t cols = p->r->cols;

  for (int64_t n = lo; n < hi; n++) {
    const int8_t *w = p->codes + n * cols;
    int64_t c = 0;
    int32_t rest[AX_INT8_ROWS] = { 0 };
#ifdef WIDTH
    union {
      sums v;
      int32_t one[sizeof(sums) / 4];
    } sum[AX_INT8_ROWS][2];
    memset(sum, 0, sizeof sum);
    for (; c + 2 * WIDTH <= cols; c += 2 * WIDTH)
      for (int k = 0; k < 2; k++) {
        const sums wide = WIDEN(w + c + k * WIDTH);
        AX_UNROLL
        for (int i = 0; i < m; i++)
          sum[i][k].v = ADD_PAIRS(sum[i][k].v, wide, p->r->whole + i * cols + c + k * WIDTH);
      }
    for (int i = 0; i < m; i++)
      for (size_t k = 0; k < sizeof(sums) / 4; k++) rest[i] += sum[i][0].one[k] + sum[i][1].one[k];
#endif
    for (; c < cols; c++)
      for (int i = 0; i < m; i++) rest[i] += w[c] * p->r->whole[i * cols + c];
    for (int i = 0; i < m; i++) p->y[i * p->rows + n] = (float)rest[i];
  }
}

static void multiply(int64_t lo, int64_t hi, void *ud)
{
  const product *p = ud;
  if (p->r->m == 1) rows_of(p, 1, lo, hi);
  else rows_of(p, (int)p->r->m, lo, hi);
}

void ax_int8_multiply(const ax_int8_rows *r, const ax_encoded *e, float *y)
{
  product p = { r, (const int8_t *)e->codes, e->rows, y };
  ax_cpu_for(e->rows, e->rows * e->cols, multiply, &p);
}

/* ---- scales */

typedef struct job {
  const ax_int8_rows *r;
  const ax_encoded *e;
  const float *x, *bias;
  float *y;
} job;

static void finish(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const ax_int8_rows *r = j->r;
  for (int64_t n = lo; n < hi; n++) {
    const int8_t *codes = (const int8_t *)j->e->codes + n * r->cols;
    const float scale = j->e->scales[n];
    for (int64_t i = 0; i < r->m; i++) {
      float *y = j->y + i * j->e->rows + n, sum = 0;
      for (int64_t k = 0; k < r->n_large; k++)
        sum += j->x[i * r->cols + r->large[k]] * ((float)codes[r->large[k]] * scale * AX_INT8_UNIT);
      *y = *y * (r->scales[i] * scale) * (1.0f / (127.0f * 127.0f)) + (j->bias ? j->bias[n] : 0) + sum;
    }
  }
}

void ax_int8_finish(const ax_int8_rows *r, const ax_encoded *e, const float *x, const float *bias, float *y)
{
  job j = { r, e, x, bias, y };
  ax_cpu_for(e->rows, e->rows * r->m * (1 + r->n_large), finish, &j);
}
