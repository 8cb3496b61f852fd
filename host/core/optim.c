/* Optimizer steps and gradient norms over segment tables: what lies side by side is merged, so that a model whose parameters,
 * gradients and states are flat buffers is one segment. */
#include "core/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the kinds */

#define STATE(name, form, when) { #name, AX_STATE_##form }
#define N_STATES(...) (int)(sizeof((ax_optim_state[]){ __VA_ARGS__ }) / sizeof(ax_optim_state))
const ax_optim_row ax_optims[AX_OPTIM_COUNT] = {
#define OPTIM(ID, name, kernel, hyper, ...) [AX_OPTIM_##ID] = { #name, hyper, false, N_STATES(__VA_ARGS__), { __VA_ARGS__ } },
#define OPTIM_MATRIX(ID, name, kernel, hyper, ...) [AX_OPTIM_##ID] = { #name, hyper, true, N_STATES(__VA_ARGS__), { __VA_ARGS__ } },
#include "core/optim.def"
};
#undef STATE

uint32_t ax_optim_needs(ax_optim_kind kind, const ax_hyper *h)
{
  uint32_t mask = 0;
  switch (kind) {
#define STATE(name, form, when) (when)
#define OPTIM(ID, name, kernel, hyper, ...) \
  case AX_OPTIM_##ID: { \
    const bool kept[] = { __VA_ARGS__ }; \
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) mask |= (uint32_t)kept[k] << k; \
    break; \
  }
#include "core/optim.def"
  case AX_OPTIM_COUNT: break;
  }
  return mask;
}

double ax_optim_number(ax_optim_kind kind, const ax_hyper *h, int64_t step, double before)
{
  if (kind != AX_OPTIM_NADAM) return before;
  return before * h->betas[0] * (1 - 0.5 * pow(0.96, (double)step * h->momentum_decay));
}

/* ---- a step */

/* Flat buffers give every tensor a slot of a multiple of 256 bytes.  The padding is zero in all of them, where every formula here leaves
 * it zero, so a run may bridge it: but only inside one storage, where nothing else can lie between two slots. */
enum { SLOT = 256 };

static bool follows(const void *a, const void *b, int64_t gap)
{
  return !a == !b && (!a || (const char *)b - (const char *)a == gap);
}

/* Does b follow a in every buffer at one and the same distance?  *elements: how many both take together. */
static bool joins(const ax_segment *a, const ax_segment *b, int64_t item, bool bridge, int64_t *elements)
{
  const int64_t size = a->n * item, gap = (const char *)b->param - (const char *)a->param;

  if (a->step != b->step || a->number != b->number) return false;
  for (int k = 0; k < 3 + AX_MAX_STATES; k++) {
    const bool used = k < 2 || (k == 2 ? a->work != NULL : a->state[k - 3] != NULL);
    if (used) bridge &= a->home[k] && a->home[k] == b->home[k];
  }
  if (!(gap == size || (bridge && gap == (size + SLOT - 1) / SLOT * SLOT))) return false;
  if (!follows(a->grad, b->grad, gap) || !follows(a->work, b->work, gap / item * 2)) return false;
  for (int k = 0; k < AX_MAX_STATES; k++)
    if (!follows(a->state[k], b->state[k], gap)) return false;
  *elements = gap / item + b->n;
  return true;
}

ax_status ax_optim_step(ax_device device, ax_optim_kind kind, ax_dtype dtype, ax_segment *segs, int n, const ax_hyper *h)
{
  const int64_t item = (int64_t)ax_dtype_size(dtype);
  /* without an eps, zeros divide zeros in the padding */
  const bool bridge = h->eps > 0 || !strstr(ax_optims[kind].hyper, "eps");
  const ax_backend *backend;
  ax_status st;
  int last = 0;

  if (n == 0) return AX_OK;
  if (dtype != AX_F32 && dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "optimizer: parameters must be float32 or float64, got %s", ax_dtype_name(dtype));
  if ((st = ax_backend_of(device, &backend)) != AX_OK) return st;
  for (int k = 1; k < n; k++) {
    int64_t elements;
    if (!ax_optims[kind].by_matrix && joins(&segs[last], &segs[k], item, bridge, &elements)) segs[last].n = elements;
    else segs[++last] = segs[k];
  }
  if (__builtin_expect(ax_profiling, 0)) {
    char name[64];
    snprintf(name, sizeof name, "optimizer.%s", ax_optims[kind].name);
    const ax_profile_mark m = ax_profile_begin(name, AX_PROFILE_OPTIM, 0);
    st = backend->optim(device, kind, dtype, segs, last + 1, h);
    if (st == AX_OK) ax_profile_wait(device);
    ax_profile_end(m);
    return st;
  }
  return backend->optim(device, kind, dtype, segs, last + 1, h);
}

/* ---- many tensors at once */

/* The device of the first tensor from *at on that none before it lies on, with *at behind that tensor; false at the end. */
static bool next_device(int n, ax_tensor *const *list, int *at, ax_device *d)
{
  while (*at < n) {
    const ax_tensor *t = list[(*at)++];
    bool seen = !t;
    for (int k = 0; !seen && k < *at - 1; k++) {
      if (!list[k]) continue;
      seen = ax_same_device(list[k]->device, t->device); /* mostly the first one says so */
    }
    if (seen) continue;
    *d = t->device;
    return true;
  }
  return false;
}

/* What of a list can go through one kernel call: contiguous tensors of `dtype` on `d`.  Not merged where they touch: a norm must not depend
 * on where tensors lie. */
