/* machines_connect.c: the launchers of the other machines connect to machine 0's. */
#define _GNU_SOURCE
#include "machines_meeting.h"

#include "ax.h"
#include "script/script.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AGAIN_MS 200      /* between attempts to connect */
#define POINT_S 5.0       /* to reach machine 0 at the place that MPI has carried */
#define POINT_AGAIN_MS 20 /* between attempts to do so */

static void say_hello(ax_hello *h, const ax_machines *m, int rank, uint64_t run)
{
  memset(h, 0, sizeof *h); /* padding, too, goes over the wire */
  h->magic = AX_DOOR_MAGIC;
  h->version = AX_DOOR_VERSION;
  h->layout = (uint32_t)sizeof(ax_collective_call);
  h->machines = m->count;
  h->machine = m->mine;
  h->ranks = m->ranks;
  h->rank = rank;
  h->mpi = m->mpi;
  h->run = run;
}

/* Connects to one address; the connection, or -1 with *error. */
static int connect_to(const struct sockaddr *a, socklen_t size, int64_t deadline, int *error)
{
  const int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct pollfd p = { .fd = fd, .events = POLLOUT };
  socklen_t length = sizeof *error;

  *error = errno;
  if (fd < 0) return -1;
  ax_door_prepare(fd);
  *error = connect(fd, a, size) == 0 ? 0 : errno;
  if (*error == EINPROGRESS) {
    const int64_t left = (deadline - ax_monotonic_ns()) / 1000000;
    *error = ETIMEDOUT;
    if (poll(&p, 1, left < 1 ? 1 : left > 10000 ? 10000 : (int)left) > 0)
      getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &length);
  }
  if (*error == 0) return fd;
  close(fd);
  return -1;
}

/* Introduces itself on a fresh connection.  Takes it.  Returns it; -1 with *error, an errno; -2
 * after ax_machines_wrong when this is final. */
static int introduce(ax_machines *m, int fd, int rank, uint64_t *run, int64_t deadline, int *error)
{
  ax_welcome w;
  ax_hello h;

  say_hello(&h, m, rank, *run);
  *error = ax_door_knock(fd, &m->door.secret, &h, &w, deadline);
  if (*error == 0 && !w.refused) {
    *run = w.run;
    return fd;
  }
  close(fd);
  if (*error > 0) return -1;
  if (*error == AX_DOOR_STRANGE)
    ax_machines_wrong(m,
                      "what answers at %s is no accel-run of this version; --main_process_ip and "
                      "--main_process_port must be those of machine 0",
                      m->address);
  else if (*error == AX_DOOR_LIAR)
    ax_machines_wrong(m, "machine 0 at %s and machine %d do not have the same secret (here it is from %s)",
                      m->address, m->mine,
                      m->door.secret.n ? m->door.secret.origin : "nowhere: there is none");
  else ax_machines_wrong(m, "machine 0 at %s refuses machine %d: %s", m->address, m->mine, w.text);
  return -2;
}

/* Connects to machine 0 and exchanges hellos.  Returns the connection; -1 after
 * ax_machines_wrong; HAS_WORD when machine 0 has sent a message on the first connection
 * meanwhile. */
enum { HAS_WORD = -2 };
static int reach(ax_machines *m, const struct addrinfo *list, const ax_plan *plan, int rank, uint64_t *run)
{
  const double seconds = plan->set[AX_SET_timeout].number;
  const int64_t since = ax_monotonic_ns(), deadline = since + (int64_t)(seconds * 1e9);
  struct pollfd word = { .fd = m->control[0], .events = POLLIN };
  double next = plan->set[AX_SET_stall_report].number;
  int tries = 0, error = 0;

  do {
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
      const int fd = connect_to(a->ai_addr, a->ai_addrlen, deadline, &error);
      const int met = fd < 0 ? -1 : introduce(m, fd, rank, run, deadline, &error);
      tries++;
      if (met >= 0) return met;
      if (met == -2) return -1;
    }
    if ((double)(ax_monotonic_ns() - since) * 1e-9 >= next) {
      ax_print(stderr, "accel-run: machine %d waits for machine 0 at %s, for %.0f s so far: %s\n", m->mine,
               m->address, (double)(ax_monotonic_ns() - since) * 1e-9, strerror(error));
      next *= 2;
    }
    if (word.fd < 0) usleep(AGAIN_MS * 1000);
    else if (poll(&word, 1, AGAIN_MS) > 0) return HAS_WORD;
  } while (ax_monotonic_ns() < deadline && !ax_interrupted);
  ax_machines_wrong(m,
                    "machine %d could not reach machine 0 at %s: %s; tried %d times in %g s (--timeout); is "
                    "it running there, with --machine_rank 0?",
                    m->mine, m->address, strerror(error), tries, seconds);
  return -1;
}

