// unsent.c copies the residuals of --compress, and PowerSGD's factors, into a checkpoint's
// RankState and back.
#include "08_3d/unsent.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Returns a text such as "dp 2 x tp 1 x pp 2, blocks 2 2, top-k, one of 32". If a run's text
// differs from the checkpoint's text, the residuals belong to other elements or to another
// compression. Then the run cannot load the residuals.
static char *layout_of(const TrainerConfig *c) {
    enum { ROOM = 160, EACH = 24 };
    const size_t parts = c->mesh.pp * trainer_chunks(c);
    const bool top_k = c->compression.method == TOP_K;
    char *text = host_alloc(ROOM + EACH * parts);
    sprintf(text, "dp %zu x tp %zu x pp %zu, blocks", c->mesh.dp, c->mesh.tp, c->mesh.pp);
    for (size_t i = 0; i < parts; i++)
        sprintf(text + strlen(text), " %zu",
                c->stage_blocks ? c->stage_blocks[i]
                                : range_size(shard_range(c->model.layers, parts, i)));
    sprintf(text + strlen(text), ", %s %zu", top_k ? "top-k, one of" : "PowerSGD, rank",
            top_k ? c->compression.one_of : c->compression.rank);
    return text;
}

RankState unsent_read(const Trainer *t) {
    if (!t->compression) return (RankState){ 0 };
    RankState s = { .layout = layout_of(&t->config), .n = compression_state_count(t->compression) };
    s.values = host_alloc(s.n * sizeof *s.values);
    compression_state_read(t->compression, s.values);
    return s;
}
void unsent_free(RankState *s) {
    free(s->layout);
    free(s->values);
}

void unsent_resume(const Checkpoint *c, Trainer *t) {
    if (!t->compression) return;
    RankState want = unsent_read(t);
    real *state = checkpoint_load_state(c, t->mesh.world->rank, &want);
    if (state) compression_state_write(t->compression, state);
    free(state);
    unsent_free(&want);
}
