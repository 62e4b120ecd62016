// stage_costs.c: see costs.h. L blocks, width C, context T, V words, E bytes a number.
#include "04_pipeline_naive/support/costs.h"
#include <math.h>

static size_t blocks_of(const ModelConfig *c, size_t p, size_t i) { return c->layers / p + (i < c->layers % p); }

// A block is 12CC + 13C. The first stage adds wte and wpe, the last one its norm and its copy of wte.
size_t stage_parameters(const ModelConfig *c, size_t p, size_t i) {
    size_t C = c->width, first = i == 0, last = i + 1 == p;
    return blocks_of(c, p, i) * (12 * C * C + 13 * C) + first * (c->vocab + c->context) * C + last * 2 * C
           + (last && !first) * c->vocab * C;
}

// Where first and last are one stage, there is one wte, but a gradient for each of its uses.
size_t stage_gradients(const ModelConfig *c, size_t p, size_t i) {
    return stage_parameters(c, p, i) + (p == 1) * c->vocab * c->width;
}

size_t stage_kept(const ModelConfig *c, size_t p, size_t i) {
    size_t C = c->width, first = i == 0, last = i + 1 == p, blocks = blocks_of(c, p, i), layers = blocks + first + last;
    size_t between = (layers - 1) * C + !first * C;        // what one layer hands to the next, and what was received
    return blocks * kept_block(c, c->heads, 4 * C) + last * kept_head(c, c->vocab) + between;
}

size_t stage_tokens(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k)) * t->model.context;
}

// With each neighbour: two messages on their way out, where there are two, and one that is expected.
size_t stage_message_buffers(const Training *t, size_t p, size_t i) {
    size_t neighbours = (i + 1 < p) + (i > 0), out = t->micro_batches < 2 ? 1 : 2;
    return neighbours * (out + 1) * stage_tokens(t, 0) * t->model.width * sizeof(real);      // the largest one
}

Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B) {
    double blocks = (double)blocks_of(c, p, i) * work_block(c, B, c->heads, 4 * c->width).time;
    return (Picoseconds)(blocks + (i + 1 == p ? work_head(c, B, c->vocab).time : 0));
}
Picoseconds stage_message_time(const ModelConfig *c, size_t B) {
    const ClockLink *link = &clock_config()->link;
    double bytes = (double)(B * c->context * c->width * sizeof(real));
    return link->beta > 0 ? (Picoseconds)round(link->alpha * 1e12 + bytes * 1e12 / link->beta) : 0;
}

void stage_loop_lines(Run *run, const Training *t, const StageCosts *seen) {
    size_t neighbours = (run->world->rank + 1 < run->world->size) + (run->world->rank > 0);
    size_t tokens = t->sequences * t->model.context;
    cost(run, "own loops: messages sent", "calls", t->micro_batches * neighbours, seen->messages);
    cost(run, "own loops: messages sent", "bytes", neighbours * tokens * t->model.width * sizeof(real),
         seen->message_bytes);
}

void stage_cost_lines(Run *run, const Training *t, const StageCosts *seen) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real), D = sizeof(double);
    size_t next = i + 1 < p, before = i > 0;               // have I a neighbour on this side?
    size_t tokens = t->sequences * c->context, wte = c->vocab * c->width;

    // Per micro-batch one activation [B*T, C] to the next stage, and one gradient of that shape to the stage before.
    cost(run, "messages sent", "calls", m * (next + before), seen->messages);
    cost(run, "messages sent", "bytes", (next + before) * tokens * c->width * E, seen->message_bytes);
    double all = (double)seen->messages;
    ledger_pause();
    comm_all_reduce_doubles(run->world, &all, 1);
    ledger_resume();
    cost(run, "messages of all ranks: 2m(p-1)", "calls", 2 * m * (p - 1), all);

    // The first and the last stage add their gradients of wte: in a ring of two, each sends both halves of it once.
    size_t shares = p > 1 && (!next || !before);
    cost(run, "tied sum of wte", "calls", shares, seen->tied_calls);
    cost(run, "tied sum of wte", "bytes", shares * 2 * ceil_div(wte, 2) * E, seen->tied_bytes);
    size_t tensors = 2 + 12 * c->layers + 2;               // wte, wpe; 12 a block; the last norm's two
    cost(run, "sums of loss and squares", "calls", 2, seen->scalar_calls);
    cost(run, "sums of loss and squares", "bytes", 2 * (p - 1) * (1 + ceil_div(tensors, p)) * D, seen->scalar_bytes);

    size_t mine = stage_parameters(c, p, i);
    cost(run, "parameters of my stage", "bytes", mine * E, seen->parameters);
    cost(run, "gradients of my stage", "bytes", stage_gradients(c, p, i) * E, seen->gradients);
    cost(run, "optimizer state of my stage", "bytes", (t->optimizer.kind == ADAMW) * 2 * mine * E, seen->optimizer);
}
