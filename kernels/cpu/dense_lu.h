/* Triangles, LU and Cholesky of dense.c in type T. */

/* ---- triangles
 *
 * Every case is the lower one, from the first row to the last: an upper triangle is walked from its
 * end with negative steps, a transposed one has row and column steps swapped. */

/* A block of the triangle, with ones on the diagonal past its end, and the diagonal. */
typedef struct FN(block) {
  T l[NB * NB], diagonal[NB];
  int64_t n, x_row, x_col, cols;
  bool unit;
  T *x;
} FN(block);

static void FN(load_block)(FN(block) * b, int64_t n, const T *a, int64_t row, int64_t col, bool unit)
{
  b->n = n;
  b->unit = unit;
  for (int64_t i = 0; i < whole(n, 4); i++) {
    const int64_t read = i < n ? i : 0;
    const T *const from = a + i * row;
    T *const l = b->l + i * NB;
    if (col == 1) memcpy(l, from, sizeof(T) * (size_t)read);
    else if (col == -1)
      for (int64_t p = 0; p < read; p++) l[p] = from[-p];
    else
      for (int64_t p = 0; p < read; p++) l[p] = from[p * col];
    for (int64_t p = read; p < whole(i + 1, 4); p++) l[p] = 0;
    b->diagonal[i] = i < n && !unit ? a[i * (row + col)] : 1;
  }
}

/* x (n, NR, adjacent) becomes the solution for a block: four rows at a time. */
static void FN(forward)(const FN(block) * b, T *x)
{
  for (int64_t i = 0; i < b->n; i += 4) {
    V s[4][2];
    for (int r = 0; r < 4; r++) s[r][0] = *(V *)(x + (i + r) * NR), s[r][1] = *(V *)(x + (i + r) * NR + VN);
    const T *const l = b->l + i * NB;
    for (int64_t p = 0; p < i; p++) {
      const V x0 = *(V *)(x + p * NR), x1 = *(V *)(x + p * NR + VN);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) s[r][0] -= l[r * NB + p] * x0, s[r][1] -= l[r * NB + p] * x1;
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      for (int q = 0; q < r; q++)
        s[r][0] -= l[r * NB + i + q] * s[q][0], s[r][1] -= l[r * NB + i + q] * s[q][1];
      if (!b->unit) s[r][0] = s[r][0] / b->diagonal[i + r], s[r][1] = s[r][1] / b->diagonal[i + r];
      *(V *)(x + (i + r) * NR) = s[r][0];
      *(V *)(x + (i + r) * NR + VN) = s[r][1];
    }
  }
}

/* Columns NR * lo .. NR * hi of x. */
static void FN(forward_columns)(int64_t lo, int64_t hi, void *ud)
{
  const FN(block) *b = ud;
  T own[NB * NR] __attribute__((aligned(64)));
  for (int64_t g = lo; g < hi; g++) {
    T *const x = b->x + g * NR * b->x_col;
    const int64_t n = lesser(b->cols - g * NR, NR);
    const size_t row = sizeof(T) * (size_t)n;
    if (b->x_col == 1)
      for (int64_t i = 0; i < b->n; i++) {
        if (n == NR) memcpy(own + i * NR, x + i * b->x_row, NR * sizeof(T));
        else {
          memcpy(own + i * NR, x + i * b->x_row, row);
          memset(own + i * NR + n, 0, NR * sizeof(T) - row);
        }
      }
    else
      for (int64_t i = 0; i < b->n; i++)
        for (int64_t j = 0; j < NR; j++) own[i * NR + j] = j < n ? x[i * b->x_row + j * b->x_col] : 0;
    for (int64_t i = b->n; i < whole(b->n, 4); i++) memset(own + i * NR, 0, NR * sizeof(T));
    FN(forward)(b, own);
    if (b->x_col == 1)
      for (int64_t i = 0; i < b->n; i++)
        if (n == NR) memcpy(x + i * b->x_row, own + i * NR, NR * sizeof(T));
        else memcpy(x + i * b->x_row, own + i * NR, row);
    else
      for (int64_t i = 0; i < b->n; i++)
        for (int64_t j = 0; j < n; j++) x[i * b->x_row + j * b->x_col] = own[i * NR + j];
  }
}

