/* ends.c: ends of a process that no Lua error announces: LuaJIT gives up, or the C stack is full.
 * Both become a report like that of an error.  Memory may be exhausted: nothing here allocates. */
#define _GNU_SOURCE
#include "ax.h"
#include "bind/where.h"
#include "ends.h"
#include "feed.h"
#include "settings/plan.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define GUARD ((uintptr_t)1 << 20) /* below the stack, where the system maps nothing else */
#define NEAR ((uintptr_t)64 << 10) /* above the stack's end: a full one faults there, too */

static lua_State *state;
static ax_failure_fn report;
static uintptr_t stack_low; /* the lowest address of the main thread's stack */
static size_t stack_size;

/* ---- limits */

static void add_limit(char *buf, size_t size, int which, const char *what)
{
  const size_t n = strlen(buf);
  ax_size_buffer most;
  struct rlimit l;

  if (getrlimit(which, &l) != 0 || l.rlim_cur == RLIM_INFINITY) return;
  snprintf(buf + n, size - n, "%s%s of %s", n ? ", " : "", ax_size_text((int64_t)l.rlim_cur, most), what);
}

bool ax_ends_limits(char *buf, size_t size)
{
  buf[0] = '\0';
  add_limit(buf, size, RLIMIT_DATA, "data (ulimit -d)");
  add_limit(buf, size, RLIMIT_AS, "address space (ulimit -v)");
  return buf[0] != '\0';
}

/* ---- LuaJIT gives up */

static _Noreturn void end(const char *text, const char *where)
{
  if (report && !ax_worker_inside()) {
    report(text, where);
  } else {
    ax_print(stderr, "accel-run: %s%s%s\n", where, *where ? ": " : "", text);
    fflush(NULL);
  }
  _exit(AX_EXIT_FAILED);
}

/* LuaJIT makes the memory of compiled code writable for each new piece.  The system counts it as
 * data then, and may refuse; LuaJIT calls this and ends the process. */
static int panic(lua_State *L)
{
  const char *error = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is no text";
  const bool compiling = strstr(error, "runtime code generation failed") != NULL;
  char where[256], limits[160], text[640];

  if (!ax_ends_limits(limits, sizeof limits))
    snprintf(limits, sizeof limits, "%s", compiling ? "the system refuses it" : "no limit of memory is set");
  if (compiling)
    snprintf(text, sizeof text,
             "out of memory: LuaJIT could not make 4 MiB for compiled code writable (%s), and ends the "
             "process: raise the limit, have fewer or smaller tensors, or run without compiled code (-j off)",
             limits);
  else
    snprintf(text, sizeof text, "LuaJIT ends the process after '%s' outside of any call (%s)", error, limits);
  end(text, ax_lua_where(L, where, sizeof where));
}

/* ---- the C stack is full */

static bool is_full(uintptr_t at) { return at + GUARD >= stack_low && at < stack_low + NEAR; }

/* On a stack of its own.  Another fault, one of this function too, ends the process by the
 * signal. */
static void on_fault(int sig, siginfo_t *facts, void *context)
{
  const uintptr_t at = (uintptr_t)facts->si_addr;
  ax_size_buffer size;
  char where[256], text[400];
  int n;

  (void)context;
  if (facts->si_code <= 0 || !is_full(at) || ax_worker_inside()) {
    signal(sig, SIG_DFL);
    if (facts->si_code <= 0) raise(sig); /* it was sent: nothing will fault again */
    return;
  }
  snprintf(text, sizeof text,
           "C stack overflow (%s, ulimit -s): functions call each other without an end, by way of "
           "string.gsub, a coroutine, a metamethod or another function of C",
           ax_size_text((int64_t)stack_size, size));
  ax_lua_where(state, where, sizeof where);
  if (report) {
    report(text, where);
  } else { /* stdio may be locked where the fault was */
    char line[700];
    n = snprintf(line, sizeof line, "accel-run: %s%s%s\n", where, *where ? ": " : "", text);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) _exit(AX_EXIT_FAILED);
  }
  _exit(AX_EXIT_FAILED);
}

static bool find_stack(void)
{
  pthread_attr_t a;
  void *low;

  if (pthread_getattr_np(pthread_self(), &a) != 0) return false;
  const bool found = pthread_attr_getstack(&a, &low, &stack_size) == 0;
  stack_low = (uintptr_t)low;
  pthread_attr_destroy(&a);
  return found;
}

void ax_ends_watch(lua_State *L, ax_failure_fn failed)
{
  static _Alignas(64) char room[64 << 10];
  const stack_t other = { .ss_sp = room, .ss_size = sizeof room };
  struct sigaction former, ours = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

  state = L;
  report = failed;
  lua_atpanic(L, panic);
  if (sigaction(SIGSEGV, NULL, &former) != 0 || former.sa_handler != SIG_DFL) return; /* a sanitizer's */
  if (find_stack() && sigaltstack(&other, NULL) == 0) sigaction(SIGSEGV, &ours, NULL);
}
