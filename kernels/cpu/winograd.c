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
#include "winograd.h"

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
enum {
  CACHE = 640 * 1024 /* bytes of transforms in a block */,
  MIN_TILES = 24,
  MAX_TILES = 192,
  SKEW = 16 /* floats, so that the 36 planes start at different cache sets */
};

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
        for (int j = 0; j < N; j++) s[i][j] = *(const vec *)(c + i * c_row + j * WINO_LANES); \
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
      for (int j = 0; j < N; j++) v[j] = *(const vec *)(b + j * WINO_LANES); \
      UNROLLED \
      for (int i = 0; i < ROWS; i++) { \
        UNROLLED \
        for (int j = 0; j < N; j++) s[i][j] += a[i * a_row] * v[j]; \
      } \
    } \
    UNROLLED \
    for (int i = 0; i < ROWS; i++) { \
      UNROLLED \
      for (int j = 0; j < N; j++) *(vec *)(c + i * c_row + j * WINO_LANES) = s[i][j]; \
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

/* c (rows x cols) = a x b, or +=.  b has panels of WINO_PANEL columns that are b_panel apart (the
 * last one may be half as wide). */
static void product(int64_t rows, int64_t cols, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                    const float *b, int64_t b_panel, int64_t b_step, float *c, int64_t c_row, bool add)
{
  static const micro wide[4] = { micro_1_2, micro_2_2, micro_3_2, micro_4_2 },
                     half[4] = { micro_1_1, micro_2_1, micro_3_1, micro_4_1 };
  static const int sizes[4] = { ROWS_1, ROWS_2, 2, 1 };
  for (int64_t i = 0; i < rows;) {
    const int kind = rows - i >= sizes[0] ? 0 : rows - i >= sizes[1] ? 1 : rows - i >= sizes[2] ? 2 : 3;
    for (int64_t j = 0; j < cols; j += WINO_PANEL)
      (cols - j >= WINO_PANEL ? wide : half)[kind](depth, a + i * a_row, a_row, a_step,
                                                   b + j / WINO_PANEL * b_panel, b_step, c + i * c_row + j,
                                                   c_row, add);
    i += sizes[kind];
  }
}

/* ---- blocks of tiles */

static void convolve_blocks(int64_t lo, int64_t hi, void *ud)
{
  const ax_wino_call *p = ud;
  const int64_t who = omp_get_thread_num(), panels = (p->o + WINO_PANEL - 1) / WINO_PANEL;
  float *v = p->v + who * WINO_POINTS * p->plane_c, *m = p->m + who * WINO_POINTS * p->plane_o;

  for (int64_t b = lo; b < hi; b++) {
    const int64_t first = b * p->block, count = p->tiles - first < p->block ? p->tiles - first : p->block;
    ax_wino_tiles_in(p, first, 0, count, v);
    for (int64_t i = 0; i < WINO_POINTS; i++)
      product(count, p->o, p->c, v + i * p->plane_c, p->c, 1, p->u + i * panels * p->c * WINO_PANEL,
              p->c * WINO_PANEL, WINO_PANEL, m + i * p->plane_o, p->o, false);
    ax_wino_tiles_out(p, first, count, m);
  }
}

static void gradient_points(int64_t lo, int64_t hi, void *ud)
{
  const ax_wino_call *p = ud;
  const int64_t count = p->tiles - p->first < p->block ? p->tiles - p->first : p->block;
  for (int64_t i = lo; i < hi; i++)
    product(p->c, p->o, count, p->v + i * p->plane_c, 1, p->c, p->m + i * p->plane_o, WINO_PANEL, p->o,
            p->u + i * p->c * p->o, p->o, p->first > 0);
}

/* ---- one call */

bool ax_wino_fits(const ax_conv *v)
{
  const int64_t tiles = ((v->oh + WINO_TILE - 1) / WINO_TILE) * ((v->ow + WINO_TILE - 1) / WINO_TILE);
  return (v->dtype == AX_F32 || v->dtype == AX_BF16) && v->d == 1 && v->kd == 1 && v->padding[0] == 0 &&
         v->kh == 3 && v->kw == 3 && v->stride[1] == 1 && v->stride[2] == 1 && v->dilation[1] == 1 &&
         v->dilation[2] == 1 && v->groups == 1 && v->padding[1] <= 2 && v->padding[2] <= 2 &&
         v->c % 16 == 0 && v->o % 16 == 0 && v->c <= WINO_MAX_CHANNELS && v->o <= WINO_MAX_CHANNELS &&
         tiles * WINO_TILE * WINO_TILE <= 2 * v->oh * v->ow && v->n * tiles >= MIN_TILES;
}

/* A call without its memory. */
static ax_wino_call call_of(const ax_conv *v, const ax_conv_data *d)
{
  ax_wino_call p = { .n = v->n,
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

  p.half = v->dtype == AX_BF16;
  if (v->what == AX_CONV_INPUT) /* a convolution of g with the weights reversed */
    p = (ax_wino_call){ .n = v->n,
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
  p.across = (p.ow + WINO_TILE - 1) / WINO_TILE;
  p.tiles = p.n * p.across * ((p.oh + WINO_TILE - 1) / WINO_TILE);
  p.block = CACHE / (WINO_POINTS * (p.c + p.o) * (int64_t)sizeof(float)) / ROWS_1 * ROWS_1;
  p.block = p.block < MIN_TILES ? MIN_TILES : p.block > MAX_TILES ? MAX_TILES : p.block;
  p.plane_c = p.block * p.c + SKEW;
  p.plane_o = p.block * p.o + SKEW;
  return p;
}

ax_status ax_wino(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  const bool turned = v->what == AX_CONV_INPUT, weight = v->what == AX_CONV_WEIGHT;
  ax_wino_call p = call_of(v, d);
  void *u = NULL, *space = NULL;
  const int64_t threads = weight ? 1 : omp_get_max_threads();
  ax_status st;

  const int64_t panels = (p.o + WINO_PANEL - 1) / WINO_PANEL, blocks = (p.tiles + p.block - 1) / p.block;
  const size_t u_bytes = (size_t)(WINO_POINTS * p.c * (weight ? p.o : panels * WINO_PANEL)) * sizeof(float);
  const size_t bytes = (size_t)(threads * WINO_POINTS * (p.plane_c + p.plane_o)) * sizeof(float);
  ax_wino_kernels k = { &p, d->w, v->c, v->o, turned, accumulate, p.half && !d->wide };
  static __thread int64_t *calls[2];

  if (!calls[p.half])
    calls[p.half] = ax_cpu_counter(p.half ? "convolution bfloat16, Winograd in float32"
                                          : "convolution float32, Winograd");
  ++*calls[p.half];
  AX_TRY(ax_alloc(u_bytes, &u));
  AX_TRY(ax_alloc(bytes, &space));
  p.u = u;
  p.v = space;
  p.m = p.v + threads * WINO_POINTS * p.plane_c;
  if (!weight) {
    ax_cpu_for(p.c, WINO_POINTS * p.c * p.o, ax_wino_weights_in, &k);
    ax_cpu_for(blocks, p.tiles * p.c * p.o, convolve_blocks, &p);
    goto out;
  }
  for (; p.first < p.tiles; p.first += p.block) {
    const int64_t count = p.tiles - p.first < p.block ? p.tiles - p.first : p.block;
    ax_cpu_for(count, count * WINO_POINTS * (p.c + p.o), ax_wino_gradient_tiles, &p);
    ax_cpu_for(WINO_POINTS, count * p.c * p.o, gradient_points, &p);
  }
  ax_cpu_for(p.c, WINO_POINTS * p.c * p.o, ax_wino_weights_out, &k);
out:
  if (u) ax_free(u, u_bytes);
  if (space) ax_free(space, bytes);
  return st;
}
