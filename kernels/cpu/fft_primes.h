/* Fourier transforms of lengths with a large prime factor, for one element type, as circular
 * convolutions of a length without one.
 *
 * Rader's method: the powers of a generator put the positions 1 .. n - 1 of a prime n in an order
 * in which the transform is a convolution of n - 1 numbers.  Bluestein's method: j k is
 * (j^2 + k^2 - (j - k)^2) / 2, which makes the transform of any n a convolution of 2 n - 1 numbers
 * or more.  Several short lines go through the convolution side by side, as lanes; a long one has
 * a plan of its own. */

struct FN(prime) {
  int64_t n, m; /* m: the length of the convolution */
  bool together;
  int32_t *from, *to; /* RADER: the powers of the generator and of its inverse, modulo n */
  T *chirp;           /* else: exp(i pi k^2 / n) */
  T *filter;          /* the other side of the convolution, transformed, over m */
  FN(passes) passes;
  FN(plan) * line; /* not together: of single lines of m */
};

static void FN(prime_free)(FN(prime) * p)
{
  if (!p) return;
  free(p->from);
  free(p->to);
  free(p->chirp);
  free(p->filter);
  FN(passes_free)(&p->passes);
  if (p->line) FN(drop)(p->line);
  free(p);
}

/* Whether many lines of n are faster side by side: as long as their lanes stay in the second-level
 * cache. */
static bool FN(prime_side_by_side)(int64_t n) { return fft_convolution(n, true) <= FFT_PRIME_MOST; }

/* The length of Rader's convolution if it is the better one; else 0. */
static int64_t FN(rader_length)(int64_t n, bool together, int64_t other)
{
  const int64_t m = n - 1;
  if (largest_prime(n) != n || largest_prime(m) > LARGEST) return 0;
  if (together) return m * fft_cost(m) <= other * fft_cost(other) ? m : 0;
  return n <= FFT_RADER_MOST && m >= 4 * FN(LANES) && FN(rows_of)(m) ? m : 0;
}

static bool FN(make_rader)(FN(prime) * p, double *filter)
{
  const int64_t n = p->n, g = generator_of(n), back = power_modulo(g, n - 2, n);
  p->from = malloc(sizeof *p->from * (size_t)p->m);
  p->to = malloc(sizeof *p->to * (size_t)p->m);
  if (!p->from || !p->to) return false;
  for (int64_t k = 0, a = 1, b = 1; k < p->m; k++, a = a * g % n, b = b * back % n) {
    double root[2];
    p->from[k] = (int32_t)a, p->to[k] = (int32_t)b;
    unit_root(b, n, root);
    filter[2 * k] = root[0], filter[2 * k + 1] = -root[1];
  }
  return true;
}

static bool FN(make_chirp)(FN(prime) * p, double *filter)
{
  if (!(p->chirp = fft_table(sizeof(T) * 2 * (size_t)p->n))) return false;
  memset(filter, 0, sizeof(double) * 2 * (size_t)p->m);
  for (int64_t k = 0, square = 0; k < p->n; k++) { /* k^2 modulo 2 n */
    double root[2];
    unit_root(square, 2 * p->n, root);
    square = (square + 2 * k + 1) % (2 * p->n);
    p->chirp[2 * k] = (T)root[0], p->chirp[2 * k + 1] = (T)root[1];
    memcpy(filter + 2 * k, root, sizeof root);
    if (k) memcpy(filter + 2 * (p->m - k), root, sizeof root);
  }
  return true;
}

/* The filter's transform, divided by m: in double also for floats. */
static ax_status FN(make_filter)(FN(prime) * p, double *filter)
{
  fft_plan_f64 *plan;
  ax_status st = fft_plan_for_f64(p->m, FFT_LINES, &plan);
  const size_t bytes = sizeof(double) * 2 * (size_t)p->m;
  double *to = st == AX_OK ? fft_room(bytes) : NULL;

  if (st != AX_OK) return st;
  st = to ? fft_line_f64(plan, filter, to, false, 1.0 / (double)p->m, NULL) : fft_no_memory();
  for (int64_t k = 0; st == AX_OK && k < 2 * p->m; k++) p->filter[k] = (T)to[k];
  fft_give(to, bytes);
  fft_drop_f64(plan);
  return st;
}

