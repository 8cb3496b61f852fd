/* What the files of the emulated runtime share: runtime.cpp (devices, errors, counts, modes),
 * memory.cpp and streams.cpp. */
#ifndef AX_EMULATE_RUNTIME_H
#define AX_EMULATE_RUNTIME_H

#include "emulate.h"

#include <deque>
#include <map>
#include <mutex>
#include <string>

enum { AX_EMULATED_DEVICES = 8 };
static const size_t AX_EMULATED_ARENA = AX_EMULATED_BYTES / AX_EMULATED_DEVICES; /* of each */
/* What a device says that it has: $ACCEL_EMULATED_GB, else its arena, which is all that there
 * is. */
size_t ax_emulate_total(void);

/* ---- runtime.cpp */

extern thread_local int ax_emulate_device;
/* A kernel failed after its launch: every later call returns this. */
extern cudaError_t ax_emulate_lasting;
extern std::string ax_emulate_trouble;

/* How often each function was called, and more, by name. */
std::map<std::string, long> &ax_emulate_counts(void);
/* A child of a process that used the device cannot use it. */
bool ax_emulate_forked(void);
/* CUDA makes a context, hundreds of megabytes of a real device, when a thread first chooses a
 * device or makes something on the one that it has. */
void ax_emulate_context(void);

/* Held while anything runs or is queued: work that waits for another process continues in a thread
 * of its own. */
extern std::recursive_mutex ax_emulate_lock;
typedef std::lock_guard<std::recursive_mutex> ax_emulate_holding;

/* Begins each of the runtime's functions. */
#define CALLED() \
  if (ax_emulate_forked()) return cudaErrorInitializationError; \
  ax_emulate_holding held(ax_emulate_lock); \
  static long *const calls = &ax_emulate_counts()[__func__]; \
  ++*calls

/* Whether `device` has peer access to the memory of `peer`. */
bool ax_emulate_reaches(int device, int peer);

/* ---- memory.cpp */

/* With guard pages, memory is open from its allocation to its end. */
void ax_emulate_with_memory(const std::function<void()> &work);
/* From here on, an access of a kernel to a page that is closed ends the kernel with a message. */
void ax_emulate_catch_faults(void);
/* ax_emulator's. */
bool ax_emulate_owns(const void *p, size_t bytes);

/* ---- streams.cpp */

struct ax_emulated_event;
struct ax_emulated_step {
  std::function<void()> work;
  ax_emulated_stream *other; /* not NULL: instead of working, waits until `other` has done `until` steps */
  uint64_t until;
  std::function<bool()> poll; /* instead of work: called until it returns true */
};
struct ax_emulated_stream {
  int device;
  bool first;
  uint64_t queued, done;
  std::deque<ax_emulated_step> queue;
  uint64_t last_poll; /* the number of the last step with a poll, counted from 1 */
};
struct ax_emulated_event {
  ax_emulated_stream *stream;
  uint64_t at;
};

ax_emulated_stream *ax_emulate_default_stream(void);
/* Everything queued in a stream passes here, in a capture too. */
void ax_emulate_enqueue(cudaStream_t stream, std::function<void()> work);
void ax_emulate_run_until(ax_emulated_stream *s, uint64_t until);
void ax_emulate_run_all(void);
/* ax_emulator's. */
cudaError_t ax_emulate_library_poll(cudaStream_t stream, std::function<std::function<bool()>()> make);
cudaError_t ax_emulate_library_work(cudaStream_t stream, std::function<void()> work);

#endif
