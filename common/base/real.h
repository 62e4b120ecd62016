// real.h: the element type of every tensor.
//
// float by default, double with PRECISION=fp64. In double precision, rounding errors vanish (they
// are near 1e-16 x work) and bugs remain. So every lesson runs in both precisions.
#ifndef REAL_H
#define REAL_H

#ifdef REAL_IS_DOUBLE
typedef double real;
#define REAL_NAME "fp64"
#else
typedef float real;
#define REAL_NAME "fp32"
#endif

#endif
