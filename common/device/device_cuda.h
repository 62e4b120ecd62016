// device_cuda.h: the functions that device_cuda.c shares with for_each_cuda.h and comm_nccl.c. No
// other file includes it.
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H
#include <cuda_runtime.h>
#include <stddef.h>

enum { THREADS = 256 };                  // threads of a block
cudaStream_t device_stream(void);        // this rank's stream: all its ops, copies and products
void device_divert(cudaStream_t stream); // ops go to this stream until the call with NULL
unsigned device_blocks(const char *op, size_t n); // blocks for n items, one thread per item
// Call it after a launch. fault() if the launch has failed.
void device_launched(const char *op, cudaError_t error);
// fault() if error is not cudaSuccess, with CUDA's text and advice.
void check_cuda(cudaError_t error, const char *call);
#define CUDA(call) check_cuda(call, #call)
#endif
