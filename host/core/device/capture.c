/* Captured steps: what the core keeps of one beside the backend's graph.  See capture.h.
 *
 * Who talks to whom: bind/capture.c begins and ends a recording for lua/accelerate/capture, which
 * owns the policy (what a step's inputs are, when it is recorded anew).  While ax_recording is set,
 * the core reports to it: the dispatcher each kernel (ax_capture_kernel), random draws
 * their generator, optimizers their hyperparameters, dist/ each collective.  From these it learns
 * which storages to keep alive, which leaves the step reads and writes, and which numbers change
 * from replay to replay.  The backend (kernels/cuda/runtime/capture.cu) keeps the graph itself.
 *
 * A replay: ax_capture_fits looks whether leaves and groups are as they were; the numbers go into
 * the block of device arguments; the graph runs; the leaves get the gradients and versions that the
 * step leaves behind. */
#include "core/core.h"
#include "core/device/recording.h"
#include "core/dist/watch.h"
#include "core/grow.h"
#include "core/params/home.h"
#include "core/ops/infer.h"
#include "core/tape/graph.h"
#include "slot.h"

#include <string.h>

_Thread_local ax_capture *ax_recording;
_Thread_local bool ax_comparing;

enum { LIVE_BYTES = 64 << 10 };

/* A place in the block of device arguments. */
static ax_status take_device_args(ax_capture *c, size_t bytes, size_t *at)
{
  *at = (c->used + 15) / 16 * 16;
  if (*at + bytes > LIVE_BYTES)
    return ax_fail(AX_ENOMEM,
                   "the captured step has too many optimizer steps and generators: "
                   "their numbers take more than %d bytes",
                   LIVE_BYTES);
  c->used = *at + bytes;
  return AX_OK;
}

/* ---- beginning and ending */

ax_status ax_capture_begin(ax_device device, ax_capture **out)
{
  ax_capture *c = *out = NULL;
  const ax_backend *backend;
  ax_status st;

  if (ax_recording) return ax_fail(AX_EINVAL, "a step is being recorded already");
  if ((st = ax_backend_of(device, &backend)) != AX_OK) return st;
  if (!backend->capture) return ax_fail(AX_ENOIMPL, "the %s backend cannot record steps", backend->name);
  if (!(c = ax_calloc(1, sizeof *c))) return AX_ENOMEM;
  c->device = device;
  c->backend = backend;
  c->first = ax_next_seq();
  ax_autocast_forget();
  if (!(c->here = ax_calloc(1, LIVE_BYTES))) {
    st = AX_ENOMEM;
    goto out;
  }
  AX_TRY(ax_later_all());
  AX_TRY(ax_home_rest_all());
  AX_TRY(backend->capture->begin(device.index, &c->graph));
  AX_TRY(backend->capture->keep(c->graph, LIVE_BYTES, &c->there));
  *out = ax_recording = c;
  return AX_OK;
out:
  ax_capture_free(c);
  return st;
}

void ax_capture_leave_gradients(ax_capture *c) { c->leaves_gradients = true; }

ax_status ax_capture_end(ax_capture *c)
{
  ax_status st = c->failed;

  if (ax_recording != c) return ax_fail(AX_EINVAL, "this step is not being recorded");
  if (st != AX_OK)
    return ax_fail(st, "out of memory while a step was captured: no room for what it refers to");
  if ((st = ax_home_rest_all()) != AX_OK) return st;
  if (c->n_groups && (st = ax_device_recorded(c->groups, c->n_groups)) != AX_OK) return st;
  ax_recording = NULL;
  ax_autocast_forget();
  void *graph = c->graph;
  c->graph = NULL; /* freed where this fails */
  if ((st = c->backend->capture->end(graph)) != AX_OK) {
    ax_recording = c; /* so that freeing it puts things back */
    return st;
  }
  c->graph = graph;
  c->ended = true;
  for (int k = 0; k < c->n_generators; k++)
    c->generators[k].count = c->generators[k].g->draws - c->generators[k].draws;
  for (int k = 0; k < c->n_leaves; k++) {
    ax_noted *l = &c->leaves[k];
    l->written = l->t->version->edits - l->edits;
    l->work_after = ax_slot_work_is_current(l->t);
    l->after = l->t->grad && !c->leaves_gradients ? ax_tensor_retain(l->t->grad) : NULL;
  }
  return AX_OK;
}

