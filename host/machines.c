/* machines.c: launchers of several machines find each other before they fork their ranks.
 *
 * Machine 0 listens at main_process_ip:main_process_port; the others connect, and retry until
 * --timeout.  A launcher introduces itself and gets the number of the run.  Then it makes one
 * connection for each of its ranks, which present that number.  The run starts when all machines
 * are there.
 *
 * The first connection of each launcher stays with it; it carries the news that a rank failed
 * there or that all ended well.  A connection that closes without such news means that the machine
 * is gone.  Machine 0 keeps listening, so that the port stays taken and late machines can be
 * refused. */
#define _GNU_SOURCE
#include "machines.h"

#include "ax.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x6c636361u              /* "accl"; another byte order gives another number */
#define VERSION 1u                     /* of the protocol */
#define HELLO_NS ((int64_t)2000000000) /* for a new connection to introduce itself */
#define AGAIN_MS 200                   /* between attempts to connect */

typedef enum { NOTE_START = 0x61786e01, NOTE_ABORT, NOTE_DONE } note_kind;

typedef struct hello {
  uint32_t magic, version, layout;        /* layout: the size of a rank's record of a collective */
  int32_t machines, machine, ranks, rank; /* rank -1: a launcher */
  uint64_t run;                           /* 0 from a launcher, which gets it in the reply */
} hello;
typedef struct welcome {
  uint32_t magic, version, refused;
  uint64_t run;
  char text[600];
} welcome;

/* ---- sockets --------------------------------------------------------------------------------- */

