/* Shared by the attention kernels on tensor cores: tiles of half types in shared memory, fragments,
 * masks and dropout of a tile of scores.  attention_tf32.cuh uses masks, dropout and places alone.
 *
 * A block of four warps has a tile of rows of one side (16 MT for each warp) and walks over the
 * other side 32 or 64 rows at a time.  A tile's rows have D elements; head sizes below D are padded
 * with zeros.  The 16-byte chunks of a row are permuted so that neither ldmatrix (eight rows, one
 * chunk) nor copies (consecutive chunks) use a bank twice; the compiler checks this below.
 *
 * Scores are kept in base 2: exp(s scale - top) = exp2(s by - top by), by = scale log2(e).  With a
 * mask, or a scale that is not positive, scores are multiplied first (and the mask, times log2(e),
 * is added), and `by` is 1 from there on. */
#ifndef AX_CUDA_FLASH_H
#define AX_CUDA_FLASH_H

#include "attention.cuh"
#include "mma.cuh"

#include "rows.cuh"

enum { FLASH_WARPS = 4, FLASH_THREADS = 32 * FLASH_WARPS };
#define FLASH_LOG2E 1.4426950408889634

/* ---- tiles in shared memory */

template <int D> struct flash_tile {
  static const int chunks = D / 8;
  /* The number that is xored with a chunk's number in this row. */
  static constexpr __host__ __device__ __forceinline__ int turn(int row)
  {
    return chunks % 8 == 0 ? row & 7 : row >> 1 & 3;
  }
  /* The position of a chunk in the tile, in chunks. */
  static constexpr __host__ __device__ __forceinline__ int at(int row, int chunk)
  {
    return row * chunks + (chunk ^ turn(row));
  }

  /* Eight lanes move 128 bytes at a time; no two of them may use the same eighth of the banks. */
  static constexpr bool free_of_conflicts()
  {
    for (int first = 0; first < 16 * chunks; first += 8) { /* copies: consecutive chunks */
      int seen = 0;
      for (int i = first; i < first + 8; i++) seen |= 1 << at(i / chunks, i % chunks) % 8;
      if (seen != 0xff) return false;
    }
    for (int row = 0; row < 16; row += 8) /* ldmatrix and fragments: eight rows, one chunk */
      for (int chunk = 0; chunk < chunks; chunk++) {
        int seen = 0;
        for (int r = row; r < row + 8; r++) seen |= 1 << at(r, chunk) % 8;
        if (seen != 0xff) return false;
      }
    return true;
  }
};
static_assert(flash_tile<32>::free_of_conflicts() && flash_tile<64>::free_of_conflicts() &&
                  flash_tile<96>::free_of_conflicts() && flash_tile<128>::free_of_conflicts(),
              "tiles lie so that no bank is met twice");

/* Returns i, but hides from the compiler that it is i.  In a loop, the compiler then does not keep
 * values derived from i in registers that are needed otherwise (or spill them). */
static __device__ __forceinline__ int flash_anew(int i)
{
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(i));
#endif
  return i;
}

/* A plane that tiles are copied from.  A thread copies chunks of rows that are `period` apart,
 * beginning at one first row (at three where rows have 12 chunks). */
template <class S, int D> struct flash_source {
  static const int chunks = flash_tile<D>::chunks, phases = chunks % 3 == 0 ? 3 : 1,
                   period = phases * FLASH_THREADS / chunks;
  const S *plane;
  int64_t step;
  int width;
  __device__ __forceinline__ flash_source(const S *plane, int64_t step, int width)
      : plane(plane), step(step), width(width)
  {}
  /* Begins to copy ROWS rows, from row `first` of a plane with `count` rows on; rows beyond are
   * zeros. All threads of the block take part. */
  template <int ROWS> __device__ __forceinline__ void load(S *to, int first, int count) const
  {
    static_assert(ROWS % period == 0 && flash_tile<D>::turn(period) == 0,
                  "every thread copies as many chunks, which lie alike");
    const int thread = flash_anew((int)threadIdx.x);
#pragma unroll
    for (int f = 0; f < phases; f++) {
      const int p = f * FLASH_THREADS + thread, row = p / chunks, chunk = p % chunks;
      const int left = chunk * 8 < width ? count - first - row : 0;
      const S *from = plane + (first + row) * step + chunk * 8;
      S *const at = to + flash_tile<D>::at(row, chunk) * 8;
#pragma unroll
      for (int i = 0; i < ROWS / period; i++, from += period * step)
        ax_cuda_copy_async<16>(at + i * period * chunks * 8, from, i * period < left);
    }
  }
};