/* x (n <= NB, cols) becomes the solution for the block in b. */
static void FN(solve_block)(FN(block) * b, int64_t cols, T *x, int64_t x_row, int64_t x_col)
{
  b->x = x;
  b->x_row = x_row;
  b->x_col = x_col;
  b->cols = cols;
  ax_cpu_for((cols + NR - 1) / NR, cols * b->n * b->n / 16, FN(forward_columns), b);
}

/* Fewer than FEW products are added one by one, as in dense_few.h. */
static T FN(dot)(int64_t n, const T *a, const T *b)
{
  V s0 = { 0 }, s1 = { 0 };
  T sum = 0;
  int64_t p = 0;
  for (; n >= FEW && p + NR <= n; p += NR) {
    s0 += *(const V *)(a + p) * *(const V *)(b + p);
    s1 += *(const V *)(a + p + VN) * *(const V *)(b + p + VN);
  }
  s0 += s1;
  if (p)
    for (int i = 0; i < VN; i++) sum += s0[i];
  for (; p < n; p++) sum = FUSED(a[p], b[p], sum);
  return sum;
}

static void FN(add_times)(int64_t n, T factor, const T *a, T *y)
{
  int64_t p = 0;
  for (; p + VN <= n; p += VN) *(V *)(y + p) += factor * *(const V *)(a + p);
  for (; p < n; p++) y[p] += factor * a[p];
}

/* A few sides, one by one, along the rows of the matrix: y (k, n). */
static void FN(narrow)(int64_t n, int64_t k, const T *a, int64_t ld, bool upper, bool transposed, bool unit,
                       T *b, int64_t b_row, T *y)
{
  const bool backwards = upper != transposed;
  for (int64_t j = 0; j < k; j++)
    for (int64_t i = 0; i < n; i++) y[j * n + i] = b[i * b_row + j];
  for (int64_t t = 0; t < n; t++) {
    const int64_t i = backwards ? n - 1 - t : t, from = upper ? i + 1 : 0, count = upper ? n - 1 - i : i;
    const T *const row = a + i * ld + from;
    for (int64_t j = 0; j < k; j++) {
      T *const x = y + j * n;
      if (!transposed) x[i] -= FN(dot)(count, row, x + from);
      if (!unit) x[i] /= a[i * (ld + 1)];
      if (transposed) FN(add_times)(count, -x[i], row, x + from);
    }
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < k; j++) b[i * b_row + j] = y[j * n + i];
}

static void FN(triangular)(int64_t n, int64_t k, const void *matrix, int64_t ld, bool upper, bool transposed,
                           bool unit, void *sides, int64_t b_row, void *room)
{
  const T *a = matrix;
  T *b = sides;
  int64_t row = transposed ? 1 : ld, col = transposed ? ld : 1;
  FN(block) block;

  if (k <= NARROW) {
    FN(narrow)(n, k, a, ld, upper, transposed, unit, b, b_row, room);
    return;
  }
  if (upper != transposed) {
    a += (n - 1) * (ld + 1);
    b += (n - 1) * b_row;
    row = -row, col = -col, b_row = -b_row;
  }
  for (int64_t i = 0; i < n; i += NB) {
    const int64_t nb = lesser(n - i, NB), below = n - i - nb;
    T *const x = b + i * b_row;
    FN(load_block)(&block, nb, a + i * (row + col), row, col, unit);
    FN(solve_block)(&block, k, x, b_row, 1);
    FN(product)
    (below, k, nb, a + (i + nb) * row + i * col, row, col, x, b_row, 1, x + nb * b_row, b_row, AX_DENSE_SUB,
     room);
  }
}

/* ---- LU */

