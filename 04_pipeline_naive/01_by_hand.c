// ranks: 1
// level: core
// question: When a model's layers are spread over devices, which device works when, and what do micro-batches gain?
//
// Holds: device i of p has LAYERS/p neighbouring layers y = tanh(w x + b), each of one number.
// Sends: nothing; one process imagines all devices and reads its neighbour's array in place of a
//     message.
// Saves: idle time: with m micro-batches a step takes (m+p-1)(f+b) units instead of mp(f+b).
// Costs: every device keeps the outputs of all micro-batches until their backwards. An op starts at
// max(end of what it needs, end of the device's last op); f = 1 unit of time, b = 2.
// Left out: the time that a message takes.
#include "04_pipeline_naive/by_hand.h"
#include "common/tensor/random.h"
#include <math.h>
#include <string.h>

static const real rate = (real)0.5;

// ---------------------------------------------- one layer, one sample; one device, one micro-batch

static real link_forward(const Link *l, real x) { return (real)tanh((double)(l->w * x + l->b)); }
static real link_backward(Link *l, real x, real y, real dy) {  // adds to the gradients, returns dx
    real dz = dy * (1 - y * y);
    l->dw += dz * x;
    l->db += dz;
    return dz * l->w;
}

static void run_forward(Line *t, size_t i, Range mine) {
    Device *me = &t->device[i];
    for (size_t s = mine.lo; s < mine.hi; s++) {
        // The message: the last output of the device before me becomes my input.
        me->h[s][0] = i == 0 ? t->x[s] : me[-1].h[s][me[-1].n];
        for (size_t l = 0; l < me->n; l++)
            me->h[s][l + 1] = link_forward(&me->layer[l], me->h[s][l]);
    }
}

static double run_backward(Line *t, size_t i, Range mine) {
    Device *me = &t->device[i];
    double loss = 0;
    for (size_t s = mine.lo; s < mine.hi; s++) {
        if (i + 1 == t->p) {
            // Half the squared distance, divided by all samples of the batch: micro-batches then
            // just add up.
            real far = me->h[s][me->n] - t->target[s];
            loss += 0.5 * (double)(far * far) / SAMPLES;
            me->d[s] = far / SAMPLES;
        } else {
            me->d[s] = me[1].d[s];  // the message: the gradient of my last output comes back
        }
        for (size_t l = me->n; l-- > 0;)
            me->d[s] = link_backward(&me->layer[l], me->h[s][l], me->h[s][l + 1], me->d[s]);
    }
    return loss;
}

// ---------------------------------------------- three ways to order the ops, alike on every device

static void add(Device *d, char what, size_t k) { d->op[d->ops++] = (Op){ what, k }; }
void chain_forwards_only(Device *d, size_t pieces) {
    for (size_t k = 0; k < pieces; k++) add(d, 'F', k);
}
// Naive: the next forward starts after this backward.
void chain_there_and_back(Device *d, size_t pieces) {
    for (size_t k = 0; k < pieces; k++) { add(d, 'F', k); add(d, 'B', k); }
}
void chain_all_there_all_back(Device *d, size_t pieces) { // all forwards, then all backwards
    chain_forwards_only(d, pieces);
    for (size_t k = 0; k < pieces; k++) add(d, 'B', k);
}

// Plays every device's list: asks the devices in turn, again and again, whether their next op can
// run.
void chain_play(Line *t) {
    size_t next[LAYERS] = {0}, free_at[LAYERS] = {0};
    size_t end[2][LAYERS][PIECES] = {{{0}}};  // of forward [0], backward [1] of k on i; 0: not yet
    t->loss = t->end = t->busy = 0;
    for (size_t i = 0; i < t->p; i++)
        for (size_t u = 0; u < MOST_UNITS; u++) strcpy(t->device[i].at[u], ". ");
    // Until no device can go on.
    for (size_t i = 0, in_vain = 0; in_vain <= t->p; i = (i + 1) % t->p, in_vain++) {
        Device *me = &t->device[i];
        if (next[i] == me->ops) continue;
        Op op = me->op[next[i]];
        bool back = op.what == 'B', none = !back && i == 0;  // device 0's forward needs nobody
        size_t need = none           ? 0
                      : !back        ? end[0][i - 1][op.k]
                      : i + 1 < t->p ? end[1][i + 1][op.k]
                                     : end[0][i][op.k];
        if (!none && need == 0) continue;                  // what it needs is not there yet
        size_t start = need > free_at[i] ? need : free_at[i],
               duration = back ? T_BACKWARD : T_FORWARD;
        Range mine = shard_range(SAMPLES, t->pieces, op.k);
        if (back) t->loss += run_backward(t, i, mine);
        else run_forward(t, i, mine);
        for (size_t u = start; u < start + duration; u++) strcpy(me->at[u], "--");
        me->at[start][0] = op.what;
        me->at[start][1] = (char)('0' + op.k);
        end[back][i][op.k] = free_at[i] = start + duration;
        t->busy += duration;
        if (free_at[i] > t->end) t->end = free_at[i];
        next[i]++;
        in_vain = 0;
    }
}

// ----------------------------------------------- training on p devices; p = 1 is the unsplit chain

// The same weights and samples, whatever p is.
Line chain_new(uint64_t seed, size_t p, size_t pieces, Rule *rule) {
    Line t = { .p = p, .pieces = pieces };
    for (size_t i = 0; i < p; i++) {
        Range mine = shard_range(LAYERS, p, i);
        for (size_t l = mine.lo; l < mine.hi; l++)
            t.device[i].layer[t.device[i].n++] =
                (Link){ .w = (real)random_normal(random_key(seed, l)),
                        .b = (real)random_normal(random_key(seed, 10 + l)) };
        rule(&t.device[i], pieces);
    }
    for (size_t s = 0; s < SAMPLES; s++) {
        t.x[s] = (real)random_normal(random_key(seed, 20 + s));
        t.target[s] = (real)(random_unit(random_key(seed, 30 + s)) - 0.5);
    }
    return t;
}

void chain_train(Line *t, double loss[STEPS], double *number) {
    for (size_t step = 0; step < STEPS; step++) {
        chain_play(t);
        loss[step] = t->loss;
        for (size_t i = 0; i < t->p; i++)
            for (size_t l = 0; l < t->device[i].n; l++) {
                Link *k = &t->device[i].layer[l];
                k->w -= rate * k->dw;
                k->b -= rate * k->db;
                const real after[] = { k->w, k->b, k->dw, k->db };
                for (size_t n = 0; n < 4; n++) *number++ = after[n];
                k->dw = k->db = 0;                         // for the next step
            }
    }
}
