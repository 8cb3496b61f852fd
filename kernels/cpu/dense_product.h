/* Products of dense.c in type T.  Slices of both matrices are packed: of b once for all threads, of
 * a by the thread that needs them. */
#define VN ((int64_t)(AX_BYTES / sizeof(T)))
enum { FN(LANES) = AX_BYTES / sizeof(T) };

#include "turn.h"

/* c (rows, NR) =, +=, -= pa (depth x MR) x pb (depth x NR).  pb stays in the first-level cache from
 * one tile to the next, and pa is fetched from the second-level one a few steps ahead. */
static inline __attribute__((always_inline)) void FN(tile_of)(const int rows, int64_t depth, const T *pa,
                                                              const T *pb, T *c, int64_t c_row, int how)
{
  enum { LINE = 64 / sizeof(T), AHEAD = 8 * MR };
  V sum[MR][2] = { 0 };
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) { /* rows of c start anywhere, so that one may reach into two lines */
    __builtin_prefetch(c + i * c_row, 1);
    __builtin_prefetch(c + i * c_row + NR - 1, 1);
  }
  for (int64_t p = 0; p < depth; p++, pa += MR, pb += NR) {
    const V b0 = *(const V *)pb, b1 = *(const V *)(pb + VN);
#pragma GCC unroll 2
    for (int i = 0; i < MR; i += LINE) __builtin_prefetch(pa + AHEAD + i);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
      sum[i][0] += pa[i] * b0;
      sum[i][1] += pa[i] * b1;
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++, c += c_row) {
    V *const to = (V *)c, *const next = (V *)(c + VN);
    if (how == AX_DENSE_SET) *to = sum[i][0], *next = sum[i][1];
    else if (how == AX_DENSE_ADD) *to += sum[i][0], *next += sum[i][1];
    else *to -= sum[i][0], *next -= sum[i][1];
  }
}

/* Tiles of MR rows, of two thirds and of a third of them, for the last rows of a matrix. */
typedef void (*FN(tile_fn))(int64_t depth, const T *pa, const T *pb, T *c, int64_t c_row, int how);
#define TILE_OF(name, rows) \
  static __attribute__((noinline)) void FN(name)(int64_t depth, const T *pa, const T *pb, T *c, \
                                                 int64_t c_row, int how) \
  { \
    FN(tile_of)(rows, depth, pa, pb, c, c_row, how); \
  }
TILE_OF(tile, MR)
TILE_OF(tile_two_thirds, 2 * MR / 3)
TILE_OF(tile_third, MR / 3)
#undef TILE_OF

/* c (rows <= THIN, up to `vectors` of columns) =, +=, -= a x pb (depth x NR), without packing a. */
static inline __attribute__((always_inline)) void FN(thin_tile)(int64_t depth, const T *a, int64_t a_row,
                                                                int64_t a_col, const T *pb, int vectors,
                                                                int64_t rows, T *c, int64_t c_row, int how)
{
  V sum[THIN][2] = { 0 };
  const T *from[THIN];
#pragma GCC unroll 6
  for (int i = 0; i < THIN; i++) from[i] = a + (i < rows ? i : rows - 1) * a_row;
  for (int64_t p = 0; p < depth; p++, pb += NR) {
    const V b0 = *(const V *)pb, b1 = vectors > 1 ? *(const V *)(pb + VN) : b0;
#pragma GCC unroll 6
    for (int i = 0; i < THIN; i++) {
      sum[i][0] += from[i][p * a_col] * b0;
      if (vectors > 1) sum[i][1] += from[i][p * a_col] * b1;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < THIN; i++) {
    if (i >= rows) break;
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) {
      V *const to = (V *)(c + i * c_row + v * VN);
      if (how == AX_DENSE_SET) *to = sum[i][v];
      else if (how == AX_DENSE_ADD) *to += sum[i][v];
      else *to -= sum[i][v];
    }
  }
}

typedef struct FN(slice) {
  const T *a, *b;
  T *c, *packed;
  int64_t m, n, depth, a_row, a_col, b_row, b_col, c_row, down;
  int how;
} FN(slice);

/* `rows` lines whose elements are adjacent, VN elements at a time, turned over.  A vector may reach
 * beyond its numbers, into those that are stored next: the last lines come first.  Returns how many
 * elements it packed. */
