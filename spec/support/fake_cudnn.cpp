/* A stand-in for libcudnn.so.9 on the emulated device (kernels/cuda/emulate/emulate.h), for the
 * specs: the backend descriptors of cudnn_graph.h.
 *
 * It follows NVIDIA's documentation and headers, not our use of them: each descriptor has its
 * attributes, of their types and counts, some required; what is not finalized cannot be used or
 * read, what is finalized cannot be changed; finalizing checks that shapes fit.  The statuses are
 * those that cuDNN 9.19 gives for the same mistakes.  Graphs are computed operation by operation,
 * with plain loops.
 *
 * Its heuristics name, best first: an engine that is not deterministic (its results differ a little
 * from call to call), one that needs a terabyte of workspace, one that rounds float32 to TF32
 * (convolutions), and one that is good but takes only channels in eights and no groups; the
 * fallback mode names one that takes everything.
 *
 *   CUDNN_LOGLEVEL_DBG=2        why a call was refused, on stderr
 *   FAKE_CUDNN_REFUSE=stage     one of: create, stream, descriptor, tensor, operation, graph,
 *                               heuristics, plan, pack, execute */
#include "cuda/vendor/vendor.h"

#include <cudnn_graph.h>

#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <set>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))
typedef std::vector<int64_t> ints;

static const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

static thread_local char last_error[400];

static cudnnStatus_t refuse(cudnnStatus_t s, const char *format, ...)
{
  va_list list;
  va_start(list, format);
  vsnprintf(last_error, sizeof last_error, format, list);
  va_end(list);
  const char *level = getenv("CUDNN_LOGLEVEL_DBG");
  if (level && atoi(level) >= 2) fprintf(stderr, "[cuDNN stand-in] %d: %s\n", (int)s, last_error);
  return s;
}
#define BAD(...) return refuse(CUDNN_STATUS_BAD_PARAM, __VA_ARGS__)
#define UNSUPPORTED(...) return refuse(CUDNN_STATUS_NOT_SUPPORTED, __VA_ARGS__)
#define TRY(expr) \
  do { \
    const cudnnStatus_t s_ = (expr); \
    if (s_ != CUDNN_STATUS_SUCCESS) return s_; \
  } while (0)

static bool told_to_refuse(const char *stage)
{
  const char *v = getenv("FAKE_CUDNN_REFUSE");
  return v && strcmp(v, stage) == 0;
}

/* For CUDA 12 where the file's path says cu12. */
static bool for_cuda_12(void)
{
  Dl_info info;
  return dladdr((void *)&for_cuda_12, &info) && info.dli_fname && strstr(info.dli_fname, "cu12");
}
EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion(void) { return for_cuda_12() ? 12080 : 13000; }
EXPORT const char *cudnnGetErrorString(cudnnStatus_t s)
{
  switch ((int)s / 1000) {
  case 0: return "CUDNN_STATUS_SUCCESS";
  case 1: return "CUDNN_STATUS_NOT_INITIALIZED";
  case 2: return "CUDNN_STATUS_BAD_PARAM";
  case 3: return "CUDNN_STATUS_NOT_SUPPORTED";
  case 4: return "CUDNN_STATUS_INTERNAL_ERROR";
  default: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
EXPORT void cudnnGetLastErrorString(char *message, size_t size)
{
  if (size) snprintf(message, size, "%s", last_error);
  last_error[0] = 0;
}

/* ---- handles */

struct cudnnContext {
  cudaStream_t stream;
  int device;
};
static std::set<cudnnContext *> handles;

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
  if (!handle) BAD("cudnnCreate: no place for the handle");
  if (told_to_refuse("create")) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "told to refuse handles");
  *handle = new cudnnContext{ NULL, emulator->device() };
  handles.insert(*handle);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
  if (!handles.erase(handle)) BAD("cudnnDestroy: no handle");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
  if (!handles.count(handle)) BAD("cudnnSetStream: no handle");
  if (told_to_refuse("stream"))
    return refuse(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "told to refuse streams");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors */

struct value {
  cudnnBackendAttributeType_t type;
  int64_t count;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<struct descriptor>> children;
};
struct descriptor {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, value> values;
  int engine = -1; /* of an engine, its configuration and plan */

  const value *find(int attribute) const
  {
    const auto at = values.find(attribute);
    return at == values.end() ? NULL : &at->second;
  }
  template <class T> T one(int attribute, T otherwise = T()) const
  {
    const value *v = find(attribute);
    T r = otherwise;
    if (v) memcpy(&r, v->bytes.data(), std::min(sizeof r, v->bytes.size()));
    return r;
  }
  ints list(int attribute) const
  {
    const value *v = find(attribute);
    ints r;
    if (v) r.assign((const int64_t *)v->bytes.data(), (const int64_t *)v->bytes.data() + v->count);
    return r;
  }
  std::shared_ptr<descriptor> child(int attribute) const
  {
    const value *v = find(attribute);
    return v ? v->children[0] : NULL;
  }
  double number(int attribute, double otherwise) const
  {
    const value *v = find(attribute);
    return !v ? otherwise : v->type == CUDNN_TYPE_FLOAT ? one<float>(attribute) : one<double>(attribute);
  }
};
typedef std::shared_ptr<descriptor> ref;
static std::map<void *, ref> living;

/* Descriptors that exist: a test's leak check. */
EXPORT int64_t fake_cudnn_living(void) { return (int64_t)living.size(); }

static ref of(cudnnBackendDescriptor_t d)
{
  const auto at = living.find(d);
  return at == living.end() ? NULL : at->second;
}

static size_t size_of(cudnnBackendAttributeType_t t)
{
  switch (t) {
  case CUDNN_TYPE_BOOLEAN:
  case CUDNN_TYPE_CHAR: return 1;
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
  default: return 4; /* float, int32 and the enums */
  }
}

enum { REQUIRED = 1, READ_ONLY = 2, REAL = 4 /* float or double */ };
struct rule {
  int descriptor, attribute, type;
  int64_t least, most;
  int flags, child;
};
#define D(name) CUDNN_BACKEND_##name##_DESCRIPTOR
#define A(name) CUDNN_ATTR_##name
#define OP_TENSOR(op, name, flags) \
  { \
    D(OPERATION_##op), A(OPERATION_##name), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, flags, D(TENSOR) \
  }
static const rule rules[] = {
  { D(TENSOR), A(TENSOR_DATA_TYPE), CUDNN_TYPE_DATA_TYPE, 1, 1, REQUIRED, 0 },
  { D(TENSOR), A(TENSOR_DIMENSIONS), CUDNN_TYPE_INT64, 1, CUDNN_DIM_MAX, REQUIRED, 0 },
  { D(TENSOR), A(TENSOR_STRIDES), CUDNN_TYPE_INT64, 1, CUDNN_DIM_MAX, REQUIRED, 0 },
  { D(TENSOR), A(TENSOR_UNIQUE_ID), CUDNN_TYPE_INT64, 1, 1, REQUIRED, 0 },
  { D(TENSOR), A(TENSOR_BYTE_ALIGNMENT), CUDNN_TYPE_INT64, 1, 1, REQUIRED, 0 },
  { D(TENSOR), A(TENSOR_IS_VIRTUAL), CUDNN_TYPE_BOOLEAN, 1, 1, 0, 0 },
  { D(TENSOR), A(TENSOR_IS_BY_VALUE), CUDNN_TYPE_BOOLEAN, 1, 1, 0, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_COMP_TYPE), CUDNN_TYPE_DATA_TYPE, 1, 1, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_CONV_MODE), CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_SPATIAL_DIMS), CUDNN_TYPE_INT64, 1, 1, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_DILATIONS), CUDNN_TYPE_INT64, 1, 3, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_FILTER_STRIDES), CUDNN_TYPE_INT64, 1, 3, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_PRE_PADDINGS), CUDNN_TYPE_INT64, 1, 3, REQUIRED, 0 },
  { D(CONVOLUTION), A(CONVOLUTION_POST_PADDINGS), CUDNN_TYPE_INT64, 1, 3, REQUIRED, 0 },
