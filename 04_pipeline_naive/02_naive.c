// ranks: 4
// level: core
// question: If each rank holds only a few layers, can the ranks train the model to the same bits as one device?
// vary: SEQUENCES 4..7, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// A model is a list of layers, so a stage is a sub-list: rank i holds some neighbouring layers, their gradients and
// their optimizer state, nothing else. A micro-batch goes all the way forward, from rank to rank, and its gradient all
// the way back, before the next one starts. The embedding table wte is used twice, on the first and on the last stage:
// both keep a copy of it.
// Left out: working at the same time. Exactly one rank is busy at any moment; 03_gpipe does something about that.
#include "04_pipeline_naive/pipeline.h"
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include <stdlib.h>

// ================================ the technique ================================

// All micro-batches of a step, on stage i. A message is [B*T, C]: activations go to stage i + 1, their gradients come
// back from it. x is the input of my layers and y their output, dx and dy are the gradients of these.
// comm_send returns when the neighbour has received the message: then its tensor is needed no more.
PipelineResult pipeline_naive(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    // EXERCISE 04.02a (4 points): the naive loop. One micro-batch after the other: receive x, forward, send y; receive
    // dy, backward, send dx. The first and the last stage (s.first, s.last) have a neighbour on one side only. The
    // tensors of micro-batch k are b->x and b->dx, of shape b->in, and b->y and b->dy, of shape b->out, b being
    // &s.micro[k]. x must stand in &b->input: pipeline_backward frees it. The others stand in an arena of
    // MEM_COMMUNICATION that is yours to free, y as soon as it is sent. Calls: tensor_shaped, comm_recv, comm_send,
    // pipeline_forward, pipeline_backward, arena_free.
    for (size_t k = 0; k < micro_batches; k++) {
        PipelineBatch *b = &s.micro[k];
        Arena buffers = arena(MEM_COMMUNICATION);

        if (!s.first) comm_recv(pp, b->x = tensor_shaped(&b->input, b->in), s.before);     // B*T*C elements: x
        if (!s.last) b->y = tensor_shaped(&buffers, b->out);
        pipeline_forward(&s, k);                                                           // my layers: y from x
        if (!s.last) comm_send(pp, b->y, s.next);                                          // B*T*C elements: y
        arena_free(&buffers);

        if (!s.last) comm_recv(pp, b->dy = tensor_shaped(&buffers, b->out), s.next);       // B*T*C elements: dy
        if (!s.first) b->dx = tensor_shaped(&buffers, b->in);
        pipeline_backward(&s, k);                                                          // my layers: dx from dy
        if (!s.first) comm_send(pp, b->dx, s.before);                                      // B*T*C elements: dx
        arena_free(&buffers);
    }
    // END
    return pipeline_end(&s);
}

static StepResult naive_step(void *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    PipelineRank *me = rank;
    model_zero_gradients(m);
    PipelineResult r = pipeline_naive(me->pp, m, batch, t->micro_batches);
    return pipeline_update(me, m, o, t, batch, r);
}

// ---------------------------------------------------------------- the end of a step, the same for every schedule

