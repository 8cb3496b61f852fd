/* machines.c: launchers of several machines, from their meeting to the end of the run.
 *
 * Machine 0 listens at main_process_ip:main_process_port; the others connect, and retry until
 * --timeout.  A launcher introduces itself (door.c) and gets the number of the run.  Then it makes
 * one connection for each of its ranks, which present that number.  The run starts when all
 * machines are there.
 *
 * Where MPI carries the tensors the ranks start at once.  Machine 0 listens at any free port, makes
 * a secret, and MPI takes both to the other launchers, which connect while their ranks run.
 *
 * The first connection of each launcher stays with it; it carries the news that a rank failed there
 * or that all ended well.  A connection that closes without such news means that the machine is
 * gone.  Machine 0 keeps listening, so that the port stays taken and late machines can be refused.
 * After a failure it says whether the ranks start again; then all meet anew, and a machine that is
 * gone may come back. */
#define _GNU_SOURCE
#include "machines_meeting.h"

#include "ax.h"
#include "script/script.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- what the files of the meeting share */

void ax_machines_put_away(int *fd)
{
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

int ax_machines_wrong(const ax_machines *m, const char *fmt, ...)
{
  char text[1200];
  va_list ap;

  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (m->script) ax_fail(AX_EIO, "%s", text);
  else ax_print(stderr, "accel-run: %s\n", text);
  return AX_EXIT_FAILED;
}

struct addrinfo *ax_machines_resolve(const ax_machines *m, const ax_plan *plan)
{
  const struct addrinfo want = { .ai_socktype = SOCK_STREAM };
  const ax_setting *ip = &plan->set[AX_SET_main_process_ip];
  struct addrinfo *list = NULL;
  int e = getaddrinfo(ip->text, plan->set[AX_SET_main_process_port].text, &want, &list);

  if (e != 0)
    ax_machines_wrong(m, "%s: the address of machine 0, '%s', cannot be resolved: %s", ip->origin, ip->text,
                      gai_strerror(e));
  return e == 0 ? list : NULL;
}

bool ax_machines_notify(ax_machines *m, ax_note_kind kind, const char *text)
{
  bool all = true;
  ax_note n;

  memset(&n, 0, sizeof n);
  n.kind = (uint32_t)kind;
  snprintf(n.text, sizeof n.text, "%s", text);
  for (int k = 0; k < m->count; k++)
    if (m->control[k] >= 0 &&
        ax_door_move(m->control[k], &n, sizeof n, true, ax_monotonic_ns() + AX_MACHINES_SEND_NS) != 0)
      all = false;
  return all;
}

bool ax_machines_has_left(int fd)
{
  char byte;
  const ssize_t got = recv(fd, &byte, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void ax_machines_take_secret(ax_machines *m, const ax_point *point)
{
  memcpy(m->door.secret.bytes, point->secret, sizeof point->secret);
  m->door.secret.n = sizeof point->secret;
  m->door.secret.origin = "MPI";
}

/* ---- meeting */

/* The number that stands for the id of a script's run; 0: accel-run has started this one. */
static uint64_t job_number(const char *id)
{
  unsigned char digest[AX_SHA256_BYTES];
  uint64_t number;
  ax_sha256 h;

  if (!id) return 0;
  ax_sha256_begin(&h);
  ax_sha256_add(&h, id, strlen(id));
  ax_sha256_end(&h, digest);
  memcpy(&number, digest, sizeof number);
  return number ? number : 1;
}

void ax_machines_number(ax_machines *m, const ax_plan *plan)
{
  memset(m, 0, sizeof *m);
  m->count = (int)plan->set[AX_SET_num_machines].number;
  m->mine = (int)plan->set[AX_SET_machine_rank].number;
  m->ranks = (int)plan->set[AX_SET_num_processes].number;
  m->here = m->ranks / m->count;
  m->first = m->mine * m->here;
  m->door.listener = -1;
  m->mpi = plan->mpi;
  m->script = plan->run_id != NULL;
  m->job = job_number(plan->run_id);
  snprintf(m->address, sizeof m->address, "%s:%s", plan->set[AX_SET_main_process_ip].text,
           plan->set[AX_SET_main_process_port].text);
  for (int k = 0; k < AX_MAX_RANKS; k++) m->control[k] = m->data[k] = m->local[k] = -1;
}

int ax_machines_meet(ax_machines *m, const ax_plan *plan, int attempt, ax_control *c)
{
  int pair[2], status;

  ax_machines_number(m, plan);
  m->attempt = attempt;
  snprintf(m->door.address, sizeof m->door.address, "%s", m->address);
  if (m->mpi) {
    c->point.every = plan->join.who != NULL;
    if (m->mine != 0) return 0;
    status = ax_machines_open_point(m, plan, &c->point);
    snprintf(m->address, sizeof m->address, "port %d", (int)c->point.port);
    memcpy(m->door.address, m->address, sizeof m->address);
    ax_machines_take_secret(m, &c->point);
    return status;
  }
  if ((status = ax_secret_read(&m->door.secret, plan)) != 0) return status;
  if (m->mine != 0) return ax_machines_join_first(m, plan);
  for (int k = 1; k < m->here; k++) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
      return ax_machines_wrong(m, "a connection between ranks 0 and %d: %s", k, strerror(errno));
    }
    m->data[k] = pair[0];
    m->local[k] = pair[1];
  }
  return ax_machines_gather(m, plan);
}

const int *ax_machines_ends(const ax_machines *m) { return m->mine == 0 ? m->local : m->data; }

void ax_machines_inherit(ax_machines *m, int local_rank, int fd)
{
  *(m->mine == 0 ? &m->local[local_rank] : &m->data[local_rank]) = fd;
}

/* ---- while the ranks run */

ax_status ax_machines_join(ax_machines *m, int local_rank)
{
  int fd[AX_MAX_RANKS];

  memcpy(fd, m->data, sizeof fd);
  if (m->mine != 0 || local_rank != 0) {
    int *own = m->mine != 0 ? &m->data[local_rank] : &m->local[local_rank];
    fd[0] = *own;
    *own = -1;
    ax_machines_forked(m);
  }
  ax_door_close(&m->door);
  for (int k = 0; k < AX_MAX_RANKS; k++) {
    ax_machines_put_away(&m->control[k]);
    ax_machines_put_away(&m->local[k]);
  }
  if (m->mpi) return ax_mpi_join(ax_interp_plugin_dir(), m->first + local_rank, m->ranks, m->here);
  ax_tcp_join(m->first + local_rank, m->ranks, m->here, fd);
  return AX_OK;
}

void ax_machines_finished(const ax_machines *m)
{
  if (m->mpi) ax_mpi_finished();
  else ax_tcp_finished();
}

void ax_machines_forked(ax_machines *m)
{
  for (int k = 0; k < AX_MAX_RANKS; k++) {
    ax_machines_put_away(&m->data[k]);
    ax_machines_put_away(&m->local[k]);
  }
}

/* A machine that comes after the start: MPI's are taken in, others refused; the run goes on. */
static void take_late(ax_machines *m, const ax_guest *g)
{
  char text[600];

  if (m->mpi) {
    const int k = g->hello.machine;
    /* a launcher that was not answered in time tries again */
    if (k > 0 && k < m->count && m->control[k] >= 0 && ax_machines_has_left(m->control[k]))
      ax_machines_put_away(&m->control[k]);
    ax_machines_judge(m, &g->hello, 0, g->from, text, sizeof text);
    ax_door_reply(&m->door, g, 0, text);
    if (!text[0] && g->hello.rank < 0 && !ax_machines_has_left(g->fd)) {
      m->control[g->hello.machine] = g->fd;
      snprintf(m->from[g->hello.machine], sizeof m->from[0], "%s", g->from);
      return;
    }
    close(g->fd);
    return;
  }
  snprintf(text, sizeof text,
           "the run at this address has all of its %d machines, and has begun; another run needs a "
           "--main_process_port of its own",
           m->count);
  ax_door_reply(&m->door, g, 0, text);
  close(g->fd);
  ax_print(stderr, "accel-run: machine %d of another run (%s) was refused at %s\n", (int)g->hello.machine,
           g->from, m->address);
}

void ax_machines_look(ax_machines *m, int but)
{
  ax_note n;

  memset(&n, 0, sizeof n);
  n.kind = NOTE_LOOK;
  for (int k = 0; k < m->count; k++)
    if (k != but && m->control[k] >= 0)
      ax_door_move(m->control[k], &n, sizeof n, true, ax_monotonic_ns() + AX_MACHINES_SEND_NS);
}

static void hear(ax_machines *m, ax_control *c, int k)
{
  char text[1024];

  while (m->control[k] >= 0) {
    const ssize_t got =
        recv(m->control[k], (char *)&m->coming[k] + m->have[k], sizeof m->coming[k] - m->have[k], 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      if (!m->done[k]) {
        snprintf(text, sizeof text, "machine %d (%s) is gone: the connection to its launcher has ended%s%s",
                 k, m->from[k], got < 0 ? ": " : "", got < 0 ? strerror(errno) : "");
        ax_shm_abort(c, -1, text);
      }
      m->done[k] = true;
      ax_machines_put_away(&m->control[k]);
      return;
    }
    if ((m->have[k] += (size_t)got) < sizeof m->coming[k]) continue;
    m->have[k] = 0;
    if (m->coming[k].kind == NOTE_LOOK) {
      m->look = true;
      if (m->mine == 0) ax_machines_look(m, k);
      continue;
    }
    if (m->coming[k].kind == NOTE_AGAIN || m->coming[k].kind == NOTE_OVER) {
      m->verdict = m->coming[k].kind;
      continue;
    }
    if (m->coming[k].kind == NOTE_TIMEOUT) atomic_store(&c->timed_out, 1);
    if (m->coming[k].kind == NOTE_ENDED) atomic_store(&c->ended, 1);
    m->done[k] = true;
    m->coming[k].text[AX_NOTE_TEXT - 1] = '\0';
    ax_text_clean(m->coming[k].text);
    if (m->coming[k].kind != NOTE_DONE) ax_shm_abort(c, -1, m->coming[k].text);
  }
}

bool ax_machines_watch(ax_machines *m, ax_control *c)
{
  bool others = false;
  ax_guest g;

  if (m->mpi && m->mine != 0 && !m->tried && atomic_load(&c->has_point)) ax_machines_find_point(m, c);
  while (m->door.listener >= 0 && ax_door_hear(&m->door, 0, &g)) take_late(m, &g);
  for (int k = 0; k < m->count; k++) {
    hear(m, c, k);
    others = others || (m->control[k] >= 0 && !m->done[k]);
  }
  if (!m->notified && atomic_load(&c->abort) == AX_ABORT_PUBLISHED) {
    m->notified = true;
    ax_machines_notify(m,
                       atomic_load(&c->ended)       ? NOTE_ENDED
                       : atomic_load(&c->timed_out) ? NOTE_TIMEOUT
                                                    : NOTE_ABORT,
                       c->reason);
  }
  return others && m->mine == 0;
}

void ax_machines_tell(ax_machines *m, const char *failed)
{
  if (!m->notified) ax_machines_notify(m, failed ? NOTE_ABORT : NOTE_DONE, failed ? failed : "");
  m->notified = true;
}

bool ax_machines_again(ax_machines *m, ax_control *c, bool again, double seconds)
{
  const int64_t deadline = ax_monotonic_ns() + (int64_t)(seconds * 1e9);

  if (m->mine == 0) {
    ax_machines_notify(m, again ? NOTE_AGAIN : NOTE_OVER, "");
    return again;
  }
  while (!m->verdict && m->control[0] >= 0 && ax_monotonic_ns() < deadline && !ax_interrupted) {
    struct pollfd p = { .fd = m->control[0], .events = POLLIN };
    poll(&p, 1, 100);
    hear(m, c, 0);
  }
  if (!m->verdict && !ax_interrupted)
    ax_print(stderr, "accel-run: not started again: %s\n",
             m->control[0] < 0 ? "machine 0 is gone" : "machine 0 does not say that it starts again");
  return m->verdict == NOTE_AGAIN;
}

void ax_machines_close(ax_machines *m)
{
  for (int k = 0; k < m->count; k++) ax_machines_put_away(&m->control[k]);
  ax_door_close(&m->door);
}
