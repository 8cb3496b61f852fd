/* cuDNN's backend interface: the library, graphs, plans and their cache.  See cudnn.h. */
#include "cudnn.h"

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
enum { MOST_DEVICES = 64, MOST_CONFIGS = 64, MOST_PLANS = 4096 };
static const int64_t MOST_WORKSPACE = (int64_t)1 << 30;

/* ---- the functions, found when first needed */

#define FUNCTIONS(X) \
  X(cudnnGetVersion) \
  X(cudnnCreate) \
  X(cudnnDestroy) \
  X(cudnnSetStream) \
  X(cudnnGetErrorString) \
  X(cudnnGetLastErrorString) \
  X(cudnnBackendCreateDescriptor) \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendFinalize) \
  X(cudnnBackendSetAttribute) \
  X(cudnnBackendGetAttribute) \
  X(cudnnBackendExecute)
static struct {
#define X(name) decltype(&name) p_##name;
  FUNCTIONS(X)
#undef X
} dnn;

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
  if (st == AX_OK) st = ax_cuda_symbol(file, FILE_NAME, #name, (void **)&dnn.p_##name);
    FUNCTIONS(X)
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
    const size_t v = dnn.p_cudnnGetVersion();
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

/* ---- graphs */

/* "BAD_PARAM (2000): ...": the status, and cuDNN's message. */
static std::string words(cudnnStatus_t s)
{
  char text[400] = "";
  dnn.p_cudnnGetLastErrorString(text, sizeof text);
  return std::string(dnn.p_cudnnGetErrorString(s)) + (text[0] ? ": " : "") + text;
}

bool ax_cudnn_graph::check(cudnnStatus_t s, const char *call, cudnnBackendDescriptor_t d)
{
  const char *name = "";
  if (s == CUDNN_STATUS_SUCCESS) return true;
  for (const made &m : all)
    if (m.d == d) name = m.name;
  failed = s;
  message = std::string(call) + " of " + name + ": " + words(s);
  return false;
}

ax_cudnn_graph::~ax_cudnn_graph()
{
  while (!all.empty()) { /* later descriptors refer to earlier ones */
    dnn.p_cudnnBackendDestroyDescriptor(all.back().d);
    all.pop_back();
  }
}

cudnnBackendDescriptor_t ax_cudnn_graph::make(cudnnBackendDescriptorType_t type, const char *name)
{
  cudnnBackendDescriptor_t d = NULL;
  if (!ok()) return NULL;
  all.reserve(all.size() + 1); /* reserved first, so that the descriptor made next cannot be lost */
  const cudnnStatus_t s = dnn.p_cudnnBackendCreateDescriptor(type, &d);
  if (s != CUDNN_STATUS_SUCCESS) {
    failed = s;
    message = std::string("making ") + name + ": " + words(s);
    return NULL;
  }
  all.push_back(made{ d, name });
  return d;
}

void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
  if (!ok()) return;
  if (!check(dnn.p_cudnnBackendSetAttribute(d, attribute, type, count, values), "setting", d))
    message += " (attribute " + std::to_string((int)attribute) + ")";
}

void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                         cudnnBackendDescriptor_t value)
{
  set(d, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}
void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                         cudnnDataType_t value)
{
  set(d, attribute, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, int64_t value)
{
  set(d, attribute, CUDNN_TYPE_INT64, 1, &value);
}
void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, double value)
{
  set(d, attribute, CUDNN_TYPE_DOUBLE, 1, &value);
}

void ax_cudnn_graph::finish(cudnnBackendDescriptor_t d)
{
  if (ok()) check(dnn.p_cudnnBackendFinalize(d), "finishing", d);
}

