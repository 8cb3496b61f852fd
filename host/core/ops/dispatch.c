/* The op table and its one dispatcher: infer, allocate, run the kernel, record.
 *
 * Everybody who runs a row comes here: the binding (bind/ops.c), gradients, composite rows and C
 * callers, through ax_run.  Where autocast is on, ax_run asks autocast.c, which casts the inputs
 * and comes back to ax_run_plain.
 *
 *   ax_run_plain   the row's rule (ax_infer_...)  shapes and types of the results, what the kernel
 *                                                 needs of its inputs; complex.c first, if complex
 *                  ax_join (join.c)               may leave the call for later or take over another
 *                  ax_dispatch_kernel             copies inputs that are not as needed, and calls
 *                  ax_kernel_call                 has the memory ready, notes it in a recording,
 *                    launches
 *                  ax_record (tape/autograd.c)    a node, where an input requires a gradient
 *
 * A view shares memory and has no kernel; a host row computes in its rule; a composite row calls
 * other rows, which record themselves.  inplace.c goes the same way into a tensor that is there. */
#include "capture.h"
#include "core/device/meta.h"
#include "core/dist/watch.h"
#include "core/ops/complex.h"
#include "core/ops/dispatch.h"
#include "core/ops/float8.h"
#include "core/ops/infer.h"
#include "profile.h"
#include "core/ops/rules.h"

#include <stdio.h>
#include <string.h>

/* IS(NONE_, gradient) is 1 where the table has NONE, and 0 elsewhere: a macro that exists expands
 * to two arguments, and the second one is taken.  It keeps the rows constants. */
#define SECOND(a, b, ...) b
#define PICK(...) SECOND(__VA_ARGS__, 0, 0)
#define IS(prefix, word) PICK(prefix##word)
#define NONE_NONE ~, 1
const ax_op_row ax_ops[AX_OP_COUNT] = {
#define OP(ID, name, sig, form, rule, gradient, saves, autocast, traits, summary, ...) \
  [AX_OP_##ID] = { \
    #name, sig, summary, AX_FORM_##form, AX_CAST_##autocast, !IS(NONE_, gradient), ((traits)&INPLACE) != 0 \
  },
#include "core/ops/ops.def"
#undef OP
};

#define ax_grad_NONE NULL
#define JOIN(fn) .join = ax_join_##fn,
#define COMPOSED(fn) .composed = ax_complex_##fn,
#define FLOPS(fn) .flops = ax_flops_##fn,
#define CALL(fn) /* the binding's (bind/other_calls.c) */
const ax_op_impl ax_op_impls[AX_OP_COUNT] = {
#define OP(ID, name, sig, form, rule, gradient, saves, autocast, traits, summary, ...) \
  [AX_OP_##ID] = { ax_infer_##rule, ax_grad_##gradient, saves, traits, __VA_ARGS__ },
#include "core/ops/ops.def"
#undef OP
};
#undef ax_grad_NONE
#undef JOIN
#undef COMPOSED
#undef FLOPS
#undef CALL

const char *ax_op_shown(ax_op op)
{
  static _Thread_local char text[40];
  const char *const name = ax_ops[op].name;

  if (strncmp(name, "_linalg_", 8) != 0) return name + (name[0] == '_');
  snprintf(text, sizeof text, "linalg.%s", name + 8);
  return text;
}

/* ---- kernels */

/* The kernel of a row, by whether complex numbers are among the operands. */
static ax_kernel kernel_of(const ax_backend *backend, ax_op op, int n_in, ax_tensor *const *in,
                           const ax_tensor *out)
{
  if (__builtin_expect(backend->complex_kernels && backend->complex_kernels[op], 0)) {
    bool any = ax_is_complex((ax_dtype)out->dtype);
    for (int k = 0; k < n_in; k++) any = any || (in[k] && ax_is_complex((ax_dtype)in[k]->dtype));
    if (any) return backend->complex_kernels[op];
  }
  return backend->kernels[op];
}

/* Has the memory of operands ready: ax_iter takes their addresses. */
static ax_status have_ready(int n_in, ax_tensor *const *in, int n_out, ax_tensor *const *out)
{
  ax_status st = AX_OK;
  for (int k = 0; k < n_in && st == AX_OK; k++)
    if (in[k]) st = ax_tensor_ready(in[k], AX_READ);
  for (int k = 0; k < n_out && st == AX_OK; k++) /* a gradient's slot, say, which a call that waits reads */
    if (out[k]) st = ax_tensor_ready(out[k], AX_WRITE);
  return st;
}

ax_status ax_kernel_call(ax_op op, const ax_attrs *a, int n_in, ax_tensor *const *in, int n_out,
                         ax_tensor *const *out, const ax_iter *it)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(out[0]->device, &backend);
  if (st != AX_OK) return st;
  const ax_kernel kernel = kernel_of(backend, op, n_in, in, out[0]);
  if (!kernel)
    return ax_fail(AX_ENOIMPL, "%s: the %s backend has no kernel for it", ax_ops[op].name, backend->name);
  if (__builtin_expect(ax_recording != NULL, 0)) {
    const ax_status noted = ax_capture_kernel(op, n_in, in, n_out, out);
    if (noted != AX_OK) return noted;
  }
  const ax_status ready = have_ready(n_in, in, n_out, out);
  if (ready != AX_OK) return ready;
  const ax_call call = { .op = op, .a = a, .n_in = n_in, .n_out = n_out, .in = in, .out = out, .iter = it };
  ax_launch_begin(out[0]->device, ax_ops[op].name);
  const ax_status run = kernel(&call);
  ax_launch_end();
  return run;
}

