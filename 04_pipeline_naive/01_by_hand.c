// ranks: 1
// level: core
// question: When a model's layers are spread over devices, which device works when, and what do micro-batches gain?
//
// Holds: device i of p has LAYERS/p neighbouring layers y = tanh(w x + b), in which x and y are one
//     number per sample.
// Sends: nothing. One process computes for all devices, and reads a neighbour's array in place of a
//     message.
// Saves: idle time. With m micro-batches a step takes (m+p-1)(f+b) units instead of mp(f+b).
// Costs: every device keeps the outputs of all micro-batches until their backwards.
// An op is the forward or the backward of one micro-batch on one device. An op starts when its
// input is there and the device's previous op has ended. A forward takes f = 1 unit of time, a
// backward b = 2. Left out: the time of a message.
#include "04_pipeline_naive/by_hand.h"
#include "common/tensor/random.h"
#include <math.h>

static const real rate = (real)0.5;

// ---------------------------------------------- one layer, one sample; one device, one micro-batch

static real layer_forward(const ChainLayer *l, real x) {
    return (real)tanh((double)(l->w * x + l->b));
}
// Adds to the layer's gradients. Returns dx.
static real layer_backward(ChainLayer *l, real x, real y, real dy) {
    real dz = dy * (1 - y * y);
    l->dw += dz * x;
    l->db += dz;
    return dz * l->w;
}

static void run_forward(Chain *c, size_t i, Range samples) {
    Device *d = &c->device[i];
    for (size_t s = samples.lo; s < samples.hi; s++) {
        // This read takes the place of a message. The last output of the previous device becomes
        // the input of this device.
        d->h[s][0] = i == 0 ? c->x[s] : d[-1].h[s][d[-1].n];
        for (size_t l = 0; l < d->n; l++) d->h[s][l + 1] = layer_forward(&d->layer[l], d->h[s][l]);
    }
}

static double run_backward(Chain *c, size_t i, Range samples) {
    Device *d = &c->device[i];
    double loss = 0;
    for (size_t s = samples.lo; s < samples.hi; s++) {
        if (i + 1 == c->p) {
            // The loss is half the squared error, divided by the number of samples of the whole
            // batch. So the gradients of the micro-batches add up to the gradient of the batch.
            real error = d->h[s][d->n] - c->target[s];
            loss += 0.5 * (double)(error * error) / SAMPLES;
            d->d[s] = error / SAMPLES;
        } else {
            d->d[s] = d[1].d[s]; // in place of a message: the gradient of this device's last output
        }
        for (size_t l = d->n; l-- > 0;)
            d->d[s] = layer_backward(&d->layer[l], d->h[s][l], d->h[s][l + 1], d->d[s]);
    }
    return loss;
}

// -------------------------------- two ways to order the ops, each the same on every device

static void add(Device *d, char what, size_t k) { d->op[d->ops++] = (Op){ what, k }; }
// Writes the naive list: a forward starts after the backward of the previous micro-batch.
void chain_there_and_back(Device *d, size_t pieces) {
    for (size_t k = 0; k < pieces; k++) {
        add(d, 'F', k);
        add(d, 'B', k);
    }
}
// Writes the micro-batched list: all forwards, then all backwards.
void chain_all_there_all_back(Device *d, size_t pieces) {
    for (size_t k = 0; k < pieces; k++) add(d, 'F', k);
    for (size_t k = 0; k < pieces; k++) add(d, 'B', k);
}

// ---------------------------------------------------------------- when each op runs

// forward[i][k] and backward[i][k] are the times at which device i ends the forward and the
// backward of micro-batch k. 0 means that the op has not run.
typedef struct {
    size_t forward[LAYERS][PIECES], backward[LAYERS][PIECES];
} Ends;

// Returns whether the input of `op` on device i is there. *ready becomes the time at which the op
// that computes this input ends. *ready becomes 0 if no op computes this input, or if
// the op that computes this input has not run.
static bool input_ready(const Chain *c, const Ends *ends, size_t i, Op op, size_t *ready) {
    *ready = 0;
    if (op.what == 'F' && i == 0) return true; // device 0 reads the samples
    if (op.what == 'F') *ready = ends->forward[i - 1][op.k];
    else if (i + 1 == c->p) *ready = ends->forward[i][op.k];
    else *ready = ends->backward[i + 1][op.k];
    return *ready > 0;
}

// Visits the devices in turn and runs the next op of a device if the op's input is ready. Ends when
// no device can run an op.
void chain_play(Chain *c) {
    size_t next[LAYERS] = { 0 }, free_at[LAYERS] = { 0 }, ready;
    Ends ends = { 0 };
    c->loss = c->end = c->busy = 0;
    for (size_t i = 0, in_vain = 0; in_vain <= c->p; i = (i + 1) % c->p, in_vain++) {
        Device *d = &c->device[i];
        if (next[i] == d->ops) continue;
        Op op = d->op[next[i]];
        if (!input_ready(c, &ends, i, op, &ready)) continue;
        bool back = op.what == 'B';
        size_t start = ready > free_at[i] ? ready : free_at[i];
        size_t duration = back ? T_BACKWARD : T_FORWARD;
        Range samples = shard_range(SAMPLES, c->pieces, op.k);
        if (back) c->loss += run_backward(c, i, samples);
        else run_forward(c, i, samples);
        d->start[next[i]] = start;
        free_at[i] = start + duration;
        if (back) ends.backward[i][op.k] = free_at[i];
        else ends.forward[i][op.k] = free_at[i];
        c->busy += duration;
        if (free_at[i] > c->end) c->end = free_at[i];
        next[i]++;
        in_vain = 0;
    }
}

// ----------------------------------------------- training on p devices; p = 1 is the unsplit chain

Chain chain_new(uint64_t seed, size_t p, size_t pieces, Rule *rule) {
    Chain c = { .p = p, .pieces = pieces };
    for (size_t i = 0; i < p; i++) {
        Range layers = shard_range(LAYERS, p, i);
        for (size_t l = layers.lo; l < layers.hi; l++)
            c.device[i].layer[c.device[i].n++] =
                (ChainLayer){ .w = (real)random_normal(random_key(seed, l)),
                              .b = (real)random_normal(random_key(seed, 10 + l)) };
        rule(&c.device[i], pieces);
    }
    for (size_t s = 0; s < SAMPLES; s++) {
        c.x[s] = (real)random_normal(random_key(seed, 20 + s));
        c.target[s] = (real)(random_unit(random_key(seed, 30 + s)) - 0.5);
    }
    return c;
}

void chain_update(Chain *c) {
    for (size_t i = 0; i < c->p; i++)
        for (size_t l = 0; l < c->device[i].n; l++) {
            ChainLayer *layer = &c->device[i].layer[l];
            layer->w -= rate * layer->dw;
            layer->b -= rate * layer->db;
            layer->dw = 0;
            layer->db = 0;
        }
}
