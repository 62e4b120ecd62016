// process.h: begins and ends a process, which a launcher of MPI may have started.
#ifndef PROCESS_H
#define PROCESS_H
#include <stdbool.h>
#include <stddef.h>

// Does the environment show that a launcher started this process? Call process_launched() before
// the options are parsed. *rank is 0 without a launcher.
bool process_launched(size_t *rank, size_t *size);
void process_begin(int *argc, char ***argv); // calls MPI_Init if a launcher started the process
// Chooses a GPU for this process. Returns true if no two processes of one host have the same GPU.
// All processes must call this function.
bool process_own_gpus(void);
void process_end(int status); // status: the exit status that main() returns next
#endif
