/* The gradients of layer_norm, rms_norm and group_norm; kernels/cpu/norm.c has the formulas.
 *
 * Gradients of weight and bias are sums over rows, in two stages: over chunks of rows, whose number
 * follows from the sizes and from the number of the GPU's multiprocessors, then over the chunks.
 * Where registers hold a thread's share of both sums, the first stage is part of the pass that
 * computes the input's gradient: with one warp for each row, so that no warp waits for others, or
 * with one block for each long row. */
#include "norm.cuh"

enum { CHUNK_ROWS = 4, FOLD = 32, WARPS = 4, LONGEST_BLOCK = 1024 };

/* Blocks of the first stage on a multiprocessor.  A grid has as many as fit at a time, since one
 * block more would take as long again as all the others.  Of backward_warps these fit by its launch
 * bounds (168 registers a thread); of backward_chunks, LONGEST_BLOCK threads (64 registers), up to
 * MOST_BLOCKS.  kernels/cuda/budgets.txt has both. */
enum { WARP_BLOCKS = 3, MOST_BLOCKS = 4 };

typedef norm_job job;

/* The number of runs of V columns whose sums a thread keeps in registers. */
template <int V> struct held {
  static const int runs = V > 4 ? 2 : 4;
};

/* ---- gradients over the last dims: dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); dw = sum(g
 * xhat); db = sum(g).  g may be of a half type G beside a float32 x.  add: dx is added to what is
 * there, the gradient that the residual stream brings. */

template <int V, class S>
static __device__ __forceinline__ void put_or_add(bool add, S *to, int64_t i, compute<S> (&v)[V])
{
  if (add) {
    compute<S> old[V];
    ax_cuda_get(to, i, old);
    for (int k = 0; k < V; k++) v[k] += old[k];
  }
  ax_cuda_put(to, i, v);
}

template <class S, class G, int V, bool WIDE>
static __global__ void backward_rows(job j, bool add, S *dx, const G *g, const S *x, const S *w,
                                     const compute<S> *mean_in, const compute<S> *rstd_in)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  const int64_t first = (int64_t)team::rank() * V, step = (int64_t)team::size() * V;
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const T mean = mean_in ? mean_in[r] : (T)0, rstd = rstd_in[r];
    T gv[V], xv[V], s = 0, t = 0;
    for (int64_t i = first; i < j.n; i += step) {
      ax_cuda_get(g + r * j.n, i, gv);
      ax_cuda_get(x + r * j.n, i, xv);
      for (int k = 0; k < V; k++) {
        const T gw = w ? gv[k] * ax_cuda_load(w[i + k]) : gv[k];
        s += gw;
        t += gw * (xv[k] - mean);
      }
    }
    s = j.centred ? team::sum(s, shared) / (T)j.n : (T)0;
    t = team::sum(t, shared) * rstd * rstd / (T)j.n;
    for (int64_t i = first; i < j.n; i += step) {
      ax_cuda_get(g + r * j.n, i, gv);
      ax_cuda_get(x + r * j.n, i, xv);
      for (int k = 0; k < V; k++)
        gv[k] = ((w ? gv[k] * ax_cuda_load(w[i + k]) : gv[k]) - s - (xv[k] - mean) * t) * rstd;
      put_or_add(add, dx + r * j.n, i, gv);
    }
  }
}

/* Likewise with the parameters' sums: a block has a chunk of rows, each of its warps takes every
 * WARPS-th row, and a lane has the same columns of each, at most MOST elements.  dx, g, x and w are
 * aligned.  All of a row is loaded before the first of it is used, and computed before the first is
 * stored, since no load passes a store.  What dx is added to comes in two halves where registers do
 * not hold it too. */
