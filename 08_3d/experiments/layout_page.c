// layout_page.c prints the page of 02_layouts.c: a bar and a row for each layout, and the answer.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "08_3d/experiments/experiments.h"
#include "common/comm/clock.h"

// Writes the name of a layout, such as "dp 2 x tp 2 x pp 2", and returns `text`.
enum { NAME = 48 };
static const char *layout_name(char text[NAME], const Layout *l) {
    snprintf(text, NAME, "dp %zu x tp %zu x pp %zu", l->n.dp, l->n.tp, l->n.pp);
    return text;
}

// A row of the table. The fastest layout is first, and the layout with the opposite order is last.
// The last cell is the bubble as a part of a step, if messages took no time and stages were equal.
typedef struct {
    char name[NAME], cell[6][32];
} Row;
static const char *row_name(char text[NAME], const Layout *l, const char *order) {
    size_t end = strlen(layout_name(text, l));
    snprintf(text + end, NAME - end, "%s", order);
    return text;
}
static Row row_of(const Layout *l, const char *order, size_t micro_batches) {
    Row row;
    row_name(row.name, l, order);
    const double value[5] = { l->step, l->sent.inside, l->sent.between, l->state, l->activations };
    for (size_t i = 0; i < 5; i++) {
        row.cell[i][0] = '=';
        page_value(row.cell[i] + 1, sizeof row.cell[i] - 1, value[i], i ? "bytes" : "ps");
    }
    size_t idle_turns = l->n.pp - 1;
    snprintf(row.cell[5], sizeof row.cell[5], idle_turns ? "=%zu/%zu" : "=0", idle_turns,
             micro_batches / l->n.dp + idle_turns);
    return row;
}
static const char opposite[] = ", opposite";
static void table(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                  size_t micro_batches) {
    static const char *const columns[] = { "step",  "sent in nodes", "between nodes",
                                           "state", "activations",   "bubble",
                                           NULL };
    Row text[MOST_LAYOUTS + 1];
    Result rows[MOST_LAYOUTS + 2] = { { 0 } };
    for (size_t i = 0; i <= n; i++) {
        const Layout *l = i < n ? &layout[i] : opposed;
        text[i] = row_of(l, i < n ? "" : opposite, micro_batches);
        rows[i] = (Result){ .what = text[i].name };
        for (size_t k = 0; k < 6; k++) rows[i].cell[k] = text[i].cell[k];
    }
    results(run, columns, rows);
    say(run, "  Bytes: largest of all ranks; calls across nodes count as between nodes. state: "
             "weights, gradients.");
}

// Returns whether a tensor-parallel group has ranks in two nodes, in the opposite order of ranks.
static bool tp_crosses(Degrees n) {
    bool crosses = false;
    for (size_t r = 0; r < n.dp * n.tp * n.pp; r++) {
        Coordinates first = mesh_coordinates(n, r);
        first.tp = 0;
        crosses |= !clock_same_node(opposite_order(n, r), opposite_order(n, mesh_rank(n, first)));
    }
    return crosses;
}

