/* Kernel calls that wait until a script or another kernel reads their result.
 *
 * Memory bounds a step, and most passes over a tensor exist because its reader is another call: the
 * cast of a model's logits to float32 and their loss; batch norm and relu; a residual sum and its
 * norm.  Such a call on a device only takes its result's memory.  A row that can do its work on the
 * way takes it over (join.c) or reads what it would have been made of (cross_entropy).  A call
 * whose result nobody reads never runs.
 *
 * Who talks to whom: join.c adds calls (ax_later_add), and finds the one that a result waits for
 * (ax_later_of).  A call puts a claim on its result's memory and on that of its inputs; so
 * everybody else (dispatcher, collectives, files, bindings) only knows ax_tensor_ready, which has
 * the call run, and fails where it fails.  A call that failed waits on, and can be tried again.
 *
 * The graph knows nothing of this: nodes, hooks and saved tensors are those of calls at once, and
 * so are the bits.
 */
#include "capture.h"
#include "core/ops/later.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local ax_later *all;

static ax_status run(ax_later *l);
static ax_status before(ax_claim *c, int64_t at)
{
  (void)at;
  return run(c->owner);
}
static void forget(ax_later *l);
static void gone(ax_claim *c) { forget(c->owner); }

const ax_claim_kind ax_later_writes = { .uses = AX_READ | AX_WRITE, .before = before, .gone = gone };
static const ax_claim_kind later_reads = { .uses = AX_WRITE, .before = before };

static ax_later *writer(const ax_storage *s)
{
  ax_claim *const c = ax_claim_of(s, &ax_later_writes);
  return c ? c->owner : NULL;
}

/* Lets it wait. */
static void put(ax_later *l)
{
  l->writes = (ax_claim){ .kind = &ax_later_writes, .owner = l };
  ax_claim_put(l->to, &l->writes);
  for (int k = 0; k < l->n_in; k++) {
    l->reads[k] = (ax_claim){ .kind = &later_reads, .owner = l };
    if (l->in[k]) ax_claim_put(l->in[k]->storage, &l->reads[k]);
  }
  l->former = NULL;
  l->next = all;
  if (all) all->former = l;
  all = l;
}

void ax_later_take(ax_later *l)
{
  ax_claim_take_off(&l->writes);
  for (int k = 0; k < l->n_in; k++) ax_claim_take_off(&l->reads[k]);
  *(l->former ? &l->former->next : &all) = l->next;
  if (l->next) l->next->former = l->former;
}

static void end(ax_later *l)
{
  for (int k = 0; k < l->n_in; k++) ax_tensor_release(l->in[k]);
  ax_tensor_release(l->more[0]), ax_tensor_release(l->more[1]), ax_tensor_release(l->half);
  ax_mfree(l->clipping);
  ax_mfree(l);
}

ax_status ax_later_taken(ax_later *l, ax_status st)
{
  if (st == AX_OK) end(l);
  else put(l);
  return st;
}

static void forget(ax_later *l)
{
  ax_later_take(l);
  end(l);
}

bool ax_later_possible(const ax_tensor *t)
{
  const ax_backend *backend;
  return t->numel >= AX_LATER_LEAST && !ax_recording && ax_backend_of(t->device, &backend) == AX_OK &&
         backend->defers;
}

static ax_status without_history(const ax_tensor *t, ax_tensor **out)
{
  return ax_tensor_over(t->storage, (ax_dtype)t->dtype, t->ndim, t->shape, t->strides, t->offset, out);
}

bool ax_later_add(ax_op op, const ax_attrs *a, int n_in, ax_tensor *const *in, const ax_tensor *out,
                  ax_later **made)
{
  ax_later *l;

  if (made) *made = NULL;
  if (!ax_later_possible(out) || out->offset || ax_is_later(out) || n_in > AX_LATER_INPUTS) return false;
  for (int k = 0; k < n_in; k++)
    if (in[k] && (ax_is_later(in[k]) || in[k]->storage->exposed)) return false;
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
  l->to = out->storage;
  put(l);
  if (made) *made = l;
  return true;
}

