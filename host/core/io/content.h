/* content.h: what a file is going to hold: a list of texts and of tensors' elements, which is
 * written now, or by a thread while the program goes on (save.c).
 *
 * The thread allocates nothing with ax_malloc and touches no tensor: all it needs is here. */
#ifndef AX_CONTENT_H
#define AX_CONTENT_H

#include <pthread.h>

#include "core/io/file.h"
#include "core/io/save.h"
#include "io.h"

/* What a writing thread and the thread of the program share. */
typedef struct ax_snapshot {
  pthread_mutex_t lock;
  pthread_cond_t moved; /* the writer is done with a chunk */
  bool reading;         /* it reads live memory now */
} ax_snapshot;

typedef struct ax_piece {
  const char *at;      /* NULL: the elements of `tensor`, copied to the CPU when they are written */
  int64_t begin, n;    /* bytes: the place in the file, the size */
  int sum;             /* the number of the CRC-32 that covers them; -1: none */
  ax_tensor *tensor;   /* counted, or NULL */
  ax_storage *storage; /* counted: what `at` points into; NULL: `release` frees it */
  void (*release)(void *p);
  bool live;       /* a script can write to it while it is being written */
  ax_claim unread; /* on `storage`, while the writing thread has still to read it */
  int64_t taken;   /* bytes that the writer no longer needs; under the snapshot's lock */
  int64_t skipped; /* bytes in front of `at`: those taken before the rest was copied */
  uint32_t crc;    /* CRC-32C, when it was written */
} ax_piece;

/* Where CRC-32 number `sum` is written: into four bytes of the piece from `at` on,
 * little-endian. */
typedef struct ax_sum_place {
  int piece, at, sum;
} ax_sum_place;

typedef struct ax_content {
  const char *fn; /* static text that messages begin with */
  char *path;
  int n, n_fills, n_sums, room, fill_room;
  ax_piece *pieces;
  ax_sum_place *fills;
  uint32_t *sums; /* [n_sums] */
  int64_t bytes;
  ax_snapshot *snapshot; /* NULL: nothing else runs meanwhile */
  ax_replacement to;
} ax_content;

ax_status ax_content_new(const char *fn, const char *path, ax_content **out);
void ax_content_free(ax_content *c); /* NULL is fine */

/* Adds n bytes.  release NULL: borrowed until ax_content_done; else c takes them, also when this
 * fails. */
ax_status ax_content_text(ax_content *c, const void *p, size_t n, void (*release)(void *));
/* Adds the elements of a tensor of any device, row-major. */
ax_status ax_content_tensor(ax_content *c, ax_tensor *t);
ax_status ax_content_part(ax_content *c, const ax_part *part);
/* Reserves four bytes of the last piece, at `at`, for checksum `sum`. */
ax_status ax_content_fill(ax_content *c, int at, int sum);
/* Makes room for `n` checksums.  Called before the first piece. */
ax_status ax_content_sums(ax_content *c, int n);

/* Copies what is not contiguous memory of the CPU, so that writing touches no tensor afterwards.
 * Marks pieces that a script can still write to as `live`. */
ax_status ax_content_freeze(ax_content *c);
/* Copies the parts of live pieces that the writer has not read yet.  Called under the snapshot's
 * lock, while the writer reads nothing.  all: false: only of pieces that scripts have pointers
 * to. */
ax_status ax_content_settle(ax_content *c, bool all);
/* Is a live piece, which the writer has not read yet, in a file (place.h)?  There is no room for
 * a copy of those. */
bool ax_content_rests_in_files(const ax_content *c);
/* Puts a claim of this kind on live pieces until ax_content_taken: all has been read. */
void ax_content_await(ax_content *c, const ax_claim_kind *kind);
void ax_content_taken(ax_content *c);
/* Writes all pieces to c->to, which is open. */
ax_status ax_content_put(ax_content *c);
/* The CRC-32C of all bytes, after they were written. */
uint32_t ax_content_crc32c(const ax_content *c);

/* Ends the making of a content: adds it to `save`, or writes and frees it (save NULL).  Takes c,
 * whatever `st` is, which it returns when it is an error. */
ax_status ax_content_done(ax_content *c, ax_save *save, ax_status st);

#endif
