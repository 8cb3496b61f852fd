/* io.h: files that hold tensors.  Readers trust nothing: sizes are checked against the file before memory is taken, and
 * every message names the file, what was expected there and what was found. */
#ifndef AX_IO_H
#define AX_IO_H

#include "ax.h"

/* Reads an IDX file (the format of MNIST and its kin), plain or gzip.  Element types: uint8, int32, float32, float64.
 * *out: a new reference to a contiguous tensor, or NULL.  EIO when the file cannot be opened, is no IDX file, is shorter or
 * longer than its header says, or its compressed data is damaged; EDTYPE for element types that tensors do not have. */
AX_API ax_status ax_idx_read(const char *path, ax_tensor **out);

/* What a safetensors file holds, in the order of its header. */
typedef struct ax_tensor_file {
  int n;
  char **names;        /* [n], unique, UTF-8 */
  ax_tensor **tensors; /* [n], each owned; take one by retaining it */
  int n_meta;
  char **meta;         /* [2 * n_meta]: key, value, key, value ... */
} ax_tensor_file;

/* *out: free it with ax_tensor_file_free; NULL on failure.  EIO for a file that breaks the format (header size, JSON,
 * offsets that overlap, leave holes or point outside, sizes that do not fit shape and type); EDTYPE for an element type
 * that tensors do not have. */
AX_API ax_status ax_safetensors_read(const char *path, ax_tensor_file **out);
AX_API void ax_tensor_file_free(ax_tensor_file *f); /* NULL is fine */

/* Writes `n` tensors, listed in the given order; in the data part wider element types come first, so that each tensor lies
 * aligned to its element size without padding (the format allows no holes).  meta as above.  The file appears whole or not
 * at all: it is written beside `path`, synced and renamed, and what was there before stays until then.  EINVAL for a name
 * that is given twice, reserved or not UTF-8, and for a tensor that is not on the CPU. */
AX_API ax_status ax_safetensors_write(const char *path, int n, const char *const *names, ax_tensor *const *tensors,
                                      int n_meta, const char *const *meta);

#endif