/* Copy with cast between equal shapes or broadcast; no recording. */
ax_status ax_dispatch_copy(ax_tensor *dst, ax_tensor *src)
{
  ax_iter it;
  const ax_status ready = dst->numel ? have_ready(1, &src, 1, &dst) : AX_OK;
  if (ready != AX_OK) return ready;
  ax_iter_pointwise(&it, dst, 1, &src, NULL, (ax_dtype)src->dtype);
  return dst->numel ? ax_kernel_call(AX_OP_COPY, &(ax_attrs){ .n_list = -1 }, 1, &src, 1, &dst, &it) : AX_OK;
}

/* The types beside float32 that the row's kernel reads and writes as they are. */
ax_status ax_dispatch_widened(const ax_infer *q, ax_device device, uint32_t *types)
{
  const ax_backend *backend;
  *types = 0;
  if (ax_ops[q->op].form != AX_FORM_POINTWISE || q->compute != AX_F32 || q->moves) return AX_OK;
  const ax_status st = ax_backend_of(device, &backend);
  if (st == AX_OK) *types = backend->widens;
  return st;
}

/* Inputs as the kernel needs them.  own[k] is what has to be released. */
static ax_status prepare_inputs(const ax_infer *q, ax_device device, ax_tensor **in, ax_tensor **own)
{
  uint32_t widens;
  const ax_status known = ax_dispatch_widened(q, device, &widens);

  if (known != AX_OK) return known;
  for (int k = 0; k < q->args->n_in; k++) {
    ax_tensor *t = in[k] = q->args->in[k];
    if (!t) continue;
    const bool widen = q->positions >> k & 1 && t->dtype != AX_I64;
    const ax_dtype wanted = widen ? AX_I64 : q->cast >> k & 1 ? q->compute : (ax_dtype)t->dtype;
    const bool cast = t->dtype != wanted && !(widens >> t->dtype & 1);
    const bool spread =
        q->channels_last >> k & 1 && !ax_strides_are_channels_last(t->ndim, t->shape, t->strides);
    if (!cast && !spread && !(q->contiguous >> k & 1 && !ax_tensor_is_contiguous(t))) continue;
    ax_status st =
        ax_tensor_new_on(t->device, cast ? wanted : (ax_dtype)t->dtype, t->ndim, t->shape, &own[k]);
    if (st == AX_OK && q->channels_last >> k & 1)
      ax_strides_channels_last(t->ndim, t->shape, own[k]->strides);
    else if (st == AX_OK && !(q->contiguous >> k & 1) && ax_strides_are_dense(t->ndim, t->shape, t->strides))
      memcpy(own[k]->strides, t->strides, sizeof own[k]->strides);
    if (st == AX_OK) st = ax_dispatch_copy(own[k], t);
    if (st != AX_OK) return st;
    in[k] = own[k];
  }
  return AX_OK;
}

/* The type in which a kernel gets numbers.  Arithmetic on half types runs in float32, so their
 * numbers need not be rounded: 65536, which no half holds, is a fine factor.  Where bits are moved
 * (where) or compared, they are of the type itself. */
static ax_dtype number_dtype(const ax_infer *q)
{
  return ax_is_half(q->compute) && q->out[0].dtype == q->compute && !q->moves ? AX_F32 : q->compute;
}

