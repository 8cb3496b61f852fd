/* Many runs of memory in one launch: a table on the device, and chunks of it for the blocks. */
#ifndef AX_CUDA_SEGMENTS_H
#define AX_CUDA_SEGMENTS_H

#include "rows.cuh"

#include <stdlib.h>

enum { AX_SEGMENT_CHUNK = 8192, AX_SEGMENT_THREADS = 256 };

/* E has `int64_t n, first`: its elements, and the chunks of the entries before. */
template <class E> struct ax_table {
  const E *entries;
  int count;
  int64_t chunks;
};

/* The entry that chunk c belongs to. */
template <class E> static __device__ __forceinline__ const E &ax_entry_of(const ax_table<E> &t, int64_t c)
{
  int lo = 0, hi = t.count - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (t.entries[mid].first <= c) lo = mid;
    else hi = mid - 1;
  }
  return t.entries[lo];
}

/* Calls fill(entry, segment) for every segment and launches kernel(table, arguments...).  A table is copied from pageable memory, which the
 * driver has read when the call returns. */
template <class E, class FILL, class... P, class... A>
static ax_status ax_launch_segments(const char *what, ax_device d, const ax_segment *segs, int n, FILL fill, int64_t *chunks, void (*kernel)(ax_table<E>, P...), A... arguments)
{
  const size_t places = n > 0 ? (size_t)n : 1, bytes = places * sizeof(E);
  const int64_t most = (int64_t)ax_cuda_multiprocessors(d.index) * 16;
  E *here = (E *)calloc(places, sizeof(E));
  void *there = NULL;
  ax_table<E> t = {};
  ax_status st;

  if (!here) return ax_fail(AX_ENOMEM, "%s: out of memory: no room for a table of %d entries", what, n);
  for (int k = 0; k < n; k++) {
    if (segs[k].n == 0) continue;
    E *e = &here[t.count++];
    e->n = segs[k].n;
    e->first = t.chunks;
    fill(e, &segs[k]);
    t.chunks += (e->n + AX_SEGMENT_CHUNK - 1) / AX_SEGMENT_CHUNK;
  }
  if (chunks) *chunks = t.chunks;
  if (t.count == 0) {
    free(here);
    return AX_OK;
  }
  st = ax_cuda_take(d, bytes, &there);
  if (st == AX_OK) st = ax_cuda_memory.copy(d, there, ax_device{ AX_CPU, 0 }, here, (size_t)t.count * sizeof(E));
  t.entries = (const E *)there;
  if (st == AX_OK) st = ax_launch(what, d, (unsigned)(t.chunks < most ? t.chunks : most), AX_SEGMENT_THREADS, kernel, t, arguments...);
  if (there) ax_cuda_give(d, there, bytes);
  free(here);
  return st;
}

#endif