// Prints a bar per layout, whose length shows the time of the layout's step. A bar also shows how
// the ranks spend the step, as a mean over the ranks.
static void bars(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                 const TrainerConfig *c) {
    enum { WIDTH = 66 };
    size_t micro_batches = c->batch / c->micro_batch;
    double longest = fmax(layout[n - 1].step, opposed->step);
    char sign[32];
    page_value(sign, sizeof sign, longest / WIDTH, "ps");
    say(run,
        "%zu blocks of width %zu; a step of SGD on %zu sequences of %zu tokens, %zu/dp "
        "micro-batches per replica.",
        c->model.layers, c->model.width, c->batch, c->model.context, micro_batches);
    const Degrees best = opposed->n;
    // The axes in which neighbours differ, in the mesh's order and in the opposite order.
    const char *near = best.tp > 1 ? "tp" : best.dp > 1 ? "dp" : "pp";
    const char *near_opposed = best.pp > 1 ? "pp" : best.dp > 1 ? "dp" : near;
    const char *order = "the same order here";
    if (near != near_opposed)
        order = page_text(run, "neighbour ranks differ in %s, not %s%s", near_opposed, near,
                          tp_crosses(best) ? "; tp crosses nodes" : "");
    say(run, "dp replicas, tp slices, pp stages. opposite: %s.", order);
    say(run,
        "A bar is a step, as a mean over the ranks, %s per sign:  = computation  # communication  "
        ". idle",
        sign);
    for (size_t i = 0; i <= n; i++) {
        const Layout *l = i < n ? &layout[i] : opposed;
        char bar[WIDTH + 1], name[NAME];
        size_t all = (size_t)(l->step / longest * WIDTH + 0.5);
        size_t computing = (size_t)(l->computing / longest * WIDTH + 0.5);
        size_t waits = computing + (size_t)(l->exposed / longest * WIDTH + 0.5);
        for (size_t x = 0; x < all; x++) bar[x] = x < computing ? '=' : x < waits ? '#' : '.';
        bar[all] = 0;
        say(run, "  %-30s %s", row_name(name, l, i < n ? "" : opposite), bar);
    }
}

static double idle(const Layout *l) { return l->step - l->computing - l->exposed; }
// The parts of a step in which a slower layout can spend its additional time.
typedef enum { WAITS, IDLES, COMPUTES, CAUSES } Cause;
static Cause cause(const Layout *fast, const Layout *slow) {
    double waits = slow->exposed - fast->exposed;
    double idles = idle(slow) - idle(fast);
    double computes = slow->computing - fast->computing;
    if (waits >= idles && waits >= computes) return WAITS;
    return idles >= computes ? IDLES : COMPUTES;
}
static void answer(Run *run, const Layout *layout, size_t n, size_t micro_batches) {
    static const char *const from[] = { "communication", "idle ranks", "computation" };
    const Layout *fast = &layout[0];
    Row row = row_of(fast, "", micro_batches);
    char name[NAME];
    layout_name(name, fast);
    size_t node = clock_config()->node, stage = fast->n.tp * fast->n.dp, slower[CAUSES] = { 0 };
    bool inside = node > 0 && stage <= node && node % stage == 0;
    const char *reason = "", *less = "", *others = "";
    const Layout *next = n > 1 ? &layout[1] : fast;
    if (fast->n.tp < next->n.tp && fast->sent.inside < next->sent.inside)
        less = page_text(run, "tp %zu sends less than tp %zu, ", fast->n.tp, next->n.tp);
    if (inside && fast->n.tp > 1 && fast->n.dp > 1)
        reason =
            page_text(run, ": its sums stay in a node, %sits bubble is %s", less, row.cell[5] + 1);
    for (size_t i = 1; i < n; i++) slower[cause(fast, &layout[i])]++;
    for (size_t i = 0; i < CAUSES; i++)
        if (slower[i])
            others =
                page_text(run, "%s%s%s (%zu)", others, *others ? " or " : "", from[i], slower[i]);
    if (n == 1) say_answer(run, "The only layout is %s. Its step takes %s.", name, row.cell[0] + 1);
    else
        say_answer(run, "%s, %s%s. The other %zu lose by %s.", name, row.cell[0] + 1, reason, n - 1,
                   others);
    say_cost(run,
             "no dp sum is hidden. If hidden (01.04), dp could win. Bubble: "
             "(pp-1)/(%zu/dp+pp-1).",
             micro_batches);
    say_use_when(run, "dp with ZeRO (06) does not fit, or dp's sum outlasts a bubble. Keep tp in a "
                      "node.");
}

void layouts_page(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                  const TrainerConfig *c) {
    const size_t micro_batches = c->batch / c->micro_batch;
    bars(run, layout, n, opposed, c);
    table(run, layout, n, opposed, micro_batches);
    answer(run, layout, n, micro_batches);
}
