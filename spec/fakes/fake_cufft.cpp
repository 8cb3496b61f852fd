/* A stand-in for libcufft.so.12 on the emulated device (kernels/cuda/emulate/emulate.h), for the
 * specs.
 *
 * It follows NVIDIA's documentation (the cuFFT guide, the comments of cufft.h), not our use of it,
 * and takes the stricter reading where that leaves something open: addresses are aligned to complex
 * numbers on both sides, a plan belongs to the device that was current when it was made, a plan
 * without its own work area needs one that is set after it was made.  An input of half length is
 * overwritten, and the imaginary parts of its real positions, which the guide does not define, come
 * into the result.  Transforms are computed in double.
 *
 *   FAKE_CUFFT_LOG=1       why a call was refused, on stderr
 *   FAKE_CUFFT_REFUSE=17   plans of 17 positions are not supported */
#include "cuda/vendor/vendor.h"

#include <cufft.h>

#include <algorithm>
#include <complex>
#include <map>
#include <memory>
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

static const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

static cufftResult refuse(cufftResult r, const char *format, ...)
{
  if (!getenv("FAKE_CUFFT_LOG")) return r;
  va_list list;
  va_start(list, format);
  fprintf(stderr, "[cuFFT stand-in] %d: ", (int)r);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  return r;
}
#define INVALID(...) return refuse(CUFFT_INVALID_VALUE, __VA_ARGS__)

typedef std::complex<double> number;

struct made {
  bool done = false, own_memory = true, area_set = false;
  int device = 0;
  cudaStream_t stream = NULL;
  cufftType type = CUFFT_C2C;
  long long n = 0, stride[2] = {}, dist[2] = {}, lines = 0;
  size_t work = 0;
  void *area = NULL;
  std::shared_ptr<bool> alive = std::make_shared<bool>(true); /* its tables; replays of a graph need them */
};
static std::mutex lock;
static std::map<cufftHandle, made> &all(void)
{
  static auto *plans = new std::map<cufftHandle, made>;
  return *plans;
}
static made *of(cufftHandle h)
{
  auto at = all().find(h);
  return at == all().end() ? NULL : &at->second;
}

/* For the specs: plans that were made and not destroyed; plans made since the start. */
static int next_handle;
EXPORT int64_t fake_cufft_living(void)
{
  std::lock_guard<std::mutex> hold(lock);
  return (int64_t)all().size();
}
EXPORT int64_t fake_cufft_made(void) { return next_handle; }

EXPORT cufftResult cufftGetProperty(libraryPropertyType type, int *value)
{
  const int parts[] = { CUFFT_VER_MAJOR, CUFFT_VER_MINOR, CUFFT_VER_PATCH };
  if (!value || (int)type < 0 || (int)type > 2) return CUFFT_INVALID_TYPE;
  *value = parts[type];
  return CUFFT_SUCCESS;
}

EXPORT cufftResult cufftCreate(cufftHandle *out)
{
  std::lock_guard<std::mutex> hold(lock);
  if (!emulator) return CUFFT_SETUP_FAILED;
  if (!out) INVALID("no place for a handle");
  made m;
  m.device = emulator->device();
  *out = ++next_handle;
  all()[*out] = m;
  return CUFFT_SUCCESS;
}

EXPORT cufftResult cufftDestroy(cufftHandle h)
{
  std::lock_guard<std::mutex> hold(lock);
  made *m = of(h);
  if (!m) return refuse(CUFFT_INVALID_PLAN, "destroyed twice, or never made");
  *m->alive = false;
  all().erase(h);
  return CUFFT_SUCCESS;
}

EXPORT cufftResult cufftSetAutoAllocation(cufftHandle h, int automatic)
{
  std::lock_guard<std::mutex> hold(lock);
  made *m = of(h);
  if (!m) return CUFFT_INVALID_PLAN;
  if (m->done) return refuse(CUFFT_INVALID_PLAN, "automatic allocation is set after the plan was made");
  m->own_memory = automatic != 0;
  return CUFFT_SUCCESS;
}

static bool is_double(cufftType t) { return t == CUFFT_Z2Z || t == CUFFT_D2Z || t == CUFFT_Z2D; }
static bool from_real(cufftType t) { return t == CUFFT_R2C || t == CUFFT_D2Z; }
static bool to_real(cufftType t) { return t == CUFFT_C2R || t == CUFFT_Z2D; }
static long long positions(const made &m, int side)
{
  return side == 0 ? to_real(m.type) ? m.n / 2 + 1 : m.n : from_real(m.type) ? m.n / 2 + 1 : m.n;
}
static size_t item(const made &m, int side)
{
  const size_t part = is_double(m.type) ? 8 : 4;
  return (side == 0 ? from_real(m.type) : to_real(m.type)) ? part : 2 * part;
}

