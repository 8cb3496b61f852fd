/* feed/worker.c: worker processes of a loader: their life, requests, and waits for replies. */
#define _GNU_SOURCE
#include "feed.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/feed/worker.h"
#include "glibc.h"
#include "profile.h"
#include "dist.h"
#include "ranks.h"

#define LOOK 0.25 /* seconds between two checks whether a worker that is waited for is stopped */

static ax_worker *live; /* workers of this process; one thread uses the list */
static bool inside, forked;

bool ax_worker_inside(void) { return inside; }
bool ax_worker_is_child(const ax_worker *w) { return w->child; }
int ax_worker_pid(const ax_worker *w) { return (int)w->pid; }

static double now(void) { return (double)ax_monotonic_ns() * 1e-9; }

/* ---- life */

static void free_worker(ax_worker *w)
{
  for (int i = 0; i < AX_WORKER_SLOTS; i++) ax_worker_unmap(&w->slots[i]);
  if (w->control) munmap(w->control, sizeof *w->control);
  if (w->memory >= 0) close(w->memory);
  if (w->fd >= 0) close(w->fd);
  free(w->request);
  free(w->unsent);
  ax_mfree(w);
}

void ax_worker_release(ax_worker *w)
{
  if (__atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL) == 0) free_worker(w);
}

static void keep_going(int sig) { (void)sig; }

/* Turns a fresh fork into a worker. */
static void become_worker(ax_worker *w, pid_t parent)
{
  struct sigaction on_interrupt = { .sa_handler = keep_going, .sa_flags = SA_RESTART };
  int null;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL); /* the parent died before the line above */
  prctl(PR_SET_NAME, "accel-worker");
  inside = forked = true;
  ax_backend_refuse_devices(
      "a loader's worker process uses no GPU (CUDA does not survive the fork that made it): a data set and "
      "its transforms give tensors of the CPU, and the loader moves the batches");
  ax_profiling = false;
  sigaction(SIGINT, &on_interrupt, NULL); /* Ctrl-C reaches all processes; the parent decides */
  signal(SIGTERM, SIG_DFL);
  /* or they would not notice when the parent is gone */
  for (ax_worker *other = live; other; other = other->next) {
    close(other->fd);
    close(other->memory);
    other->fd = other->memory = -1;
  }
  live = NULL;
  if ((null = open("/dev/null", O_RDONLY)) >= 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  ax_dist_forget();
  w->child = true;
}

void ax_worker_become_rank(bool devices)
{
  inside = false;
  prctl(PR_SET_NAME, "accel-rank");
  if (devices) ax_backend_refuse_devices(NULL);
}

bool ax_worker_forked(void) { return forked; }