/* Inputs with half numbers in place of float32 ones that a waiting cast would give: *narrow to
 * release, changed in `in`. */
static ax_status take_narrow(ax_op op, const ax_args *args, ax_tensor **in, ax_tensor **narrow)
{
  const int k = ax_has(op, WAITS0) ? 0 : 1;
  ax_status st;

  *narrow = NULL;
  if (!ax_has(op, NARROW)) return AX_OK;
  if (k >= args->n_in || !args->in[k] || !ax_is_later(args->in[k])) return AX_OK;
  if ((st = ax_later_source(args->in[k], narrow)) != AX_OK || !*narrow) return st;
  for (int i = 0; i < args->n_in; i++) in[i] = args->in[i];
  in[k] = *narrow;
  return AX_OK;
}

ax_status ax_dispatch_run_kernel(const ax_infer *q, ax_tensor **out)
{
  ax_tensor *in[AX_MAX_INPUTS] = { 0 }, *own[AX_MAX_INPUTS] = { 0 };
  ax_number numbers[AX_MAX_INPUTS];
  ax_iter it;
  ax_status st;

  AX_TRY(prepare_inputs(q, out[0]->device, in, own));
  switch (ax_ops[q->op].form) {
  case AX_FORM_POINTWISE:
    if (out[0]->numel == 0) goto out;
    for (int k = 0; k < q->args->n_in; k++)
      if (!in[k]) ax_store_double(number_dtype(q), &numbers[k], 0, q->args->num[k]);
    AX_TRY(have_ready(q->args->n_in, in, 1, out));
    ax_iter_pointwise(&it, out[0], q->args->n_in, in, numbers, number_dtype(q));
    st = ax_kernel_call(q->op, &q->a, q->args->n_in, in, 1, out, &it);
    break;
  case AX_FORM_REDUCE:
    AX_TRY(have_ready(1, in, q->n_out, out));
    ax_iter_reduce(&it, out[0], in[0], q->axes);
    st = ax_kernel_call(q->op, &q->a, 1, in, q->n_out, out, &it);
    break;
  default: st = ax_kernel_call(q->op, &q->a, q->args->n_in, in, q->n_out, out, NULL);
  }
out:
  for (int k = 0; k < q->args->n_in; k++) ax_tensor_release(own[k]);
  return st;
}

/* A replay runs no code of the host. */
static ax_status refuse_recording(const ax_infer *q)
{
  return ax_fail(AX_EINVAL,
                 "%s: the CPU computes it while a step is captured, which a replay could not repeat: call it "
                 "outside the step",
                 ax_op_shown(q->op));
}

/* A kernel that only the CPU has: inputs are copied there where they are elsewhere, and the results
 * back. */
static ax_status run_on_cpu(ax_infer *q, ax_tensor **out)
{
  const ax_args *const given = q->args;
  ax_tensor *in[AX_MAX_INPUTS] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  ax_args args = *given;
  ax_status st = AX_OK;

  if (ax_recording) return refuse_recording(q);
  for (int k = 0; k < args.n_in; k++) {
    ax_tensor *const t = given->in[k];
    if (!t) continue;
    AX_TRY(ax_tensor_new_on((ax_device){ AX_CPU, 0 }, (ax_dtype)t->dtype, t->ndim, t->shape, &in[k]));
    AX_TRY(ax_transfer(in[k], t, false));
  }
  for (int k = 0; k < q->n_out; k++) {
    /* a result in place may be larger than the row's own: a number that fills it */
    AX_TRY(ax_tensor_new_on((ax_device){ AX_CPU, 0 }, (ax_dtype)out[k]->dtype, out[k]->ndim, out[k]->shape,
                            &results[k]));
    if (q->channels_last >> (8 + k) & 1)
      ax_strides_channels_last(results[k]->ndim, results[k]->shape, results[k]->strides);
  }
  args.in = in;
  q->args = &args;
  st = ax_dispatch_run_kernel(q, results);
  q->args = given;
  for (int k = 0; k < q->n_out && st == AX_OK; k++) st = ax_transfer(out[k], results[k], false);
out:
  for (int k = 0; k < args.n_in; k++) ax_tensor_release(in[k]);
  for (int k = 0; k < q->n_out; k++) ax_tensor_release(results[k]);
  return st;
}

