/* Fourier transforms of tensors (outer, n, inner), for one element type: which lines go together,
 * and real transforms of twice the length of complex ones. */

typedef struct FN(job) {
  const FN(plan) * p;
  const T *from;
  T *to;
  int64_t n, outer, inner, in_step, out_step; /* numbers of T in a line of the input, the result */
  int64_t block;                              /* lines that are done together */
  bool inverse;
  T scale, weight;
  ax_status st; /* of any thread: all failures are of memory */
} FN(job);

/* Positions k .. k + P - 1 of to_half: e + t with e = a + conj(b), t = -i w d, d = a - conj(b); and
 * positions m - k - P + 1 .. m - k, conj(e - t).  Of from_half: the same with t = i conj(w) d. */
static inline void FN(halves)(const T *a, const T *b, const T *w, T half, bool back, T *low, T *high)
{
  const V conjugate = FN(signs)(1, -1), turned = FN(signs)(-1, 1);
  const V x = *(const V *)a, y = FN(reversed)(*(const V *)b) * conjugate, root = *(const V *)w;
  const V d = FN(swapped)(x - y) * (back ? turned : conjugate), re = FN(reals)(root),
          im = FN(imaginaries)(root);
  const V e = (x + y) * half;
  const V t = FMA(d, re, FN(swapped)(d) * (im * (back ? conjugate : turned))) * half;
  *(V *)low = e + t;
  *(V *)high = FN(reversed)((e - t) * conjugate);
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
  for (int64_t at = m - FN(P); k + FN(P) <= at + 1; k += FN(P), at -= FN(P)) /* up to m - k from both sides */
    FN(halves)(z + 2 * k, z + 2 * at, j->p->half + 2 * k, half, false, to + 2 * k, to + 2 * at);
  for (const int64_t end = m - k; k <= end; k++) {
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
  for (int64_t at = m - FN(P); k + FN(P) <= at + 1; k += FN(P), at -= FN(P))
    FN(halves)(h + 2 * k, h + 2 * at, j->p->half + 2 * k, half, true, z + 2 * k, z + 2 * at);
  for (const int64_t end = m - k; k <= end; k++) {
    const T *a = h + 2 * k, *b = h + 2 * (m - k), *w = j->p->half + 2 * k;
    const T er = a[0] + b[0], ei = a[1] - b[1], dr = a[0] - b[0], di = a[1] + b[1];
    /* i (dr + i di) times the conjugate of w */
    z[2 * k] = (er - di * w[0] + dr * w[1]) * half;
    z[2 * k + 1] = (ei + dr * w[0] + di * w[1]) * half;
  }
}

/* `count` lines of the plan's length from one place to another, both contiguous. */
static ax_status FN(some_c2c)(const FN(job) * j, int64_t count, const T *from, T *to, void *room)
{
  const int64_t n = j->p->n;
  ax_status st = AX_OK;
  if (j->p->kind == FFT_PRIME)
    return FN(prime_lines)(j->p->prime, count, from, to, j->inverse, j->scale, room);
  if (j->p->kind == FFT_LANES) {
    FN(lines_in_lanes)(j->p, (int)count, from, n, to, n, j->inverse, j->scale, room);
    return AX_OK;
  }
  if (room) FN(lines_split)(j->p, FFT_C2C, count, from, 2 * n, to, 2 * n, j->inverse, j->scale, 1, room);
  else st = FN(line)(j->p, from, to, j->inverse, j->scale, NULL);
  return st;
}

static ax_status FN(some_lines)(const FN(job) * j, fft_what what, int64_t count, const T *from, T *to, T *z,
                                void *room)
{
  const int64_t n = j->n, m = n / 2 + 1;
  ax_status st;

  if (what == FFT_C2C) return FN(some_c2c)(j, count, from, to, room);
  if (n % 2 == 0 && j->p->kind == FFT_LANES) {
    (what == FFT_R2C ? FN(real_lines_in_lanes) : FN(lines_to_real_in_lanes))(j->p, (int)count, from, to,
                                                                             j->scale, j->weight, room);
    return AX_OK;
  }
  if (n % 2 == 0 && j->p->forth && room) {
    const int64_t wide = 2 * m, in = what == FFT_R2C ? n : wide, out = what == FFT_R2C ? wide : n;
    FN(lines_split)
    (j->p, what, count, from, in, to, out, what == FFT_C2R, j->scale, j->weight, room);
    return AX_OK;
  }
  FN(job) plain = *j;
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

/* Lines in blocks of j->block; those that are not contiguous are copied there and back. */
static void FN(blocks)(int64_t lo, int64_t hi, FN(job) * j, fft_what what)
{
  const int64_t B = j->block, per = (j->inner + B - 1) / B;
  const int64_t wide = what == FFT_C2R ? 1 : 2, narrow = what == FFT_R2C ? 1 : 2; /* T per number */
  const bool apart = j->inner > 1;
  /* a single line of this call is shared among the threads, which have rooms of their own */
  const bool alone = j->p->kind != FFT_LANES && !fft_is_together(j->p->use) && j->outer * j->inner == 1;
  const size_t lanes = alone ? 0 : FN(line_bytes)(j->p);
  const bool direct =
      what == FFT_C2C || (j->n % 2 == 0 && (j->p->kind == FFT_LANES || (j->p->forth && !alone)));
  const size_t work = direct ? 0 : sizeof(T) * (size_t)B * 4 * (size_t)j->n;
  const size_t in = sizeof(T) * (size_t)(B * j->in_step), out = sizeof(T) * (size_t)(B * j->out_step);
  const size_t bytes = lanes + work + (apart ? in + out : 0) + 64;
  char *memory = fft_room(bytes), *room = lanes ? memory : NULL;
  T *z = (T *)(memory + lanes), *x = (T *)(memory + lanes + work), *y = x + B * j->in_step;
  ax_status st = memory ? AX_OK : AX_ENOMEM;

  if (st == AX_OK && B == 1 && !apart && work == 0) { /* one by one, without z: all in one call */
    st = FN(some_lines)(j, what, hi - lo, j->from + lo * j->in_step, j->to + lo * j->out_step, z, room);
    lo = hi;
  }
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
  fft_give(memory, bytes);
}
static void FN(c2c_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_C2C); }
static void FN(r2c_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_R2C); }
static void FN(c2r_blocks)(int64_t lo, int64_t hi, void *ud) { FN(blocks)(lo, hi, ud, FFT_C2R); }

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

