/* dist/peers.c: memory that the other ranks of a machine can map.  See dist/peers.h.
 *
 * Each piece is an anonymous file in memory with a page in front that carries its number and,
 * later, the word that it is gone.  The others open it by way of /proc.  Its owner frees the pages
 * behind their backs; their mappings stay, empty, until they next map something.  So a rank that
 * comes late, out of a collective that failed, finds memory there, and never a hole.
 *
 * Freed memory is kept for the next that fits, within a bound: a layout whose gradients come and go
 * with each unit of a backward pass would otherwise take fresh pages each time, and each of them
 * costs a fault in every rank. */
#define _GNU_SOURCE
#include "core/dist/peers.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "core/dist/steps.h"
#include "core/memory/emptied.h"

#define NAME "accel gradients"
#define PAGE ((size_t)4096)
#define KEPT_MOST ((size_t)64 << 20) /* bytes of freed memory */

/* The first page of a file. */
typedef struct label {
  int32_t owner; /* its process */
  uint32_t number;
  _Atomic uint32_t gone;
} label;

/* One of this rank's. */
typedef struct area {
  struct area *next;
  label *label; /* the mapping begins with it */
  size_t bytes; /* of the mapping */
  char *data;
  size_t room;
  int fd;
  bool used;
} area;

/* Another rank's, as it is mapped here. */
typedef struct sight {
  struct sight *next;
  label *label;
  size_t bytes;
  int local;
  uint32_t number;
} sight;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the areas: tensors are freed on any thread */
static area *areas;
static sight *sights; /* of the rank's own thread */
static uint32_t last_number;

/* ---- this rank's */

static bool is_own(const area *a) { return a->label->owner == (int32_t)getpid(); }

static void give_pages_back(const area *a)
{
  atomic_store(&a->label->gone, 1);
  fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)PAGE, (off_t)(a->bytes - PAGE));
}

/* Takes it off the list, and frees it. */
static void free_area(area *a)
{
  area **at = &areas;

  while (*at != a) at = &(*at)->next;
  *at = a->next;
  if (is_own(a)) give_pages_back(a); /* a forked child has its pages from its parent */
  munmap(a->label, a->bytes);
  close(a->fd);
  ax_mfree(a);
}

/* Keeps `most` bytes of freed areas, the newest, and frees the older ones. */
static void keep(size_t most)
{
  size_t kept = 0;

  for (area *a = areas, *next; a; a = next) {
    next = a->next;
    if (!a->used && (kept += a->room) > most) free_area(a);
  }
}

static void keep_none(void)
{
  pthread_mutex_lock(&lock);
  keep(0);
  pthread_mutex_unlock(&lock);
}

static void release(ax_storage *s)
{
  area *const a = s->owner;

  pthread_mutex_lock(&lock);
  ax_memory_count_foreign(-(int64_t)a->room);
  a->used = false;
  if (!is_own(a)) free_area(a);
  else keep(KEPT_MOST);
  pthread_mutex_unlock(&lock);
}

static area *kept_area(size_t bytes)
{
  for (area *a = areas; a; a = a->next)
    if (!a->used && is_own(a) && a->room >= bytes && a->room - bytes <= bytes / 8) return a;
  return NULL;
}

/* Blocks begin some cache lines further into their pages each time: see memory/alloc.c. */
static area *new_area(size_t bytes)
{
  const size_t room = (bytes + PAGE - 1) / PAGE * PAGE, all = room + 2 * PAGE;
  const int fd = memfd_create(NAME, MFD_CLOEXEC);
  area *a = fd < 0 || ftruncate(fd, (off_t)all) != 0 ? NULL : ax_malloc(sizeof *a);
  void *map = a ? mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

  if (map == MAP_FAILED) {
    ax_mfree(a);
    if (fd >= 0) close(fd);
    return NULL;
  }
  ax_memory_on_empty_cache(keep_none);
  madvise(map, all, MADV_HUGEPAGE);
  *a = (area){ .next = areas, .label = map, .bytes = all, .room = room, .fd = fd };
  a->label->owner = (int32_t)getpid();
  a->label->number = ++last_number;
  a->data = (char *)map + PAGE + last_number % 12 * 320;
  return areas = a;
}

