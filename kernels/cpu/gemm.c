/* A matrix product of our own for the types that oneDNN does not have.  A tile of 64 x 64 results
 * is one piece of work for a thread.  Slices of both matrices are packed on the stack, whatever
 * their strides, and multiplied by a kernel that keeps 4 rows of two vectors in registers;
 * multiplications bound it.  The order of additions depends on the sizes only. */
#include "gemm.h"

#include "cpu/linalg/dense.h"

#include <string.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#define TILE 64   /* rows and columns of a tile */
#define DEPTH 128 /* of a slice, along k */
#define MR 4

/* U: the type that arithmetic is done in, in which integers wrap around without undefined
 * behaviour. */
#define GEMM(name, U, bytes) \
  typedef U name##_vec __attribute__((vector_size(bytes), aligned(sizeof(U)), may_alias)); \
  enum { name##_V = bytes / sizeof(U), name##_NR = 2 * name##_V }; \
  /* acc (4 x NR, rows TILE apart) += pa (depth x 4) x pb (depth x NR) */ \
  __attribute__((optimize("fp-contract=fast"))) static void name##_micro(const U *pa, const U *pb, \
                                                                         int64_t depth, U *acc) \
  { \
    name##_vec c[MR][2]; \
    for (int i = 0; i < MR; i++) { \
      c[i][0] = *(const name##_vec *)(acc + i * TILE); \
      c[i][1] = *(const name##_vec *)(acc + i * TILE + name##_V); \
    } \
    for (int64_t p = 0; p < depth; p++, pa += MR, pb += name##_NR) { \
      const name##_vec b0 = *(const name##_vec *)pb, b1 = *(const name##_vec *)(pb + name##_V); \
      for (int i = 0; i < MR; i++) { \
        c[i][0] += pa[i] * b0; \
        c[i][1] += pa[i] * b1; \
      } \
    } \
    for (int i = 0; i < MR; i++) { \
      *(name##_vec *)(acc + i * TILE) = c[i][0]; \
      *(name##_vec *)(acc + i * TILE + name##_V) = c[i][1]; \
    } \
  } \
  /* Packs groups of `lanes` rows, each depth x lanes, with zeros past the end. */ \
  static void name##_pack(const U *src, int64_t row, int64_t col, int64_t rows, int64_t depth, int lanes, \
                          U *dst) \
  { \
    for (int64_t i = 0; i < rows; i += lanes) \
      for (int64_t p = 0; p < depth; p++) \
        for (int j = 0; j < lanes; j++) *dst++ = i + j < rows ? src[(i + j) * row + p * col] : 0; \
  } \
  static void name##_range(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const ax_gemm *g = j->g; \
    U pa[TILE * DEPTH], pb[TILE * DEPTH], acc[TILE * TILE]; \
    for (int64_t t = lo; t < hi; t++) { \
      const int64_t at_n = t % j->across * TILE, at_m = t / j->across % j->down * TILE, \
                    i = t / j->across / j->down; \
      const int64_t m = g->m - at_m < TILE ? g->m - at_m : TILE, \
                    n = g->n - at_n < TILE ? g->n - at_n : TILE; \
      U *c = (U *)j->c + i * g->c[0] + at_m * g->c[1] + at_n; \
      memset(acc, 0, sizeof(acc)); \
      for (int64_t p = 0; p < g->k; p += DEPTH) { \
        const int64_t depth = g->k - p < DEPTH ? g->k - p : DEPTH; \
        name##_pack((const U *)j->a + i * g->a[0] + at_m * g->a[1] + p * g->a[2], g->a[1], g->a[2], m, \
                    depth, MR, pa); \
        name##_pack((const U *)j->b + i * g->b[0] + at_n * g->b[2] + p * g->b[1], g->b[2], g->b[1], n, \
                    depth, name##_NR, pb); \
        for (int64_t x = 0; x < n; x += name##_NR) \
          for (int64_t y = 0; y < m; y += MR) \
            name##_micro(pa + y * depth, pb + x * depth, depth, acc + y * TILE + x); \
      } \
      for (int64_t y = 0; y < m; y++) \
        for (int64_t x = 0; x < n; x++) \
          c[y * g->c[1] + x] = acc[y * TILE + x] + (g->accumulate ? c[y * g->c[1] + x] : 0); \
    } \
  }

typedef struct job {
  const ax_gemm *g;
  const void *a, *b;
  void *c;
  int64_t across, down;
} job;

GEMM(f32, float, BYTES)
GEMM(f64, double, BYTES)
GEMM(i64, uint64_t, BYTES)
GEMM(i32, uint32_t, BYTES)
GEMM(u8, uint8_t, (BYTES < 32 ? BYTES : 32)) /* two vectors must fit a tile */

/* Large products of floats, one matrix of the batch after the other, by the tiles of dense.c.
 * Which way a matrix takes follows from its own sizes. */
static bool by_tiles(const ax_gemm *g, const char *a, const char *b, char *c)
{
  const int64_t item = (int64_t)ax_dtype_size((ax_dtype)g->dtype);
  const size_t bytes = ax_dense_room((ax_dtype)g->dtype, 0, g->n);
  void *room;
  if ((g->dtype != AX_F32 && g->dtype != AX_F64) || g->n < 16 || g->m * g->n * g->k < 1 << 18 ||
      ax_alloc(bytes, &room) != AX_OK)
    return false;
  for (int64_t i = 0; i < g->batch; i++)
    ax_dense_of((ax_dtype)g->dtype)
        ->product(g->m, g->n, g->k, a + i * g->a[0] * item, g->a[1], g->a[2], b + i * g->b[0] * item, g->b[1],
                  g->b[2], c + i * g->c[0] * item, g->c[1], g->accumulate ? AX_DENSE_ADD : AX_DENSE_SET,
                  room);
  ax_free(room, bytes);
  return true;
}

void ax_cpu_gemm(const ax_gemm *g, const void *a, const void *b, void *c)
{
  static const ax_range_fn ranges[AX_DTYPE_COUNT] = {
    [AX_F32] = f32_range, [AX_F64] = f64_range, [AX_I64] = i64_range, [AX_I32] = i32_range, [AX_U8] = u8_range
  };
  if (by_tiles(g, a, b, c)) return;
  job j = { g, a, b, c, (g->n + TILE - 1) / TILE, (g->m + TILE - 1) / TILE };
  ax_cpu_for(g->batch * j.across * j.down, g->batch * g->m * g->n * (g->k / 4 + 1), ranges[g->dtype], &j);
}

/* c = bias in each row, for kernels that can only add to c. */
static void spread_bias(const ax_gemm *g, const void *bias, void *c)
{
  const size_t size = ax_dtype_size((ax_dtype)g->dtype);
  for (int64_t i = 0; i < g->batch; i++)
    for (int64_t y = 0; y < g->m; y++)
      memcpy((char *)c + (size_t)(i * g->c[0] + y * g->c[1]) * size, bias, (size_t)g->n * size);
}

void ax_cpu_gemm_bias(ax_gemm g, const void *a, const void *b, const void *bias, void *c)
{
  if (g.bias) {
    spread_bias(&g, bias, c);
    g.bias = 0;
    g.accumulate = 1;
  }
  ax_cpu_gemm(&g, a, b, c);
}
