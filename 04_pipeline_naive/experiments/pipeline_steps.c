// pipeline_steps.c: turns the schedule list of a stage into the steps that the executor must make.
// The steps are receives, waits for send buffers, work and sends. The player (judge/play) runs the
// steps.
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdlib.h>

// ---------------------------------------------------------------- the rules, stated a second time

bool steps_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs) {
    size_t part = op.chunk * p + i;
    bool last = part + 1 == p * v;
    bool forward = op.what == FORWARD, weights = op.what == BACKWARD_WEIGHTS;
    if (op.what == UPDATE || (forward && part == 0)) return false;
    if (forward) part--;
    else if (!weights && !last) part++;
    if (!forward) op.what = last && !weights ? FORWARD : BACKWARD_INPUTS;
    op.chunk = part / p;
    *needs = (StageOp){ part % p, op };
    return true;
}

bool steps_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds) {
    size_t part = op.chunk * p + i, end = op.what == FORWARD ? p * v - 1 : 0;
    if (op.what == UPDATE || op.what == BACKWARD_WEIGHTS || part == end) return false;
    if (op.what == FORWARD) part++;
    else {
        part--;
        op.what = BACKWARD_INPUTS;
    }
    op.chunk = part / p;
    *feeds = (StageOp){ part % p, op };
    return true;
}

bool steps_op_is(PipeOp op, PipeOp needed) {
    if (op.what == BACKWARD && needed.what == BACKWARD_INPUTS) op.what = BACKWARD_INPUTS;
    bool same_place = op.micro_batch == needed.micro_batch && op.chunk == needed.chunk;
    return op.what == needed.what && same_place;
}

// ---------------------------------------------------------------- the executor's steps

// A stage has at most this many send buffers for activations, and as many for gradients.
enum { SEND_BUFFERS = 2 };
typedef struct {
    size_t buffers, turn;      // number of buffers, number of the next buffer
    size_t sent[SEND_BUFFERS]; // the step of each buffer's last message
} Buffers;

typedef struct {
    Play *play;
    size_t rank;
    const PipelineSteps *s;
    size_t *posted; // [p] the step of the receive that is posted for each stage
} Writer;

static size_t bytes_of(const Writer *w, PipeOp op) {
    return w->s->bytes ? w->s->bytes[op.micro_batch] : 0;
}

static bool from_other(const Writer *w, PipeOp op, StageOp *needs) {
    return steps_needs(op, w->s->i, w->s->p, w->s->v, needs) && needs->stage != w->s->i;
}

// Posts the receive from `stage` for the first op at or after place `at` that takes a message from
// `stage`.
static void post(Writer *w, size_t stage, size_t at) {
    const Schedule *list = w->s->list;
    StageOp needs;
    while (at < list->n && !(from_other(w, list->ops[at], &needs) && needs.stage == stage)) at++;
    w->posted[stage] = PLAY_NEVER;
    if (at == list->n) return;
    size_t bytes = bytes_of(w, list->ops[at]);
    play_hold(w->play, w->rank, MEM_COMMUNICATION, bytes);
    w->posted[stage] = play_post(w->play, w->rank, w->s->group, stage, bytes);
}

// Returns whether the needed op is in the list of this stage before place `at`.
static bool is_before(const Writer *w, PipeOp needed, size_t at) {
    while (at-- > 0)
        if (steps_op_is(w->s->list->ops[at], needed)) return true;
    return false;
}

// Writes the steps in which an op waits for its message. The received message then counts as an
// activation (x) or as workspace (dy), no longer as communication. Then the next receive is posted.
static void take_input(Writer *w, PipeOp op, size_t at, size_t stage) {
    size_t bytes = bytes_of(w, op);
    play_wait(w->play, w->rank, w->posted[stage]);
    play_drop(w->play, w->rank, MEM_COMMUNICATION, bytes);
    play_hold(w->play, w->rank, op.what == FORWARD ? MEM_ACTIVATIONS : MEM_WORKSPACE, bytes);
    post(w, stage, at + 1);
}

