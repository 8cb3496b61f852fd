/* cuDNN: the library, its handles, the cache of plans and their execution.  See cudnn.h. */
#include "cudnn_functions.h"

#ifndef AX_CUDNN

const char *ax_cudnn_describe(void) { return "cuDNN is not used: this build had no cudnn_graph.h"; }

#else

#include <mutex>
#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

#include "cuda/runtime/library.h"
#include "cuda/runtime/stats.h"

static const char FILE_NAME[] = "libcudnn.so.9";
enum { MOST_DEVICES = 64, MOST_PLANS = 4096 };
static const int64_t MOST_WORKSPACE = (int64_t)1 << 30;

/* ---- the library */

ax_cudnn_functions ax_cudnn;

/* "BAD_PARAM (2000): ...": the status, and cuDNN's message. */
std::string ax_cudnn_words(cudnnStatus_t s)
{
  char text[400] = "";
  ax_cudnn.p_cudnnGetLastErrorString(text, sizeof text);
  return std::string(ax_cudnn.p_cudnnGetErrorString(s)) + (text[0] ? ": " : "") + text;
}

/* Guards everything below except graphs and descriptors. */
static std::mutex lock;

static struct {
  bool tried, opened;
  std::string reason; /* why the library is not used */
} library;

struct device_state {
  cudnnHandle_t handle;
  cudaStream_t stream; /* the stream that the handle was set to */
  bool failed;
  int64_t most_workspace;
};
static device_state devices[MOST_DEVICES];

