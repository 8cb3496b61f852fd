/* Stable sorting on the device: of keys in the elements' order (kernels/sort_keys.h), together with
 * their former positions.
 *
 * Short lines use a network of exchanges in shared memory, a block for each.  Long lines use a
 * radix sort, one byte of the key after the other from the lowest up: tiles count their bytes, a
 * running sum over (byte, tile) gives the place of each, and the tiles move their elements.  Memory
 * bounds it, which is read and written once for each byte. */
#ifndef AX_CUDA_SORT_H
#define AX_CUDA_SORT_H

#include "scan.cuh"

#include "sort_keys.h"

enum { AX_NETWORK = 1024, AX_RADIX_THREADS = 256, AX_RADIX_TILE = 4096 };

/* size: a power of two, n <= size */
template <class K>
static __global__ void ax_cuda_sort_network(K *keys, uint32_t *at, int64_t lines, int n, int size)
{
  __shared__ K key[AX_NETWORK];
  __shared__ uint32_t place[AX_NETWORK];
  for (int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
      key[i] = i < n ? keys[line * n + i] : (K) ~(K)0;
      place[i] = (uint32_t)i; /* padding sorts behind everything, as the last of equal keys */
    }
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
      for (int by = run / 2; by > 0; by /= 2) {
        for (int p = threadIdx.x; p < size / 2; p += blockDim.x) {
          const int i = p / by * by * 2 + p % by, j = i + by;
          const bool after = key[i] > key[j] || (key[i] == key[j] && place[i] > place[j]);
          if (after == ((i & run) == 0)) {
            const K k = key[i];
            const uint32_t a = place[i];
            key[i] = key[j], place[i] = place[j];
            key[j] = k, place[j] = a;
          }
        }
        __syncthreads();
      }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      keys[line * n + i] = key[i];
      at[line * n + i] = place[i];
    }
    __syncthreads();
  }
}

template <class K>
static __global__ void ax_cuda_radix_count(const K *keys, int64_t lines, int64_t n, int64_t tiles, int shift,
                                           uint32_t *counts)
{
  __shared__ uint32_t count[256];
  for (int64_t b = blockIdx.x; b < lines * tiles; b += gridDim.x) {
    const int64_t line = b / tiles, tile = b % tiles, lo = tile * AX_RADIX_TILE,
                  hi = lo + AX_RADIX_TILE < n ? lo + AX_RADIX_TILE : n;
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x)
      atomicAdd(&count[(int)(keys[line * n + i] >> shift & 255)], 1u);
    __syncthreads();
    counts[(line * 256 + threadIdx.x) * tiles + tile] = count[threadIdx.x];
    __syncthreads();
  }
}

struct ax_cuda_radix_places { /* counts, which are replaced by the number of elements before */
  uint32_t *counts;
  int64_t n;
  __device__ __forceinline__ uint32_t load(int64_t line, int64_t i) const { return counts[line * n + i]; }
  __device__ __forceinline__ void store(int64_t line, int64_t i, uint32_t up_to, uint32_t own) const
  {
    counts[line * n + i] = up_to - own;
  }
};

/* from_at NULL: elements are still at their former positions. */
template <class K>
static __global__ void ax_cuda_radix_move(const K *from, const uint32_t *from_at, K *to, uint32_t *to_at,
                                          int64_t lines, int64_t n, int64_t tiles, int shift,
                                          const uint32_t *places)
{
  __shared__ uint32_t base[256], ahead[AX_RADIX_THREADS / 32][256];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t b = blockIdx.x; b < lines * tiles; b += gridDim.x) {
    const int64_t line = b / tiles, tile = b % tiles, lo = tile * AX_RADIX_TILE,
                  hi = lo + AX_RADIX_TILE < n ? lo + AX_RADIX_TILE : n;
    base[threadIdx.x] = places[(line * 256 + threadIdx.x) * tiles + tile];
    /* one round: adjacent elements, one for each thread */
    for (int64_t first = lo; first < hi; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const K key = i < hi ? from[line * n + i] : (K)0;
      const int digit = i < hi ? (int)(key >> shift & 255) : 256;
      for (int w = 0; w < AX_RADIX_THREADS / 32; w++) ahead[w][threadIdx.x] = 0;
      __syncthreads();
      const unsigned alike = __match_any_sync(0xffffffffu, digit);
      const int rank = __popc(alike & ((1u << lane) - 1));
      if (rank == 0 && i < hi) ahead[warp][digit] = __popc(alike);
      __syncthreads();
      uint32_t sum = 0; /* for this thread's digit: the number of elements in the warps before */
      for (int w = 0; w < AX_RADIX_THREADS / 32; w++) {
        const uint32_t here = ahead[w][threadIdx.x];
        ahead[w][threadIdx.x] = sum;
        sum += here;
      }
      __syncthreads();
      if (i < hi) {
        const int64_t place = line * n + base[digit] + ahead[warp][digit] + rank;
        to[place] = key;
        to_at[place] = from_at ? from_at[line * n + i] : (uint32_t)i;
      }
      __syncthreads();
      base[threadIdx.x] += sum;
    }
    __syncthreads();
  }
}

