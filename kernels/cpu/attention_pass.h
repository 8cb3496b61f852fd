/* The passes of attention over tiles, forward and backward, for one element type: attention.c
 * includes this behind attention_tile.h, which has their pieces and says what T and N are. */

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
