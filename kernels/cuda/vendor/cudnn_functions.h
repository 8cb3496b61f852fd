/* cuDNN's functions, and what the files that call them share: cudnn.cu, cudnn_graph.cu and
 * cudnn_plan.cu. */
#ifndef AX_CUDA_CUDNN_FUNCTIONS_H
#define AX_CUDA_CUDNN_FUNCTIONS_H

#include "cudnn.h"

#ifdef AX_CUDNN

#define AX_CUDNN_FUNCTIONS(X) \
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

/* Found by ax_cudnn_open. */
extern struct ax_cudnn_functions {
#define X(name) decltype(&name) p_##name;
  AX_CUDNN_FUNCTIONS(X)
#undef X
} ax_cudnn;

/* "BAD_PARAM (2000): ...": the status, and cuDNN's message. */
std::string ax_cudnn_words(cudnnStatus_t s);

/* Owns a descriptor that belongs to no graph, until release(). */
struct ax_cudnn_holder {
  cudnnBackendDescriptor_t d = NULL;
  cudnnStatus_t make(cudnnBackendDescriptorType_t type)
  {
    return ax_cudnn.p_cudnnBackendCreateDescriptor(type, &d);
  }
  cudnnBackendDescriptor_t release(void)
  {
    cudnnBackendDescriptor_t r = d;
    d = NULL;
    return r;
  }
  ax_cudnn_holder() {}
  ax_cudnn_holder(ax_cudnn_holder &&other) : d(other.release()) {}
  ax_cudnn_holder(const ax_cudnn_holder &) = delete;
  ~ax_cudnn_holder()
  {
    if (d) ax_cudnn.p_cudnnBackendDestroyDescriptor(d);
  }
};

#endif
#endif