/* The memory of a sort: two sets of keys and positions. */
template <class K> struct ax_cuda_sorting {
  ax_device device;
  K *keys, *other;
  uint32_t *at, *other_at;
  size_t bytes;
  void *memory;
};

template <class K>
static ax_status ax_cuda_sort_begin(ax_device d, const char *what, int64_t lines, int64_t n,
                                    ax_cuda_sorting<K> *s)
{
  const size_t all = (size_t)(lines * n);
  if (n >= UINT32_MAX)
    return ax_fail(AX_ESHAPE, "%s: %lld elements along a dim are more than can be sorted", what,
                   (long long)n);
  s->device = d;
  s->bytes = all * 2 * (sizeof(K) + sizeof(uint32_t)) + 64;
  const ax_status st = ax_cuda_take(d, s->bytes, &s->memory);
  if (st != AX_OK) return st;
  s->keys = (K *)s->memory;
  s->other = s->keys + all;
  s->at = (uint32_t *)(s->other + all);
  s->other_at = s->at + all;
  return AX_OK;
}
template <class K> static void ax_cuda_sort_end(ax_cuda_sorting<K> *s)
{
  ax_cuda_give(s->device, s->memory, s->bytes);
}

/* Sorts s->keys by their lowest `bytes` bytes; s->at: the former position of each in its line. */
template <class K>
static ax_status ax_cuda_sort(const char *what, int64_t lines, int64_t n, int bytes, ax_cuda_sorting<K> *s)
{
  const ax_device d = s->device;
  const int64_t most = (int64_t)ax_cuda_multiprocessors(d.index) * 16;
  ax_status st = AX_OK;

  if (n <= AX_NETWORK) {
    int size = 2;
    while (size < n) size *= 2;
    return ax_cuda_launch(what, d, (unsigned)(lines < most ? lines : most), size / 2 < 32 ? 32 : size / 2,
                          ax_cuda_sort_network<K>, s->keys, s->at, lines, (int)n, size);
  }
  const int64_t tiles = (n + AX_RADIX_TILE - 1) / AX_RADIX_TILE,
                blocks = lines * tiles < most ? lines * tiles : most;
  const size_t table = (size_t)(lines * tiles) * 256 * sizeof(uint32_t);
  uint32_t *counts;
  if ((st = ax_cuda_take(d, table, (void **)&counts)) != AX_OK) return st;
  for (int pass = 0; pass < bytes && st == AX_OK; pass++) {
    st = ax_cuda_launch(what, d, (unsigned)blocks, AX_RADIX_THREADS, ax_cuda_radix_count<K>,
                        (const K *)s->keys, lines, n, tiles, 8 * pass, counts);
    if (st == AX_OK)
      st = ax_cuda_scan<uint32_t>(what, d, lines, 256 * tiles, ax_cuda_radix_places{ counts, 256 * tiles });
    if (st == AX_OK)
      st = ax_cuda_launch(what, d, (unsigned)blocks, AX_RADIX_THREADS, ax_cuda_radix_move<K>,
                          (const K *)s->keys, (const uint32_t *)(pass ? s->at : NULL), s->other, s->other_at,
                          lines, n, tiles, 8 * pass, (const uint32_t *)counts);
    K *const keys = s->keys;
    uint32_t *const at = s->at;
    s->keys = s->other, s->other = keys;
    s->at = s->other_at, s->other_at = at;
  }
  ax_cuda_give(d, counts, table);
  return st;
}

/* The number of bytes that represent all numbers below `count`. */
static inline int ax_key_bytes(int64_t count)
{
  int bytes = 1;
  while (bytes < 8 && (uint64_t)(count - 1) >> (8 * bytes)) bytes++;
  return bytes;
}

#endif
