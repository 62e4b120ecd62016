// train_page.c prints the mesh and the costs of a training, checks the time of the training's last
// step, and names a faster layout.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/costs.h"

// Prints the stage and the blocks of each part: "stage 0: 2 blocks, 1: 2 blocks, 0: 1 block, ...".
static void show_parts(Run *run, const TrainerConfig *c, const size_t *blocks) {
    char line[400] = "  chunks of the stages, in model order:";
    for (size_t i = 0; i < c->mesh.pp * trainer_chunks(c); i++) {
        size_t n = strlen(line);
        if (n > sizeof line - 60) {
            snprintf(line + n, sizeof line - n, " ...");
            break;
        }
        snprintf(line + n, sizeof line - n, "%s %zu: %zu block%s", i ? "," : " stage",
                 i % c->mesh.pp, blocks[i], blocks[i] == 1 ? "" : "s");
    }
    say(run, "%s", line);
}

void train_show_mesh(Run *run, const TrainerConfig *c) {
    size_t parts = c->mesh.pp * trainer_chunks(c), *blocks = host_alloc(parts * sizeof *blocks);
    for (size_t i = 0; i < parts; i++)
        blocks[i] = c->stage_blocks ? c->stage_blocks[i] : part_size(c->model.layers, parts, i);
    mesh_show(run, c->mesh, parts == c->mesh.pp ? blocks : NULL);
    if (parts > c->mesh.pp) show_parts(run, c, blocks);
    free(blocks);
}

void train_results(Run *run, const Trainer *t) {
    char link[5][LINK_NAME];
    const Mesh *m = &t->mesh;
    const bool adamw = t->optimizer.kind == ADAMW, again = t->config.recompute == RECOMPUTE_FULL;
    const size_t zero = trainer_zero(&t->config);
    const bool masters = t->config.model.storage != REALS;
    const char *const moments = zero ? "m and v of 1/dp of the slice" : "m and v per weight";
    const char *const with_masters =
        zero ? "m, v, master of 1/dp of the slice" : "m, v, master per weight";
    const char *const no_moments = masters ? "SGD: a master per weight" : "SGD has none";
    const bool grid = tensor_is_grid(&t->config), cube = t->config.tensor == TENSOR_3D;
    const char *const layers = grid   ? "blocks, broadcast and reduced: 03.09"
                               : cube ? "faces, gathered and scattered: 03.11"
                               : t->config.sequence
                                   ? again ? "14 half all-reduces of [tokens, C] per block"
                                           : "10 half all-reduces of [tokens, C] per block"
                               : again ? "6 all-reduces of [tokens, C] per block"
                                       : "4 all-reduces of [tokens, C] per block";
    const char *const compressed = t->config.reduction != REDUCE_COMPRESSED ? NULL
                                   : t->config.compression.method == TOP_K
                                       ? "(dp-1) k (4 + e) of each layer's elements"
                                       : "2(dp-1)/dp of r (rows + cols), and vectors";
    const Result sum = { "sum over replicas",
                         "compressed, from the last rank's arrival",
                         { "dp.time" } },
                 context = { "context parallel, sent",
                             masters ? "(4cp-4) stored, 2cp real [tokens/cp, C] per block"
                                     : "(6cp-4) [tokens/cp, C] per block",
                             { "cp.sent", mesh_link(m->cp, link[4]) } },
                 last = compressed && clock_config()->simulated ? sum
                        : m->cp                                 ? context
                                                                : (Result){ 0 };
    const Result rows[] = {
        { "tensor parallel, sent", layers, { "tp.sent", mesh_link(m->tp, link[0]) } },
        { "pipeline, sent",
          t->config.sequence ? "[tokens/tp, C] forward and back" : "[tokens, C] forward and back",
          { "pp.sent", mesh_link(m->pp, link[1]) } },
        { "data parallel, sent",
          compressed ? compressed
          : zero     ? "by units: chapter 06"
          : m->cp    ? "2(n-1)/n of the gradient, n = dp cp"
                     : "2(dp-1)/dp of the gradient",
          { "dp.sent", mesh_link(m->replicas, link[2]) } },
        { "tied embedding, sent",
          "V/tp C, first and last stage",
          { "tied.sent", mesh_link(m->tied, link[3]) } },
        { "weights",
          grid        ? "matrices: 1/q² of the stage's"
          : cube      ? "matrices: 1/q³ of the stage's"
          : zero == 3 ? "1/(tp pp dp) of the model, and copies"
                      : "1/(tp pp) of the model, and copies",
          { "parameters" } },
        { "gradients",
          compressed ? "one per weight and use, and what is not sent yet"
          : zero > 1 ? "1/dp of the slice"
                     : "one per weight; the tied table per use",
          { "gradients" } },
        { "optimizer state",
          !adamw    ? no_moments
          : masters ? with_masters
                    : moments,
          { "optimizer" } },
        { "activations, peak", "kept per token x tokens in flight", { "activations" } },
        last,
        { 0 },
    };
    results(run, (const char *const[]){ "per rank and step", "link", NULL }, rows);
}

// Returns whether step_time() can play this step to the picosecond. The ranks of one group must
// have equal work: equal replicas, equal chunks of positions, and groups that are placed on nodes
// alike.
static bool step_is_listed(const TrainerConfig *c) {
    size_t cp = mesh_cp(c->mesh);
    if (!clock_config()->simulated || c->tensor != TENSOR_1D) return false;
    if (c->reduction == REDUCE_PREFETCH || c->reduction == REDUCE_IN_BUCKETS) return false;
    if (c->reduction == REDUCE_COMPRESSED || c->rebalanced) return false;
    if (c->activation_budget > 0) return false;
    if (c->batch % c->mesh.dp != 0) return false;
    if (cp > 1 && c->model.context % (2 * cp) != 0) return false;
    // step_time() does not play a ring whose messages travel both inside nodes and between nodes.
    size_t node = clock_config()->node, tp = c->mesh.tp;
    if (cp > 1 && node && node % (tp * cp) != 0 && tp % node != 0) return false;
    return mesh_groups_alike(c->mesh);
}

void train_check_time(Run *run, const Trainer *t, const Timing *timing) {
    if (!step_is_listed(&t->config)) return;
    double step = run->is_root ? step_time(&t->config) : 0;
    ledger_pause();
    side_broadcast(&step, sizeof step);
    ledger_resume();
    check_cost(run, "step", "time of the last step", "ps", NOT_PREDICTED, played(step),
               (double)timing->step);
}

void train_say_faster(Run *run, const Trainer *t) {
    if (!run->is_root || !step_is_listed(&t->config)) return;
    double present, time;
    Degrees n = step_time_best(&t->config, &present, &time), here = t->config.mesh;
    char text[2][32];
    page_value(text[0], sizeof text[0], time, "ps");
    page_value(text[1], sizeof text[1], present, "ps");
    if ((n.dp == here.dp && n.tp == here.tp) || present < 1.01 * time)
        say(run,
            "  By the cost model no other dp x tp x pp of these ranks would be 1 %% faster.\n");
    else
        say(run,
            "  By the cost model dp %zu x tp %zu x pp %zu would be %.2f times as fast: a "
            "step of %s, not %s.\n",
            n.dp, n.tp, n.pp, present / time, text[0], text[1]);
}
