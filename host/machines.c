/* machines.c: launchers of several machines find each other.
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
#include "machines.h"

#include "ax.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_NS ((int64_t)2000000000) /* for a message to a launcher */
#define AGAIN_MS 200                  /* between attempts to connect */
#define POINT_S 5.0                   /* to reach machine 0 at the place that MPI has carried */
#define POINT_AGAIN_MS 20             /* between attempts to do so */

typedef enum {
  NOTE_START = 0x61786e01, /* "ATTEMPT CHECKPOINT": which start this is, and the newest checkpoint */
  NOTE_ABORT,
  NOTE_DONE,
  NOTE_LOOK,
  NOTE_TIMEOUT,
  NOTE_ENDED, /* by a signal to a launcher: nothing starts again */
  NOTE_AGAIN,
  NOTE_OVER
} note_kind;

/* ---- sockets --------------------------------------------------------------------------------- */

static void put_away(int *fd)
{
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static struct addrinfo *resolve(const ax_plan *plan)
{
  const struct addrinfo want = { .ai_socktype = SOCK_STREAM };
  const ax_setting *ip = &plan->set[AX_SET_main_process_ip];
  struct addrinfo *list = NULL;
  int e = getaddrinfo(ip->text, plan->set[AX_SET_main_process_port].text, &want, &list);

  if (e != 0)
    fprintf(stderr, "accel-run: %s: the address of machine 0, '%s', cannot be resolved: %s\n", ip->origin,
            ip->text, gai_strerror(e));
  return e == 0 ? list : NULL;
}

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

/* ---- machine 0 ------------------------------------------------------------------------------- */

static bool is_loopback(const char *text)
{
  return strcmp(text, "localhost") == 0 || strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0;
}

/* Reports an address that this machine does not have: it may be that of a router before it, and it
 * may be a mistake. */
static void check_own(const ax_machines *m, struct addrinfo *a)
{
  const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

  if (a->ai_family == AF_INET) ((struct sockaddr_in *)a->ai_addr)->sin_port = 0;
  else if (a->ai_family == AF_INET6) ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = 0;
  if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) != 0 && errno == EADDRNOTAVAIL)
    fprintf(stderr,
            "accel-run: machine 0 has no address of %s; it listens at all that it has (--main_process_ip is "
            "an address of the machine with --machine_rank 0)\n",
            m->address);
  if (fd >= 0) close(fd);
}

/* Listens at one address; 0, or an errno. */
static int listen_at(ax_machines *m, const struct sockaddr *a, socklen_t length)
{
  const int on = 1, off = 0;

  int *fd = &m->door.listener;

  put_away(fd);
  *fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd < 0) return errno;
  setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (a->sa_family == AF_INET6) setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  return bind(*fd, a, length) != 0 || listen(*fd, SOMAXCONN) != 0 ? errno : 0;
}

/* At all addresses, of IPv6 and IPv4. */
static int listen_everywhere(ax_machines *m, int port)
{
  const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
  const struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
  const int error = listen_at(m, (const struct sockaddr *)&any6, sizeof any6);

  if (error == 0 || error == EADDRINUSE) return error;
  return listen_at(m, (const struct sockaddr *)&any4, sizeof any4); /* no IPv6 here */
}

/* Machine 0's own name often resolves to a loopback address on machine 0 itself (Debian's
 * installer writes 127.0.1.1 into /etc/hosts).  So it listens at all addresses unless a loopback
 * address was given. */
static int listen_here(ax_machines *m, const ax_plan *plan)
{
  const bool inside = is_loopback(plan->set[AX_SET_main_process_ip].text);
  struct addrinfo *named = resolve(plan);
  int error;

  if (!named) return AX_EXIT_FAILED;
  if (inside) {
    error = listen_at(m, named->ai_addr, named->ai_addrlen);
  } else {
    check_own(m, named);
    error = listen_everywhere(m, (int)plan->set[AX_SET_main_process_port].number);
  }
  freeaddrinfo(named);
  if (error == 0) {
    if (!inside && !m->door.secret.n)
      fprintf(stderr,
              "accel-run: the machines have no secret: whoever can reach %s is trusted (--secret_file, or "
              "the variable ACCELERATE_SECRET, on each machine)\n",
              m->address);
    return 0;
  }
  fprintf(stderr, "accel-run: machine 0 cannot listen at %s: %s%s\n", m->address, strerror(error),
          error == EADDRINUSE ? "; another program, or another run, has that port (--main_process_port)"
                              : "");
  return AX_EXIT_FAILED;
}

