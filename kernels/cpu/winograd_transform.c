/* The transforms of Winograd's convolutions: of tiles, of weights, and back.  See winograd.c. */
#include "winograd.h"

typedef ax_vec_f32 vec;

/* ---- images of either type: `half` is a constant in every use */

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const void *image, int64_t at, bool half)
{
  return half ? ax_vec_from_bf16((const uint16_t *)image + at) : *(const vec *)((const float *)image + at);
}

INLINE void store(void *image, int64_t at, vec v, bool half)
{
  if (half) ax_vec_to_bf16((uint16_t *)image + at, v);
  else *(vec *)((float *)image + at) = v;
}

/* ---- transforms of one vector of channels */

#define FMA(a, b, c) AX_VFMA_f32((vec){ 0 } + (a), b, c)

static inline void times_b(const vec *d, vec *o) /* B' d */
{
  const vec t1 = FMA(-4, d[2], d[4]), t2 = FMA(-4, d[1], d[3]), t3 = d[4] - d[2], t4 = d[3] - d[1];
  o[0] = FMA(4, d[0], FMA(-5, d[2], d[4]));
  o[1] = t1 + t2;
  o[2] = t1 - t2;
  o[3] = FMA(2, t4, t3);
  o[4] = FMA(-2, t4, t3);
  o[5] = FMA(4, d[1], FMA(-5, d[3], d[5]));
}

static inline void times_at(const vec *m, vec *o) /* A' m: 6 to 4 */
{
  const vec s1 = m[1] + m[2], d1 = m[1] - m[2], s2 = m[3] + m[4], d2 = m[3] - m[4];
  o[0] = m[0] + s1 + s2;
  o[1] = FMA(2, d2, d1);
  o[2] = FMA(4, s2, s1);
  o[3] = FMA(8, d2, d1) + m[5];
}

static inline void times_a(const vec *g, vec *o) /* A g: 4 to 6 */
{
  const vec e = g[0] + g[2], f = g[1] + g[3], e2 = FMA(4, g[2], g[0]), f2 = FMA(4, g[3], g[1]);
  o[0] = g[0];
  o[1] = e + f;
  o[2] = e - f;
  o[3] = FMA(2, f2, e2);
  o[4] = FMA(-2, f2, e2);
  o[5] = g[3];
}

static inline void times_g(const vec *g, vec *o) /* G g: 3 to 6 */
{
  const vec s = (g[0] + g[2]) * (-1.0f / 6), t = g[0] * (1.0f / 24) + g[2] * (1.0f / 6),
            u = g[1] * (1.0f / 6), v = g[1] * (1.0f / 12);
  o[0] = g[0] * 0.25f;
  o[1] = s - u;
  o[2] = s + u;
  o[3] = t + v;
  o[4] = t - v;
  o[5] = g[2];
}

static inline void times_gt(const vec *u, vec *o) /* G' u: 6 to 3 */
{
  const vec s1 = (u[1] + u[2]) * (1.0f / 6), s2 = u[3] + u[4];
  o[0] = u[0] * 0.25f - s1 + s2 * (1.0f / 24);
  o[1] = (u[2] - u[1]) * (1.0f / 6) + (u[3] - u[4]) * (1.0f / 12);
  o[2] = s2 * (1.0f / 6) - s1 + u[5];
}

/* ---- tiles */

static inline void place(const ax_wino_call *p, int64_t tile, int64_t *n, int64_t *ty, int64_t *tx)
{
  const int64_t down = (p->oh + WINO_TILE - 1) / WINO_TILE;
  *tx = tile % p->across * WINO_TILE;
  *ty = tile / p->across % down * WINO_TILE;
  *n = tile / p->across / down;
}

/* Pixels outside of an image: as many channels as ax_wino_fits allows. */
static const float nothing[WINO_MAX_CHANNELS] __attribute__((aligned(64)));

/* The addresses of the pixels of a square with corner (y0, x0): `side` rows of `side` pixels in an
 * image of h x w with c channels. */
static __attribute__((noinline)) void pixels(const void *image, int64_t h, int64_t w, int64_t c, int64_t y0,
                                             int64_t x0, int side, bool half, const void **at)
{
  const int64_t step = c * (half ? 2 : 4);
  for (int i = 0; i < side; i++) {
    const bool in_y = y0 + i >= 0 && y0 + i < h;
    const char *row = (const char *)image + ((y0 + i) * w + x0) * step;
    for (int j = 0; j < side; j++)
      at[i * side + j] = in_y && x0 + j >= 0 && x0 + j < w ? (const void *)(row + j * step) : nothing;
  }
}

