// ranks: 4
// level: core
// question: How much less idle are the stages when a batch is cut into micro-batches, and what does that cost?
// vary: SEQUENCES 5..9, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// GPipe (Huang et al. 2018): a stage hands micro-batch 0 on and starts micro-batch 1 at once, so that all stages work
// at the same time on different micro-batches. All forwards come first, then all backwards. We run the backwards
// ascending, to keep the bits of accumulation; torchgpipe runs them descending. One step still adds the gradients of
// all micro-batches: nothing but the order of forwards and backwards differs from the naive pipeline, and every result
// is the same in every bit. The price is memory: what m forwards keep waits until the last of them is done.
// Left out: giving the memory back by keeping only stage inputs (GPipe does that; chapter 07).
#include "04_pipeline_naive/pipeline.h"
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include <stdlib.h>

// ================================ the technique ================================

// GPipe's order in two loops. Messages are those of pipeline_naive, [B*T, C] each; pipeline_forward and
// pipeline_backward walk my layers. A stage that sends waits until the next one has received.
PipelineResult pipeline_gpipe(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    // EXERCISE 04.03a (4 points): GPipe's two loops. All forwards, then all backwards, in an order that adds the
    // gradients as gradient accumulation does; each stage receives before it computes and sends after it. Tensors and
    // calls are those of pipeline_naive (02_naive.c): x stands in &b->input, all others are freed when they are sent or
    // no longer needed, so that only what the forwards keep waits for the backwards.
    for (size_t k = 0; k < micro_batches; k++) {
        PipelineBatch *b = &s.micro[k];
        Arena buffer = arena(MEM_COMMUNICATION);
        if (!s.first) comm_recv(pp, b->x = tensor_shaped(&b->input, b->in), s.before);     // B*T*C elements: x
        if (!s.last) b->y = tensor_shaped(&buffer, b->out);
        pipeline_forward(&s, k);
        if (!s.last) comm_send(pp, b->y, s.next);                                          // B*T*C elements: y
        arena_free(&buffer);
    }
    for (size_t k = 0; k < micro_batches; k++) {           // micro-batch 0 first: its gradients are added first
        PipelineBatch *b = &s.micro[k];
        Arena buffers = arena(MEM_COMMUNICATION);
        if (!s.last) comm_recv(pp, b->dy = tensor_shaped(&buffers, b->out), s.next);       // B*T*C elements: dy
        if (!s.first) b->dx = tensor_shaped(&buffers, b->in);
        pipeline_backward(&s, k);
        if (!s.first) comm_send(pp, b->dx, s.before);                                      // B*T*C elements: dx
        arena_free(&buffers);
    }
    // END
    return pipeline_end(&s);
}

// ---------------------------------------------------------------- a schedule becomes data: a list per stage

// Both loops do the same things in another order. So we write the order down, F0 B0 F1 B1 ... or F0 F1 ... B0 B1 ...,
// and one executor follows any such list.
Schedule schedule_naive(size_t p, size_t m, size_t i) {
    (void)p; (void)i;                              // every stage has the same list; receives make it wait for its turn
    Schedule s = {0};
    for (size_t k = 0; k < m; k++) {
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k);
    }
    return s;
}

Schedule schedule_gpipe(size_t p, size_t m, size_t i) {
    (void)p; (void)i;
    Schedule s = {0};
    for (size_t k = 0; k < m; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = 0; k < m; k++) schedule_add(&s, BACKWARD, k);
    return s;
}

void schedule_add(Schedule *s, PipeWhat what, size_t micro_batch) {
    schedule_add_op(s, (PipeOp){ .what = what, .micro_batch = micro_batch });
}
void schedule_add_op(Schedule *s, PipeOp op) {
    if ((s->n & (s->n - 1)) == 0) {                // full: the room doubles whenever n reaches a power of two
        s->ops = realloc(s->ops, (s->n ? 2 * s->n : 1) * sizeof *s->ops);
        if (!s->ops) fault("out of memory: a schedule of %zu forwards and backwards", s->n + 1);
    }
    s->ops[s->n++] = op;
}
size_t schedule_chunks(const Schedule *s) {
    size_t v = 1;
    for (size_t e = 0; e < s->n; e++) v = s->ops[e].chunk < v ? v : s->ops[e].chunk + 1;
    return v;
}
void schedule_free(Schedule *s) {
    free(s->ops);
    *s = (Schedule){0};
}

// The executor is pipeline_run in executor.c: it works down any such list, with the messages of the two loops and
// without their waiting. A receive is posted one message ahead, a send keeps its buffer until it is received.

// One step with any list: only the middle differs from naive_step.
StepResult pipeline_step(void *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    PipelineRank *me = rank;
    Schedule list = me->schedule(me->pp->size, t->micro_batches, me->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(me->pp, m, &list, batch, t->micro_batches);
    schedule_free(&list);
    return pipeline_update(me, m, o, t, batch, r);         // tied sum, loss, norm, update: as in 02_naive
}

// ================================ the experiment ================================

// 7 sequences of 5 to 10 counted tokens each, in 4 micro-batches of 2, 2, 2 and 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37 };
enum { SEQUENCES = 7 };

// One step of equal stages, two blocks each, where nothing but the order of the work makes a stage wait.
static void draw_equal_stages(Run *run, const Training *t) {
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Played equal = stack_play(run, &stack, schedule_gpipe, t->micro_batches);
    picture_show(run, "GPipe, equal stages", PICTURE_MEMORY);
    picture_summary(run, &equal.timing);
}

static void gpipe(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    stages_same_bits(run, "naive: executor = own loop", &t, pipeline_naive, schedule_naive);
    StageCosts loops = stages_same_bits(run, "GPipe: executor = own loops", &t, pipeline_gpipe, schedule_gpipe);
    StageCosts seen = {0}, slow = {0};
    draw_equal_stages(run, &t);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory naive = trajectory_new(run, &t), got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        slow = stages_train(run, &t, pipeline_step, schedule_naive, &naive);           // for its costs
        seen = stages_train(run, &t, pipeline_step, schedule_gpipe, &got);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        training_compare(run, "GPipe = accumulation", &got, &want, 0);
        trajectory_free(&naive);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Timing last = picture_timing(run);
    if (option_flag(run, "verbose")) {
        picture_show(run, "GPipe, the model's last step", PICTURE_MEMORY | PICTURE_NO_FILES);
        picture_summary(run, &last);
    }
    pipeline_gpipe_costs(run, &t, &seen, &slow);
    pipeline_gpipe_loop_costs(run, &t, &loops);
    if (clock_config()->simulated) pipeline_gpipe_time(run, &t, &last);    // real time differs from run to run
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "that the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    {0},
};
EXPERIMENT(gpipe, options);
