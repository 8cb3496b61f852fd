/* mapping.c: files mapped into memory, which another program may truncate.
 *
 * Reading a page that the file no longer has raises SIGBUS in the reading thread.  The handler
 * here maps zeros over the lost part and marks the mapping as cut.  The reader continues, and
 * sees the mark when it checks what it has read.  So readers need no jumps, and reading costs no
 * more than reading memory.  A SIGBUS at another address goes to the handler that was installed
 * before.
 *
 * A mapping can be kept for the next reader of its file: mapping 500 MB and giving the pages back
 * costs as much as reading them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io/file.h"
#include "offload.h"

struct ax_mapping {
  _Atomic uintptr_t begin; /* 0: free */
  size_t n;
  _Atomic bool cut;
  _Atomic int refs;
  bool kept; /* no reader has it; under the lock */
  bool writable;
  bool owns_last; /* its last page is a copy */
  dev_t device;
  ino_t inode;
};

/* Slots are never freed: the handler reads them without a lock. */
enum { SLOTS = 64 };
typedef struct block {
  struct ax_mapping slot[SLOTS];
  struct block *_Atomic next;
} block;
static block first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction former;
static bool installed;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
  const uintptr_t at = (uintptr_t)info->si_addr, page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);

  (void)context;
  for (block *b = &first; b; b = atomic_load(&b->next))
    for (int i = 0; i < SLOTS; i++) {
      struct ax_mapping *m = &b->slot[i];
      const uintptr_t begin = atomic_load(&m->begin);
      if (!begin || at < begin || at >= begin + m->n) continue;
      atomic_store(&m->cut, true);
      ax_offload_over = true; /* so that the next call looks for weights that were lost */
      if (mmap((void *)page, begin + m->n - page, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
        return;
    }
  /* another address: the access is repeated and reaches the former handler */
  sigaction(sig, &former, NULL);
  if (info->si_code <= 0) raise(sig); /* another process sent the signal */
}

/* Called with the lock held. */
static bool install(void)
{
  struct sigaction a = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
  if (!installed) installed = sigaction(SIGBUS, &a, &former) == 0;
  return installed;
}

static struct ax_mapping *free_slot(void)
{
  for (block *b = &first;; b = atomic_load(&b->next)) {
    for (int i = 0; i < SLOTS; i++)
      if (!atomic_load(&b->slot[i].begin)) return &b->slot[i];
    if (!atomic_load(&b->next)) {
      block *more = calloc(1, sizeof *more);
      if (!more) return NULL;
      atomic_store(&b->next, more);
    }
  }
}

static void end(struct ax_mapping *m)
{
  munmap((void *)atomic_load(&m->begin), m->n);
  atomic_store(&m->begin, 0);
}

/* A kept mapping of this file, which is the caller's from now on; or NULL. */
static struct ax_mapping *take_kept(const struct stat *info)
{
  struct ax_mapping *found = NULL;

  pthread_mutex_lock(&lock);
  for (block *b = &first; b && !found; b = atomic_load(&b->next))
    for (int i = 0; i < SLOTS && !found; i++) {
      struct ax_mapping *m = &b->slot[i];
      if (m->kept && m->device == info->st_dev && m->inode == info->st_ino && m->n == (size_t)info->st_size &&
          !atomic_load(&m->cut))
        found = m;
    }
  if (found) found->kept = false;
  pthread_mutex_unlock(&lock);
  return found;
}

void ax_mapping_keep(struct ax_mapping *m)
{
  pthread_mutex_lock(&lock);
  m->kept = true;
  pthread_mutex_unlock(&lock);
}

void ax_mapping_forget_kept(void)
{
  pthread_mutex_lock(&lock);
  for (block *b = &first; b; b = atomic_load(&b->next))
    for (int i = 0; i < SLOTS; i++)
      if (b->slot[i].kept) {
        b->slot[i].kept = false;
        end(&b->slot[i]);
      }
  pthread_mutex_unlock(&lock);
}

/* Enters a mapping of n bytes at p, which ends with it; NULL: there is no memory for it, and p is
 * unmapped. */
static struct ax_mapping *enlist(void *p, size_t n, const struct stat *info, bool writable)
{
  struct ax_mapping *m;

  pthread_mutex_lock(&lock);
  if ((m = install() ? free_slot() : NULL)) {
    m->n = n;
    m->device = info ? info->st_dev : 0;
    m->inode = info ? info->st_ino : 0;
    m->writable = writable;
    m->owns_last = false;
    atomic_store(&m->cut, false);
    atomic_store(&m->refs, 1);
    atomic_store(&m->begin, (uintptr_t)p);
  }
  pthread_mutex_unlock(&lock);
  if (!m) munmap(p, n);
  return m;
}

ax_status ax_mapping_new(int fd, const struct stat *info, bool to_write, struct ax_mapping **out, void **data)
{
  const size_t n = (size_t)info->st_size;
  void *p;

  if ((*out = take_kept(info))) {
    *data = (void *)atomic_load(&(*out)->begin);
    return AX_OK;
  }
  p = to_write ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0) : MAP_FAILED;
  if (p == MAP_FAILED) {
    to_write = false;
    p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  if (p == MAP_FAILED) return AX_EIO;
  if (!(*out = enlist(p, n, info, to_write))) return ax_fail(AX_ENOMEM, "no memory to map a file");
  *data = p;
  return AX_OK;
}

ax_status ax_mapping_share(int fd, int64_t at, size_t n, struct ax_mapping **out, void **data)
{
  void *const p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

  *out = NULL;
  if (p == MAP_FAILED) return AX_EIO;
  if (!(*out = enlist(p, n, NULL, true))) return ax_fail(AX_ENOMEM, "no memory to map a file");
  *data = p;
  return AX_OK;
}

bool ax_mapping_failed(const struct ax_mapping *m) { return atomic_load(&m->cut); }

void ax_mapping_retain(struct ax_mapping *m) { atomic_fetch_add(&m->refs, 1); }

void ax_mapping_release(struct ax_mapping *m)
{
  if (atomic_fetch_sub(&m->refs, 1) == 1) end(m);
}

static void release_lent(ax_storage *s) { ax_mapping_release(s->owner); }

/* The pages that hold n bytes at `data` can be written from now on.  The mapping is private: what
 * is written stays in this process. */
static ax_status open_pages(const struct ax_mapping *m, const void *data, size_t n)
{
  const uintptr_t at = (uintptr_t)data & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
  if (m->writable || mprotect((void *)at, (uintptr_t)data + n - at, PROT_READ | PROT_WRITE) == 0)
    return AX_OK;
  return AX_EIO;
}

/* Behind the end of a file its last page reads as zeros, without a signal.  As a copy it keeps
 * what a program that takes a few bytes off the file has removed. */
static void own_last_page(struct ax_mapping *m)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  volatile char *const last = (char *)atomic_load(&m->begin) + m->n / page * page;

  if (m->owns_last || m->n % page == 0) return;
  if (!m->writable && mprotect((void *)last, page, PROT_READ | PROT_WRITE) != 0) return;
  *last = *last; /* the copy may be written to: it is nobody else's */
  m->owns_last = true;
}