/* Factorises p (m, PANEL, adjacent), whose columns from w on are zero. */
static int FN(lu_panel)(int64_t m, int64_t w, T *p, int *pivots)
{
  const int64_t k = lesser(m, w);
  int64_t at = 0;
  T most = -1;
  int info = 0;

  for (int64_t i = 0; i < m; i++)
    if (p[i * PANEL] > most || -p[i * PANEL] > most)
      most = p[i * PANEL] < 0 ? -p[i * PANEL] : p[i * PANEL], at = i;
  for (int64_t j = 0; j < k; j++) {
    T *const top = p + j * PANEL, *const other = p + at * PANEL, swap[PANEL];
    const int64_t next = j + 1 < PANEL ? j + 1 : j;
    memcpy((T *)swap, other, sizeof swap);
    memcpy(other, top, sizeof swap);
    memcpy(top, swap, sizeof swap);
    pivots[j] = (int)at + 1;
    at = j + 1;
    most = -1;
    const T pivot = top[j], inverse = 1 / pivot;
    const bool divides = !(pivot >= LEAST || -pivot >= LEAST), zero = pivot == 0;
    if (zero && !info) info = (int)j + 1;
    T u[PANEL] __attribute__((aligned(64)));
    for (int64_t c = 0; c < PANEL; c++) u[c] = c > j ? top[c] : 0;
    for (int64_t i = j + 1; i < m; i++) {
      T *const row = p + i * PANEL;
      const T l = zero ? 0 : divides ? row[j] / pivot : row[j] * inverse;
      const V minus = -l - (V){ 0 };
#pragma GCC unroll 16
      for (int64_t c = 0; c < PANEL; c += VN)
        *(V *)(row + c) = VFUSED(minus, *(const V *)(u + c), *(V *)(row + c));
      row[j] = l;
      const T size = row[next] < 0 ? -row[next] : row[next];
      if (size > most) most = size, at = i;
    }
  }
  return info;
}

/* `count` vectors of column c of lu_tall, rows i on: the column before it gets its factors, and
 * column c what those before it subtract.  `wanted`: the rows that are behind the diagonal. */
static inline __attribute__((always_inline)) void FN(tall_step)(T *p, int64_t stride, int64_t c, int64_t i,
                                                                T inverse, int count, const MASK *wanted,
                                                                V *rest)
{
  T *const col = p + c * stride;
#pragma GCC unroll 4
  for (int v = 0; v < count; v++) rest[v] = *(V *)(col + i + v * VN);
  for (int64_t j = 0; j + 1 < c; j++) {
    const T *const l = p + j * stride + i;
#pragma GCC unroll 4
    for (int v = 0; v < count; v++) rest[v] -= col[j] * *(const V *)(l + v * VN);
  }
#pragma GCC unroll 4
  for (int v = 0; v < count; v++) {
    V *const to = (V *)(col + i + v * VN);
    if (c > 0) {
      V *const last = (V *)(col - stride + i + v * VN);
      V l = *last * inverse;
      if (wanted) l = (V)(((MASK)l & *wanted) | ((MASK)*last & ~*wanted));
      *last = l;
      rest[v] -= col[c - 1] * l;
    }
    if (wanted) rest[v] = (V)(((MASK)rest[v] & *wanted) | ((MASK)*to & ~*wanted));
    *to = rest[v];
  }
}

/* Factorises p, w < m columns of m rows, `stride` apart and with zeros behind: each column gets all
 * that the ones before it subtract, then its pivot, in one pass over it.  It is faster than
 * lu_panel for many rows. */