/* Writes into `text` what is wrong with the launcher or rank that sent `h`; "" when nothing is. */
static void judge(const ax_machines *m, const ax_hello *h, uint64_t run, const char *from, char *text,
                  size_t size)
{
  const int machine = h->machine;

  text[0] = '\0';
  if (h->layout != sizeof(ax_collective_call))
    snprintf(text, size, "machine %d (%s) has another accel-run than machine 0: all machines need the same",
             machine, from);
  else if (h->mpi != m->mpi)
    snprintf(text, size, "MPI has started accel-run %s, and not on the other (machine %d, %s)",
             h->mpi ? "there" : "on machine 0", machine, from);
  else if (h->machines != m->count || h->ranks != m->ranks)
    snprintf(text, size,
             "machine %d (%s) was given --num_machines %d --num_processes %d, and machine 0 --num_machines "
             "%d --num_processes %d",
             machine, from, h->machines, h->ranks, m->count, m->ranks);
  else if (machine <= 0 || machine >= m->count)
    snprintf(text, size, "%s says that it is machine %d; the others than machine 0 are 1 to %d", from,
             machine, m->count - 1);
  else if (h->rank < 0 && m->control[machine] >= 0)
    snprintf(text, size, "there are two machines with --machine_rank %d: one at %s, one at %s", machine,
             m->from[machine], from);
  else if (h->rank >= 0 && h->run != run)
    snprintf(text, size, "rank %d (machine %d, %s) is of another run", h->rank, machine, from);
  else if (h->rank >= 0 && (h->rank / m->here != machine || h->rank >= m->ranks))
    snprintf(text, size, "machine %d (%s) has the %d ranks from %d on, and says that it brings rank %d",
             machine, from, m->here, machine * m->here, h->rank);
  else if (h->rank >= 0 && m->data[h->rank] >= 0)
    snprintf(text, size, "there are two ranks %d (machine %d, %s)", h->rank, machine, from);
}

/* Lists the machines that have not arrived completely: "1, 3". */
static void missing(const ax_machines *m, char *buf, size_t size)
{
  size_t n = 0;

  buf[0] = '\0';
  for (int k = 1; k < m->count && n < size; k++) {
    bool here = m->control[k] >= 0;
    for (int r = k * m->here; r < (k + 1) * m->here; r++) here = here && m->data[r] >= 0;
    if (!here) n += (size_t)snprintf(buf + n, size - n, "%s%d", n ? ", " : "", k);
  }
}

static bool notify(ax_machines *m, note_kind kind, const char *text)
{
  bool all = true;
  ax_note n;

  memset(&n, 0, sizeof n);
  n.kind = (uint32_t)kind;
  snprintf(n.text, sizeof n.text, "%s", text);
  for (int k = 0; k < m->count; k++)
    if (m->control[k] >= 0 &&
        ax_door_move(m->control[k], &n, sizeof n, true, ax_monotonic_ns() + SEND_NS) != 0)
      all = false;
  return all;
}

