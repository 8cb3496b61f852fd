/* Fourier transforms along one dim by cuFFT, with a plan for each shape and layout.
 *
 * Lines that are contiguous, or whose neighbours are, go to cuFFT as they are; lines between outer
 * and inner dims are turned into memory for the call and back.  cuFFT's results have no scale; a
 * pass of ours over the results multiplies them, or over the input where that is copied anyway:
 * half-length inputs are, since cuFFT overwrites them and reads parts of them that count for
 * nothing here.  What the library cannot do, and everything where it is missing, is left to the
 * CPU. */
#include "turn.cuh"
#include "vendor.h"

#if !__has_include(<cufft.h>)

AX_CUDA_KERNEL(complex__fft_c2c) { return AX_EAWAY; }
AX_CUDA_KERNEL(complex__fft_r2c) { return AX_EAWAY; }
AX_CUDA_KERNEL(complex__fft_c2r) { return AX_EAWAY; }

#else

#include <cufft.h>
#include <list>
#include <mutex>
#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime/library.h"
#include "cuda/runtime/stats.h"

static const char FILE_NAME[] = "libcufft.so.*-1";
/* Plans hold tables of roots in the device's memory, so few are kept. */
enum { MOST_PLANS = 64 };

/* ---- the functions, found when first needed */

#define FUNCTIONS(X) \
  X(cufftCreate) \
  X(cufftDestroy) \
  X(cufftSetAutoAllocation) \
  X(cufftMakePlanMany64) \
  X(cufftSetWorkArea) \
  X(cufftSetStream) \
  X(cufftExecC2C) \
  X(cufftExecR2C) \
  X(cufftExecC2R) \
  X(cufftExecZ2Z) \
  X(cufftExecD2Z) \
  X(cufftExecZ2D)
static struct {
#define X(name) decltype(&name) p_##name;
  FUNCTIONS(X)
#undef X
} fft;

static std::mutex lock; /* guards everything below; a plan is pointed to its work area and run with it held */

static struct {
  bool tried, opened;
} library;

