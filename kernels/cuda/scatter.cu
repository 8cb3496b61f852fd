/* Writing at positions: scatter, scatter_add, index_add, index_copy, index_fill, and the gradients
 * of index_select, gather and embedding.
 *
 * Two threads never write one element, and additions to an element happen in the order of the
 * index, as on the CPU.  An index of whole slices is sorted, and the thread at the first of equal
 * positions handles all of them, or up to RUN of them: a position that is repeated thousands of
 * times (an embedding of few rows) is no chain of as many additions.  Where each element has an
 * index, a thread has a line along dim if there are many lines; else the written places are sorted.
 * Memory, and the sort, bound the kernels. */
#include "core/ops/scatter.h"
#include "rows.cuh"
#include "sort.cuh"

AX_CUDA_KERNEL(clone); /* copy.cu: any layout of in[0] into the contiguous out[0] */

struct walk {
  int op, ndim, dim;
  /* the shape of the index, expanded over slices where it has one dim */
  int64_t numel, shape[AX_MAX_DIMS];
  /* in elements; s is the other tensor */
  int64_t step_x[AX_MAX_DIMS], step_i[AX_MAX_DIMS], step_s[AX_MAX_DIMS];
  int64_t size, end; /* the size of dim in x; the elements of x */
  const int64_t *index;
  int64_t skip; /* a position that is left unchanged; -1: none */
  double alpha;
  ax_cuda_fault *fault;
};

/* The sums of integers use an unsigned type of their width, in which they wrap around. */
template <class S> struct summed {
  typedef compute<S> type;
};
template <> struct summed<int64_t> {
  typedef uint64_t type;
};
template <> struct summed<int32_t> {
  typedef uint32_t type;
};
template <> struct summed<uint8_t> {
  typedef uint32_t type;
};
/* true + true is true: a sum is how many there are */
template <> struct summed<ax_cuda_bool> {
  typedef uint64_t type;
};

/* The update of an element of x. */
template <class S> struct adding {
  typedef typename summed<S>::type T;
  const S *s;
  T alpha;
  T sum;
  __device__ __forceinline__ void begin(const S *x) { sum = (T)ax_cuda_load(*x); }
  __device__ __forceinline__ void next(int64_t at) { sum = sum + alpha * (T)ax_cuda_load(s[at]); }
  __device__ __forceinline__ void end(S *x) { *x = ax_cuda_store<S>(sum); }
};
/* Likewise of a run of V neighbours. */
template <class S, int V> struct adding_run {
  typedef typename summed<S>::type T;
  const S *s;
  T alpha;
  T sum[V];
  __device__ __forceinline__ adding_run(const adding<S> &f) : s(f.s), alpha(f.alpha) {}
  __device__ __forceinline__ void clear()
  {
    for (int k = 0; k < V; k++) sum[k] = 0;
  }
  __device__ __forceinline__ void begin(const S *x)
  {
    compute<S> v[V];
    ax_cuda_get(x, 0, v);
    for (int k = 0; k < V; k++) sum[k] = (T)v[k];
  }
  __device__ __forceinline__ void add(const ax_cuda_run<S, V> &run)
  {
    compute<S> v[V];
    run.open(v);
    for (int k = 0; k < V; k++) sum[k] = sum[k] + alpha * (T)v[k];
  }
  __device__ __forceinline__ void end(S *x) const
  {
    ax_cuda_run<S, V> run;
    S v[V];
    for (int k = 0; k < V; k++) v[k] = ax_cuda_store<S>(sum[k]);
    memcpy(&run.bits, v, sizeof v);
    run.store(x);
  }
  __device__ __forceinline__ void part(T *to) const
  {
    for (int k = 0; k < V; k++) to[k] = sum[k];
  }
};
template <class S> struct reducing {
  typedef compute<S> T;
  const S *s;
  int reduce;
  T value;
  __device__ __forceinline__ void begin(const S *x) { value = (T)ax_cuda_load(*x); }
  __device__ __forceinline__ void next(int64_t at)
  {
    const T v = (T)ax_cuda_load(s[at]);
    if (reduce == AX_SCATTER_PROD) value = (T)((typename summed<S>::type)value * (typename summed<S>::type)v);
    else if ((reduce == AX_SCATTER_AMAX ? v > value : v < value) || v != v) value = v;
  }
  __device__ __forceinline__ void end(S *x) { *x = ax_cuda_store<S>(value); }
};
template <class S> struct setting {
  const S *s; /* NULL: the number */
  S number, last;
  __device__ __forceinline__ void begin(const S *) { last = number; }
  __device__ __forceinline__ void next(int64_t at)
  {
    if (s) last = s[at];
  }
  __device__ __forceinline__ void end(S *x) { *x = last; }
};

