/* LAPACK, found at run time.
 *
 * The library is opened by the first kernel that needs it, so inside the rank that uses it and
 * never before ranks are forked.  OpenBLAS would start a pool of threads of its own, whose sums
 * depend on their number: it is opened with one thread, and batches are shared among ours. */
#include "lapack.h"

#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* OpenBLAS has all of LAPACK; liblapack.so.3 is any implementation that the system chose. */
static const char *const names[] = { "libopenblas.so.0", "liblapack.so.3" };

static struct {
  ax_lapack type[2]; /* float32, float64 */
  bool found;
  bool one_thread; /* it was built for programs of one thread: two calls at once disturb each other */
  char why[256];
  void *handle;
} lib;

static bool find(void *handle, char type, const char *name, void *place)
{
  char symbol[24];
  snprintf(symbol, sizeof symbol, "%c%s_", type, name);
  *(void **)place = dlsym(handle, symbol);
  if (!*(void **)place) snprintf(lib.why, sizeof lib.why, "%s: it has no function %s", names[0], symbol);
  return *(void **)place != NULL;
}

static bool find_all(void *handle, char type, ax_lapack *l)
{
  return find(handle, type, "potrf", &l->potrf) && find(handle, type, "getrf", &l->getrf) &&
         find(handle, type, "getrs", &l->getrs) && find(handle, type, "getri", &l->getri) &&
         find(handle, type, "trsm", &l->trsm) && find(handle, type, "geqrf", &l->geqrf) &&
         find(handle, type, "orgqr", &l->orgqr) && find(handle, type, "gesdd", &l->gesdd) &&
         find(handle, type, "gesvd", &l->gesvd) && find(handle, type, "syevd", &l->syevd) &&
         find(handle, type, "gels", &l->gels) && find(handle, type, "gelsy", &l->gelsy) &&
         find(handle, type, "gelsd", &l->gelsd) && find(handle, type, "gelss", &l->gelss);
}

/* With one thread from the start: a pool that has begun would have to be ended again. */
static void *open_quietly(const char *name)
{
  static const char variable[] = "OPENBLAS_NUM_THREADS";
  const char *const set = getenv(variable);
  char *const former = set ? strdup(set) : NULL;
  setenv(variable, "1", 1);
  void *const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (former) setenv(variable, former, 1);
  else unsetenv(variable);
  free(former);
  return handle;
}

/* OpenBLAS takes its kernels for SSE3 on a processor that is newer than its list.  Singular values
 * took 2.4 times as long with them: it is opened again, with kernels for what the processor has. */
static void *open_again_if_unknown(void *handle, const char *name)
{
#ifdef __x86_64__
  static const char variable[] = "OPENBLAS_CORETYPE";
  const char *(*const core)(void) = (const char *(*)(void))dlsym(handle, "openblas_get_corename");
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
             fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

  if (!core || strcmp(core(), "Prescott") != 0 || getenv(variable) || !fused) return handle;
  dlclose(handle);
  setenv(variable, wide ? "SkylakeX" : "Haswell", 1);
  handle = open_quietly(name);
  unsetenv(variable);
#else
  (void)name;
#endif
  return handle;
}

static void open_library(void)
{
  void *handle = NULL;
  const int threads = omp_get_max_threads();

  for (size_t i = 0; i < sizeof names / sizeof *names && !handle; i++)
    if ((handle = open_quietly(names[i]))) handle = open_again_if_unknown(handle, names[i]);
    else if (i == 0) snprintf(lib.why, sizeof lib.why, "%s", dlerror());
  if (!handle) return;
  lib.handle = handle;
  void (*const set_threads)(int) = (void (*)(int))dlsym(handle, "openblas_set_num_threads");
  const char *(*const config)(void) = (const char *(*)(void))dlsym(handle, "openblas_get_config");
  if (set_threads) set_threads(1);
  omp_set_num_threads(threads); /* an OpenBLAS over OpenMP has set ours */
  lib.one_thread = config && strstr(config(), "SINGLE_THREADED");
  lib.found = find_all(handle, 's', &lib.type[0]) && find_all(handle, 'd', &lib.type[1]);
}

ax_status ax_lapack_open(ax_op op, ax_dtype dtype, const ax_lapack **out)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  if (!lib.found)
    return ax_fail(AX_ENOIMPL,
                   "%s: needs LAPACK, %s or %s; on Debian and Ubuntu: apt-get install libopenblas0 (%s)",
                   ax_op_shown(op), names[0], names[1], lib.why);
  *out = &lib.type[dtype == AX_F64];
  return AX_OK;
}

ax_status ax_lapack_function(ax_op op, ax_dtype dtype, const char *name, void *place)
{
  static const char letters[AX_DTYPE_COUNT] = {
    [AX_F32] = 's', [AX_F64] = 'd', [AX_C64] = 'c', [AX_C128] = 'z'
  };
  const ax_lapack *unused;
  char symbol[24];
  const ax_status st = ax_lapack_open(op, AX_F32, &unused);

  if (st != AX_OK) return st;
  snprintf(symbol, sizeof symbol, "%c%s_", letters[dtype], name);
  *(void **)place = dlsym(lib.handle, symbol);
  if (*(void **)place) return AX_OK;
  return ax_fail(AX_ENOIMPL, "%s: the LAPACK of this system has no function %s", ax_op_shown(op), symbol);
}

int ax_lapack_begin(void)
{
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  return threads;
}
void ax_lapack_end(int threads) { omp_set_num_threads(threads); }

/* ---- the batch */

typedef struct batch {
  ax_matrix_fn fn;
  const void *ud;
  char *scratch;
  size_t share;
  int *info;
} batch;

