/* core/io/gguf_file.h: shared by gguf.c and gguf_header.c.
 *
 *   "GGUF", u32 version
 *   count of tensors, count of settings
 *   settings: key (text), u32 kind, value
 *   tensors: name (text), u32 dims, dims (the innermost first), u32 type, u64 offset
 *   at the next multiple of general.alignment (default 32): the tensors' bytes, whose offsets count
 *   from here and are multiples of it
 *
 * A text is a length and bytes; a list is a u32 kind, a count and the entries.  Counts, lengths and
 * dims are u64, in version 1 u32. */
#ifndef AX_GGUF_FILE_H
#define AX_GGUF_FILE_H

#include "core/io/file.h"
#include "gguf.h"

typedef struct ax_gguf_type_row {
  uint32_t number;
  const char *name;
  int block, bytes;
  int dtype; /* AX_DTYPE_COUNT: not read */
  int swaps;
} ax_gguf_type_row;

enum { AX_GGUF_NEVER = -1, AX_GGUF_WHOLE = -2 };

typedef struct ax_gguf_setting {
  char *key; /* in the texts of the file */
  ax_gguf_kind kind;
  int64_t at; /* of the value, from the file's begin */
} ax_gguf_setting;

typedef struct ax_gguf_tensor {
  char *name;
  const ax_gguf_type_row *type; /* NULL: not known */
  uint32_t number;
  int64_t begin, bytes; /* bytes -1: the type is not known */
  int64_t shape[4];
  int ndim;
} ax_gguf_tensor;

struct ax_gguf {
  char *path;
  ax_bytes file;
  int version;
  bool swapped;            /* the file is big-endian */
  int64_t alignment, data; /* where tensors begin */
  int n_settings, n_tensors, settings_room, tensors_room;
  ax_gguf_setting *settings;
  ax_gguf_tensor *tensors;
  const ax_gguf_tensor **sorted; /* [n_tensors], by name */
};

/* Fails with a message that names the file. */
#define AX_GGUF_FAIL(st, fmt, ...) AX_FILE_FAIL(st, "gguf", f->path, fmt, ##__VA_ARGS__)

/* The row of a type's number; NULL: there is none. */
const ax_gguf_type_row *ax_gguf_type_of(uint32_t number);
/* Reads the header of f, whose path and file are set.  What f holds is the caller's to free, also
 * on failure. */
ax_status ax_gguf_parse(ax_gguf *f);
/* *out: a tensor over the mapped file, to be read alone (ax_mapping_show), or, where *mapped is
 * false, a copy. */
ax_status ax_gguf_show(const ax_gguf *f, int i, ax_tensor **out, bool *mapped);

#endif