static void take_start(ax_machines *m, const char *text)
{
  char *newest;

  m->attempt = (int)strtol(text, &newest, 10);
  if (newest[0] == ' ' && newest[1]) setenv("ACCELERATE_NEWEST_CHECKPOINT", newest + 1, 1);
}

int ax_machines_join_first(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number;
  struct addrinfo *list = ax_machines_resolve(m, plan);
  int status = list ? 0 : AX_EXIT_FAILED, e, fd = 0;
  uint64_t run = m->job;
  ax_note n;

  if (status == 0 && (m->control[0] = reach(m, list, plan, -1, &run)) < 0) status = AX_EXIT_FAILED;
  for (int k = 0; k < m->here && status == 0 && fd >= 0; k++) {
    fd = m->data[k] = reach(m, list, plan, m->first + k, &run);
    status = fd == -1 ? AX_EXIT_FAILED : 0;
  }
  if (list) freeaddrinfo(list);
  if (status != 0) return status;
  snprintf(m->from[0], sizeof m->from[0], "%.63s", m->address);
  /* Machine 0 sets the limit of this wait and reports it; the extra second is for its message to
   * arrive. */
  e = ax_door_move(m->control[0], &n, sizeof n, false, ax_monotonic_ns() + (int64_t)((limit + 1) * 1e9));
  n.text[sizeof n.text - 1] = '\0';
  ax_text_clean(n.text);
  if (e == 0 && n.kind == NOTE_START) {
    take_start(m, n.text);
    return 0;
  }
  if (e == 0) return ax_machines_wrong(m, "machine 0 at %s: %s", m->address, n.text);
  if (e == ETIMEDOUT)
    return ax_machines_wrong(m,
                             "machine %d waited %g s for machine 0 at %s, which waits for other machines "
                             "(--timeout sets the limit)",
                             m->mine, limit, m->address);
  return ax_machines_wrong(m, "machine 0 at %s went away before the run began: %s", m->address, strerror(e));
}

/* ---- where MPI starts the ranks */

/* The connection; -1 where there is none yet; -2 when it was refused, after saying why. */
static int try_address(ax_machines *m, const char *host, const char *port, int *error)
{
  const struct addrinfo want = { .ai_socktype = SOCK_STREAM };
  const int64_t deadline = ax_monotonic_ns() + (int64_t)1000000000;
  struct addrinfo *list = NULL;
  uint64_t run = 0;
  int fd = -1;

  if (getaddrinfo(host, port, &want, &list) != 0) return -1;
  snprintf(m->address, sizeof m->address, "%s:%s", host, port);
  for (const struct addrinfo *a = list; a && fd == -1; a = a->ai_next)
    if ((fd = connect_to(a->ai_addr, a->ai_addrlen, deadline, error)) >= 0)
      fd = introduce(m, fd, -1, &run, deadline + (int64_t)1000000000, error);
  freeaddrinfo(list);
  return fd;
}

void ax_machines_find_point(ax_machines *m, ax_control *c)
{
  const ax_point *point = &c->point;
  const int64_t since = ax_monotonic_ns();
  char list[sizeof point->addresses], port[16], *rest;
  int error = 0;

  ax_machines_take_secret(m, point);
  snprintf(port, sizeof port, "%d", (int)point->port);
  while (!atomic_load(&c->may_end)) {
    memcpy(list, point->addresses, sizeof list);
    list[sizeof list - 1] = '\0';
    for (char *host = strtok_r(list, " ", &rest); host && m->control[0] == -1;
         host = strtok_r(NULL, " ", &rest))
      m->control[0] = try_address(m, host, port, &error);
    if (m->control[0] != -1 || (double)(ax_monotonic_ns() - since) * 1e-9 >= POINT_S) break;
    usleep(POINT_AGAIN_MS * 1000);
  }
  if (m->control[0] == -1 && !atomic_load(&c->may_end))
    ax_print(stderr,
             "accel-run: machine %d cannot reach machine 0's launcher at %s(port %s): %s; the run goes on, "
             "and a failure there may be reported late\n",
             m->mine, point->addresses, port, strerror(error > 0 ? error : ECONNREFUSED));
  if (m->control[0] < 0) m->control[0] = -1; /* refused: the reason is printed */
  snprintf(m->from[0], sizeof m->from[0], "%.63s", m->address);
  m->tried = true;
}