StepResult pipeline_update(PipelineRank *me, Model *m, Optimizer *o, const Training *t, const Batch *batch,
                           PipelineResult r) {
    // The first stage has the embedding's part of wte's gradient, the last one the head's. Both need the sum,
    // before the norm of the whole gradient is formed.
    pipeline_tied_sum(m, me->tied);
    // Only the last stage knows the loss: the others add zeros.
    comm_all_reduce_doubles(me->pp, &r.loss, 1);
    // Each stage has the squares of its own tensors: one number per tensor from the stage that owns it, zeros from the
    // others, then added in model order. So the norm has the same bits however the layers are spread. wte counts once,
    // on the first stage.
    double norm = model_grad_norm(m, me->pp);              // all-reduces 12 L + 4 doubles, one per tensor of the model
    optimizer_step(o, m, clip_factor(norm, t->clip));      // my layers only
    me->in_flight = r.in_flight;
    // token_weight: 1 / counted tokens of the whole batch.
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

void pipeline_tied_sum(Model *m, Comm *tied) {
    if (!tied) {
        model_fold_tied(m);                                // one stage has both: it adds them. In the middle: nothing
        return;
    }
    // EXERCISE 04.02b (2 points): the tied sum. This is the first or the last of several stages: model_wte(m) is the
    // embedding's unit on the first, NULL elsewhere, model_wte_head(m) the head's copy of it on the last. The gradient
    // g of both must become the sum of the two. One call; tied is the group of these two stages.
    Unit *mine = model_wte(m) ? model_wte(m) : model_wte_head(m);
    comm_all_reduce(tied, mine->g);                        // V*C elements (this rank's part of them in chapter 08)
    // END
}

Comm *pipeline_tied_group(Comm *pp) {
    bool end = pp->rank == 0 || pp->rank + 1 == pp->size;
    Comm *group = comm_split(pp, end ? 0 : 1, pp->rank, "tied");
    if (end && pp->size > 1) return group;
    comm_free(group);
    return NULL;
}

// ---------------------------------------------------------------- what a stage is and computes; nothing is sent here

Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i) {
    Range r = shard_range(c->layers, p, i);
    if (blocks) {
        r = (Range){0, 0};
        for (size_t k = 0; k <= i; k++) { r.lo = r.hi; r.hi += blocks[k]; }
    }
    return (Range){ i == 0 ? 0 : r.lo + 1, i + 1 == p ? r.hi + 3 : r.hi + 1 };     // block k is layer k + 1
}

PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    size_t p = pp->size, i = pp->rank, v = model_chunks(m);            // v is 1: a stage is one part of the model
    PipelineStage s = { .m = m, .micro_batches = micro_batches, .first = i == 0, .last = i + 1 == p,
                        .before = (i + p - 1) % p, .next = (i + 1) % p };
    s.micro = host_alloc(v * micro_batches * sizeof *s.micro);
    for (size_t n = 0; n < v * micro_batches; n++) {
        const Batch *b = &batch[n % micro_batches];
        Range chunk = model_chunk(m, n / micro_batches);
        s.micro[n] = (PipelineBatch){ .batch = b, .layers = &m->layers[chunk.lo], .n_layers = range_size(chunk),
                                      .in = layer_input(&m->layers[chunk.lo], b),
                                      .out = layer_output(&m->layers[chunk.hi - 1], b),
                                      .end = s.last && chunk.hi == m->n_layers,
                                      .input = arena(MEM_COMMUNICATION), .gradient = arena(MEM_WORKSPACE) };
    }
    comm_connect(pp, COMM_NEIGHBOURS);
    return s;
}

void pipeline_forward(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    Arena losses = arena(MEM_WORKSPACE);
    arena_rebook(&b->input, MEM_ACTIVATIONS);              // x was a message and is now kept for the backward
    Tensor y = b->end ? tensor_shaped(&losses, b->out) : b->y;         // the last output is a loss per token
    b->kept = walk_forward(b->layers, b->n_layers, b->batch, b->x, y);
    if (b->end) s->result.loss += b->loss = tensor_sum(y);
    arena_free(&losses);
    if (++s->in_flight > s->result.in_flight) s->result.in_flight = s->in_flight;
}

void pipeline_backward(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    Arena losses = arena(MEM_WORKSPACE);
    if (b->end) tensor_fill(b->dy = tensor_shaped(&losses, b->out), (real)b->batch->token_weight);
    walk_backward(b->layers, b->n_layers, b->batch, b->kept, b->dy, b->dx);
    arena_free(&losses);
    arena_free(&b->input);                                 // x
    s->in_flight--;
}
void pipeline_backward_inputs(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    Arena losses = arena(MEM_WORKSPACE);
    if (b->end) tensor_fill(b->dy = tensor_shaped(&losses, b->out), (real)b->batch->token_weight);
    walk_backward_inputs(b->layers, b->n_layers, b->batch, b->kept, b->dy, b->dx);
    b->half = true;
    arena_free(&losses);
}
void pipeline_backward_weights(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    if (!b->half) fault("backward of weights %zu without its backward of inputs before it", k);
    b->half = false;
    walk_backward_weights(b->layers, b->n_layers, b->batch, b->kept);
    arena_free(&b->input);                                 // x
    s->in_flight--;
}

