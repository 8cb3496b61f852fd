/* Asks cuDNN itself, on a machine without a GPU, which plans it has for our graphs on an H200:
 * `make plan-cudnn`.
 *
 * cuDNN plans for a device that is only described (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, from 9.8
 * on).  So the graphs of kernels/cuda/cudnn_*.cu, and the choice among what the heuristics name,
 * are tried on the real library; only the execution is not.  Engines that are compiled at run time
 * want a driver to load what they compiled: the second half of this file stands for one.
 *
 *   plan_cudnn FOLDER [PART]     FOLDER has libcudnn.so.9; PART: only cases with this in their
 *                                names
 *
 * Prints a line for each case, and ends with 1 when one that training depends on has no plan. */
#ifdef AS_DRIVER

/* libcuda.so.1: everything works, nothing happens. */
#define DOES(name) \
  extern "C" __attribute__((visibility("default"))) int name(void) { return 0; }
#define GIVES(name) \
  extern "C" __attribute__((visibility("default"))) int name(void **out) \
  { \
    *out = (void *)1; \
    return 0; \
  }
#define SAYS(name, v) \
  extern "C" __attribute__((visibility("default"))) int name(int *out) \
  { \
    *out = v; \
    return 0; \
  }
/* clang-format off */
DOES(cuLaunchKernel) DOES(cuLaunchCooperativeKernel) DOES(cuLaunchKernelEx) DOES(cuLinkDestroy)
DOES(cuLinkComplete) DOES(cuLinkCreate) DOES(cuLinkCreate_v2) DOES(cuLinkAddData)
DOES(cuLinkAddData_v2) DOES(cuLinkAddFile_v2) DOES(cuGetErrorString) DOES(cuGetErrorName)
DOES(cuDeviceGet) DOES(cuCtxPushCurrent) DOES(cuCtxPopCurrent) DOES(cuCtxGetLimit)
DOES(cuStreamGetCtx) DOES(cuOccupancyMaxPotentialClusterSize) DOES(cuLibraryUnload)
DOES(cuKernelSetAttribute) DOES(cuCtxGetCurrent) DOES(cuTensorMapEncodeTiled)
DOES(cuStreamSynchronize) DOES(cuModuleUnload) DOES(cuModuleLoadFatBinary)
DOES(cuModuleGetGlobal_v2) DOES(cuMemcpyDtoH_v2) DOES(cuFuncSetAttribute)
DOES(cuDevicePrimaryCtxRetain) DOES(cuDevicePrimaryCtxReset) DOES(cuDevicePrimaryCtxRelease)
DOES(cuDeviceGetAttribute) DOES(cuCtxGetDevice)
GIVES(cuLibraryLoadData) GIVES(cuLibraryLoadFromFile) GIVES(cuLibraryGetKernel)
GIVES(cuModuleLoadData) GIVES(cuModuleLoadDataEx) GIVES(cuModuleGetFunction)
SAYS(cuDriverGetVersion, 13000) SAYS(cuKernelGetAttribute, 64) SAYS(cuFuncGetAttribute, 64)
SAYS(cuOccupancyMaxActiveBlocksPerMultiprocessor, 1)
    /* clang-format on */
    extern "C" __attribute__((visibility("default"))) int cuInit(unsigned)
{
  return 100;
} /* no device */
extern "C" __attribute__((visibility("default"))) int cuDeviceGetCount(int *n)
{
  *n = 0;
  return 100;
}

#else

#include "cuda/vendor/cudnn.cu"
#include "cuda/vendor/cudnn_graph.cu"
#include "cuda/vendor/cudnn_plan.cu"
#include "cuda/vendor/cudnn_conv.cu"
#include "cuda/vendor/cudnn_attention.cu"

#include <dlfcn.h>
#include <stdarg.h>
#include <time.h>

/* ---- what the backend has of the host and the device */

