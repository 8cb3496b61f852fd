/* Structures that are made and dropped at the rate of ops: tensors, storages, nodes.  A collection
 * frees thousands of them at once, and malloc would take its slow path for most.  Each thread keeps
 * the free ones, by size, and gives them back when it ends. */
#include "core/core.h"

#include <pthread.h>
#include <stdlib.h>

enum {
  STEP = 32,  /* bytes between two sizes */
  SIZES = 48, /* larger ones go to malloc */
#ifdef __SANITIZE_ADDRESS__
  KEPT = 0 /* so that AddressSanitizer sees a use after free */
#else
  KEPT = 512 << 10 /* bytes that a size keeps at most */
#endif
};

typedef struct spare {
  struct spare *next;
} spare;

typedef struct kept {
  spare *first;
  int n;
} kept;

static _Thread_local kept lists[SIZES];
static _Thread_local bool ends_known; /* whether the end of this thread empties them */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

/* What is kept is not counted as a structure: free, not ax_mfree. */
static void empty(void *of_thread)
{
  kept *const all = of_thread;
  for (int k = 0; k < SIZES; k++)
    while (all[k].first) {
      spare *const s = all[k].first;
      all[k].first = s->next;
      free(s);
    }
  ends_known = false; /* another key's destructor may still free structures */
}

static void make_key(void) { key_made = pthread_key_create(&key, empty) == 0; }

static bool end_is_known(void)
{
  if (ends_known) return true;
  pthread_once(&once, make_key);
  return ends_known = key_made && pthread_setspecific(key, lists) == 0;
}

void *ax_spare_new(size_t bytes)
{
  const size_t size = (bytes + STEP - 1) / STEP;
  if (size >= SIZES || !lists[size].first || ax_alloc_injecting()) return ax_malloc(size * STEP);
  spare *const s = lists[size].first;
  lists[size].first = s->next;
  lists[size].n--;
  ax_structs_add(1);
  return s;
}

void ax_spare_free(void *p, size_t bytes)
{
  const size_t size = (bytes + STEP - 1) / STEP;
  if (size >= SIZES || (size_t)lists[size].n * size * STEP >= KEPT || !end_is_known()) {
    ax_mfree(p);
    return;
  }
  spare *const s = p;
  s->next = lists[size].first;
  lists[size].first = s;
  lists[size].n++;
  ax_structs_add(-1);
}