/* The chunks that this lane passes to ldmatrix, for 16 rows by 16 columns.  UPRIGHT: the matrices
 * (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15): fragment a of the tile, or with
 * .trans the fragments b of two products that sum over the tile's rows.  Else (0-7, 0-7), (0-7,
 * 8-15), (8-15, 0-7), (8-15, 8-15): the fragments b of two products that sum over its columns. */
template <int D, bool UPRIGHT> struct flash_reader {
  int base, turn;
  __device__ __forceinline__ flash_reader()
  {
    const int lane = threadIdx.x % 32, row = UPRIGHT ? lane & 15 : (lane & 7) + (lane >> 4 << 3);
    base = row * flash_tile<D>::chunks;
    turn = flash_tile<D>::turn(row) ^ (UPRIGHT ? lane >> 4 : lane >> 3 & 1);
  }
  __device__ __forceinline__ void anew() { turn = flash_anew(turn); }
  /* In elements; row is a multiple of 16, chunk even. */
  __device__ __forceinline__ int at(int row, int chunk) const
  {
    return (base + row * flash_tile<D>::chunks + (chunk ^ turn)) * 8;
  }
};

/* Fragment a from the fragments d of two neighbouring 16 x 8 tiles. */
template <class S>
static __device__ __forceinline__ void flash_as_a(uint32_t (&a)[4], const float (&left)[4],
                                                  const float (&right)[4])
{
  a[0] = ax_cuda_pack_halves(S{}, left[0], left[1]);
  a[1] = ax_cuda_pack_halves(S{}, left[2], left[3]);
  a[2] = ax_cuda_pack_halves(S{}, right[0], right[1]);
  a[3] = ax_cuda_pack_halves(S{}, right[2], right[3]);
}

/* Products of a warp's rows (16 for each m) with a walked tile, of 16 numbers that are summed over.
 * sum[m][n] += a[m] times columns 16 k .. of the tile's rows 8 n .. */
