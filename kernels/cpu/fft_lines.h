/* Fourier transforms of lines of any length, for one element type, on the lanes of fft_lanes.h.
 *
 * A plan is one of three.  LANES: as many lines as there are lanes go through the passes together.
 * SPLIT: a line of n = n1 n2 is a matrix of n1 rows: its columns are transformed, as lanes,
 * multiplied by twiddles, turned, and transformed once more, so that one line keeps all lanes busy,
 * reads and writes memory in order, and can be shared among threads.  CHIRP: n has a large prime
 * factor; Bluestein's convolution of a length that has none, in double also for floats. */

typedef struct FN(plan) {
  int64_t n;
  fft_use use;
  fft_kind kind;
  int refs; /* under the lock */
  uint64_t used;
  FN(passes) first, second; /* LANES: first; SPLIT: the columns' and the rows' */
  T *twiddle;               /* SPLIT: n1 rows of n2 (rounded up to lanes), real parts, then imaginary ones */
  struct fft_plan_f64 *inner; /* CHIRP: of the convolution */
  T *half;                    /* FFT_HALF..: exp(-2 pi i k / 2n), k < n */
  double *chirp, *filter;     /* CHIRP: exp(i pi k^2 / n); the transformed convolution's other side */
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
    f = left % 4 == 0 ? 4 : left % 2 == 0 ? 2 : left % 3 == 0 ? 3 : left % 5 == 0 ? 5 : 7;
    while (left % f) f += 2;
    if (f > 5) odd += f;
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
    for (int j = 0; f > 5 && j < f; j++) {
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
  if (p->inner) fft_drop_f64(p->inner);
  free(p->chirp);
  free(p->filter);
  free(p);
}

static int64_t FN(rounded)(int64_t n) { return (n + FN(LANES) - 1) / FN(LANES) * FN(LANES); }

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

static ax_status FN(make_split)(FN(plan) * p, int64_t rows)
{
  const int64_t columns = p->n / rows, wide = FN(rounded)(columns);
  double root[2];
  if (!FN(passes_make)(&p->first, (int)rows) || !FN(passes_make)(&p->second, (int)columns) ||
      !(p->twiddle = malloc(sizeof(T) * 2 * (size_t)(rows * wide))))
    return fft_no_memory();
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < wide; j++) {
      unit_root(i * j % p->n, p->n, root);
      p->twiddle[i * wide + j] = (T)root[0];
      p->twiddle[(rows + i) * wide + j] = (T)-root[1];
    }
  return AX_OK;
}

/* Bytes of memory that one thread needs for a plan's lanes. */
static size_t FN(lane_bytes)(const FN(plan) * p)
{
  const int64_t n = p->kind == FFT_LANES ? p->n : p->first.n > p->second.n ? p->first.n : p->second.n;
  return sizeof(V) * 4 * (size_t)(n + FN(LANES));
}

/* ---- LANES */

static void FN(lines_in_lanes)(const FN(plan) * p, int count, const T *from, int64_t from_step, T *to,
                               int64_t to_step, bool inverse, T scale, V *room)
{
  const int64_t n = p->n;
  V *re = room, *im = room + n, *r, *i;
  FN(gather)(from, from_step, count, (int)n, inverse ? im : re, inverse ? re : im);
  FN(run_passes)(&p->first, re, im, room + 2 * n, room + 3 * n, &r, &i);
  FN(scatter)(to, to_step, count, (int)n, inverse ? i : r, inverse ? r : i, scale);
}

/* Lines that stand side by side: position j of all of them at from + 2 j step. */
static void FN(columns_in_lanes)(const FN(plan) * p, int64_t count, const T *from, T *to, int64_t step,
                                 bool inverse, T scale, V *room)
{
  const int64_t n = p->n;
  V *re = room, *im = room + n, *r, *i;
  for (int64_t j = 0; j < n; j++)
    FN(part_some)(from + 2 * j * step, count, inverse ? im + j : re + j, inverse ? re + j : im + j);
  FN(run_passes)(&p->first, re, im, room + 2 * n, room + 3 * n, &r, &i);
  for (int64_t j = 0; j < n; j++)
    FN(pair_some)(to + 2 * j * step, count, (inverse ? i : r)[j] * scale, (inverse ? r : i)[j] * scale);
}

