/* Attention on tiles, for one element type: attention.c includes this for float and for double.  T
 * is the type, N(name) is the name with the type's suffix, EXP and LOG are the type's functions.
 * All matrices here are scratch memory with rows padded by zeros to whole vectors, and with room
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

/* c (MR rows, NV vectors) = a b, or += a b; a(m, k) is a[m * AM + k * AK]. */
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
        const VEC x = (VEC){ 0 } + a[i * (AM) + k * (AK)]; \
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

/* ---- forward: one block of queries */

static void N(load_keys)(const job *j, int64_t b, int64_t h, N(scratch) * w)
{
  const int64_t shared = h / j->group;
  N(load)
  (&j->k, j->k.data + b * j->k.step[0] + shared * j->k.step[1], j->keys, j->keys + MR, j->width, 1, w->k);
  N(load)
  (&j->v, j->v.data + b * j->v.step[0] + shared * j->v.step[1], j->keys, j->keys + MR, j->value_width, 1,
   w->v);
}

static void N(forward)(const job *j, int64_t b, int64_t h, int64_t q0, N(scratch) * w)
{
  N(block) at = { b, h, q0, j->queries - q0 < QUERIES ? j->queries - q0 : QUERIES, 0, 0 };
  const int64_t end = j->causal && q0 + at.nq < j->keys ? q0 + at.nq : j->keys;
  T top[QUERIES], sum[QUERIES], change[QUERIES], factor[4][QUERIES];
  bool first = true;

  N(load)
  (&j->q, j->q.data + b * j->q.step[0] + h * j->q.step[1] + q0 * j->q.step[2], at.nq, QUERIES, j->width,
   (T)j->scale, w->q);
  N(turn)(w->q, j->width, w->qt);
  for (int i = 0; i < QUERIES; i++) {
    top[i] = -(T)INFINITY;
    sum[i] = 0;
  }
  for (at.k0 = 0; at.k0 < end; at.k0 += KEYS) {
    at.nk = end - at.k0 < KEYS ? end - at.k0 : KEYS;
    T *s = w->s;
    if (!N(scores)(j, &at, w, s)) continue;
    T now[QUERIES];
    memcpy(now, top, sizeof now);
    for (int64_t k = 0; k < at.nk; k++) {
      const T *row = s + k * QUERIES;
      AX_SIMD
      for (int i = 0; i < QUERIES; i++) now[i] = row[i] > now[i] ? row[i] : now[i];
    }
    AX_SIMD
    for (int i = 0; i < QUERIES; i++) {
      /* all keys masked so far: exp(-inf - 0) is 0, not NaN */
      const T least = now[i] == -(T)INFINITY ? 0 : now[i];
      change[i] = EXP(top[i] - least);
      top[i] = now[i];
      now[i] = least;
      sum[i] *= change[i];
    }
    for (int64_t k = 0; k < at.nk; k++) {
      T *row = s + k * QUERIES;
      AX_SIMD
      for (int i = 0; i < QUERIES; i++) {
        row[i] = EXP(row[i] - now[i]);
        sum[i] += row[i];
      }
    }
    if (j->dropout)
      for (int64_t k = 0; k < at.nk; k += 4) {
        N(keep)(j, &at, k, factor);
        for (int r = 0; r < 4 && k + r < at.nk; r++) {
          T *row = s + (k + r) * QUERIES;
          AX_SIMD
          for (int i = 0; i < QUERIES; i++) row[i] *= factor[r][i];
        }
      }
    if (!first)
      for (int64_t i = 0; i < at.nq; i++) {
        T *o = w->o + i * j->value_width;
        const T by = change[i];
        AX_SIMD
        for (int64_t c = 0; c < j->value_width; c++) o[c] *= by;
      }
    for (int64_t i = 0; i < at.nq; i += MR) {
      /* the keys that these queries see */
      const int64_t last = j->causal && q0 + i + MR - at.k0 < at.nk ? q0 + i + MR - at.k0 : at.nk;
      N(rows_of)
      (true, s + i, QUERIES, w->v + at.k0 * j->value_width, j->value_width, w->o + i * j->value_width,
       j->value_width, j->value_width, last < 0 ? 0 : last, !first);
    }
    first = false;
  }
  if (first) memset(w->o, 0, (size_t)(at.nq * j->value_width) * sizeof(T));
  T *lse = (T *)j->lse + (b * j->heads + h) * j->queries + q0;
  char *to = j->y.data + b * j->y.step[0] + h * j->y.step[1] + q0 * j->y.step[2];
  for (int64_t i = 0; i < at.nq; i++, to += j->y.step[2]) {
    const bool none = sum[i] == 0; /* the query sees no key: the result is 0, as in PyTorch */
    N(store)(&j->y, to, 1, j->value_width, none ? 0 : 1 / sum[i], w->o + i * j->value_width);
    lse[i] = none ? (T)INFINITY : top[i] + LOG(sum[i]);
  }
}