static inline __attribute__((always_inline)) int64_t FN(pack_lines)(const int rows, const T *from,
                                                                    int64_t step, int64_t depth, T *to)
{
  int64_t p = 0;
  for (; p + VN <= depth; p += VN)
#pragma GCC unroll 4
    for (int r = (rows - 1) / FN(LANES) * FN(LANES); r >= 0; r -= FN(LANES)) {
      V v[FN(LANES)];
#pragma GCC unroll 16
      for (int q = 0; q < FN(LANES); q++)
        v[q] = *(const V *)(from + (r + q < rows ? r + q : rows - 1) * step + p);
      FN(turn)(v);
#pragma GCC unroll 16
      for (int q = 0; q < FN(LANES); q++) *(V *)(to + (p + q) * rows + r) = v[q];
    }
  return p;
}

/* Groups of NR columns of b, each depth x NR, with zeros past the end.  Where rows are adjacent,
 * some groups are packed together, row by row: what a row has in one is too short to be read
 * ahead. */
static void FN(pack_b)(int64_t lo, int64_t hi, void *ud)
{
  const FN(slice) *s = ud;
  for (int64_t g = lo; g < hi; g++) {
    const int64_t n = lesser(s->n - g * NR, NR);
    const T *from = s->b + g * NR * s->b_col;
    T *to = s->packed + g * NR * s->depth;
    if (n == NR && s->b_col == 1) {
      const int64_t groups = lesser(lesser(hi, s->n / NR) - g, TOGETHER);
      for (int64_t p = 0; p < s->depth; p++, from += s->b_row, to += NR)
        for (int64_t h = 0; h < groups; h++) {
          *(V *)(to + h * NR * s->depth) = *(const V *)(from + h * NR);
          *(V *)(to + h * NR * s->depth + VN) = *(const V *)(from + h * NR + VN);
        }
      g += groups - 1;
    } else if (n == NR && s->b_row == 1)
      for (int64_t p = FN(pack_lines)(NR, from, s->b_col, s->depth, to); p < s->depth; p++)
        for (int64_t j = 0; j < NR; j++) to[p * NR + j] = from[j * s->b_col + p];
    else if (s->b_row == 1)
      for (int64_t j = 0; j < NR; j++)
        for (int64_t p = 0; p < s->depth; p++) to[p * NR + j] = j < n ? from[j * s->b_col + p] : 0;
    else
      for (int64_t p = 0; p < s->depth; p++, from += s->b_row)
        for (int64_t j = 0; j < NR; j++) *to++ = j < n ? from[j * s->b_col] : 0;
  }
}

/* Groups of MR rows of a, each depth x MR, with zeros past the end; there is room for a vector
 * behind them. */
static void FN(pack_a)(const FN(slice) * s, int64_t row, int64_t rows, T *to)
{
  for (int64_t i = 0; i < rows; i += MR, to += MR * s->depth) {
    const T *from = s->a + (row + i) * s->a_row;
    const int64_t m = lesser(rows - i, MR);
    if (s->a_col == 1 && m == MR)
      for (int64_t p = FN(pack_lines)(MR, from, s->a_row, s->depth, to); p < s->depth; p++)
        for (int64_t r = 0; r < MR; r++) to[p * MR + r] = from[r * s->a_row + p];
    else if (s->a_row == 1 && m == MR)
      for (int64_t p = 0; p < s->depth; p++)
        for (int64_t r = 0; r < MR; r++) to[p * MR + r] = from[p * s->a_col + r];
    else
      for (int64_t r = 0; r < MR; r++)
        for (int64_t p = 0; p < s->depth; p++) to[p * MR + r] = r < m ? from[r * s->a_row + p * s->a_col] : 0;
  }
}

/* Rows and columns of a tile's result. */
static void FN(store)(const T *edge, int64_t rows, int64_t cols, T *c, int64_t c_row, int how)
{
  for (int64_t y = 0; y < rows; y++)
    for (int64_t x = 0; x < cols; x++) {
      T *const at = c + y * c_row + x;
      const T sum = edge[y * NR + x];
      *at = how == AX_DENSE_SET ? sum : how == AX_DENSE_ADD ? *at + sum : *at - sum;
    }
}