static bool open_library(void)
{
  const char *const wanted = getenv("ACCEL_CUFFT");
  void *file;

  if (library.tried) return library.opened;
  library.tried = true;
  if (wanted && strcmp(wanted, "0") == 0) return false;
  if (ax_cuda_library(FILE_NAME, "fft", &file) != AX_OK) return false;
#define X(name) \
  if (ax_cuda_symbol(file, FILE_NAME, #name, (void **)&fft.p_##name) != AX_OK) return false;
  FUNCTIONS(X)
#undef X
  library.opened = true;
  return true;
}

static const char *words(cufftResult r)
{
  switch (r) {
  case CUFFT_INVALID_PLAN: return "CUFFT_INVALID_PLAN";
  case CUFFT_ALLOC_FAILED: return "CUFFT_ALLOC_FAILED";
  case CUFFT_INVALID_TYPE: return "CUFFT_INVALID_TYPE";
  case CUFFT_INVALID_VALUE: return "CUFFT_INVALID_VALUE";
  case CUFFT_INTERNAL_ERROR: return "CUFFT_INTERNAL_ERROR";
  case CUFFT_EXEC_FAILED: return "CUFFT_EXEC_FAILED";
  case CUFFT_SETUP_FAILED: return "CUFFT_SETUP_FAILED";
  case CUFFT_INVALID_SIZE: return "CUFFT_INVALID_SIZE";
  case CUFFT_INVALID_DEVICE: return "CUFFT_INVALID_DEVICE";
  case CUFFT_NO_WORKSPACE: return "CUFFT_NO_WORKSPACE";
  case CUFFT_NOT_IMPLEMENTED: return "CUFFT_NOT_IMPLEMENTED";
  case CUFFT_NOT_SUPPORTED: return "CUFFT_NOT_SUPPORTED";
  default: return "an error without a name here";
  }
}

/* ---- plans */

/* The identity of a plan: `lines` transforms of n positions, whose elements are `stride` apart and
 * which begin `in`, `out` elements after one another. */
struct key {
  int64_t device, type, n, lines, stride, in, out;
};

struct plan {
  key k;
  cufftHandle handle;
  size_t work;
  bool kept; /* a captured step replays it */
  cufftResult refused;
  int64_t *calls;
};

/* The plan that was used last comes first.  Never destroyed: at the end of a process, the library
 * may be unloaded earlier. */
static std::list<plan> &plans(void)
{
  static std::list<plan> *all = new std::list<plan>;
  return *all;
}

static bool is_double(int64_t type) { return type == CUFFT_Z2Z || type == CUFFT_D2Z || type == CUFFT_Z2D; }

static int64_t *counter_of(const key &k, cufftResult refused)
{
  char name[96];
  snprintf(name, sizeof name, "fft %s, %s%s%s", is_double(k.type) ? "float64" : "float32",
           refused == CUFFT_SUCCESS ? "cuFFT" : "on the CPU (",
           refused == CUFFT_SUCCESS ? "" : words(refused), refused == CUFFT_SUCCESS ? "" : ")");
  return ax_cuda_counter(name);
}

static cufftResult make(plan *p)
{
  long long n = p->k.n, in = p->k.type == CUFFT_C2R || p->k.type == CUFFT_Z2D ? n / 2 + 1 : n,
            out = p->k.type == CUFFT_R2C || p->k.type == CUFFT_D2Z ? n / 2 + 1 : n;
  cufftResult r = fft.p_cufftCreate(&p->handle);
  if (r != CUFFT_SUCCESS) return r;
  r = fft.p_cufftSetAutoAllocation(p->handle, 0);
  if (r == CUFFT_SUCCESS)
    r = fft.p_cufftMakePlanMany64(p->handle, 1, &n, &in, p->k.stride, p->k.in, &out, p->k.stride, p->k.out,
                                  (cufftType)p->k.type, p->k.lines, &p->work);
  p->work = (p->work + 255) & ~(size_t)255; /* what its alignment is, too */
  if (r != CUFFT_SUCCESS) fft.p_cufftDestroy(p->handle);
  return r;
}

/* Drops plans that were used longest ago, but for those of captured steps.  cuFFT frees their
 * tables when the device has finished with them. */
static void drop_old(void)
{
  auto at = plans().end();
  size_t n = 0;
  for (const plan &p : plans()) n += !p.kept;
  while (n > MOST_PLANS && at != plans().begin()) {
    --at;
    if (at->kept) continue;
    if (at->refused == CUFFT_SUCCESS) fft.p_cufftDestroy(at->handle);
    at = plans().erase(at);
    n--;
  }
}

/* The plan of `k`, first in the list. */
static plan *find(const key &k, bool recording)
{
  std::list<plan> &all = plans();
  for (auto at = all.begin(); at != all.end(); ++at)
    if (memcmp(&at->k, &k, sizeof k) == 0) {
      all.splice(all.begin(), all, at);
      return &all.front();
    }
  all.push_front(plan{ k, 0, 0, false, CUFFT_SUCCESS, NULL });
  plan *const p = &all.front();
  p->refused = make(p);
  p->calls = counter_of(k, p->refused);
  if (!recording) drop_old(); /* a recording allows no waits */
  return p;
}

static cufftResult execute(const plan *p, void *x, void *y, int direction)
{
  switch (p->k.type) {
  case CUFFT_C2C: return fft.p_cufftExecC2C(p->handle, (cufftComplex *)x, (cufftComplex *)y, direction);
  case CUFFT_Z2Z:
    return fft.p_cufftExecZ2Z(p->handle, (cufftDoubleComplex *)x, (cufftDoubleComplex *)y, direction);
  case CUFFT_R2C: return fft.p_cufftExecR2C(p->handle, (cufftReal *)x, (cufftComplex *)y);
  case CUFFT_D2Z: return fft.p_cufftExecD2Z(p->handle, (cufftDoubleReal *)x, (cufftDoubleComplex *)y);
  case CUFFT_C2R: return fft.p_cufftExecC2R(p->handle, (cufftComplex *)x, (cufftReal *)y);
  default: return fft.p_cufftExecZ2D(p->handle, (cufftDoubleComplex *)x, (cufftDoubleReal *)y);
  }
}

/* y = the transforms of x.  EAWAY: cuFFT does not take them, and nothing was written. */
static ax_status transform(ax_device d, const key &k, const void *x, void *y, bool inverse)
{
  const bool recording = ax_cuda_recording(d.index);
  cudaStream_t stream;
  void *work = NULL;
  ax_status st = ax_cuda_use(d, &stream);

  if (st != AX_OK) return st;
  std::lock_guard<std::mutex> hold(lock);
  plan *const p = find(k, recording);
  ++*p->calls;
  if (p->refused == CUFFT_ALLOC_FAILED) {
    plans().pop_front();
    return ax_fail(AX_ENOMEM, "fft: cuFFT has no memory for a plan of %lld positions", (long long)k.n);
  }
  if (p->refused != CUFFT_SUCCESS) return AX_EAWAY;
  p->kept = p->kept || recording;
  if (p->work && (st = ax_cuda_take(d, p->work, &work)) != AX_OK) return st;
  cufftResult r = fft.p_cufftSetStream(p->handle, stream);
  if (r == CUFFT_SUCCESS && p->work) r = fft.p_cufftSetWorkArea(p->handle, work);
  if (r == CUFFT_SUCCESS) r = execute(p, (void *)x, y, inverse ? CUFFT_INVERSE : CUFFT_FORWARD);
  if (work) ax_cuda_give(d, work, p->work);
  if (r == CUFFT_SUCCESS) return AX_OK;
  return ax_fail(AX_EIO, "fft: %lld lines of %lld positions on cuda:%d: cuFFT: %s", (long long)k.lines,
                 (long long)k.n, d.index, words(r));
}

/* ---- passes over elements */

/* Multiplies a number at position k of a line; `weight` where it stands for two of n positions.
 * real_ends: the imaginary part of the others does not count. */
template <class T> struct factor {
  T scale, weight;
  int64_t n;
  bool real_ends, by_column;
  __device__ __forceinline__ ax_cuda_cx<T> operator()(ax_cuda_cx<T> v, int64_t r, int64_t c) const
  {
    const int64_t k = by_column ? c : r;
    const bool single = n && (k == 0 || 2 * k == n);
    const T by = n && !single ? scale * weight : scale;
    return { v.re * by, single && real_ends ? 0 : v.im * by };
  }
};

/* y[i] = f(x[i], position i / inner % n, ..); also in place */
template <class S, class F>
static __global__ void pass(int64_t count, int64_t n, int64_t inner, const S *x, S *y, F f)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const int64_t k = count < INT64_C(1) << 31 ? (uint32_t)i / (uint32_t)inner % (uint32_t)n : i / inner % n;
    y[i] = f(x[i], k, 0);
  }
}

