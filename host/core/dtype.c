/* Element types: names, sizes, promotion, access to single elements. */
#include "ax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "float8.h"
#include "half.h"

static const struct {
  const char *name;
  size_t size;
  ax_category category;
} rows[AX_DTYPE_COUNT] = {
#define DTYPE(ID, name, ctype, size, category) [AX_##ID] = { #name, size, AX_##category },
#include "core/dtype.def"
#undef DTYPE
};

ax_dtype ax_default_dtype = AX_F32;

size_t ax_dtype_size(ax_dtype d) { return rows[d].size; }
const char *ax_dtype_name(ax_dtype d) { return rows[d].name; }
ax_category ax_dtype_category(ax_dtype d) { return rows[d].category; }

ax_status ax_dtype_parse(const char *name, ax_dtype *out)
{
  for (int d = 0; d < AX_DTYPE_COUNT; d++)
    if (strcmp(rows[d].name, name) == 0) {
      *out = (ax_dtype)d;
      return AX_OK;
    }
  return ax_fail(AX_EDTYPE, "no element type is called '%s'; there are "
#define DTYPE(ID, name, ctype, size, category) #name " "
#include "core/dtype.def"
#undef DTYPE
                 ,
                 name);
}

bool ax_number_fits(ax_dtype d, double v)
{
  if (isinf(v) && ax_has_gradient(d)) return true;
  switch (d) {
  case AX_I64: return v == floor(v) && v >= -0x1p63 && v < 0x1p63; /* NaN fails the first test */
  case AX_I32: return v == floor(v) && v >= -0x1p31 && v < 0x1p31;
  case AX_U8: return v == floor(v) && v >= 0 && v < 256;
  case AX_F16: return !(fabs(v) >= 65520); /* halfway between the largest number and the next one */
  case AX_BF16: return !(fabs(v) >= 0x1.ffp127);
  case AX_F32:
  case AX_C64: return !(fabs(v) >= 0x1.ffffffp127);
  case AX_E5M2: return !(fabs(v) >= 61440);
  default: return true;
  }
}

/* Rank within a category; the table in torch/csrc/utils/tensor_types and "type promotion" in
 * PyTorch's documentation: uint8 with int32 gives int32, float16 with bfloat16 float32, complex64
 * with float64 complex128. */
ax_dtype ax_dtype_promote(ax_dtype a, ax_dtype b)
{
  const ax_category ca = rows[a].category, cb = rows[b].category;

  if (a == b) return a;
  if (ca == AX_COMPLEX || cb == AX_COMPLEX)
    return a == AX_C128 || b == AX_C128 || a == AX_F64 || b == AX_F64 ? AX_C128 : AX_C64;
  if (ca != cb) return ca > cb ? a : b;
  if (ca == AX_FLOATING && rows[a].size == 2 && rows[b].size == 2) return AX_F32;
  return rows[a].size >= rows[b].size ? a : b;
}

double ax_load_double(ax_dtype d, const void *data, int64_t at)
{
  switch (d) {
  case AX_F32: return ((const float *)data)[at];
  case AX_F64: return ((const double *)data)[at];
  case AX_F16: return ax_half_to_float(((const uint16_t *)data)[at]);
  case AX_BF16: return ax_bf16_to_float(((const uint16_t *)data)[at]);
  case AX_E4M3: return ax_e4m3_to_float(((const uint8_t *)data)[at]);
  case AX_E5M2: return ax_e5m2_to_float(((const uint8_t *)data)[at]);
  case AX_C64: return ((const ax_c64 *)data)[at].re;
  case AX_C128: return ((const ax_c128 *)data)[at].re;
  default: return (double)ax_load_int(d, data, at);
  }
}

int64_t ax_load_int(ax_dtype d, const void *data, int64_t at)
{
  switch (d) {
  case AX_I64: return ((const int64_t *)data)[at];
  case AX_I32: return ((const int32_t *)data)[at];
  case AX_U8:
  case AX_BOOL: return ((const uint8_t *)data)[at];
  default: {
    const double v = ax_load_double(d, data, at);
    /* out of range and NaN are undefined in C: they come as the least value, as x86 has it */
    return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN;
  }
  }
}

void ax_store_int(ax_dtype d, void *data, int64_t at, int64_t v)
{
  switch (d) {
  case AX_I64: ((int64_t *)data)[at] = v; break;
  case AX_I32: ((int32_t *)data)[at] = (int32_t)(uint32_t)(uint64_t)v; break;
  case AX_U8: ((uint8_t *)data)[at] = (uint8_t)(uint64_t)v; break;
  case AX_BOOL: ((uint8_t *)data)[at] = v != 0; break;
  default: ax_store_double(d, data, at, (double)v);
  }
}

void ax_store_double(ax_dtype d, void *data, int64_t at, double v)
{
  switch (d) {
  case AX_F32: ((float *)data)[at] = (float)v; break;
  case AX_F64: ((double *)data)[at] = v; break;
  case AX_F16: ((uint16_t *)data)[at] = ax_float_to_half((float)v); break;
  case AX_BF16: ((uint16_t *)data)[at] = ax_float_to_bf16((float)v); break;
  case AX_E4M3: ((uint8_t *)data)[at] = ax_float_to_e4m3((float)v); break;
  case AX_E5M2: ((uint8_t *)data)[at] = ax_float_to_e5m2((float)v); break;
  case AX_BOOL: ((uint8_t *)data)[at] = v != 0; break;
  case AX_C64: ((ax_c64 *)data)[at] = (ax_c64){ (float)v, 0 }; break;
  case AX_C128: ((ax_c128 *)data)[at] = (ax_c128){ v, 0 }; break;
  /* as in the kernels' casts: what int32 cannot hold is its least value, not the low bits of a
   * larger integer */
  case AX_I32: ((int32_t *)data)[at] = v > -0x1.00000002p31 && v < 0x1p31 ? (int32_t)v : INT32_MIN; break;
  default: ax_store_int(d, data, at, v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN);
  }
}
