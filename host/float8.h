/* float8_e4m3fn and float8_e5m2 as bits, to and from float, rounding to nearest even; plain C with
 * few branches, as half.h is.  Layouts, after the sign:
 *
 *   E4M3  4 bits of exponent (bias 7), 3 of mantissa; largest 448, smallest 2^-9; no infinity: all
 *         ones are NaN
 *   E5M2  5 bits of exponent (bias 15), 2 of mantissa; the upper half of float16, infinities and
 *         NaNs included; largest 57344, smallest 2^-16
 *
 * Numbers that are too large, infinity too, become 448 in E4M3, and infinity in E5M2, as in
 * PyTorch. */
#ifndef AX_FLOAT8_H
#define AX_FLOAT8_H

#include "half.h"

#define AX_E4M3_MOST 448.0f
#define AX_E5M2_MOST 57344.0f
#define AX_FLOAT8_MOST_SCALE 0x1p126f /* of a tensor: 1 / scale is a normal number, too */

AX_FN float ax_e4m3_to_float(uint8_t v)
{
  const uint32_t sign = (uint32_t)(v & 0x80u) << 24, rest = v & 0x7fu;
  /* the multiplication moves the exponent from bias 7 to 127, and normalises subnormals */
  const float scaled = ax_bits_to_float(rest << 20) * 0x1p120f;
  const uint32_t bits = rest == 0x7fu ? 0x7ff00000u : ax_float_to_bits(scaled);
  return ax_bits_to_float(sign | bits);
}

AX_FN float ax_e5m2_to_float(uint8_t v)
{
  const uint32_t sign = (uint32_t)(v & 0x80u) << 24, rest = v & 0x7fu;
  const float scaled = ax_bits_to_float(rest << 21) * 0x1p112f;
  const uint32_t quiet = rest > 0x7cu ? 0x400000u : 0; /* of a NaN */
  const uint32_t bits = rest >= 0x7cu ? 0x7f800000u | (rest << 21) | quiet : ax_float_to_bits(scaled);
  return ax_bits_to_float(sign | bits);
}

AX_FN uint8_t ax_float_to_e4m3(float f)
{
  const uint32_t u = ax_float_to_bits(f), sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
  uint32_t out;

  if (mag > 0x7f800000u) out = 0x7fu;       /* NaN */
  else if (mag >= 0x43e00000u) out = 0x7eu; /* 448 and above */
  else if (mag < 0x3c800000u) {             /* below 2^-6: adding 2^14 rounds at 2^-9 */
    out = ax_float_to_bits(ax_bits_to_float(mag) + 0x1p14f) - 0x46800000u;
  } else out = (mag - 0x3c000000u + 0x7ffffu + ((mag >> 20) & 1u)) >> 20;
  return (uint8_t)(sign | out);
}

AX_FN uint8_t ax_float_to_e5m2(float f)
{
  const uint32_t u = ax_float_to_bits(f), sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
  uint32_t out;

  if (mag > 0x7f800000u) out = 0x7fu;       /* NaN */
  else if (mag >= 0x47700000u) out = 0x7cu; /* rounds to infinity (61440 and above) */
  else if (mag < 0x38800000u) {             /* below 2^-14: adding 2^7 rounds at 2^-16 */
    out = ax_float_to_bits(ax_bits_to_float(mag) + 0x1p7f) - 0x43000000u;
  } else out = (mag - 0x38000000u + 0xfffffu + ((mag >> 21) & 1u)) >> 21;
  return (uint8_t)(sign | out);
}

#endif
