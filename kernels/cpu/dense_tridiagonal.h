/* Symmetric matrices to tridiagonal ones, in type T: Q^T A Q by reflections of Householder, TB rows
 * at a time (Dongarra, Hammarling and Sorensen 1989).  Half of the operations are products of the
 * matrix with one vector; the other half updates what TB rows leave, as one product.
 *
 * The upper triangle is read and written.  The squares of SQUARE on the diagonal are whole, so that
 * loops begin at multiples of it; what is below them is never read.  Rows are `ld` apart, a
 * multiple of SQUARE, with zeros behind column n; there are whole(n, SQUARE) of them. */
#define SQUARE (VN < 4 ? 4 : VN) /* symv_rows takes four rows together, also of shorter vectors */

typedef struct FN(panel) {
  int64_t n, ld;
  T *a;
  T *v, *w;   /* (TB, ld): the reflections, and A v of each; v again behind w, so that V W^T + W V^T
               * is one product */
  T *sums;    /* (PARTS, ld) */
  const T *x; /* the vector of a product */
  int64_t cut[PARTS + 1];
} FN(panel);

/* y[c ..] -= f[k] x[k][c ..] for rows x, `ld` apart. */
static void FN(subtract_rows)(int64_t c, int64_t n, int64_t rows, const T *f, const T *x, int64_t ld, T *y)
{
  for (c = c / VN * VN; c < n; c += VN) {
    V sum = *(V *)(y + c);
    for (int64_t k = 0; k < rows; k++) sum -= f[k] * *(const V *)(x + k * ld + c);
    *(V *)(y + c) = sum;
  }
}

/* The sum of a[c] b[c], c from `at` on; b is zero before it. */
static T FN(dot_from)(int64_t at, int64_t n, const T *a, const T *b)
{
  V s[4] = { 0 };
  T sum = 0;
  int64_t c = at / VN * VN;
  for (; c + 3 * VN < n; c += 4 * VN)
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) s[r] += *(const V *)(a + c + r * VN) * *(const V *)(b + c + r * VN);
  for (; c < n; c += VN) s[0] += *(const V *)(a + c) * *(const V *)(b + c);
  s[0] = (s[0] + s[1]) + (s[2] + s[3]);
  for (int64_t q = 0; q < VN; q++) sum += s[0][q];
  return sum;
}

/* Rows from .. to of the triangle times x: each row's own sum, and what it adds to later ones. */
static void FN(symv_rows)(const FN(panel) * p, int64_t from, int64_t to, T *y)
{
  const int64_t n = p->n, ld = p->ld;
  const T *const x = p->x;
  for (int64_t i = from; i < to; i += 4) {
    const T *const a = p->a + i * ld, x0 = x[i], x1 = x[i + 1], x2 = x[i + 2], x3 = x[i + 3];
    const int64_t square = i / SQUARE * SQUARE;
    V s0 = { 0 }, s1 = s0, s2 = s0, s3 = s0;
    for (int64_t c = square; c < square + SQUARE; c += VN) {
      const V v = *(const V *)(x + c);
      s0 += *(const V *)(a + c) * v, s1 += *(const V *)(a + ld + c) * v;
      s2 += *(const V *)(a + 2 * ld + c) * v, s3 += *(const V *)(a + 3 * ld + c) * v;
    }
    for (int64_t c = square + SQUARE; c < n; c += VN) {
      const V v = *(const V *)(x + c), a0 = *(const V *)(a + c), a1 = *(const V *)(a + ld + c),
              a2 = *(const V *)(a + 2 * ld + c), a3 = *(const V *)(a + 3 * ld + c);
      s0 += a0 * v, s1 += a1 * v, s2 += a2 * v, s3 += a3 * v;
      *(V *)(y + c) += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3;
    }
    T own[4] = { 0 };
    for (int64_t q = 0; q < VN; q++) own[0] += s0[q], own[1] += s1[q], own[2] += s2[q], own[3] += s3[q];
    for (int r = 0; r < 4; r++) y[i + r] += own[r];
  }
}

static void FN(symv_parts)(int64_t lo, int64_t hi, void *ud)
{
  const FN(panel) *p = ud;
  for (int64_t q = lo; q < hi; q++) {
    T *const y = p->sums + q * p->ld;
    memset(y + p->cut[q], 0, sizeof(T) * (size_t)(p->ld - p->cut[q]));
    FN(symv_rows)(p, p->cut[q], p->cut[q + 1], y);
  }
}

/* y[at ..] = A[at .., at ..] x[at ..]; x is zero before `at`, y anything.  The triangle is cut into
 * parts of equal size, the same ones for any number of threads. */