#define CONVOLUTION_RULES(op, name, x, w, y) \
  OP_TENSOR(op, name##_##x, REQUIRED), OP_TENSOR(op, name##_##w, REQUIRED), \
      OP_TENSOR(op, name##_##y, REQUIRED), \
      { D(OPERATION_##op), A(OPERATION_##name##_CONV_DESC), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED, \
        D(CONVOLUTION) }, \
      { D(OPERATION_##op), A(OPERATION_##name##_ALPHA), CUDNN_TYPE_DOUBLE, 1, 1, REQUIRED | REAL, 0 }, \
      { D(OPERATION_##op), A(OPERATION_##name##_BETA), CUDNN_TYPE_DOUBLE, 1, 1, REQUIRED | REAL, 0 },
  CONVOLUTION_RULES(CONVOLUTION_FORWARD, CONVOLUTION_FORWARD, X, W, Y)
      CONVOLUTION_RULES(CONVOLUTION_BACKWARD_DATA, CONVOLUTION_BWD_DATA, DX, W, DY)
          CONVOLUTION_RULES(CONVOLUTION_BACKWARD_FILTER, CONVOLUTION_BWD_FILTER, X, DW, DY){
              D(POINTWISE), A(POINTWISE_MODE), CUDNN_TYPE_POINTWISE_MODE, 1, 1, REQUIRED, 0 },
  { D(POINTWISE), A(POINTWISE_MATH_PREC), CUDNN_TYPE_DATA_TYPE, 1, 1, REQUIRED, 0 },
  { D(POINTWISE), A(POINTWISE_AXIS), CUDNN_TYPE_INT64, 1, 1, 0, 0 },
  { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
    REQUIRED, D(POINTWISE) },
  OP_TENSOR(POINTWISE, POINTWISE_XDESC, REQUIRED),
  OP_TENSOR(POINTWISE, POINTWISE_BDESC, 0),
  OP_TENSOR(POINTWISE, POINTWISE_TDESC, 0),
  OP_TENSOR(POINTWISE, POINTWISE_YDESC, REQUIRED),
  { D(REDUCTION), A(REDUCTION_OPERATOR), CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1, REQUIRED, 0 },
  { D(REDUCTION), A(REDUCTION_COMP_TYPE), CUDNN_TYPE_DATA_TYPE, 1, 1, REQUIRED, 0 },
  { D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_DESC), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED,
    D(REDUCTION) },
  OP_TENSOR(REDUCTION, REDUCTION_XDESC, REQUIRED),
  OP_TENSOR(REDUCTION, REDUCTION_YDESC, REQUIRED),
  { D(MATMUL), A(MATMUL_COMP_TYPE), CUDNN_TYPE_DATA_TYPE, 1, 1, REQUIRED, 0 },
  { D(OPERATION_MATMUL), A(OPERATION_MATMUL_DESC), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED, D(MATMUL) },
  OP_TENSOR(MATMUL, MATMUL_ADESC, REQUIRED),
  OP_TENSOR(MATMUL, MATMUL_BDESC, REQUIRED),
  OP_TENSOR(MATMUL, MATMUL_CDESC, REQUIRED),
  OP_TENSOR(RESHAPE, RESHAPE_XDESC, REQUIRED),
  OP_TENSOR(RESHAPE, RESHAPE_YDESC, REQUIRED),
  { D(OPERATIONGRAPH), A(OPERATIONGRAPH_HANDLE), CUDNN_TYPE_HANDLE, 1, 1, REQUIRED, 0 },
  { D(OPERATIONGRAPH), A(OPERATIONGRAPH_OPS), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 200, REQUIRED, -1 },
  { D(ENGINEHEUR), A(ENGINEHEUR_OPERATION_GRAPH), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED,
    D(OPERATIONGRAPH) },
  { D(ENGINEHEUR), A(ENGINEHEUR_MODE), CUDNN_TYPE_HEUR_MODE, 1, 1, REQUIRED, 0 },
  { D(ENGINEHEUR), A(ENGINEHEUR_RESULTS), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 200, READ_ONLY, D(ENGINECFG) },
  { D(ENGINECFG), A(ENGINECFG_ENGINE), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED, D(ENGINE) },
  { D(ENGINE), A(ENGINE_OPERATION_GRAPH), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED, D(OPERATIONGRAPH) },
  { D(ENGINE), A(ENGINE_GLOBAL_INDEX), CUDNN_TYPE_INT64, 1, 1, REQUIRED, 0 },
  { D(ENGINE), A(ENGINE_NUMERICAL_NOTE), CUDNN_TYPE_NUMERICAL_NOTE, 1, 100, READ_ONLY, 0 },
  { D(EXECUTION_PLAN), A(EXECUTION_PLAN_HANDLE), CUDNN_TYPE_HANDLE, 1, 1, REQUIRED, 0 },
  { D(EXECUTION_PLAN), A(EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, REQUIRED,
    D(ENGINECFG) },
  { D(EXECUTION_PLAN), A(EXECUTION_PLAN_WORKSPACE_SIZE), CUDNN_TYPE_INT64, 1, 1, READ_ONLY, 0 },
  { D(VARIANT_PACK), A(VARIANT_PACK_UNIQUE_IDS), CUDNN_TYPE_INT64, 1, 200, REQUIRED, 0 },
  { D(VARIANT_PACK), A(VARIANT_PACK_DATA_POINTERS), CUDNN_TYPE_VOID_PTR, 1, 200, REQUIRED, 0 },
  { D(VARIANT_PACK), A(VARIANT_PACK_WORKSPACE), CUDNN_TYPE_VOID_PTR, 1, 1, 0, 0 },
};

static const rule *rule_of(int descriptor, int attribute)
{
  for (const rule &r : rules)
    if (r.descriptor == descriptor && r.attribute == attribute) return &r;
  return NULL;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                  cudnnBackendDescriptor_t *out)
{
  bool known = false;
  if (told_to_refuse("descriptor"))
    return refuse(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "told to refuse descriptors");
  for (const rule &r : rules) known |= r.descriptor == (int)type;
  if (!known)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "descriptors of kind %d are not known here", (int)type);
  ref d = std::make_shared<descriptor>();
  d->type = type;
  living[d.get()] = d;
  *out = d.get();
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
  if (!living.erase(d)) BAD("destroying what is no descriptor, or was destroyed");
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t attribute,
                                              cudnnBackendAttributeType_t type, int64_t count,
                                              const void *elements)
{
  const ref d = of(descriptor);
  if (!d) BAD("setting an attribute of what is no descriptor");
  if (d->final) BAD("attribute %d: the descriptor is finalized", (int)attribute);
  const rule *r = rule_of(d->type, attribute);
  if (!r || r->flags & READ_ONLY)
    BAD("descriptors of kind %d have no attribute %d to set", (int)d->type, (int)attribute);
  if ((int)type != r->type && !(r->flags & REAL && type == CUDNN_TYPE_FLOAT))
    return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d", (int)attribute,
                  (int)type);
  if (count < r->least || count > r->most || !elements)
    BAD("attribute %d takes %d to %d elements, got %d", (int)attribute, (int)r->least, (int)r->most,
        (int)count);
  value v = { type,
              count,
              std::vector<char>((const char *)elements,
                                (const char *)elements + size_of(type) * (size_t)count),
              {} };
  for (int64_t k = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < count; k++) {
    const ref c = of(((const cudnnBackendDescriptor_t *)elements)[k]);
    if (!c) BAD("attribute %d: no descriptor", (int)attribute);
    if (r->child >= 0 && (int)c->type != r->child)
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "attribute %d: a descriptor of kind %d",
                    (int)attribute, (int)c->type);
    if (!c->final)
      return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: the descriptor is not finalized",
                    (int)attribute);
    v.children.push_back(c);
  }
  if (type == CUDNN_TYPE_HANDLE && !handles.count(*(const cudnnHandle_t *)elements))
    BAD("attribute %d: no handle", (int)attribute);
  d->values[attribute] = v;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- what a graph is made of */

struct tensor {
  int64_t uid, align;
  int type;
  ints size, stride;
  bool between, by_value;
  int64_t count(void) const
  {
    int64_t n = 1;
    for (int64_t s : size) n *= s;
    return n;
  }
  int64_t bytes(void) const
  {
    int64_t last = 0;
    for (size_t d = 0; d < size.size(); d++) last += (size[d] - 1) * stride[d];
    return (last + 1) * (int64_t)element();
  }
  size_t element(void) const
  {
    return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16  ? 2
           : type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_INT64 ? 8
           : type == CUDNN_DATA_BOOLEAN                            ? 1
                                                                   : 4;
  }
};

static tensor tensor_of(const ref &d)
{
  return tensor{ d->one<int64_t>(A(TENSOR_UNIQUE_ID)), d->one<int64_t>(A(TENSOR_BYTE_ALIGNMENT)),
                 d->one<int>(A(TENSOR_DATA_TYPE)),     d->list(A(TENSOR_DIMENSIONS)),
                 d->list(A(TENSOR_STRIDES)),           d->one<bool>(A(TENSOR_IS_VIRTUAL)),
                 d->one<bool>(A(TENSOR_IS_BY_VALUE)) };
}

struct operation {
  int kind, mode;
  std::vector<tensor> in;
  tensor out;
  ints pad, stride, dilation;
  double alpha, beta;
  int64_t axis;
};

/* The operation of a finalized descriptor. */
static operation operation_of(const ref &d)
{
  operation o = {};
  const auto in = [&](int attribute) {
    if (d->find(attribute)) o.in.push_back(tensor_of(d->child(attribute)));
  };
  const auto out = [&](int attribute) { o.out = tensor_of(d->child(attribute)); };
  const auto convolution = [&](int desc, int alpha, int beta) {
    const ref c = d->child(desc);
    o.pad = c->list(A(CONVOLUTION_PRE_PADDINGS)), o.stride = c->list(A(CONVOLUTION_FILTER_STRIDES)),
    o.dilation = c->list(A(CONVOLUTION_DILATIONS));
    o.mode = c->one<int>(A(CONVOLUTION_CONV_MODE));
    o.alpha = d->number(alpha, 1), o.beta = d->number(beta, 0);
  };
  o.kind = d->type;
  switch (o.kind) {
  case D(OPERATION_CONVOLUTION_FORWARD):
    in(A(OPERATION_CONVOLUTION_FORWARD_X)), in(A(OPERATION_CONVOLUTION_FORWARD_W)),
        out(A(OPERATION_CONVOLUTION_FORWARD_Y));
    convolution(A(OPERATION_CONVOLUTION_FORWARD_CONV_DESC), A(OPERATION_CONVOLUTION_FORWARD_ALPHA),
                A(OPERATION_CONVOLUTION_FORWARD_BETA));
    break;
  case D(OPERATION_CONVOLUTION_BACKWARD_DATA):
    in(A(OPERATION_CONVOLUTION_BWD_DATA_DY)), in(A(OPERATION_CONVOLUTION_BWD_DATA_W)),
        out(A(OPERATION_CONVOLUTION_BWD_DATA_DX));
    convolution(A(OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC), A(OPERATION_CONVOLUTION_BWD_DATA_ALPHA),
                A(OPERATION_CONVOLUTION_BWD_DATA_BETA));
    break;
  case D(OPERATION_CONVOLUTION_BACKWARD_FILTER):
    in(A(OPERATION_CONVOLUTION_BWD_FILTER_X)), in(A(OPERATION_CONVOLUTION_BWD_FILTER_DY)),
        out(A(OPERATION_CONVOLUTION_BWD_FILTER_DW));
    convolution(A(OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC), A(OPERATION_CONVOLUTION_BWD_FILTER_ALPHA),
                A(OPERATION_CONVOLUTION_BWD_FILTER_BETA));
    break;
  case D(OPERATION_POINTWISE):
    in(A(OPERATION_POINTWISE_XDESC)), in(A(OPERATION_POINTWISE_BDESC)), in(A(OPERATION_POINTWISE_TDESC)),
        out(A(OPERATION_POINTWISE_YDESC));
    o.mode = d->child(A(OPERATION_POINTWISE_PW_DESCRIPTOR))->one<int>(A(POINTWISE_MODE));
    o.axis = d->child(A(OPERATION_POINTWISE_PW_DESCRIPTOR))->one<int64_t>(A(POINTWISE_AXIS), -1);
    break;
  case D(OPERATION_REDUCTION):
    in(A(OPERATION_REDUCTION_XDESC)), out(A(OPERATION_REDUCTION_YDESC));
    o.mode = d->child(A(OPERATION_REDUCTION_DESC))->one<int>(A(REDUCTION_OPERATOR));
    break;
  case D(OPERATION_MATMUL):
    in(A(OPERATION_MATMUL_ADESC)), in(A(OPERATION_MATMUL_BDESC)), out(A(OPERATION_MATMUL_CDESC));
    break;
  case D(OPERATION_RESHAPE): in(A(OPERATION_RESHAPE_XDESC)), out(A(OPERATION_RESHAPE_YDESC)); break;
  }
  return o;
}

static bool is_convolution(int kind)
{
  return kind == D(OPERATION_CONVOLUTION_FORWARD) || kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ||
         kind == D(OPERATION_CONVOLUTION_BACKWARD_FILTER);
}

/* x (n, c, h, w), w (k, c / groups, r, s), y (n, k, p, q), wherever they stand in the operation. */
static void parts(const operation &o, const tensor **x, const tensor **w, const tensor **y)
{
  *x = o.kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ? &o.out : &o.in[0];
  *w = o.kind == D(OPERATION_CONVOLUTION_BACKWARD_FILTER) ? &o.out : &o.in[1];
  *y = o.kind == D(OPERATION_CONVOLUTION_FORWARD)         ? &o.out
       : o.kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ? &o.in[0]
                                                          : &o.in[1];
}

static cudnnStatus_t check_operation(const operation &o)
{
  const size_t n = o.out.size.size();
  if (told_to_refuse("operation")) UNSUPPORTED("told to refuse operations");
  if (is_convolution(o.kind)) {
    const tensor *x, *w, *y;
    parts(o, &x, &w, &y);
    if (x->size.size() != o.pad.size() + 2 || w->size.size() != x->size.size() ||
        y->size.size() != x->size.size())
      BAD("a convolution's tensors have two dims more than the space");
    if (x->size[0] != y->size[0] || w->size[0] != y->size[1] || x->size[1] % w->size[1] ||
        w->size[0] % (x->size[1] / w->size[1]))
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels or batches do not fit");
    for (size_t d = 0; d < o.pad.size(); d++)
      if (y->size[d + 2] !=
          (x->size[d + 2] + 2 * o.pad[d] - (o.dilation[d] * (w->size[d + 2] - 1) + 1)) / o.stride[d] + 1)
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%d windows do not fit along dim %d",
                      (int)y->size[d + 2], (int)d + 2);
    return CUDNN_STATUS_SUCCESS;
  }
  for (const tensor &t : o.in)
    if (t.size.size() != n) BAD("an operation's tensors have as many dims as its result");
  switch (o.kind) {
  case D(OPERATION_POINTWISE): {
    static const struct {
      int mode;
      size_t inputs;
    } modes[] = {
      { CUDNN_POINTWISE_ADD, 2 },           { CUDNN_POINTWISE_SUB, 2 },      { CUDNN_POINTWISE_MUL, 2 },
      { CUDNN_POINTWISE_DIV, 2 },           { CUDNN_POINTWISE_CMP_GE, 2 },   { CUDNN_POINTWISE_EXP, 1 },
      { CUDNN_POINTWISE_LOG, 1 },           { CUDNN_POINTWISE_IDENTITY, 1 }, { CUDNN_POINTWISE_GEN_INDEX, 1 },
      { CUDNN_POINTWISE_BINARY_SELECT, 3 },
    };
    size_t inputs = 0;
    for (const auto &m : modes)
      if (m.mode == o.mode) inputs = m.inputs;
    if (inputs == 0) UNSUPPORTED("pointwise mode %d", o.mode);
    if (o.in.size() != inputs)
      BAD("pointwise mode %d takes %d inputs, got %d", o.mode, (int)inputs, (int)o.in.size());
    if (o.mode == CUDNN_POINTWISE_GEN_INDEX && (o.axis < 0 || o.axis >= (int64_t)n))
      BAD("an index needs an axis");
    for (const tensor &t : o.in)
      for (size_t d = 0; d < n; d++)
        if (t.size[d] != 1 && t.size[d] != o.out.size[d])
          return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "dim %d does not broadcast", (int)d);
    return CUDNN_STATUS_SUCCESS;
  }
  case D(OPERATION_REDUCTION):
    if (o.mode != CUDNN_REDUCE_TENSOR_ADD && o.mode != CUDNN_REDUCE_TENSOR_MAX)
      UNSUPPORTED("reduction %d", o.mode);
    for (size_t d = 0; d < n; d++) /* a group of heads may be summed to their shared one */
      if (o.in[0].size[d] % o.out.size[d])
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "dim %d is not reduced to that", (int)d);
    return CUDNN_STATUS_SUCCESS;
  case D(OPERATION_MATMUL): {
    const ints &a = o.in[0].size, &b = o.in[1].size, &c = o.out.size;
    if (n < 3 || a[n - 1] != b[n - 2] || c[n - 2] != a[n - 2] || c[n - 1] != b[n - 1])
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a product's sizes");
    for (size_t d = 0; d + 2 < n; d++)
      if (c[d] % a[d] || c[d] % b[d])
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a product's batches");
    return CUDNN_STATUS_SUCCESS;
  }
  default:
    return o.in[0].count() == o.out.count()
               ? CUDNN_STATUS_SUCCESS
               : refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a reshape keeps the elements");
  }
}

