// ranks: 8
// level: core
// question: How do ranks in a row become a mesh of replicas, tensor slices and stages, and who talks to whom?
//
// Every rank holds three coordinates (dp, tp, pp) and nothing else. A group of one kind is a line through the mesh:
// ranks that differ in one coordinate only; of two kinds it is a plane. Which coordinate varies fastest decides which
// ranks are neighbours, and so which traffic stays on the fast links inside a node: tensor-parallel ranks talk in every
// layer, so they stand side by side.
//
// Left out: what the groups are used for (trainer.c composes chapters 01-07 on them).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/mesh.h"

// ---------------------------------------------------------------- the map, without any communication

typedef enum { DP, TP, PP, KINDS } Kind;
static const char *const kind_name[KINDS] = { "dp", "tp", "pp" };
static const unsigned axis[KINDS] = { MESH_DP, MESH_TP, MESH_PP };
static size_t degree(Degrees n, Kind k) { return k == DP ? n.dp : k == TP ? n.tp : n.pp; }

static bool same_group(Degrees n, unsigned axes, size_t a, size_t b) {
    Coordinates x = mesh_coordinates(n, a), y = mesh_coordinates(n, b);
    return (axes & MESH_DP || x.dp == y.dp) && (axes & MESH_TP || x.tp == y.tp) && (axes & MESH_PP || x.pp == y.pp);
}

static void picture(Run *run, Degrees n) {
    say(run, "rank = tp + %zu * (dp + %zu * pp)\n", n.tp, n.dp);
    for (size_t pp = 0; pp < n.pp; pp++) {
        say(run, "  stage %zu\n", pp);
        for (size_t dp = 0; dp < n.dp; dp++) {
            char line[512] = "";
            size_t length = 0;
            for (size_t tp = 0; tp < n.tp && length + 8 < sizeof line; tp++)
                length += (size_t)snprintf(line + length, sizeof line - length, "%4zu",
                                           mesh_rank(n, (Coordinates){ .dp = dp, .tp = tp, .pp = pp }));
            say(run, "    replica %zu  |%s |   a tensor-parallel group\n", dp, line);
        }
    }
}

// The algebra of groups, by counting.
static void map_checks(Run *run, Degrees n, size_t world) {
    bool round_trip = true, sizes = true, lines = true;
    for (size_t a = 0; a < world; a++) {
        round_trip &= mesh_rank(n, mesh_coordinates(n, a)) == a;
        for (Kind k = DP; k < KINDS; k++) {
            size_t members = 0;
            for (size_t b = 0; b < world; b++) {
                members += same_group(n, axis[k], a, b);
                for (Kind other = DP; other < k; other++)
                    lines &= a == b || !(same_group(n, axis[k], a, b) && same_group(n, axis[other], a, b));
            }
            sizes &= members == degree(n, k);
        }
    }
    check_true(run, "coordinates", "rank -> coordinates -> rank is the identity", round_trip);
    check_true(run, "groups", "every rank stands in one group of each kind, of its degree's size", sizes);
    check_true(run, "groups", "groups of two kinds share at most one rank", lines);
    check_true(run, "neighbours", "tensor-parallel ranks follow one another",
               n.tp == 1 || world == 1 || same_group(n, MESH_TP, 0, 1));
}

// ---------------------------------------------------------------- the groups as communicators

// Every rank adds a one at its own place: the sum over a group is a list of its members.
static void members(Run *run, Comm *group, double *mark) {
    memset(mark, 0, run->world->size * sizeof *mark);
    mark[run->world->rank] = 1;
    comm_all_reduce_doubles(group, mark, run->world->size);
}

static void group_checks(Run *run, Mesh *m) {
    size_t world = run->world->size, me = run->world->rank;
    double *mark = host_alloc(world * sizeof *mark);
    const struct { const char *name; unsigned axes; Comm *comm; } group[] = {
        { "dp", MESH_DP, m->dp }, { "tp", MESH_TP, m->tp }, { "pp", MESH_PP, m->pp },
        { "model: one replica", MESH_TP | MESH_PP, m->model },
        { "tp x dp: one stage", MESH_TP | MESH_DP, mesh_group(m, MESH_TP | MESH_DP) },
        { "dp x pp: one slice of every layer", MESH_DP | MESH_PP, mesh_group(m, MESH_DP | MESH_PP) },
        { "all axes: the world", MESH_ALL, mesh_group(m, MESH_ALL) },
        { "no axis: every rank alone", 0, mesh_group(m, 0) },
    };
    for (size_t k = 0; k < sizeof group / sizeof *group; k++) {
        size_t count = 0, before = 0;              // members by the formula, and those of lower rank than mine
        members(run, group[k].comm, mark);
        bool right = group[k].comm == mesh_group(m, group[k].axes);
        for (size_t b = 0; b < world; b++) {
            bool member = same_group(m->n, group[k].axes, me, b);
            right &= (mark[b] == 1) == member;
            count += member;
            before += member && b < me;
        }
        check_true(run, "communicator", group[k].name, right && group[k].comm->size == count &&
                                                       group[k].comm->rank == before);
    }

    bool two = m->n.pp > 1 && (m->at.pp == 0 || m->at.pp + 1 == m->n.pp);
    check_true(run, "communicator", "tied: first and last stage, where they differ",
               two ? m->tied && m->tied->size == 2 : !m->tied);
    for (Kind k = DP; k < KINDS; k++) {            // a ring all-reduce of one double for every rank of the world
        size_t n = group[k].comm->size;            // the first three of the table
        cost(run, kind_name[k], "bytes sent", (double)(2 * (n - 1) * ceil_div(world, n) * sizeof(double)),
             (double)comm_bytes_sent(group[k].comm));
    }
    free(mark);
}

static void mesh(Run *run) {
    Degrees n = mesh_degrees(run);
    Mesh m = mesh_new(run->world, n);
    picture(run, n);
    say(run, "%zu data-parallel groups of %zu, %zu tensor-parallel groups of %zu, %zu pipelines of %zu\n",
        n.tp * n.pp, n.dp, n.dp * n.pp, n.tp, n.dp * n.tp, n.pp);
    map_checks(run, n, run->world->size);
    group_checks(run, &m);
    mesh_free(&m);
}

static const Option options[] = {
    { "dp", "N", NULL, "data-parallel replicas; without it: the ranks that --tp and --pp leave" },
    { "tp", "N", NULL, "tensor-parallel ranks of a stage; without it: 2 where the ranks allow, else 1" },
    { "pp", "N", NULL, "pipeline stages; without it: 2 where the ranks allow, else 1" },
    {0},
};
LESSON(mesh, options);