template <int D, int MT, int COLUMNS, class S>
static __device__ __forceinline__ void flash_times_columns(float (&sum)[MT][COLUMNS][4],
                                                           const uint32_t (&a)[MT][4], const S *tile,
                                                           const flash_reader<D, false> &across, int k)
{
#pragma unroll
  for (int n = 0; n < COLUMNS; n += 2) {
    uint32_t b[4];
    ax_cuda_ldmatrix(b, tile + across.at(8 * n, 2 * k));
#pragma unroll
    for (int m = 0; m < MT; m++) {
      ax_cuda_mma(S{}, sum[m][n], a[m], b[0], b[1]);
      ax_cuda_mma(S{}, sum[m][n + 1], a[m], b[2], b[3]);
    }
  }
}
/* sum[m][n] += a[m] times columns 8 n .. of the tile's rows 16 k .. */
template <int D, int MT, class S>
static __device__ __forceinline__ void flash_times_rows(float (&sum)[MT][D / 8][4],
                                                        const uint32_t (&a)[MT][4], const S *tile,
                                                        const flash_reader<D, true> &upright, int k)
{
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    uint32_t b[4];
    ax_cuda_ldmatrix_trans(b, tile + upright.at(16 * k, n));
#pragma unroll
    for (int m = 0; m < MT; m++) {
      ax_cuda_mma(S{}, sum[m][n], a[m], b[0], b[1]);
      ax_cuda_mma(S{}, sum[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

/* A warp's own rows as fragments a: in registers for the whole walk (HOLD), or read at each use. */
template <class S, int D, int MT, bool HOLD> struct flash_own {
  const S *rows;
  uint32_t held[HOLD ? MT : 1][HOLD ? D / 16 : 1][4];
  __device__ __forceinline__ explicit flash_own(const S *rows) : rows(rows) {}
  /* To be called when the rows have come. */
  __device__ __forceinline__ void take(const flash_reader<D, true> &upright)
  {
    if constexpr (HOLD) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int k = 0; k < D / 16; k++) ax_cuda_ldmatrix(held[m][k], rows + upright.at(16 * m, 2 * k));
    }
  }
  __device__ __forceinline__ void fragments(uint32_t (&a)[MT][4], const flash_reader<D, true> &upright,
                                            int k) const
  {
#pragma unroll
    for (int m = 0; m < MT; m++)
      if (HOLD)
        for (int i = 0; i < 4; i++) a[m][i] = held[HOLD ? m : 0][HOLD ? k : 0][i];
      else ax_cuda_ldmatrix(a[m], rows + upright.at(16 * m, 2 * k));
  }
  /* sum = own rows times the tile's rows. */
  template <int COLUMNS>
  __device__ __forceinline__ void times(float (&sum)[MT][COLUMNS][4], const S *tile,
                                        const flash_reader<D, true> &upright,
                                        const flash_reader<D, false> &across) const
  {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      uint32_t a[MT][4];
      fragments(a, upright, k);
      flash_times_columns<D>(sum, a, tile, across, k);
    }
  }
};

/* Stores a warp's own rows (16 x D), times `by`, to a plane, through the warp's part of shared
 * memory. */
template <int D, class S>
static __device__ __forceinline__ void flash_store(S *own, const float (&sum)[D / 8][4], float by0, float by1,
                                                   S *to, int64_t step, int first, int count, int width)
{
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
    *(uint32_t *)(own + flash_tile<D>::at(lane / 4, n) * 8 + lane % 4 * 2) =
        ax_cuda_pack_halves(S{}, sum[n][0] * by0, sum[n][1] * by0);
    *(uint32_t *)(own + flash_tile<D>::at(lane / 4 + 8, n) * 8 + lane % 4 * 2) =
        ax_cuda_pack_halves(S{}, sum[n][2] * by1, sum[n][3] * by1);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < D / 16; i++) { /* 16 rows of D / 8 chunks */
    const int p = i * 32 + lane, row = p / flash_tile<D>::chunks, chunk = p % flash_tile<D>::chunks;
    if (first + row < count && chunk * 8 < width)
      *(uint4 *)(to + (first + row) * step + chunk * 8) =
          *(const uint4 *)(own + flash_tile<D>::at(row, chunk) * 8);
  }
}

/* ---- the tile of a block */

struct flash_place {
  int tile, b, h;
};

/* Tiles of one plane read the same keys and values (or queries), so the planes of a section share
 * the cache.  The last tile of each plane comes first, or (LAST_FIRST false) the first one: under a
 * causal mask that is the longest. */
template <bool LAST_FIRST>
static __device__ __forceinline__ flash_place flash_find(unsigned planes, unsigned heads, unsigned tiles,
                                                         unsigned section)
{
  const unsigned many = section * tiles, from = blockIdx.x / many * section, rest = blockIdx.x % many;
  const unsigned in = planes - from < section ? planes - from : section, plane = from + rest % in,
                 tile = rest / in;
  return { (int)(LAST_FIRST ? tiles - 1 - tile : tile), (int)(plane / heads), (int)(plane % heads) };
}

/* ---- masks: a warp loads its part of the tile into shared memory as float32 times log2(e), a row
 * for each query, or one row where all queries have the same mask */

