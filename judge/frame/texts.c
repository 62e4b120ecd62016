// texts.c: writes values with readable units, and texts that last to the end of the run.
#include "judge/frame/frame.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Writes at most three digits with a prefix of the unit, such as 2.60 ms or 338 kB.
static void scaled(char *text, size_t room, double value, const char *unit, bool time) {
    static const char *const large[] = { "", "k", "M", "G", "T", "P" }, *const small[] = { "p", "n",
                                                                                           "u", "m",
                                                                                           "" };
    const char *const *prefix = time ? small : large;
    size_t last = time ? 4 : 5, i = 0;
    while (i < last && fabs(value) >= 999.5) {
        value /= 1000;
        i++;
    }
    int digits = value == floor(value) && i == 0 ? 0
                 : fabs(value) < 9.995           ? 2
                 : fabs(value) < 99.95           ? 1
                                                 : 0;
    if (time && value == 0) snprintf(text, room, "0 s");
    else snprintf(text, room, "%.*f %s%s", digits, value, prefix[i], unit);
}
void page_value(char *text, size_t room, double value, const char *unit) {
    if (!strcmp(unit, "ps")) scaled(text, room, value, "s", true);
    else if (!strncmp(unit, "bytes", 5)) scaled(text, room, value, "B", false);
    else if (!strcmp(unit, "FLOPs")) scaled(text, room, value, "FLOP", false);
    else if (!strcmp(unit, "millionths")) snprintf(text, room, "%.1f %%", value / 1e4);
    else snprintf(text, room, "%.6g", value);
}

void page_cell(char cell[24], double value, const char *unit) {
    *cell = '=';
    page_value(cell + 1, 23, value, unit);
}

const char *page_text(Run *run, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t room = (size_t)vsnprintf(NULL, 0, format, args) + 1;
    PageText *t = host_alloc(sizeof *t + room);
    vsnprintf(t->text, room, format, again);
    va_end(again);
    va_end(args);
    t->before = run->state->texts;
    run->state->texts = t;
    return t->text;
}
const char *value_cell(Run *run, double value, const char *unit) {
    char cell[24];
    page_cell(cell, value, unit);
    return page_text(run, "%s", cell);
}
const char *value_text(Run *run, double value, const char *unit) {
    return value_cell(run, value, unit) + 1;
}
