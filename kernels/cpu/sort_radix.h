/* Sorting and selecting keys: included by sort.c for two kinds of element.  Words have a key of 32
 * bits in the upper half and the position in the lower one; pairs have a key of 64 bits beside the
 * position.  The includer defines NAME; E, the element; K, the key's type; AT(e), the position;
 * RANK(e), by which elements of rising positions are ordered; BYTE(e, b), a byte of the key; and
 * MAKE(key, at), an element.  They are undefined again at the end. */

static void NAME(insertion)(E *v, int64_t n)
{
  for (int64_t i = 1; i < n; i++) {
    const E e = v[i];
    int64_t j = i;
    for (; j > 0 && RANK(v[j - 1]) > RANK(e); j--) v[j] = v[j - 1];
    v[j] = e;
  }
}

/* Sorts v with the help of `other`, by all bytes from the lowest up; bytes that are equal in all
 * keys are skipped.  Returns the one with the result. */
static E *NAME(radix)(E *v, E *other, int64_t n)
{
  enum { BYTES = sizeof(K) };
  if (n <= FEW) {
    NAME(insertion)(v, n);
    return v;
  }
  uint32_t count[BYTES][256];
  memset(count, 0, sizeof count);
  for (int64_t i = 0; i < n; i++)
    for (int b = 0; b < BYTES; b++) count[b][BYTE(v[i], b)]++;
  for (int b = 0; b < BYTES; b++) {
    uint32_t *const c = count[b];
    if (c[BYTE(v[0], b)] == (uint32_t)n) continue; /* all alike in this byte */
    uint32_t sum = 0;
    for (int i = 0; i < 256; i++) {
      const uint32_t here = c[i];
      c[i] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; i++) other[c[BYTE(v[i], b)]++] = v[i];
    E *const swap = v;
    v = other;
    other = swap;
  }
  return v;
}

/* Sorts all elements of a short line. */
static E *NAME(short)(const K *key, E *v, E *other, int64_t n)
{
  for (int64_t i = 0; i < n; i++) v[i] = MAKE(key[i], i);
  return NAME(radix)(v, other, n);
}

static void NAME(bounds)(const K *key, int64_t n, K *least, K *most)
{
  K lo = key[0], hi = key[0];
  _Pragma("omp simd reduction(min : lo) reduction(max : hi)") for (int64_t i = 0; i < n; i++)
  {
    lo = key[i] < lo ? key[i] : lo;
    hi = key[i] > hi ? key[i] : hi;
  }
  *least = lo, *most = hi;
}

static int NAME(bits)(K range) { return range ? 64 - __builtin_clzll((unsigned long long)range) : 0; }

/* Keys between which the one of a rank is; `below` are less than lo, `inside` from lo to hi: few,
 * or all equal.  (For lines of MANY or more: counting takes longer than sorting short ones.) */
typedef struct NAME(span) {
  K lo, hi;
  int64_t below, inside;
} NAME(span);

static NAME(span) NAME(span_of)(const K *key, int64_t n, int64_t rank)
{
  NAME(span) s = { .inside = n };
  NAME(bounds)(key, n, &s.lo, &s.hi);
  while (s.lo < s.hi && s.inside > n / 64) {
    uint32_t count[1 << DIGIT] = { 0 };
    const K range = s.hi - s.lo;
    const int bits = NAME(bits)(range), shift = bits > DIGIT ? bits - DIGIT : 0;
    for (int64_t i = 0; i < n; i++) {
      const K d = key[i] - s.lo;
      if (d <= range) count[d >> shift]++;
    }
    K digit = 0;
    for (; s.below + count[digit] <= rank; digit++) s.below += count[digit];
    s.inside = count[digit];
    s.lo += digit << shift;
    const K rest = (K)(((K)1 << shift) - 1);
    if (s.hi - s.lo > rest) s.hi = s.lo + rest;
  }
  return s;
}

/* The elements of the k least keys, sorted: of those with equal keys the first ones. */
static E *NAME(least)(const K *key, E *v, E *other, int64_t n, int64_t k)
{
  const NAME(span) s = NAME(span_of)(key, n, k - 1);
  int64_t m = 0, equal = s.lo == s.hi ? k - s.below : s.inside;
  for (int64_t i = 0; i < n; i++) {
    if (key[i] > s.hi || (key[i] >= s.lo && equal-- <= 0)) continue;
    v[m++] = MAKE(key[i], i);
  }
  return NAME(radix)(v, other, m);
}

/* The position of the key of this rank: of equal keys the one that comes first has the lower
 * rank. */
static int64_t NAME(at_rank)(const K *key, E *v, E *other, int64_t n, int64_t rank)
{
  const NAME(span) s = NAME(span_of)(key, n, rank);
  const int64_t wanted = rank - s.below;
  int64_t m = 0;
  for (int64_t i = 0; i < n; i++) {
    if (key[i] < s.lo || key[i] > s.hi) continue;
    if (s.lo == s.hi && m == wanted) return i;
    v[m++] = MAKE(key[i], i);
  }
  return (int64_t)AT(NAME(radix)(v, other, m)[wanted]);
}

#undef NAME
#undef E
#undef K
#undef AT
#undef RANK
#undef BYTE
#undef MAKE
