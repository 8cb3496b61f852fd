/* run.h: what a launcher knows of its run, and what its files share: launch.c starts ranks,
 * launch_rank.c is a rank, launch_wait.c waits, launch_report.c prints. */
#ifndef AX_RUN_H
#define AX_RUN_H

#include <signal.h>
#include <sys/types.h>

#include "flight.h"
#include "joins.h"
#include "machines.h"
#include "settings/plan.h"

#define AX_SHOWN 16  /* ranks in a table */
#define AX_PAUSES 32 /* pauses of the launcher that it remembers */

typedef struct ax_child {
  pid_t pid;
  bool alive;
  int status;      /* from waitpid, when no longer alive */
  int stop_signal; /* 0: not stopped */
  int64_t stopped_at;
  bool stop_reported;
} ax_child;

typedef struct ax_launched {
  ax_control *control;
  ax_machines *machines; /* NULL: this is the only one */
  ax_local *local;       /* the launchers of this machine's other ranks; NULL: this is the only one */
  int ranks;             /* on this machine, like all counts here */
  int from, to, alive;   /* those of this launcher: from ... to - 1 */
  ax_child child[AX_MAX_RANKS];
  double stall_report, stall_timeout; /* seconds */
  int64_t tick;                       /* nanoseconds between two checks of the records */
  bool quiet;                         /* after a failure, only the script's error is printed */
  bool prompt;                        /* rank 0 has the terminal; Ctrl-C stops the chunk, not the run */
  /* when the launcher itself was stopped (Ctrl-Z) or the machine slept: time that the limits of
   * waits leave out.  A ring of the latest pauses */
  struct {
    int64_t from, to;
  } pause[AX_PAUSES];
  unsigned pauses;
  int64_t last_tick;
  int64_t last_look; /* at which stalls were looked for */
  double next_stall;
  int ending_signal; /* a signal to the launcher ends the run */
  int lost_to;       /* the signal that stopped a rank for too long */
  int64_t ending_at; /* 0: not ending */
  bool termed, killed;
  int64_t look_until; /* 0: no tracebacks are awaited */
  bool looks;         /* this launcher prints them */
  bool handed;        /* a signal went to the script's function */
  int64_t held_from;  /* since when a rank stands at a breakpoint; 0: none does */
  ax_straggler straggler;
  char flights[200];             /* the folder for the ranks' last collectives */
  char table[AX_SHOWN + 1][600]; /* where the ranks were when the run began to end */
} ax_launched;

/* ---- launch_rank.c */

/* Makes this process a rank, and runs it.  `mask`: the signals that were blocked before the
 * launcher's own.  Returns 0, or does not return. */
int ax_launched_rank(const ax_plan *plan, ax_control *c, ax_machines *machines, int rank, pid_t launcher,
                     const sigset_t *mask);
/* Sets a variable of the environment. */
void ax_launched_set_number(const char *name, int value);

/* ---- launch_wait.c */

/* Waits for the ranks' ends, and ends them when one has failed.  Returns the lines of r->table. */
int ax_launched_wait(ax_launched *r, const sigset_t *signals);
void ax_launched_signal_all(ax_launched *r, int sig);

/* ---- launch_report.c */

/* Prints what failed, and returns the exit status; 0 where nothing did. */
int ax_launched_report(ax_launched *r, int lines);
/* The name of a rank of this machine, with its number among all ranks; borrowed until the next
 * call. */
const char *ax_launched_name(const ax_machines *m, int rank);
/* Whether this launcher does what is done once for a machine. */
bool ax_launched_leads(const ax_launched *r);
/* "SIGTERM"; borrowed until the next call. */
const char *ax_launched_signal(int sig);
/* Seconds between two times (ax_monotonic_ns) in which the launcher was not paused. */
double ax_launched_seconds(const ax_launched *r, int64_t then, int64_t now);
/* "in #3, all_reduce(float32, 10 elements, sum) at train.lua:9, for 0.2 s"; "in a launch on cuda:0
 * (mul, near train.lua:12) for 3.1 s, after #3, ..." when the driver blocks the rank */
void ax_launched_doing(const ax_launched *r, int rank, int64_t now, char *buf, size_t size);
/* One line for each rank but `except`, up to AX_SHOWN of them; how many. */
int ax_launched_fill_table(ax_launched *r, int except, int64_t now);
/* Reports, at growing intervals, ranks that have waited for long. */
void ax_launched_watch_stalls(ax_launched *r, int64_t now);
/* SIGUSR1: asks the ranks of this machine where they are, and prints what they say. */
void ax_launched_begin_look(ax_launched *r, int64_t now);
void ax_launched_end_look(ax_launched *r, int64_t now);
void ax_launched_watch_stragglers(ax_launched *r);

#endif
