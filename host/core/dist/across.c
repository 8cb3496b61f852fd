/* dist/across.c: groups of ranks on several machines.
 *
 * A world of several machines divides so: a group whose ranks are all on one machine meets in that
 * machine's shared memory (shm.c); the ranks of any other one are connected to each other
 * (dist/links.h), and this transport carries its collectives.
 *
 * Each collective begins with an exchange of the ranks' calls, which every rank compares with the
 * first one's.  Parts of a reduction go to the rank that reduces them, in rank order, so that the
 * bits are those of as many ranks on one machine. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"
#include "core/dist/links.h"

#define ONE_EXCHANGE 4096         /* bytes of an all_reduce that every rank reduces by itself */
#define PIECE ((size_t)256 << 10) /* bytes of a rank's part of a reduction at a time */

static size_t bytes_of(const ax_collective *c, size_t n) { return n * ax_dtype_size(c->dtype); }

/* ---- meeting */

static ax_status compare(const ax_links *l, const ax_collective_call *all, int a, int b)
{
  if (ax_collective_same(&all[a].facts, &all[b].facts)) return AX_OK;
  return ax_calls_differ(l->members[a], &all[a], l->members[b], &all[b]);
}

/* Exchanges calls with all ranks, or with the other one of two, and compares them. */
static ax_status meet(ax_links *l, const ax_collective *c)
{
  const ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  const bool pair = c->op == AX_SEND || c->op == AX_RECV;
  ax_collective_call *all = ax_calloc((size_t)l->size, sizeof *all), *mine = all + l->rank;
  ax_parcel p[AX_MAX_RANKS] = { { NULL, 0, NULL, 0 } };
  ax_status st = all ? AX_OK : AX_ENOMEM;

  if (st != AX_OK) return st;
  mine->number = l->calls;
  mine->facts = *c;
  mine->facts.in = mine->facts.out = NULL;
  mine->facts.splits = NULL;
  memcpy(mine->where, me->where, sizeof mine->where);
  for (int r = 0; r < l->size; r++)
    if (!pair || r == c->root) p[r] = (ax_parcel){ mine, sizeof *mine, &all[r], sizeof all[r] };
  AX_TRY(ax_links_exchange(l, p));
  if (pair) {
    const int a = l->rank < c->root ? l->rank : c->root, b = l->rank < c->root ? c->root : l->rank;
    AX_TRY(compare(l, all, a, b));
  }
  for (int r = 1; r < l->size && !pair; r++) AX_TRY(compare(l, all, 0, r));
out:
  ax_mfree(all);
  return st;
}

/* ---- data */

/* in[count] of each rank to `to` (-1: to all), where it is in rank order from `out` on. */
static ax_status gather(ax_links *l, const void *in, size_t bytes, void *out, int to)
{
  const bool reads = to < 0 || to == l->rank;
  ax_parcel p[AX_MAX_RANKS];

  for (int r = 0; r < l->size; r++)
    p[r] = (ax_parcel){ in, to < 0 || to == r ? bytes : 0, reads ? (char *)out + (size_t)r * bytes : NULL,
                        reads ? bytes : 0 };
  if (reads && bytes > 0) memmove((char *)out + (size_t)l->rank * bytes, in, bytes);
  return ax_links_exchange(l, p);
}

/* A piece of `len` elements of each rank: from[r] goes to rank r, and what comes is reduced into
 * out.  room: for the others' pieces.  to: the only rank that reduces; -1: each does. */
static ax_status reduce_piece(ax_links *l, const ax_collective *c, const char *const *from, size_t len,
                              char *room, void *out, int to)
{
  const size_t bytes = bytes_of(c, len);
  const bool reads = to < 0 || to == l->rank;
  const void *parts[AX_MAX_RANKS];
  ax_parcel p[AX_MAX_RANKS];
  ax_status st;

  for (int r = 0; r < l->size; r++) {
    char *const place = room + (size_t)r * bytes;
    p[r] = (ax_parcel){ from[r], to < 0 || to == r ? bytes : 0, place, reads ? bytes : 0 };
    parts[r] = r == l->rank ? from[r] : place;
  }
  if ((st = ax_links_exchange(l, p)) == AX_OK && reads && len > 0)
    ax_dist_reduce(c->dtype, c->reduction, out, parts, l->size, len);
  return st;
}

