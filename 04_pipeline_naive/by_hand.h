// by_hand.h: the chain of 01_by_hand.c, on imagined devices, for its experiment.
#ifndef PIPELINE_BY_HAND_H
#define PIPELINE_BY_HAND_H
#include "common/base/util.h"
#include "common/base/real.h"

// 7 samples in 4 micro-batches: 2, 2, 2, 1
enum { LAYERS = 4, SAMPLES = 7, PIECES = 4, STEPS = 3 };
enum { T_FORWARD = 1, T_BACKWARD = 2, MOST_UNITS = LAYERS * PIECES * (T_FORWARD + T_BACKWARD) };
typedef struct { real w, b, dw, db; } Link;                // one layer, and its gradients
typedef struct { char what; size_t k; } Op;                // 'F' or 'B', of micro-batch k
typedef struct {
    Link layer[LAYERS];                                    // my layers
    size_t n;
    real h[SAMPLES][LAYERS + 1];  // kept from forward to backward: my input and every output
    real d[SAMPLES];                                       // what goes back to the device before me
    Op op[2 * PIECES];                                     // my list: what I do, in this order
    size_t ops;
    char at[MOST_UNITS][4]; // by unit of time: "F0", "--" still at it, ". " idle
} Device;
typedef struct {
    size_t p, pieces, end, busy;  // end: of the last op; busy: units of work of all devices
    double loss;
    real x[SAMPLES], target[SAMPLES];
    Device device[LAYERS];                                 // p of them
} Line;

// A rule writes a device's list of ops. The three rules of the lesson write the same list for every
// device.
typedef void Rule(Device *d, size_t pieces);
Rule chain_forwards_only, chain_there_and_back, chain_all_there_all_back;
// The chain on p devices. Weights and samples follow from seed alone, whatever p is.
Line chain_new(uint64_t seed, size_t p, size_t pieces, Rule *rule);
void chain_play(Line *t);  // one step: computes every op, writes down when it ran

// w, b and their gradients, of every layer, after every step.
enum { NUMBERS = STEPS * LAYERS * 4 };
void chain_train(Line *t, double loss[STEPS], double *number);
#endif
