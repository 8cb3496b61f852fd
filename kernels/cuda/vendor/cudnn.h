/* cuDNN by its backend descriptors ("graph API"): graphs of operations, plans for them, and their
 * execution.
 *
 * A plan is the first that the heuristics return among those allowed: deterministic, with no more
 * workspace than the cap, and float32 computed in float32 unless TF32 is on.  Nothing is timed, so
 * a shape is always computed the same way on one model of GPU.  Where cuDNN has no plan, or is
 * missing, the caller's own kernel does the work, and ax_cudnn_describe gives the reason. */
#ifndef AX_CUDA_CUDNN_H
#define AX_CUDA_CUDNN_H

#include "cuda/common.cuh"

/* "cuDNN 9.19.0", or "cuDNN is not used: " and the reason; belongs to the calling thread.  Opens
 * the library if that has not been tried. */
const char *ax_cudnn_describe(void);

/* ---- convolutions: cudnn_conv.cu */

typedef enum { AX_CONV_FORWARD, AX_CONV_INPUT, AX_CONV_WEIGHT } ax_cuda_conv_kind;

/* The sizes of a convolution along 2 or 3 dims.  Images have channels innermost, without gaps;
 * weights are (o, c / groups, kernel ..). */
struct ax_cuda_conv {
  int64_t dims, n, c, o, groups;
  int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3]; /* `dims` of each */
};

/* y = x * w, x = the gradient of the input, or w = the gradient of the weight.  bias (or NULL) is
 * added to y; add: w += its gradient; w_dtype may be AX_F32 beside half images in a weight's
 * gradient.  *done false with AX_OK: cuDNN cannot do this one, and nothing was written. */
ax_status ax_cudnn_convolve(ax_device d, ax_cuda_conv_kind kind, const ax_cuda_conv *conv, ax_dtype dtype,
                            ax_dtype w_dtype, void *x, void *w, const void *bias, void *y, bool add,
                            bool *done);

/* ---- attention: cudnn_attention.cu */

/* The rows of attention in cuDNN's terms: (batch, heads, rows, columns) with strides in elements.
 * dq, dk, dv, g are NULL forward. */
struct ax_cuda_attention {
  int64_t batch, heads, shared_heads, queries, keys, head, value_head;
  int64_t q[4], k[4], v[4], y[4], g[4], dq[4], dk[4], dv[4]; /* strides */
  double scale;
  bool causal;
};
struct ax_cuda_attention_data {
  const void *q, *k, *v, *g;
  void *y, *lse, *dq, *dk, *dv;
};

/* Forward (y, lse) or backward (dq, dk, dv); lse is (batch, heads, queries) in float32, the natural
 * logarithm. */
ax_status ax_cudnn_attention(ax_device d, bool backward, const ax_cuda_attention *a, ax_dtype dtype,
                             const ax_cuda_attention_data *data, bool *done);

#if __has_include(<cudnn_graph.h>)
#define AX_CUDNN 1

#include "vendor.h"

#include <cudnn_graph.h>
#include <memory>
#include <string>
#include <vector>

#if CUDNN_VERSION < 90800 /* later headers have them, for a device that is only described */
static const cudnnBackendAttributeName_t CUDNN_ATTR_ENGINEHEUR_DEVICEPROP = (cudnnBackendAttributeName_t)204,
                                         CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP =
                                             (cudnnBackendAttributeName_t)407;
#endif

/* The target of a plan: cuDNN's handle of a device or, in tests without a GPU, the description of
 * one. */
struct ax_cudnn_target {
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t description;
};

/* Builds one graph.  After the first call that fails, all others do nothing.  The graph owns what
 * was made. */
class ax_cudnn_graph {
public:
  explicit ax_cudnn_graph(const ax_cudnn_target &target) : target(target) {}
  ~ax_cudnn_graph();
  ax_cudnn_graph(const ax_cudnn_graph &) = delete;
  ax_cudnn_graph &operator=(const ax_cudnn_graph &) = delete;

  cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t type, const char *name);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
           cudnnBackendAttributeType_t type, int64_t count, const void *values);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, cudnnBackendDescriptor_t value);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, cudnnDataType_t value);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, int64_t value);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, float value);
  void finish(cudnnBackendDescriptor_t d);

  /* A tensor of the caller (uid > 0: its data is passed under that number at execution), or one
   * between operations. */
  cudnnBackendDescriptor_t tensor(int64_t uid, cudnnDataType_t type, int n, const int64_t *size,
                                  const int64_t *stride, int64_t alignment, bool between = false);
  /* A single number of the graph, whose value is passed at execution. */
  cudnnBackendDescriptor_t number(int64_t uid, cudnnDataType_t type, int n);
  /* Adds a finished operation; close() makes the graph of all of them. */
  void add(cudnnBackendDescriptor_t operation) { operations.push_back(operation); }
  cudnnBackendDescriptor_t close(void);

  bool ok(void) const { return failed == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t failed = CUDNN_STATUS_SUCCESS;
  std::string message; /* what failed, and cuDNN's message */
  const ax_cudnn_target target;

private:
  bool check(cudnnStatus_t s, const char *call, cudnnBackendDescriptor_t d);
  struct made {
    cudnnBackendDescriptor_t d;
    const char *name;
  };
  std::vector<made> all;
  std::vector<cudnnBackendDescriptor_t> operations;
  int64_t next_between = 1000;
};

struct ax_cudnn_plan {
  ax_cudnn_plan() {}
  ~ax_cudnn_plan() { release(); }
  ax_cudnn_plan(const ax_cudnn_plan &) = delete;
  ax_cudnn_plan &operator=(const ax_cudnn_plan &) = delete;

  void release(void);

  cudnnBackendDescriptor_t plan = NULL, config = NULL; /* NULL: there is none */
  int64_t workspace = 0, engine = -1;
  std::string name;      /* for the counters: "convolution bfloat16, cuDNN engine 38", or why there is none */
  int64_t *calls = NULL; /* the counter of that name */
};

/* The identity of a plan; all bytes count, so it starts cleared. */
struct ax_cudnn_key {
  int64_t word[64];
};

typedef void (*ax_cudnn_builder)(ax_cudnn_graph &g, const ax_cudnn_key &key);

/* The plan of `key`, made with `build` when it is new.  exact: engines that convert float32 inputs
 * to a narrower type are excluded.  Counters name it `what` ("convolution bfloat16").  *out empty
 * with AX_OK: cuDNN cannot do this one, which is counted with the reason. */
ax_status ax_cudnn_find(ax_device d, const char *what, const ax_cudnn_key &key, ax_cudnn_builder build,
                        bool exact, std::shared_ptr<ax_cudnn_plan> *out);
/* Runs it on the device's stream with the data of n tensors, and counts it.  *done false with
 * AX_OK: cuDNN refused, nothing was launched, and the plan will not be found again. */
ax_status ax_cudnn_run(ax_device d, const std::shared_ptr<ax_cudnn_plan> &plan, int n, const int64_t *uids,
                       void *const *data, bool *done);

/* Chooses a plan for the graph that `build` makes in `g`; returns false, with *why, when there is
 * none. (Part of ax_cudnn_find; tests call it for devices that are only described.) */
bool ax_cudnn_choose(ax_cudnn_graph &g, ax_cudnn_builder build, const ax_cudnn_key &key, bool exact,
                     int64_t most_workspace, ax_cudnn_plan *out, std::string *why);
/* Opens the library; ENOIMPL with the reason. */
ax_status ax_cudnn_open(void);

cudnnDataType_t ax_cudnn_type(ax_dtype d);
/* The power of two, up to 128, that an address is a multiple of. */
int64_t ax_cudnn_alignment(const void *p);

#endif
#endif
