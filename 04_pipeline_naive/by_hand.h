// by_hand.h: declares the chain of small layers on imagined devices (01_by_hand.c).
#ifndef PIPELINE_BY_HAND_H
#define PIPELINE_BY_HAND_H
#include "common/base/util.h"
#include "common/base/real.h"

// The 4 micro-batches have 2, 2, 2 and 1 of the 7 samples.
enum { LAYERS = 4, SAMPLES = 7, PIECES = 4, STEPS = 3 };
enum { T_FORWARD = 1, T_BACKWARD = 2, MOST_UNITS = LAYERS * PIECES * (T_FORWARD + T_BACKWARD) };
typedef struct {
    real w, b, dw, db;
} ChainLayer; // y = tanh(w x + b); dw, db: the gradients of w and b
typedef struct {
    char what;
    size_t k;
} Op; // 'F' or 'B' of micro-batch k
typedef struct {
    ChainLayer layer[LAYERS]; // [n]
    size_t n;
    real h[SAMPLES][LAYERS + 1]; // per sample: the device's input and the output of each layer
    real d[SAMPLES];             // per sample, after its backward: the gradient of h[s][0]
    Op op[2 * PIECES];           // the device's ops, in the order in which it runs them
    size_t ops;
    size_t start[2 * PIECES]; // the unit of time at which each op started
} Device;
typedef struct {
    size_t p;      // devices
    size_t pieces; // micro-batches
    size_t end;    // the time at which the last op ends
    size_t busy;   // the sum of the times of all ops
    double loss;
    real x[SAMPLES], target[SAMPLES];
    Device device[LAYERS]; // [p]
} Chain;

// A rule writes a device's list of ops.
typedef void Rule(Device *d, size_t pieces);
Rule chain_there_and_back, chain_all_there_all_back;
// Returns the chain on p devices. Weights and samples depend on the seed alone, not on p.
Chain chain_new(uint64_t seed, size_t p, size_t pieces, Rule *rule);
void chain_play(Chain *c);   // computes every op, and records when the op ran
void chain_update(Chain *c); // takes one SGD step in every layer, then zeroes the gradients
#endif
