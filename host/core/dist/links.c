/* dist/links.c: connections among the ranks of a group on several machines.  See dist/links.h. */
#define _GNU_SOURCE
#include "core/dist/links.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"

#define SLICE_MS 100                  /* how long a wait sleeps between looks at the abort flag */
#define CONNECT_MS 3000               /* for one address of a rank */
#define WORD_NS ((int64_t)3000000000) /* how long a closed connection may wait for its explanation */

/* Who connects says so first. */
typedef struct hello {
  uint8_t secret[32]; /* the listener's */
  int32_t rank;       /* in the new group */
} hello;

static const char *name_of(const ax_links *l, int rank, char *buf, size_t size)
{
  return ax_rank_name(l->members[rank], ax_dist_world()->local_size, buf, size);
}

static int64_t limit_ns(void) { return atomic_load(&ax_shm.control->rank[ax_shm.rank].timeout); }

/* ---- listening */

/* The loopback's come last: they lead elsewhere from another machine. */
static void list_own_addresses(char *buf, size_t size)
{
  struct ifaddrs *all = NULL;
  char text[64];
  size_t n = 0;

  buf[0] = '\0';
  if (getifaddrs(&all) != 0) return;
  for (int k = 0; k < 2; k++)
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
      const bool v4 = i->ifa_addr && i->ifa_addr->sa_family == AF_INET;
      const bool v6 = i->ifa_addr && i->ifa_addr->sa_family == AF_INET6;
      const socklen_t length = v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
      if ((!v4 && !v6) || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_LOOPBACK) != (k == 0)) continue;
      if (getnameinfo(i->ifa_addr, length, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0) continue;
      if (!strchr(text, '%') && n + strlen(text) + 2 < size)
        n += (size_t)snprintf(buf + n, size - n, "%s ", text);
    }
  freeifaddrs(all);
}

/* At all addresses, of IPv6 and IPv4 where the machine has both. */
static int open_listener(int family)
{
  struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
  struct sockaddr_in four = { .sin_family = AF_INET };
  const struct sockaddr *a = family == AF_INET6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;

  if (fd < 0) return -1;
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, a, family == AF_INET6 ? sizeof six : sizeof four) == 0 && listen(fd, AX_MAX_RANKS) == 0)
    return fd;
  close(fd);
  return -1;
}

ax_status ax_links_listen(ax_offer *o, int *listener)
{
  struct sockaddr_in6 a;
  socklen_t length = sizeof a;

  *listener = open_listener(AF_INET6);
  if (*listener < 0) *listener = open_listener(AF_INET);
  if (*listener < 0 || getsockname(*listener, (struct sockaddr *)&a, &length) != 0 ||
      getrandom(o->secret, sizeof o->secret, 0) != sizeof o->secret)
    return ax_fail(AX_EIO, "listening for the other ranks of a group: %s", strerror(errno));
  o->port = ntohs(a.sin6_port); /* at the same place in an address of IPv4 */
  list_own_addresses(o->addresses, sizeof o->addresses);
  return AX_OK;
}

/* ---- connecting */

