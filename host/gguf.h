/* gguf.h: files of the GGUF format (core/io/gguf.c): settings by key, and tensors. */
#ifndef AX_GGUF_H
#define AX_GGUF_H

#include "io.h"

/* A GGUF file, open: mapped, its header checked whole. */
typedef struct ax_gguf ax_gguf;
/* *out: close it with ax_gguf_close; NULL on failure.  Versions 1 to 3, of little- and of
 * big-endian machines.  EIO for a file that breaks the format (counts, lengths and offsets that
 * point outside, types that are not there, keys or tensors twice, tensors that overlap), ENOMEM. */
AX_API ax_status ax_gguf_open(const char *path, ax_gguf **out);
AX_API void ax_gguf_close(ax_gguf *f); /* NULL is fine */
AX_API const char *ax_gguf_path(const ax_gguf *f);
AX_API int ax_gguf_version(const ax_gguf *f);
AX_API bool ax_gguf_is_big_endian(const ax_gguf *f);

/* ---- settings */

typedef enum {
  AX_GGUF_U8,
  AX_GGUF_I8,
  AX_GGUF_U16,
  AX_GGUF_I16,
  AX_GGUF_U32,
  AX_GGUF_I32,
  AX_GGUF_F32,
  AX_GGUF_BOOL,
  AX_GGUF_TEXT,
  AX_GGUF_LIST,
  AX_GGUF_U64,
  AX_GGUF_I64,
  AX_GGUF_F64,
  AX_GGUF_KINDS
} ax_gguf_kind;

typedef struct ax_gguf_value {
  ax_gguf_kind kind;
  double number;    /* also of a bool; 64-bit integers beyond 2^53 are rounded */
  const char *text; /* borrowed from the mapping, n bytes without NUL behind them */
  size_t n;
  ax_gguf_kind of; /* a list's entries, and how many there are */
  int64_t count;
} ax_gguf_value;

/* The settings, from 0, in the file's order. */
AX_API int ax_gguf_key_count(const ax_gguf *f);
AX_API const char *ax_gguf_key(const ax_gguf *f, int i); /* borrowed from f */
/* *at: where the value of setting i is, for ax_gguf_read.  Returns its kind. */
AX_API ax_gguf_kind ax_gguf_value_at(const ax_gguf *f, int i, int64_t *at);
/* Reads the value of a kind at *at, and moves *at behind it; behind a list's head, whose entries
 * come next.  EIO: the file has been changed since it was opened. */
AX_API ax_status ax_gguf_read(const ax_gguf *f, ax_gguf_kind kind, int64_t *at, ax_gguf_value *out);

/* ---- tensors */

/* From 0, in the file's order. */
AX_API int ax_gguf_count(const ax_gguf *f);
AX_API const char *ax_gguf_name(const ax_gguf *f, int i);
AX_API int ax_gguf_find(const ax_gguf *f, const char *name); /* -1: there is none */
/* Row-major, so the other way round than in the file: the last dim is that of neighbours. */
AX_API const int64_t *ax_gguf_shape(const ax_gguf *f, int i, int *ndim);
AX_API const char *ax_gguf_type(const ax_gguf *f, int i); /* "F32", "Q4_K"; "type 99": not known */
/* *out: a new reference to the tensor: over the mapped file where that can be (see
 * ax_safetensors_lend), else a copy.  Blocks come as uint8, with bytes in place of the numbers of a
 * row.  EDTYPE for a type that is not read, ENOMEM. */
AX_API ax_status ax_gguf_lend(const ax_gguf *f, int i, ax_tensor **out);
/* Gives the mapped pages of a lent tensor back, which was copied and not written. */
AX_API void ax_gguf_drop(const ax_gguf *f, int i);
/* EIO when the file was truncated since it was opened. */
AX_API ax_status ax_gguf_check(const ax_gguf *f);

#endif
