/* staged.c: steps over memory that rests in files, or partly on a device (place.h).
 *
 * Segments are cut into stages of two megabytes a buffer.  A stage has elements of files and of a
 * device in a buffer of its own, and the others where they are.  While the kernel
 * computes on one stage, threads read the next two from files and write the former one, so that
 * memory holds DEPTH stages, however large the model is.  Elements are stepped one by one, so that
 * a step in memory gives the same bits. */
#include "core/optim/group.h"
#include "core/core.h"
#include "core/offload/transfers.h"
#include "core/params/home.h"

#include <stdio.h>

enum { DEPTH = 4, AHEAD = 2, STAGE = 2 << 20, PAGE = 4096 };
enum { PARAM, GRAD, STATES, ROLES = STATES + AX_MAX_STATES };

typedef struct stage {
  ax_segment seg;
  int of;            /* the number of the segment that it is of */
  void *down[ROLES]; /* the role's memory on the device, which the stage has a copy of; NULL: none */
  ax_disk_transfer read[ROLES], write[ROLES]; /* stretch NULL: that role is in memory */
} stage;

typedef struct walk {
  const ax_staging *of;
  int64_t item;
  stage stages[DEPTH];
  char *room;       /* of all stages, aligned to a page */
  int place[ROLES]; /* the role's buffer in a stage; -1: it is never in a file */
  int places;
  int segment; /* what comes next */
  int64_t at;
} walk;

static void **pointer_of(ax_segment *s, int role)
{
  /* the kernel reads gradients alone */
  return role == PARAM ? &s->param : role == GRAD ? (void **)&s->grad : &s->state[role - STATES];
}

/* Is the role's memory of segment k that of the device? */
static bool is_there(const ax_staging *o, int k, int role)
{
  return (role == PARAM && o->there[k] & AX_CUT_VALUES) || (role == GRAD && o->there[k] & AX_CUT_GRADS);
}

/* The stretch of a file that the role's memory of segment k is in, `data` of it; NULL: there is
 * none. */
static const ax_stretch *stretch_of(const ax_staging *o, int k, int role, const void *data)
{
  return data && !is_there(o, k, role) ? ax_stretch_at(data) : NULL;
}

/* ---- messages */

static bool holds(const ax_tensor *t, const void *there)
{
  const char *const begin = t ? (const char *)t->storage->data + (size_t)t->offset * ax_itemsize(t) : NULL;
  return t && (const char *)there >= begin && (const char *)there < begin + (size_t)t->numel * ax_itemsize(t);
}

static const char *name_of(const member *m, char *text, size_t size)
{
  const ax_flat *f = m->flat;
  if (f && f->names) return f->names[m->slot];
  snprintf(text, size, "a parameter with %lld elements", (long long)m->numel);
  return text;
}

/* "exp_avg of h.3.attn.c_attn.weight" */
static void describe(const ax_optim_group *g, const void *there, char *text, size_t size)
{
  const ax_optim_row *row = &ax_optims[g->kind];
  char name[64];

  snprintf(text, size, "the optimizer's step");
  for (int i = 0; i < g->n; i++) {
    const member *m = &g->members[i];
    const char *what = holds(m->value ? m->value : m->param, there) ? "values"
                       : holds(m->grad, there) ? "the gradient"
                                               : NULL;
    for (int k = 0; k < row->n_states; k++)
      if (holds(m->state[k], there)) what = row->states[k].name;
    if (!what) continue;
    snprintf(text, size, "%s of %s", what, name_of(m, name, sizeof name));
    return;
  }
}

/* A step has ended half-way: the pieces that it has changed and the others are of two steps. */
static void spoil(const walk *w)
{
  for (int k = 0; k < w->of->n; k++)
    for (int role = 0; role < ROLES; role++) {
      const ax_stretch *x = stretch_of(w->of, k, role, *pointer_of((ax_segment *)&w->of->segs[k], role));
      if (x) ax_scratch_spoil(ax_stretch_file(x));
    }
}

static ax_status wait_for(const walk *w, ax_disk_transfer *t)
{
  const int why = ax_disk_wait(t);
  char what[160];

  if (!why) return AX_OK;
  describe(w->of->group, t->there, what, sizeof what);
  return ax_place_fail(ax_stretch_file(t->stretch), t->write, what, t->n, t->moved, why);
}

/* ---- stages */

/* Elements of the segment's next stage.  It ends where a page of the states' file does, so that
 * transfers of whole pages go past the page cache. */
static int64_t next_count(const walk *w, const ax_segment *s)
{
  const int64_t left = s->n - w->at, most = STAGE / w->item;

  if (left <= most) return left;
  for (int role = ROLES - 1; role >= 0; role--) {
    const char *const p = *pointer_of((ax_segment *)s, role);
    const ax_stretch *x = stretch_of(w->of, w->segment, role, p);
    if (!x) continue;
    const int64_t from = ax_stretch_offset(x, p + w->at * w->item);
    return ((from + most * w->item) / PAGE * PAGE - from) / w->item;
  }
  return most;
}

static const ax_device host = { AX_CPU, 0 };

static ax_status copy(ax_device to, void *dst, ax_device from, const void *src, size_t n)
{
  const ax_backend *backend;
  const ax_status st = ax_backend_of(from.kind == AX_CPU ? to : from, &backend);
  return st == AX_OK ? backend->memory->copy(to, dst, from, src, n) : st;
}