static ax_status FN(prime_make)(int64_t n, bool together, FN(prime) * *out)
{
  FN(prime) *p = calloc(1, sizeof *p);
  double *filter = NULL;
  ax_status st = AX_OK;

  *out = p; /* the plan frees it */
  if (!p) return fft_no_memory();
  p->n = n;
  p->together = together;
  p->m = fft_convolution(n, together);
  const int64_t rader = FN(rader_length)(n, together, p->m);
  if (rader) p->m = rader;
  p->filter = fft_table(sizeof(T) * 2 * (size_t)p->m);
  filter = malloc(sizeof *filter * 2 * (size_t)p->m);
  if (!p->filter || !filter || !(rader ? FN(make_rader) : FN(make_chirp))(p, filter)) {
    st = fft_no_memory();
    goto out;
  }
  if (!together) AX_TRY(FN(plan_for)(p->m, FFT_LINES, &p->line));
  else if (!FN(passes_make)(&p->passes, (int)p->m)) st = fft_no_memory();
  if (st == AX_OK) st = FN(make_filter)(p, filter);
out:
  free(filter);
  return st;
}

/* ---- several lines, as lanes */

/* The convolution of x, in place of it: the inverse transform is the forward one of swapped parts.
 * dc: added to all results, and x's sum to it, or NULL. */
static void FN(convolve)(const FN(prime) * p, FN(lanes) * x, V *dc)
{
  FN(run_lanes)(&p->passes, x);
  const V sum[2] = { x->re[0], x->im[0] };
  for (int64_t k = 0; k < p->m; k++) {
    const T c = p->filter[2 * k], s = p->filter[2 * k + 1];
    const V r = x->re[k], i = x->im[k];
    x->re[k] = r * c - i * s;
    x->im[k] = r * s + i * c;
  }
  if (dc) {
    x->re[0] += dc[0], x->im[0] += dc[1];
    dc[0] += sum[0], dc[1] += sum[1];
  }
  FN(swap_parts)(x);
  FN(run_lanes)(&p->passes, x);
  FN(swap_parts)(x);
}

static void FN(rader)(const FN(prime) * p, V *re, V *im, FN(lanes) * x)
{
  V first[2] = { re[0], im[0] };
  for (int64_t k = 0; k < p->m; k++) x->re[k] = re[p->from[k]], x->im[k] = im[p->from[k]];
  FN(convolve)(p, x, first);
  re[0] = first[0], im[0] = first[1];
  for (int64_t k = 0; k < p->m; k++) re[p->to[k]] = x->re[k], im[p->to[k]] = x->im[k];
}

/* to = from times the conjugate of the chirp */
static void FN(unchirp)(const FN(prime) * p, const V *re, const V *im, V *to_re, V *to_im)
{
  for (int64_t k = 0; k < p->n; k++) {
    const T c = p->chirp[2 * k], s = p->chirp[2 * k + 1];
    const V r = re[k], i = im[k];
    to_re[k] = r * c + i * s;
    to_im[k] = i * c - r * s;
  }
}

static void FN(bluestein)(const FN(prime) * p, V *re, V *im, FN(lanes) * x)
{
  FN(unchirp)(p, re, im, x->re, x->im);
  memset(x->re + p->n, 0, sizeof *x->re * (size_t)(p->m - p->n));
  memset(x->im + p->n, 0, sizeof *x->im * (size_t)(p->m - p->n));
  FN(convolve)(p, x, NULL);
  FN(unchirp)(p, x->re, x->im, re, im);
}

/* Up to LANES lines; from and to may be the same. */
static void FN(prime_together)(const FN(prime) * p, int64_t count, const T *from, T *to, bool inverse,
                               T scale, V *room)
{
  const int64_t step = FN(apart)(p->n);
  V *re = room, *im = re + step;
  FN(lanes) x = FN(lanes_in)(re + 2 * step, p->m);
  FN(gather)(from, p->n, (int)count, (int)p->n, inverse ? im : re, inverse ? re : im, NULL);
  (p->from ? FN(rader) : FN(bluestein))(p, re, im, &x);
  FN(scatter)(to, p->n, (int)count, (int)p->n, inverse ? im : re, inverse ? re : im, scale, NULL);
}

/* ---- one line */

