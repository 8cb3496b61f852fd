/* dist/device_group.c: the links of groups: their ranks' devices, beside the transport that carries
 * host memory.
 *
 * The devices of a group join at its first collective of a device's tensor, through its host
 * memory: ranks exchange the names of their devices, and the first rank makes the id that the
 * library (NCCL) joins by.  A group that is made where its parent's devices have joined gets its
 * link by a division of the parent's.  From then on every collective of the group, also of host
 * memory, is posted for comparison.
 *
 * Once something went wrong all links of this rank are aborted: kernels of a device that wait for a
 * peer end then, and every later call fails with the reason.
 *
 * Other ranks may still use a link that this one needs no more.  So a group that nobody refers to
 * any more waits in the list until all its ranks say the same. */
#define _GNU_SOURCE
#include "dist.h"
#include "capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"

#define PATIENCE_NS INT64_C(5000000000) /* for the others, when a link is left */

struct ax_work {
  ax_group *group; /* retained */
  uint64_t ticket;
};

/* This rank's device, and the groups that it has joined with it. */
static struct {
  const ax_transport *transport; /* NULL: it has joined none */
  int device;
  bool joining, closed; /* closed: aborted, or left */
  ax_group *first;      /* in the order of joining */
  char broken[1300];    /* why they were aborted; "": they were not */
} here;

const char *ax_dist_device_name(int *index)
{
  *index = here.device;
  return here.transport ? here.transport->name : NULL;
}

bool ax_gpu_shared(void)
{
  const char *text = getenv("ACCEL_SHARE_GPU");
  return text && strcmp(text, "1") == 0;
}

static ax_status refuse_broken(void)
{
  return here.broken[0] ? ax_fail(AX_EABORTED, "an earlier collective of the GPUs failed: %s", here.broken)
                        : AX_OK;
}

static void unlist(ax_group *g)
{
  ax_group **at = &here.first;

  while (*at && *at != g) at = &(*at)->next_linked;
  if (*at) *at = g->next_linked;
  g->next_linked = NULL;
  g->link = NULL;
}

/* Its link is gone. */
static void forget(ax_group *g)
{
  unlist(g);
  ax_watch_drop(g);
  if (g->members && g->refs == 0) ax_group_free(g);
}

static bool may_drop(ax_group *g)
{
  return here.transport->idle(g) && g->transport->retire && g->transport->retire(g);
}

/* Waits some seconds for the others to need g no more either.  Ranks of several machines tell each
 * other through the library. */
static void end_link(ax_group *g)
{
  const int64_t since = ax_monotonic_ns();
  bool all;

  if (!g->transport->retire) {
    here.transport->leave(g, false);
    return;
  }
  while (!(all = may_drop(g)) && ax_monotonic_ns() - since < PATIENCE_NS &&
         ax_dist_look(since, AX_OK) == AX_OK)
    usleep(100);
  if (all) here.transport->drop(g);
  else here.transport->leave(g, true);
}

/* Groups that nobody refers to go with their links. */
static void end_links(bool abort)
{
  if (!here.transport || here.closed) return;
  here.closed = true; /* first: leaving looks around, too */
  while (here.first) {
    if (abort) here.transport->leave(here.first, true);
    else end_link(here.first);
    forget(here.first);
  }
}

void ax_device_forget(void)
{
  while (here.first) unlist(here.first);
  here.transport = NULL;
  here.joining = false;
  ax_watch_forget();
}

/* Ends the links for good; the thread's message, which is the reason, is kept. */
static ax_status give_up(ax_status st)
{
  if (!here.broken[0]) snprintf(here.broken, sizeof here.broken, "%s", ax_last_error());
  end_links(true);
  return ax_fail(st, "%s", here.broken);
}

ax_status ax_dist_look(int64_t since, ax_status st)
{
  ax_group *world = ax_dist_world();

  if (world->transport->look) st = world->transport->look(world, since, st);
  return st == AX_OK || !here.transport || here.closed ? st : give_up(st);
}

void ax_dist_leave_device(void) { end_links(false); }

/* ---- groups that nobody refers to any more */

/* Frees those whose ranks have all left. */
static void reap(void)
{
  ax_group *next;

  for (ax_group *g = here.first; g && !here.closed && !ax_recording; g = next) {
    next = g->next_linked;
    if (!g->members || g->refs > 0 || !may_drop(g)) continue;
    here.transport->drop(g);
    forget(g);
  }
}

void ax_device_retire(ax_group *g)
{
  (void)g; /* it is in the list */
  reap();
}

/* ---- joining */

/* What ranks exchange when they join. */
typedef struct card {
  char device[AX_DEVICE_NAME];
  char id[AX_GROUP_ID];
} card;

static ax_status exchange(ax_group *g, const card *mine, card *all)
{
  const ax_collective c = {
    .op = AX_JOIN, .dtype = AX_U8, .count = (int64_t)sizeof *mine, .in = mine, .out = all
  };
  return ax_dist_run(g, &c, NULL);
}

static int machine_of(const ax_group *g, int rank)
{
  return ax_group_world_rank(g, rank) / ax_dist_world()->local_size;
}

