/* The plugin's one symbol and its table of kernels.
 *
 * A row's kernel is found by its name, ax_cuda_<row>.  The names are weak here: a row without a
 * kernel is NULL, and the dispatcher's error names it. */
#include "dist.h"

#define OP(ID, name, ...) ax_status ax_cuda_##name(const ax_call *call) __attribute__((weak));
#include "core/ops/ops.def"
#undef OP
/* likewise of complex numbers (complex.cu) */
#define OP(ID, name, ...) ax_status ax_cuda_complex_##name(const ax_call *call) __attribute__((weak));
#include "core/ops/ops.def"
#undef OP

ax_status ax_cuda_optim_step(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                             const ax_hyper *h, const ax_optim_device_args *device_args);
ax_status ax_cuda_grad_norm(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p,
                            double *out);
ax_status ax_cuda_grad_scale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor);
ax_status ax_cuda_grad_clamp(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit);
ax_status ax_cuda_grad_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p,
                                 double root, double *out);
ax_status ax_cuda_grad_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                            const double *norm);
ax_status ax_cuda_grad_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                               float *found);
ax_status ax_cuda_scale_update(ax_device d, double *state, const float *found, double growth, double backoff,
                               int64_t interval);
ax_status ax_cuda_find_devices(void);
const char *ax_cuda_describe(void);
const ax_kernel_stat *ax_cuda_stats(int *n, bool reset);
extern const ax_device_memory ax_cuda_memory;
extern const ax_transport ax_cuda_nccl;
extern const struct ax_device_capture ax_cuda_capture;

static ax_kernel kernels[AX_OP_COUNT], complex_kernels[AX_OP_COUNT];

/* The host's side of a GPU has no worker threads. */
static int get_threads(void) { return 1; }
static void set_threads(int n) {}

static const ax_gradient_passes grads = {
  .norm = ax_cuda_grad_norm,
  .scale = ax_cuda_grad_scale,
  .clamp = ax_cuda_grad_clamp,
  .norm_into = ax_cuda_grad_norm_into,
  .clip = ax_cuda_grad_clip,
  .unscale = ax_cuda_grad_unscale,
  .scale_update = ax_cuda_scale_update,
};

AX_API const ax_backend *ax_backend_get(void);

const ax_backend *ax_backend_get(void)
{
  static ax_backend backend = { .abi = AX_INTERFACE,
                                .widens = 1u << AX_F16 | 1u << AX_BF16, /* pointwise.cuh */
                                .joins_norms = true,                    /* norm.cu */
                                .pads_rows = true,                      /* matmul.cu, loss.cu */
                                /* rows that read or write on the way */
                                .defers = true,
                                .fuses_linear = true, /* matmul.cu */
                                .name = "cuda",
                                .level = "cuda",
                                .kernels = kernels,
                                .complex_kernels = complex_kernels,
                                .get_threads = get_threads,
                                .set_threads = set_threads,
                                .describe = ax_cuda_describe,
                                .grads = &grads,
                                .memory = &ax_cuda_memory,
                                .transport = &ax_cuda_nccl,
                                .stats = ax_cuda_stats };
  if (ax_cuda_find_devices() != AX_OK) return NULL;
#define OP(ID, name, ...) \
  kernels[AX_OP_##ID] = ax_cuda_##name; \
  complex_kernels[AX_OP_##ID] = ax_cuda_complex_##name;
#include "core/ops/ops.def"
#undef OP
  backend.optim = ax_cuda_optim_step;
  backend.capture = &ax_cuda_capture;
  return &backend;
}
