/* local.c: the launchers of one machine's ranks, where another program started one for each.
 *
 * Local rank 0 listens at a Unix socket whose name has no file: it says whose run it is and ends
 * with its process.  The others introduce themselves, with the processors that they may use.  When
 * all are there, and the machines have met, each gets the file of the shared memory and its share
 * of the processors.  The kernel says whose process is at the other end; another user's is
 * refused. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ax.h"
#include "joins.h"
#include "launch.h"
#include "script/script.h"
#include "sha256.h"

#define MAGIC 0x6c78616cu /* "laxl" */
#define AGAIN_MS 20

typedef struct hello {
  uint32_t magic, layout;           /* layout: the size of a rank's record */
  int32_t rank, size, pid, threads; /* threads: what the user chose; 0: nothing */
  cpu_set_t cpus;
} hello;
typedef struct welcome {
  uint32_t magic;
  int32_t pid, cores, ends; /* ends: files that come with it */
} welcome;

/* The job's own name may be longer than a socket's. */
static socklen_t name_of(const ax_plan *plan, struct sockaddr_un *a)
{
  unsigned char digest[AX_SHA256_BYTES];
  ax_sha256 h;
  int n;

  ax_sha256_begin(&h);
  ax_sha256_add(&h, plan->join.job, strlen(plan->join.job));
  ax_sha256_end(&h, digest);
  memset(a, 0, sizeof *a);
  a->sun_family = AF_UNIX;
  n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "accel-run/%d/", (int)getuid());
  for (int i = 0; i < 16; i++)
    n += snprintf(a->sun_path + 1 + n, sizeof a->sun_path - 1 - (size_t)n, "%02x", digest[i]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void introduce(const ax_plan *plan, hello *h)
{
  bool given;
  const int threads = ax_config_threads(plan, plan->join.local_size, &given);

  memset(h, 0, sizeof *h);
  h->magic = MAGIC;
  h->layout = (uint32_t)sizeof(ax_rank_record);
  h->rank = plan->join.local_rank;
  h->size = plan->join.local_size;
  h->pid = (int32_t)getpid();
  h->threads = given ? threads : 0;
  sched_getaffinity(0, sizeof h->cpus, &h->cpus);
}

static bool same_user(int fd)
{
  struct ucred who;
  socklen_t n = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == getuid();
}

/* A message of this kind is read or written at once: both ends are on this machine. */
static bool move_all(int fd, void *p, size_t n, bool sends)
{
  for (size_t done = 0; done < n;) {
    const ssize_t k =
        sends ? send(fd, (char *)p + done, n - done, MSG_NOSIGNAL) : recv(fd, (char *)p + done, n - done, 0);
    struct pollfd ready = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
    if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (k > 0) done += (size_t)k;
    else if (poll(&ready, 1, 1000) == 0) return false;
  }
  return true;
}

/* ---- local rank 0 */

/* "1, 3" */
static void list_missing(const ax_local *l, char *buf, size_t size)
{
  size_t n = 0;

  buf[0] = '\0';
  for (int r = 1; r < l->size && n < size; r++)
    if (l->fd[r] < 0) n += (size_t)snprintf(buf + n, size - n, "%s%d", n ? ", " : "", r);
}

/* How many ranks may run on each processor decides what a rank's share is. */
static bool share_processors(ax_local *l, const hello *all)
{
  const double quota_of_all = (double)ax_config_cores();
  bool crowded = false;

  for (int r = 0; r < l->size; r++) {
    double share = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      int users = 0;
      if (!CPU_ISSET(cpu, &all[r].cpus)) continue;
      for (int k = 0; k < l->size; k++) users += CPU_ISSET(cpu, &all[k].cpus);
      share += 1.0 / users;
    }
    if (CPU_EQUAL(&all[r].cpus, &all[0].cpus) && share > quota_of_all / l->size)
      share = quota_of_all / l->size;
    l->share[r] = share + 1e-9;
    crowded = crowded || l->share[r] < (all[r].threads > 0 ? all[r].threads : 1);
  }
  return crowded;
}

