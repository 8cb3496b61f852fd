/* glibc.h: what older versions of glibc lack; programs built on one run on all that are newer. */
#ifndef AX_GLIBC_H
#define AX_GLIBC_H

#include <features.h>

#if defined __GLIBC__ && !__GLIBC_PREREQ(2, 34)
#include <sys/syscall.h>
#include <unistd.h>

static inline void closefrom(int first)
{
#if defined SYS_close_range
  if (syscall(SYS_close_range, first, ~0u, 0) == 0) return;
#endif
  for (int fd = first, n = (int)sysconf(_SC_OPEN_MAX); fd < n; fd++) close(fd);
}
#endif

#if defined __GLIBC__ && !__GLIBC_PREREQ(2, 32)
#include <signal.h>

/* The numbers of most processors; elsewhere there is no name. */
static inline const char *sigabbrev_np(int sig)
{
  static const char *const names[32] = { NULL,     "HUP",  "INT",    "QUIT", "ILL",   "TRAP", "ABRT", "BUS",
                                         "FPE",    "KILL", "USR1",   "SEGV", "USR2",  "PIPE", "ALRM", "TERM",
                                         "STKFLT", "CHLD", "CONT",   "STOP", "TSTP",  "TTIN", "TTOU", "URG",
                                         "XCPU",   "XFSZ", "VTALRM", "PROF", "WINCH", "POLL", "PWR",  "SYS" };
  return SIGBUS == 7 && sig > 0 && sig < 32 ? names[sig] : NULL;
}
#endif

#endif
