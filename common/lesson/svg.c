// svg.c: see svg.h. Colours are apart for the colour-blind (Okabe and Ito 2008), and every box says what it is.
#include "common/lesson/svg.h"
#include <stdio.h>
#include "common/base/output.h"

enum { LEFT = 70, WIDTH = 880, TOP = 50, ROW = 26, GAP = 8, STRIP_HEIGHT = 22 };     // pixels

void svg_text(FILE *f, const char *text) {
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
    double x = x_of(r, e->start), w = x_of(r, e->end) - x;
    bool computes = e->kind <= EVENT_UPDATE;
    if (w <= 0) return;
    fprintf(f, "<rect class=\"%c\" x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%d\"/>\n",
            computes ? "FBU"[e->kind] : 'C', x, computes ? y : y + ROW - 7, w, computes ? ROW - 8 : 6);
    if (!computes || w < 10) return;
    char label[12];
    if (e->number == NO_NUMBER) snprintf(label, sizeof label, "%c", "FBU"[e->kind]);
    else if (w < 20) snprintf(label, sizeof label, "%u", e->number);
    else snprintf(label, sizeof label, "%c%u", "FBU"[e->kind], e->number);
    fprintf(f, "<text class=\"n\" x=\"%.2f\" y=\"%g\">%s</text>\n", x + w / 2, y + ROW - 13, label);
}

// Steps: at each sample up to what was reached at that moment, then to what was left of it.
static void memory_strip(FILE *f, const Recording *r, const RankRecording *k, double y, size_t peak) {
    double bottom = y + STRIP_HEIGHT, scale = STRIP_HEIGHT / (double)peak;
    fprintf(f, "<path class=\"A\" d=\"M%d %.1f", LEFT, bottom);
    for (size_t i = 0; i < k->samples; i++) {
        const MemorySample *m = &k->memory[i];
        fprintf(f, "H%.2fV%.1f", x_of(r, m->at), bottom - (double)m->high * scale);
        if (m->bytes != m->high) fprintf(f, "V%.1f", bottom - (double)m->bytes * scale);
    }
    fprintf(f, "H%dV%.1fZ\"/>\n", LEFT + WIDTH, bottom);
}

static void legend(FILE *f, const char *memory) {
    static const char class[] = "FBUCA";
    const struct { const char *text, *fill; } key[] = {
        { "forward", "#56b4e9" }, { "backward", "#e69f00" }, { "update", "#cc79a7" },
        { "communication", "#d55e00" }, { memory, "#009e73" } };
    fputs("<style>.n{text-anchor:middle}.F,.B,.U,.C{stroke:#fff;stroke-width:.5}.A{fill-opacity:.45}", f);
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) fprintf(f, ".%c{fill:%s}", class[i], key[i].fill);
    fputs("</style>\n", f);
    for (size_t i = 0; i < sizeof key / sizeof *key && key[i].text; i++)
        fprintf(f, "<rect class=\"%c\" x=\"%zu\" y=\"30\" width=\"10\" height=\"10\"/>"
                "<text x=\"%zu\" y=\"39\">%s%s</text>\n",
                class[i], LEFT + i * 130, LEFT + i * 130 + 14, i == 4 ? "kept: " : "", key[i].text);
}

void svg_write(const Recording *r, const char *title, const char *time, const char *memory, const char *file) {
    Output o = output_open("svg", file);
    size_t height = ROW + GAP + (memory ? STRIP_HEIGHT : 0);
    fprintf(o.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">",
            LEFT + WIDTH + 20, TOP + r->ranks * height + 20, LEFT);
    svg_text(o.f, title);
    fprintf(o.f, ": %s</text>\n", time);
    legend(o.f, memory);
    for (size_t k = 0; k < r->ranks && r->end > r->begin; k++) {
        double y = TOP + (double)(k * height);
        fprintf(o.f, "<text x=\"10\" y=\"%.1f\">rank %zu</text>\n"
                "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
                y + 13, k, LEFT, y, WIDTH, ROW - 8);
        for (size_t i = 0; i < r->rank[k].n; i++)
            if (r->rank[k].events[i].kind <= EVENT_COLLECTIVE) box(o.f, r, &r->rank[k].events[i], y);
        if (memory) memory_strip(o.f, r, &r->rank[k], y + ROW, r->scale ? r->scale : 1);
    }
    fprintf(o.f, "</svg>\n");
    output_close(&o);
}
