// 07_sequence_parallel.c: trains a GPT three ways: tensor parallel as in lesson 06, sequence
// parallel with inputs kept whole, and sequence parallel with inputs gathered again. The two
// sequence-parallel trainings must agree in every bit, and must equal the unsplit one. Formulas
// predict calls, bytes, memory and time. sequence_costs.c has some of them, and figure 7 of
// Korthikanti et al. 2022.
#include <stdio.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

typedef enum { TENSOR_ONLY, INPUTS_WHOLE, INPUTS_SHARD, SEQUENCE_WAYS } Way;
static const char *const way_name[SEQUENCE_WAYS] = { "tensor parallel", "inputs kept whole",
                                                     "gathered again" };
static const char *const way_id[SEQUENCE_WAYS] = { "tensor", "kept", "again" };

enum { STEPS = 3, SEQUENCES = 3, MICRO_BATCHES = 2 }; // 2 sequences, then 1
static const double max_norm = 0.5;                   // small enough that every step is clipped

// ---------------------------------------------------------------- the split training

typedef struct {
    size_t gathers, scatters, sums, bytes;
} Sent; // calls of three kinds, and bytes
static Sent sent_since_reset(const Comm *tp) {
    return (Sent){ tp->ledger[COMM_ALL_GATHER].calls, tp->ledger[COMM_REDUCE_SCATTER].calls,
                   tp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(tp) };
}
typedef struct {
    Comm *tp;
    Sent layers, partial;                    // per step; partial: sums of gradients
    size_t parameters, gradients, optimizer; // bytes on this rank
    size_t activations;                      // bytes on this rank, peak
    size_t message;                          // bytes to a next pipeline stage
} Measured;

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    Comm *tp = r->tp;
    double loss = 0;
    model_zero_gradients(m);
    comm_ledger_reset(tp);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &b[k]);
    r->layers = sent_since_reset(tp);
    comm_ledger_reset(tp);
    model_partial_sums(m); // once per step, after all micro-batches
    r->partial = sent_since_reset(tp);
    model_fold_tied(m);
    double norm = model_grad_norm(m, tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss * b[0].token_weight, norm };
}

static Measured train(Run *run, const Training *t, Way way, Trajectory *c) {
    Measured r = { .tp = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    if (way == TENSOR_ONLY) tensor_parallel(m, run->world);
    else sequence_parallel(m, run->world, way == INPUTS_WHOLE ? KEEP_WHOLE : KEEP_SHARD);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r);
    Batch largest = { .B = sequence_micro_batch(t, 0), .T = t->model.context };
    Shape message = layer_output(&m->layers[1], &largest);
    r.message = message.rows * message.cols * sizeof(real);
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    r.activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r;
}

// ---------------------------------------------------------------- predictions

static CutSizes sizes(Run *run, const Training *t, Way way, size_t rank) {
    CutSizes z = cut_sizes(&t->model, run->world->size, rank);
    return way == TENSOR_ONLY ? z : cut_sequence(z, way == INPUTS_WHOLE);
}
static void check_way(Run *run, Way way, const char *id, const char *what, const char *unit,
                      double predicted, double measured) {
    char text[48], name[96];
    snprintf(text, sizeof text, "%s.%s", id, way_id[way]);
    snprintf(name, sizeof name, "%s: %s", way_name[way], what);
    check_cost(run, text, name, unit, formula(predicted), NOT_PREDICTED, measured);
}

static void times(Run *run, const Training *t, Way way, const Timing *timing) {
    const size_t n = run->world->size;
    double flops = 0, slowest = 0;
    for (size_t rank = n; rank-- > 0;) { // the last is rank 0, which all wait for
        CutSizes z = sizes(run, t, way, rank);
        slowest = 0;
        for (size_t k = 0; k < t->micro_batches; k++) {
            Work work = work_times(3, work_stage(&z, sequence_micro_batch(t, k)));
            flops += work.flops;
            slowest += work.time;
        }
    }
    check_way(run, way, "products", "products, all ranks", "FLOPs", flops, timing->flops);
    if (!clock_config()->simulated) return;
    CutSizes z = sizes(run, t, way, 0);
    double norm = ring_time(ALL_REDUCE_PASSES, n, config_tensors(&t->model), sizeof(double));
    double communication = sequence_step_traffic(&z, t).time + norm;
    if (way != TENSOR_ONLY) communication += traffic_partial_sums(&z).time;
    check_way(run, way, "step", "step", "ps", slowest + communication, (double)timing->step);
    check_way(run, way, "exposed", "exposed, all ranks", "ps", (double)n * communication,
              (double)timing->exposed);
}