/* Reduces part r of in on rank r (`parts`), or all of it on the root. */
static ax_status reduce(ax_links *l, const ax_collective *c, bool parts)
{
  const size_t item = ax_dtype_size(c->dtype), most = PIECE / item, count = (size_t)c->count;
  char *room = ax_malloc((size_t)l->size * PIECE);
  const char *from[AX_MAX_RANKS];
  ax_status st = room ? AX_OK : AX_ENOMEM;

  for (size_t at = 0; at < count && st == AX_OK; at += most) {
    const size_t len = count - at < most ? count - at : most;
    for (int r = 0; r < l->size; r++)
      from[r] = (const char *)c->in + ((parts ? (size_t)r * count : 0) + at) * item;
    st =
        reduce_piece(l, c, from, len, room, c->out ? (char *)c->out + at * item : NULL, parts ? -1 : c->root);
  }
  ax_mfree(room);
  return st;
}

/* Each rank reduces one part of a piece and gives it to all. */
static ax_status reduce_for_all(ax_links *l, const ax_collective *c, const char *in, char *out, size_t len,
                                char *room)
{
  const size_t item = ax_dtype_size(c->dtype), per = len / (size_t)l->size;
  const char *from[AX_MAX_RANKS];
  char *const mine = out + (size_t)l->rank * per * item;
  ax_status st;

  for (int r = 0; r < l->size; r++) from[r] = in + (size_t)r * per * item;
  AX_TRY(reduce_piece(l, c, from, per, room, room, -1));
  memcpy(mine, room, per * item);
  st = gather(l, mine, per * item, out, -1);
out:
  return st;
}

/* A few elements, or what is left of many: every rank reduces all of them. */
static ax_status reduce_everywhere(ax_links *l, const ax_collective *c, const char *in, char *out, size_t len,
                                   char *room)
{
  const char *from[AX_MAX_RANKS];

  for (int r = 0; r < l->size; r++) from[r] = in;
  return reduce_piece(l, c, from, len, room, out, -1);
}

static ax_status all_reduce(ax_links *l, const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), n = (size_t)l->size, most = PIECE / item * n;
  size_t count = (size_t)c->count, at = 0;
  char *room = ax_malloc(n * PIECE);
  ax_status st = room ? AX_OK : AX_ENOMEM;

  while (at < count && st == AX_OK) {
    const size_t left = count - at, len = left * item <= ONE_EXCHANGE || left < n ? left
                                          : left < most                           ? left / n * n
                                                                                  : most;
    const char *in = (const char *)c->in + at * item;
    char *out = (char *)c->out + at * item;
    st = len == left && (left * item <= ONE_EXCHANGE || left < n)
             ? reduce_everywhere(l, c, in, out, len, room)
             : reduce_for_all(l, c, in, out, len, room);
    at += len;
  }
  ax_mfree(room);
  return st;
}

static ax_status broadcast(ax_links *l, const ax_collective *c)
{
  const size_t bytes = bytes_of(c, (size_t)c->count);
  const bool sends = l->rank == c->root;
  ax_parcel p[AX_MAX_RANKS];

  for (int r = 0; r < l->size; r++)
    p[r] = (ax_parcel){ c->in, sends ? bytes : 0, c->out, !sends && r == c->root ? bytes : 0 };
  if (sends && c->out != c->in && bytes > 0) memcpy(c->out, c->in, bytes);
  return ax_links_exchange(l, p);
}

