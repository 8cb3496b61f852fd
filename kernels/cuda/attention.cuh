/* The arguments of attention for its kernels: the plain ones (attention.cu) and those on tensor
 * cores (flash*.cu). */
#ifndef AX_CUDA_ATTENTION_H
#define AX_CUDA_ATTENTION_H

#include "draw.cuh"

/* (batch, heads, rows, columns) in elements. */
struct ax_cuda_side {
  const void *data;
  int64_t step[4];
};

struct ax_cuda_attention_job {
  ax_cuda_side q, k, v, y, g, dq, dk, dv, mask; /* mask.data NULL: none */
  int mask_dtype;
  int64_t batch, heads, group, queries, keys;
  int head, value_head;
  double scale;
  bool causal, dropout;
  uint32_t least; /* dropout: an element stays when its word is at least this */
  double kept;    /* and is then multiplied by this */
  int64_t quads;  /* Philox blocks for a row of scores */
  ax_cuda_draw draw;
  void *lse, *delta; /* of the compute type: (batch, heads, queries) */
};

template <class S>
static __device__ __forceinline__ S *ax_cuda_plane(const ax_cuda_side &s, int64_t b, int64_t h)
{
  return (S *)s.data + b * s.step[0] + h * s.step[1];
}

/* ---- flash_forward.cu, flash_backward.cu: bfloat16 and float16 on tensor cores (compute
 * capability 8.0).  Rows of both sides start at multiples of 16 bytes; head sizes are multiples of
 * 8 up to 128.  They write y and lse; delta (memory of the caller), dq, dk and dv. */
enum { AX_FLASH_MOST_HEAD = 128 };
ax_status ax_cuda_flash_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
ax_status ax_cuda_flash_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
/* The dynamic shared memory of a block for the call. */
size_t ax_cuda_flash_forward_shared(const ax_cuda_attention_job *j);
size_t ax_cuda_flash_backward_shared(const ax_cuda_attention_job *j);

#endif