static ax_status check_pair(const ax_group *g, const card *all, int a, int b)
{
  const int ra = ax_group_world_rank(g, a), rb = ax_group_world_rank(g, b);
  const char *va = strchr(all[a].device, ','), *vb = strchr(all[b].device, ',');

  if (va && vb && strcmp(va, vb) != 0)
    return ax_fail(AX_EINVAL,
                   "ranks %d and %d have different versions of the library that joins their GPUs: %s and %s",
                   ra, rb, va + 2, vb + 2);
  if (machine_of(g, a) != machine_of(g, b) || strcmp(all[a].device, all[b].device) != 0 || ax_gpu_shared())
    return AX_OK;
  return ax_fail(AX_EINVAL,
                 "ranks %d and %d use the same GPU (%.*s); each needs one of its own (ACCEL_SHARE_GPU=1 lets "
                 "them share it, slowly, for tests)",
                 ra, rb, (int)strcspn(all[a].device, ","), all[a].device);
}

static ax_status check_cards(const ax_group *g, const card *all)
{
  ax_status st = AX_OK;

  for (int r = 0; r < g->size; r++)
    if (!all[r].device[0])
      return ax_fail(AX_EABORTED, "rank %d cannot join the other ranks' GPUs; its own error says why",
                     ax_group_world_rank(g, r));
  for (int b = 0; b < g->size && st == AX_OK; b++)
    for (int a = 0; a < b && st == AX_OK; a++) st = check_pair(g, all, a, b);
  return st;
}

/* g has its link. */
static void enlist(ax_group *g, const ax_transport *transport)
{
  ax_group **at = &here.first;

  while (*at) at = &(*at)->next_linked;
  *at = g;
  here.transport = transport;
  here.device = g->device;
  if (g->transport->post_all) g->transport->post_all(g);
}

static ax_status join(ax_group *g, const ax_transport *transport, int index)
{
  card mine = { "", "" }, *all = ax_calloc((size_t)g->size, sizeof *all);
  ax_status st = all ? AX_OK : AX_ENOMEM, local;

  if (st != AX_OK) return st;
  /* A rank that cannot join still meets the others, which would wait for it. */
  local = transport->identity(index, mine.device);
  if (local == AX_OK && g->rank == 0) local = transport->make_id(mine.id);
  if (local != AX_OK) mine.device[0] = '\0';
  if (g->size > 1) AX_TRY(exchange(g, &mine, all));
  else all[0] = mine;
  AX_TRY(local);
  AX_TRY(check_cards(g, all));
  g->device = index;
  ax_watch_joining(g, &(ax_collective){ .op = AX_JOIN, .kind = AX_CUDA });
  AX_TRY(transport->join(g, all[0].id));
  enlist(g, transport);
out:
  ax_mfree(all);
  return st;
}

ax_status ax_dist_join_device(ax_group *g, int index)
{
  const ax_device d = { AX_CUDA, (uint8_t)index };
  const ax_backend *backend;
  ax_status st = ax_backend_of(d, &backend);

  if (st != AX_OK || (st = refuse_broken()) != AX_OK) return st;
  if (here.transport && here.device != index)
    return ax_fail(
        AX_EINVAL,
        "the tensor is on cuda:%d, and this rank's collectives run on cuda:%d: a rank has one device", index,
        here.device);
  if (g->link) return AX_OK;
  if (ax_dist_world()->closed)
    return ax_fail(AX_EINVAL,
                   "this rank has left the process group (end_training or destroy_process_group was called)");
  if (!backend->transport)
    return ax_fail(AX_ENOIMPL,
                   "the %s backend has no collectives: ranks exchange tensors in CPU memory only (--cpu)",
                   backend->name);
  if (here.joining) return ax_fail(AX_EINVAL, "a collective inside the joining of the GPUs");
  reap();
  here.joining = true;
  st = join(g, backend->transport, index);
  here.joining = false;
  return st;
}

ax_status ax_device_before_split(ax_group *from)
{
  const int index = ax_device_chosen();
  const ax_backend *backend;

  if (from->members || from->link || from->size == 1 || index < 0) return AX_OK;
  if (ax_backend_of((ax_device){ AX_CUDA, (uint8_t)index }, &backend) != AX_OK || !backend->transport)
    return AX_OK;
  return ax_dist_join_device(from, index);
}

ax_status ax_device_split(ax_group *from, ax_group *g)
{
  ax_status st;

  if (!from->link || here.closed) return AX_OK;
  reap();
  g->device = here.device;
  ax_watch_joining(from, &(ax_collective){ .op = AX_JOIN, .kind = AX_CUDA });
  if ((st = here.transport->split(from, g)) != AX_OK) return give_up(st);
  if (g->link) enlist(g, here.transport);
  return AX_OK;
}

/* ---- collectives */

ax_status ax_work_new(ax_group *g, uint64_t ticket, ax_work **out)
{
  const ax_transport *carries = g->link ? here.transport : g->transport;

  *out = NULL;
  if (ticket == 0) return AX_OK;
  if (!(*out = ax_malloc(sizeof **out))) return carries->order(g, ticket); /* then it is waited for here */
  **out = (ax_work){ ax_group_retain(g), ticket };
  return AX_OK;
}

