// grids.c: checks the costs of a GPT on a grid of ranks (lessons 09 and 10), and computes the share
// of one rank of a cube (lessons 11 and 12).
#include "03_tensor_parallel/experiments/experiments.h"
#include <stdio.h>

static void axis_costs(Run *run, const char *axis, const AxisTraffic *want,
                       const AxisTraffic *got) {
    char ids[48], names[48], calls[48];
    snprintf(ids, sizeof ids, "%s.%%s", axis);
    snprintf(names, sizeof names, "%s: %%s a step", axis);
    for (size_t kind = 0; kind < COMM_KINDS; kind++) {
        if (want->calls[kind] == 0 && got->calls[kind] == 0) continue;
        snprintf(calls, sizeof calls, "%ss", comm_kind_name[kind]);
        check_costs(run, ids, names,
                    (CostRow[]){ { comm_kind_name[kind], calls, "calls",
                                   BY_FORMULA(want->calls[kind]), got->calls[kind] },
                                 { 0 } });
    }
    check_costs(run, ids, names,
                (CostRow[]){
                    { "sent", "sent", "bytes", BY_FORMULA(want->sent), got->sent },
                    { "received", "received", "bytes", BY_FORMULA(want->received), got->received },
                    { 0 } });
}

void grid_costs(Run *run, const CutGpt *x, const GridPlace *at, size_t sequences) {
    const GptMeasured *r = &x->measured;
    const CutSizes whole = cut_sizes(at->c, 1, 0), z = grid_sizes(at);
    const GridTraffic layers = grid_stage(at, &whole, sequences, false);
    const GridTraffic sums = grid_sums(at, &whole); // over depth; a single grid sends nothing
    const AxisTraffic *row = &r->layers[GPT_ROW], *col = &r->layers[GPT_COL];
    const AxisTraffic *depth = &r->sums[GPT_DEPTH];
    const size_t parameters = grid_elements_stage(at, &whole);
    const size_t own = grid_sequences(at, sequences);
    const GptElements elements = {
        .block = grid_elements_block(at),
        .parameters = parameters,
        .gradients = parameters + grid_elements_wte(at),
        .kept = own * at->c->context * kept_stage(&z),
        .kept_reals = z.blocks * activations_block_reals(&z, own) + activations_head_reals(&z, own),
    };
    axis_costs(run, "row", &layers.row, row);
    axis_costs(run, "column", &layers.col, col);
    if (x->way == WAY_25D) axis_costs(run, "depth", &sums.depth, depth);
    check_cost(run, "received", "received a step", "bytes",
               formula(layers.row.received + layers.col.received + sums.depth.received),
               NOT_PREDICTED, row->received + col->received + depth->received);
    gpt_memory_costs(run, "%s", "%s", at->c, &elements, r);
    // Unequal blocks make ranks wait, so the time is not predicted.
    if (clock_config()->simulated && grid_even(at, sequences))
        check_cost(run, "time", "the layers and the sums, a step", "ps",
                   formula(layers.products.time + layers.transfers + sums.transfers), NOT_PREDICTED,
                   (double)r->layers_time);
}
// ---------------------------------------------------------------- a cube

RankShare cube_rank_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank,
                          bool again) {
    const CubePlace at = cube_place_of(c, q, rank, again);
    const CutSizes z = cut_sizes(c, 1, 0);
    const CubeTraffic s = cube_stage(&at, &z, sequences, false), sums = cube_plane_sums(&at, &z);
    return (RankShare){ .parameters = (double)cube_elements_stage(&at, &z),
                        .kept = (double)cube_kept_stage(&at, &z, sequences),
                        .kept_reals = (double)cube_kept_reals(&at, &z, sequences),
                        .received = cube_bytes(&s) + sums.bytes[0],
                        .time = 3 * cube_work(&at, &z, sequences).time + s.time + sums.time };
}
