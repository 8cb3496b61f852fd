/* The three passes of optim_adafactor.c for one element type: T, its suffix S, and SQRT.  Included
 * once for each type. */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(base) JOIN(base, S)

/* The sum of the squares of n elements, at most SUM_BLOCK of them. */
static double NAME(squares_of_block)(const T *x, int64_t n)
{
  T lane[LANES] = { 0 };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    AX_SIMD
    for (int k = 0; k < LANES; k++) lane[k] += x[i + k] * x[i + k];
  }
  for (; i < n; i++) lane[i % LANES] += x[i] * x[i];
  for (int w = LANES / 2; w > 0; w /= 2) {
    AX_SIMD
    for (int k = 0; k < w; k++) lane[k] += lane[k + w];
  }
  return (double)lane[0];
}

static double NAME(squares_of)(const T *x, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i += SUM_BLOCK)
    sum += NAME(squares_of_block)(x + i, n - i < SUM_BLOCK ? n - i : SUM_BLOCK);
  return sum;
}

/* The sum of the squares of one row of gradients; also adds the squares to the columns' sums. */
static double NAME(row_squares)(const T *restrict g, T *restrict col, int64_t cols)
{
  double sum = 0;
  for (int64_t at = 0; at < cols; at += SUM_BLOCK) {
    const int64_t n = cols - at < SUM_BLOCK ? cols - at : SUM_BLOCK;
    AX_SIMD
    for (int64_t i = at; i < at + n; i++) col[i] += g[i] * g[i];
    sum += NAME(squares_of_block)(g + at, n);
  }
  return sum;
}

static T NAME(moved_to)(T old, double mean, double weight) { return old + (T)weight * ((T)mean - old); }

/* First pass.  Factored: the rows' means, and each column's squares in the chunk; small matrices:
 * the columns' means too.  Vectors: the running mean, and the size of the update. */
static void NAME(squares)(int64_t from, int64_t to, void *ud)
{
  const factor_job *j = ud;
  const int64_t rows = j->rows, cols = j->cols;
  const T *p = j->s->param, *g = j->s->grad;
  T *row_var = j->s->state[0], *col_var = j->s->state[1], *variance = j->s->state[2];

  for (int64_t c = from; c < to; c++) {
    int64_t first, last, lo, hi;
    T *col;
    double sum = 0;

    bounds(j, c, &first, &last, &lo, &hi);
    if (!j->factored) {
      const T weight = (T)j->weight, limit = (T)j->limit;
      double moved = 0;
      for (int64_t at = lo; at < hi; at += SUM_BLOCK) {
        const int64_t n = hi - at < SUM_BLOCK ? hi - at : SUM_BLOCK;
        T u[SUM_BLOCK];
        AX_SIMD
        for (int64_t i = 0; i < n; i++) {
          const T q = g[at + i], v = variance[at + i] + weight * (q * q - variance[at + i]),
                  inverse = 1 / SQRT(v);
          variance[at + i] = v;
          u[i] = q * (inverse > limit ? limit : inverse);
        }
        moved += NAME(squares_of_block)(u, n);
      }
      j->sums[2 * c] = NAME(squares_of)(p + lo, hi - lo);
      j->sums[2 * c + 1] = moved;
      continue;
    }
    col = (T *)j->col_sums + c * cols;
    for (int64_t m = first; m < last; m++) {
      const int64_t base = m * rows * cols;
      memset(col, 0, (size_t)cols * sizeof *col);
      for (int64_t r = lo; r < hi; r++) {
        T *mean = &row_var[m * rows + r];
        *mean = NAME(moved_to)(*mean, NAME(row_squares)(g + base + r * cols, col, cols) / (double)cols,
                               j->weight);
      }
      sum += NAME(squares_of)(p + base + lo * cols, (hi - lo) * cols);
      if (lo == 0 && hi == rows)
        for (int64_t i = 0; i < cols; i++) {
          T *mean = &col_var[m * cols + i];
          *mean = NAME(moved_to)(*mean, (double)col[i] / (double)rows, j->weight);
        }
    }
    j->sums[2 * c] = sum;
  }
}

