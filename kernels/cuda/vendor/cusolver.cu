/* Opens cuSOLVER and cuBLAS, and keeps a handle of each for every device.  See cusolver.h. */
#include "cusolver.h"

#ifdef AX_CUSOLVER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime/library.h"
#include "cuda/runtime/stats.h"

static const char SOLVER_NAME[] = "libcusolver.so.*-1", BLAS_NAME[] = "libcublas.so.*";
enum { MOST_DEVICES = 64 };

#define SOLVER_FUNCTIONS(X) \
  X(cusolverDnCreate) \
  X(cusolverDnSetStream) \
  X(cusolverDnCreateGesvdjInfo)
#define BLAS_FUNCTIONS(X) \
  X(cublasCreate_v2) \
  X(cublasSetStream_v2)
static struct {
#define X(name) decltype(&name) p_##name;
  SOLVER_FUNCTIONS(X)
  BLAS_FUNCTIONS(X)
#undef X
} lib;

static ax_solver_table<float> table_s;
static ax_solver_table<double> table_d;
static ax_solver_table<ax_cuda_cx<float>> table_c;
static ax_solver_table<ax_cuda_cx<double>> table_z;
template <> const ax_solver_table<float> &ax_solver_functions<float>(void) { return table_s; }
template <> const ax_solver_table<double> &ax_solver_functions<double>(void) { return table_d; }
template <> const ax_solver_table<ax_cuda_cx<float>> &ax_solver_functions<ax_cuda_cx<float>>(void)
{
  return table_c;
}
template <> const ax_solver_table<ax_cuda_cx<double>> &ax_solver_functions<ax_cuda_cx<double>>(void)
{
  return table_z;
}

static std::mutex lock; /* guards everything below; handles are used with it held */

static struct {
  bool tried, opened;
} library;
static struct {
  cusolverDnHandle_t dn;
  cublasHandle_t blas;
  gesvdjInfo_t jacobi;
} handles[MOST_DEVICES];

/* The functions of the table of letter T; Q and E: what complex matrices have other names for. */
template <class S>
static bool fill_in(void *solver, void *blas, ax_solver_table<S> *t, char letter, const char *q,
                    const char *e)
{
  char name[64];
  bool ok = true;
  auto find = [&](void *file, const char *soname, const char *format, const char *routine, void **out) {
    snprintf(name, sizeof name, format, letter, routine);
    ok = ok && ax_cuda_symbol(file, soname, name, out) == AX_OK;
  };
  auto from_solver = [&](const char *routine, void **out) {
    find(solver, SOLVER_NAME, "cusolverDn%c%s", routine, out);
  };
  auto with_size = [&](const char *routine, void **out, void **size) {
    char both[40];
    snprintf(both, sizeof both, "%s_bufferSize", routine);
    from_solver(routine, out);
    from_solver(both, size);
  };
  auto from_blas = [&](const char *routine, void **out) {
    find(blas, BLAS_NAME, "cublas%c%s", routine, out);
  };
#define AT(member) (void **)&t->member
  with_size("potrf", AT(potrf), AT(potrf_bufferSize));
  with_size("getrf", AT(getrf), AT(getrf_bufferSize));
  with_size("geqrf", AT(geqrf), AT(geqrf_bufferSize));
  with_size("gesvdj", AT(gesvdj), AT(gesvdj_bufferSize));
  with_size(q, AT(orgqr), AT(orgqr_bufferSize));
  with_size(e, AT(syevd), AT(syevd_bufferSize));
  from_solver("potrfBatched", AT(potrfBatched));
  from_solver("getrs", AT(getrs));
  from_blas("trsm_v2", AT(trsm));
  from_blas("trsmBatched", AT(trsmBatched));
  from_blas("getrfBatched", AT(getrfBatched));
  from_blas("getrsBatched", AT(getrsBatched));
#undef AT
  return ok;
}