static int FN(lu_tall)(int64_t m, int64_t w, T *p, int64_t stride, int *pivots)
{
  int info = 0;
  T inverse = 1; /* of the last pivot: its column is multiplied when the next one is read */
  MASK lanes;
  for (int q = 0; q < FN(LANES); q++) lanes[q] = q;
  for (int64_t c = 0; c < w; c++) {
    T *const col = p + c * stride;
    for (int64_t j = 0; j < c; j++)
      for (int64_t i = j + 1; i < c; i++) col[i] -= p[j * stride + i] * col[j];
    const int64_t first = c / VN * VN;
    const MASK wanted = lanes >= (LANE)(c - first), sign = (MASK)(V){ 0 } | (MASK)(-(V){ 0 });
    V most = (V){ 0 } - 1;
    MASK where = lanes + (LANE)first, row = where;
    V rest[4];
    int count = 1;
    for (int64_t i = first; i < m; i += count * VN) {
      count = i > first && i + 4 * VN <= m ? 4 : 1;
      if (i == first) FN(tall_step)(p, stride, c, i, inverse, 1, &wanted, rest);
      else if (count == 1) FN(tall_step)(p, stride, c, i, inverse, 1, NULL, rest);
      else FN(tall_step)(p, stride, c, i, inverse, 4, NULL, rest);
      for (int v = 0; v < count; v++, row += (LANE)VN) {
        const V size = (V)((MASK)rest[v] & ~sign);
        MASK more = size > most;
        if (i == first) more &= wanted;
        most = (V)(((MASK)size & more) | ((MASK)most & ~more));
        where = (row & more) | (where & ~more);
      }
    }
    /* the first of the largest rows; c where no number is one, or where a zero behind row m is */
    int64_t at = c;
    T largest = -1;
    for (int q = 0; q < FN(LANES); q++)
      if (most[q] > largest || (largest >= 0 && most[q] == largest && where[q] < at))
        largest = most[q], at = where[q];
    if (at >= m) at = c;
    pivots[c] = (int)at + 1;
    for (int64_t q = 0; q < w && at != c; q++) {
      const T kept = p[q * stride + c];
      p[q * stride + c] = p[q * stride + at];
      p[q * stride + at] = kept;
    }
    const T pivot = col[c];
    inverse = 1 / pivot;
    if (pivot >= LEAST || -pivot >= LEAST) continue;
    inverse = 1;
    if (pivot == 0) info = info ? info : (int)c + 1;
    else
      for (int64_t i = c + 1; i < m; i++) col[i] /= pivot;
  }
  for (int64_t i = w; i < m; i++) p[(w - 1) * stride + i] *= inverse;
  return info;
}

/* Columns of PANEL numbers from rows of a, `stride` apart, or back into them. */
static void FN(turn_panel)(int64_t rows, int64_t w, T *a, int64_t ld, T *columns, int64_t stride, bool back)
{
  int64_t i = 0;
  for (; w == PANEL && i + VN <= rows; i += VN)
    for (int64_t c = 0; c < PANEL; c += VN) {
      V v[FN(LANES)];
#pragma GCC unroll 16
      for (int q = 0; q < FN(LANES); q++)
        v[q] = back ? *(V *)(columns + (c + q) * stride + i) : *(V *)(a + (i + q) * ld + c);
      FN(turn)(v);
#pragma GCC unroll 16
      for (int q = 0; q < FN(LANES); q++)
        if (back) *(V *)(a + (i + q) * ld + c) = v[q];
        else *(V *)(columns + (c + q) * stride + i) = v[q];
    }
  for (; i < rows; i++)
    for (int64_t c = 0; c < w; c++)
      if (back) a[i * ld + c] = columns[c * stride + i];
      else columns[c * stride + i] = a[i * ld + c];
}

/* lu_tall of the w columns of a, which stand in `room` meanwhile. */
static int FN(lu_turned)(int64_t rows, int64_t w, T *a, int64_t ld, int *pivots, T *room)
{
  const int64_t stride = whole(rows, 16) + 16;
  FN(turn_panel)(rows, w, a, ld, room, stride, false);
  for (int64_t c = 0; c < w; c++) memset(room + c * stride + rows, 0, sizeof(T) * (size_t)(stride - rows));
  const int info = FN(lu_tall)(rows, w, room, stride, pivots);
  FN(turn_panel)(rows, w, a, ld, room, stride, true);
  return info;
}