template <class S, class G, int V, int MOST>
static __global__ void __launch_bounds__(32 * WARPS, WARP_BLOCKS)
    backward_warps(job j, bool add, S *dx, const G *g, const S *x, const S *w, const compute<S> *mean_in,
                   const compute<S> *rstd_in, compute<S> *sums)
{
  typedef compute<S> T;
  constexpr int RUNS = MOST / V;
  constexpr bool EARLY = sizeof(S) == 2 || MOST <= 24;
  constexpr int OLDS = EARLY ? RUNS : RUNS / 2;
  __shared__ T part[WARPS - 1][32 * MOST];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = (int)j.n;
  const int64_t lo = j.rows * blockIdx.x / gridDim.x, hi = j.rows * (blockIdx.x + 1) / gridDim.x;
  T dw[RUNS][V], db[RUNS][V];
  auto plus = [](T a, T b) { return a + b; };

#pragma unroll
  for (int q = 0; q < RUNS; q++)
    for (int k = 0; k < V; k++) dw[q][k] = db[q][k] = 0;
  for (int64_t r = lo + warp; r < hi; r += WARPS) {
    const T mean = mean_in ? mean_in[r] : (T)0, rstd = rstd_in[r];
    ax_cuda_run<G, V> gs[RUNS];
    ax_cuda_run<S, V> xs[RUNS], olds[OLDS];
    T s = 0, t = 0;
#pragma unroll
    for (int q = 0; q < RUNS; q++) {
      const int i = (q * 32 + lane) * V;
      if (i >= n) continue;
      gs[q].load(g + r * j.n + i);
      xs[q].load(x + r * j.n + i);
      if (EARLY && add) olds[q].load(dx + r * j.n + i);
    }
#pragma unroll
    for (int q = 0; q < RUNS; q++) {
      const int i = (q * 32 + lane) * V;
      T gv[V], xv[V], wv[V];
      if (i >= n) continue;
      gs[q].open(gv);
      xs[q].open(xv);
      if (w) ax_cuda_get(w, i, wv);
      for (int k = 0; k < V; k++) {
        const T gw = w ? gv[k] * wv[k] : gv[k];
        s += gw;
        t += gw * (xv[k] - mean);
      }
    }
    s = j.centred ? ax_cuda_warp_reduce(s, plus) / (T)j.n : (T)0;
    t = ax_cuda_warp_reduce(t, plus) * rstd * rstd / (T)j.n;
#pragma unroll
    for (int q = 0; q < RUNS; q++) {
      const int i = (q * 32 + lane) * V;
      T gv[V], xv[V], wv[V], old[V];
      if (i >= n) continue;
      gs[q].open(gv);
      xs[q].open(xv);
      if (w) ax_cuda_get(w, i, wv);
      if (EARLY && add) olds[q].open(old);
      for (int k = 0; k < V; k++) {
        const T far = xv[k] - mean;
        dw[q][k] += gv[k] * (far * rstd);
        db[q][k] += gv[k];
        xv[k] = ((w ? gv[k] * wv[k] : gv[k]) - s - far * t) * rstd;
        if (EARLY && add) xv[k] += old[k];
      }
      xs[q].close(xv);
    }
#pragma unroll
    for (int half = 0; half < RUNS; half += OLDS) {
      S *const to = dx + r * j.n + (half * 32 + lane) * V;
      const int left = n - (half * 32 + lane) * V;
      if (!EARLY && add)
#pragma unroll
        for (int q = 0; q < OLDS; q++)
          if (q * 32 * V < left) olds[q].load(to + q * 32 * V);
#pragma unroll
      for (int q = 0; q < OLDS; q++) {
        T xv[V], old[V];
        if (q * 32 * V >= left) continue;
        if (!EARLY && add) {
          xs[half + q].open(xv);
          olds[q].open(old);
          for (int k = 0; k < V; k++) xv[k] += old[k];
          xs[half + q].close(xv);
        }
        xs[half + q].store(to + q * 32 * V);
      }
    }
  }
  /* the warps' sums in order: first dw, then db */
#pragma unroll
  for (int which = 0; which < 2; which++) {
    T(&own)[RUNS][V] = which ? db : dw;
    __syncthreads();
    if (warp)
      for (int q = 0; q < RUNS; q++)
        for (int k = 0; k < V; k++) part[warp - 1][(q * V + k) * 32 + lane] = own[q][k];
    __syncthreads();
    if (warp) continue;
#pragma unroll
    for (int q = 0; q < RUNS; q++) {
      const int i = (q * 32 + lane) * V;
      for (int k = 0; k < V; k++)
        for (int o = 0; o < WARPS - 1; o++) own[q][k] += part[o][(q * V + k) * 32 + lane];
      if (i < n)
        for (int k = 0; k < V; k++) sums[(2 * (int64_t)blockIdx.x + which) * n + i + k] = own[q][k];
    }
  }
}

