/* Eigenvalues and eigenvectors of symmetric tridiagonal matrices, in type T, by divide and conquer:
 * a matrix is two halves and a correction of rank one (Cuppen 1981), whose eigenvalues are the
 * roots of the secular equation (Li 1993), and whose vectors are orthogonal because they are those
 * of the roots that were found (Gu and Eisenstat 1995).  Names and bounds are LAPACK's (stedc,
 * laed2 to laed4).
 *
 * Vectors are rows here: they are copied, turned and multiplied as such. */

/* ---- small matrices: QL with implicit shifts */

/* Rows a and b (n) become c a - s b and s a + c b. */
static void FN(turn_rows)(int64_t n, T *a, T *b, T c, T s)
{
  int64_t i = 0;
  for (; i + VN <= n; i += VN) {
    const V x = *(V *)(a + i), y = *(V *)(b + i);
    *(V *)(a + i) = c * x - s * y;
    *(V *)(b + i) = s * x + c * y;
  }
  for (; i < n; i++) {
    const T x = a[i], y = b[i];
    a[i] = c * x - s * y;
    b[i] = s * x + c * y;
  }
}

/* d, e (n - 1) become eigenvalues, in no order; z (n, n) its rows, the vectors.  Returns whether it
 * converged. */
static bool FN(small)(int64_t n, T *d, T *e, T *z, int64_t ld)
{
  for (int64_t i = 0; i < n; i++) {
    memset(z + i * ld, 0, sizeof(T) * (size_t)n);
    z[i * (ld + 1)] = 1;
  }
  for (int64_t l = 0, round = 0; l < n;) {
    int64_t m = l;
    for (; m + 1 < n; m++)
      if (fabs((double)e[m]) <=
          (double)EPS * sqrt(fabs((double)d[m])) * sqrt(fabs((double)d[m + 1])) + (double)LEAST)
        break;
    if (m == l) {
      l++, round = 0;
      continue;
    }
    if (round++ == 60) return false;
    /* the eigenvalue of the first two rows that is nearer to d[l] */
    WIDE g = ((WIDE)d[l + 1] - d[l]) / (2 * (WIDE)e[l]), r = hypot(g, 1.0), s = 1, c = 1, p = 0;
    g = d[m] - d[l] + e[l] / (g + copysign(r, g));
    for (int64_t i = m - 1; i >= l; i--) {
      const WIDE f = s * e[i], b = c * e[i];
      r = hypot(f, g);
      if (i + 1 < m) e[i + 1] = (T)r;
      if (r == 0) { /* e[i + 1] is 0: start anew */
        d[i + 1] -= (T)p;
        break;
      }
      s = f / r, c = g / r;
      g = d[i + 1] - p;
      const WIDE t = (d[i] - g) * s + 2 * c * b;
      p = s * t;
      d[i + 1] = (T)(g + p);
      g = c * t - b;
      FN(turn_rows)(n, z + i * ld, z + (i + 1) * ld, (T)c, (T)s);
    }
    if (r == 0) continue;
    d[l] -= (T)p;
    e[l] = (T)g;
  }
  return true;
}

/* ---- the secular equation */

typedef struct FN(secular) {
  int64_t k;
  T rho;               /* above 0 */
  const T *pole, *z;   /* (k): the poles, ascending, and their weights */
  T *root;             /* (k), ascending */
  const int64_t *rank; /* (k): which pole stands at a place of what follows */
  T *place, *weight;   /* (k): that pole, and its weight as the roots that were found have it */
  T *gap;              /* (k, k): gap[i][j] is the pole at place j less root i; then the vectors */
  bool failed;
} FN(secular);

static inline V FN(splat)(T x) { return x - (V){ 0 }; }
static inline V FN(vabs)(V x) { return FN(select)(x < FN(splat)(0), -x, x); }
static inline V FN(vsqrt)(V x)
{
  for (int64_t q = 0; q < VN; q++) x[q] = (T)sqrt((double)x[q]);
  return x;
}
static inline bool FN(all)(MASK m)
{
  for (int64_t q = 0; q < VN; q++)
    if (!m[q]) return false;
  return true;
}

/* The sum of z^2 / (pole - x), and its derivative, of the poles up to `split` and of those behind
 * it; x is tau beyond `origin`.  All poles before `first` are on the left of every lane's split,
 * those from `end` on behind it. */
