/* General matrices to upper bidiagonal ones, in type T: Q^T A P by reflections of Householder from
 * both sides, TB columns and rows at a time (LAPACK's labrd).  Half of the operations are products
 * of the matrix with one vector, from the left and from the right; the other half updates what TB
 * columns and rows leave, as one product.
 *
 * Rows of the matrix are `ld` apart, a multiple of VN, with zeros behind column n. */

typedef struct FN(sides) {
  int64_t m, n, ld, tall; /* m >= n; tall: from one of v and x to the next */
  T *a;
  T *v, *x;      /* (TB, tall): the reflections of columns; A u of each, scaled */
  T *y, *u;      /* (TB, ld): A^T v, scaled; the reflections of rows */
  int64_t at;    /* the first row and column of a product with a vector */
  const T *from; /* the vector */
  T *to;
} FN(sides);

enum { FN(WIDTH) = 8 }; /* vectors of columns whose sums are formed together */

/* Groups lo .. hi of columns of the product A^T from. */
static void FN(from_left)(int64_t lo, int64_t hi, void *ud)
{
  enum { W = FN(WIDTH) };
  const FN(sides) *s = ud;
  const int64_t begin = s->at / VN * VN;
  for (int64_t g = lo; g < hi; g++) {
    const int64_t c = begin + g * W * VN, some = lesser((s->ld - c) / VN, W);
    V sum[W] = { 0 };
    if (some == W)
      for (int64_t i = s->at; i < s->m; i++) {
        const T f = s->from[i], *const row = s->a + i * s->ld + c;
#pragma GCC unroll 8
        for (int w = 0; w < W; w++) sum[w] += f * *(const V *)(row + w * VN);
      }
    else
      for (int64_t w = 0; w < some; w++)
        for (int64_t i = s->at; i < s->m; i++)
          sum[w] += s->from[i] * *(const V *)(s->a + i * s->ld + c + w * VN);
    for (int64_t w = 0; w < some; w++) *(V *)(s->to + c + w * VN) = sum[w];
  }
}

/* Groups lo .. hi of four rows of the product A from. */
static void FN(from_right)(int64_t lo, int64_t hi, void *ud)
{
  const FN(sides) *s = ud;
  const int64_t ld = s->ld;
  for (int64_t g = lo; g < hi; g++) {
    const int64_t i = s->at + 4 * g, rows = lesser(s->m - i, 4);
    const T *const a = s->a + i * ld, *const b = rows > 1 ? a + ld : a, *const c = rows > 2 ? b + ld : a,
                   *const d = rows > 3 ? c + ld : a;
    V sum[4] = { 0 };
    for (int64_t k = s->at / VN * VN; k < s->n; k += VN) {
      const V f = *(const V *)(s->from + k);
      sum[0] += *(const V *)(a + k) * f, sum[1] += *(const V *)(b + k) * f;
      sum[2] += *(const V *)(c + k) * f, sum[3] += *(const V *)(d + k) * f;
    }
    for (int64_t r = 0; r < rows; r++) {
      T all = 0;
      for (int64_t q = 0; q < VN; q++) all += sum[r][q];
      s->to[i + r] = all;
    }
  }
}

/* Column j, with number t of its panel: d, tau of the column, v and y. */
static void FN(bidiagonal_column)(FN(sides) * s, int64_t j, int64_t t, T *d, T *tau)
{
  const int64_t m = s->m, n = s->n, ld = s->ld, tall = s->tall;
  T *const v = s->v + t * tall, *const y = s->y + t * ld;
  T f[2][TB], g[2][TB];
  memset(v, 0, sizeof(T) * (size_t)tall);
  memset(y, 0, sizeof(T) * (size_t)ld);
  for (int64_t i = j; i < m; i++) v[i] = s->a[i * ld + j];
  for (int64_t k = 0; k < t; k++) f[0][k] = s->y[k * ld + j], f[1][k] = s->u[k * ld + j];
  FN(subtract_rows)(j, m, t, f[0], s->v, tall, v);
  FN(subtract_rows)(j, m, t, f[1], s->x, tall, v);
  for (int64_t i = j / VN * VN; i < j; i++) v[i] = 0;
  tau[j] = FN(reflect_row)(m - j, v + j, d + j);
  if (tau[j] == 0) memset(v + j, 0, sizeof(T) * (size_t)(m - j));
  for (int64_t i = j + 1; i < m; i++) s->a[i * ld + j] = v[i];
  if (j + 1 == n || tau[j] == 0) return;
  s->at = j;
  s->from = v;
  s->to = y;
  const int64_t groups = ((ld - j / VN * VN) / VN + FN(WIDTH) - 1) / FN(WIDTH);
  ax_cpu_for(groups, (m - j) * (n - j) / 4, FN(from_left), s);
  for (int64_t k = 0; k < t; k++) {
    g[0][k] = FN(dot_from)(j, m, s->v + k * tall, v);
    g[1][k] = FN(dot_from)(j, m, s->x + k * tall, v);
  }
  FN(subtract_rows)(j + 1, n, t, g[0], s->y, ld, y);
  FN(subtract_rows)(j + 1, n, t, g[1], s->u, ld, y);
  for (int64_t c = 0; c < ld; c++) y[c] = c <= j || c >= n ? 0 : tau[j] * y[c];
}

