/* io.h: files that hold tensors.  Readers check sizes against the file before they allocate, and
 * every message names the file, what was expected there and what was found. */
#ifndef AX_IO_H
#define AX_IO_H

#include "ax.h"

/* Reads an IDX file (the format of MNIST), plain or gzip.  Element types: uint8, int32, float32,
 * float64.  *out: a new reference to a contiguous tensor, or NULL.  EIO when the file cannot be
 * opened, is not an IDX file, does not have the length that its header gives, or has damaged
 * compressed data; EDTYPE for element types that tensors do not have. */
AX_API ax_status ax_idx_read(const char *path, ax_tensor **out);

/* Several tensors by name. */
typedef struct ax_tensor_file {
  int n;
  char **names;        /* [n] */
  ax_tensor **tensors; /* [n], each owned; take one by retaining it */
} ax_tensor_file;
AX_API void ax_tensor_file_free(ax_tensor_file *f); /* NULL is fine */

/* A safetensors file, open: mapped, its header checked whole. */
typedef struct ax_safetensors ax_safetensors;
/* *out: close it with ax_safetensors_close; NULL on failure.  EIO for a file that breaks the format
 * (header size, JSON, names or keys twice, offsets that overlap, leave holes or point outside,
 * sizes that do not fit shape and type); EDTYPE for an element type that tensors do not have. */
AX_API ax_status ax_safetensors_open(const char *path, ax_safetensors **out);
AX_API void ax_safetensors_close(ax_safetensors *f); /* NULL is fine */
AX_API const char *ax_safetensors_path(const ax_safetensors *f);
/* The tensors, from 0, in the header's order.  Texts and shapes are borrowed from f. */
AX_API int ax_safetensors_count(const ax_safetensors *f);
AX_API const char *ax_safetensors_name(const ax_safetensors *f, int i);
AX_API const int64_t *ax_safetensors_shape(const ax_safetensors *f, int i, int *ndim);
/* The type's name, also of one that tensors here have not: such a tensor can be listed, and not be
 * read: EDTYPE.  The name of a type that is not known is as the file has it. */
AX_API const char *ax_safetensors_type(const ax_safetensors *f, int i);
AX_API ax_dtype ax_safetensors_dtype(const ax_safetensors *f, int i); /* of one that can be read */
AX_API bool ax_safetensors_readable(const ax_safetensors *f, int i);
AX_API int ax_safetensors_find(const ax_safetensors *f, const char *name); /* -1: there is none */
/* [2 * *n]: key, value, key, value ... */
AX_API const char *const *ax_safetensors_metadata(const ax_safetensors *f, int *n);
/* *out: a new reference to a copy of the tensor's elements on the CPU.  EIO when the file was
 * truncated since it was opened. */
AX_API ax_status ax_safetensors_get(const ax_safetensors *f, int i, ax_tensor **out);
/* *out: a new reference to a tensor over the mapped file, without a copy where that can be; it may
 * outlive f.  For what is copied elsewhere at once: ax_safetensors_check says afterwards whether
 * the file was whole.  ENOMEM. */
AX_API ax_status ax_safetensors_lend(const ax_safetensors *f, int i, ax_tensor **out);
/* Gives the mapped pages of a lent tensor back, which was copied and not written: a process that
 * loads a file then holds it once. */
AX_API void ax_safetensors_drop(const ax_safetensors *f, int i);
/* Likewise; elements of eight bits whose type tensors have not (int8, float8) come as uint8. */
AX_API ax_status ax_safetensors_lend_bytes(const ax_safetensors *f, int i, ax_tensor **out);
/* EIO when the file was truncated since it was opened. */
AX_API ax_status ax_safetensors_check(const ax_safetensors *f);

/* ---- saves: files that are written together (core/io/save.c) */

/* The files of a rank, for a checkpoint: written now or by a thread, from a snapshot of the memory
 * at the call.  See core/io/save.c. */
typedef struct ax_save ax_save;
/* folder: the draft that all ranks write into, which exists. */
AX_API ax_status ax_save_new(const char *folder, int rank, ax_save **out);
AX_API void ax_save_free(ax_save *s); /* NULL is fine; not for one that was started */

