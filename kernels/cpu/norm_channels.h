/* The part of norm.c that is compiled for each element type: T, NAME and FMA are given.
 *
 * group_norm of images with the channels innermost: (N, pixels, C).  Loops run over the channels,
 * so that vectors are whole whatever the size of a group.  An image is cut into pieces of pixels,
 * whose number follows from the sizes; each piece is read once from memory and gives two numbers
 * for each channel, and the pieces are joined in order, so nothing depends on the number of
 * threads. */

static T *NAME(coefficients)(const job *j, int64_t image)
{
  return (T *)j->parts + image * (2 * j->pieces + 4) * j->groups * j->channels;
}

static T *NAME(part)(const job *j, int64_t image, int64_t piece)
{
  return NAME(coefficients)(j, image) + (4 + 2 * piece) * j->groups * j->channels;
}

static int64_t NAME(pixels)(const job *j, int64_t piece)
{
  const int64_t left = j->n - piece * j->per;
  return left < j->per ? left : j->per;
}

/* A piece of x or g: in place, or converted into the thread's buffer `which`. */
static const T *NAME(load)(const job *j, const char *from, int64_t image, int64_t piece, int which)
{
  const int64_t count = j->groups * j->channels,
                at = (image * j->n + piece * j->per) * count * (int64_t)ax_dtype_size(j->dtype);
  if (j->dtype == j->compute) return (const T *)(from + at);
  T *own = (T *)j->scratch + (3 * omp_get_thread_num() + which) * j->per * count;
  ax_cpu_half_to_float(j->dtype, from + at, 2, (float *)own, NAME(pixels)(j, piece) * count);
  return own;
}

/* ---- forward: each channel's mean, and its squared distances from this mean */

static void NAME(moments)(const T *x, int64_t pixels, int64_t count, T *mean, T *squares)
{
  int64_t p = 0;
  memset(mean, 0, (size_t)(2 * count) * sizeof(T)); /* squares stand behind the means */
  for (; p + 4 <= pixels; p += 4, x += 4 * count) {
    const T *x1 = x + count, *x2 = x1 + count, *x3 = x2 + count;
    AX_SIMD
    for (int64_t c = 0; c < count; c++) mean[c] += (x[c] + x1[c]) + (x2[c] + x3[c]);
  }
  for (; p < pixels; p++, x += count) {
    AX_SIMD
    for (int64_t c = 0; c < count; c++) mean[c] += x[c];
  }
  x -= pixels * count;
  AX_SIMD
  for (int64_t c = 0; c < count; c++) mean[c] /= (T)pixels;
  for (p = 0; p + 2 <= pixels; p += 2, x += 2 * count) {
    const T *x1 = x + count;
    AX_SIMD
    for (int64_t c = 0; c < count; c++) {
      const T d = x[c] - mean[c], e = x1[c] - mean[c];
      squares[c] += d * d + e * e;
    }
  }
  for (; p < pixels; p++, x += count) {
    AX_SIMD
    for (int64_t c = 0; c < count; c++) squares[c] += (x[c] - mean[c]) * (x[c] - mean[c]);
  }
}

/* Replaces each channel's number by the sum over its group, divided by `by`. */
static void NAME(spread)(const job *j, T *by_channel, T by)
{
  for (int64_t group = 0; group < j->groups; group++, by_channel += j->channels) {
    T sum = 0;
    for (int64_t c = 0; c < j->channels; c++) sum += by_channel[c];
    for (int64_t c = 0; c < j->channels; c++) by_channel[c] = sum / by;
  }
}

/* Joins an image's pieces; the coefficients become scale and shift: y = x scale + shift. */
static void NAME(join_moments)(const job *j, int64_t image)
{
  const int64_t count = j->groups * j->channels;
  const T *w = j->w, *b = j->b;
  T *mean = NAME(coefficients)(j, image), *var = mean + count;

  memset(mean, 0, (size_t)(2 * count) * sizeof(T));
  for (int64_t k = 0; k < j->pieces; k++) {
    const T *part = NAME(part)(j, image, k), pixels = (T)NAME(pixels)(j, k);
    AX_SIMD
    for (int64_t c = 0; c < count; c++) mean[c] += part[c] * pixels;
  }
  NAME(spread)(j, mean, (T)(j->n * j->channels));
  for (int64_t k = 0; k < j->pieces; k++) {
    const T *part = NAME(part)(j, image, k), pixels = (T)NAME(pixels)(j, k);
    AX_SIMD
    for (int64_t c = 0; c < count; c++)
      var[c] += part[count + c] + (part[c] - mean[c]) * (part[c] - mean[c]) * pixels;
  }
  NAME(spread)(j, var, (T)(j->n * j->channels));
  for (int64_t c = 0; c < count; c++) {
    const T rstd = 1 / SQRT(var[c] + (T)j->eps), by = rstd * w[c];
    if (c % j->channels == 0) {
      ((T *)j->mean)[image * j->groups + c / j->channels] = mean[c];
      ((T *)j->rstd)[image * j->groups + c / j->channels] = rstd;
    }
    var[c] = b[c] - mean[c] * by;
    mean[c] = by;
  }
}

static void NAME(normalise)(const T *x, T *y, int64_t pixels, int64_t count, const T *scale)
{
  const T *shift = scale + count;
  for (int64_t p = 0; p < pixels; p++, x += count, y += count) {
    AX_SIMD
    for (int64_t c = 0; c < count; c++) y[c] = FMA(x[c], scale[c], shift[c]);
  }
}

/* ---- backward: each channel's sums of g and of g (x - mean) */