PipelineResult pipeline_end(PipelineStage *s) {
    free(s->micro);
    return s->result;
}

// Evaluation: the first half of pipeline_naive's loop, for one micro-batch of which nothing is kept. Chunk after chunk,
// where a stage has several: the last stage's output goes on to the first stage. (One stage alone has all chunks in a
// row: they are one.)
double pipeline_loss(Comm *pp, Model *m, const Batch *b) {
    size_t p = pp->size, i = pp->rank, v = p == 1 ? 1 : model_chunks(m);
    double loss = 0;
    comm_connect(pp, COMM_NEIGHBOURS);
    for (size_t chunk = 0; chunk < v; chunk++) {
        bool first = i == 0 && chunk == 0, last = i + 1 == p && chunk + 1 == v;
        Range r = p == 1 ? (Range){0, m->n_layers} : model_chunk(m, chunk);
        Layer *layers = &m->layers[r.lo];
        Arena input = arena(MEM_ACTIVATIONS), output = arena(last ? MEM_WORKSPACE : MEM_COMMUNICATION);
        Tensor x = {0}, y = tensor_shaped(&output, layer_output(&m->layers[r.hi - 1], b));
        if (!first) comm_recv(pp, x = tensor_shaped(&input, layer_input(layers, b)), (i + p - 1) % p);     // B*T*C
        walk_forward_only(layers, range_size(r), b, x, y);
        arena_free(&input);
        if (last) loss = tensor_sum(y);
        else comm_send(pp, y, (i + 1) % p);                // B*T*C elements; returns when they are received
        arena_free(&output);
    }
    return loss;
}

// ================================ the experiment ================================

// 9 blocks do not divide by 4 stages (3, 2, 2, 2); the sequences of a batch count 5 to 10 tokens each.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 5 };

// Every sequence is a micro-batch of its own, so that the loop has more than one turn: one SGD step.
static StageCosts one_by_one(Run *run, Training t) {
    t.micro_batches = SEQUENCES;
    t.steps = 1;
    t.recorded = false;
    t.optimizer = sgd(0.3);
    Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
    StageCosts seen = stages_train(run, &t, naive_step, NULL, &got);
    say_detail(run, "SGD, %d micro-batches: loss %.4f", SEQUENCES, got.loss[0]);
    training_compare(run, "a sequence each = unsplit", &got, &want, 0);
    trajectory_free(&got);
    trajectory_free(&want);
    return seen;
}

static void naive(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    StageCosts seen = {0}, each = one_by_one(run, t);
    double loss[2] = {0};                                  // of the last step: unsplit, naive
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        // Makes my stage's model and calls naive_step in every training step; then reads the ledgers of this rank.
        seen = stages_train(run, &t, naive_step, NULL, &got);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        training_compare(run, "naive = unsplit", &got, &want, 0);
        loss[0] = want.loss[t.steps - 1];
        loss[1] = got.loss[t.steps - 1];
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Timing last = picture_timing(run);
    picture_show(run, "naive, the model's last step", PICTURE_MEMORY);
    picture_summary(run, &last);
    stages_check_evaluation(run, &t);
    pipeline_naive_costs(run, &t, &seen);
    t.micro_batches = SEQUENCES;
    pipeline_naive_each_costs(run, &t, &each);
    t.micro_batches = m;
    if (clock_config()->simulated) pipeline_naive_time(run, &t, &last);            // real time differs from run to run
    pipeline_naive_results(run, &t, loss);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "1", "that the batch is cut into; the next one starts after the backward of one" },
    {0},
};
EXPERIMENT(naive, options);