/* Groups of THIN rows of a product with at most NR columns. */
static void FN(multiply_thin)(int64_t lo, int64_t hi, void *ud)
{
  const FN(slice) *s = ud;
  const int vectors = s->n <= VN ? 1 : 2;
  T edge[THIN * NR] __attribute__((aligned(64)));
  for (int64_t g = lo; g < hi; g++) {
    const int64_t rows = lesser(s->m - g * THIN, THIN);
    const bool whole_vectors = s->n == vectors * VN;
    const T *const a = s->a + g * THIN * s->a_row;
    T *const c = s->c + g * THIN * s->c_row, *const to = whole_vectors ? c : edge;
    const int64_t to_row = whole_vectors ? s->c_row : NR;
    const int how = whole_vectors ? s->how : AX_DENSE_SET;
    if (vectors == 1) FN(thin_tile)(s->depth, a, s->a_row, s->a_col, s->packed, 1, rows, to, to_row, how);
    else FN(thin_tile)(s->depth, a, s->a_row, s->a_col, s->packed, 2, rows, to, to_row, how);
    if (!whole_vectors) FN(store)(edge, rows, s->n, c, s->c_row, s->how);
  }
}

static void FN(multiply)(int64_t lo, int64_t hi, void *ud)
{
  const FN(slice) *s = ud;
  T pa[MC * KC + VN] __attribute__((aligned(64))), edge[MR * NR];
  int64_t packed = -1;
  for (int64_t t = lo; t < hi; t++) { /* pieces of one group of rows follow one another */
    const int64_t across = (s->n + GROUP - 1) / GROUP, row = t / across * MC, col = t % across * GROUP,
                  rows = lesser(s->m - row, MC), end = lesser(s->n, col + GROUP);
    if (packed != row) FN(pack_a)(s, row, rows, pa);
    packed = row;
    for (int64_t j = col; j < end; j += NR)
      for (int64_t i = 0; i < rows; i += MR) {
        T *const c = s->c + (row + i) * s->c_row + j;
        const T *const from_a = pa + i * s->depth, *const from_b = s->packed + j * s->depth;
        const int64_t left = lesser(rows - i, MR), thirds = (left * 3 + MR - 1) / MR;
        const FN(tile_fn) tile = thirds == 3 ? FN(tile) : thirds == 2 ? FN(tile_two_thirds) : FN(tile_third);
        if (left * 3 == thirds * MR && s->n - j >= NR) {
          tile(s->depth, from_a, from_b, c, s->c_row, s->how);
          continue;
        }
        tile(s->depth, from_a, from_b, edge, NR, AX_DENSE_SET);
        FN(store)(edge, left, lesser(s->n - j, NR), c, s->c_row, s->how);
      }
  }
}

static void FN(product)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_col,
                        const void *b, int64_t b_row, int64_t b_col, void *c, int64_t c_row, int how,
                        void *room)
{
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m && how == AX_DENSE_SET; i++)
      memset((T *)c + i * c_row, 0, sizeof(T) * (size_t)n);
    return;
  }
  for (int64_t col = 0; col < n; col += NC)
    for (int64_t p = 0; p < k; p += KC) {
      FN(slice)
      s = { .a = (const T *)a + p * a_col,
            .b = (const T *)b + p * b_row + col * b_col,
            .c = (T *)c + col,
            .packed = room,
            .m = m,
            .n = lesser(n - col, NC),
            .depth = lesser(k - p, KC),
            .a_row = a_row,
            .a_col = a_col,
            .b_row = b_row,
            .b_col = b_col,
            .c_row = c_row,
            .how = p && how == AX_DENSE_SET ? AX_DENSE_ADD : how };
      const int64_t work = s.n * s.depth, pieces = (m + MC - 1) / MC * ((s.n + GROUP - 1) / GROUP);
      ax_cpu_for((s.n + NR - 1) / NR, work, FN(pack_b), &s);
      if (s.n <= NR) ax_cpu_for((m + THIN - 1) / THIN, m * work / 16, FN(multiply_thin), &s);
      else ax_cpu_for(pieces, m * work / 16, FN(multiply), &s);
    }
}
