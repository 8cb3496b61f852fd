/* ctc_loss; kernels/cpu/ctc.c has the formulas.  A block has a sequence: its threads share the
 * places (targets with blanks before, between and behind them) of one time, and then go on to the
 * next one together.  Sums run over logarithms in float64.  The length of the sequence bounds the
 * kernels: a batch fills as many multiprocessors as it has sequences. */
#include "common.cuh"
#include "ctc.h"

enum { THREADS = 128 };

struct job {
  int64_t t, n, classes, longest, places; /* places: the most that a sequence has */
  int64_t blank;
  bool zero_infinity;
  const int64_t *targets, *in_lengths, *lengths;
  double *reached, *scratch; /* (n, t, places); (n, 3 places) */
};

/* The loss of a sequence from what its last time was reached with. */
static __device__ __forceinline__ double loss_of(const job &j, int64_t b, int64_t times, int64_t places)
{
  const double *last = j.reached + (b * j.t + times - 1) * j.places;
  return -ax_ctc_add_up(last[places - 1], places > 1 ? last[places - 2] : -INFINITY, -INFINITY);
}

template <class S> static __global__ void losses(job j, const S *x, S *loss_out)
{
  for (int64_t b = blockIdx.x; b < j.n; b += gridDim.x) {
    const int64_t times = j.in_lengths[b], places = 2 * j.lengths[b] + 1;
    const int64_t *target = j.targets + b * j.longest;
    double *const all = j.reached + b * j.t * j.places;

    for (int64_t i = threadIdx.x; i < j.t * j.places; i += blockDim.x)
      if (i >= times * j.places || i % j.places >= places) all[i] = -INFINITY;
    for (int64_t t = 0; t < times; t++) {
      const S *const row = x + (t * j.n + b) * j.classes;
      double *const at = all + t * j.places;
      const double *const before = at - j.places; /* of time 0: not read */
      for (int64_t s = threadIdx.x; s < places; s += blockDim.x) {
        const double v = (double)row[ax_ctc_class_at(j.blank, target, s)];
        if (t == 0) at[s] = s < 2 ? v : -INFINITY;
        else
          at[s] = ax_ctc_add_up(before[s], s ? before[s - 1] : -INFINITY,
                                ax_ctc_leaps(j.blank, target, s) ? before[s - 2] : -INFINITY) +
                  v;
      }
      __syncthreads(); /* also between global writes and reads of this block */
    }
    if (threadIdx.x == 0) {
      const double loss = times ? loss_of(j, b, times, places) : places == 1 ? 0.0 : (double)INFINITY;
      loss_out[b] = (S)(j.zero_infinity && loss == INFINITY ? 0.0 : loss);
    }
  }
}

/* The sum over all ways that are at place s at this time, once for each class: at the first of the
 * places with the class.  Blanks are shared by all threads. */
static __device__ __forceinline__ double ways_of(const job &j, const int64_t *target, const double *ways,
                                                 int64_t s, int64_t places)
{
  const int64_t c = target[s / 2];
  double sum = ways[s];
  if (c == j.blank) return NAN; /* counted with the blanks */
  for (int64_t k = 1; k < s; k += 2)
    if (target[k / 2] == c) return NAN;
  for (int64_t k = s + 2; k < places; k += 2)
    if (target[k / 2] == c) sum = ax_ctc_add_up(sum, ways[k], -INFINITY);
  return sum;
}

/* d loss / d log_probs = e^log_probs - the share of all ways that read the class at that time: what
 * log_softmax's gradient makes of it is the gradient of its input. */
