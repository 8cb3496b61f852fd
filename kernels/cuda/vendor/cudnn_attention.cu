/* Attention by cuDNN: a graph of products, softmax and mask in the pattern that its fused engines
 * recognise, so that scores are never stored.
 *
 * Keys are passed as (batch, heads, head, keys), and in backward values too: a transpose by
 * strides. The forward graph returns the log-sum-exp (natural logarithm, float32), from which the
 * gradient computes the scores again.  In the gradient's graph, dq is the direct result of its
 * product, which is the deterministic way.  It needs a workspace of batch heads queries keys half
 * numbers, so long sequences are left to our own kernels.  The alternative, a float32 dq that
 * blocks add to, is not deterministic.
 *
 * Its engines are compiled for each shape on first use, some half a second for each direction.
 * Calls below LEAST_WORK, which our own kernels do in microseconds, therefore stay there.  The
 * choice follows from the sizes of a call, never from earlier calls. */
#include "cudnn.h"

#ifndef AX_CUDNN

ax_status ax_cudnn_attention(ax_device, bool, const ax_cuda_attention *, ax_dtype,
                             const ax_cuda_attention_data *, bool *done)
{
  *done = false;
  return AX_OK;
}

#else

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { Q = 1, K, V, O, G, STATS, DQ, DK, DV, DELTA, SCALE, LOWEST, ONE, TENSORS }; /* numbers of tensors */
/* words of a key; then the ax_cuda_attention, whose scale is not part of the graph */
enum { BACKWARD, ELEMENT, ALIGN, CALL = ALIGN + TENSORS };
static_assert(CALL * 8 + sizeof(ax_cuda_attention) <= sizeof(ax_cudnn_key), "a call fits a key");

typedef cudnnBackendDescriptor_t tensor;

struct builder {
  ax_cudnn_graph &g;
  const ax_cudnn_key &key;
  ax_cuda_attention a;
  cudnnDataType_t type;
  int64_t scores[4], columns[4], sums[4]; /* (b, h, queries, keys), its strides, (b, h, queries, 1) */

  builder(ax_cudnn_graph &g, const ax_cudnn_key &key) : g(g), key(key)
  {
    memcpy(&a, key.word + CALL, sizeof a);
    type = (cudnnDataType_t)key.word[ELEMENT];
    const int64_t s[4] = { a.batch, a.heads, a.queries, a.keys },
                  c[4] = { a.heads * a.queries * a.keys, a.queries * a.keys, a.keys, 1 };
    const int64_t one[4] = { a.batch, a.heads, a.queries, 1 };
    memcpy(scores, s, sizeof s);
    memcpy(columns, c, sizeof c);
    memcpy(sums, one, sizeof one);
  }

  /* A tensor of the caller, (batch, heads, rows, width), or with the last two dims swapped. */
  tensor given(int uid, int64_t heads, int64_t rows, int64_t width, const int64_t *stride,
               bool swapped = false)
  {
    const int64_t size[4] = { a.batch, heads, swapped ? width : rows, swapped ? rows : width };
    const int64_t step[4] = { stride[0], stride[1], swapped ? stride[3] : stride[2],
                              swapped ? stride[2] : stride[3] };
    return g.tensor(uid, type, 4, size, step, key.word[ALIGN + uid]);
  }
  /* (batch, heads, queries, 1) in float32, of the caller or between operations. */
  tensor row_numbers(int uid)
  {
    const int64_t step[4] = { a.heads * a.queries, a.queries, 1, 1 };
    return g.tensor(uid, CUDNN_DATA_FLOAT, 4, sums, step, uid ? key.word[ALIGN + uid] : 16, uid == 0);
  }
  tensor between(const int64_t *size, const int64_t *stride, cudnnDataType_t t)
  {
    return g.tensor(0, t, 4, size, stride, 16, true);
  }
  tensor between_scores(cudnnDataType_t t = CUDNN_DATA_FLOAT) { return between(scores, columns, t); }