/* The offsets of item p, without the part of dim; returns the coordinate along dim. */
static __device__ __forceinline__ int64_t place_of(const walk &w, int64_t p, int64_t *x, int64_t *i,
                                                   int64_t *s)
{
  int64_t along = 0;
  *x = *i = *s = 0;
  for (int d = w.ndim - 1; d >= 0; d--) {
    int64_t c;
    if (w.numel < INT64_C(1) << 31) {
      const uint32_t q = (uint32_t)p / (uint32_t)w.shape[d];
      c = (uint32_t)p - q * (uint32_t)w.shape[d];
      p = q;
    } else {
      c = p % w.shape[d];
      p /= w.shape[d];
    }
    if (d == w.dim) {
      along = c;
      continue;
    }
    *x += c * w.step_x[d];
    *i += c * w.step_i[d];
    *s += c * w.step_s[d];
  }
  return along;
}

/* ---- slices: keys are the positions, sorted */

template <class K> static __global__ void slice_keys(walk w, int64_t picked, K *keys)
{
  for (int64_t i = AX_FIRST; i < picked; i += AX_STEP) {
    const int64_t v = w.index[i * w.step_i[w.dim]];
    /* positions that do not count come last */
    keys[i] = ax_cuda_in_range(w.fault, AX_FAULT_INDEX, w.op, v, i, w.size) && v != w.skip ? (K)v : (K)w.size;
  }
}

template <class S, class F, class K>
static __global__ void slices_kernel(walk w, F f, S *x, int64_t picked, const K *keys, const uint32_t *at)
{
  for (int64_t p = AX_FIRST; p < w.numel; p += AX_STEP) {
    int64_t to, i, from;
    const int64_t first = place_of(w, p, &to, &i, &from), step = w.step_s[w.dim];
    const K key = keys[first];
    if (key >= (K)w.size || (first > 0 && keys[first - 1] == key)) continue;
    S *const place = x + to + (int64_t)key * w.step_x[w.dim];
    f.begin(place);
    for (int64_t j = first; j < picked && keys[j] == key; j++) f.next(from + at[j] * step);
    f.end(place);
  }
}

/* ---- sums in two levels.  The places of a position in the sorted index are cut into parts of RUN,
 * which are added up by a thread each and then joined in order; a position with one part gets the
 * CPU's bits.  Parts that do not begin their position are at least RUN places apart, and so are the
 * first parts of positions that have more: the number of a part's first place, divided by RUN, is
 * where its sum is kept, (2 number + begins) columns + column. */

enum { RUN = 256 };

struct columns {
  int64_t n, inner; /* elements of a slice; those behind dim */
};

/* The first place with the position of each place. */
template <class K> static __global__ void position_starts(int64_t picked, const K *keys, uint32_t *starts)
{
  for (int64_t p = AX_FIRST; p < picked; p += AX_STEP) {
    int64_t lo = 0, hi = p;
    while (lo < hi) {
      const int64_t mid = (lo + hi) / 2;
      if (keys[mid] < keys[p]) lo = mid + 1;
      else hi = mid;
    }
    starts[p] = (uint32_t)lo;
  }
}

/* Of V neighbouring columns each: w and c count them as one.  A thread loads AHEAD elements of a
 * column before it adds the first. */
