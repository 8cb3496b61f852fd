/* csv.c: text files of rows and columns.
 *
 * Fields are separated by one character.  A quoted field may contain it, line ends, and doubled
 * quotes.  Lines end with LF or CR LF.  The file is read into memory; quotes are removed in place,
 * and each field ends with a NUL, so that numbers can be parsed in place. */
#include "io.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/io/file.h"

#define FN "read_csv"
#define FAIL(st, fmt, ...) AX_FILE_FAIL(st, FN, path, fmt, ##__VA_ARGS__)

typedef struct field {
  char *at;
  size_t n;
} field;

struct ax_csv {
  char *path, *text;
  field *fields;  /* [rows][columns] */
  int64_t *lines; /* the line on which each row begins, from 1 */
  int64_t rows, columns;
};

/* ---- cutting the text into fields */

typedef struct cutter {
  const char *path;
  char *at, *end;
  char delimiter, quote;
  int64_t line;
  ax_csv *csv;
  int64_t n_fields, field_room, row_room;
} cutter;

static ax_status add_field(cutter *c, char *at, size_t n)
{
  const char *path = c->path;
  if (c->n_fields == c->field_room) {
    const int64_t room = c->field_room * 2 + 256;
    field *grown = realloc(c->csv->fields, (size_t)room * sizeof *grown);
    if (!grown) return FAIL(AX_ENOMEM, "no memory for %lld fields", (long long)room);
    c->csv->fields = grown;
    c->field_room = room;
  }
  c->csv->fields[c->n_fields++] = (field){ at, n };
  return AX_OK;
}

static bool at_line_end(const cutter *c)
{
  return c->at >= c->end || *c->at == '\n' || (*c->at == '\r' && (c->at + 1 == c->end || c->at[1] == '\n'));
}

/* Reads a quoted field; its text moves forward over the removed quotes. */
static ax_status read_quoted(cutter *c)
{
  const char *path = c->path;
  const int64_t began = c->line;
  char *start = ++c->at, *to = start;

  for (;;) {
    if (c->at >= c->end) return FAIL(AX_EIO, "line %lld: a quoted field has no end", (long long)began);
    if (*c->at == c->quote) {
      if (c->at + 1 < c->end && c->at[1] == c->quote) c->at++;
      else break;
    }
    if (*c->at == '\n') c->line++;
    *to++ = *c->at++;
  }
  c->at++;
  if (!at_line_end(c) && *c->at != c->delimiter)
    return FAIL(AX_EIO, "line %lld: text after the end of a quoted field", (long long)c->line);
  return add_field(c, start, (size_t)(to - start));
}

static ax_status read_row(cutter *c)
{
  ax_status st;

  for (;;) {
    if (c->at < c->end && *c->at == c->quote && c->quote) {
      if ((st = read_quoted(c)) != AX_OK) return st;
    } else {
      char *start = c->at;
      while (!at_line_end(c) && *c->at != c->delimiter) c->at++;
      if ((st = add_field(c, start, (size_t)(c->at - start))) != AX_OK) return st;
    }
    if (c->at < c->end && *c->at == c->delimiter && !at_line_end(c)) c->at++;
    else break;
  }
  return AX_OK;
}

static void end_line(cutter *c)
{
  if (c->at < c->end && *c->at == '\r') c->at++;
  if (c->at < c->end) c->at++;
  c->line++;
}

static ax_status cut(cutter *c, int64_t skip)
{
  const char *path = c->path;
  ax_csv *csv = c->csv;
  ax_status st;

  for (; skip > 0 && c->at < c->end; skip--) {
    while (c->at < c->end && *c->at != '\n') c->at++;
    end_line(c);
  }
  while (c->at < c->end) {
    const int64_t before = c->n_fields, line = c->line;
    if (at_line_end(c)) { /* a blank line */
      end_line(c);
      continue;
    }
    if ((st = read_row(c)) != AX_OK) return st;
    end_line(c);
    if (csv->rows == 0) csv->columns = c->n_fields;
    else if (c->n_fields - before != csv->columns)
      return FAIL(AX_EIO, "line %lld has %lld fields, line %lld has %lld", (long long)line,
                  (long long)(c->n_fields - before), (long long)csv->lines[0], (long long)csv->columns);
    if (csv->rows == c->row_room) {
      const int64_t room = c->row_room * 2 + 64;
      int64_t *grown = realloc(csv->lines, (size_t)room * sizeof *grown);
      if (!grown) return FAIL(AX_ENOMEM, "no memory for %lld rows", (long long)room);
      csv->lines = grown;
      c->row_room = room;
    }
    csv->lines[csv->rows++] = line;
  }
  /* only now: the cutter reads the character behind a field */
  for (int64_t i = 0; i < c->n_fields; i++) csv->fields[i].at[csv->fields[i].n] = '\0';
  return AX_OK;
}

