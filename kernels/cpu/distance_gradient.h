/* The gradient of distances of all pairs of rows in type T: see distance.c. */
#define VN ((int64_t)(AX_BYTES / sizeof(T)))
#define PANEL (2 * VN)

typedef struct FN(job) {
  int64_t m, n, k, panels; /* panels: of PANEL numbers of a row */
  T p;
  const T *x, *y, *packed; /* packed: y as pack_rows has it */
  T *out;
  const T *g, *d;
  const int64_t *g_step, *d_step; /* strides, in elements */
} FN(job);

static V FN(spread)(T v) { return v - (V){ 0 }; }
static V FN(size_of)(V v) { return (V)((MASK)v & ~(MASK)(-(V){ 0 })); }
static T FN(sign)(T v) { return (T)(v > 0) - (T)(v < 0); }
static V FN(signs)(V v) { return (V)(((MASK)FN(spread)(1) & (v > 0)) | ((MASK)FN(spread)(-1) & (v < 0))); }

/* to: what two rows of x, PANEL numbers of each, get from `count` rows of y: the sums of w times a
 * slope of a = x - y.  d: the distances.  Rows in turns have sums of their own. */
#define SLOPES(name, slope) \
  static void FN(name)(const V x[2][2], const T *y, const T w[2][SLICE], const T d[2][SLICE], int64_t count, \
                       T p, V to[2][2]) \
  { \
    V of[2][2][2]; \
    for (int q = 0; q < 4; q++) of[q / 2][q % 2][0] = of[q / 2][q % 2][1] = (V){ 0 }; \
    (void)p, (void)d; \
    for (int64_t r = 0; r < count; r += 2) _Pragma("GCC unroll 2") for (int turn = 0; turn < 2; turn++) \
      { \
        const int64_t at = r + turn; \
        _Pragma("GCC unroll 2") for (int row = 0; row < 2; row++) \
            _Pragma("GCC unroll 2") for (int v = 0; v < 2; v++) \
        { \
          const V a = x[row][v] - *(const V *)(y + at * PANEL + v * VN); \
          of[turn][row][v] = FMA(FN(spread)(w[row][at]), slope, of[turn][row][v]); \
        } \
      } \
    for (int q = 0; q < 4; q++) to[q / 2][q % 2] += of[0][q / 2][q % 2] + of[1][q / 2][q % 2]; \
  }
static V FN(at_least)(V a, T d) { return (V)((MASK)FN(signs)(a) & (FN(size_of)(a) >= FN(spread)(d))); }
static V FN(slopes_of_power)(V a, T p)
{
  for (int i = 0; i < VN; i++) a[i] = a[i] == 0 ? 0 : FN(sign)(a[i]) * POW(a[i] < 0 ? -a[i] : a[i], p - 1);
  return a;
}
SLOPES(of_squares, a)
SLOPES(of_sizes, FN(signs)(a))
SLOPES(of_largest, FN(at_least)(a, d[row][at]))
SLOPES(of_powers, w[row][at] == 0 ? (V){ 0 } : FN(slopes_of_power)(a, p))

/* Elements of `rows` rows and `count` columns, in the order in which they are adjacent. */
static void FN(read_tile)(const T *from, const int64_t *step, int64_t rows, int64_t count, T (*to)[SLICE])
{
  if (step[0] < step[1])
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = 0; i < rows; i++) to[i][r] = from[i * step[0] + r * step[1]];
  else
    for (int64_t i = 0; i < rows; i++)
      for (int64_t r = 0; r < count; r++) to[i][r] = from[i * step[0] + r * step[1]];
}

/* The gradient that a row of x gets from a pair whose w has left the range of T, or is 0. */
static void FN(add_exact)(const FN(job) * j, int64_t x_row, int64_t y_row, double g, double d)
{
  const T *const x = j->x + x_row * j->k, *const y = j->y + y_row * j->k;
  T *const out = j->out + x_row * j->k;
  for (int64_t e = 0; e < j->k; e++) {
    const double a = (double)x[e] - (double)y[e];
    if (a != 0 || d != d) out[e] += (T)(g * (a < 0 ? -1 : 1) * pow(fabs(a) / d, (double)j->p - 1));
  }
}

/* What the slopes of pairs of rows of x and of y are multiplied by, and their distances, of an even
 * number of both. */
static void FN(weights)(const FN(job) * j, int64_t b, int64_t i, int64_t rows, int64_t first, int64_t count,
                        T (*w)[SLICE], T (*d)[SLICE])
{
  const int64_t *const gs = j->g_step, *const ds = j->d_step;
  const T p = j->p;
  FN(read_tile)(j->g + b * gs[0] + i * gs[1] + first * gs[2], gs + 1, rows, count, w);
  FN(read_tile)(j->d + b * ds[0] + i * ds[1] + first * ds[2], ds + 1, rows, count, d);
  for (int64_t q = 0; q < rows; q++) {
    T power[SLICE];
    int strange = 0;
    for (int64_t r = 0; r < count; r++) power[r] = p == 2 ? d[q][r] : 1;
    if (p != 2 && p != 1 && !isinf(p))
      for (int64_t r = 0; r < count; r++) power[r] = POW(d[q][r], p - 1);
    for (int64_t r = 0; r < count; r++) strange |= STRANGE(power[r]);
    for (int64_t r = 0; strange && r < count; r++)
      if (STRANGE(power[r])) {
        if (d[q][r] != 0) FN(add_exact)(j, b * j->m + i + q, b * j->n + first + r, w[q][r], d[q][r]);
        w[q][r] = 0, power[r] = 1;
      }
    for (int64_t r = 0; r < count; r++) w[q][r] /= power[r];
    if (count % 2) w[q][count] = d[q][count] = 0;
  }
  if (rows % 2) {
    memset(w[rows], 0, sizeof *w);
    memset(d[rows], 0, sizeof *d);
  }
}

