// svg.c: draws a recording as SVG. The colours are distinct for colour-blind readers (Okabe and Ito
// 2008). A box of computation has a label, unless the box is too narrow.
#include "judge/draw/svg.h"
#include <stdio.h>
#include "common/base/output.h"

// A rank has a row for computation, a lane for its link, and a strip for memory. All sizes are in
// pixels.
enum {
    LEFT = 70,
    WIDTH = 880,
    TOP = 50,
    ROW = 18,
    LANE = 8,
    GAP = 10,
    STRIP_HEIGHT = 22,
    MOST_ARROWS = 240
};

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

static bool computes(const RecordedEvent *e) { return e->kind <= EVENT_UPDATE; }

// Draws e as a box at height y. Widens a very short box on the link, so that the box is visible.
static void box(FILE *f, const Recording *r, const RecordedEvent *e, double y) {
    double x = x_of(r, e->start), w = x_of(r, e->end) - x;
    if (on_link(e) && w < 1.5) w = 1.5;
    if (w <= 0) return;
    fprintf(f, "<rect class=\"%c\"%s x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%d\"/>\n",
            computes(e)             ? "FBWU"[e->kind]
            : e->kind == EVENT_SEND ? 'M'
                                    : 'C',
            e->chunk % 2 ? " fill-opacity=\".5\"" : "", x, y, w, computes(e) ? ROW : LANE);
    if (!computes(e) || w < 10) return;
    const char letter = "FBWU"[e->kind];
    char label[12];
    if (e->number == NO_NUMBER) snprintf(label, sizeof label, "%c", letter);
    else if (w < 20) snprintf(label, sizeof label, "%u", e->number);
    else snprintf(label, sizeof label, "%c%u", letter, e->number);
    fprintf(f, "<text class=\"n\" x=\"%.2f\" y=\"%g\">%s</text>\n", x + w / 2, y + ROW - 5, label);
}

// Draws messages as lines from the sender's lane at departure to the receiver's row at arrival.
// Draws no line if there are more than MOST_ARROWS messages.
static void arrows(FILE *f, const Recording *r, size_t height) {
    size_t messages = 0;
    for (int draw = 0; draw < 2; draw++)
        for (size_t k = 0; k < r->ranks; k++)
            for (size_t i = 0; i < r->rank[k].n; i++) {
                const RecordedEvent *e = &r->rank[k].events[i];
                if (e->kind != EVENT_SEND || !on_link(e) || e->end > r->end) continue;
                if (!draw) messages++;
                else if (messages <= MOST_ARROWS)
                    fprintf(f,
                            "<line class=\"a\" x1=\"%.2f\" y1=\"%zu\" x2=\"%.2f\" y2=\"%zu\"/>\n",
                            x_of(r, e->start), TOP + k * height + ROW + 2 + LANE / 2,
                            x_of(r, e->end), TOP + e->peer * height + ROW / 2);
            }
}

// Draws memory as steps. At each sample the line goes to m->high, the most bytes of the sample, and
// then down to m->bytes, the bytes that remain. The strip's height is `peak` bytes.
static void memory_strip(FILE *f, const Recording *r, const RankRecording *k, double y,
                         size_t peak) {
    double bottom = y + STRIP_HEIGHT, scale = STRIP_HEIGHT / (double)peak;
    fprintf(f, "<path class=\"A\" d=\"M%d %.1f", LEFT, bottom);
    for (size_t i = 0; i < k->samples; i++) {
        const MemorySample *m = &k->memory[i];
        fprintf(f, "H%.2fV%.1f", x_of(r, m->at), bottom - (double)m->high * scale);
        if (m->bytes != m->high) fprintf(f, "V%.1f", bottom - (double)m->bytes * scale);
    }
    fprintf(f, "H%dV%.1fZ\"/>\n", LEFT + WIDTH, bottom);
}

// halves: some backwards have two halves, with a colour for each.
static void legend(FILE *f, const char *memory, bool halves) {
    const struct {
        char class;
        const char *text, *fill;
    } key[] = { { 'F', "forward", "#56b4e9" },    { 'B', "backward", "#e69f00" },
                { 'W', "weights", "#f0e442" },    { 'U', "update", "#cc79a7" },
                { 'C', "collective", "#d55e00" }, { 'M', "message", "#0072b2" },
                { 'A', memory, "#009e73" } };
    fprintf(f,
            "<style>.n{text-anchor:middle}.F,.B,.%sU{stroke:#fff;stroke-width:.5}.A{fill-opacity:."
            "45}.a{stroke:#0072b2;stroke-width:.7;stroke-opacity:.6}",
            halves ? "W,." : "");
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        if (halves || key[i].class != 'W') fprintf(f, ".%c{fill:%s}", key[i].class, key[i].fill);
    fputs("</style>\n", f);
    for (size_t i = 0, x = LEFT; i < sizeof key / sizeof *key && key[i].text; i++) {
        if (!halves && key[i].class == 'W') continue;
        fprintf(f,
                "<rect class=\"%c\" x=\"%zu\" y=\"30\" width=\"10\" height=\"10\"/>"
                "<text x=\"%zu\" y=\"39\">%s%s</text>\n",
                key[i].class, x, x + 14, key[i].class == 'A' ? "kept: " : "", key[i].text);
        x += 110;
    }
}

void svg_write(const Recording *r, const char *title, const char *time, const char *memory,
               const char *file) {
    Output o = output_open("svg", file);
    bool lanes = false;
    for (size_t k = 0; k < r->ranks; k++)
        for (size_t i = 0; i < r->rank[k].n; i++) lanes |= on_link(&r->rank[k].events[i]);
    size_t lane = lanes ? LANE + 2 : 0, height = ROW + lane + GAP + (memory ? STRIP_HEIGHT + 2 : 0);
    fprintf(o.f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"20\" "
            "font-size=\"14\">",
            LEFT + WIDTH + 20, TOP + r->ranks * height + 20, LEFT);
    svg_text(o.f, title);
    fprintf(o.f, ": %s</text>\n", time);
    legend(o.f, memory, recording_has(r, EVENT_WEIGHTS));
    for (size_t k = 0; k < r->ranks && r->end > r->begin; k++) {
        double y = TOP + (double)(k * height);
        fprintf(o.f,
                "<text x=\"10\" y=\"%.1f\">rank %zu</text>\n"
                "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
                y + 13, k, LEFT, y, WIDTH, ROW);
        if (lanes)
            fprintf(o.f,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#f6f6f6\"/>\n",
                    LEFT, y + ROW + 2, WIDTH, LANE);
        for (size_t i = 0; i < r->rank[k].n; i++) {
            const RecordedEvent *e = &r->rank[k].events[i];
            if (computes(e)) box(o.f, r, e, y);
            else if (on_link(e)) box(o.f, r, e, y + ROW + 2);
        }
        if (memory)
            memory_strip(o.f, r, &r->rank[k], y + ROW + (double)lane + 2, r->scale ? r->scale : 1);
    }
    arrows(o.f, r, height);
    fprintf(o.f, "</svg>\n");
    output_close(&o);
}
