// mesh_picture.c reads the options of a mesh, and prints a mesh as lines of text.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include "common/comm/clock.h"

enum { LINE = 96 };

static size_t degree(Run *run, const char *name) {
    size_t n = option_given(run, name) ? option_size(run, name) : 0;
    REQUIRE(n > 0 || !option_given(run, name),
            "--dp, --tp and --pp are at least 1, and so is --cp");
    return n;
}
Degrees mesh_options(Run *run) {
    Degrees chosen = { .dp = degree(run, "dp"),
                       .tp = degree(run, "tp"),
                       .pp = degree(run, "pp"),
                       .cp = degree(run, "cp") };
    return mesh_degrees(run->world->size, chosen);
}

void mesh_show(Run *run, Degrees n, const size_t *stage_blocks) {
    size_t node = clock_config()->simulated ? clock_config()->node : 0, block = 0;
    for (size_t pp = 0; pp < n.pp; pp++) {
        char line[LINE + 64];
        size_t head = (size_t)snprintf(line, sizeof line, "  stage %-3zu", pp), at = head;
        for (size_t i = 0; i < n.dp * mesh_cp(n); i++) {
            size_t dp = i / mesh_cp(n), cp = i % mesh_cp(n);
            // Begins a new line if the next tp group does not fit on this line.
            if (at + 14 + 4 * n.tp > LINE) {
                say(run, "%s", line);
                at = (size_t)snprintf(line, sizeof line, "%*s", (int)head, "");
            }
            if (cp == 0) at += (size_t)snprintf(line + at, sizeof line - at, "  replica %zu", dp);
            at += (size_t)snprintf(line + at, sizeof line - at, " [");
            for (size_t tp = 0; tp < n.tp && at + 8 < sizeof line; tp++)
                at += (size_t)snprintf(line + at, sizeof line - at, " %zu",
                                       mesh_rank(n, (Coordinates){
                                                        .dp = dp, .tp = tp, .pp = pp, .cp = cp }));
            at += (size_t)snprintf(line + at, sizeof line - at, " ]");
        }
        size_t lo = mesh_rank(n, (Coordinates){ .pp = pp }), hi = lo + n.dp * mesh_cp(n) * n.tp - 1;
        if (node && lo / node == hi / node)
            at += (size_t)snprintf(line + at, sizeof line - at, "   node %zu", lo / node);
        else if (node)
            at += (size_t)snprintf(line + at, sizeof line - at, "   nodes %zu to %zu", lo / node,
                                   hi / node);
        if (stage_blocks) {
            size_t blocks = stage_blocks[pp];
            snprintf(line + at, sizeof line - at, "   %s%zu block%s from block %zu%s",
                     pp ? "" : "embedding, ", blocks, blocks == 1 ? "" : "s", block,
                     pp + 1 < n.pp ? "" : ", head");
            block += blocks;
        }
        say(run, "%s", line);
    }
}

const char *mesh_link(const Comm *group, char text[LINK_NAME]) {
    const ClockConfig *c = clock_config();
    if (!group || group->size == 1 || !c->simulated) return NULL;
    snprintf(text, LINK_NAME, "=%s", group->one_node ? c->link.name : c->between.name);
    return text;
}
