// real.h: defines the type of all arithmetic, and the types in which a tensor may be stored.
//
// real is float by default, and double with PRECISION=fp64. In double precision, rounding errors
// vanish (the relative error of one operation is near 1e-16) and bugs remain. So every lesson runs
// in fp32 and in fp64.
#ifndef REAL_H
#define REAL_H

#ifdef REAL_IS_DOUBLE
typedef double real;
#define REAL_NAME "fp64"
#else
typedef float real;
#define REAL_NAME "fp32"
#endif

// The type of an element. A tensor has REALS, BF16S or FP16S. Ops compute in real. The 16-bit types
// serve only for storage. An op turns 16-bit elements into reals when it reads them, and rounds a
// result once, when it writes the result (storage.h). A Comm also moves DOUBLES and BYTES, in host
// memory.
typedef enum { REALS, BF16S, FP16S, DOUBLES, BYTES } Element;

#endif
