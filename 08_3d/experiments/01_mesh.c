// experiments/01_mesh.c checks the map from rank to coordinates with its formula, then checks the
// communicators that are made from the map.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/experiments/experiments.h"
#include "common/comm/clock.h"

// ---------------------------------------------------------------- the map, without communication

// Returns the coordinates of a rank by the inverse of rank = tp + n.tp (cp + n.cp (dp + n.dp pp)).
static Coordinates place_of(Degrees n, size_t rank) {
    size_t cp = mesh_cp(n);
    return (Coordinates){ .tp = rank % n.tp,
                          .cp = rank / n.tp % cp,
                          .dp = rank / (n.tp * cp) % n.dp,
                          .pp = rank / (n.tp * cp * n.dp) };
}
static void check_map(Run *run, Degrees n) {
    bool round_trip = true, formula = true;
    for (size_t rank = 0; rank < run->world->size; rank++) {
        round_trip &= mesh_rank(n, mesh_coordinates(n, rank)) == rank;
        formula &= mesh_rank(n, place_of(n, rank)) == rank;
    }
    check_true(run, "coordinates", "rank -> coordinates -> rank is the identity", round_trip);
    check_true(run, "coordinates", "rank = tp + n_tp (cp + n_cp (dp + n_dp pp))", formula);
}

// ---------------------------------------------------------------- the groups as communicators

// A kind of group. The ranks of a group differ along these axes only. `formula` is NULL if no
// message of training uses the kind.
typedef struct {
    const char *name, *formula;
    unsigned axes;
    size_t degree;
} Kind;
enum { TP, DP, PP, KINDS = 6 };
// Returns the number of kinds. The last kind exists only with --cp.
static size_t kinds_of(const Mesh *m, Kind kind[KINDS]) {
    Degrees n = m->n;
    bool cp = m->cp != NULL;
    const Kind all[KINDS] = {
        { "tensor parallel (tp)", "neighbours", MESH_TP, n.tp },
        { "data parallel (dp)", cp ? "dp ranks, tp cp apart" : "every tp-th rank of a stage",
          MESH_DP, n.dp },
        { "pipeline (pp)", cp ? "every (tp cp dp)-th rank" : "every (tp dp)-th rank", MESH_PP,
          n.pp },
        { "one replica (tp, pp)", "adds up the gradient norm", MESH_TP | MESH_PP, n.tp * n.pp },
        { "one stage (tp, dp)", NULL, MESH_TP | MESH_DP, n.tp * n.dp },
        { "context parallel (cp)", "cp ranks, tp apart", MESH_CP, mesh_cp(n) },
    };
    memcpy(kind, all, sizeof all);
    return cp ? KINDS : KINDS - 1;
}
static bool same_group(Degrees n, unsigned axes, size_t a, size_t b) {
    Coordinates x = place_of(n, a), y = place_of(n, b);
    return (axes & MESH_DP || x.dp == y.dp) && (axes & MESH_TP || x.tp == y.tp) &&
           (axes & MESH_PP || x.pp == y.pp) && (axes & MESH_CP || x.cp == y.cp);
}

static void check_groups(Run *run, Mesh *m, const Kind *kind, size_t kinds) {
    size_t world = run->world->size, me = run->world->rank;
    double *mark = host_alloc(world * sizeof *mark);
    for (size_t k = 0; k < kinds; k++) {
        Comm *group = mesh_group(m, kind[k].axes);
        // Every rank contributes a 1 at its own position, so the sum over a group marks the group's
        // members.
        memset(mark, 0, world * sizeof *mark);
        mark[me] = 1;
        comm_all_reduce_doubles(group, mark, world);
        size_t before = 0; // members with a lower rank
        bool right = group->size == kind[k].degree;
        for (size_t b = 0; b < world; b++) {
            bool member = same_group(m->n, kind[k].axes, me, b);
            right &= (mark[b] == 1) == member;
            before += member && b < me;
        }
        check_true(run, "communicator", kind[k].name, right && group->rank == before);
    }
    free(mark);
    bool two = m->n.pp > 1 && (m->at.pp == 0 || m->at.pp + 1 == m->n.pp);
    check_true(run, "communicator", "tied: first and last stage, where they differ",
               two ? m->tied && m->tied->size == 2 : !m->tied);
}

// ---------------------------------------------------------------- the page

// Writes the members of rank 0's group along these axes, such as "0 2". A list that is too long
// ends with "...".
enum { LIST = 40 };
static void group_of_rank_0(char text[LIST], const Run *run, const Mesh *m, unsigned axes) {
    const size_t full = 20;
    size_t n = 0;
    text[0] = 0;
    for (size_t b = 0; b < run->world->size; b++) {
        if (!same_group(m->n, axes, 0, b)) continue;
        if (n >= full) {
            snprintf(text + n, LIST - n, "...");
            return;
        }
        n += (size_t)snprintf(text + n, LIST - n, "%s%zu", n ? " " : "", b);
    }
}

