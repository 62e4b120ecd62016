// 07_costs.h: how long the steps of 07_balance must take, and how long they may.
#ifndef BALANCE_COSTS_H
#define BALANCE_COSTS_H
#include "01_data_parallel/experiments/07_devices.h"
#include "common/model/layer.h"

typedef struct {
    ModelConfig model;
    size_t sequences, steps;                       // sequences of a step, of all devices together
    bool known;                                    // shares in proportion to the speeds before the training;
    bool measured;                                 // or to those of the steps before. Neither: equal shares
} BalanceSizes;
// time[steps] in picoseconds; share[steps][d->n], each device's sequences.
void balance_forecast(BalanceSizes z, const Devices *d, Range *share, double *time);
// How many devices of the full rate would be as fast as all these together.
double balance_summed_speed(const Devices *d, size_t step);
// The time of the computing of a step, could sequences be cut: all devices end together.
double balance_ideal(BalanceSizes z, const Devices *d, size_t step);
// The rings of a step: the gradient's and, where times are sent, that of the n times.
double balance_rings(BalanceSizes z, size_t n);
// Who had no sequences was not measured, and keeps its rate. No device of the trainings is so slow.
void balance_check_idle(Run *run, void (*observe)(Comm *dp, const Range *share, double took, double *rate));
// The most that a step may take of devices that share in proportion to what they believe of each other.
double balance_bound(BalanceSizes z, const Devices *d, size_t step);
#endif
