/* safetensors.h: shared by the reader and the writer of the safetensors format.
 *
 *   8 bytes  N, little-endian: the size of the header
 *   N bytes  JSON: { "__metadata__": { key: text },
 *                    name: { "dtype": "F32", "shape": [..], "data_offsets": [begin, end] }, .. }
 *   the rest the elements, little-endian, row-major; the offsets count from here and cover it
 *   without holes or overlap */
#ifndef AX_SAFETENSORS_H
#define AX_SAFETENSORS_H

#include "io.h"

#include "core/io/file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are copied as elements lie in memory, which must be little-endian"
#endif

#define AX_SAFETENSORS_HEADER_LIMIT 100000000 /* bytes; the reference implementation has the same limit */

/* The format's name of each element type; NULL: it has none. */
static const char *const ax_safetensors_types[AX_DTYPE_COUNT] = {
  [AX_F32] = "F32", [AX_F64] = "F64",      [AX_F16] = "F16",      [AX_BF16] = "BF16",
  [AX_I64] = "I64", [AX_I32] = "I32",      [AX_U8] = "U8",        [AX_BOOL] = "BOOL",
  [AX_C64] = "C64", [AX_E4M3] = "F8_E4M3", [AX_E5M2] = "F8_E5M2",
};

/* The number of bytes of the UTF-8 character at s (at most n), or 0 when there is none.  Overlong
 * forms and surrogates are not characters (RFC 3629). */
static inline size_t ax_utf8_length(const unsigned char *s, size_t n)
{
  const unsigned char c = s[0];
  const size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
  if (len == 0 || len > n) return 0;
  for (size_t i = 1; i < len; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  if ((c == 0xE0 && s[1] < 0xA0) || (c == 0xED && s[1] > 0x9F)) return 0;
  if ((c == 0xF0 && s[1] < 0x90) || (c == 0xF4 && s[1] > 0x8F)) return 0;
  return len;
}

/* One tensor of a file. */
typedef struct ax_safetensors_entry {
  const char *name; /* in the header */
  int64_t begin, end;
  int64_t shape[AX_MAX_DIMS];
  uint8_t dtype, ndim;
  const char *other; /* the format's name of a type that tensors here have not; NULL: dtype is it */
} ax_safetensors_entry;

struct ax_safetensors {
  char *path;
  ax_bytes file;
  char *header; /* a copy, in which texts were unescaped where they stand */
  int64_t header_bytes, data_bytes;
  int n, n_meta;
  ax_safetensors_entry *entries;       /* [n], in the header's order */
  const ax_safetensors_entry **sorted; /* [n], by name */
  const char **meta;                   /* [2 * n_meta] */
};

/* Whether the format has a type of this name and of eight bits that tensors have not. */
bool ax_safetensors_is_byte(const char *type);

/* Reads the header of f, whose path, header and sizes are set, into the fields below them, and
 * checks it against the specification and the size of the data.  What f holds is the caller's to
 * free, also on failure. */
ax_status ax_safetensors_parse(ax_safetensors *f);

/* *out: a tensor over the mapped file, to be read alone (ax_mapping_show); NULL where only a copy
 * can be: bools, and what is not aligned to its elements. */
ax_status ax_safetensors_show(const ax_safetensors *f, int i, ax_tensor **out);
/* Likewise; int8 and float8 as uint8. */
ax_status ax_safetensors_show_bytes(const ax_safetensors *f, int i, ax_tensor **out);

#endif
