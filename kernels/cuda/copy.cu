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

/* All types that elements are copied from and to. */
template <class F> static ax_status with_stored(ax_op op, ax_dtype d, F f)
{
  switch (d) {
  case AX_E4M3: return f(ax_cuda_type<ax_cuda_e4m3>());
  case AX_E5M2: return f(ax_cuda_type<ax_cuda_e5m2>());
  default: return ax_cuda_with_any(op, d, f);
  }
}

/* Loads in flight per thread, by element size. */
static __host__ __device__ constexpr int items_of(int bytes) { return bytes >= 16 ? 2 : bytes >= 4 ? 4 : 8; }
enum { THREADS = 256 };

/* An item of the nest is a run of V adjacent elements in both operands. */
template <class To, class From, int V> static __global__ void copy_nest(ax_cuda_nest<2> nest)
{
  constexpr int U = items_of(V * (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)));
  const uint32_t first = blockIdx.x * (THREADS * U) + threadIdx.x;
  int64_t at[U][2];
  ax_cuda_pack<From, V> from[U];
  ax_cuda_nest_items(nest, first, THREADS, at);
#pragma unroll
  for (int u = 0; u < U; u++)
    if (first + u * THREADS < nest.numel) from[u] = *(const ax_cuda_pack<From, V> *)(nest.data[1] + at[u][1]);
#pragma unroll
  for (int u = 0; u < U; u++) {
    if (first + u * THREADS >= nest.numel) break;
    ax_cuda_pack<To, V> to;
#pragma unroll
    for (int j = 0; j < V; j++) to.v[j] = convert<To, From>::of(from[u].v[j]);
    *(ax_cuda_pack<To, V> *)(nest.data[0] + at[u][0]) = to;
  }
}
template <class To, class From, int V> static ax_status launch_copy(ax_device d, const ax_cuda_nest<2> &nest)
{
  constexpr int U = items_of(V * (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)));
  return ax_cuda_in_parts(nest, [&](const ax_cuda_nest<2> &part) {
    return ax_cuda_launch("copy", d, ax_cuda_tiles(part.numel, THREADS * U), THREADS, copy_nest<To, From, V>,
                          part);
  });
}

template <class To, int V> static __global__ void fill_nest(ax_cuda_nest<1> nest, To v)
{
  int64_t at[1];
  ax_cuda_pack<To, V> to;
  if (AX_FIRST >= nest.numel) return;
  for (int j = 0; j < V; j++) to.v[j] = v;
  ax_cuda_nest_at(nest, (uint32_t)AX_FIRST, at);
  *(ax_cuda_pack<To, V> *)(nest.data[0] + at[0]) = to;
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
  ax_cuda_nest_join(nest, count);
  return true;
}

/* ---- transposing
 *
 * The source runs along one dim, a, and the result along another one, b.  Tiles go through shared
 * memory, so that both sides are accessed in runs.  A tile has 2^LA elements along a and 2^LB along
 * b: about as many of both, or few along a dim that is short, such as the channels of an image. */

struct turn {
  int64_t a, b;         /* sizes */
  int64_t from_b, to_a; /* strides in bytes: b's in the source, a's in the result */
  uint32_t tiles_a, tiles_b;
  ax_cuda_nest<2> around; /* the other dims */
};

/* log2 of the elements of a tile: a thread has 16 of 1 or 2 bytes, 8 of 4 or 4 of 8 in flight. */
template <class S> static __host__ __device__ constexpr int tile_log()
{
  return sizeof(S) <= 2 ? 12 : sizeof(S) == 4 ? 11 : 10;
}
/* Elements from one row of the tile to the next: the lanes of a warp, which read along b, are in
 * different banks. */
template <class S, int LA, int LB> static __host__ __device__ constexpr int tile_pitch()
{
  constexpr int lanes = sizeof(S) == 8 ? 16 : 32, together = lanes >> LB,
                word = sizeof(S) < 4 ? 4 / (int)sizeof(S) : 1;
  return (1 << LA) + (together > word ? together : word);
}

/* ALL: the tile lies inside.  A step of k moves all threads alike: 256 is a multiple of the tile's
 * side, or divides it. */
