/* The arguments of attention for its kernels: the plain ones (attention_plain.cu) and those on
 * tensor cores (flash*.cu, attention_tf32*.cu). */
#ifndef AX_CUDA_ATTENTION_H
#define AX_CUDA_ATTENTION_H

#include "draw.cuh"
#include "rows.cuh"

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

/* Calls f(ax_cuda_int<D>()) with a row size D that fits these heads. */
template <class F> static auto ax_cuda_attention_head(const ax_cuda_attention_job &j, F f)
{
  const int most = j.head > j.value_head ? j.head : j.value_head;
  if (most <= 64) return f(ax_cuda_int<64>());
  if (most <= 128) return f(ax_cuda_int<128>());
  return f(ax_cuda_int<256>());
}

/* ---- attention_plain.cu: every float type, any strides and heads; messages name `op`.  They write
 * y and lse; dq, dk and dv, where delta is there already.  Nothing is launched for sides without
 * rows. */
ax_status ax_cuda_plain_forward(ax_op op, ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
ax_status ax_cuda_plain_backward(ax_op op, ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
/* Writes delta, the sum of g y over each row; there is at least one row. */
ax_status ax_cuda_attention_deltas(ax_op op, ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);

/* ---- flash_forward.cu, flash_backward.cu: bfloat16 and float16 on tensor cores (compute
 * capability 8.0).  Rows of both sides start at multiples of 16 bytes; head sizes are multiples of
 * 8 up to 128.  They write y and lse; delta (memory of the caller), dq, dk and dv. */
enum { AX_FLASH_MOST_HEAD = 128 };
ax_status ax_cuda_flash_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
ax_status ax_cuda_flash_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
/* The dynamic shared memory of a block for the call. */
size_t ax_cuda_flash_forward_shared(const ax_cuda_attention_job *j);
size_t ax_cuda_flash_backward_shared(const ax_cuda_attention_job *j);

/* ---- attention_tf32_forward.cu, attention_tf32_backward.cu: bfloat16, float16 and float32 on
 * tensor cores, with any strides and heads to
 * AX_TF32_MOST_HEAD.  They write y and lse; dq, dk and dv, where delta is there already. */
enum { AX_TF32_MOST_HEAD = 256 };
ax_status ax_cuda_tf32_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
ax_status ax_cuda_tf32_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j);
/* The dynamic shared memory of a block for the call. */
size_t ax_cuda_tf32_forward_shared(const ax_cuda_attention_job *j);
size_t ax_cuda_tf32_backward_shared(const ax_cuda_attention_job *j);

#endif
