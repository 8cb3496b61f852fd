/* The Schur form of Hessenberg matrices, in type T: Francis' QR steps with two shifts, with the
 * tests and the names of LAPACK's lahqr.
 *
 * A step chases a bulge of three rows down the diagonal, by one reflection for each row.  STEPS of
 * them run in a square of their own that stays in the cache; what is above the square, what is
 * right of it, and the vectors get them afterwards, a vector of rows or columns at a time.
 * Matrices are column by column, as LAPACK has them; columns are `ld` apart, a multiple of VN. */

enum { FN(SQUARE) = STEPS + 3, FN(SQUARE_ROW) = STEPS + 16 };

typedef void (*FN(lanv2_fn))(T *a, T *b, T *c, T *d, T *re1, T *im1, T *re2, T *im2, T *cos, T *sin);

typedef struct FN(schur_form) {
  int64_t n, ld;
  T *h, *z; /* z: NULL where eigenvalues alone are sought */
  T *re, *im;
  int64_t l, i;      /* the first and the last row of the active block */
  int64_t k0, count; /* reflections k0 .. of this square */
  bool pair;         /* the last one is of two rows */
  T t1[STEPS], v2[STEPS], v3[STEPS];
  T square[FN(SQUARE)][FN(SQUARE_ROW)];
} FN(schur_form);

#define H(row, col) s->h[(row) + (col)*ld]

/* U vectors of rows at x, in columns k0 ..: as many as hide how long one takes. */
static inline __attribute__((always_inline)) void FN(schur_columns_of)(const FN(schur_form) * s, T *x,
                                                                       const int U)
{
  const int64_t ld = s->ld, three = s->count - s->pair;
  V a[4], b[4], c[4];
#pragma GCC unroll 4
  for (int u = 0; u < U; u++) a[u] = *(V *)(x + u * VN), b[u] = *(V *)(x + ld + u * VN);
  for (int64_t q = 0; q < three; q++, x += ld) {
    const T t = s->t1[q], v2 = s->v2[q], v3 = s->v3[q];
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {
      c[u] = *(V *)(x + 2 * ld + u * VN);
      const V sum = (a[u] + v2 * b[u] + v3 * c[u]) * t;
      *(V *)(x + u * VN) = a[u] - sum;
      a[u] = b[u] - v2 * sum;
      b[u] = c[u] - v3 * sum;
    }
  }
  const T t = s->pair ? s->t1[three] : 0, v2 = s->pair ? s->v2[three] : 0;
#pragma GCC unroll 4
  for (int u = 0; u < U; u++) {
    const V sum = (a[u] + v2 * b[u]) * t;
    *(V *)(x + u * VN) = a[u] - sum;
    *(V *)(x + ld + u * VN) = b[u] - v2 * sum;
  }
}

/* Rows from .. to, rounded to vectors, of columns k0 .. at x. */
static void FN(schur_columns)(const FN(schur_form) * s, T *x, int64_t from, int64_t to)
{
  int64_t r = from / VN * VN;
  for (; r + 4 * VN <= whole(to, VN); r += 4 * VN) FN(schur_columns_of)(s, x + r, 4);
  for (; r < to; r += VN) FN(schur_columns_of)(s, x + r, 1);
}

/* U times VN columns at x, or the first `cols` of them, rows k0 .. of them: turned over, so that a
 * vector is a row of theirs. */
