// real.h: defines the type of all arithmetic, and the types in which a tensor may be stored.
//
// real is float by default, and double with PRECISION=fp64. In double precision, rounding errors
// vanish (they are near 1e-16 x work) and bugs remain. So every lesson runs in both precisions.
#ifndef REAL_H
#define REAL_H

#ifdef REAL_IS_DOUBLE
typedef double real;
#define REAL_NAME "fp64"
#else
typedef float real;
#define REAL_NAME "fp32"
#endif

// The element type of a tensor. Ops compute in real. A tensor of 16 bits only stores. Its elements
// become reals when they are read, and a result is rounded once, when it is written (storage.h).
// Doubles and bytes are host memory that a Comm moves.
typedef enum { REALS, BF16S, FP16S, DOUBLES, BYTES } Element;

#endif