/* Whether the other end of a connection has closed it. */
static bool has_left(int fd)
{
  char byte;
  const ssize_t got = recv(fd, &byte, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/* Forgets machines that disconnected while others were still missing; they may come again.  Returns
 * how many ranks are missing again. */
static int forget_gone(ax_machines *m)
{
  int wanted = 0, k, r;

  for (k = 1; k < m->count; k++) {
    if (m->control[k] < 0 || !has_left(m->control[k])) continue;
    fprintf(stderr,
            "accel-run: machine %d (%s) went away before the run began; machine 0 waits for it again\n", k,
            m->from[k]);
    put_away(&m->control[k]);
    for (r = k * m->here; r < (k + 1) * m->here; r++) {
      wanted += m->data[r] >= 0;
      put_away(&m->data[r]);
    }
  }
  return wanted;
}

static bool notify_start(ax_machines *m)
{
  const char *newest = getenv("ACCELERATE_NEWEST_CHECKPOINT");
  char text[AX_NOTE_TEXT];

  snprintf(text, sizeof text, "%d %s", m->attempt, newest ? newest : "");
  return notify(m, NOTE_START, text);
}

static int gather_machines(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number, report = plan->set[AX_SET_stall_report].number;
  const int64_t since = ax_monotonic_ns();
  int status = listen_here(m, plan), wanted = m->ranks - m->here;
  double next = report;
  char text[600] = "", who[200];
  uint64_t run = 0;

  if (status != 0) return status;
  while (run == 0) ax_door_random(&run, sizeof run);
  while (wanted > 0 && !text[0]) {
    const double waited = (double)(ax_monotonic_ns() - since) * 1e-9;
    ax_guest g;
    missing(m, who, sizeof who);
    if (waited >= limit) {
      snprintf(text, sizeof text, "waited %g s at %s for machine %s of %d (--timeout sets the limit)", limit,
               m->address, who, m->count);
      break;
    }
    if (waited >= next) {
      next *= 2;
      fprintf(stderr, "accel-run: machine 0 waits at %s for machine %s, for %.0f s so far\n", m->address, who,
              waited);
    }
    wanted += forget_gone(m);
    while (!text[0] && wanted > 0 && ax_door_hear(&m->door, 100, &g)) {
      judge(m, &g.hello, run, g.from, text, sizeof text);
      ax_door_reply(&m->door, &g, run, text);
      if (text[0]) {
        close(g.fd);
      } else if (g.hello.rank < 0) {
        m->control[g.hello.machine] = g.fd;
        snprintf(m->from[g.hello.machine], sizeof m->from[0], "%s", g.from);
      } else {
        m->data[g.hello.rank] = g.fd;
        wanted--;
      }
    }
  }
  if (!text[0] && notify_start(m)) return 0;
  if (!text[0]) snprintf(text, sizeof text, "a machine went away before the run began");
  notify(m, NOTE_ABORT, text);
  fprintf(stderr, "accel-run: %s\n", text);
  return AX_EXIT_FAILED;
}

/* ---- the other machines ---------------------------------------------------------------------- */

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
 * after printing to stderr why this is final. */
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
    fprintf(stderr,
            "accel-run: what answers at %s is no accel-run of this version; --main_process_ip and "
            "--main_process_port must be those of machine 0\n",
            m->address);
  else if (*error == AX_DOOR_LIAR)
    fprintf(stderr,
            "accel-run: machine 0 at %s and machine %d do not have the same secret (here it is from %s)\n",
            m->address, m->mine, m->door.secret.n ? m->door.secret.origin : "nowhere: there is none");
  else fprintf(stderr, "accel-run: machine 0 at %s refuses machine %d: %s\n", m->address, m->mine, w.text);
  return -2;
}

/* Connects to machine 0 and exchanges hellos.  Returns the connection; -1 after printing to stderr
 * what is wrong; HAS_WORD when machine 0 has sent a message on the first connection meanwhile. */
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
      fprintf(stderr, "accel-run: machine %d waits for machine 0 at %s, for %.0f s so far: %s\n", m->mine,
              m->address, (double)(ax_monotonic_ns() - since) * 1e-9, strerror(error));
      next *= 2;
    }
    if (word.fd < 0) usleep(AGAIN_MS * 1000);
    else if (poll(&word, 1, AGAIN_MS) > 0) return HAS_WORD;
  } while (ax_monotonic_ns() < deadline);
  fprintf(stderr,
          "accel-run: machine %d could not reach machine 0 at %s: %s; tried %d times in %g s (--timeout); is "
          "it running there, with --machine_rank 0?\n",
          m->mine, m->address, strerror(error), tries, seconds);
  return -1;
}

static void take_start(ax_machines *m, const char *text)
{
  char *newest;

  m->attempt = (int)strtol(text, &newest, 10);
  if (newest[0] == ' ' && newest[1]) setenv("ACCELERATE_NEWEST_CHECKPOINT", newest + 1, 1);
}

static int join_machine_0(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number;
  struct addrinfo *list = resolve(plan);
  int status = list ? 0 : AX_EXIT_FAILED, e, fd = 0;
  uint64_t run = 0;
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
  if (e == 0) fprintf(stderr, "accel-run: machine 0 at %s: %s\n", m->address, n.text);
  else if (e == ETIMEDOUT)
    fprintf(stderr,
            "accel-run: machine %d waited %g s for machine 0 at %s, which waits for other machines "
            "(--timeout sets the limit)\n",
            m->mine, limit, m->address);
  else
    fprintf(stderr, "accel-run: machine 0 at %s went away before the run began: %s\n", m->address,
            strerror(e));
  return AX_EXIT_FAILED;
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
  snprintf(m->address, sizeof m->address, "%s:%s", plan->set[AX_SET_main_process_ip].text,
           plan->set[AX_SET_main_process_port].text);
  for (int k = 0; k < AX_MAX_RANKS; k++) m->control[k] = m->data[k] = m->local[k] = -1;
}

