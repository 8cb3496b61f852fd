/* machines_listen.c: machine 0 listens, judges who comes, and waits until all machines are
 * there. */
#define _GNU_SOURCE
#include "machines_meeting.h"

#include "ax.h"
#include "script/script.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- listening */

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
    ax_print(stderr,
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

  ax_machines_put_away(fd);
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
  struct addrinfo *named = ax_machines_resolve(m, plan);
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
      ax_print(stderr,
               "accel-run: the machines have no secret: whoever can reach %s is trusted (--secret_file, or "
               "the variable ACCELERATE_SECRET, on each machine)\n",
               m->address);
    return 0;
  }
  return ax_machines_wrong(m, "machine 0 cannot listen at %s: %s%s", m->address, strerror(error),
                           error == EADDRINUSE
                               ? "; another program, or another run, has that port (--main_process_port)"
                               : "");
}

/* ---- who comes */

void ax_machines_judge(const ax_machines *m, const ax_hello *h, uint64_t run, const char *from, char *text,
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
  else if (h->rank < 0 && h->run != m->job)
    snprintf(text, size, "machine %d (%s) is of another run than machine 0: %s", machine, from,
             h->run && m->job ? "its rdzv_id differs"
                              : "accel-run has started one of them, and notebook_launcher the other");
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

/* Forgets machines that disconnected while others were still missing; they may come again.  Returns
 * how many ranks are missing again. */
static int forget_gone(ax_machines *m)
{
  int wanted = 0;

  for (int k = 1; k < m->count; k++) {
    if (m->control[k] < 0 || !ax_machines_has_left(m->control[k])) continue;
    ax_print(stderr,
             "accel-run: machine %d (%s) went away before the run began; machine 0 waits for it again\n", k,
             m->from[k]);
    ax_machines_put_away(&m->control[k]);
    for (int r = k * m->here; r < (k + 1) * m->here; r++) {
      wanted += m->data[r] >= 0;
      ax_machines_put_away(&m->data[r]);
    }
  }
  return wanted;
}

/* "; 2 connections, the last one from 10.0.0.2, had another secret (here it is from
 * --secret_file)", or "".  They do not end the wait: whoever reaches the port could end a run
 * so. */
static const char *tell_liars(const ax_door *d, char *buf, size_t size)
{
  buf[0] = '\0';
  if (d->liars)
    snprintf(buf, size, "; %d connection%s, the last one from %s, had another secret (here %s%s)", d->liars,
             d->liars == 1 ? "" : "s", d->liar, d->secret.n ? "it is from " : "there is none",
             d->secret.n ? d->secret.origin : "");
  return buf;
}

static bool notify_start(ax_machines *m)
{
  const char *newest = getenv("ACCELERATE_NEWEST_CHECKPOINT");
  char text[AX_NOTE_TEXT];

  snprintf(text, sizeof text, "%d %s", m->attempt, newest ? newest : "");
  return ax_machines_notify(m, NOTE_START, text);
}

int ax_machines_gather(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number, report = plan->set[AX_SET_stall_report].number;
  const int64_t since = ax_monotonic_ns();
  int status = listen_here(m, plan), wanted = m->ranks - m->here;
  double next = report;
  char text[600] = "", who[200], liars[200];
  uint64_t run = 0;

  if (status != 0) return status;
  while (run == 0) ax_door_random(&run, sizeof run);
  while (wanted > 0 && !text[0]) {
    const double waited = (double)(ax_monotonic_ns() - since) * 1e-9;
    ax_guest g;
    missing(m, who, sizeof who);
    if (ax_interrupted) {
      snprintf(text, sizeof text, "machine 0 was interrupted");
      break;
    }
    if (waited >= limit) {
      snprintf(text, sizeof text, "waited %g s at %s for machine %s of %d (--timeout sets the limit)%s",
               limit, m->address, who, m->count, tell_liars(&m->door, liars, sizeof liars));
      break;
    }
    if (waited >= next) {
      next *= 2;
      ax_print(stderr, "accel-run: machine 0 waits at %s for machine %s, for %.0f s so far%s\n", m->address,
               who, waited, tell_liars(&m->door, liars, sizeof liars));
    }
    wanted += forget_gone(m);
    while (!text[0] && wanted > 0 && ax_door_hear(&m->door, 100, &g)) {
      ax_machines_judge(m, &g.hello, run, g.from, text, sizeof text);
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
  ax_machines_notify(m, NOTE_ABORT, text);
  return ax_machines_wrong(m, "%s", text);
}

/* ---- where MPI starts the ranks */

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

int ax_machines_open_point(ax_machines *m, const ax_plan *plan, ax_point *point)
{
  const ax_setting *ip = &plan->set[AX_SET_main_process_ip], *port = &plan->set[AX_SET_main_process_port];
  const int wanted = strcmp(port->origin, "default") == 0 ? 0 : (int)port->number;
  struct sockaddr_in6 a;
  socklen_t length = sizeof a;
  const int error = listen_everywhere(m, wanted);

  if (error != 0 || getsockname(m->door.listener, (struct sockaddr *)&a, &length) != 0) {
    ax_print(stderr, "accel-run: machine 0 cannot listen at port %d: %s\n", wanted,
             strerror(error ? error : errno));
    return AX_EXIT_FAILED;
  }
  point->port = ntohs(a.sin6_port); /* at the same place in an address of IPv4 */
  if (ip->number) snprintf(point->addresses, sizeof point->addresses, "%.400s ", ip->text);
  else list_addresses(point->addresses, sizeof point->addresses);
  ax_door_random(point->secret, sizeof point->secret);
  return 0;
}