cudnnBackendDescriptor_t ax_cudnn_graph::tensor(int64_t uid, cudnnDataType_t type, int n, const int64_t *size,
                                                const int64_t *stride, int64_t alignment, bool between)
{
  const cudnnBackendDescriptor_t t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
  set(t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, size);
  set(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, stride);
  set(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid > 0 ? uid : next_between++);
  set(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  if (between) set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
  finish(t);
  return t;
}

cudnnBackendDescriptor_t ax_cudnn_graph::number(int64_t uid, cudnnDataType_t type, int n)
{
  const int64_t ones[CUDNN_DIM_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 };
  const bool yes = true;
  const cudnnBackendDescriptor_t t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a number");
  set(t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, ones);
  set(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, ones);
  set(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  set(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, (int64_t)16);
  set(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
  finish(t);
  return t;
}

cudnnBackendDescriptor_t ax_cudnn_graph::close(void)
{
  const cudnnBackendDescriptor_t g = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
  set(g, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)operations.size(),
      operations.data());
  if (target.handle) set(g, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  finish(g);
  return g;
}

/* ---- plans */

/* Owns a descriptor that belongs to no graph, until release(). */
struct holder {
  cudnnBackendDescriptor_t d = NULL;
  cudnnStatus_t make(cudnnBackendDescriptorType_t type)
  {
    return dnn.p_cudnnBackendCreateDescriptor(type, &d);
  }
  cudnnBackendDescriptor_t release(void)
  {
    cudnnBackendDescriptor_t r = d;
    d = NULL;
    return r;
  }
  holder() {}
  holder(holder &&other) : d(other.release()) {}
  holder(const holder &) = delete;
  ~holder()
  {
    if (d) dnn.p_cudnnBackendDestroyDescriptor(d);
  }
};

static bool get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                cudnnBackendAttributeType_t type, int64_t most, int64_t *count, void *values)
{
  return dnn.p_cudnnBackendGetAttribute(d, attribute, type, most, count, values) == CUDNN_STATUS_SUCCESS;
}

/* The engine's number, and whether it may be used. */
static bool allowed(cudnnBackendDescriptor_t config, bool exact, int64_t *index, const char **why)
{
  /* newer versions have more notes */
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
  const int64_t most = (int64_t)(sizeof notes / sizeof *notes);
  int64_t n = 0;
  holder engine;
  *why = "its engine cannot be read";
  if (engine.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR) != CUDNN_STATUS_SUCCESS) return false;
  if (!get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine.d))
    return false;
  if (!get(engine.d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, index)) return false;
  if (!get(engine.d, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, most, &n, notes))
    return false;
  *why = NULL;
  for (int64_t k = 0; k < n && k < most; k++) switch (notes[k]) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      if (ax_deterministic()) *why = "not deterministic";
      break;
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: *why = "sums in a narrower type"; break;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      if (exact) *why = "rounds float32 inputs";
      break;
    default: break;
    }
  return !*why;
}

/* Builds the plan of one configuration; takes the configuration when that succeeds. */
static bool build_plan(const ax_cudnn_target &target, holder &config, int64_t most_workspace,
                       ax_cudnn_plan *out, std::string *why)
{
  holder plan;
  int64_t n = 0, workspace = 0;
  cudnnStatus_t s = plan.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (s == CUDNN_STATUS_SUCCESS && target.handle)
    s = dnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                       &target.handle);
  if (s == CUDNN_STATUS_SUCCESS && target.description)
    s = dnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.description);
  if (s == CUDNN_STATUS_SUCCESS)
    s = dnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config.d);
  if (s == CUDNN_STATUS_SUCCESS) s = dnn.p_cudnnBackendFinalize(plan.d);
  if (s != CUDNN_STATUS_SUCCESS) {
    *why = words(s);
    return false;
  }
  if (!get(plan.d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &workspace) ||
      workspace < 0 || workspace > most_workspace) {
    *why = "needs " + std::to_string(workspace) + " bytes of workspace";
    return false;
  }
  out->workspace = workspace;
  out->plan = plan.release();
  out->config = config.release(); /* the plan refers to it */
  return true;
}

