/* Shared by the CUDA kernels: launching, element types, loop nests on the device.
 *
 * All work of a device is queued in one stream, in order; freed memory may therefore be reused at
 * once.  Kernels never use atomics on floating-point numbers, and sums have a fixed shape that
 * follows from the sizes alone: every run gives the same bits on one model of GPU. */
#ifndef AX_CUDA_COMMON_H
#define AX_CUDA_COMMON_H

extern "C" {
#include "plugin.h"
}

#ifdef AX_EMULATE
#include "cuda/emulate/emulate.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include "float8.h"
#include "fn.h"
#include "half.h"
#include "pointwise.h"

#define AX_CUDA_KERNEL(name) extern "C" ax_status ax_cuda_##name(const ax_call *call)

/* ---- device.cu */

extern "C" const ax_device_memory ax_cuda_memory;

/* Makes `d` the calling thread's device and returns its stream. */
ax_status ax_cuda_use(ax_device d, cudaStream_t *stream);
/* Turns the runtime's last error into a status; the message begins with `what` (an op's name). */
ax_status ax_cuda_status(const char *what, cudaError_t e);
int ax_cuda_multiprocessors(int device);
/* Memory for the duration of a call, in stream order: take, launch, give back. */
ax_status ax_cuda_take(ax_device d, size_t bytes, void **out);
void ax_cuda_give(ax_device d, void *p, size_t bytes);
/* In a captured step: device memory for host data that a kernel reads, such as a table of pointers.
 * The data is constant: it is sent once, when the recording ends, and lives as long as the
 * recording.  (capture.cu) */
ax_status ax_cuda_table(ax_device d, const void *here, size_t bytes, void **there);
/* Clears memory in stream order. */
ax_status ax_cuda_clear(const char *what, ax_device d, void *p, size_t bytes);
/* Whether a step is being recorded: nothing runs then, so nothing can be waited for. */
bool ax_cuda_recording(int device);
/* copy.cu: ERANGE with `message` when input k of a pointwise call holds a 0.  Waits for the
 * device. */
ax_status ax_cuda_refuse_zero(const ax_call *call, int k, const char *message);

static inline ax_status ax_cuda_no_dtype(ax_op op, ax_dtype d)
{
  return ax_fail(AX_EDTYPE, "%s: not defined for %s", ax_op_shown(op), ax_dtype_name(d));
}

/* Operand k of a pointwise or reducing call (0: the result) has a type that the dispatcher had
 * promised to cast: an error of ours, which must not become wrong numbers. */
static inline ax_status ax_cuda_wrong_operand(const ax_call *call, int k, const char *expected)
{
  return ax_fail(AX_EDTYPE, "%s: error inside accel: the CUDA kernel takes %s and was given %s as %s %d",
                 ax_ops[call->op].name, expected, ax_dtype_name(call->iter->op[k].dtype),
                 k ? "operand" : "result", k ? k : 1);
}

/* ---- faults: errors that a kernel finds in its data (an index out of range).  The kernel writes
 * them into host memory.  The host reads that when it next waits for the device, and then raises
 * the error; no call waits only to check. */

enum { AX_FAULT_NONE, AX_FAULT_INDEX, AX_FAULT_TARGET, AX_FAULT_CLASS, AX_FAULT_PROBABILITY };
struct ax_cuda_fault {
  int code, op;
  long long value, at, count;
};
/* The device's place for a fault, as kernels and host see it; NULL after a failure, whose message
 * is written. */
ax_cuda_fault *ax_cuda_fault_place(ax_device d);

static __device__ __forceinline__ void ax_cuda_report(ax_cuda_fault *f, int code, int op, int64_t value,
                                                      int64_t at, int64_t count)
{
  if (atomicCAS(&f->code, (int)AX_FAULT_NONE, code) != AX_FAULT_NONE) return; /* the first fault is kept */
  f->op = op;
  f->value = value;
  f->at = at;
  f->count = count;
}
/* Whether v is one of 0 .. count - 1; reports a fault where it is not. */
static __device__ __forceinline__ bool ax_cuda_in_range(ax_cuda_fault *f, int code, int op, int64_t v,
                                                        int64_t at, int64_t count)
{
  if (v >= 0 && v < count) return true;
  ax_cuda_report(f, code, op, v, at, count);
  return false;
}

/* A function of a kernel that is called, not inlined. */
#ifdef AX_EMULATE
#define AX_CUDA_CALLED static __attribute__((noinline))
#else
#define AX_CUDA_CALLED static __device__ __noinline__
#endif

/* ---- launching */