/* ---- SPLIT */

typedef struct FN(split) {
  const FN(plan) * p;
  const T *from;
  T *to, *middle; /* n2 rows of n1 (rounded up to lanes), real parts, then imaginary ones */
  bool inverse;
  T scale;
  bool failed;
} FN(split);

static void FN(split_columns)(int64_t lo, int64_t hi, void *ud)
{
  enum { L = FN(LANES) };
  FN(split) *s = ud;
  const FN(plan) *p = s->p;
  const int64_t n1 = p->first.n, n2 = p->second.n, wide = FN(rounded)(n2), high = FN(rounded)(n1);
  const size_t bytes = FN(lane_bytes)(p);
  V *room = fft_room(bytes), *re = room, *im = room + n1 + L, *r, *i, block[2][L];

  if (!room) s->failed = true;
  for (int64_t c = lo * L; room && c < hi * L && c < n2; c += L) {
    for (int64_t j = 0; j < n1; j++) FN(part_some)
    (s->from + 2 * (j * n2 + c), n2 - c, s->inverse ? im + j : re + j, s->inverse ? re + j : im + j);
    FN(run_passes)(&p->first, re, im, room + 2 * (n1 + L), room + 3 * (n1 + L), &r, &i);
    for (int64_t k = 0; k < n1; k += L) {
      const int64_t some = n1 - k < L ? n1 - k : L, rows = n2 - c < L ? n2 - c : L;
      for (int64_t t = 0; t < some; t++) {
        const V wr = *(const V *)(p->twiddle + (k + t) * wide + c);
        const V wi = *(const V *)(p->twiddle + (n1 + k + t) * wide + c);
        block[0][t] = FMA(r[k + t], wr, -(i[k + t] * wi));
        block[1][t] = FMA(r[k + t], wi, i[k + t] * wr);
      }
      for (int64_t t = some; t < L; t++) block[0][t] = block[1][t] = (V){ 0 };
      FN(turn)(block[0]);
      FN(turn)(block[1]);
      for (int64_t t = 0; t < rows; t++) {
        *(V *)(s->middle + (c + t) * high + k) = block[0][t];
        *(V *)(s->middle + (n2 + c + t) * high + k) = block[1][t];
      }
    }
  }
  fft_give(room, bytes);
}

static void FN(split_rows)(int64_t lo, int64_t hi, void *ud)
{
  enum { L = FN(LANES) };
  FN(split) *s = ud;
  const FN(plan) *p = s->p;
  const int64_t n1 = p->first.n, n2 = p->second.n, high = FN(rounded)(n1);
  const size_t bytes = FN(lane_bytes)(p);
  V *room = fft_room(bytes), *re = room, *im = room + n2 + L, *r, *i;

  if (!room) s->failed = true;
  for (int64_t k = lo * L; room && k < hi * L && k < n1; k += L) {
    for (int64_t j = 0; j < n2; j++) {
      re[j] = *(const V *)(s->middle + j * high + k);
      im[j] = *(const V *)(s->middle + (n2 + j) * high + k);
    }
    FN(run_passes)(&p->second, re, im, room + 2 * (n2 + L), room + 3 * (n2 + L), &r, &i);
    for (int64_t j = 0; j < n2; j++) FN(pair_some)
    (s->to + 2 * (k + n1 * j), n1 - k, (s->inverse ? i : r)[j] * s->scale,
     (s->inverse ? r : i)[j] * s->scale);
  }
  fft_give(room, bytes);
}

