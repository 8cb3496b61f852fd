-- The system's calls that specs make to start, watch and time processes.
local ffi = require "ffi"

ffi.cdef [[
  typedef struct { long seconds, nanoseconds; } spec_time;
  int fork(void);
  int getpid(void);
  int execv(const char *path, char *const *argv);
  int waitpid(int pid, int *status, int options);
  int kill(int pid, int sig);
  int usleep(unsigned microseconds);
  int open(const char *path, int flags, ...);
  int dup2(int from, int to);
  int pipe(int *ends);
  int pipe2(int *ends, int flags);
  int close(int fd);
  int setpgid(int pid, int group);
  void (*signal(int sig, void (*handler)(int)))(int);
  void _exit(int status);
  int setenv(const char *name, const char *value, int overwrite);
  int clock_gettime(int clock, spec_time *out);
]]

return ffi.C