/* Whether the device has no kernel for a row that the CPU can do in its place. */
static bool away(const ax_infer *q, ax_tensor **out)
{
  const ax_backend *backend;
  if (out[0]->device.kind == AX_CPU) return false;
  if (ax_complex_away(q, out)) return true;
  return ax_ops[q->op].form == AX_FORM_CPU && ax_backend_of(out[0]->device, &backend) == AX_OK &&
         !kernel_of(backend, q->op, q->args->n_in, q->args->in, out[0]);
}

ax_status ax_dispatch_kernel(ax_infer *q, ax_tensor **out)
{
  const ax_status st = away(q, out) ? AX_EAWAY : ax_dispatch_run_kernel(q, out);
  return st == AX_EAWAY ? run_on_cpu(q, out) : st;
}

/* ---- what every way of running begins with */

static ax_device device_of(const ax_args *args)
{
  for (int k = 0; k < args->n_in; k++)
    if (args->in[k]) return args->in[k]->device;
  return (ax_device){ AX_CPU, 0 };
}

ax_status ax_dispatch_check_inputs(ax_op op, const ax_args *args)
{
  const bool list = ax_ops[op].form == AX_FORM_HOST || ax_ops[op].form == AX_FORM_COMPOSITE;
  const ax_device device = device_of(args);

  if (args->n_in > AX_MAX_INPUTS && !list)
    return ax_fail(AX_EINVAL, "%s: got %d tensors", ax_ops[op].name, args->n_in);
  for (int k = 0; k < args->n_in; k++) {
    ax_tensor *t = args->in[k];
    if (!t) continue;
    if (!ax_same_device(t->device, device)) {
      const ax_device empty = t->device.kind == AX_META ? t->device : device;
      const ax_backend *none;
      if (empty.kind == AX_META) return ax_backend_of(empty, &none);
      return ax_fail(AX_EINVAL, "%s: tensors lie on different devices: %s and %s", ax_ops[op].name,
                     AX_DEVICE_TEXT(device), AX_DEVICE_TEXT(t->device));
    }
    ax_status st = t->base && ax_grad_enabled() ? ax_history(t) : AX_OK;
    if (__builtin_expect(t->storage->claims != NULL, 0) && st == AX_OK && !ax_joins(op, k) &&
        ax_ops[op].form != AX_FORM_VIEW && ax_ops[op].form != AX_FORM_COMPOSITE)
      st = ax_storage_ready(t->storage, AX_READ, t->offset);
    if (st == AX_OK && __builtin_expect(ax_recording != NULL, 0)) st = ax_capture_input(ax_ops[op].name, t);
    if (st != AX_OK) return st;
  }
  return AX_OK;
}

ax_special ax_dispatch_special(const ax_args *args)
{
  int last = 0;
  for (int k = 0; k < args->n_in; k++)
    if (args->in[k] && args->in[k]->dtype > last) last = args->in[k]->dtype;
  if (__builtin_expect(last < AX_C64, 1)) return AX_NOT_SPECIAL;
  return ax_is_float8((ax_dtype)last) ? AX_ANY_FLOAT8 : AX_ANY_COMPLEX;
}

static bool recordable(ax_op op, const ax_args *args)
{
  return ax_op_impls[op].gradient && ax_would_record(args->n_in, args->in);
}

/* Refuses a floating result without a gradient rule when an input needs a gradient: backward would
 * not detect it. */
ax_status ax_dispatch_check_gradient(const ax_infer *q)
{
  if (ax_op_impls[q->op].gradient || q->n_out == 0 || !ax_has_gradient(q->out[0].dtype) ||
      !ax_would_record(q->args->n_in, q->args->in))
    return AX_OK;
  return ax_fail(AX_EGRAD, "%s: has no gradient; call it inside tensor.no_grad, or on x:detach()", q->name);
}

/* The layout of a result.  A pointwise one keeps the order of dims of the first input that has its
 * shape and fills its memory, so that a network whose convolutions work with channels innermost
 * stays so throughout; others are contiguous unless their rule sets strides. */
static void choose_strides(const ax_infer *q, ax_tensor **out)
{
  for (int k = 0; k < q->n_out; k++)
    if (q->channels_last >> (8 + k) & 1)
      ax_strides_channels_last(out[k]->ndim, out[k]->shape, out[k]->strides);
  if (out[0]->ndim < 2 || (ax_ops[q->op].form != AX_FORM_POINTWISE && !ax_has(q->op, CASTS))) return;
  for (int k = 0; k < q->args->n_in; k++) {
    const ax_tensor *t = q->args->in[k];
    if (!t || !ax_same_shape(t, out[0]->ndim, out[0]->shape)) continue;
    if (ax_tensor_is_contiguous(t)) return;
    if (!ax_strides_are_dense(t->ndim, t->shape, t->strides)) continue;
    memcpy(out[0]->strides, t->strides, sizeof *t->strides * (size_t)t->ndim);
    return;
  }
}