/* lu_panel likewise. */
static int FN(lu_short)(int64_t rows, int64_t w, T *a, int64_t ld, int *pivots, T *room)
{
  for (int64_t i = 0; i < rows; i++) {
    memcpy(room + i * PANEL, a + i * ld, sizeof(T) * (size_t)w);
    memset(room + i * PANEL + w, 0, sizeof(T) * (size_t)(PANEL - w));
  }
  const int info = FN(lu_panel)(rows, w, room, pivots);
  for (int64_t i = 0; i < rows; i++) memcpy(a + i * ld, room + i * PANEL, sizeof(T) * (size_t)w);
  return info;
}

static void FN(swap_rows)(T *a, T *b, int64_t n)
{
  int64_t c = 0;
  for (; c + VN <= n; c += VN) {
    const V x = *(V *)(a + c);
    *(V *)(a + c) = *(V *)(b + c);
    *(V *)(b + c) = x;
  }
  for (; c < n; c++) {
    const T x = a[c];
    a[c] = b[c];
    b[c] = x;
  }
}

/* The w columns from `at` on, with the swaps of whole rows. */
static int FN(lu_columns)(int64_t m, int64_t n, T *a, int64_t ld, int64_t at, int64_t w, int *pivots, T *room)
{
  const int64_t rows = m - at;
  const int info =
      (rows > NB ? FN(lu_turned) : FN(lu_short))(rows, w, a + at * (ld + 1), ld, pivots + at, room);
  for (int64_t j = at; j < at + lesser(rows, w); j++) {
    const int64_t other = at + pivots[j] - 1;
    pivots[j] = (int)other + 1;
    if (other == j) continue;
    FN(swap_rows)(a + j * ld, a + other * ld, at);
    FN(swap_rows)(a + j * ld + at + w, a + other * ld + at + w, n - at - w);
  }
  return info ? info + (int)at : 0;
}

/* Columns at .. at + w become what they are without the factors of columns from .. from + k. */
static void FN(lu_update)(int64_t m, T *a, int64_t ld, int64_t from, int64_t k, int64_t at, int64_t w,
                          FN(block) * block, void *room)
{
  T *const u = a + from * ld + at;
  if (k <= 0 || w <= 0) return;
  FN(load_block)(block, k, a + from * (ld + 1), ld, 1, true);
  FN(solve_block)(block, w, u, ld, 1);
  FN(product)
  (m - from - k, w, k, a + (from + k) * ld + from, ld, 1, u, ld, 1, u + k * ld, ld, AX_DENSE_SUB, room);
}

/* Columns from..end, NB at a time, PANEL of them after what the others subtract; those behind get
 * their swaps alone. */
static int FN(lu_block)(int64_t m, int64_t n, T *a, int64_t ld, int64_t from, int64_t end, int *pivots,
                        void *room)
{
  FN(block) block;
  int info = 0;
  for (int64_t j = from; j < end; j += NB) {
    const int64_t next = lesser(j + NB, end);
    for (int64_t at = j; at < next; at += PANEL) {
      const int64_t w = lesser(next - at, PANEL);
      FN(lu_update)(m, a, ld, j, at - j, at, w, &block, room);
      const int bad = FN(lu_columns)(m, n, a, ld, at, w, pivots, room);
      if (bad && !info) info = bad;
    }
    FN(lu_update)(m, a, ld, j, next - j, next, end - next, &block, room);
  }
  return info;
}

/* What is behind a block of columns is read and written once for all of them, where the matrix is
 * too large for the second-level cache. */
static int FN(lu)(int64_t m, int64_t n, void *matrix, int64_t ld, int *pivots, void *room)
{
  const int64_t k = lesser(m, n), block = k > 2 * WIDE_NB ? WIDE_NB : k;
  T *const a = matrix;
  int info = 0;

  for (int64_t j = 0; j < k; j += block) {
    const int64_t end = lesser(j + block, k), w = end - j;
    const int bad = FN(lu_block)(m, n, a, ld, j, end, pivots, room);
    T *const u = a + j * ld + end;
    if (bad && !info) info = bad;
    if (end == n) break;
    FN(triangular)(w, n - end, a + j * (ld + 1), ld, false, false, true, u, ld, room);
    FN(product)
    (m - end, n - end, w, a + end * ld + j, ld, 1, u, ld, 1, a + end * (ld + 1), ld, AX_DENSE_SUB, room);
  }
  return info;
}

