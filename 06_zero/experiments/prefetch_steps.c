// prefetch_steps.c: lists the computations, messages and memory of each rank in a step of ZeRO-3
// with prefetch, from sizes alone. judge/play computes times and the peak in flight from the list.
#include "06_zero/experiments/experiments.h"

// Layer i of n = L + 2 gathers one unit. The embedding gathers wpe, a block its own unit, and the
// head the last norm.
typedef struct {
    const Training *t;
    CutSizes z;
    Play *play;
    size_t w, g;           // bytes of a weight, and of its gradient
    size_t N, rank, dp, n; // dp: the player's group of all N ranks
    bool reshard;
} Steps;

static size_t unit(const Steps *s, size_t i) { return elements_unit(&s->z, i); }
static void hold(const Steps *s, size_t bytes) {
    play_hold(s->play, s->rank, MEM_COMMUNICATION, bytes);
}
static void drop(const Steps *s, size_t bytes) {
    play_drop(s->play, s->rank, MEM_COMMUNICATION, bytes);
}
// Starts the gather of layer i's weights. Returns its place in the rank's list.
static size_t gather(const Steps *s, size_t i) {
    hold(s, unit(s, i) * s->w);
    return play_start(s->play, s->rank, s->dp, COMM_ALL_GATHER, unit(s, i), s->w);
}
// Returns the bytes held beside layer i's gradient during its reduction. With several ranks comm.c
// holds a buffer as large as the gradient, for the contributions of all ranks. After the first
// micro-batch a rank also holds the reduced part, which is added to own_g.
static size_t reducing(const Steps *s, size_t i, size_t k) {
    size_t N = s->N, copy = N > 1 ? N * ceil_div(unit(s, i), N) : 0;
    return (copy + (k > 0 ? part_size(unit(s, i), N, s->rank) : 0)) * s->g;
}
// Adds `products` times the work of layer i's forward, for micro-batch k, to the rank's list.
static void compute(const Steps *s, size_t i, size_t k, double products) {
    size_t B = zero_sequences(s->t, s->N, s->rank, k);
    Work work = { 0 }; // the embedding has no product of matrices
    if (i > 0) work = i + 1 < s->n ? work_block(&s->z, B) : work_head(&s->z, B);
    play_work(s->play, s->rank, (Picoseconds)(products * work.time));
}

static void micro_batch(const Steps *s, size_t k) {
    size_t n = s->n, next = gather(s, 0), reduction = 0;
    for (size_t i = 0; i < n; i++) {
        size_t weights = next;
        if (i + 1 < n) next = gather(s, i + 1);
        play_wait(s->play, s->rank, weights);
        compute(s, i, k, 1);
        if (s->reshard) drop(s, unit(s, i) * s->w);
    }
    if (s->reshard) next = gather(s, n - 1);
    for (size_t i = n; i-- > 0;) {
        size_t weights = next;
        if (s->reshard && i > 0) next = gather(s, i - 1);
        if (s->reshard) play_wait(s->play, s->rank, weights);
        hold(s, unit(s, i) * s->g); // holds the gradient
        compute(s, i, k, 2);
        drop(s, unit(s, i) * s->w); // drops the weights
        if (i + 1 < n) {
            play_wait(s->play, s->rank, reduction);
            drop(s, unit(s, i + 1) * s->g + reducing(s, i + 1, k));
        }
        hold(s, reducing(s, i, k));
        reduction = play_start(s->play, s->rank, s->dp, COMM_REDUCE_SCATTER, unit(s, i), s->g);
    }
    play_wait(s->play, s->rank, reduction);
    drop(s, unit(s, 0) * s->g + reducing(s, 0, k));
}

Play *prefetch_steps(const Training *t, size_t N, bool reshard) {
    Play *play = play_new(N, clock_config());
    Steps s = { .t = t, .z = cut_sizes(&t->model, 1, 0), .play = play, .N = N, .reshard = reshard };
    const size_t wte = elements_wte(&s.z), tables = stage_tables(&s.z);
    const size_t gradients = stage_table_gradients(&s.z);
    s.w = weight_bytes(&t->model);
    s.g = gradient_bytes(&t->model);
    s.n = t->model.layers + 2;
    s.dp = play_group(play, "dp", 0, N, 1);
    for (s.rank = 0; s.rank < N; s.rank++) {
        // Holds each table's weights, and a gradient for each use of a table.
        hold(&s, wte * (tables * s.w + gradients * s.g));
        for (size_t i = 0; i < tables; i++)
            play_call(play, s.rank, s.dp, COMM_ALL_GATHER, wte, s.w);
        for (size_t k = 0; k < t->micro_batches; k++) micro_batch(&s, k);
        for (size_t i = 0; i < tables; i++)
            play_call(play, s.rank, s.dp, COMM_REDUCE_SCATTER, wte, s.g);
        play_call(play, s.rank, s.dp, COMM_ALL_REDUCE, config_tensors(&t->model), sizeof(double));
        play_call(play, s.rank, s.dp, COMM_ALL_REDUCE, 1, sizeof(double));
    }
    if (!play_run(play)) fault("the expected steps of prefetch deadlock");
    return play;
}
