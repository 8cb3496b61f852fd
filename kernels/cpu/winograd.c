/* 3 x 3 convolutions of stride 1 in float32 by Winograd's F(4 x 4, 3 x 3): a tile of 4 x 4 results out of 6 x 6 inputs takes 36 products where
 * the plain sum takes 144.  With the transforms, which are cheap sums along the channels, two to three times as fast as oneDNN's direct code; the
 * results differ from those of a plain sum by about 1e-5 of the largest one (a plain sum itself errs by about 1e-6).
 *
 *   y = A' [ (G w G') . (B' d B) ] A        summed over the input channels: 36 matrix products (tiles x c) x (c x o)
 *   dw = G' [ sum over tiles of (B' d B) . (A g A') ] G                       36 products (c x tiles) x (tiles x o)
 *
 * and the gradient for the input is a convolution of g with the weights turned around.  Tiles go in blocks whose transforms stay in the second
 * cache.  Blocks and the order of additions follow from the sizes alone. */
#include "conv.h"

#include <omp.h>
#include <string.h>

#if defined(__AVX512F__)
#define BYTES 64
#define ROWS_1 12 /* rows of results that the product holds in registers, two vectors each; what is left goes in smaller groups */
#define ROWS_2 8
#elif defined(__AVX__)
#define BYTES 32
#define ROWS_1 6
#define ROWS_2 4
#else
#define BYTES 16
#define ROWS_1 6
#define ROWS_2 4
#endif

typedef float vec __attribute__((vector_size(BYTES), aligned(4), may_alias));
enum { LANES = BYTES / 4, PANEL = 2 * LANES, TILE = 4, SIDE = 6, POINTS = SIDE * SIDE };
enum { CACHE = 640 * 1024 /* bytes of transforms that a block may take */, MIN_TILES = 24, MAX_TILES = 192, SKEW = 16 /* floats: the 36 planes start at different cache sets */ };

/* ---- the 36 products */

/* c (ROWS x N vectors, rows c_row apart) = or += a (rows a_row apart, steps a_step) x b (steps b_step apart) over `depth` steps. */
#define UNROLLED _Pragma("GCC unroll 12")
#define MICRO(name, ROWS, N) \
  __attribute__((optimize("fp-contract=fast"))) \
  static void name(int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_step, float *c, int64_t c_row, bool add) \
  { \
    vec s[ROWS][N]; \
    if (add) { \
      UNROLLED for (int i = 0; i < ROWS; i++) \
        UNROLLED for (int j = 0; j < N; j++) s[i][j] = *(const vec *)(c + i * c_row + j * LANES); \
    } else { \
      UNROLLED for (int i = 0; i < ROWS; i++) \
        UNROLLED for (int j = 0; j < N; j++) s[i][j] = (vec){ 0 }; \
    } \
    for (int64_t p = 0; p < depth; p++, a += a_step, b += b_step) { \
      vec v[N]; \
      UNROLLED for (int j = 0; j < N; j++) v[j] = *(const vec *)(b + j * LANES); \
      UNROLLED for (int i = 0; i < ROWS; i++) \
        UNROLLED for (int j = 0; j < N; j++) s[i][j] += a[i * a_row] * v[j]; \
    } \
    UNROLLED for (int i = 0; i < ROWS; i++) \
      UNROLLED for (int j = 0; j < N; j++) *(vec *)(c + i * c_row + j * LANES) = s[i][j]; \
  }
MICRO(micro_1_2, ROWS_1, 2)
MICRO(micro_2_2, ROWS_2, 2)
MICRO(micro_3_2, 2, 2)
MICRO(micro_4_2, 1, 2)
MICRO(micro_1_1, ROWS_1, 1)
MICRO(micro_2_1, ROWS_2, 1)
MICRO(micro_3_1, 2, 1)
MICRO(micro_4_1, 1, 1)

typedef void (*micro)(int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_step, float *c, int64_t c_row, bool add);

/* c (rows x cols) = or += a x b.  b's panels of PANEL columns lie b_panel apart (the last one may be half as wide). */
static void product(int64_t rows, int64_t cols, int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_panel, int64_t b_step,
                    float *c, int64_t c_row, bool add)
{
  static const micro wide[4] = { micro_1_2, micro_2_2, micro_3_2, micro_4_2 }, half[4] = { micro_1_1, micro_2_1, micro_3_1, micro_4_1 };
  static const int sizes[4] = { ROWS_1, ROWS_2, 2, 1 };
  for (int64_t i = 0; i < rows;) {
    const int kind = rows - i >= sizes[0] ? 0 : rows - i >= sizes[1] ? 1 : rows - i >= sizes[2] ? 2 : 3;
    for (int64_t j = 0; j < cols; j += PANEL)
      (cols - j >= PANEL ? wide : half)[kind](depth, a + i * a_row, a_row, a_step, b + j / PANEL * b_panel, b_step, c + i * c_row + j, c_row, add);
    i += sizes[kind];
  }
}

