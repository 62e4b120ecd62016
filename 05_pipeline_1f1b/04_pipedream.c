// ranks: 4
// level: extra
// question: A pipeline that never runs empty computes with old weights. Does it equal one device that uses equally old weights?
// vary: SEQUENCES 2..4, STEPS 9..13, layers 8..11, width 18|24, context 7..13, vocab 31..50
//
// Holds: rank i has stage i, with one copy of gradients and optimizer state. The weights exist
//     p - i times (weight stashing) or p times (vertical sync). Activations of at most p - i
//     mini-batches are kept.
// Sends: per mini-batch y [B*T, C] to stage i + 1, and dx [B*T, C] to stage i - 1. Weights never
//     move, and there is no sum over stages, because embedding and head have a table each and no
//     gradient is clipped.
// Saves: the bubble. Each further mini-batch takes f + b, because the pipeline never runs empty. f
//     and b are the times of a stage's forward and backward.
// Costs: p - i versions of the weights. Gradients are p-1-i updates old (vertical sync: p-1). So
//     the training differs from the unsplit training. With weight stashing and SGD,
//     W_i(k+1) = W_i(k) - eta g_i on every stage i. g_i is stage i's part of the gradient of loss
//     k, at the weights W_j(k-(p-1-j)) of all stages j.
// A mini-batch is the sequences of one update.
// Harlap et al. 2018 (PipeDream), section 3.3.
// Left out: replicated stages; clipping, whose norm needs all stages at one moment.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdio.h>

size_t pipedream_older(PipeDreamRule rule, size_t p, size_t i) {
    return rule == WEIGHT_STASHING ? p - 1 - i : rule == VERTICAL_SYNC ? p - 1 : 0;
}

static size_t version(size_t k, size_t updates_old) {
    return k < updates_old ? 0 : k - updates_old;
}

// Returns the list of stage i. On stage i forward and backward of mini-batch k read:
//     WEIGHT_STASHING   version max(0, k - (p-1-i)), the newest when forward k ran
//     VERTICAL_SYNC     version max(0, k - (p-1)), on all stages
//     NO_STASHING       the newest each time: forward max(0, k - (p-1-i)), backward k. Wrong.
// These are the lists for p = 2 and four mini-batches. U0 is the update with the gradient of
// mini-batch 0. U0 makes version 1.
//     stage 0   F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
//     stage 1   F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3
Schedule schedule_pipedream(PipeDreamRule rule, size_t p, size_t n, size_t i) {
    Schedule s = { 0 };
    size_t ahead = p - 1 - i;
    // EXERCISE 05.04a (5 points): write PipeDream's list of stage i. The first `ahead` mini-batches
    // go forward. Then a forward, a backward and its update follow in turn, until no forward is
    // left. Then the last backwards follow, each with its update. Forwards and backwards take
    // mini-batches 0, 1, ..., n-1 in this order. Each op says which version of the weights it reads
    // (the table in the comment of schedule_pipedream). Update k takes the gradient of mini-batch
    // k. The version of an update does not matter. Calls: schedule_add_op, schedule_add, version.
    for (size_t turn = 0; turn < n + ahead; turn++) {
        size_t k = turn, back = turn - ahead, old = rule == VERTICAL_SYNC ? p - 1 : ahead;
        if (k < n) schedule_add_op(&s, (PipeOp){ FORWARD, k, .version = version(k, old) });
        if (turn < ahead) continue;
        size_t read = rule == NO_STASHING ? back : version(back, old);
        schedule_add_op(&s, (PipeOp){ BACKWARD, back, .version = read });
        schedule_add(&s, UPDATE, back);
    }
    // END
    return s;
}

// ------------------------------------------------------------ the versions of a stage's weights

WeightVersions weight_versions_new(const Model *m, size_t older) {
    WeightVersions w = { .arena = arena(MEM_PARAMETERS), .older = older };
    // m->w is one more version, so a stage has older + 1 versions in all.
    if (older) w.copy = tensor_shaped(&w.arena, tensor_shape(older, m->size, m->w.element));
    return w;
}
void weight_versions_free(WeightVersions *w) { arena_free(&w->arena); }

static Tensor copy_of(const WeightVersions *w, size_t version) {
    return tensor_row_range(w->copy, version % w->older, version % w->older + 1);
}

void weight_versions_attach(const WeightVersions *w, Model *m, size_t version) {
    if (version > w->newest || version + w->older < w->newest)
        fault("version %zu of the weights is not held: %zu is the newest, and %zu before it",
              version, w->newest, w->older);
    model_attach_weights(m, version == w->newest ? m->w : copy_of(w, version));
}

// Overwrites the oldest copy, version newest - older, with the newest version. The two versions
// have the same row. No op needs the oldest version any more, because the last backward that reads
// this version has just run.
void weight_versions_keep(WeightVersions *w, const Model *m) {
    if (w->older) tensor_copy(copy_of(w, w->newest), m->w);
}

// ---------------------------------------------------------- the list, with messages and updates

// Updates m->w after the backward of mini-batch k. The update changes version k of the weights, not
// the older version that the backward may have read.
static void update(WeightVersions *w, Optimizer *o, Model *m) {
    weight_versions_keep(w, m); // version k, for the ops that will read this version
    optimizer_step(o, m, 1);    // m->w: version k becomes version k + 1
    w->newest++;
    weight_versions_attach(w, m, w->newest);
}

PipelineResult pipeline_pipedream(Comm *pp, Model *m, Optimizer *o, const Schedule *list,
                                  size_t older, const Batch *batch, size_t n,
                                  const TrainingObserver *observer) {
    PipelineStage s = pipeline_begin(pp, m, batch, n);
    // The executor starts each receive one message early (comm_start_recv). The executor waits for
    // a send (comm_start_send) when another message needs the send's buffer, and at the end of the
    // list.
    Executor *e = executor_new(pp, &s, list);
    WeightVersions w = weight_versions_new(m, older);
    model_zero_gradients(m);
    for (size_t at = 0; at < list->n; at++) {
        PipeOp op = list->ops[at];
        if (op.what == UPDATE) { // no message
            update(&w, o, m);
            if (observer) observer->updated(observer->context, m, op.micro_batch, UPDATED_ALL);
            model_zero_gradients(m);
            continue;
        }
        size_t k = executor_receive(e, at);        // B*T*C elements: x from i - 1, or dy from i + 1
        weight_versions_attach(&w, m, op.version); // the version that the op names
        if (op.what == FORWARD) pipeline_forward(&s, k);
        else pipeline_backward(&s, k);
        if (op.what == FORWARD && observer) observer->loss[k] += s.micro[k].loss;
        executor_send(e, at); // B*T*C elements: y to i + 1, or dx to i - 1
    }
    executor_free(e);
    weight_versions_free(&w);
    return pipeline_end(&s);
}

// Gives embedding and head a table each. Removes the marks of a tied table: tied_to, tied_use and
// tied_copy. With tied_to and tied_use model_fold_tied() adds the two gradients, and an optimizer
// step updates the table once. With tied_copy a norm counts the table once.
void model_untie(Model *m) {
    Unit *first = model_wte(m), *last = model_wte_head(m);
    if (last) {
        snprintf(last->params[0].name, sizeof last->params[0].name, "lm_head.weight");
        last->tied_to = NULL; // the head's own weights begin with the values of tensor 0
        last->tied_copy = false;
    }
    if (first) first->tied_use = NULL;
}