/* Writes the path of the folder into which a checkpoint at `path`, which is no link, is written:
 * beside it, or in it where no folder can take its place.  EIO: too long. */
AX_API ax_status ax_commit_draft(const char *path, char *draft, size_t size);
/* What the leading rank does when all have written: it writes the manifest, renames the folder and
 * removes older checkpoints.  Lists are lines, each with a line feed at its end. */
typedef struct ax_commit {
  int first, ranks;   /* the ranks that write into the draft */
  const char *draft;  /* as ax_commit_draft says */
  const char *path;   /* the name that it gets */
  const char *facts;  /* JSON: what the manifest says of the run */
  const char *former; /* names of the files of the checkpoint at `path` now; NULL: none */
  const char *old;    /* names of the checkpoints beside `path` to remove; NULL: none */
  uint32_t number;    /* of the save that threads write; 0: no thread writes it */
} ax_commit;
#define AX_NOTE 1024 /* bytes of a text that says what went wrong after the commit */
/* Writes and syncs the files, and the report that the commit waits for.  EIO, ENOMEM. */
AX_API ax_status ax_save_write(ax_save *s);
/* Waits for the ranks' reports, then commits.  own: the status of this rank's files, whose message
 * is ax_last_error.  Removes the draft and fails when a rank has failed, the run is being ended, or
 * a report did not come within the group's time limit.  note: [AX_NOTE], "" or why an older
 * checkpoint was not removed. */
AX_API ax_status ax_commit_run(const ax_commit *c, ax_status own, char *note);
/* Starts a thread that writes and commits.  commit NULL: another rank commits.  The call copies the
 * tensors, which may change afterwards, and takes s when it succeeds.  EINVAL while another save is
 * under way. */
AX_API ax_status ax_save_start(ax_save *s, const ax_commit *commit);
AX_API bool ax_save_under_way(void);
/* For tests: holds the thread back until this is off, or ax_save_wait is called. */
AX_API void ax_save_hold(bool on);
/* Waits for the save that was started, and returns what became of it; AX_OK without one. */
AX_API ax_status ax_save_wait(void);
/* Returns, once, the note of the save that was waited for last; borrowed until the next one. */
AX_API const char *ax_save_note(void);

/* Writes `n` tensors, listed in the given order; in the data part wider element types come first,
 * so that each tensor is aligned to its element size without padding (the format allows no holes).
 * meta as above.  Tensors of a device are copied one by one.  The file appears whole or not at all:
 * it is written beside `path`, synced and renamed, and what was there before stays until then.
 * save: NULL, or the file is added to it.  EINVAL for a name that is given twice, reserved or not
 * UTF-8.  types[i]: NULL, or the format's name of the eight bits that the uint8 tensor holds, such
 * as "I8". */
AX_API ax_status ax_safetensors_write(ax_save *save, const char *path, int n, const char *const *names,
                                      ax_tensor *const *tensors, const char *const *types, int n_meta,
                                      const char *const *meta);

/* Reads a file that holds a tensor's elements and nothing else.  *out: a new reference to a
 * contiguous tensor, or NULL.  EIO, also when the file has another size than these elements. */
AX_API ax_status ax_raw_read(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                             ax_tensor **out);

/* Reads a NumPy .npy file of any numeric type; types that tensors lack are widened.  *out: a new
 * reference to a contiguous tensor.  EIO for a file that breaks the format or does not have the
 * length that its header gives; EDTYPE for other types of elements. */
AX_API ax_status ax_npy_read(const char *path, ax_tensor **out);
/* The arrays of a .npz archive, stored or deflated, in the order of its directory. */
AX_API ax_status ax_npz_read(const char *path, ax_tensor_file **out);

/* A zip archive, open to be read: mapped, its directory checked. */
typedef struct ax_zip ax_zip;
/* fn: static text that messages begin with.  EIO. */
AX_API ax_status ax_zip_open(const char *fn, const char *path, ax_zip **out);
/* An archive that is n bytes of a file from byte `at` on; n -1: all of it.  EIO where the file ends
 * before them. */