static inline __attribute__((always_inline)) void FN(schur_rows_of)(const FN(schur_form) * s, T *x,
                                                                    int64_t cols, const int U)
{
  enum { BLOCKS = (STEPS + 2 + VN - 1) / VN };
  const int64_t ld = s->ld, rows = s->count + 2 - s->pair, three = s->count - s->pair;
  V row[2][BLOCKS * VN], a[2], b[2];
#pragma GCC unroll 2
  for (int u = 0; u < U; u++)
    for (int64_t r = 0; r < BLOCKS * VN; r += VN) {
      V v[VN];
#pragma GCC unroll 16
      for (int l = 0; l < VN; l++) v[l] = *(const V *)(x + lesser(l + u * VN, cols - 1) * ld + r);
      FN(turn)(v);
#pragma GCC unroll 16
      for (int l = 0; l < VN; l++) row[u][r + l] = v[l];
    }
#pragma GCC unroll 2
  for (int u = 0; u < U; u++) a[u] = row[u][0], b[u] = row[u][1];
  for (int64_t q = 0; q < three; q++) {
    const T t = s->t1[q], v2 = s->v2[q], v3 = s->v3[q];
#pragma GCC unroll 2
    for (int u = 0; u < U; u++) {
      const V c = row[u][q + 2], sum = (a[u] + v2 * b[u] + v3 * c) * t;
      row[u][q] = a[u] - sum;
      a[u] = b[u] - v2 * sum;
      b[u] = c - v3 * sum;
    }
  }
  const T t = s->pair ? s->t1[three] : 0, v2 = s->pair ? s->v2[three] : 0;
#pragma GCC unroll 2
  for (int u = 0; u < U; u++) {
    const V sum = (a[u] + v2 * b[u]) * t;
    row[u][three] = a[u] - sum;
    row[u][three + 1] = b[u] - v2 * sum;
  }
#pragma GCC unroll 2
  for (int u = 0; u < U; u++)
    for (int64_t r = 0; r < rows; r += VN) {
      V v[VN];
#pragma GCC unroll 16
      for (int l = 0; l < VN; l++) v[l] = row[u][r + l];
      FN(turn)(v);
      const int64_t some = lesser(rows - r, VN);
      for (int64_t l = 0; l < lesser(cols - u * VN, VN); l++)
        if (some == VN) *(V *)(x + (l + u * VN) * ld + r) = v[l];
        else memcpy(x + (l + u * VN) * ld + r, v + l, sizeof(T) * (size_t)some);
    }
}

/* `cols` columns from x on. */
static void FN(schur_rows)(const FN(schur_form) * s, T *x, int64_t cols)
{
  for (; cols > VN; cols -= 2 * VN, x += 2 * VN * s->ld) FN(schur_rows_of)(s, x, lesser(cols, 2 * VN), 2);
  if (cols > 0) FN(schur_rows_of)(s, x, cols, 1);
}

/* x (3) becomes v2 and v3 of the reflection that makes it (beta, 0, 0). */
static T FN(reflect_three)(T *x, T *beta)
{
  const WIDE alpha = x[0], rest = (WIDE)x[1] * x[1] + (WIDE)x[2] * x[2];
  *beta = x[0];
  if (rest == 0) {
    x[1] = x[2] = 0;
    return 0;
  }
  const WIDE to = -copysign(sqrt(alpha * alpha + rest), alpha), scale = 1 / (alpha - to);
  x[1] = (T)(x[1] * scale);
  x[2] = (T)(x[2] * scale);
  *beta = (T)to;
  return (T)((to - alpha) / to);
}

/* The reflection of row k, applied inside the square, whose first row and column are k0.  Number by
 * number: a vector could not be loaded before the numbers that the last reflection stored are in
 * the cache. */
static __attribute__((optimize("no-tree-vectorize"))) void FN(schur_step)(FN(schur_form) * s, int64_t k,
                                                                          int64_t m, int64_t cols, T v[3])
{
  const int64_t ld = s->ld, q = k - s->k0, last = s->i - s->k0, end = lesser(q + 3, last) + 1;
  const int64_t rows = lesser(s->i - k + 1, 3);
  T(*const d)[FN(SQUARE_ROW)] = s->square + q, *const d_row = s->square[0] + q;
  T beta;

  if (k > m)
    for (int64_t r = 0; r < 3; r++) v[r] = r >= rows ? 0 : q > 0 ? d[r][q - 1] : H(k + r, k - 1);
  const T t1 = FN(reflect_three)(v, &beta), v2 = v[1], v3 = v[2], t2 = t1 * v2, t3 = t1 * v3;
  s->t1[q] = t1, s->v2[q] = v2, s->v3[q] = v3;
  s->pair = rows == 2;
  /* a pair's third row and column are zeros of the square, or what v3 = 0 leaves as it is */
  for (int64_t c = q; c < cols; c++) {
    const T sum = d[0][c] + v2 * d[1][c] + v3 * d[2][c];
    d[0][c] -= t1 * sum;
    d[1][c] -= t2 * sum;
    d[2][c] -= t3 * sum;
  }
  T *row = d_row;
  for (int64_t r = 0; r < end; r++, row += FN(SQUARE_ROW)) {
    const T sum = row[0] + v2 * row[1] + v3 * row[2];
    row[0] -= t1 * sum;
    row[1] -= t2 * sum;
    row[2] -= t3 * sum;
  }
  if (k > m)
    for (int64_t r = 0; r < rows; r++) {
      const T made = r == 0 ? beta : 0;
      if (q > 0) d[r][q - 1] = made;
      else H(k + r, k - 1) = made;
    }
  else if (m > s->l) H(k, k - 1) *= 1 - t1;
}

