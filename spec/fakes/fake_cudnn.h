/* What the files of the stand-in for cuDNN share: descriptors (fake_cudnn.cpp), graphs of
 * operations (fake_cudnn_graph.cpp) and their execution (fake_cudnn_compute.cpp). */
#ifndef AX_FAKE_CUDNN_H
#define AX_FAKE_CUDNN_H

#include "cuda/vendor/vendor.h"

#include <cudnn_graph.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <stdlib.h>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))
typedef std::vector<int64_t> ints;

extern const ax_emulator *emulator;
/* Keeps the message for cudnnGetLastErrorString, and returns s. */
cudnnStatus_t refuse(cudnnStatus_t s, const char *format, ...);
#define BAD(...) return refuse(CUDNN_STATUS_BAD_PARAM, __VA_ARGS__)
#define UNSUPPORTED(...) return refuse(CUDNN_STATUS_NOT_SUPPORTED, __VA_ARGS__)
#define TRY(expr) \
  do { \
    const cudnnStatus_t s_ = (expr); \
    if (s_ != CUDNN_STATUS_SUCCESS) return s_; \
  } while (0)

/* Whether FAKE_CUDNN_REFUSE names the stage. */
bool told_to_refuse(const char *stage);

struct cudnnContext {
  cudaStream_t stream;
  int device;
};
extern std::set<cudnnContext *> handles;

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
  /* Read as a float where doubles were given too, as cuDNN 9.19 does for sums in float. */
  double number(int attribute, float otherwise) const { return one<float>(attribute, otherwise); }
};
typedef std::shared_ptr<descriptor> ref;

/* The descriptor; NULL: there is none. */
ref of(cudnnBackendDescriptor_t d);

#define D(name) CUDNN_BACKEND_##name##_DESCRIPTOR
#define A(name) CUDNN_ATTR_##name

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

struct operation {
  int kind, mode;
  std::vector<tensor> in;
  tensor out;
  ints pad, stride, dilation;
  double alpha, beta;
  int64_t axis;
};

tensor tensor_of(const ref &d);
bool is_convolution(int kind);
/* x (n, c, h, w), w (k, c / groups, r, s), y (n, k, p, q), wherever they stand in the operation. */
void parts(const operation &o, const tensor **x, const tensor **w, const tensor **y);
/* The operation of a finalized descriptor. */
operation operation_of(const ref &d);
std::vector<operation> operations_of(const ref &graph);
/* Of descriptors that are being finalized. */
cudnnStatus_t check_operation(const operation &o);
cudnnStatus_t check_graph(const ref &d);
cudnnStatus_t check_plan(const ref &d);
/* An attribute of a finalized descriptor that was not set but is derived. */
value derived(const ref &d, int attribute);

/* ---- engines */

enum { NOT_DETERMINISTIC = 7, HUNGRY = 8, TF32 = 9, GOOD = 1, GENERAL = 0 };

#endif
