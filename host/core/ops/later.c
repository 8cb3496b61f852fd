/* Kernel calls that wait until a script or another kernel reads their result.
 *
 * Memory bounds a step, and most passes over a tensor exist because its reader is another call: the
 * cast of a model's logits to float32 and their loss; batch norm and relu; a residual sum and its
 * norm.  Such a call on a device only takes its result's memory.  A row that can do its work on the
 * way takes it over (join.c) or reads what it would have been made of (cross_entropy).  Everything
 * else that reads the result has the call run first: at the dispatcher, where a failure is an
 * error, and in ax_data, which no reader goes around.  What nobody reads never runs.
 *
 * The graph knows nothing of this: nodes, hooks and saved tensors are those of calls at once, and
 * so are the bits.
 *
 * Writes: ax_kernel_call, and before any other write ax_will_write, have those calls run that read
 * the memory. */
#include "capture.h"
#include "core/ops/later.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local ax_later *all;

static void forget(ax_later *l)
{
  *(l->former ? &l->former->next : &all) = l->next;
  if (l->next) l->next->former = l->former;
  l->to->later = NULL;
  for (int k = 0; k < l->n_in; k++)
    if (l->in[k]) {
      l->in[k]->storage->later_reads--;
      ax_tensor_release(l->in[k]);
    }
  ax_tensor_release(l->more[0]), ax_tensor_release(l->more[1]), ax_tensor_release(l->half);
  ax_mfree(l->clipping);
  ax_mfree(l);
}

bool ax_later_possible(const ax_tensor *t)
{
  return t->device.kind == AX_CUDA && t->numel >= AX_LATER_LEAST && !ax_recording;
}

static ax_status without_history(const ax_tensor *t, ax_tensor **out)
{
  return ax_tensor_over(t->storage, (ax_dtype)t->dtype, t->ndim, t->shape, t->strides, t->offset, out);
}

static void add(ax_later *l, ax_storage *to)
{
  for (int k = 0; k < l->n_in; k++)
    if (l->in[k]) l->in[k]->storage->later_reads++;
  l->to = to;
  l->next = all;
  if (all) all->former = l;
  all = l->to->later = l;
}

bool ax_later_add(ax_op op, const ax_attrs *a, int n_in, ax_tensor *const *in, const ax_tensor *out,
                  ax_later **made)
{
  ax_later *l;

  if (made) *made = NULL;
  if (!ax_later_possible(out) || out->offset || out->storage->later || n_in > AX_LATER_INPUTS) return false;
  for (int k = 0; k < n_in; k++)
    if (in[k] && (in[k]->storage->later || in[k]->storage->exposed)) return false;
  if (!(l = ax_calloc(1, sizeof *l))) return false;
  for (int k = 0; k < n_in; k++)
    if (in[k] && without_history(in[k], &l->in[k]) != AX_OK) {
      for (int i = 0; i < k; i++) ax_tensor_release(l->in[i]);
      ax_mfree(l);
      return false;
    }
  l->op = op;
  l->a = *a;
  l->n_in = n_in;
  l->dtype = (ax_dtype)out->dtype;
  l->ndim = out->ndim;
  memcpy(l->shape, out->shape, sizeof l->shape);
  memcpy(l->strides, out->strides, sizeof l->strides);
  add(l, out->storage);
  if (made) *made = l;
  return true;
}

ax_later *ax_later_of(const ax_tensor *t)
{
  ax_later *const l = t->storage->later;
  if (!l || l->clipping || t->offset || (ax_dtype)t->dtype != l->dtype ||
      !ax_same_shape(t, l->ndim, l->shape))
    return NULL;
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] > 1 && t->strides[d] != l->strides[d]) return NULL;
  return l;
}

void ax_later_done(ax_later *l) { forget(l); }

/* ---- clipping
 *
 * An optimizer's pass reads each gradient once and multiplies on the way (optim/step.c).  The call
 * waits on: should a script read a gradient after the step, it is clipped then.  Gradients that are
 * dropped (zero_grad) are taken off, and are never clipped. */

static int by_offset(const void *a, const void *b)
{
  const ax_span *p = a, *q = b;
  return (p->offset > q->offset) - (p->offset < q->offset);
}

