/* Fourier transforms of lengths with a large prime factor, as circular convolutions of a length
 * without one, in double: the rounding of the convolution then is far below that of floats.
 *
 * Rader's method: the powers of a generator put the positions 1 .. n - 1 of a prime n in an order
 * in which the transform is a convolution of n - 1 numbers.  Bluestein's method: j k is
 * (j^2 + k^2 - (j - k)^2) / 2, which makes the transform of any n a convolution of 2 n - 1 numbers
 * or more.  Several lines go through the convolution side by side, as lanes; Rader's method, which
 * moves single numbers, pays only there. */

enum { FFT_PRIME_LANES = AX_BYTES / sizeof(double), FFT_PRIME_MOST = 4096 };

struct fft_prime {
  int64_t n, m; /* m: the length of the convolution */
  bool together;
  int32_t *from, *to; /* RADER: the powers of the generator and of its inverse, modulo n */
  double *chirp;      /* else: exp(i pi k^2 / n) */
  double *filter;     /* the other side of the convolution, transformed, over m */
  fft_passes_f64 passes;
  fft_plan_f64 *line; /* not together: of single lines of m */
};

static void fft_prime_free(fft_prime *p)
{
  if (!p) return;
  free(p->from);
  free(p->to);
  free(p->chirp);
  free(p->filter);
  fft_passes_free_f64(&p->passes);
  if (p->line) fft_drop_f64(p->line);
  free(p);
}

/* What a transform of n numbers costs, in additions for each number. */
static int64_t fft_cost(int64_t n)
{
  int64_t cost = 0;
  for (; n % 8 == 0 && n != 16; n /= 8) cost += 9;
  for (; n % 4 == 0; n /= 4) cost += 6;
  for (int64_t f = 2; n > 1; f++)
    for (; n % f == 0; n /= f) cost += f == 2 ? 5 : f == 3 ? 7 : f == 5 ? 10 : 4 + 2 * f;
  return cost;
}

/* The length for Bluestein's method; that of single lines is a product of two multiples of the
 * lanes. */
static int64_t fft_convolution(int64_t n, bool together)
{
  static const int64_t odd[] = { 1, 3, 5, 9, 15, 25, 27, 45, 75, 81 };
  int64_t best = 0, least = INT64_MAX;
  for (int k = 0; k < (together ? 10 : 5); k++) {
    int64_t m = odd[k] * (together ? 1 : 256);
    while (m < 2 * n - 1) m *= 2;
    const int64_t cost = m * fft_cost(m);
    if (cost < least) least = cost, best = m;
  }
  return best;
}

/* Whether the lanes of a convolution stay in the second-level cache. */
static bool fft_prime_fits(int64_t n) { return fft_convolution(n, true) <= FFT_PRIME_MOST; }

static int64_t power_modulo(int64_t x, int64_t power, int64_t n)
{
  int64_t result = 1;
  for (; power; power /= 2, x = x * x % n)
    if (power & 1) result = result * x % n;
  return result;
}

/* A number whose powers are all of 1 .. n - 1 modulo the prime n. */
static int64_t generator_of(int64_t n)
{
  for (int64_t g = 2;; g++) {
    bool all = true;
    int64_t left = n - 1;
    for (int64_t f = 2; left > 1 && all; f++) {
      if (f * f > left) f = left;
      if (left % f) continue;
      while (left % f == 0) left /= f;
      all = power_modulo(g, (n - 1) / f, n) != 1;
    }
    if (all) return g;
  }
}

static bool fft_make_rader(fft_prime *p, double *filter)
{
  const int64_t n = p->n, g = generator_of(n), back = power_modulo(g, n - 2, n);
  double root[2];
  p->from = malloc(sizeof *p->from * (size_t)p->m);
  p->to = malloc(sizeof *p->to * (size_t)p->m);
  if (!p->from || !p->to) return false;
  for (int64_t k = 0, a = 1, b = 1; k < p->m; k++, a = a * g % n, b = b * back % n) {
    p->from[k] = (int32_t)a, p->to[k] = (int32_t)b;
    unit_root(b, n, root);
    filter[2 * k] = root[0], filter[2 * k + 1] = -root[1];
  }
  return true;
}

static bool fft_make_chirp(fft_prime *p, double *filter)
{
  if (!(p->chirp = malloc(sizeof(double) * 2 * (size_t)p->n))) return false;
  memset(filter, 0, sizeof(double) * 2 * (size_t)p->m);
  for (int64_t k = 0, square = 0; k < p->n; k++) { /* k^2 modulo 2 n */
    double *root = p->chirp + 2 * k;
    unit_root(square, 2 * p->n, root);
    square = (square + 2 * k + 1) % (2 * p->n);
    memcpy(filter + 2 * k, root, 2 * sizeof *root);
    if (k) memcpy(filter + 2 * (p->m - k), root, 2 * sizeof *root);
  }
  return true;
}

