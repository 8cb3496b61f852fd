/* The pieces of attention on tiles, for one element type: products, scratch memory, scores.
 * attention.c includes this for float and for double, and attention_pass.h behind it.  T is the
 * type, N(name) is the name with the type's suffix, EXP and LOG are the type's functions. All
 * matrices here are scratch memory with rows padded by zeros to whole vectors, and with room
 * for a whole tile past the last row.
 *
 * Scores are stored transposed, (keys, QUERIES).  The softmax then runs along rows, with a vector
 * lane for each query and no sums across lanes; and every product has the form that suits a
 * register tile, a broadcast element of A times a vector from a row of B:
 *
 *   forward   S^T = K Q^T        O   += P V         (A is P^T read by columns)
 *   backward  dP^T = V dO^T      dV  += P^T dO      dK += dS^T Q      dQ += dS K
 *
 * Only Q and dO have to be transposed, once for each block of queries. */

enum { N(V) = BYTES / sizeof(T) };
/* Widths are multiples of a vector and of 4. */
#define LANES (N(V) < 4 ? 4 : N(V))
typedef T N(some) __attribute__((vector_size(sizeof(T) * (BYTES / sizeof(T) < 4 ? 4 : BYTES / sizeof(T))),
                                 aligned(sizeof(T)), may_alias));

/* c (MR rows, NV vectors) = a b, or += a b; a(m, k) is a[m * AM + k * AK].  Subtracting 0 repeats
 * an element over a vector; adding it would cost an instruction, for -0. */
#define TILE(name, NV, AM, AK) \
  static void N(name)(const T *a, int64_t step, const T *b, int64_t ldb, T *c, int64_t ldc, int64_t depth, \
                      bool add) \
  { \
    VEC acc[MR][NV]; \
    AX_UNROLL \
    for (int i = 0; i < MR; i++) { \
      AX_UNROLL \
      for (int j = 0; j < NV; j++) acc[i][j] = (VEC){ 0 }; \
    } \
    for (int64_t k = 0; k < depth; k++, b += ldb) { \
      VEC row[NV]; \
      AX_UNROLL \
      for (int j = 0; j < NV; j++) row[j] = *(const VEC *)(b + j * N(V)); \
      AX_UNROLL \
      for (int i = 0; i < MR; i++) { \
        const VEC x = a[i * (AM) + k * (AK)] - (VEC){ 0 }; \
        AX_UNROLL \
        for (int j = 0; j < NV; j++) acc[i][j] = FMA(x, row[j], acc[i][j]); \
      } \
    } \
    if (add) { \
      AX_UNROLL \
      for (int i = 0; i < MR; i++) { \
        AX_UNROLL \
        for (int j = 0; j < NV; j++) *(VEC *)(c + i * ldc + j * N(V)) += acc[i][j]; \
      } \
    } else { \
      AX_UNROLL \
      for (int i = 0; i < MR; i++) { \
        AX_UNROLL \
        for (int j = 0; j < NV; j++) *(VEC *)(c + i * ldc + j * N(V)) = acc[i][j]; \
      } \
    } \
  }
TILE(by_rows_1, 1, step, 1)
TILE(by_cols_1, 1, 1, step)
TILE(by_rows_2, 2, step, 1)
TILE(by_cols_2, 2, 1, step)
#if MAX_NV > 2
TILE(by_rows_3, 3, step, 1)
TILE(by_cols_3, 3, 1, step)
TILE(by_rows_4, 4, step, 1)
TILE(by_cols_4, 4, 1, step)
#endif
#undef TILE

/* One row of tiles of c, `width` columns, a multiple of V. */
static inline void N(rows_of)(bool by_cols, const T *a, int64_t step, const T *b, int64_t ldb, T *c,
                              int64_t ldc, int64_t width, int64_t depth, bool add)
{
  typedef void (*tile)(const T *, int64_t, const T *, int64_t, T *, int64_t, int64_t, bool);
#if MAX_NV > 2
  static const tile tiles[2][4] = { { N(by_rows_1), N(by_rows_2), N(by_rows_3), N(by_rows_4) },
                                    { N(by_cols_1), N(by_cols_2), N(by_cols_3), N(by_cols_4) } };
#else
  static const tile tiles[2][2] = { { N(by_rows_1), N(by_rows_2) }, { N(by_cols_1), N(by_cols_2) } };
#endif
  for (int64_t vectors = width / N(V), panels = (vectors + MAX_NV - 1) / MAX_NV; panels > 0; panels--) {
    const int64_t nv = (vectors + panels - 1) / panels; /* as even as possible */
    tiles[by_cols][nv - 1](a, step, b, ldb, c, ldc, depth, add);
    b += nv * N(V);
    c += nv * N(V);
    vectors -= nv;
  }
}

/* ---- scratch memory of a thread */

typedef struct N(scratch) {
  T *k, *v, *dk, *dv;                 /* (keys, width) */
  T *q, *qt, *go, *got, *o, *ot, *dq; /* a block of queries: (QUERIES, width), t: (width, QUERIES) */
  T *s, *dp, *mask;                   /* (KEYS, QUERIES) */
  T *lse, *delta;                     /* QUERIES each */
} N(scratch);