/* ---- engines */

enum { NOT_DETERMINISTIC = 7, HUNGRY = 8, TF32 = 9, GOOD = 1, GENERAL = 0 };

static std::vector<operation> operations_of(const ref &graph)
{
  std::vector<operation> all;
  for (const ref &o : graph->find(A(OPERATIONGRAPH_OPS))->children) all.push_back(operation_of(o));
  return all;
}

static cudnnStatus_t check_plan(const ref &d)
{
  const ref config = d->child(A(EXECUTION_PLAN_ENGINE_CONFIG));
  const std::vector<operation> ops =
      operations_of(config->child(A(ENGINECFG_ENGINE))->child(A(ENGINE_OPERATION_GRAPH)));
  if (told_to_refuse("plan")) UNSUPPORTED("told to refuse plans");
  d->engine = config->engine;
  if (config->engine == GENERAL || !is_convolution(ops[0].kind)) return CUDNN_STATUS_SUCCESS;
  const tensor *x, *w, *y;
  parts(ops[0], &x, &w, &y);
  if (config->engine == GOOD && (x->size[1] != w->size[1] || x->size[1] % 8 || y->size[1] % 8))
    UNSUPPORTED("channels in eights, no groups");
  for (const tensor *t : { x, w, y })
    if (t->stride[1] != 1) return refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "channels lie innermost");
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_graph(const ref &d)
{
  std::map<int64_t, const descriptor *> seen;
  std::set<int64_t> made;
  if (told_to_refuse("graph")) UNSUPPORTED("told to refuse graphs");
  for (const ref &o : d->find(A(OPERATIONGRAPH_OPS))->children) {
    std::vector<ref> tensors;
    if (o->type == D(CONVOLUTION) || o->type == D(TENSOR))
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a graph is made of operations");
    for (const auto &v : o->values)
      for (const ref &c : v.second.children)
        if (c->type == D(TENSOR)) tensors.push_back(c);
    for (const ref &t : tensors) {
      const int64_t uid = t->one<int64_t>(A(TENSOR_UNIQUE_ID));
      if (seen.count(uid) && seen[uid] != t.get())
        return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors have the number %d", (int)uid);
      seen[uid] = t.get();
    }
    const operation op = operation_of(o);
    for (const tensor &t : op.in)
      if (t.between && !made.count(t.uid))
        BAD("operation %d reads tensor %d, which no operation before it makes", op.kind, (int)t.uid);
    made.insert(op.out.uid);
  }
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
  const ref d = of(descriptor);
  if (!d) BAD("finalizing what is no descriptor");
  if (d->final) BAD("finalizing a descriptor twice");
  if (d->type == D(ENGINECFG) || d->type == D(ENGINE)) UNSUPPORTED("engines come from the heuristics here");
  for (const rule &r : rules)
    if (r.descriptor == (int)d->type && r.flags & REQUIRED && !d->find(r.attribute))
      BAD("a descriptor of kind %d needs its attribute %d", (int)d->type, r.attribute);
  switch (d->type) {
  case D(TENSOR): {
    const tensor t = tensor_of(d);
    if (told_to_refuse("tensor")) UNSUPPORTED("told to refuse tensors");
    if (t.size.size() != t.stride.size()) BAD("a tensor has as many strides as dims");
    for (size_t k = 0; k < t.size.size(); k++)
      if (t.size[k] < 1 || t.stride[k] < 1)
        BAD("dim %d has %d elements, stride %d", (int)k, (int)t.size[k], (int)t.stride[k]);
    if (t.align < 1 || t.align & (t.align - 1) || (size_t)t.align < t.element())
      BAD("an alignment of %d bytes", (int)t.align);
    if (t.by_value && (t.between || t.count() != 1))
      BAD("a number by value has one element and is given from outside");
    break;
  }
  case D(CONVOLUTION): {
    const int64_t n = d->one<int64_t>(A(CONVOLUTION_SPATIAL_DIMS));
    for (int a : { A(CONVOLUTION_DILATIONS), A(CONVOLUTION_FILTER_STRIDES), A(CONVOLUTION_PRE_PADDINGS),
                   A(CONVOLUTION_POST_PADDINGS) }) {
      const ints list = d->list(a);
      if ((int64_t)list.size() != n)
        BAD("attribute %d has %d elements for %d dims", a, (int)list.size(), (int)n);
      for (int64_t v : list)
        if (v < (a == A(CONVOLUTION_DILATIONS) || a == A(CONVOLUTION_FILTER_STRIDES) ? 1 : 0))
          BAD("attribute %d: %d", a, (int)v);
    }
    if (n != 2) UNSUPPORTED("convolutions of two dims are known here");
    if (d->list(A(CONVOLUTION_PRE_PADDINGS)) != d->list(A(CONVOLUTION_POST_PADDINGS)))
      UNSUPPORTED("padding that differs between the sides");
    break;
  }
  case D(POINTWISE):
  case D(REDUCTION):
  case D(MATMUL): break;
  case D(OPERATIONGRAPH): TRY(check_graph(d)); break;
  case D(ENGINEHEUR):
    if (told_to_refuse("heuristics")) UNSUPPORTED("told to refuse heuristics");
    if (d->one<int>(A(ENGINEHEUR_MODE)) < 0 || d->one<int>(A(ENGINEHEUR_MODE)) >= CUDNN_HEUR_MODES_COUNT)
      BAD("there is no such mode");
    break;
  case D(EXECUTION_PLAN): TRY(check_plan(d)); break;
  case D(VARIANT_PACK): {
    const ints uids = d->list(A(VARIANT_PACK_UNIQUE_IDS));
    if (told_to_refuse("pack")) BAD("told to refuse variant packs");
    if (d->find(A(VARIANT_PACK_DATA_POINTERS))->count != (int64_t)uids.size())
      BAD("a variant pack has as many pointers as numbers");
    if (std::set<int64_t>(uids.begin(), uids.end()).size() != uids.size())
      return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "a variant pack has a number twice");
    break;
  }
  default: TRY(check_operation(operation_of(d)));
  }
  d->final = true;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- reading */

