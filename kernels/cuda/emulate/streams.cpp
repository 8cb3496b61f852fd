/* The emulated device's streams: what is queued, the order in which it runs, launches of kernels,
 * and the runtime's functions for streams and events.  See emulate.h. */
#include "runtime.h"

#include <chrono>
#include <stdlib.h>
#include <thread>
#include <unistd.h>
#include <vector>

static const unsigned MOST_THREADS = 1024;

static std::vector<ax_emulated_stream *> streams;
static unsigned schedule = ~0u;
static uint64_t draws;

static unsigned seed_of_schedule(void)
{
  if (schedule == ~0u) {
    const char *text = getenv("ACCEL_EMULATED_SCHEDULE");
    schedule = text ? (unsigned)atoi(text) : 0;
  }
  return schedule;
}

static unsigned draw(unsigned n) /* 0 .. n - 1 */
{
  draws = draws * 6364136223846793005u + 1442695040888963407u + schedule;
  return (unsigned)(draws >> 33) % n;
}

/* Runs steps up to `until`; returns false when one of them waits for another process. */
static bool advance(ax_emulated_stream *s, uint64_t until)
{
  while (s->done < until) {
    /* the step stays in the queue until it has ended: references into a deque survive a push */
    ax_emulated_step &next = s->queue.front();
    bool over = true;
    if (next.other) over = advance(next.other, next.until);
    else if (next.poll) ax_emulate_with_memory([&]() { over = next.poll(); });
    else ax_emulate_with_memory(next.work);
    if (!over) return false;
    s->queue.pop_front();
    s->done++;
  }
  return true;
}

/* Continues steps that wait for other processes. */
static void go_on(void)
{
  for (size_t k = 0; k < streams.size(); k++)
    if (streams[k]->done < streams[k]->last_poll) advance(streams[k], streams[k]->last_poll);
}

void ax_emulate_run_until(ax_emulated_stream *s, uint64_t until)
{
  while (!advance(s, until)) {
    go_on();
    usleep(50);
  }
}

void ax_emulate_run_all(void)
{
  for (size_t k = 0; k < streams.size(); k++) ax_emulate_run_until(streams[k], streams[k]->queued);
}

/* Like a device, works while the host is busy elsewhere: another process may wait for what is
 * queued here. */
struct progress {
  std::thread thread;
  bool started = false, stop = false;
  void start()
  {
    if (started) return;
    started = true;
    thread = std::thread([this]() {
      for (;; usleep(200)) {
        ax_emulate_holding held(ax_emulate_lock);
        if (stop) return;
        go_on();
      }
    });
  }
  ~progress()
  {
    if (!started) return;
    if (ax_emulate_forked()) {
      thread.detach();
      return;
    }
    {
      ax_emulate_holding held(ax_emulate_lock);
      stop = true;
    }
    thread.join();
  }
};
/* Made when first needed, so that it ends before what it works on does. */
static progress &the_progress(void)
{
  static progress p;
  return p;
}

ax_emulated_stream *ax_emulate_default_stream(void)
{
  static ax_emulated_stream *s;
  if (!s) streams.push_back(s = new ax_emulated_stream());
  return s;
}

static void ax_emulate_queue(ax_emulated_stream *s, ax_emulated_step next)
{
  const unsigned seed = seed_of_schedule();
  if (!s) s = ax_emulate_default_stream();
  s->queue.push_back(std::move(next));
  s->queued++;
  if (seed == 0 || (seed == 2 && s->first) || (seed == 3 && !s->first)) advance(s, s->queued);
  else if (seed > 3)
    for (unsigned n = draw(4); n > 0; n--) {
      ax_emulated_stream *lucky = streams[draw((unsigned)streams.size())];
      if (lucky->done < lucky->queued) advance(lucky, lucky->done + 1);
    }
}

/* Everything queued in a stream passes here; waits for events pass through ask itself. */
void ax_emulate_enqueue(cudaStream_t stream, std::function<void()> work)
{
  if (ax_emulate_capturing(stream)) ax_emulate_captured(stream, std::move(work));
  else ax_emulate_queue(stream, ax_emulated_step{ std::move(work), NULL, 0, nullptr });
}

/* A launch, and a stream's wait, blocks while $ACCEL_EMULATED_QUEUE steps of its stream have not
 * run, as a driver's does from some thousand on; without it, none does. */
static void wait_for_room(cudaStream_t stream)
{
  static const char *const text = getenv("ACCEL_EMULATED_QUEUE");
  static const size_t most = text ? (size_t)atoi(text) : 0;

  for (; most && !ax_emulate_forked(); usleep(100)) {
    ax_emulate_holding held(ax_emulate_lock);
    ax_emulated_stream *s = stream ? stream : ax_emulate_default_stream();
    if (ax_emulate_lasting || s->queue.size() < most) return;
    advance(s, s->queued);
    go_on();
  }
}

static const char *run_kernel(const char *what, dim3 grid, dim3 block, const std::function<void()> &kernel)
{
  if (ax_emulate_mode(AX_EMULATED_GUARD)) ax_emulate_catch_faults();
  ax_emulate_launched(what);
  return ax_emulate_blocks(grid, block, kernel);
}

