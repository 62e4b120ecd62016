// 04_costs.c: see 04_costs.h.
#include "01_data_parallel/experiments/04_costs.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/model/costs.h"
#include "common/model/model.h"

// Tensors of the stage in model order, and the layer of each: 0 is the stage's first one.
static size_t list_tensors(const CutSizes *z, const TensorElements *of, bool with_wte, BucketPiece *tensor) {
    size_t n = 0, layers = cut_layers(z);
    if (z->first && with_wte) tensor[n++] = (BucketPiece){ of->wte, 0 };
    if (z->first) tensor[n++] = (BucketPiece){ of->wpe, 0 };
    for (size_t i = 0; i < z->blocks * TENSORS_OF_BLOCK; i++)
        tensor[n++] = (BucketPiece){ of->block[i % TENSORS_OF_BLOCK], z->first + i / TENSORS_OF_BLOCK };
    for (size_t i = 0; i < 2 && z->last; i++) tensor[n++] = (BucketPiece){ of->norm, layers - 1 };
    return n;
}

size_t bucket_pieces(const CutSizes *z, const TensorElements *of, size_t capacity, BucketPiece **piece) {
    BucketPiece *tensor = host_alloc((2 + z->blocks * TENSORS_OF_BLOCK + 2) * sizeof *tensor);
    size_t n = 0, open = 0, tensors = list_tensors(z, of, z->first && z->last, tensor);
    *piece = host_alloc((tensors + 1) * sizeof **piece);
    for (size_t i = tensors; i-- > 0;) {
        open += tensor[i].elements;
        if (open * sizeof(real) < capacity && i > 0) continue;
        (*piece)[n++] = (BucketPiece){ open, tensor[i].layer };
        open = 0;
    }
    free(tensor);
    if (z->first != z->last) (*piece)[n++] = (BucketPiece){ of->wte, 0 };
    return n;
}

// When the backward of `layer` is done on a rank. The embedding's costs nothing: it has no product of matrices.
static double done(const ModelConfig *c, LastBatch b, size_t layer) {
    CutSizes z = cut_sizes(c, 1, 0);
    double block = work_block(&z, b.sequences).time, head = work_head(&z, b.sequences).time;
    size_t L = c->layers, blocks = layer > 0 ? L + 1 - layer : L;
    return b.begin + (double)L * block + head + 2 * (head + (double)blocks * block);
}
static double done_everywhere(const ModelConfig *c, size_t ranks, const LastBatch *batch, size_t layer) {
    double last = 0;
    for (size_t r = 0; r < ranks; r++)
        if (done(c, batch[r], layer) > last) last = done(c, batch[r], layer);
    return last;
}

// Bucket k begins when it is complete on the last rank and bucket k - 1 has ended.
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, const LastBatch *batch) {
    BucketPiece *piece;
    CutSizes z = cut_sizes(c, 1, 0);
    TensorElements of = { .wte = elements_wte(&z), .wpe = elements_unit(&z, 0), .norm = z.C };
    elements_tensors(&z, of.block);
    BucketCosts costs = { .buckets = bucket_pieces(&z, &of, capacity, &piece),
                          .step = done_everywhere(c, ranks, batch, 0) };
    double end = 0;
    for (size_t k = 0; k < costs.buckets; k++) {
        double ready = done_everywhere(c, ranks, batch, piece[k].layer), begin = ready > end ? ready : end;
        end = begin + ring_time(ALL_REDUCE_PASSES, ranks, piece[k].elements, sizeof(real));
        if (ranks > 1) costs.scratch += ranks * ceil_div(piece[k].elements, ranks) * sizeof(real);
        costs.bytes += ring_bytes(ALL_REDUCE_PASSES, ranks, piece[k].elements, sizeof(real));  // each rounded up
        for (size_t r = 0; r < ranks; r++) {               // hidden as long as this rank computes
            double busy = done(c, batch[r], 0), hidden = busy < begin ? 0 : busy < end ? busy - begin : end - begin;
            costs.hidden += hidden;
            costs.exposed += end - begin - hidden;
        }
    }
    if (end > costs.step) costs.step = end;
    free(piece);
    return costs;
}

// ---------------------------------------------------------------- the lesson

BucketCosts overlap_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences) {
    LastBatch *batch = host_alloc(ranks * sizeof *batch);
    for (size_t r = 0; r < ranks; r++) batch[r] = (LastBatch){ 0, part_size(sequences, ranks, r) };
    BucketCosts costs = bucket_costs(c, capacity, ranks, batch);
    free(batch);
    return costs;
}

