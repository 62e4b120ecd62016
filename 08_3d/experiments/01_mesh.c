// experiments/01_mesh.c: checks the map rank -> coordinates by counting, then the communicators
// that are made from it, and shows on which link each group communicates.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/experiments/experiments.h"

// -------------------------------------------------------------- the map, without any communication

typedef enum { DP, TP, PP, CP, KINDS } Kind;
static const char *const kind_name[KINDS] = { "dp", "tp", "pp", "cp" };
static const unsigned axis[KINDS] = { MESH_DP, MESH_TP, MESH_PP, MESH_CP };
static size_t degree(Degrees n, Kind k) {
    return k == DP ? n.dp : k == TP ? n.tp : k == PP ? n.pp : mesh_cp(n);
}
// The number of kinds of groups. cp is the last kind and exists only with --cp.
static Kind kinds(Degrees n) { return mesh_cp(n) > 1 ? KINDS : CP; }

// Do ranks a and b differ along these axes only?
static bool same_group(Degrees n, unsigned axes, size_t a, size_t b) {
    Coordinates x = mesh_coordinates(n, a), y = mesh_coordinates(n, b);
    return (axes & MESH_DP || x.dp == y.dp) && (axes & MESH_TP || x.tp == y.tp) &&
           (axes & MESH_PP || x.pp == y.pp) && (axes & MESH_CP || x.cp == y.cp);
}

// The rules of the map, by counting over all pairs of ranks. No rank communicates.
static void map_checks(Run *run, Degrees n, size_t world) {
    bool round_trip = true, sizes = true, lines = true;
    for (size_t a = 0; a < world; a++) {
        round_trip &= mesh_rank(n, mesh_coordinates(n, a)) == a;
        for (Kind k = DP; k < kinds(n); k++) {
            size_t members = 0;
            for (size_t b = 0; b < world; b++) {
                members += same_group(n, axis[k], a, b);
                for (Kind other = DP; other < k; other++)
                    lines &= a == b ||
                             !(same_group(n, axis[k], a, b) && same_group(n, axis[other], a, b));
            }
            sizes &= members == degree(n, k);
        }
    }
    check_true(run, "coordinates", "rank -> coordinates -> rank is the identity", round_trip);
    check_true(run, "groups", "every rank stands in one group of each kind, of its degree's size",
               sizes);
    check_true(run, "groups", "groups of two kinds share at most one rank", lines);
    check_true(run, "neighbours", "tensor-parallel ranks follow one another",
               n.tp == 1 || world == 1 || same_group(n, MESH_TP, 0, 1));
}

// ---------------------------------------------------------------- the groups as communicators

// Every rank contributes a one at its own position, so the sum over a group marks its members.
static void members(Run *run, Comm *group, double *mark) {
    memset(mark, 0, run->world->size * sizeof *mark);
    mark[run->world->rank] = 1;
    comm_all_reduce_doubles(group, mark, run->world->size);
}

static void group_checks(Run *run, Mesh *m) {
    size_t world = run->world->size, me = run->world->rank;
    double *mark = host_alloc(world * sizeof *mark);
    const struct {
        const char *name;
        unsigned axes;
        Comm *comm;
    } group[] = {
        { "dp", MESH_DP, m->dp },
        { "tp", MESH_TP, m->tp },
        { "pp", MESH_PP, m->pp },
        { "model: one replica", MESH_TP | MESH_PP, m->model },
        { "tp x dp: one stage", MESH_TP | MESH_DP, mesh_group(m, MESH_TP | MESH_DP) },
        { "dp x pp: one slice of every layer", MESH_DP | MESH_PP,
          mesh_group(m, MESH_DP | MESH_PP) },
        { "all axes: the world", MESH_ALL, mesh_group(m, MESH_ALL) },
        { "no axis: every rank alone", 0, mesh_group(m, 0) },
        { "dp x cp: the same parameters", MESH_DP | MESH_CP, m->replicas },
        { "cp", MESH_CP, m->cp }, // this row and the one before it: --cp only
    };
    const size_t groups = sizeof group / sizeof *group - (m->cp ? 0 : 2);
    for (size_t k = 0; k < groups; k++) {
        // The number of members by the formula, and of members with a lower rank than this one.
        size_t count = 0, before = 0;
        members(run, group[k].comm, mark);
        bool right = group[k].comm == mesh_group(m, group[k].axes);
        for (size_t b = 0; b < world; b++) {
            bool member = same_group(m->n, group[k].axes, me, b);
            right &= (mark[b] == 1) == member;
            count += member;
            before += member && b < me;
        }
        check_true(run, "communicator", group[k].name,
                   right && group[k].comm->size == count && group[k].comm->rank == before);
    }

    bool two = m->n.pp > 1 && (m->at.pp == 0 || m->at.pp + 1 == m->n.pp);
    check_true(run, "communicator", "tied: first and last stage, where they differ",
               two ? m->tied && m->tied->size == 2 : !m->tied);
    // members() has made one ring all-reduce per group, of one double per rank of the world.
    for (Kind k = DP; k < kinds(m->n); k++) {
        Comm *line = mesh_group(m, axis[k]);
        size_t n = line->size;
        char id[16];
        snprintf(id, sizeof id, "sent.%s", kind_name[k]);
        double ring = (double)(2 * (n - 1) * ceil_div(world, n) * sizeof(double));
        check_cost(run, id, kind_name[k], "bytes sent", formula(ring), NOT_PREDICTED,
                   (double)comm_bytes_sent(line));
    }
    free(mark);
}

