/* machines_meeting.h: what the files of the meeting share. */
#ifndef AX_MACHINES_MEETING_H
#define AX_MACHINES_MEETING_H

#include "machines.h"

#include <netdb.h>

#define AX_MACHINES_SEND_NS ((int64_t)2000000000) /* for a message to a launcher */

typedef enum {
  NOTE_START = 0x61786e01, /* "ATTEMPT CHECKPOINT": which start this is, and the newest checkpoint */
  NOTE_ABORT,
  NOTE_DONE,
  NOTE_LOOK,
  NOTE_TIMEOUT,
  NOTE_ENDED, /* by a signal to a launcher: nothing starts again */
  NOTE_AGAIN,
  NOTE_OVER
} ax_note_kind;

/* Closes a descriptor unless it is closed, and marks it so. */
void ax_machines_put_away(int *fd);
/* The addresses of main_process_ip; NULL after ax_machines_wrong. */
struct addrinfo *ax_machines_resolve(const ax_machines *m, const ax_plan *plan);
/* Sends all launchers that are connected a note.  Returns whether each has got it. */
bool ax_machines_notify(ax_machines *m, ax_note_kind kind, const char *text);
/* Whether the other end of a connection has closed it. */
bool ax_machines_has_left(int fd);
/* Both ends use the secret that MPI has carried. */
void ax_machines_take_secret(ax_machines *m, const ax_point *point);

/* ---- machine 0 (machines_listen.c) */

/* Writes into `text` what is wrong with the launcher or rank that sent `h`; "" when nothing is. */
void ax_machines_judge(const ax_machines *m, const ax_hello *h, uint64_t run, const char *from, char *text,
                       size_t size);
/* Listens, and waits for all machines.  Returns 0, or the exit status after printing what is
 * wrong. */
int ax_machines_gather(ax_machines *m, const ax_plan *plan);
/* Listens, and writes down where, with a secret for this run unless there is one. */
int ax_machines_open_point(ax_machines *m, const ax_plan *plan, ax_point *point);

/* ---- the others (machines_connect.c) */

/* Connects this launcher and its ranks to machine 0, and waits for the start.  Returns 0, or the
 * exit status after printing what is wrong. */
int ax_machines_join_first(ax_machines *m, const ax_plan *plan);
/* Connects to machine 0's launcher where MPI says.  Without that, the run goes on: MPI alone says
 * then that a machine is gone.  A run that has ended well meanwhile needs no connection. */
void ax_machines_find_point(ax_machines *m, ax_control *c);

#endif
