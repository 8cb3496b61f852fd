/* Fourier transforms of lines, for one element type, on the lanes of fft_lanes.h.
 *
 * A plan is one of three.  LANES: as many lines as there are lanes go through the passes together.
 * SPLIT: one line fills the lanes by itself (fft_split.h).  PRIME: n has a large prime factor; a
 * convolution of a length that has none (fft_primes.h). */

typedef struct FN(prime) FN(prime);
static void FN(prime_free)(FN(prime) * p);
static ax_status FN(prime_make)(int64_t n, bool together, FN(prime) * *out);
static size_t FN(prime_bytes)(const FN(prime) * p);

typedef struct FN(plan) {
  int64_t n;
  fft_use use;
  fft_kind kind;
  int refs; /* under the lock */
  uint64_t used;
  FN(passes) first, second; /* LANES: first; SPLIT: the columns' and the rows' */
  T *twiddle;               /* SPLIT: as split_columns reads them */
  T *half;                  /* FFT_HALF..: exp(-2 pi i k / 2n), k < n */
  T *forth, *back;          /* FFT_HALF, SPLIT: the same as real_rows and real_load read it, or NULL */
  FN(prime) * prime;        /* PRIME */
} FN(plan);

static void FN(passes_free)(FN(passes) * p)
{
  for (int k = 0; k < p->count; k++) free(p->twiddle[k]);
  free(p->roots);
  memset(p, 0, sizeof *p);
}

static bool FN(passes_make)(FN(passes) * p, int n)
{
  int l1 = 1, odd = 0;
  *p = (FN(passes)){ .n = n };
  for (int left = n, f; left > 1; left /= f) {
    f = fft_factor(left);
    if (fft_has_roots(f)) odd += f;
    p->factor[p->count++] = f;
  }
  if (odd && !(p->roots = malloc(sizeof(T) * 2 * (size_t)odd))) return false;
  T *roots = p->roots;
  for (int k = 0; k < p->count; k++) {
    const int f = p->factor[k], ido = n / (l1 * f);
    double root[2];
    if (!(p->twiddle[k] = malloc(sizeof(T) * 2 * (size_t)ido * (size_t)(f - 1)))) return false;
    for (int i = 0; i < ido; i++)
      for (int j = 1; j < f; j++) {
        T *w = p->twiddle[k] + 2 * (i * (f - 1) + j - 1);
        unit_root((int64_t)i * j * l1, n, root);
        w[0] = (T)root[0], w[1] = (T)-root[1];
      }
    for (int j = 0; fft_has_roots(f) && j < f; j++) {
      unit_root(j, f, root);
      *roots++ = (T)root[0], *roots++ = (T)root[1];
    }
    l1 *= f;
  }
  return true;
}

static void FN(plan_free)(FN(plan) * p)
{
  if (!p) return;
  FN(passes_free)(&p->first);
  FN(passes_free)(&p->second);
  free(p->twiddle);
  free(p->half);
  free(p->forth);
  free(p->back);
  FN(prime_free)(p->prime);
  free(p);
}

static int64_t FN(rounded)(int64_t n) { return (n + FN(LANES) - 1) / FN(LANES) * FN(LANES); }

/* From the lanes' real parts to their imaginary ones, in vectors: more than n, since blocks of
 * LANES are read, and no multiple of the page, for which stores and loads would wait. */
static int64_t FN(apart)(int64_t n) { return n + FN(LANES) + 4; }

/* Bytes of memory that one thread needs for a plan's lanes, and for a whole line. */
static size_t FN(lane_bytes)(const FN(plan) * p)
{
  const int64_t n = p->kind == FFT_LANES ? p->n : p->first.n > p->second.n ? p->first.n : p->second.n;
  return sizeof(V) * 4 * (size_t)FN(apart)(n);
}
static size_t FN(middle_bytes)(const FN(plan) * p)
{
  return sizeof(T) * 2 * (size_t)(FN(rounded)(p->first.n) * FN(apart)(p->second.n));
}
static size_t FN(line_bytes)(const FN(plan) * p)
{
  if (p->kind == FFT_PRIME) return FN(prime_bytes)(p->prime);
  return FN(lane_bytes)(p) + (p->kind == FFT_SPLIT ? FN(middle_bytes)(p) : 0);
}

