/* Images whose planes stand one after the other, linear and nearest, for one element type: the
 * positions' neighbours and weights are found for a block of positions, and then serve all
 * channels.  Included by grid_sample.c: T, NAME, and I, an integer as wide as T, are given;
 * MIX_VECTORS where vectors of so many floats gather. */

/* The neighbours of a block.  Linear: pairs of neighbours in a row, the upper pair first: the place
 * of a pair in its plane; weights; all bits set where a neighbour is inside.  A pair is inside as a
 * whole: at the left and right border one of it is no neighbour, and is masked.  Nearest: one
 * place, and its mask. */
typedef struct NAME(block) {
  I at[2][PLANE_BLOCK], in[4][PLANE_BLOCK];
  T weight[4][PLANE_BLOCK];
  bool inside; /* all of them */
} NAME(block);

/* One dim of a block's positions: numbers of the grid to places in an image of this size, such that
 * their floor is an integer from -2 to size + 1. */
static void NAME(places)(const job *j, const T *grid, int64_t n, int64_t size, T *place)
{
  const T s = (T)size, last = (T)(size - 1), most = s + 1;
  if (j->align) AX_SIMD
  for (int64_t p = 0; p < n; p++) place[p] = (grid[2 * p] + 1) / 2 * last;
  else AX_SIMD
  for (int64_t p = 0; p < n; p++) place[p] = ((grid[2 * p] + 1) * s - 1) / 2;
  if (j->padding == REFLECTION)
    for (int64_t p = 0; p < n; p++) {
      T ignored = 1;
      place[p] = NAME(padded)(j, place[p], size, &ignored);
    }
  else if (j->padding == BORDER) AX_SIMD
  for (int64_t p = 0; p < n; p++) place[p] = !(place[p] > 0) ? 0 : place[p] >= last ? last : place[p];
  AX_SIMD
  for (int64_t p = 0; p < n; p++) { /* NaN goes outside */
    const T low = place[p] > -2 ? place[p] : -2;
    place[p] = low < most ? low : most;
  }
}

static void NAME(find_linear)(const job *j, const T *y, const T *x, int64_t n, NAME(block) * b)
{
  const I h = (I)j->size[0], w = (I)j->size[1];
  I all = -1;
  _Pragma("omp simd reduction(& : all)") for (int64_t p = 0; p < n; p++)
  {
    const T top = NAME(floor)(y[p]), left = NAME(floor)(x[p]);
    const I t = (I)top, l = (I)left, pair = l < 0 ? 0 : l > w - 2 ? w - 2 : l;
    const T y1 = y[p] - top, y0 = top + 1 - y[p], x1 = x[p] - left, x0 = left + 1 - x[p];
    /* the pair's numbers are the neighbours, or one neighbour at the other one's place */
    const I up = -(I)(t >= 0) & -(I)(t < h), down = -(I)(t >= -1) & -(I)(t < h - 1);
    const I first = -(I)(l >= -1) & -(I)(l <= w - 2), second = -(I)(l >= 0) & -(I)(l <= w - 1);
    const T xa = l < 0 ? x1 : x0, xb = l > w - 2 ? x0 : x1;
    b->at[0][p] = (t * w + pair) & up, b->at[1][p] = ((t + 1) * w + pair) & down;
    b->in[0][p] = up & first, b->in[1][p] = up & second;
    b->in[2][p] = down & first, b->in[3][p] = down & second;
    b->weight[0][p] = y0 * xa, b->weight[1][p] = y0 * xb;
    b->weight[2][p] = y1 * xa, b->weight[3][p] = y1 * xb;
    all &= up & down & first & second;
  }
  b->inside = all != 0;
}

static void NAME(find_nearest)(const job *j, const T *y, const T *x, int64_t n, NAME(block) * b)
{
  const I h = (I)j->size[0], w = (I)j->size[1];
  AX_SIMD
  for (int64_t p = 0; p < n; p++) {
    const I t = (I)NAME(nearbyint)(y[p]), l = (I)NAME(nearbyint)(x[p]);
    const I in = -(I)(t >= 0) & -(I)(t < h) & -(I)(l >= 0) & -(I)(l < w);
    b->in[0][p] = in;
    b->at[0][p] = (t * w + l) & in;
  }
}

