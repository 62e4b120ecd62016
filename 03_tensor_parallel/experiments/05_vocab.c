// 05_vocab.c: trains a GPT without blocks (embedding, norm, head, loss), with its table wte cut by
// vocabulary entries, and unsplit. The two trainings must agree. Then one batch goes through the
// lookup and the loss of 05_vocab.c, and the page shows the exchange of one token. The number of
// entries, 61, is prime, and the sequences have unequal numbers of counted targets.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include "common/tensor/random.h"

enum { B = 3, T = 8, M = B * T, V = 61, C = 12 };
static const ModelConfig ends = {
    .layers = 0, .width = C, .heads = C, .context = T, .vocab = V, .dropout = 0.1
};

// ---------------------------------------------------------------- the lookup and a loss

static double first_element(Tensor t) { return tensor_sum(tensor_row_range(t, 0, 1)); }

enum { MAX, PICKED, SUM, FIELDS };
// Prints the three numbers of token 0 that each rank puts into the all-reduces of
// vocab_parallel_loss, and the loss.
static void one_token(Run *run, const double own[FIELDS], double loss) {
    const size_t n = run->world->size;
    double(*all)[FIELDS] = host_alloc(n * sizeof *all); // a row per rank
    double max = -INFINITY, picked = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < FIELDS; k++) all[i][k] = i == run->world->rank ? own[k] : 0;
    comm_all_reduce_doubles(run->world, all[0], n * FIELDS);
    say(run, "A GPT without blocks: embedding, norm, head, loss. Embedding and head share one "
             "table. Each rank\nholds 1/t of its entries, and has their logits only.");
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
        sum, max, picked, loss);
    free(all);
}

// Runs the lookup and the loss of one batch. The lookup must be right in every bit, because the sum
// over ranks of one row and zeros rounds nothing.
static void one_batch(Run *run) {
    Comm *tp = run->world;
    const Range entries = shard_range(V, tp->size, tp->rank);
    Data data = data_synthetic(V, T, run->seed);
    Arena a = arena(MEM_WORKSPACE);
    const Batch b = data_batch(&data, &a, 0, 0, B, B);
    Tensor E = tensor_new(&a, V, C), own_E = tensor_row_range(E, entries.lo, entries.hi);
    Tensor x = tensor_new(&a, M, C), whole_x = tensor_new(&a, M, C);
    Tensor logits = tensor_new(&a, M, own_E.rows), loss = tensor_new(&a, M, 1);
    Tensor max = tensor_new(&a, M, 1), picked = tensor_new(&a, M, 1), sum = tensor_new(&a, M, 1);
    tensor_randomize(E, run->seed, 0.5);

    vocab_parallel_lookup(tp, x, own_E, b.tokens, entries.lo);
    op_embed_tokens(whole_x, E, b.tokens, 0);
    check_true(run, "lookup = unsplit", "E[token]", tensor_equal(x, whole_x));
    op_matmul_nt(logits, x, own_E);
    op_row_max(max, logits);
    op_pick_target(picked, logits, b.targets, entries.lo);
    vocab_parallel_loss(tp, loss, sum, logits, b.targets, entries.lo); // logits become exponentials
    const double own[] = { first_element(max), first_element(picked), first_element(logits) };
    one_token(run, own, first_element(loss));
    arena_free(&a);
    data_free(&data);
}

// ---------------------------------------------------------------- the table

static void page(Run *run) {
    static const char *const columns[] = { "logits cut", "gathered", NULL };
    const size_t n = run->world->size, r = sizeof(real), e = element_size(option_storage(run));
    const char *narrow = value_cell(run, 3 * ring_bytes(ALL_REDUCE_PASSES, n, M, r), "bytes");
    const char *wide = value_cell(run, ring_bytes(ONE_PASS, n, M * V, r), "bytes");
    const char *kept = value_cell(run, (double)(M * (2 * C * e + (V + 3) * r)), "bytes");
    const Result rows[] = {
        { "sent for the loss, per rank", "6 (t-1) ceil(M/t)", { narrow, wide } },
        { "activations: logits, x, norm", "M (V/t + 2 C + 3)", { "kept", kept } },
        { "parameters, per rank", "V C/t, and T C + 2 C", { "parameters", "=-" } },
        { "all-reduces per step", "1 embedding, 3 for the loss, 1 for dX", { "calls", "=-" } },
        { "sent per rank and step", "the loss, and 4 (t-1) ceil(MC/t)", { "sent", "=-" } },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  M = %d tokens, V = %d vocabulary entries, width C = %d; t = %zu ranks, %zu bytes per "
        "element\n  gathered, predicted: every rank has all logits, M V, and sends (t-1) "
        "ceil(MV/t) elements for them.\n  T C + 2 C: T = %d positions and the norm, whole on every "
        "rank",
        M, V, C, n, r, T);
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
    REQUIRE(n <= C, "%zu ranks: the model has %d columns; choose %d ranks or fewer", n, C, C);
    ModelConfig c = ends;
    c.seed = run->seed;
    Training t = gpt_training(c, B);
    training_store(run, &t);
    CutGpt cut = { .way = WAY_1D, .world = run->world };
    training_both(run, "vocabulary-parallel = unsplit", &t, gpt_train, &cut); // SGD, then AdamW
    one_batch(run);
    gpt_costs_1d(run, &t.model, B, &cut.measured);
    page(run);
    data_free(&t.data);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(vocabulary, options);
