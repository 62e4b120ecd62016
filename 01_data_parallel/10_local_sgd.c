// ranks: 4
// level: extra
// question: Can replicas train alone for k steps, average their weights, and still learn as well?
// vary: SEQUENCES 5..11, EXACT 1..3, EVERY 2..3, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has a replica, as in 02_all_reduce. Inside a round the replicas differ. The
//         moments of AdamW or SGD are never averaged. An outer step needs 2 Psi elements more, for
//         the weights at the round's start and the outer step's velocity.
// Sends:  once per round of k steps the ranks all-reduce the weights or the change of the weights.
//         Each rank then sends 2(N-1)/N of Psi elements. In the k-1 steps before, the ranks send
//         nothing. In exact steps before the first round the ranks all-reduce the gradient.
// Saves:  (k-1)/k of the bytes and of the latencies of 02_all_reduce. Ranks wait for the slowest
//         rank once per round.
// Costs:  the training is not the unsplit one, because a gradient is taken at weights that lack the
//         other ranks' last steps. At k = 1 with SGD the training is that of 02_all_reduce, within
//         rounding.
// For any k the training must have the bits of one device that trains N copies in turn and averages
// their weights.
// Stich 2019 (arXiv 1805.09767), algorithm 1; Lin et al. 2020 (arXiv 1808.07217): post-local SGD;
// Douillard et al. 2023 (arXiv 2311.08105): DiLoCo. Left out: k that changes, and overlapping.
#include "01_data_parallel/local_sgd.h"

LocalSgd local_sgd_new(Comm *dp, const Model *m, LocalPlan plan) {
    LocalSgd l = { .dp = dp, .plan = plan, .weights = m->w, .state = arena(MEM_OPTIMIZER) };
    if (m->w.element != REALS) l.weights = tensor_new(&l.state, 1, m->size);
    if (plan.outer_lr == 0) return l;
    l.start = tensor_new(&l.state, 1, m->size);
    l.velocity = tensor_new(&l.state, 1, m->size);
    tensor_copy(l.start, m->w);
    tensor_fill(l.velocity, 0);
    return l;
}
void local_sgd_free(LocalSgd *l) { arena_free(&l->state); }

bool local_sgd_round_ends(const LocalPlan *plan, uint64_t step) {
    return step >= plan->exact && (step - plan->exact + 1) % plan->every == 0;
}

// Replaces t [Psi] by the mean of t over the ranks. Each rank sends 2 (N-1)/N Psi e bytes (e: bytes
// of a real). All ranks get the same bits, because every rank scales the same sum.
static void average(Comm *dp, Tensor t) {
    comm_all_reduce(dp, t);
    op_scale(t, t, (real)1 / (real)dp->size);
}

// Makes DiLoCo's outer step. The ranks average how far each rank has moved in the round. The mean
// is the gradient of the outer step, which begins at the weights of the round's start and has
// Nesterov momentum. With rate 1 and without momentum the outer step gives the plain average.
static void outer_step(LocalSgd *l, Model *m) {
    const real rate = (real)l->plan.outer_lr, momentum = (real)l->plan.outer_momentum;
    Tensor delta = m->g; // between two steps the gradient's buffer is free
    // EXERCISE 01.10a (5 points): the outer step. First delta = l->start - l->weights, this rank's
    // way in the round. Average it over the ranks of l->dp: ONE all-reduce, and every rank divides.
    // Then velocity = momentum velocity + delta. Nesterov looks one step ahead, so the weights
    // become start - rate (delta + momentum velocity), with the new velocity. Leave them in
    // l->weights, and in l->start for the next round. The results must have the bits of these
    // formulas, with delta + momentum velocity computed first. Use op_sgd, op_scale and op_add
    // (common/tensor/ops.h): op_sgd(w, g, s, lr, 0) is w -= lr s g.
    tensor_copy(delta, l->start);
    op_sgd(delta, l->weights, 1, 1, 0);
    average(l->dp, delta);
    op_scale(l->velocity, l->velocity, momentum);
    op_add(l->velocity, l->velocity, delta);
    op_sgd(delta, l->velocity, momentum, -1, 0); // delta += momentum velocity
    op_sgd(l->start, delta, 1, rate, 0);
    tensor_copy(l->weights, l->start);
    // END
}

// Copies the masters into l->weights if the model stores weights in 16 bits. A local step is often
// too small for the last place of 16 bits, so a round averages the masters, which are reals.
// l->weights holds all masters side by side, so one all-reduce adds them. If the model stores
// reals, l->weights is m->w, and nothing is copied.
static void gather_masters(const LocalSgd *l, const Model *m) {
    size_t at = 0;
    for (size_t i = 0; i < m->n_units && l->weights.data != m->w.data; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;
        tensor_copy(tensor_flat_range(l->weights, at, at + u->size), u->master);
        at += u->size;
    }
}
static void return_masters(const LocalSgd *l, const Model *m) {
    size_t at = 0;
    for (size_t i = 0; i < m->n_units && l->weights.data != m->w.data; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;
        tensor_copy(u->master, tensor_flat_range(l->weights, at, at + u->size));
        tensor_copy(u->w, u->master); // rounds each weight once
        at += u->size;
    }
}

void local_sgd_end_round(LocalSgd *l, Model *m) {
    gather_masters(l, m);
    if (l->start.data) outer_step(l, m);
    else average(l->dp, l->weights);
    return_masters(l, m);
}

// Leaves in m->g N times the gradient of this shard's part of the batch's mean loss. A counted
// token has the same weight on every rank, also if shards have different numbers of tokens. The
// mean over the ranks is then the gradient of the whole batch. Returns this shard's part of the
// batch's mean loss.
static double local_gradients(const LocalSgd *l, Model *m, const Data *d, uint64_t step,
                              size_t sequences) {
    Arena tokens = arena(MEM_WORKSPACE);
    const size_t N = l->dp->size;
    const Range shard = shard_range(sequences, N, l->dp->rank);
    const double mean = 1 / (double)data_count(d, step, 0, sequences);
    Batch b = data_micro_batch(d, &tokens, step, shard.lo, range_size(shard), (double)N * mean);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * mean;
    model_fold_tied(m);
    arena_free(&tokens);
    return loss;
}

double local_sgd_step(LocalSgd *l, Model *m, Optimizer *o, const Data *d, uint64_t step,
                      size_t sequences) {
    const bool exact = step < l->plan.exact;
    double loss = local_gradients(l, m, d, step, sequences);
    // Post-local SGD: the first steps, in which weights change fast, are those of 02_all_reduce.
    if (exact) average(l->dp, m->g);
    optimizer_step(o, m, 1); // on this rank's weights, with this rank's moments
    if (exact && l->start.data) {
        gather_masters(l, m);
        tensor_copy(l->start, l->weights);
    }
    if (local_sgd_round_ends(&l->plan, step)) local_sgd_end_round(l, m);
    return loss;
}
