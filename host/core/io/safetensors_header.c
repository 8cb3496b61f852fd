/* safetensors_header.c: the header of a safetensors file, read and checked whole before a tensor is
 * made: a damaged or hostile file costs an error message.
 *
 * The parser knows the one form that a header has.  Texts are unescaped in place, and no tree is
 * built, so that a header takes memory in proportion to the tensors that it lists: a general parser
 * makes gigabytes of a header full of brackets and zeros. */
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/io/safetensors.h"

/* Fails with a message that names the file. */
#define FAIL(st, fmt, ...) ax_fail(st, "safetensors: '%s': " fmt, f->path, ##__VA_ARGS__)

#define MOST_BYTES (INT64_C(1) << 53) /* sizes and offsets: what other programs' numbers hold */

enum { DEEPEST = 64 }; /* values inside each other where the format expects none */

/* What is read, and where it ends. */
typedef struct cursor {
  ax_safetensors *f;
  char *at, *end;
  int room, room_meta; /* entries that there is memory for */
} cursor;

/* ---- the small parts of JSON */

static ax_status bad_json(const cursor *c)
{
  const ax_safetensors *f = c->f;
  return FAIL(AX_EIO, "the header is not valid JSON (near byte %lld)", (long long)(c->at - f->header));
}

static void skip_space(cursor *c)
{
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

static bool accept(cursor *c, char wanted)
{
  skip_space(c);
  if (c->at >= c->end || *c->at != wanted) return false;
  c->at++;
  return true;
}

static bool read_hex(const char *s, const char *end, unsigned *out)
{
  unsigned v = 0;
  if (end - s < 4) return false;
  for (int i = 0; i < 4; i++) {
    const char c = s[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return false;
    v = v << 4 | (unsigned)digit;
  }
  *out = v;
  return true;
}

static char *put_utf8(char *to, unsigned code)
{
  if (code < 0x80) *to++ = (char)code;
  else if (code < 0x800) {
    *to++ = (char)(0xC0 | code >> 6);
    *to++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *to++ = (char)(0xE0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  } else {
    *to++ = (char)(0xF0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 63));
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  }
  return to;
}

/* The character behind a backslash, which *from points at; moves *from and *to. */
static bool unescape(char **from, const char *end, char **to)
{
  static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
  unsigned code, low;
  const char *found;

  if (*from >= end) return false;
  if (**from != 'u') {
    found = **from ? strchr(letters, **from) : NULL;
    if (!found) return false;
    ++*from;
    *(*to)++ = meant[found - letters];
    return true;
  }
  if (!read_hex(*from + 1, end, &code)) return false;
  *from += 5;
  if (code >= 0xDC00 && code < 0xE000) return false; /* the second half of a pair without the first */
  if (code >= 0xD800 && code < 0xDC00) {
    if (end - *from < 6 || (*from)[0] != '\\' || (*from)[1] != 'u' || !read_hex(*from + 2, end, &low) ||
        low < 0xDC00 || low > 0xDFFF)
      return false;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    *from += 6;
  }
  *to = put_utf8(*to, code);
  return true;
}

/* *out: the text, ended by a NUL where the quote stood or before. */
static ax_status read_text(cursor *c, char **out)
{
  char *from, *to;

  if (!accept(c, '"')) return bad_json(c);
  *out = from = to = c->at;
  for (;;) {
    if (from >= c->end) return bad_json(c);
    if (*from == '"') break;
    if (*from == '\n' || *from == '\r' || *from == '\t') return bad_json(c);
    if (*from != '\\') {
      *to++ = *from++;
      continue;
    }
    from++;
    if (!unescape(&from, c->end, &to)) {
      c->at = from;
      return bad_json(c);
    }
  }
  *to = '\0';
  c->at = from + 1;
  return AX_OK;
}

static bool digits(cursor *c)
{
  const char *from = c->at;
  while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
  return c->at > from;
}

/* A number of JSON's grammar.  *out: its value when it is written as a whole number up to
 * MOST_BYTES, else -1. */
static ax_status read_number(cursor *c, int64_t *out)
{
  const char *from;
  bool whole = true;

  skip_space(c);
  from = c->at;
  *out = -1;
  if (c->at < c->end && *c->at == '-') {
    whole = false;
    c->at++;
  }
  const char *first = c->at;
  if (!digits(c) || (*first == '0' && c->at - first > 1)) return bad_json(c);
  if (c->at < c->end && *c->at == '.') {
    whole = false;
    c->at++;
    if (!digits(c)) return bad_json(c);
  }
  if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
    whole = false;
    c->at++;
    if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
    if (!digits(c)) return bad_json(c);
  }
  if (!whole || c->at - from > 16) return AX_OK;
  *out = 0;
  for (; from < c->at; from++) *out = *out * 10 + (*from - '0');
  if (*out > MOST_BYTES) *out = -1;
  return AX_OK;
}

static bool is_number(cursor *c)
{
  skip_space(c);
  return c->at < c->end && (*c->at == '-' || (*c->at >= '0' && *c->at <= '9'));
}

static bool accept_word(cursor *c, const char *word)
{
  const size_t n = strlen(word);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
  c->at += n;
  return true;
}

/* Passes over a value of any kind. */
static ax_status skip_value(cursor *c, int depth)
{
  int64_t number;
  char *text;
  ax_status st;

  skip_space(c);
  if (c->at >= c->end || depth > DEEPEST) return bad_json(c);
  if (*c->at == '"') return read_text(c, &text);
  if (is_number(c)) return read_number(c, &number);
  if (accept_word(c, "true") || accept_word(c, "false") || accept_word(c, "null")) return AX_OK;
  if (*c->at != '{' && *c->at != '[') return bad_json(c);
  const char close = *c->at++ == '{' ? '}' : ']';
  if (accept(c, close)) return AX_OK;
  do {
    if (close == '}' && ((st = read_text(c, &text)) != AX_OK || !accept(c, ':'))) return bad_json(c);
    if ((st = skip_value(c, depth + 1)) != AX_OK) return st;
  } while (accept(c, ','));
  return accept(c, close) ? AX_OK : bad_json(c);
}

/* ---- what a header has */

static ax_status read_shape(cursor *c, ax_safetensors_entry *e)
{
  const ax_safetensors *f = c->f;
  int64_t size = -1;
  ax_status st;

  if (!accept(c, '[')) return FAIL(AX_EIO, "tensor '%.100s' has no \"shape\"", e->name);
  if (accept(c, ']')) return AX_OK;
  do {
    if (e->ndim == AX_MAX_DIMS)
      return FAIL(AX_ESHAPE, "tensor '%.100s' has more than %d dims", e->name, AX_MAX_DIMS);
    if (is_number(c) && (st = read_number(c, &size)) != AX_OK) return st;
    if (size < 0)
      return FAIL(AX_EIO, "size %d of tensor '%.100s' is not a whole number", e->ndim + 1, e->name);
    e->shape[e->ndim++] = size;
    size = -1;
  } while (accept(c, ','));
  return accept(c, ']') ? AX_OK : bad_json(c);
}

static ax_status read_offsets(cursor *c, ax_safetensors_entry *e)
{
  const ax_safetensors *f = c->f;
  int64_t *const places[] = { &e->begin, &e->end };
  bool good = accept(c, '[');
  ax_status st;

  for (int i = 0; i < 2 && good; i++) {
    if ((i == 1 && !accept(c, ',')) || !is_number(c)) good = false;
    else if ((st = read_number(c, places[i])) != AX_OK) return st;
    else good = *places[i] >= 0;
  }
  if (!good || !accept(c, ']'))
    return FAIL(AX_EIO, "tensor '%.100s' has no \"data_offsets\" of two whole numbers", e->name);
  return AX_OK;
}

static ax_status read_dtype(cursor *c, ax_safetensors_entry *e)
{
  const ax_safetensors *f = c->f;
  char *text;
  ax_status st;

  skip_space(c);
  if (c->at >= c->end || *c->at != '"') return FAIL(AX_EIO, "tensor '%.100s' has no \"dtype\"", e->name);
  if ((st = read_text(c, &text)) != AX_OK) return st;
  for (int d = 0; d < AX_DTYPE_COUNT; d++)
    if (ax_safetensors_types[d] && strcmp(text, ax_safetensors_types[d]) == 0) {
      e->dtype = (uint8_t)d;
      return AX_OK;
    }
  e->other = text;
  return AX_OK;
}

/* Types of elements that tensors here have not: such a tensor can be listed, and not be read. */
static const struct {
  const char *name, *shown;
  int bits;
} others[] = {
  { "I8", "int8", 8 },     { "I16", "int16", 16 },          { "U16", "uint16", 16 },
  { "U32", "uint32", 32 }, { "U64", "uint64", 64 },         { "F8_E8M0", "float8_e8m0fnu", 8 },
  { "F4", "float4", 4 },   { "F6_E2M3", "float6_e2m3", 6 }, { "F6_E3M2", "float6_e3m2", 6 },
};

/* The place in `others`, or -1 for a name that is not known either. */
static int find_other(const char *name)
{
  for (int i = 0; i < (int)(sizeof others / sizeof *others); i++)
    if (strcmp(others[i].name, name) == 0) return i;
  return -1;
}

bool ax_safetensors_is_byte(const char *type)
{
  const int k = find_other(type);
  return k >= 0 && others[k].bits == 8;
}

const char *ax_safetensors_type(const ax_safetensors *f, int i)
{
  const ax_safetensors_entry *e = &f->entries[i];
  const int k = e->other ? find_other(e->other) : -1;

  return !e->other ? ax_dtype_name((ax_dtype)e->dtype) : k >= 0 ? others[k].shown : e->other;
}

/* The bits of an element; 0: not known. */
static int bits_of(const ax_safetensors_entry *e)
{
  const int k = e->other ? find_other(e->other) : -1;

  if (!e->other) return 8 * (int)ax_dtype_size((ax_dtype)e->dtype);
  return k >= 0 ? others[k].bits : 0;
}

/* Do the sizes fit the type, the offsets and the file? */
static ax_status check_sizes(const ax_safetensors *f, const ax_safetensors_entry *e)
{
  const int bits = bits_of(e);
  const char *type = e->other ? e->other : ax_dtype_name((ax_dtype)e->dtype);
  int64_t count = bits ? bits : 8, bytes;
  char text[192];

  for (int d = 0; d < e->ndim; d++)
    if (__builtin_mul_overflow(count, e->shape[d], &count))
      return FAIL(AX_EIO, "the shape of tensor '%.100s' is too large to be true", e->name);
  bytes = count / 8;
  if (e->begin > e->end || e->end > f->data_bytes)
    return FAIL(
        AX_EIO,
        "tensor '%.100s' lies at bytes %lld to %lld of the data, which has %lld (is the file truncated?)",
        e->name, (long long)e->begin, (long long)e->end, (long long)f->data_bytes);
  if (bits && (count % 8 != 0 || e->end - e->begin != bytes))
    return FAIL(AX_EIO, "tensor '%.100s' is %.20s %s, which takes %lld bytes; its offsets give it %lld",
                e->name, type, ax_shape_text(e->ndim, e->shape, text, sizeof text), (long long)bytes,
                (long long)(e->end - e->begin));
  return AX_OK;
}

static ax_status read_entry(cursor *c, const char *name, ax_safetensors_entry *e)
{
  static const char *const keys[] = { "dtype", "shape", "data_offsets" };
  ax_status (*const read[])(cursor *, ax_safetensors_entry *) = { read_dtype, read_shape, read_offsets };
  const ax_safetensors *f = c->f;
  bool seen[3] = { false };
  char *key;
  ax_status st;

  *e = (ax_safetensors_entry){ .name = name };
  skip_space(c);
  if (c->at >= c->end || *c->at != '{') {
    if ((st = skip_value(c, 0)) != AX_OK) return st;
    return FAIL(AX_EIO, "the entry of tensor '%.100s' is not an object", name);
  }
  c->at++;
  if (!accept(c, '}')) {
    do {
      int k = 0;
      if ((st = read_text(c, &key)) != AX_OK) return st;
      if (!accept(c, ':')) return bad_json(c);
      while (k < 3 && strcmp(key, keys[k]) != 0) k++;
      if (k < 3 && seen[k]) return FAIL(AX_EIO, "tensor '%.100s' has \"%s\" twice", name, key);
      if ((st = k < 3 ? read[k](c, e) : skip_value(c, 0)) != AX_OK) return st;
      if (k < 3) seen[k] = true;
    } while (accept(c, ','));
    if (!accept(c, '}')) return bad_json(c);
  }
  for (int k = 0; k < 3; k++)
    if (!seen[k])
      return FAIL(AX_EIO, "tensor '%.100s' has no \"%s\"%s", name, keys[k],
                  k == 2 ? " of two whole numbers" : "");
  return check_sizes(f, e);
}

static ax_status read_metadata(cursor *c)
{
  ax_safetensors *f = c->f;
  char *key, *value;
  ax_status st;

  if (f->meta) return FAIL(AX_EIO, "the file has \"__metadata__\" twice");
  if ((st = ax_grow(&f->meta, 0, &c->room_meta, 2 * sizeof *f->meta)) != AX_OK) return st;
  skip_space(c);
  if (accept_word(c, "null")) return AX_OK;
  if (!accept(c, '{')) return FAIL(AX_EIO, "\"__metadata__\" is not an object");
  if (accept(c, '}')) return AX_OK;
  do {
    if ((st = read_text(c, &key)) != AX_OK) return st;
    if (!accept(c, ':')) return bad_json(c);
    skip_space(c);
    if (c->at < c->end && *c->at != '"') return FAIL(AX_EIO, "the metadata '%.100s' is not a text", key);
    if ((st = read_text(c, &value)) != AX_OK) return st;
    if ((st = ax_grow(&f->meta, f->n_meta, &c->room_meta, 2 * sizeof *f->meta)) != AX_OK) return st;
    f->meta[2 * f->n_meta] = key;
    f->meta[2 * f->n_meta++ + 1] = value;
  } while (accept(c, ','));
  return accept(c, '}') ? AX_OK : bad_json(c);
}

static ax_status read_entries(cursor *c)
{
  ax_safetensors *f = c->f;
  char *name;
  ax_status st;

  if (accept(c, '}')) return AX_OK;
  do {
    if ((st = read_text(c, &name)) != AX_OK) return st;
    if (!accept(c, ':')) return bad_json(c);
    if (strcmp(name, "__metadata__") == 0) {
      if ((st = read_metadata(c)) != AX_OK) return st;
      continue;
    }
    if ((st = ax_grow(&f->entries, f->n, &c->room, sizeof *f->entries)) != AX_OK) return st;
    if ((st = read_entry(c, name, &f->entries[f->n])) != AX_OK) return st;
    f->n++;
  } while (accept(c, ','));
  return accept(c, '}') ? AX_OK : bad_json(c);
}

/* ---- the whole */

/* Control characters, NUL written as an escape (names end at one), bytes that are not UTF-8. */
static ax_status check_text(const ax_safetensors *f)
{
  const unsigned char *s = (const unsigned char *)f->header;
  const size_t n = (size_t)f->header_bytes;

  for (size_t i = 0; i < n;) {
    size_t len = ax_utf8_length(s + i, n - i);
    if (len == 0 || (s[i] < 0x20 && s[i] != '\n' && s[i] != '\r' && s[i] != '\t'))
      return FAIL(AX_EIO, "the header is not text: byte 0x%02x at %zu", s[i], i);
    if (s[i] == '\\') {
      if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0)
        return FAIL(AX_EIO, "the header has a NUL in a name at byte %zu", i);
      len = n - i > 1 && s[i + 1] < 0x80 ? 2 : 1;
    }
    i += len;
  }
  return AX_OK;
}

