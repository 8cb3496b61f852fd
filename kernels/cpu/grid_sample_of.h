/* The part of grid_sample.c that is compiled for each element type: T and NAME are given. */

/* Neighbours along one dim: their places (-1: outside, which counts as 0), weights, and the slopes
 * of the weights by the grid's number. */
typedef struct NAME(axis) {
  int n;
  int64_t at[4];
  T weight[4], slope[4];
} NAME(axis);

/* A place mirrored at the borders, and the sign of its slope. */
static T NAME(mirrored)(T at, int64_t size, bool align, T *sign)
{
  const T low = align ? 0 : (T)-0.5, span = (T)(align ? size - 1 : size);
  *sign = 1;
  if (span == 0) {
    *sign = 0;
    return 0;
  }
  T from = at - low;
  if (from < 0) {
    *sign = -1;
    from = -from;
  }
  const T rest = (T)fmod(from, span), flips = (T)floor(from / span);
  if (fmod(flips, 2) == 0) return rest + low;
  *sign = -*sign;
  return span - rest + low;
}

/* A place as padding_mode has it; *slope is multiplied with how it follows the place. */
static T NAME(padded)(const job *j, T at, int64_t size, T *slope)
{
  T sign;
  if (j->padding == REFLECTION) {
    at = NAME(mirrored)(at, size, j->align, &sign);
    *slope *= sign;
  }
  if (j->padding == 0) return at;
  if (!(at > 0) || at >= (T)(size - 1)) *slope = 0;
  return !(at > 0) ? 0 : at >= (T)(size - 1) ? (T)(size - 1) : at;
}

static int64_t NAME(inside)(T at, int64_t size) { return at >= 0 && at < (T)size ? (int64_t)at : -1; }

/* Keys' cubic convolution with a = -0.75, as PyTorch has it. */
static void NAME(cubic)(T t, T *w, T *slope)
{
  const T a = (T)-0.75, p = t + 1, r = 1 - t, s = 2 - t;
  w[0] = ((a * p - 5 * a) * p + 8 * a) * p - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * r - (a + 3)) * r * r + 1;
  w[3] = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a;
  slope[0] = (3 * a * p - 10 * a) * p + 8 * a;
  slope[1] = (3 * (a + 2) * t - 2 * (a + 3)) * t;
  slope[2] = -(3 * (a + 2) * r - 2 * (a + 3)) * r;
  slope[3] = -((3 * a * s - 10 * a) * s + 8 * a);
}

static void NAME(find)(const job *j, T position, int64_t size, NAME(axis) * axis)
{
  T slope = (T)(j->align ? size - 1 : size) / 2;
  T at = j->align ? (position + 1) / 2 * (T)(size - 1) : ((position + 1) * (T)size - 1) / 2;

  if (j->mode == AX_GRID_BICUBIC) {
    const T low = (T)floor(at);
    T ignored = 1;
    axis->n = 4;
    NAME(cubic)(at - low, axis->weight, axis->slope);
    for (int k = 0; k < 4; k++) {
      axis->slope[k] *= slope;
      axis->at[k] = NAME(inside)(NAME(padded)(j, low - 1 + (T)k, size, &ignored), size);
    }
    return;
  }
  at = NAME(padded)(j, at, size, &slope);
  if (j->mode == AX_GRID_NEAREST) {
    axis->n = 1;
    axis->at[0] = NAME(inside)((T)nearbyint(at), size);
    axis->weight[0] = 1;
    axis->slope[0] = 0;
    return;
  }
  const T low = (T)floor(at);
  axis->n = 2;
  axis->at[0] = NAME(inside)(low, size);
  axis->at[1] = NAME(inside)(low + 1, size);
  axis->weight[0] = low + 1 - at;
  axis->weight[1] = at - low;
  axis->slope[0] = -slope;
  axis->slope[1] = slope;
}

/* What one result is made of. */
typedef struct NAME(taps) {
  int n;
  int64_t at[MOST_TAPS]; /* elements from the image's first */
  T weight[MOST_TAPS], slope[MOST_TAPS][MOST_DIMS];
} NAME(taps);

/* The usual case, in which gather gives the same numbers with more steps: linear, an image, all
 * four neighbours inside.  Returns whether it is that. */
static bool NAME(gather_inside)(const job *j, int64_t p, bool slopes, NAME(taps) * taps)
{
  const T *grid = (const T *)j->grid + p * 2;
  const T h = (T)j->size[0], w = (T)j->size[1];
  const T y = j->align ? (grid[1] + 1) / 2 * (h - 1) : ((grid[1] + 1) * h - 1) / 2;
  const T x = j->align ? (grid[0] + 1) / 2 * (w - 1) : ((grid[0] + 1) * w - 1) / 2;
  if (!(y > 0 && y < h - 1 && x > 0 && x < w - 1)) return false;
  const int64_t top = (int64_t)y, left = (int64_t)x, at = (top * j->size[1] + left) * j->c;
  const T y1 = y - (T)top, y0 = (T)top + 1 - y, x1 = x - (T)left, x0 = (T)left + 1 - x;
  taps->n = 4;
  taps->at[0] = at;
  taps->at[1] = at + j->c;
  taps->at[2] = at + j->size[1] * j->c;
  taps->at[3] = taps->at[2] + j->c;
  taps->weight[0] = y0 * x0, taps->weight[1] = y0 * x1, taps->weight[2] = y1 * x0, taps->weight[3] = y1 * x1;
  if (!slopes) return true;
  const T down = (j->align ? h - 1 : h) / 2, right = (j->align ? w - 1 : w) / 2;
  for (int k = 0; k < 4; k++) {
    taps->slope[k][0] = (k < 2 ? y0 : y1) * (k % 2 ? right : -right);
    taps->slope[k][1] = (k < 2 ? -down : down) * (k % 2 ? x1 : x0);
    taps->slope[k][2] = 0;
  }
  return true;
}

