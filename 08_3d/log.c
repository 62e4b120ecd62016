// log.c writes the lines of a log. Each line is flushed, so that no line is lost if the run dies.
#include "08_3d/log.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "common/base/output.h"

static void require(const Log *log, bool good) {
    if (!good) fault("cannot write the log %s: %s", log->name, strerror(errno));
}

// Writes a number, or null if the number is not finite, because JSON has no NaN and no infinity.
static void number(const Log *log, const char *name, double value, const char *after) {
    if (isfinite(value)) require(log, fprintf(log->file, "\"%s\":%.9g%s", name, value, after) >= 0);
    else require(log, fprintf(log->file, "\"%s\":null%s", name, after) >= 0);
}

// Returns whether the file ends with half a line, which a killed run may have left. Always false
// for pipes and devices.
static bool ends_in_half_a_line(const char *name) {
    struct stat found;
    FILE *f = stat(name, &found) == 0 && S_ISREG(found.st_mode) ? fopen(name, "rb") : NULL;
    bool half = f && fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n';
    if (f) fclose(f);
    return half;
}

Log log_open(const char *name, bool append, const char *id) {
    Log log = { .name = name, .run = id };
    if (!name) return log;
    bool half = append && ends_in_half_a_line(name);
    output_require_reader("log", name);
    log.file = fopen(name, append ? "a" : "w");
    REQUIRE(log.file, "cannot write the log %s: %s", name, strerror(errno));
    if (half) require(&log, fputc('\n', log.file) >= 0);
    return log;
}

void log_step(const Log *log, size_t step, StepResult r, double lr, double scale, size_t tokens,
              double seconds) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"step\":%zu,\"tokens\":%zu,", step, tokens) >= 0);
    number(log, "loss", r.loss, ",");
    number(log, "grad_norm", r.norm, ",");
    number(log, "lr", lr, ",");
    if (scale > 0) number(log, "loss_scale", scale, ",");
    number(log, "seconds", seconds, ",");
    number(log, "tokens_per_second", (double)tokens / seconds, ",");
    require(log, fprintf(log->file, "\"run\":\"%s\"}\n", log->run) >= 0);
    require(log, fflush(log->file) == 0);
}

void log_evaluation(const Log *log, size_t done, double eval_loss) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"event\":\"eval\",\"step\":%zu,", done) >= 0);
    number(log, "eval_loss", eval_loss, ",");
    require(log, fprintf(log->file, "\"run\":\"%s\"}\n", log->run) >= 0);
    require(log, fflush(log->file) == 0);
}

void log_event(const Log *log, const char *event, size_t step) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"event\":\"%s\",\"step\":%zu,\"run\":\"%s\"}\n", event, step,
                         log->run) >= 0);
    require(log, fflush(log->file) == 0);
}

void log_overflow(const Log *log, size_t step, double scale, double next) {
    if (!log->file) return;
    require(log, fprintf(log->file, "{\"event\":\"skipped\",\"step\":%zu,", step) >= 0);
    number(log, "loss_scale", scale, ",");
    number(log, "next_loss_scale", next, ",");
    require(log, fprintf(log->file, "\"run\":\"%s\"}\n", log->run) >= 0);
    require(log, fflush(log->file) == 0);
}

void log_end(Log *log, double eval_loss) {
    if (!log->file) return;
    require(log, fputc('{', log->file) >= 0);
    number(log, "eval_loss", eval_loss, ",");
    require(log, fprintf(log->file, "\"run\":\"%s\"}\n", log->run) >= 0);
    require(log, fclose(log->file) == 0);
    log->file = NULL;
}