static void run_range(int64_t lo, int64_t hi, void *ud)
{
  const batch *b = ud;
  char *const scratch = b->scratch + (size_t)omp_get_thread_num() * b->share;
  for (int64_t i = lo; i < hi; i++) {
    const int info = b->fn(i, scratch, b->ud);
    if (b->info) b->info[i] = info;
  }
}

static ax_status run_batch(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                           int *info, bool alone, bool keeps_threads)
{
  const int threads = ax_cpu_get_threads();
  batch b = { .fn = fn, .ud = ud, .share = ax_lines(scratch + 1), .info = info };
  const size_t bytes = b.share * (size_t)(alone ? 1 : threads);
  void *room = NULL;
  const ax_status st = ax_alloc(bytes, &room);

  if (st != AX_OK) return st;
  b.scratch = room;
  if (alone && keeps_threads) run_range(0, count, &b);
  else if (alone) {
    const int kept = ax_lapack_begin();
    run_range(0, count, &b);
    ax_lapack_end(kept);
  } else ax_cpu_for(count, work, run_range, &b);
  ax_free(room, bytes);
  return AX_OK;
}

ax_status ax_lapack_each(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                         int *info)
{
  return run_batch(count, work, scratch, fn, ud, info, count < 2 || lib.one_thread, false);
}

ax_status ax_dense_each(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                        int *info)
{
  const bool few = count < 2 || (count < ax_cpu_get_threads() && work / count > 1 << 20);
  return run_batch(count, work, scratch, fn, ud, info, few, true);
}

int64_t ax_lapack_failed(const int *info, int64_t count)
{
  for (int64_t i = 0; i < count; i++)
    if (info[i]) return i;
  return -1;
}

ax_status ax_lapack_try(ax_each_fn *each, int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn,
                        const void *ud, int64_t *bad, int *info)
{
  const size_t bytes = sizeof(int) * (size_t)count + 1;
  void *room = NULL;
  ax_status st;

  *bad = -1;
  if ((st = ax_alloc(bytes, &room)) != AX_OK) return st;
  int *const all = room;
  if ((st = each(count, work, scratch, fn, ud, all)) == AX_OK) *bad = ax_lapack_failed(all, count);
  if (*bad >= 0) *info = all[*bad];
  ax_free(room, bytes);
  return st;
}

const char *ax_lapack_place(const ax_tensor *x, int64_t i, char *text, size_t size)
{
  const int n = x->ndim - 2;
  int64_t at[AX_MAX_DIMS];
  char shape[192];

  for (int d = n - 1; d >= 0; d--) {
    at[d] = i % x->shape[d] + 1;
    i /= x->shape[d];
  }
  if (n == 0) snprintf(text, size, "the matrix");
  else if (n == 1) snprintf(text, size, "matrix %lld of the batch", (long long)at[0]);
  else snprintf(text, size, "matrix %s of the batch", ax_shape_text(n, at, shape, sizeof shape));
  return text;
}

/* ---- elements */

enum { TILE = 32 };

typedef struct wide_element {
  uint64_t part[2];
} wide_element;

/* Tiles go through a place of their own: rows of src and dst that are a power of 2 apart would push
 * each other out of the cache. */
#define TRANSPOSE(T) \
  for (int64_t i0 = 0; i0 < rows; i0 += TILE) \
    for (int64_t j0 = 0; j0 < cols; j0 += TILE) { \
      const int64_t high = rows - i0 < TILE ? rows - i0 : TILE, wide = cols - j0 < TILE ? cols - j0 : TILE; \
      T tile[TILE][TILE]; \
      for (int64_t i = 0; i < high; i++) \
        for (int64_t j = 0; j < wide; j++) tile[j][i] = ((const T *)src)[(i0 + i) * cols + j0 + j]; \
      for (int64_t j = 0; j < wide; j++) \
        memcpy((T *)dst + (j0 + j) * rows + i0, tile[j], sizeof(T) * (size_t)high); \
    }

void ax_lapack_transpose(size_t item, int64_t rows, int64_t cols, const void *src, void *dst)
{
  if (rows == 1 || cols == 1) memcpy(dst, src, item * (size_t)(rows * cols));
  else if (item == 4) TRANSPOSE(uint32_t)
  else if (item == 8) TRANSPOSE(uint64_t)
  else TRANSPOSE(wide_element)
}

/* Both parts of complex numbers count. */
static bool in_parts(ax_dtype *dtype, int64_t *n)
{
  if (ax_is_complex(*dtype)) {
    *dtype = ax_part_dtype(*dtype);
    *n *= 2;
  }
  return *dtype == AX_F32;
}

bool ax_lapack_has_nan(ax_dtype dtype, const void *x, int64_t n)
{
  int any = 0;
  if (in_parts(&dtype, &n))
    for (int64_t i = 0; i < n; i++) any |= isnan(((const float *)x)[i]) != 0;
  else
    for (int64_t i = 0; i < n; i++) any |= isnan(((const double *)x)[i]) != 0;
  return any;
}

bool ax_lapack_not_finite(ax_dtype dtype, const void *x, int64_t n)
{
  int any = 0;
  if (in_parts(&dtype, &n))
    for (int64_t i = 0; i < n; i++) any |= !isfinite(((const float *)x)[i]);
  else
    for (int64_t i = 0; i < n; i++) any |= !isfinite(((const double *)x)[i]);
  return any;
}

void ax_lapack_fill(ax_dtype dtype, void *x, int64_t n, double value)
{
  for (int64_t i = 0; i < n; i++) ax_store_double(dtype, x, i, value);
}

int64_t ax_lapack_work(ax_dtype dtype, const void *answer)
{
  const double size = ax_load_double(dtype, answer, 0);
  return (int64_t)(dtype == AX_F32 ? size * (1 + 0x1p-22) + 1 : size);
}