static void FN(symv)(FN(panel) * p, int64_t at, const T *x, T *y)
{
  const int64_t begin = at / SQUARE * SQUARE, m = whole(p->n, SQUARE) - begin,
                parts = m >= PARTED ? PARTS : 1;
  p->x = x;
  for (int64_t q = 0; q < parts; q++) {
    const double share = 1 - sqrt(1 - (double)q / (double)parts);
    p->cut[q] = begin + (int64_t)((double)m * share) / SQUARE * SQUARE;
  }
  p->cut[parts] = begin + m;
  ax_cpu_for(parts, m * m / 4, FN(symv_parts), p);
  memcpy(y + begin, p->sums + begin, sizeof(T) * (size_t)m);
  for (int64_t q = 1; q < parts; q++)
    for (int64_t c = p->cut[q]; c < p->n; c += VN) *(V *)(y + c) += *(const V *)(p->sums + q * p->ld + c);
}

/* x (m) becomes a reflection's vector, whose first element is 1.  Returns tau; *beta: what the
 * reflection makes of x's first element. */
static T FN(reflect_row)(int64_t m, T *x, T *beta)
{
  WIDE sum = 0;
  for (int64_t c = 1; c < m; c++) sum += (WIDE)x[c] * x[c];
  *beta = x[0];
  if (sum == 0) return 0;
  const WIDE alpha = x[0], to = -copysign(sqrt(alpha * alpha + sum), alpha), scale = 1 / (alpha - to);
  for (int64_t c = 1; c < m; c++) x[c] = (T)(x[c] * scale);
  x[0] = 1;
  *beta = (T)to;
  return (T)((to - alpha) / to);
}

/* Row j, with number t of its panel: d, e and tau of it, and the panel's v and w. */
static void FN(tridiagonal_row)(FN(panel) * p, int64_t j, int64_t t, T *d, T *e, T *tau)
{
  const int64_t n = p->n, ld = p->ld;
  T *const row = p->a + j * ld, *const v = p->v + t * ld, *const w = p->w + t * ld;
  T f[2][TB];
  for (int64_t k = 0; k < t; k++) f[0][k] = p->w[k * ld + j], f[1][k] = p->v[k * ld + j];
  FN(subtract_rows)(j, n, t, f[0], p->v, ld, row);
  FN(subtract_rows)(j, n, t, f[1], p->w, ld, row);
  d[j] = row[j];
  memset(v, 0, sizeof(T) * (size_t)ld);
  memset(w, 0, sizeof(T) * (size_t)ld);
  if (j + 1 == n) return;
  tau[j] = FN(reflect_row)(n - j - 1, row + j + 1, e + j);
  if (tau[j] == 0) return;
  memcpy(v + j + 1, row + j + 1, sizeof(T) * (size_t)(n - j - 1));
  FN(symv)(p, j + 1, v, w);
  for (int64_t k = 0; k < t; k++) {
    f[0][k] = FN(dot_from)(j + 1, n, p->w + k * ld, v);
    f[1][k] = FN(dot_from)(j + 1, n, p->v + k * ld, v);
  }
  FN(subtract_rows)(j + 1, n, t, f[0], p->v, ld, w);
  FN(subtract_rows)(j + 1, n, t, f[1], p->w, ld, w);
  for (int64_t c = j / SQUARE * SQUARE; c <= j; c++) w[c] = 0;
  /* w = tau A v - (tau / 2) (v^T tau A v) v */
  const T half = -tau[j] * tau[j] / 2 * FN(dot_from)(j + 1, n, w, v);
  for (int64_t c = (j + 1) / VN * VN; c < n; c += VN)
    *(V *)(w + c) = tau[j] * *(V *)(w + c) + half * *(V *)(v + c);
}

/* d (n), e (n - 1): the tridiagonal matrix; row j of a keeps the vector of reflection j from column
 * j + 1 on; tau (n - 1).  panel: (3 TB + PARTS, ld). */
static void FN(tridiagonal)(int64_t n, T *a, int64_t ld, T *d, T *e, T *tau, T *panel, void *room)
{
  FN(panel)
  p = { .n = n, .ld = ld, .a = a, .v = panel, .w = panel + TB * ld, .sums = panel + 3 * TB * ld };
  for (int64_t j = 0; j < n; j += TB) {
    const int64_t w = lesser(n - j, TB);
    for (int64_t t = 0; t < w; t++) FN(tridiagonal_row)(&p, j + t, t, d, e, tau);
    memcpy(p.w + TB * ld, p.v, sizeof(T) * (size_t)(TB * ld));
    for (int64_t r = j + w; r < n; r += 2 * NB) FN(product)
    (lesser(n - r, 2 * NB), n - r, 2 * TB, p.v + r, 1, ld, p.w + r, ld, 1, a + r * (ld + 1), ld, AX_DENSE_SUB,
     room);
  }
}
