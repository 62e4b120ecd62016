// svg.c: see svg.h. Colours are apart for the colour-blind (Okabe and Ito 2008), and every box says what it is.
#include "svg.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- files that are there whole or not at all

typedef struct { FILE *f; char *temporary; const char *file; } Output;

static Output output_open(const char *file) {
    Output o = { .temporary = host_alloc(strlen(file) + 5), .file = file };
    sprintf(o.temporary, "%s.tmp", file);
    o.f = fopen(o.temporary, "w");
    if (!o.f) fault("cannot write %s: %s", o.temporary, strerror(errno));
    return o;
}
static void output_close(Output *o) {
    bool good = !ferror(o->f);
    good &= fclose(o->f) == 0;
    if (good) good = rename(o->temporary, o->file) == 0;
    if (!good) {
        int why = errno;
        remove(o->temporary);
        fault("cannot write %s: %s", o->file, strerror(why));
    }
    free(o->temporary);
}

// ---------------------------------------------------------------- SVG

enum { LEFT = 70, WIDTH = 880, TOP = 50, ROW = 26, GAP = 8, STRIP_HEIGHT = 22 };     // pixels

static double x_of(const Recording *r, Picoseconds t) {
    if (t < r->begin) t = r->begin;
    if (t > r->end) t = r->end;
    return LEFT + (double)(t - r->begin) / (double)(r->end - r->begin) * WIDTH;
}

static void box(FILE *f, const Recording *r, const RecordedEvent *e, double y) {
    static const char *const fill[] = { "#56b4e9", "#e69f00", "#cc79a7", "#d55e00" };
    double x = x_of(r, e->start), w = x_of(r, e->end) - x;
    bool computes = e->kind <= EVENT_UPDATE;
    if (w <= 0) return;
    fprintf(f, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#fff\" stroke-width=\"0.5\"/>\n", x,
            computes ? y : y + ROW - 7, w, computes ? ROW - 8 : 6, fill[computes ? e->kind : 3]);
    if (!computes || w < 10) return;
    char label[12];
    if (e->number == NO_NUMBER) snprintf(label, sizeof label, "%c", "FBU"[e->kind]);
    else if (w < 20) snprintf(label, sizeof label, "%u", e->number);
    else snprintf(label, sizeof label, "%c%u", "FBU"[e->kind], e->number);
    fprintf(f, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x + w / 2, y + ROW - 13, label);
}

static void memory_strip(FILE *f, const Recording *r, const RankRecording *k, double y, size_t peak) {
    fprintf(f, "<path fill=\"#009e73\" fill-opacity=\"0.45\" d=\"M%d %.1f", LEFT, y + STRIP_HEIGHT);
    double level = 0;
    for (size_t i = 0; i < k->samples; i++) {
        double x = x_of(r, k->memory[i].at), high = (double)k->memory[i].high / (double)peak * STRIP_HEIGHT;
        fprintf(f, "L%.2f %.2fL%.2f %.2f", x, y + STRIP_HEIGHT - level, x, y + STRIP_HEIGHT - high);
        level = (double)k->memory[i].bytes / (double)peak * STRIP_HEIGHT;
        fprintf(f, "L%.2f %.2f", x, y + STRIP_HEIGHT - level);
    }
    fprintf(f, "L%d %.2fL%d %.1fZ\"/>\n", LEFT + WIDTH, y + STRIP_HEIGHT - level, LEFT + WIDTH, y + STRIP_HEIGHT);
}

static void legend(FILE *f) {
    static const struct { const char *text, *fill; } key[] = {
        { "forward", "#56b4e9" }, { "backward", "#e69f00" }, { "update", "#cc79a7" }, { "communication", "#d55e00" }, { "activations kept", "#009e73" } };
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        fprintf(f, "<rect x=\"%zu\" y=\"30\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%zu\" y=\"39\">%s</text>\n",
                LEFT + i * 130, key[i].fill, LEFT + i * 130 + 14, key[i].text);
}