/* One QR step from row m to row i, whose first reflection is of v. */
static void FN(schur_sweep)(FN(schur_form) * s, int64_t m, T v[3])
{
  const int64_t ld = s->ld, i = s->i;
  const int64_t top = s->z ? 0 : s->l, right = s->z ? s->n - 1 : i;
  for (int64_t k0 = m; k0 < i; k0 += STEPS) {
    const int64_t count = lesser(i - k0, STEPS), rows = lesser(i - k0 + 1, count + 3),
                  cols = lesser(i - k0 + 1, count + 2);
    s->k0 = k0;
    s->count = count;
    memset(s->square, 0, sizeof s->square);
    for (int64_t c = 0; c < cols; c++)
      for (int64_t r = 0; r < rows; r++) s->square[r][c] = H(k0 + r, k0 + c);
    for (int64_t k = k0; k < k0 + count; k++) FN(schur_step)(s, k, m, cols, v);
    /* the rows above: vectors may reach into the square, which is stored after them */
    if (k0 > top) FN(schur_columns)(s, s->h + k0 * ld, top, k0);
    for (int64_t c = 0; c < cols; c++)
      for (int64_t r = 0; r < rows; r++) H(k0 + r, k0 + c) = s->square[r][c];
    const int64_t beside = right - (k0 + cols) + 1;
    FN(schur_rows)(s, s->h + k0 + (k0 + cols) * ld, beside);
    if (s->z) FN(schur_columns)(s, s->z + k0 * ld, 0, s->n);
  }
}

/* The first row of the block that ends at row i, whose coupling to the row above is negligible. */
static int64_t FN(schur_split)(const FN(schur_form) * s, int64_t lo, int64_t hi, int64_t i)
{
  const int64_t ld = s->ld;
  const WIDE tiny = LEAST * ((WIDE)(hi - lo + 1) / EPS), ulp = 2 * (WIDE)EPS;
  int64_t k = i;
  for (; k > lo; k--) {
    const WIDE under = fabs((WIDE)H(k, k - 1)), above = fabs((WIDE)H(k - 1, k - 1)),
               here = fabs((WIDE)H(k, k));
    if (under <= tiny) break;
    WIDE size = above + here;
    if (size == 0) {
      if (k - 2 >= lo) size += fabs((WIDE)H(k - 1, k - 2));
      if (k + 1 <= hi) size += fabs((WIDE)H(k + 1, k));
    }
    if (under > ulp * size) continue;
    const WIDE over = fabs((WIDE)H(k - 1, k)), apart = fabs((WIDE)H(k - 1, k - 1) - H(k, k));
    const WIDE ab = fmax(under, over), ba = fmin(under, over), aa = fmax(here, apart), bb = fmin(here, apart);
    if (ba * (ab / (aa + ab)) <= fmax(tiny, ulp * (bb * (aa / (aa + ab))))) break;
  }
  return k;
}

/* Two shifts: the eigenvalues of the last two rows, or, where they have led nowhere for ten steps,
 * others. */
static void FN(schur_shifts)(const FN(schur_form) * s, int64_t round, WIDE re[2], WIDE im[2])
{
  const int64_t ld = s->ld, i = s->i, l = s->l;
  WIDE a, b, c, d;
  if (round % 20 == 10) {
    const WIDE size = fabs((WIDE)H(i, i - 1)) + (i - 2 >= l ? fabs((WIDE)H(i - 1, i - 2)) : 0);
    a = d = 0.75 * size + H(i, i), b = -0.4375 * size, c = size;
  } else if (round > 0 && round % 20 == 0) {
    const WIDE size = fabs((WIDE)H(l + 1, l)) + (l + 2 <= i ? fabs((WIDE)H(l + 2, l + 1)) : 0);
    a = d = 0.75 * size + H(l, l), b = -0.4375 * size, c = size;
  } else a = H(i - 1, i - 1), b = H(i - 1, i), c = H(i, i - 1), d = H(i, i);
  const WIDE size = fabs(a) + fabs(b) + fabs(c) + fabs(d);
  re[0] = re[1] = im[0] = im[1] = 0;
  if (size == 0) return;
  a /= size, b /= size, c /= size, d /= size;
  const WIDE mean = (a + d) / 2, det = (a - mean) * (d - mean) - b * c, root = sqrt(fabs(det));
  if (det >= 0) {
    re[0] = re[1] = mean * size;
    im[0] = root * size, im[1] = -im[0];
  } else {
    const WIDE x = mean + root, y = mean - root;
    re[0] = re[1] = (fabs(x - d) <= fabs(y - d) ? x : y) * size;
  }
}

