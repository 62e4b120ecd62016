// blas_kernels.h: which of OpenBLAS's kernels compute the products, and whether better ones fit
// this processor. OpenBLAS has kernels for many processors and chooses by the processor's model
// when it is loaded. On a processor that is newer than OpenBLAS it may choose the oldest kernels
// there are, at a fifth of the speed.
#ifndef BLAS_KERNELS_H
#define BLAS_KERNELS_H

// Vector units, of kernels and of processors; each has those before it too. AVX2 means with FMA;
// AVX512 means with what all servers since Skylake have (F, DQ, BW, VL, CD).
typedef enum { VECTORS_SSE, VECTORS_AVX, VECTORS_AVX2, VECTORS_AVX512 } Vectors;

// Where the environment has UNSPLIT_KERNELS, prints kernels_advised() and ends the process: so
// tools/kernels asks a program.
void kernels_answer(void);

const char *kernels_in_use(void);  // "SkylakeX"; NULL: this BLAS does not say
const char *kernels_advised(void); // better than those in use; NULL: there are none
Vectors kernels_processor(void);   // what this processor has; VECTORS_SSE where it is no x86-64
// Better kernels than `core` for such a processor; NULL: there are none, or `core` is not known.
const char *kernels_better(const char *core, Vectors processor);
#endif