typedef struct FN(sums) {
  V left, left_slope, right, right_slope;
} FN(sums);

static FN(sums) FN(evaluate)(const FN(secular) * e, int64_t first, int64_t end, MASK split, V origin, V tau)
{
  FN(sums) s = { { 0 }, { 0 }, { 0 }, { 0 } };
  int64_t j = 0;
  for (; j < first; j++) {
    const V t = e->z[j] / ((e->pole[j] - origin) - tau);
    s.left += e->z[j] * t, s.left_slope += t * t;
  }
  for (; j < end; j++) {
    const V t = e->z[j] / ((e->pole[j] - origin) - tau);
    const MASK left = (MASK){ 0 } + (LANE)j <= split;
    const V a = (V)((MASK)t & left), b = (V)((MASK)t & ~left);
    s.left += e->z[j] * a, s.left_slope += a * a;
    s.right += e->z[j] * b, s.right_slope += b * b;
  }
  for (; j < e->k; j++) {
    const V t = e->z[j] / ((e->pole[j] - origin) - tau);
    s.right += e->z[j] * t, s.right_slope += t * t;
  }
  return s;
}

/* VN roots from `at` on, and their gaps.  Each is sought between two poles, beyond the nearer one,
 * by a function of these poles that has the slopes of both sums (the middle way); where that leaves
 * the bounds that are known, in their middle.  The last root is beyond all poles. */
static bool FN(find_roots)(const FN(secular) * e, int64_t at)
{
  const int64_t k = e->k, count = lesser(k - at, VN), first = lesser(at, k - 2), end = lesser(at + VN, k);
  const V none = { 0 }, inverse = FN(splat)(1 / e->rho);
  V left_pole, right_pole, origin, width, low = none, high, tau;
  MASK split, last, done = { 0 };
  T norm = 0;
  for (int64_t j = 0; j < k; j++) norm += e->z[j] * e->z[j];
  for (int64_t q = 0; q < VN; q++) {
    const int64_t i = lesser(at + q, k - 1), s = lesser(i, k - 2);
    split[q] = (LANE)s;
    last[q] = i == k - 1 ? -1 : 0;
    left_pole[q] = e->pole[s];
    right_pole[q] = e->pole[s + 1];
    origin[q] = e->pole[i];
    width[q] = i == k - 1 ? e->rho * norm * (1 + 8 * (T)EPS) : e->pole[s + 1] - e->pole[s];
  }
  high = width;
  tau = width * (T)0.5;
  for (int round = 0;; round++) {
    const FN(sums) s = FN(evaluate)(e, first, end, split, origin, tau);
    const V f = inverse + s.left + s.right, slope = s.left_slope + s.right_slope;
    const MASK below = f < none;
    if (round == 0) { /* a sum below 0: the root is in the right half */
      const MASK right = below & ~last;
      origin = FN(select)(right, right_pole, origin);
      low = FN(select)(right, -width, low);
      high = FN(select)(right, none, high);
      tau = FN(select)(right, tau - width, tau);
    }
    low = FN(select)(below, tau, low);
    high = FN(select)(below, high, tau);
    const V bound = (T)EPS * ((T)8 * (s.right - s.left) + inverse + FN(vabs)(tau) * slope);
    done |= FN(vabs)(f) <= bound;
    done |= high - low <= (T)(2 * EPS) * FN(vabs)(tau);
    if (FN(all)(done)) break;
    if (round == 80) return false;

    const V d1 = (left_pole - origin) - tau, d2 = (right_pole - origin) - tau, both = d1 * d2;
    const V c = f - d1 * s.left_slope - d2 * s.right_slope, a = (d1 + d2) * f - both * slope, b = both * f;
    const V under = a * a - (T)4 * b * c, root = FN(vsqrt)(FN(select)(under > none, under, none));
    const V size = FN(vabs)(c);
    const V inner = FN(select)(a <= none, (a - root) / (c + c), (b + b) / (a + root));
    const V outer = FN(select)(a >= none, (a + root) / (size + size), (b + b) / (a - root));
    V step = FN(select)(last, outer, inner);
    step = FN(select)(f * step < none, step, -f / slope);
    const V next = tau + step, middle = (low + high) * (T)0.5;
    tau = FN(select)(done, tau, FN(select)((next > low) & (next < high), next, middle));
  }
  for (int64_t q = 0; q < count; q++) {
    const T o = origin[q], t = tau[q];
    T *const gap = e->gap + (at + q) * k;
    e->root[at + q] = o + t;
    for (int64_t j = 0; j < k; j++) gap[j] = (e->place[j] - o) - t;
  }
  return true;
}

