/* A line that fills the lanes by itself, for one element type.
 *
 * A line of n = n1 n2 is a matrix of n1 rows: its columns are transformed, as lanes, multiplied by
 * twiddles, turned, and transformed once more, so that one line keeps all lanes busy, reads and
 * writes memory in order, and can be shared among threads.  A real line is transformed as n complex
 * numbers, while the columns are read or the rows are written with what parts it into halves. */

/* The number of rows with which a line fills its lanes best; 0: none fills half of them. */
static int64_t FN(rows_of)(int64_t n)
{
  int64_t best = 0, least = INT64_MAX;
  for (int64_t a = 2; a <= n / a; a++) {
    if (n % a) continue;
    const int64_t b = n / a, cost = a * FN(rounded)(b) + b * FN(rounded)(a);
    if (cost <= least) least = cost, best = a;
  }
  return least <= 4 * n ? best : 0;
}

/* Twiddles for squares of LANES columns and LANES rows, in the order of lanes (lane_of): real parts
 * of a square, then its imaginary ones. */
static ax_status FN(make_split)(FN(plan) * p, int64_t rows)
{
  enum { L = FN(LANES) };
  const int64_t columns = p->n / rows, high = FN(rounded)(rows), wide = FN(rounded)(columns);
  double root[2];
  T *w;
  if (!FN(passes_make)(&p->first, (int)rows) || !FN(passes_make)(&p->second, (int)columns) ||
      !(w = p->twiddle = fft_table(sizeof(T) * 2 * (size_t)(high * wide))))
    return fft_no_memory();
  for (int64_t c = 0; c < wide; c += L)
    for (int64_t k = 0; k < high; k += L, w += 2 * L * L)
      for (int t = 0; t < L * L; t++) {
        unit_root((k + FN(lane_of)(t / L)) * (c + FN(lane_of)(t % L)) % p->n, p->n, root);
        w[t] = (T)root[0], w[L * L + t] = (T)-root[1];
      }
  return AX_OK;
}

/* What real_rows and real_load multiply by, where squares of lanes are whole: vectors of cosines
 * and of sines, from `half`. */
static ax_status FN(make_real)(FN(plan) * p)
{
  enum { L = FN(LANES) };
  const int64_t n1 = p->first.n, n2 = p->second.n;
  if (p->n > FFT_MOST_FETCHED || n1 % L || n2 % L) return AX_OK;
  p->forth = fft_table(sizeof(T) * 2 * (size_t)p->n);
  p->back = fft_table(sizeof(T) * 2 * (size_t)p->n);
  if (!p->forth || !p->back) return fft_no_memory();
  for (int64_t t = 0; t < p->n; t++) {
    const int64_t lane = FN(lane_of)((int)(t % L));
    const int64_t forth = lane + t / L / n2 * L + n1 * (t / L % n2),
                  back = lane + t / L / n1 * L + n2 * (t / L % n1);
    for (int part = 0; part < 2; part++) {
      p->forth[t / L * 2 * L + part * L + t % L] = p->half[2 * forth + part];
      p->back[t / L * 2 * L + part * L + t % L] = p->half[2 * back + part];
    }
  }
  return AX_OK;
}

typedef struct FN(split) {
  const FN(plan) * p;
  const T *from;
  T *to;
  V *middle; /* for each group of LANES rows: n2 real parts, apart(n2) vectors on n2 imaginary ones */
  bool inverse;
  T scale;
  fft_what what; /* FFT_C2R: of the halves that real_load reads; FFT_R2C: to those that real_rows writes */
  T weight;
  bool failed;
} FN(split);

/* LANES columns from c on, transformed, while what comes next is fetched: the places of the
 * results, or for long lines the next columns, which are far apart. */