AX_API ax_status ax_zip_open_part(const char *fn, const char *path, int64_t at, int64_t n, ax_zip **out);
/* Another archive of z's file, which is not mapped again. */
AX_API ax_status ax_zip_open_other(const ax_zip *z, int64_t at, int64_t n, ax_zip **out);
AX_API void ax_zip_close(ax_zip *z); /* NULL is fine */
/* The entries, from 0, in the directory's order.  Names are borrowed from z and have no NUL behind
 * them. */
AX_API const char *ax_zip_path(const ax_zip *z);
AX_API int ax_zip_count(const ax_zip *z);
AX_API const char *ax_zip_name(const ax_zip *z, int i, size_t *n);
AX_API uint64_t ax_zip_size(const ax_zip *z, int i); /* bytes, unpacked */
/* The bytes of an entry.  *out is malloc's.  EIO when they are damaged, ENOMEM. */
AX_API ax_status ax_zip_text(const ax_zip *z, int i, char **out, size_t *n);
/* *out: a new reference to a 1-d tensor of the entry's bytes as elements, which at most `threads`
 * threads read. */
AX_API ax_status ax_zip_tensor(const ax_zip *z, int i, ax_dtype dtype, int threads, ax_tensor **out);
/* As ax_safetensors_lend: a tensor over the mapped archive where that can be; the bytes are not
 * compared with their checksum. */
AX_API ax_status ax_zip_lend(const ax_zip *z, int i, ax_dtype dtype, ax_tensor **out);
/* `found`, unless the archive was truncated since it was opened: EIO then. */
AX_API ax_status ax_zip_check(const ax_zip *z, ax_status found);

/* A piece of a file: `n` bytes of text, or the elements of a tensor of any device, row-major. */
typedef struct ax_part {
  const void *text;
  size_t n;
  ax_tensor *tensor; /* borrowed; NULL: text */
} ax_part;
typedef struct ax_zip_member {
  const char *name;
  int n;
  const ax_part *parts;
} ax_zip_member;
typedef struct ax_zip_archive {
  int n;
  const ax_zip_member *members;
} ax_zip_archive;
/* Files of these pieces one after the other; a zip archive of stored entries; several archives,
 * each at the next multiple of AX_ZIP_ALIGNMENT bytes.  They appear whole or not at all.  save:
 * NULL, or the file is added to it.  EIO. */
AX_API ax_status ax_parts_write(const char *fn, ax_save *save, const char *path, int n, const ax_part *parts);
AX_API ax_status ax_zip_write(const char *fn, ax_save *save, const char *path, int n,
                              const ax_zip_member *members);
enum { AX_ZIP_ALIGNMENT = 64 };
AX_API ax_status ax_zips_write(const char *fn, ax_save *save, const char *path, int n,
                               const ax_zip_archive *archives);
/* The bytes that an archive will have; a part without text and tensor counts as n bytes.
 * ENOMEM. */
AX_API ax_status ax_zip_length(const ax_zip_archive *a, uint64_t *bytes);

/* *flag not 0: a read of a large file ends with EABORTED at the next piece.  NULL: nothing ends
 * it. */
AX_API void ax_file_interrupts(volatile const int *flag);
typedef struct ax_digest {
  int64_t bytes;
  uint32_t crc32c;
} ax_digest;
/* Reads a regular file to its end, by as many threads as its size is worth.  keep: its mapping
 * stays for the reader that opens it next, until ax_file_forget_kept.  EIO when it cannot be read,
 * ENOMEM. */
AX_API ax_status ax_file_digest(const char *path, int threads, bool keep, ax_digest *out);
AX_API void ax_file_forget_kept(void);

AX_API uint32_t ax_text_crc32c(const void *p, size_t n);
/* *crc: the CRC-32C of some bytes; becomes the one of these and the tensor's elements behind
 * them. */
AX_API ax_status ax_tensor_crc32c(ax_tensor *t, uint32_t *crc);

