// layout_page.c prints the page of 02_layouts.c: a row with a bar for each layout, and the answer.
#include <math.h>
#include "08_3d/experiments/experiments.h"
#include "common/comm/clock.h"

enum { BAR = 28 }; // characters of the longest bar

// Returns the bubble as a part of a step, such as "1/9", if messages took no time and stages were
// equal.
static const char *bubble(Run *run, const Layout *l, size_t micro_batches) {
    const size_t turns = l->n.pp - 1;
    return turns ? page_text(run, "%zu/%zu", turns, micro_batches / l->n.dp + turns) : "0";
}

// Prints a row: the layout's values, and a bar whose length shows the time of the layout's step.
// A bar also shows how the ranks spend the step, as a mean over the ranks.
static void row(Run *run, const Layout *l, const char *order, size_t micro_batches, double sign) {
    char bar[BAR + 1];
    const size_t all = (size_t)(l->step / sign + 0.5);
    const size_t computing = (size_t)(l->computing / sign + 0.5);
    const size_t waits = computing + (size_t)(l->exposed / sign + 0.5);
    for (size_t x = 0; x < all; x++) bar[x] = x < computing ? '=' : x < waits ? '#' : '.';
    bar[all] = 0;
    say(run, "%3zu %2zu %2zu%-9s %8s %8s %9s %8s %7s %6s  %s", l->n.dp, l->n.tp, l->n.pp, order,
        value_text(run, l->step, "ps"), value_text(run, l->sent.inside, "bytes"),
        value_text(run, l->sent.between, "bytes"), value_text(run, l->state, "bytes"),
        value_text(run, l->activations, "bytes"), bubble(run, l, micro_batches), bar);
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

// The fastest layout is first. The layout with the opposite order of ranks is last.
static void table(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                  const TrainerConfig *c) {
    const size_t micro_batches = c->batch / c->micro_batch;
    const double sign = fmax(layout[n - 1].step, opposed->step) / BAR;
    const Degrees best = opposed->n;
    // The axes in which neighbours differ, in the mesh's order and in the opposite order.
    const char *near = best.tp > 1 ? "tp" : best.dp > 1 ? "dp" : "pp";
    const char *near_opposed = best.pp > 1 ? "pp" : best.dp > 1 ? "dp" : near;
    const char *order = "in the same order here.";
    if (near != near_opposed)
        order = page_text(run, "numbered so that neighbours differ in %s,\n  not %s.%s",
                          near_opposed, near, tp_crosses(best) ? " So tp groups cross nodes." : "");
    say(run,
        "%zu blocks of width %zu; a step of SGD on %zu sequences of %zu tokens, %zu/dp "
        "micro-batches per replica.\n"
        "dp: replicas of the model. tp: slices of each layer. pp: stages of layers, in 1F1B's "
        "order.\n"
        "A bar is a step, mean of the ranks, %s per character:  = computation  # communication  . "
        "idle\n\n"
        " dp tp pp              step  in node   between    state    kept bubble",
        c->model.layers, c->model.width, c->batch, c->model.context, micro_batches,
        value_text(run, sign, "ps"));
    const ClockConfig *k = clock_config();
    const char *cards = "";
    if (k->simulated && k->node > 0 && k->node < run->world->size && k->rails == 0)
        cards =
            "  Between nodes a call with k ranks per node uses k network cards, so it is k times "
            "as fast.\n";
    for (size_t i = 0; i < n; i++) row(run, &layout[i], "", micro_batches, sign);
    row(run, opposed, " opposite", micro_batches, sign);
    say(run,
        "  in node: bytes sent to ranks of the same node. between: sent between nodes, all bytes "
        "of calls\n  whose ranks are in several nodes. state: weights and gradients. kept: "
        "activations, peak. Bytes are\n  the largest of all ranks. bubble: (pp-1)/(%zu/dp + "
        "pp-1), if messages take no time.\n%s  opposite: the layout of the first row, with its "
        "ranks %s",
        micro_batches, cards, order);
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
    const ClockConfig *k = clock_config();
    const char *name =
        page_text(run, "dp %zu x tp %zu x pp %zu", fast->n.dp, fast->n.tp, fast->n.pp);
    const char *step = value_text(run, fast->step, "ps");
    const size_t node = k->node, stage = fast->n.tp * fast->n.dp;
    size_t slower[CAUSES] = { 0 };
    const bool inside = k->simulated && node > 0 && node % stage == 0 && run->world->size > node;
    const char *reason = "", *less = "", *others = "", *hidden = "";
    const Layout *next = n > 1 ? &layout[1] : fast;
    if (fast->n.tp < next->n.tp && fast->sent.inside < next->sent.inside)
        less = page_text(run, " In a node a rank sends %s, in the second row (tp %zu) %s.",
                         value_text(run, fast->sent.inside, "bytes"), next->n.tp,
                         value_text(run, next->sent.inside, "bytes"));
    if (inside && fast->n.tp > 1 && fast->n.dp > 1)
        reason = page_text(run,
                           " The sums over tp and dp stay inside a node. Only messages between "
                           "stages, the sum of wte, the loss and the norm use the slow link.%s The "
                           "bubble is %s.",
                           less, bubble(run, fast, micro_batches));
    for (size_t i = 1; i < n; i++) {
        slower[cause(fast, &layout[i])]++;
        if (layout[i].n.tp == 1 && layout[i].n.pp == 1)
            hidden = page_text(run, " Then dp %zu takes at least %s%s.", layout[i].n.dp,
                               value_text(run, layout[i].step - layout[i].exposed, "ps"),
                               layout[i].step - layout[i].exposed < fast->step
                                   ? ", and may be the fastest"
                                   : "");
    }
    for (size_t i = 0; i < CAUSES; i++)
        if (slower[i])
            others =
                page_text(run, "%s%s%zu by %s", others, *others ? ", " : "", slower[i], from[i]);
    if (n == 1) say_answer(run, "The only layout is %s. Its step takes %s.", name, step);
    else
        say_answer(run, "%s, %s per step.%s The other %zu lose time: %s.", name, step, reason,
                   n - 1, others);
    say_cost(run,
             "in every layout with dp > 1 the sums over dp are exposed here. Overlap (01.04) can "
             "hide them.%s",
             hidden);
    say_use_when(run,
                 "one kind alone is not enough: dp with ZeRO (06) does not fit or waits for its "
                 "sums, tp leaves the node, or pp has a long bubble. Keep tp inside a node.");
}

void layouts_page(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                  const TrainerConfig *c) {
    table(run, layout, n, opposed, c);
    answer(run, layout, n, c->batch / c->micro_batch);
}