static inline __attribute__((always_inline)) void FN(split_first)(const FN(split) * s, int64_t c, bool fetch,
                                                                  FN(lanes) * x)
{
  enum { L = FN(LANES) };
  const FN(passes) *const p = &s->p->first;
  const int64_t n2 = s->p->second.n;
  const T *from = s->from + 2 * c;
  const FN(numbers) columns = { from, fetch ? s->to + 2 * c : from + 2 * L, 2 * n2, s->inverse };
  const bool whole = n2 - c >= L;
  if (whole && FN(is_fixed)(p)) {
    if ((s->inverse ? FN(run_inverse) : FN(run_forward))(columns, p, x->re, x->im, x->re_other, x->im_other))
      *x = (FN(lanes)){ x->re_other, x->im_other, x->re, x->im };
    return;
  }
  V *const re = s->inverse ? x->im : x->re, *const im = s->inverse ? x->re : x->im;
  for (int j = 0; j < p->n; j++)
    if (whole) FN(read)(columns, NULL, NULL, j, x->re + j, x->im + j);
    else FN(part_some)(from + 2 * j * n2, n2 - c, re + j, im + j);
  FN(run_lanes)(p, x);
}

/* LANES columns of what a real transform's halves h are put together to, as in from_half: numbers
 * 2 z = e + i conj(w) d with e = h[k] + conj(h[m - k]), d = h[k] - conj(h[m - k]). */
static inline __attribute__((always_inline)) void FN(real_load)(const FN(split) * s, int64_t c, bool fetch,
                                                                V *re, V *im)
{
  enum { L = FN(LANES) };
  const int64_t n1 = s->p->first.n, n2 = s->p->second.n, m = s->p->n;
  const T *w = s->p->back + c * n1 * 2, half = s->weight / 2;
  for (int64_t j = 0; j < n1; j++, w += 2 * L) {
    const int64_t k = c + j * n2;
    const V wr = *(const V *)w, wi = *(const V *)(w + L);
    V ar, ai, br, bi;
    if (fetch) fft_fetch_narrow(s->to + 2 * k), fft_fetch_narrow(s->to + 2 * k + L);
    FN(part)(s->from + 2 * k, &ar, &ai);
    FN(part_reversed)(s->from + 2 * (m - k - L + 1), &br, &bi);
    const V dr = ar - br, di = ai + bi;
    re[j] = FMA(dr, wi, FMA(-di, wr, ar + br)) * half;
    im[j] = FMA(dr, wr, FMA(di, wi, ai - bi)) * half;
  }
  if (c == 0) re[0][0] = s->from[0] + s->from[2 * m], im[0][0] = s->from[0] - s->from[2 * m];
}

/* LANES results of LANES columns times their twiddles, turned: vectors of rows.  Only `rows`
 * results and `columns` columns exist. */
static inline __attribute__((always_inline)) void FN(split_square)(const V *r, const V *i, int64_t rows,
                                                                   const T *w, V *to, int64_t columns,
                                                                   int64_t step)
{
  enum { L = FN(LANES) };
  FFT_UNROLL
  for (int part = 0; part < 2; part++, to += step) {
    V a[L];
    FFT_UNROLL
    for (int t = 0; t < L; t++) {
      const int at = FN(lane_of)(t), k = at < rows ? at : 0; /* lanes beyond the last row are never read */
      const T *wr = w + t * L, *wi = w + L * L + t * L;
      a[t] = part ? FN(times_im)(r[k], i[k], wr, wi) : FN(times_re)(r[k], i[k], wr, wi);
    }
    FN(turn)(a);
    FFT_UNROLL
    for (int t = 0; t < L; t++)
      if (FN(lane_of)(t) < columns) to[FN(lane_of)(t)] = a[t];
  }
}

/* Groups lo .. hi - 1 of LANES columns; fetch: short lines follow each other. */
static void FN(split_columns)(const FN(split) * s, int64_t lo, int64_t hi, bool fetch, V *room)
{
  enum { L = FN(LANES) };
  const FN(plan) *p = s->p;
  const int64_t n1 = p->first.n, n2 = p->second.n, step = FN(apart)(n2);
  const T *w = p->twiddle + lo * 2 * L * FN(rounded)(n1);

  for (int64_t c = lo * L; c < hi * L && c < n2; c += L) {
    FN(lanes) x = FN(lanes_in)(room, n1);
    if (s->what == FFT_C2R) {
      FN(real_load)(s, c, fetch, x.im, x.re);
      FN(run_lanes)(&p->first, &x);
    } else FN(split_first)(s, c, fetch, &x);
    for (int64_t k = 0; k < n1; k += L, w += 2 * L * L) {
      const V *r = x.re + k, *i = x.im + k;
      V *to = s->middle + k / L * 2 * step + c;
      if (n1 - k >= L && n2 - c >= L) FN(split_square)(r, i, L, w, to, L, step);
      else FN(split_square)(r, i, n1 - k, w, to, n2 - c, step);
    }
  }
}

