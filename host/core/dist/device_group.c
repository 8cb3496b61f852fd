/* dist/device_group.c: the group of the ranks' devices, beside the transport that carries host
 * memory.
 *
 * It is joined at the first collective of a device's tensor, through that transport: ranks exchange
 * the names of their devices, and rank 0 makes the id that the library (NCCL) joins by.  From then
 * on every collective, also of host memory, is posted for comparison.
 *
 * Once something went wrong the group is aborted: kernels of a device that wait for a peer end
 * then, and every later call fails with the reason. */
#include "dist.h"
#include "capture.h"

#include <stdio.h>
#include <string.h>

#include "core/core.h"

struct ax_work {
  ax_group *group;
  uint64_t ticket;
};

static ax_group here; /* closed: aborted, or left */
static bool joined, joining;
static char broken[1300];

const char *ax_dist_device_name(void) { return joined ? here.transport->name : NULL; }
void ax_dist_forget_device(void)
{
  joined = joining = false;
  ax_watch_forget();
}

static void end_group(bool abort)
{
  if (!joined || here.closed) return;
  here.closed = true; /* first: leaving looks around, too */
  if (here.transport->leave) here.transport->leave(&here, abort);
}

/* Ends the group for good; the thread's message, which is the reason, is kept. */
static ax_status give_up(ax_status st)
{
  if (!broken[0]) snprintf(broken, sizeof broken, "%s", ax_last_error());
  end_group(true);
  return ax_fail(st, "%s", broken);
}

ax_status ax_dist_look(int64_t since, ax_status st)
{
  ax_group *world = ax_dist_world();

  if (world->transport->look) st = world->transport->look(world, since, st);
  return st == AX_OK || !joined || here.closed ? st : give_up(st);
}

void ax_dist_leave_device(void) { end_group(false); }

/* ---- joining --------------------------------------------------------------------------------- */

/* What ranks exchange when they join. */
typedef struct card {
  char device[AX_DEVICE_NAME];
  char id[AX_GROUP_ID];
} card;

static ax_status exchange(const card *mine, card *all)
{
  const ax_collective c = {
    .op = AX_JOIN, .dtype = AX_U8, .count = (int64_t)sizeof *mine, .in = mine, .out = all
  };
  return ax_dist_run(ax_dist_world(), &c, NULL);
}

static ax_status check_cards(const ax_group *world, const card *all)
{
  for (int r = 0; r < world->size; r++)
    if (!all[r].device[0])
      return ax_fail(AX_EABORTED, "rank %d cannot join the other ranks' GPUs; its own error says why", r);
  for (int b = 0; b < world->size; b++)
    for (int a = 0; a < b; a++) {
      const char *va = strchr(all[a].device, ','), *vb = strchr(all[b].device, ',');
      if (va && vb && strcmp(va, vb) != 0)
        return ax_fail(
            AX_EINVAL,
            "ranks %d and %d have different versions of the library that joins their GPUs: %s and %s", a, b,
            va + 2, vb + 2);
      /* on one machine */
      if (a / world->local_size == b / world->local_size && strcmp(all[a].device, all[b].device) == 0)
        return ax_fail(AX_EINVAL, "ranks %d and %d use the same GPU (%.*s); each needs one of its own", a, b,
                       (int)strcspn(all[a].device, ","), all[a].device);
    }
  return AX_OK;
}

static ax_status join(ax_group *world, const ax_transport *transport, int index)
{
  card mine = { "", "" }, *all = ax_calloc((size_t)world->size, sizeof *all);
  ax_status st = all ? AX_OK : AX_ENOMEM, local;

  if (st != AX_OK) return st;
  /* A rank that cannot join still meets the others, which would wait for it. */
  local = transport->identity(index, mine.device);
  if (local == AX_OK && world->rank == 0) local = transport->make_id(mine.id);
  if (local != AX_OK) mine.device[0] = '\0';
  if (world->size > 1) AX_TRY(exchange(&mine, all));
  else all[0] = mine;
  AX_TRY(local);
  AX_TRY(check_cards(world, all));
  here = *world;
  here.transport = transport;
  here.state = NULL;
  here.device = index;
  ax_watch_joining(&(ax_collective){ .op = AX_JOIN, .kind = AX_CUDA });
  AX_TRY(transport->join(&here, all[0].id));
  joined = true;
  if (world->transport->post_all) world->transport->post_all(world);
out:
  ax_mfree(all);
  return st;
}

