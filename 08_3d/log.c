// log.c: see log.h.
#include "08_3d/log.h"
#include "common/lesson/lesson.h"
#include <errno.h>
#include <math.h>
#include <string.h>

static void require(const Log *log, bool good) {
    if (!good) fault("cannot write the log %s: %s", log->name, strerror(errno));
}

// JSON has no NaN and no infinity.
static void number(const Log *log, const char *name, double value, const char *after) {
    if (isfinite(value)) require(log, fprintf(log->file, "\"%s\":%.9g%s", name, value, after) >= 0);
    else require(log, fprintf(log->file, "\"%s\":null%s", name, after) >= 0);
}

Log log_open(Run *run) {
    Log log = {0};
    if (!option_given(run, "log") || run->world->rank) return log;
    log.name = option_text(run, "log");
    log.file = fopen(log.name, "w");
    REQUIRE(log.file, "cannot write the log %s: %s", log.name, strerror(errno));
    return log;
}

void log_step(const Log *log, size_t step, StepResult r, double lr, size_t tokens, double seconds) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"step\":%zu,\"tokens\":%zu,", step, tokens) >= 0);
    number(log, "loss", r.loss, ",");
    number(log, "grad_norm", r.norm, ",");
    number(log, "lr", lr, ",");
    number(log, "seconds", seconds, ",");
    number(log, "tokens_per_second", (double)tokens / seconds, "}\n");
    require(log, fflush(log->file) == 0);          // a line as soon as it is known
}

void log_evaluation(const Log *log, size_t done, double eval_loss) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"event\":\"eval\",\"step\":%zu,", done) >= 0);
    number(log, "eval_loss", eval_loss, "}\n");
    require(log, fflush(log->file) == 0);
}

void log_event(const Log *log, const char *event, size_t done) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"event\":\"%s\",\"step\":%zu}\n", event, done) >= 0);
    require(log, fflush(log->file) == 0);
}

void log_end(Log *log, double eval_loss) {
    if (!log->file) return;
    require(log, fputc('{', log->file) >= 0);
    number(log, "eval_loss", eval_loss, "}\n");
    require(log, fclose(log->file) == 0);
    log->file = NULL;
}
