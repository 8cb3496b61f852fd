/* launch.h: how the rest of the host starts ranks, and what it needs of their launcher. */
#ifndef AX_LAUNCH_H
#define AX_LAUNCH_H

#include <stdbool.h>

#include <lua.h>

#include "settings/plan.h"

/* ---- launch.c */

/* Runs the plan in forked processes, one for each rank of this machine.  Returns the exit status of
 * the run. */
int ax_launch_ranks(ax_plan *plan);

/* ---- gpus.c */

/* Returns the number of GPUs that ranks of this machine can use; 0 without a CUDA backend. */
int ax_gpus_visible(void);

/* ---- threads.c: cores and threads */

/* Cores that this process may use: the affinity mask, limited by the cgroup's quota. */
int ax_config_cores(void);
/* Threads of a rank when `ranks` share this machine; *explicit_: the user set the number. */
int ax_config_threads(const ax_plan *plan, int ranks, bool *explicit_);
/* The cgroup's quota in cores, or 0. */
double ax_config_quota(void);

/* ---- family.c: the programs that the script starts */

/* In the launcher, before ranks are forked: starts the guard, which outlives a killed launcher. */
void ax_family_begin(void);
/* In a rank: marks the programs that it starts, so that they can be found again. */
void ax_family_join(void);
/* In the launcher, when no rank is left.  failed: ends the programs that the ranks started. */
void ax_family_end(bool failed);
/* In the process of a run without a launcher: when the script starts its first program, a guard is
 * started too. */
void ax_family_alone(void);
/* In a process that was started as AX_GUARD_NAME with this argument: the guard. */
#define AX_GUARD_NAME "accel-guard"
_Noreturn void ax_family_guard(const char *mark);

/* ---- output.c: --tee */

/* Carries the ranks' streams that --tee names through the launcher. */
typedef struct ax_output ax_output;
/* Checks --tee; 0, or the exit status after printing what is wrong. */
int ax_output_check(const ax_plan *plan);
/* Opens pipes and files for ranks `from` to `to` - 1 of this machine, whose rank 0 is rank `first`
 * of all.  *out: NULL where --tee names none.  0, or the exit status after printing what is
 * wrong. */
int ax_output_begin(const ax_plan *plan, int from, int to, int first, int attempt, ax_output **out);
/* In a rank.  watches: this rank calls ax_output_settle; the others have no use for `o` after this
 * call.  NULL is fine, here and below. */
void ax_output_join(ax_output *o, int rank, bool watches);
/* In the launcher, when all ranks are forked: writes what they print, whole lines, until they
 * end. */
void ax_output_run(ax_output *o);
/* When no rank is left: writes the rest and frees.  false: some of the text is lost, which a
 * message has reported. */
bool ax_output_end(ax_output *o);
/* In rank 0 of a prompt: waits, for a moment at most, until the launcher has written what the other
 * ranks have printed so far. */
void ax_output_settle(ax_output *o);

/* ---- session.c: a prompt of several ranks */

struct ax_control;
/* In the launcher, before ranks are forked; false after printing what is wrong. */
bool ax_session_open(struct ax_control *c, ax_output *output);
/* In the launcher, when no rank is left: restores the terminal. */
void ax_session_close(void);
/* In a rank, and in the launcher (-1) when they are forked: closes the others' ends. */
void ax_session_keep(int rank);
/* This process's rank; -1: there is no such prompt. */
int ax_session_rank(void);
/* In rank 0: the current chunk is interrupted; others: passes that on to the other ranks, which the
 * terminal has not interrupted.  Safe in a signal handler. */
void ax_session_interrupt(bool others);
/* In another rank: whether the chunk was interrupted before this rank began it. */
bool ax_session_interrupted(void);
/* In rank 0: whether a rank is gone. */
bool ax_session_ended(void);
/* In every rank when its chunk has ended. */
void ax_session_end_chunk(void);
/* Pushes the table of functions for lua/accelerate/prompt. */
void ax_session_push(lua_State *L);

#endif