/* inverse = U^-1 L^-1 P: first L^-1, whose columns right of a block are zero in its rows. */
static void FN(inverse)(int64_t n, void *factors, const int *pivots, void *out, void *room)
{
  T *const lu = factors, *const x = out;
  FN(block) block;

  memset(x, 0, sizeof(T) * (size_t)(n * n));
  for (int64_t i = 0; i < n; i++) x[i * (n + 1)] = 1;
  for (int64_t i = 0; i < n; i += NB) {
    const int64_t nb = lesser(n - i, NB), cols = i + nb;
    FN(load_block)(&block, nb, lu + i * (n + 1), n, 1, true);
    FN(solve_block)(&block, cols, x + i * n, n, 1);
    FN(product)
    (n - cols, cols, nb, lu + cols * n + i, n, 1, x + i * n, n, 1, x + cols * n, n, AX_DENSE_SUB, room);
  }
  for (int64_t i = (n - 1) / NB * NB; i >= 0; i -= NB) { /* from the last block up */
    const int64_t nb = lesser(n - i, NB);
    T *const last = x + (i + nb - 1) * n;
    FN(load_block)(&block, nb, lu + (i + nb - 1) * (n + 1), -n, -1, false);
    FN(solve_block)(&block, n, last, -n, 1);
    FN(product)(i, n, nb, lu + i, n, 1, x + i * n, n, 1, x, n, AX_DENSE_SUB, room);
  }
  /* .. P: the swaps of columns, the last one first */
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = n - 1; j >= 0; j--) {
      T *const row = x + i * n, other = row[pivots[j] - 1];
      row[pivots[j] - 1] = row[j];
      row[j] = other;
    }
}

/* ---- Cholesky */

/* u (n, NB apart), its upper triangle, becomes U with U^T U. */
static int FN(cholesky_block)(int64_t n, T *u)
{
  for (int64_t j = 0; j < n; j++) {
    T *const top = u + j * NB;
    if (!(top[j] > 0)) return (int)j + 1;
    const T root = (T)sqrt((double)top[j]), scale = 1 / root;
    const int64_t from = j / VN * VN;
    for (int64_t c = from; c < n; c += VN) *(V *)(top + c) *= scale;
    top[j] = root;
    for (int64_t i = j + 1; i < n; i++) {
      T *const row = u + i * NB;
      const T l = top[i];
      for (int64_t c = i / VN * VN; c < n; c += VN) *(V *)(row + c) -= l * *(const V *)(top + c);
    }
  }
  return 0;
}

static int FN(cholesky)(int64_t n, void *matrix, int64_t ld, void *room)
{
  T *const a = matrix, u[NB * NB] __attribute__((aligned(64)));
  FN(block) block;

  for (int64_t j = 0; j < n; j += NB) {
    const int64_t nb = lesser(n - j, NB), below = n - j - nb, next = j + nb;
    T *const top = a + j * (ld + 1);
    for (int64_t i = 0; i < nb; i++)
      for (int64_t c = 0; c < whole(nb, VN); c++) u[i * NB + c] = c >= i && c < nb ? top[c * ld + i] : 0;
    const int info = FN(cholesky_block)(nb, u);
    for (int64_t i = 0; i < nb; i++)
      for (int64_t c = i; c < nb; c++) top[c * ld + i] = u[i * NB + c];
    if (info) return (int)j + info;
    if (!below) break;
    /* L11 (L21)^T = (A21)^T */
    FN(load_block)(&block, nb, top, ld, 1, false);
    FN(solve_block)(&block, below, top + nb * ld, 1, ld);
    for (int64_t c = next; c < n; c += 2 * NB) {
      const T *const l = a + c * ld + j;
      FN(product)
      (n - c, lesser(n - c, 2 * NB), nb, l, ld, 1, l, 1, ld, a + c * (ld + 1), ld, AX_DENSE_SUB, room);
    }
  }
  return 0;
}