static void NAME(gather)(const job *j, int64_t p, bool slopes, NAME(taps) * taps)
{
  if (j->dims == 2 && j->mode == 0 && j->padding != REFLECTION && NAME(gather_inside)(j, p, slopes, taps))
    return;
  const T *grid = (const T *)j->grid + p * j->dims;
  NAME(axis) axis[MOST_DIMS]; /* the grid's numbers begin with the last dim */
  for (int d = 0; d < j->dims; d++) NAME(find)(j, grid[j->dims - 1 - d], j->size[d], &axis[d]);
  if (j->dims == 2) axis[2] = (NAME(axis)){ .n = 0 };
  const NAME(axis) flat = { .n = 1, .at = { 0 }, .weight = { 1 }, .slope = { 0 } };
  const NAME(axis) *z = j->dims == 3 ? &axis[0] : &flat, *y = &axis[j->dims - 2], *x = &axis[j->dims - 1];
  const int64_t h = j->size[j->dims - 2], w = j->size[j->dims - 1];

  taps->n = 0;
  for (int a = 0; a < z->n; a++)
    for (int b = 0; b < y->n; b++)
      for (int e = 0; e < x->n; e++) {
        if (z->at[a] < 0 || y->at[b] < 0 || x->at[e] < 0) continue;
        const int k = taps->n++;
        taps->at[k] = ((z->at[a] * h + y->at[b]) * w + x->at[e]) * j->c;
        taps->weight[k] = z->weight[a] * y->weight[b] * x->weight[e];
        if (!slopes) continue;
        taps->slope[k][0] = z->weight[a] * y->weight[b] * x->slope[e];
        taps->slope[k][1] = z->weight[a] * y->slope[b] * x->weight[e];
        taps->slope[k][2] = z->slope[a] * y->weight[b] * x->weight[e];
      }
}

static void NAME(sample)(int64_t lo, int64_t hi, void *ud) /* positions */
{
  const job *j = ud;
  NAME(taps) t;
  for (int64_t p = lo; p < hi; p++) {
    const T *image = (const T *)j->x + p / j->positions * j->plane * j->c;
    T *to = (T *)j->y + p * j->c;
    NAME(gather)(j, p, false, &t);
    if (t.n == 4) { /* the usual case in one pass */
      const T *a = image + t.at[0], *b = image + t.at[1], *d = image + t.at[2], *e = image + t.at[3];
      AX_SIMD
      for (int64_t c = 0; c < j->c; c++)
        to[c] = t.weight[0] * a[c] + t.weight[1] * b[c] + t.weight[2] * d[c] + t.weight[3] * e[c];
      continue;
    }
    memset(to, 0, (size_t)j->c * sizeof(T));
    for (int k = 0; k < t.n; k++) {
      const T *from = image + t.at[k];
      AX_SIMD
      for (int64_t c = 0; c < j->c; c++) to[c] += t.weight[k] * from[c];
    }
  }
}

static void NAME(backward)(int64_t lo, int64_t hi, void *ud) /* whole images */
{
  const job *j = ud;
  NAME(taps) t;
  for (int64_t p = lo * j->positions; p < hi * j->positions; p++) {
    const int64_t n = p / j->positions;
    const T *image = (const T *)j->x + n * j->plane * j->c, *g = (const T *)j->g + p * j->c;
    T *dx = (T *)j->dx + n * j->plane * j->c, *dgrid = (T *)j->dgrid + p * j->dims;
    NAME(gather)(j, p, true, &t);
    T moved[MOST_DIMS] = { 0 };
    for (int k = 0; k < t.n; k++) {
      const T *from = image + t.at[k];
      T *to = dx + t.at[k], product = 0;
      if (j->c == 1) { /* without the loops' beginnings and ends */
        *to += t.weight[k] * *g;
        product = *g * *from;
      } else {
        AX_SIMD
        for (int64_t c = 0; c < j->c; c++) to[c] += t.weight[k] * g[c];
        _Pragma("omp simd reduction(+ : product)") for (int64_t c = 0; c < j->c; c++) product +=
            g[c] * from[c];
      }
      for (int d = 0; d < MOST_DIMS; d++) moved[d] += product * t.slope[k][d];
    }
    for (int d = 0; d < j->dims; d++) dgrid[d] += moved[d];
  }
}
