/* patterns.c: the regular expressions by which models' tokenizers split texts, each as a scanner:
 * where the match at a place ends.  `?` and `+` take as much as they can; where an alternative of
 * the expression could give characters back, the scanner says what that comes to. */
#include "text/flow.h"

enum { L = AX_UC_LETTER, N = AX_UC_NUMBER, S = AX_UC_SPACE };

static inline uint32_t bits_at(const char *s, int64_t at, int *size)
{
  return ax_unicode_bits[ax_utf8_next(s + at, size)];
}

/* The end of the run of characters of class `of`. */
static inline int64_t run(const char *s, int64_t at, int64_t n, uint32_t of)
{
  int size;
  while (at < n && bits_at(s, at, &size) & of) at += size;
  return at;
}

/* The end of the run of characters of no class of `of`. */
static inline int64_t run_not(const char *s, int64_t at, int64_t n, uint32_t of)
{
  int size;
  while (at < n && !(bits_at(s, at, &size) & of)) at += size;
  return at;
}

/* 's|'t|'re|'ve|'m|'ll|'d, in any case where `fold`. */
static int64_t contraction(const char *s, int64_t at, int64_t n, bool fold)
{
  const uint8_t case_bit = fold ? 32 : 0;
  uint8_t a, b;

  if (s[at] != '\'' || at + 1 >= n) return 0;
  a = (uint8_t)s[at + 1] | case_bit;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if (at + 2 >= n) return 0;
  b = (uint8_t)s[at + 2];
  if (fold && (uint8_t)s[at + 1] == 0xC5 && b == 0xBF) return at + 3; /* long s */
  b |= case_bit;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? at + 3 : 0;
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last one to what follows, unless it is the only
 * one. */
static int64_t spaces(const char *s, int64_t at, int64_t n)
{
  int64_t last = at, end = at;
  int size;

  for (; end < n && bits_at(s, end, &size) & S; end += size) last = end;
  return end < n && last > at ? last : end;
}

static int64_t gpt2(const char *s, int64_t at, int64_t n)
{
  int64_t from, end;
  int size;
  uint32_t bits;

  if ((end = contraction(s, at, n, false)) > 0) return end;
  from = s[at] == ' ' && at + 1 < n ? at + 1 : at;
  bits = bits_at(s, from, &size);
  if (bits & L) return run(s, from + size, n, L);
  if (bits & N) return run(s, from + size, n, N);
  if (!(bits & S)) return run_not(s, from + size, n, L | N | S);
  return spaces(s, at, n);
}

/* \s*[\r\n]+ : up to the last line end of a run of spaces; 0: it has none. */
static int64_t lines(const char *s, int64_t at, int64_t n)
{
  int64_t end = 0;
  int size;

  for (; at < n && bits_at(s, at, &size) & S; at += size)
    if (s[at] == '\n' || s[at] == '\r') end = at + size;
  return end;
}

static inline int64_t llama(const char *s, int64_t at, int64_t n, int digits)
{
  int64_t end, from;
  int size, next;
  uint32_t bits;

  if ((end = contraction(s, at, n, true)) > 0) return end;
  bits = bits_at(s, at, &size);
  if (bits & L) return run(s, at + size, n, L);
  if (bits & N) {
    for (end = at + size; --digits > 0 && end < n && bits_at(s, end, &size) & N;) end += size;
    return end;
  }
  if (s[at] != '\r' && s[at] != '\n' && at + size < n && bits_at(s, at + size, &next) & L)
    return run(s, at + size + next, n, L);
  from = s[at] == ' ' && at + 1 < n ? at + 1 : at;
  if (!(bits_at(s, from, &size) & (L | N | S))) {
    end = run_not(s, from + size, n, L | N | S);
    while (end < n && (s[end] == '\r' || s[end] == '\n')) end++;
    return end;
  }
  if ((end = lines(s, at, n)) > 0) return end;
  return spaces(s, at, n);
}

static int64_t llama3(const char *s, int64_t at, int64_t n) { return llama(s, at, n, 3); }
static int64_t qwen2(const char *s, int64_t at, int64_t n) { return llama(s, at, n, 1); }

/* Of o200k: capitals, or what has no case; small letters, or what has no case. */
static inline bool is_head(uint32_t bits)
{
  return bits & (AX_UC_UPPER | AX_UC_MARK) || (bits & (L | AX_UC_LOWER)) == L;
}
static inline bool is_tail(uint32_t bits) { return bits & AX_UC_MARK || (bits & (L | AX_UC_UPPER)) == L; }

/* head* tail+ from `at`, else head+ tail* and *second; 0: neither.  Where no small letter follows
 * the run of heads, the first one gives characters back up to the last one that is a tail, too. */
static int64_t word_of_case(const char *s, int64_t at, int64_t n, bool *second)
{
  int64_t end = at, tail_end = 0;
  int size;
  uint32_t bits;

  *second = false;
  for (; end < n && is_head(bits = bits_at(s, end, &size)); end += size)
    if (is_tail(bits)) tail_end = end + size;
  if (end >= n || !is_tail(bits_at(s, end, &size))) {
    *second = tail_end == 0;
    return tail_end > 0 ? tail_end : end > at ? end : 0;
  }
  while (end < n && is_tail(bits_at(s, end, &size))) end += size;
  return end;
}

static int64_t o200k(const char *s, int64_t at, int64_t n)
{
  int64_t end = 0, from, more;
  int size;
  bool second = false;
  const uint32_t bits = bits_at(s, at, &size);

  /* A character before the word; a mark that could be that one can be the word itself, too. */
  if (s[at] != '\r' && s[at] != '\n' && !(bits & (L | N)) && at + size < n)
    end = word_of_case(s, at + size, n, &second);
  if (end == 0 || (second && bits & AX_UC_MARK)) {
    more = word_of_case(s, at, n, &second);
    if (end == 0 || !second) end = more;
  }
  if (end > 0) {
    more = end < n ? contraction(s, end, n, true) : 0;
    return more > 0 ? more : end;
  }
  if (bits & N) {
    int digits = 3;
    for (end = at + size; --digits > 0 && end < n && bits_at(s, end, &size) & N;) end += size;
    return end;
  }
  from = s[at] == ' ' && at + 1 < n ? at + 1 : at;
  if (!(bits_at(s, from, &size) & (L | N | S))) {
    end = run_not(s, from + size, n, L | N | S);
    while (end < n && (s[end] == '\r' || s[end] == '\n' || s[end] == '/')) end++;
    return end;
  }
  if ((end = lines(s, at, n)) > 0) return end;
  return spaces(s, at, n);
}

/* Nothing of it matches white space. */
static int64_t clip(const char *s, int64_t at, int64_t n)
{
  int64_t end;
  int size;
  uint32_t bits;

  if ((end = contraction(s, at, n, false)) > 0) return end;
  bits = bits_at(s, at, &size);
  if (bits & L) return run(s, at + size, n, L);
  if (bits & N) return at + size;
  return bits & S ? 0 : run_not(s, at + size, n, L | N | S);
}

static const struct {
  const char *expression;
  ax_pattern_fn match;
} patterns[] = {
  { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", gpt2 },
  { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    llama3 },
  { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    qwen2 },
  { "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'"
    "ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    o200k },
  { "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", clip },
};

int ax_pattern_find(ax_text e)
{
  for (int i = 0; i < (int)(sizeof patterns / sizeof *patterns); i++)
    if (strlen(patterns[i].expression) == e.n && memcmp(patterns[i].expression, e.s, e.n) == 0) return i;
  return -1;
}

ax_pattern_fn ax_pattern_of(int number)
{
  return number >= 0 && number < (int)(sizeof patterns / sizeof *patterns) ? patterns[number].match : NULL;
}
