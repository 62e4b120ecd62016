// plan_show.c writes the table of the best layouts, the picture of all layouts, and the file of all
// layouts.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/plan.h"
#include "common/base/output.h"

// ---------------------------------------------------------------- the table

// The most rows of the table. ROWS: for layouts that fit, with --verbose. SHOWN_ROWS: for layouts
// that fit, without --verbose. UNFIT_ROWS: for layouts that do not fit.
enum { ROWS = 6, SHOWN_ROWS = 3, UNFIT_ROWS = 2 };

static bool same_mesh(const PlanResult *a, const PlanResult *b) {
    Degrees m = a->layout.n, n = b->layout.n;
    return m.tp == n.tp && m.pp == n.pp && mesh_cp(m) == mesh_cp(n);
}
// The list is sorted, so the first layout of a mesh is the best one.
static bool is_first(const PlanList *list, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (same_mesh(&list->result[k], &list->result[i])) return false;
    return true;
}
size_t plan_rows_within(const PlanList *list, double most, double *spread) {
    size_t shown = 0, within = 0;
    *spread = 0;
    for (size_t i = 0; i < list->feasible && shown < ROWS; i++) {
        if (!is_first(list, i)) continue;
        shown++;
        double longer = list->result[i].step / list->result[0].step - 1;
        if (longer > most) continue;
        within++;
        *spread = longer;
    }
    return within;
}
// Writes bytes as gigabytes, with three significant digits or, from 1000 GB on, as a whole number.
static const char *gigabytes(char text[24], double bytes) {
    const double G = 1e-9 * bytes;
    snprintf(text, 24, G < 999.5 ? "%.3g" : "%.0f", G);
    return text;
}
static void row(Run *run, const PlanTask *t, const PlanResult *r) {
    const PlanLayout *l = &r->layout;
    const double *m = r->fullest.bytes, G = 1e-9;
    char end[80], cp[24], pp[24], dp[24];
    if (r->fits)
        snprintf(end, sizeof end,
                 r->step < 1e14 ? "%3.0f%% %#5.3g %4.1f%%" : "%3.0f%% %5.3g %4.1f%%",
                 100 * r->bubble, r->step * 1e-12, 100 * r->mfu);
    else plan_limits(r, t, end, sizeof end);
    if (!r->fits) {
        say(run, "%4zu %2zu %3zu %2zu %4zu %6zu %4zu %2s %-9s   %s", l->n.dp, l->n.tp, l->n.pp,
            mesh_cp(l->n), l->micro_batch, l->chunks, l->zero, l->sequence ? "sp" : "-",
            plan_recompute_name(l->recompute), end);
        return;
    }
    say(run, "%4zu %2zu %3zu %2zu %4zu %6zu %4zu %2s %-9s %5.1f %5.1f %5.1f %5.4g %4s %4s %4s %s",
        l->n.dp, l->n.tp, l->n.pp, mesh_cp(l->n), l->micro_batch, l->chunks, l->zero,
        l->sequence ? "sp" : "-", plan_recompute_name(l->recompute),
        plan_memory_sum(&r->fullest) * G,
        (m[PLAN_WEIGHTS] + m[PLAN_GRADIENTS] + m[PLAN_OPTIMIZER]) * G, m[PLAN_ACTIVATIONS] * G,
        r->tp_bytes * G, gigabytes(cp, r->cp_bytes), gigabytes(pp, r->pp_bytes),
        gigabytes(dp, r->dp_bytes + r->tied_bytes), end);
}
static void alternatives(Run *run, const PlanTask *t, const PlanList *list) {
    PlanAlternative other[PLAN_ALTERNATIVES];
    Result rows[PLAN_ALTERNATIVES + 1] = { { 0 } };
    char times[PLAN_ALTERNATIVES][24], cause[PLAN_ALTERNATIVES][80], limit[80];
    const size_t n = plan_alternatives(t, list, other);
    const bool all = option_flag(run, "verbose");
    size_t last_degree = 0, shown = 0;
    for (size_t i = 0; i < n; i++) {
        if (strstr(other[i].name, "same mesh")) last_degree = i;
        if (other[i].detail && !all) continue;
        bool fits = other[i].result.fits;
        plan_limits(&other[i].result, t, limit, sizeof limit);
        snprintf(times[i], sizeof times[i], fits ? "=%.2f" : "=does not fit", other[i].times);
        snprintf(cause[i], sizeof cause[i], "=%s", fits ? other[i].cause : limit);
        rows[shown++] = (Result){ .what = other[i].name, .cell = { times[i], cause[i] } };
    }
    if (shown == 0) return;
    say(run, "The fastest layout with another value of one choice:");
    results(run,
            (const char *const[]){ "times as long", "most of the extra time, or why not", NULL },
            rows);
    const PlanLayout *best = &list->result[0].layout, *last = &other[last_degree].result.layout;
    size_t m = plan_micro_batches(t, last);
    // If there is a row with the same mesh and twice the sequences per micro-batch, `last` is the
    // layout of that row.
    if (last->micro_batch == 2 * best->micro_batch && best->chunks > 1 && last->chunks == 1 &&
        m % last->n.pp)
        say_detail(
            run,
            "  With %zu sequences a rank has %zu micro-batches, not a multiple of pp %zu, so "
            "stages have no chunks.",
            last->micro_batch, m, last->n.pp);
}