template <class S, int LA, int LB, bool ALL>
static __device__ __forceinline__ void turn_tile(const turn &t, S *tile, const char *from, char *to,
                                                 int left_a, int left_b)
{
  constexpr int A = 1 << LA, B = 1 << LB, EACH = A * B / THREADS, PITCH = tile_pitch<S, LA, LB>(),
                S_ = (int)sizeof(S);
  const int ra = threadIdx.x & (A - 1), rb = threadIdx.x >> LA, wa = threadIdx.x >> LB,
            wb = threadIdx.x & (B - 1);
  const char *const first = from + ra * S_ + rb * t.from_b;
  char *const last = to + wb * S_ + wa * t.to_a;
  S v[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int a = k * THREADS & (A - 1), b = k * THREADS >> LA;
    if (ALL || (ra < left_a - a && rb < left_b - b)) v[k] = *(const S *)(first + (a * S_ + b * t.from_b));
  }
  asm volatile("" ::: "memory"); /* loads come first */
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int a = k * THREADS & (A - 1), b = k * THREADS >> LA;
    tile[rb * PITCH + ra + (b * PITCH + a)] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int b = k * THREADS & (B - 1), a = k * THREADS >> LB;
    if (ALL || (wa < left_a - a && wb < left_b - b))
      *(S *)(last + (b * S_ + a * t.to_a)) = tile[wb * PITCH + wa + (b * PITCH + a)];
  }
}
template <class S, int LA, int LB>
static __global__ void __launch_bounds__(THREADS) turn_tiles(const __grid_constant__ turn t)
{
  __shared__ S tile[tile_pitch<S, LA, LB>() << LB];
  constexpr int A = 1 << LA, B = 1 << LB;
  const uint32_t row = blockIdx.x / t.tiles_a, outer = row / t.tiles_b;
  const int64_t a = (int64_t)(blockIdx.x - row * t.tiles_a) << LA, b = (int64_t)(row - outer * t.tiles_b)
                                                                       << LB;
  int64_t at[2];
  ax_cuda_nest_at(t.around, outer, at);
  const char *const from = t.around.data[1] + at[1] + a * (int64_t)sizeof(S) + b * t.from_b;
  char *const to = t.around.data[0] + at[0] + b * (int64_t)sizeof(S) + a * t.to_a;
  if (t.a - a >= A && t.b - b >= B) turn_tile<S, LA, LB, true>(t, tile, from, to, A, B);
  else
    turn_tile<S, LA, LB, false>(t, tile, from, to, (int)(t.a - a < A ? t.a - a : A),
                                (int)(t.b - b < B ? t.b - b : B));
}

template <class S, int LA, int LB> static ax_status launch_turn(ax_device d, turn *t, bool *done)
{
  const int64_t tiles_a = (t->a + (1 << LA) - 1) >> LA, tiles_b = (t->b + (1 << LB) - 1) >> LB;
  if (tiles_a > INT32_MAX / tiles_b || tiles_a * tiles_b > INT32_MAX / t->around.numel) return AX_OK;
  t->tiles_a = (uint32_t)tiles_a;
  t->tiles_b = (uint32_t)tiles_b;
  *done = true;
  return ax_cuda_in_parts(t->around, [&](const ax_cuda_nest<2> &part) {
    t->around = part;
    return ax_cuda_launch("copy", d, (unsigned)(tiles_a * tiles_b * part.numel), THREADS,
                          turn_tiles<S, LA, LB>, *t);
  });
}