#ifdef MIX_VECTORS
/* A gather takes its time by element, so both numbers of a pair come as one. */
static inline __attribute__((always_inline)) void mix_vectors(const NAME(block) * b, const float *plane,
                                                              int64_t p, float *to)
{
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  __m512 v[4], sum;
  for (int k = 0; k < 2; k++) {
    const __m512i at = _mm512_loadu_si512(b->at[k] + p);
    const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(at), plane, 4);
    const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(at, 1), plane, 4);
    const __m512i first = _mm512_permutex2var_epi32(low, even, high);
    const __m512i second = _mm512_permutex2var_epi32(low, odd, high);
    v[2 * k] = _mm512_castsi512_ps(_mm512_and_si512(first, _mm512_loadu_si512(b->in[2 * k] + p)));
    v[2 * k + 1] = _mm512_castsi512_ps(_mm512_and_si512(second, _mm512_loadu_si512(b->in[2 * k + 1] + p)));
  }
  sum = _mm512_mul_ps(v[0], _mm512_loadu_ps(b->weight[0] + p));
  for (int k = 1; k < 4; k++)
    sum = _mm512_add_ps(sum, _mm512_mul_ps(v[k], _mm512_loadu_ps(b->weight[k] + p)));
  _mm512_storeu_ps(to + p, sum);
}
#endif

static void NAME(mix)(const NAME(block) * b, const T *plane, int64_t n, T *to)
{
  const T *const w0 = b->weight[0], *const w1 = b->weight[1], *const w2 = b->weight[2],
                 *const w3 = b->weight[3];
  const I *const up = b->at[0], *const down = b->at[1];
  int64_t begin = 0;
#ifdef MIX_VECTORS
  for (; begin + MIX_VECTORS <= n; begin += MIX_VECTORS) mix_vectors(b, plane, begin, to);
#endif
  if (b->inside) {
    AX_SIMD
    for (int64_t p = begin; p < n; p++)
      to[p] = w0[p] * plane[up[p]] + w1[p] * plane[up[p] + 1] + w2[p] * plane[down[p]] +
              w3[p] * plane[down[p] + 1];
    return;
  }
  AX_SIMD
  for (int64_t p = begin; p < n; p++) {
    const T v0 = plane[up[p]], v1 = plane[up[p] + 1], v2 = plane[down[p]], v3 = plane[down[p] + 1];
    to[p] = w0[p] * (b->in[0][p] ? v0 : 0) + w1[p] * (b->in[1][p] ? v1 : 0) + w2[p] * (b->in[2][p] ? v2 : 0) +
            w3[p] * (b->in[3][p] ? v3 : 0);
  }
}

static void NAME(pick)(const NAME(block) * b, const T *plane, int64_t n, T *to)
{
  const I *const at = b->at[0], *const in = b->in[0];
  AX_SIMD
  for (int64_t p = 0; p < n; p++) {
    const T v = plane[at[p]];
    to[p] = in[p] ? v : 0;
  }
}

static void NAME(sample_planes)(int64_t lo, int64_t hi, void *ud) /* blocks of positions */
{
  const job *j = ud;
  const int64_t per = (j->positions + PLANE_BLOCK - 1) / PLANE_BLOCK;
  T y[PLANE_BLOCK], x[PLANE_BLOCK];
  NAME(block) block;
  for (int64_t u = lo; u < hi; u++) {
    const int64_t image = u / per, first = u % per * PLANE_BLOCK,
                  n = j->positions - first < PLANE_BLOCK ? j->positions - first : PLANE_BLOCK;
    const T *grid = (const T *)j->grid + 2 * (image * j->positions + first);
    NAME(places)(j, grid, n, j->size[1], x);
    NAME(places)(j, grid + 1, n, j->size[0], y);
    (j->mode == AX_GRID_NEAREST ? NAME(find_nearest) : NAME(find_linear))(j, y, x, n, &block);
    for (int64_t c = 0; c < j->c; c++) {
      const T *plane = (const T *)j->x + (image * j->c + c) * j->plane;
      T *to = (T *)j->y + (image * j->c + c) * j->positions + first;
      (j->mode == AX_GRID_NEAREST ? NAME(pick) : NAME(mix))(&block, plane, n, to);
    }
  }
}