INLINE const void *image_of(const void *images, int64_t n, int64_t size, bool half)
{
  return (const char *)images + n * size * (half ? 2 : 4);
}

/* Transforms tile `tile`, B' d B, into the t-th of the block. */
INLINE void tile_in(const ax_wino_call *p, const void *const *at, const void *const *next, float *v,
                    int64_t t, bool half)
{
  for (int64_t c = 0; c < p->c; c += WINO_LANES) {
    vec d[WINO_SIDE], done[WINO_SIDE][WINO_SIDE], out[WINO_SIDE];
    for (int k = 0; k < WINO_POINTS; k++) __builtin_prefetch((const char *)next[k] + c * (half ? 2 : 4));
    for (int j = 0; j < WINO_SIDE; j++) { /* columns first */
      for (int i = 0; i < WINO_SIDE; i++) d[i] = load(at[i * WINO_SIDE + j], c, half);
      times_b(d, out);
      for (int i = 0; i < WINO_SIDE; i++) done[i][j] = out[i];
    }
    float *to = v + t * p->c + c;
    for (int i = 0; i < WINO_SIDE; i++) {
      times_b(done[i], out);
      for (int j = 0; j < WINO_SIDE; j++) *(vec *)(to + (i * WINO_SIDE + j) * p->plane_c) = out[j];
    }
  }
}

/* Transforms back, A' m A, into y. */
INLINE void tile_out(const ax_wino_call *p, int64_t tile, const float *m, int64_t t, bool half)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  const int64_t rows = p->oh - ty < WINO_TILE ? p->oh - ty : WINO_TILE,
                cols = p->ow - tx < WINO_TILE ? p->ow - tx : WINO_TILE;
  const int64_t to = ((n * p->oh + ty) * p->ow + tx) * p->o;

  for (int64_t o = 0; o < p->o; o += WINO_LANES) {
    vec in[WINO_SIDE], done[WINO_TILE][WINO_SIDE], out[WINO_TILE];
    const float *from = m + t * p->o + o;
    const vec bias = p->bias ? load(p->bias, o, half) : (vec){ 0 };
    for (int j = 0; j < WINO_SIDE; j++) {
      for (int i = 0; i < WINO_SIDE; i++) in[i] = *(const vec *)(from + (i * WINO_SIDE + j) * p->plane_o);
      times_at(in, out);
      for (int i = 0; i < WINO_TILE; i++) done[i][j] = out[i];
    }
    for (int i = 0; i < rows; i++) {
      times_at(done[i], out);
      for (int j = 0; j < cols; j++) store(p->y, to + (i * p->ow + j) * p->o + o, out[j] + bias, half);
    }
  }
}

/* Transforms a tile of g, A g A', into the t-th of the block. */
INLINE void tile_gradient(const ax_wino_call *p, int64_t tile, float *m, int64_t t, bool half)
{
  const void *at[WINO_TILE * WINO_TILE];
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  pixels(image_of(p->y, n, p->oh * p->ow * p->o, half), p->oh, p->ow, p->o, ty, tx, WINO_TILE, half, at);

  for (int64_t o = 0; o < p->o; o += WINO_LANES) {
    vec in[WINO_TILE], done[WINO_SIDE][WINO_TILE], out[WINO_SIDE];
    for (int j = 0; j < WINO_TILE; j++) {
      for (int i = 0; i < WINO_TILE; i++) in[i] = load(at[i * WINO_TILE + j], o, half);
      times_a(in, out);
      for (int i = 0; i < WINO_SIDE; i++) done[i][j] = out[i];
    }
    float *to = m + t * p->o + o;
    for (int i = 0; i < WINO_SIDE; i++) {
      times_a(done[i], out);
      for (int j = 0; j < WINO_SIDE; j++) *(vec *)(to + (i * WINO_SIDE + j) * p->plane_o) = out[j];
    }
  }
}

static void find_tile(const ax_wino_call *p, int64_t tile, const void **at)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  pixels(image_of(p->x, n, p->h * p->w * p->c, p->half), p->h, p->w, p->c, ty - p->pad_y, tx - p->pad_x,
         WINO_SIDE, p->half, at);
}
void ax_wino_tiles_in(const ax_wino_call *p, int64_t first, int64_t lo, int64_t hi, float *v)
{
  const void *at[2][WINO_POINTS];
  find_tile(p, first + lo, at[lo & 1]);
  for (int64_t t = lo; t < hi; t++) {
    find_tile(p, first + t + 1 < p->tiles ? first + t + 1 : first + t, at[(t + 1) & 1]);
    if (p->half) tile_in(p, at[t & 1], at[(t + 1) & 1], v, t, true);
    else tile_in(p, at[t & 1], at[(t + 1) & 1], v, t, false);
  }
}