/* *done: whether the source runs along another dim than the result, and both are long enough. */
template <class S> static ax_status turned(ax_device d, const ax_iter *it, bool *done)
{
  constexpr int L = tile_log<S>(), HALF = L / 2;
  const ax_cuda_nest<2> nest = ax_cuda_nest_of<2>(it);
  const int b = nest.ndim - 1, item = (int)sizeof(S);
  int a = 0;
  turn t = {};

  while (a < b && nest.stride[1][a] != item) a++;
  if (a >= b || nest.stride[0][b] != item || nest.stride[1][b] == item) return AX_OK;
  t.a = nest.shape[a];
  t.b = nest.shape[b];
  if (t.a * t.b < 64 || (t.a < 16 && t.b < 16)) return AX_OK;
  t.from_b = nest.stride[1][b];
  t.to_a = nest.stride[0][a];
  t.around.numel = 1;
  for (int k = 0; k < 2; k++) t.around.data[k] = nest.data[k];
  for (int dim = 0; dim < b; dim++) {
    if (dim == a) continue;
    const int n = t.around.ndim++;
    t.around.shape[n] = nest.shape[dim];
    t.around.numel *= nest.shape[dim];
    for (int k = 0; k < 2; k++) t.around.stride[k][n] = nest.stride[k][dim];
  }
  if (t.b <= 4) return launch_turn<S, L - 2, 2>(d, &t, done);
  if (t.a <= 4) return launch_turn<S, 2, L - 2>(d, &t, done);
  if (t.b <= 16) return launch_turn<S, L - 4, 4>(d, &t, done);
  if (t.a <= 16) return launch_turn<S, 4, L - 4>(d, &t, done);
  return launch_turn<S, L - HALF, HALF>(d, &t, done);
}

static ax_status fill(const ax_call *call)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  const ax_dtype from = it->op[1].dtype;
  return with_stored(call->op, it->op[0].dtype, [&](auto to) {
    typedef AX_TYPE_OF(to) To;
    To v;
    /* the host's own conversion, which handles all types */
    if (ax_is_float(from)) ax_store_double(it->op[0].dtype, &v, 0, ax_load_double(from, it->op[1].data, 0));
    else ax_store_int(it->op[0].dtype, &v, 0, ax_load_int(from, it->op[1].data, 0));
    constexpr int V = 16 / (int)sizeof(To);
    const int64_t item = (int64_t)sizeof(To);
    ax_cuda_nest<1> nest = ax_cuda_nest_of<1>(it);
    const bool runs = in_runs<1>(&nest, V, &item);
    return ax_cuda_in_parts(nest, [&](const ax_cuda_nest<1> &part) {
      return ax_cuda_launch("fill", d, ax_cuda_tiles(part.numel, 256), 256,
                            runs ? fill_nest<To, V> : fill_nest<To, 1>, part, v);
    });
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
  return launch_copy<U, U, 1>(d, nest);
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
  if (item <= 8 && it->op[0].dtype == it->op[1].dtype && it->ndim > 1) {
    bool done = false;
    const ax_status st = ax_cuda_with_size(call->op, it->op[0].dtype,
                                           [&](auto tag) { return turned<AX_TYPE_OF(tag)>(d, it, &done); });
    if (st != AX_OK || done) return st;
  }
  if (it->op[0].dtype == it->op[1].dtype) return move(d, it, (int64_t)item);
  return with_stored(call->op, it->op[0].dtype, [&](auto to) {
    return with_stored(call->op, it->op[1].dtype, [&](auto from) {
      typedef AX_TYPE_OF(to) To;
      typedef AX_TYPE_OF(from) From;
      constexpr int widest = (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From)),
                    V = 16 / widest < 8 ? 16 / widest : 8;
      const int64_t items[2] = { (int64_t)sizeof(To), (int64_t)sizeof(From) };
      ax_cuda_nest<2> nest = ax_cuda_nest_of<2>(it);
      return in_runs<2>(&nest, V, items) ? launch_copy<To, From, V>(d, nest)
                                         : launch_copy<To, From, 1>(d, nest);
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
    ax_cuda_nest_at(nest, (uint32_t)i, at);
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
        return ax_cuda_in_parts(ax_cuda_nest_of<1>(&it), [&](const ax_cuda_nest<1> &part) {
          return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(part.numel, 256, d.index), 256,
                                find_zero<AX_TYPE_OF(tag)>, part, (int *)flag);
        });
      });
    if (st == AX_OK) st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, &found, d, flag, sizeof found);
    ax_cuda_give(d, flag, sizeof found);
    if (st != AX_OK) return st;
  }
  return found ? ax_fail(AX_ERANGE, "%s", message) : AX_OK;
}
