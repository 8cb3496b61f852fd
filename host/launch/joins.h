/* joins.h: processes that another launcher started (mpirun, srun, torchrun, Kubernetes). */
#ifndef AX_JOINS_H
#define AX_JOINS_H

#include "ranks.h"
#include "settings/plan.h"

/* Reads the variables that the other launcher has set.  A process that it started as a rank gets
 * plan->join and the settings that follow from it.  One that it started once for each machine gets
 * the machine's number.  Returns 0, or the exit status after printing what is wrong. */
int ax_joins_read(ax_plan *plan);

/* ax_joins_wants_mpirun returns whether --mpirun_hostfile is to start the machines.
 * ax_joins_start_mpirun runs mpirun in the place of this process; it returns the exit status when
 * that fails. */
bool ax_joins_wants_mpirun(const ax_plan *plan);
int ax_joins_start_mpirun(const ax_plan *plan);

/* ---- local.c: the processes of one machine, which share memory as forked ranks do

 * Each is the launcher of one rank.  The one of local rank 0 makes the memory and hands it to the
 * others over a Unix socket, which stays open: its end says that a launcher is gone. */
typedef struct ax_local {
  int rank, size;       /* local */
  int listener;         /* of local rank 0, until all are there */
  int fd[AX_MAX_RANKS]; /* by local rank: in local rank 0 to all others, elsewhere only [0] */
  int pid[AX_MAX_RANKS];
  bool done[AX_MAX_RANKS];    /* it has ended, and every launcher can see how */
  int memory;                 /* the file behind the memory; -1: not ours to hand on */
  double share[AX_MAX_RANKS]; /* cores for each rank */
  const char *who;
} ax_local;

/* In local rank 0: waits for the others, and maps the memory.  In the others: gets it from local
 * rank 0.  *inherited: the connection to rank 0 of all machines, or -1.  *cores: the number that
 * this rank may keep busy.  Returns 0, or the exit status after printing what is wrong. */
int ax_local_meet(ax_local *l, const ax_plan *plan, ax_control **control, int *inherited, int *cores);
/* In local rank 0: lets the others go on.  hand_on[r]: a connection for local rank r, or -1. */
int ax_local_release(ax_local *l, const int *hand_on);
/* Ends the run when a launcher is gone.  Returns whether this one must stay for others. */
bool ax_local_watch(ax_local *l, ax_control *c);
void ax_local_end(ax_local *l);

#endif