/* ---- backward: one head of keys and values, with every block of queries that sees it */

static void N(back_block)(const job *j, N(block) at, N(scratch) * w)
{
  const int64_t ahead = j->causal ? at.k0 - at.q0 : -NEVER;
  T *s = w->s, *dp = w->dp, factor[4][QUERIES];

  if (!N(scores)(j, &at, w, s)) return;
  for (int64_t k = 0; k < at.nk; k += MR) {
    const int64_t first = k + ahead > 0 ? (k + ahead) / N(V) * N(V) : 0;
    if (first) /* scores left of the diagonal are not computed and must not be NaN */
      for (int64_t r = k; r < k + MR; r++) memset(dp + r * QUERIES, 0, (size_t)first * sizeof(T));
    N(rows_of)
    (false, w->v + (at.k0 + k) * j->value_width, j->value_width, w->got + first, QUERIES,
     dp + k * QUERIES + first, QUERIES, QUERIES - first, j->value_head, false);
  }
  for (int64_t k = 0; k < at.nk; k++) {
    T *p = s + k * QUERIES, *d = dp + k * QUERIES;
    if (!j->dropout) {
      AX_SIMD
      for (int i = 0; i < QUERIES; i++) {
        p[i] = EXP(p[i] - w->lse[i]);
        d[i] = p[i] * (d[i] - w->delta[i]);
      }
    } else {
      if (k % 4 == 0) N(keep)(j, &at, k, factor);
      const T *f = factor[k % 4];
      AX_SIMD
      for (int i = 0; i < QUERIES; i++) {
        const T e = EXP(p[i] - w->lse[i]);
        p[i] = e * f[i];
        d[i] = e * (d[i] * f[i] - w->delta[i]);
      }
    }
  }
  /* the last tile reaches rows of dk and dv that belong to the next block */
  for (int64_t k = at.nk; k % MR; k++) {
    memset(s + k * QUERIES, 0, QUERIES * sizeof(T));
    memset(dp + k * QUERIES, 0, QUERIES * sizeof(T));
  }
  const int64_t depth = at.nq; /* the padding of p and d behind it is never read */
  for (int64_t k = 0; k < at.nk; k += MR) {
    const int64_t first = k + ahead > 0 ? k + ahead : 0, row = at.k0 + k;
    if (first >= depth) break;
    N(rows_of)
    (false, s + k * QUERIES + first, QUERIES, w->go + first * j->value_width, j->value_width,
     w->dv + row * j->value_width, j->value_width, j->value_width, depth - first, true);
    N(rows_of)
    (false, dp + k * QUERIES + first, QUERIES, w->q + first * j->width, j->width, w->dk + row * j->width,
     j->width, j->width, depth - first, true);
  }
  for (int64_t i = 0; i < at.nq; i += MR) {
    const int64_t last = i + MR - ahead < at.nk ? i + MR - ahead : at.nk;
    if (last > 0) N(rows_of)
    (true, dp + i, QUERIES, w->k + at.k0 * j->width, j->width, w->dq + i * j->width, j->width, j->width, last,
     true);
  }
}

