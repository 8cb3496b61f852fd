/* Between Winograd's products (winograd.c) and its transforms (winograd_transform.c): a convolution
 * under way. */
#ifndef AX_CPU_WINOGRAD_H
#define AX_CPU_WINOGRAD_H

#include "conv.h"
#include "vector.h"

enum {
  WINO_LANES = AX_BYTES / 4,
  WINO_PANEL = 2 * WINO_LANES,
  WINO_TILE = 4,
  WINO_SIDE = 6,
  WINO_POINTS = WINO_SIDE * WINO_SIDE
};
/* The most channels that ax_wino_fits allows. */
enum { WINO_MAX_CHANNELS = 1024 };

typedef struct ax_wino_call {
  int64_t n, c, o; /* channels read and written (WEIGHT: of x and of g) */
  int64_t h, w, oh, ow, pad_y, pad_x;
  int64_t across, tiles;           /* tiles in a row of an image; tiles in all */
  int64_t block, plane_c, plane_o; /* tiles in a block; floats in a plane of its transforms */
  bool half;                       /* x, y, bias are bfloat16, else float32 */
  const void *x;                   /* (n, h, w, c) */
  void *y;                         /* (n, oh, ow, o): written; WEIGHT: g, read */
  const void *bias;
  float *u;      /* FORWARD, INPUT: (36, panels, c, WINO_PANEL).  WEIGHT: (36, c, o) */
  float *v, *m;  /* the transforms of a block; for each thread */
  int64_t first; /* WEIGHT: the first tile of the current block */
} ax_wino_call;

/* c, o: as in w; half: w is bfloat16 */
typedef struct ax_wino_kernels {
  const ax_wino_call *p;
  void *w;
  int64_t c, o;
  bool turned, add, half;
} ax_wino_kernels;

/* Ranges of work for ax_cpu_for.  Transforms weights, G w G', for vectors of written channels:
 * (36, panels, read, WINO_PANEL).  turned: reads w's outputs, writes its inputs, and reverses its
 * taps. */
void ax_wino_weights_in(int64_t lo, int64_t hi, void *ud);
/* Transforms back, G' u G, into w (o, c, 3, 3). */
void ax_wino_weights_out(int64_t lo, int64_t hi, void *ud);
/* WEIGHT: transforms tiles of the block under way. */
void ax_wino_gradient_tiles(int64_t lo, int64_t hi, void *ud);

/* Transforms tiles lo .. hi - 1 of the block that begins with tile `first` into v, and the results
 * of `count` tiles back from m. */
void ax_wino_tiles_in(const ax_wino_call *p, int64_t first, int64_t lo, int64_t hi, float *v);
void ax_wino_tiles_out(const ax_wino_call *p, int64_t first, int64_t count, const float *m);

#endif
