/* clone, cast, copy: elements to another place, type or order.  Memory bounds all of them. */
#include "casts.h"
#include "rows.cuh"

/* A number that the host passes by value: the element itself, of the operand's type. */
struct ax_cuda_value {
  int64_t bits;
};

/* From any type to any other; a number that an integer type cannot hold as casts.h has it. */
static __host__ __device__ __forceinline__ int64_t whole(float v) { return ax_to_i64_f(v); }
static __host__ __device__ __forceinline__ int64_t whole(double v) { return ax_to_i64(v); }
template <class I> static __host__ __device__ __forceinline__ int64_t whole(I v) { return (int64_t)v; }
static __host__ __device__ __forceinline__ int32_t whole_i32(float v) { return ax_to_i32_f(v); }
static __host__ __device__ __forceinline__ int32_t whole_i32(double v) { return ax_to_i32(v); }
template <class I> static __host__ __device__ __forceinline__ int32_t whole_i32(I v)
{
  return (int32_t)(uint32_t)(int64_t)v; /* the low bits of a larger integer */
}

template <class To, class From> struct convert {
  static __host__ __device__ __forceinline__ To of(From v) { return ax_cuda_store<To>(ax_cuda_load(v)); }
};
template <class From> struct convert<int64_t, From> {
  static __host__ __device__ __forceinline__ int64_t of(From v) { return whole(ax_cuda_load(v)); }
};
template <class From> struct convert<int32_t, From> {
  static __host__ __device__ __forceinline__ int32_t of(From v) { return whole_i32(ax_cuda_load(v)); }
};
template <class From> struct convert<uint8_t, From> {
  static __host__ __device__ __forceinline__ uint8_t of(From v) { return (uint8_t)whole(ax_cuda_load(v)); }
};

/* An item of the nest is a run of V adjacent elements in both operands. */
template <class To, class From, int V> static __global__ void copy_nest(ax_cuda_nest<2> nest)
{
  int64_t at[2];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(nest, i, at);
    const ax_cuda_pack<From, V> from = *(const ax_cuda_pack<From, V> *)(nest.data[1] + at[1]);
    ax_cuda_pack<To, V> to;
    for (int j = 0; j < V; j++) to.v[j] = convert<To, From>::of(from.v[j]);
    *(ax_cuda_pack<To, V> *)(nest.data[0] + at[0]) = to;
  }
}

template <class To, int V> static __global__ void fill_nest(ax_cuda_nest<1> nest, To v)
{
  int64_t at[1];
  ax_cuda_pack<To, V> to;
  for (int j = 0; j < V; j++) to.v[j] = v;
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(nest, i, at);
    *(ax_cuda_pack<To, V> *)(nest.data[0] + at[0]) = to;
  }
}

/* Turns a nest into one of items of `count` elements, where these are adjacent and aligned in every
 * operand; item[k]: the size of an element. */
template <int N> static bool in_runs(ax_cuda_nest<N> *nest, int64_t count, const int64_t *item)
{
  const int last = nest->ndim - 1;
  if (count == 1) return true;
  if (last < 0 || nest->shape[last] % count) return false;
  for (int k = 0; k < N; k++) {
    if (nest->stride[k][last] != item[k] || (uintptr_t)nest->data[k] % (size_t)(item[k] * count))
      return false;
    for (int d = 0; d < last; d++)
      if (nest->stride[k][d] % (item[k] * count)) return false;
  }
  for (int k = 0; k < N; k++) nest->stride[k][last] *= count;
  nest->shape[last] /= count;
  nest->numel /= count;
  return true;
}

/* A transpose of two dims through shared memory, so that both sides are accessed in runs. */
enum { TILE = 32, ROWS = 8 };
template <class S>
static __global__ void transpose_tile(S *dst, const S *src, int64_t rows, int64_t columns, int64_t src_step)
{
  __shared__ S tile[TILE][TILE + 1]; /* one more, so that a column's elements are in different banks */
  const int64_t r0 = (int64_t)blockIdx.y * TILE, c0 = (int64_t)blockIdx.x * TILE;
  for (int k = threadIdx.y; k < TILE; k += ROWS) /* src runs along r */
    if (c0 + k < columns && r0 + threadIdx.x < rows)
      tile[k][threadIdx.x] = src[(c0 + k) * src_step + r0 + threadIdx.x];
  __syncthreads();
  for (int k = threadIdx.y; k < TILE; k += ROWS)
    if (r0 + k < rows && c0 + threadIdx.x < columns)
      dst[(r0 + k) * columns + c0 + threadIdx.x] = tile[threadIdx.x][k];
}