/* Groups lo .. hi - 1 of LANES rows. */
static void FN(split_rows)(const FN(split) * s, int64_t lo, int64_t hi, bool fetch, V *room)
{
  enum { L = FN(LANES) };
  const FN(plan) *p = s->p;
  const int64_t n1 = p->first.n, n2 = p->second.n, step = FN(apart)(n2);
  const V scale = s->scale - (V){ 0 };

  for (int64_t k = lo * L; k < hi * L && k < n1; k += L) {
    V *middle = s->middle + k / L * 2 * step;
    FN(lanes) x = { middle, middle + step, room, room + step };
    FN(run_lanes)(&p->second, &x);
    const V *re = s->inverse ? x.im : x.re, *im = s->inverse ? x.re : x.im;
    T *to = s->to + 2 * k;
    const T *next = fetch ? s->from + 2 * (p->n + k) : to + 2 * L;
    if (n1 - k < L) {
      for (int64_t j = 0; j < n2; j++) FN(pair_some)(to + 2 * j * n1, n1 - k, re[j] * scale, im[j] * scale);
      continue;
    }
    for (int64_t j = 0; j < n2; j++) {
      fft_fetch_narrow(next + 2 * j * n1);
      fft_fetch_narrow(next + 2 * j * n1 + L);
      FN(pair)(to + 2 * j * n1, re[j] * scale, im[j] * scale);
    }
  }
}

/* A vector of a real transform's halves: numbers 2 h = e - i w d with e = z[k] + conj(z[m - k]),
 * d = z[k] - conj(z[m - k]).  r, i: z[k]; other, first: what z[m - k] is taken from. */
static inline __attribute__((always_inline)) void FN(real_put)(const V *r, const V *other, const V *first,
                                                               int64_t step, MASK opposite, const T *w,
                                                               V half, T *to)
{
  const V br = __builtin_shuffle(other[0], first[0], opposite);
  const V bi = __builtin_shuffle(other[step], first[step], opposite);
  const V wr = *(const V *)w, wi = *(const V *)(w + FN(LANES)), dr = r[0] - br, di = r[step] + bi;
  FN(pair)
  (to, FMA(di, wr, FMA(dr, wi, r[0] + br)) * half, FMA(di, wi, FMA(-dr, wr, r[step] - bi)) * half);
}

/* All rows, parted into a real transform's halves as in to_half.  k is row + n1 j, and m - k is in
 * row n1 - row: lanes in reverse of the group of rows opposite, but for the first lane. */
static void FN(real_rows)(const FN(split) * s, V *room)
{
  enum { L = FN(LANES) };
  const FN(plan) *p = s->p;
  const int64_t n1 = p->first.n, n2 = p->second.n, m = p->n, step = FN(apart)(n2), groups = n1 / L;
  const V half = s->scale * s->weight / 2 - (V){ 0 };
  const T *w = p->forth;
  T *const to = s->to;
  MASK opposite;

  for (int64_t g = 0; g < groups; g++) {
    V *const re = s->middle + g * 2 * step, *const im = re + step;
    FN(lanes) x = { re, im, room, room + step };
    FN(run_lanes)(&p->second, &x);
    if (x.re == re) continue;
    memcpy(re, x.re, sizeof(V) * (size_t)n2);
    memcpy(im, x.im, sizeof(V) * (size_t)n2);
  }
  FFT_UNROLL
  for (int l = 0; l < L; l++) opposite[l] = l ? FN(lane_with)(L - FN(lane_of)(l)) : L;
  for (int64_t g = 0; g < groups; g++) {
    const V *re = s->middle + g * 2 * step, *const others = s->middle + (groups - 1 - g) * 2 * step;
    /* re + n2: of no one; the vector that has its first lane is written once more below */
    const V *other = others + n2 - 1, *first = g ? other + 2 * step : re + n2;
    const T *next = s->from + 2 * (m + g * L);
    T *at = to + 2 * g * L;
    for (int64_t j = 0; j < n2; j++, re++, other--, first--, w += 2 * L, at += 2 * n1, next += 2 * n1) {
      fft_fetch_far(next), fft_fetch_far(next + L);
      FN(real_put)(re, other, first, step, opposite, w, half, at);
    }
  }
  const T r = s->middle[0][0], i = s->middle[step][0];
  to[0] = (r + i) * s->scale, to[1] = 0;
  to[2 * m] = (r - i) * s->scale, to[2 * m + 1] = 0;
}

