/* Complex numbers between memory and the lanes of fft_lanes.h, for one element type.  MASK is the
 * vector of integers that shuffles V. */

/* LANES pairs (re, im) to two vectors, and back.  Lane l has pair `lane_of(l)`, so that no number
 * leaves its 16 bytes, which takes one instruction for each vector. */
static inline __attribute__((always_inline)) int FN(lane_of)(int l)
{
  const int block = 16 / (int)sizeof(T), half = block / 2;
  return l / block * half + l % half + (l % block < half ? 0 : FN(LANES) / 2);
}
static inline __attribute__((always_inline)) void FN(part)(const T *p, V *re, V *im)
{
  const V a = *(const V *)p, b = *(const V *)(p + FN(LANES));
  const int block = 16 / (int)sizeof(T);
  MASK even, odd;
  FFT_UNROLL
  for (int t = 0; t < FN(LANES); t++) {
    even[t] = t / block * block + 2 * (t % block) % block + (t % block < block / 2 ? 0 : FN(LANES));
    odd[t] = even[t] + 1;
  }
  *re = __builtin_shuffle(a, b, even);
  *im = __builtin_shuffle(a, b, odd);
}
/* The lane that has pair k. */
static inline __attribute__((always_inline)) int FN(lane_with)(int k)
{
  const int block = 16 / (int)sizeof(T), half = block / 2, r = k % (FN(LANES) / 2);
  return r / half * block + r % half + (k < FN(LANES) / 2 ? 0 : half);
}
/* As `part`, the last pair first. */
static inline __attribute__((always_inline)) void FN(part_reversed)(const T *p, V *re, V *im)
{
  const V a = *(const V *)p, b = *(const V *)(p + FN(LANES));
  MASK even, odd;
  FFT_UNROLL
  for (int t = 0; t < FN(LANES); t++) {
    even[t] = 2 * (FN(LANES) - 1 - FN(lane_of)(t));
    odd[t] = even[t] + 1;
  }
  *re = __builtin_shuffle(a, b, even);
  *im = __builtin_shuffle(a, b, odd);
}
static inline __attribute__((always_inline)) void FN(pair)(T *p, V re, V im)
{
  const int block = 16 / (int)sizeof(T);
  MASK low, high;
  FFT_UNROLL
  for (int t = 0; t < FN(LANES); t++) {
    low[t] = t / block * block + t % block / 2 + (t & 1 ? FN(LANES) : 0);
    high[t] = low[t] + block / 2;
  }
  *(V *)p = __builtin_shuffle(re, im, low);
  *(V *)(p + FN(LANES)) = __builtin_shuffle(re, im, high);
}
static inline void FN(part_some)(const T *p, int64_t count, V *re, V *im)
{
  T room[2 * FN(LANES)] = { 0 };
  if (count >= FN(LANES)) {
    FN(part)(p, re, im);
    return;
  }
  memcpy(room, p, sizeof(T) * 2 * (size_t)count);
  FN(part)(room, re, im);
}
static inline void FN(pair_some)(T *p, int64_t count, V re, V im)
{
  T room[2 * FN(LANES)];
  if (count >= FN(LANES)) {
    FN(pair)(p, re, im);
    return;
  }
  FN(pair)(room, re, im);
  memcpy(p, room, sizeof(T) * 2 * (size_t)count);
}

/* n complex numbers of `count` lines, `step` numbers apart, into lanes: squares of LANES lines and
 * LANES / 2 numbers are turned, which parts the real from the imaginary ones.
 * to: where these lines' results go, or NULL; see fft_fetch. */
static void FN(gather)(const T *from, int64_t step, int count, int n, V *re, V *im, const T *to)
{
  enum { L = FN(LANES) };
  V block[L] __attribute__((aligned(AX_BYTES)));
  int j = 0;
  for (; j + L / 2 <= n; j += L / 2) {
    for (int l = 0; l < L; l++) block[l] = *(const V *)(from + 2 * ((l < count ? l : 0) * step + j));
    if (to)
      for (int l = 0; l < count; l++) fft_fetch(to + 2 * (l * step + j));
    FN(turn)(block);
    for (int t = 0; t < L / 2; t++) re[j + t] = block[2 * t], im[j + t] = block[2 * t + 1];
  }
  for (; j < n; j++)
    for (int l = 0; l < L; l++) {
      const T *p = from + 2 * ((l < count ? l : 0) * step + j);
      re[j][l] = p[0], im[j][l] = p[1];
    }
}
/* next: lines that are read after these, or NULL. */
static void FN(scatter)(T *to, int64_t step, int count, int n, const V *re, const V *im, T scale,
                        const T *next)
{
  enum { L = FN(LANES) };
  V block[L] __attribute__((aligned(AX_BYTES)));
  int j = 0;
  for (; j + L / 2 <= n; j += L / 2) {
    for (int t = 0; t < L / 2; t++) block[2 * t] = re[j + t] * scale, block[2 * t + 1] = im[j + t] * scale;
    if (next)
      for (int l = 0; l < count; l++) fft_fetch(next + 2 * (l * step + j));
    FN(turn)(block);
    for (int l = 0; l < count; l++) *(V *)(to + 2 * (l * step + j)) = block[l];
  }
  for (; j < n; j++)
    for (int l = 0; l < count; l++) {
      to[2 * (l * step + j)] = re[j][l] * scale;
      to[2 * (l * step + j) + 1] = im[j][l] * scale;
    }
}

/* Vectors of P complex numbers: the parts swapped; the numbers in reverse; both parts of each
 * number its real, its imaginary one. */
enum { FN(P) = FN(LANES) / 2 };
#define SHUFFLED(name, expression) \
  static inline V FN(name)(V x) \
  { \
    MASK at; \
    for (int i = 0; i < FN(LANES); i++) at[i] = expression; \
    return __builtin_shuffle(x, at); \
  }
SHUFFLED(swapped, i ^ 1)
SHUFFLED(reversed, (FN(LANES) - 2 - (i & ~1)) | (i & 1))
SHUFFLED(reals, i & ~1)
SHUFFLED(imaginaries, i | 1)
#undef SHUFFLED

/* Ones with the sign of `even` at real and of `odd` at imaginary parts. */
static inline V FN(signs)(T even, T odd)
{
  V s;
  for (int i = 0; i < FN(LANES); i++) s[i] = i % 2 ? odd : even;
  return s;
}

/* The parts of (r + i im) times a twiddle. */
static inline __attribute__((always_inline)) V FN(times_re)(V r, V i, const T *wr, const T *wi)
{
  return FMA(r, *(const V *)wr, -(i * *(const V *)wi));
}
static inline __attribute__((always_inline)) V FN(times_im)(V r, V i, const T *wr, const T *wi)
{
  return FMA(r, *(const V *)wi, i * *(const V *)wr);
}
