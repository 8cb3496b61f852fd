/* LLM.int8 on the side of x. */
#include "int8.h"

#include <math.h>

#include "cpu/cpu.h"

static float magnitude(float v) { return fabsf(ax_half_to_float(ax_float_to_half(v))); }

/* Lists the columns with an element of at least `threshold`. */
static void find_large(const float *x, float threshold, ax_int8_rows *r)
{
  for (int64_t c = 0; c < r->cols && threshold > 0; c++) {
    bool large = false;
    for (int64_t i = 0; i < r->m; i++) large |= magnitude(x[i * r->cols + c]) >= threshold;
    if (large) r->large[r->n_large++] = c;
  }
}

static void encode_row(const float *x, int64_t i, ax_int8_rows *r)
{
  float *codes = r->codes + i * r->cols, most = 0;

  for (int64_t c = 0; c < r->cols; c++) codes[c] = ax_half_to_float(ax_float_to_half(x[i * r->cols + c]));
  for (int64_t k = 0; k < r->n_large; k++) codes[r->large[k]] = 0;
  for (int64_t c = 0; c < r->cols; c++) most = fabsf(codes[c]) > most ? fabsf(codes[c]) : most;
  r->scales[i] = most;
  const float scale = most > 0 ? 1.0f / most * 127.0f : 0; /* rounded twice, as in PyTorch */
  for (int64_t c = 0; c < r->cols; c++) codes[c] = rintf(codes[c] * scale);
}

ax_status ax_int8_rows_of(const float *x, int64_t m, int64_t cols, double threshold, ax_int8_rows *r)
{
  void *codes = NULL, *scales = NULL, *large = NULL;
  ax_status st;

  r->m = m;
  r->cols = cols;
  AX_TRY(ax_alloc((size_t)(m * cols) * sizeof(float), &codes));
  r->codes = codes;
  AX_TRY(ax_alloc((size_t)m * sizeof(float), &scales));
  r->scales = scales;
  AX_TRY(ax_alloc((size_t)cols * sizeof(int64_t), &large));
  r->large = large;
  find_large(x, (float)threshold, r);
  for (int64_t i = 0; i < m; i++) encode_row(x, i, r);
out:
  return st;
}

void ax_int8_rows_free(ax_int8_rows *r)
{
  if (r->codes) ax_free(r->codes, (size_t)(r->m * r->cols) * sizeof(float));
  if (r->scales) ax_free(r->scales, (size_t)r->m * sizeof(float));
  if (r->large) ax_free(r->large, (size_t)r->cols * sizeof(int64_t));
}

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