ax_status ax_csv_read(const char *path, const ax_csv_options *o, ax_csv **out)
{
  ax_bytes file;
  ax_status st;
  ax_csv *csv;

  *out = NULL;
  if ((st = ax_file_read(FN, path, (size_t)1 << 40, &file)) != AX_OK) return st;
  if (!(csv = ax_calloc(1, sizeof *csv)) || !(csv->path = strdup(path)) ||
      !(csv->text = malloc(file.n + 1))) {
    ax_csv_free(csv);
    ax_bytes_free(&file);
    return FAIL(AX_ENOMEM, "no memory for its %zu bytes", file.n);
  }
  if (file.n) memcpy(csv->text, file.data, file.n);
  csv->text[file.n] = '\0';
  cutter c = { .path = path,
               .at = csv->text,
               .end = csv->text + file.n,
               .delimiter = o->delimiter,
               .quote = o->quote,
               .line = 1,
               .csv = csv };
  st = ax_bytes_check(FN, path, &file);
  ax_bytes_free(&file);
  /* the byte order mark that some programs write before UTF-8 */
  if (c.end - c.at >= 3 && memcmp(c.at, "\xef\xbb\xbf", 3) == 0) c.at += 3;
  if (st != AX_OK || (st = cut(&c, o->skip)) != AX_OK) {
    ax_csv_free(csv);
    return st;
  }
  *out = csv;
  return AX_OK;
}

void ax_csv_free(ax_csv *c)
{
  if (!c) return;
  free(c->path);
  free(c->text);
  free(c->fields);
  free(c->lines);
  ax_mfree(c);
}

int64_t ax_csv_rows(const ax_csv *c) { return c->rows; }
int64_t ax_csv_columns(const ax_csv *c) { return c->columns; }

const char *ax_csv_field(const ax_csv *c, int64_t row, int64_t column, size_t *n)
{
  const field *f = &c->fields[row * c->columns + column];
  *n = f->n;
  return f->at;
}

/* ---- numbers */

typedef enum { INTEGER, NUMBER, MISSING, TEXT } kind;

static const char *skip_space(const char *s)
{
  while (*s == ' ' || *s == '\t') s++;
  return s;
}

static kind kind_of(const field *f, int64_t *i, double *d)
{
  const char *s = skip_space(f->at);
  char *end;

  if (!*s) return strlen(f->at) == f->n ? MISSING : TEXT; /* a NUL inside is text */
  for (const char *c = s; *c; c++)
    if (*c == 'x' || *c == 'X' || *c == '(') return TEXT; /* strtod would accept hexadecimals and nan(...) */
  errno = 0;
  *i = strtoll(s, &end, 10);
  if (end != s && !*skip_space(end) && errno == 0 && strlen(f->at) == f->n) {
    *d = (double)*i;
    return INTEGER;
  }
  *d = strtod(s, &end);
  return end != s && !*skip_space(end) && strlen(f->at) == f->n ? NUMBER : TEXT;
}

static bool bool_of(const char *s, double *out)
{
  static const char *const words[] = { "0", "false", "False", "FALSE", "no",
                                       "1", "true",  "True",  "TRUE",  "yes" };
  for (int i = 0; i < 10; i++)
    if (strcmp(skip_space(s), words[i]) == 0) {
      *out = i >= 5;
      return true;
    }
  return false;
}

/* Fills t with the fields; every field of a TYPED column must fit. */
static ax_status fill(const ax_csv *c, int64_t first, int64_t column, const char *name, ax_tensor *t)
{
  const char *path = c->path;
  const ax_dtype dtype = (ax_dtype)t->dtype;

  for (int64_t row = first; row < c->rows; row++) {
    const field *f = &c->fields[row * c->columns + column];
    int64_t i = 0;
    double d = 0;
    kind k = kind_of(f, &i, &d);
    if (dtype == AX_BOOL && !bool_of(f->at, &d)) k = TEXT;
    else if (dtype == AX_BOOL) k = NUMBER;
    if (k == MISSING && ax_is_float(dtype)) d = NAN;
    else if (k == TEXT || k == MISSING || (!ax_is_float(dtype) && dtype != AX_BOOL && k != INTEGER) ||
             (dtype == AX_U8 && (i < 0 || i > 255)) || (dtype == AX_I32 && (i < INT32_MIN || i > INT32_MAX)))
      return FAIL(AX_EIO, "line %lld, column '%s': '%.40s' is no %s", (long long)c->lines[row], name, f->at,
                  ax_dtype_name(dtype));
    if (ax_is_float(dtype) || dtype == AX_BOOL) ax_store_double(dtype, ax_data(t), row - first, d);
    else ax_store_int(dtype, ax_data(t), row - first, i);
  }
  return AX_OK;
}

ax_status ax_csv_column(const ax_csv *c, int64_t first, int64_t column, const char *name, ax_csv_kind wanted,
                        ax_dtype dtype, ax_tensor **out)
{
  int64_t rows = c->rows - first, numbers = 0;
  bool integral = true;
  ax_status st;

  *out = NULL;
  if (rows < 0) rows = 0;
  if (wanted == AX_CSV_TEXT) return AX_OK;
  if (wanted == AX_CSV_GUESS) {
    for (int64_t row = first; row < c->rows; row++) {
      int64_t i;
      double d;
      const kind k = kind_of(&c->fields[row * c->columns + column], &i, &d);
      if (k == TEXT) return AX_OK;
      if (k != MISSING) numbers++;
      if (k != INTEGER) integral = false;
    }
    if (numbers == 0) return AX_OK; /* no numbers at all: text */
    if (integral) dtype = AX_I64;
  }
  if ((st = ax_file_tensor(FN, c->path, dtype, 1, &rows, out)) != AX_OK) return st;
  if ((st = fill(c, first, column, name, *out)) != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  return st;
}
