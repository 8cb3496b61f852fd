/* The stand-in for cuDNN: what a graph is made of, what is refused of it, and its engines. */
#include "fake_cudnn.h"

tensor tensor_of(const ref &d)
{
  return tensor{ d->one<int64_t>(A(TENSOR_UNIQUE_ID)), d->one<int64_t>(A(TENSOR_BYTE_ALIGNMENT)),
                 d->one<int>(A(TENSOR_DATA_TYPE)),     d->list(A(TENSOR_DIMENSIONS)),
                 d->list(A(TENSOR_STRIDES)),           d->one<bool>(A(TENSOR_IS_VIRTUAL)),
                 d->one<bool>(A(TENSOR_IS_BY_VALUE)) };
}

operation operation_of(const ref &d)
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

bool is_convolution(int kind)
{
  return kind == D(OPERATION_CONVOLUTION_FORWARD) || kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ||
         kind == D(OPERATION_CONVOLUTION_BACKWARD_FILTER);
}

void parts(const operation &o, const tensor **x, const tensor **w, const tensor **y)
{
  *x = o.kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ? &o.out : &o.in[0];
  *w = o.kind == D(OPERATION_CONVOLUTION_BACKWARD_FILTER) ? &o.out : &o.in[1];
  *y = o.kind == D(OPERATION_CONVOLUTION_FORWARD)         ? &o.out
       : o.kind == D(OPERATION_CONVOLUTION_BACKWARD_DATA) ? &o.in[0]
                                                          : &o.in[1];
}

cudnnStatus_t check_operation(const operation &o)
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

std::vector<operation> operations_of(const ref &graph)
{
  std::vector<operation> all;
  for (const ref &o : graph->find(A(OPERATIONGRAPH_OPS))->children) all.push_back(operation_of(o));
  return all;
}

cudnnStatus_t check_plan(const ref &d)
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

cudnnStatus_t check_graph(const ref &d)
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

value derived(const ref &d, int attribute)
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
