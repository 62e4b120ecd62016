// scatter.c: a message between two stages of t tensor-parallel ranks each, sent in t parts (05.03):
// the next stage gets every bit, and each rank sends 1/t of the bytes.
#include "05_pipeline_1f1b/experiments/experiments.h"

// Stage 0 has the first t ranks of the world, stage 1 the next t. An odd last rank is in no stage.
void check_scatter_gather(Run *run, const ModelConfig *c) {
    size_t t = run->world->size / 2, i = run->world->rank, stage = t ? i / t : 0;
    bool in = t && stage < 2;
    Comm *tp = comm_split(run->world, in ? stage : 2, i, "tp");
    Comm *pp = comm_split(run->world, in ? i % t : t, i, "pp");
    Arena a = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&a, 3 * c->context, c->width),
           x = tensor_new(&a, 3 * c->context, c->width);
    tensor_randomize(y, run->seed, 1); // the same values on every rank, so that each can compare
    tensor_fill(x, 0);
    if (in) {
        comm_connect(pp, COMM_NEIGHBOURS);
        if (stage == 0) pipeline_send_scattered(pp, tp, y, 1);
        else pipeline_recv_gathered(pp, tp, x, 0);
    }
    check_true(run, "scatter/gather", "the next stage has the message, every bit",
               !in || !stage || tensor_equal(x, y));
    size_t count = tensor_count(y), E = sizeof(real);
    bool sends = in && stage == 0, gathers = in && stage == 1;
    size_t part = sends ? part_size(count, t, tp->rank) * E : 0;
    double gathered = gathers ? ring_bytes(ONE_PASS, t, count, E) : 0;
    double sent = pp->ledger[COMM_SEND].bytes;
    check_costs(run, "scatter.%s", "scatter/gather: bytes %s",
                (CostRow[]){ { "sent", "between stages", "bytes", BY_FORMULA(part), sent },
                             { "gathered", "inside a stage", "bytes", BY_FORMULA(gathered),
                               tp->ledger[COMM_ALL_GATHER].bytes },
                             { "all", "between stages, all ranks", "bytes",
                               BY_FORMULA(t ? count * E : 0), sum_of_ranks(run, sent) },
                             { 0 } });
    comm_free(tp);
    comm_free(pp);
    arena_free(&a);
}
