// launch.c: chooses the transport and the number of ranks.
#include "judge/frame/launch.h"
#include "judge/frame/process.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/device/device.h"

// Ends processes that cannot find each other. srun without a PMI plugin starts such processes, and
// each process is a world of one rank.
static void refuse_silent_singletons(void) {
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *process = getenv("SLURM_PROCID");
    if (!tasks) tasks = getenv("SLURM_NTASKS");
    if (!tasks || !process || atol(tasks) <= 1) return;
    // Every process calls this function, but only the first process prints the message.
    if (atol(process) > 0) _exit(STATUS_USAGE);
    usage_error(
        "Slurm gave this step %s tasks, but no way for them to find each other. Start it with "
        "`srun --mpi=pmix` or with mpirun; `--emulate %s` runs virtual ranks in one process.",
        tasks, tasks);
}

const char *const transport_name[] = { "emu", "mpi", "staged", "nccl" };

// Chooses the transport for processes with GPUs. NCCL needs one GPU for every rank.
static void choose_for_gpus(const LaunchWish *wish, LaunchChoice *choice) {
    size_t gpus = device_gpus();
    bool one_each = process_own_gpus();
    bool wants_nccl = wish->transport && strcmp(wish->transport, "nccl") == 0;
    if (wants_nccl) {
        REQUIRE(
            one_each,
            "--transport nccl needs a GPU for every rank, but for %zu ranks there %s only %zu "
            "here: start no more ranks than GPUs, or let ranks share a GPU with --transport staged",
            choice->ranks, gpus == 1 ? "is" : "are", gpus);
        REQUIRE(nccl_missing() == NULL, "--transport nccl: %s", nccl_missing());
    }
    bool nccl = wants_nccl || (!wish->transport && one_each && !nccl_missing());
    choice->transport = nccl ? TRANSPORT_NCCL : TRANSPORT_STAGED;
    snprintf(choice->why, sizeof choice->why, "processes: %s",
             !one_each         ? "more ranks than GPUs, so they share"
             : nccl            ? "a GPU for each rank"
             : wish->transport ? "--transport staged"
                               : "built without NCCL");
}

LaunchChoice launch_choose(const LaunchWish *wish) {
    size_t rank, size;
    bool launched = process_launched(&rank, &size);
    bool wants_processes = wish->transport && strcmp(wish->transport, "emu") != 0;
    bool wants_emu = (wish->transport && !wants_processes) || wish->emulate > 0;
    REQUIRE(!(wants_processes && wish->emulate > 0),
            "--emulate makes virtual ranks, but --transport %s needs processes: leave one of the "
            "two options out",
            wish->transport);
    REQUIRE(!(wants_emu && launched && size > 1),
            "%s makes virtual ranks in one process, but mpirun started %zu processes: leave the "
            "option or mpirun out",
            wish->emulate > 0 ? "--emulate" : "--transport emu", size);
    REQUIRE(launched || !wants_processes,
            "--transport %s needs processes: start it as `mpirun -np %zu ...`, or as `tools/launch "
            "%zu ...`",
            wish->transport, wish->default_ranks, wish->default_ranks);
    REQUIRE(wish->emulate <= 512,
            "--emulate %zu is too many: at most 512 virtual ranks fit in one process",
            wish->emulate);
    LaunchChoice choice = { .transport = TRANSPORT_MPI, .ranks = size };
    if (launched && !wants_emu) {
        if (device_is_gpu()) choose_for_gpus(wish, &choice);
        else strcpy(choice.why, "processes: started by mpirun");
        return choice;
    }
    if (!wants_emu) refuse_silent_singletons();
    choice.transport = TRANSPORT_EMU;
    choice.ranks = wish->emulate > 0 ? wish->emulate : wish->default_ranks;
    if (wish->emulate > 0) snprintf(choice.why, sizeof choice.why, "--emulate %zu", wish->emulate);
    else
        strcpy(choice.why, wants_emu ? "virtual ranks: --transport emu" : "default: virtual ranks");
    return choice;
}
