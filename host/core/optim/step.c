/* One step of an optimizer group: what can be stepped as one becomes one segment, and each batch is
 * one call of a kernel. */
#include "core/optim/group.h"
#include "capture.h"
#include "core/core.h"
#include "core/offload/scratch.h"
#include "core/ops/later.h"
#include "slot.h"

#include <string.h>

/* The working copy that the kernels write beside the parameter, or NULL.  One that nothing has used
 * since the parameter was last written (that of a table of embeddings, say) stays stale, unless it
 * is so small that taking it along is cheaper than making two runs of one; a step that the device
 * may skip always leaves it stale, since the host would not know whether it was written. */
static ax_tensor *work_of(const ax_tensor *p, bool skippable)
{
  enum { SMALL = 16384 };
  ax_tensor *work = ax_slot_work(p);
  if (!work || !ax_is_half((ax_dtype)work->dtype) || work->numel != p->numel ||
      !ax_tensor_is_contiguous(work))
    return NULL;
  return ax_slot_work_is_current(p) || (p->numel < SMALL && !skippable) ? work : NULL;
}

/* What a step of one batch works with. */
typedef struct step {
  ax_optim_group *g;
  batch *b;
  const ax_hyper *h;
  uint32_t needs;
  bool skippable;
  bool bridge;          /* do the kernel's formulas leave padding, zero everywhere, at zero? */
  bool staged;          /* does some of it rest in files? */
  const ax_later *clip; /* what waits to clip all of the batch's gradients, or NULL */
} step;

/* Is it left to the caller?  A step reads more of it than the element that it writes, and other
 * ranks have some of that (optim/factored.lua). */
static bool is_left_out(const ax_optim_group *g, const member *m)
{
  return ax_optims[g->kind].by_matrix && ax_optim_is_cut(m);
}

/* Has this rank a part of the parameter to step? */
static bool is_here(const ax_optim_group *g, const member *m)
{
  return (m->count || !m->numel) && !is_left_out(g, m);
}

/* ---- before it */

/* Makes the states that a member with a gradient lacks. */
static ax_status make_states(ax_optim_group *g, int number, const ax_hyper *h, uint32_t needs)
{
  const ax_optim_row *row = &ax_optims[g->kind];
  member *m = &g->members[number];
  char device[16];

  if (row->by_matrix && ax_optim_is_away(m) && !is_left_out(g, m) && m->param->device.kind != AX_CPU)
    return ax_fail(AX_ENOIMPL,
                   "%s: its steps need whole matrices, and states of parameter %d, which is on %s, rest in "
                   "host memory (offload): use an optimizer that steps each element by itself, such as AdamW",
                   row->name, number + 1, ax_device_text(m->param->device, device, sizeof device));
  if (m->param->dtype != AX_F32 && m->param->dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "optimizer: parameters must be float32 or float64, got %s",
                   ax_dtype_name((ax_dtype)m->param->dtype));
  for (int k = 0; k < row->n_states; k++) {
    if (!(needs >> k & 1) || m->state[k] || !ax_optim_has_state(m->param, row->states[k].form)) continue;
    if (ax_recording)
      return ax_fail(AX_EINVAL,
                     "the state of a parameter is made in its first step, which cannot be the recorded one: "
                     "a replay would make it anew; let the captured step run eagerly before (warmup)");
    const ax_status st = ax_optim_make_state(g, m, k, ax_optim_first(g->kind, h, k));
    if (st != AX_OK) return st;
    if (g->kind == AX_OPTIM_SGD) m->step = 0; /* so that the first step fills the buffer */
  }
  m->begun = true;
  return AX_OK;
}

/* Finds which members of a batch are stepped, and makes their states. */
static ax_status prepare(ax_optim_group *g, batch *b, const ax_hyper *h, uint32_t needs)
{
  b->present = b->away = false;
  b->same = true;
  for (int o = b->first; o < b->first + b->n; o++) {
    const int number = g->order[o];
    const member *m = &g->members[number];
    b->same &= m->stepped == (m->param->grad != NULL);
    if (!m->param->grad) continue;
    b->present = true;
    b->away |= ax_optim_is_away(m);
    const ax_status st = make_states(g, number, h, needs);
    if (st != AX_OK) return st;
  }
  return AX_OK;
}

/* ---- segments */