ax_status ax_mapping_show(struct ax_mapping *m, const void *data, size_t n, ax_storage **out)
{
  const ax_status st = ax_storage_wrap((void *)data, n, release_lent, m, out);
  if (st != AX_OK) return st;
  atomic_fetch_add(&m->refs, 1);
  own_last_page(m);
  return AX_OK;
}

ax_status ax_mapping_lend(struct ax_mapping *m, const void *data, size_t n, ax_storage **out)
{
  own_last_page(m); /* before its pages are opened: it leaves the last one as it was */
  const ax_status st = open_pages(m, data, n);
  *out = NULL;
  return st == AX_OK ? ax_mapping_show(m, data, n, out) : st;
}

ax_status ax_mapping_open(const ax_storage *s) { return open_pages(s->owner, s->data, s->bytes); }

bool ax_mapping_is_cut(const ax_storage *s) { return atomic_load(&((struct ax_mapping *)s->owner)->cut); }

bool ax_mapping_holds(const ax_storage *s, const char *path) { return ax_mapping_whole(s->owner, path); }

/* The rest of a file's last page reads as zeros without a signal, so the size is compared too. */
bool ax_mapping_whole(const struct ax_mapping *m, const char *path)
{
  struct stat info;

  if (atomic_load(&m->cut)) return false;
  /* replaced by another file: the mapped one is still whole */
  if (stat(path, &info) != 0 || info.st_dev != m->device || info.st_ino != m->inode) return true;
  return (size_t)info.st_size >= m->n;
}
