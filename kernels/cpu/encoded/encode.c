/* Numbers into codes, with bitsandbytes' bits. */
#include <math.h>
#include <stdlib.h>

#include "decode_cpu.h"

/* ---- nf4, fp4: the nearest of 16 numbers of a block's largest magnitude */

typedef struct nearest {
  float between[15]; /* in rising order; a number on a bound goes down */
  uint8_t code[16];
} nearest;

static nearest nearest_of(int64_t encoding)
{
  nearest n;
  float t[16];

  if (encoding == AX_ENC_NF4) ax_nf4_table(1, t);
  else ax_fp4_table(1, t);
  for (int i = 0; i < 16; i++) { /* sorts; of two zeros the first code comes first */
    int at = i;
    for (; at > 0 && t[n.code[at - 1]] > t[i]; at--) n.code[at] = n.code[at - 1];
    n.code[at] = (uint8_t)i;
  }
  for (int i = 0; i < 15; i++) n.between[i] = (t[n.code[i]] + t[n.code[i + 1]]) / 2;
  return n;
}

static uint8_t code_of(const nearest *n, float v)
{
  int at = 0;
  for (int i = 0; i < 15; i++) at += v > n->between[i];
  return n->code[at];
}

static float largest(const float *x, int64_t n)
{
  float most = 0;
  for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  return most;
}

static float clamp(float v) { return v > 1 ? 1 : v < -1 ? -1 : v; }

typedef struct job {
  nearest to;
  const float *x;
  int64_t n, size;
  uint8_t *codes;
  float *scales;
} job;

#define LEAST 1e-38f /* divides the numbers of a block of zeros */

/* Blocks have an even number of values, so each byte belongs to one. */
static void four_bits(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t b = lo; b < hi; b++) {
    const int64_t from = b * j->size, rest = j->n - from, n = rest < j->size ? rest : j->size;
    const float *x = j->x + from, most = largest(x, n), by = most > LEAST ? most : LEAST;
    const bool whole = n == j->size;
    j->scales[b] = whole ? most : by;
    for (int64_t i = 0; i < n; i += 2) {
      uint8_t pair[2];
      for (int k = 0; k < 2; k++) {
        const float v = i + k < n ? x[i + k] : 0;
        pair[k] = code_of(&j->to, clamp(whole ? v * (1.0f / by) : v / by));
      }
      j->codes[(from + i) / 2] = (uint8_t)(pair[0] << 4 | pair[1]);
    }
  }
}

/* ---- int8: rows of numbers rounded to float16 */

static void eight_bits(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t r = lo; r < hi; r++) {
    const float *x = j->x + r * j->size;
    float most = 0;
    for (int64_t c = 0; c < j->size; c++) {
      const float v = fabsf(ax_half_to_float(ax_float_to_half(x[c])));
      most = v > most ? v : most;
    }
    j->scales[r] = most;
    const float scale = most > 0 ? 1.0f / most * 127.0f : 0; /* rounded twice, as in PyTorch */
    for (int64_t c = 0; c < j->size; c++) {
      const float v = rintf(ax_half_to_float(ax_float_to_half(x[c])) * scale);
      j->codes[r * j->size + c] = (uint8_t)(int8_t)(v == v ? v : 0);
    }
  }
}

/* ---- dynamic8: scales less their mean */

