/* The kinds of optimizers, out of the rows of optim.def, and the call of a backend's kernel. */
#include "core/dist/watch.h"
#include "flat.h"
#include "profile.h"

#include <math.h>
#include <stdio.h>

#define STATE(name, form, when, first) \
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
#define STATE(name, form, when, first) (when)
#define OPTIM(ID, name, kernel, hyper, ...) \
  case AX_OPTIM_##ID: { \
    const bool kept[] = { __VA_ARGS__ }; \
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) mask |= (uint32_t)kept[k] << k; \
    break; \
  }
#include "core/optim.def"
#undef STATE
  case AX_OPTIM_COUNT: break;
  }
  return mask;
}

double ax_optim_first(ax_optim_kind kind, const ax_hyper *h, int k)
{
  switch (kind) {
#define STATE(name, form, when, first) (first)
#define OPTIM(ID, name, kernel, hyper, ...) \
  case AX_OPTIM_##ID: \
    return ((const double[]){ __VA_ARGS__ })[k];
#include "core/optim.def"
#undef STATE
  case AX_OPTIM_COUNT: break;
  }
  return 0;
}

double ax_optim_number(ax_optim_kind kind, const ax_hyper *h, int64_t step, double before)
{
  const double n = (double)step;
  if (kind == AX_OPTIM_NADAM) return before * h->betas[0] * (1 - 0.5 * pow(0.96, n * h->momentum_decay));
  if (kind == AX_OPTIM_ASGD) return h->lr / pow(1 + h->lambd * h->lr * n, h->alpha);
  return before;
}

ax_status ax_optim_step(ax_device device, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                        const ax_hyper *h, const ax_optim_device_args *device_args)
{
  const ax_backend *backend;
  char name[64];
  ax_status st;

  for (int k = 0; ax_optim_counts(device_args) && k < ax_optims[kind].n_states; k++)
    if (ax_optims[kind].states[k].form == AX_STATE_NUMBER)
      return ax_fail(AX_ENOIMPL,
                     "optimizer: %s keeps %s, which the host reckons: its steps can neither be skipped nor "
                     "counted by the device",
                     ax_optims[kind].name, ax_optims[kind].states[k].name);
  if ((st = ax_backend_of(device, &backend)) != AX_OK) return st;
  if (__builtin_expect(!ax_profiling, 1)) {
    ax_launch_begin(device, ax_optims[kind].name);
    st = backend->optim(device, kind, dtype, segs, n, h, device_args);
    ax_launch_end();
    return st;
  }
  snprintf(name, sizeof name, "optimizer.%s", ax_optims[kind].name);
  const ax_profile_mark m = ax_profile_begin(name, AX_PROFILE_OPTIM, 0);
  st = backend->optim(device, kind, dtype, segs, n, h, device_args);
  if (st == AX_OK) ax_profile_wait(device);
  ax_profile_end(m);
  return st;
}