/* Accepts one of the others; -1 for what is none. */
static int take(ax_local *l, hello *all)
{
  const int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  hello h;

  if (fd < 0) return 0;
  if (!same_user(fd) || !move_all(fd, &h, sizeof h, false) || h.magic != MAGIC ||
      h.layout != sizeof(ax_rank_record) || h.size != l->size || h.rank < 1 || h.rank >= l->size ||
      l->fd[h.rank] >= 0) {
    close(fd);
    return 0;
  }
  l->fd[h.rank] = fd;
  l->pid[h.rank] = h.pid;
  all[h.rank] = h;
  return 1;
}

/* Whether a wait has come to the next line about it, after --stall_report and then twice as long
 * each time. */
static bool reports(double waited, double *next)
{
  if (waited < *next) return false;
  *next *= 2;
  return true;
}

static int gather(ax_local *l, const ax_plan *plan, ax_control **control)
{
  const double limit = plan->set[AX_SET_timeout].number;
  const int64_t since = ax_monotonic_ns();
  double next = plan->set[AX_SET_stall_report].number, waited;
  static hello all[AX_MAX_RANKS];
  struct sockaddr_un a;
  const socklen_t length = name_of(plan, &a);
  char who[300];

  introduce(plan, &all[0]);
  l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&a, length) != 0 ||
      listen(l->listener, AX_MAX_RANKS) != 0) {
    ax_print(stderr, "accel-run: local rank 0 cannot listen for the other ranks that %s starts: %s\n",
             plan->join.who, strerror(errno));
    return AX_EXIT_FAILED;
  }
  for (int there = 1; there < l->size;) {
    struct pollfd p = { .fd = l->listener, .events = POLLIN };
    if (poll(&p, 1, 100) > 0) there += take(l, all);
    waited = (double)(ax_monotonic_ns() - since) * 1e-9;
    list_missing(l, who, sizeof who);
    if (there < l->size && reports(waited, &next))
      ax_print(stderr,
               "accel-run: local rank 0 waits for local rank %s of %d, which %s should start on this "
               "machine, for %.0f s so far\n",
               who, l->size, plan->join.who, waited);
    if (waited < limit || there == l->size) continue;
    ax_print(stderr,
             "accel-run: waited %g s for local rank %s of %d, which %s should have started on this machine "
             "(--timeout sets the limit)\n",
             limit, who, l->size, plan->join.who);
    return AX_EXIT_FAILED;
  }
  close(l->listener);
  l->listener = -1;
  if (ax_shm_create(l->size, limit, !share_processors(l, all), &l->memory, control) == AX_OK) return 0;
  ax_print(stderr, "accel-run: %s\n", ax_last_error());
  return AX_EXIT_FAILED;
}

int ax_local_release(ax_local *l, const int *hand_on)
{
  int status = 0;

  for (int r = 1; r < l->size; r++) {
    const int files[2] = { l->memory, hand_on ? hand_on[r] : -1 };
    const int n = files[1] >= 0 ? 2 : 1;
    welcome w = { MAGIC, (int32_t)getpid(), (int32_t)l->share[r], n };
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof files)] = { 0 };
    struct iovec part = { &w, sizeof w };
    struct msghdr m = { .msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = room,
                        .msg_controllen = CMSG_SPACE((size_t)n * sizeof *files) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof *files);
    memcpy(CMSG_DATA(c), files, (size_t)n * sizeof *files);
    if (sendmsg(l->fd[r], &m, MSG_NOSIGNAL) != (ssize_t)sizeof w) {
      ax_print(stderr, "accel-run: the launcher of local rank %d (process %d) is gone: %s\n", r, l->pid[r],
               strerror(errno));
      status = AX_EXIT_FAILED;
    }
  }
  close(l->memory);
  l->memory = -1;
  return status;
}

/* ---- the others */