/* Whether many lines are faster side by side than one by one: as long as their lanes stay in the
 * first-level cache, and longer where one by one would not fill the lanes. */
static bool FN(side_by_side)(int64_t n)
{
  if (n < 4 * FN(LANES)) return true;
  const int64_t rows = FN(rows_of)(n);
  const bool full = rows && rows % FN(LANES) == 0 && n / rows % FN(LANES) == 0;
  return n <= (full ? FFT_FEW_TOGETHER : FFT_MOST_TOGETHER);
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
      columns || (plain ? j.inner == 1 && j.outer >= FN(LANES) && FN(side_by_side)(size)
                        : j.outer * j.inner >= FN(LANES) / 2 && FN(prime_side_by_side)(size));
  st = FN(plan_for)(size,
                    even       ? together ? FFT_HALF_TOGETHER : FFT_HALF
                    : together ? FFT_TOGETHER
                               : FFT_LINES,
                    &p);
  if (st != AX_OK) return st;
  j.p = p;
  j.block = p->kind == FFT_LANES || j.inner > 1 || together ? FN(LANES) : 1;
  const int64_t groups = (j.inner + j.block - 1) / j.block, work = 4 * (x->numel + y->numel);
  if (columns) ax_cpu_for(j.outer * groups, work, FN(columns), &j);
  else
    ax_cpu_for(j.inner > 1 ? j.outer * groups : (j.outer + j.block - 1) / j.block, work,
               what == FFT_C2C   ? FN(c2c_blocks)
               : what == FFT_R2C ? FN(r2c_blocks)
                                 : FN(c2r_blocks),
               &j);
  FN(drop)(p);
  return j.st == AX_OK ? AX_OK : fft_no_memory();
}
