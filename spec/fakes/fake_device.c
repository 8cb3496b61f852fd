/* A CUDA backend without a GPU, for the specs: two devices whose memory the host cannot touch.
 *
 * Device memory is mapped without any access; a kernel opens it, lets the CPU plugin's kernel of
 * the same row run, and closes it again.  Whatever in the host reads or writes a device tensor
 * behind the backend's back therefore ends with SIGSEGV, as it would with a GPU, and what works
 * here is ready for one: moving, recording, casting, printing, optimizers.  ACCEL_CUDA_PLUGIN names
 * the built file. */
#define _GNU_SOURCE
#include "plugin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEVICES = 2, PAGE = 4096 };
static const size_t ARENA = (size_t)1 << 30;
static char *arena[DEVICES];
static struct {
  size_t used;
  int64_t live, peak, blocks, allocations, waits, uploads;
} state[DEVICES];

/* Freed blocks by size, handed out again first; few sizes occur in a test. */
typedef struct block {
  void *data;
  size_t bytes;
} block;
static struct {
  block list[4096];
  int n;
} spare[DEVICES];

static size_t rounded(size_t bytes) { return bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE; }

static ax_status no_room(int device, size_t bytes)
{
  char live[1400];
  ax_memory_report((ax_device){ AX_CUDA, (uint8_t)device }, NULL, live, sizeof live);
  return ax_fail(AX_ENOMEM, "cuda:%d: out of memory: %zu bytes asked for, %lld live of %zu%s", device, bytes,
                 (long long)state[device].live, ARENA, live);
}

static ax_status fake_alloc(int device, size_t bytes, void **out)
{
  const size_t size = rounded(bytes);

  *out = NULL;
  for (int k = 0; k < spare[device].n && !*out; k++)
    if (spare[device].list[k].bytes == size) {
      *out = spare[device].list[k].data;
      spare[device].list[k] = spare[device].list[--spare[device].n];
    }
  if (!*out) {
    if (size > ARENA - state[device].used) return no_room(device, bytes);
    *out = arena[device] + state[device].used;
    state[device].used += size;
  }
  state[device].live += (int64_t)size;
  state[device].blocks++;
  state[device].allocations++;
  if (state[device].live > state[device].peak) state[device].peak = state[device].live;
  return AX_OK;
}

static void fake_release(int device, void *data, size_t bytes)
{
  const size_t size = rounded(bytes);
  state[device].live -= (int64_t)size;
  state[device].blocks--;
  if (spare[device].n < 4096) spare[device].list[spare[device].n++] = (block){ data, size };
}

static void access_to(int prot)
{
  for (int d = 0; d < DEVICES; d++)
    if (state[d].used) mprotect(arena[d], state[d].used, prot);
}

static void open_memory(void) { access_to(PROT_READ | PROT_WRITE); }
static void close_memory(void) { access_to(PROT_NONE); }

static bool inside(ax_device d, const void *p)
{
  return d.kind == AX_CPU || ((const char *)p >= arena[d.index] && (const char *)p < arena[d.index] + ARENA);
}

static ax_status fake_copy(ax_device to, void *dst, ax_device from, const void *src, size_t bytes)
{
  if (!inside(to, dst) || !inside(from, src))
    return ax_fail(AX_EINVAL, "fake device: a copy of memory that is not the device's");
  if (from.kind == AX_CUDA && !ax_same_device(from, to)) state[from.index].waits++;
  if (from.kind == AX_CPU) state[to.index].uploads++;
  open_memory();
  memcpy(dst, src, bytes);
  close_memory();
  return AX_OK;
}

/* What is sent ahead has arrived at once; a ticket that was never given is an error all the
 * same. */
static uint64_t tickets;

static ax_status fake_send(int device, const void *src, size_t bytes, void **out, uint64_t *ticket)
{
  const ax_device here = { AX_CPU, 0 }, there = { AX_CUDA, (uint8_t)device };
  ax_status st = fake_alloc(device, bytes, out);
  if (st != AX_OK) return st;
  if ((st = fake_copy(there, *out, here, src, bytes)) != AX_OK) fake_release(device, *out, bytes);
  *ticket = ++tickets;
  return st;
}

static ax_status fake_arrive(int device, uint64_t ticket)
{
  return ticket <= tickets ? AX_OK
                           : ax_fail(AX_EINVAL, "fake device: nothing was sent with ticket %llu",
                                     (unsigned long long)ticket);
}

static ax_status fake_pinned_new(size_t bytes, void **out)
{
  *out = malloc(bytes ? bytes : 1);
  return *out ? AX_OK : ax_fail(AX_ENOMEM, "fake device: no memory to pin");
}

static void fake_pinned_free(void *p, size_t bytes) { free(p); }

static void fake_small(int device, ax_memory_small *out) { *out = (ax_memory_small){ 0 }; }

static int fake_count(void) { return DEVICES; }
static ax_status fake_synchronize(int device)
{
  state[device].waits++;
  return AX_OK;
}
static void fake_reset_peak(int device) { state[device].peak = state[device].live; }
static void fake_empty_cache(int device) {}