/* ---- transforms of one vector of channels */

static inline void times_b(const vec *d, vec *o) /* B' d */
{
  const vec t1 = d[4] - 4 * d[2], t2 = d[3] - 4 * d[1], t3 = d[4] - d[2], t4 = 2 * (d[3] - d[1]);
  o[0] = 4 * d[0] - 5 * d[2] + d[4];
  o[1] = t1 + t2;
  o[2] = t1 - t2;
  o[3] = t3 + t4;
  o[4] = t3 - t4;
  o[5] = 4 * d[1] - 5 * d[3] + d[5];
}

static inline void times_at(const vec *m, vec *o) /* A' m: 6 to 4 */
{
  const vec s1 = m[1] + m[2], d1 = m[1] - m[2], s2 = m[3] + m[4], d2 = m[3] - m[4];
  o[0] = m[0] + s1 + s2;
  o[1] = d1 + 2 * d2;
  o[2] = s1 + 4 * s2;
  o[3] = d1 + 8 * d2 + m[5];
}

static inline void times_a(const vec *g, vec *o) /* A g: 4 to 6 */
{
  const vec e = g[0] + g[2], f = g[1] + g[3], e2 = g[0] + 4 * g[2], f2 = 2 * g[1] + 8 * g[3];
  o[0] = g[0];
  o[1] = e + f;
  o[2] = e - f;
  o[3] = e2 + f2;
  o[4] = e2 - f2;
  o[5] = g[3];
}

static inline void times_g(const vec *g, vec *o) /* G g: 3 to 6 */
{
  const vec s = (g[0] + g[2]) * (-1.0f / 6), t = g[0] * (1.0f / 24) + g[2] * (1.0f / 6), u = g[1] * (1.0f / 6), v = g[1] * (1.0f / 12);
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
  int64_t n, c, o;            /* channels read and written (WEIGHT: of x and of g) */
  int64_t h, w, oh, ow, pad_y, pad_x;
  int64_t across, tiles;      /* tiles in a row of an image; in all */
  int64_t block, plane_c, plane_o; /* tiles in a block; floats in a plane of its transforms */
  const float *x;             /* (n, h, w, c) */
  float *y;                   /* (n, oh, ow, o): written; WEIGHT: g, read */
  const float *bias;
  float *u;                   /* FORWARD, INPUT: (36, panels, c, PANEL).  WEIGHT: (36, c, o) */
  float *v, *m;               /* transforms of a block; for each thread */
  int64_t first;              /* WEIGHT: of the block under way */
} wino;

static inline void place(const wino *p, int64_t tile, int64_t *n, int64_t *ty, int64_t *tx)
{
  const int64_t down = (p->oh + TILE - 1) / TILE;
  *tx = tile % p->across * TILE;
  *ty = tile / p->across % down * TILE;
  *n = tile / p->across / down;
}

/* B' d B of tile `tile`, as the t-th of the block's. */
static void tile_in(const wino *p, int64_t tile, float *v, int64_t t)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  const int64_t y0 = ty - p->pad_y, x0 = tx - p->pad_x, row = p->w * p->c;
  const float *from = p->x + n * p->h * row + y0 * row + x0 * p->c;
  const bool inside = y0 >= 0 && x0 >= 0 && y0 + SIDE <= p->h && x0 + SIDE <= p->w;

  for (int64_t c = 0; c < p->c; c += LANES) {
    vec d[SIDE], half[SIDE][SIDE], out[SIDE];
    for (int j = 0; j < SIDE; j++) { /* columns first */
      if (inside) {
        for (int i = 0; i < SIDE; i++) d[i] = *(const vec *)(from + i * row + j * p->c + c);
      } else {
        const bool in_x = x0 + j >= 0 && x0 + j < p->w;
        for (int i = 0; i < SIDE; i++)
          d[i] = in_x && y0 + i >= 0 && y0 + i < p->h ? *(const vec *)(from + i * row + j * p->c + c) : (vec){ 0 };
      }
      times_b(d, out);
      for (int i = 0; i < SIDE; i++) half[i][j] = out[i];
    }
    float *to = v + t * p->c + c;
    for (int i = 0; i < SIDE; i++) {
      times_b(half[i], out);
      for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * p->plane_c) = out[j];
    }
  }
}