enum { AHEAD = 4 };
template <class S, int V, class K>
static __global__ void part_sums(walk w, adding<S> one, S *x, int64_t picked, columns c, const K *keys,
                                 const uint32_t *at, const uint32_t *starts, typename adding<S>::T *parts)
{
  adding_run<S, V> f(one);
  for (int64_t p = AX_FIRST; p < w.numel; p += AX_STEP) {
    int64_t to, i, from;
    const int64_t first = place_of(w, p, &to, &i, &from), step = w.step_s[w.dim];
    const K key = keys[first];
    const bool begins = starts[first] == first;
    if (key >= (K)w.size || (first - starts[first]) % RUN != 0) continue;
    S *const place = x + to + (int64_t)key * w.step_x[w.dim];
    const int64_t end = first + RUN < picked ? first + RUN : picked;
    int64_t j = first;
    if (begins) f.begin(place);
    else f.clear();
    for (int there = AHEAD; there == AHEAD && j < end; j += there) {
      ax_cuda_run<S, V> run[AHEAD];
      there = 0;
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (j + u < end && keys[j + u] == key) { /* those that are equal come first */
          run[u].load(one.s + from + at[j + u] * step);
          there = u + 1;
        }
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (u < there) f.add(run[u]);
    }
    if (begins && (j < end || j == picked || keys[j] != key)) f.end(place);
    else
      f.part(parts + (2 * (first / RUN) + begins) * c.n +
             (p / (c.inner * picked) * c.inner + p % c.inner) * V);
  }
}

/* Joins the parts of the position that begins among RUN places and has more than one. */
template <class S, class K>
static __global__ void join_parts(walk w, adding<S> f, S *x, int64_t picked, columns c, const K *keys,
                                  const uint32_t *starts, const typename adding<S>::T *parts)
{
  for (int64_t q = AX_FIRST; q < picked / RUN * c.n; q += AX_STEP) {
    const int64_t number = q / c.n, column = q % c.n, first = starts[number * RUN + RUN - 1];
    const K key = keys[first];
    if (first / RUN != number || first + RUN >= picked || key >= (K)w.size || keys[first + RUN] != key)
      continue;
    int64_t to, i, from;
    place_of(w, column / c.inner * c.inner * picked + column % c.inner, &to, &i, &from);
    f.sum = parts[(2 * number + 1) * c.n + column];
    for (int64_t p = first + RUN; p < picked && keys[p] == key; p += RUN)
      f.sum = f.sum + parts[2 * (p / RUN) * c.n + column];
    f.end(x + to + (int64_t)key * w.step_x[w.dim]);
  }
}

/* Makes V neighbours along the last dim one item of the walk, where those of both tensors are
 * aligned runs of memory. */
template <class S, int V> static bool in_runs(walk *w, const S *s, const S *x)
{
  const int last = w->ndim - 1;
  if (last == w->dim || w->shape[last] % V || w->step_x[last] != 1 || w->step_s[last] != 1 ||
      ((uintptr_t)s | (uintptr_t)x) % (sizeof(S) * V))
    return false;
  for (int d = 0; d < last; d++)
    if (w->step_x[d] % V || w->step_s[d] % V) return false;
  w->shape[last] /= V;
  w->numel /= V;
  w->step_x[last] = w->step_s[last] = V;
  return true;
}

/* What is done with a sorted index: each position by one thread, or sums by parts. */
template <class S, class F, class K>
static ax_status walk_sorted(ax_device d, const walk &w, F f, S *x, const K *keys, const uint32_t *at)
{
  return ax_cuda_launch(ax_ops[w.op].name, d, ax_cuda_blocks(w.numel, 256, d.index), 256,
                        slices_kernel<S, F, K>, w, f, x, w.shape[w.dim], keys, at);
}
template <class S, class K>
static ax_status walk_sorted(ax_device d, const walk &w, adding<S> f, S *x, const K *keys, const uint32_t *at)
{
  typedef typename adding<S>::T T;
  const char *name = ax_ops[w.op].name;
  const int64_t picked = w.shape[w.dim];
  columns c = { w.numel / picked, 1 };
  void *parts = NULL, *starts = NULL;

  if (picked <= RUN)
    return ax_cuda_launch(name, d, ax_cuda_blocks(w.numel, 256, d.index), 256, slices_kernel<S, adding<S>, K>,
                          w, f, x, picked, keys, at);
  for (int k = w.dim + 1; k < w.ndim; k++) c.inner *= w.shape[k];
  const size_t bytes = (size_t)((picked + RUN - 1) / RUN * 2 * c.n) * sizeof(T),
               more = (size_t)picked * sizeof(uint32_t);
  ax_status st = ax_cuda_take(d, bytes, &parts);
  if (st == AX_OK) st = ax_cuda_take(d, more, &starts);
  if (st == AX_OK)
    st = ax_cuda_launch(name, d, ax_cuda_blocks(picked, 256, d.index), 256, position_starts<K>, picked, keys,
                        (uint32_t *)starts);
  if (st == AX_OK) {
    constexpr int V = 16 / (int)sizeof(S);
    walk runs = w;
    columns own = c;
    const bool wide = in_runs<S, V>(&runs, f.s, x);
    if (wide) own.inner /= V;
    st = ax_cuda_launch(name, d, ax_cuda_blocks(runs.numel, 256, d.index), 256,
                        wide ? part_sums<S, V, K> : part_sums<S, 1, K>, runs, f, x, picked, own, keys, at,
                        (const uint32_t *)starts, (T *)parts);
  }
  if (st == AX_OK)
    st = ax_cuda_launch(name, d, ax_cuda_blocks(picked / RUN * c.n, 256, d.index), 256, join_parts<S, K>, w,
                        f, x, picked, c, keys, (const uint32_t *)starts, (const T *)parts);
  if (starts) ax_cuda_give(d, starts, more);
  if (parts) ax_cuda_give(d, parts, bytes);
  return st;
}