/* Tries what one mode of the heuristics returns, best first. */
static bool choose_by(cudnnBackendHeurMode_t mode, const ax_cudnn_target &target,
                      cudnnBackendDescriptor_t graph, bool exact, int64_t most_workspace, ax_cudnn_plan *out,
                      std::string *why)
{
  holder heuristics;
  int64_t n = 0;
  cudnnStatus_t s = heuristics.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  if (s == CUDNN_STATUS_SUCCESS)
    s = dnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
  if (s == CUDNN_STATUS_SUCCESS)
    s = dnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
                                       &mode);
  if (s == CUDNN_STATUS_SUCCESS && target.description)
    s = dnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.description);
  if (s == CUDNN_STATUS_SUCCESS) s = dnn.p_cudnnBackendFinalize(heuristics.d);
  if (s == CUDNN_STATUS_SUCCESS)
    s = dnn.p_cudnnBackendGetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL);
  if (s != CUDNN_STATUS_SUCCESS) {
    *why += std::string("; heuristics ") + std::to_string((int)mode) + ": " + words(s);
    return false;
  }
  if (n > MOST_CONFIGS) n = MOST_CONFIGS;
  std::vector<holder> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  configs.reserve((size_t)n);
  for (int64_t k = 0; k < n; k++) {
    holder config;
    if (config.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) != CUDNN_STATUS_SUCCESS) break;
    raw.push_back(config.d);
    configs.push_back(std::move(config));
  }
  if (raw.empty() || !get(heuristics.d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          (int64_t)raw.size(), &n, raw.data()))
    return false;
  for (int64_t k = 0; k < n && k < (int64_t)configs.size(); k++) {
    const char *not_allowed = NULL;
    std::string refusal;
    int64_t index = -1;
    if (allowed(configs[(size_t)k].d, exact, &index, &not_allowed) &&
        build_plan(target, configs[(size_t)k], most_workspace, out, &refusal)) {
      out->engine = index;
      return true;
    }
    *why += "; engine " + std::to_string(index) + ": " + (not_allowed ? not_allowed : refusal.c_str());
  }
  return false;
}

bool ax_cudnn_choose(ax_cudnn_graph &g, ax_cudnn_builder build, const ax_cudnn_key &key, bool exact,
                     int64_t most_workspace, ax_cudnn_plan *out, std::string *why)
{
  build(g, key);
  const cudnnBackendDescriptor_t graph = g.close();
  why->clear();
  if (!g.ok()) *why = "; " + g.message;
  return g.ok() && (choose_by(CUDNN_HEUR_MODE_A, g.target, graph, exact, most_workspace, out, why) ||
                    choose_by(CUDNN_HEUR_MODE_FALLBACK, g.target, graph, exact, most_workspace, out, why));
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

void ax_cudnn_plan::release(void)
{
  if (plan) dnn.p_cudnnBackendDestroyDescriptor(plan);
  if (config) dnn.p_cudnnBackendDestroyDescriptor(config);
  plan = config = NULL;
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
  if (fresh) e = dnn.p_cudnnCreate(&s->handle);
  if (e == CUDNN_STATUS_SUCCESS && (fresh || s->stream != stream))
    e = dnn.p_cudnnSetStream(s->handle, stream);
  if (e != CUDNN_STATUS_SUCCESS) {
    s->failed = true;
    library.reason = std::string(s->handle ? "cudnnSetStream: " : "cudnnCreate: ") + words(e);
    if (s->handle) dnn.p_cudnnDestroy(s->handle);
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
  holder pack;
  ax_status st = handle_of(d, &s);

  if (st != AX_OK || !s || !plan->plan) return st;
  if (plan->workspace > 0 && (st = ax_cuda_take(d, (size_t)plan->workspace, &workspace)) != AX_OK) return st;
  cudnnStatus_t e = pack.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  if (e == CUDNN_STATUS_SUCCESS)
    e = dnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
                                       data);
  if (e == CUDNN_STATUS_SUCCESS)
    e = dnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
  if (e == CUDNN_STATUS_SUCCESS)
    e = dnn.p_cudnnBackendSetAttribute(pack.d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                       &workspace);
  if (e == CUDNN_STATUS_SUCCESS) e = dnn.p_cudnnBackendFinalize(pack.d);
  if (e == CUDNN_STATUS_SUCCESS) e = dnn.p_cudnnBackendExecute(s->handle, plan->plan, pack.d);
  *done = e == CUDNN_STATUS_SUCCESS;
  if (!*done) { /* others may hold the plan: it stays in the cache, marked as unusable */
    plan->name = ours(plan->name, words(e));
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