static bool open_libraries(void)
{
  const char *const wanted = getenv("ACCEL_CUSOLVER");
  void *solver, *blas;

  if (library.tried) return library.opened;
  library.tried = true;
  if (wanted && strcmp(wanted, "0") == 0) return false;
  if (ax_cuda_library(SOLVER_NAME, "linalg", &solver) != AX_OK ||
      ax_cuda_library(BLAS_NAME, "linalg", &blas) != AX_OK)
    return false;
#define X(name) \
  if (ax_cuda_symbol(solver, SOLVER_NAME, #name, (void **)&lib.p_##name) != AX_OK) return false;
  SOLVER_FUNCTIONS(X)
#undef X
#define X(name) \
  if (ax_cuda_symbol(blas, BLAS_NAME, #name, (void **)&lib.p_##name) != AX_OK) return false;
  BLAS_FUNCTIONS(X)
#undef X
  library.opened = fill_in(solver, blas, &table_s, 'S', "orgqr", "syevd") &&
                   fill_in(solver, blas, &table_d, 'D', "orgqr", "syevd") &&
                   fill_in(solver, blas, &table_c, 'C', "ungqr", "heevd") &&
                   fill_in(solver, blas, &table_z, 'Z', "ungqr", "heevd");
  return library.opened;
}

bool ax_solver::fails(const char *library_name, const char *function, int status, bool memory)
{
  st = memory
           ? ax_fail(AX_ENOMEM, "%s: %s has no memory on cuda:%d (%s)", name, library_name, d.index, function)
           : ax_fail(AX_EIO, "%s on cuda:%d: %s: %s failed with status %d", name, d.index, library_name,
                     function, status);
  return false;
}

bool ax_solver::check(cusolverStatus_t s, const char *function)
{
  if (s == CUSOLVER_STATUS_SUCCESS) return true;
  if (s == CUSOLVER_STATUS_NOT_SUPPORTED) {
    st = AX_EAWAY;
    return false;
  }
  return fails("cuSOLVER", function, s, s == CUSOLVER_STATUS_ALLOC_FAILED);
}
bool ax_solver::check(cublasStatus_t s, const char *function)
{
  return s == CUBLAS_STATUS_SUCCESS || fails("cuBLAS", function, s, s == CUBLAS_STATUS_ALLOC_FAILED);
}

/* A recording is left to the CPU, which it refuses: whether cuSOLVER's routines may be replayed is
 * not documented. */
ax_solver::ax_solver(const ax_call *call) : d(call->out[0]->device), name(ax_op_shown(call->op)), hold(lock)
{
  char text[96];
  cudaStream_t stream;
  st = ax_cuda_use(d, &stream);
  if (!ok()) return;
  if (d.index >= MOST_DEVICES || ax_cuda_recording(d.index) || !open_libraries()) {
    st = AX_EAWAY;
    return;
  }
  auto *const h = &handles[d.index];
  if (!h->dn && !check(lib.p_cusolverDnCreate(&h->dn), "cusolverDnCreate")) return;
  if (!h->blas && !check(lib.p_cublasCreate_v2(&h->blas), "cublasCreate")) return;
  if (!h->jacobi && !check(lib.p_cusolverDnCreateGesvdjInfo(&h->jacobi), "cusolverDnCreateGesvdjInfo"))
    return;
  if (!check(lib.p_cusolverDnSetStream(h->dn, stream), "cusolverDnSetStream") ||
      !check(lib.p_cublasSetStream_v2(h->blas, stream), "cublasSetStream"))
    return;
  dn = h->dn;
  blas = h->blas;
  jacobi = h->jacobi;
  snprintf(text, sizeof text, "%s %s, cuSOLVER", name, ax_dtype_name((ax_dtype)call->in[0]->dtype));
  ++*ax_cuda_counter(text);
}

ax_solver::~ax_solver()
{
  for (int k = 0; k < n_held; k++) ax_cuda_give(d, held[k].p, held[k].bytes);
}

void *ax_solver::take(size_t bytes)
{
  void *p = NULL;
  if (!ok()) return NULL;
  if (n_held == (int)(sizeof held / sizeof *held))
    st = ax_fail(AX_ENOMEM, "%s: error inside accel: too many places in memory", name);
  else if ((st = ax_cuda_take(d, bytes ? bytes : 1, &p)) == AX_OK) held[n_held++] = { p, bytes ? bytes : 1 };
  return p;
}

void ax_solver::copy(void *to, const void *from, size_t bytes)
{
  if (ok() && bytes) st = ax_cuda_memory.copy(d, to, d, from, bytes);
}

bool ax_solver::all_zero(const int *numbers, int64_t n)
{
  const size_t bytes = sizeof(int) * (size_t)n;
  void *here = NULL;
  bool zero = true;
  if (!ok() || n == 0) return ok();
  if ((st = ax_alloc(bytes, &here)) != AX_OK) return false;
  st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, here, d, numbers, bytes);
  for (int64_t k = 0; k < n && ok(); k++) zero = zero && ((const int *)here)[k] == 0;
  ax_free(here, bytes);
  return ok() && zero;
}

static __global__ void addresses_kernel(int64_t count, char *first, int64_t bytes, char **out)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) out[i] = first + i * bytes;
}

void *ax_solver::addresses_of(const void *first, size_t bytes, int64_t count)
{
  char **const out = room<char *>(count);
  if (ok())
    st = ax_cuda_launch(name, d, ax_cuda_blocks(count, 256, d.index), 256, addresses_kernel, count,
                        (char *)first, (int64_t)bytes, out);
  return out;
}

#endif
