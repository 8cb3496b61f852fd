/* 3 x 3 convolutions of stride 1 by Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2016): a tile of 4 x
 * 4 results from 6 x 6 inputs takes 36 products where the plain sum takes 144.  With the
 * transforms, which are cheap sums along the channels, it is two to three times as fast as oneDNN's
 * direct code. The results differ from those of a plain sum by about 1e-5 of the largest one (a
 * plain sum has an error of about 1e-6).
 *
 * bfloat16 images and weights are read as they are and computed in float32: the transforms would
 * lose too much in bfloat16, and a quarter of the products in float32 takes half the time of all of
 * them in bfloat16.
 *
 *   y = A' [ (G w G') . (B' d B) ] A        summed over the input channels: 36 matrix products
 *                                           (tiles x c) x (c x o)
 *   dw = G' [ sum over tiles of (B' d B) . (A g A') ] G
 *                                           36 products (c x tiles) x (tiles x o)
 *
 * The gradient of the input is a convolution of g with the weights reversed.  Tiles are computed in
 * blocks whose transforms stay in the second-level cache; threads share blocks (weights: tiles,
 * then the 36 products).  Blocks and the order of additions follow from the sizes alone.  The
 * products bound the kernel. */
#include "conv.h"
#include "vector.h"

#include <omp.h>
#include <string.h>

#if defined(__AVX512F__)
/* rows of results that the product keeps in registers, two vectors each; the remaining rows are
 * computed in smaller groups */
#define ROWS_1 12
#define ROWS_2 8
#elif defined(__AVX__)
#define ROWS_1 6
#define ROWS_2 4
#else
#define ROWS_1 6
#define ROWS_2 4
#endif

typedef ax_vec_f32 vec;
enum { LANES = AX_BYTES / 4, PANEL = 2 * LANES, TILE = 4, SIDE = 6, POINTS = SIDE * SIDE };
enum {
  CACHE = 640 * 1024 /* bytes of transforms in a block */,
  MIN_TILES = 24,
  MAX_TILES = 192,
  SKEW = 16 /* floats, so that the 36 planes start at different cache sets */
};

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

/* ---- the 36 products */

/* c (ROWS x N vectors, rows c_row apart) = a (rows a_row apart, steps a_step) x b (steps b_step
 * apart) over `depth` steps, or +=. */
#define UNROLLED _Pragma("GCC unroll 12")
#define MICRO(name, ROWS, N) \
  __attribute__((optimize("fp-contract=fast"))) static void name(int64_t depth, const float *a, \
                                                                 int64_t a_row, int64_t a_step, \
                                                                 const float *b, int64_t b_step, float *c, \
                                                                 int64_t c_row, bool add) \
  { \
    vec s[ROWS][N]; \
    if (add) { \
      UNROLLED \
      for (int i = 0; i < ROWS; i++) { \
        UNROLLED \
        for (int j = 0; j < N; j++) s[i][j] = *(const vec *)(c + i * c_row + j * LANES); \
      } \
    } else { \
      UNROLLED \
      for (int i = 0; i < ROWS; i++) { \
        UNROLLED \
        for (int j = 0; j < N; j++) s[i][j] = (vec){ 0 }; \
      } \
    } \
    for (int64_t p = 0; p < depth; p++, a += a_step, b += b_step) { \
      vec v[N]; \
      UNROLLED \
      for (int j = 0; j < N; j++) v[j] = *(const vec *)(b + j * LANES); \
      UNROLLED \
      for (int i = 0; i < ROWS; i++) { \
        UNROLLED \
        for (int j = 0; j < N; j++) s[i][j] += a[i * a_row] * v[j]; \
      } \
    } \
    UNROLLED \
    for (int i = 0; i < ROWS; i++) { \
      UNROLLED \
      for (int j = 0; j < N; j++) *(vec *)(c + i * c_row + j * LANES) = s[i][j]; \
    } \
  }
MICRO(micro_1_2, ROWS_1, 2)
MICRO(micro_2_2, ROWS_2, 2)
MICRO(micro_3_2, 2, 2)
MICRO(micro_4_2, 1, 2)
MICRO(micro_1_1, ROWS_1, 1)
MICRO(micro_2_1, ROWS_2, 1)
MICRO(micro_3_1, 2, 1)
MICRO(micro_4_1, 1, 1)