/* The first coefficients: each channel's mean. */
static void NAME(spread_mean)(const job *j)
{
  for (int64_t row = 0; row < j->rows; row++) {
    T *mean = NAME(coefficients)(j, row / j->groups) + row % j->groups * j->channels;
    for (int64_t c = 0; c < j->channels; c++) mean[c] = ((const T *)j->mean)[row];
  }
}

static void NAME(gradient_sums)(const T *g, const T *x, int64_t pixels, int64_t count, const T *mean, T *sums)
{
  T *products = sums + count;
  int64_t p = 0;
  memset(sums, 0, (size_t)(2 * count) * sizeof(T));
  for (; p + 2 <= pixels; p += 2, g += 2 * count, x += 2 * count) {
    const T *g1 = g + count, *x1 = x + count;
    AX_SIMD
    for (int64_t c = 0; c < count; c++) {
      sums[c] += g[c] + g1[c];
      products[c] += g[c] * (x[c] - mean[c]) + g1[c] * (x1[c] - mean[c]);
    }
  }
  for (; p < pixels; p++, g += count, x += count) {
    AX_SIMD
    for (int64_t c = 0; c < count; c++) {
      sums[c] += g[c];
      products[c] += g[c] * (x[c] - mean[c]);
    }
  }
}

/* Joins an image's pieces into its sums of g and g xhat, and gives the other coefficients:
 *     dx = g by + (x - mean) slope + level */
static void NAME(join_gradient)(const job *j, int64_t image)
{
  const int64_t count = j->groups * j->channels;
  const T *w = j->w, size = (T)(j->n * j->channels);
  T *mean = NAME(coefficients)(j, image), *by = mean + count, *slope = by + count, *level = slope + count,
    *sums = (T *)j->sums + 2 * image * count;

  memset(slope, 0, (size_t)(2 * count) * sizeof(T));
  for (int64_t k = 0; k < j->pieces; k++) {
    const T *part = NAME(part)(j, image, k);
    AX_SIMD
    for (int64_t c = 0; c < count; c++) {
      level[c] += part[c];
      slope[c] += part[count + c];
    }
  }
  for (int64_t c = 0; c < count; c++) {
    const T rstd = ((const T *)j->rstd)[image * j->groups + c / j->channels];
    sums[2 * c] = level[c];
    sums[2 * c + 1] = slope[c] * rstd;
    by[c] = w[c] * rstd;
    level[c] *= -by[c];
    slope[c] *= -by[c] * rstd * rstd;
  }
  NAME(spread)(j, level, size);
  NAME(spread)(j, slope, size);
}

static void NAME(gradient)(const T *g, const T *x, T *dx, int64_t pixels, int64_t count, const T *mean)
{
  const T *by = mean + count, *slope = by + count, *level = slope + count;
  for (int64_t p = 0; p < pixels; p++, g += count, x += count, dx += count) {
    AX_SIMD
    for (int64_t c = 0; c < count; c++) dx[c] = FMA(x[c] - mean[c], slope[c], FMA(g[c], by[c], level[c]));
  }
}

/* ---- pieces, images, all */

static void NAME(measure_piece)(const job *j, int64_t image, int64_t piece)
{
  const int64_t count = j->groups * j->channels, pixels = NAME(pixels)(j, piece);
  const T *x = NAME(load)(j, j->x, image, piece, 0), *g = j->g ? NAME(load)(j, j->g, image, piece, 1) : NULL;
  T *part = NAME(part)(j, image, piece);
  if (g) NAME(gradient_sums)(g, x, pixels, count, NAME(coefficients)(j, image), part);
  else NAME(moments)(x, pixels, count, part, part + count);
}

static void NAME(join_pieces)(const job *j, int64_t image)
{
  if (j->g) NAME(join_gradient)(j, image);
  else NAME(join_moments)(j, image);
}

static void NAME(write_piece)(const job *j, int64_t image, int64_t piece)
{
  const bool half = j->dtype != j->compute;
  const int64_t count = j->groups * j->channels, pixels = NAME(pixels)(j, piece);
  const T *x = NAME(load)(j, j->x, image, piece, 0), *g = j->g ? NAME(load)(j, j->g, image, piece, 1) : NULL;
  char *to = j->y + (image * j->n + piece * j->per) * count * (int64_t)ax_dtype_size(j->dtype);
  T *y = half ? (T *)j->scratch + (3 * omp_get_thread_num() + 2) * j->per * count : (T *)to;
  if (g) NAME(gradient)(g, x, y, pixels, count, NAME(coefficients)(j, image));
  else NAME(normalise)(x, y, pixels, count, NAME(coefficients)(j, image));
  if (half) ax_cpu_float_to_half(j->dtype, (const float *)y, to, 2, pixels * count);
}

static void NAME(measure_range)(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (; lo < hi; lo++) NAME(measure_piece)(j, lo / j->pieces, lo % j->pieces);
}

static void NAME(write_range)(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (; lo < hi; lo++) NAME(write_piece)(j, lo / j->pieces, lo % j->pieces);
}

/* Whole images: a small one is still in the cache when its result is written. */
static void NAME(image_range)(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (; lo < hi; lo++) {
    NAME(measure_range)(lo * j->pieces, (lo + 1) * j->pieces, ud);
    NAME(join_pieces)(j, lo);
    NAME(write_range)(lo * j->pieces, (lo + 1) * j->pieces, ud);
  }
}

static void NAME(run_images)(job *j, int64_t work)
{
  const int64_t images = j->rows / j->groups;
  if (j->g) NAME(spread_mean)(j);
  if (images >= omp_get_max_threads()) {
    ax_cpu_for(images, work, NAME(image_range), j);
    return;
  }
  ax_cpu_for(images * j->pieces, work, NAME(measure_range), j);
  for (int64_t k = 0; k < images; k++) NAME(join_pieces)(j, k);
  ax_cpu_for(images * j->pieces, work, NAME(write_range), j);
}