/* The row where the step may begin, since two couplings above it are small; v: the first column of
 * (H - shift 0)(H - shift 1) from there on. */
static int64_t FN(schur_begin)(const FN(schur_form) * s, const WIDE re[2], const WIDE im[2], T v[3])
{
  const int64_t ld = s->ld, l = s->l;
  int64_t m = s->i - 2;
  WIDE x, y, w;
  for (;; m--) {
    const WIDE h00 = H(m, m), h10 = H(m + 1, m), size = fabs(h00 - re[1]) + fabs(im[1]) + fabs(h10);
    const WIDE below = h10 / size;
    x = below * H(m, m + 1) + (h00 - re[0]) * ((h00 - re[1]) / size) - im[0] * (im[1] / size);
    y = below * (h00 + H(m + 1, m + 1) - re[0] - re[1]);
    w = below * H(m + 2, m + 1);
    if (m == l) break;
    const WIDE around = fabs((WIDE)H(m - 1, m - 1)) + fabs(h00) + fabs((WIDE)H(m + 1, m + 1));
    if (fabs((WIDE)H(m, m - 1)) * (fabs(y) + fabs(w)) <= 2 * (WIDE)EPS * fabs(x) * around) break;
  }
  const WIDE sum = fabs(x) + fabs(y) + fabs(w);
  v[0] = (T)(x / sum), v[1] = (T)(y / sum), v[2] = (T)(w / sum);
  return m;
}

/* Columns x and y (n) become c x + s y and c y - s x; a step of `step` between their elements. */
static void FN(schur_turn)(int64_t n, T *x, T *y, int64_t step, T c, T s)
{
  for (int64_t r = 0; r < n; r++) {
    const T a = x[r * step], b = y[r * step];
    x[r * step] = c * a + s * b;
    y[r * step] = c * b - s * a;
  }
}

/* A block of two rows, at i - 1: its eigenvalues; a rotation makes it triangular where they are
 * real, and else gives it equal numbers on the diagonal (lanv2). */
static void FN(schur_pair)(FN(schur_form) * s, FN(lanv2_fn) lanv2)
{
  const int64_t ld = s->ld, i = s->i, j = i - 1;
  T c, sn;
  lanv2(&H(j, j), &H(j, i), &H(i, j), &H(i, i), s->re + j, s->im + j, s->re + i, s->im + i, &c, &sn);
  if (!s->z) return;
  if (i + 1 < s->n) FN(schur_turn)(s->n - i - 1, &H(j, i + 1), &H(i, i + 1), ld, c, sn);
  FN(schur_turn)(j, &H(0, j), &H(0, i), 1, c, sn);
  FN(schur_turn)(s->n, s->z + j * ld, s->z + i * ld, 1, c, sn);
}

static bool FN(schur)(int64_t n, int64_t lo, int64_t hi, void *h, int64_t ld, void *re, void *im, void *z,
                      void *lanv2)
{
  FN(schur_form) state = { .n = n, .ld = ld, .h = h, .z = z, .re = re, .im = im }, *const s = &state;
  const int64_t most = 30 * (hi - lo > 10 ? hi - lo : 10);
  int64_t round = 0, total = 0;

  for (int64_t k = 0; k < n; k++)
    if (k < lo || k > hi) s->re[k] = H(k, k), s->im[k] = 0;
  for (int64_t j = lo; j + 2 <= hi; j++) /* what the reduction left below */
    for (int64_t r = j + 2; r < n; r++) H(r, j) = 0;
  for (int64_t i = hi; i >= lo;) {
    const int64_t l = FN(schur_split)(s, lo, hi, i);
    s->i = i, s->l = l;
    if (l > lo) H(l, l - 1) = 0;
    if (l >= i - 1) {
      if (l == i) s->re[i] = H(i, i), s->im[i] = 0;
      else FN(schur_pair)(s, (FN(lanv2_fn))lanv2);
      i = l - 1;
      round = 0;
      continue;
    }
    if (total++ == most) return false;
    WIDE shift[2], apart[2];
    T v[3];
    FN(schur_shifts)(s, round++, shift, apart);
    const int64_t m = FN(schur_begin)(s, shift, apart, v);
    FN(schur_sweep)(s, m, v);
  }
  return true;
}
#undef H
