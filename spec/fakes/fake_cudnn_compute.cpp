/* The stand-in for cuDNN: graphs computed operation by operation, with plain loops. */
#include "fake_cudnn.h"

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
