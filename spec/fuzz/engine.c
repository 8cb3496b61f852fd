/* engine.c: what libFuzzer calls.  FUZZ_TARGET in the environment names the target.
 *
 * The fuzzer's build maps no files: their bytes are copied into blocks of their exact size, so that
 * the sanitizer sees a read beyond the end of a file. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sanitizer/lsan_interface.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEAKS_EVERY = 4096, PLACES = 1 << 15, MAPPED = 64 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

/* libFuzzer reads these as it reads the counters of C's edges. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[PLACES];

static void count(uint32_t place)
{
  uint8_t *at = &counters[place % PLACES];
  if (*at < 255) ++*at;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
  const char *name = getenv("FUZZ_TARGET");

  if (!name) {
    fputs("fuzz: FUZZ_TARGET names no target\n", stderr);
    exit(2);
  }
  fuzz_count = count;
  fuzz_begin(name);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static unsigned runs;

  fuzz_one(data, size);
  if (++runs % LEAKS_EVERY == 0 && __lsan_do_recoverable_leak_check() != 0)
    fuzz_violation("memory leaks: see the report above; one of the last %d inputs", LEAKS_EVERY);
  return 0;
}

/* One mutation in four stays as it is: what the repair would hide is an input, too. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
  size = LLVMFuzzerMutate(data, size, most);
  return seed % 4 ? fuzz_repair(data, size, most) : size;
}

/* ---- waits that another program would make long */

int __real_poll(struct pollfd *list, nfds_t n, int milliseconds);
int __wrap_poll(struct pollfd *list, nfds_t n, int milliseconds);
int __real_usleep(useconds_t us);
int __wrap_usleep(useconds_t us);

int __wrap_poll(struct pollfd *list, nfds_t n, int milliseconds)
{
  return __real_poll(list, n, milliseconds > 5 ? 5 : milliseconds);
}

int __wrap_usleep(useconds_t us) { return __real_usleep(us > 1000 ? 1000 : us); }

/* ---- files in blocks of their size */

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t n);

static void *blocks[MAPPED];

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
  int i;

  if (fd < 0 || prot != PROT_READ) return __real_mmap(at, n, prot, flags, fd, offset);
  for (i = 0; i < MAPPED && blocks[i]; i++) {}
  if (i == MAPPED || !(blocks[i] = malloc(n))) return MAP_FAILED;
  if (pread(fd, blocks[i], n, offset) != (ssize_t)n) memset(blocks[i], 0, n);
  return blocks[i];
}

int __wrap_munmap(void *at, size_t n)
{
  for (int i = 0; at && i < MAPPED; i++)
    if (blocks[i] == at) {
      free(at);
      blocks[i] = NULL;
      return 0;
    }
  return __real_munmap(at, n);
}
