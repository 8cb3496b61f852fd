/* LLM.int8 on the side of x: rows in 8 bits, but for the columns that have a large element. */
#ifndef AX_CPU_INT8_H
#define AX_CPU_INT8_H

#include "decode.h"

enum {
  AX_INT8_ROWS = 4,       /* rows of x that integers multiply, at most */
  AX_INT8_COLS = 1 << 17, /* their sums stay within 32 bits */
};

typedef struct ax_int8_rows {
  int64_t m, cols, n_large;
  float *codes;   /* (m, cols): whole numbers from -127 to 127; 0 in large columns */
  int16_t *whole; /* likewise; NULL where some x is no number, and where rows are many or too long */
  float *scales;  /* (m): the largest magnitude of the rest of each row */
  int64_t *large; /* columns that are multiplied as they are */
} ax_int8_rows;

/* threshold 0: no column is large.  Codes are of x rounded to float16, as in bitsandbytes. */
ax_status ax_int8_rows_of(const float *x, int64_t m, int64_t cols, double threshold, ax_int8_rows *out);
void ax_int8_rows_free(ax_int8_rows *r);
/* y (m, rows) = products of codes, where r has `whole`. */
void ax_int8_multiply(const ax_int8_rows *r, const ax_encoded *e, float *y);
/* y (m, rows) holds products of codes: scales them and adds the bias and the large columns. */
void ax_int8_finish(const ax_int8_rows *r, const ax_encoded *e, const float *x, const float *bias, float *y);

#endif
