// way_cut.c: cuts a model in one of the six ways of 12_compare.c, and lists the groups that send.
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/context_parallel.h"

void way_cut(WayCut *w, Model *m, Data *d) {
    Comm *world = w->world;
    const TensorWayShape shape = tensor_way_shape(w->way, world->size);
    switch (w->way) {
    case WAY_1D: tensor_parallel(m, world); break;
    case WAY_SP: sequence_parallel(m, world, KEEP_SHARD); break;
    case WAY_2D:
        w->grid = comm_grid(world, shape.q, shape.q, 1);
        summa(m, &w->grid);
        break;
    case WAY_25D:
        w->grid = tesseract_grid(world, shape.depth);
        tesseract(m, &w->grid);
        break;
    case WAY_3D:
        w->cube = cube_new(world);
        w->cube.gather_again = true;
        cube_parallel(m, &w->cube);
        break;
    case WAY_RING: d->positions = context_parallel(m, world, &ring_attention_zigzag); break;
    case TENSOR_WAYS: break;
    }
}
size_t way_groups(const WayCut *w, Comm *group[WAY_GROUPS]) {
    const CommGrid *g = w->way == WAY_3D ? &w->cube.grid : &w->grid;
    size_t n = 0;
    group[n++] = w->world;
    if (g->in_row) {
        group[n++] = g->in_row;
        group[n++] = g->in_col;
        group[n++] = g->in_depth;
    }
    if (w->way == WAY_3D) {
        group[n++] = w->cube.same_col;
        group[n++] = w->cube.same_row;
    }
    return n;
}
void way_free(WayCut *w) {
    if (w->way == WAY_3D) cube_free(&w->cube);
    else if (w->grid.in_row) comm_grid_free(&w->grid);
}
// In 1D all ranks have the same loss, on a grid the ranks of a row have it. In 3D the layer already
// sets copies to 0. On the ring each rank has tokens of its own.
bool way_loss_counts(const WayCut *w) {
    switch (w->way) {
    case WAY_1D:
    case WAY_SP: return w->world->rank == 0;
    case WAY_2D:
    case WAY_25D: return w->grid.col == 0;
    default: return true;
    }
}
