/* Storages: counted device bytes. */
#include "core/core.h"
#include "core/device/meta.h"
#include "core/memory/lasting.h"

static void release_cpu(ax_storage *s) { ax_free(s->data, s->bytes); }
static void release_lasting(ax_storage *s) { ax_free_lasting(s->data, s->bytes); }
static void release_pinned(ax_storage *s)
{
  ((const ax_device_memory *)s->owner)->pinned_free(s->data, s->bytes);
}

static inline void track(ax_storage *s)
{
  if (__builtin_expect(s->bytes >= AX_MEMORY_TRACKED, 0)) ax_memory_track(s);
}

ax_status ax_storage_wrap(void *data, size_t bytes, void (*release)(ax_storage *), void *owner,
                          ax_storage **out)
{
  ax_storage *s = ax_spare_new(sizeof *s);
  *out = s;
  if (!s) return AX_ENOMEM;
  *s = (ax_storage){
    .refs = 1, .data = data, .bytes = bytes, .release = release, .owner = owner, .version = { .refs = -1 }
  };
  return AX_OK;
}

static void release_device(ax_storage *s)
{
  ((const ax_device_memory *)s->owner)->release(s->device.index, s->data, s->bytes);
}

ax_status ax_storage_adopt(ax_device device, const ax_device_memory *memory, void *data, size_t bytes,
                           ax_storage **out)
{
  const ax_status st = ax_storage_wrap(data, bytes, release_device, (void *)memory, out);
  if (st == AX_OK) {
    (*out)->device = device;
    track(*out);
  } else memory->release(device.index, data, bytes);
  return st;
}

/* Collections follow the size of the device (bind/memory.c). */
static void note_device(ax_device device, const ax_backend *backend)
{
  static _Thread_local uint64_t seen;
  ax_memory_stats stats = { 0 };
  if (device.index > 63 || seen >> device.index & 1) return;
  seen |= UINT64_C(1) << device.index;
  backend->memory->stats(device.index, &stats);
  ax_memory_note_device(stats.limit_bytes);
}

static ax_status new_on_device(ax_device device, size_t bytes, ax_storage **out)
{
  const ax_backend *backend;
  void *data;
  ax_status st;

  if (device.kind == AX_META) {
    if ((st = ax_storage_wrap(NULL, bytes, NULL, NULL, out)) == AX_OK) (*out)->device = device;
    return st;
  }
  st = ax_backend_of(device, &backend);
  if (st != AX_OK || (st = backend->memory->alloc(device.index, bytes, &data)) != AX_OK) return st;
  note_device(device, backend);
  return ax_storage_adopt(device, backend->memory, data, bytes, out);
}

ax_status ax_storage_new(ax_device device, size_t bytes, ax_storage **out)
{
  bool zeros;
  return ax_storage_new_fresh(device, bytes, &zeros, out);
}

ax_status ax_storage_new_fresh(ax_device device, size_t bytes, bool *zeros, ax_storage **out)
{
  ax_status st;
  void *data;

  *out = NULL;
  *zeros = false;
  if (device.kind != AX_CPU) return new_on_device(device, bytes, out);
  if ((st = ax_alloc_fresh(bytes, zeros, &data)) != AX_OK) return st;
  if ((st = ax_storage_wrap(data, bytes, release_cpu, NULL, out)) != AX_OK) ax_free(data, bytes);
  else track(*out);
  return st;
}

ax_status ax_storage_new_lasting(ax_device device, size_t bytes, bool *zeros, ax_storage **out)
{
  ax_status st;
  void *data;

  if (device.kind != AX_CPU) return ax_storage_new_fresh(device, bytes, zeros, out);
  *out = NULL;
  if ((st = ax_alloc_lasting(bytes, zeros, &data)) != AX_OK) return st;
  if ((st = ax_storage_wrap(data, bytes, release_lasting, NULL, out)) != AX_OK) ax_free_lasting(data, bytes);
  else track(*out);
  return st;
}

ax_status ax_storage_new_pinned(size_t bytes, ax_storage **out)
{
  const ax_backend *backend;
  void *data;
  ax_status st;

  *out = NULL;
  if ((st = ax_backend_of((ax_device){ AX_CUDA, 0 }, &backend)) != AX_OK) return st;
  if (!backend->memory->pinned_new)
    return ax_fail(AX_ENOIMPL, "the backend '%s' has no pinned memory", backend->name);
  if ((st = backend->memory->pinned_new(bytes, &data)) != AX_OK) return st;
  if ((st = ax_storage_wrap(data, bytes, release_pinned, (void *)backend->memory, out)) != AX_OK)
    backend->memory->pinned_free(data, bytes);
  else track(*out);
  return st;
}

void ax_storage_empty(ax_storage *s)
{
  if (s->group) ax_memory_untrack(s);
  if (s->release) s->release(s);
  s->data = s->owner = NULL;
  s->release = NULL;
  s->group = 0;
}

void ax_storage_trade(ax_storage *a, ax_storage *b)
{
  const ax_storage former = *a;

  a->data = b->data, a->release = b->release, a->owner = b->owner, a->group = b->group;
  b->data = former.data, b->release = former.release, b->owner = former.owner, b->group = former.group;
}

bool ax_storage_is_pinned(const ax_storage *s) { return s->release == release_pinned; }

ax_storage *ax_storage_retain(ax_storage *s)
{
  __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
  return s;
}

void ax_storage_release(ax_storage *s)
{
  if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (__builtin_expect(s->claims != NULL, 0)) ax_claims_drop(s);
  if (__builtin_expect(s->group, 0)) ax_memory_untrack(s);
  if (s->release) s->release(s);
  ax_spare_free(s, sizeof *s);
}