static int by_size(const void *a, const void *b)
{
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* 256 numbers from -1 to 1, which lie closer the smaller they are: for each power of ten from 1e-6
 * to 1 twice as many, in the middle of even steps from a tenth to one. */
static void dynamic_numbers(float out[256])
{
  int n = 0;
  for (int power = 0; power < 7; power++) {
    const int steps = 1 << power;
    const float by = (1 - 0.1f) / (float)steps, unit = (float)pow(10, power - 6);
    float edge[65];
    for (int i = 0; i <= steps; i++)
      edge[i] = i < (steps + 1) / 2 ? fmaf(by, (float)i, 0.1f) : fmaf(-by, (float)(steps - i), 1);
    for (int i = 0; i < steps; i++) {
      const float middle = (edge[i] + edge[i + 1]) / 2;
      out[n++] = unit * middle;
      out[n++] = -unit * middle;
    }
  }
  out[n++] = 0;
  out[n++] = 1;
  qsort(out, 256, sizeof *out, by_size);
}

/* The sum of `count` numbers, in the order in which PyTorch sums a row on one thread: 8 lanes by 4
 * vectors, whose sums are carried on in levels. */
enum { WIDE = 8, APART = 4, LEVELS = 4 };

static int power_above(int64_t n)
{
  int p = 0;
  while (((int64_t)1 << p) < n) p++;
  return p;
}

/* Sums n vectors of `lanes` numbers. */
static void add_vectors(const float *x, int64_t n, int lanes, float *sum)
{
  float level[LEVELS][APART * WIDE] = { { 0 } };
  const int64_t blocks = n / APART;
  const int width = APART * lanes, up = power_above(blocks) / LEVELS, power = up > 4 ? up : 4;
  int64_t i = 0;

  while (i + (1 << power) <= blocks) {
    for (int64_t end = i + (1 << power); i < end; i++)
      for (int k = 0; k < width; k++) level[0][k] += x[i * width + k];
    for (int l = 1; l < LEVELS; l++) {
      for (int k = 0; k < width; k++) level[l][k] += level[l - 1][k], level[l - 1][k] = 0;
      if (i & (((int64_t)1 << power) - 1) << (l * power)) break;
    }
  }
  for (; i < blocks; i++)
    for (int k = 0; k < width; k++) level[0][k] += x[i * width + k];
  for (int l = 1; l < LEVELS; l++)
    for (int k = 0; k < width; k++) level[0][k] += level[l][k];
  for (i = blocks * APART; i < n; i++)
    for (int k = 0; k < lanes; k++) level[0][k] += x[i * lanes + k];
  for (int a = 1; a < APART; a++)
    for (int k = 0; k < lanes; k++) level[0][k] += level[0][a * lanes + k];
  memcpy(sum, level[0], sizeof *sum * (size_t)lanes);
}

static float mean_of(const float *x, int64_t n)
{
  float lanes[WIDE], sum = 0;
  if (n < WIDE) {
    add_vectors(x, n, 1, &sum);
    return n ? sum / (float)n : 0;
  }
  add_vectors(x, n / WIDE, WIDE, lanes);
  for (int64_t i = n / WIDE * WIDE; i < n; i++) sum += x[i];
  for (int k = 0; k < WIDE; k++) sum += lanes[k];
  return sum / (float)n;
}

/* The code of the number that is nearest to point k of 65536 from -1 to 1. */
static void nearest_points(const float numbers[256], uint8_t *out)
{
  int at = 0;
  for (int k = 0; k < 65536; k++) {
    const float v = (float)(k * 2.0 / 65535 - 1);
    while (at < 255 && v > (numbers[at] + numbers[at + 1]) / 2) at++;
    out[k] = (uint8_t)at;
  }
}

enum { BLOCK = 256 };

static ax_status dynamic_bits(const float *x, int64_t n, uint8_t *codes, float *scales)
{
  uint8_t *const points = ax_malloc(65536);
  const float mean = mean_of(x, n);
  float block[BLOCK];

  if (!points) return AX_ENOMEM;
  dynamic_numbers(scales);
  nearest_points(scales, points);
  scales[BLOCK] = mean;
  for (int64_t from = 0; from < n; from += BLOCK) {
    const int64_t count = n - from < BLOCK ? n - from : BLOCK;
    for (int64_t i = 0; i < count; i++) block[i] = x[from + i] - mean;
    const float most = largest(block, count), by = 1.0f / most; /* of zeros alone: NaN, code 0 */
    scales[AX_DYNAMIC_SCALES + from / BLOCK] = most;
    for (int64_t i = 0; i < count; i++) {
      const float v = clamp(block[i] * by);
      codes[from + i] = points[v == v ? (int)((v + 1) * 32767.5f + 0.5f) : 0];
    }
  }
  ax_mfree(points);
  return AX_OK;
}

ax_status ax_cpu__encode(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t encoding = call->a->encode.encoding, size = call->a->encode.size;
  job j = { .x = ax_data(x),
            .n = x->numel,
            .size = size,
            .codes = ax_data(call->out[0]),
            .scales = ax_data(call->out[1]) };

  if (encoding == AX_ENC_DYNAMIC8) return dynamic_bits(j.x, j.n, j.codes, j.scales);
  if (encoding == AX_ENC_INT8) {
    j.size = x->shape[1];
    ax_cpu_for(x->shape[0], j.n, eight_bits, &j);
    return AX_OK;
  }
  j.to = nearest_of(encoding);
  ax_cpu_for((j.n + size - 1) / size, j.n, four_bits, &j);
  return AX_OK;
}
