/* Work sharing and loop nests: the path of a pointwise kernel from an ax_iter to its innermost
 * loop. */
#include "cpu.h"

#include <omp.h>
#include <string.h>

#include "core/ops/iter.h"

int ax_cpu_get_threads(void) { return omp_get_max_threads(); }
void ax_cpu_set_threads(int n) { omp_set_num_threads(n); }

void ax_cpu_for(int64_t n, int64_t work, ax_range_fn fn, void *ctx)
{
  if (work < AX_GRAIN || n < 2 || omp_get_max_threads() == 1 || omp_in_parallel()) {
    fn(0, n, ctx);
    return;
  }
#pragma omp parallel
  {
    const int64_t t = omp_get_thread_num(), of = omp_get_num_threads();
    const int64_t lo = n / of * t + (t < n % of ? t : n % of), hi = lo + n / of + (t < n % of);
    if (lo < hi) fn(lo, hi, ctx);
  }
}

/* ---- nests */

typedef struct walk {
  const ax_iter *it;
  ax_loop loop;
  const void *ctx;
  bool stream;
} walk;

/* A smaller result may still be in the last cache when it is read.  (The cache size that the system
 * reports is no guide: on a shared machine it may be that of the whole socket.) */
bool ax_cpu_streams(int64_t bytes) { return bytes >= 16 << 20; }

#define STREAM_BLOCK 2048 /* bytes; the block and its inputs stay in the first-level cache */

/* Computes a run of a large result block by block in a buffer, and writes each block past the
 * caches. Ordinary stores would first read the lines that they overwrite. */
static void stream_run(const walk *w, char *const *data, const int64_t *step, int64_t count)
{
  char buffer[STREAM_BLOCK] __attribute__((aligned(64))), *part[1 + AX_MAX_INPUTS];
  const int n = w->it->n;
  const int64_t size = step[0], block = STREAM_BLOCK / size, skew = (int64_t)((uintptr_t)data[0] & 63);
  int64_t done = skew ? (64 - skew) / size : 0; /* up to the first whole line */

  if (skew % size || done > count) done = count;
  if (done) w->loop(data, step, done, w->ctx);
  for (int64_t m; done < count; done += m) {
    m = count - done < block ? count - done : block;
    for (int k = 1; k < n; k++) part[k] = data[k] + done * step[k];
    part[0] = m == block ? buffer : data[0] + done * size;
    w->loop(part, step, m, w->ctx);
    if (m == block) ax_cpu_stream(data[0] + done * size, buffer, STREAM_BLOCK);
  }
  ax_cpu_stream_end();
}

/* Runs elements [lo, hi) in the iteration's own order. */
static void walk_range(int64_t lo, int64_t hi, void *ud)
{
  const walk *w = ud;
  const ax_iter *it = w->it;
  const int n = it->n, inner = it->ndim - 1;
  char *data[1 + AX_MAX_INPUTS];
  int64_t step[1 + AX_MAX_INPUTS], at[AX_MAX_DIMS], rest = lo;

  for (int k = 0; k < n; k++) {
    data[k] = it->op[k].data;
    step[k] = it->op[k].stride[inner];
  }
  for (int d = inner; d >= 0; d--) {
    at[d] = rest % it->shape[d];
    rest /= it->shape[d];
    for (int k = 0; k < n; k++) data[k] += at[d] * it->op[k].stride[d];
  }
  while (lo < hi) {
    const int64_t left = it->shape[inner] - at[inner], count = left < hi - lo ? left : hi - lo;
    if (w->stream) stream_run(w, data, step, count);
    else w->loop(data, step, count, w->ctx);
    lo += count;
    if (lo >= hi) break;
    for (int k = 0; k < n; k++) data[k] -= at[inner] * step[k];
    at[inner] = 0;
    for (int d = inner - 1; d >= 0; d--) { /* carry into the next outer dim */
      for (int k = 0; k < n; k++) data[k] += it->op[k].stride[d];
      if (++at[d] < it->shape[d]) break;
      for (int k = 0; k < n; k++) data[k] -= at[d] * it->op[k].stride[d];
      at[d] = 0;
    }
  }
}

static int64_t size_of(int64_t stride) { return stride < 0 ? -stride : stride; }

/* Whether dim a belongs outside dim b.  The first operand whose steps differ decides: the longer
 * step is outside. */
static bool outside(const ax_iter *it, int a, int b)
{
  for (int k = 0; k < it->n; k++) {
    const int64_t x = size_of(it->op[k].stride[a]), y = size_of(it->op[k].stride[b]);
    if (x != y && x && y) return x > y;
  }
  return true;
}

void ax_cpu_swap_dims(ax_iter *it, int a, int b)
{
  const int64_t s = it->shape[a];
  it->shape[a] = it->shape[b];
  it->shape[b] = s;
  for (int k = 0; k < it->n; k++) {
    const int64_t t = it->op[k].stride[a];
    it->op[k].stride[a] = it->op[k].stride[b];
    it->op[k].stride[b] = t;
  }
}

