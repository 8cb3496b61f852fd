/* Optimizer steps in recorded ones (capture.h): the device repeats what the kernels do, and this
 * what the host does, which is to count. */
#include "core/optim/group.h"
#include "capture.h"

#include <string.h>

ax_optim_record *ax_optim_record_new(ax_optim_group *g, const batch *b, uint32_t needs, bool skippable)
{
  ax_optim_record *r = ax_calloc(1, sizeof *r + sizeof *r->of * (size_t)b->n);

  if (!r) return NULL;
  r->group = ax_optim_group_retain(g);
  r->arrangement = g->arrangement;
  r->batch = (int)(b - g->batches);
  r->place = ax_recording ? ax_capture_optims(ax_recording) : -1;
  r->needs = needs;
  r->skippable = skippable;
  for (int k = 0; k < b->n; k++) {
    const member *m = &g->members[g->order[b->first + k]];
    recorded *c = &r->of[r->n];
    if (!m->param->grad) continue;
    *c = (recorded){ .member = g->order[b->first + k], .step = m->step, .number = m->number };
    for (int i = 0; i < AX_MAX_STATES; i++)
      if (m->state[i]) c->state[i] = ax_tensor_retain(m->state[i]);
    r->n++;
  }
  return r;
}

ax_optim_record *ax_optim_record_next(const ax_optim_record *r) { return r->next; }

void ax_optim_record_free(ax_optim_record *r)
{
  if (!r) return;
  for (int k = 0; k < r->n; k++)
    for (int i = 0; i < AX_MAX_STATES; i++) ax_tensor_release(r->of[k].state[i]);
  ax_optim_group_release(r->group);
  ax_mfree(r);
}

/* How many steps there have been since, by one of the members. */
static int64_t steps_since(const ax_optim_record *r, int k)
{
  return r->group->members[r->of[k].member].step - r->of[k].step;
}

void ax_optim_record_again(ax_optim_record *r, ax_capture *c, const ax_hyper *h)
{
  ax_optim_group *g = r->group;
  batch *b = &g->batches[r->batch];

  ax_capture_set_optim(c, r->place, h, steps_since(r, 0));
  for (int k = 0; k < r->n; k++) g->members[r->of[k].member].step++;
  if (!r->skippable || b->unsettled) return;
  b->unsettled = true;
  for (int k = 0; k < b->n; k++) g->members[g->order[b->first + k]].stepped = false;
  for (int k = 0; k < r->n; k++) g->members[r->of[k].member].stepped = true;
}

void ax_optim_record_undo(ax_optim_record *r)
{
  for (int k = 0; k < r->n; k++) {
    member *m = &r->group->members[r->of[k].member];
    m->step = r->of[k].step;
    m->number = r->of[k].number;
  }
}

const char *ax_optim_record_misfit(const ax_optim_record *r, const ax_hyper *h)
{
  if (r->group->arrangement != r->arrangement)
    return "the optimizer's parameters or state were given other memory";
  for (int k = 0; k < r->n; k++) {
    const member *m = &r->group->members[r->of[k].member];
    if (memcmp(m->state, r->of[k].state, sizeof m->state) != 0)
      return "the optimizer's state was given other memory";
    if (steps_since(r, k) != steps_since(r, 0))
      return "the parameters' counts of steps were given other memory: they no longer go together";
  }
  return ax_optim_needs(r->group->kind, h) != r->needs ? "an option of the optimizer asks for other states"
                                                       : NULL;
}
