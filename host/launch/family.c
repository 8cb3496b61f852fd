/* family.c: ends the programs that the script started (io.popen, os.execute) when a run is killed.
 *
 * Every program that a rank starts inherits an environment variable whose value is unique to the
 * run.  When a run fails, the launcher searches /proc for it and ends the processes that have it.
 * Parents and process groups would not identify them: the children of a killed rank get another
 * parent at once.  A guard, a process that only waits for the end of a socket, does the search when
 * the launcher itself is killed.
 *
 * A run of one process has no launcher.  It gets a mark and a guard with the first program that its
 * script starts.
 *
 * A run that ends well leaves its programs alone, as a shell does.  A program started by `env -u
 * ACCEL_RUN_ID program` is always left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glibc.h"
#include "launch.h"
#include "plugin.h"

#define NAME "ACCEL_RUN_ID"
#define LOOK_NS 20000000 /* between two searches */
#define TERM_AFTER 0.3   /* seconds; most programs end by themselves when their pipe closes */
#define KILL_AFTER 0.6
#define GIVE_UP_AFTER 5.0 /* a process that SIGKILL does not end hangs in the kernel */

static char mark[64];         /* "ACCEL_RUN_ID=..." */
static int guard_socket = -1; /* a socket, because a write to a pipe without a reader is a SIGPIPE */
static pid_t guard;

/* ---- finding the programs */

/* Whether a process has the mark in its environment, which may be longer than the buffer.  *empty:
 * it shows none. */
static bool has_mark(const char *pid, bool *empty)
{
  char path[64], text[4096 + sizeof mark];
  size_t kept = 0;
  const size_t n = strlen(mark) + 1; /* with the NUL that ends a variable */
  ssize_t k;
  bool found = false;

  *empty = false;
  snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  *empty = true;
  while (!found && (k = read(fd, text + kept, 4096)) > 0) {
    const size_t all = kept + (size_t)k;
    *empty = false;
    found = memmem(text, all, mark, n) != NULL;
    kept = all < n ? all : n - 1;
    memmove(text, text + all - kept, kept);
  }
  close(fd);
  return found;
}

/* Whether a process is on its way into a program (execve), and shows neither arguments nor an
 * environment.  Kernel threads and processes that are ending have none for good. */
static bool amid_exec(const char *pid)
{
  enum { ENDING = 0x4, KERNEL_THREAD = 0x200000 }; /* the kernel's PF_EXITING and PF_KTHREAD */
  char path[64], text[512], state;
  unsigned flags;
  ssize_t n;
  int fd;

  snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
  if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return false;
  n = read(fd, text, 1);
  close(fd);
  if (n != 0) return false;
  snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
  if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return false;
  n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n > 0 ? n : 0] = 0;
  const char *const name_end = strrchr(text, ')');
  return name_end && sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) == 2 &&
         state != 'Z' && state != 'X' && !(flags & (ENDING | KERNEL_THREAD));
}

/* Signals a process with the mark, and says whether it may have one.  The descriptor of the process
 * guarantees that its number is not reused between the check and the signal. */
static bool signal_if_ours(const char *pid, int sig)
{
  const int process = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
  bool empty, maybe = false;

  if (process < 0 && errno != ENOSYS) return false;
  bool ours = has_mark(pid, &empty);
  if (empty) { /* it may have come into its program since */
    maybe = amid_exec(pid);
    ours = !maybe && has_mark(pid, &empty);
  }
  if (ours && sig)
    process >= 0 ? syscall(SYS_pidfd_send_signal, process, sig, NULL, 0) : kill(atoi(pid), sig);
  if (process >= 0) close(process);
  return ours || maybe;
}

/* Sends `sig` (0: none) to the run's programs; returns how many there are. */
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

static double seconds(void) { return (double)ax_monotonic_ns() * 1e-9; }

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

/* A process group of its own, no open files and no folder: signals to the launcher do not reach the
 * guard, and it holds nothing open. */
