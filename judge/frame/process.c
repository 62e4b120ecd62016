// process.c: begins and ends a process, which a launcher of MPI may have started.
#define _GNU_SOURCE // process_vm_readv
#include "judge/frame/process.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/comm/comm_mpi.h"
#include "common/comm/waits.h"
#include "common/device/device.h"

static MPI_Comm host; // all processes of the node, from process_begin to process_end

static bool number_in_environment(const char *const *names, size_t *value) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (!text) continue;
        *value = strtoul(text, NULL, 10);
        return true;
    }
    return false;
}

// The names are variables of Open MPI's mpirun, PMIx (srun --mpi=pmix) and PMI (MPICH, srun
// --mpi=pmi2). PMIx does not set the size, but Slurm does.
bool process_launched(size_t *rank, size_t *size) {
    static const char *const rank_names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                              NULL };
    static const char *const size_names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                              "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL };
    *rank = ranks_are_processes ? this_rank : 0;
    *size = ranks_are_processes ? this_world_size : 1;
    if (ranks_are_processes) return true;
    if (!number_in_environment(rank_names, rank)) return false;
    number_in_environment(size_names, size);
    return true;
}

bool process_own_gpus(void) {
    int rank, size, different = 1, everywhere;
    char id[32];
    MPI(MPI_Comm_rank(host, &rank));
    MPI(MPI_Comm_size(host, &size));
    device_choose((size_t)rank);
    device_id(id);
    char(*all)[32] = host_alloc((size_t)size * sizeof *all);
    MPI(MPI_Allgather(id, sizeof id, MPI_CHAR, all, sizeof *all, MPI_CHAR, host));
    for (int i = 0; i < size; i++)
        if (i != rank && strncmp(all[i], id, sizeof *all) == 0) different = 0;
    free(all);
    MPI(MPI_Allreduce(&different, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    return everywhere;
}

static void abort_all(int status) {
    fflush(stdout);
    waits_tell();
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

// Returns whether a process may read the memory of another process on this machine. Open MPI's
// receivers copy long messages this way, while their senders compute. Many containers forbid such
// copies, and then Open MPI would print an error for every message.
static bool single_copy_works(void) {
    static volatile int original = 1;
    int copied = 0, status = 1;
    pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // as Open MPI does
    pid_t child = fork();
    if (child == 0) {
        struct iovec to = { &copied, sizeof copied }, from = { (void *)&original, sizeof original };
        original = 0; // the parent keeps 1, so a copied 1 comes from the parent
        _exit(process_vm_readv(parent, &to, 1, &from, 1, 0) == sizeof copied && copied == 1 ? 0
                                                                                            : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

// MPI_Init waits for all ranks without a deadline, so one missing rank would stop the other ranks
// for ever. watch_start() sets an alarm that ends the process. watch_start() reads --timeout
// itself, because the program reads its options later.
static void started_too_late(int signal) {
    static const char text[] = "unsplit: a rank has not started in time; start all ranks again, or "
                               "choose a longer --timeout\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) > 0) _exit(STATUS_FAULT);
    _exit(STATUS_FAULT);
}
static void watch_start(int argc, char **argv) {
    double timeout = 60;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--timeout=", 10) == 0) timeout = strtod(argv[i] + 10, NULL);
        if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) timeout = strtod(argv[i + 1], NULL);
    }
    signal(SIGALRM, started_too_late);
    alarm(timeout > 1 && timeout < 1e6 ? (unsigned)(2 * timeout) : 120);
}

void process_begin(int *argc, char ***argv) {
    size_t launched_rank, launched_size;
    int rank, size, provided;
    if (!process_launched(&launched_rank, &launched_size)) return;
    watch_start(*argc, *argv);
    if (!single_copy_works()) {
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); // Open MPI 4
        setenv("OMPI_MCA_smsc", "^cma", 0);                            // Open MPI 5
    }
    // With more ranks than cores, a waiting rank must yield its core. Otherwise every message would
    // take a time slice.
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (local && atol(local) > sysconf(_SC_NPROCESSORS_ONLN))
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    device_prepare();
    // Only the main thread of a rank calls MPI; its other threads may compute.
    MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
    MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    this_rank = (size_t)rank;
    this_world_size = (size_t)size;
    end_all_ranks = abort_all;
    ranks_are_processes = true;
    MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    mpi_open(host);
}

// In MPI_Finalize Open MPI 4.1.4 frees and unloads memory that its helper thread may still use.
// After a crash in MPI_Finalize the process ends with the status of its run, because all ranks have
// finished by then.
static int status_at_end;
static void end_in_finalize(int signal) {
    (void)signal;
    _exit(status_at_end);
}

void process_end(int status) {
    if (!ranks_are_processes) return;
    fflush(NULL);
    status_at_end = status;
    signal(SIGSEGV, end_in_finalize);
    signal(SIGBUS, end_in_finalize);
    signal(SIGABRT, end_in_finalize);
    waits_close();
    MPI_Comm_free(&host);
    MPI_Finalize();
}