static int by_name(const void *a, const void *b)
{
  return strcmp((*(const ax_safetensors_entry *const *)a)->name,
                (*(const ax_safetensors_entry *const *)b)->name);
}

static int by_place(const void *a, const void *b)
{
  const ax_safetensors_entry *x = *(const ax_safetensors_entry *const *)a,
                             *y = *(const ax_safetensors_entry *const *)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static int by_key(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ax_status check_names(const ax_safetensors *f)
{
  qsort(f->sorted, (size_t)f->n, sizeof *f->sorted, by_name);
  for (int i = 1; i < f->n; i++)
    if (strcmp(f->sorted[i - 1]->name, f->sorted[i]->name) == 0)
      return FAIL(AX_EIO, "two tensors are called '%.100s'", f->sorted[i]->name);
  if (f->n_meta > 1) qsort(f->meta, (size_t)f->n_meta, 2 * sizeof *f->meta, by_key);
  for (int i = 1; i < f->n_meta; i++)
    if (strcmp(f->meta[2 * i - 2], f->meta[2 * i]) == 0)
      return FAIL(AX_EIO, "the metadata has '%.100s' twice", f->meta[2 * i]);
  return AX_OK;
}

/* Do the tensors cover the data exactly? */
static ax_status check_places(const ax_safetensors *f)
{
  int64_t at = 0;

  qsort(f->sorted, (size_t)f->n, sizeof *f->sorted, by_place);
  for (int i = 0; i < f->n; i++) {
    const ax_safetensors_entry *e = f->sorted[i];
    if (e->begin != at)
      return FAIL(AX_EIO, "tensor '%.100s' begins at byte %lld of the data; expected %lld (%s)", e->name,
                  (long long)e->begin, (long long)at, e->begin < at ? "tensors overlap" : "a hole");
    at = e->end;
  }
  if (at != f->data_bytes)
    return FAIL(AX_EIO, "the file has %lld bytes of data; its tensors take %lld", (long long)f->data_bytes,
                (long long)at);
  return AX_OK;
}

ax_status ax_safetensors_parse(ax_safetensors *f)
{
  cursor c = { f, f->header, f->header + f->header_bytes, 0, 0 };
  ax_status st;

  if (f->header_bytes == 0 || *c.at != '{')
    return FAIL(AX_EIO, "the header does not start with '{' (is it a safetensors file?)");
  if ((st = check_text(f)) != AX_OK) return st;
  c.at++;
  if ((st = read_entries(&c)) != AX_OK) return st;
  skip_space(&c);
  if (c.at < c.end)
    return FAIL(AX_EIO, "the header goes on after its JSON (at byte %lld)", (long long)(c.at - f->header));
  if (!(f->sorted = ax_malloc((size_t)(f->n + 1) * sizeof *f->sorted))) return AX_ENOMEM;
  for (int i = 0; i < f->n; i++) f->sorted[i] = &f->entries[i];
  if ((st = check_places(f)) != AX_OK) return st;
  return check_names(f); /* last: what is found by name later is sorted by it */
}
