/* Numbers to integers, for the casts of all backends.  What the integer cannot hold, and NaN, is
 * undefined in C and differs between processors: here it becomes the least value, as x86 and
 * PyTorch have it.  uint8 takes the low bits of the int64. */
#ifndef AX_CASTS_H
#define AX_CASTS_H

#include <stdint.h>

#include "fn.h"

AX_FN int64_t ax_to_i64(double v) { return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN; }
AX_FN int64_t ax_to_i64_f(float v) { return v >= -0x1p63f && v < 0x1p63f ? (int64_t)v : INT64_MIN; }
AX_FN int32_t ax_to_i32(double v) { return v > -0x1.00000002p31 && v < 0x1p31 ? (int32_t)v : INT32_MIN; }
AX_FN int32_t ax_to_i32_f(float v) { return v >= -0x1p31f && v < 0x1p31f ? (int32_t)v : INT32_MIN; }

#endif
