// ranks: 4
// level: core
// question: How can a rank compute with weights that it does not hold?
//
// ZeRO stage 3; PyTorch's fully sharded data parallel (FSDP) with reshard_after_forward=True. A rank keeps 1/N of
// everything: weights, gradients, m and v. A unit's weights are gathered just before its layer runs, forward and
// backward, and dropped after it (zero.c, gather_and_forward and gather_and_backward). At any time one block is whole;
// all others are in parts.
//
//     forward  of a unit:   all-gather weights . compute . drop
//     backward of a unit:   all-gather weights . compute . reduce-scatter gradient . drop both
//
// The tied embedding is needed at both ends of a step: it is gathered once, kept, and reduced once.
//
// FSDP's words: a "unit" is what one wrapped module gathers at a time; reshard_after_forward=False keeps the weights
// from forward to backward (2 units of traffic a micro-batch, and stage 2's memory). Left out: prefetch, which real
// systems add: the next unit is gathered while this one computes, so two units are whole at a time; 16-bit weights;
// offloading parts to host memory.
#include "06_zero/zero.h"
#include "common/course.h"

static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

// ---------------------------------------------------------------- the step, cut where ranks must talk

static StepResult step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    comm_ledger_reset(dp);
    zero_begin(m);                                 // all-gather of wte; room for its two gradients
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);       // gather, compute, drop; gather, compute, reduce, drop
    model_fold_tied(m);
    zero_reduce(m);                                // reduce-scatter of wte; its gathered weights are dropped

    double norm = model_grad_norm(m, dp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero_end(m);                                   // nothing to gather: the next forward does
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- predictions, from sizes alone

// Units in model order without wte, which is apart: wpe, the blocks, ln_f.
static size_t other_unit(const ModelConfig *c, size_t unit) {
    size_t C = c->width;
    return unit == 0 ? c->context * C : unit == c->layers + 1 ? 2 * C : 12 * C * C + 13 * C;
}

static void costs(Run *run, Comm *dp, const ModelConfig *c, size_t m) {
    size_t N = dp->size, wte = c->vocab * c->width, others = c->layers + 2;
    size_t mine = range_size(shard_range(wte, N, dp->rank)), chunks = 0, in_flight = 0;
    for (size_t u = 0; u < others; u++) {
        size_t size = other_unit(c, u), part = range_size(shard_range(size, N, dp->rank));
        mine += part;
        chunks += ceil_div(size, N);
        // weights, gradient; and the part that arrives, where it must be added to another
        size_t now = 2 * size + (m > 1 ? part : 0);
        if (now > in_flight) in_flight = now;
    }
    double e = sizeof(real), unit = (double)((N - 1) * chunks) * e, unit_wte = (double)((N - 1) * ceil_div(wte, N)) * e;
    cost(run, "weights between steps: 4 / N", "bytes", (double)mine * e, (double)memory_now(MEM_PARAMETERS));
    cost(run, "gradients between steps: 4 / N", "bytes", (double)mine * e, (double)memory_now(MEM_GRADIENTS));
    cost(run, "m and v: 8 / N", "bytes", 2 * (double)mine * e, (double)memory_now(MEM_OPTIMIZER));
    cost(run, "in flight: 3 wte + twice the largest unit", "bytes", (double)(3 * wte + in_flight) * e,
         (double)memory_peak(MEM_COMMUNICATION));
    cost(run, "in flight between steps: nothing", "bytes", 0, (double)memory_now(MEM_COMMUNICATION));
    cost(run, "all-gather calls: 2m a unit, wte once", "calls", (double)(2 * m * others + 1),
         (double)dp->ledger[COMM_ALL_GATHER].calls);
    cost(run, "all-gather: 2m units of traffic", "bytes", 2 * (double)m * unit + unit_wte,
         (double)dp->ledger[COMM_ALL_GATHER].bytes);
    cost(run, "reduce-scatter calls: m a unit, wte once", "calls", (double)(m * others + 1),
         (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    cost(run, "reduce-scatter: m units of traffic", "bytes", (double)m * unit + unit_wte,
         (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *dp, Training t, const char *name) {
    Model *m = model_describe(&t.model, model_layers(&t.model));
    zero_allocate(m, dp, 3);
    Course zero = course_new(run, &t);
    course_train(&zero, m, &t, dp->size, dp->rank, step, dp);
    say(run, "%s, %zu micro-batch%s a rank, loss %.4f -> %.4f\n", name, t.micro_batches,
        t.micro_batches > 1 ? "es" : "", zero.loss[0], zero.loss[t.steps - 1]);
    // Shard after shard in rank order: what data-parallel replicas hold, to the last bit (chapter 01).
    Course replicas = course_unsplit(run, &t, dp->size);
    // Gathered weights are moved data and change no bit. What is added in which order is as in stage 2.
    double limit = t.micro_batches == 1 && t.clip == 0 ? every_bit(run) : LIMIT_ROUNDING;
    course_compare_tensors(run, "ZeRO-3 = data parallel", &zero, &replicas, limit);
    course_compare_numbers(run, "ZeRO-3 = data parallel", &zero, &replicas, LIMIT_ROUNDING);
    if (t.optimizer.kind == ADAMW) costs(run, dp, &t.model, t.micro_batches);
    t.micro_batches = 1;
    Course unsplit = course_unsplit(run, &t, 1);
    course_compare(run, "ZeRO-3 = unsplit", &zero, &unsplit, LIMIT_ROUNDING);
    course_free(&zero);
    course_free(&replicas);
    course_free(&unsplit);
    model_free(m);
}

static void zero3(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = option_size(run, "steps"), .sequences = option_size(run, "batch") };
    size_t m = option_size(run, "micro-batches");
    REQUIRE(t.steps > 0 && m > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= dp->size, "--batch %zu leaves some of the %zu ranks without a sequence: choose at least %zu",
            t.sequences, dp->size, dp->size);
    t.model.seed = run->seed;

    t.micro_batches = 1;
    t.optimizer = sgd(0.1);
    compare(run, dp, t, "SGD");
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    compare(run, dp, t, "AdamW, weight decay 0.1");

    t.micro_batches = m;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    compare(run, dp, t, "SGD, clipped at 0.5");
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    compare(run, dp, t, "AdamW, weight decay 0.1");
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the second half" },
    { "steps", "N", "3", "training steps" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, zero3, options); }