static void FN(roots_range)(int64_t lo, int64_t hi, void *ud)
{
  FN(secular) *e = ud;
  for (int64_t g = lo; g < hi; g++)
    if (!FN(find_roots)(e, g * VN)) e->failed = true;
}

/* weight_j^2 = the product over i of (pole_j - root_i) / (pole_j - pole_i), without the pole itself
 * below. */
static void FN(weights_range)(int64_t lo, int64_t hi, void *ud)
{
  FN(secular) *e = ud;
  const int64_t k = e->k;
  for (int64_t g = lo; g < hi; g++) {
    const int64_t at = g * VN;
    const size_t bytes = sizeof(T) * (size_t)lesser(k - at, VN);
    V product = FN(splat)(1), pole = { 0 }, gap = { 0 };
    MASK own = { 0 };
    for (int64_t q = 0; q < VN && at + q < k; q++) own[q] = (LANE)e->rank[at + q];
    memcpy(&pole, e->place + at, bytes);
    for (int64_t i = 0; i < k; i++) {
      if (bytes == sizeof gap) gap = *(const V *)(e->gap + i * k + at);
      else memcpy(&gap, e->gap + i * k + at, bytes);
      product *= gap / FN(select)(own == (MASK){ 0 } + (LANE)i, FN(splat)(1), pole - e->pole[i]);
    }
    for (int64_t q = 0; q < VN && at + q < k; q++)
      e->weight[at + q] = (T)copysign(sqrt(fabs((double)product[q])), (double)e->z[e->rank[at + q]]);
  }
}

/* The eigenvectors of poles and correction, in place of the gaps. */
static void FN(vectors_range)(int64_t lo, int64_t hi, void *ud)
{
  const FN(secular) *e = ud;
  for (int64_t i = lo; i < hi; i++) {
    T *const s = e->gap + i * e->k;
    WIDE sum[4] = { 0 };
    for (int64_t j = 0; j < e->k; j++) {
      s[j] = e->weight[j] / s[j];
      sum[j % 4] += (WIDE)s[j] * s[j];
    }
    const T scale = (T)(1 / sqrt((sum[0] + sum[1]) + (sum[2] + sum[3])));
    for (int64_t j = 0; j < e->k; j++) s[j] *= scale;
  }
}

/* ---- halves */

typedef struct FN(conquer) {
  int64_t n;
  T *d, *e;              /* the matrix; then d: the values */
  T *z, *other;          /* (n, n): the vectors, as rows; room for as many */
  void *room;            /* of products */
  int64_t *order, *kept; /* (n) each: rows of a node, ascending; those that have a root */
  int64_t *gone, *rank;  /* (n) each: those that have none; see secular */
  int *half;             /* (n): the columns of a row that are not zero: the left (1), the right (2), both */
  T *z_of, *old;         /* (n) each: what the correction weighs for a row; values of rows without root */
  T *pole, *weight;      /* (2 n) each */
  T *root, *gap;         /* (n), (n, n) */
} FN(conquer);

/* The bounds of a node: rows and columns top .. top + n of z, whose halves have n1 and n - n1. */
typedef struct FN(node) {
  int64_t top, n, n1;
  T *d, *z;
} FN(node);

static T FN(largest)(int64_t n, const T *x)
{
  T most = 0;
  for (int64_t i = 0; i < n; i++)
    if (x[i] > most || -x[i] > most) most = x[i] < 0 ? -x[i] : x[i];
  return most;
}

/* Parts the rows into those with a root, ascending, and those without: rows that the correction
 * does not weigh, and rows whose value is that of the next one, after a rotation that gives all
 * weight to the next.  Returns the number of roots. */