/* Row j likewise: e, tau of the row, u and x. */
static void FN(bidiagonal_row)(FN(sides) * s, int64_t j, int64_t t, T *e, T *tau)
{
  const int64_t m = s->m, n = s->n, ld = s->ld, tall = s->tall;
  T *const row = s->a + j * ld, *const u = s->u + t * ld, *const x = s->x + t * tall;
  T f[2][TB], g[2][TB];
  memset(u, 0, sizeof(T) * (size_t)ld);
  memset(x, 0, sizeof(T) * (size_t)tall);
  if (j + 1 >= n) return;
  memcpy(u + j + 1, row + j + 1, sizeof(T) * (size_t)(n - j - 1));
  for (int64_t k = 0; k <= t; k++) f[0][k] = s->v[k * tall + j], f[1][k] = s->x[k * tall + j];
  FN(subtract_rows)(j + 1, n, t + 1, f[0], s->y, ld, u);
  FN(subtract_rows)(j + 1, n, t, f[1], s->u, ld, u);
  for (int64_t c = (j + 1) / VN * VN; c <= j; c++) u[c] = 0;
  tau[j] = FN(reflect_row)(n - j - 1, u + j + 1, e + j);
  memcpy(row + j + 1, u + j + 1, sizeof(T) * (size_t)(n - j - 1));
  if (tau[j] == 0) {
    memset(u, 0, sizeof(T) * (size_t)ld);
    return;
  }
  if (j + 1 == m) return;
  s->at = j + 1;
  s->from = u;
  s->to = x;
  ax_cpu_for((m - j - 1 + 3) / 4, (m - j) * (n - j) / 4, FN(from_right), s);
  for (int64_t k = 0; k <= t; k++) g[0][k] = FN(dot_from)(j + 1, n, s->y + k * ld, u);
  for (int64_t k = 0; k < t; k++) g[1][k] = FN(dot_from)(j + 1, n, s->u + k * ld, u);
  FN(subtract_rows)(j + 1, m, t + 1, g[0], s->v, tall, x);
  FN(subtract_rows)(j + 1, m, t, g[1], s->x, tall, x);
  for (int64_t i = 0; i < tall; i++) x[i] = i <= j || i >= m ? 0 : tau[j] * x[i];
}

/* d (n), e (n - 1); column j of a keeps the vector of its reflection below row j, row j from column
 * j + 1 on; tau_q, tau_p (n).  panel: (2 TB, tall) and (2 TB, ld). */
static void FN(bidiagonal)(int64_t m, int64_t n, void *matrix, int64_t ld, void *diagonal, void *beside,
                           void *taus_q, void *taus_p, void *panels, void *room)
{
  T *const a = matrix, *const d = diagonal, *const e = beside, *const tau_q = taus_q, *const tau_p = taus_p,
           *const panel = panels;
  const int64_t tall = whole(m, VN) + VN;
  FN(sides) s = { .m = m, .n = n, .ld = ld, .tall = tall, .a = a, .v = panel, .x = panel + TB * tall };
  s.y = panel + 2 * TB * tall;
  s.u = s.y + TB * ld;
  for (int64_t j = 0; j < n; j += TB) {
    const int64_t w = lesser(n - j, TB), next = j + w;
    for (int64_t t = 0; t < w; t++) {
      FN(bidiagonal_column)(&s, j + t, t, d, tau_q);
      FN(bidiagonal_row)(&s, j + t, t, e, tau_p);
    }
    if (next < n) /* whole panels: w is TB */
      FN(product)
    (m - next, n - next, 2 * TB, s.v + next, 1, tall, s.y + next, ld, 1, a + next * (ld + 1), ld,
     AX_DENSE_SUB, room);
  }
}