// High published MFUs on A100s and H100s, for comparison.
static const struct {
    const char *clusters; // the beginning of the clusters' names
    const char *mfu;
} published[] = { { "dgx-a100", ", --attention plain: GPT-3 51.4 % on 64 GPUs, 1T 56.3 % on 512" },
                  { "dgx-h100", ": GPT-3 47 % (Megatron-LM's README)" } };

static void stresses(Run *run, const PlanTask *t, const PlanResult *best) {
    PlanStress found[PLAN_STRESSES];
    Result rows[PLAN_STRESSES + 1] = { { 0 } };
    char times[PLAN_STRESSES][24];
    size_t n = plan_stresses(t, best, found);
    for (size_t i = 0; i < n; i++) {
        snprintf(times[i], sizeof times[i], "=%.2f", found[i].times);
        rows[i] = (Result){ .what = found[i].name, .cell = { times[i] } };
    }
    double held = plan_memory_sum(&best->fullest), reserve = t->cluster.reserve;
    say(run, "What slows this layout most:");
    results(run, (const char *const[]){ "step, times as long", NULL }, rows);
    say(run,
        "  Memory: %.1f GB of the plan, %.3g GB for CUDA, NCCL and fragments (--margin), %.1f GB "
        "free.",
        held * 1e-9, reserve * 1e-9, (plan_usable(&t->cluster) - held) * 1e-9);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (!strncmp(t->cluster.name, published[i].clusters, strlen(published[i].clusters)))
            say(run, "  MFU: %.1f %% by this plan. Published%s.", 100 * best->mfu,
                published[i].mfu);
}

