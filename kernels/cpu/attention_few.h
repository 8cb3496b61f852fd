/* Attention of at most FEW queries, as a step of generation has it: attention.c includes this.
 * Keys and values are read once where they stand, in their own type; nothing is copied, and no
 * tile is filled up.  A piece of work is one head.  The order of additions depends on the sizes
 * alone. */

#define FEW 4

enum { FEW_LANES = AX_BYTES / 4 };

#define FEW_LOAD_f32(p) (*(const ax_vec_f32 *)(p))
#define FEW_LOAD_bf16(p) ax_vec_from_bf16(p)
#define FEW_LOAD_f16(p) ax_vec_from_f16(p)

/* dots_: s[k] = q . row k, for rows of n elements `step` bytes apart.  mix_: y = the sum of p[k]
 * times row k.  q and y have room for whole vectors; what q has behind n is 0. */
#define FEW_ROWS(name, T) \
  static inline __attribute__((always_inline)) \
  ax_vec_f32 few_at_##name(const char *row, int64_t at, int64_t n) \
  { \
    T last[FEW_LANES] = { 0 }; \
    if (at + FEW_LANES <= n) return FEW_LOAD_##name((const T *)row + at); \
    memcpy(last, (const T *)row + at, (size_t)(n - at) * sizeof(T)); \
    return FEW_LOAD_##name(last); \
  } \
  static void few_dots_##name(const float *q, const char *row, int64_t step, int64_t n, int64_t rows, \
                              float *s) \
  { \
    for (int64_t k = 0; k < rows; k++, row += step) { \
      ax_vec_f32 sum = { 0 }; \
      for (int64_t i = 0; i < n; i += FEW_LANES) \
        sum = AX_VFMA_f32(*(const ax_vec_f32 *)(q + i), few_at_##name(row, i, n), sum); \
      s[k] = ax_vec_sum(sum); \
    } \
  } \
  static void few_mix_##name(const float *p, const char *row, int64_t step, int64_t n, int64_t rows, \
                             float *y) \
  { \
    for (int64_t i = 0; i < n; i += 4 * FEW_LANES) { \
      const int vectors = (int)(n - i < 4 * FEW_LANES ? (n - i + FEW_LANES - 1) / FEW_LANES : 4); \
      ax_vec_f32 sum[4] = { 0 }; \
      for (int64_t k = 0; k < rows; k++) \
        for (int j = 0; j < vectors; j++) \
          sum[j] = AX_VFMA_f32(p[k] - (ax_vec_f32){ 0 }, \
                               few_at_##name(row + k * step, i + j * FEW_LANES, n), sum[j]); \
      for (int j = 0; j < vectors; j++) *(ax_vec_f32 *)(y + i + j * FEW_LANES) = sum[j]; \
    } \
  }
FEW_ROWS(f32, float)
FEW_ROWS(bf16, uint16_t)
FEW_ROWS(f16, uint16_t)

static void few_dots(const side *k, const float *q, const char *row, int64_t rows, float *s)
{
  (k->dtype == AX_F32    ? few_dots_f32
   : k->dtype == AX_BF16 ? few_dots_bf16
                         : few_dots_f16)(q, row, k->step[2], k->size[3], rows, s);
}

static void few_mix(const side *v, const float *p, const char *row, int64_t rows, float *y)
{
  (v->dtype == AX_F32    ? few_mix_f32
   : v->dtype == AX_BF16 ? few_mix_bf16
                         : few_mix_f16)(p, row, v->step[2], v->size[3], rows, y);
}

static void few_mask(const job *j, int64_t b, int64_t h, int64_t i, int64_t rows, float *s)
{
  const side *m = &j->mask_side;
  const char *from = (const char *)j->mask + b * m->step[0] + h * m->step[1] + i * m->step[2];
  for (int64_t k = 0; k < rows; k++, from += m->step[3]) {
    if (m->dtype == AX_BOOL) s[k] = *(const uint8_t *)from ? s[k] : -INFINITY;
    else s[k] += m->dtype == AX_F32 ? *(const float *)from : (float)ax_load_double(m->dtype, from, 0);
  }
}

/* s = exp(s - its largest); returns the sum, and the largest in *top. */
static float few_exps(float *s, int64_t n, float *top)
{
  const int64_t filled = (n + FEW_LANES - 1) / FEW_LANES * FEW_LANES;
  ax_vec_f32 most = (ax_vec_f32){ 0 } - INFINITY, sum = { 0 };

  for (int64_t k = n; k < filled; k++) s[k] = -INFINITY;
  for (int64_t k = 0; k < filled; k += FEW_LANES) most = ax_vec_max(*(ax_vec_f32 *)(s + k), most);
  *top = ax_vec_largest(most);
  const float least = *top == -INFINITY ? 0 : *top;
  for (int64_t k = 0; k < filled; k += FEW_LANES) {
    ax_vec_f32 *at = (ax_vec_f32 *)(s + k);
    *at = ax_vec_exp2((*at - least) * AX_LOG2E);
    sum += *at;
  }
  return ax_vec_sum(sum);
}

/* What a thread needs: a query, a row of scores, a result. */
static int64_t few_room(int64_t n) { return (n + 4 * FEW_LANES - 1) / FEW_LANES * FEW_LANES; }
static size_t few_scratch(const job *j)
{
  return (size_t)(few_room(j->head) + few_room(j->keys) + few_room(j->value_head)) * sizeof(float);
}

static void few_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  float *q = (float *)(j->scratch + (size_t)omp_get_thread_num() * j->scratch_bytes),
        *s = q + few_room(j->head), *y = s + few_room(j->keys);

  for (int64_t piece = lo; piece < hi; piece++) {
    const int64_t b = piece / j->heads, h = piece % j->heads, shared = h / j->group;
    const char *k = j->k.data + b * j->k.step[0] + shared * j->k.step[1],
               *v = j->v.data + b * j->v.step[0] + shared * j->v.step[1];
    for (int64_t i = 0; i < j->queries; i++) {
      const int64_t rows = j->causal && i + 1 < j->keys ? i + 1 : j->keys;
      float top;
      memset(q, 0, (size_t)few_room(j->head) * sizeof(float));
      load_f32(&j->q, j->q.data + b * j->q.step[0] + h * j->q.step[1] + i * j->q.step[2], 1, 1, j->width,
               (float)j->scale, q);
      few_dots(&j->k, q, k, rows, s);
      if (j->mask) few_mask(j, b, h, i, rows, s);
      const float sum = few_exps(s, rows, &top);
      const bool none = sum == 0; /* the query sees no key */
      few_mix(&j->v, s, v, rows, y);
      store_f32(&j->y, j->y.data + b * j->y.step[0] + h * j->y.step[1] + i * j->y.step[2], 1, j->value_width,
                none ? 0 : 1 / sum, y);
      ((float *)j->lse)[(b * j->heads + h) * j->queries + i] = none ? INFINITY : top + ax_log_f32(sum);
    }
  }
}

static bool few_takes(const job *j)
{
  return j->queries <= FEW && !j->dropout && j->q.dtype != AX_F64 && j->keys > 0 &&
         j->k.step[3] == (int64_t)ax_dtype_size(j->k.dtype) &&
         j->v.step[3] == (int64_t)ax_dtype_size(j->v.dtype);
}
