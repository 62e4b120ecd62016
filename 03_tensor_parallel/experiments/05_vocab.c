// 05_vocab.c: trains the smallest language model (bigram.c) with its table E cut by vocabulary
// entries, and unsplit. The two trainings must agree, the lookup in every bit. Then every rank
// passes all logits as if they were its part: the loss is too high by log t. The number of entries,
// 61, is prime, and the sequences have unequal numbers of counted targets.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = BIGRAM_B, T = BIGRAM_T, M = B * T, V = BIGRAM_V, C = BIGRAM_C };

static void train(Run *run, Comm *tp, TrialResult *r) {
    Data data = data_synthetic(V, T, run->seed);
    Bigram m = bigram_new(run, tp ? shard_range(V, tp->size, tp->rank) : (Range){ 0, V });
    for (size_t step = 0; step < TRIAL_STEPS; step++) {
        trial_step_begin(tp);
        Arena buffers = arena(MEM_WORKSPACE);
        Batch b = data_batch(&data, &buffers, step, 0, B, B);
        Tensor dloss = tensor_new(&buffers, M, 1);
        Tensor dx = tensor_like(&buffers, m.x);
        tensor_fill(dloss, (real)b.token_weight); // 1 / counted tokens
        (tp ? bigram_split_forward : bigram_forward)(run, &m, &b);
        r->loss[step] = tensor_sum(m.loss) * b.token_weight;
        (tp ? bigram_split_backward : bigram_backward)(run, &m, &b, dloss, dx);
        trial_put(r->seen, "loss of each token", step, M, 1, m.loss, 0, 0);
        trial_put(r->seen, "grad logits", step, M, V, m.logits, 0, m.entries.lo); // in place
        trial_put(r->seen, "grad E", step, V, C, m.embedding.g, m.entries.lo, 0);
        op_sgd(m.embedding.w, m.embedding.g, 1, (real)0.5, 0);
        trial_step_end(tp, r);
        arena_free(&buffers);
    }
    snapshot_put(r->weights, "E after 3 steps", V, C, m.embedding.w, m.entries.lo, 0);
    bigram_free(&m);
    data_free(&data);
}

// ---------------------------------------------------------------- the lookup, a loss, the trap

// The sum over ranks of one row and zeros rounds nothing: the lookup is equal in every bit.
static void lookup(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Snapshot *got = snapshot_new(run);
    Snapshot *want = snapshot_new(run);
    Bigram m = bigram_new(run, shard_range(V, tp->size, tp->rank));
    vocab_parallel_lookup(tp, m.x, m.embedding.w, b->tokens, m.entries.lo);
    snapshot_put(got, "E[token]", M, C, m.x, 0, 0);
    bigram_free(&m);
    if (tp->rank == 0) {
        m = bigram_new(run, (Range){ 0, V });
        op_embed_tokens(m.x, m.embedding.w, b->tokens, 0);
        snapshot_put(want, "E[token]", M, C, m.x, 0, 0);
        bigram_free(&m);
    }
    check_equal(run, "lookup = unsplit", got, want);
    snapshot_free(got);
    snapshot_free(want);
}

static double first_element(Tensor t) { return tensor_sum(tensor_row_range(t, 0, 1)); }

// Prints what each rank puts into the three all-reduces of vocab_parallel_loss for token 0.
static void one_token(Run *run, const Batch *b) {
    enum { LO, HI, MAX, PICKED, SUM, FIELDS };
    const size_t n = run->world->size;
    Bigram m = bigram_new(run, shard_range(V, n, run->world->rank));
    double *all = host_alloc(n * FIELDS * sizeof *all);
    double *own = all + run->world->rank * FIELDS;
    memset(all, 0, n * FIELDS * sizeof *all);
    vocab_parallel_lookup(run->world, m.x, m.embedding.w, b->tokens, m.entries.lo);
    bigram_drop(run, m.x, b);
    op_matmul_nt(m.logits, m.x, m.head.w);
    own[LO] = (double)m.entries.lo;
    own[HI] = (double)m.entries.hi;
    op_row_max(m.sum, m.logits); // before the loss overwrites m.sum
    own[MAX] = first_element(m.sum);
    op_pick_target(m.loss, m.logits, b->targets, m.entries.lo);
    own[PICKED] = first_element(m.loss);
    vocab_parallel_loss(run->world, m.loss, m.sum, m.logits, b->targets, m.entries.lo);
    own[SUM] = first_element(m.logits); // the first exponential of the row
    comm_all_reduce_doubles(run->world, all, n * FIELDS);

    double max = -INFINITY, picked = 0, sum = 0;
    say(run, "E is the table of embedding and head. Each rank holds 1/t of its entries, and has "
             "their logits only.");
    say(run, "the loss of token 0   largest logit   logit of the target   "
             "sum of exp(logit - largest)");
    for (size_t i = 0; i < n; i++) {
        const double *of = all + i * FIELDS;
        say(run, "rank %zu: entries %2.0f-%-2.0f  %13.3f  %20.3f  %28.3f", i, of[LO], of[HI] - 1,
            of[MAX], of[PICKED], of[SUM]);
        max = of[MAX] > max ? of[MAX] : max;
        picked += of[PICKED];
        sum += of[SUM];
    }
    say(run, "all-reduce             max %9.3f  sum %16.3f  sum %24.3f", max, picked, sum);
    say(run,
        "loss = log %.3f + %.3f - (%.3f) = %.3f on every rank. A rank without the target adds "
        "0.",
        sum, max, picked, first_element(m.loss));
    free(all);
    bigram_free(&m);
}