static void N(backward)(const job *j, int64_t b, int64_t shared, N(scratch) * w)
{
  N(load_keys)(j, b, shared * j->group, w);
  memset(w->dk, 0, (size_t)((j->keys + MR) * j->width) * sizeof(T));
  memset(w->dv, 0, (size_t)((j->keys + MR) * j->value_width) * sizeof(T));
  for (int64_t h = shared * j->group; h < (shared + 1) * j->group; h++)
    for (int64_t q0 = 0; q0 < j->queries; q0 += QUERIES) {
      N(block) at = { b, h, q0, j->queries - q0 < QUERIES ? j->queries - q0 : QUERIES, 0, 0 };
      const int64_t end = j->causal && q0 + at.nq < j->keys ? q0 + at.nq : j->keys;
      const T *lse = (const T *)j->lse + (b * j->heads + h) * j->queries + q0;
      const char *y = j->y.data + b * j->y.step[0] + h * j->y.step[1] + q0 * j->y.step[2];

      N(load)
      (&j->q, j->q.data + b * j->q.step[0] + h * j->q.step[1] + q0 * j->q.step[2], at.nq, QUERIES, j->width,
       (T)j->scale, w->q);
      N(turn)(w->q, j->width, w->qt);
      N(load)
      (&j->g, j->g.data + b * j->g.step[0] + h * j->g.step[1] + q0 * j->g.step[2], at.nq, QUERIES,
       j->value_width, 1, w->go);
      N(turn)(w->go, j->value_width, w->got);
      N(load)(&j->y, y, at.nq, QUERIES, j->value_width, 1, w->o);
      N(turn)(w->o, j->value_width, w->ot);
      memset(w->delta, 0, QUERIES * sizeof(T));
      for (int64_t c = 0; c < j->value_width; c++) { /* delta = sum of dO * O over the columns */
        const T *g = w->got + c * QUERIES, *o = w->ot + c * QUERIES;
        AX_SIMD
        for (int i = 0; i < QUERIES; i++) w->delta[i] += g[i] * o[i];
      }
      for (int64_t i = 0; i < QUERIES; i++) w->lse[i] = i < at.nq ? lse[i] : (T)INFINITY;
      memset(w->dq, 0, (size_t)(QUERIES * j->width) * sizeof(T));
      for (at.k0 = 0; at.k0 < end; at.k0 += KEYS) {
        at.nk = end - at.k0 < KEYS ? end - at.k0 : KEYS;
        N(back_block)(j, at, w);
      }
      N(store)
      (&j->dq, j->dq.data + b * j->dq.step[0] + h * j->dq.step[1] + q0 * j->dq.step[2], at.nq, j->width,
       (T)j->scale, w->dq);
    }
  /* q was already scaled */
  N(store)(&j->dk, j->dk.data + b * j->dk.step[0] + shared * j->dk.step[1], j->keys, j->width, 1, w->dk);
  N(store)
  (&j->dv, j->dv.data + b * j->dv.step[0] + shared * j->dv.step[1], j->keys, j->value_width, 1, w->dv);
}

/* ---- ranges of work, for ax_cpu_for */

static void N(forward_range)(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t blocks = (j->queries + QUERIES - 1) / QUERIES;
  N(scratch) w;
  int64_t loaded = -1;

  N(scratch_size)(j, &w, (T *)(j->scratch + (size_t)omp_get_thread_num() * j->scratch_bytes));
  for (int64_t t = lo; t < hi; t++) {
    const int64_t head = t / blocks, b = head / j->heads, h = head % j->heads,
                  keys = b * j->heads + h / j->group;
    if (keys != loaded) N(load_keys)(j, b, h, &w);
    loaded = keys;
    N(forward)(j, b, h, t % blocks * QUERIES, &w);
  }
}

static void N(backward_range)(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t shared = j->heads / j->group;
  N(scratch) w;
  N(scratch_size)(j, &w, (T *)(j->scratch + (size_t)omp_get_thread_num() * j->scratch_bytes));
  for (int64_t t = lo; t < hi; t++) N(backward)(j, t / shared, t % shared, &w);
}

#undef LANES