/* x times the factors f, or where back is set, times their conjugates; x = to is fine. */
static void FN(times)(int64_t n, const T *x, const T *f, bool back, T *to)
{
  const V sign = FN(signs)(back ? 1 : -1, back ? -1 : 1);
  int64_t k = 0;
  for (; k + FN(P) <= n; k += FN(P)) {
    const V a = *(const V *)(x + 2 * k), b = *(const V *)(f + 2 * k);
    *(V *)(to + 2 * k) = FMA(a, FN(reals)(b), FN(swapped)(a) * (FN(imaginaries)(b) * sign));
  }
  for (; k < n; k++) {
    const T r = x[2 * k], i = x[2 * k + 1], c = f[2 * k], s = back ? -f[2 * k + 1] : f[2 * k + 1];
    to[2 * k] = r * c - i * s;
    to[2 * k + 1] = r * s + i * c;
  }
}

/* The bytes that one thread needs for lines. */
static size_t FN(prime_bytes)(const FN(prime) * p)
{
  if (p->together) return sizeof(V) * (2 * (size_t)FN(apart)(p->n) + 4 * (size_t)FN(apart)(p->m));
  return sizeof(T) * 4 * (size_t)FN(rounded)(p->m) + FN(line_bytes)(p->line);
}

/* Both transforms of a convolution of m numbers x, which come back in it; y: room for as many.
 * dc: as
 * convolve has it.  room: for the line's plan, or NULL: all threads share the line. */
static ax_status FN(convolve_line)(const FN(prime) * p, T *x, T *y, T *dc, T scale, void *room)
{
  const ax_status st = FN(line)(p->line, x, y, false, 1, room);
  if (st != AX_OK) return st;
  const T sum[2] = { y[0], y[1] };
  FN(times)(p->m, y, p->filter, false, y);
  if (dc) {
    y[0] += dc[0], y[1] += dc[1];
    dc[0] += sum[0], dc[1] += sum[1];
  }
  return FN(line)(p->line, y, x, true, scale, room);
}

static ax_status FN(prime_line)(const FN(prime) * p, const T *from, T *to, bool inverse, T scale, T *x,
                                void *room)
{
  const int64_t n = p->n, m = p->m;
  const int re = inverse, im = !inverse;
  T *y = x + 2 * FN(rounded)(m);
  ax_status st;

  if (p->from) {
    T first[2] = { from[re], from[im] };
    for (int64_t k = 0; k < m; k++)
      x[2 * k] = from[2 * p->from[k] + re], x[2 * k + 1] = from[2 * p->from[k] + im];
    if ((st = FN(convolve_line)(p, x, y, first, scale, room)) != AX_OK) return st;
    to[re] = first[0] * scale, to[im] = first[1] * scale;
    for (int64_t k = 0; k < m; k++) to[2 * p->to[k] + re] = x[2 * k], to[2 * p->to[k] + im] = x[2 * k + 1];
    return AX_OK;
  }
  if (inverse) /* the conjugate of the transform of the conjugate */
    for (int64_t k = 0; k < n; k++) y[2 * k] = from[2 * k], y[2 * k + 1] = -from[2 * k + 1];
  FN(times)(n, inverse ? y : from, p->chirp, true, x);
  memset(x + 2 * n, 0, sizeof *x * 2 * (size_t)(m - n));
  if ((st = FN(convolve_line)(p, x, y, NULL, scale, room)) != AX_OK) return st;
  FN(times)(n, x, p->chirp, true, to);
  for (int64_t k = 0; inverse && k < n; k++) to[2 * k + 1] = -to[2 * k + 1];
  return AX_OK;
}

/* room: prime_bytes, or NULL: all threads share the one line that there is. */
static ax_status FN(prime_lines)(const FN(prime) * p, int64_t count, const T *from, T *to, bool inverse,
                                 T scale, void *room)
{
  const int64_t most = p->together ? FN(LANES) : 1;
  const size_t own = sizeof(T) * 4 * (size_t)FN(rounded)(p->m);
  T *x = room ? room : fft_room(own);
  ax_status st = x ? AX_OK : fft_no_memory();
  for (int64_t k = 0; st == AX_OK && k < count; k += most) {
    const T *in = from + 2 * k * p->n;
    T *out = to + 2 * k * p->n;
    if (p->together)
      FN(prime_together)(p, count - k < most ? count - k : most, in, out, inverse, scale, room);
    else st = FN(prime_line)(p, in, out, inverse, scale, x, room ? (char *)room + own : NULL);
  }
  if (!room) fft_give(x, own);
  return st;
}