static int reach(const ax_plan *plan)
{
  const double limit = plan->set[AX_SET_timeout].number;
  const int64_t since = ax_monotonic_ns();
  double next = plan->set[AX_SET_stall_report].number, waited;
  struct sockaddr_un a;
  const socklen_t length = name_of(plan, &a);
  int fd;

  for (;;) {
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) break;
    if (connect(fd, (struct sockaddr *)&a, length) == 0) return fd;
    close(fd);
    if ((waited = (double)(ax_monotonic_ns() - since) * 1e-9) >= limit) break;
    if (reports(waited, &next))
      ax_print(stderr,
               "accel-run: rank %d, local rank %d, waits for local rank 0, which %s should start on this "
               "machine, for %.0f s so far\n",
               plan->join.rank, plan->join.local_rank, plan->join.who, waited);
    usleep(AGAIN_MS * 1000);
  }
  ax_print(stderr,
           "accel-run: rank %d, local rank %d: waited %g s for local rank 0, which %s should have started on "
           "this machine (--timeout sets the limit): %s\n",
           plan->join.rank, plan->join.local_rank, limit, plan->join.who, strerror(errno));
  return -1;
}

/* Receives the welcome with its files; false when local rank 0 is gone, which says why itself. */
static bool receive(int fd, welcome *w, int files[2])
{
  _Alignas(struct cmsghdr) char room[CMSG_SPACE(2 * sizeof *files)];
  struct iovec part = { w, sizeof *w };
  struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
  struct cmsghdr *c;
  ssize_t k;

  while ((k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
  files[0] = files[1] = -1;
  if (k != (ssize_t)sizeof *w || w->magic != MAGIC || !(c = CMSG_FIRSTHDR(&m)) || c->cmsg_type != SCM_RIGHTS)
    return false;
  memcpy(files, CMSG_DATA(c),
         (c->cmsg_len - CMSG_LEN(0)) <= 2 * sizeof *files ? c->cmsg_len - CMSG_LEN(0) : 0);
  return files[0] >= 0;
}

static int join(ax_local *l, const ax_plan *plan, ax_control **control, int *inherited)
{
  welcome w;
  hello h;
  int files[2], status = 0;

  introduce(plan, &h);
  if ((l->fd[0] = reach(plan)) < 0) return AX_EXIT_FAILED;
  if (!same_user(l->fd[0]) || !move_all(l->fd[0], &h, sizeof h, true) || !receive(l->fd[0], &w, files)) {
    ax_print(stderr, "accel-run: rank %d: local rank 0 did not take it, or has ended\n", plan->join.rank);
    return AX_EXIT_FAILED;
  }
  fcntl(l->fd[0], F_SETFL, O_NONBLOCK);
  if (ax_shm_map(files[0], l->size, control) != AX_OK) {
    ax_print(stderr, "accel-run: %s\n", ax_last_error());
    status = AX_EXIT_FAILED;
  }
  close(files[0]);
  l->pid[0] = w.pid;
  l->share[l->rank] = w.cores;
  *inherited = files[1];
  return status;
}

int ax_local_meet(ax_local *l, const ax_plan *plan, ax_control **control, int *inherited, int *cores)
{
  int status;

  memset(l, 0, sizeof *l);
  l->rank = plan->join.local_rank;
  l->size = plan->join.local_size;
  l->who = plan->join.who;
  l->listener = l->memory = *inherited = -1;
  for (int r = 0; r < AX_MAX_RANKS; r++) l->fd[r] = -1;
  status = l->rank == 0 ? gather(l, plan, control) : join(l, plan, control, inherited);
  *cores = l->share[l->rank] >= 1 ? (int)l->share[l->rank] : 1;
  return status;
}

/* ---- while the ranks run */

bool ax_local_watch(ax_local *l, ax_control *c)
{
  bool others = false;
  char text[200], byte;

  for (int r = 0; r < l->size; r++) {
    ssize_t k;
    if (l->fd[r] < 0 || l->done[r]) continue;
    k = recv(l->fd[r], &byte, 1, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
      others = true;
      continue;
    }
    l->done[r] = true;
    if (k > 0) continue; /* it has ended, and its rank's record says how */
    snprintf(text, sizeof text, "the launcher of local rank %d (process %d) is gone", r, l->pid[r]);
    ax_shm_abort(c, -1, text);
  }
  return others && l->rank == 0;
}

void ax_local_end(ax_local *l)
{
  for (int r = 0; r < l->size; r++) {
    if (l->fd[r] < 0) continue;
    (void)!send(l->fd[r], "e", 1, MSG_NOSIGNAL);
    close(l->fd[r]);
    l->fd[r] = -1;
  }
}
