/* Kernels with the errors that the emulator is there to find, for spec/gpu/emulator_spec.lua. */
#include "emulate.h"

#include <stdio.h>
#include <string>

struct alignas(16) four {
  float v[4];
};

static void misaligned(float *p, float) { *(four *)(p + (threadIdx.x == 3)) = four{}; }
static void behind(float *p, float) { p[8 + threadIdx.x % 2] = 1; } /* of eight */
static void in_front(float *p, float) { p[-1] = 1; }
static void not_written(float *p, float) { p[0] = p[1]; }
static void no_barrier(float *p, float v)
{
  static float shared[64];
  shared[threadIdx.x] = v;
  if (threadIdx.x < 8) p[threadIdx.x] = shared[63 - threadIdx.x];
}
static void two_warps(float *p, float v) /* correct: barriers where they are needed */
{
  static float shared[64];
  shared[threadIdx.x] = v + (float)threadIdx.x;
  __syncthreads();
  const float other = __shfl_xor_sync(~0u, shared[63 - threadIdx.x], 1);
  if (threadIdx.x < 8) p[threadIdx.x] = other;
}
static void fused(float *p, float v) { p[0] = v * v - 1.0f; }
static void exponential(float *p, float v) { p[0] = exp2f(v), p[1] = exp2f(v), p[2] = exp2f(0.0f); }

static const struct {
  const char *name;
  void (*kernel)(float *, float);
} TRIALS[] = { { "misaligned", misaligned }, { "behind", behind },
               { "in front", in_front },     { "not written", not_written },
               { "no barrier", no_barrier }, { "two warps", two_warps },
               { "fused", fused },           { "exponential", exponential } };

/* Runs the kernel of this name in a block of 64 threads, over eight floats; returns its message, or
 * the floats. */
extern "C" __attribute__((visibility("default"))) const char *ax_emulated_trial(const char *name, float value)
{
  static std::string text;
  float *p, back[8] = {};
  const char *wrong = "no such trial";
  char one[40];

  if (cudaMalloc((void **)&p, sizeof back)) return "no memory";
  for (const auto &t : TRIALS)
    if (!strcmp(t.name, name)) {
      const auto kernel = t.kernel;
      wrong = ax_emulate(name, NULL, 1, 64, [=]() { kernel(p, value); });
    }
  text = wrong ? wrong : "";
  if (!wrong && cudaMemcpyAsync(back, p, sizeof back, cudaMemcpyDeviceToHost, NULL) == cudaSuccess)
    for (float f : back) {
      snprintf(one, sizeof one, "%s%.9g", text.empty() ? "" : " ", f);
      text += one;
    }
  cudaFree(p);
  return text.c_str();
}