static ref config_of(const ref &graph, int engine)
{
  const ref e = std::make_shared<descriptor>(), c = std::make_shared<descriptor>();
  const int64_t index = engine;
  e->type = D(ENGINE), c->type = D(ENGINECFG);
  e->engine = c->engine = engine;
  e->final = c->final = true;
  e->values[A(ENGINE_OPERATION_GRAPH)] =
      value{ CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, std::vector<char>(8), { graph } };
  e->values[A(ENGINE_GLOBAL_INDEX)] =
      value{ CUDNN_TYPE_INT64, 1, std::vector<char>((const char *)&index, (const char *)(&index + 1)), {} };
  c->values[A(ENGINECFG_ENGINE)] = value{ CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, std::vector<char>(8), { e } };
  return c;
}

/* An attribute of a finalized descriptor that was not set but is derived. */
static value derived(const ref &d, int attribute)
{
  value v = { CUDNN_TYPE_INT64, 0, {}, {} };
  const auto put = [&](const void *p, size_t n) {
    v.bytes.insert(v.bytes.end(), (const char *)p, (const char *)p + n), v.count++;
  };
  if (attribute == A(ENGINEHEUR_RESULTS)) {
    const ref graph = d->child(A(ENGINEHEUR_OPERATION_GRAPH));
    const bool convolution = is_convolution(operations_of(graph)[0].kind);
    v.type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    if (d->one<int>(A(ENGINEHEUR_MODE)) == CUDNN_HEUR_MODE_FALLBACK)
      v.children = { config_of(graph, GENERAL) };
    else if (convolution)
      v.children = { config_of(graph, NOT_DETERMINISTIC), config_of(graph, HUNGRY), config_of(graph, TF32),
                     config_of(graph, GOOD) };
    else
      v.children = { config_of(graph, NOT_DETERMINISTIC), config_of(graph, HUNGRY), config_of(graph, GOOD) };
    v.count = (int64_t)v.children.size();
  } else if (attribute == A(ENGINE_NUMERICAL_NOTE)) {
    const ref graph = d->child(A(ENGINE_OPERATION_GRAPH));
    const bool wide = operations_of(graph)[0].in[0].type == CUDNN_DATA_FLOAT;
    const auto note = [&](cudnnBackendNumericalNote_t n) { put(&n, sizeof n); };
    v.type = CUDNN_TYPE_NUMERICAL_NOTE;
    if (d->engine == NOT_DETERMINISTIC) note(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    if (d->engine == TF32 || !wide) note(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    if (d->engine == TF32 && wide) note(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  } else if (attribute == A(EXECUTION_PLAN_WORKSPACE_SIZE)) {
    const int64_t bytes = d->engine == HUNGRY ? (int64_t)1 << 40 : d->engine == GOOD ? 4096 : 0;
    put(&bytes, sizeof bytes);
  }
  return v;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t attribute,
                                              cudnnBackendAttributeType_t type, int64_t requested,
                                              int64_t *count, void *elements)
{
  const ref d = of(descriptor);
  if (!d) BAD("reading what is no descriptor");
  const rule *r = rule_of(d->type, attribute);
  if (!r) BAD("descriptors of kind %d have no attribute %d", (int)d->type, (int)attribute);
  if (!d->final)
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "attribute %d is read before the descriptor is finalized",
                  (int)attribute);
  const value *set = d->find(attribute);
  const value v = r->flags & READ_ONLY || !set ? derived(d, attribute) : *set;
  if ((int)type != r->type && !(r->flags & REAL && type == v.type))
    return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d", (int)attribute,
                  (int)type);
  if (requested < 0 || (requested > 0 && !elements)) BAD("attribute %d: nowhere to put it", (int)attribute);
  if (count) *count = requested > 0 && requested < v.count ? requested : v.count;
  for (int64_t k = 0; k < requested && k < v.count; k++)
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) { /* into descriptors that the caller has made for it */
      const ref to = of(((cudnnBackendDescriptor_t *)elements)[k]);
      if (!to || to->type != v.children[(size_t)k]->type)
        BAD("attribute %d is read into a descriptor of its kind", (int)attribute);
      *to = *v.children[(size_t)k];
    } else
      memcpy((char *)elements + (size_t)k * size_of(type), v.bytes.data() + (size_t)k * size_of(type),
             size_of(type));
  return CUDNN_STATUS_SUCCESS;
}

