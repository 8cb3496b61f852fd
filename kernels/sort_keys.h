/* Sort keys for the CPU and CUDA kernels: an unsigned number for each element, in the elements'
 * order. NaN is above everything; the two zeros have one key. */
#ifndef AX_SORT_KEYS_H
#define AX_SORT_KEYS_H

#include "half.h"

AX_FN uint32_t ax_key_f32(float v)
{
  const uint32_t u = ax_float_to_bits(v), turned = u ^ (u >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
  return v != v ? UINT32_MAX : v == 0 ? UINT32_C(1) << 31 : turned;
}
AX_FN uint64_t ax_key_f64(double v)
{
  uint64_t u;
  memcpy(&u, &v, 8);
  const uint64_t turned = u ^ (u >> 63 ? UINT64_MAX : UINT64_C(1) << 63);
  return v != v ? UINT64_MAX : v == 0 ? UINT64_C(1) << 63 : turned;
}
/* The upper half of the float's key: the conversion keeps the order. */
AX_FN uint32_t ax_key_bf16(uint16_t v) { return ax_key_f32(ax_bf16_to_float(v)) >> 16; }
AX_FN uint32_t ax_key_f16(uint16_t v)
{
  const uint32_t turned = v ^ (v >> 15 ? 0xffffu : 0x8000u);
  return (v & 0x7fffu) > 0x7c00u ? 0xffffu : (v & 0x7fffu) == 0 ? 0x8000u : turned;
}
AX_FN uint32_t ax_key_i32(int32_t v) { return (uint32_t)v ^ UINT32_C(1) << 31; }
AX_FN uint64_t ax_key_i64(int64_t v) { return (uint64_t)v ^ UINT64_C(1) << 63; }
AX_FN uint32_t ax_key_u8(uint8_t v) { return v; }

#endif