static char said[2000], folder[1000];
ax_status ax_fail(ax_status st, const char *fmt, ...)
{
  va_list list;
  va_start(list, fmt);
  vsnprintf(said, sizeof said, fmt, list);
  va_end(list);
  return st;
}
const char *ax_last_error(void) { return said; }
const char *ax_dtype_name(ax_dtype d)
{
  return d == AX_BF16 ? "bfloat16" : d == AX_F16 ? "float16" : "float32";
}
size_t ax_dtype_size(ax_dtype d) { return d == AX_F32 ? 4 : 2; }
bool ax_convolution_tf32(void) { return false; }
ax_status ax_cuda_library(const char *file, const char *, void **out)
{
  char path[1200];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "%s", dlerror());
}
ax_status ax_cuda_symbol(void *library, const char *, const char *name, void **out)
{
  *out = dlsym(library, name);
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "there is no %s", name);
}
ax_status ax_cuda_use(ax_device, cudaStream_t *) { return ax_fail(AX_ENOIMPL, "there is no device"); }
ax_status ax_cuda_take(ax_device, size_t, void **) { return ax_fail(AX_ENOIMPL, "there is no device"); }
void ax_cuda_give(ax_device, void *, size_t) {}
int ax_cuda_multiprocessors(int) { return 132; }
bool ax_deterministic(void) { return true; }
int64_t *ax_cuda_counter(const char *)
{
  static int64_t calls;
  return &calls;
}
const char *ax_emulate(const char *, cudaStream_t, dim3, dim3, std::function<void()>)
{
  return "there is no device";
}
cudaError_t cudaMemGetInfo(size_t *, size_t *) { return cudaErrorNoDevice; }
dim3 gridDim, blockDim, blockIdx, threadIdx;

/* ---- plans for a device that is only described */

static const char H200[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA "
    "H200\",\"deviceVer\":900,\"driverVer\":13000,\"isTccDriver\":0,\"l2CacheSize\":62914560,"
    "\"maxCtasPerSM\":32,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"memClockRateKHz\":3201000,\"multiProcessorCount\":132,\"pciDeviceId\":0,\"regsPerBlock\":65536,"
    "\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1980000,\"supportCoopLaunch\":1,"
    "\"totalGlobalMem\":150754820096,\"warpSize\":32,\"maxBlockSize\":[1024,1024,64],\"maxGridSize\":["
    "2147483647,65535,65535]}";

static cudnnBackendDescriptor_t described(void)
{
  cudnnBackendDescriptor_t d = NULL;
  cudnnStatus_t s = dnn.p_cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
  if (s == CUDNN_STATUS_SUCCESS)
    s = dnn.p_cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       sizeof H200, H200);
  if (s == CUDNN_STATUS_SUCCESS) s = dnn.p_cudnnBackendFinalize(d);
  if (s == CUDNN_STATUS_SUCCESS) return d;
  printf("this cuDNN does not plan for a described device: %s\n", words(s).c_str());
  return NULL;
}

static cudnnBackendDescriptor_t h200;
static int missing;

static void plan(const char *name, const ax_cudnn_key &key, ax_cudnn_builder build, bool exact, bool needed)
{
  ax_cudnn_graph g(ax_cudnn_target{ NULL, h200 });
  ax_cudnn_plan p;
  std::string why;
  const clock_t began = clock();
  const bool ok = ax_cudnn_choose(g, build, key, exact, MOST_WORKSPACE, &p, &why);
  if (ok)
    printf("%-64s engine %3lld, %8.2f MB, %.1f s\n", name, (long long)p.engine, (double)p.workspace / 1e6,
           (double)(clock() - began) / CLOCKS_PER_SEC);
  else printf("%-64s none%s%.600s\n", name, needed ? " (needed)" : "", why.c_str());
  missing += !ok && needed;
  fflush(stdout);
}

