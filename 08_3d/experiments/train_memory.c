// train_memory.c gathers each rank's peaks of memory on rank 0, for the page and the JSON.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_show_memory(Run *run) {
    struct {
        size_t ledger, process, resident, scratch;
    } local = { memory_most(), memory_process_most(), resident_most(), memory_scratch_bytes() },
      *all;
    size_t *sizes, most = 0, resident = 0;
    char list[4][512] = { "", "", "", "" };
    all = side_gather(&local, sizeof local, &sizes);
    if (!run->is_root) return;
    for (size_t r = 0; r < run->world->size; r++) {
        size_t value[4] = { all[r].ledger, all[r].process, all[r].resident, all[r].scratch };
        for (int i = 0; i < 4; i++) {
            size_t end = strlen(list[i]);
            snprintf(list[i] + end, sizeof list[i] - end, "%s%zu", r ? " " : "", value[i]);
        }
        most = all[r].ledger > most ? all[r].ledger : most;
        resident = all[r].resident > resident ? all[r].resident : resident;
    }
    say(run,
        "memory at most, largest rank: %.1f MB in the ledger, %.1f MB resident in its process%s\n",
        1e-6 * (double)most, 1e-6 * (double)resident, ranks_are_processes ? "" : " (all ranks)");
    report_config_text(run, "memory_most", list[0]); // bytes, by rank
    report_config_text(run, "process_memory_most", list[1]);
    report_config_text(run, "resident_most", list[2]);
    // The ledger does not count the widened copies of 16-bit operands.
    if (local.scratch) report_config_text(run, "scratch_most", list[3]);
    free(all);
    free(sizes);
}