/* Nothing of what was recorded has run: what the host took for done is put back. */
static void undo(ax_capture *c)
{
  for (int k = 0; k < c->n_leaves; k++) {
    ax_noted *l = &c->leaves[k];
    if (!c->leaves_gradients) set_grad(l->t, l->before);
    ax_slot_set_work_current(l->t, l->work_before);
  }
  for (int k = 0; k < c->n_generators; k++) c->generators[k].g->draws = c->generators[k].draws;
}

void ax_capture_free(ax_capture *c)
{
  if (!c) return;
  if (ax_recording == c) {
    ax_home_abandon_all();
    ax_recording = NULL;
    ax_autocast_forget();
    if (c->graph) c->backend->capture->release(c->graph);
    c->graph = NULL;
    undo(c);
  }
  if (c->graph) c->backend->capture->release(c->graph);
  for (int k = 0; k < c->n_leaves; k++) {
    ax_tensor_release(c->leaves[k].before);
    ax_tensor_release(c->leaves[k].after);
    ax_tensor_release(c->leaves[k].t);
  }
  for (int k = 0; k < c->n_storages; k++) ax_storage_release(c->storages[k]);
  for (int k = 0; k < c->n_generators; k++) ax_generator_release(c->generators[k].g);
  for (int k = 0; k < c->n_groups; k++) ax_group_release(c->groups[k].group);
  ax_mfree(c->groups);
  ax_mfree(c->leaves), ax_mfree(c->storages), ax_mfree(c->generators), ax_mfree(c->optims);
  ax_mfree(c->met.place), ax_mfree(c->held.place), ax_mfree(c->here);
  ax_mfree(c);
}

void ax_capture_counts(const ax_capture *c, int *leaves, int *storages, int *draws)
{
  *leaves = c->n_leaves;
  *storages = c->n_storages;
  *draws = 0;
  for (int k = 0; k < c->n_generators; k++) *draws += (int)c->generators[k].count;
}

/* ---- while it records */

void ax_capture_hold(ax_storage *s)
{
  ax_capture *c = ax_recording;
  bool is_new;

  if (!s || !s->data || s->device.kind == AX_CPU || c->backend->capture->inside(c->graph, s->data)) return;
  if (!ax_pointer_map_add(&c->held, sizeof(void *), s, &is_new) ||
      (is_new && ax_grow(&c->storages, c->n_storages, &c->most_storages, sizeof *c->storages) != AX_OK))
    c->failed = AX_ENOMEM;
  else if (is_new) c->storages[c->n_storages++] = ax_storage_retain(s);
}

void ax_capture_note(ax_tensor *t)
{
  ax_capture *c = ax_recording;
  const ax_tensor *const rests = ax_home_resting(t), *const grad = ax_home_resting_grad(t);
  bool is_new;

  if (t->grad_fn || t->device.kind == AX_CPU || c->backend->capture->inside(c->graph, rests->storage->data))
    return;
  if (!ax_pointer_map_add(&c->met, sizeof(void *), t, &is_new) ||
      (is_new && ax_grow(&c->leaves, c->n_leaves, &c->most_leaves, sizeof *c->leaves) != AX_OK))
    c->failed = AX_ENOMEM;
  else if (is_new) {
    c->leaves[c->n_leaves++] =
        (ax_noted){ .t = ax_tensor_retain(t),
                    .data = ax_data(rests),
                    .edits = t->version->edits,
                    .wanted = t->requires_grad,
                    .work_before = rests == t && ax_slot_work_is_current(t),
                    .before = t->grad && !c->leaves_gradients ? ax_tensor_retain(t->grad) : NULL };
    ax_capture_hold(rests->storage);
    if (grad && !c->leaves_gradients) ax_capture_hold(grad->storage);
  }
}

ax_status ax_capture_input(const char *name, ax_tensor *t)
{
  if (t->grad_fn && t->grad_fn->seq < ax_recording->first && ax_grad_enabled())
    return ax_fail(AX_EGRAD,
                   "%s: a captured step is given a tensor with a history from before it, which a replay "
                   "would not have; detach it, or compute it inside",
                   name);
  ax_capture_note(t);
  return AX_OK;
}