static ax_status check_open(void)
{
  ax_status st = refuse_broken();

  if (st != AX_OK || (here.transport && !here.closed)) return st;
  return ax_fail(AX_EABORTED, "the GPUs' group has been left");
}

static bool is_between_two(ax_collective_op op) { return op == AX_SEND || op == AX_RECV; }

/* While a step is captured nothing runs, so nothing is compared either: ranks compare all of its
 * collectives when it ends. */
static ax_status record(ax_group *g, const ax_collective *compared, const ax_collective *c, int n,
                        ax_work **work)
{
  uint64_t ticket = 0;
  ax_status st;

  if (!g->link || here.device != c->index) {
    if ((st = refuse_broken()) != AX_OK) return st;
    return ax_fail(AX_EINVAL, "the ranks' GPUs join at their first collective, which cannot be a recorded "
                              "one; let the captured step run eagerly before (warmup)");
  }
  if ((st = check_open()) != AX_OK) return st;
  if (!here.transport->replay)
    return ax_fail(AX_ENOIMPL, "%s cannot record collectives; call them outside of the captured function",
                   here.transport->name);
  if (is_between_two(compared->op))
    return ax_fail(
        AX_ENOIMPL,
        "%s of a GPU's tensor cannot be part of a captured step; call it outside of the captured function",
        ax_collective_name(compared->op));
  if ((st = ax_capture_collective(g, compared)) != AX_OK) return st;
  if ((st = here.transport->issue(g, c, n, &ticket)) != AX_OK) return st;
  return ax_work_new(g, ticket, work);
}

/* Two ranks alone cannot have the GPUs of others join. */
static ax_status check_pair_may_join(const ax_group *g, const ax_collective *c)
{
  char text[160];

  if (g->link || g->size == 2 || !is_between_two(c->op)) return AX_OK;
  return ax_fail(AX_EINVAL,
                 "%s: the GPUs of its %d ranks have not joined, which takes all of them: call another "
                 "collective of GPU tensors before, or make the group when the world's have joined",
                 ax_collective_text(c, text, sizeof text), g->size);
}

ax_status ax_device_issue(ax_group *g, const ax_collective *compared, const ax_collective *c, int n,
                          ax_work **work)
{
  uint64_t ticket = 0, number = 0;
  ax_status st;

  *work = NULL;
  if (g->size == 1 && !g->link) return ax_dist_alone(c, n);
  if (ax_recording) return record(g, compared, c, n, work);
  if ((st = check_pair_may_join(g, compared)) != AX_OK) return st;
  if ((st = ax_dist_join_device(g, c->index)) != AX_OK) return st;
  if (here.closed) return ax_fail(AX_EABORTED, "the GPUs' group has been left");
  if (g->transport->post && (st = g->transport->post(g, compared, &number)) != AX_OK) return give_up(st);
  ax_watch_issuing(g, compared, number);
  if ((st = here.transport->issue(g, c, n, &ticket)) != AX_OK) return give_up(st);
  return ax_work_new(g, ticket, work);
}

/* *number: the first group's; the watchdog names that one. */
static ax_status post(ax_collective_op op, const ax_recorded *r, int n, ax_collective *first,
                      uint64_t *number)
{
  ax_status st = check_open();

  for (int k = 0; k < n && st == AX_OK; k++) {
    ax_collective c = r[k].as_one;
    uint64_t its_number = 0;
    c.op = op;
    if (k == 0) *first = c;
    if (r[k].group->transport->post &&
        (st = r[k].group->transport->post(r[k].group, &c, &its_number)) != AX_OK)
      st = give_up(st);
    if (k == 0) *number = its_number;
  }
  return st;
}

ax_status ax_device_recorded(const ax_recorded *r, int n)
{
  ax_collective c;
  uint64_t number;
  return post(AX_RECORDING, r, n, &c, &number);
}

ax_status ax_device_replay(const ax_recorded *r, int n)
{
  ax_collective c;
  uint64_t number = 0;
  ax_status st = post(AX_REPLAY, r, n, &c, &number);

  if (st != AX_OK) return st;
  ax_watch_issuing(r->group, &c, number);
  return (st = here.transport->replay(r->group, true)) == AX_OK ? st : give_up(st);
}

ax_status ax_device_replayed(const ax_recorded *r)
{
  const ax_status st = here.transport->replay(r->group, false);
  return st == AX_OK ? st : give_up(st);
}

ax_status ax_work_wait(ax_work *work)
{
  ax_work w;
  ax_status st = AX_OK;

  if (!work) return AX_OK;
  w = *work;
  ax_mfree(work);
  if (w.group->link) {
    st = here.transport->order(w.group, w.ticket);
    if (st != AX_OK) st = give_up(st);
  } else if (here.broken[0]) { /* aborted: nothing runs any more */
    st = ax_fail(AX_EABORTED, "%s", here.broken);
  }
  ax_group_release(w.group);
  return st;
}