/* A' m A, into y. */
static void tile_out(const wino *p, int64_t tile, const float *m, int64_t t)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  const int64_t rows = p->oh - ty < TILE ? p->oh - ty : TILE, cols = p->ow - tx < TILE ? p->ow - tx : TILE;
  float *to = p->y + ((n * p->oh + ty) * p->ow + tx) * p->o;

  for (int64_t o = 0; o < p->o; o += LANES) {
    vec in[SIDE], half[TILE][SIDE], out[TILE];
    const float *from = m + t * p->o + o;
    const vec bias = p->bias ? *(const vec *)(p->bias + o) : (vec){ 0 };
    for (int j = 0; j < SIDE; j++) {
      for (int i = 0; i < SIDE; i++) in[i] = *(const vec *)(from + (i * SIDE + j) * p->plane_o);
      times_at(in, out);
      for (int i = 0; i < TILE; i++) half[i][j] = out[i];
    }
    for (int i = 0; i < rows; i++) {
      times_at(half[i], out);
      for (int j = 0; j < cols; j++) *(vec *)(to + (i * p->ow + j) * p->o + o) = out[j] + bias;
    }
  }
}

/* A g A' of a tile of g, as the t-th of the block's. */
static void tile_gradient(const wino *p, int64_t tile, float *m, int64_t t)
{
  int64_t n, ty, tx;
  place(p, tile, &n, &ty, &tx);
  const int64_t rows = p->oh - ty < TILE ? p->oh - ty : TILE, cols = p->ow - tx < TILE ? p->ow - tx : TILE;
  const float *from = p->y + ((n * p->oh + ty) * p->ow + tx) * p->o;

  for (int64_t o = 0; o < p->o; o += LANES) {
    vec in[TILE], half[SIDE][TILE], out[SIDE];
    for (int j = 0; j < TILE; j++) {
      for (int i = 0; i < TILE; i++) in[i] = i < rows && j < cols ? *(const vec *)(from + (i * p->ow + j) * p->o + o) : (vec){ 0 };
      times_a(in, out);
      for (int i = 0; i < SIDE; i++) half[i][j] = out[i];
    }
    float *to = m + t * p->o + o;
    for (int i = 0; i < SIDE; i++) {
      times_a(half[i], out);
      for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * p->plane_o) = out[j];
    }
  }
}

/* ---- weights */

typedef struct kernels { const wino *p; float *w; int64_t c, o; bool turned, add; } kernels; /* c, o: as w has them */

/* G w G' for vectors of written channels: (36, panels, read, PANEL).  turned: w's outputs are read and its inputs written, its taps reversed. */
static void weights_in(int64_t lo, int64_t hi, void *ud) /* read channels */
{
  const kernels *k = ud;
  const wino *p = k->p;
  const int64_t panels = (p->o + PANEL - 1) / PANEL, step = k->turned ? 9 : k->c * 9; /* between written channels of w */

  for (int64_t read = lo; read < hi; read++)
    for (int64_t o = 0; o < p->o; o += LANES) {
      const float *from = k->w + (k->turned ? (read * k->c + o) * 9 : (o * k->c + read) * 9);
      float taps[9][LANES] __attribute__((aligned(64)));
      vec in[3], half[SIDE][3], out[SIDE];
      for (int l = 0; l < LANES; l++)
        for (int tap = 0; tap < 9; tap++) taps[k->turned ? 8 - tap : tap][l] = from[l * step + tap];
      for (int j = 0; j < 3; j++) {
        for (int i = 0; i < 3; i++) in[i] = *(const vec *)taps[i * 3 + j];
        times_g(in, out);
        for (int i = 0; i < SIDE; i++) half[i][j] = out[i];
      }
      float *to = p->u + (o / PANEL * p->c + read) * PANEL + o % PANEL;
      for (int i = 0; i < SIDE; i++) {
        times_g(half[i], out);
        for (int j = 0; j < SIDE; j++) *(vec *)(to + (i * SIDE + j) * panels * p->c * PANEL) = out[j];
      }
    }
}

/* G' u G into w (o, c, 3, 3). */
static void weights_out(int64_t lo, int64_t hi, void *ud) /* input channels */
{
  const kernels *k = ud;
  const wino *p = k->p;

  for (int64_t c = lo; c < hi; c++)
    for (int64_t o = 0; o < p->o; o += LANES) {
      float taps[9][LANES] __attribute__((aligned(64)));
      vec in[SIDE], half[3][SIDE], out[3];
      for (int j = 0; j < SIDE; j++) {
        for (int i = 0; i < SIDE; i++) in[i] = *(const vec *)(p->u + ((i * SIDE + j) * p->c + c) * p->o + o);
        times_gt(in, out);
        for (int i = 0; i < 3; i++) half[i][j] = out[i];
      }
      for (int i = 0; i < 3; i++) {
        times_gt(half[i], out);
        for (int j = 0; j < 3; j++) *(vec *)taps[i * 3 + j] = out[j];
      }
      for (int l = 0; l < LANES; l++) {
        float *to = k->w + ((o + l) * p->c + c) * 9;
        for (int tap = 0; tap < 9; tap++) to[tap] = k->add ? to[tap] + taps[tap][l] : taps[tap][l];
      }
    }
}

