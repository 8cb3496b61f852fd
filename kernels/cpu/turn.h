/* Squares of vectors turned over their diagonal, in registers, for one element type.  The file that
 * includes this defines T and its vector V, FN(name), and MASK, the vector of integers that
 * shuffles V; FN(LANES) is the number of elements of V. */

#define TURN_UNROLL _Pragma("GCC unroll 16") /* as many as a vector has lanes */

/* One step of `turn`: blocks of s x s numbers off the diagonal change places.  (A function for each
 * s, so that the compiler knows the masks when it unrolls.) */
static inline __attribute__((always_inline)) void FN(turn_blocks)(V *v, const int s)
{
  MASK low, high;
  TURN_UNROLL
  for (int t = 0; t < FN(LANES); t++) {
    low[t] = t & s ? FN(LANES) + t - s : t;
    high[t] = t & s ? FN(LANES) + t : t + s;
  }
  TURN_UNROLL
  for (int p = 0; p < FN(LANES) / 2; p++) {
    const int i = p / s * 2 * s + p % s;
    const V a = v[i], b = v[i + s];
    v[i] = __builtin_shuffle(a, b, low);
    v[i + s] = __builtin_shuffle(a, b, high);
  }
}

/* The first step for numbers of 4 bytes, in one instruction where turn_blocks takes two: what it
 * leaves at 1 and 2 of each four vectors has to change places. */
static inline __attribute__((always_inline)) void FN(turn_pairs)(V *v)
{
  MASK low, high;
  TURN_UNROLL
  for (int t = 0; t < FN(LANES); t++) {
    low[t] = t / 4 * 4 + t % 4 / 2 + (t & 1 ? FN(LANES) : 0);
    high[t] = low[t] + 2;
  }
  TURN_UNROLL
  for (int i = 0; i < FN(LANES); i += 2) {
    const V a = v[i], b = v[i + 1];
    v[i] = __builtin_shuffle(a, b, low);
    v[i + 1] = __builtin_shuffle(a, b, high);
  }
}

/* The square of LANES vectors turned over its diagonal, by blocks that double in size. */
static inline __attribute__((always_inline)) void FN(turn)(V *v)
{
  if (sizeof(T) == 4) FN(turn_pairs)(v);
  else FN(turn_blocks)(v, 1);
  if (FN(LANES) > 2) FN(turn_blocks)(v, 2);
  if (FN(LANES) > 4) FN(turn_blocks)(v, 4);
  if (FN(LANES) > 8) FN(turn_blocks)(v, 8);
  TURN_UNROLL
  for (int i = 0; sizeof(T) == 4 && i < FN(LANES); i += 4) {
    const V t = v[i + 1];
    v[i + 1] = v[i + 2];
    v[i + 2] = t;
  }
}

#undef TURN_UNROLL
