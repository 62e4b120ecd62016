// real.h: the element type of every tensor.
//
// float by default; double when built with PRECISION=fp64. In double what was rounding vanishes
// (errors near 1e-16 x work) and what was a bug stays, so every lesson is run in both.
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
