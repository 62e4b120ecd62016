// ranks: 8
// level: core
// question: Which ranks form the data, tensor and pipeline groups, and on which links?
//
// Holds:  per rank its coordinates (dp, tp, pp), with --cp a fourth one (03.08), and a communicator
//         for each of its groups.
// Sends:  nothing except to split the world into groups, and a pipeline into its tied group. In
// training, tp ranks send in every layer, dp ranks
//         once per step without ZeRO, pp ranks once per micro-batch and stage in each direction.
// Saves:  messages on slow links. tp ranks are neighbours, so most traffic stays inside a node.
// Costs:  one split per group.
// The number of a rank is tp_rank + tp (cp_rank + cp (dp_rank + dp pp_rank)), in Megatron's order.
// Narayanan et al. 2021 (PTD-P), section 5.
// Left out: the use of the groups (trainer.c composes chapters 01 to 07 on them).
#include "08_3d/mesh.h"
#include <stdio.h>
#include "04_pipeline_naive/pipeline.h"

// ---------------------------------------------------------------- coordinates

// tp varies fastest, because tp ranks send most and must be neighbours in one node.
Coordinates mesh_coordinates(Degrees n, size_t rank) {
    size_t inner = n.tp * mesh_cp(n);
    return (Coordinates){ .tp = rank % n.tp,
                          .cp = rank / n.tp % mesh_cp(n),
                          .dp = rank / inner % n.dp,
                          .pp = rank / (inner * n.dp) };
}
size_t mesh_rank(Degrees n, Coordinates c) {
    return c.tp + n.tp * (c.cp + mesh_cp(n) * (c.dp + n.dp * c.pp));
}

Degrees mesh_degrees(size_t world, Degrees n) {
    const struct {
        const char *name;
        size_t n;
    } asked[] = { { "dp", n.dp }, { "tp", n.tp }, { "pp", n.pp }, { "cp", n.cp } };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        REQUIRE(asked[i].n <= world,
                "--%s %zu is more than the %zu ranks that there are: choose degrees whose product "
                "is %zu",
                asked[i].name, asked[i].n, world, world);
    n.cp = mesh_cp(n);
    size_t given = (n.tp ? n.tp : 1) * (n.pp ? n.pp : 1) * (n.dp ? n.dp : 1) * n.cp;
    REQUIRE(world % given == 0,
            "--dp, --tp and --pp%s ask for a multiple of %zu ranks, but there are %zu: choose "
            "degrees whose product is %zu",
            n.cp > 1 ? ", with --cp," : "", given, world, world);
    size_t left = world / given;
    if (!n.tp) {
        n.tp = left % 2 ? 1 : 2;
        left /= n.tp;
    }
    if (!n.pp) {
        n.pp = left % 2 ? 1 : 2;
        left /= n.pp;
    }
    if (!n.dp) n.dp = left;
    return n; // mesh_new() checks the product
}

// ---------------------------------------------------------------- groups

// Returns the number of the group of the rank `at`. The function sets the coordinates along `axes`
// to 0, so all ranks that differ only along these axes get the same number.
static size_t group_number(Degrees n, Coordinates at, unsigned axes) {
    if (axes & MESH_TP) at.tp = 0;
    if (axes & MESH_DP) at.dp = 0;
    if (axes & MESH_PP) at.pp = 0;
    if (axes & MESH_CP) at.cp = 0;
    return mesh_rank(n, at);
}

Comm *mesh_group(Mesh *m, unsigned axes) {
    static const char *const name[] = { "alone",   "tp",      "dp",      "tp x dp",
                                        "pp",      "model",   "dp x pp", "tp x dp x pp",
                                        "cp",      "tp x cp", "dp x cp", "stage",
                                        "cp x pp", "replica", "slice",   "world" };
    if (axes > MESH_ALL) fault("mesh_group: %u is no set of axes", axes);
    if (!m->group[axes])
        m->group[axes] =
            comm_split(m->world, group_number(m->n, m->at, axes), m->world->rank, name[axes]);
    return m->group[axes];
}

Mesh mesh_new(Comm *world, Degrees n) {
    size_t all = n.dp * n.tp * n.pp * mesh_cp(n);
    char cp[40] = "";
    if (mesh_cp(n) > 1) snprintf(cp, sizeof cp, " x cp %zu", n.cp);
    REQUIRE(n.dp && n.tp && n.pp && all == world->size,
            "dp %zu x tp %zu x pp %zu%s is not %zu ranks: choose --dp, --tp and --pp whose product "
            "is the number of ranks, or start as many ranks (--emulate %zu, mpirun -np %zu)",
            n.dp, n.tp, n.pp, cp, world->size, all, all);
    Mesh m = { .n = n,
               .at = mesh_coordinates(n, world->rank),
               .world = world,
               .group = { [MESH_ALL] = world } };
    // Every rank makes the splits in the same order, because a split is collective over the world.
    m.tp = mesh_group(&m, MESH_TP);
    m.dp = mesh_group(&m, MESH_DP);
    m.pp = mesh_group(&m, MESH_PP);
    m.replicas = m.dp;
    if (mesh_cp(n) > 1) {
        m.cp = mesh_group(&m, MESH_CP);
        m.replicas = mesh_group(&m, MESH_DP | MESH_CP);
    }
    m.model = mesh_group(&m, MESH_TP | MESH_PP);
    m.tied = pipeline_tied_group(m.pp);
    return m;
}

void mesh_free(Mesh *m) {
    // The group of all axes is the world, which the caller frees.
    for (unsigned axes = 0; axes < MESH_ALL; axes++) comm_free(m->group[axes]);
    comm_free(m->tied);
}
