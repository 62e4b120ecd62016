// device_cuda.h: declares the functions that device_cuda.c shares with for_each_cuda.h and
// comm_nccl.c.
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H
#include <cuda_runtime.h>
#include <stddef.h>

enum { THREADS = 256 }; // threads of a block
// Returns the stream on which this rank's next op or copy runs: the rank's own stream, or the
// stream that device_divert() has set.
cudaStream_t device_stream(void);
// Later ops and copies of this rank run on `stream`, until a call with NULL. Products stay on the
// rank's own stream.
void device_divert(cudaStream_t stream);
// Returns the number of blocks of THREADS threads for n items, with one thread per item.
unsigned device_blocks(const char *op, size_t n);
// Calls fault() if the launch of the op's kernel has failed. Call this function after each launch.
void device_launched(const char *op, cudaError_t error);
// If error is not cudaSuccess, calls fault() with the name of the call, CUDA's text for the error,
// and for some errors advice.
void check_cuda(cudaError_t error, const char *call);
#define CUDA(call) check_cuda(call, #call)
#endif