void svg_write(const Recording *r, const char *title, bool memory, const char *file) {
    Output o = output_open(file);
    size_t peak = 1, height = ROW + GAP + (memory ? STRIP_HEIGHT : 0);
    for (size_t k = 0; k < r->ranks; k++)
        for (size_t i = 0; i < r->rank[k].samples; i++)
            if (r->rank[k].memory[i].high > peak) peak = r->rank[k].memory[i].high;
    fprintf(o.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">%s</text>\n",
            LEFT + WIDTH + 20, TOP + r->ranks * height + 20, LEFT, title);
    legend(o.f);
    for (size_t k = 0; k < r->ranks && r->end > r->begin; k++) {
        double y = TOP + (double)(k * height);
        fprintf(o.f, "<text x=\"10\" y=\"%.1f\">rank %zu</text>\n<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
                y + 13, k, LEFT, y, WIDTH, ROW - 8);
        for (size_t i = 0; i < r->rank[k].n; i++)
            if (r->rank[k].events[i].kind <= EVENT_COLLECTIVE) box(o.f, r, &r->rank[k].events[i], y);
        if (memory) memory_strip(o.f, r, &r->rank[k], y + ROW, peak);
    }
    fprintf(o.f, "</svg>\n");
    output_close(&o);
}

// ---------------------------------------------------------------- trace

static void trace_line(FILE *f, bool *first, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void trace_line(FILE *f, bool *first, const char *format, ...) {
    va_list args;
    fputs(*first ? "\n" : ",\n", f);
    *first = false;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
}

static double us(const Recording *r, Picoseconds t) { return t > r->begin ? (double)(t - r->begin) * 1e-6 : 0; }

static void trace_event(FILE *f, bool *first, const Recording *r, size_t rank, const RecordedEvent *e) {
    bool computes = e->kind <= EVENT_UPDATE, message = e->kind == EVENT_SEND || e->kind == EVENT_RECV;
    char name[64];
    if (!computes) snprintf(name, sizeof name, "%s %s", message ? event_name[e->kind] : comm_kind_name[e->call], e->comm);
    else if (e->number == NO_NUMBER) snprintf(name, sizeof name, "%s", event_name[e->kind]);
    else snprintf(name, sizeof name, "%s %u", event_name[e->kind], e->number);
    // Rows: 0 computing; 1 collectives and receives; 2 sends, which may overlap those.
    int row = computes ? 0 : e->kind == EVENT_SEND ? 2 : 1;
    trace_line(f, first, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.6f,\"dur\":%.6f,\"pid\":%zu,\"tid\":%d,\"args\":{\"bytes\":%zu}}", name,
               computes ? "compute" : "communication", us(r, e->start), us(r, e->end) - us(r, e->start), rank, row, e->bytes);
    if (message)
        trace_line(f, first, "{\"name\":\"message\",\"cat\":\"message\",\"ph\":\"%s\",%s\"id\":\"%016llx\",\"ts\":%.6f,\"pid\":%zu,\"tid\":%d}",
                   e->kind == EVENT_SEND ? "s" : "f", e->kind == EVENT_SEND ? "" : "\"bp\":\"e\",", (unsigned long long)e->flow,
                   us(r, e->kind == EVENT_SEND ? e->start : e->end), rank, row);
}

void trace_write(const Recording *r, const char *file) {
    static const char *const row_name[] = { "compute", "communication", "sends" };
    Output o = output_open(file);
    bool first = true;
    fprintf(o.f, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (size_t k = 0; k < r->ranks; k++) {
        trace_line(o.f, &first, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%zu,\"args\":{\"name\":\"rank %zu\"}}", k, k);
        trace_line(o.f, &first, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%zu,\"args\":{\"sort_index\":%zu}}", k, k);
        for (int row = 0; row < 3; row++)
            trace_line(o.f, &first, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%zu,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", k, row, row_name[row]);
        for (size_t i = 0; i < r->rank[k].n; i++) trace_event(o.f, &first, r, k, &r->rank[k].events[i]);
        for (size_t i = 0; i < r->rank[k].samples; i++)
            trace_line(o.f, &first, "{\"name\":\"activations\",\"ph\":\"C\",\"ts\":%.6f,\"pid\":%zu,\"args\":{\"bytes\":%zu}}",
                       us(r, r->rank[k].memory[i].at), k, r->rank[k].memory[i].bytes);
    }
    fprintf(o.f, "\n]}\n");
    output_close(&o);
}
