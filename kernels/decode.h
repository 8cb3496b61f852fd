/* The numbers that codes of core/encodings.def stand for, 32 neighbours of a row at a time, for the
 * CPU and CUDA kernels.  Products and sums are rounded one by one, in the order of the formats'
 * references, so that results have their bits: these files are compiled without contraction.
 *
 * Codes of four bits name one of 16 numbers, which have their scale before they are looked up. */
#ifndef AX_DECODE_H
#define AX_DECODE_H

#include "plugin.h"

#include "fn.h"
#include "half.h"

typedef struct ax_encoded {
  int encoding;
  int64_t rows, cols;
  int shift; /* 2^shift values share a scale, at least 32 */
  const uint8_t *codes;
  const float *scales;
  const uint8_t *scale_codes; /* nf4, fp4: scales in dynamic8, whose own are `more` */
  const float *more;
  const uint8_t *zeros; /* affine4, affine8 */
} ax_encoded;

/* The matrix of a call whose inputs from `first` on are codes, scales and more. */
static inline ax_encoded ax_encoded_of(const ax_call *call, int first, int64_t encoding, int64_t rows,
                                       int64_t cols, int64_t size)
{
  const ax_tensor *scales = call->in[first + 1], *more = call->in[first + 2];
  ax_encoded e = { 0 };
  e.encoding = (int)encoding;
  e.rows = rows;
  e.cols = cols;
  while (((int64_t)1 << e.shift) < size) e.shift++;
  e.codes = (const uint8_t *)ax_data(call->in[first]);
  if (scales && scales->dtype == AX_U8) e.scale_codes = (const uint8_t *)ax_data(scales);
  else if (scales) e.scales = (const float *)ax_data(scales);
  if (more && more->dtype == AX_U8) e.zeros = (const uint8_t *)ax_data(more);
  else if (more) e.more = (const float *)ax_data(more);
  return e;
}

AX_FN float ax_half_at(const uint8_t *p) { return ax_half_to_float((uint16_t)(p[0] | p[1] << 8)); }

/* ---- 16 numbers times a scale */

AX_FN void ax_nf4_table(float scale, float t[16])
{
  const float v[16] = { -1.0f,
                        -0.6961928009986877f,
                        -0.5250730514526367f,
                        -0.39491748809814453f,
                        -0.28444138169288635f,
                        -0.18477343022823334f,
                        -0.09105003625154495f,
                        0.0f,
                        0.07958029955625534f,
                        0.16093020141124725f,
                        0.24611230194568634f,
                        0.33791524171829224f,
                        0.44070982933044434f,
                        0.5626170039176941f,
                        0.7229568362236023f,
                        1.0f };
  for (int i = 0; i < 16; i++) t[i] = v[i] * scale;
}

/* a sign, two bits of exponent and one of mantissa; the largest number is 1 */
AX_FN void ax_fp4_table(float scale, float t[16])
{
  const float v[8] = { 0.0f / 12, 0.0625f / 12, 8.0f / 12, 12.0f / 12,
                       4.0f / 12, 6.0f / 12,    2.0f / 12, 3.0f / 12 };
  for (int i = 0; i < 8; i++) {
    t[i] = v[i] * scale;
    t[8 + i] = -v[i] * scale;
  }
}