/* Transforms the filter in place, and divides it by m. */
static ax_status fft_make_filter(fft_prime *p)
{
  const size_t bytes = sizeof(ax_vec_f64) * 4 * (size_t)fft_apart_f64(p->m);
  const double scale = 1.0 / (double)p->m;
  if (!p->together) {
    double *copy = fft_room(sizeof(double) * 2 * (size_t)p->m);
    if (!copy) return fft_no_memory();
    memcpy(copy, p->filter, sizeof(double) * 2 * (size_t)p->m);
    const ax_status st = fft_line_f64(p->line, copy, p->filter, false, scale, NULL);
    fft_give(copy, sizeof(double) * 2 * (size_t)p->m);
    return st;
  }
  void *room = fft_room(bytes);
  if (!room) return fft_no_memory();
  fft_lanes_f64 x = fft_lanes_in_f64(room, p->m);
  fft_gather_f64(p->filter, 0, 1, (int)p->m, x.re, x.im, NULL);
  fft_run_lanes_f64(&p->passes, &x);
  fft_scatter_f64(p->filter, 0, 1, (int)p->m, x.re, x.im, scale, NULL);
  fft_give(room, bytes);
  return AX_OK;
}

static ax_status fft_prime_make(int64_t n, bool together, fft_prime **out)
{
  fft_prime *p = calloc(1, sizeof *p);
  ax_status st = AX_OK;

  *out = p; /* the plan frees it */
  if (!p) return fft_no_memory();
  p->n = n;
  p->together = together;
  p->m = fft_convolution(n, together);
  const bool rader = together && largest_prime(n) == n && largest_prime(n - 1) <= LARGEST &&
                     (n - 1) * fft_cost(n - 1) <= p->m * fft_cost(p->m);
  if (rader) p->m = n - 1;
  p->filter = malloc(sizeof(double) * 2 * (size_t)p->m);
  if (!p->filter || !(rader ? fft_make_rader : fft_make_chirp)(p, p->filter)) return fft_no_memory();
  if (!together) AX_TRY(fft_plan_for_f64(p->m, FFT_LINES, &p->line));
  else if (!fft_passes_make_f64(&p->passes, (int)p->m)) st = fft_no_memory();
  if (st == AX_OK) st = fft_make_filter(p);
out:
  return st;
}

/* ---- several lines, as lanes */

/* The convolution of x, in place of it: the inverse transform is the forward one of swapped parts.
 * dc: added to all results, or NULL. */
static void fft_convolve(const fft_prime *p, fft_lanes_f64 *x, const ax_vec_f64 *dc)
{
  fft_run_lanes_f64(&p->passes, x);
  for (int64_t k = 0; k < p->m; k++) {
    const double c = p->filter[2 * k], s = p->filter[2 * k + 1];
    const ax_vec_f64 r = x->re[k], i = x->im[k];
    x->re[k] = r * c - i * s;
    x->im[k] = r * s + i * c;
  }
  if (dc) x->re[0] += dc[0], x->im[0] += dc[1];
  fft_swap_parts_f64(x);
  fft_run_lanes_f64(&p->passes, x);
  fft_swap_parts_f64(x);
}

static void fft_rader(const fft_prime *p, ax_vec_f64 *re, ax_vec_f64 *im, fft_lanes_f64 *x)
{
  const ax_vec_f64 first[2] = { re[0], im[0] };
  ax_vec_f64 sum[2] = { re[0], im[0] };
  for (int64_t k = 0; k < p->m; k++) {
    x->re[k] = re[p->from[k]], x->im[k] = im[p->from[k]];
    sum[0] += x->re[k], sum[1] += x->im[k];
  }
  fft_convolve(p, x, first);
  re[0] = sum[0], im[0] = sum[1];
  for (int64_t k = 0; k < p->m; k++) re[p->to[k]] = x->re[k], im[p->to[k]] = x->im[k];
}

/* to = from times the conjugate of the chirp */
static void fft_unchirp(const fft_prime *p, const ax_vec_f64 *re, const ax_vec_f64 *im, ax_vec_f64 *to_re,
                        ax_vec_f64 *to_im)
{
  for (int64_t k = 0; k < p->n; k++) {
    const double c = p->chirp[2 * k], s = p->chirp[2 * k + 1];
    const ax_vec_f64 r = re[k], i = im[k];
    to_re[k] = r * c + i * s;
    to_im[k] = i * c - r * s;
  }
}

