// process.h: declares the begin and the end of a process, which a launcher of MPI may have started.
#ifndef PROCESS_H
#define PROCESS_H
#include <stdbool.h>
#include <stddef.h>

// Returns whether a launcher started this process. Before process_begin() the answer comes from the
// environment. Without a launcher *rank is 0 and *size is 1.
bool process_launched(size_t *rank, size_t *size);
void process_begin(int *argc, char ***argv); // starts MPI if a launcher started the process
// Chooses a GPU for this process. Returns true if on every host all processes have different GPUs.
// All processes must call this function.
bool process_own_gpus(void);
void process_end(int status); // ends MPI; status: the exit status that main() returns next
#endif
