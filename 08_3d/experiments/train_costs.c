// train_costs.c checks the costs of a training's last step against the predictions.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// Sets axes[] to the communicators along the axes of the tp group's grid or cube. An axis that the
// grid or cube lacks is NULL.
enum { AXES = 5 };
static void tensor_axes(const Trainer *t, Comm *axes[AXES]) {
    const CommGrid *g = t->config.tensor == TENSOR_3D ? &t->cube.grid : &t->grid;
    axes[0] = g->in_row;
    axes[1] = g->in_col;
    axes[2] = g->in_depth;
    axes[3] = t->cube.same_col;
    axes[4] = t->cube.same_row;
}

void train_costs_begin(Trainer *t) {
    Comm *groups[] = { t->mesh.world, t->mesh.tp,   t->mesh.pp, t->mesh.replicas,
                       t->mesh.model, t->mesh.tied, t->mesh.cp };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) comm_ledger_reset(groups[i]);
    Comm *axes[AXES];
    tensor_axes(t, axes);
    for (size_t i = 0; i < AXES; i++)
        if (axes[i]) comm_ledger_reset(axes[i]);
    memory_reset_peaks();
}

static void closed(Run *run, const char *id, const char *name, const char *unit, size_t want,
                   size_t measured) {
    check_cost(run, id, name, unit, formula((double)want), NOT_PREDICTED, (double)measured);
}
static void tensor_costs(Run *run, const Trainer *t, const Prediction *p) {
    const Comm *tp = t->mesh.tp;
    closed(run, "tp.calls", "tensor-parallel calls", "calls", p->tp_calls,
           tp->ledger[COMM_ALL_REDUCE].calls);
    if (t->config.sequence) {
        closed(run, "tp.gathers", "tensor-parallel gathers", "calls", p->tp_gathers,
               tp->ledger[COMM_ALL_GATHER].calls);
        closed(run, "tp.scatters", "tensor-parallel scatters", "calls", p->tp_scatters,
               tp->ledger[COMM_REDUCE_SCATTER].calls);
    }
    closed(run, "tp.sent", "tensor-parallel traffic", "bytes sent", p->tp_bytes,
           comm_bytes_sent(tp));
}
static void grid_costs(Run *run, const Trainer *t, const Prediction *p) {
    Comm *axes[AXES];
    size_t calls = 0, sent = 0, received = 0;
    tensor_axes(t, axes);
    for (size_t i = 0; i < AXES && axes[i]; i++) {
        for (size_t kind = 0; kind < COMM_KINDS; kind++) calls += axes[i]->ledger[kind].calls;
        sent += comm_bytes_sent(axes[i]);
        received += comm_bytes_received(axes[i]);
    }
    closed(run, "tp.calls", "tensor-parallel calls", "calls", p->tp_calls, calls);
    closed(run, "tp.sent", "tensor-parallel traffic", "bytes sent", p->tp_bytes, sent);
    closed(run, "tp.received", "tensor-parallel traffic, received", "bytes", p->tp_received,
           received);
}

// Returns the time of this rank's sum over replicas, from the arrival of the last replica.
// Collective over dp.
static double sum_took(const Trainer *t) {
    const Comm *dp = t->mesh.dp;
    double *begun = host_alloc(dp->size * sizeof *begun), last = 0;
    begun[dp->rank] = (double)t->reduction[0];
    ledger_pause();
    comm_all_reduce_doubles(t->mesh.dp, begun, dp->size);
    ledger_resume();
    for (size_t i = 0; i < dp->size; i++) last = fmax(last, begun[i]);
    free(begun);
    return (double)t->reduction[1] - last;
}
static void compression_cost(Run *run, const Trainer *t, const Prediction *p) {
    size_t calls = 0;
    for (size_t kind = 0; kind < COMM_KINDS; kind++) calls += t->mesh.dp->ledger[kind].calls;
    closed(run, "dp.calls", "compressed sums", "calls", p->dp_calls, calls);
    if (clock_config()->simulated)
        check_cost(run, "dp.time", "sum over replicas", "ps", NOT_PREDICTED, played(p->dp_time),
                   sum_took(t));
    closed(run, "compression.factors", "factors, between steps", "bytes", p->compression,
           memory_now(MEM_COMMUNICATION));
    if (t->config.mesh.pp == 1) // in a pipeline the messages of stages may be larger
        closed(run, "communication.peak", "communication, peak", "bytes", p->compression_peak,
               memory_peak(MEM_COMMUNICATION));
}

void train_costs_end(Run *run, Trainer *t) {
    const Mesh *m = &t->mesh;
    Prediction p = predict_step(&t->config, run->world->rank, t->optimizer.kind == ADAMW);
    (t->config.tensor != TENSOR_1D ? grid_costs : tensor_costs)(run, t, &p);
    closed(run, "pp.sent", "pipeline traffic", "bytes sent", p.pp_bytes, comm_bytes_sent(m->pp));
    closed(run, "dp.sent", "data-parallel traffic", "bytes sent", p.dp_bytes,
           comm_bytes_sent(m->replicas));
    if (m->cp)
        closed(run, "cp.sent", "context-parallel traffic", "bytes sent", p.cp_bytes,
               comm_bytes_sent(m->cp));
    if (t->config.reduction == REDUCE_IN_BUCKETS)
        closed(run, "dp.buckets", "data-parallel buckets", "calls", p.dp_calls,
               m->replicas->ledger[COMM_ALL_REDUCE].calls);
    if (t->config.reduction == REDUCE_COMPRESSED) compression_cost(run, t, &p);
    closed(run, "tied.sent", "tied embedding", "bytes sent", p.tied_bytes,
           m->tied ? comm_bytes_sent(m->tied) : 0);
    closed(run, "scalars.sent", "loss and norm", "bytes sent", p.scalar_bytes,
           comm_bytes_sent(m->world) + comm_bytes_sent(m->model));
    closed(run, "parameters", "parameters", "bytes", p.parameters, memory_now(MEM_PARAMETERS));
    closed(run, "gradients", "gradients", "bytes", p.gradients, memory_now(MEM_GRADIENTS));
    closed(run, "optimizer", "optimizer state", "bytes", p.optimizer, memory_now(MEM_OPTIMIZER));
    closed(run, "activations", "activations, peak", "bytes", p.activations,
           memory_peak(MEM_ACTIVATIONS));
    if (t->config.activation_budget)
        check_true(run, "activations", "the measured peak is within --activation-budget",
                   memory_peak(MEM_ACTIVATIONS) <= t->config.activation_budget);
}