static size_t N(scratch_size)(const job *j, N(scratch) * at, T *base)
{
  const int64_t keys = j->keys + MR;
  T *p = base;
#define ROOM(field, n) at->field = p, p += ((n) + 15) / 16 * 16
  ROOM(k, keys * j->width);
  ROOM(v, keys * j->value_width);
  ROOM(q, QUERIES * j->width);
  ROOM(qt, QUERIES * j->width);
  ROOM(o, QUERIES * j->value_width);
  ROOM(s, (KEYS + MR) * QUERIES);
  ROOM(mask, j->mask ? (KEYS + MR) * QUERIES : 0);
  ROOM(lse, QUERIES);
  ROOM(delta, QUERIES);
  if (j->back) {
    ROOM(dk, keys * j->width);
    ROOM(dv, keys * j->value_width);
    ROOM(go, QUERIES * j->value_width);
    ROOM(got, QUERIES * j->value_width);
    ROOM(ot, QUERIES * j->value_width);
    ROOM(dq, QUERIES * j->width);
    ROOM(dp, (KEYS + MR) * QUERIES);
  }
#undef ROOM
  return (size_t)(p - base) * sizeof(T);
}

/* ---- loading and storing */

/* Copies n rows of a tensor (any strides, its own type) into dst, times `factor`.  Rows have
 * `width` elements; missing elements and the rows up to `rows` become 0. */
static void N(load)(const side *t, const char *from, int64_t n, int64_t rows, int64_t width, T factor, T *dst)
{
  if (t->step[3] == sizeof(T) && t->dtype == sizeof_type(T) && t->size[3] == width) {
    for (int64_t r = 0; r < n; r++, from += t->step[2], dst += width)
      for (int64_t i = 0; i < width; i += LANES)
        *(N(some) *)(dst + i) = *(const N(some) *)((const T *)from + i) * factor;
  } else
    for (int64_t r = 0; r < n; r++, from += t->step[2], dst += width) {
      if (ax_is_half((ax_dtype)t->dtype)) {
        ax_cpu_half_to_float(t->dtype, from, t->step[3], (float *)dst, t->size[3]); /* T is float then */
        if (factor != 1)
          for (int64_t i = 0; i < t->size[3]; i++) dst[i] *= factor;
      } else if (t->step[3] == sizeof(T)) {
        const T *src = (const T *)from;
        AX_SIMD
        for (int64_t i = 0; i < t->size[3]; i++) dst[i] = src[i] * factor;
      } else
        for (int64_t i = 0; i < t->size[3]; i++) dst[i] = *(const T *)(from + i * t->step[3]) * factor;
      for (int64_t i = t->size[3]; i < width; i++) dst[i] = 0;
    }
  if (rows > n) memset(dst, 0, (size_t)((rows - n) * width) * sizeof(T));
}

static void N(store)(const side *t, char *to, int64_t n, int64_t width, T factor, T *src)
{
  if (t->step[3] == sizeof(T) && t->dtype == sizeof_type(T) && t->size[3] == width) {
    for (int64_t r = 0; r < n; r++, to += t->step[2], src += width)
      for (int64_t i = 0; i < width; i += LANES)
        *(N(some) *)((T *)to + i) = *(const N(some) *)(src + i) * factor;
  } else
    for (int64_t r = 0; r < n; r++, to += t->step[2], src += width) {
      if (ax_is_half((ax_dtype)t->dtype)) {
        for (int64_t i = 0; i < t->size[3]; i++) src[i] *= factor;
        ax_cpu_float_to_half(t->dtype, (const float *)src, to, t->step[3], t->size[3]);
      } else if (t->step[3] == sizeof(T)) {
        T *dst = (T *)to;
        AX_SIMD
        for (int64_t i = 0; i < t->size[3]; i++) dst[i] = src[i] * factor;
      } else
        for (int64_t i = 0; i < t->size[3]; i++) *(T *)(to + i * t->step[3]) = src[i] * factor;
    }
}

/* Elements of two vectors, by their numbers in both.  lanes: integers as wide as the elements. */
#ifndef MIX
#if defined __clang__ || __GNUC__ >= 12
#define MIX __builtin_shufflevector
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (lanes){ __VA_ARGS__ })
#endif
#endif

