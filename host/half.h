/* float16 and bfloat16 as bits, to and from float, rounding to nearest even.  The code is plain C,
 * so that the core, the CPU kernels and tests agree bit for bit, and has few branches, so that
 * loops over it vectorise.  On a GPU (sm_80 and later) the conversions are instructions, whose
 * results differ only in the bits of a NaN.  Layouts: float16 is IEEE 754 binary16; bfloat16 is the
 * upper half of binary32. */
#ifndef AX_HALF_H
#define AX_HALF_H

#include "fn.h"

#include <stdint.h>
#include <string.h>

AX_FN float ax_bits_to_float(uint32_t u)
{
  float f;
  memcpy(&f, &u, 4);
  return f;
}
AX_FN uint32_t ax_float_to_bits(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

AX_FN float ax_bf16_to_float(uint16_t h) { return ax_bits_to_float((uint32_t)h << 16); }

#ifdef __CUDA_ARCH__

AX_FN float ax_half_to_float(uint16_t h)
{
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
AX_FN uint16_t ax_float_to_half(float f)
{
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
AX_FN uint16_t ax_float_to_bf16(float f)
{
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

#else

AX_FN uint16_t ax_float_to_bf16(float f)
{
  const uint32_t u = ax_float_to_bits(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  /* a NaN stays a NaN, made quiet */
  return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((u >> 16) | 0x40u) : (uint16_t)rounded;
}

AX_FN float ax_half_to_float(uint16_t h)
{
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
  /* the multiplication moves the exponent from bias 15 to 127, and normalises subnormals */
  const float scaled = ax_bits_to_float(rest << 13) * 0x1p112f;
  const uint32_t bits = rest >= 0x7c00u ? 0x7f800000u | (rest << 13) : ax_float_to_bits(scaled);
  return ax_bits_to_float(sign | bits);
}

AX_FN uint16_t ax_float_to_half(float f)
{
  const uint32_t u = ax_float_to_bits(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
  uint32_t out;

  if (mag > 0x7f800000u) out = 0x7e00u;       /* NaN */
  else if (mag >= 0x477ff000u) out = 0x7c00u; /* rounds to infinity (65520 and above) */
  else if (mag < 0x38800000u) {               /* subnormal: adding 0.5 rounds at 2^-24 */
    out = ax_float_to_bits(ax_bits_to_float(mag) + 0.5f) - 0x3f000000u;
  } else out = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
  return (uint16_t)(sign | out);
}

#endif

#endif