/* Likewise for longer rows: a block has a chunk of rows, and a thread has the same columns of
 * each. */
template <class S, class G, int V>
static __global__ void __launch_bounds__(LONGEST_BLOCK)
    backward_chunks(job j, bool add, S *dx, const G *g, const S *x, const S *w, const compute<S> *mean_in,
                    const compute<S> *rstd_in, compute<S> *sums)
{
  typedef compute<S> T;
  constexpr int PACKS = held<V>::runs;
  __shared__ T shared[32];
  T dw[PACKS][V], db[PACKS][V];
  const int64_t first = (int64_t)threadIdx.x * V, step = (int64_t)blockDim.x * V,
                lo = j.rows * blockIdx.x / gridDim.x, hi = j.rows * (blockIdx.x + 1) / gridDim.x;

  for (int q = 0; q < PACKS; q++)
    for (int k = 0; k < V; k++) dw[q][k] = db[q][k] = 0;
  for (int64_t r = lo; r < hi; r++) {
    const T mean = mean_in ? mean_in[r] : (T)0, rstd = rstd_in[r];
    T gv[V], xv[V], s = 0, t = 0;
#pragma unroll
    for (int q = 0; q < PACKS; q++) {
      const int64_t i = first + q * step;
      if (i >= j.n) break;
      ax_cuda_get(g + r * j.n, i, gv);
      ax_cuda_get(x + r * j.n, i, xv);
      for (int k = 0; k < V; k++) {
        const T gw = w ? gv[k] * ax_cuda_load(w[i + k]) : gv[k];
        s += gw;
        t += gw * (xv[k] - mean);
      }
    }
    s = ax_cuda_team<true>::sum(s, shared) / (T)j.n;
    if (!j.centred) s = 0;
    t = ax_cuda_team<true>::sum(t, shared) * rstd * rstd / (T)j.n;
#pragma unroll
    for (int q = 0; q < PACKS; q++) {
      const int64_t i = first + q * step;
      if (i >= j.n) break;
      ax_cuda_get(g + r * j.n, i, gv);
      ax_cuda_get(x + r * j.n, i, xv);
      for (int k = 0; k < V; k++) {
        const T d = xv[k] - mean;
        dw[q][k] += gv[k] * (d * rstd);
        db[q][k] += gv[k];
        gv[k] = ((w ? gv[k] * ax_cuda_load(w[i + k]) : gv[k]) - s - d * t) * rstd;
      }
      put_or_add(add, dx + r * j.n, i, gv);
    }
  }
#pragma unroll
  for (int q = 0; q < PACKS; q++)
    for (int k = 0; k < V; k++) {
      const int64_t i = first + q * step + k;
      if (i >= j.n) break;
      sums[2 * blockIdx.x * j.n + i] = dw[q][k];
      sums[(2 * blockIdx.x + 1) * j.n + i] = db[q][k];
    }
}

/* The sums alone, for rows that do not fit a block's registers. */
template <class S, class G>
static __global__ void column_chunks(job j, const G *g, const S *x, const compute<S> *mean,
                                     const compute<S> *rstd, compute<S> *sums, int64_t chunks)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < chunks * j.n; p += AX_STEP) {
    const int64_t c = p / j.n, i = p % j.n, hi = j.rows * (c + 1) / chunks;
    T dw = 0, db = 0;
    for (int64_t r = j.rows * c / chunks; r < hi; r++) {
      const T gv = ax_cuda_load(g[r * j.n + i]);
      dw += gv * ((ax_cuda_load(x[r * j.n + i]) - (mean ? mean[r] : (T)0)) * rstd[r]);
      db += gv;
    }
    sums[2 * c * j.n + i] = dw;
    sums[(2 * c + 1) * j.n + i] = db;
  }
}

/* Where the sums of a parameter go; out NULL: nowhere. */
struct folded {
  void *out;
  int dtype;
  bool add;
};
static folded folded_of(const ax_tensor *t, bool add)
{
  return t ? folded{ ax_data(t), (int)t->dtype, add } : folded{ NULL, 0, false };
}

/* Second stage: FOLD threads for each column, each with every FOLD-th chunk.  A thread loads AHEAD
 * of them before it adds the first, since few threads have few loads in flight.  Element i of chunk
 * c and of sum `which` is at (2 c + which) n + i or, with pairs, at 2 (c n + i) + which. */
