// stack.c: runs steps of a stack of equal blocks, and predicts times and memory. A source of inputs
// takes the place of the embedding, and a sink the places of head and loss.
#include "04_pipeline_naive/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdlib.h>

// ---------------------------------------------------------------- two layers without products

static void source_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    tensor_randomize(y, random_key(random_key(l->config->seed, b->step), b->first_sequence), 1);
}
static void source_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)l;
    (void)b;
    (void)x;
    (void)dy;
    (void)dx;
    (void)s;
}
static const LayerKind source = {
    .name = "source", .output = hidden_shape, .forward = source_forward, .backward = source_backward
};

static void sink_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)l;
    (void)b;
    (void)s;
    tensor_copy(y, tensor_col_range(x, 0, 1));
}
static void sink_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)l;
    (void)b;
    (void)x;
    (void)s;
    tensor_fill(dx, 0);
    tensor_copy(tensor_col_range(dx, 0, 1), dy);
}
static const LayerKind sink = { .name = "sink",
                                .output = token_shape,
                                .input = hidden_shape,
                                .forward = sink_forward,
                                .backward = sink_backward };

// ---------------------------------------------------------------- the stack

static Model *stack_new(const Stack *s, size_t p, size_t i) {
    ModelConfig whole = s->model;
    whole.layers = s->blocks * p;
    size_t v = s->chunks ? s->chunks : 1;
    Range *chunk = host_alloc(v * sizeof *chunk); // chunk c of stage i is part c p + i
    for (size_t c = 0; c < v; c++) chunk[c] = pipeline_stage_layers(&whole, NULL, v * p, c * p + i);
    if (i + 1 == p) chunk[v - 1].hi--; // one layer, the sink, replaces head and loss
    Model *m = model_describe_chunks(&whole, chunk, v);
    free(chunk);
    Layer *first = &m->layers[0], *last = &m->layers[m->n_layers - 1];
    if (i == 0) {
        first->kind = &source;
        first->n_units = 0;
    }
    if (i + 1 == p) {
        last->kind = &sink;
        last->n_units = 0;
    }
    model_allocate(m);
    return m;
}

Played stack_play_by(Run *run, const Stack *s, MemoryCategory watched, StackRunner *runner,
                     const void *how, size_t m) {
    size_t p = run->world->size, i = run->world->rank, B = s->sequences;
    Data d = data_synthetic(s->model.vocab, s->model.context, run->seed);
    Model *stage = stack_new(s, p, i);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = host_alloc(m * sizeof *batch);
    for (size_t k = 0; k < m; k++) {
        batch[k] = data_batch(&d, &tokens, 0, k * B, B, m * B);
        batch[k].number = k;
    }
    Played out;
    comm_ledger_reset(run->world);
    memory_reset_peaks();
    picture_begin(run, watched);
    out.result = runner(how, run->world, stage, batch, m);
    picture_end(run);
    out.activations = memory_peak(MEM_ACTIVATIONS);
    out.timing = picture_timing(run);
    out.messages = run->world->ledger[COMM_SEND].calls;
    free(batch);
    arena_free(&tokens);
    model_free(stage);
    data_free(&d);
    return out;
}

static PipelineResult by_list(const void *list, Comm *pp, Model *stage, const Batch *batch,
                              size_t m) {
    return pipeline_run(pp, stage, list, batch, m);
}
Played stack_play(Run *run, const Stack *s, ScheduleRule rule, size_t m) {
    Schedule list = rule(run->world->size, m, run->world->rank);
    Played out = stack_play_by(run, s, MEM_ACTIVATIONS, by_list, &list, m);
    schedule_free(&list);
    return out;
}

static PipelineResult by_loop(const void *loop, Comm *pp, Model *stage, const Batch *batch,
                              size_t m) {
    return (*(PipelineLoop *const *)loop)(pp, stage, batch, m);
}
Played stack_play_loop(Run *run, const Stack *s, PipelineLoop *loop, size_t m) {
    return stack_play_by(run, s, MEM_ACTIVATIONS, by_loop, &loop, m);
}

// ---------------------------------------------------------------- times of the stack, from sizes

Picoseconds stage_message_time(const ModelConfig *c, size_t B) {
    CutSizes z = cut_sizes(c, 1, 0);
    return (Picoseconds)send_time(message_elements(&z, B) * weight_bytes(c));
}
StackTimes stack_times(const Stack *s) {
    CutSizes z = cut_sizes(&s->model, 1, 0);
    double block = work_block(&z, s->sequences).time;
    return (StackTimes){ .forward = (Picoseconds)(block * s->blocks),
                         .backward = (Picoseconds)(2 * block * s->blocks),
                         .message = stage_message_time(&s->model, s->sequences) };
}

// Counts the activations and the input of each block. The last stage also keeps the sink's input.
size_t stack_kept(const Stack *s, size_t p, size_t i) {
    CutSizes z = cut_sizes(&s->model, 1, 0);
    size_t per_token = s->blocks * (kept_block(&z) + z.C) + (i + 1 == p ? z.C : 0);
    size_t all = per_token * s->sequences * s->model.context;
    size_t reals = s->blocks * activations_block_reals(&z, s->sequences);
    return (all - reals) * weight_bytes(&s->model) + reals * sizeof(real);
}

double stack_idle(const Stack *s, size_t m, double step) {
    StackTimes t = stack_times(s);
    return round(1e6 * (1 - (double)(m * (t.forward + t.backward)) / step));
}
