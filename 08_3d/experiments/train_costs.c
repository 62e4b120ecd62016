// train_costs.c checks the costs of a training's last step against the predictions, and prints the
// costs.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/costs.h"

// Prints the stage and the blocks of each part of the model: "stage 0: 2 blocks, 1: 2 blocks, 0: 1
// block, ...".
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

// Sets axes[] to the communicators of the axes of a tp group's grid or cube. An axis that the grid
// or cube lacks is NULL.
enum { AXES = 5 };
static void tensor_axes(const Trainer *t, Comm *axes[AXES]) {
    const CommGrid *g = t->config.tensor == TENSOR_3D ? &t->cube.grid : &t->grid;
    axes[0] = g->in_row;
    axes[1] = g->in_col;
    axes[2] = g->in_depth;
    axes[3] = t->cube.same_col;
    axes[4] = t->cube.same_row;
}

void train_costs_begin(Trainer *t) {
    Comm *groups[] = { t->mesh.world, t->mesh.tp,   t->mesh.pp, t->mesh.replicas,
                       t->mesh.model, t->mesh.tied, t->mesh.cp };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) comm_ledger_reset(groups[i]);
    Comm *axes[AXES];
    tensor_axes(t, axes);
    for (size_t i = 0; i < AXES; i++)
        if (axes[i]) comm_ledger_reset(axes[i]);
    memory_reset_peaks();
}

// Checks a cost that has a closed form.
static void closed(Run *run, const char *id, const char *name, const char *unit, size_t want,
                   size_t measured) {
    check_cost(run, id, name, unit, formula((double)want), NOT_PREDICTED, (double)measured);
}
static void tensor_costs(Run *run, const Trainer *t, const Prediction *p) {
    const Comm *tp = t->mesh.tp;
    closed(run, "tp.calls", "tensor-parallel calls", "calls", p->tp_calls,
           tp->ledger[COMM_ALL_REDUCE].calls);
    if (t->config.sequence) {
        closed(run, "tp.gathers", "tensor-parallel gathers", "calls", p->tp_gathers,
               tp->ledger[COMM_ALL_GATHER].calls);
        closed(run, "tp.scatters", "tensor-parallel scatters", "calls", p->tp_scatters,
               tp->ledger[COMM_REDUCE_SCATTER].calls);
    }
    closed(run, "tp.sent", "tensor-parallel traffic", "bytes sent", p->tp_bytes,
           comm_bytes_sent(tp));
}
// Checks the calls and bytes on the rows, columns and depth of a tp group's grid or cube, and on a
// cube's planes.
static void grid_costs(Run *run, const Trainer *t, const Prediction *p) {
    Comm *axes[AXES];
    size_t calls = 0, sent = 0, received = 0;
    tensor_axes(t, axes);
    for (size_t i = 0; i < AXES && axes[i]; i++) {
        for (size_t kind = 0; kind < COMM_KINDS; kind++) calls += axes[i]->ledger[kind].calls;
        sent += comm_bytes_sent(axes[i]);
        received += comm_bytes_received(axes[i]);
    }
    closed(run, "tp.calls", "tensor-parallel calls", "calls", p->tp_calls, calls);
    closed(run, "tp.sent", "tensor-parallel traffic", "bytes sent", p->tp_bytes, sent);
    closed(run, "tp.received", "tensor-parallel traffic, received", "bytes", p->tp_received,
           received);
}