static ax_status check_gradient(const member *m, int number)
{
  const ax_tensor *p = m->param, *g = p->grad;
  char a[16], b[16];

  if (!ax_same_device(p->device, g->device))
    return ax_fail(AX_EINVAL, "parameter %d lies on %s and its gradient on %s", number + 1,
                   ax_device_text(p->device, a, sizeof a), ax_device_text(g->device, b, sizeof b));
  if (g->dtype != p->dtype || g->numel != p->numel)
    return ax_fail(AX_EDTYPE, "parameter %d is %s with %lld elements and its gradient %s with %lld",
                   number + 1, ax_dtype_name((ax_dtype)p->dtype), (long long)p->numel,
                   ax_dtype_name((ax_dtype)g->dtype), (long long)g->numel);
  if (!ax_tensor_is_contiguous(p)) return ax_fail(AX_EINVAL, "parameter %d is not contiguous", number + 1);
  return AX_OK;
}

/* Is the gradient of a member that is cut where its layout has it? */
static bool is_delivered(const member *m) { return m->grad && m->param->grad == ax_slot_grad(m->param); }

/* The member's gradient, or a contiguous copy (of one that the script made itself), which the group
 * holds; *from: where what this rank steps begins in it. */
static ax_status plain_gradient(const step *s, int number, ax_tensor **out, int64_t *from)
{
  const member *m = &s->g->members[number];
  ax_status st = check_gradient(m, number);

  *from = is_delivered(m) ? 0 : m->from;
  *out = is_delivered(m) ? m->grad : m->param->grad;
  if (st != AX_OK || ax_tensor_is_contiguous(*out)) return st;
  ax_tensor **const copy = &s->g->copies[s->g->n_copies];
  if ((st = ax_tensor_new_on((*out)->device, (ax_dtype)(*out)->dtype, (*out)->ndim, (*out)->shape, copy)) !=
      AX_OK)
    return st;
  s->g->n_copies++;
  st = ax_copy(*copy, *out);
  *out = *copy;
  return st;
}

/* The clipping that waits for all gradients of the batch with one norm, which the kernels can do on
 * the way.  NULL: there is none; what waits for some of them is done when they are read. */
static const ax_later *clip_of(const ax_optim_group *g, const batch *b)
{
  const ax_later *first = NULL;

  if (ax_optims[g->kind].by_matrix) return NULL;
  for (int k = 0; k < b->n; k++) {
    const member *m = &g->members[g->order[b->first + k]];
    if (!m->param->grad || !m->param->grad->numel || !is_here(g, m)) continue;
    const ax_later *const l = ax_later_clip_of(is_delivered(m) ? m->grad : m->param->grad);
    if (!l) return NULL;
    if (!first) first = l;
    if (l->in[0]->storage != first->in[0]->storage || l->in[0]->offset != first->in[0]->offset ||
        l->clipping->max_norm != first->clipping->max_norm)
      return NULL;
  }
  return first;
}

/* The memory of a gradient, clipped or to be clipped on the way. */
static const void *gradient_data(const ax_tensor *t, int64_t from)
{
  return (char *)t->storage->data + (size_t)(t->offset + from) * ax_itemsize(t);
}

/* Has the claims done on all that the kernels read and write of this member, but for the clipping
 * that they do on the way. */
static ax_status make_ready(const step *s, const member *m)
{
  ax_tensor *const p = m->param;
  ax_status st = ax_tensor_ready(m->value ? m->value : p, AX_WRITE);

  if (st == AX_OK && !s->clip) st = ax_tensor_ready(is_delivered(m) ? m->grad : p->grad, AX_READ);
  if (st == AX_OK && ax_slot_work(p) && !m->value) st = ax_tensor_ready(ax_slot_work(p), AX_WRITE);
  for (int k = 0; k < ax_optims[s->g->kind].n_states && st == AX_OK; k++)
    if (s->needs >> k & 1 && m->state[k]) st = ax_tensor_ready(m->state[k], AX_WRITE);
  return st;
}