// Returns whether one of the first `most` rows of the table holds memory of this kind.
static bool has(const PlanList *list, size_t most, size_t kind) {
    size_t shown = 0;
    for (size_t i = 0; i < list->feasible && shown < most; i++) {
        if (!is_first(list, i)) continue;
        if (list->result[i].fullest.bytes[kind] > 0) return true;
        shown++;
    }
    return false;
}
void plan_table(Run *run, const PlanTask *t, const PlanList *list) {
    const bool all = option_flag(run, "verbose");
    const size_t most = all ? ROWS : SHOWN_ROWS,
                 most_unfit = all || !list->feasible ? UNFIT_ROWS : 0;
    say(run, "A row is a mesh: dp replicas of the model, tp slices of each layer, pp stages of "
             "layers, cp parts");
    say(run, "of a sequence. The other choices are the fastest for this mesh: seqs (sequences per "
             "micro-batch),");
    say(run, "chunks (per stage), ZeRO, sp (sequence parallelism), recompute. GB held: by the "
             "fullest GPU;");
    say(run, "all = state (weights, gradients, optimizer) + act (activations%s)%s%s.",
        t->blockwise ? "; FlashAttention" : "", has(list, most, PLAN_GATHERED) ? " + gathered" : "",
        has(list, most, PLAN_RING) ? " + ring" : "");
    say(run,
        "step: in s. idle: the bubble. MFU: model FLOPs, divided by what the GPUs could compute "
        "in a step.");
    say(run, "                                             GB held           GB sent per step "
             "over");
    say(run, "  dp tp  pp cp seqs chunks ZeRO sp recompute   all state   act    tp   cp   pp   dp "
             "idle  step   MFU");
    size_t shown = 0, unfit = 0;
    for (size_t i = 0; i < list->feasible && shown < most; i++)
        if (is_first(list, i)) {
            row(run, t, &list->result[i]);
            shown++;
        }
    for (size_t i = list->feasible; i < list->n && unfit < most_unfit; i++) {
        if (!is_first(list, i)) continue;
        if (unfit++ == 0)
            say(run,
                "No layout that was tried with these degrees fits in %.3g GB (%.3g less --margin "
                "%.3g):",
                plan_usable(&t->cluster) * 1e-9, t->cluster.memory * 1e-9,
                t->cluster.reserve * 1e-9);
        row(run, t, &list->result[i]);
    }
    say(run, "Of %zu layouts, %zu were simulated%s", list->tried, list->n,
        list->n < list->tried ? "; no other layout can be the fastest of its mesh." : ".");
    if (!option_given(run, "zero"))
        say(run, "With pp > 1 only ZeRO 0 and 1 were tried. --zero 2 and --zero 3 try the others.");
    if (list->feasible == 0) return;
    const PlanLayout *best = &list->result[0].layout;
    if (best->balanced)
        say(run,
            "The first row has parts of equal cost (--balance cost): %zu blocks in the first "
            "part, %zu in the last, up to %zu in others.",
            plan_part_blocks(t, best, 0), plan_part_blocks(t, best, best->n.pp * best->chunks - 1),
            plan_part_blocks(t, best, best->n.pp > 1));
    alternatives(run, t, list);
    if (all) stresses(run, t, &list->result[0]);
}

// ---------------------------------------------------------------- the file of all layouts

// Writes a layout as a JSON object. Times are in seconds, memory and traffic in bytes; the object
// names these units. The step is the sum of the fields computing, tp_time, cp_time, dp_time,
// end_time and idle (PlanResult).
void plan_layout_json(const PlanTask *t, const PlanResult *r, char *text, size_t room) {
    const PlanLayout *l = &r->layout;
    size_t n =
        (size_t)snprintf(text, room,
                         "{\"dp\": %zu, \"tp\": %zu, \"pp\": %zu, \"cp\": %zu, "
                         "\"micro_batch\": %zu, \"chunks\": %zu, \"zero\": %zu, "
                         "\"sequence\": %s, \"recompute\": \"%s\", "
                         "\"balanced\": %s, \"fits\": %s",
                         l->n.dp, l->n.tp, l->n.pp, mesh_cp(l->n), l->micro_batch, l->chunks,
                         l->zero, l->sequence ? "true" : "false", plan_recompute_name(l->recompute),
                         l->balanced ? "true" : "false", r->fits ? "true" : "false");
    for (size_t k = 0; k < PLAN_MEMORY && n < room; k++)
        n += (size_t)snprintf(text + n, room - n, ", \"%s\": %.0f", plan_memory_name[k],
                              r->fullest.bytes[k]);
    if (n < room)
        n += (size_t)snprintf(
            text + n, room - n,
            ", \"memory\": %.0f, \"tp_bytes\": %.0f, \"cp_bytes\": %.0f, "
            "\"pp_bytes\": %.0f, \"dp_bytes\": %.0f, \"tied_bytes\": %.0f, \"step\": %.9g, "
            "\"computing\": %.6g, \"tp_time\": %.6g, \"cp_time\": %.6g, "
            "\"dp_time\": %.6g, \"end_time\": %.6g, \"idle\": %.6g, \"bubble\": %.6g, \"mfu\": "
            "%.6g, \"hfu\": %.6g, \"units\": {\"time\": \"s\", \"memory\": \"bytes\", "
            "\"traffic\": "
            "\"bytes\"}",
            plan_memory_sum(&r->fullest), r->tp_bytes, r->cp_bytes, r->pp_bytes, r->dp_bytes,
            r->tied_bytes, r->step * 1e-12, r->computing * 1e-12, r->tp * 1e-12, r->cp * 1e-12,
            r->dp * 1e-12, r->end * 1e-12, r->idle * 1e-12, r->bubble, r->mfu, r->hfu);
    char why[80];
    plan_limits(r, t, why, sizeof why);
    if (n < room)
        n += r->fits ? 0 : (size_t)snprintf(text + n, room - n, ", \"limit\": \"%s\"", why);
    if (n < room) snprintf(text + n, room - n, "}");
}
void plan_write_layouts(const PlanTask *t, const PlanList *list, const char *file) {
    char text[PLAN_JSON];
    Output o = output_open("layouts", file);
    for (size_t i = 0; i < list->n; i++) {
        plan_layout_json(t, &list->result[i], text, sizeof text);
        fprintf(o.f, "%s\n", text);
    }
    output_close(&o);
}

