// ranks: 8
// level: core
// question: How do ranks in a row become a mesh of replicas, tensor slices and stages, and who talks to whom?
//
// Every rank holds three coordinates (dp, tp, pp) and nothing else. A group of one kind is a line through the mesh:
// ranks that differ in one coordinate only. Which coordinate varies fastest decides which ranks are neighbours, and so
// which traffic stays on the fast links inside a node: tensor-parallel ranks talk in every layer, so they stand side by
// side.
//
// Left out: what the groups are used for (trainer.c composes chapters 01-07 on them).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/mesh.h"

// ---------------------------------------------------------------- the map, without any communication

typedef enum { DP, TP, PP, KINDS } Kind;
static const char *const kind_name[KINDS] = { "dp", "tp", "pp" };
static size_t degree(Degrees n, Kind k) { return k == DP ? n.dp : k == TP ? n.tp : n.pp; }

static bool same_group(Degrees n, Kind k, size_t a, size_t b) {
    Coordinates x = mesh_coordinates(n, a), y = mesh_coordinates(n, b);
    return (k == DP || x.dp == y.dp) && (k == TP || x.tp == y.tp) && (k == PP || x.pp == y.pp);
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
                members += same_group(n, k, a, b);
                for (Kind other = DP; other < k; other++)
                    lines &= a == b || !(same_group(n, k, a, b) && same_group(n, other, a, b));
            }
            sizes &= members == degree(n, k);
        }
    }
    check_true(run, "coordinates", "rank -> coordinates -> rank is the identity", round_trip);
    check_true(run, "groups", "every rank stands in one group of each kind, of its degree's size", sizes);
    check_true(run, "groups", "groups of two kinds share at most one rank", lines);
    check_true(run, "neighbours", "tensor-parallel ranks follow one another",
               n.tp == 1 || world == 1 || same_group(n, TP, 0, 1));
}

// ---------------------------------------------------------------- the groups as communicators

// Every rank adds a one at its own place: the sum over a group is a list of its members.
static void members(Run *run, Comm *group, double *mark) {
    memset(mark, 0, run->world->size * sizeof *mark);
    mark[run->world->rank] = 1;
    comm_all_reduce_doubles(group, mark, run->world->size);
}

static void group_checks(Run *run, const Mesh *m) {
    size_t world = run->world->size, me = run->world->rank;
    double *mark = host_alloc(world * sizeof *mark);
    Comm *group[KINDS] = { m->dp, m->tp, m->pp };
    size_t order[KINDS] = { m->at.dp, m->at.tp, m->at.pp };
    for (Kind k = DP; k < KINDS; k++) {
        members(run, group[k], mark);
        bool right = group[k]->size == degree(m->n, k) && group[k]->rank == order[k];
        for (size_t b = 0; b < world; b++) right &= (mark[b] == 1) == same_group(m->n, k, me, b);
        check_true(run, "communicator", kind_name[k], right);
    }
    members(run, m->model, mark);                  // tp x pp: the ranks that hold one replica
    bool right = m->model->size == m->n.tp * m->n.pp;
    for (size_t b = 0; b < world; b++) right &= (mark[b] == 1) == (mesh_coordinates(m->n, b).dp == m->at.dp);
    check_true(run, "communicator", "model: one replica", right);

    bool two = m->n.pp > 1 && (m->at.pp == 0 || m->at.pp + 1 == m->n.pp);
    check_true(run, "communicator", "tied: first and last stage, where they differ",
               two ? m->tied && m->tied->size == 2 : !m->tied);
    for (Kind k = DP; k < KINDS; k++) {            // a ring all-reduce of one double for every rank of the world
        size_t n = group[k]->size;
        cost(run, kind_name[k], "bytes sent", (double)(2 * (n - 1) * ceil_div(world, n) * sizeof(double)),
             (double)comm_bytes_sent(group[k]));
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