static ax_status FN(line_split)(const FN(plan) * p, const T *from, T *to, bool inverse, T scale)
{
  const int64_t high = FN(rounded)(p->first.n), groups = FN(rounded)(p->second.n) / FN(LANES);
  const size_t bytes = sizeof(T) * 2 * (size_t)(high * p->second.n);
  FN(split) s = { p, from, to, fft_room(bytes), inverse, scale, false };
  if (!s.middle) return fft_no_memory();
  ax_cpu_for(groups, 4 * p->n, FN(split_columns), &s);
  ax_cpu_for(high / FN(LANES), 4 * p->n, FN(split_rows), &s);
  fft_give(s.middle, bytes);
  return s.failed ? fft_no_memory() : AX_OK;
}

/* ---- CHIRP */

static ax_status FN(line_chirp)(const FN(plan) * p, const T *from, T *to, bool inverse, T scale)
{
  const int64_t n = p->n, m = p->inner->n;
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
  AX_TRY(fft_line_f64(p->inner, x, y, false, 1));
  for (int64_t k = 0; k < m; k++) {
    const double r = y[2 * k], i = y[2 * k + 1];
    y[2 * k] = r * f[2 * k] - i * f[2 * k + 1];
    y[2 * k + 1] = r * f[2 * k + 1] + i * f[2 * k];
  }
  AX_TRY(fft_line_f64(p->inner, y, x, true, 1.0 / (double)m));
  for (int64_t k = 0; k < n; k++) {
    const double r = x[2 * k], i = x[2 * k + 1];
    to[2 * k + re] = (T)((r * b[2 * k] + i * b[2 * k + 1]) * (double)scale);
    to[2 * k + im] = (T)((i * b[2 * k] - r * b[2 * k + 1]) * (double)scale);
  }
out:
  fft_give(x, bytes);
  return st;
}

static ax_status FN(make_chirp)(FN(plan) * p)
{
  int64_t m = 1;
  double *wide, root[2];
  ax_status st;

  while (m < 2 * p->n - 1) m *= 2;
  AX_TRY(fft_plan_for_f64(m, FFT_LINES, &p->inner));
  p->chirp = malloc(sizeof(double) * 2 * (size_t)p->n);
  p->filter = malloc(sizeof(double) * 2 * (size_t)m);
  wide = calloc((size_t)m, 2 * sizeof(double));
  st = p->chirp && p->filter && wide ? AX_OK : fft_no_memory();
  for (int64_t k = 0, square = 0; st == AX_OK && k < p->n; k++) { /* k^2 modulo 2 n */
    unit_root(square, 2 * p->n, root);
    square = (square + 2 * k + 1) % (2 * p->n);
    memcpy(p->chirp + 2 * k, root, sizeof root);
    memcpy(wide + 2 * k, root, sizeof root);
    if (k) memcpy(wide + 2 * (m - k), root, sizeof root);
  }
  if (st == AX_OK) st = fft_line_f64(p->inner, wide, p->filter, false, 1);
  free(wide);
out:
  return st;
}

/* ---- plans */

static ax_status FN(line)(const FN(plan) * p, const T *from, T *to, bool inverse, T scale)
{
  if (p->kind == FFT_SPLIT) return FN(line_split)(p, from, to, inverse, scale);
  if (p->kind == FFT_CHIRP) return FN(line_chirp)(p, from, to, inverse, scale);
  const size_t bytes = FN(lane_bytes)(p);
  V *room = fft_room(bytes);
  if (!room) return fft_no_memory();
  FN(lines_in_lanes)(p, 1, from, 0, to, 0, inverse, scale, room);
  fft_give(room, bytes);
  return AX_OK;
}

static bool FN(make_half)(FN(plan) * p)
{
  double root[2];
  if (!(p->half = malloc(sizeof(T) * 2 * (size_t)p->n))) return false;
  for (int64_t k = 0; k < p->n; k++) {
    unit_root(k, 2 * p->n, root);
    p->half[2 * k] = (T)root[0], p->half[2 * k + 1] = (T)-root[1];
  }
  return true;
}