/* ---- running (into a tensor that is there: inplace.c) */

static ax_status dispatch(ax_op op, const ax_args *args, ax_tensor **out)
{
  if (__builtin_expect(ax_autocast_now.enabled, 0) && ax_ops[op].autocast != AX_CAST_KEEP)
    return ax_run_cast(op, args, out);
  return ax_run_plain(op, args, out);
}

ax_status ax_run(ax_op op, const ax_args *args, ax_tensor **out)
{
  if (__builtin_expect(ax_profiling, 0)) return ax_profile_run(op, args, out, false, dispatch);
  return dispatch(op, args, out);
}

/* A row that a kernel computes: infers its results, makes them, and runs the kernel, or joins it to
 * what waits (join.c). */
static ax_status run_kernel(ax_infer *q, ax_tensor **out)
{
  const ax_args *args = q->args;
  ax_tensor *in[AX_MAX_INPUTS], *narrow = NULL;
  ax_args narrowed;
  bool joined;
  ax_status st;

  AX_TRY(take_narrow(q->op, args, in, &narrow));
  if (narrow) {
    narrowed = *args;
    narrowed.in = in;
    q->args = &narrowed;
    q->a.wide = true;
  }
  AX_TRY(ax_op_impls[q->op].infer(q));
  AX_TRY(ax_dispatch_check_gradient(q));
  for (int k = 0; k < q->n_out; k++)
    AX_TRY((q->padded >> k & 1 ? ax_tensor_new_padded : ax_tensor_new_on)(device_of(args), q->out[k].dtype,
                                                                          q->out[k].ndim, q->out[k].shape,
                                                                          &out[k]));
  choose_strides(q, out);
  AX_TRY(ax_join(q, out, &joined));
  if (!joined) st = ax_dispatch_kernel(q, out);
out:
  q->args = args;
  ax_tensor_release(narrow);
  return st;
}

ax_status ax_run_plain(ax_op op, const ax_args *args, ax_tensor **out)
{
  const ax_op_impl *impl = &ax_op_impls[op];
  ax_infer q;
  ax_status st;
  bool former;

  memset(&q, 0, offsetof(ax_infer, a));
  q.op = op;
  q.name = ax_ops[op].name;
  q.args = args;
  q.a = args->a;
  q.result = out;

  memset(out, 0, AX_MAX_OUT * sizeof *out);
  AX_TRY(ax_dispatch_check_inputs(op, args));
  const ax_special special = ax_dispatch_special(args);
  if (special == AX_ANY_COMPLEX) {
    if (impl->composed) return impl->composed(&q);
    if (!ax_has(op, COMPLEX | CONJUGATES)) return ax_complex_refused(op, args);
  } else if (special == AX_ANY_FLOAT8) {
    AX_TRY(ax_float8_check(op, args, NULL));
    if (ax_has(op, FLOAT8_WIDE)) return ax_float8_run(&q);
  }
  switch (ax_ops[op].form) {
  case AX_FORM_COMPOSITE: return impl->infer(&q);
  case AX_FORM_VIEW:
    AX_TRY(impl->infer(&q));
    while (q.n_out < AX_MAX_OUT && out[q.n_out]) ax_view_of(out[q.n_out++], args->in[0]);
    if (out[0]->dtype != args->in[0]->dtype) ax_view_foreign(out[0]);
    break;
  case AX_FORM_HOST:
    former = ax_grad_set_enabled(false);
    st = impl->infer(&q);
    ax_grad_set_enabled(former);
    if (st != AX_OK) goto out;
    q.n_out = 1;
    break;
  default: AX_TRY(run_kernel(&q, out));
  }
  if (!recordable(op, args)) return AX_OK;
  st = ax_record(op, args, &q.a, q.n_out, out, impl->saves & ~q.unsaved);
out:
  if (st != AX_OK)
    for (int k = 0; k < AX_MAX_OUT; k++) {
      ax_tensor_release(out[k]);
      out[k] = NULL;
    }
  return st;
}
