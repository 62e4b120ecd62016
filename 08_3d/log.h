// log.h declares functions that write --log FILE. The file has one JSON object for each step, one
// for each event, and one for the end. Each object has the id of the run.
#ifndef LOG_H
#define LOG_H
#include <stdio.h>
#include "common/model/model.h"

typedef struct {
    FILE *file;
    const char *name, *run;
} Log;
// Opens the log. Calls usage_error() if the file cannot be written. A later write that fails calls
// fault().
// name NULL: nothing is written.
// append: continues the log of a resumed run.
// id: the run's id.
Log log_open(const char *name, bool append, const char *id);
// Writes the line of a step. scale: the factor of the step's loss scale, for the field
// "loss_scale"; 0: the line has no such field.
void log_step(const Log *log, size_t step, StepResult r, double lr, double scale, size_t tokens,
              double seconds);
// Writes {"event":"eval","step":100,"eval_loss":1.5}. In the events "eval", "checkpoint",
// "rebalance" and "stop", step is the number of steps done. In "skipped" and "lost", step is the
// number of the step itself.
void log_evaluation(const Log *log, size_t done, double eval_loss);
void log_event(const Log *log, const char *event, size_t step);
// Writes {"event":"skipped","step":7,"loss_scale":65536,"next_loss_scale":32768}, if the step's
// gradients overflowed at this loss scale.
void log_overflow(const Log *log, size_t step, double scale, double next);
// Writes the last line, and closes the log.
void log_end(Log *log, double eval_loss);
#endif