static __device__ __forceinline__ float flash_mask_number(int dtype, const void *p, int64_t i)
{
  switch (dtype) {
  case AX_BOOL: return ((const uint8_t *)p)[i] ? 0.0f : -INFINITY;
  case AX_F64: return (float)((const double *)p)[i];
  case AX_F16: return ax_cuda_load(((const ax_cuda_f16 *)p)[i]);
  case AX_BF16: return ax_cuda_load(((const ax_cuda_bf16 *)p)[i]);
  default: return ((const float *)p)[i];
  }
}
/* A mask's number times log2(e).  What is finite stays finite: -infinity says that a query does not
 * see a key at all, the type's lowest number only that others come first.  The bound is a quarter
 * of what float32 holds, so that scores and the roundings of flash_lse fit in above it; scores are
 * far below its last digit, as they are below the lowest number's. */
#define FLASH_MASK_BOUND 0x1p126f
static __device__ __forceinline__ float flash_mask_scaled(float m)
{
  const float s = m * (float)FLASH_LOG2E;
  if (fabsf(m) == INFINITY) return m;
  /* NaN stays */
  return s < -FLASH_MASK_BOUND ? -FLASH_MASK_BOUND : s > FLASH_MASK_BOUND ? FLASH_MASK_BOUND : s;
}
/* The log-sum-exp in base 2, for the gradient's exp2(s - lse).  Of a query that is masked in full
 * by finite numbers it is as large as these, and its own rounding is worth more than all
 * differences of scores: exp2 would be 0 or infinite by chance.  It is therefore lowered by more
 * than that rounding, and s limited to it (flash_limit): the largest scores get a probability of 1,
 * as on the CPU, and 2^-22 of a common log-sum-exp changes nothing. */
static __device__ __forceinline__ float flash_lse(const ax_cuda_attention_job &j, float natural)
{
  const float lse = natural * (float)FLASH_LOG2E;
  return j.mask.data && fabsf(lse) < INFINITY ? lse - fabsf(lse) * 0x1p-22f : lse;
}
static __device__ __forceinline__ float flash_limit(const ax_cuda_attention_job &j, float lse)
{
  return j.mask.data ? lse : INFINITY;
}
/* Begins to copy the log-sum-exp and delta of ROWS walked queries. */
template <int ROWS>
static __device__ __forceinline__ void flash_load_stats(float *to, const ax_cuda_attention_job &j,
                                                        int64_t plane, int q0)
{
  const int i = threadIdx.x % ROWS;
  const float *const from = (const float *)(threadIdx.x < ROWS ? j.lse : j.delta) + plane * j.queries;
  const bool in = q0 + i < j.queries;
  if (threadIdx.x < 2 * ROWS) ax_cuda_copy_async<4>(to + threadIdx.x, in ? from + q0 + i : from, in);
}
/* Loads `rows` queries from q0 on and KEYS keys from k0 on; -infinity where there is no key.  Lanes
 * run along keys.  BASE2: times log2(e). */
template <int KEYS, int PITCH, bool BASE2 = true>
static __device__ __forceinline__ void flash_stage_mask(const ax_cuda_attention_job &j, int64_t at, int q0,
                                                        int rows, int k0, float *to)
{
  const int lane = threadIdx.x % 32;
  __syncwarp(); /* the last part may still be in use */
#pragma unroll 4
  for (int i = lane; i < rows * KEYS; i += 32) {
    const int q = i / KEYS, k = i % KEYS;
    float m = -INFINITY;
    if (q0 + q < j.queries && k0 + k < j.keys) {
      m = flash_mask_number(j.mask_dtype, j.mask.data,
                            at + (q0 + q) * j.mask.step[2] + (k0 + k) * j.mask.step[3]);
      if (BASE2) m = flash_mask_scaled(m);
    }
    to[q * PITCH + k] = m;
  }
  __syncwarp();
}
/* Whether all queries have the same mask. */
static __host__ __device__ __forceinline__ bool flash_same_mask(const ax_cuda_attention_job &j)
{
  return j.mask.step[2] == 0;
}

/* ---- dropout: four bits for each tile of 8 columns, 1 for an element that stays.  A Philox block
 * is four keys of one query, at ((b H + h) T + q) K/4 + k/4.  Every lane computes blocks for its
 * neighbours too, and no block is computed twice. */