static int64_t FN(deflate)(FN(conquer) * c, const FN(node) * x, T rho)
{
  T *const z = c->z_of, *const d = x->d;
  const T most = FN(largest)(x->n, d), heaviest = FN(largest)(x->n, z);
  const T tol = (T)(8 * EPS) * (most > heaviest ? most : heaviest);
  int64_t k = 0, gone = 0, before = -1;

  for (int64_t i = 0, a = 0, b = x->n1; i < x->n; i++)
    c->order[i] = b == x->n || (a < x->n1 && d[a] <= d[b]) ? a++ : b++;
  for (int64_t t = 0; t < x->n; t++) {
    const int64_t i = c->order[t];
    if (rho * (z[i] < 0 ? -z[i] : z[i]) <= tol) {
      c->gone[gone++] = i;
      continue;
    }
    if (before >= 0) {
      const WIDE r = hypot((double)z[i], (double)z[before]), cos = z[i] / r, sin = z[before] / r;
      if (fabs((double)((d[i] - d[before]) * cos * sin)) <= (double)tol) {
        const WIDE low = d[before], high = d[i];
        FN(turn_rows)(x->n, x->z + before * c->n, x->z + i * c->n, (T)cos, (T)sin);
        d[before] = (T)(low * cos * cos + high * sin * sin);
        d[i] = (T)(low * sin * sin + high * cos * cos);
        z[i] = (T)r;
        z[before] = 0;
        c->half[i] |= c->half[before];
        c->gone[gone++] = before;
      } else c->kept[k++] = before;
    }
    before = i;
  }
  if (before >= 0) c->kept[k++] = before;
  for (int64_t i = 1; i < gone; i++) /* mostly in order */
    for (int64_t j = i; j > 0 && d[c->gone[j]] < d[c->gone[j - 1]]; j--) {
      const int64_t row = c->gone[j];
      c->gone[j] = c->gone[j - 1];
      c->gone[j - 1] = row;
    }
  return k;
}

/* The roots of k rows and the vectors that the correction makes of them, in the order of `rank`:
 * rows of the left half, of both, of the right one. */
static bool FN(solve_secular)(FN(conquer) * c, const FN(node) * x, int64_t k, T rho, int64_t halves[4])
{
  FN(secular)
  e = { .k = k,
        .rho = rho,
        .pole = c->pole,
        .z = c->weight,
        .root = c->root,
        .rank = c->rank,
        .place = c->pole + k,
        .weight = c->weight + k,
        .gap = c->gap };
  static const int which[] = { 1, 3, 2 };
  int64_t at = 0;
  for (int64_t t = 0; t < k; t++) c->pole[t] = x->d[c->kept[t]], c->weight[t] = c->z_of[c->kept[t]];
  for (int h = 0; h < 3; h++) {
    halves[h] = at;
    for (int64_t t = 0; t < k; t++)
      if (c->half[c->kept[t]] == which[h]) c->rank[at] = t, e.place[at++] = c->pole[t];
  }
  halves[3] = at;
  if (k == 1) {
    c->root[0] = c->pole[0] + rho * c->weight[0] * c->weight[0];
    c->gap[0] = 1;
    return true;
  }
  const int64_t groups = (k + VN - 1) / VN;
  ax_cpu_for(groups, 8 * k * k, FN(roots_range), &e);
  if (e.failed) return false;
  ax_cpu_for(groups, 2 * k * k, FN(weights_range), &e);
  ax_cpu_for(k, 2 * k * k, FN(vectors_range), &e);
  return true;
}

