/* The cost of a launch, for bench/kernels.lua, which subtracts it from the time of an op.  Found
 * with dlsym; nothing in the host calls it. */
#include "common.cuh"

#include <time.h>

static __global__ void add_few(const float *a, const float *b, float *c, int64_t n)
{
  const int64_t i = AX_FIRST;
  if (i < n) c[i] = a[i] + b[i];
}

static double seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Launches a kernel that adds four numbers `count` times on the device's stream, with nothing
 * between the launches, and waits once.  *nanoseconds: the time of one launch.  Returns a status, 0
 * for success. */
extern "C" __attribute__((visibility("default"))) int ax_cuda_bare_launch(int device, int64_t count,
                                                                          double *nanoseconds)
{
  const ax_device d = { AX_CUDA, (uint8_t)device };
  const size_t bytes = 3 * 512;
  cudaStream_t stream;
  float *p = NULL;
  ax_status st = ax_cuda_use(d, &stream);

  *nanoseconds = 0;
  if (st == AX_OK) st = ax_cuda_take(d, bytes, (void **)&p);
  if (st != AX_OK) return (int)st;
  st = ax_cuda_clear("bare launch", d, p, bytes);
  if (st == AX_OK) st = ax_cuda_status("bare launch", cudaStreamSynchronize(stream));
  const double began = seconds();
  for (int64_t k = 0; k < count && st == AX_OK; k++) {
#ifdef AX_EMULATE
    st = ax_cuda_launch("bare launch", d, dim3(1), dim3(128), add_few, p, p + 128, p + 256, (int64_t)4);
#else
    add_few<<<1, 128, 0, stream>>>(p, p + 128, p + 256, (int64_t)4);
#endif
  }
  if (st == AX_OK) st = ax_cuda_status("bare launch", cudaGetLastError());
  if (st == AX_OK) st = ax_cuda_status("bare launch", cudaStreamSynchronize(stream));
  *nanoseconds = (seconds() - began) / (double)(count > 0 ? count : 1) * 1e9;
  ax_cuda_give(d, p, bytes);
  return (int)st;
}
