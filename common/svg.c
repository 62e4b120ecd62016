// svg.c: see svg.h. Colours are apart for the colour-blind (Okabe and Ito 2008), and every box says what it is.
#include "svg.h"
#include <stdio.h>
#include "output.h"

enum { LEFT = 70, WIDTH = 880, TOP = 50, ROW = 26, GAP = 8, STRIP_HEIGHT = 22 };     // pixels

static void put_text(FILE *f, const char *text) {
    for (; *text; text++)
        if (*text == '&') fputs("&amp;", f);
        else if (*text == '<') fputs("&lt;", f);
        else putc(*text, f);
}

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

static void legend(FILE *f, const char *memory) {
    const struct { const char *text, *fill; } key[] = {
        { "forward", "#56b4e9" }, { "backward", "#e69f00" }, { "update", "#cc79a7" }, { "communication", "#d55e00" }, { memory, "#009e73" } };
    for (size_t i = 0; i < sizeof key / sizeof *key && key[i].text; i++)
        fprintf(f, "<rect x=\"%zu\" y=\"30\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%zu\" y=\"39\">%s%s</text>\n",
                LEFT + i * 130, key[i].fill, LEFT + i * 130 + 14, i == 4 ? "kept: " : "", key[i].text);
}

void svg_write(const Recording *r, const char *title, const char *time, const char *memory, const char *file) {
    Output o = output_open("svg", file);
    size_t height = ROW + GAP + (memory ? STRIP_HEIGHT : 0);
    fprintf(o.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">",
            LEFT + WIDTH + 20, TOP + r->ranks * height + 20, LEFT);
    put_text(o.f, title);
    fprintf(o.f, ": %s</text>\n", time);
    legend(o.f, memory);
    for (size_t k = 0; k < r->ranks && r->end > r->begin; k++) {
        double y = TOP + (double)(k * height);
        fprintf(o.f, "<text x=\"10\" y=\"%.1f\">rank %zu</text>\n<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
                y + 13, k, LEFT, y, WIDTH, ROW - 8);
        for (size_t i = 0; i < r->rank[k].n; i++)
            if (r->rank[k].events[i].kind <= EVENT_COLLECTIVE) box(o.f, r, &r->rank[k].events[i], y);
        if (memory) memory_strip(o.f, r, &r->rank[k], y + ROW, r->scale ? r->scale : 1);
    }
    fprintf(o.f, "</svg>\n");
    output_close(&o);
}
