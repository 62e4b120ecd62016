// step_ops.c lists the expected operations of a forward or backward on one rank, from sizes alone.
#include "08_3d/experiments/step_ops.h"
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/model/costs.h"
#include <math.h>

enum { E = sizeof(real) };

static void calls(Play *play, const RankSteps *r, size_t group, CommKind kind, size_t times,
                  size_t count, size_t size) {
    for (size_t i = 0; i < times; i++) play_call(play, r->rank, group, kind, count, size);
}
// Returns the bytes of an element that a call moves: of weights in an all-gather, else of
// gradients.
static size_t moved(const RankSteps *r, CommKind kind) {
    return kind == COMM_ALL_GATHER ? weight_bytes(&r->c->model) : step_gradient(r);
}
void step_units(Play *play, const RankSteps *r, const CutSizes *z, CommKind kind) {
    for (size_t i = 0; i < cut_layers(z); i++)
        play_call(play, r->rank, r->group.replicas, kind, elements_unit(z, i), moved(r, kind));
}
void step_table(Play *play, const RankSteps *r, CommKind kind) {
    for (size_t i = 0; i < stage_tables(&r->stage); i++)
        play_call(play, r->rank, r->group.replicas, kind, elements_wte(&r->stage), moved(r, kind));
}

void step_partial_sums(Play *play, const RankSteps *r, const CutSizes *z) {
    size_t elements[PARTIAL_SUMS];
    elements_partial_sums(z, elements);
    for (size_t i = 0; i < PARTIAL_SUMS; i++)
        if (elements[i])
            calls(play, r, r->group.tp, COMM_ALL_REDUCE,
                  i + 1 < PARTIAL_SUMS ? z->blocks : (size_t)z->last, elements[i],
                  step_gradient(r));
}

// Returns the time that a block of ring attention waits for its messages, beyond the time of its
// products, if all chunks are equal.
// own: the products of step 0.
// other: the products of each of the other n-1 steps.
// hop: one message of k | v.
// sum_hop: one message of dk | dv.
// Forward sends nothing in the last step, so forward takes
//     max(own, hop) + (n-2) max(other, hop) + other
// Backward sends dk | dv after the products, on the same lane behind the next k | v. The last hop
// is never hidden, so backward takes
//     max(own, hop) + (n-2) max(other, hop + sum_hop) + max(other, sum_hop) + sum_hop
static double ring_waits(const RankSteps *r, const CutSizes *z, size_t B, bool backward) {
    const size_t n = mesh_cp(r->c->mesh), T = z->T, elements = B * T * 2 * z->key_heads * z->D;
    const size_t link = r->cp_near ? CLOCK_INSIDE : CLOCK_ONE_CARD;
    const double hop = (double)clock_transfer(link, 1, elements * step_stored(r));
    const double sum_hop = backward ? (double)clock_transfer(link, 1, elements * E) : 0;
    const double products = backward ? 5 : 2;
    double other = products * (double)(B * z->heads) *
                   work_product(T * T / 2, 1, z->D).time; // with keys of other ranks
    double own = products * (double)(B * z->heads) * work_product(T * (T + 1) / 2, 1, z->D).time;
    if (n == 1) return 0;
    const double wait = fmax(0, hop - own) + (double)(n - 2) * fmax(0, hop + sum_hop - other);
    return backward ? wait + fmax(0, sum_hop - other) + sum_hop : wait;
}

// Lists `whole` sums over tp of [tokens, C], and `half` half sums. Under sequence parallelism a sum
// is a reduce-scatter and an all-gather, and half a sum is one of these calls. The function lists
// an all-gather for either call, because both calls take the same time. Without sequence
// parallelism there are no half sums.
static void sums_over_tp(Play *play, const RankSteps *r, const CutSizes *z, size_t B, size_t whole,
                         size_t half) {
    if (r->c->mesh.tp == 1) return;
    size_t tokens = B * z->T, rows = r->c->mesh.tp * cut_rows(z, B);
    if (r->c->sequence)
        calls(play, r, r->group.tp, COMM_ALL_GATHER, 2 * whole + half, rows * z->C, step_stored(r));
    else calls(play, r, r->group.tp, COMM_ALL_REDUCE, whole, tokens * z->C, step_stored(r));
}

static void forward(Play *play, const RankSteps *r, const CutSizes *z, size_t B) {
    bool zero3 = trainer_zero(r->c) == 3;
    if (zero3) step_units(play, r, z, COMM_ALL_GATHER);
    double time = work_stage(z, B).time + (double)z->blocks * ring_waits(r, z, B, false);
    play_work(play, r->rank, (Picoseconds)time);
    // Under sequence parallelism the embedding's sum is a reduce-scatter, and the head begins with
    // a gather.
    bool sequence = r->c->sequence;
    sums_over_tp(play, r, z, B, 2 * z->blocks + (sequence ? 0 : z->first),
                 sequence ? (size_t)z->first + (size_t)z->last : 0);
    if (r->c->mesh.tp > 1)
        calls(play, r, r->group.tp, COMM_ALL_REDUCE, 3 * (size_t)z->last, B * z->T, E);
}

// The second half of a backward has the products for the gradients of weights, and the reduction of
// these gradients. No other stage waits for the second half.
// inputs: lists the first half.
// weights: lists the second half.
static void backward(Play *play, const RankSteps *r, const CutSizes *z, size_t B, bool inputs,
                     bool weights) {
    const TrainerConfig *c = r->c;
    double blocks = (double)z->blocks, scores = blocks * work_scores(z, B).time;
    double second =
        blocks * work_block(z, B).time - 2 * scores + (z->last ? work_head(z, B).time : 0);
    double all =
        2 * work_stage(z, B).time + z->online * scores + blocks * ring_waits(r, z, B, true);
    bool again = c->recompute == RECOMPUTE_FULL;
    if (again) all += blocks * (work_block(z, B).time + ring_waits(r, z, B, false));
    if (c->recompute == RECOMPUTE_SELECTIVE && !z->online) all += scores;
    if (inputs && trainer_zero(c) == 3) step_units(play, r, z, COMM_ALL_GATHER);
    double time = (inputs ? all - second : 0) + (weights ? second : 0);
    play_work(play, r->rank, (Picoseconds)time);
    if (inputs)
        sums_over_tp(play, r, z, B, 2 * z->blocks + z->last + (again ? 2 * z->blocks : 0),
                     2 * z->blocks + z->first);
    if (weights && c->sequence && trainer_zero(c) > 1) step_partial_sums(play, r, z);
    if (weights && trainer_zero(c) > 1) step_units(play, r, z, COMM_REDUCE_SCATTER);
}

void step_op(Play *play, size_t rank, PipeOp op, const void *context) {
    const RankSteps *r = context;
    (void)rank;
    const CutSizes *z = &r->chunk[op.chunk];
    size_t B = step_sequences(r, op.micro_batch);
    if (op.what == FORWARD) forward(play, r, z, B);
    else backward(play, r, z, B, op.what != BACKWARD_WEIGHTS, op.what != BACKWARD_INPUTS);
}