const char *ax_emulate(const char *what, cudaStream_t stream, dim3 grid, dim3 block,
                       std::function<void()> kernel)
{
  static long *const calls = &ax_emulate_counts()["launch"];
  static const char *wrong; /* from a kernel that ran at once */
  const uint64_t threads = (uint64_t)block.x * block.y * block.z;

  if (ax_emulate_forked()) return "used in the child of a process that had used CUDA";
  wait_for_room(stream);
  ax_emulate_holding held(ax_emulate_lock);
  ++*calls;
  if (ax_emulate_lasting) return ax_emulate_trouble.c_str();
  if (threads < 1 || threads > MOST_THREADS || block.z > 64) return "a block has 1 to 1024 threads";
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return "invalid configuration argument";
  if (ax_emulate_spoiled(stream)) return "the capture of its stream was invalidated";
  if (seed_of_schedule() == 0 && !ax_emulate_capturing(stream) &&
      (stream ? stream : ax_emulate_default_stream())->queue.empty()) {
    wrong = NULL;
    ax_emulate_enqueue(stream, [&]() { wrong = run_kernel(what, grid, block, kernel); });
    return wrong;
  }
  ax_emulate_enqueue(stream, [name = std::string(what), grid, block, kernel = std::move(kernel)]() {
    const char *problem = run_kernel(name.c_str(), grid, block, kernel);
    if (problem) ax_emulate_failed((name + ": " + problem).c_str());
  });
  return NULL;
}

/* For specs. */
extern "C" __attribute__((visibility("default"))) void ax_emulated_schedule(unsigned seed)
{
  ax_emulate_holding held(ax_emulate_lock);
  ax_emulate_run_all();
  schedule = seed;
  draws = seed;
}

/* For specs: a kernel in the computing stream of the thread's device that ends in so many
 * seconds. */
extern "C" __attribute__((visibility("default"))) void ax_emulated_busy(double seconds)
{
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  cudaStream_t stream = NULL;
  {
    ax_emulate_holding held(ax_emulate_lock);
    for (ax_emulated_stream *s : streams)
      if (s->first && s->device == ax_emulate_device) stream = s;
  }
  ax_emulate_library_poll(stream,
                          [end]() { return [end]() { return std::chrono::steady_clock::now() >= end; }; });
}

/* ---- for stand-ins of libraries */

cudaError_t ax_emulate_library_poll(cudaStream_t stream, std::function<std::function<bool()>()> make)
{
  {
    ax_emulate_holding held(ax_emulate_lock);
    if (!stream) stream = ax_emulate_default_stream();
    if (ax_emulate_capturing(stream)) {
      ax_emulate_captured_poll(stream, std::move(make));
      return ax_emulate_lasting;
    }
  }
  std::function<bool()> work = make(); /* it may block */
  ax_emulate_holding held(ax_emulate_lock);
  stream->last_poll = stream->queued + 1;
  ax_emulate_queue(stream, ax_emulated_step{ nullptr, NULL, 0, std::move(work) });
  the_progress().start();
  return ax_emulate_lasting;
}

cudaError_t ax_emulate_library_work(cudaStream_t stream, std::function<void()> work)
{
  ax_emulate_holding held(ax_emulate_lock);
  ax_emulate_enqueue(stream, std::move(work));
  return ax_emulate_lasting;
}

/* ---- the runtime's functions */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  CALLED();
  ax_emulate_context();
  bool first = true;
  for (ax_emulated_stream *other : streams) first = first && other->device != ax_emulate_device;
  streams.push_back(*s = new ax_emulated_stream{ ax_emulate_device, first, 0, 0, {}, 0 });
  return cudaSuccess;
}

/* what is queued runs; events may still name it, so its record stays */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  ax_emulate_run_until(s, s->queued);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  if (!s) s = ax_emulate_default_stream();
  ax_emulate_run_until(s, s->queued);
  return ax_emulate_lasting;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  if (!s) s = ax_emulate_default_stream();
  if (s->done == s->queued) return ax_emulate_lasting;
  advance(s, s->done + 1); /* time passes */
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
  wait_for_room(s);
  CALLED();
  cudaError_t captured;
  if (ax_emulate_event_waited(s, e, !e->stream, &captured)) return captured;
  if (e->stream && e->stream->done < e->at && e->stream != s)
    ax_emulate_queue(s, ax_emulated_step{ nullptr, e->stream, e->at, nullptr });
  return ax_emulate_lasting;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
  CALLED();
  ax_emulate_context();
  *e = new ax_emulated_event{ NULL, 0 };
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
  CALLED();
  ax_emulate_event_gone(e);
  delete e;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
  CALLED();
  if (const cudaError_t spoiled = ax_emulate_spoiled(s)) return spoiled;
  if (ax_emulate_event_recorded(e, s)) return cudaSuccess;
  if (!s) s = ax_emulate_default_stream();
  *e = ax_emulated_event{ s, s->queued };
  return ax_emulate_lasting;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
  CALLED();
  if (const cudaError_t captured = ax_emulate_event_queried(e)) return captured;
  if (!e->stream || e->stream->done >= e->at) return ax_emulate_lasting;
  advance(e->stream, e->stream->done + 1); /* time passes */
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  CALLED();
  if (const cudaError_t captured = ax_emulate_event_queried(e)) return captured;
  if (e->stream) ax_emulate_run_until(e->stream, e->at);
  return ax_emulate_lasting;
}