static ax_status fill_segment(const step *s, int number, ax_segment *seg)
{
  member *m = &s->g->members[number];
  const ax_optim_row *row = &ax_optims[s->g->kind];
  ax_tensor *p = m->param, *grad;
  int64_t from;
  ax_status st = make_ready(s, m);

  if (st != AX_OK || (st = plain_gradient(s, number, &grad, &from)) != AX_OK) return st;
  m->work = m->value || s->staged ? NULL : work_of(p, s->skippable);
  *seg = (ax_segment){ .param = ax_data(m->value ? m->value : p),
                       .grad = gradient_data(grad, from),
                       .n = m->count,
                       .step = m->step + 1 };
  if (row->by_matrix && p->ndim >= 2) {
    seg->rows = p->shape[p->ndim - 2];
    seg->cols = p->shape[p->ndim - 1];
  }
  if (m->work) {
    seg->work = ax_data(m->work);
    seg->work_dtype = (ax_dtype)m->work->dtype;
  }
  for (int k = 0; k < row->n_states; k++) {
    if (!(s->needs >> k & 1)) continue;
    if (row->states[k].form == AX_STATE_NUMBER) seg->number = m->number;
    else if (m->state[k]) {
      if ((st = ax_optim_check_state(s->g, number, k, m->state[k])) != AX_OK) return st;
      seg->state[k] = ax_data(m->state[k]);
    }
  }
  return AX_OK;
}

/* Are all that the step touches of this member in the slots of its ax_flat, and in its run's
 * buffers?  Then the padding behind them is ours. */
static bool is_ours(const step *s, const member *m)
{
  const ax_flat *f = m->flat;
  const run *r = &s->g->runs[m->run];

  if (!f || m->param->flat != f || !f->grads || m->param->grad->storage != f->grads->storage) return false;
  if (!m->value != !m->grad) return false;
  if (m->work && (!f->work || m->work->storage != f->work->storage)) return false;
  for (int k = 0; k < ax_optims[s->g->kind].n_states; k++)
    if (s->needs >> k & 1 && m->state[k] && !(r->buffer[k] && m->state[k]->storage == r->buffer[k]->storage))
      return false;
  return true;
}

static bool is_behind(const void *a, const void *b, int64_t gap)
{
  return !a == !b && (!a || (const char *)b - (const char *)a == gap);
}

/* Makes b part of a where it follows a at one and the same distance in every buffer, and nothing
 * that is not ours is between them. */
static bool join(const step *s, ax_segment *a, const member *last, const ax_segment *b, const member *m)
{
  const int64_t item = (int64_t)ax_dtype_size(s->b->dtype),
                gap = (const char *)b->param - (const char *)a->param;

  if (ax_optims[s->g->kind].by_matrix || a->step != b->step || a->number != b->number ||
      a->work_dtype != b->work_dtype)
    return false;
  if (gap != a->n * item &&
      !(s->bridge && last->run == m->run && m->slot == last->slot + 1 && is_ours(s, last) && is_ours(s, m)))
    return false;
  if (!is_behind(a->grad, b->grad, gap) || !is_behind(a->work, b->work, gap / item * 2)) return false;
  for (int k = 0; k < AX_MAX_STATES; k++)
    if (!is_behind(a->state[k], b->state[k], gap)) return false;
  a->n = gap / item + b->n;
  return true;
}

/* Which operands of a segment are memory of the parameter's device, while the CPU steps it. */
static uint8_t elsewhere(const step *s, const member *m)
{
  const ax_tensor *const value = m->value ? m->value : m->param, *const grad = is_delivered(m)
                                                                                   ? m->grad
                                                                                   : m->param->grad;

  return (ax_same_device(value->device, s->b->device) ? 0 : AX_CUT_VALUES) |
         (ax_same_device(grad->device, s->b->device) ? 0 : AX_CUT_GRADS);
}

/* Fills g->segs; *n: how many there are. */
static ax_status fill_segments(const step *s, int *n)
{
  ax_segment *segs = s->g->segs, next;
  uint8_t *there = s->g->there;
  const member *last = NULL;
  ax_status st;

  *n = 0;
  for (int k = 0; k < s->b->n; k++) {
    const int number = s->g->order[s->b->first + k];
    const member *m = &s->g->members[number];
    if (!m->param->grad || !is_here(s->g, m)) continue;
    if ((st = fill_segment(s, number, &next)) != AX_OK) return st;
    const uint8_t away = elsewhere(s, m);
    if (!last || there[*n - 1] != away || !join(s, &segs[*n - 1], last, &next, m)) {
      there[*n] = away;
      segs[(*n)++] = next;
    }
    last = m;
  }
  return AX_OK;
}

/* ---- numbers in the device's memory */

/* What it takes for skips: those since the counts were settled are taken from them by the kernels.
 * Counts of different members are settled together, so the same ones must have been stepped ever
 * since. */