/* The means of columns [from, to) of all matrices, from those of the chunks. */
static void NAME(columns)(int64_t from, int64_t to, void *ud)
{
  const factor_job *j = ud;
  const int64_t cols = j->cols;
  T *col_var = j->s->state[1];

  for (int64_t at = from; at < to;) {
    double sum[SUM_BLOCK] = { 0 };
    const int64_t m = at / cols, first = at % cols;
    int64_t n = cols - first < SUM_BLOCK ? cols - first : SUM_BLOCK;
    if (n > to - at) n = to - at;
    for (int64_t c = m * j->chunks_each; c < (m + 1) * j->chunks_each; c++) {
      const T *col = (const T *)j->col_sums + c * cols + first;
      AX_SIMD
      for (int64_t i = 0; i < n; i++) sum[i] += (double)col[i];
    }
    for (int64_t i = 0; i < n; i++)
      col_var[at + i] = NAME(moved_to)(col_var[at + i], sum[i] / (double)j->rows, j->weight);
    at += n;
  }
}

static void NAME(factors)(int64_t from, int64_t to, void *ud)
{
  const factor_job *j = ud;
  const int64_t rows = j->rows, cols = j->cols;
  const T *row_var = j->s->state[0], *col_var = j->s->state[1];
  T *row = j->row_factor, *col = j->col_factor;

  for (int64_t m = from; m < to; m++) {
    double sum = 0;
    T mean;
    for (int64_t r = 0; r < rows; r++) sum += (double)row_var[m * rows + r];
    mean = (T)(sum / (double)rows);
    if (mean < (T)j->mean_eps) mean = (T)j->mean_eps;
    AX_SIMD
    for (int64_t r = m * rows; r < (m + 1) * rows; r++) row[r] = 1 / SQRT(row_var[r] / mean);
    AX_SIMD
    for (int64_t i = m * cols; i < (m + 1) * cols; i++) col[i] = 1 / SQRT(col_var[i]);
  }
}

/* Second pass: the squares of the update. */
static void NAME(size)(int64_t from, int64_t to, void *ud)
{
  const factor_job *j = ud;
  const int64_t rows = j->rows, cols = j->cols;
  const T *row = j->row_factor, limit = (T)j->limit;

  for (int64_t c = from; c < to; c++) {
    int64_t first, last, lo, hi;
    double sum = 0;

    bounds(j, c, &first, &last, &lo, &hi);
    for (int64_t m = first; m < last; m++)
      for (int64_t r = m * rows + lo; r < m * rows + hi; r++) {
        const T *g = (const T *)j->s->grad + r * cols, *col = (const T *)j->col_factor + m * cols,
                factor = row[r];
        for (int64_t at = 0; at < cols; at += SUM_BLOCK) {
          const int64_t n = cols - at < SUM_BLOCK ? cols - at : SUM_BLOCK;
          T u[SUM_BLOCK];
          AX_SIMD
          for (int64_t i = 0; i < n; i++) {
            const T by = factor * col[at + i];
            u[i] = g[at + i] * (by > limit ? limit : by);
          }
          sum += NAME(squares_of_block)(u, n);
        }
      }
    j->sums[2 * c + 1] = sum;
  }
}

/* Third pass: the update. */
static void NAME(update)(int64_t from, int64_t to, void *ud)
{
  const factor_job *j = ud;
  const int64_t rows = j->rows, cols = j->cols;
  const T *row = j->row_factor, limit = (T)j->limit, keep = (T)j->keep, step = (T)(j->sign * j->step);

  for (int64_t c = from; c < to; c++) {
    int64_t first, last, lo, hi;

    bounds(j, c, &first, &last, &lo, &hi);
    if (!j->factored) {
      const T *g = (const T *)j->s->grad + lo, *variance = (const T *)j->s->state[2] + lo;
      T *p = (T *)j->s->param + lo;
      AX_OPTIM_EACH_(S, j->s, p, lo, hi - lo, const T inverse = 1 / SQRT(variance[i]);
                     p[i] = keep * p[i] - step * (g[i] * (inverse > limit ? limit : inverse));)
      continue;
    }
    for (int64_t m = first; m < last; m++)
      for (int64_t r = m * rows + lo; r < m * rows + hi; r++) {
        const T *g = (const T *)j->s->grad + r * cols, *col = (const T *)j->col_factor + m * cols,
                factor = row[r];
        T *p = (T *)j->s->param + r * cols;
        AX_OPTIM_EACH_(S, j->s, p, r * cols, cols, const T by = factor * col[i];
                       p[i] = keep * p[i] - step * (g[i] * (by > limit ? limit : by));)
      }
  }
}

#undef NAME
#undef JOIN
#undef JOIN_