void ax_cpu_merge_dims(ax_iter *it) { ax_iter_merge(it, it->ndim, it->shape); }

void ax_cpu_nest(const ax_iter *it, ax_loop loop, const void *ctx)
{
  ax_iter own;
  walk w = { .it = it, .loop = loop, .ctx = ctx };

  if (it->numel == 0) return;
  if (it->ndim <= 1 && it->numel < AX_GRAIN) { /* most calls are one short loop */
    char *data[1 + AX_MAX_INPUTS];
    int64_t step[1 + AX_MAX_INPUTS];
    for (int k = 0; k < it->n; k++) {
      data[k] = it->op[k].data;
      step[k] = it->ndim ? it->op[k].stride[0] : 0;
    }
    loop(data, step, it->numel, ctx);
    return;
  }
  if (it->ndim > 1) {
    bool sorted = true;
    for (int d = 1; sorted && d < it->ndim; d++) sorted = outside(it, d - 1, d);
    if (!sorted) {
      own = *it;
      for (int d = 1; d < own.ndim; d++)
        for (int e = d; e > 0 && !outside(&own, e - 1, e); e--) ax_cpu_swap_dims(&own, e - 1, e);
      ax_cpu_merge_dims(&own);
      w.it = &own;
    }
  }
  const ax_operand *out = &w.it->op[0];
  const int inner = w.it->ndim - 1;
  const int64_t size = (int64_t)ax_dtype_size(out->dtype);
  w.stream = it->n > 1 && out->stride[inner] == size && w.it->shape[inner] * size >= 4 * STREAM_BLOCK &&
             ax_cpu_streams(it->numel * size);
  /* in place: the lines have been read already */
  for (int k = 1; w.stream && k < it->n; k++) w.stream = it->op[k].data != out->data;
  ax_cpu_for(it->numel, it->numel, walk_range, &w);
}

/* ---- dtypes */

ax_status ax_cpu_no_dtype(ax_op op, ax_dtype d)
{
  return ax_fail(AX_EDTYPE, "%s: not defined for %s", ax_op_shown(op), ax_dtype_name(d));
}

#define BLOCK 512

/* direct: the loop for contiguous operands of one half type, or NULL */
typedef struct half_walk {
  ax_loop loop, direct;
  const void *ctx;
  const ax_iter *it;
} half_walk;

static bool is_half(ax_dtype d) { return d == AX_F16 || d == AX_BF16; }

/* Runs a float32 loop over half operands: each block is converted in buffers that stay in the
 * first-level cache. */
static void half_loop(char *const *data, const int64_t *stride, int64_t n, const void *ud)
{
  const half_walk *h = ud;
  const ax_iter *it = h->it;
  float buffer[1 + AX_MAX_INPUTS][BLOCK];
  char *part[1 + AX_MAX_INPUTS];
  int64_t step[1 + AX_MAX_INPUTS];
  bool direct = h->direct != NULL;

  for (int k = 0; direct && k < it->n; k++) direct = stride[k] == 2;
  if (direct) {
    h->direct(data, stride, n, h->ctx);
    return;
  }
  for (int64_t lo = 0; lo < n; lo += BLOCK) {
    const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
    for (int k = 0; k < it->n; k++) {
      part[k] = data[k] + lo * stride[k];
      step[k] = stride[k];
      if (!is_half(it->op[k].dtype)) continue;
      if (k > 0) ax_cpu_half_to_float(it->op[k].dtype, part[k], stride[k], buffer[k], stride[k] ? count : 1);
      part[k] = (char *)buffer[k];
      step[k] = k == 0 || stride[k] ? (int64_t)sizeof(float) : 0;
    }
    h->loop(part, step, count, h->ctx);
    if (is_half(it->op[0].dtype))
      ax_cpu_float_to_half(it->op[0].dtype, buffer[0], data[0] + lo * stride[0], stride[0], count);
  }
}

ax_status ax_cpu_pointwise(const ax_call *call, const ax_loop *loops, int key, const void *ctx)
{
  const ax_iter *it = call->iter;
  ax_dtype d = it->op[key].dtype;

  for (int k = 0; key && k < it->n; k++) /* a number beside half operands is stored in float32 */
    if (is_half(it->op[k].dtype)) d = it->op[k].dtype;
  if (is_half(d)) {
    half_walk h = { loops[AX_F32], loops[d], ctx, it };
    for (int k = 0; k < it->n; k++)
      if (it->op[k].dtype != d) h.direct = NULL;
    if (!h.loop) return ax_cpu_no_dtype(call->op, d);
    ax_cpu_nest(it, half_loop, &h);
    return AX_OK;
  }
  if (!loops[d]) return ax_cpu_no_dtype(call->op, d);
  ax_cpu_nest(it, loops[d], ctx);
  return AX_OK;
}