/* Whether dst is contiguous (rows, columns) and src is its transpose, with contiguous rows. */
static bool is_transpose(const ax_iter *it, size_t item)
{
  return it->ndim == 2 && it->op[0].dtype == it->op[1].dtype && it->op[0].stride[1] == (int64_t)item &&
         it->op[0].stride[0] == it->shape[1] * (int64_t)item && it->op[1].stride[0] == (int64_t)item &&
         it->op[1].stride[1] > 0 && it->shape[0] >= 16 && it->shape[1] >= 16 &&
         it->shape[0] < 65535 * (int64_t)TILE;
}

static ax_status fill(const ax_call *call)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  const ax_dtype from = it->op[1].dtype;
  return ax_cuda_with_any(call->op, it->op[0].dtype, [&](auto to) {
    typedef AX_TYPE_OF(to) To;
    To v;
    /* the host's own conversion, which handles all types */
    if (ax_is_float(from)) ax_store_double(it->op[0].dtype, &v, 0, ax_load_double(from, it->op[1].data, 0));
    else ax_store_int(it->op[0].dtype, &v, 0, ax_load_int(from, it->op[1].data, 0));
    constexpr int V = 16 / (int)sizeof(To);
    const int64_t item = (int64_t)sizeof(To);
    ax_cuda_nest<1> nest = ax_cuda_nest_of<1>(it);
    if (in_runs<1>(&nest, V, &item))
      return ax_cuda_launch("fill", d, ax_cuda_blocks(nest.numel, 256, d.index), 256, fill_nest<To, V>, nest,
                            v);
    return ax_cuda_launch("fill", d, ax_cuda_blocks(nest.numel, 256, d.index), 256, fill_nest<To, 1>, nest,
                          v);
  });
}

/* Moves elements of one type as bits, in the widest words that sizes, strides and addresses allow;
 * *done: whether words of U fit. */
template <class U> static ax_status move_as(ax_device d, const ax_iter *it, int64_t item, bool *done)
{
  const int64_t items[2] = { item, item };
  ax_cuda_nest<2> nest = ax_cuda_nest_of<2>(it);
  if (*done || (int64_t)sizeof(U) < item || !in_runs<2>(&nest, (int64_t)sizeof(U) / item, items))
    return AX_OK;
  *done = true;
  return ax_cuda_launch("copy", d, ax_cuda_blocks(nest.numel, 256, d.index), 256, copy_nest<U, U, 1>, nest);
}

static ax_status move(ax_device d, const ax_iter *it, int64_t item)
{
  bool done = false;
  ax_status st = move_as<ax_cuda_pack<uint64_t, 2>>(d, it, item, &done);
  if (st == AX_OK) st = move_as<uint64_t>(d, it, item, &done);
  if (st == AX_OK) st = move_as<uint32_t>(d, it, item, &done);
  if (st == AX_OK) st = move_as<uint16_t>(d, it, item, &done);
  return st != AX_OK ? st : move_as<uint8_t>(d, it, item, &done);
}

AX_CUDA_KERNEL(complex__copy); /* complex.cu: into complex numbers of another type, numbers too */