ax_status ax_capture_kernel(ax_op op, int n_in, ax_tensor *const *in, int n_out, ax_tensor *const *out)
{
  const ax_device d = out[0]->device;
  char here[16], there[16];

  if (!ax_same_device(d, ax_recording->device))
    return ax_fail(AX_EINVAL,
                   "%s: computes on %s while a step is captured for %s: a replay would not do it again; keep "
                   "it out of the step",
                   ax_op_shown(op), ax_device_text(d, here, sizeof here),
                   ax_device_text(ax_recording->device, there, sizeof there));
  for (int k = 0; k < n_in; k++)
    if (in[k]) ax_capture_hold(in[k]->storage);
  for (int k = 0; k < n_out; k++)
    if (out[k]) ax_capture_hold(out[k]->storage);
  return ax_recording->failed == AX_OK
             ? AX_OK
             : ax_fail(AX_ENOMEM, "out of memory while a step was captured: no room for what it refers to");
}

static uint32_t mixed(uint32_t digest, uint64_t v)
{
  return (uint32_t)(((digest ^ v) * 0x9e3779b97f4a7c15u) >> 32);
}

/* The record of g's collectives, a new one at the first; NULL: there is no memory. */
static ax_recorded *recorded_of(ax_capture *c, ax_group *g)
{
  for (int k = 0; k < c->n_groups; k++)
    if (c->groups[k].group == g) return &c->groups[k];
  if (ax_grow(&c->groups, c->n_groups, &c->most_groups, sizeof *c->groups) != AX_OK) return NULL;
  c->groups[c->n_groups] = (ax_recorded){ .group = ax_group_retain(g) };
  return &c->groups[c->n_groups++];
}

ax_status ax_capture_collective(ax_group *g, const ax_collective *c)
{
  ax_recorded *r = recorded_of(ax_recording, g);
  ax_collective *all = r ? &r->as_one : NULL;
  uint32_t digest;

  if (!r) return AX_ENOMEM;
  digest = (uint32_t)all->model;
  digest = mixed(digest, (uint64_t)c->op | (uint64_t)c->dtype << 8 | (uint64_t)c->reduction << 16 |
                             (uint64_t)c->root << 24);
  digest = mixed(mixed(digest, (uint64_t)c->count), (uint64_t)c->model);
  for (int d = 0; d < c->ndim; d++) digest = mixed(digest, (uint64_t)c->shape[d]);
  *all = (ax_collective){ .op = AX_RECORDING,
                          .dtype = AX_U8,
                          .kind = c->kind,
                          .index = c->index,
                          .count = all->count + 1,
                          .model = (int)(digest & 0x7fffffff) };
  memcpy(all->group, c->group, sizeof all->group);
  return AX_OK;
}

ax_status ax_capture_draw(ax_generator *gen, ax_attrs *a)
{
  ax_capture *c = ax_recording;
  ax_status st;
  int k = 0;

  while (k < c->n_generators && c->generators[k].g != gen) k++;
  if (k == c->n_generators) {
    size_t at;
    if ((st = ax_grow(&c->generators, k, &c->most_generators, sizeof *c->generators)) != AX_OK ||
        (st = take_device_args(c, sizeof(ax_draw_args), &at)) != AX_OK)
      return st;
    gen->refs++;
    /* this draw was counted already */
    c->generators[c->n_generators++] = (ax_drawn){ .g = gen, .draws = gen->draws - 1, .at = at };
    ((ax_draw_args *)(c->here + at))->seed = gen->seed;
  }
  a->rng.device_args = (const ax_draw_args *)((char *)c->there + c->generators[k].at);
  return AX_OK;
}

bool ax_capture_may_move(const ax_generator *gen, uint64_t draws)
{
  for (int k = 0; k < ax_recording->n_generators; k++)
    if (ax_recording->generators[k].g == gen) return draws >= ax_recording->generators[k].draws;
  return draws == gen->draws;
}

/* The optimizer's numbers, then how many steps it took since. */
ax_status ax_capture_optim(const ax_hyper *h, const ax_hyper **hyper, const int64_t **ran)
{
  ax_capture *c = ax_recording;
  size_t at;
  ax_status st;

  if ((st = ax_grow(&c->optims, c->n_optims, &c->most_optims, sizeof *c->optims)) != AX_OK ||
      (st = take_device_args(c, sizeof *h + sizeof **ran, &at)) != AX_OK)
    return st;
  c->optims[c->n_optims++] = at;
  ax_capture_set_optim(c, c->n_optims - 1, h, 0);
  *hyper = (const ax_hyper *)((char *)c->there + at);
  *ran = (const int64_t *)((char *)c->there + at + sizeof *h);
  return AX_OK;
}

