/* Optimizer steps over segment tables: what lies side by side is merged, so that a model whose
 * parameters, gradients and states are flat buffers is one segment. */
#include "capture.h"
#include "profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the kinds */

#define STATE(name, form, when) \
  { \
#name, AX_STATE_##form \
  }
#define N_STATES(...) (int)(sizeof((ax_optim_state[]){ __VA_ARGS__ }) / sizeof(ax_optim_state))
const ax_optim_row ax_optims[AX_OPTIM_COUNT] = {
#define OPTIM(ID, name, kernel, hyper, ...) \
  [AX_OPTIM_##ID] = { #name, hyper, false, N_STATES(__VA_ARGS__), { __VA_ARGS__ } },
#define OPTIM_MATRIX(ID, name, kernel, hyper, ...) \
  [AX_OPTIM_##ID] = { #name, hyper, true, N_STATES(__VA_ARGS__), { __VA_ARGS__ } },
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

/* Flat buffers give every tensor a slot of a multiple of 256 bytes.  The padding is zero in all of
 * them, where every formula here leaves it zero, so a run may bridge it: but only inside one
 * storage, where nothing else can lie between two slots. */
enum { SLOT = 256 };

static bool follows(const void *a, const void *b, int64_t gap)
{
  return !a == !b && (!a || (const char *)b - (const char *)a == gap);
}

/* Does b follow a in every buffer at one and the same distance?  *elements: how many both take
 * together. */
static bool joins(const ax_segment *a, const ax_segment *b, int64_t item, bool bridge, int64_t *elements)
{
  const int64_t size = a->n * item, gap = (const char *)b->param - (const char *)a->param;

  if (a->step != b->step || a->number != b->number || a->work_dtype != b->work_dtype) return false;
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

/* In a recorded step the numbers come from its live block, and what the kernels touch stays alive
 * with it. */
static ax_status record_step(ax_segment *segs, int n, const ax_hyper *h, const ax_optim_live *given,
                             ax_optim_live *live)
{
  for (int k = 0; k < n; k++)
    for (size_t i = 0; i < sizeof segs[k].home / sizeof *segs[k].home; i++)
      ax_capture_hold((ax_storage *)segs[k].home[i]);
  *live = given ? *given : (ax_optim_live){ 0 };
  return ax_capture_optim(h, &live->hyper, &live->ran);
}

ax_status ax_optim_step(ax_device device, ax_optim_kind kind, ax_dtype dtype, ax_segment *segs, int n,
                        const ax_hyper *h, const ax_optim_live *live)
{
  ax_optim_live recorded;
  const int64_t item = (int64_t)ax_dtype_size(dtype);
  /* without an eps, zeros divide zeros in the padding */
  const bool bridge = h->eps > 0 || !strstr(ax_optims[kind].hyper, "eps");
  const ax_backend *backend;
  ax_status st;
  int last = 0;

  if (n == 0) return AX_OK;
  if (dtype != AX_F32 && dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "optimizer: parameters must be float32 or float64, got %s",
                   ax_dtype_name(dtype));
  if (__builtin_expect(ax_recording != NULL, 0)) {
    if ((st = record_step(segs, n, h, live, &recorded)) != AX_OK) return st;
    live = &recorded;
  }
  for (int k = 0; live && k < ax_optims[kind].n_states; k++)
    if (ax_optims[kind].states[k].form == AX_STATE_NUMBER)
      return ax_fail(AX_ENOIMPL,
                     "optimizer: %s keeps %s, which the host reckons: its steps can neither be skipped nor "
                     "counted by the device",
                     ax_optims[kind].name, ax_optims[kind].states[k].name);
  if ((st = ax_backend_of(device, &backend)) != AX_OK) return st;
  for (int k = 1; k < n; k++) {
    int64_t elements;
    if (!ax_optims[kind].by_matrix && joins(&segs[last], &segs[k], item, bridge, &elements))
      segs[last].n = elements;
    else segs[++last] = segs[k];
  }
  if (__builtin_expect(ax_profiling, 0)) {
    char name[64];
    snprintf(name, sizeof name, "optimizer.%s", ax_optims[kind].name);
    const ax_profile_mark m = ax_profile_begin(name, AX_PROFILE_OPTIM, 0);
    st = backend->optim(device, kind, dtype, segs, last + 1, h, live);
    if (st == AX_OK) ax_profile_wait(device);
    ax_profile_end(m);
    return st;
  }
  return backend->optim(device, kind, dtype, segs, last + 1, h, live);
}