// The members of rank 0's group along these axes: "0 2", or "0 1 2 3 4 5 6..." where there are
// many.
enum { LIST = 40 };
static void group_of_rank_0(char text[LIST], const Run *run, const Mesh *m, unsigned axes) {
    const size_t full = 20;
    size_t n = 0;
    for (size_t b = 0; b < run->world->size; b++) {
        if (!same_group(m->n, axes, 0, b)) continue;
        if (n >= full) {
            snprintf(text + n, LIST - n, "...");
            return;
        }
        n += (size_t)snprintf(text + n, LIST - n, "%s%zu", n ? " " : "", b);
    }
}

// A row for each kind of group. The row shows rank 0's group; the other groups have the same form.
static void table(Run *run, Mesh *m) {
    const struct {
        const char *name, *formula;
        unsigned axes;
        size_t degree;
    } kind[] = {
        { "tensor parallel (tp)", "neighbours", MESH_TP, m->n.tp },
        { "data parallel (dp)", "every tp-th rank of a stage", MESH_DP, m->n.dp },
        { "pipeline (pp)", "every (tp dp)-th rank", MESH_PP, m->n.pp },
        { "one replica (tp, pp)", "holds the whole model", MESH_TP | MESH_PP, m->n.tp * m->n.pp },
        { "one stage (tp, dp)", "tp dp neighbours", MESH_TP | MESH_DP, m->n.tp * m->n.dp },
        // with --cp only
        { "context parallel (cp)", "every tp-th rank of a replica's stage", MESH_CP,
          mesh_cp(m->n) },
    };
    enum { ROWS = sizeof kind / sizeof *kind };
    const size_t rows = ROWS - !m->cp;
    Result row[ROWS + 1] = { 0 };
    char text[ROWS][3][64], link[ROWS][LINK_NAME];
    for (size_t k = 0; k < rows; k++) {
        snprintf(text[k][0], 64, "=%zu", run->world->size / kind[k].degree);
        snprintf(text[k][1], 64, "=%zu", kind[k].degree);
        text[k][2][0] = '=';
        group_of_rank_0(text[k][2] + 1, run, m, kind[k].axes);
        row[k] = (Result){ kind[k].name,
                           kind[k].formula,
                           { text[k][0], text[k][1], text[k][2],
                             mesh_link(mesh_group(m, kind[k].axes), link[k]) } };
    }
    results(run,
            (const char *const[]){ "groups", "ranks per group", "group of rank 0", "link", NULL },
            row);
}

// "tp group 0 1 (fast link)"
static void group_text(char text[112], Run *run, Mesh *m, Kind k) {
    char list[LIST], name[LINK_NAME];
    const char *link = mesh_link(mesh_group(m, axis[k]), name);
    group_of_rank_0(list, run, m, axis[k]);
    bool one_link = link && link[1];
    snprintf(text, 112, "%s group %s%s%s%s", kind_name[k], list, one_link ? " (" : "",
             one_link ? link + 1 : "", one_link ? " link)" : "");
}
static void answer(Run *run, Mesh *m) {
    char group[3][112];
    for (Kind k = DP; k <= PP; k++) group_text(group[k], run, m, k);
    say_answer(run,
               "Rank 0 is in the %s, the %s and the %s. tp ranks are neighbours because tp sends "
               "most.",
               group[TP], group[DP], group[PP]);
    say_cost(run,
             "no messages in a training step; every rank makes its groups once, at the start.");
    say_use_when(run, "two or more kinds of parallelism share one set of ranks.");
}

static void mesh(Run *run) {
    Degrees n = mesh_options(run);
    Mesh m = mesh_new(run->world, n);
    if (m.cp)
        say(run,
            "dp %zu replicas x cp %zu chunks of a sequence x tp %zu slices of each layer x pp %zu "
            "stages of layers\n"
            "rank = tp + %zu (cp + %zu (dp + %zu pp)), by the rank's places on these axes, from 0 "
            "on; [ ]: a tp group",
            n.dp, n.cp, n.tp, n.pp, n.tp, n.cp, n.dp);
    else
        say(run,
            "dp %zu replicas of the model x tp %zu slices of each layer x pp %zu stages of "
            "layers\n"
            "rank = tp + %zu (dp + %zu pp), by the rank's places on these axes, from 0 on; [ ]: a "
            "tp group",
            n.dp, n.tp, n.pp, n.tp, n.dp);
    mesh_show(run, n, NULL);
    map_checks(run, n, run->world->size);
    group_checks(run, &m);
    table(run, &m);
    answer(run, &m);
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
    { 0 },
};
EXPERIMENT(mesh, options);