// ---------------------------------------------------------------- the picture

enum { LEFT = 70, TOP = 60, WIDTH = 760, HEIGHT = 420, BOTTOM = 50, CELL = 4 };

typedef struct {
    double lo, hi;
} Axis; // logarithmic, from lo to hi
static void widen(Axis *a, double x) {
    a->lo = fmin(a->lo, x);
    a->hi = fmax(a->hi, x);
}
static double along(Axis a, double x) { return log(x / a.lo) / log(a.hi / a.lo); }
static double x_of(Axis a, double bytes) { return LEFT + along(a, bytes) * WIDTH; }
static double y_of(Axis a, double step) { return TOP + (1 - along(a, step)) * HEIGHT; }

static void ticks(FILE *f, Axis a, bool x, double unit, const char *name) {
    for (double decade = pow(10, floor(log10(a.lo * unit))); decade <= a.hi * unit; decade *= 10)
        for (int i = 1; i < 10; i++) {
            double value = decade * i / unit;
            if ((i != 1 && i != 2 && i != 5) || value < a.lo || value > a.hi) continue;
            double at = x ? x_of(a, value) : y_of(a, value);
            if (x)
                fprintf(f,
                        "<path class=\"g\" d=\"M%.1f %dv%d\"/><text x=\"%.1f\" y=\"%d\" "
                        "text-anchor=\"middle\">%g %s</text>\n",
                        at, TOP, HEIGHT, at, TOP + HEIGHT + 18, decade * i, name);
            else
                fprintf(f,
                        "<path class=\"g\" d=\"M%d %.1fh%d\"/><text x=\"%d\" y=\"%.1f\" "
                        "text-anchor=\"end\">%g "
                        "%s</text>\n",
                        LEFT, at, WIDTH, LEFT - 6, at + 4, decade * i, name);
        }
}
static size_t colour(size_t tp) { return tp < 2 ? 0 : tp < 4 ? 1 : tp < 8 ? 2 : tp == 8 ? 3 : 4; }
// Draws points, coloured by tp. In each square of CELL x CELL units only the first point is drawn,
// because thousands of points would cover each other and make the file large.
static void points(FILE *f, const PlanList *list, Axis memory, Axis time) {
    enum { X = WIDTH / CELL + 2, Y = HEIGHT / CELL + 2 };
    bool *taken = host_alloc(X * Y * sizeof *taken);
    for (size_t i = 0; i < list->n; i++) {
        const PlanResult *r = &list->result[i];
        double x = x_of(memory, plan_memory_sum(&r->fullest)), y = y_of(time, r->step);
        bool *cell = &taken[(size_t)((x - LEFT) / CELL) * Y + (size_t)((y - TOP) / CELL)];
        if (*cell) continue;
        *cell = true;
        fprintf(f, "<circle class=\"t%zu\" cx=\"%.0f\" cy=\"%.0f\" r=\"2\"/>\n",
                colour(r->layout.n.tp), x, y);
    }
    free(taken);
}
static int by_memory(const void *a, const void *b) {
    const PlanResult *x = *(const PlanResult *const *)a, *y = *(const PlanResult *const *)b;
    double p = plan_memory_sum(&x->fullest), q = plan_memory_sum(&y->fullest);
    // Layouts with equal memory keep the order of the list.
    return p == q ? (x > y) - (x < y) : (p > q) - (p < q);
}
size_t plan_front(const PlanList *list, const PlanResult **on) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) on[i] = &list->result[i];
    if (list->n) qsort(on, list->n, sizeof *on, by_memory);
    for (size_t i = 0; i < list->n; i++)
        if (n == 0 || on[i]->step < on[n - 1]->step) on[n++] = on[i];
    return n;
}
static void front(FILE *f, const PlanList *list, Axis memory, Axis time) {
    const PlanResult **on = host_alloc(list->n * sizeof *on);
    size_t n = plan_front(list, on);
    fputs("<path class=\"front\" d=\"", f);
    for (size_t i = 0; i < n; i++)
        fprintf(f, i == 0 ? "M%.1f %.1f" : "H%.1fV%.1f",
                x_of(memory, plan_memory_sum(&on[i]->fullest)), y_of(time, on[i]->step));
    fputs("\"/>\n", f);
    free(on);
}
void plan_svg(const PlanTask *t, const PlanList *list, const char *file) {
    Output o = output_open("svg", file);
    FILE *f = o.f;
    Axis memory = { t->cluster.memory, t->cluster.memory },
         time = { list->result[0].step, list->result[0].step };
    for (size_t i = 0; i < list->n; i++) {
        widen(&memory, plan_memory_sum(&list->result[i].fullest));
        widen(&time, list->result[i].step);
    }
    memory.hi *= 1.1;
    memory.lo /= 1.1;
    time.hi *= 1.1;
    time.lo /= 1.1;
    static const char *const fill[] = { "#999999", "#56b4e9", "#009e73", "#e69f00", "#cc79a7" };
    static const char *const key[] = { "tp 1", "tp 2, 3", "tp 4 to 7", "tp 8", "tp above 8" };
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" "
            "font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"#fff\"/>\n<style>.g{stroke:#ddd}.front{fill:none;"
            "stroke:#000;stroke-width:1.5}",
            LEFT + WIDTH + 20, TOP + HEIGHT + BOTTOM);
    for (size_t i = 0; i < 5; i++) fprintf(f, ".t%zu{fill:%s;fill-opacity:.7}", i, fill[i]);
    fprintf(f,
            "</style>\n<text x=\"%d\" y=\"20\" font-size=\"14\">%s on %zu GPUs, %s: %zu layouts, "
            "%zu fit</text>\n",
            LEFT, t->model.name, t->gpus, t->cluster.name, list->n, list->feasible);
    for (size_t i = 0, x = LEFT; i < 5; i++, x += 90)
        fprintf(f,
                "<circle class=\"t%zu\" cx=\"%zu\" cy=\"38\" r=\"4\"/><text x=\"%zu\" "
                "y=\"42\">%s</text>\n",
                i, x + 4, x + 12, key[i]);
    fprintf(f,
            "<path class=\"front\" d=\"M%d 38h20\"/><text x=\"%d\" y=\"42\">Pareto front</text>\n",
            LEFT + 460, LEFT + 485);
    ticks(f, memory, true, 1e-9, "GB");
    ticks(f, time, false, 1e-12, "s");
    double limit = x_of(memory, plan_usable(&t->cluster));
    fprintf(f,
            "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#d55e00\" "
            "fill-opacity=\".1\"/>"
            "<text x=\"%.1f\" y=\"%d\">does not fit: %.3g GB are usable</text>\n",
            limit, TOP, LEFT + WIDTH - limit, HEIGHT, limit + 5, TOP + 14,
            plan_usable(&t->cluster) * 1e-9);
    points(f, list, memory, time);
    front(f, list, memory, time);
    if (list->feasible) {
        const PlanResult *b = &list->result[0];
        double x = x_of(memory, plan_memory_sum(&b->fullest)), y = y_of(time, b->step);
        fprintf(f,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"none\" stroke=\"#000\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">dp %zu x tp %zu x pp %zu x cp "
                "%zu</text>\n",
                x, y, x - 8, y + 14, b->layout.n.dp, b->layout.n.tp, b->layout.n.pp,
                mesh_cp(b->layout.n));
    }
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">memory of the fullest rank</text>"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">step</text>\n</svg>\n",
            LEFT + WIDTH / 2, TOP + HEIGHT + 40, LEFT - 6, TOP);
    output_close(&o);
}