/* ---- calls */

/* The tensor (outer, positions, inner), and memory for the call. */
struct job {
  ax_device d;
  int64_t outer, inner, n;
  bool turned; /* lines are turned: (outer, inner, positions) */
  void *held[2];
  size_t bytes[2];
};

static job job_of(const ax_tensor *x, int64_t dim, int64_t n)
{
  job j = { x->device, 1, 1, n, false, {}, {} };
  for (int64_t k = 0; k < x->ndim; k++)
    if (k != dim) (k < dim ? j.outer : j.inner) *= x->shape[k];
  j.turned = j.outer > 1 && j.inner > 1;
  return j;
}
static void end(job *j)
{
  for (int k = 0; k < 2; k++)
    if (j->held[k]) ax_cuda_give(j->d, j->held[k], j->bytes[k]);
}
static ax_status room(job *j, int i, size_t bytes, void **out)
{
  const ax_status st = ax_cuda_take(j->d, bytes, &j->held[i]);
  j->bytes[i] = bytes;
  *out = j->held[i];
  return st;
}

static key key_of(const job &j, cufftType type, int64_t in, int64_t out)
{
  const bool side_by_side = !j.turned && j.inner > 1;
  key k;
  memset(&k, 0, sizeof k);
  k.device = j.d.index;
  k.type = type;
  k.n = j.n;
  k.lines = j.outer * j.inner;
  k.stride = side_by_side ? j.inner : 1;
  k.in = side_by_side ? 1 : in;
  k.out = side_by_side ? 1 : out;
  return k;
}

template <class S, class F>
static ax_status pass_over(const job &j, int64_t positions, const void *x, void *y, F f)
{
  const int64_t count = j.outer * positions * j.inner;
  return ax_cuda_launch("fft", j.d, ax_cuda_blocks(count, 256, j.d.index), 256, pass<S, F>, count, positions,
                        j.inner, (const S *)x, (S *)y, f);
}
/* Lines of `positions` of x as cuFFT takes them, and back. */
template <class S, class F>
static ax_status turn_lines(const job &j, int64_t positions, const void *x, void *y, F f)
{
  return ax_turn("fft", j.d, j.outer, positions, j.inner, (const S *)x, (S *)y, f);
}
template <class S, class F>
static ax_status turn_back(const job &j, int64_t positions, const void *x, void *y, F f)
{
  return ax_turn("fft", j.d, j.outer, j.inner, positions, (const S *)x, (S *)y, f);
}

static bool ready(void)
{
  std::lock_guard<std::mutex> hold(lock);
  return open_library();
}