/* ---- blocks of tiles */

static void convolve_blocks(int64_t lo, int64_t hi, void *ud)
{
  const wino *p = ud;
  const int64_t who = omp_get_thread_num(), panels = (p->o + PANEL - 1) / PANEL;
  float *v = p->v + who * POINTS * p->plane_c, *m = p->m + who * POINTS * p->plane_o;

  for (int64_t b = lo; b < hi; b++) {
    const int64_t first = b * p->block, count = p->tiles - first < p->block ? p->tiles - first : p->block;
    for (int64_t t = 0; t < count; t++) tile_in(p, first + t, v, t);
    for (int64_t i = 0; i < POINTS; i++)
      product(count, p->o, p->c, v + i * p->plane_c, p->c, 1, p->u + i * panels * p->c * PANEL, p->c * PANEL, PANEL, m + i * p->plane_o, p->o, false);
    for (int64_t t = 0; t < count; t++) tile_out(p, first + t, m, t);
  }
}

static void gradient_tiles(int64_t lo, int64_t hi, void *ud) /* tiles of the block under way */
{
  const wino *p = ud;
  for (int64_t t = lo; t < hi; t++) {
    tile_in(p, p->first + t, p->v, t);
    tile_gradient(p, p->first + t, p->m, t);
  }
}

static void gradient_points(int64_t lo, int64_t hi, void *ud)
{
  const wino *p = ud;
  const int64_t count = p->tiles - p->first < p->block ? p->tiles - p->first : p->block;
  for (int64_t i = lo; i < hi; i++)
    product(p->c, p->o, count, p->v + i * p->plane_c, 1, p->c, p->m + i * p->plane_o, PANEL, p->o, p->u + i * p->c * p->o, p->o, p->first > 0);
}

/* ---- one call */

bool ax_wino_fits(const ax_conv *v)
{
  const int64_t tiles = ((v->oh + TILE - 1) / TILE) * ((v->ow + TILE - 1) / TILE);
  return v->dtype == AX_F32 && v->kh == 3 && v->kw == 3 && v->stride[0] == 1 && v->stride[1] == 1 && v->dilation[0] == 1 && v->dilation[1] == 1 &&
         v->groups == 1 && v->padding[0] <= 2 && v->padding[1] <= 2 && v->c % 16 == 0 && v->o % 16 == 0 && v->c <= 1024 && v->o <= 1024 &&
         tiles * TILE * TILE <= 2 * v->oh * v->ow && v->n * tiles >= MIN_TILES;
}

ax_status ax_wino(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  const bool turned = v->what == AX_CONV_INPUT, weight = v->what == AX_CONV_WEIGHT;
  wino p = { .n = v->n, .c = v->c, .o = v->o, .h = v->h, .w = v->w, .oh = v->oh, .ow = v->ow, .pad_y = v->padding[0], .pad_x = v->padding[1],
             .x = d->x, .y = d->y, .bias = v->what == AX_CONV_FORWARD && v->bias ? d->bias : NULL };
  void *u = NULL, *space = NULL;
  const int64_t threads = weight ? 1 : omp_get_max_threads();
  ax_status st;

  if (turned) /* a convolution of g with the weights turned around */
    p = (wino){ .n = v->n, .c = v->o, .o = v->c, .h = v->oh, .w = v->ow, .oh = v->h, .ow = v->w, .pad_y = 2 - v->padding[0], .pad_x = 2 - v->padding[1], .x = d->y, .y = d->x };
  p.across = (p.ow + TILE - 1) / TILE;
  p.tiles = p.n * p.across * ((p.oh + TILE - 1) / TILE);
  p.block = CACHE / (POINTS * (p.c + p.o) * (int64_t)sizeof(float)) / ROWS_1 * ROWS_1;
  p.block = p.block < MIN_TILES ? MIN_TILES : p.block > MAX_TILES ? MAX_TILES : p.block;
  p.plane_c = p.block * p.c + SKEW;
  p.plane_o = p.block * p.o + SKEW;
  const int64_t panels = (p.o + PANEL - 1) / PANEL, blocks = (p.tiles + p.block - 1) / p.block;
  const size_t u_bytes = (size_t)(POINTS * p.c * (weight ? p.o : panels * PANEL)) * sizeof(float);
  const size_t bytes = (size_t)(threads * POINTS * (p.plane_c + p.plane_o)) * sizeof(float);
  kernels k = { &p, d->w, v->c, v->o, turned, accumulate };

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