static int segments_of(ax_device d, ax_dtype dtype, int n, ax_tensor *const *list, ax_segment *segs)
{
  int m = 0;
  for (int k = 0; k < n; k++)
    if (list[k] && list[k]->dtype == dtype && ax_same_device(list[k]->device, d) && ax_tensor_is_contiguous(list[k]))
      segs[m++] = (ax_segment){ .grad = ax_data(list[k]), .n = list[k]->numel };
  return m;
}

static bool stands_alone(const ax_tensor *t) { return t && ((t->dtype != AX_F32 && t->dtype != AX_F64) || !ax_tensor_is_contiguous(t)); }

static ax_status check_all_float(const char *what, int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k] && !ax_is_float((ax_dtype)list[k]->dtype))
      return ax_fail(AX_EDTYPE, "%s: tensor %d is %s; all must be of a floating-point type", what, k + 1, ax_dtype_name((ax_dtype)list[k]->dtype));
  return AX_OK;
}

/* The sum, or the extreme, of two parts of a norm; a NaN wins. */
static double joined(double p, double a, double b)
{
  if (!isinf(p)) return a + b;
  if (a != a) return a;
  return b != b || (p > 0 ? b > a : b < a) ? b : a;
}

/* Adds what a float32 or float64 copy of `t` brings. */
static ax_status add_norm_of(ax_tensor *t, double p, double *sum)
{
  const ax_backend *backend;
  const ax_dtype dtype = t->dtype == AX_F64 ? AX_F64 : AX_F32;
  ax_tensor *cast = NULL, *flat = NULL;
  double part;
  ax_status st;

  AX_TRY(ax_backend_of(t->device, &backend));
  AX_TRY(ax_cast(t, dtype, &cast));
  AX_TRY(ax_contiguous(cast, &flat));
  AX_TRY(backend->norm(t->device, dtype, &(ax_segment){ .grad = ax_data(flat), .n = flat->numel }, 1, p, &part));
  *sum = joined(p, *sum, part);
out:
  ax_tensor_release(flat);
  ax_tensor_release(cast);
  return st;
}

ax_status ax_norm_all(int n, ax_tensor *const *list, double p, double *out)
{
  static const ax_dtype dtypes[] = { AX_F32, AX_F64 };
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_segment *segs = NULL;
  double sum = p == -INFINITY ? INFINITY : 0;
  int64_t elements = 0;
  ax_device device;
  int at = 0;
  ax_status st;

  *out = 0;
  if (p == 0 || p != p) st = ax_fail(AX_ERANGE, "norm: norm_type must be a number other than 0, got %g", p);
  else st = check_all_float("norm", n, list);
  if (st != AX_OK) goto out;
  segs = ax_calloc((size_t)(n ? n : 1), sizeof *segs);
  if (!segs) { st = AX_ENOMEM; goto out; }
  while (next_device(n, list, &at, &device)) {
    AX_TRY(ax_backend_of(device, &backend));
    for (int d = 0; d < 2; d++) {
      const int m = segments_of(device, dtypes[d], n, list, segs);
      double part;
      if (!m) continue;
      AX_TRY(backend->norm(device, dtypes[d], segs, m, p, &part));
      sum = joined(p, sum, part);
    }
  }
  for (int k = 0; k < n; k++) {
    if (list[k]) elements += list[k]->numel;
    if (stands_alone(list[k])) AX_TRY(add_norm_of(list[k], p, &sum));
  }
  *out = !elements ? 0 : isinf(p) ? sum : p == 2 ? sqrt(sum) : p == 1 ? sum : pow(sum, 1 / p);
out:
  ax_grad_set_enabled(recording);
  ax_mfree(segs);
  return st;
}

/* Runs a kernel that rewrites float32 and float64 tensors, and an op on the others. */
static ax_status rewrite_all(const char *what, int n, ax_tensor *const *list, double number, bool clamp)
{
  static const ax_dtype dtypes[] = { AX_F32, AX_F64 };
  const bool recording = ax_grad_set_enabled(false);
  const ax_backend *backend;
  ax_segment *segs = NULL;
  ax_device device;
  int at = 0;
  ax_status st;

  AX_TRY(check_all_float(what, n, list));
  segs = ax_calloc((size_t)(n ? n : 1), sizeof *segs);
  if (!segs) { st = AX_ENOMEM; goto out; }
  while (next_device(n, list, &at, &device)) {
    AX_TRY(ax_backend_of(device, &backend));
    for (int d = 0; d < 2; d++) {
      const int m = segments_of(device, dtypes[d], n, list, segs);
      if (m) AX_TRY((clamp ? backend->clamp : backend->scale)(device, dtypes[d], segs, m, number));
    }
  }
  for (int k = 0; k < n; k++) {
    if (!list[k]) continue;
    if (!stands_alone(list[k])) {
      ax_touch(list[k]);
      continue;
    }
    ax_args args = { .n_in = 2, .in = (ax_tensor *[]){ list[k], NULL }, .scalars = 2, .num = { 0, number } };
    if (!clamp) AX_TRY(ax_run_inplace(AX_OP_MUL, &args, list[k]));
    else {
      AX_TRY(ax_run_inplace(AX_OP_MINIMUM, &args, list[k]));
      args.num[1] = -number;
      AX_TRY(ax_run_inplace(AX_OP_MAXIMUM, &args, list[k]));
    }
  }
out:
  ax_grad_set_enabled(recording);
  ax_mfree(segs);
  return st;
}

ax_status ax_scale_all(int n, ax_tensor *const *list, double factor) { return rewrite_all("scale", n, list, factor, false); }
ax_status ax_clamp_all(int n, ax_tensor *const *list, double limit) { return rewrite_all("clamp", n, list, limit, true); }