  tensor pointwise(cudnnPointwiseMode_t mode, tensor x, tensor b, tensor t, tensor y,
                   cudnnDataType_t precision = CUDNN_DATA_FLOAT, int64_t axis = -1)
  {
    const tensor d = g.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise function"),
                 op = g.make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a pointwise operation");
    g.set(d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    g.set(d, CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
    if (axis >= 0) g.set(d, CUDNN_ATTR_POINTWISE_AXIS, axis);
    g.finish(d);
    g.set(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    g.set(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) g.set(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) g.set(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    g.set(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    g.finish(op);
    g.add(op);
    return y;
  }
  tensor reduce(cudnnReduceTensorOp_t how, tensor x, tensor y)
  {
    const tensor d = g.make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction"),
                 op = g.make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction's operation");
    g.set(d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    g.set(d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    g.finish(d);
    g.set(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    g.set(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    g.set(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    g.finish(op);
    g.add(op);
    return y;
  }
  tensor matmul(tensor x, tensor y, tensor z)
  {
    const tensor d = g.make(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product"),
                 op = g.make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product's operation");
    g.set(d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    g.finish(d);
    g.set(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    g.set(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    g.set(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    g.set(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, z);
    g.finish(op);
    g.add(op);
    return z;
  }
  tensor reshape(tensor x, tensor y)
  {
    const tensor op = g.make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a reshape");
    g.set(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    g.set(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    g.finish(op);
    g.add(op);
    return y;
  }
  /* -infinity where a key comes after the query */
  tensor masked(tensor s)
  {
    if (!a.causal) return s;
    const tensor rows = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, NULL, NULL, between_scores(CUDNN_DATA_INT32),
                                  CUDNN_DATA_FLOAT, 2);
    const tensor cols = pointwise(CUDNN_POINTWISE_GEN_INDEX, s, NULL, NULL, between_scores(CUDNN_DATA_INT32),
                                  CUDNN_DATA_FLOAT, 3);
    const tensor seen = pointwise(CUDNN_POINTWISE_CMP_GE, rows, cols, NULL,
                                  between_scores(CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, s, g.number(LOWEST, CUDNN_DATA_FLOAT, 4), seen,
                     between_scores());
  }
  /* scores or their gradients, transposed: (b, h, keys, queries) */
  tensor transposed(tensor s)
  {
    const int64_t size[4] = { a.batch, a.heads, a.keys, a.queries },
                  step[4] = { a.heads * a.queries * a.keys, a.queries * a.keys, 1, a.keys };
    return reshape(s, between(size, step, type));
  }
  /* x y into a gradient of shared heads: directly, or summed over the heads that share one */
  void shared_product(tensor x, tensor y, int uid, int64_t width, const int64_t *stride)
  {
    const tensor to = given(uid, a.shared_heads, a.keys, width, stride);
    if (a.heads == a.shared_heads) {
      matmul(x, y, to);
      return;
    }
    const int64_t size[4] = { a.batch, a.heads, a.keys, width },
                  step[4] = { a.heads * a.keys * width, a.keys * width, width, 1 };
    reduce(CUDNN_REDUCE_TENSOR_ADD, matmul(x, y, between(size, step, type)), to);
  }

  void forward(void)
  {
    const tensor q = given(Q, a.heads, a.queries, a.head, a.q),
                 k = given(K, a.shared_heads, a.keys, a.head, a.k, true);
    tensor s = matmul(q, k, between_scores());
    s = pointwise(CUDNN_POINTWISE_MUL, s, g.number(SCALE, CUDNN_DATA_FLOAT, 4), NULL, between_scores());
    s = masked(s);
    const tensor top = reduce(CUDNN_REDUCE_TENSOR_MAX, s, row_numbers(0));
    const tensor e =
        pointwise(CUDNN_POINTWISE_EXP, pointwise(CUDNN_POINTWISE_SUB, s, top, NULL, between_scores()), NULL,
                  NULL, between_scores());
    const tensor sum = reduce(CUDNN_REDUCE_TENSOR_ADD, e, row_numbers(0));
    pointwise(CUDNN_POINTWISE_ADD, top, pointwise(CUDNN_POINTWISE_LOG, sum, NULL, NULL, row_numbers(0)), NULL,
              row_numbers(STATS));
    const tensor p = pointwise(CUDNN_POINTWISE_DIV, e, sum, NULL, between_scores(type));
    const tensor v = given(V, a.shared_heads, a.keys, a.value_head, a.v),
                 o = given(O, a.heads, a.queries, a.value_head, a.y);
    matmul(p, v, o);
  }

  void backward(void)
  {
    const tensor q = given(Q, a.heads, a.queries, a.head, a.q),
                 k = given(K, a.shared_heads, a.keys, a.head, a.k, true);
    const tensor v = given(V, a.shared_heads, a.keys, a.value_head, a.v, true),
                 o = given(O, a.heads, a.queries, a.value_head, a.y);
    const tensor dy = given(G, a.heads, a.queries, a.value_head, a.g), stats = row_numbers(STATS);
    const tensor scale = g.number(SCALE, CUDNN_DATA_FLOAT, 4);
    const int64_t size[4] = { a.batch, a.heads, a.queries, a.value_head };
    const int64_t step[4] = { a.heads * a.queries * a.value_head, a.queries * a.value_head, a.value_head, 1 };

    /* delta = sum of dy o, in memory for the call */
    const tensor products =
        pointwise(CUDNN_POINTWISE_MUL, dy, o, NULL, between(size, step, CUDNN_DATA_FLOAT));
    const tensor delta =
        pointwise(CUDNN_POINTWISE_MUL, reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_numbers(0)),
                  g.number(ONE, CUDNN_DATA_FLOAT, 4), NULL, row_numbers(DELTA));
    /* p = exp(scale q k' - stats), dv = p' dy */
    tensor s = pointwise(CUDNN_POINTWISE_MUL, matmul(q, k, between_scores()), scale, NULL, between_scores());
    s = masked(pointwise(CUDNN_POINTWISE_SUB, s, stats, NULL, between_scores()));
    const tensor p = pointwise(CUDNN_POINTWISE_EXP, s, NULL, NULL, between_scores());
    shared_product(transposed(p), dy, DV, a.value_head, a.dv);
    /* ds = scale p (dy v' - delta), dk = ds' q, dq = ds k */
    tensor ds = matmul(dy, v, between_scores());
    ds = pointwise(CUDNN_POINTWISE_SUB, ds, delta, NULL, between_scores());
    ds = pointwise(CUDNN_POINTWISE_MUL, ds, p, NULL, between_scores());
    ds = pointwise(CUDNN_POINTWISE_MUL, ds, scale, NULL, between_scores(type));
    shared_product(transposed(ds), q, DK, a.head, a.dk);
    const int64_t rows[4] = { a.batch, a.shared_heads, a.keys, a.head },
                  row_step[4] = { a.k[0], a.k[1], a.k[2], a.k[3] };
    matmul(ds, reshape(k, between(rows, row_step, type)), given(DQ, a.heads, a.queries, a.head, a.dq));
  }
};

void build_graph(ax_cudnn_graph &g, const ax_cudnn_key &key)
{
  builder b(g, key);
  if (key.word[BACKWARD]) b.backward();
  else b.forward();
}

const double LEAST_WORK = 8e9; /* multiplications and additions of the forward products */

/* ACCEL_CUDNN_ATTENTION=0: never, 1: for every size. */
double least_work(void)
{
  static const char *const wanted = getenv("ACCEL_CUDNN_ATTENTION");
  return !wanted || !*wanted ? LEAST_WORK : strcmp(wanted, "0") == 0 ? INFINITY : 0;
}

/* Whether columns are adjacent and the other strides are multiples of 16 bytes, as its engines
 * require. */
bool fits(const int64_t *stride)
{
  return stride[3] == 1 && stride[0] % 8 == 0 && stride[1] % 8 == 0 && stride[2] % 8 == 0 && stride[0] > 0 &&
         stride[1] > 0 && stride[2] > 0;
}

} // namespace

ax_status ax_cudnn_attention(ax_device d, bool backward, const ax_cuda_attention *a, ax_dtype dtype,
                             const ax_cuda_attention_data *data, bool *done)
{
  const float scale = (float)a->scale, lowest = -INFINITY, one = 1;
  const size_t bytes = (size_t)(a->batch * a->heads * a->queries) * sizeof(float);
  std::shared_ptr<ax_cudnn_plan> plan;
  ax_cudnn_key key;
  char what[80];
  void *delta = NULL;
  ax_status st;

  *done = false;
  if (dtype != AX_F16 && dtype != AX_BF16) return AX_OK;
  if (a->head % 8 || a->value_head % 8 || a->head > 256 || a->value_head > 256 || a->queries < 1 ||
      a->keys < 1)
    return AX_OK;
  const double work = 2.0 * (double)(a->batch * a->heads * a->queries) * (double)a->keys *
                      (double)(a->head + a->value_head) / (a->causal ? 2 : 1);
  if (work < least_work()) return AX_OK;
  if (!fits(a->q) || !fits(a->k) || !fits(a->v) || !fits(a->y)) return AX_OK;
  if (backward && (!fits(a->g) || !fits(a->dq) || !fits(a->dk) || !fits(a->dv))) return AX_OK;
  if (a->batch * a->heads * a->queries > INT32_MAX || a->batch * a->heads * a->keys > INT32_MAX) return AX_OK;

  void *list[TENSORS] = { NULL };
  list[Q] = (void *)data->q, list[K] = (void *)data->k, list[V] = (void *)data->v, list[O] = data->y,
  list[STATS] = data->lse;
  if (backward) list[G] = (void *)data->g, list[DQ] = data->dq, list[DK] = data->dk, list[DV] = data->dv;
  memset(&key, 0, sizeof key);
  key.word[BACKWARD] = backward;
  key.word[ELEMENT] = ax_cudnn_type(dtype);
  for (int k = Q; k < DELTA; k++)
    if (list[k]) {
      if ((uintptr_t)list[k] % 16) return AX_OK;
      key.word[ALIGN + k] = ax_cudnn_alignment(list[k]);
    }
  key.word[ALIGN + DELTA] = 128;
  ax_cuda_attention shape = *a;
  shape.scale = 0;
  memcpy(key.word + CALL, &shape, sizeof shape);
  snprintf(what, sizeof what, "attention%s %s", backward ? "'s gradient" : "", ax_dtype_name(dtype));
  if ((st = ax_cudnn_find(d, what, key, build_graph, false, &plan)) != AX_OK || !plan) return st;
  if (backward && (st = ax_cuda_take(d, bytes, &delta)) != AX_OK) return st;
  list[DELTA] = delta;
  list[SCALE] = (void *)&scale;
  if (a->causal) list[LOWEST] = (void *)&lowest;
  if (backward) list[ONE] = (void *)&one;
  int64_t uids[TENSORS];
  void *pointers[TENSORS];
  int n = 0;
  for (int k = Q; k < TENSORS; k++)
    if (list[k]) uids[n] = k, pointers[n++] = list[k];
  st = ax_cudnn_run(d, plan, n, uids, pointers, done);
  ax_cuda_give(d, delta, bytes);
  return st;
}

#endif