/* A text file of rows and columns, in memory. */
typedef struct ax_csv ax_csv;
typedef struct ax_csv_options {
  char delimiter, quote;
  int64_t skip; /* lines to leave out at the beginning */
} ax_csv_options;
/* Reads a plain or gzip file.  All rows must have the same number of fields; blank lines do not
 * count.  EIO, naming the line. */
AX_API ax_status ax_csv_read(const char *path, const ax_csv_options *o, ax_csv **out);
AX_API void ax_csv_free(ax_csv *c);
AX_API int64_t ax_csv_rows(const ax_csv *c);
AX_API int64_t ax_csv_columns(const ax_csv *c);
/* A field, without its quotes; borrowed from c and followed by a NUL. */
AX_API const char *ax_csv_field(const ax_csv *c, int64_t row, int64_t column, size_t *n);
typedef enum { AX_CSV_GUESS, AX_CSV_TEXT, AX_CSV_TYPED } ax_csv_kind;
/* Column `column` of the rows from `first` on as a tensor.  GUESS: int64 when all fields are
 * integers, `dtype` when all are numbers or empty (NaN), and *out NULL when some are text.  TYPED:
 * of `dtype`; EIO, naming the line, for a field that does not fit. */
AX_API ax_status ax_csv_column(const ax_csv *c, int64_t first, int64_t column, const char *name,
                               ax_csv_kind kind, ax_dtype dtype, ax_tensor **out);

/* A file of token ids, memory-mapped. */
typedef struct ax_tokens ax_tokens;
/* item: 2 or 4 bytes for each token; 0: as the file's header says, else 2.  header: bytes to skip;
 * -1: llm.c's header of 1024 bytes where there is one.  EIO for a file whose size does not fit. */
AX_API ax_status ax_tokens_open(const char *path, int item, int64_t header, ax_tokens **out);
AX_API void ax_tokens_close(ax_tokens *t);
AX_API int64_t ax_tokens_count(const ax_tokens *t);
AX_API int ax_tokens_item(const ax_tokens *t);
/* Copies `n` tokens from position `at` (from 0), which the caller has checked.  EIO when the file
 * has become shorter. */
AX_API ax_status ax_tokens_copy(const ax_tokens *t, int64_t at, int64_t n, int64_t *to);

/* Pictures are decoded by the plugin libax_image.so, which exists when libjpeg and libpng did at
 * build time.
 *
 * bytes: a JPEG or PNG file; messages call it `name` (NULL: no name).  channels: 1 (grey), 3, or 0
 * (as many as the file has).  *out: uint8 [channels, height, width]. */
AX_API ax_status ax_image_decode(const char *name, const void *bytes, size_t n, int channels,
                                 ax_tensor **out);
AX_API ax_status ax_image_read(const char *path, int channels, ax_tensor **out);
/* [c, h, w], uint8 or float32 -> [c, height, width]: bilinear; with antialias, a shrunk pixel is
 * the average over its area. */
AX_API ax_status ax_image_resize(ax_tensor *image, int64_t height, int64_t width, bool antialias,
                                 ax_tensor **out);
/* The window of height x width at (top, left), which may reach beyond the picture; `fill` is the
 * value there.  flip: mirrored left to right. */
AX_API ax_status ax_image_crop(ax_tensor *image, int64_t top, int64_t left, int64_t height, int64_t width,
                               bool flip, double fill, ax_tensor **out);

/* Texts.  Reads the whole of a regular file, also of one without a size (/proc), of at most `most`
 * bytes.  *data: for free().  EIO, ENOMEM: "PATH: reason". */
AX_API ax_status ax_file_slurp(const char *path, size_t most, char **data, size_t *n);
/* Reads the first *n bytes of a regular file; *n: how many there are, at most as many.  *data: for
 * free().  EIO, ENOMEM: "PATH: reason". */
AX_API ax_status ax_file_head(const char *path, char **data, size_t *n);
/* The file appears whole or not at all; unless it is synced, a power cut may lose it.  EIO: "cannot
 * write PATH: why". */
AX_API ax_status ax_file_put(const char *path, const char *text, size_t n, bool synced);

#endif