bool ax_later_clip(ax_storage *to, ax_dtype dtype, int n, ax_span *runs, double max_norm, ax_tensor *norm)
{
  ax_later *l = NULL;

  if (ax_recording || ax_comparing || to->later || to->later_reads || to->exposed || norm->storage->later ||
      norm->storage->exposed)
    return false;
  qsort(runs, (size_t)n, sizeof *runs, by_offset);
  for (int k = 1; k < n; k++)
    if (runs[k].offset < runs[k - 1].offset + runs[k - 1].n) return false;
  if (!(l = ax_calloc(1, sizeof *l))) return false;
  l->clipping = ax_malloc(sizeof *l->clipping + (size_t)n * sizeof *runs);
  if (!l->clipping || without_history(norm, &l->in[0]) != AX_OK) {
    ax_mfree(l->clipping);
    ax_mfree(l);
    return false;
  }
  *l->clipping = (ax_clipping){ .max_norm = max_norm, .n = n, .left = n };
  memcpy(l->clipping->runs, runs, (size_t)n * sizeof *runs);
  l->op = AX_OP_COUNT;
  l->n_in = 1;
  l->dtype = dtype;
  add(l, to);
  return true;
}

/* The run that is exactly t. */
static ax_span *run_of(const ax_later *l, const ax_tensor *t)
{
  const ax_span key = { t->offset, t->numel };
  ax_span *r = bsearch(&key, l->clipping->runs, (size_t)l->clipping->n, sizeof key, by_offset);
  return r && r->n == t->numel && (ax_dtype)t->dtype == l->dtype && ax_tensor_is_contiguous(t) ? r : NULL;
}

ax_later *ax_later_clip_of(const ax_tensor *t)
{
  ax_later *const l = t->storage->later;
  return l && l->clipping && run_of(l, t) ? l : NULL;
}

static ax_status clip(ax_later *l)
{
  const double max_norm = l->clipping->max_norm;
  const ax_device d = l->to->device;
  const ax_dtype dtype = l->dtype;
  char *const data = l->to->data;
  ax_segment *segs = ax_calloc((size_t)l->clipping->n, sizeof *segs);
  ax_tensor *norm = ax_tensor_retain(l->in[0]);
  const ax_backend *backend;
  int n = 0;
  ax_status st = segs ? ax_backend_of(d, &backend) : AX_ENOMEM;

  for (int k = 0; st == AX_OK && k < l->clipping->n; k++) {
    const ax_span *r = &l->clipping->runs[k];
    if (r->n) segs[n++] = (ax_segment){ .grad = data + (size_t)r->offset * ax_dtype_size(dtype), .n = r->n };
  }
  if (st == AX_OK) {
    forget(l);
    st = backend->clip(d, dtype, segs, n, max_norm, ax_data(norm));
  }
  ax_tensor_release(norm);
  ax_mfree(segs);
  return st;
}

ax_status ax_later_drop(const ax_tensor *t, int holders)
{
  ax_later *const l = t->storage->later;
  ax_span *r;

  if (!l->clipping || !(r = run_of(l, t))) return AX_OK;
  if (t->refs != holders || t->shared || t->grad_fn) return clip(l); /* a script may read it yet */
  r->n = 0;
  if (--l->clipping->left == 0) forget(l);
  return AX_OK;
}

/* ---- running */

/* What is read is what the call was made with: its inputs keep their memory, and are not written
 * before. */
static ax_status run(ax_later *l)
{
  ax_tensor *in[AX_LATER_INPUTS] = { 0 }, *out[3] = { 0 };
  const int n_in = l->n_in, n_out = l->more[1] ? 3 : l->more[0] ? 2 : 1;
  const ax_op op = l->op;
  const ax_attrs a = l->a;
  ax_iter it;
  ax_status st;

  if (l->clipping) return clip(l);
  AX_TRY(ax_tensor_over(l->to, l->dtype, l->ndim, l->shape, l->strides, 0, &out[0]));
  for (int k = 0; k < n_in; k++) in[k] = l->in[k] ? ax_tensor_retain(l->in[k]) : NULL;
  for (int k = 1; k < n_out; k++) out[k] = ax_tensor_retain(l->more[k - 1]);
  forget(l);
  if (ax_ops[op].form == AX_FORM_POINTWISE)
    ax_iter_pointwise(&it, out[0], n_in, in, NULL, op == AX_OP_COPY ? (ax_dtype)in[0]->dtype : AX_F32);
  st = ax_kernel_call(op, &a, n_in, in, n_out, out, ax_ops[op].form == AX_FORM_POINTWISE ? &it : NULL);
out:
  for (int k = 0; k < n_in; k++) ax_tensor_release(in[k]);
  for (int k = 0; k < n_out; k++) ax_tensor_release(out[k]);
  return st;
}