EXPORT cufftResult cufftMakePlanMany64(cufftHandle h, int rank, long long *n, long long *inembed,
                                       long long istride, long long idist, long long *onembed,
                                       long long ostride, long long odist, cufftType type, long long batch,
                                       size_t *work)
{
  std::lock_guard<std::mutex> hold(lock);
  const char *const refused = getenv("FAKE_CUFFT_REFUSE");
  made *m = of(h);
  if (!m) return refuse(CUFFT_INVALID_PLAN, "no plan %d", h);
  if (m->done) return refuse(CUFFT_INVALID_PLAN, "plan %d is made twice", h);
  if (m->device != emulator->device()) return refuse(CUFFT_INVALID_DEVICE, "the plan is of another device");
  if (rank != 1 || !n || !work) INVALID("rank %d", rank);
  if (type != CUFFT_C2C && type != CUFFT_R2C && type != CUFFT_C2R && type != CUFFT_Z2Z && type != CUFFT_D2Z &&
      type != CUFFT_Z2D)
    return refuse(CUFFT_INVALID_TYPE, "type %d", (int)type);
  if (*n < 1 || batch < 1) return refuse(CUFFT_INVALID_SIZE, "%lld lines of %lld positions", batch, *n);
  if (!inembed || !onembed) INVALID("without inembed and onembed the strides would not count");
  m->type = type;
  m->n = *n;
  if (*inembed < positions(*m, 0) || *onembed < positions(*m, 1)) INVALID("embedded in too few positions");
  if (istride < 1 || ostride < 1 || idist < 1 || odist < 1) INVALID("strides and distances begin at 1");
  if (refused && atoll(refused) == *n) return CUFFT_NOT_SUPPORTED;
  m->stride[0] = istride, m->stride[1] = ostride;
  m->dist[0] = idist, m->dist[1] = odist;
  m->lines = batch;
  m->work = (*n & (*n - 1)) == 0 && istride == 1 ? 0 : (size_t)(*n * batch) * 16;
  m->done = true;
  *work = m->work;
  return CUFFT_SUCCESS;
}

EXPORT cufftResult cufftSetWorkArea(cufftHandle h, void *area)
{
  std::lock_guard<std::mutex> hold(lock);
  made *m = of(h);
  if (!m || !m->done) return refuse(CUFFT_INVALID_PLAN, "a work area before the plan is made");
  if (m->own_memory) return refuse(CUFFT_INVALID_PLAN, "the plan has memory of its own");
  if ((uintptr_t)area % 256 || !emulator->owns(area, m->work)) INVALID("the work area at %p", area);
  m->area = area;
  m->area_set = true;
  return CUFFT_SUCCESS;
}

EXPORT cufftResult cufftSetStream(cufftHandle h, cudaStream_t stream)
{
  std::lock_guard<std::mutex> hold(lock);
  made *m = of(h);
  if (!m) return CUFFT_INVALID_PLAN;
  m->stream = stream;
  return CUFFT_SUCCESS;
}

/* x: n numbers that are `step` apart; sign: of the exponent */
static void dft(const number *x, size_t n, size_t step, double sign, number *y)
{
  const double turn = sign * 2 * 3.14159265358979323846;
  size_t p = 2;
  while (p * p <= n && n % p) p++;
  if (n == 1 || p * p > n) { /* one, or a prime */
    for (size_t k = 0; k < n; k++) {
      y[k] = 0;
      for (size_t j = 0; j < n; j++)
        y[k] += x[j * step] * std::polar(1.0, turn * (double)(j * k % n) / (double)n);
    }
    return;
  }
  const size_t m = n / p;
  std::vector<number> part(n);
  for (size_t r = 0; r < p; r++) dft(x + r * step, m, step * p, sign, &part[r * m]);
  for (size_t k = 0; k < n; k++) {
    y[k] = 0;
    for (size_t r = 0; r < p; r++)
      y[k] += part[r * m + k % m] * std::polar(1.0, turn * (double)(r * k % n) / (double)n);
  }
}

