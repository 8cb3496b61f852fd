/* unicode.h: UTF-8 and what Unicode says of a code point.  The tables are unicode_data.inc's,
 * unpacked once by ax_unicode_open. */
#ifndef AX_UNICODE_H
#define AX_UNICODE_H

#include "ax.h"

enum {
  AX_UC_LETTER = 1 << 0,
  AX_UC_NUMBER = 1 << 1,
  AX_UC_MARK = 1 << 2,
  AX_UC_PUNCTUATION = 1 << 3,
  AX_UC_SPACE = 1 << 4, /* White_Space */
  AX_UC_WORD = 1 << 5,  /* \w: alphabetic, marks, decimal digits, connectors, joiners */
  AX_UC_UPPER = 1 << 6, /* Lu, Lt */
  AX_UC_LOWER = 1 << 7, /* Ll */
  AX_UC_NONSPACING = 1 << 8,
  AX_UC_OTHER = 1 << 9, /* Cc, Cf, Co */
  AX_UC_IN_8 = 1 << 10, /* assigned up to Unicode 8.0 */
  AX_UC_IN_9 = 1 << 11,
  AX_UC_HAS_LOWER = 1 << 12,
  AX_UC_CANONICAL = 1 << 13, /* has a canonical mapping */
  AX_UC_COMPAT = 1 << 14,    /* has a compatibility mapping */
  AX_UC_COMBINES = 1 << 15,  /* its combining class is not 0 */
  AX_UC_SYMBOL = 1 << 16,
  AX_UC_SECOND = 1 << 17, /* composes with a character before it */
  AX_UC_BREAK_SHIFT = 20, /* grapheme break property, 4 bits */
};
#define AX_UC_LAST 0x10FFFF

typedef enum {
  AX_BREAK_OTHER,
  AX_BREAK_CR,
  AX_BREAK_LF,
  AX_BREAK_CONTROL,
  AX_BREAK_EXTEND,
  AX_BREAK_ZWJ,
  AX_BREAK_REGIONAL,
  AX_BREAK_PREPEND,
  AX_BREAK_SPACING,
  AX_BREAK_L,
  AX_BREAK_V,
  AX_BREAK_T,
  AX_BREAK_LV,
  AX_BREAK_LVT,
  AX_BREAK_PICTURE,
} ax_break;

extern uint32_t ax_unicode_bits[AX_UC_LAST + 1];
/* Unpacks the tables at the first call. */
void ax_unicode_open(void);

/* The code point at s[0 .. n), and its length.  The text is valid UTF-8 and not empty. */
static inline uint32_t ax_utf8_next(const char *s, int *n)
{
  const uint8_t *p = (const uint8_t *)s;
  if (p[0] < 0x80) return *n = 1, p[0];
  if (p[0] < 0xE0) return *n = 2, (uint32_t)(p[0] & 31) << 6 | (p[1] & 63);
  if (p[0] < 0xF0) return *n = 3, (uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
  *n = 4;
  return (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 | (p[3] & 63);
}
/* Writes at most 4 bytes; returns how many. */
int ax_utf8_put(char *s, uint32_t code);
/* The length of the valid character at s, or 0; then *bad is how many bytes stand for one
 * replacement character (the longest beginning of a character, at least one byte). */
int ax_utf8_check(const char *s, size_t n, int *bad);
/* How many bytes from the beginning are valid. */
size_t ax_utf8_valid(const char *s, size_t n);

uint32_t ax_unicode_lower(uint32_t code); /* U+0130, whose lower case is two characters, stays */
int ax_unicode_combining(uint32_t code);
#define AX_DECOMPOSED 20 /* the longest full decomposition has 18 */
/* The full decomposition of a code point; returns its length. */
int ax_unicode_decompose(uint32_t code, bool compat, uint32_t *out);
/* The character that two compose to, or 0. */
uint32_t ax_unicode_compose(uint32_t a, uint32_t b);
/* Whether a grapheme ends between two characters.  state: of the cluster so far, 0 at its begin. */
bool ax_grapheme_ends(uint32_t before, uint32_t after, int *state);

#endif
