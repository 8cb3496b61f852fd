/* Optimizer groups: their parameters, the parameters' states, and where these are in memory.
 *
 * A group is arranged by where its parameters are: members of an ax_flat in the order of its slots,
 * cut into runs of neighbours.  The states of a run are in one buffer for each state, with the
 * parameters' own distances, so that a step (step.c) can take the run as one segment.  Parameters
 * outside of an ax_flat are neighbours only where nothing is between them. */
#include "core/optim/group.h"
#include "core/core.h"
#include "core/memory/lasting.h"
#include "core/params/home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making and freeing */

static void drop_states(member *m)
{
  for (int k = 0; k < AX_MAX_STATES; k++) {
    ax_tensor_release(m->state[k]);
    m->state[k] = NULL;
  }
}

static void free_runs(run *runs, int n)
{
  for (int r = 0; r < n; r++) {
    for (int k = 0; k < AX_MAX_STATES; k++) ax_tensor_release(runs[r].buffer[k]);
    ax_flat_release(runs[r].flat);
  }
  ax_mfree(runs);
}

static void free_batches(batch *batches, int n)
{
  for (int b = 0; b < n; b++) ax_tensor_release(batches[b].skipped);
  ax_mfree(batches);
}

static void forget(ax_optim_kind kind, member *m)
{
  drop_states(m);
  m->step = 0;
  m->begun = m->stepped = false;
  for (int k = 0; k < ax_optims[kind].n_states; k++)
    if (ax_optims[kind].states[k].form == AX_STATE_NUMBER)
      m->number = ax_optim_first(kind, &(ax_hyper){ 0 }, k);
}

ax_status ax_optim_group_new(ax_optim_kind kind, int n, ax_tensor *const *params, ax_optim_group **out)
{
  ax_optim_group *g = ax_calloc(1, sizeof *g);
  const size_t places = n > 0 ? (size_t)n : 1;
  ax_status st = AX_ENOMEM;

  *out = NULL;
  if (!g) return AX_ENOMEM;
  g->refs = 1;
  g->kind = kind;
  g->members = ax_calloc(places, sizeof *g->members);
  g->segs = ax_calloc(places, sizeof *g->segs);
  g->there = ax_calloc(places, sizeof *g->there);
  g->copies = ax_calloc(places, sizeof *g->copies);
  if (!g->members || !g->segs || !g->there || !g->copies) goto out;
  for (; g->n < n; g->n++) {
    g->members[g->n].param = ax_tensor_retain(params[g->n]);
    forget(kind, &g->members[g->n]);
  }
  AX_TRY(ax_optim_arrange(g));
  *out = g;
  g = NULL;
out:
  ax_optim_group_release(g);
  return st;
}

ax_optim_group *ax_optim_group_retain(ax_optim_group *g)
{
  g->refs++;
  return g;
}

void ax_optim_group_release(ax_optim_group *g)
{
  if (!g || --g->refs > 0) return;
  for (int k = 0; k < g->n; k++) {
    drop_states(&g->members[k]);
    ax_tensor_release(g->members[k].param);
  }
  free_runs(g->runs, g->n_runs);
  free_batches(g->batches, g->n_batches);
  ax_mfree(g->members), ax_mfree(g->order), ax_mfree(g->segs), ax_mfree(g->there), ax_mfree(g->copies);
  ax_mfree(g);
}

int ax_optim_group_size(const ax_optim_group *g) { return g->n; }
int ax_optim_group_segments(const ax_optim_group *g) { return g->n_segments; }
ax_optim_kind ax_optim_group_kind(const ax_optim_group *g) { return g->kind; }
ax_tensor *ax_optim_group_param(const ax_optim_group *g, int k) { return g->members[k].param; }

/* ---- the arrangement */

/* A member's place in it: what members are sorted by. */
typedef struct place {
  int batch, member;
  uint64_t flat; /* the number of its ax_flat; those without one come last */
  int64_t at;    /* its slot there, or its place in the list */
} place;

static int by_place(const void *a_, const void *b_)
{
  const place *a = a_, *b = b_;
  if (a->batch != b->batch) return a->batch < b->batch ? -1 : 1;
  if (a->flat != b->flat) return a->flat < b->flat ? -1 : 1;
  return a->at < b->at ? -1 : a->at > b->at;
}

static bool states_are_away(const ax_tensor *p) { return p->flat && p->flat->home.away & AX_CUT_STATES; }