/* ---- LANES */

/* Four arrays of lanes: two that a transform reads, two that it may write. */
typedef struct FN(lanes) {
  V *re, *im, *re_other, *im_other;
} FN(lanes);

static FN(lanes) FN(lanes_in)(void *room, int64_t n)
{
  V *v = room;
  const int64_t step = FN(apart)(n);
  return (FN(lanes)){ v, v + step, v + 2 * step, v + 3 * step };
}

/* The result is in re and im again. */
static void FN(run_lanes)(const FN(passes) * p, FN(lanes) * x)
{
  V *re = x->re, *r, *i;
  FN(run_passes)(p, re, x->im, x->re_other, x->im_other, &r, &i);
  if (r != re) *x = (FN(lanes)){ r, i, re, x->im };
}

static void FN(swap_parts)(FN(lanes) * x) { *x = (FN(lanes)){ x->im, x->re, x->im_other, x->re_other }; }

static void FN(lines_in_lanes)(const FN(plan) * p, int count, const T *from, int64_t from_step, T *to,
                               int64_t to_step, bool inverse, T scale, V *room)
{
  FN(lanes) x = FN(lanes_in)(room, p->n);
  FN(gather)(from, from_step, count, (int)p->n, inverse ? x.im : x.re, inverse ? x.re : x.im, to);
  FN(run_lanes)(&p->first, &x);
  FN(scatter)
  (to, to_step, count, (int)p->n, inverse ? x.im : x.re, inverse ? x.re : x.im, scale,
   from + 2 * count * from_step);
}

/* The passes after the first one, which transform each of its outputs on their own. */
static const FN(passes) * FN(after_first)(const FN(passes) * p, FN(passes) * rest)
{
  rest->n = p->n / p->factor[0];
  rest->count = p->count - 1;
  for (int k = 0; k < rest->count; k++)
    rest->factor[k] = p->factor[k + 1], rest->twiddle[k] = p->twiddle[k + 1];
  rest->roots = p->roots + (fft_has_roots(p->factor[0]) ? 2 * p->factor[0] : 0);
  return rest;
}

/* Positions at, at + step, .. of `count` lines that stand side by side, into lanes. */
static inline __attribute__((always_inline)) void FN(load_columns)(const T *from, int64_t step, int64_t n,
                                                                   int64_t count, V *re, V *im)
{
  for (int64_t j = 0; j < n && count >= FN(LANES); j++) FN(part)(from + j * step, re + j, im + j);
  for (int64_t j = 0; j < n && count < FN(LANES); j++) FN(part_some)(from + j * step, count, re + j, im + j);
}

/* Lines that stand side by side: position j of all of them at from + 2 j step.  The first pass
 * reads them, a few of its inputs at a time, so that all lanes are written once and read once;
 * the others transform n / factor lanes at a time in the first-level cache.  The places of the
 * next results are fetched meanwhile, unless their steps put all into the same few sets of the
 * caches. */
static void FN(columns_in_lanes)(const FN(plan) * p, int64_t count, const T *from, T *to, int64_t step,
                                 bool inverse, T scale, V *room)
{
  enum { L = FN(LANES), AT_ONCE = 8 };
  const bool full = count >= L, fetch = full && step * (int64_t)sizeof(T) % 4096 != 0;
  const bool splits = p->first.count > 1 && 4 * p->n * (int64_t)sizeof(V) > FFT_LANES_KEPT;
  FN(passes) after;
  const FN(passes) *const rest = splits ? FN(after_first)(&p->first, &after) : &p->first;
  const int n = (int)p->n, m = rest->n, f = n / m;
  const FN(lanes) x = FN(lanes_in)(room, n);
  V *const from_re = inverse ? x.im_other : x.re_other, *const from_im = inverse ? x.re_other : x.im_other;

  if (!splits) FN(load_columns)(from, 2 * step, n, count, inverse ? x.im : x.re, inverse ? x.re : x.im);
  for (int i = 0; splits && i < m; i += AT_ONCE) {
    const int some = m - i < AT_ONCE ? m - i : AT_ONCE;
    for (int j = 0; j < f; j++) FN(load_columns)
    (from + 2 * (i + (int64_t)j * m) * step, 2 * step, some, count, from_re + j * some, from_im + j * some);
    FN(pass)
    (f, p->first.roots, some, 1, m, x.re_other, x.im_other, x.re + i, x.im + i,
     p->first.twiddle[0] + 2 * i * (f - 1));
  }
  for (int k = 0; k < f; k++) {
    V *r, *i;
    FN(run_passes)(rest, x.re + k * m, x.im + k * m, x.re_other, x.im_other, &r, &i);
    const V *const re = inverse ? i : r, *const im = inverse ? r : i;
    T *at = to + 2 * k * step;
    for (int q = 0; full && q < m; q++, at += 2 * f * step) {
      if (fetch) fft_fetch_narrow(at + 2 * L), fft_fetch_narrow(at + 3 * L);
      FN(pair)(at, re[q] * scale, im[q] * scale);
    }
    for (int q = 0; !full && q < m; q++, at += 2 * f * step)
      FN(pair_some)(at, count, re[q] * scale, im[q] * scale);
  }
}