// Returns the distance between neighbours of a group along one axis, in ranks of the world.
static size_t distance(Degrees n, unsigned axis) {
    return axis == MESH_TP ? 1 : axis == MESH_DP ? n.tp * mesh_cp(n) : n.tp * mesh_cp(n) * n.dp;
}
static const char *ordinal_ending(size_t i) {
    static const char *const ending[] = { "th", "st", "nd", "rd" };
    return i / 10 % 10 != 1 && i % 10 < 4 ? ending[i % 10] : "th";
}
// Returns the names of the links of all groups along one axis, such as "fast" or "fast or slow".
static const char *links_of(Run *run, Degrees n, unsigned axis) {
    const ClockConfig *c = clock_config();
    bool near = false, far = false;
    for (size_t a = 0; a < run->world->size; a++) {
        bool one_node = true;
        for (size_t b = 0; b < run->world->size; b++)
            one_node &= !same_group(n, axis, a, b) || clock_same_node(a, b);
        near |= one_node;
        far |= !one_node;
    }
    if (near && far) return page_text(run, "%s or %s", c->link.name, c->between.name);
    return near ? c->link.name : c->between.name;
}
// Returns the ranks and the links of the groups of a kind, such as "every 4th rank (slow link)".
static const char *members(Run *run, Degrees n, const Kind *kind) {
    size_t step = distance(n, kind->axes);
    if (kind->degree == 1) return "one rank";
    const char *ranks = page_text(run, "every %zu%s rank%s", step, ordinal_ending(step),
                                  kind->axes == MESH_DP ? " of a stage" : "");
    if (step == 1) ranks = page_text(run, "%zu neighbour ranks", kind->degree);
    if (!clock_config()->simulated) return ranks;
    return page_text(run, "%s (%s link)", ranks, links_of(run, n, kind->axes));
}

// A row shows rank 0's group, because the other groups of this kind have the same form.
static void page(Run *run, Mesh *m, const Kind *kind, size_t kinds) {
    Result row[KINDS + 1] = { 0 };
    char text[KINDS][3][64], link[KINDS][LINK_NAME];
    size_t rows = 0;
    for (size_t k = 0; k < kinds; k++) {
        if (!kind[k].formula) continue;
        const char *on = mesh_link(mesh_group(m, kind[k].axes), link[k]);
        snprintf(text[k][0], 64, "=%zu", run->world->size / kind[k].degree);
        snprintf(text[k][1], 64, "=%zu", kind[k].degree);
        text[k][2][0] = '=';
        group_of_rank_0(text[k][2] + 1, run, m, kind[k].axes);
        row[rows++] =
            (Result){ kind[k].name, kind[k].formula, { text[k][0], text[k][1], text[k][2], on } };
    }
    results(run,
            (const char *const[]){ "groups", "ranks per group", "group of rank 0", "link", NULL },
            row);
    say_answer(run, "A tp group has %s, a dp group has %s, and a pp group has %s.%s",
               members(run, m->n, &kind[TP]), members(run, m->n, &kind[DP]),
               members(run, m->n, &kind[PP]),
               m->n.tp > 1 ? " tp ranks are neighbours because tp sends most." : "");
    say_cost(
        run,
        "every rank makes its groups once, at the start. Later the mesh itself sends nothing.");
    say_use_when(run, "two or more kinds of parallelism share one set of ranks.");
}

static void mesh(Run *run) {
    Degrees n = mesh_options(run);
    Mesh m = mesh_new(run->world, n);
    Kind kind[KINDS];
    size_t kinds = kinds_of(&m, kind);
    if (m.cp)
        say(run,
            "dp %zu replicas x cp %zu chunks of a sequence x tp %zu slices of each layer x pp %zu "
            "stages of layers\n"
            "rank = tp_rank + %zu (cp_rank + %zu (dp_rank + %zu pp_rank)); coordinates count from "
            "0. [ ]: a tp group",
            n.dp, n.cp, n.tp, n.pp, n.tp, n.cp, n.dp);
    else
        say(run,
            "dp %zu replicas of the model x tp %zu slices of each layer x pp %zu stages of "
            "layers\n"
            "rank = tp_rank + %zu (dp_rank + %zu pp_rank); coordinates count from 0. [ ]: a tp "
            "group",
            n.dp, n.tp, n.pp, n.tp, n.dp);
    mesh_show(run, n, NULL);
    check_map(run, n);
    check_groups(run, &m, kind, kinds);
    page(run, &m, kind, kinds);
    mesh_free(&m);
}

static const Option options[] = {
    { "dp", "N", NULL, "data-parallel replicas; without it: the ranks that --tp and --pp leave" },
    { "tp", "N", NULL,
      "tensor-parallel ranks of a stage; without it: 2 where the ranks allow, else 1" },
    { "pp", "N", NULL, "pipeline stages; without it: 2 where the ranks allow, else 1" },
    { "cp", "N", NULL,
      "context-parallel ranks, which share the positions of a sequence; default 1" },
    { "node", "N", "4", "ranks of a node" },
    REALS_ONLY("this lesson has no model"),
    { 0 },
};
EXPERIMENT(mesh, options);