typedef void (*micro)(int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b,
                      int64_t b_step, float *c, int64_t c_row, bool add);

/* c (rows x cols) = a x b, or +=.  b has panels of PANEL columns that are b_panel apart (the last
 * one may be half as wide). */
static void product(int64_t rows, int64_t cols, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                    const float *b, int64_t b_panel, int64_t b_step, float *c, int64_t c_row, bool add)
{
  static const micro wide[4] = { micro_1_2, micro_2_2, micro_3_2, micro_4_2 },
                     half[4] = { micro_1_1, micro_2_1, micro_3_1, micro_4_1 };
  static const int sizes[4] = { ROWS_1, ROWS_2, 2, 1 };
  for (int64_t i = 0; i < rows;) {
    const int kind = rows - i >= sizes[0] ? 0 : rows - i >= sizes[1] ? 1 : rows - i >= sizes[2] ? 2 : 3;
    for (int64_t j = 0; j < cols; j += PANEL)
      (cols - j >= PANEL ? wide : half)[kind](depth, a + i * a_row, a_row, a_step, b + j / PANEL * b_panel,
                                              b_step, c + i * c_row + j, c_row, add);
    i += sizes[kind];
  }
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

/* ---- one problem */

typedef struct wino {
  int64_t n, c, o; /* channels read and written (WEIGHT: of x and of g) */
  int64_t h, w, oh, ow, pad_y, pad_x;
  int64_t across, tiles;           /* tiles in a row of an image; tiles in all */
  int64_t block, plane_c, plane_o; /* tiles in a block; floats in a plane of its transforms */
  bool half;                       /* x, y, bias are bfloat16, else float32 */
  const void *x;                   /* (n, h, w, c) */
  void *y;                         /* (n, oh, ow, o): written; WEIGHT: g, read */
  const void *bias;
  float *u;      /* FORWARD, INPUT: (36, panels, c, PANEL).  WEIGHT: (36, c, o) */
  float *v, *m;  /* the transforms of a block; for each thread */
  int64_t first; /* WEIGHT: the first tile of the current block */
} wino;

static inline void place(const wino *p, int64_t tile, int64_t *n, int64_t *ty, int64_t *tx)
{
  const int64_t down = (p->oh + TILE - 1) / TILE;
  *tx = tile % p->across * TILE;
  *ty = tile / p->across % down * TILE;
  *n = tile / p->across / down;
}

/* Pixels outside of an image: as many channels as ax_wino_fits allows. */
enum { MAX_CHANNELS = 1024 };
static const float nothing[MAX_CHANNELS] __attribute__((aligned(64)));

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
INLINE void tile_in(const wino *p, const void *const *at, const void *const *next, float *v, int64_t t,
                    bool half)
{
  for (int64_t c = 0; c < p->c; c += LANES) {
    vec d[SIDE], done[SIDE][SIDE], out[SIDE];
    for (int k = 0; k < POINTS; k++) __builtin_prefetch((const char *)next[k] + c * (half ? 2 : 4));
    for (int j = 0; j < SIDE; j++) { /* columns first */
      for (int i = 0; i < SIDE; i++) d[i] = load(at[i * SIDE + j], c, half);
      times_b(d, out);
      for (int i = 0; i < SIDE; i++) done[i][j] = out[i];
    }
    float *to = v + t * p->c + c;
    for (int i = 0; i < SIDE; i++) {
      times_b(done[i], out);
      for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * p->plane_c) = out[j];
    }
  }
}

