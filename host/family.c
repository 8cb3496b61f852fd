/* family.c: what the script's own programs (io.popen, os.execute) do when a run is killed: they go,
 * too.
 *
 * Every program that a rank starts inherits an environment variable with a text that no other run
 * has.  When a run fails, the launcher looks for it in /proc and ends what it finds.  Parents and
 * process groups would not do: a killed rank's children are nobody's at once.  A guard does the
 * same when the launcher itself is killed: a process that only waits for the end of a pipe.
 *
 * A run that ends well leaves its programs alone, as a shell does, and so does `env -u ACCEL_RUN_ID
 * program`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

#define NAME "ACCEL_RUN_ID"
#define LOOK_NS 20000000 /* between looks at what is left */
#define TERM_AFTER 0.3   /* seconds: most programs end when their pipe does */
#define KILL_AFTER 0.6
#define GIVE_UP_AFTER 5.0 /* what SIGKILL does not end hangs in the kernel */

static char mark[64]; /* "ACCEL_RUN_ID=..." */
static int guard_pipe = -1;
static pid_t guard;

/* ---- finding them */

/* Whether the environment in `fd` has the mark.  It may be longer than the buffer. */
static bool has_mark(int fd)
{
  char text[4096 + sizeof mark];
  size_t kept = 0;
  const size_t n = strlen(mark) + 1; /* with the NUL that ends a variable */
  ssize_t k;

  while ((k = read(fd, text + kept, 4096)) > 0) {
    const size_t all = kept + (size_t)k;
    if (memmem(text, all, mark, n)) return true;
    kept = all < n ? all : n - 1;
    memmove(text, text + all - kept, kept);
  }
  return false;
}

/* The process cannot become another between the look and the signal: the descriptor stays with
 * it. */
static bool signal_if_ours(const char *pid, int sig)
{
  char path[64];
  const int process = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
  bool ours = false;
  int fd;

  if (process < 0 && errno != ENOSYS) return false;
  snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
  if ((fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0) {
    ours = has_mark(fd);
    close(fd);
  }
  if (ours && sig)
    process >= 0 ? syscall(SYS_pidfd_send_signal, process, sig, NULL, 0) : kill(atoi(pid), sig);
  if (process >= 0) close(process);
  return ours;
}

/* Sends `sig` (0: nothing) to the run's programs; returns how many there are. */
static int signal_programs(int sig)
{
  DIR *all = opendir("/proc");
  struct dirent *entry;
  int n = 0;

  while (all && (entry = readdir(all)))
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && atoi(entry->d_name) != getpid())
      n += signal_if_ours(entry->d_name, sig);
  if (all) closedir(all);
  return n;
}

static double seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void end_programs(void)
{
  const struct timespec rest = { 0, LOOK_NS };
  const double began = seconds();
  bool termed = false;

  for (double spent = 0; spent < GIVE_UP_AFTER; spent = seconds() - began) {
    const bool term = !termed && spent >= TERM_AFTER;
    if (signal_programs(spent >= KILL_AFTER && termed ? SIGKILL : term ? SIGTERM : 0) == 0) return;
    termed = termed || term;
    nanosleep(&rest, NULL);
  }
}

/* ---- the guard */

/* Out of reach of what ends the launcher, and in nobody's way: a group of its own, no files. */
static _Noreturn void be_guard(int from_launcher)
{
  char word = 0;
  int null = open("/dev/null", O_RDWR);

  setpgid(0, 0);
  prctl(PR_SET_NAME, "accel-guard");
  for (int fd = 0; fd <= 2 && null >= 0; fd++) dup2(null, fd);
  if (from_launcher != 3) dup2(from_launcher, 3);
  closefrom(4);
  while (read(3, &word, 1) < 0 && errno == EINTR) {}
  if (word != 'e') end_programs();
  _exit(0);
}

void ax_family_begin(void)
{
  struct timespec now;
  int pair[2];

  clock_gettime(CLOCK_MONOTONIC, &now);
  snprintf(mark, sizeof mark, NAME "=%d-%lld.%09ld", (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
  if (pipe2(pair, O_CLOEXEC) != 0) return; /* then there is none: only a killed launcher needs it */
  guard = fork();
  if (guard == 0) {
    close(pair[1]);
    be_guard(pair[0]);
  }
  close(pair[0]);
  guard_pipe = pair[1];
}

void ax_family_join(void)
{
  setenv(NAME, mark + sizeof NAME, 1); /* behind the '=' */
  if (guard_pipe >= 0) close(guard_pipe);
  guard_pipe = -1;
}

void ax_family_end(bool failed)
{
  if (failed) end_programs();
  if (guard_pipe >= 0) {
    (void)!write(guard_pipe, "e", 1);
    close(guard_pipe);
    while (guard > 0 && waitpid(guard, NULL, 0) < 0 && errno == EINTR) {}
  }
  guard_pipe = -1;
}