template <class S, class F> static ax_status run_slices(ax_device d, const walk &w, F f, S *x)
{
  const char *name = ax_ops[w.op].name;
  const int64_t picked = w.shape[w.dim];
  auto run = [&](auto tag) {
    typedef AX_TYPE_OF(tag) K;
    ax_cuda_sorting<K> s;
    ax_status st = ax_cuda_sort_begin(d, name, 1, picked, &s);
    if (st != AX_OK) return st;
    st = ax_cuda_launch(name, d, ax_cuda_blocks(picked, 256, d.index), 256, slice_keys<K>, w, picked, s.keys);
    if (st == AX_OK) st = ax_cuda_sort<K>(name, 1, picked, ax_key_bytes(w.size + 1), &s);
    if (st == AX_OK) st = walk_sorted(d, w, f, x, (const K *)s.keys, (const uint32_t *)s.at);
    ax_cuda_sort_end(&s);
    return st;
  };
  if (w.numel == 0) return AX_OK;
  return w.size < (int64_t)UINT32_MAX ? run(ax_cuda_type<uint32_t>()) : run(ax_cuda_type<uint64_t>());
}

/* ---- an index for each element */

enum { MANY_LINES = 8192, SHORT_LINE = 8 };

/* One thread for each line along dim.  The walk's shape has 1 there. */
template <class S, class F> static __global__ void lines_kernel(walk w, F f, S *x, int64_t along)
{
  for (int64_t p = AX_FIRST; p < w.numel; p += AX_STEP) {
    int64_t to, i, from;
    place_of(w, p, &to, &i, &from);
    for (int64_t j = 0; j < along; j++) {
      const int64_t v = w.index[i + j * w.step_i[w.dim]];
      if (!ax_cuda_in_range(w.fault, AX_FAULT_INDEX, w.op, v, p, w.size)) continue;
      S *const place = x + to + v * w.step_x[w.dim];
      f.begin(place);
      f.next(from + j * w.step_s[w.dim]);
      f.end(place);
    }
  }
}

template <class K> static __global__ void place_keys(walk w, K *keys)
{
  for (int64_t p = AX_FIRST; p < w.numel; p += AX_STEP) {
    int64_t to, i, from;
    const int64_t j = place_of(w, p, &to, &i, &from), v = w.index[i + j * w.step_i[w.dim]];
    keys[p] = ax_cuda_in_range(w.fault, AX_FAULT_INDEX, w.op, v, p, w.size) ? (K)(to + v * w.step_x[w.dim])
                                                                            : (K)w.end;
  }
}

template <class S, class F, class K>
static __global__ void places_kernel(walk w, F f, S *x, const K *keys, const uint32_t *at)
{
  for (int64_t p = AX_FIRST; p < w.numel; p += AX_STEP) {
    const K key = keys[p];
    if (key >= (K)w.end || (p > 0 && keys[p - 1] == key)) continue;
    f.begin(x + key);
    for (int64_t j = p; j < w.numel && keys[j] == key; j++) {
      int64_t to, i, from;
      const int64_t along = place_of(w, at[j], &to, &i, &from);
      f.next(from + along * w.step_s[w.dim]);
    }
    f.end(x + key);
  }
}