/* A tensor whose type is not the one that a kernel was about to read (ax_cuda_data); size 0:
 * none. */
struct ax_cuda_mistaken {
  int dtype, size;
};
extern thread_local ax_cuda_mistaken ax_cuda_mistake; /* (device.cu) */
/* Forgets it and makes it an error. */
ax_status ax_cuda_refuse_mistake(const char *what);

/* The number of blocks of `threads` for n items, at most as many as keep the device busy: kernels
 * loop with the grid's size as step. */
static inline unsigned ax_cuda_blocks(int64_t n, int threads, int device)
{
  const int64_t wanted = (n + threads - 1) / threads, most = (int64_t)ax_cuda_multiprocessors(device) * 32;
  return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* The number of blocks for n items, `each` for a block: kernels without a loop.  A grid that
 * covers everything once is faster than a loop over a smaller one: blocks start in the order of
 * memory, and what is in flight at a time lies together. */
static inline unsigned ax_cuda_tiles(int64_t n, int64_t each)
{
  const int64_t tiles = (n + each - 1) / each;
  return (unsigned)(tiles < 1 ? 1 : tiles < INT32_MAX ? tiles : INT32_MAX);
}

/* Launches kernel(arguments) on the device and stream of `d`.  Messages call it `what`. */
template <class... P, class... A>
static ax_status ax_cuda_launch(const char *what, ax_device d, dim3 grid, dim3 block, void (*kernel)(P...),
                                A... arguments)
{
  cudaStream_t stream;
  if (ax_cuda_mistake.size) return ax_cuda_refuse_mistake(what);
  const ax_status st = ax_cuda_use(d, &stream);
  if (st != AX_OK) return st;
#ifdef AX_EMULATE
  const char *wrong = ax_emulate(what, stream, grid, block, [=]() { kernel(P(arguments)...); });
  return wrong ? ax_fail(AX_ENOIMPL, "%s: emulated CUDA: %s", what, wrong) : AX_OK;
#else
  kernel<<<grid, block, 0, stream>>>(P(arguments)...);
  return ax_cuda_status(what, cudaGetLastError());
#endif
}

/* The first item of a thread and the step to its next one, for loops over more items than
 * threads. */
#define AX_FIRST ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define AX_STEP ((int64_t)gridDim.x * blockDim.x)

/* a / by, both at least 0: 32-bit division is several times faster. */
static __device__ __forceinline__ int64_t ax_cuda_divided(int64_t a, int64_t by)
{
  return (a | by) >> 32 ? a / by : (int64_t)((uint32_t)a / (uint32_t)by);
}

/* ---- element types: S is stored, compute<S> is computed with */

struct ax_cuda_f16 {
  uint16_t bits;
};
struct ax_cuda_bf16 {
  uint16_t bits;
};
struct ax_cuda_e4m3 {
  uint8_t bits;
};
struct ax_cuda_e5m2 {
  uint8_t bits;
};
struct ax_cuda_bool {
  uint8_t value;
};

template <class S> struct ax_cuda_compute {
  typedef S type;
};
template <> struct ax_cuda_compute<ax_cuda_f16> {
  typedef float type;
};
template <> struct ax_cuda_compute<ax_cuda_bf16> {
  typedef float type;
};
template <> struct ax_cuda_compute<ax_cuda_e4m3> {
  typedef float type;
};
template <> struct ax_cuda_compute<ax_cuda_e5m2> {
  typedef float type;
};
template <> struct ax_cuda_compute<ax_cuda_bool> {
  typedef uint8_t type;
};
template <class S> using compute = typename ax_cuda_compute<S>::type;

template <class S> AX_FN compute<S> ax_cuda_load(S v) { return v; }
AX_FN float ax_cuda_load(ax_cuda_bf16 v) { return ax_bf16_to_float(v.bits); }
AX_FN uint8_t ax_cuda_load(ax_cuda_bool v) { return v.value; }
AX_FN float ax_cuda_load(ax_cuda_f16 v) { return ax_half_to_float(v.bits); }
AX_FN float ax_cuda_load(ax_cuda_e4m3 v) { return ax_e4m3_to_float(v.bits); }
AX_FN float ax_cuda_load(ax_cuda_e5m2 v) { return ax_e5m2_to_float(v.bits); }

template <class S> struct ax_cuda_storer {
  template <class V> static __host__ __device__ __forceinline__ S of(V v) { return (S)v; }
};
template <> struct ax_cuda_storer<ax_cuda_f16> {
  template <class V> static __host__ __device__ __forceinline__ ax_cuda_f16 of(V v)
  {
    return ax_cuda_f16{ ax_float_to_half((float)v) };
  }
};
template <> struct ax_cuda_storer<ax_cuda_bf16> {
  template <class V> static __host__ __device__ __forceinline__ ax_cuda_bf16 of(V v)
  {
    return ax_cuda_bf16{ ax_float_to_bf16((float)v) };
  }
};
template <> struct ax_cuda_storer<ax_cuda_e4m3> {
  template <class V> static __host__ __device__ __forceinline__ ax_cuda_e4m3 of(V v)
  {
    return ax_cuda_e4m3{ ax_float_to_e4m3((float)v) };
  }
};
template <> struct ax_cuda_storer<ax_cuda_e5m2> {
  template <class V> static __host__ __device__ __forceinline__ ax_cuda_e5m2 of(V v)
  {
    return ax_cuda_e5m2{ ax_float_to_e5m2((float)v) };
  }
};
template <> struct ax_cuda_storer<ax_cuda_bool> {
  template <class V> static __host__ __device__ __forceinline__ ax_cuda_bool of(V v)
  {
    return ax_cuda_bool{ (uint8_t)(v != (V)0) };
  }
};
template <class S, class V> AX_FN S ax_cuda_store(V v) { return ax_cuda_storer<S>::of(v); }

/* Is an element of type d stored as S?  Unsigned words stand for the bits of any type of their
 * size, a byte for uint8 and bool. */
template <class S> inline bool ax_cuda_holds(ax_dtype d) { return ax_dtype_size(d) == sizeof(S); }
template <> inline bool ax_cuda_holds<float>(ax_dtype d) { return d == AX_F32; }
template <> inline bool ax_cuda_holds<double>(ax_dtype d) { return d == AX_F64; }
template <> inline bool ax_cuda_holds<ax_cuda_f16>(ax_dtype d) { return d == AX_F16; }
template <> inline bool ax_cuda_holds<ax_cuda_bf16>(ax_dtype d) { return d == AX_BF16; }
template <> inline bool ax_cuda_holds<ax_cuda_e4m3>(ax_dtype d) { return d == AX_E4M3; }
template <> inline bool ax_cuda_holds<ax_cuda_e5m2>(ax_dtype d) { return d == AX_E5M2; }
template <> inline bool ax_cuda_holds<int64_t>(ax_dtype d) { return d == AX_I64; }
template <> inline bool ax_cuda_holds<int32_t>(ax_dtype d) { return d == AX_I32; }
template <> inline bool ax_cuda_holds<ax_cuda_bool>(ax_dtype d) { return d == AX_BOOL; }

/* The elements of t, which are stored as S; NULL for no tensor.  A tensor of another type here is
 * an error of ours: the next launch refuses it by name instead of reading one type as another. */
template <class S> static inline S *ax_cuda_data(const ax_tensor *t)
{
  if (!t) return NULL;
  if (!ax_cuda_holds<S>((ax_dtype)t->dtype)) ax_cuda_mistake = ax_cuda_mistaken{ t->dtype, (int)sizeof(S) };
  return (S *)ax_data(t);
}

/* Checks the type of a tensor whose data is passed on without one. */
static inline void ax_cuda_expect(const ax_tensor *t, ax_dtype d)
{
  if (t && t->dtype != d) ax_cuda_mistake = ax_cuda_mistaken{ t->dtype, (int)ax_dtype_size(d) };
}

/* Reads one number of a floating type known at run time: a loss, a scale, a statistic. */
static __device__ __forceinline__ double ax_cuda_number_at(int dtype, const void *p, int64_t i)
{
  switch (dtype) {
  case AX_F64: return ((const double *)p)[i];
  case AX_F16: return ax_cuda_load(((const ax_cuda_f16 *)p)[i]);
  case AX_BF16: return ax_cuda_load(((const ax_cuda_bf16 *)p)[i]);
  default: return ((const float *)p)[i];
  }
}
static __device__ __forceinline__ void ax_cuda_number_put(int dtype, void *p, int64_t i, double v)
{
  switch (dtype) {
  case AX_F64: ((double *)p)[i] = v; break;
  case AX_F16: ((ax_cuda_f16 *)p)[i] = ax_cuda_store<ax_cuda_f16>(v); break;
  case AX_BF16: ((ax_cuda_bf16 *)p)[i] = ax_cuda_store<ax_cuda_bf16>(v); break;
  default: ((float *)p)[i] = (float)v;
  }
}

/* Calls f(ax_cuda_type<S>()) with the storage type of a dtype. */
template <class S> struct ax_cuda_type {
  typedef S type;
};
#define AX_TYPE_OF(tag) typename decltype(tag)::type

/* float32 and float64 alone. */
template <class F> static ax_status ax_cuda_with_wide(ax_op op, ax_dtype d, F f)
{
  switch (d) {
  case AX_F32: return f(ax_cuda_type<float>());
  case AX_F64: return f(ax_cuda_type<double>());
  default: return ax_cuda_no_dtype(op, d);
  }
}

/* Floating types that compute in float32. */
template <class F> static ax_status ax_cuda_with_narrow(ax_op op, ax_dtype d, F f)
{
  switch (d) {
  case AX_F32: return f(ax_cuda_type<float>());
  case AX_F16: return f(ax_cuda_type<ax_cuda_f16>());
  case AX_BF16: return f(ax_cuda_type<ax_cuda_bf16>());
  default: return ax_cuda_no_dtype(op, d);
  }
}

template <class F> static ax_status ax_cuda_with_float(ax_op op, ax_dtype d, F f)
{
  return d == AX_F64 ? f(ax_cuda_type<double>()) : ax_cuda_with_narrow(op, d, f);
}

template <class F> static ax_status ax_cuda_with_any(ax_op op, ax_dtype d, F f)
{
  switch (d) {
  case AX_I64: return f(ax_cuda_type<int64_t>());
  case AX_I32: return f(ax_cuda_type<int32_t>());
  case AX_U8: return f(ax_cuda_type<uint8_t>());
  case AX_BOOL: return f(ax_cuda_type<ax_cuda_bool>());
  default: return ax_cuda_with_float(op, d, f);
  }
}

/* Likewise by size alone, for kernels that move elements without reading them. */
template <class F> static ax_status ax_cuda_with_size(ax_op op, ax_dtype d, F f)
{
  switch (ax_dtype_size(d)) {
  case 1: return f(ax_cuda_type<uint8_t>());
  case 2: return f(ax_cuda_type<uint16_t>());
  case 4: return f(ax_cuda_type<uint32_t>());
  default: return f(ax_cuda_type<uint64_t>());
  }
}

/* ---- loop nests */

#ifndef AX_NEST_MOST
#define AX_NEST_MOST (INT64_C(1) << 30) /* items of a launch; the last threads count on to 2^31 at most */
#endif

/* Division of numbers below 2^31 by one that the host knows: i * by >> shift. */
struct ax_cuda_divisor {
  uint32_t by;
  int shift;
};
static inline ax_cuda_divisor ax_cuda_divisor_of(int64_t n)
{
  int bits = 0;
  while ((INT64_C(1) << bits) < n) bits++;
  return ax_cuda_divisor{ (uint32_t)(((UINT64_C(1) << (31 + bits)) + (uint64_t)n - 1) / (uint64_t)n),
                          31 + bits };
}
static __device__ __forceinline__ uint32_t ax_cuda_quotient(uint32_t i, const ax_cuda_divisor &d)
{
  return (uint32_t)((uint64_t)i * d.by >> d.shift);
}

/* An ax_iter as an argument of a kernel: N operands, by value. */
template <int N> struct ax_cuda_nest {
  int ndim;
  int64_t numel, shape[AX_MAX_DIMS];
  int64_t stride[N][AX_MAX_DIMS]; /* in bytes */
  char *data[N];
  ax_cuda_divisor by[AX_MAX_DIMS]; /* the sizes but the outermost one (ax_cuda_in_parts) */
};

/* Lays the dims in the order of the result's memory, so that neighbouring threads write neighbours,
 * and merges those over which every operand steps evenly. */
template <int N> static inline void ax_cuda_nest_order(ax_cuda_nest<N> *nest)
{
  int dims[AX_MAX_DIMS], last = 0;
  const ax_cuda_nest<N> given = *nest;
  const int64_t *const to = given.stride[0];
  auto size = [](int64_t stride) { return stride < 0 ? -stride : stride; };

  if (given.ndim < 2) return;
  for (int d = 0; d < given.ndim; d++) {
    int at = d;
    for (; at > 0 && size(to[dims[at - 1]]) < size(to[d]); at--) dims[at] = dims[at - 1];
    dims[at] = d;
  }
  for (int p = 0; p < given.ndim; p++) {
    const int d = dims[p];
    bool joins = p > 0;
    for (int k = 0; joins && k < N; k++) joins = nest->stride[k][last] == given.stride[k][d] * given.shape[d];
    if (p && !joins) last++;
    nest->shape[last] = joins ? nest->shape[last] * given.shape[d] : given.shape[d];
    for (int k = 0; k < N; k++) nest->stride[k][last] = given.stride[k][d];
  }
  nest->ndim = last + 1;
}

template <int N> static inline ax_cuda_nest<N> ax_cuda_nest_of(const ax_iter *it)
{
  ax_cuda_nest<N> nest = {};
  nest.ndim = it->ndim;
  nest.numel = it->numel;
  for (int d = 0; d < it->ndim; d++) nest.shape[d] = it->shape[d];
  for (int k = 0; k < N; k++) {
    nest.data[k] = it->op[k].data;
    for (int d = 0; d < it->ndim; d++) nest.stride[k][d] = it->op[k].stride[d];
  }
  ax_cuda_nest_order(&nest);
  return nest;
}

/* Makes runs of `count` along the innermost dim the items of the nest. */
template <int N> static inline void ax_cuda_nest_join(ax_cuda_nest<N> *nest, int64_t count)
{
  const int last = nest->ndim - 1;
  for (int k = 0; k < N; k++) nest->stride[k][last] *= count;
  nest->shape[last] /= count;
  nest->numel /= count;
}

/* Calls f(part) for parts of the nest in order, each of AX_NEST_MOST items at most: kernels count
 * them in 32 bits. */
template <int N, class F> static ax_status ax_cuda_in_parts(ax_cuda_nest<N> nest, F f)
{
  int d = 0;
  if (nest.numel <= AX_NEST_MOST) {
    for (d = 1; d < nest.ndim; d++) nest.by[d] = ax_cuda_divisor_of(nest.shape[d]);
    return f(nest);
  }
  while (nest.shape[d] == 1) d++;
  ax_cuda_nest<N> part = nest;
  part.shape[d] = nest.shape[d] / 2;
  part.numel = nest.numel / nest.shape[d] * part.shape[d];
  const ax_status st = ax_cuda_in_parts(part, f);
  if (st != AX_OK) return st;
  for (int k = 0; k < N; k++) nest.data[k] += part.shape[d] * nest.stride[k][d];
  nest.shape[d] -= part.shape[d];
  nest.numel -= part.numel;
  return ax_cuda_in_parts(nest, f);
}

/* The byte offsets in every operand of items first, first + step and so on; no item is above
 * 2^31. */
template <int U, int N>
static __device__ __forceinline__ void ax_cuda_nest_items(const ax_cuda_nest<N> &nest, uint32_t first,
                                                          uint32_t step, int64_t (&at)[U][N])
{
  uint32_t i[U];
#pragma unroll
  for (int u = 0; u < U; u++) {
    i[u] = first + u * step;
#pragma unroll
    for (int k = 0; k < N; k++) at[u][k] = 0;
  }
#pragma unroll 1
  for (int d = nest.ndim - 1; d > 0; d--) {
    const ax_cuda_divisor by = nest.by[d];
    const uint32_t size = (uint32_t)nest.shape[d];
#pragma unroll
    for (int u = 0; u < U; u++) {
      const uint32_t q = ax_cuda_quotient(i[u], by), p = i[u] - q * size;
      i[u] = q;
#pragma unroll
      for (int k = 0; k < N; k++) at[u][k] += p * nest.stride[k][d];
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++)
#pragma unroll
    for (int k = 0; k < N; k++) at[u][k] += i[u] * nest.stride[k][0];
}

/* The byte offsets of item i in every operand. */
template <int N>
static __device__ __forceinline__ void ax_cuda_nest_at(const ax_cuda_nest<N> &nest, uint32_t i,
                                                       int64_t (&at)[N])
{
  int64_t one[1][N];
  ax_cuda_nest_items(nest, i, 0, one);
#pragma unroll
  for (int k = 0; k < N; k++) at[k] = one[0][k];
}

/* ---- sums over a block: one shape of tree for every size */

template <class T, class F> static __device__ __forceinline__ T ax_cuda_warp_reduce(T v, F combine)
{
  for (int by = 16; by > 0; by >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, by));
  return v;
}

/* Combines the values of all threads; every thread gets the result.  blockDim.x is a multiple of
 * 32; `shared` has a place for each warp. */
template <class T, class F>
static __device__ __forceinline__ T ax_cuda_block_reduce(T v, F combine, T *shared)
{
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = ax_cuda_warp_reduce(v, combine);
  __syncthreads(); /* the last use may still read `shared` */
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = shared[0];
  for (int w = 1; w < warps; w++) v = combine(v, shared[w]);
  return v;
}

#endif
