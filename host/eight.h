/* eight.h: weights that are gathered in eight bits, where a layout is cut over ranks
 * (core/params/eight.c). */
#ifndef AX_EIGHT_H
#define AX_EIGHT_H

#include "flat.h"

/* Has a layout whose values were cut gathered in float8_e4m3fn wherever its model computes: each
 * parameter, a matrix, rounded to `via` and then times the scale that makes its largest size the
 * type's.  The bits are those of casting the whole.  Whoever needs the values in another type has
 * them gathered once more.  Nothing happens where the ranks have the values in memory of all.
 * EINVAL for a layout that has no parts or no matrices, or is gathered in another half type. */
AX_API ax_status ax_flat_gather_in_eight(ax_flat *f, ax_dtype via);
/* Is the layout gathered so? */
AX_API bool ax_flat_gathers_eight(const ax_flat *f);
/* A parameter in eight bits, rounded to `via` before, and 1 / its scale, of one element: views of
 * memory that comes and goes as the parameter's.  New references; NULL where it is not gathered
 * so. */
AX_API ax_status ax_flat_in_eight(const ax_tensor *param, ax_dtype via, ax_tensor **values,
                                  ax_tensor **factor);

#endif