template <class S, class F> static ax_status run_places(ax_device d, const walk &w, F f, S *x)
{
  const char *name = ax_ops[w.op].name;
  const int64_t along = w.shape[w.dim];
  if (w.numel == 0) return AX_OK;
  if (w.numel / along >= MANY_LINES || along <= SHORT_LINE) {
    walk l = w;
    l.shape[w.dim] = 1;
    l.numel = w.numel / along;
    return ax_cuda_launch(name, d, ax_cuda_blocks(l.numel, 128, d.index), 128, lines_kernel<S, F>, l, f, x,
                          along);
  }
  auto run = [&](auto tag) {
    typedef AX_TYPE_OF(tag) K;
    ax_cuda_sorting<K> s;
    ax_status st = ax_cuda_sort_begin(d, name, 1, w.numel, &s);
    if (st != AX_OK) return st;
    st = ax_cuda_launch(name, d, ax_cuda_blocks(w.numel, 256, d.index), 256, place_keys<K>, w, s.keys);
    if (st == AX_OK) st = ax_cuda_sort<K>(name, 1, w.numel, ax_key_bytes(w.end + 1), &s);
    if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(w.numel, 256, d.index), 256, places_kernel<S, F, K>, w, f,
                          x, (const K *)s.keys, (const uint32_t *)s.at);
    ax_cuda_sort_end(&s);
    return st;
  };
  return w.end < (int64_t)UINT32_MAX ? run(ax_cuda_type<uint32_t>()) : run(ax_cuda_type<uint64_t>());
}

/* ---- the rows */

/* Calls g for the types that can be added. */
template <class G> static ax_status with_number(ax_op op, ax_dtype d, G g)
{
  switch (d) {
  case AX_I64: return g(ax_cuda_type<int64_t>());
  case AX_I32: return g(ax_cuda_type<int32_t>());
  case AX_U8: return g(ax_cuda_type<uint8_t>());
  default: return ax_cuda_with_float(op, d, g);
  }
}

template <class S> struct is_integer {
  static const bool value = false;
};
template <> struct is_integer<int64_t> {
  static const bool value = true;
};
template <> struct is_integer<int32_t> {
  static const bool value = true;
};
template <> struct is_integer<uint8_t> {
  static const bool value = true;
};

template <class S> static adding<S> adder(const void *s, double alpha)
{
  typedef typename summed<S>::type T;
  adding<S> f = {};
  f.s = (const S *)s;
  f.alpha = is_integer<S>::value ? (T)(int64_t)alpha : (T)alpha;
  return f;
}

/* Writes zeros (x NULL) or a copy of call->in[0], then walks. */
static ax_status write_at(const ax_call *call, const ax_tensor *x, const ax_tensor *s, bool slices, bool add)
{
  const ax_tensor *index = call->in[1], *y = call->out[0];
  const ax_device d = y->device;
  const int64_t dim = call->a->write_at.dim;
  int64_t number = 0;
  walk w = {};
  ax_status st = AX_OK;

  if (y->numel == 0 && index->numel == 0) return AX_OK;
  if (!x) st = ax_cuda_clear(ax_ops[call->op].name, d, ax_data(y), (size_t)y->numel * ax_itemsize(y));
  else if (ax_data(x) != ax_data(y) && y->numel) st = ax_cuda_clone(call);
  if (st != AX_OK || index->numel == 0) return st;
  const ax_tensor *like = slices ? y : index;
  w.op = call->op;
  w.ndim = like->ndim ? like->ndim : 1; /* 0-d: one element */
  w.dim = (int)dim;
  w.size = y->ndim ? y->shape[dim] : 1;
  w.end = y->numel;
  w.index = ax_cuda_data<int64_t>(index);
  w.skip = -1;
  w.fault = ax_cuda_fault_place(d);
  if (!w.fault) return AX_ENOMEM;
  w.numel = 1;
  for (int k = 0; k < w.ndim; k++) {
    w.shape[k] = slices && k == dim ? index->numel : like->ndim ? like->shape[k] : 1;
    w.step_x[k] = y->ndim ? y->strides[k] : 0;
    w.step_s[k] = s && s->ndim ? s->strides[k] : 0;
    w.step_i[k] = !slices                   ? (index->ndim ? index->strides[k] : 0)
                  : k == dim && index->ndim ? index->strides[0]
                                            : 0;
    w.numel *= w.shape[k];
  }
  if (!s)
    ax_store_double((ax_dtype)y->dtype, &number, 0,
                    call->op == AX_OP_SCATTER ? call->a->scatter.number : call->a->index_fill.value);
  if (call->op == AX_OP_SCATTER_REDUCE)
    return with_number(call->op, (ax_dtype)y->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      reducing<S> f = {};
      f.s = ax_cuda_data<S>(s);
      f.reduce = (int)call->a->scatter_reduce.reduce;
      return run_places(d, w, f, ax_cuda_data<S>(y));
    });
  if (add && y->dtype == AX_BOOL) {
    const double alpha = call->op == AX_OP_INDEX_ADD ? call->a->index_add.alpha : 1;
    const adding<ax_cuda_bool> f = adder<ax_cuda_bool>(ax_cuda_data<ax_cuda_bool>(s), alpha != 0);
    return slices ? run_slices(d, w, f, ax_cuda_data<ax_cuda_bool>(y))
                  : run_places(d, w, f, ax_cuda_data<ax_cuda_bool>(y));
  }
  if (add)
    return with_number(call->op, (ax_dtype)y->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      const adding<S> f =
          adder<S>(ax_cuda_data<S>(s), call->op == AX_OP_INDEX_ADD ? call->a->index_add.alpha : 1);
      return slices ? run_slices(d, w, f, ax_cuda_data<S>(y)) : run_places(d, w, f, ax_cuda_data<S>(y));
    });
  return ax_cuda_with_size(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    setting<S> f = {};
    f.s = s ? ax_cuda_data<S>(s) : NULL;
    memcpy(&f.number, &number, sizeof(S));
    return slices ? run_slices(d, w, f, ax_cuda_data<S>(y)) : run_places(d, w, f, ax_cuda_data<S>(y));
  });
}

