/* Many runs of memory in one launch: a table on the device, and chunks of its entries for the
 * blocks. */
#ifndef AX_CUDA_SEGMENTS_H
#define AX_CUDA_SEGMENTS_H

#include "rows.cuh"

#include <stdlib.h>

/* Small blocks leave few registers unused: Adam takes 67 for each thread, so 28 warps fit on a
 * multiprocessor and keep 57 KB of loads in flight, twice of what the latency of memory
 * requires. */
enum { AX_SEGMENT_THREADS = 128 };

/* E has `int64_t n, first`: the number of its elements, and the number of chunks in the entries
 * before it.  A chunk is a run of at most `chunk` elements of one entry. */
template <class E> struct ax_cuda_segment_table {
  const E *entries;
  int count;
  int chunk;
  int64_t chunks;
};

/* The elements of a chunk, from the elements of all entries.  Small tables have many small chunks,
 * so that they use the whole device.  The result, and so the shape of sums over chunks, follows
 * from the sizes alone. */
static inline int ax_cuda_chunk_of(int64_t all)
{
  return all < INT64_C(1) << 20 ? 2048 : all < INT64_C(1) << 30 ? 8192 : 32768;
}

/* runtime/table_cache.cu: a copy on the device of `bytes` bytes that most likely equal those of an
 * earlier call; then nothing is copied.  Copies are found by their contents, so none is out of
 * date. */
ax_status ax_cuda_contents(ax_device d, const void *here, size_t bytes, const void **there);

/* The entry that chunk c belongs to.  All threads of a warp search together, through 32 entries at
 * a time. */
template <class E>
static __device__ __forceinline__ int ax_cuda_entry_at(const ax_cuda_segment_table<E> &t, int64_t c)
{
  int lo = 0, n = t.count; /* it is one of lo .. lo + n - 1 */
  while (n > 1) {
    const int step = (n + 31) / 32, at = (int)(threadIdx.x % 32) * step;
    const int piece = __popc(__ballot_sync(0xffffffffu, at < n && t.entries[lo + at].first <= c)) - 1;
    lo += piece * step;
    n = n - piece * step < step ? n - piece * step : step;
  }
  return lo;
}

/* Calls f(number of the entry, entry, first element, end, chunk) for each chunk of this block.
 * These are neighbours, so the entry is searched once. */
template <class E, class F>
static __device__ __forceinline__ void ax_cuda_each_chunk(const ax_cuda_segment_table<E> &t, F f)
{
  const int64_t from = t.chunks * blockIdx.x / gridDim.x, to = t.chunks * (blockIdx.x + 1) / gridDim.x;
  int k = ax_cuda_entry_at(t, from);
  for (int64_t c = from; c < to; c++) {
    while (k + 1 < t.count && t.entries[k + 1].first <= c) k++;
    const E e = t.entries[k];
    const int64_t lo = (c - e.first) * t.chunk, hi = lo + t.chunk < e.n ? lo + t.chunk : e.n;
    f(k, e, lo, hi, c);
  }
}

/* Builds the table with fill(entry, segment) for every segment with elements, and calls
 * launch(table, blocks). */
template <class E, class FILL, class LAUNCH>
static ax_status ax_cuda_with_table(const char *what, ax_device d, const ax_segment *segs, int n, FILL fill,
                                    LAUNCH launch)
{
  const size_t places = n > 0 ? (size_t)n : 1;
  const int64_t most = (int64_t)ax_cuda_multiprocessors(d.index) * 512;
  E *here = (E *)calloc(places, sizeof(E)); /* bytes between members are compared too */
  const void *there = NULL;
  ax_cuda_segment_table<E> t = {};
  int64_t all = 0;
  ax_status st;

  if (!here) return ax_fail(AX_ENOMEM, "%s: out of memory: no room for a table of %d entries", what, n);
  for (int k = 0; k < n; k++) all += segs[k].n;
  t.chunk = ax_cuda_chunk_of(all);
  for (int k = 0; k < n; k++) {
    if (segs[k].n == 0) continue;
    E *e = &here[t.count++];
    e->n = segs[k].n;
    e->first = t.chunks;
    fill(e, &segs[k]);
    t.chunks += (e->n + t.chunk - 1) / t.chunk;
  }
  const size_t bytes = (size_t)t.count * sizeof(E);
  st = bytes ? ax_cuda_contents(d, here, bytes, &there) : AX_OK;
  t.entries = (const E *)there;
  if (st == AX_OK) st = launch(t, (unsigned)(t.chunks < most ? t.chunks : most));
  free(here);
  return st;
}

/* Likewise for one kernel(table, arguments...); launches nothing where there are no elements. */
template <class E, class FILL, class... P, class... A>
static ax_status ax_cuda_launch_segments(const char *what, ax_device d, const ax_segment *segs, int n,
                                         FILL fill, void (*kernel)(ax_cuda_segment_table<E>, P...),
                                         A... arguments)
{
  return ax_cuda_with_table<E>(what, d, segs, n, fill,
                               [&](const ax_cuda_segment_table<E> &t, unsigned blocks) {
    return blocks ? ax_cuda_launch(what, d, blocks, AX_SEGMENT_THREADS, kernel, t, arguments...) : AX_OK;
  });
}

/* An optimizer's numbers: those in device memory, where there are any.  nvcc 13.0 reads the first
 * member of `there ? *there : here` from `here` in either case where that is a kernel's parameter,
 * so this is no choice between two objects. */
template <class X> static __device__ __forceinline__ X ax_cuda_numbers(const X *there, const X &here)
{
  X x = here;
  if (there) x = *there;
  return x;
}

#endif