static void convolution(const char *part, const char *label, ax_cuda_conv c)
{
  static const char *const kinds[] = { "forward", "input", "weight" };
  for (ax_dtype t : { AX_BF16, AX_F16, AX_F32 })
    for (int k = 0; k < 3; k++) {
      ax_cudnn_key key = {};
      char name[120];
      snprintf(name, sizeof name, "convolution %s, %s, %s", label, ax_dtype_name(t), kinds[k]);
      if (!strstr(name, part)) continue;
      for (int64_t d = 0; d < c.dims; d++)
        c.out[d] = (c.in[d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
      key.word[KIND] = k, key.word[TYPE] = ax_cudnn_type(t);
      key.word[X_ALIGN] = key.word[W_ALIGN] = key.word[Y_ALIGN] = 128;
      memcpy(key.word + CONV, &c, sizeof c);
      plan(name, key, build, t == AX_F32, t != AX_F32);
    }
}

/* Queries, keys and values as thirds of one projection, as models have them. */
static void attention(const char *part, const char *label, int64_t batch, int64_t heads, int64_t shared,
                      int64_t queries, int64_t keys, int64_t head, bool needed)
{
  for (ax_dtype t : { AX_BF16, AX_F16 })
    for (int k = 0; k < 4; k++) {
      const bool backward = k & 1, causal = k & 2;
      ax_cuda_attention a = { batch, heads, shared, queries, keys, head, head, {},    {},
                              {},    {},    {},     {},      {},   {},   0,    causal };
      const int64_t q[4] = { queries * 3 * heads * head, head, 3 * heads * head, 1 },
                    kv[4] = { keys * 3 * shared * head, head, 3 * shared * head, 1 };
      const int64_t y[4] = { queries * heads * head, head, heads * head, 1 };
      ax_cudnn_key key = {};
      char name[120];
      snprintf(name, sizeof name, "attention %s, %s, %s%s", label, ax_dtype_name(t),
               backward ? "backward" : "forward", causal ? ", causal" : "");
      if (!strstr(name, part)) continue;
      for (int64_t *s : { a.q, a.dq }) memcpy(s, q, sizeof q);
      for (int64_t *s : { a.k, a.v, a.dk, a.dv }) memcpy(s, kv, sizeof kv);
      for (int64_t *s : { a.y, a.g }) memcpy(s, y, sizeof y);
      key.word[BACKWARD] = backward, key.word[ELEMENT] = ax_cudnn_type(t);
      for (int i = 0; i < TENSORS; i++) key.word[ALIGN + i] = 128;
      memcpy(key.word + CALL, &a, sizeof a);
      plan(name, key, build_graph, false, needed);
    }
}

int main(int argc, char **argv)
{
  const char *part = argc > 2 ? argv[2] : "";
  snprintf(folder, sizeof folder, "%s", argc > 1 ? argv[1] : "/usr/local/cuda/lib64");
  if (ax_cudnn_open() != AX_OK) return puts(said), 1;
  puts(ax_cudnn_describe());
  if (!(h200 = described())) return 1;
  /* ResNet-50, a batch of 256 */
  convolution(part, "7x7/2 3-64 224",
              { 2, 256, 3, 64, 1, { 224, 224 }, {}, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 1, 1 } });
  for (int64_t stage = 0, c = 64, size = 56; stage < 4; stage++, c *= 2, size /= 2) {
    char label[3][40];
    snprintf(label[0], sizeof label[0], "1x1 %d-%d %d", (int)c * 4, (int)c, (int)size);
    snprintf(label[1], sizeof label[1], "3x3 %d-%d %d", (int)c, (int)c, (int)size);
    snprintf(label[2], sizeof label[2], "1x1 %d-%d %d", (int)c, (int)c * 4, (int)size);
    convolution(part, label[0],
                { 2, 256, c * 4, c, 1, { size, size }, {}, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } });
    convolution(part, label[1],
                { 2, 256, c, c, 1, { size, size }, {}, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } });
    convolution(part, label[2],
                { 2, 256, c, c * 4, 1, { size, size }, {}, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } });
  }
  convolution(part, "3x3/2 128-128 56",
              { 2, 256, 128, 128, 1, { 56, 56 }, {}, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } });
  convolution(part, "1x1/2 256-512 56",
              { 2, 256, 256, 512, 1, { 56, 56 }, {}, { 1, 1 }, { 2, 2 }, { 0, 0 }, { 1, 1 } });
  /* others */
  convolution(part, "3x3 in 32 groups",
              { 2, 64, 128, 128, 32, { 28, 28 }, {}, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } });
  convolution(part, "3x3 depthwise",
              { 2, 64, 96, 96, 96, { 28, 28 }, {}, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } });
  convolution(part, "3x3 dilated",
              { 2, 8, 64, 64, 1, { 32, 32 }, {}, { 3, 3 }, { 1, 1 }, { 2, 2 }, { 2, 2 } });
  convolution(part, "3x3 5-7", { 2, 8, 5, 7, 1, { 32, 32 }, {}, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } });
  convolution(part, "3x3x3 32-64 16",
              { 3, 4, 32, 64, 1, { 16, 28, 28 }, {}, { 3, 3, 3 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } });
  convolution(part, "one row", { 2, 8, 64, 64, 1, { 1, 128 }, {}, { 1, 3 }, { 1, 1 }, { 0, 1 }, { 1, 1 } });
  attention(part, "GPT-2 124M", 16, 12, 12, 1024, 1024, 64, true);
  attention(part, "grouped heads of 128", 2, 32, 8, 2048, 2048, 128, true);
  attention(part, "heads of 256", 2, 8, 8, 512, 512, 256, false);
  attention(part, "77 x 77, heads of 72", 2, 8, 8, 77, 77, 72, false);
  attention(part, "64 x 200", 2, 8, 8, 64, 200, 64, false);
  printf("%d needed plans are missing\n", missing);
  return missing > 0;
}

#endif