/* Is there room below the limit, if nothing is freed? */
static bool fits(size_t bytes)
{
  ax_memory_stats now;
  ax_memory_get(&now);
  return now.live_bytes + (int64_t)bytes <= now.limit_bytes;
}

static ax_status new_storage(size_t bytes, ax_storage **out)
{
  ax_status st = AX_OK;
  area *a;

  *out = NULL;
  pthread_mutex_lock(&lock);
  if ((a = kept_area(bytes))) memset(a->data, 0, bytes);
  else if (fits(bytes)) a = new_area(bytes);
  if (a && (st = ax_storage_wrap(a->data, bytes, release, a, out)) == AX_OK) {
    a->used = true;
    ax_memory_count_foreign((int64_t)a->room);
  }
  pthread_mutex_unlock(&lock);
  if (*out && bytes >= AX_MEMORY_TRACKED) ax_memory_track(*out);
  return st;
}

ax_status ax_peers_zeros(ax_dtype dtype, int64_t numel, ax_tensor **out)
{
  const size_t bytes = (size_t)numel * ax_dtype_size(dtype);
  const int64_t one = 1;
  ax_storage *s = NULL;
  ax_status st;

  *out = NULL;
  if (ax_shm.control && ax_shm.size > 1 && bytes >= AX_PULL_FROM) AX_TRY(new_storage(bytes, &s));
  st = s ? ax_tensor_over(s, dtype, 1, &numel, &one, 0, out) : AX_OK;
out:
  ax_storage_release(s);
  return st;
}

ax_place ax_peers_place(const void *p, size_t bytes)
{
  const char *const from = p;
  ax_place place = { .fd = -1 };

  pthread_mutex_lock(&lock);
  for (const area *a = areas; a; a = a->next)
    if (a->used && from >= a->data && from + bytes <= (const char *)a->label + a->bytes) {
      place = (ax_place){ a->fd, a->label->number, from - (const char *)a->label };
      break;
    }
  pthread_mutex_unlock(&lock);
  return place;
}

void ax_peers_forget(void)
{
  for (area *a = areas; a; a = a->next)
    mmap(a->label, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, a->fd, 0);
}

/* ---- the others' */

/* Frees mappings of areas that their owners have freed. */
static void forget_gone(void)
{
  for (sight **at = &sights; *at;) {
    sight *const s = *at;
    if (!atomic_load(&s->label->gone)) {
      at = &s->next;
      continue;
    }
    *at = s->next;
    munmap(s->label, s->bytes);
    ax_mfree(s);
  }
}

/* Is that such a file?  In a namespace of its own a rank has a number that others know as another
 * process, whose files nobody is to open. */
static bool is_area(const char *path)
{
  static const char name[] = "/memfd:" NAME;
  char target[sizeof name];
  return readlink(path, target, sizeof name - 1) == sizeof name - 1 &&
         memcmp(target, name, sizeof name - 1) == 0;
}

/* The file of that rank's memory, mapped; NULL: it cannot be. */
static label *open_file(int32_t process, const ax_place *place, size_t *bytes)
{
  char path[64];
  struct stat facts;
  label *l = MAP_FAILED;
  int fd;

  snprintf(path, sizeof path, "/proc/%d/fd/%d", process, place->fd);
  if (!is_area(path) || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0) return NULL;
  if (fstat(fd, &facts) == 0 && facts.st_size > (off_t)PAGE) {
    *bytes = (size_t)facts.st_size;
    l = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (l == MAP_FAILED) return NULL;
  if (l->owner == process && l->number == place->number) return l;
  munmap(l, *bytes);
  return NULL;
}

static sight *look(int local, const ax_place *place)
{
  sight *s = ax_malloc(sizeof *s);

  if (!s) return NULL;
  forget_gone();
  *s = (sight){ .next = sights, .local = local, .number = place->number };
  s->label = open_file(ax_shm.control->rank[local].pid, place, &s->bytes);
  if (s->label) return sights = s;
  ax_mfree(s);
  return NULL;
}

char *ax_peers_map(int local, const ax_place *place, size_t bytes)
{
  sight *s = sights;

  while (s && (s->local != local || s->number != place->number)) s = s->next;
  if (!s) s = look(local, place);
  if (!s || place->at < (int64_t)PAGE || (size_t)place->at + bytes > s->bytes) return NULL;
  return (char *)s->label + place->at;
}
