// Compares three ways to keep activations under tensor parallelism: keep everything, recompute
// attention's probabilities, or recompute blocks. The three trainings must be equal in every bit.
#include "03_tensor_parallel/tensor_parallel.h"
#include "07_recompute/experiments/experiments.h"
#include <string.h>

static const ModelConfig tiny = {
    .layers = 3, .width = 27, .heads = 9, .context = 24, .vocab = 53, .dropout = 0.1
};
enum { SEQUENCES = 3, STEPS = 3, WAYS = RECOMPUTE_FULL + 1 };
static const char *const way_name[WAYS] = { "none", "selective", "full" };

// ---------------------------------------------------------------- one training, for every way

typedef struct {
    Comm *tp;
    double sent; // bytes of the layers' all-reduces in the last step
} Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    comm_ledger_reset(r->tp);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    // Reads the ledger before the norm's all-reduce, so that r->sent has only the layers'
    // all-reduces.
    r->sent = (double)comm_bytes_sent(r->tp);
    double norm = model_grad_norm(m, r->tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static RecomputeSeen train(Run *run, const Training *t, Recompute how, Trajectory *got) {
    Trained r = { .tp = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, r.tp); // chapter 03: cuts parameters, replaces layers
    recompute(m, how);        // wraps the tensor-parallel blocks
    model_allocate(m);
    training_run(got, m, t, 1, 0, step, &r); // the same tokens on every rank
    RecomputeSeen seen = { .peak = (double)memory_peak(MEM_ACTIVATIONS),
                           .sent = r.sent,
                           .timing = picture_timing(run) };
    model_free(m);
    return seen;
}

// ---------------------------------------------------------------- the costs of a step

// Returns the work of one step of a rank. The work has three forwards, because a backward has twice
// the products of a forward. The work also has the part that backward computes again.
static Work step_work(const Training *t, const CutSizes *z, Recompute how) {
    Work again[] = { { 0 }, work_scores(z, t->sequences), work_block(z, t->sequences) };
    return work_sum(work_times(3, work_stage(z, t->sequences)),
                    work_times((double)z->blocks, again[how]));
}

static void costs(Run *run, const Training *t, Recompute how, const RecomputeSeen *seen) {
    size_t N = run->world->size, L = t->model.layers, tokens = t->sequences * t->model.context;
    CutSizes z = cut_sizes(&t->model, N, run->world->rank), busiest = cut_sizes(&t->model, N, 0);
    size_t all = kept_block_bytes(&z), scores = kept_scores_bytes(&z), head = kept_head_bytes(&z);
    size_t outputs = kept_between_bytes(&z); // outputs of the embedding and the blocks
    // Backward rebuilds the items of one block at a time. The head's items are freed before, so
    // only the larger one of the rebuilt items and the head's items counts.
    size_t kept[] = { outputs + L * all + head, outputs + L * (all - scores) + larger(scores, head),
                      outputs + larger(all, head) };
    Traffic layers = traffic_tensor_parallel(&z, N, t->sequences, how == RECOMPUTE_FULL);
    double flops = sum_of_ranks(run, step_work(t, &z, how).flops);
    double norm = ring_time(ALL_REDUCE_PASSES, N, config_tensors(&t->model), sizeof(double));
    const CostRow row[] = {
        { "peak", "activation peak", "bytes", BY_FORMULA((double)(tokens * kept[how])),
          seen->peak },
        { "sent", "all-reduce bytes", "bytes", BY_FORMULA(layers.bytes), seen->sent },
        { "flops", "hardware FLOPs, all ranks", "FLOPs", BY_FORMULA(flops), seen->timing.flops },
        // Rank 0 has the most heads, columns and vocabulary entries, so the other ranks wait for
        // rank 0. With the wall clock the table ends here, because real time is not predicted.
        { clock_config()->simulated ? "step" : NULL, "step", "ps",
          BY_FORMULA(step_work(t, &busiest, how).time + layers.time + norm),
          (double)seen->timing.step },
        { 0 }
    };
    check_costs(run, page_text(run, "%s.%%s", way_name[how]),
                page_text(run, "%s: %%s", way_name[how]), row);
}

// ---------------------------------------------------------------- the page

static void show(Run *run, const Training *t, const RecomputeSeen seen[WAYS]) {
    static const char *const columns[] = { "none", "selective", "full", NULL };
    Result rows[] = { { "activations, peak", "none: all; full: inputs and 1 block", { 0 } },
                      { "sent per rank", "4L + 5 all-reduces; full 6L + 5", { 0 } },
                      { "FLOPs, all ranks", "3 forwards + recomputation", { 0 } },
                      { "step", "rank 0's work, and all all-reduces", { 0 } },
                      { "MFU", "needed / possible FLOPs", { 0 } },
                      { 0 } };
    recompute_results(run, way_name, seen, columns, rows);
    // The shares are those of rank 0, which has the most heads. kept_block() leaves out the block's
    // input, so z.C is added.
    CutSizes z = cut_sizes(&t->model, run->world->size, 0);
    double share = (double)kept_scores(&z) / (double)(kept_block(&z) + z.C);
    double again = work_scores(&z, t->sequences).flops / work_block(&z, t->sequences).flops;
    const Timing *none = &seen[RECOMPUTE_NONE].timing;
    say_answer(run,
               "The attention probabilities. On rank 0 they are %.0f %% of what a block keeps, and "
               "only %.1f %% of its forward's work is needed to compute them again. Without them a "
               "rank keeps %s instead of %s, and a step is %s.",
               100 * share, 100 * again, recompute_peak(run, "selective"),
               recompute_peak(run, "none"),
               recompute_longer(run, 1, &seen[RECOMPUTE_SELECTIVE].timing, none));
    say_cost(run,
             "q k^T once more per block; nothing is sent again. Full recomputation would "
             "need %s, with a step %s.",
             recompute_peak(run, "full"),
             recompute_longer(run, 0, &seen[RECOMPUTE_FULL].timing, none));
    say_use_when(
        run, "sequences are long, and the kernel stores probabilities (FlashAttention does not).");
}

// ---------------------------------------------------------------- the comparison

static void selective(Run *run) {
    Training t = { .model = tiny,
                   .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = STEPS,
                   .sequences = SEQUENCES,
                   .micro_batches = 1,
                   .optimizer = sgd(0.1),
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    training_store(run, &t);
    config_require(&t.model);
    say(run,
        "t = %zu tensor-parallel ranks: each holds a part of the heads and of the weights, and "
        "computes all\n"
        "tokens. L = %zu blocks, width C = %zu, H = %zu heads, T = %zu tokens; %d sequences.\n"
        "none: a block keeps all its items for backward. full: it keeps only its input.\n"
        "selective: it keeps all but the attention probabilities, 2HT/t elements per token.\n"
        "Backward computes dropped items again. After each all-reduce F0 or B0 goes on in a new "
        "box.\n"
        "MFU: the FLOPs that a step needs (3 forwards), divided by what the ranks could compute in "
        "the step.",
        run->world->size, tiny.layers, tiny.width, tiny.heads, tiny.context, SEQUENCES);
    Trajectory got[WAYS], unsplit = training_unsplit(run, &t, 1);
    RecomputeSeen seen[WAYS];
    for (Recompute how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        const char *name = way_name[how];
        got[how] = trajectory_new(run, &t);
        seen[how] = train(run, &t, how, &got[how]);
        recompute_show(run, page_text(run, "recompute %s", name),
                       !strcmp(option_text(run, "draw"), name), &seen[how].timing);
        costs(run, &t, how, &seen[how]);
        // Tensor parallelism adds partial sums in another order, so its limit allows rounding
        // errors. Recomputation repeats the same operations on the same elements, so its limit is
        // 0.
        if (how == RECOMPUTE_NONE)
            training_compare(run, "none = unsplit", &got[how], &unsplit, rounding_limit(run));
        else
            training_compare(run, page_text(run, "%s = none", name), &got[how],
                             &got[RECOMPUTE_NONE], 0);
    }
    say(run, "All-reduces: 4 or 6 per block, 1 in the embedding, 1 in the head; in the loss 3 "
             "small ones.");
    show(run, &t, seen);
    for (size_t w = 0; w < WAYS; w++) trajectory_free(&got[w]);
    trajectory_free(&unsplit);
    data_free(&t.data);
}

static const Option options[] = {
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "none|selective|full", "selective",
      "the way whose step is drawn, here and in files" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(selective, options);