AX_CUDA_KERNEL(_copy)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;

  if (it->numel == 0) return AX_OK;
  if (ax_is_complex(it->op[0].dtype) && (!call->in[0] || it->op[1].dtype != it->op[0].dtype))
    return ax_cuda_complex__copy(call);
  if (!call->in[0]) return fill(call);
  const size_t item = ax_dtype_size(it->op[0].dtype);
  if (item <= 8 && is_transpose(it, item))
    return ax_cuda_with_size(call->op, it->op[0].dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      const dim3 grid((unsigned)((it->shape[1] + TILE - 1) / TILE),
                      (unsigned)((it->shape[0] + TILE - 1) / TILE));
      return ax_cuda_launch("copy", d, grid, dim3(TILE, ROWS), transpose_tile<S>, (S *)it->op[0].data,
                            (const S *)it->op[1].data, it->shape[0], it->shape[1],
                            it->op[1].stride[1] / (int64_t)item);
    });
  if (it->op[0].dtype == it->op[1].dtype) return move(d, it, (int64_t)item);
  return ax_cuda_with_any(call->op, it->op[0].dtype, [&](auto to) {
    return ax_cuda_with_any(call->op, it->op[1].dtype, [&](auto from) {
      typedef AX_TYPE_OF(to) To;
      typedef AX_TYPE_OF(from) From;
      constexpr int widest = (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)),
                    V = 16 / widest < 8 ? 16 / widest : 8;
      const int64_t items[2] = { (int64_t)sizeof(To), (int64_t)sizeof(From) };
      ax_cuda_nest<2> nest = ax_cuda_nest_of<2>(it);
      if (in_runs<2>(&nest, V, items))
        return ax_cuda_launch("copy", d, ax_cuda_blocks(nest.numel, 256, d.index), 256,
                              copy_nest<To, From, V>, nest);
      return ax_cuda_launch("copy", d, ax_cuda_blocks(nest.numel, 256, d.index), 256, copy_nest<To, From, 1>,
                            nest);
    });
  });
}

/* clone and cast are copies into a result that the dispatcher made; they have no nest. */
static ax_status into_result(const ax_call *call)
{
  const ax_tensor *y = call->out[0], *x = call->in[0];
  ax_iter it = {};
  int n = 0;

  it.n = 2;
  it.numel = y->numel;
  it.op[0].data = (char *)ax_data(y);
  it.op[0].dtype = (ax_dtype)y->dtype;
  it.op[1].data = (char *)ax_data(x);
  it.op[1].dtype = (ax_dtype)x->dtype;
  const int64_t to = (int64_t)ax_itemsize(y), from = (int64_t)ax_itemsize(x);
  for (int k = 0; k < y->ndim; k++) {
    if (y->shape[k] == 1) continue;
    const int64_t s0 = y->strides[k] * to, s1 = x->strides[k] * from;
    if (n && it.op[0].stride[n - 1] == s0 * y->shape[k] && it.op[1].stride[n - 1] == s1 * y->shape[k])
      it.shape[n - 1] *= y->shape[k];
    else it.shape[n++] = y->shape[k];
    it.op[0].stride[n - 1] = s0;
    it.op[1].stride[n - 1] = s1;
  }
  it.ndim = n;
  ax_call copy = *call;
  copy.iter = &it;
  return ax_cuda__copy(&copy);
}

AX_CUDA_KERNEL(clone) { return into_result(call); }
AX_CUDA_KERNEL(_cast) { return into_result(call); }

/* ---- searching for zeros, for integer division */

template <class S> static __global__ void find_zero(ax_cuda_nest<1> nest, int *found)
{
  int64_t at[1];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(nest, i, at);
    /* all writers write the same value */
    if (ax_cuda_load(*(const S *)(nest.data[0] + at[0])) == 0) *found = 1;
  }
}

ax_status ax_cuda_refuse_zero(const ax_call *call, int k, const char *message)
{
  const ax_device d = call->out[0]->device;
  ax_iter it = *call->iter;
  void *flag = NULL;
  int found = 0;
  ax_status st;

  if (!call->in[k]) found = ax_load_double(it.op[k + 1].dtype, it.op[k + 1].data, 0) == 0;
  else {
    it.op[0] = it.op[k + 1];
    if ((st = ax_cuda_take(d, sizeof found, &flag)) != AX_OK) return st;
    st = ax_cuda_memory.copy(d, flag, ax_device{ AX_CPU, 0 }, &found, sizeof found);
    if (st == AX_OK)
      st = ax_cuda_with_any(call->op, it.op[0].dtype, [&](auto tag) {
        return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(it.numel, 256, d.index), 256,
                              find_zero<AX_TYPE_OF(tag)>, ax_cuda_nest_of<1>(&it), (int *)flag);
      });
    if (st == AX_OK) st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, &found, d, flag, sizeof found);
    ax_cuda_give(d, flag, sizeof found);
    if (st != AX_OK) return st;
  }
  return found ? ax_fail(AX_ERANGE, "%s", message) : AX_OK;
}