static void costs(Run *run, const Training *t, Way way, const Measured *r) {
    const CutSizes z = sizes(run, t, way, run->world->rank);
    const size_t B = sequence_micro_batch(t, 0); // the first micro-batch is the largest
    const double e = sizeof(real);
    SequenceTraffic layers = sequence_step_traffic(&z, t);
    Traffic partial = way == TENSOR_ONLY ? (Traffic){ 0 } : traffic_partial_sums(&z);
    const struct {
        const char *id, *what, *unit;
        double formula;
        size_t measured;
    } line[] = {
        { "gathers", "all-gathers per step", "calls", layers.gathers, r->layers.gathers },
        { "scatters", "reduce-scatters per step", "calls", layers.scatters, r->layers.scatters },
        { "sums", "all-reduces per step", "calls", layers.sums, r->layers.sums },
        { "sent", "sent in the layers per step", "bytes", layers.bytes, r->layers.bytes },
        { "partial.calls", "sums of partial gradients", "calls", partial.calls, r->partial.sums },
        { "partial.sent", "sent for partial gradients", "bytes", partial.bytes, r->partial.bytes },
        { "parameters", "parameters", "bytes", (double)elements_stage(&z) * e, r->parameters },
        { "gradients", "gradients", "bytes", (double)elements_gradients(&z) * e, r->gradients },
        { "adamw", "AdamW's m and v", "bytes", 2 * (double)elements_stage(&z) * e, r->optimizer },
        { "kept", "activations, peak", "bytes", (double)activations_stage(&z, B) * e,
          r->activations },
        { "message", "message to a next stage", "bytes", (double)message_elements(&z, B) * e,
          r->message },
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        check_way(run, way, line[i].id, line[i].what, line[i].unit, line[i].formula,
                  (double)line[i].measured);
    if (way != TENSOR_ONLY) sequence_closed_forms(run, t, way_name[way], way == INPUTS_WHOLE, &z);
    Timing timing = picture_timing(run);
    times(run, t, way, &timing);
    bool drawn = way == INPUTS_SHARD;
    picture_show(run, drawn ? "SP, inputs gathered again" : way_name[way],
                 PICTURE_CHART | (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
}

// ---------------------------------------------------------------- the table, and the run

#define EACH_WAY(id) \
    { id ".tensor", id ".kept", id ".again" }
static void table(Run *run, const Training *t) {
    const char *const columns[] = { "tensor parallel", "SP, input kept", "SP, gathered again",
                                    NULL };
    const size_t n = run->world->size, M = sequence_micro_batch(t, 0) * t->model.context;
    const Result rows[] = {
        { "activations, peak", "embedding to head", EACH_WAY("kept") },
        { "  norms, in M C", "kept by a block", { "=4+4/C", "=2+(2+4/C)/t", "=(4+4/C)/t" } },
        { "sent in the layers", "embedding to head", EACH_WAY("sent") },
        { "  one block, in units", "unit: M C (t-1)/t", { "=8", "=8", "=10" } },
        { "all-gathers per step", "of M C elements", EACH_WAY("gathers") },
        { "reduce-scatters", "of M C elements", EACH_WAY("scatters") },
        { "all-reduces in layers", "M C; in the loss, M", EACH_WAY("sums") },
        { "sent for partial sums", "sum of (6 L + 2) C", EACH_WAY("partial.sent") },
        { "message to a next stage", "M C; with SP, M C/t", EACH_WAY("message") },
        { clock_config()->simulated ? "time of a step" : NULL, "products + messages",
          EACH_WAY("step") },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  L = %zu blocks, C = %zu, H = %zu heads, T = %zu positions, t = %zu; M = B T rows, "
        "at most %zu",
        t->model.layers, t->model.width, t->model.heads, t->model.context, n, M);
    say(run,
        "  A block keeps the elements of its norms, and M C (12 + %s)/t between column and "
        "row cuts.",
        t->model.dropout > 0 ? "2 H T/C" : "H T/C");
    const size_t least = sequence_micro_batch(t, t->micro_batches - 1) * t->model.context;
    if (M % n || least % n || t->model.heads % n)
        say(run, "  This is exact where t divides heads and rows. Here the checks count what each "
                 "rank really has.");
}

static void sending_answer(Run *run) {
    char sent[160];
    if (cost_value(run, "sent.kept") <= cost_value(run, "sent.tensor"))
        snprintf(sent, sizeof sent, "Yes. Bytes sent in the layers stay at %s per rank",
                 cost_text(run, "sent.kept"));
    else
        snprintf(sent, sizeof sent,
                 "Only where t divides the rows. Here bytes sent in the layers "
                 "rise from %s to %s per rank",
                 cost_text(run, "sent.tensor"), cost_text(run, "sent.kept"));
    say_answer(run,
               "%s, and activations fall from %s to %s. If inputs are gathered again, "
               "activations fall to %s, and %s are sent.",
               sent, cost_text(run, "kept.tensor"), cost_text(run, "kept.kept"),
               cost_text(run, "kept.again"), cost_text(run, "sent.again"));
}

static void ending(Run *run) {
    if (run->world->size == 1)
        say_answer(run,
                   "One rank cuts nothing: it keeps %s and sends nothing. Choose two or more "
                   "ranks.",
                   cost_text(run, "kept.tensor"));
    else sending_answer(run);
    if (clock_config()->simulated)
        say_cost(run,
                 "once per step each rank sends %s more, to sum the gradients of norms and "
                 "biases. A step takes %s, or %s if gathered again, instead of %s.",
                 cost_text(run, "partial.sent.kept"), cost_text(run, "step.kept"),
                 cost_text(run, "step.again"), cost_text(run, "step.tensor"));
    else
        say_cost(run,
                 "once per step each rank sends %s more, to sum the gradients of norms and "
                 "biases.",
                 cost_text(run, "partial.sent.kept"));
    say_use_when(run, "ranks use tensor parallelism. Gather inputs again, as Megatron-LM does, and "
                      "start the gather before the product for dX, which can hide it.");
}

static void sequence(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"),
                      .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"),
                      .context = option_size(run, "context"),
                      .vocab = 61,
                      .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    Training t = { .model = c,
                   .data = data_synthetic(c.vocab, c.context, run->seed),
                   .steps = STEPS,
                   .sequences = SEQUENCES,
                   .micro_batches = MICRO_BATCHES,
                   .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    say(run, "SP, sequence parallelism: each rank has M/t rows in norms and residual paths (x + "
             "attention(x)).");
    say(run, "Before a column cut a rank gathers all rows. For backward it keeps them (input "
             "kept), or gathers");
    say(run, "them a second time (gathered again). One step has %d micro-batches (F0, F1).",
        MICRO_BATCHES);
    for (size_t i = 0; i < 2; i++) { // SGD, then AdamW
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.recorded = i;
        Trajectory got[SEQUENCE_WAYS], unsplit = training_unsplit(run, &t, 1);
        for (Way way = 0; way < SEQUENCE_WAYS; way++) {
            got[way] = trajectory_new(run, &t);
            Measured r = train(run, &t, way, &got[way]);
            if (i) costs(run, &t, way, &r);
        }
        Trajectory *tensor = &got[TENSOR_ONLY];
        Trajectory *shard = &got[INPUTS_SHARD], *whole = &got[INPUTS_WHOLE];
        training_compare(run, "sequence-parallel = unsplit", shard, &unsplit, LIMIT_ROUNDING);
        training_compare(run, "kept whole = gathered again", whole, shard, 0);
        check_true(run, i ? "AdamW" : "SGD", "every step is clipped",
                   trajectory_clipped(shard, max_norm));
        // Forward adds the same terms in the same order as an all-reduce does. The gradients of
        // norms are added in another order.
        check_numbers(run, "forward = tensor parallel's", "loss", shard->loss, tensor->loss, 1,
                      exact_limit(run));
        for (size_t way = 0; way < SEQUENCE_WAYS; way++) trajectory_free(&got[way]);
        trajectory_free(&unsplit);
    }
    table(run, &t);
    sequence_figure7(run);
    ending(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "context", "N", "4", "positions of a sequence" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { 0 },
};
EXPERIMENT(sequence, options);