template <class T> static void compute(const made &m, double sign, char *in, char *out)
{
  typedef std::complex<T> C;
  const size_t n = (size_t)m.n, half = n / 2 + 1;
  std::vector<number> x(n), y(n);
  for (long long line = 0; line < m.lines; line++) {
    double stray = 0;
    for (size_t k = 0; k < n; k++) {
      const long long at =
          line * m.dist[0] + (long long)(k < half || !to_real(m.type) ? k : n - k) * m.stride[0];
      if (from_real(m.type)) x[k] = ((const T *)in)[at];
      else {
        const number v = number(((const C *)in)[at]);
        x[k] = to_real(m.type) && k >= half ? std::conj(v) : v;
        if (to_real(m.type) && (k == 0 || 2 * k == n)) {
          stray += v.imag();
          x[k] = v.real();
        }
      }
    }
    dft(x.data(), n, 1, sign, y.data());
    for (size_t k = 0; k < (size_t)positions(m, 1); k++) {
      const long long at = line * m.dist[1] + (long long)k * m.stride[1];
      if (to_real(m.type)) ((T *)out)[at] = (T)(y[k].real() + stray);
      else if (from_real(m.type) && (k == 0 || 2 * k == n)) ((C *)out)[at] = C((T)y[k].real(), 0);
      else ((C *)out)[at] = C((T)y[k].real(), (T)y[k].imag());
    }
  }
  if (to_real(m.type))
    for (long long line = 0; line < m.lines; line++)
      for (size_t k = 0; k < half; k++)
        ((C *)in)[line * m.dist[0] + (long long)k * m.stride[0]] = C((T)NAN, (T)NAN);
}

static cufftResult run(cufftHandle h, cufftType type, void *in, void *out, int direction)
{
  std::lock_guard<std::mutex> hold(lock);
  made *found = of(h);
  if (!found || !found->done) return refuse(CUFFT_INVALID_PLAN, "plan %d is not made", h);
  const made m = *found;
  if (m.type != type)
    return refuse(CUFFT_INVALID_PLAN, "plan of type %d, call of %d", (int)m.type, (int)type);
  if (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE) INVALID("direction %d", direction);
  if (m.device != emulator->device()) return refuse(CUFFT_INVALID_DEVICE, "the plan is of another device");
  if (!m.own_memory && m.work && !m.area_set) return refuse(CUFFT_NO_WORKSPACE, "no work area");
  for (int side = 0; side < 2; side++) {
    const void *const p = side ? out : in;
    const size_t most = std::max(item(m, 0), item(m, 1));
    const size_t bytes =
        (size_t)((m.lines - 1) * m.dist[side] + (positions(m, side) - 1) * m.stride[side] + 1) *
        item(m, side);
    if ((uintptr_t)p % most) return refuse(CUFFT_INVALID_VALUE, "%s at %p", side ? "output" : "input", p);
    if (!emulator->owns(p, bytes)) INVALID("%s outside of the device's memory", side ? "output" : "input");
  }
  const size_t read = (size_t)(m.lines * positions(m, 0)) * item(m, 0),
               written = (size_t)(m.lines * positions(m, 1)) * item(m, 1);
  const cudaError_t failed = emulator->work(m.stream, [=]() {
    emulator->moved("fft", read, written);
    if (m.area_set) memset(m.area, 0xff, m.work);
    if (!*m.alive) memset(out, 0xff, written); /* the plan's tables are gone */
    else if (is_double(type)) compute<double>(m, direction, (char *)in, (char *)out);
    else compute<float>(m, direction, (char *)in, (char *)out);
  });
  if (!m.own_memory) found->area_set = false; /* the caller may take it back */
  return failed ? CUFFT_EXEC_FAILED : CUFFT_SUCCESS;
}

EXPORT cufftResult cufftExecC2C(cufftHandle h, cufftComplex *in, cufftComplex *out, int direction)
{
  return run(h, CUFFT_C2C, in, out, direction);
}
EXPORT cufftResult cufftExecZ2Z(cufftHandle h, cufftDoubleComplex *in, cufftDoubleComplex *out, int direction)
{
  return run(h, CUFFT_Z2Z, in, out, direction);
}
EXPORT cufftResult cufftExecR2C(cufftHandle h, cufftReal *in, cufftComplex *out)
{
  return run(h, CUFFT_R2C, in, out, CUFFT_FORWARD);
}
EXPORT cufftResult cufftExecD2Z(cufftHandle h, cufftDoubleReal *in, cufftDoubleComplex *out)
{
  return run(h, CUFFT_D2Z, in, out, CUFFT_FORWARD);
}
EXPORT cufftResult cufftExecC2R(cufftHandle h, cufftComplex *in, cufftReal *out)
{
  return run(h, CUFFT_C2R, in, out, CUFFT_INVERSE);
}
EXPORT cufftResult cufftExecZ2D(cufftHandle h, cufftDoubleComplex *in, cufftDoubleReal *out)
{
  return run(h, CUFFT_Z2D, in, out, CUFFT_INVERSE);
}
