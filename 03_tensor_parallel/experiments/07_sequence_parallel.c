// 07_sequence_parallel.c: trains a GPT in three ways. The first is tensor parallel, as in lesson
// 06. The second and the third are sequence parallel. The second keeps the inputs of
// column-parallel products whole, and the third gathers these inputs again in backward. The two
// sequence-parallel trainings must agree in every bit, and must equal the unsplit training within
// rounding. Formulas predict calls, bytes, memory and time.
#include "03_tensor_parallel/experiments/experiments.h"
#include <string.h>

typedef enum { TENSOR_ONLY, INPUTS_WHOLE, INPUTS_SHARD, SEQUENCE_WAYS } Way;
static const char *const way_id[] = { "%s.tensor", "%s.kept", "%s.again" };
static const char *const way_name[] = { "tensor parallel: %s", "inputs kept whole: %s",
                                        "gathered again: %s" };
#define EACH_WAY(id) \
    { id ".tensor", id ".kept", id ".again" }
enum { SEQUENCES = 3, MICRO_BATCHES = 2 }; // micro-batches of 2 sequences and of 1

// ---------------------------------------------------------------- costs

static size_t sequences_of(const Training *t, size_t k) {
    return range_size(training_micro_batch(t, 1, 0, k));
}
static CutSizes sizes(const Training *t, Way way, size_t n, size_t rank) {
    const CutSizes z = cut_sizes(&t->model, n, rank);
    return way == TENSOR_ONLY ? z : cut_sequence(z, way == INPUTS_WHOLE);
}

// Adds up, over all micro-batches, the messages in the layers, and the time of these messages and
// of the products.
static SequenceTraffic layers_step(const CutSizes *z, const Training *t) {
    SequenceTraffic all = { 0 };
    for (size_t k = 0; k < t->micro_batches; k++) {
        const size_t B = sequences_of(t, k);
        const Traffic reduce = traffic_tensor_parallel(z, z->t, B, false);
        SequenceTraffic s = { .sums = reduce.calls, .bytes = reduce.bytes, .time = reduce.time };
        if (z->sequence) s = traffic_sequence_parallel(z, B, false);
        all.gathers += s.gathers;
        all.scatters += s.scatters;
        all.sums += s.sums;
        all.bytes += s.bytes;
        all.time += s.time + 3 * work_stage(z, B).time;
    }
    return all;
}

static void costs(Run *run, const Training *t, Way way, const GptMeasured *r) {
    const size_t n = run->world->size;
    const CutSizes z = sizes(t, way, n, run->world->rank), first = sizes(t, way, n, 0);
    const RankShare share = line_share(&z, sequences_of(t, 0)); // the largest micro-batch
    gpt_memory_costs(run, way_id[way], way_name[way], &t->model, &share, r);
    const SequenceTraffic layers = layers_step(&z, t);
    const Traffic none = { 0 }, partial = way == TENSOR_ONLY ? none : traffic_partial_sums(&z);
    const double norm = ring_time(ALL_REDUCE_PASSES, n, config_tensors(&t->model), sizeof(double));
    const double time = layers_step(&first, t).time + partial.time + norm; // all wait for rank 0
    const GroupTraffic *got = &r->layers[GPT_WORLD];
    check_costs(run, way_id[way], way_name[way],
                (CostRow[]){ { "gathers", "all-gathers per step", "calls",
                               BY_FORMULA(layers.gathers), got->calls[COMM_ALL_GATHER] },
                             { "scatters", "reduce-scatters per step", "calls",
                               BY_FORMULA(layers.scatters), got->calls[COMM_REDUCE_SCATTER] },
                             { "sums", "all-reduces per step", "calls", BY_FORMULA(layers.sums),
                               got->calls[COMM_ALL_REDUCE] },
                             { "sent", "sent in the layers per step", "bytes",
                               BY_FORMULA(layers.bytes), got->sent },
                             { "partial.sent", "sent for partial gradients", "bytes",
                               BY_FORMULA(partial.bytes), r->sums[GPT_WORLD].sent },
                             { clock_config()->simulated ? "step" : NULL, "step", "ps",
                               BY_FORMULA(time), (double)picture_timing(run).step },
                             { 0 } });
}

// ---------------------------------------------------------------- the table and the answer

static void table(Run *run, const Training *t) {
    static const char *const columns[] = { "tensor parallel", "SP, input kept",
                                           "SP, gathered again", NULL };
    const size_t n = run->world->size, M = sequences_of(t, 0) * t->model.context;
    const Result rows[] = { { "activations, peak", "all layers", EACH_WAY("kept") },
                            { "  for norms, 1 block",
                              "times M C elements",
                              { "=4+4/C", "=2+(2+4/C)/t", "=(4+4/C)/t" } },
                            { "sent in the layers", "all layers", EACH_WAY("sent") },
                            { "  sent, 1 block", "times M C (t-1)/t", { "=8", "=8", "=10" } },
                            { "sent for norms, biases", "(6 L + 2) C gradients",
                              EACH_WAY("partial.sent") },
                            { clock_config()->simulated ? "time of a step" : NULL,
                              "products + messages", EACH_WAY("step") },
                            { 0 } };
    results(run, columns, rows);
    say(run,
        "  C = %zu, L = %zu blocks, H = %zu heads, T = %zu positions, M up to %zu, t = %zu; exact "
        "if t divides\n  M. Norms take no time here. On a GPU SP divides their time by t.",
        t->model.width, t->model.layers, t->model.heads, t->model.context, M, n);
}