int ax_capture_optims(const ax_capture *c) { return c->n_optims; }

void ax_capture_set_optim(ax_capture *c, int number, const ax_hyper *h, int64_t ran)
{
  memcpy(c->here + c->optims[number], h, sizeof *h);
  memcpy(c->here + c->optims[number] + sizeof *h, &ran, sizeof ran);
}

bool ax_capture_writes(const ax_capture *c, const ax_tensor *t)
{
  for (int k = 0; k < c->n_leaves; k++)
    if (c->leaves[k].t == t) return c->leaves[k].written != 0;
  return false;
}

/* ---- replays */

bool ax_capture_fits(const ax_capture *c, const char **why)
{
  const char *what = NULL;
  for (int k = 0; k < c->n_leaves && !what; k++) {
    const ax_noted *l = &c->leaves[k];
    if (ax_data(ax_home_resting(l->t)) != l->data) what = "a parameter or buffer was given other memory";
    else if (l->work_before && !ax_slot_work(l->t)) what = "a parameter has left its flat buffer";
    else if (l->t->requires_grad != l->wanted) what = "a parameter was frozen or thawed";
    else if (c->leaves_gradients) continue;
    else if (!l->t->grad != !l->before)
      what = l->before ? "a parameter has no gradient where it had one"
                       : "a parameter has a gradient where it had none";
    else if (l->before && (l->t->grad->dtype != l->before->dtype || l->t->grad->numel != l->before->numel))
      what = "a gradient has another shape or type";
  }
  if (why) *why = what;
  return !what;
}

/* Before it: what the recording took for given. */
static ax_status prepare(ax_noted *l)
{
  ax_status st = AX_OK;
  /* the kernels read it there */
  if (l->before && ax_data(l->t->grad) != ax_data(l->before)) st = ax_copy(l->before, l->t->grad);
  if (st == AX_OK && l->work_before && !ax_slot_work_is_current(l->t) &&
      (st = ax_copy(ax_slot_work(l->t), l->t)) == AX_OK)
    ax_slot_set_work_current(l->t, true);
  return st;
}

static void conclude(ax_noted *l, bool leaves_gradients)
{
  l->t->version->edits += l->written;
  ax_slot_set_work_current(l->t, l->work_after);
  if (!leaves_gradients) set_grad(l->t, l->after);
}

ax_status ax_capture_replay(ax_capture *c, bool first)
{
  const bool recording = ax_grad_set_enabled(false);
  ax_status st = AX_OK;

  if (ax_recording)
    st = ax_fail(AX_EINVAL, "a captured step cannot be replayed while another one is captured");
  else if (!c->ended) st = ax_fail(AX_EINVAL, "the step was not recorded to its end");
  if (st != AX_OK) goto out;
  AX_TRY(ax_later_all()); /* they may read what the step writes */
  AX_TRY(ax_home_rest_all());
  for (int k = 0; k < c->n_leaves && !first; k++) AX_TRY(prepare(&c->leaves[k]));
  for (int k = 0; k < c->n_generators; k++) {
    const ax_drawn *d = &c->generators[k];
    ax_draw_args *args = (ax_draw_args *)(c->here + d->at);
    const uint64_t now = first ? d->draws : d->g->draws;
    args->seed = d->g->seed;
    args->offset = now - d->draws;
    d->g->draws = now + d->count;
  }
  if (c->used)
    AX_TRY(c->backend->memory->copy(c->device, c->there, (ax_device){ AX_CPU, 0 }, c->here, c->used));
  if (c->n_groups) AX_TRY(ax_device_replay(c->groups, c->n_groups));
  ax_launch_begin(c->device, "a captured step");
  st = c->backend->capture->replay(c->graph);
  ax_launch_end();
  if (st == AX_OK && c->n_groups) st = ax_device_replayed(c->groups);
  if (st != AX_OK) goto out;
  for (int k = 0; k < c->n_leaves && !first; k++) conclude(&c->leaves[k], c->leaves_gradients);
out:
  ax_grad_set_enabled(recording);
  return st;
}