/* Those that read s. */
static ax_status run_readers(const ax_storage *s)
{
  ax_status st = AX_OK;
  for (ax_later *l = all; l && st == AX_OK && s->later_reads;) {
    bool reads = false;
    for (int k = 0; k < l->n_in; k++) reads = reads || (l->in[k] && l->in[k]->storage == s);
    if (reads) st = run(l);
    l = reads ? all : l->next; /* a run may have freed others */
  }
  return st;
}

ax_status ax_later_now(ax_storage *s, bool write)
{
  const ax_status st = s->later ? run(s->later) : AX_OK;
  return st == AX_OK && write && s->later_reads ? run_readers(s) : st;
}

void ax_storage_settle(ax_storage *s, bool write) { (void)ax_later_now(s, write); }

void ax_later_gone(ax_storage *s) { forget(s->later); }

ax_status ax_later_all(void)
{
  ax_status st = AX_OK;
  while (st == AX_OK && all) st = run(all);
  return st;
}

/* Only a fresh result of an op whose memory nobody else shares is cast later. */
bool ax_later_cast(const ax_tensor *x, const ax_tensor *y)
{
  if (!ax_is_half((ax_dtype)x->dtype) || y->dtype != AX_F32 || !x->grad_fn || x->view || x->shared ||
      x->storage->refs != 1 || x->storage->later_reads ||
      !(ax_tensor_is_contiguous(x) || ax_strides_are_padded(x->ndim, x->shape, x->strides)) ||
      !ax_tensor_is_contiguous(y))
    return false;
  return ax_later_add(AX_OP_COPY, &(ax_attrs){ .n_list = -1 }, 1, (ax_tensor *[]){ (ax_tensor *)x }, y, NULL);
}

/* Likewise where the rows of `half` are padded and those of t are not; NULL where t shows other
 * things than rows, or parts of rows. */
static ax_status shown_in_rows(const ax_tensor *t, const ax_tensor *half, ax_tensor **out)
{
  const int64_t n = half->shape[half->ndim - 1], row = half->strides[half->ndim - 2];
  int64_t strides[AX_MAX_DIMS], within = t->offset % n;

  for (int d = 0; d < t->ndim; d++) {
    strides[d] = t->strides[d] % n == 0 ? t->strides[d] / n * row : t->strides[d];
    if (t->strides[d] % n && t->shape[d] > 1) within += (t->shape[d] - 1) * t->strides[d];
  }
  if (within >= n) return AX_OK;
  return ax_tensor_over(half->storage, (ax_dtype)half->dtype, t->ndim, t->shape, strides,
                        half->offset + t->offset / n * row + t->offset % n, out);
}

static ax_status shown_as(const ax_tensor *t, const ax_tensor *half, ax_tensor **out)
{
  if (ax_strides_are_padded(half->ndim, half->shape, half->strides)) return shown_in_rows(t, half, out);
  return ax_tensor_over(half->storage, (ax_dtype)half->dtype, t->ndim, t->shape, t->strides,
                        t->offset + half->offset, out);
}

ax_status ax_later_source(const ax_tensor *t, ax_tensor **out)
{
  const ax_later *l = t->storage->later;
  *out = NULL;
  return l && l->op == AX_OP_COPY && t->dtype == AX_F32 ? shown_as(t, l->in[0], out) : AX_OK;
}

ax_status ax_later_rounded(const ax_tensor *t, ax_dtype dtype, ax_tensor **out)
{
  const ax_later *l = t->storage->later;
  *out = NULL;
  return l && l->half && t->dtype == AX_F32 && (ax_dtype)l->half->dtype == dtype ? shown_as(t, l->half, out)
                                                                                 : AX_OK;
}