/* A real transform's positions 0 .. m of its halves z, in place; see to_half. */
static void FN(lanes_to_half)(const FN(plan) * p, FN(lanes) * z, T scale, T weight)
{
  const int64_t m = p->n;
  const T half = scale * weight / 2;
  V *re = z->re, *im = z->im;
  const V r = re[0], i = im[0], none = { 0 };
  re[0] = (r + i) * scale, re[m] = (r - i) * scale;
  im[0] = im[m] = none;
  for (int64_t k = 1; k <= m - k; k++) {
    const T c = p->half[2 * k] * half, s = p->half[2 * k + 1] * half;
    const V ar = re[k], ai = im[k], br = re[m - k], bi = im[m - k];
    const V er = (ar + br) * half, ei = (ai - bi) * half, dr = ar - br, di = ai + bi;
    const V u = di * c + dr * s, v = di * s - dr * c;
    re[k] = er + u, im[k] = v + ei;
    re[m - k] = er - u, im[m - k] = v - ei;
  }
}

/* The way back; see from_half. */
static void FN(lanes_from_half)(const FN(plan) * p, FN(lanes) * z, T weight)
{
  const int64_t m = p->n;
  const T half = weight / 2;
  V *re = z->re, *im = z->im;
  const V first = re[0], last = re[m];
  re[0] = first + last, im[0] = first - last;
  for (int64_t k = 1; k <= m - k; k++) {
    const T c = p->half[2 * k] * half, s = p->half[2 * k + 1] * half;
    const V ar = re[k], ai = im[k], br = re[m - k], bi = im[m - k];
    const V er = (ar + br) * half, ei = (ai - bi) * half, dr = ar - br, di = ai + bi;
    const V u = dr * s - di * c, v = dr * c + di * s;
    re[k] = er + u, im[k] = v + ei;
    re[m - k] = er - u, im[m - k] = v - ei;
  }
}

/* Real lines of 2 n numbers to n + 1 complex ones, and back. */
static void FN(real_lines_in_lanes)(const FN(plan) * p, int count, const T *from, T *to, T scale, T weight,
                                    V *room)
{
  FN(lanes) x = FN(lanes_in)(room, p->n);
  FN(gather)(from, p->n, count, (int)p->n, x.re, x.im, to);
  FN(run_lanes)(&p->first, &x);
  FN(lanes_to_half)(p, &x, scale, weight);
  FN(scatter)(to, p->n + 1, count, (int)p->n + 1, x.re, x.im, 1, from + 2 * count * p->n);
}
static void FN(lines_to_real_in_lanes)(const FN(plan) * p, int count, const T *from, T *to, T scale, T weight,
                                       V *room)
{
  FN(lanes) x = FN(lanes_in)(room, p->n);
  FN(gather)(from, p->n + 1, count, (int)p->n + 1, x.re, x.im, to);
  FN(lanes_from_half)(p, &x, weight);
  FN(swap_parts)(&x);
  FN(run_lanes)(&p->first, &x);
  FN(scatter)(to, p->n, count, (int)p->n, x.im, x.re, scale, from + 2 * count * (p->n + 1));
}
