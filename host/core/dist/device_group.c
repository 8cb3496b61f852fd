/* dist/device_group.c: the group of the ranks' devices, beside the transport that carries host memory.
 *
 * It is joined at the first collective of a device's tensor, through that transport: ranks tell each other which device they bring, and rank 0
 * makes the id that the library (NCCL) joins by.  From then on every collective, also of host memory, is posted for comparison.
 *
 * Once something went wrong the group is aborted: kernels of a device that wait for a peer end then, and every later call says why. */
#include "dist.h"

#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/dist/shm.h"

struct ax_work { uint64_t ticket; };

static struct {
  const ax_collectives *api;
  ax_device_group *group; /* NULL: not joined, or aborted */
  int index;
  bool joined, joining;
} here;
static char broken[1300];

int64_t ax_dist_now(void) { return ax_monotonic_ns(); }
const char *ax_dist_device_name(void) { return here.joined ? here.api->name : NULL; }
void ax_dist_forget_device(void) { memset(&here, 0, sizeof here); }

static void end_group(bool abort)
{
  ax_device_group *group = here.group;

  here.group = NULL; /* first: leaving looks around, too */
  if (group)
    here.api->leave(group, abort);
}

/* Ends the group for good; the thread's message says why and stays. */
static ax_status give_up(ax_status st)
{
  if (!broken[0])
    snprintf(broken, sizeof broken, "%s", ax_last_error());
  end_group(true);
  return ax_fail(st, "%s", broken);
}

ax_status ax_dist_look(int64_t since, ax_status st)
{
  ax_group *world = ax_dist_world();

  if (world->transport->look)
    st = world->transport->look(world, since, st);
  return st == AX_OK || !here.group ? st : give_up(st);
}

void ax_dist_leave_device(void) { end_group(false); }

/* ---- joining ----------------------------------------------------------------------------------------------------------------- */

/* What ranks tell each other. */
typedef struct card { char device[AX_DEVICE_NAME]; char id[AX_GROUP_ID]; } card;

static ax_status exchange(ax_group *world, const card *mine, card *all)
{
  const ax_collective c = {.op = AX_ALL_GATHER, .dtype = AX_U8, .model = -1, .count = (int64_t)sizeof *mine, .in = mine, .out = all};
  return ax_group_run(world, &c, NULL);
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
        return ax_fail(AX_EINVAL, "ranks %d and %d have different versions of the library that joins their GPUs: %s and %s", a, b, va + 2, vb + 2);
      if (a / world->local_size == b / world->local_size && strcmp(all[a].device, all[b].device) == 0) /* on one machine */
        return ax_fail(AX_EINVAL, "ranks %d and %d use the same GPU (%.*s); each needs one of its own", a, b, (int)strcspn(all[a].device, ","), all[a].device);
    }
  return AX_OK;
}

static ax_status join(ax_group *world, const ax_collectives *api, int index)
{
  card mine = {"", ""}, *all = ax_calloc((size_t)world->size, sizeof *all);
  ax_status st = all ? AX_OK : AX_ENOMEM, local;

  if (st != AX_OK)
    return st;
  /* A rank that cannot join still meets the others, which would wait for it. */
  local = api->identity(index, mine.device);
  if (local == AX_OK && world->rank == 0)
    local = api->make_id(mine.id);
  if (local != AX_OK)
    mine.device[0] = '\0';
  if (world->size > 1)
    AX_TRY(exchange(world, &mine, all));
  else
    all[0] = mine;
  AX_TRY(local);
  AX_TRY(check_cards(world, all));
  AX_TRY(api->join(index, world->rank, world->size, all[0].id, &here.group));
  here.index = index;
  here.joined = true;
  if (world->transport->post_all)
    world->transport->post_all(world);
out:
  ax_mfree(all);
  return st;
}

ax_status ax_dist_join_device(int index)
{
  const ax_device d = {AX_CUDA, (uint8_t)index};
  ax_group *world = ax_dist_world();
  const ax_backend *backend;
  ax_status st = ax_backend_of(d, &backend);

  if (st != AX_OK)
    return st;
  if (broken[0])
    return ax_fail(AX_EABORTED, "an earlier collective of the GPUs failed: %s", broken);
  if (here.joined && here.index == index)
    return AX_OK;
  if (here.joined)
    return ax_fail(AX_EINVAL, "the tensor is on cuda:%d, and this rank's collectives run on cuda:%d: a rank has one device", index, here.index);
  if (world->closed)
    return ax_fail(AX_EINVAL, "this rank has left the process group (end_training or destroy_process_group was called)");
  if (!backend->collectives)
    return ax_fail(AX_ENOIMPL, "the %s backend has no collectives: ranks exchange tensors in CPU memory only (--cpu)", backend->name);
  if (here.joining)
    return ax_fail(AX_EINVAL, "a collective inside the joining of the GPUs");
  here.api = backend->collectives;
  here.joining = true;
  st = join(world, here.api, index);
  here.joining = false;
  return st;
}

/* ---- collectives --------------------------------------------------------------------------------------------------------------- */

ax_status ax_device_issue(ax_group *g, const ax_collective *wish, const ax_collective *c, int n, ax_work **work)
{
  uint64_t ticket = 0;
  ax_status st = AX_OK;

  *work = NULL;
  if (g->size == 1 && !here.joined) {
    for (int k = 0; k < n && st == AX_OK; k++)
      st = g->transport->issue(g, &c[k], work);
    return st;
  }
  if ((st = ax_dist_join_device(c->index)) != AX_OK)
    return st;
  if (!here.group)
    return ax_fail(AX_EABORTED, "the GPUs' group has been left");
  if ((st = here.api->ready(here.group)) != AX_OK) /* before the others see it: the group goes on */
    return st;
  if (g->transport->post && (st = g->transport->post(g, wish)) != AX_OK)
    return give_up(st);
  if (!(*work = ax_malloc(sizeof **work)))
    return AX_ENOMEM;
  if ((st = here.api->issue(here.group, c, n, &ticket)) != AX_OK) {
    ax_mfree(*work);
    *work = NULL;
    return give_up(st);
  }
  (*work)->ticket = ticket;
  return AX_OK;
}

ax_status ax_dist_end(ax_work *work)
{
  const uint64_t ticket = work ? work->ticket : 0;
  ax_status st;

  if (!work)
    return AX_OK;
  ax_mfree(work);
  if (!here.group) /* aborted: nothing runs any more */
    return broken[0] ? ax_fail(AX_EABORTED, "%s", broken) : AX_OK;
  st = here.api->order(here.group, ticket);
  return st == AX_OK ? st : give_up(st);
}