static inline void FN(read_panel)(const T *from, int64_t width, V to[2])
{
  T room[PANEL] = { 0 };
  if (width < PANEL) from = memcpy(room, from, sizeof *room * (size_t)width);
  to[0] = *(const V *)from, to[1] = *(const V *)(from + VN);
}
static inline void FN(write_panel)(T *to, int64_t width, const V from[2])
{
  T room[PANEL], *const at = width < PANEL ? room : to;
  *(V *)at = from[0], *(V *)(at + VN) = from[1];
  if (at == room) memcpy(to, room, sizeof *room * (size_t)width);
}

/* Rows of x, ROWS at a time. */
static void FN(gradients)(int64_t lo, int64_t hi, void *ctx)
{
  const FN(job) *j = ctx;
  const T p = j->p;
  const int64_t per = (j->m + ROWS - 1) / ROWS, even = (j->n + 1) / 2 * 2;
  void (*const slopes)(const V[2][2], const T *, const T[2][SLICE], const T[2][SLICE], int64_t, T, V[2][2]) =
      p == 2     ? FN(of_squares)
      : p == 1   ? FN(of_sizes)
      : isinf(p) ? FN(of_largest)
                 : FN(of_powers);

  for (int64_t group = lo; group < hi; group++) {
    const int64_t b = group / per, i = group % per * ROWS, row = b * j->m + i;
    const int64_t rows = j->m - i < ROWS ? j->m - i : ROWS;
    T w[ROWS][SLICE], d[ROWS][SLICE];
    memset(j->out + row * j->k, 0, sizeof *j->out * (size_t)(rows * j->k));
    for (int64_t first = 0; first < j->n && p != 0; first += SLICE) {
      const int64_t count = j->n - first < SLICE ? j->n - first : SLICE;
      FN(weights)(j, b, i, rows, first, count, w, d);
      for (int64_t e = 0; e < j->k; e += PANEL) {
        const int64_t width = j->k - e < PANEL ? j->k - e : PANEL;
        const T *const y = j->packed + (b * j->panels * PANEL + e) * even + first * PANEL;
        for (int64_t q = 0; q < rows; q += 2) {
          const int64_t two = rows - q < 2 ? 1 : 2, at = (row + q) * j->k + e;
          V x[2][2] = { 0 }, sum[2][2] = { 0 };
          for (int64_t r = 0; r < two; r++) FN(read_panel)(j->x + at + r * j->k, width, x[r]);
          for (int64_t r = 0; r < two; r++) FN(read_panel)(j->out + at + r * j->k, width, sum[r]);
          slopes(x, y, w + q, d + q, count, p, sum);
          for (int64_t r = 0; r < two; r++) FN(write_panel)(j->out + at + r * j->k, width, sum[r]);
        }
      }
    }
  }
}

/* The rows of y, an even number of them, in panels of PANEL numbers of all rows, and zeros behind:
 * (b, panels, n, PANEL). */
static void FN(pack_rows)(const FN(job) * j, int64_t batches, T *to)
{
  const int64_t even = (j->n + 1) / 2 * 2;
  memset(to, 0, sizeof *to * (size_t)(batches * j->panels * even * PANEL));
  for (int64_t b = 0; b < batches; b++)
    for (int64_t e = 0; e < j->k; e += PANEL, to += even * PANEL) {
      const int64_t width = j->k - e < PANEL ? j->k - e : PANEL;
      for (int64_t r = 0; r < j->n; r++)
        memcpy(to + r * PANEL, j->y + (b * j->n + r) * j->k + e, sizeof *to * (size_t)width);
    }
}

static ax_status FN(backward)(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *y = call->in[2], *d = call->in[3];
  FN(job)
  j = { .m = x->shape[1],
        .n = y->shape[1],
        .k = x->shape[2],
        .panels = (x->shape[2] + PANEL - 1) / PANEL,
        .p = (T)call->a->cdist.p,
        .x = ax_data(x),
        .y = ax_data(y),
        .out = ax_data(call->out[0]),
        .g = ax_data(g),
        .d = ax_data(d),
        .g_step = g->strides,
        .d_step = d->strides };
  const int64_t batches = x->shape[0], groups = batches * ((j.m + ROWS - 1) / ROWS);
  const size_t bytes = sizeof(T) * (size_t)(batches * j.panels * ((j.n + 1) / 2 * 2) * PANEL) + 1;
  void *scratch;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  FN(pack_rows)(&j, batches, scratch);
  j.packed = scratch;
  ax_cpu_for(groups, batches * j.m * j.n * (j.k + 1) / (4 * VN), FN(gradients), &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

#undef VN
#undef PANEL
#undef STRANGE
#undef SLOPES