static void fft_bluestein(const fft_prime *p, ax_vec_f64 *re, ax_vec_f64 *im, fft_lanes_f64 *x)
{
  fft_unchirp(p, re, im, x->re, x->im);
  memset(x->re + p->n, 0, sizeof *x->re * (size_t)(p->m - p->n));
  memset(x->im + p->n, 0, sizeof *x->im * (size_t)(p->m - p->n));
  fft_convolve(p, x, NULL);
  fft_unchirp(p, x->re, x->im, re, im);
}

/* Up to FFT_PRIME_LANES lines; from and to may be the same. */
static ax_status fft_prime_together(const fft_prime *p, int64_t count, const double *from, double *to,
                                    bool inverse, double scale)
{
  const int64_t step = fft_apart_f64(p->n);
  const size_t lines = sizeof(ax_vec_f64) * 2 * (size_t)step;
  const size_t bytes = lines + sizeof(ax_vec_f64) * 4 * (size_t)fft_apart_f64(p->m);
  ax_vec_f64 *re = fft_room(bytes), *im = re + step;
  if (!re) return fft_no_memory();
  fft_lanes_f64 x = fft_lanes_in_f64(re + 2 * step, p->m);
  fft_gather_f64(from, p->n, (int)count, (int)p->n, inverse ? im : re, inverse ? re : im, NULL);
  (p->from ? fft_rader : fft_bluestein)(p, re, im, &x);
  fft_scatter_f64(to, p->n, (int)count, (int)p->n, inverse ? im : re, inverse ? re : im, scale, NULL);
  fft_give(re, bytes);
  return AX_OK;
}

/* ---- one line, by all threads */

static ax_status fft_prime_line(const fft_prime *p, const double *from, double *to, bool inverse,
                                double scale)
{
  const int64_t n = p->n, m = p->m;
  const double *b = p->chirp, *f = p->filter;
  const int re = inverse, im = !inverse;
  const size_t bytes = sizeof(double) * 4 * (size_t)m;
  double *x = fft_room(bytes), *y = x + 2 * m;
  ax_status st;

  if (!x) return fft_no_memory();
  for (int64_t k = 0; k < n; k++) { /* times the conjugate of the chirp */
    const double r = from[2 * k + re], i = from[2 * k + im];
    x[2 * k] = r * b[2 * k] + i * b[2 * k + 1];
    x[2 * k + 1] = i * b[2 * k] - r * b[2 * k + 1];
  }
  memset(x + 2 * n, 0, sizeof *x * 2 * (size_t)(m - n));
  AX_TRY(fft_line_f64(p->line, x, y, false, 1, NULL));
  for (int64_t k = 0; k < m; k++) {
    const double r = y[2 * k], i = y[2 * k + 1];
    y[2 * k] = r * f[2 * k] - i * f[2 * k + 1];
    y[2 * k + 1] = r * f[2 * k + 1] + i * f[2 * k];
  }
  AX_TRY(fft_line_f64(p->line, y, x, true, 1, NULL));
  for (int64_t k = 0; k < n; k++) {
    const double r = x[2 * k], i = x[2 * k + 1];
    to[2 * k + re] = (r * b[2 * k] + i * b[2 * k + 1]) * scale;
    to[2 * k + im] = (i * b[2 * k] - r * b[2 * k + 1]) * scale;
  }
out:
  fft_give(x, bytes);
  return st;
}

static ax_status fft_prime_lines_f64(const fft_prime *p, int64_t count, const double *from, double *to,
                                     bool inverse, double scale)
{
  const int64_t most = p->together ? FFT_PRIME_LANES : 1;
  ax_status st = AX_OK;
  for (int64_t k = 0; st == AX_OK && k < count; k += most) {
    const double *x = from + 2 * k * p->n;
    double *y = to + 2 * k * p->n;
    st = p->together ? fft_prime_together(p, count - k < most ? count - k : most, x, y, inverse, scale)
                     : fft_prime_line(p, x, y, inverse, scale);
  }
  return st;
}

static ax_status fft_prime_lines_f32(const fft_prime *p, int64_t count, const float *from, float *to,
                                     bool inverse, float scale)
{
  const int64_t numbers = 2 * count * p->n;
  const size_t bytes = sizeof(double) * (size_t)numbers;
  double *x = fft_room(bytes);
  if (!x) return fft_no_memory();
  for (int64_t k = 0; k < numbers; k++) x[k] = from[k];
  const ax_status st = fft_prime_lines_f64(p, count, x, x, inverse, scale);
  for (int64_t k = 0; k < numbers; k++) to[k] = (float)x[k];
  fft_give(x, bytes);
  return st;
}
