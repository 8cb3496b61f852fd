/* torch.optim.Adafactor (Shazeer and Stern 2018), parameter by parameter: the formulas of
 * kernels/cpu/optim_adafactor.c.  Every number that depends on sums stays on the device, so a step
 * waits for nothing.  Each parameter is read several times; memory bounds large ones, launches
 * small ones. */
#include "segments.cuh"

#include "optim_numbers.h"

#include <float.h>

enum { CHUNK = 8192, COLUMN_CHUNKS = 64 };

static __device__ __forceinline__ float root_of(float x) { return sqrtf(x); }
static __device__ __forceinline__ double root_of(double x) { return sqrt(x); }
static __device__ __forceinline__ float mean_of(float old, float now, float weight)
{
  return ax_adafactor_mean_f32(old, now, weight);
}
static __device__ __forceinline__ double mean_of(double old, double now, double weight)
{
  return ax_adafactor_mean_f64(old, now, weight);
}
static __device__ __forceinline__ float update_of(float g, float by, float limit)
{
  return ax_adafactor_update_f32(g, by, limit);
}
static __device__ __forceinline__ double update_of(double g, double by, double limit)
{
  return ax_adafactor_update_f64(g, by, limit);
}

typedef ax_adafactor_numbers numbers;
template <class T>
static __host__ __device__ __forceinline__ numbers numbers_of(int64_t step, const ax_hyper &h)
{
  return ax_adafactor_numbers_of(step, &h, sizeof(T) == 4 ? FLT_EPSILON : DBL_EPSILON);
}

template <class T> struct job {
  T *p, *row_var, *col_var, *variance;
  const T *g;
  uint16_t *work;
  bool half; /* `work` is float16, else bfloat16 */
  int64_t n, matrices, rows, cols;
  bool factored;
  numbers here;         /* from the host */
  const numbers *there; /* in device memory, read instead; NULL: the host's */
  const float *skip;    /* not NULL and not 0: the step changes nothing */
  T *row_factor, *col_factor;
  /* sums: [2c] of p^2 and [2c + 1] of the update's squares, for chunk c; step: the factor of the
   * update */
  double *columns, *sums, *step;
  int64_t column_chunks, chunks;

  __device__ __forceinline__ bool skipped() const { return skip && *skip != 0; }
  __device__ __forceinline__ numbers with() const { return ax_cuda_numbers(there, here); }
  __device__ __forceinline__ T update_at(int64_t i, T limit) const
  {
    T by;
    if (factored) {
      const int64_t row = i / cols;
      by = row_factor[row] * col_factor[row / rows * cols + i % cols];
    } else by = (T)1 / root_of(variance[i]);
    return update_of(g[i], by, limit);
  }
};

/* The rows' means of squares. */
template <class T, int V, bool WIDE> static __global__ void rows_kernel(job<T> j)
{
  typedef ax_cuda_team<WIDE> team;
  __shared__ double shared[32];
  if (j.skipped()) return;
  const T weight = (T)j.with().weight;
  for (int64_t r = team::first_row(); r < j.matrices * j.rows; r += team::row_step()) {
    double sum = 0;
    for (int64_t i = (int64_t)team::rank() * V; i < j.cols; i += (int64_t)team::size() * V) {
      T v[V];
      ax_cuda_get(j.g + r * j.cols, i, v);
      for (int k = 0; k < V; k++) sum += (double)v[k] * (double)v[k];
    }
    sum = team::sum(sum, shared);
    if (team::rank() == 0) j.row_var[r] = mean_of(j.row_var[r], (T)(sum / (double)j.cols), weight);
  }
}

/* The squares of the columns in chunks of rows, and the columns' means from the chunks. */
template <class T> static __global__ void columns_kernel(job<T> j)
{
  const int64_t all = j.matrices * j.column_chunks * j.cols;
  for (int64_t q = AX_FIRST; q < all; q += AX_STEP) {
    const int64_t i = q % j.cols, c = q / j.cols % j.column_chunks, m = q / j.cols / j.column_chunks,
                  hi = j.rows * (c + 1) / j.column_chunks;
    double sum = 0;
    for (int64_t r = j.rows * c / j.column_chunks; r < hi; r++) {
      const double v = (double)j.g[(m * j.rows + r) * j.cols + i];
      sum += v * v;
    }
    j.columns[q] = sum;
  }
}
template <class T> static __global__ void column_means(job<T> j)
{
  if (j.skipped()) return;
  const T weight = (T)j.with().weight;
  for (int64_t q = AX_FIRST; q < j.matrices * j.cols; q += AX_STEP) {
    const int64_t m = q / j.cols, i = q % j.cols;
    double sum = 0;
    for (int64_t c = 0; c < j.column_chunks; c++) sum += j.columns[(m * j.column_chunks + c) * j.cols + i];
    j.col_var[q] = mean_of(j.col_var[q], (T)(sum / (double)j.rows), weight);
    j.col_factor[q] = (T)1 / root_of(j.col_var[q]);
  }
}