/* Where p is stepped, and has its states. */
static ax_device device_of(const ax_tensor *p)
{
  return states_are_away(p) ? (ax_device){ AX_CPU, 0 } : p->device;
}

/* The batch of p's type, and of the device that steps it, a new one if need be. */
static int batch_of(batch *batches, int *n, const ax_tensor *p)
{
  const ax_device device = device_of(p);

  for (int b = 0; b < *n; b++)
    if (batches[b].dtype == (ax_dtype)p->dtype && ax_same_device(batches[b].device, device) &&
        ax_same_device(batches[b].at, p->device)) {
      batches[b].n++;
      return b;
    }
  batches[*n] = (batch){ .dtype = (ax_dtype)p->dtype, .device = device, .at = p->device, .n = 1 };
  return (*n)++;
}

/* Is b the neighbour that follows a? */
static bool follows(const ax_tensor *a, const ax_tensor *b)
{
  if (a->flat) return a->flat == b->flat && b->slot == a->slot + 1;
  return !b->flat && a->storage == b->storage && a->dtype == b->dtype && b->offset == a->offset + a->numel &&
         a->numel > 0 && ax_tensor_is_contiguous(a) && ax_tensor_is_contiguous(b);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first element behind what this rank steps of p: in its ax_flat with its padding, else in its
 * storage. */
static int64_t end_of(const ax_tensor *p)
{
  const ax_flat *f = p->flat;
  if (!f) return p->offset + p->numel;
  if (!f->home.group) return f->offsets[p->slot + 1];
  return least(f->offsets[p->slot + 1], f->home.last);
}

/* Finds what this rank steps of the member's parameter, and returns where it begins: in its
 * ax_flat, else in its storage. */
static int64_t take_piece(member *m)
{
  const ax_tensor *p = m->param;
  const ax_flat *f = p->flat;

  m->flat = f;
  m->slot = p->slot;
  m->numel = m->count = p->numel;
  m->from = 0;
  m->value = m->grad = NULL;
  if (!f) return p->offset;
  if (f->home.group) {
    m->count = ax_flat_piece(f, p->slot, &m->from);
    m->value = f->home.value_piece[p->slot];
    m->grad = f->home.grad_piece[p->slot];
  }
  return f->offsets[p->slot] + m->from;
}

static void find_runs(ax_optim_group *g, const int *order, const batch *batches, int n_batches, run *runs,
                      int *n_runs)
{
  for (int b = 0; b < n_batches; b++)
    for (int o = batches[b].first; o < batches[b].first + batches[b].n; o++) {
      member *m = &g->members[order[o]];
      const ax_tensor *before = o > batches[b].first ? g->members[order[o - 1]].param : NULL;
      const int64_t start = take_piece(m);
      if (!before || !follows(before, m->param)) {
        runs[(*n_runs)++] = (run){ .flat = m->param->flat ? ax_flat_retain(m->param->flat) : NULL,
                                   .start = start,
                                   .empty = true };
      }
      m->run = *n_runs - 1;
      if (!m->count && m->numel) continue; /* nothing of it is stepped here */
      run *r = &runs[m->run];
      if (r->empty) r->start = start, r->empty = false;
      m->at = start - r->start;
      r->size = end_of(m->param) - r->start;
    }
}

/* Has the member other pieces than when the group was arranged? */
static bool is_cut_anew(const member *m)
{
  const ax_flat *f = m->param->flat;
  return f && f->home.group &&
         (m->value != f->home.value_piece[m->slot] || m->grad != f->home.grad_piece[m->slot]);
}

static bool has_moved(const ax_optim_group *g)
{
  for (int b = 0; b < g->n_batches; b++)
    for (int o = g->batches[b].first; o < g->batches[b].first + g->batches[b].n; o++) {
      const member *m = &g->members[g->order[o]];
      const ax_tensor *p = m->param;
      if (p->flat != m->flat || (p->flat && p->slot != m->slot) || p->numel != m->numel || is_cut_anew(m) ||
          (ax_dtype)p->dtype != g->batches[b].dtype || !ax_same_device(device_of(p), g->batches[b].device) ||
          !ax_same_device(p->device, g->batches[b].at))
        return true;
    }
  return !g->order;
}

ax_status ax_optim_arrange(ax_optim_group *g)
{
  const size_t places = g->n > 0 ? (size_t)g->n : 1;
  place *sorted;
  int *order;
  batch *batches;
  run *runs;
  int n_batches = 0, n_runs = 0;
  ax_status st;

  if (!has_moved(g)) return AX_OK;
  if ((st = ax_optim_group_settle(g)) != AX_OK) return st;
  sorted = ax_calloc(places, sizeof *sorted);
  order = ax_calloc(places, sizeof *order);
  batches = ax_calloc(places, sizeof *batches);
  runs = ax_calloc(places, sizeof *runs);
  if (!sorted || !order || !batches || !runs) {
    ax_mfree(sorted), ax_mfree(order), ax_mfree(batches), ax_mfree(runs);
    return AX_ENOMEM;
  }
  for (int k = 0; k < g->n; k++) {
    const ax_tensor *p = g->members[k].param;
    sorted[k] = (place){ .batch = batch_of(batches, &n_batches, p),
                         .member = k,
                         .flat = p->flat ? p->flat->number : UINT64_MAX,
                         .at = p->flat ? p->slot : k };
  }
  qsort(sorted, (size_t)g->n, sizeof *sorted, by_place);
  for (int o = 0; o < g->n; o++) order[o] = sorted[o].member;
  for (int b = 1; b < n_batches; b++) batches[b].first = batches[b - 1].first + batches[b - 1].n;
  find_runs(g, order, batches, n_batches, runs, &n_runs);
  free_runs(g->runs, g->n_runs);
  free_batches(g->batches, g->n_batches);
  ax_mfree(g->order), ax_mfree(sorted);
  g->order = order;
  g->batches = batches;
  g->n_batches = n_batches;
  g->runs = runs;
  g->n_runs = n_runs;
  g->arrangement++;
  return AX_OK;
}

/* ---- states */

bool ax_optim_has_state(const ax_tensor *p, ax_state_form form)
{
  switch (form) {
  case AX_STATE_EACH: return true;
  case AX_STATE_ROWS:
  case AX_STATE_COLS: return p->ndim >= 2;
  case AX_STATE_SMALL: return p->ndim < 2;
  case AX_STATE_NUMBER: break;
  }
  return false;
}

/* Elements of the state of form `form` of p, and its shape; 0: p has none. */
static int64_t state_shape(const ax_tensor *p, ax_state_form form, int64_t *shape)
{
  /* the dim that is 1 in the state */
  const int flat = form == AX_STATE_ROWS ? p->ndim - 1 : form == AX_STATE_COLS ? p->ndim - 2 : -1;
  int64_t numel = 1;

  if (!ax_optim_has_state(p, form)) return 0;
  for (int d = 0; d < p->ndim; d++) numel *= shape[d] = d == flat ? 1 : p->shape[d];
  return numel;
}

/* Is a state of this form cut as the member is?  One that has an element for each of its own. */
static bool is_cut_along(const member *m, ax_state_form form)
{
  return ax_optim_is_cut(m) && (form == AX_STATE_EACH || form == AX_STATE_SMALL);
}

/* The shape of the state of form `form` of what this rank steps. */
static int own_state_shape(const member *m, ax_state_form form, int64_t *shape)
{
  state_shape(m->param, form, shape);
  if (!is_cut_along(m, form)) return m->param->ndim;
  *shape = m->count;
  return 1;
}

static ax_status new_buffer(const ax_tensor *p, int ndim, const int64_t *shape, ax_tensor **out)
{
  return ax_tensor_zeros_lasting(device_of(p), (ax_dtype)p->dtype, ndim, shape, out);
}

/* n zeros for state k of p: in the memory that computes, or in a file. */
static ax_status new_flat_buffer(const ax_optim_group *g, const ax_tensor *p, int k, int64_t n,
                                 ax_tensor **out)
{
  const ax_flat *f = p->flat;
  char what[160];

  if (!f || !(f->home.away & AX_CUT_STATES)) return new_buffer(p, 1, &n, out);
  snprintf(what, sizeof what, "%s of %s", ax_optims[g->kind].states[k].name, ax_home_title(f));
  return ax_place_tensor(f->home.place, what, (ax_dtype)p->dtype, n, out);
}

/* A zero tensor for state k: in the buffer of the member's run, or by itself. */
static ax_status new_state(ax_optim_group *g, const member *m, int k, ax_tensor **out)
{
  const ax_state_form form = ax_optims[g->kind].states[k].form;
  const ax_tensor *p = m->param;
  run *r = &g->runs[m->run];
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  ax_status st;

  *out = NULL;
  const int ndim = own_state_shape(m, form, shape);
  if (form != AX_STATE_EACH || !m->count || (r->size == m->count && !states_are_away(p)))
    return new_buffer(p, ndim, shape, out);
  if (!r->buffer[k] && (st = new_flat_buffer(g, p, k, r->size, &r->buffer[k])) != AX_OK) return st;
  ax_strides_contiguous(ndim, shape, strides);
  return ax_tensor_over(r->buffer[k]->storage, (ax_dtype)p->dtype, ndim, shape, strides, m->at, out);
}

static bool is_in_place(const ax_optim_group *g, const member *m, int k)
{
  const ax_tensor *t = m->state[k], *p = m->param;
  const run *r = &g->runs[m->run];

  if (t->dtype != p->dtype || !ax_same_device(t->device, device_of(p))) return false;
  if (ax_optims[g->kind].states[k].form != AX_STATE_EACH || !m->count) return true;
  if (r->size == m->count && !states_are_away(p)) return true;
  return r->buffer[k] && t->storage == r->buffer[k]->storage && t->offset == m->at;
}

ax_status ax_optim_make_state(ax_optim_group *g, member *m, int k, double first)
{
  ax_status st = new_state(g, m, k, &m->state[k]);
  if (st == AX_OK && first != 0 && (st = ax_fill(m->state[k], first)) != AX_OK) {
    ax_tensor_release(m->state[k]);
    m->state[k] = NULL;
  }
  return st;
}

/* Whether state k can be written over with `from`: memory of two kinds is never the same memory. */
static bool is_overwritten(const ax_optim_group *g, const member *m, int k, const ax_tensor *from)
{
  const ax_tensor *to = m->state[k];
  if (to && !to->numel) return !from->numel; /* of a piece that another rank has */
  return to && is_in_place(g, m, k) && from->numel == to->numel &&
         from->storage->release != to->storage->release;
}

/* Of a whole state the part that this rank keeps; others as they are. */
static ax_status own_part(const ax_optim_group *g, const member *m, int k, ax_tensor *from, ax_tensor **out)
{
  const int64_t one = 1;
  ax_tensor *plain;
  ax_status st;

  if (!is_cut_along(m, ax_optims[g->kind].states[k].form) || from->numel != m->numel) {
    *out = ax_tensor_retain(from);
    return AX_OK;
  }
  if ((st = ax_contiguous(from, &plain)) != AX_OK) return st;
  st = ax_tensor_over(plain->storage, (ax_dtype)plain->dtype, 1, &m->count, &one, plain->offset + m->from,
                      out);
  ax_tensor_release(plain);
  return st;
}

/* Puts a copy of `from`, or of this rank's part of it, where state k of the member belongs. */
static ax_status copy_state(ax_optim_group *g, member *m, int k, ax_tensor *from)
{
  ax_tensor *made = NULL, *part;
  ax_status st;

  if ((st = own_part(g, m, k, from, &part)) != AX_OK) return st;
  if (is_overwritten(g, m, k, part)) {
    st = ax_copy(m->state[k], part);
    goto out;
  }
  AX_TRY(new_state(g, m, k, &made));
  AX_TRY(ax_copy(made, part));
  ax_tensor_release(m->state[k]);
  m->state[k] = made;
  made = NULL;
out:
  ax_tensor_release(made);
  ax_tensor_release(part);
  return st;
}

ax_status ax_optim_group_relayout(ax_optim_group *g)
{
  ax_status st;

  if ((st = ax_optim_arrange(g)) != AX_OK || (st = ax_optim_group_settle(g)) != AX_OK) return st;
  for (int i = 0; i < g->n; i++)
    for (int k = 0; k < AX_MAX_STATES; k++) {
      member *m = &g->members[i];
      if (m->state[k] && !is_in_place(g, m, k) && (st = copy_state(g, m, k, m->state[k])) != AX_OK) return st;
    }
  return AX_OK;
}

/* ---- what others see of it */

bool ax_optim_group_get(const ax_optim_group *g, int i, ax_optim_kept *out)
{
  const member *m = &g->members[i];
  *out = (ax_optim_kept){ .step = m->step, .number = m->number };
  memcpy(out->state, m->state, sizeof out->state);
  return m->begun;
}

ax_status ax_optim_check_state(const ax_optim_group *g, int i, int k, const ax_tensor *t)
{
  const ax_optim_state *state = &ax_optims[g->kind].states[k];
  const member *m = &g->members[i];
  const ax_tensor *p = m->param;
  int64_t shape[AX_MAX_DIMS];
  const int64_t whole = state_shape(p, state->form, shape);
  const int64_t numel = is_cut_along(m, state->form) ? m->count : whole;

  if (!ax_optim_has_state(p, state->form))
    return ax_fail(AX_EINVAL, "states: entry %d: its parameter has %d dims and keeps no %s", i + 1, p->ndim,
                   state->name);
  if (t->dtype == p->dtype && t->numel == numel && ax_tensor_is_contiguous(t) &&
      ax_same_device(t->device, device_of(p)))
    return AX_OK;
  return ax_fail(AX_EINVAL,
                 "states: entry %d: %s must be contiguous, with %lld elements, on its parameter's device and "
                 "of its type, %s",
                 i + 1, state->name, (long long)numel, ax_dtype_name((ax_dtype)p->dtype));
}

ax_status ax_optim_group_set(ax_optim_group *g, int i, const ax_optim_kept *kept)
{
  member *m = &g->members[i];
  ax_status st;

  if (!kept) {
    forget(g->kind, m);
    return AX_OK;
  }
  for (int k = 0; k < ax_optims[g->kind].n_states; k++)
    if (kept->state[k] && kept->state[k] != m->state[k] &&
        (st = ax_optim_check_state(g, i, k, kept->state[k])) != AX_OK)
      return st;
  for (int k = 0; k < ax_optims[g->kind].n_states; k++) {
    ax_tensor *former = m->state[k];
    m->state[k] = kept->state[k] ? ax_tensor_retain(kept->state[k]) : NULL;
    ax_tensor_release(former);
  }
  m->step = kept->step;
  m->number = kept->number;
  m->begun = true;
  return AX_OK;
}

bool ax_optim_group_overwrites(const ax_optim_group *g, int i, const ax_optim_kept *kept)
{
  const member *m = &g->members[i];

  for (int k = 0; k < AX_MAX_STATES; k++)
    if (!kept->state[k] != !m->state[k] || (m->state[k] && !is_overwritten(g, m, k, kept->state[k])))
      return false;
  return m->begun;
}

ax_status ax_optim_group_load(ax_optim_group *g, int i, const ax_optim_kept *kept)
{
  member *m = &g->members[i];
  ax_status st;

  if ((st = ax_optim_arrange(g)) != AX_OK) return st;
  for (int k = 0; k < ax_optims[g->kind].n_states; k++)
    if (kept->state[k] && (st = copy_state(g, m, k, kept->state[k])) != AX_OK) return st;
  m->step = kept->step;
  m->number = kept->number;
  m->begun = true;
  return AX_OK;
}

void ax_optim_group_inherit(ax_optim_group *g, const ax_optim_group *from)
{
  for (int i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    /* nearly always: more were appended */
    int at = i < from->n && from->members[i].param == m->param ? i : 0;
    while (at < from->n && from->members[at].param != m->param) at++;
    if (at == from->n) continue;
    const member *old = &from->members[at];
    drop_states(m);
    for (int k = 0; k < AX_MAX_STATES; k++)
      if (old->state[k]) m->state[k] = ax_tensor_retain(old->state[k]);
    m->step = old->step;
    m->number = old->number;
    m->begun = old->begun;
  }
}

/* ---- steps that a device may have skipped */

ax_status ax_optim_settle_batch(ax_optim_group *g, batch *b)
{
  double skipped;
  ax_status st;

  if (!b->unsettled) return AX_OK;
  if ((st = ax_item(b->skipped, &skipped)) != AX_OK) return st;
  if (skipped != 0 && (st = ax_fill(b->skipped, 0)) != AX_OK) return st;
  b->unsettled = false;
  for (int o = b->first; o < b->first + b->n; o++) {
    member *m = &g->members[g->order[o]];
    if (!m->stepped) continue;
    m->step -= (int64_t)skipped;
    if (m->step <= 0) m->begun = false; /* it has never been stepped */
    m->stepped = false;
  }
  return AX_OK;
}

ax_status ax_optim_group_settle(ax_optim_group *g)
{
  for (int b = 0; b < g->n_batches; b++) {
    const ax_status st = ax_optim_settle_batch(g, &g->batches[b]);
    if (st != AX_OK) return st;
  }
  return AX_OK;
}
