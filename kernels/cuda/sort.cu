/* sort, topk, kthvalue, median, searchsorted: lines are sorted as in sort.cuh, and elements are
 * copied from the sorted positions. */
#include "sort.cuh"

enum { SORT, KTH, MEDIAN };

/* The keys of a type, the type of the keys, and the number of bytes in which they differ. */
template <class S> struct keyed;
#define KEYED(S, K, bytes_, expr) \
  template <> struct keyed<S> { \
    typedef K type; \
    static const int bytes = bytes_; \
    static __device__ __forceinline__ K of(S v) { return expr; } \
  };
KEYED(float, uint32_t, 4, ax_key_f32(v))
KEYED(double, uint64_t, 8, ax_key_f64(v))
KEYED(ax_cuda_f16, uint32_t, 2, ax_key_f16(v.bits))
KEYED(ax_cuda_bf16, uint32_t, 2, ax_key_bf16(v.bits))
KEYED(int64_t, uint64_t, 8, ax_key_i64(v))
KEYED(int32_t, uint32_t, 4, ax_key_i32(v))
KEYED(uint8_t, uint32_t, 1, ax_key_u8(v))
KEYED(ax_cuda_bool, uint32_t, 1, ax_key_u8(v.value))

/* Lines of an (outer, n, inner) tensor; k elements of each are the result. */
struct lines {
  int64_t count, n, inner, k;
};

template <class S>
static __global__ void make_keys(const S *x, lines l, bool falling, typename keyed<S>::type *keys)
{
  typedef typename keyed<S>::type K;
  for (int64_t p = AX_FIRST; p < l.count * l.n; p += AX_STEP) { /* p walks x in memory order */
    const int64_t outer = p / (l.n * l.inner), i = p / l.inner % l.n, line = outer * l.inner + p % l.inner;
    const K key = keyed<S>::of(x[p]);
    keys[line * l.n + i] = falling ? (K)~key : key;
  }
}

static __device__ __forceinline__ int64_t element_at(const lines &l, int64_t line, int64_t i, int64_t n)
{
  return (line / l.inner * n + i) * l.inner + line % l.inner;
}

template <class S>
static __global__ void put_sorted(const S *x, lines l, const uint32_t *at, S *values, int64_t *indices)
{
  for (int64_t p = AX_FIRST; p < l.count * l.k; p += AX_STEP) { /* p walks the results in memory order */
    const int64_t outer = p / (l.k * l.inner), rank = p / l.inner % l.k, line = outer * l.inner + p % l.inner;
    const int64_t from = at[line * l.n + rank];
    values[p] = x[element_at(l, line, from, l.n)];
    indices[p] = from;
  }
}

/* One element of each line: the one of rank `rank`, or the median, which is the first NaN where
 * there is one. */
template <class S>
static __global__ void put_one(const S *x, lines l, const typename keyed<S>::type *keys, const uint32_t *at,
                               int64_t rank, bool nan_wins, S *values, int64_t *indices)
{
  typedef typename keyed<S>::type K;
  const K nan = keyed<S>::bytes == 2 ? (K)0xffff : (K) ~(K)0;
  for (int64_t line = AX_FIRST; line < l.count; line += AX_STEP) {
    const K *key = keys + line * l.n;
    int64_t r = rank;
    if (nan_wins && key[l.n - 1] == nan) {
      int64_t lo = 0, hi = l.n - 1; /* binary search for the first of them */
      while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (key[mid] == nan) hi = mid;
        else lo = mid + 1;
      }
      r = lo;
    }
    const int64_t from = at[line * l.n + r];
    values[line] = x[element_at(l, line, from, l.n)];
    indices[line] = from;
  }
}

