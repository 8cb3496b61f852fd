/* Bytes that kernels move between the device's memory and its processors.
 *
 * In libax_cuda_traffic.so the kernels are compiled with -fsanitize=thread, so that each access to
 * memory calls one of the functions at the end of this file, which stand for the sanitizer's
 * library.  A kernel's sectors of 32 bytes that are read, and those that are written, count once a
 * launch: what reaches the memory when the caches hold everything until the kernel ends, and
 * nothing longer.  A sector that the kernel itself has written before is not read from memory.
 * Beside the bytes stands how often a thread wrote: 16 bytes at once are a quarter of the writes of
 * 4 bytes each.  Libraries' calls and the runtime's copies say what they move. */
#include "emulate.h"

#include <map>
#include <stdio.h>
#include <string>
#include <sys/mman.h>

struct moved {
  long launches, writes;
  double read, written, accessed;
};
static std::map<std::string, moved> totals;
static moved *now;
static uint32_t launch;

void ax_emulate_moved(const char *what, size_t read, size_t written)
{
  moved &m = totals[what];
  m.launches++;
  m.read += (double)read;
  m.written += (double)written;
}

void ax_emulate_launched(const char *what)
{
  ax_emulate_moved(what, 0, 0);
  now = &totals[what];
  launch++;
}

extern "C" __attribute__((visibility("default"))) const char *ax_emulated_traffic(void)
{
  static std::string text;
  char line[200];
  text.clear();
  for (const auto &each : totals) {
    snprintf(line, sizeof line, "%s\t%ld\t%.0f\t%.0f\t%.0f\t%ld\n", each.first.c_str(), each.second.launches,
             each.second.read, each.second.written, each.second.accessed, each.second.writes);
    text += line;
  }
  totals.clear();
  now = NULL;
  return text.c_str();
}

/* With ThreadSanitizer itself (MODE=tsan) nothing is counted: these functions would take its place,
 * and it would see no access. */
#ifndef __SANITIZE_THREAD__
enum { READ, WRITTEN };
static uint32_t *last[2]; /* of each sector, the last launch that read it, and that wrote it */
static const size_t SECTOR = 32;

static bool made_tables(void)
{
  for (int k = 0; k < 2 && !last[k]; k++) {
    void *table = mmap(NULL, AX_EMULATED_BYTES / SECTOR * sizeof *last[k], PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) return false;
    last[k] = (uint32_t *)table;
  }
  return true;
}

static void touch(const void *p, size_t bytes, int way)
{
  const size_t at = (size_t)((const char *)p - ax_emulate_memory);
  if (!ax_emulate_memory || at >= AX_EMULATED_BYTES || !now || !ax_emulate_running() || !made_tables())
    return;
  now->accessed += (double)bytes;
  if (way == WRITTEN) now->writes++;
  for (size_t s = at / SECTOR; s <= (at + bytes - 1) / SECTOR; s++) {
    if (last[way][s] == launch || (way == READ && last[WRITTEN][s] == launch)) continue;
    last[way][s] = launch;
    (way == READ ? now->read : now->written) += (double)SECTOR;
  }
}

/* ---- what the compiler calls */

#define ACCESS(n) \
  extern "C" void __tsan_read##n(void *p) { touch(p, n, READ); } \
  extern "C" void __tsan_write##n(void *p) { touch(p, n, WRITTEN); }
#define UNALIGNED(n) \
  extern "C" void __tsan_unaligned_read##n(void *p) { touch(p, n, READ); } \
  extern "C" void __tsan_unaligned_write##n(void *p) { touch(p, n, WRITTEN); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)
extern "C" void __tsan_read_range(void *p, size_t n) { touch(p, n, READ); }
extern "C" void __tsan_write_range(void *p, size_t n) { touch(p, n, WRITTEN); }
extern "C" void __tsan_vptr_update(void **, void *) {}
extern "C" void __tsan_vptr_read(void **) {}
extern "C" void __tsan_init(void) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void) {}

/* std::atomic in the host's code */
#define ATOMIC(bits, T) \
  extern "C" T __tsan_atomic##bits##_load(const volatile T *p, int) { return __atomic_load_n(p, 5); } \
  extern "C" void __tsan_atomic##bits##_store(volatile T *p, T v, int) { __atomic_store_n(p, v, 5); } \
  extern "C" T __tsan_atomic##bits##_exchange(volatile T *p, T v, int) \
  { \
    return __atomic_exchange_n(p, v, 5); \
  } \
  extern "C" T __tsan_atomic##bits##_fetch_add(volatile T *p, T v, int) \
  { \
    return __atomic_fetch_add(p, v, 5); \
  } \
  extern "C" T __tsan_atomic##bits##_fetch_sub(volatile T *p, T v, int) \
  { \
    return __atomic_fetch_sub(p, v, 5); \
  } \
  extern "C" T __tsan_atomic##bits##_fetch_and(volatile T *p, T v, int) \
  { \
    return __atomic_fetch_and(p, v, 5); \
  } \
  extern "C" T __tsan_atomic##bits##_fetch_or(volatile T *p, T v, int) \
  { \
    return __atomic_fetch_or(p, v, 5); \
  } \
  extern "C" int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *old, T v, int, int) \
  { \
    return __atomic_compare_exchange_n(p, old, v, false, 5, 5); \
  } \
  extern "C" int __tsan_atomic##bits##_compare_exchange_weak(volatile T *p, T *old, T v, int, int) \
  { \
    return __atomic_compare_exchange_n(p, old, v, false, 5, 5); \
  }
ATOMIC(8, uint8_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
#endif