ax_status ax_cudnn_open(void)
{
  if (!library.tried) {
    const char *wanted = getenv("ACCEL_CUDNN");
    void *file = NULL;
    ax_status st;
    library.tried = true;
    if (wanted && strcmp(wanted, "0") == 0) st = ax_fail(AX_ENOIMPL, "ACCEL_CUDNN=0");
    else st = ax_cuda_library(FILE_NAME, "cuDNN", &file);
#define X(name) \
  if (st == AX_OK) st = ax_cuda_symbol(file, FILE_NAME, #name, (void **)&ax_cudnn.p_##name);
    AX_CUDNN_FUNCTIONS(X)
#undef X
    library.opened = st == AX_OK;
    if (!library.opened) library.reason = ax_last_error();
  }
  return library.opened ? AX_OK : ax_fail(AX_ENOIMPL, "%s", library.reason.c_str());
}

const char *ax_cudnn_describe(void)
{
  static thread_local char text[600];
  std::lock_guard<std::mutex> hold(lock);
  if (ax_cudnn_open() != AX_OK || !library.reason.empty())
    snprintf(text, sizeof text, "cuDNN is not used: %s", library.reason.c_str());
  else {
    const size_t v = ax_cudnn.p_cudnnGetVersion();
    snprintf(text, sizeof text, "cuDNN %d.%d.%d", (int)(v / 10000), (int)(v / 100 % 100), (int)(v % 100));
  }
  return text;
}

cudnnDataType_t ax_cudnn_type(ax_dtype d)
{
  return d == AX_F64    ? CUDNN_DATA_DOUBLE
         : d == AX_F16  ? CUDNN_DATA_HALF
         : d == AX_BF16 ? CUDNN_DATA_BFLOAT16
                        : CUDNN_DATA_FLOAT;
}

int64_t ax_cudnn_alignment(const void *p)
{
  int64_t n = 128;
  while ((uintptr_t)p % (uintptr_t)n) n /= 2;
  return n;
}

/* ---- the cache */

struct cache_key {
  ax_cudnn_key k;
  int64_t device, exact, deterministic;
};
struct hash_key {
  size_t operator()(const cache_key &k) const
  {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a over the words */
    const uint64_t *w = (const uint64_t *)&k;
    for (size_t i = 0; i < sizeof k / 8; i++) h = (h ^ w[i]) * 0x100000001b3u;
    return (size_t)h;
  }
};
struct same_key {
  bool operator()(const cache_key &a, const cache_key &b) const { return memcmp(&a, &b, sizeof a) == 0; }
};
typedef std::unordered_map<cache_key, std::shared_ptr<ax_cudnn_plan>, hash_key, same_key> cache;
/* Never destroyed: at the end of a process, the library may be unloaded earlier. */
static cache &plans(void)
{
  static cache *all = new cache;
  return *all;
}

/* The device's handle, set to the device's stream.  *out NULL with AX_OK: cuDNN does not run on
 * it. */
static ax_status handle_of(ax_device d, device_state **out)
{
  device_state *s = &devices[d.index % MOST_DEVICES];
  cudaStream_t stream = NULL;
  const ax_status st = ax_cuda_use(d, &stream);
  cudnnStatus_t e = CUDNN_STATUS_SUCCESS;

  *out = NULL;
  if (st != AX_OK) return st;
  if (s->failed || ax_cudnn_open() != AX_OK) return AX_OK;
  const bool fresh = !s->handle;
  if (fresh) e = ax_cudnn.p_cudnnCreate(&s->handle);
  if (e == CUDNN_STATUS_SUCCESS && (fresh || s->stream != stream))
    e = ax_cudnn.p_cudnnSetStream(s->handle, stream);
  if (e != CUDNN_STATUS_SUCCESS) {
    s->failed = true;
    library.reason = std::string(s->handle ? "cudnnSetStream: " : "cudnnCreate: ") + ax_cudnn_words(e);
    if (s->handle) ax_cudnn.p_cudnnDestroy(s->handle);
    s->handle = NULL;
    return AX_OK;
  }
  s->stream = stream;
  if (fresh) {
    size_t available = 0, total = 0;
    s->most_workspace =
        cudaMemGetInfo(&available, &total) == cudaSuccess && (int64_t)(total / 8) < MOST_WORKSPACE
            ? (int64_t)(total / 8)
            : MOST_WORKSPACE;
  }
  *out = s;
  return AX_OK;
}

/* The name for counting calls that cuDNN does not compute, with the last of the reasons. */
static std::string ours(const std::string &what, const std::string &why)
{
  const size_t last = why.rfind("; ");
  return what.substr(0, what.find(',')) + ", ours (" +
         (last == std::string::npos ? why : why.substr(last + 2)) + ")";
}

static ax_status find(ax_device d, const char *what, const ax_cudnn_key &key, ax_cudnn_builder build,
                      bool exact, std::shared_ptr<ax_cudnn_plan> *out)
{
  std::lock_guard<std::mutex> hold(lock);
  device_state *s;
  cache_key k;
  const ax_status st = handle_of(d, &s);

  if (st != AX_OK || !s) return st;
  memset(&k, 0, sizeof k);
  k.k = key;
  k.device = d.index;
  k.exact = exact;
  k.deterministic = ax_deterministic();
  auto at = plans().find(k);
  if (at == plans().end()) {
    auto fresh = std::make_shared<ax_cudnn_plan>();
    std::string why;
    ax_cudnn_graph g(ax_cudnn_target{ s->handle, NULL });
    if (ax_cudnn_choose(g, build, key, exact, s->most_workspace, fresh.get(), &why))
      fresh->name = std::string(what) + ", cuDNN engine " + std::to_string(fresh->engine);
    else fresh->name = ours(what, why);
    fresh->calls = ax_cuda_counter(fresh->name.c_str());
    if (plans().size() >= MOST_PLANS) plans().clear(); /* a script whose shapes never repeat */
    at = plans().emplace(k, fresh).first;
  }
  if (at->second->plan) *out = at->second;
  else ++*at->second->calls;
  return AX_OK;
}

ax_status ax_cudnn_find(ax_device d, const char *what, const ax_cudnn_key &key, ax_cudnn_builder build,
                        bool exact, std::shared_ptr<ax_cudnn_plan> *out)
{
  out->reset();
  try {
    return find(d, what, key, build, exact, out);
  } catch (const std::bad_alloc &) {
    return ax_fail(AX_ENOMEM, "%s: out of memory of the host while planning", what);
  }
}

static ax_status run(ax_device d, ax_cudnn_plan *plan, int n, const int64_t *uids, void *const *data,
                     bool *done)
{
  std::lock_guard<std::mutex> hold(lock);
  device_state *s;
  void *workspace = NULL;
  ax_cudnn_holder pack;
  ax_status st = handle_of(d, &s);

  if (st != AX_OK || !s || !plan->plan) return st;
  if (plan->workspace > 0 && (st = ax_cuda_take(d, (size_t)plan->workspace, &workspace)) != AX_OK) return st;
  cudnnStatus_t e = pack.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  if (e == CUDNN_STATUS_SUCCESS)
    e = ax_cudnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                            CUDNN_TYPE_VOID_PTR, n, data);
  if (e == CUDNN_STATUS_SUCCESS)
    e = ax_cudnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n,
                                            uids);
  if (e == CUDNN_STATUS_SUCCESS)
    e = ax_cudnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                            &workspace);
  if (e == CUDNN_STATUS_SUCCESS) e = ax_cudnn.p_cudnnBackendFinalize(pack.d);
  if (e == CUDNN_STATUS_SUCCESS) e = ax_cudnn.p_cudnnBackendExecute(s->handle, plan->plan, pack.d);
  *done = e == CUDNN_STATUS_SUCCESS;
  if (!*done) { /* others may hold the plan: it stays in the cache, marked as unusable */
    plan->name = ours(plan->name, ax_cudnn_words(e));
    plan->calls = ax_cuda_counter(plan->name.c_str());
    plan->release();
  }
  ++*plan->calls;
  ax_cuda_give(d, workspace, (size_t)plan->workspace);
  return AX_OK;
}

ax_status ax_cudnn_run(ax_device d, const std::shared_ptr<ax_cudnn_plan> &plan, int n, const int64_t *uids,
                       void *const *data, bool *done)
{
  *done = false;
  try {
    return run(d, plan.get(), n, uids, data, done);
  } catch (const std::bad_alloc &) {
    return ax_fail(AX_ENOMEM, "%s: out of memory of the host", plan->name.c_str());
  }
}

#endif
