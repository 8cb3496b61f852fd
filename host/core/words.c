/* words.c: how near two words are, for "did you mean". */
#include <limits.h>
#include <string.h>

#include "ax.h"

enum { LONGEST = 63 };

static int lesser(int a, int b) { return a < b ? a : b; }

/* Letters of either case alike.  (Other characters of names stay apart: digits, '_', '-', '.'.) */
static bool same(char a, char b) { return (a | 32) == (b | 32); }

int ax_word_distance(const char *a, const char *b)
{
  int d[3][LONGEST + 1];
  const size_t na = strnlen(a, LONGEST + 1), nb = strnlen(b, LONGEST + 1);

  if (na > LONGEST || nb > LONGEST) return INT_MAX;
  for (size_t j = 0; j <= nb; j++) d[0][j] = (int)j;
  for (size_t i = 1; i <= na; i++) {
    int *now = d[i % 3], *last = d[(i + 2) % 3], *before = d[(i + 1) % 3];
    now[0] = (int)i;
    for (size_t j = 1; j <= nb; j++) {
      now[j] = lesser(lesser(last[j], now[j - 1]) + 1, last[j - 1] + !same(a[i - 1], b[j - 1]));
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = lesser(now[j], before[j - 2] + 1);
    }
  }
  return d[na % 3][nb];
}