// The trap: every rank passes all V logits to vocab_parallel_loss as if they were its own part.
// Rank 0 still finds the target, but every exponential is counted t times, so the loss is
// log(t sum) = log(sum) + log t.
typedef struct {
    double right, wrong;
} Losses;
static Losses gathered_logits(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Bigram m = bigram_new(run, (Range){ 0, V });
    op_embed_tokens(m.x, m.embedding.w, b->tokens, 0);
    bigram_drop(run, m.x, b);
    op_matmul_nt(m.logits, m.x, m.head.w);
    vocab_parallel_loss(tp, m.loss, m.sum, m.logits, b->targets, tp->rank * V);
    double wrong = tensor_sum(m.loss) * b->token_weight;
    double less = wrong - log((double)tp->size);
    bigram_forward(run, &m, b);
    double right = tensor_sum(m.loss) * b->token_weight;
    check_numbers(run, "gathered logits: the trap", "loss - log t", &less, &right, 1,
                  LIMIT_ROUNDING); // of reals: logits and losses are reals in any storage
    bigram_free(&m);
    return (Losses){ right, wrong };
}

// ---------------------------------------------------------------- costs

// Two all-reduces of [M, C] (x in forward, dx in backward), and three of [M, 1] for the loss.
static void costs(Run *run, const TrialResult *r) {
    const size_t n = run->world->size, e = element_size(option_storage(run));
    const size_t entries = range_size(shard_range(V, n, run->world->rank));
    const double wide = ring_bytes(ALL_REDUCE_PASSES, n, M * C, e);
    const double narrow = ring_bytes(ALL_REDUCE_PASSES, n, M, sizeof(real));
    const TrialCosts predicted = { .parameters = entries * C,
                                   .gradients = 2 * entries * C,  // gradients of both uses of E
                                   .kept = M * (C + entries + 1), // x, own logits, a sum
                                   .kept_reals = M * (entries + 1),
                                   .calls = 2 + 3,
                                   .sent = 2 * wide + 3 * narrow };
    trial_costs(run, "%s", "%s", &predicted, r);
}

static void table(Run *run, Losses loss) {
    static const char *const columns[] = { "logits cut", "gathered", NULL };
    const size_t n = run->world->size, r = sizeof(real), e = element_size(option_storage(run));
    const char *narrow = value_cell(run, 3 * ring_bytes(ALL_REDUCE_PASSES, n, M, r), "bytes");
    const char *wide = value_cell(run, ring_bytes(ONE_PASS, n, M * V, r), "bytes");
    const char *kept = value_cell(run, (double)(M * (C * e + (V + 1) * r)), "bytes");
    const Result rows[] = {
        { "sent for the loss, per rank", "6 (t-1) ceil(M/t)", { narrow, wide } },
        { "kept: x, logits, sums", "M (C + V/t + 1)", { "kept", kept } },
        { "E, per rank", "V C/t", { "parameters", "=-" } },
        { "all-reduces per step", "1 embedding, 3 for the loss, 1 for dX", { "calls", "=-" } },
        { "sent per rank and step", "the loss, and 4 (t-1) ceil(MC/t)", { "sent", "=-" } },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  M = %d tokens, V = %d vocabulary entries, width C = %d; t = %zu rank%s, %zu bytes "
        "per element",
        M, V, C, n, n == 1 ? "" : "s", r);
    say(run, "  gathered: every rank has all logits. Predicted: a rank sends (t-1) ceil(MV/t) "
             "elements, and");
    say(run, "  keeps M (C + V + 1).%s",
        n == 1 ? ""
               : " Trap: if all logits are "
                 "gathered on each rank, and the ranks still add");
    if (n > 1)
        say(run,
            "  their sums of exponentials, the loss is log t too large: %.4f instead of %.4f "
            "at step 0.",
            loss.wrong, loss.right);
    if (!answer_alone(run))
        say_answer(run,
                   "Each rank puts three numbers per token into all-reduces: its largest "
                   "logit, the target's logit, its sum of exponentials. A rank sends %s, instead "
                   "of %s for all logits.",
                   narrow + 1, wide + 1);
    say_cost(run,
             "%s all-reduces per step, exposed: 1 embedding, 3 for the loss, 1 for dX. A rank "
             "sends %s.",
             cost_text(run, "calls"), cost_text(run, "sent"));
    say_use_when(run, "the vocabulary is so large that embedding and head take much memory.");
}

static void vocabulary(Run *run) {
    const size_t n = run->world->size;
    REQUIRE(n <= V, "%zu ranks: the vocabulary has %d entries; choose %d ranks or fewer", n, V, V);
    TrialResult r = trial_compare(run, "vocabulary-parallel = unsplit", train);
    ledger_pause();
    Data data = data_synthetic(V, T, run->seed);
    Arena tokens = arena(MEM_REFERENCE);
    Batch b = data_batch(&data, &tokens, 0, 0, B, B);
    lookup(run, &b);
    Losses loss = gathered_logits(run, &b);
    one_token(run, &b);
    arena_free(&tokens);
    data_free(&data);
    ledger_resume();
    costs(run, &r);
    table(run, loss);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(vocabulary, options);