/* Transforms back, A' m A, into y. */
INLINE void tile_out(const wino *p, int64_t tile, const float *m, int64_t t, bool half)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  const int64_t rows = p->oh - ty < TILE ? p->oh - ty : TILE, cols = p->ow - tx < TILE ? p->ow - tx : TILE;
  const int64_t to = ((n * p->oh + ty) * p->ow + tx) * p->o;

  for (int64_t o = 0; o < p->o; o += LANES) {
    vec in[SIDE], done[TILE][SIDE], out[TILE];
    const float *from = m + t * p->o + o;
    const vec bias = p->bias ? load(p->bias, o, half) : (vec){ 0 };
    for (int j = 0; j < SIDE; j++) {
      for (int i = 0; i < SIDE; i++) in[i] = *(const vec *)(from + (i * SIDE + j) * p->plane_o);
      times_at(in, out);
      for (int i = 0; i < TILE; i++) done[i][j] = out[i];
    }
    for (int i = 0; i < rows; i++) {
      times_at(done[i], out);
      for (int j = 0; j < cols; j++) store(p->y, to + (i * p->ow + j) * p->o + o, out[j] + bias, half);
    }
  }
}

/* Transforms a tile of g, A g A', into the t-th of the block. */
INLINE void tile_gradient(const wino *p, int64_t tile, float *m, int64_t t, bool half)
{
  const void *at[TILE * TILE];
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  pixels(image_of(p->y, n, p->oh * p->ow * p->o, half), p->oh, p->ow, p->o, ty, tx, TILE, half, at);

  for (int64_t o = 0; o < p->o; o += LANES) {
    vec in[TILE], done[SIDE][TILE], out[SIDE];
    for (int j = 0; j < TILE; j++) {
      for (int i = 0; i < TILE; i++) in[i] = load(at[i * TILE + j], o, half);
      times_a(in, out);
      for (int i = 0; i < SIDE; i++) done[i][j] = out[i];
    }
    float *to = m + t * p->o + o;
    for (int i = 0; i < SIDE; i++) {
      times_a(done[i], out);
      for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * p->plane_o) = out[j];
    }
  }
}

/* ---- weights */

/* c, o: as in w; half: w is bfloat16 */
typedef struct kernels {
  const wino *p;
  void *w;
  int64_t c, o;
  bool turned, add, half;
} kernels;

static inline float tap_at(const kernels *k, int64_t at)
{
  return k->half ? ax_bf16_to_float(((const uint16_t *)k->w)[at]) : ((const float *)k->w)[at];
}

/* Transforms weights, G w G', for vectors of written channels: (36, panels, read, PANEL).  turned:
 * reads w's outputs, writes its inputs, and reverses its taps. */
static void weights_in(int64_t lo, int64_t hi, void *ud) /* read channels */
{
  const kernels *k = ud;
  const wino *p = k->p;
  /* the distance between written channels in w */
  const int64_t panels = (p->o + PANEL - 1) / PANEL, step = k->turned ? 9 : k->c * 9;

  for (int64_t read = lo; read < hi; read++)
    for (int64_t o = 0; o < p->o; o += LANES) {
      const int64_t from = (k->turned ? read * k->c + o : o * k->c + read) * 9;
      float taps[9][LANES] __attribute__((aligned(64)));
      vec in[3], done[SIDE][3], out[SIDE];
      for (int l = 0; l < LANES; l++)
        for (int tap = 0; tap < 9; tap++)
          taps[k->turned ? 8 - tap : tap][l] = tap_at(k, from + l * step + tap);
      for (int j = 0; j < 3; j++) {
        for (int i = 0; i < 3; i++) in[i] = *(const vec *)taps[i * 3 + j];
        times_g(in, out);
        for (int i = 0; i < SIDE; i++) done[i][j] = out[i];
      }
      float *to = p->u + (o / PANEL * p->c + read) * PANEL + o % PANEL;
      for (int i = 0; i < SIDE; i++) {
        times_g(done[i], out);
        for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * panels * p->c * PANEL) = out[j];
      }
    }
}