static ax_status order(const ax_call *call, int what, int64_t dim, int64_t k, bool falling)
{
  const ax_tensor *x = call->in[0];
  const ax_device d = x->device;
  const char *name = ax_ops[call->op].name;
  const bool floats = ax_is_float((ax_dtype)x->dtype);
  lines l = { 0, x->ndim ? x->shape[dim] : 1, 1, k };

  if (call->out[0]->numel == 0) return AX_OK;
  for (int t = (int)dim + 1; t < x->ndim; t++) l.inner *= x->shape[t];
  l.count = x->numel / l.n;
  return ax_cuda_with_any(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef typename keyed<S>::type K;
    const S *from = ax_cuda_data<S>(x);
    S *values = ax_cuda_data<S>(call->out[0]);
    int64_t *indices = ax_cuda_data<int64_t>(call->out[1]);
    ax_cuda_sorting<K> s;
    ax_status st = ax_cuda_sort_begin(d, name, l.count, l.n, &s);

    if (st != AX_OK) return st;
    st = ax_cuda_launch(name, d, ax_cuda_blocks(x->numel, 256, d.index), 256, make_keys<S>, from, l, falling,
                        s.keys);
    if (st == AX_OK) st = ax_cuda_sort<K>(name, l.count, l.n, keyed<S>::bytes, &s);
    if (st == AX_OK && what == SORT)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(l.count * l.k, 256, d.index), 256, put_sorted<S>, from, l,
                          (const uint32_t *)s.at, values, indices);
    else if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(l.count, 128, d.index), 128, put_one<S>, from, l,
                          (const K *)s.keys, (const uint32_t *)s.at, what == KTH ? k - 1 : (l.n - 1) / 2,
                          what == MEDIAN && floats, values, indices);
    ax_cuda_sort_end(&s);
    return st;
  });
}

AX_CUDA_KERNEL(sort)
{
  const ax_tensor *x = call->in[0];
  const int64_t dim = call->a->sort.dim;
  return order(call, SORT, dim, x->ndim ? x->shape[dim] : 1, call->a->sort.descending);
}
AX_CUDA_KERNEL(topk) { return order(call, SORT, call->a->topk.dim, call->a->topk.k, call->a->topk.largest); }
AX_CUDA_KERNEL(kthvalue) { return order(call, KTH, call->a->kthvalue.dim, call->a->kthvalue.k, false); }
AX_CUDA_KERNEL(_median) { return order(call, MEDIAN, call->a->median_of.dim, 1, false); }

/* ---- searchsorted.  NaN is above everything, in the sequence and among the values. */

template <class S>
static __global__ void search(const S *sequence, int64_t n, bool one, const S *values, S number, int64_t m,
                              bool right, int64_t *out, int64_t count)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const S *row = sequence + (one ? 0 : i / m * n), v = values ? values[i] : number;
    int64_t lo = 0, hi = n;
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      const S a = right ? v : row[mid], b = right ? row[mid] : v;
      const bool below = a < b || (b != b && a == a);
      if (below != right) lo = mid + 1;
      else hi = mid;
    }
    out[i] = lo;
  }
}

AX_CUDA_KERNEL(searchsorted)
{
  const ax_tensor *s = call->in[0], *v = call->in[1], *y = call->out[0];
  const int64_t n = s->shape[s->ndim - 1], m = v && v->ndim ? v->shape[v->ndim - 1] : 1;
  auto run = [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("searchsorted", y->device, ax_cuda_blocks(y->numel, 256, y->device.index), 256,
                          search<S>, ax_cuda_data<S>(s), n, s->ndim == 1, v ? ax_cuda_data<S>(v) : NULL,
                          (S)call->a->searchsorted.number, m, (bool)call->a->searchsorted.right,
                          ax_cuda_data<int64_t>(y), y->numel);
  };
  if (y->numel == 0) return AX_OK;
  switch ((ax_dtype)s->dtype) {
  case AX_F32: return run(ax_cuda_type<float>());
  case AX_F64: return run(ax_cuda_type<double>());
  case AX_I64: return run(ax_cuda_type<int64_t>());
  case AX_I32: return run(ax_cuda_type<int32_t>());
  case AX_U8: return run(ax_cuda_type<uint8_t>());
  default: return ax_cuda_no_dtype(call->op, (ax_dtype)s->dtype);
  }
}
