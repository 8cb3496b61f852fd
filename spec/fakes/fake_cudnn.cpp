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
#include "fake_cudnn.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

static thread_local char last_error[400];

cudnnStatus_t refuse(cudnnStatus_t s, const char *format, ...)
{
  va_list list;
  va_start(list, format);
  vsnprintf(last_error, sizeof last_error, format, list);
  va_end(list);
  const char *level = getenv("CUDNN_LOGLEVEL_DBG");
  if (level && atoi(level) >= 2) fprintf(stderr, "[cuDNN stand-in] %d: %s\n", (int)s, last_error);
  return s;
}

bool told_to_refuse(const char *stage)
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

std::set<cudnnContext *> handles;

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

static std::map<void *, ref> living;

/* Descriptors that exist: a test's leak check. */
EXPORT int64_t fake_cudnn_living(void) { return (int64_t)living.size(); }

ref of(cudnnBackendDescriptor_t d)
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