static ax_status FN(plan_new)(int64_t n, fft_use use, FN(plan) * *out)
{
  FN(plan) *p = calloc(1, sizeof *p);
  ax_status st = p ? AX_OK : fft_no_memory();
  *out = p;
  if (st != AX_OK) return st;
  p->n = n;
  p->use = use;
  p->refs = 1;
  if (largest_prime(n) > LARGEST) {
    p->kind = FFT_CHIRP;
    st = FN(make_chirp)(p);
  } else {
    const int64_t rows = (use == FFT_LINES || use == FFT_HALF) && n >= 4 * FN(LANES) ? FN(rows_of)(n) : 0;
    p->kind = rows ? FFT_SPLIT : FFT_LANES;
    if (rows) st = FN(make_split)(p, rows);
    else if (!FN(passes_make)(&p->first, (int)n)) st = fft_no_memory();
  }
  if (st == AX_OK && use >= FFT_HALF && !FN(make_half)(p)) st = fft_no_memory();
  if (st == AX_OK) return AX_OK;
  FN(plan_free)(p);
  *out = NULL;
  return st;
}

/* The plans used last are kept: making one costs more than using it. */
static FN(plan) * FN(kept)[FFT_KEPT];

static void FN(drop)(FN(plan) * p)
{
  pthread_mutex_lock(&fft_lock);
  const bool last = --p->refs == 0;
  pthread_mutex_unlock(&fft_lock);
  if (last) FN(plan_free)(p);
}

/* *out: a new reference, for `drop`. */
static ax_status FN(plan_for)(int64_t n, fft_use use, FN(plan) * *out)
{
  static uint64_t clock;
  FN(plan) *found = NULL, *old = NULL;
  ax_status st;

  pthread_mutex_lock(&fft_lock);
  for (int k = 0; k < FFT_KEPT && !found; k++)
    if (FN(kept)[k] && FN(kept)[k]->n == n && FN(kept)[k]->use == use) found = FN(kept)[k];
  if (found) {
    found->refs++;
    found->used = ++clock;
  }
  pthread_mutex_unlock(&fft_lock);
  if ((*out = found)) return AX_OK;
  if ((st = FN(plan_new)(n, use, &found)) != AX_OK) return st;
  *out = found;
  pthread_mutex_lock(&fft_lock);
  int at = 0;
  for (int k = 0; k < FFT_KEPT; k++) {
    if (!FN(kept)[k]) {
      at = k;
      break;
    }
    if (FN(kept)[k]->used < FN(kept)[at]->used) at = k;
  }
  old = FN(kept)[at];
  FN(kept)[at] = found;
  found->refs++;
  found->used = ++clock;
  pthread_mutex_unlock(&fft_lock);
  if (old) FN(drop)(old);
  return AX_OK;
}

/* ---- tensors: (outer, n, inner) */

typedef struct FN(job) {
  const FN(plan) * p;
  const T *from;
  T *to;
  int64_t n, outer, inner, in_step, out_step; /* numbers of T in a line of the input, the result */
  bool inverse;
  T scale, weight;
  ax_status st; /* of any thread: all failures are of memory */
} FN(job);

/* Vectors of P complex numbers: the parts swapped; the numbers in reverse; both parts of each
 * number its real, its imaginary one. */
enum { FN(P) = FN(LANES) / 2 };
#define SHUFFLED(name, expression) \
  static inline V FN(name)(V x) \
  { \
    MASK at; \
    for (int i = 0; i < FN(LANES); i++) at[i] = expression; \
    return __builtin_shuffle(x, at); \
  }
SHUFFLED(swapped, i ^ 1)
SHUFFLED(reversed, (FN(LANES) - 2 - (i & ~1)) | (i & 1))
SHUFFLED(reals, i & ~1)
SHUFFLED(imaginaries, i | 1)
#undef SHUFFLED

/* Ones with the sign of `even` at real and of `odd` at imaginary parts. */
static inline V FN(signs)(T even, T odd)
{
  V s;
  for (int i = 0; i < FN(LANES); i++) s[i] = i % 2 ? odd : even;
  return s;
}