void ax_wino_tiles_out(const ax_wino_call *p, int64_t first, int64_t count, const float *m)
{
  if (p->half)
    for (int64_t t = 0; t < count; t++) tile_out(p, first + t, m, t, true);
  else
    for (int64_t t = 0; t < count; t++) tile_out(p, first + t, m, t, false);
}

void ax_wino_gradient_tiles(int64_t lo, int64_t hi, void *ud) /* tiles of the block under way */
{
  const ax_wino_call *p = ud;
  ax_wino_tiles_in(p, p->first, lo, hi, p->v);
  if (p->half)
    for (int64_t t = lo; t < hi; t++) tile_gradient(p, p->first + t, p->m, t, true);
  else
    for (int64_t t = lo; t < hi; t++) tile_gradient(p, p->first + t, p->m, t, false);
}

/* ---- weights */

static inline float tap_at(const ax_wino_kernels *k, int64_t at)
{
  return k->half ? ax_bf16_to_float(((const uint16_t *)k->w)[at]) : ((const float *)k->w)[at];
}

void ax_wino_weights_in(int64_t lo, int64_t hi, void *ud) /* read channels */
{
  const ax_wino_kernels *k = ud;
  const ax_wino_call *p = k->p;
  /* the distance between written channels in w */
  const int64_t panels = (p->o + WINO_PANEL - 1) / WINO_PANEL, step = k->turned ? 9 : k->c * 9;

  for (int64_t read = lo; read < hi; read++)
    for (int64_t o = 0; o < p->o; o += WINO_LANES) {
      const int64_t from = (k->turned ? read * k->c + o : o * k->c + read) * 9;
      float taps[9][WINO_LANES] __attribute__((aligned(64)));
      vec in[3], done[WINO_SIDE][3], out[WINO_SIDE];
      for (int l = 0; l < WINO_LANES; l++)
        for (int tap = 0; tap < 9; tap++)
          taps[k->turned ? 8 - tap : tap][l] = tap_at(k, from + l * step + tap);
      for (int j = 0; j < 3; j++) {
        for (int i = 0; i < 3; i++) in[i] = *(const vec *)taps[i * 3 + j];
        times_g(in, out);
        for (int i = 0; i < WINO_SIDE; i++) done[i][j] = out[i];
      }
      float *to = p->u + (o / WINO_PANEL * p->c + read) * WINO_PANEL + o % WINO_PANEL;
      for (int i = 0; i < WINO_SIDE; i++) {
        times_g(done[i], out);
        for (int j = 0; j < WINO_SIDE; j++)
          *(vec *)(to + (i * WINO_SIDE + j) * panels * p->c * WINO_PANEL) = out[j];
      }
    }
}

void ax_wino_weights_out(int64_t lo, int64_t hi, void *ud) /* input channels */
{
  const ax_wino_kernels *k = ud;
  const ax_wino_call *p = k->p;

  for (int64_t c = lo; c < hi; c++)
    for (int64_t o = 0; o < p->o; o += WINO_LANES) {
      float taps[9][WINO_LANES] __attribute__((aligned(64)));
      vec in[WINO_SIDE], done[3][WINO_SIDE], out[3];
      for (int j = 0; j < WINO_SIDE; j++) {
        for (int i = 0; i < WINO_SIDE; i++)
          in[i] = *(const vec *)(p->u + ((i * WINO_SIDE + j) * p->c + c) * p->o + o);
        times_gt(in, out);
        for (int i = 0; i < 3; i++) done[i][j] = out[i];
      }
      for (int i = 0; i < 3; i++) {
        times_gt(done[i], out);
        for (int j = 0; j < 3; j++) *(vec *)taps[i * 3 + j] = out[j];
      }
      for (int l = 0; l < WINO_LANES; l++) {
        const int64_t to = ((o + l) * p->c + c) * 9;
        for (int tap = 0; tap < 9; tap++) {
          const float sum = k->add ? tap_at(k, to + tap) + taps[tap][l] : taps[tap][l];
          if (k->half) ((uint16_t *)k->w)[to + tap] = ax_float_to_bf16(sum);
          else ((float *)k->w)[to + tap] = sum;
        }
      }
    }
}