static void fake_stats(int device, ax_memory_stats *out)
{
  *out = (ax_memory_stats){ .live_bytes = state[device].live,
                            .peak_bytes = state[device].peak,
                            .limit_bytes = (int64_t)ARENA,
                            .live_blocks = state[device].blocks,
                            .allocations = state[device].allocations,
                            .waits = state[device].waits,
                            .uploads = state[device].uploads };
}

/* ---- kernels: the CPU's, with the memory open */

static const ax_backend *cpu;
static ax_kernel kernels[AX_OP_COUNT];

/* For specs: the next n kernels fail, as for lack of a workspace. */
static int failing;
AX_API void fake_device_fail(int n) { failing = n; }

static ax_status run(const ax_call *call)
{
  if (failing && failing--) return ax_fail(AX_ENOMEM, "fake device: no workspace");
  for (int k = 0; k < call->n_in; k++)
    if (call->in && call->in[k] &&
        (!ax_same_device(call->in[k]->device, call->out[0]->device) ||
         !inside(call->in[k]->device, ax_data(call->in[k]))))
      return ax_fail(AX_EINVAL, "%s: argument %d reached a kernel on another device", ax_ops[call->op].name,
                     k + 1);
  open_memory();
  const ax_status st = cpu->kernels[call->op](call);
  close_memory();
  return st;
}

static int get_threads(void) { return cpu->get_threads(); }
static void set_threads(int n) { cpu->set_threads(n); }
static const char *describe(void)
{
  return "no GPU: the CPU's kernels over memory that the host cannot touch";
}

static ax_status fake_optim(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                            const ax_hyper *h, const ax_optim_device_args *device_args)
{
  open_memory();
  const ax_status st = cpu->optim(d, kind, dtype, segs, n, h, device_args);
  close_memory();
  return st;
}

static ax_status fake_norm(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out)
{
  open_memory();
  const ax_status st = cpu->grads->norm(d, dtype, segs, n, p, out);
  close_memory();
  return st;
}

static ax_status fake_scale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor)
{
  open_memory();
  const ax_status st = cpu->grads->scale(d, dtype, segs, n, factor);
  close_memory();
  return st;
}

static ax_status fake_clamp(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit)
{
  open_memory();
  const ax_status st = cpu->grads->clamp(d, dtype, segs, n, limit);
  close_memory();
  return st;
}

static ax_status fake_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p,
                                double root, double *out)
{
  open_memory();
  const ax_status st = cpu->grads->norm_into(d, dtype, segs, n, p, root, out);
  close_memory();
  return st;
}

static ax_status fake_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                           const double *norm)
{
  open_memory();
  const ax_status st = cpu->grads->clip(d, dtype, segs, n, max_norm, norm);
  close_memory();
  return st;
}

static ax_status fake_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                              float *found)
{
  open_memory();
  const ax_status st = cpu->grads->unscale(d, dtype, segs, n, scale, found);
  close_memory();
  return st;
}

static ax_status fake_scale_update(ax_device d, double *s, const float *found, double growth, double backoff,
                                   int64_t interval)
{
  open_memory();
  const ax_status st = cpu->grads->scale_update(d, s, found, growth, backoff, interval);
  close_memory();
  return st;
}

AX_API const ax_backend *ax_backend_get(void);

const ax_backend *ax_backend_get(void)
{
  static const ax_device_memory memory = {
    .count = fake_count,
    .alloc = fake_alloc,
    .release = fake_release,
    .copy = fake_copy,
    .synchronize = fake_synchronize,
    .stats = fake_stats,
    .reset_peak = fake_reset_peak,
    .empty_cache = fake_empty_cache,
    .copy_later = fake_copy,
    .send = fake_send,
    .arrive = fake_arrive,
    .pinned_new = fake_pinned_new,
    .pinned_free = fake_pinned_free,
    .small = fake_small,
  };
  static const ax_gradient_passes grads = {
    .norm = fake_norm,
    .scale = fake_scale,
    .clamp = fake_clamp,
    .norm_into = fake_norm_into,
    .clip = fake_clip,
    .unscale = fake_unscale,
    .scale_update = fake_scale_update,
  };
  static ax_backend backend = {
    .abi = AX_INTERFACE,
    .name = "fake",
    .level = "fake",
    .kernels = kernels,
    .optim = fake_optim,
    .defers = true,
    .fuses_linear = true,
    .grads = &grads,
    .get_threads = get_threads,
    .set_threads = set_threads,
    .describe = describe,
    .memory = &memory,
  };
  const char *other = getenv("ACCEL_FAKE_INTERFACE"); /* as if it had been built against another host */
  if (other) backend.abi = (uint32_t)atoi(other);
  if (ax_backend_of((ax_device){ AX_CPU, 0 }, &cpu) != AX_OK) return NULL;
  backend.widens = cpu->widens;
  for (int d = 0; d < DEVICES; d++) {
    arena[d] = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena[d] == MAP_FAILED) {
      ax_fail(AX_ENOMEM, "fake device: no address space");
      return NULL;
    }
  }
  for (int op = 0; op < AX_OP_COUNT; op++)
    kernels[op] = cpu->kernels[op] && ax_ops[op].form != AX_FORM_CPU ? run : NULL;
  return &backend;
}
