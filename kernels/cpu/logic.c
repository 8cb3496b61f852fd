/* Comparisons, logic and selection: results are bool, one byte of 0 or 1. */
#include "complex.h"

#include <math.h>

#include "pointwise.h"

#define COMPARE_F32(name, expr) AX_LOOP2(name##_f32, uint8_t, float, expr)
#define COMPARE_F64(name, expr) AX_LOOP2(name##_f64, uint8_t, double, expr)
#define COMPARE_I64(name, expr) AX_LOOP2(name##_i64, uint8_t, int64_t, expr)
#define COMPARE_I32(name, expr) AX_LOOP2(name##_i32, uint8_t, int32_t, expr)
#define COMPARE_U8(name, expr) AX_LOOP2(name##_u8, uint8_t, uint8_t, expr)
AX_COMPARE(COMPARE_F32)
AX_COMPARE(COMPARE_F64)
AX_COMPARE(COMPARE_I64)
AX_COMPARE(COMPARE_I32)
AX_COMPARE(COMPARE_U8)

#define ALL_TYPES(name) AX_FLOATS(name), AX_INTS(name), [AX_BOOL] = name##_u8
#define KERNEL(name, expr) AX_POINTWISE(name, NULL, ALL_TYPES(name))
#define ORDERED(X) X(lt, ) X(le, ) X(gt, ) X(ge, ) X(logical_and, ) X(logical_or, ) X(logical_xor, )
ORDERED(KERNEL)

/* complex numbers have no order */
#define EQUALITY(name, op) \
  AX_LOOP2(name##_c64, uint8_t, ax_cpu_c64, a op b) \
  AX_LOOP2(name##_c128, uint8_t, ax_cpu_c128, a op b) \
  AX_POINTWISE(name, NULL, ALL_TYPES(name), AX_COMPLEX(name))
EQUALITY(eq, ==)
EQUALITY(ne, !=)

#define UNARY(name, of_float, of_int) \
  AX_LOOP1(name##_f32, uint8_t, float, of_float) \
  AX_LOOP1(name##_f64, uint8_t, double, of_float) \
  AX_LOOP1(name##_i64, uint8_t, int64_t, of_int) \
  AX_LOOP1(name##_i32, uint8_t, int32_t, of_int) \
  AX_LOOP1(name##_u8, uint8_t, uint8_t, of_int) \
  KERNEL(name, )
UNARY(logical_not, x == 0, x == 0)
UNARY(isnan, x != x, x & 0)
UNARY(isfinite, x - x == 0, (x | 1) != 0)
UNARY(isinf, x == x && x - x != 0, x & 0)

/* ---- where moves bits; only the size of an element matters */

AX_LOOP3(where_1, uint8_t, uint8_t, uint8_t, m ? a : b)
AX_LOOP3(where_2, uint16_t, uint8_t, uint16_t, m ? a : b)
AX_LOOP3(where_4, uint32_t, uint8_t, uint32_t, m ? a : b)
AX_LOOP3(where_8, uint64_t, uint8_t, uint64_t, m ? a : b)
AX_LOOP3(where_16, ax_cpu_c128, uint8_t, ax_cpu_c128, m ? a : b)

#define BY_SIZE(name) \
  [AX_F32] = name##_4, [AX_F64] = name##_8, [AX_F16] = name##_2, [AX_BF16] = name##_2, [AX_I64] = name##_8, \
  [AX_I32] = name##_4, [AX_U8] = name##_1, [AX_BOOL] = name##_1, [AX_C64] = name##_8, [AX_C128] = name##_16, \
  [AX_E4M3] = name##_1, [AX_E5M2] = name##_1
static const ax_loop where_loops[AX_DTYPE_COUNT] = { BY_SIZE(where) };

ax_status ax_cpu_where(const ax_call *call) { return ax_cpu_pointwise(call, where_loops, 0, NULL); }

/* where(mask, value, x): the operands of where in another order, with the number as an operand. */
ax_status ax_cpu_masked_fill(const ax_call *call)
{
  const ax_dtype d = call->iter->op[0].dtype;
  ax_iter it = *call->iter;
  ax_c128 value; /* room for any type */

  ax_store_double(d, &value, 0, call->a->masked_fill.value);
  it.n = 4;
  it.op[3] = call->iter->op[1];
  it.op[1] = call->iter->op[2];
  it.op[2] = (ax_operand){ .data = (char *)&value, .dtype = d };
  ax_cpu_nest(&it, where_loops[d], NULL);
  return AX_OK;
}
