/* Encoded matrices as plain numbers. */
#include "decode_cpu.h"

void ax_cpu_decode_run(const ax_encoded *e, int64_t row, int64_t col, int64_t n, float *out)
{
  if (e->encoding == AX_ENC_INT8) {
    const int8_t *codes = (const int8_t *)e->codes + row * e->cols + col;
    const float scale = e->scales[row];
    for (int64_t i = 0; i < n; i++) out[i] = (float)codes[i] * scale * AX_INT8_UNIT;
    return;
  }
  for (int64_t k = 0; k < n; k += 32) ax_decode_32(e, row, col + k, out + k);
}

typedef struct job {
  ax_encoded e;
  ax_dtype dtype;
  char *out;
} job;

enum { RUN = 256 };

static void rows(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t cols = j->e.cols, item = (int64_t)ax_dtype_size(j->dtype);
  float run[RUN];

  for (int64_t r = lo; r < hi; r++)
    for (int64_t c = 0; c < cols; c += RUN) {
      const int64_t n = cols - c < RUN ? cols - c : RUN;
      char *to = j->out + (r * cols + c) * item;
      ax_cpu_decode_run(&j->e, r, c, n, run);
      if (j->dtype == AX_F32) memcpy(to, run, (size_t)n * sizeof *run);
      else if (j->dtype == AX_F64)
        for (int64_t i = 0; i < n; i++) ((double *)to)[i] = run[i];
      else ax_cpu_float_to_half(j->dtype, run, to, 2, n);
    }
}

ax_status ax_cpu__decode(const ax_call *call)
{
  const ax_tensor *y = call->out[0];
  job j = { .e = ax_encoded_of(call, 0, call->a->decode.encoding, call->a->decode.rows, call->a->decode.cols,
                               call->a->decode.size),
            .dtype = (ax_dtype)y->dtype,
            .out = ax_data(y) };
  if (y->numel) ax_cpu_for(j.e.rows, y->numel, rows, &j);
  return AX_OK;
}
