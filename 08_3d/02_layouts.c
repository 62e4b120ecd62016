// ranks: 8
// level: core
// question: What mix of data, tensor and pipeline parallelism is fastest on two nodes, and why?
//
// Holds:  per rank 1/(tp pp) of the model; dp ranks hold the same part.
// Sends:  over tp 8(tp-1)/tp B T C elements per block and micro-batch; over dp 2(dp-1)/dp of the
//         gradient per step; over pp one [B T, C] per micro-batch and stage, and its gradient.
// Saves:  time. Nothing hides tp's messages, so tp ranks stay in a node; dp and pp may cross nodes.
// Costs:  nothing. All layouts compute the same loss and the same gradients.
// Narayanan et al. 2021 (PTD-P), section 5.
// Left out: ZeRO, recomputation and other micro-batch sizes, which also change memory and time.
#include "08_3d/layouts.h"

size_t layouts_of(size_t world, Degrees most, Degrees layout[MOST_LAYOUTS]) {
    size_t n = 0;
    for (size_t tp = 1; tp <= world && tp <= most.tp; tp++)
        for (size_t pp = 1; tp * pp <= world && pp <= most.pp; pp++) {
            Degrees degrees = { .dp = world / (tp * pp), .tp = tp, .pp = pp };
            if (world % (tp * pp) != 0 || degrees.dp > most.dp) continue;
            if (n == MOST_LAYOUTS) fault("%zu ranks have too many layouts", world);
            layout[n++] = degrees;
        }
    return n;
}

// In the usual order of a mesh tp varies fastest and pp slowest (01_mesh.c). In the opposite order
// pp varies fastest and tp slowest, so the ranks of a tensor-parallel group are far apart, often in
// different nodes.
size_t opposite_order(Degrees n, size_t r) {
    Coordinates c = mesh_coordinates(n, r);
    return c.pp + n.pp * (c.dp + n.dp * c.tp);
}

// Each process searches for the key for which process(n, key) is its own rank in `world`. This key
// becomes the rank of the process in the new world. The split sends a few numbers, once.
Comm *layout_reordered(Comm *world, Degrees n, LayoutOrder *process) {
    size_t key = 0;
    while (process(n, key) != world->rank) key++;
    return comm_split(world, 0, key, "reordered");
}
