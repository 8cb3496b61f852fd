/* yaml_words.c: what an unquoted word of a YAML 1.1 text means, as PyYAML reads it.
 *
 * A word is cut by hand and not by strtod, which reads more: 1e5, inf and 0x1p3 are texts here. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "yaml_tree.h"

/* ---- words for null, true and false */

/* Whether text is `word` in small letters, in capitals, or with a capital in front. */
static bool is_word(const char *text, size_t size, const char *word)
{
  size_t upper = 0;

  if (size != strlen(word)) return false;
  for (size_t i = 0; i < size; i++) {
    if (tolower((unsigned char)text[i]) != word[i]) return false;
    upper += isupper((unsigned char)text[i]) != 0;
  }
  return upper == 0 || upper == size || (upper == 1 && isupper((unsigned char)text[0]));
}

static bool read_truth(const char *text, size_t size, bool *out)
{
  static const char *const words[] = { "no", "false", "off", "yes", "true", "on" };

  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (is_word(text, size, words[i])) {
      *out = i >= 3;
      return true;
    }
  return false;
}

/* ---- numbers */

/* Moves over digits of `base` and underscores; adds to *value and counts the digits. */
static const char *digits(const char *at, const char *end, int base, double *value, int *count)
{
  for (; at < end; at++) {
    int d;
    if (*at == '_') continue;
    d = isdigit((unsigned char)*at)   ? *at - '0'
        : isalpha((unsigned char)*at) ? tolower((unsigned char)*at) - 'a' + 10
                                      : 99;
    if (d >= base) break;
    *value = *value * base + d;
    ++*count;
  }
  return at;
}

/* ":30" or ":5", several times: *value in units of the last place.  NULL: the text is no such
 * number. */
static const char *sixties(const char *at, const char *end, double *value)
{
  while (at < end && *at == ':') {
    int n = 0;
    double part = 0;
    for (at++; at < end && isdigit((unsigned char)*at) && n < 2; at++, n++) part = part * 10 + (*at - '0');
    if (n == 0 || part >= 60) return NULL;
    *value = *value * 60 + part;
  }
  return at;
}

/* The number without its underscores, by strtod: a decimal fraction must be rounded once. */
static double fraction(const char *at, const char *end)
{
  char text[64];
  size_t n = 0;

  for (; at < end && n + 1 < sizeof text; at++)
    if (*at != '_') text[n++] = *at;
  text[n] = '\0';
  return strtod(text, NULL);
}

/* "e+5" at the end, or nothing. */
static bool is_exponent(const char *at, const char *end)
{
  if (at == end) return true;
  if (end - at < 3 || (*at != 'e' && *at != 'E') || (at[1] != '+' && at[1] != '-')) return false;
  for (at += 2; at < end && isdigit((unsigned char)*at);) at++;
  return at == end;
}

static ax_yaml_kind read_int(const char *at, const char *end, double *value)
{
  const char *stop;
  int n = 0;

  *value = 0;
  if (at == end || !isdigit((unsigned char)*at)) return AX_YAML_TEXT;
  if (*at == '0' && end - at > 2 && (at[1] == 'b' || at[1] == 'x')) {
    stop = digits(at + 2, end, at[1] == 'b' ? 2 : 16, value, &n);
    return stop == end && n > 0 ? AX_YAML_INT : AX_YAML_TEXT;
  }
  if (*at == '0') return digits(at, end, 8, value, &n) == end ? AX_YAML_INT : AX_YAML_TEXT;
  stop = digits(at, end, 10, value, &n);
  if (stop < end && *stop == ':') stop = sixties(stop, end, value);
  else if (stop == end && n > 15) *value = fraction(at, end);
  return stop == end ? AX_YAML_INT : AX_YAML_TEXT;
}

static ax_yaml_kind read_float(const char *at, const char *end, bool sign, double *value)
{
  const char *from = at, *stop;
  double whole = 0;
  int n = 0, after = 0;

  if (end - at == 4 && *at == '.') {
    if (is_word(at + 1, 3, "inf")) return *value = INFINITY, AX_YAML_FLOAT;
    if (!sign && (memcmp(at, ".nan", 4) == 0 || memcmp(at, ".NaN", 4) == 0 || memcmp(at, ".NAN", 4) == 0))
      return *value = NAN, AX_YAML_FLOAT;
  }
  if (at < end && *at == '.') { /* .5, and -.5 is a text */
    if (sign || at + 1 == end || !isdigit((unsigned char)at[1])) return AX_YAML_TEXT;
    at = digits(at + 1, end, 10, &whole, &after);
  } else {
    if (at == end || !isdigit((unsigned char)*at)) return AX_YAML_TEXT;
    at = digits(at, end, 10, &whole, &n);
    if (at < end && *at == ':') {
      if (!(stop = sixties(at, end, &whole)) || stop == end || *stop != '.') return AX_YAML_TEXT;
      at = digits(stop + 1, end, 10, &(double){ 0 }, &after);
      if (at != end) return AX_YAML_TEXT;
      return *value = whole + (after ? fraction(stop, end) : 0), AX_YAML_FLOAT;
    }
    if (at == end || *at != '.') return AX_YAML_TEXT;
    at = digits(at + 1, end, 10, &whole, &after);
  }
  if (!is_exponent(at, end)) return AX_YAML_TEXT;
  *value = fraction(from, end);
  return AX_YAML_FLOAT;
}

ax_yaml_kind ax_yaml_resolve(const char *text, size_t size, bool *truth, double *number)
{
  const char *at = text, *end = text + size;
  const bool sign = size > 0 && (*text == '-' || *text == '+');
  ax_yaml_kind kind;

  if (size == 0 || (size == 1 && *text == '~') || is_word(text, size, "null")) return AX_YAML_NULL;
  if (read_truth(text, size, truth)) return AX_YAML_BOOL;
  if (size > 60) return AX_YAML_TEXT; /* longer words are not meant as numbers */
  at += sign;
  if ((kind = read_int(at, end, number)) == AX_YAML_TEXT) kind = read_float(at, end, sign, number);
  if (kind != AX_YAML_TEXT && *text == '-') *number = -*number;
  return kind;
}

const char *ax_yaml_kind_name(ax_yaml_kind kind)
{
  static const char *const names[] = { "nothing", "true or false", "a whole number", "a number",
                                       "a text",  "a list",        "a map" };
  return names[kind];
}