template <class S> static __global__ void gradients(job j, S *dx, const S *x, const S *g)
{
  __shared__ double shared[32];
  for (int64_t b = blockIdx.x; b < j.n; b += gridDim.x) {
    const int64_t times = j.in_lengths[b], places = 2 * j.lengths[b] + 1;
    const int64_t *target = j.targets + b * j.longest;
    double *after = j.scratch + b * 3 * j.places, *now = after + j.places, *const ways = now + j.places;
    const double loss = times ? loss_of(j, b, times, places) : 0.0, by = (double)g[b];
    const bool none = j.zero_infinity && loss == INFINITY;

    for (int64_t t = j.t - 1; t >= 0; t--) {
      const S *const row = x + (t * j.n + b) * j.classes;
      S *const to = dx + (t * j.n + b) * j.classes;
      const double *const reached = j.reached + (b * j.t + t) * j.places;
      if (t >= times || none) {
        for (int64_t c = threadIdx.x; c < j.classes; c += blockDim.x) to[c] = (S)0;
        continue; /* equal for the whole block */
      }
      for (int64_t s = threadIdx.x; s < places; s += blockDim.x) {
        double v = s >= places - 2 ? 0.0 : -INFINITY;
        if (t < times - 1)
          v = ax_ctc_add_up(after[s], s + 1 < places ? after[s + 1] : -INFINITY,
                            s + 2 < places && ax_ctc_leaps(j.blank, target, s + 2) ? after[s + 2]
                                                                                   : -INFINITY);
        now[s] = v + (double)row[ax_ctc_class_at(j.blank, target, s)];
        ways[s] = reached[s] + now[s];
      }
      for (int64_t c = threadIdx.x; c < j.classes; c += blockDim.x) {
        const double v = (double)row[c];
        to[c] = (S)(by * (exp(v) - exp(-INFINITY + loss - v))); /* of classes without a way */
      }
      __syncthreads();
      double blanks = -INFINITY;
      for (int64_t s = threadIdx.x; s < places; s += blockDim.x) {
        const int64_t c = ax_ctc_class_at(j.blank, target, s);
        if (c == j.blank) blanks = ax_ctc_add_up(blanks, ways[s], -INFINITY);
        if (s % 2 == 0) continue;
        const double sum = ways_of(j, target, ways, s, places), v = (double)row[c];
        if (sum == sum) to[c] = (S)(by * (exp(v) - exp(sum + loss - v)));
      }
      blanks = ax_cuda_block_reduce(
          blanks, [](double p, double q) { return ax_ctc_add_up(p, q, -INFINITY); }, shared);
      if (threadIdx.x == 0) {
        const double v = (double)row[j.blank];
        to[j.blank] = (S)(by * (exp(v) - exp(blanks + loss - v)));
      }
      __syncthreads(); /* `ways` is written anew */
      double *const swap = after;
      after = now;
      now = swap;
    }
  }
}

static job job_of(const ax_call *call, int first, const ax_tensor *reached)
{
  const ax_tensor *x = call->in[first];
  job j = {};
  j.t = x->shape[0];
  j.n = x->shape[1];
  j.classes = x->shape[2];
  j.longest = call->in[first + 1]->shape[1];
  j.places = reached->shape[2];
  j.blank = call->a->ctc.blank;
  j.zero_infinity = call->a->ctc.zero_infinity;
  j.targets = ax_cuda_data<int64_t>(call->in[first + 1]);
  j.in_lengths = ax_cuda_data<int64_t>(call->in[first + 2]);
  j.lengths = ax_cuda_data<int64_t>(call->in[first + 3]);
  j.reached = ax_cuda_data<double>(reached);
  return j;
}

static unsigned blocks_of(const job &j, ax_device d)
{
  return ax_cuda_blocks(j.n * THREADS, THREADS, d.index);
}

AX_CUDA_KERNEL(_ctc_loss)
{
  const ax_tensor *x = call->in[0], *loss = call->out[0];
  const job j = job_of(call, 0, call->out[1]);
  const ax_device d = loss->device;

  if (j.n == 0) return AX_OK;
  if (x->dtype == AX_F64)
    return ax_cuda_launch("ctc_loss", d, blocks_of(j, d), THREADS, losses<double>, j,
                          (const double *)ax_cuda_data<double>(x), ax_cuda_data<double>(loss));
  return ax_cuda_launch("ctc_loss", d, blocks_of(j, d), THREADS, losses<float>, j,
                        (const float *)ax_cuda_data<float>(x), ax_cuda_data<float>(loss));
}

template <class S> static ax_status launch_gradients(const ax_call *call, const job &j)
{
  const ax_tensor *dx = call->out[0];
  return ax_cuda_launch("ctc_loss_backward", dx->device, blocks_of(j, dx->device), THREADS, gradients<S>, j,
                        ax_cuda_data<S>(dx), (const S *)ax_cuda_data<S>(call->in[1]),
                        (const S *)ax_cuda_data<S>(call->in[0]));
}

AX_CUDA_KERNEL(_ctc_loss_backward)
{
  const ax_tensor *dx = call->out[0];
  job j = job_of(call, 1, call->in[6]);
  const size_t bytes = (size_t)(j.n * 3 * j.places) * sizeof(double);
  void *scratch = NULL;
  ax_status st;

  if (dx->numel == 0) return AX_OK;
  if ((st = ax_cuda_take(dx->device, bytes, &scratch)) != AX_OK) return st;
  j.scratch = (double *)scratch;
  st = dx->dtype == AX_F64 ? launch_gradients<double>(call, j) : launch_gradients<float>(call, j);
  ax_cuda_give(dx->device, scratch, bytes);
  return st;
}