ax_status ax_worker_fork(ax_worker **out, bool *child)
{
  const pid_t parent = getpid();
  int pair[2] = { -1, -1 };
  ax_worker *w = *out = NULL;
  ax_status st = AX_OK;
  pid_t pid;

  *child = false;
  if (!(w = ax_calloc(1, sizeof *w))) return AX_ENOMEM;
  *w = (ax_worker){ .refs = 1, .parent = parent, .fd = -1, .memory = -1 };
  w->control = mmap(NULL, sizeof *w->control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (w->control == MAP_FAILED) {
    w->control = NULL;
    AX_TRY(ax_fail(AX_ENOMEM, "no memory to share with a worker: %s", strerror(errno)));
  }
  w->memory = memfd_create("accel-batches", MFD_CLOEXEC);
  if (w->memory < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    AX_TRY(ax_fail(AX_EIO, "a worker needs a memory file and a socket: %s", strerror(errno)));
  fflush(NULL); /* or the worker would print the buffered text again */
  pid = fork();
  if (pid < 0) AX_TRY(ax_fail(AX_EIO, "a worker process could not be started: %s", strerror(errno)));
  w->pid = pid;
  if (pid == 0) {
    become_worker(w, parent);
    close(pair[0]);
    w->fd = pair[1];
    w->pid = getpid();
    *child = true;
    *out = w;
    return AX_OK;
  }
  w->fd = pair[0];
  pair[0] = -1;
  w->next = live;
  live = w;
  *out = w;
  w = NULL;
out:
  if (pair[0] >= 0) close(pair[0]);
  if (pair[1] >= 0) close(pair[1]);
  if (w) free_worker(w);
  return st;
}

_Noreturn void ax_worker_exit(int status)
{
  fflush(NULL);
  _exit(status);
}

void ax_worker_hang_up(ax_worker *w)
{
  if (w->fd >= 0) shutdown(w->fd, SHUT_WR);
}

void ax_worker_close(ax_worker *w, double seconds)
{
  const double deadline = now() + seconds;
  int status;

  /* in a worker or another fork this is a copy of the parent's: the process is not its child */
  if (w->parent != getpid()) return;
  for (ax_worker **p = &live; *p; p = &(*p)->next)
    if (*p == w) {
      *p = w->next;
      break;
    }
  ax_worker_hang_up(w);
  while (w->pid > 0 && waitpid(w->pid, &status, WNOHANG) == 0) {
    if (now() >= deadline) {
      kill(w->pid, SIGKILL);
      while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR) {}
      break;
    }
    nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
  }
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
  w->pid = 0;
  ax_worker_reclaim(w, true);
  ax_worker_release(w);
}

/* ---- requests */

bool ax_socket_write(int fd, const void *from, size_t n)
{
  for (size_t at = 0; at < n;) {
    const ssize_t k = send(fd, (const char *)from + at, n - at, MSG_NOSIGNAL);
    if (k > 0) at += (size_t)k;
    else if (errno != EINTR) return false;
  }
  return true;
}

size_t ax_socket_read(int fd, void *to, size_t n)
{
  size_t at = 0;
  while (at < n) {
    const ssize_t k = recv(fd, (char *)to + at, n - at, 0);
    if (k > 0) at += (size_t)k;
    else if (k == 0 || errno != EINTR) break;
  }
  return at;
}

/* Sends as much as the socket takes now; returns false when the worker is gone. */
static bool write_some(int fd, const char *from, size_t n, size_t *sent)
{
  for (*sent = 0; *sent < n;) {
    const ssize_t k = send(fd, from + *sent, n - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0) *sent += (size_t)k;
    else if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    else if (errno != EINTR) return false;
  }
  return true;
}

static bool send_on(ax_worker *w)
{
  size_t sent;
  if (w->unsent_at == w->unsent_n) return true;
  const bool there = write_some(w->fd, w->unsent + w->unsent_at, w->unsent_n - w->unsent_at, &sent);
  w->unsent_at += sent;
  if (w->unsent_at == w->unsent_n) w->unsent_at = w->unsent_n = 0;
  return there;
}

static ax_status keep_unsent(ax_worker *w, const char *bytes, size_t n)
{
  if (w->unsent_at) memmove(w->unsent, w->unsent + w->unsent_at, w->unsent_n -= w->unsent_at);
  w->unsent_at = 0;
  if (w->unsent_room - w->unsent_n < n) {
    const size_t room = (w->unsent_n + n) * 2;
    char *grown = realloc(w->unsent, room);
    if (!grown) return ax_fail(AX_ENOMEM, "no memory for a request of %zu bytes", n);
    w->unsent = grown;
    w->unsent_room = room;
  }
  memcpy(w->unsent + w->unsent_n, bytes, n);
  w->unsent_n += n;
  return AX_OK;
}

/* The rank does not wait for a busy worker to read a long request. */
static ax_status send_part(ax_worker *w, const void *bytes, size_t n)
{
  size_t sent = 0;
  if (!send_on(w) || (w->unsent_n == 0 && !write_some(w->fd, bytes, n, &sent)))
    return ax_fail(AX_EIO, "process %d takes no more requests: %s", (int)w->pid, strerror(errno));
  return sent < n ? keep_unsent(w, (const char *)bytes + sent, n - sent) : AX_OK;
}

ax_status ax_worker_send(ax_worker *w, const void *bytes, size_t n)
{
  const uint64_t length = n;
  if (w->fd < 0)
    return ax_fail(AX_EIO, "process %d takes no more requests: %s", (int)w->pid, strerror(EPIPE));
  ax_worker_reclaim(w, false);
  const ax_status st = send_part(w, &length, sizeof length);
  return st == AX_OK ? send_part(w, bytes, n) : st;
}

ax_status ax_worker_next(ax_worker *w, const void **bytes, size_t *n)
{
  uint64_t length;

  *n = 0;
  if (ax_socket_read(w->fd, &length, sizeof length) < sizeof length) return AX_OK;
  if (length > w->room) {
    char *grown = realloc(w->request, length);
    if (!grown)
      return ax_fail(AX_ENOMEM, "no memory for a request of %llu bytes", (unsigned long long)length);
    w->request = grown;
    w->room = length;
  }
  if (ax_socket_read(w->fd, w->request, length) < length) return AX_OK;
  *bytes = w->request;
  *n = length;
  return AX_OK;
}

/* ---- waiting */

/* Writes how the worker ended into the thread's message. */
static void describe_end(ax_worker *w)
{
  const double deadline = now() + 1;
  int status = 0;
  pid_t got;

  if (w->pid == 0) {
    ax_fail(AX_EIO, "its process has ended");
    return;
  }
  while ((got = waitpid(w->pid, &status, WNOHANG)) == 0 && now() < deadline)
    nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
  if (got == w->pid && WIFSIGNALED(status)) {
    const char *name = sigabbrev_np(WTERMSIG(status));
    ax_fail(AX_EIO, "process %d was killed by SIG%s%s", (int)w->pid, name ? name : "?",
            WTERMSIG(status) == SIGKILL ? " (by hand, or because memory ran out)" : "");
  } else if (got == w->pid)
    ax_fail(AX_EIO, "process %d exited with status %d", (int)w->pid, WEXITSTATUS(status));
  else ax_fail(AX_EIO, "process %d is gone", (int)w->pid);
  if (got != 0) w->pid = 0; /* reaped: another process may get the number */
}

/* Whether a worker that is waited for was found stopped twice in a row for the first time; the
 * message names the signal.  Ctrl-Z stops both processes and they continue together, so a single
 * check may come too early. */
static bool newly_stopped(ax_worker *w)
{
  siginfo_t info = { .si_pid = 0 };
  const char *name;

  if (w->pid == 0 || waitid(P_PID, (id_t)w->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    w->stop_looks = 0;
    return false;
  }
  if (w->stop_looks < 3) w->stop_looks++;
  if (w->stop_looks != 2) return false;
  name = sigabbrev_np(info.si_status);
  ax_fail(AX_EIO, "process %d was stopped by SIG%s", (int)w->pid, name ? name : "?");
  return true;
}

static ax_wait wait_for_note(ax_worker *const *list, int n, int at, double seconds, ax_note *note, int *died)
{
  struct pollfd fds[AX_MAX_WORKERS];
  const double deadline = seconds < 0 ? 0 : now() + seconds;

  for (;;) {
    for (int i = 0; i < n; i++) {
      fds[i] = (struct pollfd){ .fd = list[i]->fd, .events = i == at ? POLLIN : 0 };
      if (list[i]->unsent_n) fds[i].events |= POLLOUT;
    }
    const double left = seconds < 0 ? LOOK : deadline - now();
    const int ready = poll(fds, (nfds_t)n,
                           left <= 0     ? 0
                           : left < LOOK ? (int)(left * 1000) + 1
                                         : (int)(LOOK * 1000));
    if (ready < 0 && errno == EINTR) return AX_WAIT_INTERRUPTED;
    if (fds[at].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) {
      if (ax_socket_read(list[at]->fd, note, sizeof *note) == sizeof *note) return AX_WAIT_NOTE;
      *died = at;
      describe_end(list[at]);
      return AX_WAIT_DIED;
    }
    for (int i = 0; ready > 0 && i < n; i++)
      if (fds[i].revents & POLLOUT) send_on(list[i]); /* a worker that is gone is found below */
    for (int i = 0; ready > 0 && i < n; i++)
      if (fds[i].revents & (POLLHUP | POLLERR | POLLNVAL)) {
        *died = i;
        describe_end(list[i]);
        return AX_WAIT_DIED;
      }
    if (ready == 0 && left >= LOOK && newly_stopped(list[at])) return AX_WAIT_STOPPED;
    if (seconds >= 0 && now() >= deadline) return AX_WAIT_TIMEOUT;
  }
}

ax_wait ax_worker_wait(ax_worker *const *list, int n, int at, double seconds, ax_note *note, int *died)
{
  ax_wait how;

  ax_busy_begin("a wait for a loader's worker", "");
  how = wait_for_note(list, n, at, seconds, note, died);
  ax_busy_end();
  return how;
}