/* dst (width, QUERIES) = src (QUERIES, width) transposed, in pieces of 4 x 4 in registers. */
static void N(turn)(const T *src, int64_t width, T *dst)
{
  typedef T quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
  typedef __typeof__(__builtin_choose_expr(sizeof(T) == 4, (int32_t)0, (int64_t)0)) lane;
  typedef lane lanes __attribute__((vector_size(4 * sizeof(T)), unused));
  for (int64_t c = 0; c < width; c += 4)
    for (int64_t r = 0; r < QUERIES; r += 4) {
      const T *s = src + r * width + c;
      T *d = dst + c * QUERIES + r;
      const quad r0 = *(const quad *)s, r1 = *(const quad *)(s + width), r2 = *(const quad *)(s + 2 * width),
                 r3 = *(const quad *)(s + 3 * width);
      const quad a = MIX(r0, r1, 0, 4, 1, 5), b = MIX(r0, r1, 2, 6, 3, 7);
      const quad e = MIX(r2, r3, 0, 4, 1, 5), f = MIX(r2, r3, 2, 6, 3, 7);
      *(quad *)d = MIX(a, e, 0, 1, 4, 5);
      *(quad *)(d + QUERIES) = MIX(a, e, 2, 3, 6, 7);
      *(quad *)(d + 2 * QUERIES) = MIX(b, f, 0, 1, 4, 5);
      *(quad *)(d + 3 * QUERIES) = MIX(b, f, 2, 3, 6, 7);
    }
}

/* ---- scores of a block: masks, exponentials, dropout */

typedef struct N(block) {
  int64_t b, h, q0, nq, k0, nk;
} N(block);

/* Loads the values that the mask adds, as (keys, QUERIES), or one for each key where the mask does
 * not depend on the query.  Returns false when the mask blocks the whole block. */
static bool N(load_mask)(const job *j, const N(block) * at, N(scratch) * w)
{
  const side *m = &j->mask_side;
  const char *from = (const char *)j->mask + at->b * m->step[0] + at->h * m->step[1] + at->q0 * m->step[2] +
                     at->k0 * m->step[3];
  const int64_t nq = m->step[2] ? at->nq : 1, across = m->step[2] ? QUERIES : 1;
  bool any = false;
  for (int64_t k = 0; k < at->nk; k++, from += m->step[3])
    for (int64_t q = 0; q < nq; q++) {
      const char *p = from + q * m->step[2];
      const T v = m->dtype == AX_BOOL          ? (*(const uint8_t *)p ? 0 : -(T)INFINITY)
                  : m->dtype == sizeof_type(T) ? *(const T *)p
                                               : (T)ax_load_double(m->dtype, p, 0);
      w->mask[k * across + q] = v;
      any |= v != -(T)INFINITY;
    }
  return any;
}

/* S^T of a block of keys, masked.  Returns false when every score is masked. */
static bool N(scores)(const job *j, const N(block) * at, N(scratch) * w, T *s)
{
  /* query q sees key k when q >= k + ahead, both counted within the block */
  const int64_t ahead = j->causal ? at->k0 - at->q0 : -NEVER;

  if (j->mask && !N(load_mask)(j, at, w)) return false;
  for (int64_t k = 0; k < at->nk; k += MR) {
    const int64_t first = k + ahead > 0 ? (k + ahead) / N(V) * N(V) : 0;
    N(rows_of)
    (false, w->k + (at->k0 + k) * j->width, j->width, w->qt + first, QUERIES, s + k * QUERIES + first,
     QUERIES, QUERIES - first, j->head, false);
  }
  if (j->mask) {
    const bool each = j->mask_side.step[2] != 0;
    for (int64_t k = 0; k < at->nk; k++) {
      const T *m = w->mask + (each ? k * QUERIES : k);
      T *row = s + k * QUERIES;
      if (each) {
        AX_SIMD
        for (int i = 0; i < QUERIES; i++) row[i] += m[i];
      } else {
        const T v = *m;
        AX_SIMD
        for (int i = 0; i < QUERIES; i++) row[i] += v;
      }
    }
  }
  /* only blocks that the diagonal crosses */
  for (int64_t k = ahead < 0 ? -ahead + 1 : 0; k < at->nk; k++)
    for (int64_t i = 0; i < k + ahead && i < QUERIES; i++) s[k * QUERIES + i] = -(T)INFINITY;
  return true;
}

/* factor[key r of 4][query]: 0 or 1 / (1 - p).  Element (b, h, q, k) takes word k % 4 of Philox
 * block ((b H + h) T + q) K/4 + k/4. */
static void N(keep)(const job *j, const N(block) * at, int64_t k, T factor[4][QUERIES])
{
  const uint64_t first = (uint64_t)(((at->b * j->heads + at->h) * j->queries + at->q0) * j->quads +
                                    (at->k0 + k) / 4),
                 step = (uint64_t)j->quads;
  const uint64_t seed = j->a->rng.seed, stream = j->a->rng.stream, draw = j->a->rng.draw;
  const uint32_t least = j->least;
  const T kept = (T)j->kept;
  uint32_t low[QUERIES], high[QUERIES], word[4][QUERIES];

  for (int i = 0; i < QUERIES; i++) {
    const ax_philox p = ax_philox_at(seed, stream, draw, first + (uint64_t)i * step);
    low[i] = p.counter[0];
    high[i] = p.counter[1];
  }
  ax_philox_lanes(ax_philox_at(seed, stream, draw, 0), QUERIES, low, high, word[0], word[1], word[2],
                  word[3]);
  for (int r = 0; r < 4; r++) {
    AX_SIMD
    for (int i = 0; i < QUERIES; i++) factor[r][i] = word[r][i] >= least ? kept : 0;
  }
}