/* One block for each matrix: 1 / sqrt of its rows' means, relative to the mean of these. */
template <class T> static __global__ void row_factors(job<T> j)
{
  __shared__ double shared[32];
  const T least = (T)j.with().mean_eps;
  for (int64_t m = blockIdx.x; m < j.matrices; m += gridDim.x) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < j.rows; r += blockDim.x) sum += (double)j.row_var[m * j.rows + r];
    T mean = (T)(ax_cuda_block_reduce(
                     sum, [](double a, double b) { return a + b; }, shared) /
                 (double)j.rows);
    if (mean < least) mean = least;
    for (int64_t r = threadIdx.x; r < j.rows; r += blockDim.x)
      j.row_factor[m * j.rows + r] = (T)1 / root_of(j.row_var[m * j.rows + r] / mean);
  }
}

template <class T> static __global__ void variances(job<T> j)
{
  if (j.skipped()) return;
  const T weight = (T)j.with().weight;
  for (int64_t i = AX_FIRST; i < j.n; i += AX_STEP)
    j.variance[i] = mean_of(j.variance[i], j.g[i] * j.g[i], weight);
}

template <class T> static __global__ void sizes(job<T> j)
{
  __shared__ double shared[32];
  auto add = [](double a, double b) { return a + b; };
  const T limit = (T)j.with().limit;
  for (int64_t c = blockIdx.x; c < j.chunks; c += gridDim.x) {
    const int64_t hi = (c + 1) * CHUNK < j.n ? (c + 1) * CHUNK : j.n;
    double squares = 0, moved = 0;
    for (int64_t i = c * CHUNK + threadIdx.x; i < hi; i += blockDim.x) {
      const double p = (double)j.p[i], u = (double)j.update_at(i, limit);
      squares += p * p;
      moved += u * u;
    }
    squares = ax_cuda_block_reduce(squares, add, shared);
    moved = ax_cuda_block_reduce(moved, add, shared);
    if (threadIdx.x) continue;
    j.sums[2 * c] = squares;
    j.sums[2 * c + 1] = moved;
  }
}

template <class T> static __global__ void step_size(job<T> j)
{
  __shared__ double shared[32];
  auto add = [](double a, double b) { return a + b; };
  double squares = 0, moved = 0;
  for (int64_t c = threadIdx.x; c < j.chunks; c += blockDim.x) {
    squares += j.sums[2 * c];
    moved += j.sums[2 * c + 1];
  }
  squares = ax_cuda_block_reduce(squares, add, shared);
  moved = ax_cuda_block_reduce(moved, add, shared);
  if (threadIdx.x) return;
  const numbers x = j.with();
  *j.step = ax_adafactor_step(&x, squares, moved, j.n);
}

template <class T> static __global__ void update(job<T> j)
{
  if (j.skipped()) return;
  const T step = (T)*j.step, keep = (T)j.with().keep, limit = (T)j.with().limit;
  for (int64_t i = AX_FIRST; i < j.n; i += AX_STEP) {
    const T p = keep * j.p[i] - step * j.update_at(i, limit);
    j.p[i] = p;
    if (j.work) j.work[i] = j.half ? ax_float_to_half((float)p) : ax_float_to_bf16((float)p);
  }
}

/* One thread for each parameter; afterwards the kernel counts a skipped step. */
template <class T>
static __global__ void numbers_kernel(const int64_t *steps, int n, ax_hyper here,
                                      ax_optim_device_args device_args, numbers *out)
{
  const ax_hyper h = ax_cuda_numbers(device_args.hyper, here);
  const int64_t more =
      (device_args.ran ? *device_args.ran : 0) - (device_args.skipped ? *device_args.skipped : 0);
  for (int k = threadIdx.x; k < n; k += blockDim.x) out[k] = numbers_of<T>(steps[k] + more, h);
  __syncthreads(); /* all threads have read the count of skipped steps */
  if (threadIdx.x == 0 && device_args.skip && device_args.skipped && *device_args.skip != 0)
    ++*device_args.skipped;
}