static ax_status scatter(ax_links *l, const ax_collective *c)
{
  const size_t bytes = bytes_of(c, (size_t)c->count);
  const bool sends = l->rank == c->root;
  const char *in = c->in;
  ax_parcel p[AX_MAX_RANKS];

  for (int r = 0; r < l->size; r++)
    p[r] = (ax_parcel){ sends ? in + (size_t)r * bytes : NULL, sends ? bytes : 0, c->out,
                        !sends && r == c->root ? bytes : 0 };
  if (sends && bytes > 0) memcpy(c->out, in + (size_t)l->rank * bytes, bytes);
  return ax_links_exchange(l, p);
}

/* All ranks learn how much each sends to each before a byte moves. */
static ax_status compare_splits(ax_links *l, const ax_collective *c)
{
  const size_t n = (size_t)l->size;
  int64_t *all = ax_malloc(2 * n * n * sizeof *all);
  const int64_t *rows[AX_MAX_RANKS];
  ax_status st = all ? gather(l, c->splits, 2 * n * sizeof *all, all, -1) : AX_ENOMEM;

  for (size_t r = 0; st == AX_OK && r < n; r++) rows[r] = all + 2 * n * r;
  if (st == AX_OK) st = ax_splits_fit(l->size, rows, l->members);
  ax_mfree(all);
  return st;
}

static ax_status all_to_all(ax_links *l, const ax_collective *c)
{
  const char *in = c->in;
  char *out = c->out;
  ax_parcel p[AX_MAX_RANKS];
  ax_status st;

  AX_TRY(compare_splits(l, c));
  for (int r = 0; r < l->size; r++) {
    const size_t gives = bytes_of(c, (size_t)c->splits[r]),
                 gets = bytes_of(c, (size_t)c->splits[l->size + r]);
    p[r] = (ax_parcel){ in, gives, out, gets };
    in += gives;
    out += gets;
  }
  if (p[l->rank].in_bytes > 0) memcpy(p[l->rank].in, p[l->rank].out, p[l->rank].in_bytes);
  st = ax_links_exchange(l, p);
out:
  return st;
}

static ax_status between_two(ax_links *l, const ax_collective *c)
{
  const size_t bytes = bytes_of(c, (size_t)c->count);
  ax_parcel p[AX_MAX_RANKS] = { { NULL, 0, NULL, 0 } };

  p[c->root] =
      c->op == AX_SEND ? (ax_parcel){ c->in, bytes, NULL, 0 } : (ax_parcel){ NULL, 0, c->out, bytes };
  return ax_links_exchange(l, p);
}

static ax_status carry(ax_links *l, const ax_collective *c)
{
  const size_t bytes = bytes_of(c, (size_t)c->count);

  switch (c->op) {
  case AX_ALL_REDUCE: return all_reduce(l, c);
  case AX_REDUCE_SCATTER: return reduce(l, c, true);
  case AX_REDUCE: return reduce(l, c, false);
  case AX_BROADCAST: return broadcast(l, c);
  case AX_ALL_GATHER:
  case AX_JOIN: return gather(l, c->in, bytes, c->out, -1);
  case AX_GATHER: return gather(l, c->in, bytes, c->out, c->root);
  case AX_SCATTER: return scatter(l, c);
  case AX_ALL_TO_ALL: return all_to_all(l, c);
  case AX_SEND:
  case AX_RECV: return between_two(l, c);
  case AX_BARRIER: return AX_OK; /* the meeting was it */
  default: return ax_fail(AX_ENOIMPL, "a group over machines has no collective number %d", (int)c->op);
  }
}

/* ---- the transport */

static ax_status run(ax_links *l, const ax_collective *given)
{
  ax_collective c = *given;
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK) return st;
  if (c.op == AX_BARRIER) c = (ax_collective){ .op = AX_BARRIER };
  memcpy(c.group, given->group, sizeof c.group);
  ax_shm_enter(&c, ++l->calls);
  st = ax_apart_aborted() ? ax_shm_aborted() : meet(l, &c);
  if (st == AX_OK) st = carry(l, &c);
  for (int r = 0; r < l->size && st != AX_OK; r++)
    if (l->fd[r] >= 0) shutdown(l->fd[r], SHUT_RDWR); /* the others wait for data that will not come */
  ax_shm_leave(st);
  return st;
}

