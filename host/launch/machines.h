/* machines.h: the launchers of one run on several machines. */
#ifndef AX_MACHINES_H
#define AX_MACHINES_H

#include "door.h"
#include "ranks.h"
#include "settings/plan.h"

#define AX_NOTE_TEXT 1100

/* A message between launchers while the ranks run. */
typedef struct ax_note {
  uint32_t kind;
  char text[AX_NOTE_TEXT];
} ax_note;

typedef struct ax_machines {
  int count, mine;           /* machines; the number of this one */
  int ranks, here, first;    /* ranks in all, on each machine, and the first one here */
  char address[300];         /* "10.0.0.1:29500" of machine 0 */
  bool script;               /* a script has started the run: what is wrong becomes its error */
  uint64_t job;              /* of a script's run: stands for its id; 0: accel-run has started it */
  bool mpi, tried;           /* MPI carries the tensors; this launcher has looked for machine 0 */
  ax_door door;              /* machine 0's, open as long as the run lasts: it keeps the port */
  int control[AX_MAX_RANKS]; /* by machine: to the other launchers in machine 0, elsewhere only [0] */
  char from[AX_MAX_RANKS][64];
  ax_note coming[AX_MAX_RANKS]; /* a message that is not complete yet */
  size_t have[AX_MAX_RANKS];
  bool done[AX_MAX_RANKS]; /* its ranks have ended well, or it has failed and all launchers know */
  /* in machine 0, by rank: the end for rank 0; elsewhere, by local rank: the rank's own end */
  int data[AX_MAX_RANKS];
  int local[AX_MAX_RANKS]; /* in machine 0, by rank: the other end, for its own ranks */
  bool look;               /* another launcher was asked where all ranks are */
  bool notified;           /* the other launchers know that the run ends */
  int attempt;             /* which start of the ranks this is, from 0, as machine 0 counts */
  uint32_t verdict;        /* whether the ranks start again, by machine 0; 0: not known yet */
} ax_machines;

/* Numbers machines and ranks by the plan, and makes no connection. */
void ax_machines_number(ax_machines *m, const ax_plan *plan);
/* Writes to stderr why the machines do not meet, or keeps it as the error of a script's run.
 * Returns AX_EXIT_FAILED. */
int ax_machines_wrong(const ax_machines *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Finds the other launchers and connects all ranks to rank 0; with MPI, writes into `c` where they
 * will find machine 0.  attempt: which start of the ranks this is; elsewhere than on machine 0,
 * m->attempt and ACCELERATE_NEWEST_CHECKPOINT become what machine 0 says.  Returns 0, or the exit
 * status after printing to stderr what is wrong. */
int ax_machines_meet(ax_machines *m, const ax_plan *plan, int attempt, ax_control *c);
/* Where each rank of this machine has a launcher of its own.  ax_machines_ends returns, by local
 * rank, the connections that the launcher of local rank 0 hands to the others; ax_machines_inherit
 * takes one of them. */
const int *ax_machines_ends(const ax_machines *m);
void ax_machines_inherit(ax_machines *m, int local_rank, int fd);
/* In a forked rank: takes its connections, closes the others' and joins the group. */
ax_status ax_machines_join(ax_machines *m, int local_rank);
/* Called in a rank that ends well. */
void ax_machines_finished(const ax_machines *m);
/* In the launcher, when all its ranks have been forked: closes the connections that are theirs. */
void ax_machines_forked(ax_machines *m);
/* Reads the other launchers' messages, and sends them one when the run ends here.  Returns whether
 * other machines still run. */
bool ax_machines_watch(ax_machines *m, ax_control *c);
/* Asks the other launchers for the tracebacks of all ranks.  but: the machine that asked, or -1. */
void ax_machines_look(ax_machines *m, int but);
/* Sends the other launchers this one's last note; `failed` NULL: all went well. */
void ax_machines_tell(ax_machines *m, const char *failed);
/* Called after a run that failed.  Machine 0 sends the others whether it starts again.  They wait
 * for that for at most `seconds`, and return false, after printing why, where nothing comes. */
bool ax_machines_again(ax_machines *m, ax_control *c, bool again, double seconds);
void ax_machines_close(ax_machines *m);

#endif
