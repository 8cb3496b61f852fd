/* Memory that all ranks of a group have, where they are on one machine: the parts of values that
 * are cut lie side by side in it, so that every rank reads the whole, and nobody gathers.
 *
 * The group's first rank makes an anonymous file in memory, or takes room in a file of its place;
 * the others open it by way of /proc.  Whoever cannot says so, and all do without. */
#define _GNU_SOURCE
#include "core/params/home.h"
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapping, held by the storages over it. */
typedef struct mapping {
  int refs;
  void *data;
  size_t bytes;
  int64_t counted; /* bytes of it that this rank answers for */
} mapping;

static void release(ax_storage *s)
{
  mapping *m = s->owner;

  if (__atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  munmap(m->data, m->bytes);
  ax_memory_count_foreign(-m->counted);
  ax_mfree(m);
}

/* Where the first rank has its file, and from where on in it. */
typedef struct spot {
  int64_t at;
  int32_t pid, fd; /* fd -1: it has none */
} spot;

static ax_status tell(ax_group *g, spot *s)
{
  ax_collective c = {
    .op = AX_BROADCAST, .dtype = AX_I32, .count = sizeof *s / sizeof(int32_t), .in = s, .out = s
  };
  return ax_dist_run(g, &c, NULL);
}

/* Have all ranks got there? */
static ax_status agree(ax_group *g, bool *there)
{
  int32_t all = *there;
  ax_collective c = {
    .op = AX_ALL_REDUCE, .dtype = AX_I32, .reduction = AX_MIN, .count = 1, .in = &all, .out = &all
  };
  const ax_status st = ax_dist_run(g, &c, NULL);
  *there = all != 0;
  return st;
}

/* The first rank's file; -1: there is no memory for it, or no such files. */
static int make_file(size_t bytes)
{
  const int fd = memfd_create("accel parameters", MFD_CLOEXEC);

  if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

static int open_file(const spot *at)
{
  char path[64];

  if (at->fd < 0) return -1;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", at->pid, at->fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

/* *out: the mapping; NULL where a rank cannot have it.  A collective. */
static ax_status map(ax_group *g, size_t bytes, void **out)
{
  int fd = g->rank == 0 ? make_file(bytes) : -1;
  spot at = { .pid = getpid(), .fd = fd };
  bool there = false;
  void *p = MAP_FAILED;
  ax_status st;

  *out = NULL;
  AX_TRY(tell(g, &at));
  if (g->rank > 0) fd = open_file(&at);
  if (fd >= 0) p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  there = p != MAP_FAILED;
  AX_TRY(agree(g, &there));
  if (there) {
    *out = p;
    p = MAP_FAILED;
  }
out:
  if (p != MAP_FAILED) munmap(p, bytes);
  if (fd >= 0) close(fd);
  return st;
}

static bool on_one_machine(const ax_group *g)
{
  const int each = ax_dist_world()->local_size;
  for (int k = 1; k < g->size; k++)
    if (ax_group_world_rank(g, k) / each != ax_group_world_rank(g, 0) / each) return false;
  return true;
}

bool ax_shared_possible(const ax_group *g, ax_device device)
{
  const char *const off = getenv("ACCEL_SHARED_PARAMETERS");
  return device.kind == AX_CPU && g->size > 1 && on_one_machine(g) && !(off && off[0] == '0');
}

/* As ax_shared_new, in a file of the first rank's place. */
static ax_status share_file(ax_group *g, ax_place *place, const char *what, size_t bytes, size_t from,
                            size_t own, ax_storage **whole, ax_storage **part)
{
  ax_scratch *file = ax_place_file(place);
  spot at = { .pid = getpid(), .fd = ax_scratch_number(file) };
  ax_stretch *x = NULL;
  ax_status st, made = AX_OK;
  bool there;

  if (g->rank == 0 && (made = ax_scratch_reserve(file, bytes, what, &at.at)) != AX_OK) at.fd = -1;
  AX_TRY(tell(g, &at));
  if (made != AX_OK) return made;
  if (at.fd < 0)
    return ax_fail(AX_EIO, "offload: '%s': rank %d found no room for %s", ax_scratch_folder(file),
                   ax_group_world_rank(g, 0), what);
  there = (g->rank == 0 || ax_place_guest(place, at.pid, at.fd, &file) == AX_OK) &&
          ax_scratch_map(file, at.at, bytes, AX_STRETCH_CACHED | AX_STRETCH_SHARED, &x) == AX_OK;
  AX_TRY(agree(g, &there));
  if (!there) goto out;
  AX_TRY(ax_stretch_show(x, 0, bytes, whole));
  if ((st = ax_stretch_show(x, from, own, part)) != AX_OK) {
    ax_storage_release(*whole);
    *whole = NULL;
  }
out:
  ax_stretch_release(x);
  return st;
}

ax_status ax_shared_new(ax_group *g, ax_place *place, const char *what, size_t bytes, size_t from, size_t own,
                        ax_storage **whole, ax_storage **part)
{
  mapping *m = NULL;
  void *data;
  ax_status st;

  *whole = *part = NULL;
  if (place) return share_file(g, place, what, bytes, from, own, whole, part);
  if ((st = map(g, bytes, &data)) != AX_OK || !data) return st;
  if (!(m = ax_malloc(sizeof *m))) {
    munmap(data, bytes);
    return AX_ENOMEM;
  }
  *m = (mapping){ .refs = 1, .data = data, .bytes = bytes, .counted = (int64_t)own };
  ax_memory_count_foreign(m->counted);
  if ((st = ax_storage_wrap(data, bytes, release, m, whole)) != AX_OK) {
    munmap(data, bytes);
    ax_memory_count_foreign(-m->counted);
    ax_mfree(m);
    return st;
  }
  m->refs++;
  if ((st = ax_storage_wrap((char *)data + from, own, release, m, part)) != AX_OK) {
    m->refs--;
    ax_storage_release(*whole);
    *whole = NULL;
  }
  return st;
}