/* One node of two solved halves, whose coupling is rho. */
static bool FN(merge)(FN(conquer) * c, const FN(node) * x, T rho)
{
  const int64_t n = x->n, n1 = x->n1, n2 = n - n1, ld = c->n;
  const T scale = (T)0.70710678118654752440;
  int64_t halves[4];
  for (int64_t i = 0; i < n; i++) {
    c->half[i] = i < n1 ? 1 : 2;
    c->z_of[i] = scale * x->z[i * ld + (i < n1 ? n1 - 1 : n1)] * (T)(i >= n1 && rho < 0 ? -1 : 1);
  }
  rho = rho < 0 ? -2 * rho : 2 * rho;
  const int64_t k = FN(deflate)(c, x, rho), gone = n - k;
  if (k > 0 && !FN(solve_secular)(c, x, k, rho, halves)) return false;

  /* aside: the kept rows' left parts, then their right ones, then the rows without root */
  T *const left = c->other;
  T *const right = left + (k > 0 ? halves[2] * n1 : 0);
  T *const rest = right + (k > 0 ? (k - halves[1]) * n2 : 0);
  for (int64_t t = 0; k > 0 && t < halves[2]; t++)
    memcpy(left + t * n1, x->z + c->kept[c->rank[t]] * ld, sizeof(T) * (size_t)n1);
  for (int64_t t = k > 0 ? halves[1] : 0; t < k; t++)
    memcpy(right + (t - halves[1]) * n2, x->z + c->kept[c->rank[t]] * ld + n1, sizeof(T) * (size_t)n2);
  for (int64_t t = 0; t < gone; t++) {
    c->old[t] = x->d[c->gone[t]];
    memcpy(rest + t * n, x->z + c->gone[t] * ld, sizeof(T) * (size_t)n);
  }
  if (k > 0) {
    FN(product)
    (k, n1, halves[2], c->gap, k, 1, left, n1, 1, x->z, ld, AX_DENSE_SET, c->room);
    FN(product)
    (k, n2, k - halves[1], c->gap + halves[1], k, 1, right, n2, 1, x->z + n1, ld, AX_DENSE_SET, c->room);
  }
  /* into ascending order, from the last one: a row with a root only moves down */
  for (int64_t r = n - 1, a = k - 1, b = gone - 1; r >= 0; r--) {
    const bool root = b < 0 || (a >= 0 && c->root[a] >= c->old[b]);
    const T *const from = root ? x->z + a * ld : rest + b * n;
    x->d[r] = root ? c->root[a] : c->old[b];
    if (!root || a != r) memcpy(x->z + r * ld, from, sizeof(T) * (size_t)n);
    if (root) a--;
    else b--;
  }
  return true;
}

/* Rows and values of a small node, in ascending order. */
static void FN(sort_rows)(const FN(node) * x, int64_t ld)
{
  for (int64_t i = 0; i + 1 < x->n; i++) {
    int64_t least = i;
    for (int64_t j = i + 1; j < x->n; j++)
      if (x->d[j] < x->d[least]) least = j;
    if (least == i) continue;
    const T d = x->d[i];
    x->d[i] = x->d[least];
    x->d[least] = d;
    FN(swap_rows)(x->z + i * ld, x->z + least * ld, x->n);
  }
}

static bool FN(divide)(FN(conquer) * c, int64_t top, int64_t n)
{
  const FN(node) x = { top, n, n / 2, c->d + top, c->z + top * (c->n + 1) };
  T *const e = c->e + top;
  if (n <= LEAF) {
    if (!FN(small)(n, x.d, e, x.z, c->n)) return false;
    FN(sort_rows)(&x, c->n);
    return true;
  }
  const T rho = e[x.n1 - 1], size = rho < 0 ? -rho : rho;
  x.d[x.n1 - 1] -= size;
  x.d[x.n1] -= size;
  return FN(divide)(c, top, x.n1) && FN(divide)(c, top + x.n1, n - x.n1) && FN(merge)(c, &x, rho);
}

/* What eigenvectors() keeps beside its result. */
static size_t FN(conquer_bytes)(int64_t n)
{
  return sizeof(T) * (size_t)(2 * n * n + 7 * n) + (sizeof(int64_t) * 4 + sizeof(int)) * (size_t)n + 64;
}

/* d becomes the eigenvalues, ascending, of d and e (n - 1); z (n, n): their vectors, one a row.
 * memory: conquer_bytes.  Returns whether all roots were found. */
static bool FN(eigenvectors)(int64_t n, T *d, T *e, T *z, void *memory, void *room)
{
  FN(conquer) c = { .n = n, .d = d, .e = e, .z = z, .room = room };
  c.order = memory;
  c.kept = c.order + n;
  c.gone = c.kept + n;
  c.rank = c.gone + n;
  c.other = (T *)(c.rank + n);
  c.gap = c.other + n * n;
  c.z_of = c.gap + n * n;
  c.old = c.z_of + n;
  c.pole = c.old + n;
  c.weight = c.pole + 2 * n;
  c.root = c.weight + 2 * n;
  c.half = (int *)(c.root + n);

  const T from_d = FN(largest)(n, d), from_e = FN(largest)(n - 1, e);
  int power = 0;
  (void)frexp((double)(from_d > from_e ? from_d : from_e), &power);
  memset(z, 0, sizeof(T) * (size_t)(n * n));
  for (int64_t i = 0; i < n; i++) d[i] = (T)ldexp((double)d[i], -power);
  for (int64_t i = 0; i + 1 < n; i++) e[i] = (T)ldexp((double)e[i], -power);
  if (!FN(divide)(&c, 0, n)) return false;
  for (int64_t i = 0; i < n; i++) d[i] = (T)ldexp((double)d[i], power);
  return true;
}