enum { AHEAD = 16 };
template <class T>
static __global__ void __launch_bounds__(32 * FOLD)
    fold_chunks(const T *sums, int64_t chunks, int64_t n, int first, bool pairs, folded one, folded two)
{
  const int which = (int)blockIdx.y ? 1 - first : first;
  const folded to = blockIdx.y ? two : one;
  __shared__ T part[FOLD][33];
  for (int64_t i0 = (int64_t)blockIdx.x * 32; i0 < n; i0 += (int64_t)gridDim.x * 32) {
    const int64_t i = i0 + threadIdx.x;
    T sum = 0;
    for (int64_t c = threadIdx.y; c < chunks; c += AHEAD * FOLD) {
      T v[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        const int64_t at = c + u * FOLD;
        const bool there = i < n && at < chunks;
        v[u] = !there ? (T)0 : pairs ? sums[2 * (at * n + i) + which] : sums[(2 * at + which) * n + i];
      }
#pragma unroll
      for (int u = 0; u < AHEAD; u++) sum += v[u];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && i < n) {
      for (int k = 1; k < FOLD; k++) sum += part[k][threadIdx.x];
      if (to.add) sum += (T)ax_cuda_number_at(to.dtype, to.out, i);
      ax_cuda_number_put(to.dtype, to.out, i, sum);
    }
    __syncthreads();
  }
}

/* The sums that are wanted, in one launch: of `weight`, whose number is `first`, and of `bias`, the
 * other one. */
template <class T>
static ax_status fold(const char *name, ax_device d, const T *sums, int64_t chunks, int64_t n, int first,
                      bool pairs, folded weight, folded bias)
{
  if (!weight.out && !bias.out) return AX_OK;
  if (!weight.out) {
    weight = bias;
    bias.out = NULL;
    first = 1 - first;
  }
  return ax_cuda_launch(name, d, dim3(ax_cuda_blocks(n, 32, d.index), bias.out ? 2 : 1), dim3(32, FOLD),
                        fold_chunks<T>, sums, chunks, n, first, pairs, weight, bias);
}

/* ---- gradients over groups: first the sums of each channel of each row, then dx from them */

/* sums of channel plane c of all rows: [2c] of g, [2c + 1] of g xhat */
template <class S, int V, bool WIDE>
static __global__ void plane_sums(job j, const S *g, const S *x, const compute<S> *mean,
                                  const compute<S> *rstd, compute<S> *sums)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  for (int64_t c = team::first_row(); c < j.rows * j.channels; c += team::row_step()) {
    const int64_t r = c / j.channels;
    const T m = mean[r];
    T gv[V], xv[V], s = 0, t = 0;
    for (int64_t i = (int64_t)team::rank() * V; i < j.plane; i += (int64_t)team::size() * V) {
      ax_cuda_get(g + c * j.plane, i, gv);
      ax_cuda_get(x + c * j.plane, i, xv);
      for (int k = 0; k < V; k++) {
        s += gv[k];
        t += gv[k] * (xv[k] - m);
      }
    }
    s = team::sum(s, shared);
    t = team::sum(t, shared) * rstd[r];
    if (team::rank()) continue;
    sums[2 * c] = s;
    sums[2 * c + 1] = t;
  }
}

template <class S, int V, bool WIDE>
static __global__ void group_backward(job j, S *dx, const S *g, const S *x, const S *w,
                                      const compute<S> *mean, const compute<S> *rstd, const compute<S> *sums)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const T m = mean[r], scale = rstd[r];
    const S *own = w ? w + r % j.groups * j.channels : NULL;
    T s = 0, t = 0;
    for (int64_t c = team::rank(); c < j.channels; c += team::size()) {
      const T wc = own ? ax_cuda_load(own[c]) : (T)1;
      s += sums[2 * (r * j.channels + c)] * wc;
      t += sums[2 * (r * j.channels + c) + 1] * wc;
    }
    s = team::sum(s, shared) / (T)j.n;
    t = team::sum(t, shared) * scale / (T)j.n;
    for (int64_t i = (int64_t)team::rank() * V; i < j.n; i += (int64_t)team::size() * V) {
      T gv[V], xv[V];
      ax_cuda_get(g + r * j.n, i, gv);
      ax_cuda_get(x + r * j.n, i, xv);
      for (int k = 0; k < V; k++) {
        const T gw = w ? gv[k] * ax_cuda_load(w[norm_parameter_at(j, r, i + k)]) : gv[k];
        gv[k] = (gw - s - (xv[k] - m) * t) * scale;
      }
      ax_cuda_put(dx + r * j.n, i, gv);
    }
  }
}

