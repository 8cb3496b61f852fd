/* Optimizer steps and gradient norms over segment tables: what lies side by side is merged, so that a model whose parameters,
 * gradients and states are flat buffers is one segment. */
#include "core/core.h"

#include <math.h>
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

ax_status ax_optim_step(ax_optim_kind kind, ax_dtype dtype, ax_segment *segs, int n, const ax_hyper *h)
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
  if ((st = ax_backend_of((ax_device){ AX_CPU, 0 }, &backend)) != AX_OK) return st;
  for (int k = 1; k < n; k++) {
    int64_t elements;
    if (!ax_optims[kind].by_matrix && joins(&segs[last], &segs[k], item, bridge, &elements)) segs[last].n = elements;
    else segs[++last] = segs[k];
  }
  return backend->optim(kind, dtype, segs, last + 1, h);
}

/* Gradients as segments, contiguous ones merged where they touch; all of one dtype. */
static ax_status grad_segments(const char *what, int n, ax_tensor *const *params, ax_segment **out, int *count, ax_dtype *dtype)
{
  ax_segment *segs = ax_calloc((size_t)(n ? n : 1), sizeof *segs);
  int m = 0;

  *out = segs;
  if (!segs) return AX_ENOMEM;
  *dtype = AX_F32;
  for (int k = 0; k < n; k++) {
    const ax_tensor *g = params[k]->grad;
    if (!g) continue;
    if (m && g->dtype != *dtype)
      return ax_fail(AX_EDTYPE, "%s: gradients of %s and %s in one call", what, ax_dtype_name(*dtype), ax_dtype_name((ax_dtype)g->dtype));
    if (!ax_is_float((ax_dtype)g->dtype) || !ax_tensor_is_contiguous(g))
      return ax_fail(AX_EINVAL, "%s: the gradient of parameter %d is not a contiguous floating-point tensor", what, k + 1);
    *dtype = (ax_dtype)g->dtype;
    segs[m++] = (ax_segment){ .grad = ax_data(g), .n = g->numel };
  }
  *count = m;
  return AX_OK;
}

ax_status ax_grad_norm(int n, ax_tensor *const *params, double p, double *out)
{
  const ax_backend *backend;
  ax_segment *segs = NULL;
  ax_dtype dtype;
  double sum;
  int count;
  ax_status st;

  *out = 0;
  if (!(p > 0)) return ax_fail(AX_ERANGE, "grad_norm: norm_type must be above 0, got %g", p);
  AX_TRY(ax_backend_of((ax_device){ AX_CPU, 0 }, &backend));
  AX_TRY(grad_segments("grad_norm", n, params, &segs, &count, &dtype));
  AX_TRY(backend->norm(dtype, segs, count, p, &sum));
  *out = isinf(p) ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
out:
  ax_mfree(segs);
  return st;
}

ax_status ax_grad_scale(int n, ax_tensor *const *params, double factor)
{
  const ax_backend *backend;
  ax_segment *segs = NULL;
  ax_dtype dtype;
  int count;
  ax_status st;

  AX_TRY(ax_backend_of((ax_device){ AX_CPU, 0 }, &backend));
  AX_TRY(grad_segments("grad_scale", n, params, &segs, &count, &dtype));
  AX_TRY(backend->scale(dtype, segs, count, factor));
  for (int k = 0; k < n; k++)
    if (params[k]->grad) params[k]->grad->version->edits++;
out:
  ax_mfree(segs);
  return st;
}
