/* The words of _scatter_reduce's `reduce`. */
#ifndef AX_SCATTER_H
#define AX_SCATTER_H

enum { AX_SCATTER_PROD, AX_SCATTER_AMAX, AX_SCATTER_AMIN };

#endif