/* Positions k .. k + P - 1 of to_half: e + w (-i) d with e = a + conj(b), d = a - conj(b); of
 * from_half: e + i d conj(w). */
static inline V FN(halves)(const T *a, const T *b, const T *w, T half, bool back)
{
  const V conjugate = FN(signs)(1, -1), turned = FN(signs)(-1, 1);
  const V x = *(const V *)a, y = FN(reversed)(*(const V *)b) * conjugate, root = *(const V *)w;
  const V d = FN(swapped)(x - y) * (back ? turned : conjugate), re = FN(reals)(root),
          im = FN(imaginaries)(root);
  const V cross = FN(swapped)(d) * im * (back ? conjugate : turned);
  return (x + y + d * re + cross) * half;
}

/* Positions of a real transform's half that stand for two, times `weight`; even n.  z: the
 * transform of the pairs (x[0], x[1]), (x[2], x[3]) ... as complex numbers. */
static void FN(to_half)(const FN(job) * j, const T *z, T *to)
{
  const int64_t m = j->n / 2;
  const T s = j->scale, half = s * j->weight / 2;
  to[0] = (z[0] + z[1]) * s, to[1] = 0;
  to[2 * m] = (z[0] - z[1]) * s, to[2 * m + 1] = 0;
  int64_t k = 1;
  for (; k + FN(P) <= m; k += FN(P))
    *(V *)(to + 2 * k) = FN(halves)(z + 2 * k, z + 2 * (m - k - FN(P) + 1), j->p->half + 2 * k, half, false);
  for (; k < m; k++) {
    const T *a = z + 2 * k, *b = z + 2 * (m - k), *w = j->p->half + 2 * k;
    const T er = a[0] + b[0], ei = a[1] - b[1], dr = a[0] - b[0], di = a[1] + b[1];
    to[2 * k] = (er + di * w[0] + dr * w[1]) * half;
    to[2 * k + 1] = (ei + di * w[1] - dr * w[0]) * half;
  }
}

static void FN(from_half)(const FN(job) * j, const T *h, T *z)
{
  const int64_t m = j->n / 2;
  const T half = j->weight / 2;
  z[0] = h[0] + h[2 * m], z[1] = h[0] - h[2 * m];
  int64_t k = 1;
  for (; k + FN(P) <= m; k += FN(P))
    *(V *)(z + 2 * k) = FN(halves)(h + 2 * k, h + 2 * (m - k - FN(P) + 1), j->p->half + 2 * k, half, true);
  for (; k < m; k++) {
    const T *a = h + 2 * k, *b = h + 2 * (m - k), *w = j->p->half + 2 * k;
    const T er = a[0] + b[0], ei = a[1] - b[1], dr = a[0] - b[0], di = a[1] + b[1];
    /* i (dr + i di) times the conjugate of w */
    z[2 * k] = (er - di * w[0] + dr * w[1]) * half;
    z[2 * k + 1] = (ei + dr * w[0] + di * w[1]) * half;
  }
}

/* `count` lines from one place to another, both contiguous. */
static ax_status FN(some_c2c)(const FN(job) * j, int64_t count, const T *from, T *to, void *room)
{
  const int64_t n = j->p->n;
  ax_status st = AX_OK;
  if (j->p->kind == FFT_LANES)
    for (int64_t k = 0; k < count; k += FN(LANES)) FN(lines_in_lanes)
  (j->p, (int)(count - k < FN(LANES) ? count - k : FN(LANES)), from + 2 * k * n, n, to + 2 * k * n, n,
   j->inverse, j->scale, room);
  else for (int64_t k = 0; k < count && st == AX_OK; k++) st =
      FN(line)(j->p, from + 2 * k * n, to + 2 * k * n, j->inverse, j->scale);
  return st;
}

