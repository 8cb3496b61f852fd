/* Euclidean distances of all pairs of float32 rows through a product of matrices in float64:
 * |x - c|^2 + |y - c|^2 - 2 (x - c)(y - c), where c is the mean of the rows of y.
 *
 * The sum has an error of about 2^-53 of the squares that it cancels.  Where it is less than NEAR
 * of them, the pair is computed from its differences, which are exact, and so are pairs that are
 * not finite and squares that float32 does not hold.  A distance is then as exact as float32
 * allows: its square and its root are rounded to float32. */
#define NEAR 0x1p-13
#define SMALL 0x1p-100 /* a square */
#define LARGE 0x1p100

enum { BLOCK_ROWS = 384, BLOCK_COLS = 1024 }; /* of the product that are computed at a time */

typedef struct pairs {
  int64_t k, n, cols; /* cols: of this block */
  const float *x, *y; /* rows of this block; y: all of its columns */
  const double *x_squares, *y_squares, *product;
  float *out; /* rows of n */
} pairs;

/* The sum of the squares of x - y: of vectors, then of what is left. */
static double squared_distance(const float *x, const float *y, int64_t k)
{
  vec sum = { 0 };
  double total = 0, a[LANES];
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    for (int l = 0; l < LANES; l++) a[l] = (double)x[i + l] - (double)y[i + l];
    sum = AX_VFMA_f64(*(const vec *)a, *(const vec *)a, sum);
  }
  for (int l = 0; l < LANES; l++) total += sum[l];
  for (; i < k; i++) total += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
  return total;
}

static void finish_rows(int64_t lo, int64_t hi, void *ctx)
{
  const pairs *p = ctx;
  for (int64_t i = lo; i < hi; i++) {
    const double *const product = p->product + i * p->cols, own = p->x_squares[i];
    float *const out = p->out + i * p->n;
    int32_t left = 0;
#pragma omp simd reduction(| : left)
    for (int64_t c = 0; c < p->cols; c++) {
      const double both = own + p->y_squares[c], square = both - 2 * product[c];
      left |= !(square > NEAR * both && square > SMALL && square < LARGE);
      out[c] = sqrtf((float)square);
    }
    for (int64_t c = 0; left && c < p->cols; c++) {
      const double both = own + p->y_squares[c], square = both - 2 * product[c];
      if (!(square > NEAR * both && square > SMALL && square < LARGE))
        out[c] = (float)sqrt(squared_distance(p->x + i * p->k, p->y + c * p->k, p->k));
    }
  }
}

/* Rows less the centre, in float64, and their squared lengths. */
typedef struct centred {
  int64_t k;
  const float *from;
  const double *centre;
  double *to, *squares;
} centred;

static void centre_rows(int64_t lo, int64_t hi, void *ctx)
{
  const centred *c = ctx;
  for (int64_t r = lo; r < hi; r++) {
    const float *const from = c->from + r * c->k;
    double *const to = c->to + r * c->k, sum = 0;
    vec sums = { 0 };
    int64_t i = 0;
    AX_SIMD
    for (int64_t e = 0; e < c->k; e++) to[e] = (double)from[e] - c->centre[e];
    for (; i + LANES <= c->k; i += LANES)
      sums = AX_VFMA_f64(*(const vec *)(to + i), *(const vec *)(to + i), sums);
    for (int l = 0; l < LANES; l++) sum += sums[l];
    for (; i < c->k; i++) sum += to[i] * to[i];
    c->squares[r] = sum;
  }
}

/* The mean of n rows; 0 where it is not finite. */
static void mean_of_rows(const float *y, int64_t n, int64_t k, double *mean)
{
  memset(mean, 0, sizeof *mean * (size_t)k);
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < k; i++) mean[i] += (double)y[r * k + i];
  for (int64_t i = 0; i < k; i++) mean[i] = isfinite(mean[i]) ? mean[i] / (double)n : 0;
}

/* Whether the product takes less time than the differences. */
static bool by_product(const ax_tensor *x, int64_t n, double p)
{
  return x->dtype == AX_F32 && p == 2 && x->shape[1] >= 16 && n >= 32 && x->shape[2] >= 16;
}

static ax_status distances_by_product(const ax_tensor *x, const ax_tensor *y, ax_tensor *out)
{
  const int64_t m = x->shape[1], n = y->shape[1], k = x->shape[2];
  const int64_t most_rows = m < BLOCK_ROWS ? m : BLOCK_ROWS, most_cols = n < BLOCK_COLS ? n : BLOCK_COLS;
  const size_t bytes = sizeof(double) * (size_t)((m + n) * (k + 1) + k + most_rows * most_cols);
  void *scratch;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  double *const wide_x = scratch, *const wide_y = wide_x + m * k, *const x_squares = wide_y + n * k,
                *const y_squares = x_squares + m, *const mean = y_squares + n, *const product = mean + k;

  for (int64_t b = 0; b < x->shape[0]; b++) {
    const float *const of_x = (const float *)ax_data(x) + b * m * k, *const of_y = (const float *)ax_data(y) +
                                                                                   b * n * k;
    float *const to = (float *)ax_data(out) + b * m * n;
    mean_of_rows(of_y, n, k, mean);
    ax_cpu_for(m, m * k, centre_rows, &(centred){ k, of_x, mean, wide_x, x_squares });
    ax_cpu_for(n, n * k, centre_rows, &(centred){ k, of_y, mean, wide_y, y_squares });
    for (int64_t c = 0; c < n; c += BLOCK_COLS)
      for (int64_t r = 0; r < m; r += BLOCK_ROWS) {
        const int64_t rows = m - r < BLOCK_ROWS ? m - r : BLOCK_ROWS,
                      cols = n - c < BLOCK_COLS ? n - c : BLOCK_COLS;
        const ax_gemm g = { .dtype = AX_F64,
                            .batch = 1,
                            .m = rows,
                            .n = cols,
                            .k = k,
                            .a = { 0, k, 1 },
                            .b = { 0, 1, k },
                            .c = { 0, cols } };
        ax_cpu_gemm(&g, wide_x + r * k, wide_y + c * k, product);
        pairs p = { .k = k,
                    .n = n,
                    .cols = cols,
                    .x = of_x + r * k,
                    .y = of_y + c * k,
                    .x_squares = x_squares + r,
                    .y_squares = y_squares + c,
                    .product = product,
                    .out = to + r * n + c };
        ax_cpu_for(rows, rows * cols, finish_rows, &p);
      }
  }
  ax_free(scratch, bytes);
  return AX_OK;
}