/* ---- the whole way */

/* From a row of a to the next: no multiple of a page apart. */
static int64_t FN(padded)(int64_t n) { return whole(n, SQUARE) + SQUARE; }

static size_t FN(tridiagonal_bytes)(int64_t n)
{
  return ax_lines(sizeof(T) * (size_t)(FN(padded)(n) * (whole(n, SQUARE) + 3 * TB + PARTS) + n));
}
static size_t FN(vectors_bytes)(int64_t n)
{
  return ax_lines(sizeof(T) * (size_t)(n * n) + FN(conquer_bytes)(n));
}
static size_t FN(symmetric_room)(int64_t n, bool vectors)
{
  return FN(tridiagonal_bytes)(n) + (vectors ? FN(vectors_bytes)(n) : 0) +
         ax_dense_room(sizeof(T) == 8 ? AX_F64 : AX_F32, n, n);
}

/* The upper triangle of x, or its lower one, which is as good, as tridiagonal() reads it, times a
 * power of 2 that keeps squares in range.  Returns the power.  Tiles go through a place of their
 * own: rows that are a power of 2 apart would push each other out of the cache. */
static int FN(load_triangle)(int64_t n, const T *x, bool upper, T *a, int64_t ld)
{
  T most = 0, tile[TILE][TILE];
  memset(a, 0, sizeof(T) * (size_t)(whole(n, SQUARE) * ld));
  for (int64_t i = 0; i < n; i++) {
    const T size = FN(largest)(upper ? n - i : i + 1, x + i * n + (upper ? i : 0));
    most = size > most ? size : most;
  }
  const ax_dense_scale scale = ax_dense_scale_of((double)most, (double)FAR);
  const T factor = (T)scale.first, again = (T)scale.second;
  for (int64_t i = 0; i < n; i += TILE)
    for (int64_t j = i; j < n; j += TILE) { /* what is below the diagonal is never read */
      const int64_t high = lesser(n - i, TILE), wide = lesser(n - j, TILE);
      for (int64_t q = 0; !upper && q < wide; q++)
        for (int64_t p = 0; p < high; p++) tile[p][q] = x[(j + q) * n + i + p];
      for (int64_t p = 0; p < high; p++) {
        const T *const from = upper ? x + (i + p) * n + j : tile[p];
        for (int64_t q = 0; q < wide; q++) a[(i + p) * ld + j + q] = from[q] * factor * again;
      }
    }
  for (int64_t i = 0; i < n; i++) /* but for the squares on it */
    for (int64_t j = i / SQUARE * SQUARE; j < i; j++) a[i * ld + j] = a[j * ld + i];
  return scale.power;
}

static bool FN(symmetric)(int64_t n, const void *matrix, bool upper, void *values, void *couplings,
                          void *vectors, void *memory)
{
  const int64_t ld = FN(padded)(n), m = n - 1;
  T *const d = values, *const e = couplings, *const q = vectors, *const a = memory;
  T *const panel = a + whole(n, SQUARE) * ld, *const tau = panel + (3 * TB + PARTS) * ld;
  char *const behind = (char *)memory + FN(tridiagonal_bytes)(n);
  T *const z = (T *)behind, *const rest = z + n * n;
  void *const room = behind + (q ? FN(vectors_bytes)(n) : 0);
  const int power = FN(load_triangle)(n, matrix, upper, a, ld);

  FN(tridiagonal)(n, a, ld, d, e, tau, panel, room);
  if (q) {
    if (!FN(eigenvectors)(n, d, e, z, rest, room)) return false;
    ax_lapack_transpose(sizeof(T), n, n, z, q);
    /* the reflections, as columns */
    for (int64_t j = 0; j < m; j++) memcpy(z + j * m, a + j * ld + 1, sizeof(T) * (size_t)m);
    ax_lapack_transpose(sizeof(T), m, m, z, rest);
    FN(reflect)(m, m, rest, m, tau, false, false, n, q + n, n, room);
  }
  for (int64_t i = 0; power && i < n; i++) {
    d[i] = (T)ldexp((double)d[i], power);
    if (i < m) e[i] = (T)ldexp((double)e[i], power);
  }
  return true;
}