/* Transforms back, G' u G, into w (o, c, 3, 3). */
static void weights_out(int64_t lo, int64_t hi, void *ud) /* input channels */
{
  const kernels *k = ud;
  const wino *p = k->p;

  for (int64_t c = lo; c < hi; c++)
    for (int64_t o = 0; o < p->o; o += LANES) {
      float taps[9][LANES] __attribute__((aligned(64)));
      vec in[SIDE], done[3][SIDE], out[3];
      for (int j = 0; j < SIDE; j++) {
        for (int i = 0; i < SIDE; i++) in[i] = *(const vec *)(p->u + ((i * SIDE + j) * p->c + c) * p->o + o);
        times_gt(in, out);
        for (int i = 0; i < 3; i++) done[i][j] = out[i];
      }
      for (int i = 0; i < 3; i++) {
        times_gt(done[i], out);
        for (int j = 0; j < 3; j++) *(vec *)taps[i * 3 + j] = out[j];
      }
      for (int l = 0; l < LANES; l++) {
        const int64_t to = ((o + l) * p->c + c) * 9;
        for (int tap = 0; tap < 9; tap++) {
          const float sum = k->add ? tap_at(k, to + tap) + taps[tap][l] : taps[tap][l];
          if (k->half) ((uint16_t *)k->w)[to + tap] = ax_float_to_bf16(sum);
          else ((float *)k->w)[to + tap] = sum;
        }
      }
    }
}

/* ---- blocks of tiles */

static void find_tile(const wino *p, int64_t tile, const void **at)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  pixels(image_of(p->x, n, p->h * p->w * p->c, p->half), p->h, p->w, p->c, ty - p->pad_y, tx - p->pad_x, SIDE,
         p->half, at);
}
static void tiles_in(const wino *p, int64_t first, int64_t lo, int64_t hi, float *v)
{
  const void *at[2][POINTS];
  find_tile(p, first + lo, at[lo & 1]);
  for (int64_t t = lo; t < hi; t++) {
    find_tile(p, first + t + 1 < p->tiles ? first + t + 1 : first + t, at[(t + 1) & 1]);
    if (p->half) tile_in(p, at[t & 1], at[(t + 1) & 1], v, t, true);
    else tile_in(p, at[t & 1], at[(t + 1) & 1], v, t, false);
  }
}

static void tiles_out(const wino *p, int64_t first, int64_t count, const float *m)
{
  if (p->half)
    for (int64_t t = 0; t < count; t++) tile_out(p, first + t, m, t, true);
  else
    for (int64_t t = 0; t < count; t++) tile_out(p, first + t, m, t, false);
}

static void convolve_blocks(int64_t lo, int64_t hi, void *ud)
{
  const wino *p = ud;
  const int64_t who = omp_get_thread_num(), panels = (p->o + PANEL - 1) / PANEL;
  float *v = p->v + who * POINTS * p->plane_c, *m = p->m + who * POINTS * p->plane_o;

  for (int64_t b = lo; b < hi; b++) {
    const int64_t first = b * p->block, count = p->tiles - first < p->block ? p->tiles - first : p->block;
    tiles_in(p, first, 0, count, v);
    for (int64_t i = 0; i < POINTS; i++)
      product(count, p->o, p->c, v + i * p->plane_c, p->c, 1, p->u + i * panels * p->c * PANEL, p->c * PANEL,
              PANEL, m + i * p->plane_o, p->o, false);
    tiles_out(p, first, count, m);
  }
}

static void gradient_tiles(int64_t lo, int64_t hi, void *ud) /* tiles of the block under way */
{
  const wino *p = ud;
  tiles_in(p, p->first, lo, hi, p->v);
  if (p->half)
    for (int64_t t = lo; t < hi; t++) tile_gradient(p, p->first + t, p->m, t, true);
  else
    for (int64_t t = lo; t < hi; t++) tile_gradient(p, p->first + t, p->m, t, false);
}

static void gradient_points(int64_t lo, int64_t hi, void *ud)
{
  const wino *p = ud;
  const int64_t count = p->tiles - p->first < p->block ? p->tiles - p->first : p->block;
  for (int64_t i = lo; i < hi; i++)
    product(p->c, p->o, count, p->v + i * p->plane_c, 1, p->c, p->m + i * p->plane_o, PANEL, p->o,
            p->u + i * p->c * p->o, p->o, p->first > 0);
}

/* ---- one call */

