// train_saved.c checks the saved weights and moments of a training, and the order of the data,
// because a resumed run relies on them.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

void train_check_saved(Run *run, const Trainer *t, Model *unsplit, Optimizer *o, size_t done) {
    const bool adamw = t->optimizer.kind == ADAMW, masters = t->config.model.storage != REALS;
    const struct {
        UnitTensor tensor;
        const char *label;
        bool has;
    } kinds[] = { { UNIT_WEIGHTS, "", true },
                  { UNIT_M, ", first moment", adamw },
                  { UNIT_V, ", second moment", adamw },
                  { UNIT_MASTER, ", master", masters && t->optimizer.step > 0 } };
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    if (unsplit) {
        char why[CHECKPOINT_WHY] = "", path[4096];
        snprintf(path, sizeof path, "%s/step-%06zu", option_text(run, "save"), done);
        Checkpoint *c = checkpoint_read(path, why);
        if (!c) fault("--save: %s", why);
        checkpoint_load(c, unsplit, o);
        checkpoint_free(c);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!kinds[i].has) continue;
        snapshot_label(got, kinds[i].label);
        snapshot_label(want, kinds[i].label);
        model_snapshot(t->model, want, kinds[i].tensor, train_originals(run));
        if (unsplit) model_snapshot(unsplit, got, kinds[i].tensor, NULL);
    }
    check_close(run, "what is saved, read on one rank = what the ranks hold", got, want, 0);
    snapshot_free(got);
    snapshot_free(want);
}

void train_check_epochs(Run *run, const Data *d) {
    size_t n = data_windows(d), moved = 0, most = run->is_root ? 2 * n : 0; // only rank 0 compares
    unsigned char *seen = host_alloc(n);
    bool once = true;
    for (size_t i = 0; i < most; i++) {
        size_t window = data_window(d, i / d->batch, i % d->batch);
        moved += i >= n && i < n + 100 &&
                 window != data_window(d, (i - n) / d->batch, (i - n) % d->batch);
        once = once && window < n && seen[window]++ == i / n;
    }
    free(seen);
    check_true(run, "data", "two epochs take each window once, each in its order",
               once && (moved || n == 1 || !most));
}
