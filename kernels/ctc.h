/* What the kernels of ctc_loss share.  A sequence's places are its targets with blanks before,
 * between and behind them. */
#ifndef AX_CTC_H
#define AX_CTC_H

#include "fn.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* log(e^a + e^b + e^c); what is not a number stays. */
AX_FN double ax_ctc_add_up(double a, double b, double c)
{
  const double m = fmax(a, fmax(b, c));
  double sum = 0;
  if (m == -INFINITY) return a + b + c;
  if (a != -INFINITY) sum += exp(a - m);
  if (b != -INFINITY) sum += exp(b - m);
  if (c != -INFINITY) sum += exp(c - m);
  return m + log(sum);
}

AX_FN int64_t ax_ctc_class_at(int64_t blank, const int64_t *target, int64_t place)
{
  return place % 2 ? target[place / 2] : blank;
}

/* May a way go from place s - 2 to s at once?  Not between equal classes. */
AX_FN bool ax_ctc_leaps(int64_t blank, const int64_t *target, int64_t s)
{
  return s >= 2 && s % 2 && target[s / 2] != target[s / 2 - 1] && target[s / 2] != blank;
}

#endif