/* Gives a role of a stage its buffer, aligned as its place in a file is, and begins to read. */
static ax_status begin_read(walk *w, stage *s, int number, int role)
{
  void **const p = pointer_of(&s->seg, role);
  const ax_stretch *x = stretch_of(w->of, s->of, role, *p);
  const size_t bytes = (size_t)(s->seg.n * w->item);
  char *room;
  ax_status st;

  s->read[role] = s->write[role] = (ax_disk_transfer){ 0 };
  s->down[role] = NULL;
  if (w->place[role] < 0) return AX_OK;
  room = w->room + (size_t)(number * w->places + w->place[role]) * (STAGE + PAGE);
  if (is_there(w->of, s->of, role)) {
    s->down[role] = *p;
    *p = room;
    return copy(host, room, w->of->device, s->down[role], bytes);
  }
  if (!x) return AX_OK;
  if ((st = ax_scratch_check(ax_stretch_file(x))) != AX_OK) return st;
  room += ax_stretch_offset(x, *p) % PAGE;
  s->read[role] = (ax_disk_transfer){ .stretch = x, .there = *p, .data = room, .n = bytes };
  s->write[role] = s->read[role];
  s->write[role].write = true;
  *p = room;
  ax_disk_begin(&s->read[role]);
  return AX_OK;
}

static ax_status wait_for_writes(const walk *w, stage *s)
{
  ax_status st = AX_OK;
  for (int role = 0; role < ROLES; role++) {
    const ax_status one = s->write[role].stretch ? wait_for(w, &s->write[role]) : AX_OK;
    if (st == AX_OK) st = one;
  }
  return st;
}

/* Makes stage `number` the next one, and begins to read it. */
static ax_status begin_stage(walk *w, int number)
{
  const ax_segment *from = &w->of->segs[w->segment];
  stage *s = &w->stages[number];
  ax_status st = wait_for_writes(w, s);

  if (st != AX_OK) return st;
  s->seg = *from;
  s->of = w->segment;
  s->seg.n = next_count(w, from);
  for (int role = 0; role < ROLES; role++) {
    void **const p = pointer_of(&s->seg, role);
    if (*p) *p = (char *)*p + w->at * w->item;
  }
  if (s->seg.work) s->seg.work = (char *)s->seg.work + w->at * 2;
  w->at += s->seg.n;
  if (w->at >= from->n) {
    w->segment++;
    w->at = 0;
  }
  for (int role = 0; role < ROLES && st == AX_OK; role++) st = begin_read(w, s, number, role);
  return st;
}

static ax_status compute(walk *w, stage *s)
{
  const ax_staging *o = w->of;
  ax_status st = AX_OK;

  for (int role = 0; role < ROLES; role++) {
    const ax_status one = s->read[role].stretch ? wait_for(w, &s->read[role]) : AX_OK;
    if (st == AX_OK) st = one;
  }
  if (st == AX_OK) st = ax_optim_step(host, o->group->kind, o->dtype, &s->seg, 1, o->hyper, o->device_args);
  for (int role = 0; role < ROLES && st == AX_OK; role++)
    if (s->write[role].stretch && role != GRAD) ax_disk_begin(&s->write[role]);
  if (st == AX_OK && s->down[PARAM])
    st = copy(o->device, s->down[PARAM], host, s->seg.param, (size_t)(s->seg.n * w->item));
  return st;
}

/* Finds the roles that some segment has in a file or on the device. */
static void find_roles(walk *w)
{
  for (int role = 0; role < ROLES; role++) w->place[role] = -1;
  for (int k = 0; k < w->of->n; k++)
    for (int role = 0; role < ROLES; role++)
      if (w->place[role] < 0 &&
          (is_there(w->of, k, role) ||
           stretch_of(w->of, k, role, *pointer_of((ax_segment *)&w->of->segs[k], role))))
        w->place[role] = w->places++;
}

static ax_status step_stages(walk *w)
{
  int64_t begun = 0, done = 0;
  ax_status st = AX_OK;

  for (; st == AX_OK && (w->segment < w->of->n || done < begun); done++) {
    for (; st == AX_OK && w->segment < w->of->n && begun <= done + AHEAD; begun++)
      st = begin_stage(w, (int)(begun % DEPTH));
    if (st == AX_OK) st = compute(w, &w->stages[done % DEPTH]);
  }
  for (int k = 0; k < DEPTH; k++) { /* nothing is moved any more when the room is freed */
    const ax_status one = wait_for_writes(w, &w->stages[k]);
    for (int role = 0; role < ROLES; role++) ax_disk_wait(&w->stages[k].read[role]);
    if (st == AX_OK) st = one;
  }
  if (st != AX_OK) spoil(w);
  return st;
}

/* Memory of the host, which a device copies fastest where it is pinned. */
static ax_status make_room(const ax_staging *o, size_t bytes, ax_storage **out)
{
  if (o->device.kind != AX_CPU && ax_storage_new_pinned(bytes, out) == AX_OK) return AX_OK;
  return ax_storage_new(host, bytes, out);
}

ax_status ax_optim_step_staged(const ax_staging *o)
{
  walk *w = ax_calloc(1, sizeof *w);
  ax_storage *room = NULL;
  ax_status st;

  if (!w) return AX_ENOMEM;
  w->of = o;
  w->item = (int64_t)ax_dtype_size(o->dtype);
  find_roles(w);
  AX_TRY(make_room(o, (size_t)DEPTH * (size_t)w->places * (STAGE + PAGE) + PAGE, &room));
  w->room = (char *)(((uintptr_t)room->data + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
  st = step_stages(w);
out:
  ax_storage_release(room);
  ax_mfree(w);
  return st;
}