static _Noreturn void be_guard(int from_launcher)
{
  char word = 0;
  int null = open("/dev/null", O_RDWR);

  setpgid(0, 0);
  prctl(PR_SET_NAME, AX_GUARD_NAME);
  for (int fd = 0; fd <= 2 && null >= 0; fd++) dup2(null, fd);
  if (from_launcher != 3) dup2(from_launcher, 3);
  closefrom(4);
  (void)!chdir("/");
  while (read(3, &word, 1) < 0 && errno == EINTR) {}
  if (word != 'e') end_programs();
  _exit(0);
}

static void make_mark(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  snprintf(mark, sizeof mark, NAME "=%d-%lld.%09ld", (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
}

void ax_family_begin(void)
{
  int pair[2];

  make_mark();
  /* without a guard: it is only needed when the launcher is killed */
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  guard = fork();
  if (guard == 0) {
    close(pair[1]);
    be_guard(pair[0]);
  }
  close(pair[0]);
  guard_socket = pair[1];
}

void ax_family_join(void)
{
  setenv(NAME, mark + sizeof NAME, 1); /* behind the '=' */
  if (guard_socket >= 0) close(guard_socket);
  guard_socket = -1;
}

void ax_family_end(bool failed)
{
  if (failed) end_programs();
  if (guard_socket >= 0) {
    (void)!send(guard_socket, "e", 1, MSG_NOSIGNAL); /* the guard may have been killed */
    close(guard_socket);
    while (guard > 0 && waitpid(guard, NULL, 0) < 0 && errno == EINTR) {}
  }
  guard_socket = -1;
}

/* ---- a run without a launcher */

static pid_t alone; /* the process of such a run; its workers have other numbers */

void ax_family_alone(void) { alone = getpid(); }

void ax_family_guard(const char *mark_of_run)
{
  snprintf(mark, sizeof mark, "%s", mark_of_run);
  be_guard(3);
}

static void leave_alone(void)
{
  if (getpid() == alone) ax_family_end(false);
}

/* The environment without the mark of a run around this one, which would end the guard as well. */
static char **unmarked_environment(void)
{
  size_t n = 0, kept = 0;
  char **list;

  while (environ[n]) n++;
  if (!(list = malloc(sizeof *list * (n + 1)))) return NULL;
  for (size_t k = 0; k < n; k++)
    if (strncmp(environ[k], NAME "=", sizeof NAME) != 0) list[kept++] = environ[k];
  list[kept] = NULL;
  return list;
}

/* Starts the guard as a program of its own.  A fork would keep a copy of every page that the run
 * writes from then on. */
static bool spawn_guard(int from_run)
{
  char name[] = AX_GUARD_NAME, *argv[] = { name, mark, NULL }, **env = unmarked_environment();
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  bool started;

  if (!env) return false;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, from_run, 3);
  posix_spawnattr_init(&how);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP); /* group 0: the guard's own */
  started = posix_spawn(&guard, "/proc/self/exe", &files, &how, argv, env) == 0;
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  free(env);
  return started;
}

/* Called before the script starts a program.  The first one gets the run its guard. */
static void before_program(void)
{
  static bool tried;
  int pair[2];

  if (tried || alone != getpid()) return;
  tried = true;
  make_mark();
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  if (spawn_guard(pair[0])) {
    guard_socket = pair[1];
    setenv(NAME, mark + sizeof NAME, 1);
    atexit(leave_alone);
  } else close(pair[1]);
  close(pair[0]);
}

/* The linker puts these in the places of popen and system (--wrap), which io.popen and os.execute
 * call. */
FILE *__real_popen(const char *command, const char *mode);
FILE *__wrap_popen(const char *command, const char *mode);
int __real_system(const char *command);
int __wrap_system(const char *command);

FILE *__wrap_popen(const char *command, const char *mode)
{
  before_program();
  return __real_popen(command, mode);
}

int __wrap_system(const char *command)
{
  if (command) before_program();
  return __real_system(command);
}