static ax_status device_args_of(const step *s, const ax_optim_call *call, ax_optim_device_args *device_args,
                                bool *any)
{
  const int64_t one = 1;
  batch *b = s->b;
  ax_status st;

  *any = call->device_args != NULL;
  if (call->device_args) *device_args = *call->device_args;
  if (*any || (!call->skip && !b->unsettled)) return AX_OK;
  if (b->unsettled && !b->same && (st = ax_optim_settle_batch(s->g, b)) != AX_OK) return st;
  if (!call->skip && !b->unsettled) return AX_OK;
  if (!b->skipped) {
    AX_TRY(ax_tensor_new_on(b->device, AX_I64, 1, &one, &b->skipped));
    if ((st = ax_fill(b->skipped, 0)) != AX_OK) {
      ax_tensor_release(b->skipped);
      b->skipped = NULL;
      return st;
    }
  }
  *device_args = (ax_optim_device_args){ .skip = call->skip ? ax_data(call->skip) : NULL,
                                         .skipped = ax_data(b->skipped) };
  *any = true;
  ax_touch(b->skipped);
  if (call->skip && !b->unsettled) {
    b->unsettled = true;
    for (int o = b->first; o < b->first + b->n; o++) {
      member *m = &s->g->members[s->g->order[o]];
      m->stepped = m->param->grad != NULL;
    }
  }
out:
  return st;
}

static ax_status check_skip(const ax_tensor *skip, ax_device device)
{
  char a[16], b[16];

  if (skip->dtype != AX_F32 || skip->numel != 1)
    return ax_fail(AX_EDTYPE, "skip must be 1 elements of float32, got %lld of %s", (long long)skip->numel,
                   ax_dtype_name((ax_dtype)skip->dtype));
  if (!ax_same_device(skip->device, device))
    return ax_fail(AX_EINVAL, "skip lies on %s and the parameters on %s",
                   ax_device_text(skip->device, a, sizeof a), ax_device_text(device, b, sizeof b));
  return AX_OK;
}

/* While a step is captured: what the kernels touch stays alive, and the numbers come from the
 * recording's device block. */
static ax_status hold_for_recording(const step *s, const ax_optim_call *call,
                                    ax_optim_device_args *device_args)
{
  for (int k = 0; k < s->b->n; k++) {
    const member *m = &s->g->members[s->g->order[s->b->first + k]];
    ax_capture_note(m->param);
    if (!m->param->grad) continue;
    ax_capture_hold((m->value ? m->value : m->param)->storage);
    ax_capture_hold((m->grad ? m->grad : m->param->grad)->storage);
    if (ax_slot_work(m->param)) ax_capture_hold(ax_slot_work(m->param)->storage);
    for (int i = 0; i < AX_MAX_STATES; i++)
      if (m->state[i]) ax_capture_hold(m->state[i]->storage);
  }
  if (call->skip) ax_capture_hold(call->skip->storage);
  if (s->b->skipped) ax_capture_hold(s->b->skipped->storage);
  return ax_capture_optim(s->h, &device_args->hyper, &device_args->ran);
}

/* ---- the step */

/* Counts what the kernels are about to write: should one fail half-way, what was written counts. */
static void touch(const step *s)
{
  for (int k = 0; k < s->b->n; k++) {
    const member *m = &s->g->members[s->g->order[s->b->first + k]];
    if (!m->param->grad) continue;
    ax_touch(m->param);
    if (m->value) ax_touch(m->value);
    if (m->work) ax_touch(m->work);
    for (int i = 0; i < AX_MAX_STATES; i++)
      if (s->needs >> i & 1 && m->state[i]) ax_touch(m->state[i]);
  }
}

/* After it: the counts, and working copies that were written are current. */
static void advance(const step *s)
{
  const ax_optim_row *row = &ax_optims[s->g->kind];

  for (int k = 0; k < s->b->n; k++) {
    member *m = &s->g->members[s->g->order[s->b->first + k]];
    if (!m->param->grad) continue;
    if (m->work) ax_slot_set_work_current(m->param, true);
    m->step++;
    for (int i = 0; i < row->n_states; i++)
      if (row->states[i].form == AX_STATE_NUMBER)
        m->number = ax_optim_number(s->g->kind, s->h, m->step, m->number);
  }
}

static void drop_copies(ax_optim_group *g)
{
  while (g->n_copies > 0) ax_tensor_release(g->copies[--g->n_copies]);
}