/* TCP options: a machine that vanishes is noticed within half a minute. */
static void prepare(int fd)
{
  const int on = 1, idle = 10, every = 5, times = 4, unanswered = 30000;

  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

static void put_away(int *fd)
{
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

/* Sends or receives n bytes until `deadline`; 0, or an errno (ECONNRESET: the other end closed). */
static int move(int fd, void *buf, size_t n, bool sends, int64_t deadline)
{
  struct pollfd p = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
  char *at = buf;

  while (n > 0) {
    const ssize_t k = sends ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
    int64_t left;
    if (k > 0) {
      at += k;
      n -= (size_t)k;
      continue;
    }
    if (k == 0) return ECONNRESET;
    if (errno != EAGAIN && errno != EINTR) return errno;
    if ((left = deadline - ax_monotonic_ns()) <= 0) return ETIMEDOUT;
    poll(&p, 1, left > 1000000000 ? 1000 : (int)(left / 1000000) + 1);
  }
  return 0;
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

static void say_hello(hello *h, const ax_machines *m, int rank, uint64_t run)
{
  memset(h, 0, sizeof *h);
  *h =
      (hello){ MAGIC, VERSION, (uint32_t)sizeof(ax_collective_call), m->count, m->mine, m->ranks, rank, run };
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

  put_away(&m->listener);
  m->listener = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (m->listener < 0) return errno;
  setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (a->sa_family == AF_INET6) setsockopt(m->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  return bind(m->listener, a, length) != 0 || listen(m->listener, AX_MAX_RANKS) != 0 ? errno : 0;
}

/* Machine 0's own name often resolves to a loopback address on machine 0 itself (Debian's
 * installer writes 127.0.1.1 into /etc/hosts).  So it listens at all addresses, of IPv6 and IPv4,
 * unless a loopback address was given. */
static int listen_here(ax_machines *m, const ax_plan *plan)
{
  const uint16_t port = htons((uint16_t)plan->set[AX_SET_main_process_port].number);
  const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = port };
  const struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = port };
  struct addrinfo *named = resolve(plan);
  int error;

  if (!named) return AX_EXIT_FAILED;
  if (is_loopback(plan->set[AX_SET_main_process_ip].text)) {
    error = listen_at(m, named->ai_addr, named->ai_addrlen);
  } else {
    check_own(m, named);
    error = listen_at(m, (const struct sockaddr *)&any6, sizeof any6);
    if (error != 0 && error != EADDRINUSE) /* no IPv6 here */
      error = listen_at(m, (const struct sockaddr *)&any4, sizeof any4);
  }
  freeaddrinfo(named);
  if (error == 0) return 0;
  fprintf(stderr, "accel-run: machine 0 cannot listen at %s: %s%s\n", m->address, strerror(error),
          error == EADDRINUSE ? "; another program, or another run, has that port (--main_process_port)"
                              : "");
  return AX_EXIT_FAILED;
}

/* Accepts one connection and reads its hello.  Returns -1 when there was none, or when it is not
 * accel-run's (it is closed). */
static int take(ax_machines *m, hello *h, char *from, size_t size, int64_t patience)
{
  struct sockaddr_storage a;
  socklen_t length = sizeof a;
  int fd = accept4(m->listener, (struct sockaddr *)&a, &length, SOCK_CLOEXEC | SOCK_NONBLOCK), e;

  if (fd < 0) return -1;
  prepare(fd);
  if (getnameinfo((struct sockaddr *)&a, length, from, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
    snprintf(from, size, "?");
  if (strncmp(from, "::ffff:", 7) == 0) memmove(from, from + 7, strlen(from + 7) + 1); /* IPv4 */
  e = move(fd, h, sizeof *h, false, ax_monotonic_ns() + patience);
  if (e == 0 && h->magic == MAGIC) return fd;
  fprintf(stderr, "accel-run: a connection from %s to %s is none of accel-run's: %s; it was closed\n", from,
          m->address, e != 0 ? strerror(e) : "it begins with other bytes, or bytes in another order");
  close(fd);
  return -1;
}

/* Writes into `text` what is wrong with the launcher or rank that sent `h`; "" when nothing is. */
static void judge(const ax_machines *m, const hello *h, uint64_t run, const char *from, char *text,
                  size_t size)
{
  const int machine = h->machine;

  text[0] = '\0';
  if (h->version != VERSION || h->layout != sizeof(ax_collective_call))
    snprintf(text, size,
             "machine %d (%s) speaks version %u.%u of the protocol, and machine 0 %u.%u: all machines need "
             "the same accel-run",
             machine, from, h->version, h->layout, VERSION, (unsigned)sizeof(ax_collective_call));
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

static void reply(int fd, uint64_t run, const char *refusal)
{
  welcome w;

  memset(&w, 0, sizeof w);
  w.magic = MAGIC;
  w.version = VERSION;
  w.refused = refusal[0] != '\0';
  w.run = run;
  snprintf(w.text, sizeof w.text, "%s", refusal);
  move(fd, &w, sizeof w, true, ax_monotonic_ns() + HELLO_NS);
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
    if (m->control[k] >= 0 && move(m->control[k], &n, sizeof n, true, ax_monotonic_ns() + HELLO_NS) != 0)
      all = false;
  return all;
}

/* Forgets machines that disconnected while others were still missing; they may come again.  Returns
 * how many ranks are missing again. */
static int forget_gone(ax_machines *m)
{
  int wanted = 0, k, r;
  char byte;

  for (k = 1; k < m->count; k++) {
    const ssize_t got = m->control[k] < 0 ? 1 : recv(m->control[k], &byte, 1, MSG_PEEK);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) continue;
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

static int gather_machines(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number, report = plan->set[AX_SET_stall_report].number;
  const int64_t since = ax_monotonic_ns();
  int status = listen_here(m, plan), wanted = m->ranks - m->here;
  double next = report;
  char text[600] = "", who[200];
  uint64_t run = 0;

  if (status != 0) return status;
  while (run == 0)
    if (getrandom(&run, sizeof run, 0) != (ssize_t)sizeof run) run = (uint64_t)since;
  while (wanted > 0 && !text[0]) {
    struct pollfd p = { .fd = m->listener, .events = POLLIN };
    const double waited = (double)(ax_monotonic_ns() - since) * 1e-9;
    char from[64];
    hello h;
    int fd;
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
    poll(&p, 1, 100);
    wanted += forget_gone(m);
    if ((fd = take(m, &h, from, sizeof from, HELLO_NS)) < 0) continue;
    judge(m, &h, run, from, text, sizeof text);
    reply(fd, run, text);
    if (text[0]) {
      close(fd);
    } else if (h.rank < 0) {
      m->control[h.machine] = fd;
      snprintf(m->from[h.machine], sizeof m->from[0], "%s", from);
    } else {
      m->data[h.rank] = fd;
      wanted--;
    }
  }
  if (!text[0] && notify(m, NOTE_START, "")) return 0;
  if (!text[0]) snprintf(text, sizeof text, "a machine went away before the run began");
  notify(m, NOTE_ABORT, text);
  fprintf(stderr, "accel-run: %s\n", text);
  return AX_EXIT_FAILED;
}

/* ---- the other machines ---------------------------------------------------------------------- */

/* Connects to machine 0 and exchanges hellos.  Returns the connection; -1 after printing to stderr
 * what is wrong; HAS_WORD when machine 0 has sent a message on the first connection meanwhile. */
enum { HAS_WORD = -2 };
static int reach(ax_machines *m, const struct addrinfo *list, double seconds, int rank, uint64_t *run)
{
  const int64_t since = ax_monotonic_ns(), deadline = since + (int64_t)(seconds * 1e9);
  struct pollfd word = { .fd = m->control[0], .events = POLLIN };
  int tries = 0, error = 0;

  do {
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
      int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      struct pollfd p = { .fd = fd, .events = POLLOUT };
      socklen_t length = sizeof error;
      welcome w;
      hello h;
      if (fd < 0) {
        error = errno;
        continue;
      }
      prepare(fd);
      tries++;
      error = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        const int64_t left = (deadline - ax_monotonic_ns()) / 1000000;
        error = ETIMEDOUT;
        if (poll(&p, 1, left < 1 ? 1 : left > 10000 ? 10000 : (int)left) > 0)
          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
      }
      say_hello(&h, m, rank, *run);
      if (error == 0) error = move(fd, &h, sizeof h, true, deadline);
      if (error == 0) error = move(fd, &w, sizeof w, false, deadline);
      if (error == 0 && (w.magic != MAGIC || w.refused)) {
        w.text[sizeof w.text - 1] = '\0';
        ax_text_clean(w.text);
        if (w.magic != MAGIC)
          fprintf(stderr,
                  "accel-run: what answers at %s is no accel-run; --main_process_ip and --main_process_port "
                  "must be those of machine 0\n",
                  m->address);
        else
          fprintf(stderr, "accel-run: machine 0 at %s refuses machine %d: %s\n", m->address, m->mine, w.text);
        close(fd);
        return -1;
      }
      if (error == 0) {
        *run = w.run;
        return fd;
      }
      close(fd);
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

static int join_machine_0(ax_machines *m, const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number;
  struct addrinfo *list = resolve(plan);
  int status = list ? 0 : AX_EXIT_FAILED, e, fd = 0;
  uint64_t run = 0;
  ax_note n;

  if (status == 0 && (m->control[0] = reach(m, list, limit, -1, &run)) < 0) status = AX_EXIT_FAILED;
  for (int k = 0; k < m->here && status == 0 && fd >= 0; k++) {
    fd = m->data[k] = reach(m, list, limit, m->first + k, &run);
    status = fd == -1 ? AX_EXIT_FAILED : 0;
  }
  if (list) freeaddrinfo(list);
  if (status != 0) return status;
  snprintf(m->from[0], sizeof m->from[0], "%.63s", m->address);
  /* Machine 0 sets the limit of this wait and reports it; the extra second is for its message to
   * arrive. */
  e = move(m->control[0], &n, sizeof n, false, ax_monotonic_ns() + (int64_t)((limit + 1) * 1e9));
  n.text[sizeof n.text - 1] = '\0';
  ax_text_clean(n.text);
  if (e == 0 && n.kind == NOTE_START) return 0;
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
  m->listener = -1;
  snprintf(m->address, sizeof m->address, "%s:%s", plan->set[AX_SET_main_process_ip].text,
           plan->set[AX_SET_main_process_port].text);
  for (int k = 0; k < AX_MAX_RANKS; k++) m->control[k] = m->data[k] = m->local[k] = -1;
}

int ax_machines_meet(ax_machines *m, const ax_plan *plan)
{
  int pair[2];

  ax_machines_number(m, plan);
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

void ax_machines_join(ax_machines *m, int local_rank)
{
  int fd[AX_MAX_RANKS], k;

  memcpy(fd, m->data, sizeof fd);
  if (m->mine != 0 || local_rank != 0) {
    int *own = m->mine != 0 ? &m->data[local_rank] : &m->local[local_rank];
    fd[0] = *own;
    *own = -1;
    ax_machines_forked(m);
  }
  put_away(&m->listener);
  for (k = 0; k < AX_MAX_RANKS; k++) {
    put_away(&m->control[k]);
    put_away(&m->local[k]);
  }
  ax_tcp_join(m->first + local_rank, m->ranks, m->here, fd);
}

void ax_machines_forked(ax_machines *m)
{
  for (int k = 0; k < AX_MAX_RANKS; k++) {
    put_away(&m->data[k]);
    put_away(&m->local[k]);
  }
}

/* Refuses a machine that comes after the start; the run goes on. */
static void refuse_late(ax_machines *m)
{
  char from[64], text[400];
  hello h;
  const int fd = take(m, &h, from, sizeof from, HELLO_NS / 10);

  if (fd < 0) return;
  snprintf(text, sizeof text,
           "the run at this address has all of its %d machines, and has begun; another run needs a "
           "--main_process_port of its own",
           m->count);
  reply(fd, 0, text);
  close(fd);
  fprintf(stderr, "accel-run: machine %d of another run (%s) was refused at %s\n", (int)h.machine, from,
          m->address);
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
    m->done[k] = true;
    m->coming[k].text[AX_NOTE_TEXT - 1] = '\0';
    ax_text_clean(m->coming[k].text);
    if (m->coming[k].kind != NOTE_DONE) ax_shm_abort(c, -1, m->coming[k].text);
  }
}

bool ax_machines_watch(ax_machines *m, ax_control *c)
{
  bool others = false;
  int k;

  if (m->listener >= 0) refuse_late(m);
  for (k = 0; k < m->count; k++) {
    hear(m, c, k);
    others = others || (m->control[k] >= 0 && !m->done[k]);
  }
  if (!m->notified && atomic_load(&c->abort) == AX_ABORT_PUBLISHED) {
    m->notified = true;
    notify(m, NOTE_ABORT, c->reason);
  }
  return others && m->mine == 0;
}

void ax_machines_end(ax_machines *m, const char *failed)
{
  if (!m->notified) notify(m, failed ? NOTE_ABORT : NOTE_DONE, failed ? failed : "");
  for (int k = 0; k < m->count; k++) put_away(&m->control[k]);
  put_away(&m->listener);
}
