// blas_kernels.h: names the kernels that OpenBLAS uses, and better kernels for this processor.
// OpenBLAS chooses its kernels by the processor's model while it is loaded. On a newer processor
// OpenBLAS may choose its oldest kernels, at a fifth of the speed.
#ifndef BLAS_KERNELS_H
#define BLAS_KERNELS_H

// Vector units of kernels and of processors. Each unit includes the units before it. AVX2 includes
// FMA. AVX512 includes F, DQ, BW, VL and CD, as Intel's servers since Skylake do.
typedef enum { VECTORS_SSE, VECTORS_AVX, VECTORS_AVX2, VECTORS_AVX512 } Vectors;

// Returns a name such as "SkylakeX", or NULL if this BLAS does not tell the name.
const char *kernels_in_use(void);
// Returns better kernels than those in use, or NULL if there are none.
const char *kernels_advised(void);
// Returns the vector units of this processor, or VECTORS_SSE if the processor is no x86-64.
Vectors kernels_processor(void);
// Returns better kernels than `core` for a processor with these units. Returns NULL if there are
// none, or if `core` is unknown.
const char *kernels_better(const char *core, Vectors processor);
#endif