AX_CUDA_KERNEL(_gather_backward) { return write_at(call, NULL, call->in[0], false, true); }
AX_CUDA_KERNEL(scatter) { return write_at(call, call->in[0], call->in[2], false, false); }
AX_CUDA_KERNEL(scatter_add) { return write_at(call, call->in[0], call->in[2], false, true); }
AX_CUDA_KERNEL(_scatter_reduce) { return write_at(call, call->in[0], call->in[2], false, true); }
AX_CUDA_KERNEL(index_add) { return write_at(call, call->in[0], call->in[2], true, true); }
AX_CUDA_KERNEL(index_copy) { return write_at(call, call->in[0], call->in[2], true, false); }
AX_CUDA_KERNEL(index_fill) { return write_at(call, call->in[0], NULL, true, false); }
AX_CUDA_KERNEL(_index_select_backward) { return write_at(call, NULL, call->in[0], true, true); }

/* Adds rows of g at the numbers in `input`: slices of (count, size). */
AX_CUDA_KERNEL(_embedding_backward)
{
  const ax_tensor *g = call->in[0], *input = call->in[1], *y = call->out[0];
  const ax_device d = y->device;
  walk w = {};
  ax_status st = AX_OK;

  if (y->dtype != AX_F32 && y->dtype != AX_F64) return ax_cuda_no_dtype(call->op, (ax_dtype)y->dtype);
  if (!call->a->accumulate) st = ax_cuda_clear("embedding", d, ax_data(y), (size_t)y->numel * ax_itemsize(y));
  if (st != AX_OK || g->numel == 0) return st;
  w.op = AX_OP_EMBEDDING;
  w.ndim = 2;
  w.numel = g->numel;
  w.shape[0] = input->numel, w.shape[1] = y->shape[1];
  w.step_x[0] = w.step_s[0] = y->shape[1];
  w.step_x[1] = w.step_s[1] = 1;
  w.step_i[0] = 1;
  w.size = y->shape[0];
  w.end = y->numel;
  w.index = ax_cuda_data<int64_t>(input);
  w.skip =
      call->a->embedding_backward.padding_idx == AX_NO_DIM ? -1 : call->a->embedding_backward.padding_idx;
  w.fault = ax_cuda_fault_place(d);
  if (!w.fault) return AX_ENOMEM;
  return y->dtype == AX_F32
             ? run_slices(d, w, adder<float>(ax_cuda_data<float>(g), 1), ax_cuda_data<float>(y))
             : run_slices(d, w, adder<double>(ax_cuda_data<double>(g), 1), ax_cuda_data<double>(y));
}