static ax_status FN(some_lines)(const FN(job) * j, fft_what what, int64_t count, const T *from, T *to, T *z,
                                void *room)
{
  const int64_t n = j->n, m = n / 2 + 1;
  FN(job) plain = *j;
  ax_status st;

  if (what == FFT_C2C) return FN(some_c2c)(j, count, from, to, room);
  plain.scale = 1;
  if (what == FFT_R2C && n % 2 == 0) {
    AX_TRY(FN(some_c2c)(&plain, count, from, z, room));
    for (int64_t k = 0; k < count; k++) FN(to_half)(j, z + k * n, to + k * 2 * m);
  } else if (what == FFT_C2R && n % 2 == 0) {
    for (int64_t k = 0; k < count; k++) FN(from_half)(j, from + k * 2 * m, z + k * n);
    st = FN(some_c2c)(j, count, z, to, room);
  } else if (what == FFT_R2C) {
    T *x = z, *y = z + count * 2 * n;
    for (int64_t k = 0; k < count * n; k++) x[2 * k] = from[k], x[2 * k + 1] = 0;
    AX_TRY(FN(some_c2c)(&plain, count, x, y, room));
    for (int64_t k = 0; k < count; k++)
      for (int64_t i = 0; i < 2 * m; i++)
        to[k * 2 * m + i] = y[k * 2 * n + i] * (i < 2 ? j->scale : j->scale * j->weight);
    for (int64_t k = 0; k < count; k++) to[k * 2 * m + 1] = 0;
  } else {
    T *x = z, *y = z + count * 2 * n;
    for (int64_t k = 0; k < count; k++) {
      const T *h = from + k * 2 * m;
      T *line = x + k * 2 * n;
      line[0] = h[0], line[1] = 0;
      for (int64_t i = 1; i < m; i++) {
        line[2 * i] = line[2 * (n - i)] = h[2 * i] * j->weight / 2;
        line[2 * i + 1] = h[2 * i + 1] * j->weight / 2;
        line[2 * (n - i) + 1] = -line[2 * i + 1];
      }
    }
    AX_TRY(FN(some_c2c)(j, count, x, y, room));
    for (int64_t k = 0; k < count * n; k++) to[k] = y[2 * k];
  }
out:
  return st;
}

/* Lines in blocks of LANES; those that are not contiguous are copied there and back. */
static void FN(blocks)(int64_t lo, int64_t hi, FN(job) * j, fft_what what)
{
  enum { B = FN(LANES) };
  const int64_t wide = what == FFT_C2R ? 1 : 2, narrow = what == FFT_R2C ? 1 : 2; /* T per number */
  const size_t lanes = j->p->kind == FFT_LANES ? FN(lane_bytes)(j->p) : 0;
  const size_t work = sizeof(T) * B * 4 * (size_t)j->n, in = sizeof(T) * B * (size_t)j->in_step,
               out = sizeof(T) * B * (size_t)j->out_step;
  const bool apart = j->inner > 1;
  char *room = fft_room(lanes + work + (apart ? in + out : 0) + 64);
  T *z = (T *)(room + lanes), *x = z + B * 4 * j->n, *y = x + B * j->in_step;
  const int64_t per = (j->inner + B - 1) / B;
  ax_status st = room ? AX_OK : AX_ENOMEM;

  for (int64_t b = lo; st == AX_OK && b < hi; b++) {
    if (!apart) {
      const int64_t first = b * B, count = j->outer - first < B ? j->outer - first : B;
      st = FN(some_lines)(j, what, count, j->from + first * j->in_step, j->to + first * j->out_step, z, room);
      continue;
    }
    const int64_t o = b / per, at = b % per * B, count = j->inner - at < B ? j->inner - at : B;
    const T *from = j->from + (o * j->in_step * j->inner + at * narrow);
    T *to = j->to + (o * j->out_step * j->inner + at * wide);
    for (int64_t i = 0; i < j->in_step / narrow; i++)
      for (int64_t k = 0; k < count; k++)
        memcpy(x + k * j->in_step + i * narrow, from + (i * j->inner + k) * narrow,
               sizeof(T) * (size_t)narrow);
    st = FN(some_lines)(j, what, count, x, y, z, room);
    for (int64_t i = 0; i < j->out_step / wide; i++)
      for (int64_t k = 0; k < count; k++)
        memcpy(to + (i * j->inner + k) * wide, y + k * j->out_step + i * wide, sizeof(T) * (size_t)wide);
  }
  if (st != AX_OK) j->st = st;
  fft_give(room, lanes + work + (apart ? in + out : 0) + 64);
}
static void FN(c2c_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_C2C); }
static void FN(r2c_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_R2C); }
static void FN(c2r_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_C2R); }

