// 05_vocab.c: trains the smallest language model (bigram.c) with its table E cut by vocabulary
// entries, and unsplit. The two trainings must agree, the lookup in every bit. Then every rank
// passes all logits as if these were the rank's part, and the loss is too high by log t. The number
// of entries, 61, is prime, and the sequences have unequal numbers of counted targets.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

enum { B = BIGRAM_B, T = BIGRAM_T, M = B * T, V = BIGRAM_V, C = BIGRAM_C };
static const Range all_entries = { 0, V };

static void train(Run *run, Comm *tp, TrialResult *r) {
    Data data = data_synthetic(V, T, run->seed);
    Bigram m = bigram_new(run, tp ? shard_range(V, tp->size, tp->rank) : all_entries);
    for (size_t step = 0; step < TRIAL_STEPS; step++) {
        trial_step_begin(run, tp, r, step);
        Arena buffers = arena(MEM_WORKSPACE);
        const Batch b = data_batch(&data, &buffers, step, 0, B, B);
        bigram_logits(run, tp, &m, &b);
        bigram_loss(tp, &m, &b);
        r->loss[step] = tensor_sum(m.loss) * b.token_weight;
        bigram_backward(run, tp, &m, &b);
        snapshot_put(r->seen, "loss of each token", M, 1, m.loss, 0, 0);
        snapshot_put(r->seen, "grad logits", M, V, m.logits, 0, m.entries.lo); // in place
        snapshot_put(r->seen, "grad E", V, C, m.embedding.g, m.entries.lo, 0);
        op_sgd(m.embedding.w, m.embedding.g, 1, (real)0.5, 0);
        trial_step_end(tp, r);
        arena_free(&buffers);
    }
    snapshot_put(r->weights, "E after 3 steps", V, C, m.embedding.w, m.entries.lo, 0);
    bigram_free(&m);
    data_free(&data);
}

// ---------------------------------------------------------------- the lookup, the trap, a loss

// Compares the lookup in every bit, because the sum over ranks of one row and zeros rounds nothing.
static void lookup(Run *run, Bigram *part, Bigram *whole, const Batch *b) {
    Snapshot *got = snapshot_new(run);
    Snapshot *want = snapshot_new(run);
    vocab_parallel_lookup(run->world, part->x, part->embedding.w, b->tokens, part->entries.lo);
    op_embed_tokens(whole->x, whole->embedding.w, b->tokens, 0);
    snapshot_put(got, "E[token]", M, C, part->x, 0, 0);
    if (run->is_root) snapshot_put(want, "E[token]", M, C, whole->x, 0, 0);
    check_equal(run, "lookup = unsplit", got, want);
    snapshot_free(got);
    snapshot_free(want);
}

// Shows the trap. Every rank passes all V logits to vocab_parallel_loss as if these were the rank's
// part. Rank 0 still finds the target, but every exponential is counted t times, so the loss is
// log(t sum) = log(sum) + log t.
static void gathered_logits(Run *run, Bigram *whole, const Batch *b) {
    Comm *tp = run->world;
    bigram_logits(run, NULL, whole, b);
    vocab_parallel_loss(tp, whole->loss, whole->sum, whole->logits, b->targets, tp->rank * V);
    const double wrong = tensor_sum(whole->loss) * b->token_weight;
    const double less = wrong - log((double)tp->size);
    bigram_logits(run, NULL, whole, b);
    bigram_loss(NULL, whole, b);
    const double right = tensor_sum(whole->loss) * b->token_weight;
    check_numbers(run, "gathered logits: the trap", "loss - log t", &less, &right, 1,
                  LIMIT_ROUNDING); // of reals: logits and losses are reals in any storage
    say(run,
        "Trap: if a rank has all logits, and the ranks still add their sums of exponentials, the "
        "loss is\nlog t too large: %.4f instead of %.4f, the mean of all tokens.",
        wrong, right);
}

static double first_element(Tensor t) { return tensor_sum(tensor_row_range(t, 0, 1)); }

// Prints what each rank puts into the three all-reduces of vocab_parallel_loss for token 0.
static void one_token(Run *run, Bigram *m, const Batch *b) {
    enum { MAX, PICKED, SUM, FIELDS };
    const size_t n = run->world->size;
    double(*all)[FIELDS] = host_alloc(n * sizeof *all); // a row per rank
    for (size_t i = 0; i < n * FIELDS; i++) all[0][i] = 0;
    double *own = all[run->world->rank];
    bigram_logits(run, run->world, m, b);
    op_row_max(m->sum, m->logits); // the loss overwrites m->sum and m->loss
    own[MAX] = first_element(m->sum);
    op_pick_target(m->loss, m->logits, b->targets, m->entries.lo);
    own[PICKED] = first_element(m->loss);
    bigram_loss(run->world, m, b);
    own[SUM] = first_element(m->logits); // the logits have become exponentials
    comm_all_reduce_doubles(run->world, all[0], n * FIELDS);

    double max = -INFINITY, picked = 0, sum = 0;
    say(run, "E is the table of embedding and head. Each rank holds 1/t of its entries, and has "
             "their logits only.");
    say(run, "the loss of token 0   largest logit   logit of the target   sum of exp(logit - max)");
    for (size_t i = 0; i < n; i++) {
        const Range entries = shard_range(V, n, i);
        say(run, "rank %zu: entries %2zu-%-2zu  %13.3f  %20.3f  %24.3f", i, entries.lo,
            entries.hi - 1, all[i][MAX], all[i][PICKED], all[i][SUM]);
        max = fmax(max, all[i][MAX]);
        picked += all[i][PICKED];
        sum += all[i][SUM];
    }
    say(run, "all-reduce             max %9.3f  sum %16.3f  sum %20.3f", max, picked, sum);
    say(run,
        "max is the largest logit of all ranks, so the sums can be added. A rank without the "
        "target adds 0.\nloss = log %.3f + %.3f - (%.3f) = %.3f on every rank.",
        sum, max, picked, first_element(m->loss));
    free(all);
}

// ---------------------------------------------------------------- costs, and the table

// Checks the costs: two all-reduces of [M, C] (x in forward, dx in backward), and three of [M, 1]
// for the loss.
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

static void page(Run *run) {
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
        "  M = %d tokens, V = %d vocabulary entries, width C = %d; t = %zu ranks, %zu bytes per "
        "element\n  gathered, predicted: every rank has all logits. It sends (t-1) ceil(MV/t) "
        "elements for them,\n  and keeps M (C + V + 1).",
        M, V, C, n, r);
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
    const TrialResult r = trial_compare(run, "vocabulary-parallel = unsplit", train);
    ledger_pause();
    Data data = data_synthetic(V, T, run->seed);
    Arena tokens = arena(MEM_REFERENCE);
    const Batch b = data_batch(&data, &tokens, 0, 0, B, B);
    Bigram part = bigram_new(run, shard_range(V, n, run->world->rank));
    Bigram whole = bigram_new(run, all_entries);
    lookup(run, &part, &whole, &b);
    one_token(run, &part, &b);
    gathered_logits(run, &whole, &b);
    bigram_free(&part);
    bigram_free(&whole);
    arena_free(&tokens);
    data_free(&data);
    ledger_resume();
    costs(run, &r);
    page(run);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(vocabulary, options);