static size_t send(Writer *w, PipeOp op, size_t to) {
    const PipelineSteps *s = w->s;
    if (s->bytes) return play_send(w->play, w->rank, s->group, to, bytes_of(w, op));
    return play_send_taking(w->play, w->rank, s->group, to, 0, s->message);
}

static Buffers buffers_new(const PipelineSteps *s, bool sends) {
    size_t n = s->bytes && s->v * s->m < SEND_BUFFERS ? s->v * s->m : SEND_BUFFERS;
    return (Buffers){ .buffers = sends && s->p > 1 ? n : 0, .sent = { PLAY_NEVER, PLAY_NEVER } };
}
// Writes the steps in which the executor waits until the last messages of these send buffers are
// received.
static void buffers_done(Writer *w, const Buffers *b) {
    for (size_t n = 0; n < b->buffers; n++) {
        size_t sent = b->sent[(b->turn + n) % b->buffers];
        if (sent != PLAY_NEVER) play_wait(w->play, w->rank, sent);
    }
}

static void write_op(Writer *w, size_t at, Buffers *out, OpPlaces *place) {
    const PipelineSteps *s = w->s;
    PipeOp op = s->list->ops[at];
    StageOp needs, feeds;
    *place = (OpPlaces){ PLAY_NEVER, PLAY_NEVER, 0, 0, PLAY_NEVER };
    bool input = steps_needs(op, s->i, s->p, s->v, &needs), received = input && needs.stage != s->i;
    bool never = input && !received && !is_before(w, needs.op, at);
    if (input && (received || never)) place->input = play_length(w->play, w->rank);
    if (received) take_input(w, op, at, needs.stage);
    if (never) play_wait(w->play, w->rank, PLAY_NEVER);
    bool sends = steps_feeds(op, s->i, s->p, s->v, &feeds) && feeds.stage != s->i;
    if (sends && out->sent[out->turn] != PLAY_NEVER) {
        place->buffer = play_length(w->play, w->rank);
        play_wait(w->play, w->rank, out->sent[out->turn]);
    }
    place->begin = play_length(w->play, w->rank);
    s->compute(w->play, w->rank, op, s->context);
    place->end = play_length(w->play, w->rank);
    if (sends) {
        place->send = send(w, op, feeds.stage);
        out->sent[out->turn] = place->send;
        out->turn = (out->turn + 1) % out->buffers;
    }
    if (received && op.what != FORWARD) play_drop(w->play, w->rank, MEM_WORKSPACE, bytes_of(w, op));
}

void pipeline_steps(Play *play, size_t rank, const PipelineSteps *s, OpPlaces *place) {
    Writer w = {
        .play = play, .rank = rank, .s = s, .posted = host_alloc(s->p * sizeof *w.posted)
    };
    size_t largest = 0, before = (s->i + s->p - 1) % s->p, next = (s->i + 1) % s->p;
    for (size_t k = 0; s->bytes && k < s->m; k++)
        if (s->bytes[k] > largest) largest = s->bytes[k];
    Buffers activations = buffers_new(s, s->i + 1 < s->p || s->v > 1),
            gradients = buffers_new(s, s->i > 0 || s->v > 1);
    size_t held = (activations.buffers + gradients.buffers) * largest;
    play_hold(play, rank, MEM_COMMUNICATION, held);
    if (s->p > 1) post(&w, before, 0);
    if (s->p > 1 && next != before) post(&w, next, 0);
    for (size_t at = 0; at < s->list->n; at++) {
        OpPlaces unused;
        write_op(&w, at, s->list->ops[at].what == FORWARD ? &activations : &gradients,
                 place ? &place[at] : &unused);
    }
    buffers_done(&w, &activations);
    buffers_done(&w, &gradients);
    play_drop(play, rank, MEM_COMMUNICATION, held);
    free(w.posted);
}
