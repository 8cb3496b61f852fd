/* LU and solutions of many systems of a few unknowns, in type T: as many at once as a vector has
 * lanes, each in a lane of its own.  An element gets the operations of lu_panel and narrow in their
 * order, so a matrix has the bits that it has alone. */

typedef __typeof__((V){ 0 } > (V){ 0 }) FN(mask);

static inline V FN(select)(FN(mask) m, V a, V b) { return (V)(((FN(mask))a & m) | ((FN(mask))b & ~m)); }

/* Lanes past `count` repeat the last matrix. */
static void FN(to_lanes)(int64_t count, int64_t items, const T *a, T *lanes)
{
  for (int64_t l = 0; l < VN; l++) {
    const T *const from = a + lesser(l, count - 1) * items;
    for (int64_t e = 0; e < items; e++) lanes[e * VN + l] = from[e];
  }
}

static void FN(from_lanes)(int64_t count, int64_t items, const T *lanes, T *a)
{
  for (int64_t l = 0; l < count; l++)
    for (int64_t e = 0; e < items; e++) a[l * items + e] = lanes[e * VN + l];
}

/* In lane l, row `row` trades places with row at[l] of a, whose rows have `cols` elements. */
static void FN(swap_lanes)(int64_t cols, T *a, int64_t row, const int *at)
{
  for (int64_t l = 0; l < VN; l++) {
    T *const x = a + row * cols * VN + l, *const y = a + at[l] * cols * VN + l;
    if (x == y) continue;
    for (int64_t c = 0; c < cols * VN; c += VN) {
      const T kept = x[c];
      x[c] = y[c];
      y[c] = kept;
    }
  }
}

/* Column j of a (n, n), and what its multiples change; at: each lane's pivot.  Returns the lanes
 * where lu_panel would multiply by the pivot's inverse, too. */
static FN(mask) FN(lu_lanes_column)(int64_t n, T *a, int64_t j, int *at)
{
  V most = (V){ 0 } - 1, row_of = (V){ 0 } + (T)j;
  for (int64_t i = j; i < n; i++) {
    const V x = *(V *)(a + (i * n + j) * VN), size = FN(select)(x < 0, -x, x);
    const FN(mask) more = size > most;
    most = FN(select)(more, size, most);
    row_of = FN(select)(more, (V){ 0 } + (T)i, row_of);
  }
  for (int64_t l = 0; l < VN; l++) at[l] = (int)row_of[l];
  FN(swap_lanes)(n, a, j, at);

  const T *const top = a + j * n * VN;
  const V pivot = *(const V *)(top + j * VN), inverse = 1 / pivot;
  for (int64_t i = j + 1; i < n; i++) {
    T *const row = a + i * n * VN;
    const V l = *(V *)(row + j * VN) * inverse, minus = -l;
    *(V *)(row + j * VN) = l;
    for (int64_t c = (j + 1) * VN; c < n * VN; c += VN)
      *(V *)(row + c) = VFUSED(minus, *(const V *)(top + c), *(V *)(row + c));
  }
  return (pivot >= LEAST) | (-pivot >= LEAST);
}

/* See dense.h. */
static uint32_t FN(lu_few)(int64_t count, int64_t n, const void *matrices, void *lu, int *pivots)
{
  T a[FEW * FEW * VN] __attribute__((aligned(64)));
  V rest = { 0 };
  FN(mask) same = rest == rest;
  uint32_t others = 0;
  int at[VN];

  FN(to_lanes)(count, n * n, matrices, a);
  for (int64_t j = 0; j < n; j++) {
    same &= FN(lu_lanes_column)(n, a, j, at);
    for (int64_t l = 0; l < count; l++) pivots[l * n + j] = at[l] + 1;
  }
  for (int64_t e = 0; e < n * n * VN; e += VN) rest += 0 * *(V *)(a + e); /* NaN of what is not finite */
  same &= rest == 0;
  for (int64_t l = 0; l < count; l++) others |= (uint32_t)!same[l] << l;
  FN(from_lanes)(count, n * n, a, lu);
  return others;
}

static void FN(solve_few)(int64_t count, int64_t n, int64_t k, const void *lu, const int *pivots, void *sides)
{
  T a[FEW * FEW * VN] __attribute__((aligned(64))), x[FEW * NARROW * VN] __attribute__((aligned(64)));
  int at[VN];

  FN(to_lanes)(count, n * n, lu, a);
  FN(to_lanes)(count, n * k, sides, x);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t l = 0; l < VN; l++) at[l] = pivots[lesser(l, count - 1) * n + i] - 1;
    FN(swap_lanes)(k, x, i, at);
  }
  for (int64_t step = 0; step < 2 * n; step++) { /* down the lower triangle, and up the upper one */
    const bool upper = step >= n;
    const int64_t i = upper ? 2 * n - 1 - step : step, from = upper ? i + 1 : 0, until = upper ? n : i;
    const T *const row = a + i * n * VN;
    for (int64_t j = 0; j < k; j++) {
      V sum = { 0 };
      T *const own = x + (i * k + j) * VN;
      for (int64_t p = from; p < until; p++)
        sum = VFUSED(*(const V *)(row + p * VN), *(V *)(x + (p * k + j) * VN), sum);
      *(V *)own -= sum;
      if (upper) *(V *)own = *(V *)own / *(const V *)(row + i * VN);
    }
  }
  FN(from_lanes)(count, n * k, x, sides);
}
