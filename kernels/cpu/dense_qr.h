/* QR of dense.c in type T: reflections of Householder, HB at a time as I - V S V^T. */

/* sqrt of the sum of squares of column j of p below its diagonal. */
static WIDE FN(norm_below)(int64_t m, const T *p, int64_t j)
{
  WIDE sum[4] = { 0 };
  int64_t i = j + 1;
  for (; i + 4 <= m; i += 4)
    for (int r = 0; r < 4; r++) sum[r] += (WIDE)p[(i + r) * HB + j] * p[(i + r) * HB + j];
  for (; i < m; i++) sum[0] += (WIDE)p[i * HB + j] * p[i * HB + j];
  const WIDE all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  if (all > 1e-260 && all < 1e300) return sqrt(all);
  WIDE most = 0, scaled = 0; /* it may have left the range */
  for (i = j + 1; i < m; i++) {
    const WIDE x = fabs((WIDE)p[i * HB + j]);
    if (!(x <= most)) most = x;
  }
  if (most == 0 || !isfinite(most)) return most;
  for (i = j + 1; i < m; i++) scaled += (p[i * HB + j] / most) * (p[i * HB + j] / most);
  return most * sqrt(scaled);
}

/* Column j of p below the diagonal becomes the reflection's vector.  Returns tau. */
static T FN(reflection)(int64_t m, T *p, int64_t j)
{
  const WIDE alpha = p[j * (HB + 1)], norm = FN(norm_below)(m, p, j);
  if (norm == 0) return 0;
  if (norm < 0x1p-900 && fabs(alpha) < 0x1p-900) { /* beta would have few bits */
    for (int64_t i = j; i < m; i++) p[i * HB + j] *= (T)0x1p300;
    const T tau = FN(reflection)(m, p, j);
    p[j * (HB + 1)] *= (T)0x1p-300;
    return tau;
  }
  const WIDE beta = -copysign(hypot(alpha, norm), alpha), scale = 1 / (alpha - beta);
  if (isfinite((T)scale) && isnormal((T)scale))
    for (int64_t i = j + 1; i < m; i++) p[i * HB + j] *= (T)scale;
  else
    for (int64_t i = j + 1; i < m; i++) p[i * HB + j] = (T)(p[i * HB + j] / (alpha - beta));
  p[j * (HB + 1)] = (T)beta;
  return (T)((beta - alpha) / beta);
}

/* Factorises p (m, HB, adjacent), whose columns from w on are zero. */
static void FN(qr_panel)(int64_t m, int64_t w, T *p, T *tau)
{
  const int64_t k = lesser(m, w);
  for (int64_t j = 0; j < k; j++) {
    const T factor = tau[j] = FN(reflection)(m, p, j);
    const int64_t from = (j + 1) / VN * VN;
    if (factor == 0) continue;
    for (int64_t c = from; c < HB; c += VN) {
      V sum[4] = { *(V *)(p + j * HB + c) }, keep;
      int64_t i = j + 1;
      for (; i + 4 <= m; i += 4)
        for (int r = 0; r < 4; r++) sum[r] += p[(i + r) * HB + j] * *(V *)(p + (i + r) * HB + c);
      for (; i < m; i++) sum[0] += p[i * HB + j] * *(V *)(p + i * HB + c);
      keep = ((sum[0] + sum[1]) + (sum[2] + sum[3])) * factor;
      for (int64_t q = 0; q < VN; q++)
        if (c + q <= j) keep[q] = 0;
      *(V *)(p + j * HB + c) -= keep;
      for (i = j + 1; i < m; i++) *(V *)(p + i * HB + c) -= p[i * HB + j] * keep;
    }
  }
}

/* The places in a room: packed slices are behind the others. */
typedef struct FN(reflections) {
  T *v, *w, *x, *s, *gram, *packed; /* v (m, HB), w and x (HB, cols), s and gram (HB, HB) */
} FN(reflections);

static FN(reflections) FN(places)(int64_t m, int64_t cols, void *room)
{
  FN(reflections) r;
  r.s = room;
  r.gram = r.s + HB * HB;
  r.v = r.gram + HB * HB;
  r.w = r.v + HB * m;
  r.x = r.w + HB * cols;
  r.packed = (T *)(((uintptr_t)(r.x + HB * cols) + 63) / 64 * 64);
  return r;
}

/* v: the vectors, with their ones and zeros; s: triangular, so that the reflections together are
 * I - V S V^T. */