/* Single lines: shared among threads where there are several, each by all threads where not. */
static void FN(c2c_lines)(int64_t lo, int64_t hi, void *ud)
{
  FN(job) *j = ud;
  for (int64_t k = lo; k < hi; k++) {
    const ax_status st =
        FN(line)(j->p, j->from + k * j->in_step, j->to + k * j->out_step, j->inverse, j->scale);
    if (st != AX_OK) j->st = st;
  }
}

static void FN(columns)(int64_t lo, int64_t hi, void *ud)
{
  enum { L = FN(LANES) };
  FN(job) *j = ud;
  const size_t bytes = FN(lane_bytes)(j->p);
  const int64_t per = (j->inner + L - 1) / L;
  V *room = fft_room(bytes);

  if (!room) j->st = AX_ENOMEM;
  for (int64_t b = lo; room && b < hi; b++) {
    const int64_t at = 2 * (b / per * j->n * j->inner + b % per * L);
    FN(columns_in_lanes)
    (j->p, j->inner - b % per * L, j->from + at, j->to + at, j->inner, j->inverse, j->scale, room);
  }
  fft_give(room, bytes);
}

static ax_status FN(transform)(const ax_call *call, fft_what what, int64_t dim, int64_t n, bool inverse,
                               double scale, double weight)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  FN(job)
  j = { .from = ax_data(x),
        .to = ax_data(y),
        .n = n,
        .outer = 1,
        .inner = 1,
        .inverse = inverse,
        .scale = (T)scale,
        .weight = (T)weight };
  FN(plan) * p;
  ax_status st;

  if (y->numel == 0) return AX_OK;
  for (int d = 0; d < x->ndim; d++)
    if (d < dim) j.outer *= x->shape[d];
    else if (d > dim) j.inner *= x->shape[d];
  j.in_step = x->shape[dim] * (what == FFT_R2C ? 1 : 2);
  j.out_step = y->shape[dim] * (what == FFT_C2R ? 1 : 2);
  const bool even = what != FFT_C2C && n % 2 == 0;
  const int64_t size = even ? n / 2 : n;
  const bool plain = largest_prime(size) <= LARGEST;
  const bool columns = what == FFT_C2C && j.inner > 1 && n <= FFT_MOST_COLUMNS && plain;
  const bool together =
      columns || (j.inner == 1 && j.outer >= FN(LANES) && size <= FFT_MOST_TOGETHER && plain);
  st = FN(plan_for)(size,
                    even       ? together ? FFT_HALF_TOGETHER : FFT_HALF
                    : together ? FFT_TOGETHER
                               : FFT_LINES,
                    &p);
  if (st != AX_OK) return st;
  j.p = p;
  const int64_t groups = (j.inner + FN(LANES) - 1) / FN(LANES), work = 4 * (x->numel + y->numel);
  if (columns) ax_cpu_for(j.outer * groups, work, FN(columns), &j);
  else if (what == FFT_C2C && j.inner == 1 && p->kind != FFT_LANES)
    ax_cpu_for(j.outer, work, FN(c2c_lines), &j);
  else
    ax_cpu_for(j.inner > 1 ? j.outer * groups : (j.outer + FN(LANES) - 1) / FN(LANES), work,
               what == FFT_C2C   ? FN(c2c_blocks)
               : what == FFT_R2C ? FN(r2c_blocks)
                                 : FN(c2r_blocks),
               &j);
  FN(drop)(p);
  return j.st == AX_OK ? AX_OK : fft_no_memory();
}