/* ---- execution */

static float half_to_float(uint16_t h)
{
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float v = exponent == 31 ? (mantissa ? NAN : INFINITY)
                  : exponent     ? ldexpf((float)(mantissa + 1024), exponent - 25)
                                 : ldexpf((float)mantissa, -24);
  return h >> 15 ? -v : v;
}
static uint16_t float_to_half(float v)
{
  const uint16_t sign = signbit(v) ? 0x8000 : 0;
  v = fabsf(v);
  if (v != v) return sign | 0x7e00;
  if (v >= 65520) return sign | 0x7c00;
  if (v < ldexpf(1, -14)) return sign | (uint16_t)nearbyintf(ldexpf(v, 24));
  int e;
  const float m = frexpf(v, &e);
  return (uint16_t)(sign | (((e + 14) << 10) + (int)nearbyintf(ldexpf(m, 11)) - 1024));
}
static float load(int type, const void *p)
{
  uint32_t u;
  float f;
  switch (type) {
  case CUDNN_DATA_HALF: return half_to_float(*(const uint16_t *)p);
  case CUDNN_DATA_BFLOAT16: u = (uint32_t) * (const uint16_t *)p << 16, memcpy(&f, &u, 4); return f;
  case CUDNN_DATA_DOUBLE: return (float)*(const double *)p;
  case CUDNN_DATA_INT32: return (float)*(const int32_t *)p;
  case CUDNN_DATA_BOOLEAN: return *(const uint8_t *)p != 0;
  default: return *(const float *)p;
  }
}
static void store(int type, void *p, float f)
{
  uint32_t u;
  switch (type) {
  case CUDNN_DATA_HALF: *(uint16_t *)p = float_to_half(f); break;
  case CUDNN_DATA_BFLOAT16:
    memcpy(&u, &f, 4);
    *(uint16_t *)p = f != f ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    break;
  case CUDNN_DATA_DOUBLE: *(double *)p = f; break;
  case CUDNN_DATA_INT32: *(int32_t *)p = (int32_t)f; break;
  case CUDNN_DATA_BOOLEAN: *(uint8_t *)p = f != 0; break;
  default: *(float *)p = f;
  }
}
static float to_tf32(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  u = (u + 0x0fff + (u >> 13 & 1)) & ~0x1fffu;
  memcpy(&f, &u, 4);
  return f;
}