static void FN(gather)(const FN(reflections) * r, int64_t m, int64_t w, const T *tau)
{
  for (int64_t i = 0; i < lesser(m, HB); i++)
    for (int64_t c = i; c < HB; c++) r->v[i * HB + c] = i == c && c < w;
  FN(product)(HB, HB, m, r->v, 1, HB, r->v, HB, 1, r->gram, HB, AX_DENSE_SET, r->packed);
  memset(r->s, 0, sizeof(T) * HB * HB);
  for (int64_t j = 0; j < w; j++) {
    r->s[j * (HB + 1)] = tau[j];
    for (int64_t i = 0; i < j; i++) {
      T sum = 0;
      for (int64_t q = i; q < j; q++) sum += r->s[i * HB + q] * r->gram[q * HB + j];
      r->s[i * HB + j] = -tau[j] * sum;
    }
  }
}

typedef struct FN(target) {
  const FN(reflections) * r;
  int64_t m, w, cols, c_row;
  bool transposed;
  T *c;
} FN(target);

/* Groups of GROUP columns, with these columns' part of the places. */
static void FN(apply_range)(int64_t lo, int64_t hi, void *ud)
{
  const FN(target) *t = ud;
  const FN(reflections) *r = t->r;
  const int64_t col = lo * GROUP, n = lesser(t->cols, hi * GROUP) - col, w = t->w;
  T *const c = t->c + col, *const packed = r->packed + KC * col;

  FN(product)(w, n, t->m, r->v, 1, HB, c, t->c_row, 1, r->w + col, t->cols, AX_DENSE_SET, packed);
  FN(product)
  (w, n, w, r->s, t->transposed ? 1 : HB, t->transposed ? HB : 1, r->w + col, t->cols, 1, r->x + col, t->cols,
   AX_DENSE_SET, packed);
  FN(product)(t->m, n, w, r->v, HB, 1, r->x + col, t->cols, 1, c, t->c_row, AX_DENSE_SUB, packed);
}

/* c (m, cols) -= V S V^T c, or V S^T V^T c.  Each thread has columns of its own, where there are
 * enough; else they share each product. */
static void FN(apply)(const FN(reflections) * r, int64_t m, int64_t w, bool transposed, int64_t cols, T *c,
                      int64_t c_row)
{
  for (int64_t at = 0; at < cols; at += NC) {
    FN(target) t = { r, m, w, lesser(cols - at, NC), c_row, transposed, c + at };
    const int64_t groups = (t.cols + GROUP - 1) / GROUP;
    if (groups < ax_cpu_get_threads()) FN(apply_range)(0, groups, &t);
    else ax_cpu_for(groups, m * w * t.cols / 8, FN(apply_range), &t);
  }
}

static void FN(load_panel)(int64_t m, int64_t w, const T *a, int64_t ld, T *v)
{
  for (int64_t i = 0; i < m; i++) {
    memcpy(v + i * HB, a + i * ld, sizeof(T) * (size_t)w);
    memset(v + i * HB + w, 0, sizeof(T) * (size_t)(HB - w));
  }
}

static void FN(qr)(int64_t m, int64_t n, void *matrix, int64_t ld, void *taus, void *room)
{
  const int64_t k = lesser(m, n);
  T *const a = matrix, *const tau = taus;
  const FN(reflections) r = FN(places)(m, n, room);

  for (int64_t j = 0; j < k; j += HB) {
    const int64_t w = lesser(k - j, HB), rows = m - j, right = n - j - w;
    T *const top = a + j * (ld + 1);
    FN(load_panel)(rows, w, top, ld, r.v);
    FN(qr_panel)(rows, w, r.v, tau + j);
    for (int64_t i = 0; i < rows; i++) memcpy(top + i * ld, r.v + i * HB, sizeof(T) * (size_t)w);
    if (right <= 0) continue;
    FN(gather)(&r, rows, w, tau + j);
    FN(apply)(&r, rows, w, true, right, top + w, ld);
  }
}

static void FN(reflect)(int64_t m, int64_t k, const void *matrix, int64_t ld, const void *taus,
                        bool transposed, bool identity, int64_t cols, void *matrix_q, int64_t q_row,
                        void *room)
{
  const FN(reflections) r = FN(places)(m, cols, room);
  const T *const a = matrix, *const tau = taus;
  T *const q = matrix_q;
  const int64_t blocks = (k + HB - 1) / HB;

  for (int64_t t = 0; t < blocks; t++) {
    const int64_t j = (transposed ? t : blocks - 1 - t) * HB, w = lesser(k - j, HB), left = identity ? j : 0;
    FN(load_panel)(m - j, w, a + j * (ld + 1), ld, r.v);
    FN(gather)(&r, m - j, w, tau + j);
    FN(apply)(&r, m - j, w, transposed, cols - left, q + j * q_row + left, q_row);
  }
}
