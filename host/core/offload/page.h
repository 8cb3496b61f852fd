/* page.h: the weights of a schedule, and their lists (offload.c says how they work). */
#ifndef AX_OFFLOAD_PAGE_H
#define AX_OFFLOAD_PAGE_H

#include <pthread.h>

#include "offload.h"
#include "plugin.h"

enum { TRACED = 2 };
typedef enum { AX_AWAY, AX_COMING, AX_HERE } ax_page_place;
typedef struct ax_page ax_page;

typedef struct ax_page_list {
  ax_page *first, *last;
} ax_page_list;

struct ax_page {
  ax_claim claim;
  ax_offload *of;
  ax_storage *s;   /* not held: `gone` is called when it ends */
  ax_tensor *home; /* NULL: in place, the storage is the mapped file's */
  ax_tensor *raw;  /* COMING to a device: the home's elements there, when `ticket` has arrived */
  uint64_t ticket;
  const void *at; /* the home in a mapped file; NULL: in memory */
  size_t at_bytes;
  char *file;   /* its name */
  size_t bytes; /* of the storage */
  ax_dtype dtype;
  ax_page_place place;
  bool touched; /* its pages were requested since it left */
  /* in place, mapped so that writes reach its file: they ask nothing, and the page stays in its
   * schedule */
  bool written;
  ax_page_list *in;
  ax_page *newer, *older;
  ax_page *registered; /* the page added after this one */
  struct {
    ax_page *before, *after;
  } seen[TRACED];
};

struct ax_offload {
  int refs;
  ax_device device;
  int64_t keep, ahead, coming;
  ax_page_list here, on_the_way;
  int missed; /* requests one after the other that were not guessed */
  ax_page *last_added, *first_added;
  ax_page *now, *before_now; /* the two that were requested last */
  ax_offload_stats stats;
  ax_offload *next;
};

/* Guards the lists and the counts: storages end on any thread.  Everything else is of the thread
 * that computes. */
extern pthread_mutex_t ax_pages_lock;
extern ax_offload *ax_offload_schedules;

/* With the lock held. */
void ax_page_settle(ax_page *p, ax_page_place to);
/* Takes a reference to the page's storage; false: it is about to end on another thread. */
bool ax_page_hold(ax_page *p);
/* What is requested after `p`, where `before` came before it; and recording that `after` was. */
ax_page *ax_page_guess(const ax_page *before, const ax_page *p);
void ax_page_record(ax_page *before, ax_page *p, ax_page *after);
void ax_schedule_release(ax_offload *o);

/* Without it. */
void ax_page_end(ax_page *p); /* takes it out of its schedule; its claim is off */
void ax_page_free_data(ax_storage *s);
/* Marks a page just added, in place: writes reach its file. */
void ax_page_follow_written(ax_page *p);
/* Registers a storage mapped so that writes reach its file: it comes before its use, and leaves
 * afterwards.  The schedule holds no reference. */
ax_status ax_offload_add_written(ax_offload *o, ax_storage *s);

extern const ax_claim_kind ax_page_away, ax_page_here;
#endif
