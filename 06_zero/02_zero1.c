// ranks: 4
// level: core
// question: If all replicas make the same update, why should each of them keep the whole optimizer state?
//
// ZeRO stage 1. Every rank holds all weights and all gradients, as in data parallelism, but AdamW's m and v only for
// its part: shard_range of the flat elements of each unit (an embedding table, a block, the last norm). So the
// all-reduce comes apart into its two halves, with the update between them:
//
//     all-reduce       =  reduce-scatter                      +  all-gather
//     data parallel:      sum of gradients, everywhere,          then everybody updates everything
//     ZeRO-1:             sum of MY part of the gradients,  I update my part,  all-gather of weights
//
// Left out: 16-bit weights with an fp32 master copy, where the saving is larger (01_by_hand has the table).
#include "06_zero/zero.h"
#include "common/course.h"

// C = 15 and T = 11 make every unit odd: no part is equal, and parts cut through tensors with and without weight decay.
static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

// ---------------------------------------------------------------- the step, cut where ranks must talk

static StepResult step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    comm_ledger_reset(dp);
    zero_begin(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &mine[k]);
    model_fold_tied(m);                            // on whole local gradients: before anything is reduced
    zero_reduce(m);                                // reduce-scatter of each unit: own_g <- my part of the sum

    double norm = model_grad_norm(m, dp);          // of the elements I own; a tensor may lie on several ranks
    optimizer_step(o, m, clip_factor(norm, t->clip));      // own_w, with my m and v
    zero_end(m);                                   // all-gather of each unit: w <- everybody's own_w
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- predictions, from sizes alone

enum { UNITS_BESIDE_BLOCKS = 3 };                  // wte, wpe, ln_f
static size_t unit_size(const ModelConfig *c, size_t unit) {
    size_t C = c->width, size[UNITS_BESIDE_BLOCKS] = { c->vocab * C, c->context * C, 2 * C };
    return unit < UNITS_BESIDE_BLOCKS ? size[unit] : 12 * C * C + 13 * C;
}

static void costs(Run *run, Comm *dp, const ModelConfig *c) {
    size_t N = dp->size, units = UNITS_BESIDE_BLOCKS + c->layers, all = 0, mine = 0, chunks = 0;
    for (size_t u = 0; u < units; u++) {
        // Psi: the parameters, the tied one once
        all += unit_size(c, u);
        mine += range_size(shard_range(unit_size(c, u), N, dp->rank));               // about Psi / N, to the element
        chunks += ceil_div(unit_size(c, u), N);
    }
    // what a ring sends of the whole model, once
    double e = sizeof(real), unit = (double)((N - 1) * chunks) * e;
    cost(run, "weights: 4 bytes a parameter in fp32", "bytes", (double)all * e, (double)memory_now(MEM_PARAMETERS));
    cost(run, "gradients: 4 (and the head's use of wte)", "bytes", (double)(all + c->vocab * c->width) * e,
         (double)memory_now(MEM_GRADIENTS));
    cost(run, "m and v: 8 / N", "bytes", 2 * (double)mine * e, (double)memory_now(MEM_OPTIMIZER));
    cost(run, "reduce-scatter calls, one a unit", "calls", (double)units,
         (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    cost(run, "reduce-scatter: 1 unit of traffic", "bytes", unit, (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    cost(run, "all-gather calls, one a unit", "calls", (double)units, (double)dp->ledger[COMM_ALL_GATHER].calls);
    cost(run, "all-gather: 1 unit of traffic", "bytes", unit, (double)dp->ledger[COMM_ALL_GATHER].bytes);
    // squares for the norm, and the loss
    size_t scalars = ceil_div(config_tensors(c), N) + ceil_div(1, N);
    cost(run, "all-reduce of loss and norm", "bytes", (double)(2 * (N - 1) * scalars * sizeof(double)),
         (double)dp->ledger[COMM_ALL_REDUCE].bytes);
    cost(run, "all that this rank sent", "bytes", 2 * unit + (double)(2 * (N - 1) * scalars * sizeof(double)),
         (double)comm_bytes_sent(dp));
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *dp, Training t, const char *name) {
    Model *m = model_describe(&t.model, model_layers(&t.model));
    zero_allocate(m, dp, 1);
    Course zero = course_new(run, &t);
    course_train(&zero, m, &t, dp->size, dp->rank, step, dp);
    say(run, "%s, %zu steps, loss %.4f -> %.4f\n", name, t.steps, zero.loss[0], zero.loss[t.steps - 1]);
    // Shard after shard in rank order: what data-parallel replicas hold, to the last bit (chapter 01).
    Course replicas = course_unsplit(run, &t, dp->size);
    // The squares of the norm are added in another order when they are cut, and clipping multiplies by a factor that
    // comes from the norm.
    double limit = t.clip > 0 ? LIMIT_ROUNDING : every_bit(run);
    course_compare_tensors(run, "ZeRO-1 = data parallel", &zero, &replicas, limit);
    course_compare_numbers(run, "ZeRO-1 = data parallel", &zero, &replicas, LIMIT_ROUNDING);
    if (t.optimizer.kind == ADAMW) costs(run, dp, &t.model);
    t.micro_batches = 1;
    Course unsplit = course_unsplit(run, &t, 1);
    course_compare(run, "ZeRO-1 = unsplit", &zero, &unsplit, LIMIT_ROUNDING);
    course_free(&zero);
    course_free(&replicas);
    course_free(&unsplit);
    model_free(m);
}

static void zero1(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = option_size(run, "steps"), .sequences = option_size(run, "batch"), .micro_batches = 1 };
    REQUIRE(t.steps > 0, "--steps must be at least 1");
    REQUIRE(t.sequences >= dp->size, "--batch %zu leaves some of the %zu ranks without a sequence: choose at least %zu",
            t.sequences, dp->size, dp->size);
    t.model.seed = run->seed;

    t.optimizer = sgd(0.1);
    compare(run, dp, t, "SGD");
    t.clip = 0.5;                                  // below every norm: each step is clipped
    compare(run, dp, t, "SGD, clipped at 0.5");
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;                // for matrices; a part may hold elements of both kinds
    compare(run, dp, t, "AdamW, weight decay 0.1");
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "steps", "N", "3", "training steps" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, zero1, options); }