/* The threads of a block of backward_chunks for a row of so many runs. */
static int64_t chunk_threads(int64_t packs)
{
  int64_t threads = (packs + 31) / 32 * 32;
  while (threads > LONGEST_BLOCK) threads = (threads / 2 + 31) / 32 * 32;
  return threads;
}

/* The chunks, a block each.  Rows that are not aligned have those of rows that are: the bits of the
 * second stage follow from the sizes and the GPU. */
template <class S> static int64_t chunks_of(const job &j, ax_device d)
{
  constexpr int V = 16 / (int)sizeof(S);
  const int64_t fit = V >= 4 && j.n <= 32 * NORM_HELD ? WARP_BLOCKS
                                                      : LONGEST_BLOCK / chunk_threads((j.n + V - 1) / V),
                wanted = j.rows / CHUNK_ROWS,
                most = ax_cuda_multiprocessors(d.index) * (fit < MOST_BLOCKS ? fit : MOST_BLOCKS);
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

/* The tensors of a gradient's call: g, x, mean, rstd, weight; dx, and the gradients of weight and
 * bias or NULL.  add: to what is there. */
struct gradients {
  const char *name;
  const ax_tensor *g, *x, *mean, *rstd, *w, *dx, *dw, *db;
  bool add_input, add_weight, add_bias;
};

template <class S> static ax_status backward_groups(job j, const gradients &c, compute<S> *sums)
{
  typedef compute<S> T;
  const ax_device d = c.x->device;
  S *to = ax_cuda_data<S>(c.dx);
  const S *g = ax_cuda_data<S>(c.g), *x = ax_cuda_data<S>(c.x), *w = ax_cuda_data<S>(c.w);
  const T *mean = ax_cuda_data<T>(c.mean), *rstd = ax_cuda_data<T>(c.rstd);
  const uintptr_t address = (uintptr_t)to | (uintptr_t)g | (uintptr_t)x;
  ax_status st = ax_cuda_with_rows<S>(j.plane, address, [&](auto v, auto wide) {
    return ax_cuda_launch_rows(c.name, d, j.rows * j.channels, j.plane,
                               plane_sums<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j, g, x, mean, rstd, sums);
  });
  if (st == AX_OK)
    st = ax_cuda_with_rows<S>(j.n, address, [&](auto v, auto wide) {
      return ax_cuda_launch_rows(c.name, d, j.rows, j.n, group_backward<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>,
                                 j, to, g, x, w, mean, rstd, (const T *)sums);
    });
  const int64_t channels = j.groups * j.channels, batch = c.x->shape[0];
  return st == AX_OK ? fold<T>(c.name, d, sums, batch, channels, 1, true, folded_of(c.dw, c.add_weight),
                               folded_of(c.db, c.add_bias))
                     : st;
}

/* sums: NULL where no parameter's gradient is wanted. */
template <class S, class G> static ax_status backward_last_dims(job j, const gradients &c, compute<S> *sums)
{
  typedef compute<S> T;
  constexpr int V = 16 / (int)sizeof(S);
  const ax_device d = c.x->device;
  const int64_t chunks = chunks_of<S>(j, d);
  S *to = ax_cuda_data<S>(c.dx);
  const G *g = ax_cuda_data<G>(c.g);
  const S *x = ax_cuda_data<S>(c.x), *w = ax_cuda_data<S>(c.w);
  const T *mean = ax_cuda_data<T>(c.mean), *rstd = ax_cuda_data<T>(c.rstd);
  const uintptr_t address = (uintptr_t)to | (uintptr_t)g | (uintptr_t)x;
  const bool aligned = j.n % V == 0 && address % 16 == 0, add = c.add_input;
  const int64_t packs = aligned ? j.n / V : j.n;
  bool warps = false;
  ax_status st = AX_OK;

  if constexpr (V >= 4) {
    warps = sums && aligned && j.n <= 32 * NORM_HELD && (uintptr_t)w % 16 == 0;
    if (warps)
      st = ax_cuda_launch(c.name, d, (unsigned)chunks, 32 * WARPS,
                          j.n <= 32 * 24 ? backward_warps<S, G, V, 24> : backward_warps<S, G, V, 32>, j, add,
                          to, g, x, w, mean, rstd, sums);
  }
  if (warps) {
  } else if (sums && packs <= LONGEST_BLOCK * (aligned ? held<V>::runs : held<1>::runs)) {
    st = ax_cuda_launch(c.name, d, (unsigned)chunks, (unsigned)chunk_threads(packs),
                        aligned ? backward_chunks<S, G, V> : backward_chunks<S, G, 1>, j, add, to, g, x, w,
                        mean, rstd, sums);
  } else {
    st = ax_cuda_with_rows<S>(j.n, address, [&](auto v, auto wide) {
      return ax_cuda_launch_rows(c.name, d, j.rows, j.n,
                                 backward_rows<S, G, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j, add, to, g, x, w,
                                 mean, rstd);
    });
    if (st == AX_OK && sums)
      st = ax_cuda_launch(c.name, d, ax_cuda_blocks(chunks * j.n, 256, d.index), 256, column_chunks<S, G>, j,
                          g, x, mean, rstd, sums, chunks);
  }
  return st == AX_OK ? fold<T>(c.name, d, sums, chunks, j.n, 0, false, folded_of(c.dw, c.add_weight),
                               folded_of(c.db, c.add_bias))
                     : st;
}

static ax_status no_elements(const gradients &c)
{
  ax_status st = AX_OK;
  for (const ax_tensor *t : { c.dw, c.db })
    if (st == AX_OK && t && !(t == c.dw ? c.add_weight : c.add_bias))
      st = ax_cuda_clear(c.name, t->device, ax_data(t), (size_t)t->numel * ax_itemsize(t));
  return st;
}

static ax_status backward(const ax_call *call, int64_t groups, bool centred, bool add_weight, bool add_bias,
                          bool add_input)
{
  const gradients c = { ax_op_shown(call->op), call->in[0], call->in[1],  centred ? call->in[2] : NULL,
                        call->in[3],           call->in[4], call->out[0], call->out[1],
                        call->out[2],          add_input,   add_weight,   add_bias };
  const ax_device d = c.x->device;
  job j = norm_plan(c.x, call->a->n_list, groups);

  j.centred = centred;
  if (c.x->numel == 0) return no_elements(c);
  return ax_cuda_with_float(call->op, (ax_dtype)c.x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = (size_t)(groups ? j.rows * j.channels : chunks_of<S>(j, d) * j.n) * 2 * sizeof(T);
    T *sums = NULL;
    ax_status st = AX_OK;

    if ((groups || c.dw || c.db) && (st = ax_cuda_take(d, bytes, (void **)&sums)) != AX_OK) return st;
    if (groups) st = backward_groups<S>(j, c, sums);
    else if (c.g->dtype == c.x->dtype) st = backward_last_dims<S, S>(j, c, sums);
    else if constexpr (sizeof(S) == 4)
      st = c.g->dtype == AX_BF16 ? backward_last_dims<S, ax_cuda_bf16>(j, c, sums)
                                 : backward_last_dims<S, ax_cuda_f16>(j, c, sums);
    else st = ax_cuda_no_dtype(call->op, (ax_dtype)c.g->dtype);
    if (sums) ax_cuda_give(d, sums, bytes);
    return st;
  });
}

AX_CUDA_KERNEL(_layer_norm_backward)
{
  return backward(call, 0, true, call->a->layer_norm_backward.add_weight,
                  call->a->layer_norm_backward.add_bias, call->a->layer_norm_backward.add_input);
}
AX_CUDA_KERNEL(_rms_norm_backward)
{
  return backward(call, 0, false, call->a->rms_norm_backward.add_weight, false,
                  call->a->rms_norm_backward.add_input);
}
AX_CUDA_KERNEL(_group_norm_backward)
{
  return backward(call, call->a->group_norm_backward.num_groups, true,
                  call->a->group_norm_backward.add_weight, call->a->group_norm_backward.add_bias, false);
}