bool ax_wino_fits(const ax_conv *v)
{
  const int64_t tiles = ((v->oh + TILE - 1) / TILE) * ((v->ow + TILE - 1) / TILE);
  return (v->dtype == AX_F32 || v->dtype == AX_BF16) && v->d == 1 && v->kd == 1 && v->padding[0] == 0 &&
         v->kh == 3 && v->kw == 3 && v->stride[1] == 1 && v->stride[2] == 1 && v->dilation[1] == 1 &&
         v->dilation[2] == 1 && v->groups == 1 && v->padding[1] <= 2 && v->padding[2] <= 2 &&
         v->c % 16 == 0 && v->o % 16 == 0 && v->c <= MAX_CHANNELS && v->o <= MAX_CHANNELS &&
         tiles * TILE * TILE <= 2 * v->oh * v->ow && v->n * tiles >= MIN_TILES;
}

ax_status ax_wino(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  const bool turned = v->what == AX_CONV_INPUT, weight = v->what == AX_CONV_WEIGHT;
  wino p = { .n = v->n,
             .c = v->c,
             .o = v->o,
             .h = v->h,
             .w = v->w,
             .oh = v->oh,
             .ow = v->ow,
             .pad_y = v->padding[1],
             .pad_x = v->padding[2],
             .x = d->x,
             .y = d->y,
             .bias = v->what == AX_CONV_FORWARD && v->bias ? d->bias : NULL };
  void *u = NULL, *space = NULL;
  const int64_t threads = weight ? 1 : omp_get_max_threads();
  ax_status st;

  p.half = v->dtype == AX_BF16;
  if (turned) /* a convolution of g with the weights reversed */
    p = (wino){ .n = v->n,
                .c = v->o,
                .o = v->c,
                .h = v->oh,
                .w = v->ow,
                .oh = v->h,
                .ow = v->w,
                .pad_y = 2 - v->padding[1],
                .pad_x = 2 - v->padding[2],
                .half = p.half,
                .x = d->y,
                .y = d->x };
  p.across = (p.ow + TILE - 1) / TILE;
  p.tiles = p.n * p.across * ((p.oh + TILE - 1) / TILE);
  p.block = CACHE / (POINTS * (p.c + p.o) * (int64_t)sizeof(float)) / ROWS_1 * ROWS_1;
  p.block = p.block < MIN_TILES ? MIN_TILES : p.block > MAX_TILES ? MAX_TILES : p.block;
  p.plane_c = p.block * p.c + SKEW;
  p.plane_o = p.block * p.o + SKEW;
  const int64_t panels = (p.o + PANEL - 1) / PANEL, blocks = (p.tiles + p.block - 1) / p.block;
  const size_t u_bytes = (size_t)(POINTS * p.c * (weight ? p.o : panels * PANEL)) * sizeof(float);
  const size_t bytes = (size_t)(threads * POINTS * (p.plane_c + p.plane_o)) * sizeof(float);
  kernels k = { &p, d->w, v->c, v->o, turned, accumulate, p.half && !d->wide };
  static __thread int64_t *calls[2];

  if (!calls[p.half])
    calls[p.half] = ax_cpu_counter(p.half ? "convolution bfloat16, Winograd in float32"
                                          : "convolution float32, Winograd");
  ++*calls[p.half];
  AX_TRY(ax_alloc(u_bytes, &u));
  AX_TRY(ax_alloc(bytes, &space));
  p.u = u;
  p.v = space;
  p.m = p.v + threads * POINTS * p.plane_c;
  if (!weight) {
    ax_cpu_for(p.c, POINTS * p.c * p.o, weights_in, &k);
    ax_cpu_for(blocks, p.tiles * p.c * p.o, convolve_blocks, &p);
    goto out;
  }
  for (; p.first < p.tiles; p.first += p.block) {
    const int64_t count = p.tiles - p.first < p.block ? p.tiles - p.first : p.block;
    ax_cpu_for(count, count * POINTS * (p.c + p.o), gradient_tiles, &p);
    ax_cpu_for(POINTS, count * p.c * p.o, gradient_points, &p);
  }
  ax_cpu_for(p.c, POINTS * p.c * p.o, weights_out, &k);
out:
  if (u) ax_free(u, u_bytes);
  if (space) ax_free(space, bytes);
  return st;
}
