// device_cuda.h: what device_cuda.c shares with for_each_cuda.h and comm_nccl.c. Nobody else
// includes it.
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H
#include <cuda_runtime.h>
#include <stddef.h>

enum { THREADS = 256 };                  // of a block
cudaStream_t device_stream(void);        // this rank's: all its ops, copies and products
void device_divert(cudaStream_t stream); // ops go there from now on; NULL: to its own again
unsigned device_blocks(const char *op, size_t n);        // for n items, one a thread
void device_launched(const char *op, cudaError_t error); // after a launch: fault() when it failed
// fault() with its text, and advice where there is some
void check_cuda(cudaError_t error, const char *call);
#define CUDA(call) check_cuda(call, #call)
#endif
