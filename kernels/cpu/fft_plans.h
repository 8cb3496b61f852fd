/* Plans of Fourier transforms, for one element type: making them, and keeping those used last. */

static bool FN(make_half)(FN(plan) * p)
{
  double root[2];
  if (!(p->half = fft_table(sizeof(T) * 2 * (size_t)p->n))) return false;
  for (int64_t k = 0; k < p->n; k++) {
    unit_root(k, 2 * p->n, root);
    p->half[2 * k] = (T)root[0], p->half[2 * k + 1] = (T)-root[1];
  }
  return true;
}

static ax_status FN(plan_new)(int64_t n, fft_use use, FN(plan) * *out)
{
  FN(plan) *p = calloc(1, sizeof *p);
  ax_status st = p ? AX_OK : fft_no_memory();
  *out = p;
  if (st != AX_OK) return st;
  p->n = n;
  p->use = use;
  p->refs = 1;
  if (largest_prime(n) > LARGEST) {
    p->kind = FFT_PRIME;
    st = FN(prime_make)(n, fft_is_together(use), &p->prime);
  } else {
    const int64_t rows = !fft_is_together(use) && n >= 4 * FN(LANES) ? FN(rows_of)(n) : 0;
    p->kind = rows ? FFT_SPLIT : FFT_LANES;
    if (rows) st = FN(make_split)(p, rows);
    else if (!FN(passes_make)(&p->first, (int)n)) st = fft_no_memory();
  }
  if (st == AX_OK && use >= FFT_HALF && !FN(make_half)(p)) st = fft_no_memory();
  if (st == AX_OK && use == FFT_HALF && p->kind == FFT_SPLIT) st = FN(make_real)(p);
  if (st == AX_OK) return AX_OK;
  FN(plan_free)(p);
  *out = NULL;
  return st;
}

/* The plans used last are kept: making one costs more than using it. */
static FN(plan) * FN(kept)[FFT_KEPT];

static void FN(drop)(FN(plan) * p)
{
  pthread_mutex_lock(&fft_lock);
  const bool last = --p->refs == 0;
  pthread_mutex_unlock(&fft_lock);
  if (last) FN(plan_free)(p);
}

/* *out: a new reference, for `drop`. */
static ax_status FN(plan_for)(int64_t n, fft_use use, FN(plan) * *out)
{
  static uint64_t clock;
  FN(plan) *found = NULL, *old = NULL;
  ax_status st;

  pthread_mutex_lock(&fft_lock);
  for (int k = 0; k < FFT_KEPT && !found; k++)
    if (FN(kept)[k] && FN(kept)[k]->n == n && FN(kept)[k]->use == use) found = FN(kept)[k];
  if (found) {
    found->refs++;
    found->used = ++clock;
  }
  pthread_mutex_unlock(&fft_lock);
  if ((*out = found)) return AX_OK;
  if ((st = FN(plan_new)(n, use, &found)) != AX_OK) return st;
  *out = found;
  pthread_mutex_lock(&fft_lock);
  int at = 0;
  for (int k = 0; k < FFT_KEPT; k++) {
    if (!FN(kept)[k]) {
      at = k;
      break;
    }
    if (FN(kept)[k]->used < FN(kept)[at]->used) at = k;
  }
  old = FN(kept)[at];
  FN(kept)[at] = found;
  found->refs++;
  found->used = ++clock;
  pthread_mutex_unlock(&fft_lock);
  if (old) FN(drop)(old);
  return AX_OK;
}
