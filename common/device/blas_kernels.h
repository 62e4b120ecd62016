// blas_kernels.h: declares functions that return the name of OpenBLAS's kernels in use, and of
// better kernels for this processor. OpenBLAS chooses its kernels by the processor's model. For a
// processor newer than the library OpenBLAS may choose its oldest kernels, which run at a fifth of
// the speed.
#ifndef BLAS_KERNELS_H
#define BLAS_KERNELS_H

// Vectors says which vector units a kernel needs, or a processor has. Each value includes the
// values before it. AVX2 includes FMA. AVX512 stands for the extensions F, DQ, BW, VL and CD, which
// Intel's server processors since Skylake have.
typedef enum { VECTORS_SSE, VECTORS_AVX, VECTORS_AVX2, VECTORS_AVX512 } Vectors;

// Returns the name of the kernels in use, such as "SkylakeX". Returns NULL if the BLAS is not
// OpenBLAS.
const char *kernels_in_use(void);
// Returns the name of better kernels than the kernels in use, or NULL if there are none.
const char *kernels_advised(void);
// Returns the vector units of this processor, or VECTORS_SSE if the processor is no x86-64.
Vectors kernels_processor(void);
// Returns the name of better kernels than `core` for a processor with these vector units. Returns
// NULL if there are none, or if `core` is unknown.
const char *kernels_better(const char *core, Vectors processor);
#endif
