/* What a launch costs by itself: for kernels.lua, which measures what an op costs beyond it.  A
 * library of its own, built for the benchmarks alone. */
#include <cuda_runtime.h>

#include <cstdint>
#include <ctime>

static __global__ void add_few(const float *a, const float *b, float *c, int64_t n)
{
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

static double seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Launches add_few `count` times on one stream, with nothing between the launches, and waits
 * once. */
static cudaError_t launch_many(cudaStream_t stream, float *p, int64_t count, double *nanoseconds)
{
  cudaError_t e = cudaStreamSynchronize(stream);
  const double began = seconds();

  if (e != cudaSuccess) return e;
  for (int64_t k = 0; k < count; k++) add_few<<<1, 128, 0, stream>>>(p, p + 128, p + 256, 4);
  e = cudaGetLastError();
  if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
  *nanoseconds = (seconds() - began) / (double)(count > 0 ? count : 1) * 1e9;
  return e;
}

/* *nanoseconds: the time of one launch that adds four numbers.  NULL, or the reason of a
 * failure. */
extern "C" __attribute__((visibility("default"))) const char *bare_launch(int device, int64_t count,
                                                                          double *nanoseconds)
{
  const size_t bytes = 3 * 128 * sizeof(float);
  cudaStream_t stream = NULL;
  float *p = NULL;
  cudaError_t e = cudaSetDevice(device);

  *nanoseconds = 0;
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaMalloc((void **)&p, bytes);
  if (e == cudaSuccess) e = cudaMemsetAsync(p, 0, bytes, stream);
  if (e == cudaSuccess) e = launch_many(stream, p, count, nanoseconds);
  if (p) cudaFree(p);
  if (stream) cudaStreamDestroy(stream);
  return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}
