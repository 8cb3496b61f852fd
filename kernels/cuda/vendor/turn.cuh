/* Matrices turned on the way to a library and back: batches of (rows, columns) become (columns,
 * rows).  A block moves tiles of 32 x 32 elements through shared memory, so that neighbours are
 * read and written side by side on both ends. */
#ifndef AX_CUDA_TURN_H
#define AX_CUDA_TURN_H

#include "cuda/common.cuh"

template <class R> struct alignas(2 * sizeof(R)) ax_cuda_cx {
  R re, im;
};

/* What moves elements without a change. */
struct ax_as_it_is {
  template <class S> __device__ __forceinline__ S operator()(S v, int64_t, int64_t) const { return v; }
};

enum { AX_TURN_TILE = 32, AX_TURN_ROWS = 8 };

/* y[b][c][r] = f(x[b][r][c], r, c) */
template <class S, class F>
static __global__ void ax_turn_kernel(int64_t count, int64_t rows, int64_t cols, const S *x, S *y, F f)
{
  __shared__ S tile[AX_TURN_TILE][AX_TURN_TILE + 1];
  const int64_t down = (rows + AX_TURN_TILE - 1) / AX_TURN_TILE,
                across = (cols + AX_TURN_TILE - 1) / AX_TURN_TILE, tiles = count * down * across;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t b = t / (down * across), r0 = t / across % down * AX_TURN_TILE,
                  c0 = t % across * AX_TURN_TILE;
    const S *const from = x + b * rows * cols;
    S *const to = y + b * rows * cols;
    for (int i = (int)threadIdx.y; i < AX_TURN_TILE; i += AX_TURN_ROWS) {
      const int64_t r = r0 + i, c = c0 + threadIdx.x;
      if (r < rows && c < cols) tile[i][threadIdx.x] = f(from[r * cols + c], r, c);
    }
    __syncthreads();
    for (int i = (int)threadIdx.y; i < AX_TURN_TILE; i += AX_TURN_ROWS) {
      const int64_t r = r0 + threadIdx.x, c = c0 + i;
      if (r < rows && c < cols) to[c * rows + r] = tile[threadIdx.x][i];
    }
    __syncthreads(); /* the next tile takes this one's place */
  }
}

/* x (count, rows, cols) to y (count, cols, rows), which must not overlap. */
template <class S, class F>
static ax_status ax_turn(const char *what, ax_device d, int64_t count, int64_t rows, int64_t cols, const S *x,
                         S *y, F f)
{
  const int64_t tiles =
      count * ((rows + AX_TURN_TILE - 1) / AX_TURN_TILE) * ((cols + AX_TURN_TILE - 1) / AX_TURN_TILE);
  if (tiles == 0) return AX_OK;
  return ax_cuda_launch(what, d, ax_cuda_blocks(tiles, 1, d.index), dim3(AX_TURN_TILE, AX_TURN_ROWS),
                        ax_turn_kernel<S, F>, count, rows, cols, x, y, f);
}

#endif
