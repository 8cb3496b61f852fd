/* file.h: shared by the readers of data files: reading a whole file, plain or gzip, and errors that
 * name the file. */
#ifndef AX_FILE_H
#define AX_FILE_H

#include "ax.h"

/* A file in memory.  Plain files are mapped. */
typedef struct ax_bytes {
  const uint8_t *data;
  size_t n;
  struct ax_mapping *mapping; /* NULL: not mapped */
} ax_bytes;

/* Maps a regular file; it may be empty.  EIO.  Another program may truncate the file later.  The
 * lost part then reads as zeros, so a reader calls ax_bytes_check before it trusts what it has
 * read. */
ax_status ax_file_map(const char *fn, const char *path, ax_bytes *out);
/* EIO when the file is shorter now than the mapping, or could not be read. */
ax_status ax_bytes_check(const char *fn, const char *path, const ax_bytes *b);
/* Reads a file and unpacks gzip, to at most `most` bytes.  Call ax_bytes_check as above. */
ax_status ax_file_read(const char *fn, const char *path, size_t most, ax_bytes *out);
void ax_bytes_free(ax_bytes *b);
/* *out: a tensor over mapped bytes, without a copy; NULL where that cannot be: they are not mapped
 * or not aligned, or bools, which must be made 0 and 1.  The tensor keeps the mapping; it is as
 * true as ax_bytes_check, after it was read, says.  ENOMEM. */
ax_status ax_bytes_lend(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                        const int64_t *shape, ax_tensor **out);
/* Likewise to be read alone (ax_mapping_show): for offloaded weights. */
ax_status ax_bytes_show(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                        const int64_t *shape, ax_tensor **out);

/* Opens a regular file for reading; refuses anything else (a pipe, a device) without waiting for
 * it. EIO.  *fd: the caller closes it; -1 on failure.  fn NULL: the message begins with the
 * path. */
ax_status ax_file_open(const char *fn, const char *path, int *fd, size_t *size);

/* Bytes of a file are copied, unpacked and summed in pieces of this size; between two of them
 * Ctrl-C is noticed. */
#define AX_FILE_PIECE ((size_t)1 << 24)
/* Whether the flag of ax_file_interrupts (io.h) is set. */
bool ax_file_interrupted(void);
/* EABORTED when it is. */
ax_status ax_file_go_on(void);
/* memcpy in pieces; EABORTED. */
ax_status ax_file_copy(void *to, const void *from, size_t n);

/* ax_tensor_new, with errors that name the file. */
ax_status ax_file_tensor(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                         ax_tensor **out);

/* raw.c: a tensor over the mapped file, to be read alone; *out is NULL where that cannot be.
 * Otherwise as ax_raw_read. */
ax_status ax_raw_show(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                      ax_tensor **out);

/* Makes every nonzero byte 1: kernels rely on bools being 0 or 1, and a file may hold other
 * bytes. */
void ax_bools_tidy(ax_tensor *t);

/* ---- replace.c: a file that appears whole or not at all.  It is written beside its place, synced
 * and renamed; an older file stays until then.  Of a link, the file behind it is replaced.  A
 * device or a pipe is written as it is: a rename would put a file in its place. */
typedef struct ax_replacement {
  const char *fn, *path; /* borrowed */
  char *temporary;
  char *behind; /* the path behind links; NULL: `path` itself, or nothing is there */
  int fd;
  bool direct;            /* no temporary file */
  bool unsynced;          /* set after ax_replace_begin: a power cut may lose it */
  bool heeds;             /* likewise: an interrupt ends the writing and the sync; EABORTED */
  int64_t written, begun; /* bytes so far; those that the disk has begun to write */
} ax_replacement;
/* fn NULL: messages are "cannot write PATH: why". */
ax_status ax_replace_begin(const char *fn, const char *path, ax_replacement *r);
/* The file itself, for a folder that gets its name later; ax_replace_sync ends it, and closes it
 * where that succeeds.  Needs no memory. */
ax_status ax_replace_create(const char *fn, const char *path, ax_replacement *r);
ax_status ax_replace_sync(ax_replacement *r);
ax_status ax_replace_write(ax_replacement *r, const void *from, int64_t bytes);
/* Over bytes that are written. */
ax_status ax_replace_write_at(ax_replacement *r, const void *from, int64_t bytes, int64_t at);
/* Renames the file to its place where `st` is AX_OK and all writes went well, else removes it.
 * Returns the first error, or AX_OK. */
ax_status ax_replace_end(ax_replacement *r, ax_status st);

/* Writes a folder's list of names to the disk.  Some file systems cannot; that is no error.
 * EIO. */
ax_status ax_folder_sync(const char *path);

/* mapping.c: a mapped file that may be truncated */
struct stat;
/* to_write: all of it is going to be lent, and is made writable now: a change of pages that have
 * been read costs a sixth of reading them. */
ax_status ax_mapping_new(int fd, const struct stat *info, bool to_write, struct ax_mapping **out,
                         void **data);
/* Maps n bytes of a file, from `at` on, a multiple of the page's size: what is written goes to the
 * file.  EIO with errno set and no message, ENOMEM. */
ax_status ax_mapping_share(int fd, int64_t at, size_t n, struct ax_mapping **out, void **data);
/* Whether an access has found that the file cannot be read there. */
bool ax_mapping_failed(const struct ax_mapping *m);
void ax_mapping_retain(struct ax_mapping *m);
void ax_mapping_release(struct ax_mapping *m);
/* In place of ax_mapping_release by its only holder: the next ax_mapping_new of the file takes it
 * over.  Nothing may have been lent from it. */
void ax_mapping_keep(struct ax_mapping *m);
/* Unmaps what is kept. */
void ax_mapping_forget_kept(void);
/* A storage over n mapped bytes, which keeps the mapping.  EIO where the system refuses that they
 * are written to, ENOMEM. */
struct ax_storage;
ax_status ax_mapping_lend(struct ax_mapping *m, const void *data, size_t n, struct ax_storage **out);
/* Likewise to be read alone: a write ends the process, until ax_mapping_open has let it through.
 * Takes no room of what the system promises to programs, however large the file is.  ENOMEM. */
ax_status ax_mapping_show(struct ax_mapping *m, const void *data, size_t n, struct ax_storage **out);
/* Of a storage that ax_mapping_show made: lets writes through; they stay in this process.  EIO. */
ax_status ax_mapping_open(const struct ax_storage *s);
/* Of such a storage: whether a read has found pages missing; whether the file has all of them. */
bool ax_mapping_is_cut(const struct ax_storage *s);
bool ax_mapping_holds(const struct ax_storage *s, const char *path);
/* Whether the file at `path`, if it is still the one that was mapped, has all of its pages. */
bool ax_mapping_whole(const struct ax_mapping *m, const char *path);

/* Fails with "fn: 'path': ..." */
#define AX_FILE_FAIL(st, fn, path, fmt, ...) ax_fail(st, "%s: '%s': " fmt, fn, path, ##__VA_ARGS__)

#endif