/* Calls f(position, element offset by t's strides) for all positions of t, in order. */
template <class F> static void walk(const ints &size, const ints &stride, F f)
{
  ints at(size.size(), 0);
  for (int64_t i = 0;; i++) {
    int64_t offset = 0;
    for (size_t d = 0; d < size.size(); d++) offset += at[d] * stride[d];
    f(i, at, offset);
    size_t d = size.size();
    while (d > 0 && ++at[d - 1] == size[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

typedef std::vector<float> numbers; /* a tensor's elements in the order of its dims */
struct job {
  std::vector<operation> ops;
  int engine;
  std::map<int64_t, void *> data;
  std::map<int64_t, float> given;
};

static numbers fetch(const job &j, const std::map<int64_t, numbers> &between, const tensor &t)
{
  if (t.between) return between.at(t.uid);
  if (t.by_value) return numbers(1, j.given.at(t.uid));
  numbers v((size_t)t.count());
  const char *p = (const char *)j.data.at(t.uid);
  walk(t.size, t.stride, [&](int64_t i, const ints &, int64_t at) {
    v[(size_t)i] = load(t.type, p + at * (int64_t)t.element());
  });
  if (j.engine == TF32)
    for (float &f : v) f = t.type == CUDNN_DATA_FLOAT ? to_tf32(f) : f;
  return v;
}

static void convolve(const operation &o, const numbers &a, const numbers &b, std::vector<double> &out)
{
  const tensor *tx, *tw, *ty;
  parts(o, &tx, &tw, &ty);
  const ints &x = tx->size, &w = tw->size, &y = ty->size;
  const int64_t groups = x[1] / w[1], each = w[0] / groups;
  for (int64_t n = 0; n < y[0]; n++)
    for (int64_t k = 0; k < y[1]; k++)
      for (int64_t p = 0; p < y[2]; p++)
        for (int64_t q = 0; q < y[3]; q++)
          for (int64_t c = 0; c < w[1]; c++)
            for (int64_t r = 0; r < w[2]; r++)
              for (int64_t s = 0; s < w[3]; s++) {
                const int64_t rr = o.mode == CUDNN_CROSS_CORRELATION ? r : w[2] - 1 - r,
                              ss = o.mode == CUDNN_CROSS_CORRELATION ? s : w[3] - 1 - s;
                const int64_t h = p * o.stride[0] - o.pad[0] + r * o.dilation[0],
                              v = q * o.stride[1] - o.pad[1] + s * o.dilation[1];
                if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
                const size_t xi = (size_t)(((n * x[1] + k / each * w[1] + c) * x[2] + h) * x[3] + v),
                             wi = (size_t)(((k * w[1] + c) * w[2] + rr) * w[3] + ss);
                const size_t yi = (size_t)(((n * y[1] + k) * y[2] + p) * y[3] + q);
                if (o.kind == D(OPERATION_CONVOLUTION_FORWARD)) out[yi] += (double)a[xi] * b[wi];
                else if (o.kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA)) out[xi] += (double)a[yi] * b[wi];
                else out[wi] += (double)a[xi] * b[yi];
              }
}

static float pointwise(const operation &o, const ints &at, float a, float b, float t)
{
  switch (o.mode) {
  case CUDNN_POINTWISE_ADD: return a + b;
  case CUDNN_POINTWISE_SUB: return a - b;
  case CUDNN_POINTWISE_MUL: return a * b;
  case CUDNN_POINTWISE_DIV: return a / b;
  case CUDNN_POINTWISE_CMP_GE: return a >= b;
  case CUDNN_POINTWISE_EXP: return expf(a);
  case CUDNN_POINTWISE_LOG: return logf(a);
  case CUDNN_POINTWISE_GEN_INDEX: return (float)at[(size_t)o.axis];
  case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? a : b;
  default: return a;
  }
}

/* The place of position `at` of a larger tensor in one of `size`, dim by dim: `each` positions of
 * the larger one share one. */
static size_t within(const ints &size, const ints &larger, const ints &at)
{
  int64_t i = 0;
  for (size_t d = 0; d < size.size(); d++) i = i * size[d] + at[d] / (larger[d] / size[d]);
  return (size_t)i;
}

static void compute(const job &j)
{
  std::map<int64_t, numbers> between;
  for (const operation &o : j.ops) {
    std::vector<numbers> in;
    for (const tensor &t : o.in) in.push_back(fetch(j, between, t));
    const tensor &out = o.out;
    const size_t count = (size_t)out.count();
    numbers result(count);
    const ints dense(out.size.size(), 0);
    if (is_convolution(o.kind)) {
      std::vector<double> sums(count, 0);
      convolve(o, in[0], in[1], sums);
      const numbers old = o.beta != 0 ? fetch(j, between, out) : numbers(count, 0);
      for (size_t k = 0; k < count; k++) result[k] = (float)(o.alpha * sums[k] + o.beta * old[k]);
    } else if (o.kind == D(OPERATION_POINTWISE))
      walk(out.size, dense, [&](int64_t i, const ints &at, int64_t) {
        float v[3] = { 0, 0, 0 };
        for (size_t k = 0; k < in.size(); k++) v[k] = in[k][within(o.in[k].size, out.size, at)];
        result[(size_t)i] = pointwise(o, at, v[0], v[1], v[2]);
      });
    else if (o.kind == D(OPERATION_REDUCTION)) {
      std::vector<double> sums(count, o.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0);
      walk(o.in[0].size, ints(dense.size(), 0), [&](int64_t i, const ints &at, int64_t) {
        double &s = sums[within(out.size, o.in[0].size, at)];
        s = o.mode == CUDNN_REDUCE_TENSOR_MAX ? std::max(s, (double)in[0][(size_t)i]) : s + in[0][(size_t)i];
      });
      for (size_t k = 0; k < count; k++) result[k] = (float)sums[k];
    } else if (o.kind == D(OPERATION_MATMUL)) {
      const size_t n = out.size.size();
      walk(out.size, dense, [&](int64_t i, const ints &at, int64_t) {
        ints pa = at, pb = at, la = out.size, lb = out.size;
        double sum = 0;
        la[n - 1] = o.in[0].size[n - 1], lb[n - 2] = o.in[1].size[n - 2];
        for (int64_t k = 0; k < la[n - 1]; k++) {
          pa[n - 1] = pb[n - 2] = k;
          sum += (double)in[0][within(o.in[0].size, la, pa)] * in[1][within(o.in[1].size, lb, pb)];
        }
        result[(size_t)i] = (float)sum;
      });
    } else { /* the same memory with other dims and strides */
      numbers memory((size_t)std::max(o.in[0].bytes(), out.bytes()));
      walk(o.in[0].size, o.in[0].stride,
           [&](int64_t i, const ints &, int64_t at) { memory[(size_t)at] = in[0][(size_t)i]; });
      walk(out.size, out.stride,
           [&](int64_t i, const ints &, int64_t at) { result[(size_t)i] = memory[(size_t)at]; });
    }
    if (j.engine == NOT_DETERMINISTIC)
      for (float &f : result) f *= 1 + 0.02f * (float)rand() / (float)RAND_MAX;
    for (float &f : result) { /* rounded as it is stored */
      uint64_t place = 0;
      store(out.type, &place, f);
      f = load(out.type, &place);
    }
    if (out.between) between[out.uid] = result;
    else
      walk(out.size, out.stride, [&](int64_t i, const ints &, int64_t at) {
        store(out.type, (char *)j.data.at(out.uid) + at * (int64_t)out.element(), result[(size_t)i]);
      });
    if (!out.between) between[out.uid] = result;
  }
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t execution_plan,
                                         cudnnBackendDescriptor_t variant_pack)
{
  const ref plan = of(execution_plan), pack = of(variant_pack);
  if (!handles.count(handle)) BAD("executing without a handle");
  if (handle->device != emulator->device()) BAD("the handle is another device's");
  if (!plan || plan->type != D(EXECUTION_PLAN) || !pack || pack->type != D(VARIANT_PACK))
    BAD("executing what is no plan, or without a variant pack");
  if (!plan->final || !pack->final)
    return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "executing what is not finalized");
  if (told_to_refuse("execute")) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "told to refuse to execute");
  job j;
  j.engine = plan->engine;
  j.ops = operations_of(plan->child(A(EXECUTION_PLAN_ENGINE_CONFIG))
                            ->child(A(ENGINECFG_ENGINE))
                            ->child(A(ENGINE_OPERATION_GRAPH)));
  const ints uids = pack->list(A(VARIANT_PACK_UNIQUE_IDS));
  for (size_t k = 0; k < uids.size(); k++)
    j.data[uids[k]] = ((void *const *)pack->find(A(VARIANT_PACK_DATA_POINTERS))->bytes.data())[k];
  const int64_t needed = j.engine == GOOD ? 4096 : 0;
  void *const workspace = pack->one<void *>(A(VARIANT_PACK_WORKSPACE), NULL);
  if (needed && (!workspace || !emulator->owns(workspace, (size_t)needed)))
    return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs %d bytes of workspace", (int)needed);
  size_t read = 0, written = 0;
  for (const operation &o : j.ops) {
    std::vector<tensor> all = o.in;
    all.push_back(o.out);
    for (const tensor &t : all) {
      if (t.between) continue;
      if (!t.by_value) (&t == &all.back() ? written : read) += (size_t)t.bytes();
      void *const p = j.data.count(t.uid) ? j.data[t.uid] : NULL;
      if (!p) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "tensor %d has no data", (int)t.uid);
      if (t.by_value) {
        j.given[t.uid] = load(t.type, p);
        continue;
      }
      if ((uintptr_t)p % (uintptr_t)t.align)
        return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %d is not aligned to %d bytes",
                      (int)t.uid, (int)t.align);
      if (!emulator->owns(p, (size_t)t.bytes()))
        BAD("tensor %d does not lie in memory of the device", (int)t.uid);
    }
  }
  const cudaError_t failed = emulator->work(handle->stream, [=]() {
    emulator->moved("graph", read, written);
    memset(workspace, 0xff, (size_t)needed);
    compute(j);
  });
  return failed ? refuse(CUDNN_STATUS_EXECUTION_FAILED, "no work") : CUDNN_STATUS_SUCCESS;
}
