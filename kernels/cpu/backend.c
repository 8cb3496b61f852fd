/* The plugin's one symbol and its table of kernels.  A row of ops.def without a kernel does not
 * link. */
#include "cpu.h"

#include <stdio.h>

#include "gemm.h"

#define KERNEL_POINTWISE(name) ax_cpu_##name
#define KERNEL_REDUCE(name) ax_cpu_##name
#define KERNEL_KERNEL(name) ax_cpu_##name
#define KERNEL_CPU(name) ax_cpu_##name
#define KERNEL_VIEW(name) NULL
#define KERNEL_HOST(name) NULL
#define KERNEL_COMPOSITE(name) NULL

static const ax_kernel kernels[AX_OP_COUNT] = {
#define OP(ID, name, signature, form, ...) [AX_OP_##ID] = KERNEL_##form(name),
#include "core/ops/ops.def"
#undef OP
};

static const char *describe(void)
{
  static __thread char text[96];
  const int n = ax_cpu_get_threads();
  snprintf(text, sizeof(text), "oneDNN %s, %d thread%s", ax_dnnl_version(), n, n == 1 ? "" : "s");
  return text;
}

#ifdef __x86_64__
#define LEVEL "x86-64-" AX_CPU_LEVEL
#else
#define LEVEL AX_CPU_LEVEL
#endif

static const ax_gradient_passes grads = {
  .norm = ax_cpu_norm_all,
  .scale = ax_cpu_scale_all,
  .clamp = ax_cpu_clamp_all,
  .norm_into = ax_cpu_norm_into,
  .clip = ax_cpu_clip,
  .unscale = ax_cpu_unscale,
  .scale_update = ax_cpu_scale_update,
};

AX_API const ax_backend *ax_backend_get(void);

const ax_backend *ax_backend_get(void)
{
  static const ax_backend backend = {
    .abi = AX_INTERFACE,
    .widens = 1u << AX_F16 | 1u << AX_BF16, /* block by block: ax_cpu_pointwise */
    .float_bias = true,                     /* matmul.c */
    .by_planes = true,                      /* grid_sample.c */
    .name = "cpu",
    .level = LEVEL,
    .kernels = kernels,
    .optim = ax_cpu_optim,
    .grads = &grads,
    .get_threads = ax_cpu_get_threads,
    .set_threads = ax_cpu_set_threads,
    .describe = describe,
    .stats = ax_cpu_stats,
  };
  return &backend;
}