/* there: this parameter's coefficients in device memory; NULL: the host computes them */
template <class T>
static ax_status one(ax_device d, const ax_segment *s, const ax_hyper *h, const numbers *there,
                     const float *skip)
{
  static const char name[] = "adafactor";
  job<T> j = {};
  void *memory;
  ax_status st;

  j.p = (T *)s->param, j.g = (const T *)s->grad, j.work = (uint16_t *)s->work,
  j.half = s->work_dtype == AX_F16;
  j.row_var = (T *)s->state[0], j.col_var = (T *)s->state[1], j.variance = (T *)s->state[2];
  j.n = s->n;
  j.factored = s->rows > 0;
  j.rows = j.factored ? s->rows : 1;
  j.cols = j.factored ? s->cols : s->n;
  j.matrices = s->n / (j.rows * j.cols);
  j.here = numbers_of<T>(s->step, *h);
  j.there = there;
  j.skip = skip;
  j.chunks = (j.n + CHUNK - 1) / CHUNK;
  j.column_chunks = j.rows < 16 * COLUMN_CHUNKS ? (j.rows + 15) / 16 : COLUMN_CHUNKS;

  const size_t doubles =
      (size_t)(2 * j.chunks + 1 + (j.factored ? j.matrices * j.column_chunks * j.cols : 0));
  const size_t bytes =
      doubles * sizeof(double) + (j.factored ? (size_t)(j.matrices * (j.rows + j.cols)) * sizeof(T) : 0);
  if ((st = ax_cuda_take(d, bytes, &memory)) != AX_OK) return st;
  j.step = (double *)memory;
  j.sums = j.step + 1;
  j.columns = j.sums + 2 * j.chunks;
  j.row_factor = (T *)(j.step + doubles);
  j.col_factor = j.row_factor + j.matrices * j.rows;
  const unsigned all = ax_cuda_blocks(j.n, 256, d.index);
  if (j.factored) {
    st = ax_cuda_with_rows<T>(j.cols, (uintptr_t)j.g, [&](auto v, auto wide) {
      return ax_cuda_launch_rows(name, d, j.matrices * j.rows, j.cols,
                                 rows_kernel<T, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j);
    });
    if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(j.matrices * j.column_chunks * j.cols, 256, d.index), 256,
                          columns_kernel<T>, j);
    if (st == AX_OK)
      st =
          ax_cuda_launch(name, d, ax_cuda_blocks(j.matrices * j.cols, 256, d.index), 256, column_means<T>, j);
    if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(j.matrices, 1, d.index), j.rows < 256 ? 32 : 256,
                          row_factors<T>, j);
  } else st = ax_cuda_launch(name, d, all, 256, variances<T>, j);
  if (st == AX_OK) st = ax_cuda_launch(name, d, ax_cuda_blocks(j.chunks, 1, d.index), 256, sizes<T>, j);
  if (st == AX_OK) st = ax_cuda_launch(name, d, 1, 256, step_size<T>, j);
  if (st == AX_OK) st = ax_cuda_launch(name, d, all, 256, update<T>, j);
  ax_cuda_give(d, memory, bytes);
  return st;
}

template <class T>
static ax_status all(ax_device d, const ax_segment *segs, int n, const ax_hyper *h,
                     const ax_optim_device_args *device_args)
{
  const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof(int64_t),
               room = (size_t)(n > 0 ? n : 1) * sizeof(numbers);
  const void *steps = NULL;
  void *there = NULL;
  ax_status st = AX_OK;

  if (device_args) {
    int64_t *here = (int64_t *)malloc(bytes);
    if (!here)
      return ax_fail(AX_ENOMEM, "adafactor: out of memory: no room for the counts of %d parameters", n);
    for (int k = 0; k < n; k++) here[k] = segs[k].step;
    st = ax_cuda_contents(d, here, bytes, &steps);
    free(here);
    if (st == AX_OK) st = ax_cuda_take(d, room, &there);
    if (st == AX_OK)
      st = ax_cuda_launch("adafactor", d, 1, n < 32 ? 32 : 256, numbers_kernel<T>, (const int64_t *)steps, n,
                          *h, *device_args, (numbers *)there);
  }
  for (int k = 0; k < n && st == AX_OK; k++)
    if (segs[k].n)
      st = one<T>(d, &segs[k], h, there ? (const numbers *)there + k : NULL,
                  device_args ? device_args->skip : NULL);
  if (there) ax_cuda_give(d, there, room);
  return st;
}

ax_status ax_cuda_adafactor(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h,
                            const ax_optim_device_args *device_args)
{
  return dtype == AX_F32 ? all<float>(d, segs, n, h, device_args) : all<double>(d, segs, n, h, device_args);
}