static void FN(split_columns_range)(int64_t lo, int64_t hi, void *ud)
{
  FN(split) *s = ud;
  const size_t bytes = FN(lane_bytes)(s->p);
  V *room = fft_room(bytes);
  if (room) FN(split_columns)(s, lo, hi, false, room);
  else s->failed = true;
  fft_give(room, bytes);
}
static void FN(split_rows_range)(int64_t lo, int64_t hi, void *ud)
{
  FN(split) *s = ud;
  const size_t bytes = FN(lane_bytes)(s->p);
  V *room = fft_room(bytes);
  if (room) FN(split_rows)(s, lo, hi, false, room);
  else s->failed = true;
  fft_give(room, bytes);
}

/* A line whose kind of transform is in s, by this thread alone; room: line_bytes. */
static void FN(split_alone)(FN(split) * s, void *room)
{
  const FN(plan) *p = s->p;
  V *const lanes = (V *)((char *)room + FN(middle_bytes)(p));
  const bool fetch = p->n <= FFT_MOST_FETCHED;
  s->middle = room;
  FN(split_columns)(s, 0, FN(rounded)(p->second.n) / FN(LANES), fetch, lanes);
  if (s->what == FFT_R2C) FN(real_rows)(s, lanes);
  else FN(split_rows)(s, 0, FN(rounded)(p->first.n) / FN(LANES), fetch, lanes);
}

/* One line, by this thread alone where it has room for it (line_bytes). */
static ax_status FN(line_split)(const FN(plan) * p, const T *from, T *to, bool inverse, T scale, void *room)
{
  const int64_t columns = FN(rounded)(p->second.n) / FN(LANES), rows = FN(rounded)(p->first.n) / FN(LANES);
  const size_t bytes = FN(middle_bytes)(p);
  FN(split) s = { .p = p, .from = from, .to = to, .inverse = inverse, .scale = scale };
  if (room) {
    FN(split_alone)(&s, room);
    return AX_OK;
  }
  if (!(s.middle = fft_room(bytes))) return fft_no_memory();
  ax_cpu_for(columns, 4 * p->n, FN(split_columns_range), &s);
  ax_cpu_for(rows, 4 * p->n, FN(split_rows_range), &s);
  fft_give(s.middle, bytes);
  return s.failed ? fft_no_memory() : AX_OK;
}

/* `count` lines that follow each other, by this thread alone; from_step, to_step: from one to the
 * next.  Real ones (what) need a plan with forth, back. */
static void FN(lines_split)(const FN(plan) * p, fft_what what, int64_t count, const T *from,
                            int64_t from_step, T *to, int64_t to_step, bool inverse, T scale, T weight,
                            void *room)
{
  FN(split)
  s = { .p = p, .from = from, .to = to, .inverse = inverse, .scale = scale, .what = what, .weight = weight };
  for (int64_t k = 0; k < count; k++, s.from += from_step, s.to += to_step) FN(split_alone)(&s, room);
}

/* A line of a plan that is not PRIME; room: line_bytes, or NULL: all threads share the line. */
static ax_status FN(line)(const FN(plan) * p, const T *from, T *to, bool inverse, T scale, void *room)
{
  if (p->kind == FFT_SPLIT) return FN(line_split)(p, from, to, inverse, scale, room);
  const size_t bytes = FN(lane_bytes)(p);
  V *lanes = room ? room : fft_room(bytes);
  if (!lanes) return fft_no_memory();
  FN(lines_in_lanes)(p, 1, from, 0, to, 0, inverse, scale, lanes);
  if (!room) fft_give(lanes, bytes);
  return AX_OK;
}