ax_later *ax_later_of(const ax_tensor *t)
{
  ax_later *const l = writer(t->storage);
  if (!l || l->clipping || t->offset || (ax_dtype)t->dtype != l->dtype ||
      !ax_same_shape(t, l->ndim, l->shape))
    return NULL;
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] > 1 && t->strides[d] != l->strides[d]) return NULL;
  return l;
}

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

  if (ax_recording || ax_comparing || to->claims || to->exposed || ax_is_later(norm) ||
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
  l->to = to;
  put(l);
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
  ax_later *const l = writer(t->storage);
  return l && l->clipping && run_of(l, t) ? l : NULL;
}

static ax_status clip(ax_later *l)
{
  const ax_device d = l->to->device;
  const ax_clipping *const c = l->clipping;
  ax_segment *segs;
  const ax_backend *backend;
  int n = 0;
  ax_status st = ax_backend_of(d, &backend);

  if (c->broken)
    return ax_fail(AX_EINVAL,
                   "clip: these gradients are lost: clipping them failed half-way; call zero_grad");
  if (st != AX_OK) return st;
  if (!(segs = ax_calloc((size_t)c->n, sizeof *segs))) return AX_ENOMEM;
  for (int k = 0; k < c->n; k++) {
    const ax_span *r = &c->runs[k];
    char *const at = (char *)l->to->data + (size_t)r->offset * ax_dtype_size(l->dtype);
    if (r->n) segs[n++] = (ax_segment){ .grad = at, .n = r->n };
  }
  ax_later_take(l);
  st = backend->grads->clip(d, l->dtype, segs, n, c->max_norm, ax_data(l->in[0]));
  l->clipping->broken = st != AX_OK;
  ax_mfree(segs);
  return ax_later_taken(l, st);
}

void ax_later_drop(const ax_tensor *t, int holders)
{
  ax_later *const l = writer(t->storage);
  ax_span *r;

  if (!l || !l->clipping || !(r = run_of(l, t))) return;
  if (t->refs != holders || t->shared || t->grad_fn) return; /* a script may read it yet */
  r->n = 0;
  if (--l->clipping->left == 0) forget(l);
}

/* ---- running */

/* What is read is what the call was made with: its inputs keep their memory, and are not written
 * before. */
static ax_status run(ax_later *l)
{
  const int n_out = l->more[1] ? 3 : l->more[0] ? 2 : 1;
  ax_tensor *out[3] = { NULL, l->more[0], l->more[1] };
  ax_iter it;
  ax_status st;

  if (l->clipping) return clip(l); /* no row's call */
  const bool pointwise = ax_ops[l->op].form == AX_FORM_POINTWISE;
  st = ax_tensor_over(l->to, l->dtype, l->ndim, l->shape, l->strides, 0, &out[0]);
  if (st != AX_OK) return st;
  ax_later_take(l);
  if (pointwise)
    ax_iter_pointwise(&it, out[0], l->n_in, l->in, NULL, l->dtype); /* (no number is among the inputs) */
  st = ax_kernel_call(l->op, &l->a, l->n_in, l->in, n_out, out, pointwise ? &it : NULL);
  ax_later_taken(l, st);
  ax_tensor_release(out[0]);
  return st;
}

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
      x->storage->refs != 1 || x->storage->claims ||
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
  const ax_later *l = writer(t->storage);
  *out = NULL;
  return l && ax_has(l->op, CONVERTS) && t->dtype == AX_F32 ? shown_as(t, l->in[0], out) : AX_OK;
}

ax_status ax_later_rounded(const ax_tensor *t, ax_dtype dtype, ax_tensor **out)
{
  const ax_later *l = writer(t->storage);
  *out = NULL;
  return l && l->half && t->dtype == AX_F32 && (ax_dtype)l->half->dtype == dtype ? shown_as(t, l->half, out)
                                                                                 : AX_OK;
}
