/* pages.c: the lists of a schedule, the order in which its weights are requested, and the end of
 * one (page.h). */
#include "core/offload/page.h"

#include "core/core.h"

bool ax_offload_over;
pthread_mutex_t ax_pages_lock = PTHREAD_MUTEX_INITIALIZER;
ax_offload *ax_offload_schedules;

/* ---- lists, with the lock held */

static void enter(ax_page_list *l, ax_page *p)
{
  p->in = l;
  p->newer = NULL;
  p->older = l->last;
  if (l->last) l->last->newer = p;
  else l->first = p;
  l->last = p;
}

static void leave(ax_page *p)
{
  if (!p->in) return;
  if (p->older) p->older->newer = p->newer;
  else p->in->first = p->newer;
  if (p->newer) p->newer->older = p->older;
  else p->in->last = p->older;
  p->in = NULL;
  p->newer = p->older = NULL;
}

void ax_page_settle(ax_page *p, ax_page_place to)
{
  ax_offload *const o = p->of;

  if (p->place == AX_HERE) o->stats.here -= (int64_t)p->bytes;
  if (p->place == AX_COMING) o->coming -= (int64_t)p->bytes;
  leave(p);
  p->place = to;
  if (to == AX_HERE) {
    enter(&o->here, p);
    o->stats.here += (int64_t)p->bytes;
    if (o->stats.here > o->stats.here_most) o->stats.here_most = o->stats.here;
    p->touched = false;
  } else if (to == AX_COMING) {
    enter(&o->on_the_way, p);
    o->coming += (int64_t)p->bytes;
  }
}

/* A storage that nobody holds any more is about to end on another thread. */
bool ax_page_hold(ax_page *p)
{
  int32_t refs = __atomic_load_n(&p->s->refs, __ATOMIC_RELAXED);
  while (refs > 0)
    if (__atomic_compare_exchange_n(&p->s->refs, &refs, refs + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return true;
  return false;
}

/* Adds the pair (before, p) -> after to the recorded order. */
void ax_page_record(ax_page *before, ax_page *p, ax_page *after)
{
  if (!p) return;
  int at = TRACED - 1;
  for (int k = TRACED - 1; k >= 0; k--)
    if (p->seen[k].before == before || !p->seen[k].after) at = k;
  p->seen[at].before = before;
  p->seen[at].after = after;
}

/* What is requested after `p`, where `before` came before it. */
ax_page *ax_page_guess(const ax_page *before, const ax_page *p)
{
  for (int k = 0; k < TRACED; k++)
    if (p->seen[k].after && p->seen[k].before == before) return p->seen[k].after;
  if (p->seen[0].after) return p->seen[0].after;
  return p->registered ? p->registered : p->of->first_added;
}

/* ---- a page ends */

void ax_schedule_release(ax_offload *o)
{
  if (--o->refs > 0) return;
  for (ax_offload **at = &ax_offload_schedules; *at; at = &(*at)->next)
    if (*at == o) {
      *at = o->next;
      break;
    }
  ax_mfree(o);
}

static void forget(ax_offload *o, ax_page *p) /* with the lock held */
{
  ax_page **at = &o->first_added;
  ax_page *former = NULL;

  for (; *at; former = *at, at = &(*at)->registered) {
    for (int k = 0; k < TRACED; k++)
      if ((*at)->seen[k].before == p || (*at)->seen[k].after == p)
        (*at)->seen[k].before = (*at)->seen[k].after = NULL;
  }
  for (at = &o->first_added, former = NULL; *at && *at != p; former = *at, at = &(*at)->registered) {}
  if (*at) *at = p->registered;
  if (o->last_added == p) o->last_added = former;
  if (o->now == p) o->now = NULL;
  if (o->before_now == p) o->before_now = NULL;
}

/* Takes a page out of its schedule.  Its claim is off. */
void ax_page_end(ax_page *p)
{
  ax_offload *const o = p->of;
  ax_tensor *const home = p->home, *const raw = p->raw;
  const uint64_t ticket = p->ticket;
  const ax_device device = o->device;

  pthread_mutex_lock(&ax_pages_lock);
  ax_page_settle(p, AX_AWAY);
  forget(o, p);
  o->stats.weights--;
  o->stats.bytes -= (int64_t)p->bytes;
  ax_schedule_release(o);
  pthread_mutex_unlock(&ax_pages_lock);
  ax_mfree(p);
  if (raw) ax_device_arrive(device, ticket); /* the copy writes there until then */
  ax_tensor_release(raw);
  ax_tensor_release(home);
}

void ax_page_free_data(ax_storage *s)
{
  if (!s->data) return;
  if (s->group) ax_memory_untrack(s);
  if (s->device.kind == AX_CPU) ax_free(s->data, s->bytes);
  else ((const ax_device_memory *)s->owner)->release(s->device.index, s->data, s->bytes);
  s->data = NULL;
}
