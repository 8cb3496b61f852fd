/* The words of factor.def, for rules and kernels: the numbers follow the order there. */
#ifndef AX_FACTOR_H
#define AX_FACTOR_H

enum { AX_QR_REDUCED, AX_QR_COMPLETE, AX_QR_R };
enum { AX_LSTSQ_GELS, AX_LSTSQ_GELSY, AX_LSTSQ_GELSD, AX_LSTSQ_GELSS };

#endif