/* The numbers of this draw; in a captured step they are in device memory. */
static __device__ __forceinline__ ax_cuda_draw flash_draw(const ax_cuda_draw &d)
{
  return d.device_args ? ax_cuda_draw{ d.device_args->seed, d.stream, d.draw + d.device_args->offset, NULL }
                       : ax_cuda_draw{ d.seed, d.stream, d.draw, NULL };
}
static __device__ __forceinline__ uint32_t flash_nibble(const ax_cuda_draw &draw, uint32_t least,
                                                        uint64_t block)
{
  uint32_t w[4];
  ax_philox_run(ax_philox_at(draw.seed, draw.stream, draw.draw, block), w);
  return (w[0] >= least) | (w[1] >= least) << 1 | (w[2] >= least) << 2 | (w[3] >= least) << 3;
}
/* Queries are rows (16 from q0 on), keys columns (8 COLUMNS from k0 on).  Element i of column tile
 * n stays when bit 4 n + i % 2 of kept[i / 2] is set. */
template <int COLUMNS>
static __device__ __forceinline__ void flash_keep_queries(const ax_cuda_attention_job &j, int64_t plane,
                                                          int q0, int k0, uint32_t (&kept)[2])
{
  const int lane = flash_anew(threadIdx.x) % 32, odd = lane & 1;
  const uint64_t block =
      (uint64_t)((plane * j.queries + q0 + lane / 4 + 8 * odd) * j.quads + k0 / 4 + (lane % 4 >> 1));
  const ax_cuda_draw draw = flash_draw(j.draw);
  uint32_t own = 0;
#pragma unroll 4
  for (int n = 0; n < COLUMNS; n++) own |= flash_nibble(draw, j.least, block + 2 * n) << 4 * n;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
  kept[0] = (odd ? other : own) >> 2 * odd;
  kept[1] = (odd ? own : other) >> 2 * odd;
}
/* Keys are rows (16 from k0 on), queries columns (8 COLUMNS from q0 on).  Element i of column tile
 * n stays when bit 4 n of kept[i] is set. */
template <int COLUMNS>
static __device__ __forceinline__ void flash_keep_keys(const ax_cuda_attention_job &j, int64_t plane, int q0,
                                                       int k0, uint32_t (&kept)[4])
{
  const int lane = flash_anew(threadIdx.x) % 32, row = lane / 4, i = row & 3;
  const uint64_t block = (uint64_t)((plane * j.queries + q0 + lane % 4 * 2 + (i & 1)) * j.quads + k0 / 4 +
                                    (row >> 2) + 2 * (i >> 1));
  const ax_cuda_draw draw = flash_draw(j.draw);
  uint32_t own = 0;
#pragma unroll 4
  for (int n = 0; n < COLUMNS; n++)
    own |= flash_nibble(draw, j.least, block + (uint64_t)(8 * j.quads * n)) << 4 * n;
#pragma unroll
  for (int of = 0; of < 4; of++) kept[of] = __shfl_sync(0xffffffffu, own, (lane & ~12) | of << 2) >> i;
}

/* ---- the host's side */

/* Calls f(ax_cuda_int<D>()) with the tile size for these heads. */
template <class F> static auto flash_with_head(const ax_cuda_attention_job &j, F f)
{
  const int most = j.head > j.value_head ? j.head : j.value_head;
  if (most <= 32) return f(ax_cuda_int<32>());
  if (most <= 64) return f(ax_cuda_int<64>());
  if (most <= 96) return f(ax_cuda_int<96>());
  return f(ax_cuda_int<128>());
}
template <class F> static ax_status flash_with_type(ax_dtype dtype, F f)
{
  return dtype == AX_BF16 ? f(ax_cuda_type<ax_cuda_bf16>()) : f(ax_cuda_type<ax_cuda_f16>());
}

/* The number of planes whose walked side, of so many bytes each, stays in the cache together;
 * assumes a part of the caches of A100 and H200 (40 and 50 MB). */
static inline int flash_section(int64_t planes, int64_t bytes)
{
  const int64_t in = ((int64_t)24 << 20) / (bytes > 0 ? bytes : 1);
  return (int)(in < 1 ? 1 : in < planes ? in : planes);
}
#endif