static void ending(Run *run) {
    const char *kept = cost_text(run, "sent.kept"), *tensor = cost_text(run, "sent.tensor");
    const bool more = cost_value(run, "sent.kept") > cost_value(run, "sent.tensor");
    const char *compared = "as with tensor parallelism";
    if (strcmp(kept, tensor)) compared = page_text(run, "with tensor parallelism %s", tensor);
    const char *verdict = "Nearly. In the layers a rank sends";
    if (more) verdict = "Only where t divides the rows. Here in the layers a rank sends";
    if (!answer_alone(run))
        say_answer(
            run,
            "%s %s, %s. Once per step %s are added, for gradients of norms and biases. "
            "Activations fall from %s to %s. If inputs are gathered again, activations fall to %s, "
            "and a rank sends %s.",
            verdict, kept, compared, cost_text(run, "partial.sent.kept"),
            cost_text(run, "kept.tensor"), cost_text(run, "kept.kept"),
            cost_text(run, "kept.again"), cost_text(run, "sent.again"));
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, " A step takes %s (%s if inputs are gathered again) instead of %s.",
                         cost_text(run, "step.kept"), cost_text(run, "step.again"),
                         cost_text(run, "step.tensor"));
    say_cost(run,
             "two or more collectives for each all-reduce, and sums once per step for gradients "
             "of norms and biases.%s",
             time);
    say_use_when(run,
                 "ranks use tensor parallelism. Gather inputs again, as Megatron-LM does. Start "
                 "the gather before the product for dX, and this product can hide the gather.");
}

// ---------------------------------------------------------------- three trainings, and the run

// Trains in every way with one optimizer, and compares the ways. Sets `shard` to the training that
// gathers inputs again. Checks the costs of the recorded step.
static void three_ways(void *nothing, const Training *t, Trajectory *shard) {
    (void)nothing;
    Run *run = shard->run;
    Trajectory tensor = trajectory_new(run, t), whole = trajectory_new(run, t);
    Trajectory *const got[SEQUENCE_WAYS] = { &tensor, &whole, shard };
    for (Way way = 0; way < SEQUENCE_WAYS; way++) {
        CutGpt cut = { .way = way == TENSOR_ONLY ? WAY_1D : WAY_SP,
                       .world = run->world,
                       .input = way == INPUTS_WHOLE ? KEEP_WHOLE : KEEP_SHARD };
        gpt_train(&cut, t, got[way]);
        if (t->recorded) costs(run, t, way, &cut.measured);
    }
    if (t->recorded) picture_show(run, "SP, inputs gathered again", PICTURE_CHART);
    training_compare(run, "kept whole = gathered again", &whole, shard, 0);
    // In forward a reduce-scatter adds the same terms in the same order as an all-reduce does. The
    // gradients of norms are added in another order, so only the loss of the first step must be
    // equal in every bit.
    check_numbers(run, "forward = tensor parallel's", "loss", shard->loss, tensor.loss, 1,
                  exact_limit(run));
    trajectory_free(&tensor);
    trajectory_free(&whole);
}

static const char *uneven_heads(Run *run, const ModelConfig *c) {
    const size_t n = run->world->size, fuller = c->heads % n;
    if (fuller == 0) return "";
    const char *first = fuller == 1 ? "Rank 0 has" : page_text(run, "%zu ranks have", fuller);
    return page_text(run,
                     "\n%s %zu of the %zu heads, the others have %zu, so the others wait in "
                     "attention.",
                     first, part_size(c->heads, n, 0), c->heads, part_size(c->heads, n, n - 1));
}

static void sequence(Run *run) {
    const size_t vocab = 61;
    Training t = gpt_training(gpt_options(run, option_size(run, "context"), vocab), SEQUENCES);
    t.micro_batches = MICRO_BATCHES;
    training_store(run, &t);
    say(run,
        "M: the rows (tokens) of a micro-batch. C: the width. Tensor parallelism: each of t ranks "
        "has all M\nrows in norms and residual paths (x + attention(x)). Sequence parallelism "
        "(SP): a rank has M/t rows\nthere. An all-gather (G) fetches all rows before a matrix that "
        "is cut by columns. A reduce-scatter\n(S) adds partial sums after a matrix that is cut by "
        "rows, and leaves each rank M/t rows. For\nbackward a rank keeps the gathered rows (input "
        "kept) or gathers them a second time (gathered again).\nOne step has %d micro-batches (F0, "
        "F1), of %zu sequences and of %zu.%s",
        MICRO_BATCHES, sequences_of(&t, 0), sequences_of(&t, 1), uneven_heads(run, &t.model));
    t.recorded = true; // training_both records the last step under AdamW
    training_both(run, "sequence-parallel = unsplit", &t, three_ways, NULL);
    table(run, &t);
    ending(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "context", "N", "4", "positions of a sequence" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(sequence, options);
