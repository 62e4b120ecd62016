// balance_forecast.h: the devices of 07_balance, and a forecast of its shares and times.
#ifndef BALANCE_FORECAST_H
#define BALANCE_FORECAST_H
#include "01_data_parallel/data_parallel.h"
#include "judge/frame/lesson.h"

typedef enum { EQUAL, STATIC, DYNAMIC, POLICIES } Policy;
// slow[r]: device r takes slow[r] times as long as a device of the full rate. From step `change` on
// device 0 takes `changed` times as long as before.
typedef struct {
    const ModelConfig *model;
    size_t sequences, steps, change, changed;
    size_t n, *slow;
} Devices;

// All times are in picoseconds.
double balance_rings(Policy p, const Devices *d);          // the all-reduces of a step
// Fills share [steps][n] and time [steps] of a training.
void balance_forecast(Policy p, const Devices *d, Range *share, double *time);
// A step's computing if sequences could be cut, without the all-reduces.
double balance_ideal(const Devices *d, size_t step);
double balance_bound(Policy p, const Devices *d, size_t step);     // the longest possible step

// ---- balance_page.c ----
// A training, as measured: share [steps][n], time [steps].
typedef struct { const Range *share; const double *time; } BalanceTimes;
// Shows the time of every step as a table and a plot. Unit: one sequence on a device of the full
// rate. seen [POLICIES].
void balance_show_times(Run *run, const Devices *d, const BalanceTimes *seen, int picture);
void balance_table(Run *run, const Devices *d, const BalanceTimes *seen);      // the page's table
#endif