void overlap_compare_costs(Run *run, const OverlapSizes *z, const BucketsSeen *is, const BucketsSeen *end,
                           const BucketsSeen *tensors) {
    size_t V = z->model.vocab, C = z->model.width, L = z->model.layers, N = run->world->size, e = sizeof(real);
    size_t Psi = config_parameters(&z->model);
    BucketCosts f = overlap_costs(&z->model, z->capacity, N, z->sequences);
    BucketCosts each = overlap_costs(&z->model, z->per_tensor, N, z->sequences);
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, e);
    double slowest = work_model(&z->model, part_size(z->sequences, N, 0)).time;
    cost(run, "at the end: all-reduces, 3 steps", "calls", (double)z->steps, (double)end->calls);
    cost(run, "in buckets: all-reduces, 3 steps", "calls", (double)(z->steps * f.buckets), (double)is->calls);
    cost(run, "tensor by tensor: all-reduces", "calls", (double)(z->steps * (4 + 12 * L)), (double)tensors->calls);
    cost(run, "at the end: sent, 3 steps", "bytes", (double)z->steps * ring_bytes(ALL_REDUCE_PASSES, N, Psi, e),
         (double)end->bytes);
    cost(run, "in buckets: sent, 3 steps", "bytes", (double)z->steps * f.bytes, (double)is->bytes);
    cost(run, "tensor by tensor: sent, 3 steps", "bytes", (double)z->steps * each.bytes, (double)tensors->bytes);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)is->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)is->gradients);
    cost(run, "in flight: every bucket's sum", "bytes", (double)f.scratch, (double)is->communication);
    if (!clock_config()->simulated) return;
    cost(run, "at the end: exposed, all ranks", "ps", (double)N * ring, (double)end->last.exposed);
    cost(run, "at the end: step", "ps", slowest + ring, (double)end->last.step);
    cost(run, "in buckets: exposed, all ranks", "ps", f.exposed, (double)is->last.exposed);
    cost(run, "in buckets: hidden, all ranks", "ps", f.hidden, (double)is->last.hidden);
    cost(run, "in buckets: step", "ps", f.step, (double)is->last.step);
}

void overlap_show_results(Run *run, const OverlapSizes *z, const BucketsSeen *is, const BucketsSeen *end,
                          const BucketsSeen *tensors) {
    enum { CUTS = 3, TIMES = 4 };
    const BucketsSeen *seen[CUTS] = { end, is, tensors };
    double ranks = (double)run->world->size;
    double limit = work_model(&z->model, part_size(z->sequences, run->world->size, 0)).time;
    char cut[32], time[TIMES][CUTS][24];
    snprintf(cut, sizeof cut, "%zu bucket%s", is->buckets, is->buckets > 1 ? "s" : "");
    Result rows[] = {
        { "all-reduces, 3 steps", "3 * number of buckets",
          { "at the end: all-reduces, 3 steps", "in buckets: all-reduces, 3 steps", "tensor by tensor: all-reduces" } },
        { "sent by a rank, 3 steps", "3 * sum of 2(N-1)/N Psi_k e",
          { "at the end: sent, 3 steps", "in buckets: sent, 3 steps", "tensor by tensor: sent, 3 steps" } },
        { "step", "until the last bucket's end", {0} },
        { "exposed, mean of ranks", "the rank does not compute", {0} },
        { "hidden, mean of ranks", "the rank computes", {0} },
        { "idle", "1 - computing / (N * step)", {0} }, {0} };
    for (size_t i = 0; i < CUTS; i++) {
        const Timing *t = &seen[i]->last;
        page_cell(time[0][i], (double)t->step, "ps");
        page_cell(time[1][i], (double)t->exposed / ranks, "ps");
        if (t->hidden_unknown) snprintf(time[2][i], 24, "=unknown");
        else page_cell(time[2][i], (double)t->hidden / ranks, "ps");
        page_cell(time[3][i], t->idle_of_total * 1e6, "millionths");
        for (size_t k = 0; k < TIMES; k++) rows[2 + k].cell[i] = time[k][i];
    }
    results(run, (const char *const[]){ "at the end", cut, "one per tensor", NULL }, rows);
    say(run, "\nThe same bits, sent earlier. No backward is left to hide the last bucket, and each bucket costs\n"
             "2(N-1) alpha of latency: buckets can be too small and too large (--picture sweep).\n");
    if (clock_config()->simulated) say(run, "Computing alone takes %.2f ms.\n", limit * 1e-9);
}