/* T: the type of the parts; S: of the input. */
template <class T, class S>
static ax_status to_complex(const ax_call *call, cufftType type, int64_t dim, bool inverse, double scale,
                            double weight, bool half)
{
  typedef ax_cuda_cx<T> C;
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t n = x->shape[dim], out = y->shape[dim];
  job j = job_of(x, dim, n);
  const void *from = ax_data(x);
  void *to = ax_data(y), *own;
  const factor<T> by = { (T)scale, (T)weight, half ? n : 0, false, j.turned };
  ax_status st = AX_OK;

  if (y->numel == 0) return AX_OK;
  if (j.turned || (uintptr_t)from % sizeof(C)) { /* cuFFT reads pairs of real numbers */
    AX_TRY(room(&j, 0, (size_t)x->numel * sizeof(S), &own));
    if (j.turned) AX_TRY(turn_lines<S>(j, n, from, own, ax_as_it_is()));
    else AX_TRY(pass_over<S>(j, n, from, own, ax_as_it_is()));
    from = own;
  }
  if (j.turned) AX_TRY(room(&j, 1, (size_t)y->numel * sizeof(C), &to));
  AX_TRY(transform(j.d, key_of(j, type, n, out), from, to, inverse));
  if (j.turned) AX_TRY(turn_back<C>(j, out, to, ax_data(y), by));
  else if (scale != 1 || (half && weight != 1)) st = pass_over<C>(j, out, to, to, by);
out:
  end(&j);
  return st;
}

template <class T>
static ax_status to_real(const ax_call *call, cufftType type, int64_t dim, int64_t n, double scale,
                         double weight)
{
  typedef ax_cuda_cx<T> C;
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t in = x->shape[dim];
  job j = job_of(x, dim, n);
  void *own, *to = ax_data(y);
  /* cuFFT counts twice what stands for two */
  const factor<T> by = { (T)scale, (T)(weight / 2), n, true, false };
  ax_status st;

  if (y->numel == 0) return AX_OK;
  AX_TRY(room(&j, 0, (size_t)x->numel * sizeof(C), &own));
  if (j.turned) AX_TRY(turn_lines<C>(j, in, ax_data(x), own, by));
  else AX_TRY(pass_over<C>(j, in, ax_data(x), own, by));
  if (j.turned || (uintptr_t)to % sizeof(C)) AX_TRY(room(&j, 1, (size_t)y->numel * sizeof(T), &to));
  AX_TRY(transform(j.d, key_of(j, type, in, n), own, to, true));
  if (j.turned) st = turn_back<T>(j, n, to, ax_data(y), ax_as_it_is());
  else if (to != ax_data(y)) st = pass_over<T>(j, n, to, ax_data(y), ax_as_it_is());
out:
  end(&j);
  return st;
}

AX_CUDA_KERNEL(complex__fft_c2c)
{
  const int64_t dim = call->a->fft_c2c.dim;
  const bool inverse = call->a->fft_c2c.inverse;
  const double scale = call->a->fft_c2c.scale;
  if (!ready()) return AX_EAWAY;
  return call->in[0]->dtype == AX_C128
             ? to_complex<double, ax_cuda_cx<double>>(call, CUFFT_Z2Z, dim, inverse, scale, 1, false)
             : to_complex<float, ax_cuda_cx<float>>(call, CUFFT_C2C, dim, inverse, scale, 1, false);
}

AX_CUDA_KERNEL(complex__fft_r2c)
{
  const int64_t dim = call->a->fft_r2c.dim;
  const double scale = call->a->fft_r2c.scale, weight = call->a->fft_r2c.weight;
  if (!ready()) return AX_EAWAY;
  return call->in[0]->dtype == AX_F64
             ? to_complex<double, double>(call, CUFFT_D2Z, dim, false, scale, weight, true)
             : to_complex<float, float>(call, CUFFT_R2C, dim, false, scale, weight, true);
}

AX_CUDA_KERNEL(complex__fft_c2r)
{
  const int64_t dim = call->a->fft_c2r.dim, n = call->a->fft_c2r.n;
  const double scale = call->a->fft_c2r.scale, weight = call->a->fft_c2r.weight;
  if (!ready()) return AX_EAWAY;
  return call->in[0]->dtype == AX_C128 ? to_real<double>(call, CUFFT_Z2D, dim, n, scale, weight)
                                       : to_real<float>(call, CUFFT_C2R, dim, n, scale, weight);
}

#endif