// Returns the time of this rank's sum over replicas, from the arrival of the last replica.
// Collective over dp, not counted in the ledger.
static double sum_took(const Trainer *t) {
    const Comm *dp = t->mesh.dp;
    double *begun = host_alloc(dp->size * sizeof *begun), last = 0;
    begun[dp->rank] = (double)t->reduction[0];
    ledger_pause();
    comm_all_reduce_doubles(t->mesh.dp, begun, dp->size);
    ledger_resume();
    for (size_t i = 0; i < dp->size; i++) last = fmax(last, begun[i]);
    free(begun);
    return (double)t->reduction[1] - last;
}
static void compression_cost(Run *run, const Trainer *t, const Prediction *p) {
    size_t calls = 0;
    for (size_t kind = 0; kind < COMM_KINDS; kind++) calls += t->mesh.dp->ledger[kind].calls;
    closed(run, "dp.calls", "compressed sums", "calls", p->dp_calls, calls);
    if (clock_config()->simulated)
        check_cost(run, "dp.time", "sum over replicas", "ps", NOT_PREDICTED, played(p->dp_time),
                   sum_took(t));
    closed(run, "compression.factors", "factors, between steps", "bytes", p->compression,
           memory_now(MEM_COMMUNICATION));
    if (t->config.mesh.pp == 1) // else the messages of stages may be larger
        closed(run, "communication.peak", "communication, peak", "bytes", p->compression_peak,
               memory_peak(MEM_COMMUNICATION));
}

void train_costs_end(Run *run, Trainer *t) {
    const Mesh *m = &t->mesh;
    Prediction p = predict_step(&t->config, run->world->rank, t->optimizer.kind == ADAMW);
    (t->config.tensor != TENSOR_1D ? grid_costs : tensor_costs)(run, t, &p);
    closed(run, "pp.sent", "pipeline traffic", "bytes sent", p.pp_bytes, comm_bytes_sent(m->pp));
    closed(run, "dp.sent", "data-parallel traffic", "bytes sent", p.dp_bytes,
           comm_bytes_sent(m->replicas));
    if (m->cp)
        closed(run, "cp.sent", "context-parallel traffic", "bytes sent", p.cp_bytes,
               comm_bytes_sent(m->cp));
    if (t->config.reduction == REDUCE_IN_BUCKETS)
        closed(run, "dp.buckets", "data-parallel buckets", "calls", p.dp_calls,
               m->replicas->ledger[COMM_ALL_REDUCE].calls);
    if (t->config.reduction == REDUCE_COMPRESSED) compression_cost(run, t, &p);
    closed(run, "tied.sent", "tied embedding", "bytes sent", p.tied_bytes,
           m->tied ? comm_bytes_sent(m->tied) : 0);
    closed(run, "scalars.sent", "loss and norm", "bytes sent", p.scalar_bytes,
           comm_bytes_sent(m->world) + comm_bytes_sent(m->model));
    closed(run, "parameters", "parameters", "bytes", p.parameters, memory_now(MEM_PARAMETERS));
    closed(run, "gradients", "gradients", "bytes", p.gradients, memory_now(MEM_GRADIENTS));
    closed(run, "optimizer", "optimizer state", "bytes", p.optimizer, memory_now(MEM_OPTIMIZER));
    closed(run, "activations", "activations, peak", "bytes", p.activations,
           memory_peak(MEM_ACTIVATIONS));
    if (t->config.activation_budget)
        check_true(run, "activations", "the measured peak is within --activation-budget",
                   memory_peak(MEM_ACTIVATIONS) <= t->config.activation_budget);
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

// Can step_time() play this step to the picosecond? step_time() does not play hidden sums,
// compression and a budget. The ranks of one group must have equal work: equal replicas, equal
// chunks of positions, and groups that lie in the nodes in the same way.
static bool step_is_listed(const TrainerConfig *c) {
    size_t cp = mesh_cp(c->mesh);
    if (!clock_config()->simulated || c->tensor != TENSOR_1D) return false;
    if (c->reduction == REDUCE_PREFETCH || c->reduction == REDUCE_IN_BUCKETS) return false;
    if (c->reduction == REDUCE_COMPRESSED || c->rebalanced) return false;
    if (c->activation_budget > 0) return false;
    if (c->batch % c->mesh.dp != 0) return false;
    if (cp > 1 && c->model.context % (2 * cp) != 0) return false;
    // A ring with links inside and between nodes.
    size_t node = clock_config()->node, tp = c->mesh.tp;
    if (cp > 1 && node && node % (tp * cp) != 0 && tp % node != 0) return false;
    return mesh_groups_alike(c->mesh);
}

void train_check_time(Run *run, const Trainer *t, const Timing *timing) {
    if (!step_is_listed(&t->config)) return;
    // One rank plays the step, because all ranks would play the same one.
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