static ax_status part_issue(ax_group *g, const ax_collective *c, int n, uint64_t *ticket)
{
  ax_status st = AX_OK;

  *ticket = 0; /* they are over before this returns */
  for (int k = 0; k < n && st == AX_OK; k++) st = run(g->state, &c[k]);
  return st;
}

/* For the launcher's reports; it is not compared. */
static ax_status part_post(ax_group *g, const ax_collective *c, uint64_t *number)
{
  ax_links *l = g->state;
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK) return st;
  *number = ++l->calls;
  ax_shm_enter(c, l->calls);
  st = ax_apart_aborted() ? ax_shm_aborted() : AX_OK;
  ax_shm_leave(st);
  return st;
}

static void part_leave(ax_group *g, bool abort)
{
  (void)abort;
  ax_links_close(g->state);
  g->state = NULL;
}

ax_status ax_across_refuse_pairs(const ax_collective *c)
{
  char text[160];

  if (c->op != AX_SEND && c->op != AX_RECV) return AX_OK;
  return ax_fail(AX_ENOIMPL,
                 "%s: in the world of several machines two ranks cannot meet without the others, on the CPU: "
                 "make a group of them (distributed.new_group), or send tensors of GPUs",
                 ax_collective_text(c, text, sizeof text));
}

static const ax_transport part = {
  .name = "tcp",
  .issue = part_issue,
  .leave = part_leave,
  .split = ax_across_split,
  .post = part_post,
  .watch = ax_apart_watch,
};

/* ---- the world, where its transport leaves something out */

ax_status ax_across_world(const ax_collective *c)
{
  static ax_group whole; /* the same ranks, connected to each other when that is first needed */
  const ax_group *world = ax_dist_world();
  ax_status st = AX_OK;

  if (!whole.state) {
    whole = *world;
    if (!(whole.members = ax_malloc((size_t)world->size * sizeof *whole.members))) return AX_ENOMEM;
    for (int r = 0; r < world->size; r++) whole.members[r] = r;
    AX_TRY(ax_across_split(ax_dist_world(), &whole));
  }
  st = carry(whole.state, c);
out:
  return st;
}

/* ---- dividing a group */

static bool is_here(int world_rank)
{
  return world_rank >= ax_shm.first && world_rank < ax_shm.first + ax_shm.size;
}

static bool is_of_one_machine(const ax_group *g)
{
  for (int k = 0; k < g->size; k++)
    if (!is_here(g->members[k])) return false;
  return true;
}

static int rank_of_first(const ax_group *from, const ax_group *g)
{
  int r = 0;
  while (ax_group_world_rank(from, r) != g->members[0]) r++;
  return r;
}

ax_status ax_across_split(ax_group *from, ax_group *g)
{
  const bool alone = g->size <= 1, inside = is_of_one_machine(g);
  ax_offer mine = { .set = -1 }, *all = ax_malloc((size_t)from->size * sizeof *all);
  ax_collective c = { .op = AX_ALL_GATHER, .dtype = AX_U8, .count = (int64_t)sizeof mine, .in = &mine };
  ax_links *links = NULL;
  int listener = -1;
  ax_status st = all ? AX_OK : AX_ENOMEM;

  if (st == AX_OK && !alone && inside && g->rank == 0) mine.set = ax_shm_take_set(g->size);
  if (st == AX_OK && !alone && !inside) st = ax_links_listen(&mine, &listener);
  if (st != AX_OK) goto out;
  c.out = all;
  AX_TRY(ax_dist_run(from, &c, NULL));
  if (alone) goto out;
  if (inside) {
    st = ax_shm_part(g, (int)all[rank_of_first(from, g)].set);
    goto out;
  }
  AX_TRY(ax_links_open(from, g, all, listener, &links));
  g->state = links;
  g->transport = &part;
  g->local_size = 1;
out:
  if (listener >= 0) close(listener);
  ax_mfree(all);
  return st;
}