static ax_status run_kernel(const step *s, int n, const ax_optim_device_args *device_args)
{
  const batch *b = s->b;

  if (s->staged)
    return ax_optim_step_staged(&(ax_staging){ .group = s->g,
                                               .dtype = b->dtype,
                                               .there = s->g->there,
                                               .device = b->at,
                                               .segs = s->g->segs,
                                               .n = n,
                                               .hyper = s->h,
                                               .device_args = device_args });
  const ax_status st = ax_optim_step(b->device, s->g->kind, b->dtype, s->g->segs, n, s->h, device_args);
  /* gradients that rest in a file were read where it is mapped */
  for (int k = 0; k < n && ax_optims[s->g->kind].by_matrix; k++)
    ax_stretch_forget(s->g->segs[k].grad, (size_t)s->g->segs[k].n * ax_dtype_size(b->dtype));
  return st;
}

static ax_status run_batch(const step *s, const ax_optim_call *call)
{
  ax_optim_record *record = NULL;
  ax_optim_device_args device_args = { 0 };
  double norm; /* on the host, for a step that the CPU makes */
  bool any;
  int n;
  ax_status st = AX_OK;

  if (call->skip) {
    AX_TRY(check_skip(call->skip, s->b->device));
    AX_TRY(ax_tensor_ready(call->skip, AX_READ));
  }
  AX_TRY(device_args_of(s, call, &device_args, &any));
  if (s->clip) {
    device_args.norm = ax_data(s->clip->in[0]);
    if (s->staged) {
      AX_TRY(ax_item(s->clip->in[0], &norm));
      device_args.norm = &norm;
    }
    device_args.max_norm = s->clip->clipping->max_norm;
    any = true;
  }
  AX_TRY(fill_segments(s, &n));
  if (call->records && !(record = ax_optim_record_new(s->g, s->b, s->needs, call->skip != NULL))) {
    st = AX_ENOMEM;
    goto out;
  }
  if (__builtin_expect(ax_recording != NULL, 0)) {
    AX_TRY(hold_for_recording(s, call, &device_args));
    any = true;
  }
  touch(s);
  s->g->n_segments += n;
  AX_TRY(run_kernel(s, n, any ? &device_args : NULL));
  advance(s);
  if (record) {
    record->next = *call->records;
    *call->records = record;
    record = NULL;
  }
out:
  drop_copies(s->g);
  ax_optim_record_free(record);
  return st;
}

/* Is the step skipped?  Kernels of a step that is made in stages cannot count skips: the host asks
 * before it. */
static ax_status ask_whether_skipped(const ax_optim_call *call, bool *skipped)
{
  double v = 0;
  ax_status st = AX_OK;

  if (ax_recording)
    return ax_fail(AX_ENOIMPL, "optimizer: buffers of its parameters rest elsewhere (offload), and a step "
                               "over them cannot be captured: call the step without capture");
  if (call->skip) st = ax_item(call->skip, &v);
  *skipped = v != 0;
  return st;
}

/* A step of one batch. */
static ax_status step_batch(step *s, const ax_optim_call *call)
{
  ax_optim_call plain = *call;
  bool skipped = false;
  ax_status st;

  if (!s->b->present) return AX_OK;
  s->staged = !ax_optims[s->g->kind].by_matrix && s->b->away;
  if (s->staged) {
    if ((st = ask_whether_skipped(call, &skipped)) != AX_OK || skipped) return st;
    plain.skip = NULL;
    s->skippable = false;
    if ((st = ax_optim_settle_batch(s->g, s->b)) != AX_OK) return st;
  }
  return run_batch(s, &plain);
}

ax_status ax_optim_group_step(ax_optim_group *g, const ax_hyper *h, const ax_optim_call *call)
{
  static const ax_optim_call plain;
  const uint32_t needs = ax_optim_needs(g->kind, h);
  /* without an eps zeros divide zeros in the padding */
  const bool bridge = h->eps > 0 || !strstr(ax_optims[g->kind].hyper, "eps");
  ax_status st;

  if (!call) call = &plain;
  if (call->records) *call->records = NULL;
  AX_TRY(ax_optim_arrange(g));
  for (int b = 0; b < g->n_batches; b++) AX_TRY(prepare(g, &g->batches[b], h, needs));
  g->n_segments = 0;
  for (int b = 0; b < g->n_batches; b++) {
    step s = { .g = g,
               .b = &g->batches[b],
               .h = h,
               .needs = needs,
               .bridge = bridge,
               .clip = clip_of(g, &g->batches[b]),
               .skippable = call->skip || (call->device_args && call->device_args->skip) };
    AX_TRY(step_batch(&s, call));
  }
out:
  return st;
}