/* ---- where MPI starts the ranks -------------------------------------------------------------- */

/* The addresses at which this machine can be reached, those of the loopback last. */
static void list_addresses(char *buf, size_t size)
{
  struct ifaddrs *all = NULL;
  size_t n = 0;
  char text[64];

  buf[0] = '\0';
  if (getifaddrs(&all) != 0) return;
  for (int inside = 0; inside < 2; inside++)
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
      const int family = i->ifa_addr ? i->ifa_addr->sa_family : 0;
      const socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
      if ((family != AF_INET && family != AF_INET6) || !(i->ifa_flags & IFF_UP) ||
          ((i->ifa_flags & IFF_LOOPBACK) != 0) != (inside != 0) || n + sizeof text >= size ||
          getnameinfo(i->ifa_addr, length, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0 ||
          strchr(text, '%')) /* of one link: another machine calls it otherwise */
        continue;
      n += (size_t)snprintf(buf + n, size - n, "%s ", text);
    }
  freeifaddrs(all);
}

/* Machine 0 listens, and writes down where, with a secret for this run unless there is one. */
static int open_point(ax_machines *m, const ax_plan *plan, ax_point *point)
{
  const ax_setting *ip = &plan->set[AX_SET_main_process_ip], *port = &plan->set[AX_SET_main_process_port];
  const int wanted = strcmp(port->origin, "default") == 0 ? 0 : (int)port->number;
  struct sockaddr_in6 a;
  socklen_t length = sizeof a;
  const int error = listen_everywhere(m, wanted);

  if (error != 0 || getsockname(m->door.listener, (struct sockaddr *)&a, &length) != 0) {
    fprintf(stderr, "accel-run: machine 0 cannot listen at port %d: %s\n", wanted,
            strerror(error ? error : errno));
    return AX_EXIT_FAILED;
  }
  point->port = ntohs(a.sin6_port); /* at the same place in an address of IPv4 */
  if (ip->number) snprintf(point->addresses, sizeof point->addresses, "%.400s ", ip->text);
  else list_addresses(point->addresses, sizeof point->addresses);
  ax_door_random(point->secret, sizeof point->secret);
  return 0;
}

/* Both have what MPI has carried. */
static void take_secret(ax_machines *m, const ax_point *point)
{
  memcpy(m->door.secret.bytes, point->secret, sizeof point->secret);
  m->door.secret.n = sizeof point->secret;
  m->door.secret.origin = "MPI";
}

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

/* Connects to machine 0's launcher.  Without that, the run goes on: MPI alone says then that a
 * machine is gone.  A run that has ended well meanwhile needs no connection. */
static void find_point(ax_machines *m, ax_control *c)
{
  const ax_point *point = &c->point;
  const int64_t since = ax_monotonic_ns();
  char list[sizeof point->addresses], port[16], *rest, *host;
  int error = 0;

  take_secret(m, point);
  snprintf(port, sizeof port, "%d", (int)point->port);
  while (!atomic_load(&c->may_end)) {
    memcpy(list, point->addresses, sizeof list);
    list[sizeof list - 1] = '\0';
    for (host = strtok_r(list, " ", &rest); host && m->control[0] == -1; host = strtok_r(NULL, " ", &rest))
      m->control[0] = try_address(m, host, port, &error);
    if (m->control[0] != -1 || (double)(ax_monotonic_ns() - since) * 1e-9 >= POINT_S) break;
    usleep(POINT_AGAIN_MS * 1000);
  }
  if (m->control[0] == -1 && !atomic_load(&c->may_end))
    fprintf(stderr,
            "accel-run: machine %d cannot reach machine 0's launcher at %s(port %s): %s; the run goes on, "
            "and a failure there may be reported late\n",
            m->mine, point->addresses, port, strerror(error > 0 ? error : ECONNREFUSED));
  if (m->control[0] < 0) m->control[0] = -1; /* refused: the reason is printed */
  snprintf(m->from[0], sizeof m->from[0], "%.63s", m->address);
  m->tried = true;
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
    status = open_point(m, plan, &c->point);
    snprintf(m->address, sizeof m->address, "port %d", (int)c->point.port);
    memcpy(m->door.address, m->address, sizeof m->address);
    take_secret(m, &c->point);
    return status;
  }
  if ((status = ax_secret_read(&m->door.secret, plan)) != 0) return status;
  if (m->mine != 0) return join_machine_0(m, plan);
  for (int k = 1; k < m->here; k++) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
      fprintf(stderr, "accel-run: a connection between ranks 0 and %d: %s\n", k, strerror(errno));
      return AX_EXIT_FAILED;
    }
    m->data[k] = pair[0];
    m->local[k] = pair[1];
  }
  return gather_machines(m, plan);
}