ax_status ax_dist_join_device(int index)
{
  const ax_device d = { AX_CUDA, (uint8_t)index };
  ax_group *world = ax_dist_world();
  const ax_backend *backend;
  ax_status st = ax_backend_of(d, &backend);

  if (st != AX_OK) return st;
  if (broken[0]) return ax_fail(AX_EABORTED, "an earlier collective of the GPUs failed: %s", broken);
  if (joined && here.device == index) return AX_OK;
  if (joined)
    return ax_fail(
        AX_EINVAL,
        "the tensor is on cuda:%d, and this rank's collectives run on cuda:%d: a rank has one device", index,
        here.device);
  if (world->closed)
    return ax_fail(AX_EINVAL,
                   "this rank has left the process group (end_training or destroy_process_group was called)");
  if (!backend->transport)
    return ax_fail(AX_ENOIMPL,
                   "the %s backend has no collectives: ranks exchange tensors in CPU memory only (--cpu)",
                   backend->name);
  if (joining) return ax_fail(AX_EINVAL, "a collective inside the joining of the GPUs");
  joining = true;
  st = join(world, backend->transport, index);
  joining = false;
  return st;
}

/* ---- collectives ----------------------------------------------------------------------------- */

ax_status ax_work_new(ax_group *g, uint64_t ticket, ax_work **out)
{
  *out = NULL;
  if (ticket == 0) return AX_OK;
  if (!(*out = ax_malloc(sizeof **out)))
    return g->transport->order(g, ticket); /* then it is waited for here */
  **out = (ax_work){ g, ticket };
  return AX_OK;
}

static ax_status check_open(void)
{
  if (broken[0]) return ax_fail(AX_EABORTED, "an earlier collective of the GPUs failed: %s", broken);
  return joined && !here.closed ? AX_OK : ax_fail(AX_EABORTED, "the GPUs' group has been left");
}

/* While a step is captured nothing runs, so nothing is compared either: ranks compare all of its
 * collectives when it ends. */
static ax_status record(const ax_collective *compared, const ax_collective *c, int n, ax_work **work)
{
  uint64_t ticket = 0;
  ax_status st;

  if (!joined || here.device != c->index)
    return ax_fail(AX_EINVAL, "the ranks' GPUs join at their first collective, which cannot be a recorded "
                              "one; let the captured step run eagerly before (warmup)");
  if ((st = check_open()) != AX_OK) return st;
  if (!here.transport->replay)
    return ax_fail(AX_ENOIMPL, "%s cannot record collectives; call them outside of the captured function",
                   here.transport->name);
  if ((st = here.transport->issue(&here, c, n, &ticket)) != AX_OK) return st;
  ax_capture_collective(compared);
  return ax_work_new(&here, ticket, work);
}

ax_status ax_device_issue(ax_group *world, const ax_collective *compared, const ax_collective *c, int n,
                          ax_work **work)
{
  uint64_t ticket = 0;
  ax_status st;

  *work = NULL;
  if (world->size == 1 && !joined) return ax_dist_alone(c, n);
  if (ax_recording) return record(compared, c, n, work);
  if ((st = ax_dist_join_device(c->index)) != AX_OK) return st;
  if (here.closed) return ax_fail(AX_EABORTED, "the GPUs' group has been left");
  if (world->transport->post && (st = world->transport->post(world, compared)) != AX_OK) return give_up(st);
  ax_watch_issuing(compared);
  if ((st = here.transport->issue(&here, c, n, &ticket)) != AX_OK) return give_up(st);
  return ax_work_new(&here, ticket, work);
}

static ax_status post(ax_collective_op op, const ax_collective *as_one, ax_collective *c)
{
  ax_group *world = ax_dist_world();
  ax_status st = check_open();

  *c = *as_one;
  c->op = op;
  if (st == AX_OK && world->transport->post && (st = world->transport->post(world, c)) != AX_OK)
    st = give_up(st);
  return st;
}

ax_status ax_device_recorded(const ax_collective *as_one)
{
  ax_collective c;
  return post(AX_RECORDING, as_one, &c);
}

ax_status ax_device_replay(const ax_collective *as_one)
{
  ax_collective c;
  ax_status st = post(AX_REPLAY, as_one, &c);

  if (st != AX_OK) return st;
  ax_watch_issuing(&c);
  return (st = here.transport->replay(&here, true)) == AX_OK ? st : give_up(st);
}

ax_status ax_device_replayed(void)
{
  const ax_status st = here.transport->replay(&here, false);
  return st == AX_OK ? st : give_up(st);
}

ax_status ax_work_wait(ax_work *work)
{
  ax_work w;
  ax_status st;

  if (!work) return AX_OK;
  w = *work;
  ax_mfree(work);
  if (w.group != &here) return w.group->transport->order(w.group, w.ticket);
  if (!joined || here.closed) /* aborted: nothing runs any more */
    return broken[0] ? ax_fail(AX_EABORTED, "%s", broken) : AX_OK;
  st = here.transport->order(&here, w.ticket);
  return st == AX_OK ? st : give_up(st);
}
