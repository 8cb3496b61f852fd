/* dist/links.h: connections among the ranks of a group that are on several machines.
 *
 * Each rank of such a group is connected to each other one.  Connections are made when the group
 * is: ranks listen, exchange addresses and a secret through the group that is divided, and connect,
 * the later of two ranks to the earlier one.  Nobody listens afterwards. */
#ifndef AX_DIST_LINKS_H
#define AX_DIST_LINKS_H

#include "core/dist/apart.h"

typedef struct ax_links {
  int rank, size;
  const int *members; /* [size] each one's rank in the world; the group's */
  uint64_t calls;     /* collectives until now */
  int fd[];           /* [size]; -1: this rank */
} ax_links;

/* What goes to one rank and comes from it. */
typedef struct ax_parcel {
  const void *out;
  size_t out_bytes;
  void *in;
  size_t in_bytes;
} ax_parcel;

/* The facts about a rank that all ranks of `from` get before its division. */
typedef struct ax_offer {
  int64_t set;         /* of counters, for a group of one machine: see take_set; -1: there is none */
  int32_t port;        /* where it listens; 0: nowhere */
  char addresses[480]; /* of its machine, with a space behind each */
  uint8_t secret[32];
} ax_offer;

/* Listens for the ranks behind this one in a group.  *listener: -1 where `o` gets no port. */
ax_status ax_links_listen(ax_offer *o, int *listener);
/* Connects g's ranks, which have offered `all` (by their rank in `from`).  Closes the listener. */
ax_status ax_links_open(const ax_group *from, const ax_group *g, const ax_offer *all, int listener,
                        ax_links **out);
void ax_links_close(ax_links *l);
/* Exchanges p[r] with each rank r, all at the same time; p of this rank is left alone.  The limit
 * is for the time without any progress. */
ax_status ax_links_exchange(ax_links *l, const ax_parcel *p);

/* ---- across.c */

/* Of ax_transport, for worlds of several machines and their groups. */
ax_status ax_across_split(ax_group *from, ax_group *g);
/* For such a world's transport: runs what it does not carry by itself, after its ranks have met;
 * refuses what two ranks call alone. */
ax_status ax_across_world(const ax_collective *c);
ax_status ax_across_refuse_pairs(const ax_collective *c);

/* ---- shm.c */

/* A set of counters of this machine for a new group of n ranks; -1: there is none.  ax_shm_part
 * gives g, whose ranks are all here, its state: the walk of that set. */
int ax_shm_take_set(int n);
ax_status ax_shm_part(ax_group *g, int set);

#endif
