// 07_page.h: what 07_balance shows of its three trainings.
#ifndef BALANCE_PAGE_H
#define BALANCE_PAGE_H
#include "01_data_parallel/experiments/07_costs.h"
#include "judge/frame/lesson.h"

typedef enum { EQUAL, STATIC, DYNAMIC, POLICIES } Policy;
extern const char *const balance_policy[POLICIES];
// Of a training: each device's sequences [steps][n]; the time of each step [steps], alike on all ranks, in
// picoseconds.
typedef struct { const Range *share; const double *time; } BalanceSeen;
// The time of every step, in the unit in which a device of the full rate takes 1 for a sequence: a table and a plot.
void balance_show_times(Run *run, BalanceSizes z, const Devices *d, const BalanceSeen *seen, int picture);
// The table of results, after the costs. seen[POLICIES], here and above.
void balance_results(Run *run, BalanceSizes z, const Devices *d, const BalanceSeen *seen);
#endif