/* A connection to one address; -1 with errno. */
static int try_address(const char *host, int port)
{
  const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
  struct addrinfo *a = NULL;
  socklen_t length = sizeof(int);
  char text[16];
  int fd = -1, error = 0;

  snprintf(text, sizeof text, "%d", port);
  if (getaddrinfo(host, text, &hints, &a) != 0) return -1;
  fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    if (errno != EINPROGRESS) error = errno;
    else if (poll(&p, 1, CONNECT_MS) != 1) error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  freeaddrinfo(a);
  if (fd < 0 || error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

/* Sends or receives all of a few bytes. */
static bool move_all(int fd, void *bytes, size_t n, bool sends)
{
  struct pollfd p = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
  char *at = bytes;

  while (n > 0) {
    const ssize_t k = sends ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
    if (k > 0) at += k, n -= (size_t)k;
    else if (k == 0 || (errno != EAGAIN && errno != EINTR) || poll(&p, 1, CONNECT_MS) != 1) return false;
  }
  return true;
}

/* At the address where the right rank listens: another one may have the same on its own machine. */
static bool say_hello(int fd, const ax_links *l, const ax_offer *o)
{
  hello h = { .rank = l->rank };
  uint8_t answer = 0;

  memcpy(h.secret, o->secret, sizeof h.secret);
  return move_all(fd, &h, sizeof h, true) && move_all(fd, &answer, 1, false) && answer == 1;
}

static ax_status connect_to(ax_links *l, int rank, const ax_offer *o)
{
  char list[sizeof o->addresses], name[48], *rest = NULL;

  memcpy(list, o->addresses, sizeof list);
  list[sizeof list - 1] = '\0';
  for (char *host = strtok_r(list, " ", &rest); host; host = strtok_r(NULL, " ", &rest)) {
    const int fd = try_address(host, o->port);
    if (fd < 0) continue;
    if (say_hello(fd, l, o)) {
      l->fd[rank] = fd;
      return AX_OK;
    }
    close(fd);
  }
  return ax_fail(AX_EABORTED, "no connection to %s, at port %d of %s: %s",
                 name_of(l, rank, name, sizeof name), o->port,
                 o->addresses[0] ? o->addresses : "(no address)", strerror(errno));
}

/* Takes one connection, if it is one of the group's. */
static void take(ax_links *l, const ax_offer *mine, int fd)
{
  uint8_t yes = 1;
  hello h;

  if (move_all(fd, &h, sizeof h, false) && memcmp(h.secret, mine->secret, sizeof h.secret) == 0 &&
      h.rank > l->rank && h.rank < l->size && l->fd[h.rank] < 0 && move_all(fd, &yes, 1, true))
    l->fd[h.rank] = fd;
  else close(fd);
}

/* The first rank behind this one that is not connected; the group's size: all are. */
static int missing(const ax_links *l)
{
  int r = l->rank + 1;
  while (r < l->size && l->fd[r] >= 0) r++;
  return r;
}

static ax_status accept_all(ax_links *l, const ax_offer *mine, int listener)
{
  struct pollfd p = { .fd = listener, .events = POLLIN };
  const int64_t since = ax_monotonic_ns();
  char name[48];

  while (missing(l) < l->size) {
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      take(l, mine, fd);
      continue;
    }
    if (ax_apart_aborted()) return ax_shm_aborted();
    ax_shm_look();
    if (ax_hold_waited(since, ax_monotonic_ns()) > limit_ns())
      return ax_fail(AX_ETIMEOUT, "waited %g s for a connection from %s (%s sets the limit)",
                     (double)limit_ns() * 1e-9, name_of(l, missing(l), name, sizeof name),
                     ax_shm_limit_source(limit_ns()));
    poll(&p, 1, SLICE_MS);
  }
  return AX_OK;
}

void ax_links_close(ax_links *l)
{
  for (int r = 0; l && r < l->size; r++)
    if (l->fd[r] >= 0) close(l->fd[r]);
  ax_mfree(l);
}

/* The rank in `from` of a rank of the world. */
static int rank_in(const ax_group *from, int world_rank)
{
  int r = 0;
  while (ax_group_world_rank(from, r) != world_rank) r++;
  return r;
}

ax_status ax_links_open(const ax_group *from, const ax_group *g, const ax_offer *all, int listener,
                        ax_links **out)
{
  ax_links *l = ax_calloc(1, sizeof *l + (size_t)g->size * sizeof *l->fd);
  const int one = 1;
  ax_status st = l ? AX_OK : AX_ENOMEM;

  *out = NULL;
  if (st != AX_OK) return st;
  l->rank = g->rank;
  l->size = g->size;
  l->members = g->members;
  for (int r = 0; r < l->size; r++) l->fd[r] = -1;
  for (int r = 0; r < l->rank && st == AX_OK; r++) st = connect_to(l, r, &all[rank_in(from, g->members[r])]);
  if (st == AX_OK) st = accept_all(l, &all[from->rank], listener);
  for (int r = 0; r < l->size; r++)
    if (l->fd[r] >= 0) setsockopt(l->fd[r], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (st == AX_OK) *out = l;
  else ax_links_close(l);
  return st;
}

/* ---- exchanging */

/* The connection to `rank` has ended.  Waits a moment for the reason, which the launchers
 * exchange. */
static ax_status connection_lost(const ax_links *l, int rank, int error)
{
  const int64_t since = ax_monotonic_ns();
  char name[48];

  while (!ax_apart_aborted() && ax_monotonic_ns() - since < WORD_NS) usleep(10000);
  if (ax_apart_aborted()) return ax_shm_aborted();
  return ax_fail(AX_EABORTED,
                 "the connection to %s has ended%s%s: that rank has ended, or has left a collective half-way",
                 name_of(l, rank, name, sizeof name), error ? ": " : "", error ? strerror(error) : "");
}

/* Moves what can be moved now; *moved grows. */
static ax_status advance(const ax_links *l, int rank, ax_parcel *p, size_t *moved)
{
  while (p->out_bytes > 0) {
    const ssize_t k = send(l->fd[rank], p->out, p->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (k < 0) return connection_lost(l, rank, errno);
    p->out = (const char *)p->out + k;
    p->out_bytes -= (size_t)k;
    *moved += (size_t)k;
  }
  while (p->in_bytes > 0) {
    const ssize_t k = recv(l->fd[rank], p->in, p->in_bytes, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (k <= 0) return connection_lost(l, rank, k == 0 ? 0 : errno);
    p->in = (char *)p->in + k;
    p->in_bytes -= (size_t)k;
    *moved += (size_t)k;
  }
  return AX_OK;
}

/* The ranks that something is still to go to or to come from; sleeps until one is ready. */
static int sleep_for_open(const ax_links *l, const ax_parcel *left)
{
  struct pollfd p[AX_MAX_RANKS];
  int n = 0;

  for (int r = 0; r < l->size; r++)
    if (left[r].out_bytes + left[r].in_bytes > 0)
      p[n++] = (struct pollfd){
        .fd = l->fd[r], .events = (short)((left[r].out_bytes ? POLLOUT : 0) | (left[r].in_bytes ? POLLIN : 0))
      };
  if (n > 0) poll(p, (nfds_t)n, SLICE_MS);
  return n;
}

static int first_open(const ax_links *l, const ax_parcel *left)
{
  int r = 0;
  while (r < l->size - 1 && left[r].out_bytes + left[r].in_bytes == 0) r++;
  return r;
}

ax_status ax_links_exchange(ax_links *l, const ax_parcel *given)
{
  const int64_t limit = limit_ns() + AX_GRACE_NS;
  ax_parcel left[AX_MAX_RANKS];
  int64_t since = ax_monotonic_ns();
  char name[48];
  ax_status st = AX_OK;

  memcpy(left, given, (size_t)l->size * sizeof *left);
  left[l->rank] = (ax_parcel){ NULL, 0, NULL, 0 };
  for (;;) {
    size_t moved = 0;
    for (int r = 0; r < l->size; r++)
      if (left[r].out_bytes + left[r].in_bytes > 0) AX_TRY(advance(l, r, &left[r], &moved));
    if (sleep_for_open(l, left) == 0) return AX_OK;
    if (moved > 0) since = ax_monotonic_ns();
    if (ax_apart_aborted()) return ax_shm_aborted();
    ax_shm_look();
    if (ax_hold_waited(since, ax_monotonic_ns()) > limit)
      return ax_fail(
          AX_ETIMEOUT,
          "waited %g s for %s, which has not come (%s sets the limit; 1 s more is for its machine's word)",
          (double)limit * 1e-9, name_of(l, first_open(l, left), name, sizeof name),
          ax_shm_limit_source(limit - AX_GRACE_NS));
  }
out:
  return st;
}