AX_FN void ax_iq4_table(float scale, float t[16])
{
  const float v[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
  for (int i = 0; i < 16; i++) t[i] = v[i] * scale;
}

/* the numbers of e2m1, doubled */
AX_FN void ax_mxfp4_table(float scale, float t[16])
{
  const float v[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
  for (int i = 0; i < 8; i++) {
    t[i] = v[i] * scale;
    t[8 + i] = i ? -v[i] * scale : v[i] * scale;
  }
}

/* 0 .. 15, less `zero` */
AX_FN void ax_even_table(float zero, float scale, float t[16])
{
  for (int i = 0; i < 16; i++) t[i] = ((float)i - zero) * scale;
}

AX_FN void ax_affine_table(float scale, float add, float t[16])
{
  for (int i = 0; i < 16; i++) t[i] = (float)i * scale + add;
}

/* half of 2^(e - 127), a byte of MXFP4's: e = 0 and 1 are subnormal halves */
AX_FN float ax_e8m0_half(uint8_t e)
{
  const union {
    uint32_t bits;
    float value;
  } u = { e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23 };
  return u.value;
}

/* out[i] = t[code i].  Low halves come before high ones: `pairs` within each byte, else for each 16
 * bytes. */
#ifndef AX_LOOK_UP
AX_FN void ax_look_up_nibbles(const float t[16], const uint8_t *p, bool pairs, bool high_first, float *out)
{
  for (int i = 0; i < 16; i++) {
    const float low = t[p[i] & 15], high = t[p[i] >> 4];
    if (pairs) {
      out[2 * i] = high_first ? high : low;
      out[2 * i + 1] = high_first ? low : high;
    } else {
      out[i] = low;
      out[16 + i] = high;
    }
  }
}
/* 32 bytes with a code each, in the low halves or (shift 4) in the high ones */
AX_FN void ax_look_up_half(const float t[16], const uint8_t *p, int shift, float *out)
{
  for (int i = 0; i < 32; i++) out[i] = t[p[i] >> shift & 15];
}
#endif

/* ---- scales that are tensors */

/* Groups of values that share a scale in a row. */
AX_FN int64_t ax_groups_of(const ax_encoded *e)
{
  return (e->cols + ((int64_t)1 << e->shift) - 1) >> e->shift;
}

/* Scale number b of nf4 and fp4. */
AX_FN float ax_scale_at(const ax_encoded *e, int64_t b)
{
  if (!e->scale_codes) return e->scales[b];
  return e->more[e->scale_codes[b]] * e->more[AX_DYNAMIC_SCALES + b / 256] + e->more[256];
}

AX_FN float ax_e4m3(uint8_t v)
{
  const int exponent = v >> 3 & 15, mantissa = v & 7;
  const union {
    uint32_t bits;
    float value;
  } normal = { (uint32_t)(exponent + 120) << 23 | (uint32_t)mantissa << 20 }, nan = { 0x7fc00000u };
  const float size = (v & 127) == 127 ? nan.value : exponent ? normal.value : (float)mantissa * 0.001953125f;
  return v & 128 ? -size : size;
}

/* Value number i, counted over the whole matrix, of an encoding whose values are: nf4, fp4,
 * dynamic8. */
AX_FN float ax_decode_flat(const ax_encoded *e, int64_t i)
{
  float t[16];
  if (e->encoding == AX_ENC_DYNAMIC8)
    return e->scales[e->codes[i]] * e->scales[AX_DYNAMIC_SCALES + i / 256] + e->scales[256];
  const uint8_t byte = e->codes[i / 2];
  if (e->encoding == AX_ENC_NF4) ax_nf4_table(ax_scale_at(e, i >> e->shift), t);
  else ax_fp4_table(ax_scale_at(e, i >> e->shift), t);
  return t[i & 1 ? byte & 15 : byte >> 4];
}

/* ---- blocks of GGUF */

/* Scale and minimum of group j of 8: six bits each, in 12 bytes. */
AX_FN void ax_k_scale(const uint8_t *s, int j, float *scale, float *least)
{
  *scale = (float)(j < 4 ? s[j] & 63 : (s[4 + j] & 15) | (s[j - 4] >> 2 & 48));
  *least = (float)(j < 4 ? s[4 + j] & 63 : s[4 + j] >> 4 | (s[j] >> 2 & 48));
}

/* Scale of group j of 16 of a Q3_K, less 32: six bits, the low four in the first 8 bytes and the
 * high two in the next 4. */
AX_FN float ax_q3_scale(const uint8_t *s, int j)
{
  const int low = s[j & 7] >> (j < 8 ? 0 : 4) & 15, high = s[8 + (j & 3)] >> 2 * (j >> 2) & 3;
  return (float)((low | high << 4) - 32);
}

/* Codes of five bits: the fifth of each is in a word. */
AX_FN void ax_codes_5(const uint8_t *qh, const uint8_t *qs, int out[32])
{
  const uint32_t high =
      (uint32_t)qh[0] | (uint32_t)qh[1] << 8 | (uint32_t)qh[2] << 16 | (uint32_t)qh[3] << 24;
  for (int i = 0; i < 16; i++) {
    out[i] = (qs[i] & 15) | (int)(high >> i & 1) << 4;
    out[16 + i] = qs[i] >> 4 | (int)(high >> (16 + i) & 1) << 4;
  }
}

AX_FN void ax_decode_q5_0(const uint8_t *b, float *out)
{
  const float d = ax_half_at(b);
  int codes[32];
  ax_codes_5(b + 2, b + 6, codes);
  for (int i = 0; i < 32; i++) out[i] = d * (float)(codes[i] - 16);
}

AX_FN void ax_decode_q5_1(const uint8_t *b, float *out)
{
  const float d = ax_half_at(b), m = ax_half_at(b + 2);
  int codes[32];
  ax_codes_5(b + 4, b + 8, codes);
  for (int i = 0; i < 32; i++) out[i] = d * (float)codes[i] + m;
}

AX_FN void ax_decode_q2_k(const uint8_t *b, int g, float *out)
{
  const float d = ax_half_at(b + 80), dmin = ax_half_at(b + 82);
  const uint8_t *qs = b + 16 + (g >> 2) * 32;
  for (int k = 0; k < 2; k++) {
    const uint8_t s = b[2 * g + k];
    const float scale = d * (float)(s & 15), least = dmin * (float)(s >> 4);
    for (int i = 0; i < 16; i++) out[16 * k + i] = scale * (float)(qs[16 * k + i] >> 2 * (g & 3) & 3) - least;
  }
}

AX_FN void ax_decode_q3_k(const uint8_t *b, int g, float *out)
{
  const float d = ax_half_at(b + 108);
  const uint8_t *qs = b + 32 + (g >> 2) * 32;
  for (int k = 0; k < 2; k++) {
    const float scale = d * ax_q3_scale(b + 96, 2 * g + k);
    for (int i = 16 * k; i < 16 * k + 16; i++)
      out[i] = scale * (float)((qs[i] >> 2 * (g & 3) & 3) - (b[i] >> g & 1 ? 0 : 4));
  }
}

AX_FN void ax_decode_q4_k(const uint8_t *b, int g, float *out)
{
  float t[16], scale, least;
  ax_k_scale(b + 4, g, &scale, &least);
  ax_affine_table(ax_half_at(b) * scale, -(ax_half_at(b + 2) * least), t);
  ax_look_up_half(t, b + 16 + (g >> 1) * 32, g & 1 ? 4 : 0, out);
}

AX_FN void ax_decode_q5_k(const uint8_t *b, int g, float *out)
{
  float scale, least;
  ax_k_scale(b + 4, g, &scale, &least);
  const float d = ax_half_at(b) * scale, m = ax_half_at(b + 2) * least;
  const uint8_t *qh = b + 16, *qs = b + 48 + (g >> 1) * 32;
  for (int i = 0; i < 32; i++)
    out[i] = d * (float)((qs[i] >> (g & 1 ? 4 : 0) & 15) | (qh[i] >> g & 1) << 4) - m;
}

AX_FN void ax_decode_q6_k(const uint8_t *b, int g, float *out)
{
  const float d = ax_half_at(b + 208);
  const int part = g >> 2, in = g & 3; /* 128 values a part: low bits of 64 bytes, high ones of 32 */
  const uint8_t *ql = b + part * 64 + (in & 1) * 32, *qh = b + 128 + part * 32;
  for (int i = 0; i < 32; i++) {
    const int q = (ql[i] >> (in & 2 ? 4 : 0) & 15) | (qh[i] >> 2 * in & 3) << 4;
    out[i] = d * (float)(int8_t)b[192 + 2 * g + (i >> 4)] * (float)(q - 32);
  }
}

/* Group g of 32 of the block at b. */
AX_FN void ax_decode_block(int encoding, const uint8_t *b, int g, float *out)
{
  float t[16];
  switch (encoding) {
  case AX_ENC_Q4_0:
    ax_even_table(8, ax_half_at(b), t);
    ax_look_up_nibbles(t, b + 2, false, false, out);
    break;
  case AX_ENC_Q4_1:
    ax_affine_table(ax_half_at(b), ax_half_at(b + 2), t);
    ax_look_up_nibbles(t, b + 4, false, false, out);
    break;
  case AX_ENC_IQ4_NL:
    ax_iq4_table(ax_half_at(b), t);
    ax_look_up_nibbles(t, b + 2, false, false, out);
    break;
  case AX_ENC_MXFP4:
    ax_mxfp4_table(ax_e8m0_half(b[0]), t);
    ax_look_up_nibbles(t, b + 1, false, false, out);
    break;
  case AX_ENC_Q5_0: ax_decode_q5_0(b, out); break;
  case AX_ENC_Q5_1: ax_decode_q5_1(b, out); break;
  case AX_ENC_Q8_0: {
    const float d = ax_half_at(b);
    for (int i = 0; i < 32; i++) out[i] = (float)(int8_t)b[2 + i] * d;
    break;
  }
  case AX_ENC_Q2_K: ax_decode_q2_k(b, g, out); break;
  case AX_ENC_Q3_K: ax_decode_q3_k(b, g, out); break;
  case AX_ENC_Q4_K: ax_decode_q4_k(b, g, out); break;
  case AX_ENC_Q5_K: ax_decode_q5_k(b, g, out); break;
  default: ax_decode_q6_k(b, g, out);
  }
}

/* ---- any encoding */

/* int8's values are row * (1 / 127) times the code, rounded in this order. */
#define AX_INT8_UNIT 7.874015718698502e-3f

/* The values of row `row` from column `col`, a multiple of 32, on: 32 of them, or those up to the
 * row's end. */
AX_FN void ax_decode_32(const ax_encoded *e, int64_t row, int64_t col, float *out)
{
  const int64_t at = row * e->cols + col;
  const int n = e->cols - col < 32 ? (int)(e->cols - col) : 32;
  float t[16];

  switch (e->encoding) {
  case AX_ENC_INT8:
    for (int i = 0; i < n; i++) out[i] = (float)(int8_t)e->codes[at + i] * e->scales[row] * AX_INT8_UNIT;
    return;
  case AX_ENC_FP8: {
    const float scale = e->scales[(row >> e->shift) * ax_groups_of(e) + (col >> e->shift)];
    for (int i = 0; i < n; i++) out[i] = ax_e4m3(e->codes[at + i]) * scale;
    return;
  }
  case AX_ENC_FP8_ROWS:
    for (int i = 0; i < n; i++) out[i] = ax_e4m3(e->codes[at + i]) * e->scales[row];
    return;
  case AX_ENC_AFFINE8: {
    const int64_t group = row * ax_groups_of(e) + (col >> e->shift);
    const float zero = (float)e->zeros[group], scale = e->scales[group];
    for (int i = 0; i < n; i++) out[i] = ((float)e->codes[at + i] - zero) * scale;
    return;
  }
  case AX_ENC_AFFINE4: {
    const int64_t group = row * ax_groups_of(e) + (col >> e->shift);
    ax_even_table((float)e->zeros[group], e->scales[group], t);
    if (n == 32) ax_look_up_nibbles(t, e->codes + at / 2, true, false, out);
    else
      for (int i = 0; i < n; i++) out[i] = t[e->codes[(at + i) / 2] >> (i & 1 ? 4 : 0) & 15];
    return;
  }
  case AX_ENC_NF4:
  case AX_ENC_FP4:
    if (n < 32 || at % 32) break;
    if (e->encoding == AX_ENC_NF4) ax_nf4_table(ax_scale_at(e, at >> e->shift), t);
    else ax_fp4_table(ax_scale_at(e, at >> e->shift), t);
    ax_look_up_nibbles(t, e->codes + at / 2, true, true, out);
    return;
  case AX_ENC_DYNAMIC8: break;
  default: {
    const bool large = e->encoding >= AX_ENC_Q2_K && e->encoding <= AX_ENC_Q6_K;
    const int bytes[] = {
#define ENCODING(ID, name, block, bytes) bytes,
#include "core/encodings.def"
#undef ENCODING
    };
    ax_decode_block(e->encoding, e->codes + at / (large ? 256 : 32) * bytes[e->encoding],
                    large ? (int)(at / 32 % 8) : 0, out);
    return;
  }
  }
  for (int i = 0; i < n; i++) out[i] = ax_decode_flat(e, at + i);
}

#endif