const int *ax_machines_ends(const ax_machines *m) { return m->mine == 0 ? m->local : m->data; }

void ax_machines_inherit(ax_machines *m, int local_rank, int fd)
{
  *(m->mine == 0 ? &m->local[local_rank] : &m->data[local_rank]) = fd;
}

/* ---- while the ranks run --------------------------------------------------------------------- */

ax_status ax_machines_join(ax_machines *m, int local_rank)
{
  int fd[AX_MAX_RANKS], k;

  memcpy(fd, m->data, sizeof fd);
  if (m->mine != 0 || local_rank != 0) {
    int *own = m->mine != 0 ? &m->data[local_rank] : &m->local[local_rank];
    fd[0] = *own;
    *own = -1;
    ax_machines_forked(m);
  }
  ax_door_close(&m->door);
  for (k = 0; k < AX_MAX_RANKS; k++) {
    put_away(&m->control[k]);
    put_away(&m->local[k]);
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
    put_away(&m->data[k]);
    put_away(&m->local[k]);
  }
}

/* A machine that comes after the start: MPI's are taken in, others refused; the run goes on. */
static void take_late(ax_machines *m, const ax_guest *g)
{
  char text[600];

  if (m->mpi) {
    const int k = g->hello.machine;
    /* a launcher that was not answered in time tries again */
    if (k > 0 && k < m->count && m->control[k] >= 0 && has_left(m->control[k])) put_away(&m->control[k]);
    judge(m, &g->hello, 0, g->from, text, sizeof text);
    ax_door_reply(&m->door, g, 0, text);
    if (!text[0] && g->hello.rank < 0 && !has_left(g->fd)) {
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
  fprintf(stderr, "accel-run: machine %d of another run (%s) was refused at %s\n", (int)g->hello.machine,
          g->from, m->address);
}

void ax_machines_look(ax_machines *m, int but)
{
  ax_note n;

  memset(&n, 0, sizeof n);
  n.kind = NOTE_LOOK;
  for (int k = 0; k < m->count; k++)
    if (k != but && m->control[k] >= 0)
      ax_door_move(m->control[k], &n, sizeof n, true, ax_monotonic_ns() + SEND_NS);
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
      put_away(&m->control[k]);
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
  int k;

  if (m->mpi && m->mine != 0 && !m->tried && atomic_load(&c->has_point)) find_point(m, c);
  while (m->door.listener >= 0 && ax_door_hear(&m->door, 0, &g)) take_late(m, &g);
  for (k = 0; k < m->count; k++) {
    hear(m, c, k);
    others = others || (m->control[k] >= 0 && !m->done[k]);
  }
  if (!m->notified && atomic_load(&c->abort) == AX_ABORT_PUBLISHED) {
    m->notified = true;
    notify(m,
           atomic_load(&c->ended)       ? NOTE_ENDED
           : atomic_load(&c->timed_out) ? NOTE_TIMEOUT
                                        : NOTE_ABORT,
           c->reason);
  }
  return others && m->mine == 0;
}

void ax_machines_tell(ax_machines *m, const char *failed)
{
  if (!m->notified) notify(m, failed ? NOTE_ABORT : NOTE_DONE, failed ? failed : "");
  m->notified = true;
}

bool ax_machines_again(ax_machines *m, ax_control *c, bool again, double seconds)
{
  const int64_t deadline = ax_monotonic_ns() + (int64_t)(seconds * 1e9);

  if (m->mine == 0) {
    notify(m, again ? NOTE_AGAIN : NOTE_OVER, "");
    return again;
  }
  while (!m->verdict && m->control[0] >= 0 && ax_monotonic_ns() < deadline) {
    struct pollfd p = { .fd = m->control[0], .events = POLLIN };
    poll(&p, 1, 100);
    hear(m, c, 0);
  }
  if (!m->verdict)
    fprintf(stderr, "accel-run: not started again: %s\n",
            m->control[0] < 0 ? "machine 0 is gone" : "machine 0 does not say that it starts again");
  return m->verdict == NOTE_AGAIN;
}

void ax_machines_close(ax_machines *m)
{
  for (int k = 0; k < m->count; k++) put_away(&m->control[k]);
  ax_door_close(&m->door);
}
