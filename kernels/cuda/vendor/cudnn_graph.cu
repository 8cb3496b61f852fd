/* Graphs of operations, by cuDNN's backend descriptors.  See cudnn.h. */
#include "cudnn_functions.h"

#ifdef AX_CUDNN

bool ax_cudnn_graph::check(cudnnStatus_t s, const char *call, cudnnBackendDescriptor_t d)
{
  const char *name = "";
  if (s == CUDNN_STATUS_SUCCESS) return true;
  for (const made &m : all)
    if (m.d == d) name = m.name;
  failed = s;
  message = std::string(call) + " of " + name + ": " + ax_cudnn_words(s);
  return false;
}

ax_cudnn_graph::~ax_cudnn_graph()
{
  while (!all.empty()) { /* later descriptors refer to earlier ones */
    ax_cudnn.p_cudnnBackendDestroyDescriptor(all.back().d);
    all.pop_back();
  }
}

cudnnBackendDescriptor_t ax_cudnn_graph::make(cudnnBackendDescriptorType_t type, const char *name)
{
  cudnnBackendDescriptor_t d = NULL;
  if (!ok()) return NULL;
  all.reserve(all.size() + 1); /* reserved first, so that the descriptor made next cannot be lost */
  const cudnnStatus_t s = ax_cudnn.p_cudnnBackendCreateDescriptor(type, &d);
  if (s != CUDNN_STATUS_SUCCESS) {
    failed = s;
    message = std::string("making ") + name + ": " + ax_cudnn_words(s);
    return NULL;
  }
  all.push_back(made{ d, name });
  return d;
}

void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
  if (!ok()) return;
  if (!check(ax_cudnn.p_cudnnBackendSetAttribute(d, attribute, type, count, values), "setting", d))
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
void ax_cudnn_graph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute, float value)
{
  set(d, attribute, CUDNN_TYPE_FLOAT, 1, &value);
}

void ax_cudnn_graph::finish(cudnnBackendDescriptor_t d)
{
  if (ok()) check(ax_cudnn.p_cudnnBackendFinalize(d), "finishing", d);
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

#endif
