// 10_local_sgd.c: compares N ranks with the same rule on one device, in every bit. The rules are
// plain averages and DiLoCo's outer step, after exact first steps. k = 1 must be the unsplit
// training within rounding. Bytes, memory and time are compared with formulas. The loss is measured
// on a text.
#include "01_data_parallel/local_sgd.h"
#include "01_data_parallel/experiments/experiments.h"
#include <stdlib.h>

enum { SEQUENCES = 7, EVERY = 3, EXACT = 2, LONG = 96, SEEDS = 3, PLANS = 5 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};
static const LocalPlan plan[PLANS] = {
    { 1, 0, 0, 0 }, { 4, 0, 0, 0 }, { 16, 0, 0, 0 }, { 48, 0, 0, 0 }, { 16, 0, 0.7, 0.9 }
};
static const char *const plan_name[] = { "k = 1", "k = 4", "k = 16", "k = 48", "DiLoCo 16", NULL };
static const char *const plan_id[] = { "%s.k1", "%s.k4", "%s.k16", "%s.k48", "%s.diloco" };

typedef struct {
    Snapshot *weights; // after the last step
    double loss[LONG];
    double after; // the loss of the last weights on the first batches
    size_t sent, state;
    Picoseconds time;
} Course;

static void train_ranks(Run *run, const Training *t, const LocalPlan *p, Course *c) {
    Model *m = whole_model(&t->model);
    Optimizer o = t->optimizer;
    optimizer_allocate(&o, m); // masters of 16-bit weights, else nothing
    LocalSgd l = local_sgd_new(run->world, m, *p);
    const Picoseconds begin = clock_now();
    comm_ledger_reset(run->world);
    for (size_t step = 0; step < t->steps; step++)
        c->loss[step] = local_sgd_step(&l, m, &o, &t->data, step, t->sequences);
    c->time = clock_now() - begin;
    c->sent = comm_bytes_sent(run->world);
    c->state = memory_now(MEM_OPTIMIZER); // of LocalSgd, and with 16-bit storage SGD's masters
    c->after = text_loss(t, m);
    c->weights = snapshot_new(run);
    model_snapshot(m, c->weights, UNIT_WEIGHTS, NULL); // of every rank: the bits must agree
    ledger_pause();
    comm_all_reduce_doubles(run->world, c->loss, t->steps);
    ledger_resume();
    local_sgd_free(&l);
    model_free(m);
}

// Sets mean [n] to the mean of N rows, added in rank order.
static void mean_of(real *mean, const real *row, size_t N, size_t n) {
    for (size_t i = 0; i < n; i++) {
        mean[i] = row[i];
        for (size_t r = 1; r < N; r++) mean[i] += row[r * n + i];
        mean[i] *= (real)1 / (real)N;
    }
}

// Trains by the rule on one device, with SGD. One model computes the gradients of N replicas, one
// after the other. The weights w [N, n] and gradients g [N, n] of the replicas are host memory.
// With 16-bit storage w holds the masters, and tensor_upload() rounds the model's weights. N = 1
// without an outer step is the unsplit training.
static void train_one_device(Run *run, const Training *t, const LocalPlan *p, size_t N, Course *c) {
    c->weights = snapshot_new(run);
    if (run->world->rank > 0) return;
    ledger_pause();
    Model *m = whole_model(&t->model);
    const size_t n = m->size;
    const real lr = (real)t->optimizer.lr, momentum = (real)p->outer_momentum;
    real *w = host_alloc((2 * N + 3) * n * sizeof(real)); // zeros
    real *g = w + N * n, *mean = g + N * n, *start = mean + n, *velocity = start + n;
    for (size_t r = 0; r <= N; r++) tensor_download(r < N ? w + r * n : start, m->w);
    for (size_t step = 0; step < t->steps; step++) {
        for (size_t r = 0; r < N; r++) {
            Arena a = arena(MEM_REFERENCE);
            const Range shard = shard_range(t->sequences, N, r);
            Batch b = data_batch(&t->data, &a, step, shard.lo, range_size(shard), t->sequences);
            const double weight = b.token_weight; // 1 / (counted tokens of the whole batch)
            b.token_weight *= (double)N;
            tensor_upload(m->w, w + r * n);
            model_zero_gradients(m);
            c->loss[step] += model_forward_backward(m, &b) * weight;
            model_fold_tied(m);
            tensor_download(g + r * n, m->g);
            arena_free(&a);
        }
        const bool exact = step < p->exact;
        mean_of(mean, g, N, n);
        for (size_t i = 0; i < N * n; i++) w[i] -= lr * (exact ? mean[i % n] : g[i]);
        for (size_t i = 0; exact && i < n; i++) start[i] = w[i];
        if (exact || (step - p->exact) % p->every != p->every - 1) continue;
        // The rest of the loop ends a round.
        for (size_t i = 0; p->outer_lr > 0 && i < N * n; i++) w[i] = start[i % n] - w[i];
        mean_of(mean, w, N, n);
        for (size_t i = 0; p->outer_lr > 0 && i < n; i++) {
            velocity[i] = momentum * velocity[i] + mean[i];
            start[i] -= (real)p->outer_lr * (mean[i] + momentum * velocity[i]);
            mean[i] = start[i];
        }
        for (size_t i = 0; i < N * n; i++) w[i] = mean[i % n];
    }
    tensor_upload(m->w, w);
    model_snapshot(m, c->weights, UNIT_WEIGHTS, NULL);
    model_free(m);
    free(w);
    ledger_resume();
}

static void check_rule(Run *run, const char *what, const Training *t, const LocalPlan *p, size_t N,
                       double limit) {
    Course got = { 0 }, want = { 0 };
    train_ranks(run, t, p, &got);
    train_one_device(run, t, p, N, &want);
    if (limit > 0) check_close(run, what, got.weights, want.weights, limit);
    else check_equal(run, what, got.weights, want.weights);
    check_numbers(run, what, "loss of every step", got.loss, want.loss, t->steps, limit);
    snapshot_free(got.weights);
    snapshot_free(want.weights);
}

// Checks that a training on text with plan p learns, and checks its costs.
static void check_plan(Run *run, const Training *t, size_t p, const Course *c) {
    const size_t N = run->world->size, e = sizeof(real), Psi = config_parameters(&t->model);
    const double rounds = (double)LONG / (double)plan[p].every;
    // 16-bit storage adds the masters, and a tensor into which a round copies all masters.
    const size_t states = (plan[p].outer_lr > 0 ? 2 : 0) + (t->model.storage == REALS ? 0 : 2);
    const double state = (double)(states * Psi * e);
    const double time = LONG * work_model(&t->model, part_size(t->sequences, N, 0)).time +
                        rounds * ring_time(ALL_REDUCE_PASSES, N, Psi, e);
    check_true(run, "trained on text: the loss falls by a quarter", plan_name[p],
               c->after < 0.75 * c->loss[0]);
    check_costs(run, plan_id[p], page_text(run, "%s: %%s", plan_name[p]),
                (const CostRow[]){
                    { "sent", "sent by a rank", "bytes",
                      BY_FORMULA(rounds * ring_bytes(ALL_REDUCE_PASSES, N, Psi, e)),
                      (double)c->sent },
                    { "state", "outer step's state", "bytes", BY_FORMULA(state), (double)c->state },
                    { clock_config()->simulated ? "time" : NULL, "all steps", "ps",
                      BY_FORMULA(time), (double)c->time },
                    { 0 } });
}

// Sets last[p] to the loss of plan p after LONG steps on a text, the mean over SEEDS seeds. Returns
// the number of parameters of the model.
static size_t learn(Run *run, double last[PLANS]) {
    Training t = text_training(run, LONG, 8, option_real(run, "lr"));
    for (size_t i = 0; i < SEEDS * PLANS; i++) {
        const size_t p = i % PLANS;
        Course c = { 0 };
        progress(run, "training", i, SEEDS * PLANS);
        t.model.seed = t.data.seed = run->seed + i / PLANS;
        train_ranks(run, &t, &plan[p], &c);
        snapshot_free(c.weights);
        last[p] += c.after / SEEDS;
        // Every seed has the same costs, so only the first seed's are checked.
        if (i < PLANS) check_plan(run, &t, p, &c);
    }
    progress(run, "training", SEEDS * PLANS, SEEDS * PLANS);
    data_free(&t.data);
    return config_parameters(&t.model);
}

#define EACH(id) \
    { id ".k1", id ".k4", id ".k16", id ".k48", id ".diloco" }

static void page(Run *run, const double last[PLANS]) {
    const bool reals = option_storage(run) == REALS;
    const char *loss[PLANS];
    for (size_t p = 0; p < PLANS; p++) loss[p] = page_text(run, "=%.2f", last[p]);
    results(run, plan_name,
            (const Result[]){ { "sent per rank, 96 steps", "96/k 2(N-1)/N Psi e", EACH("sent") },
                              { reals ? "outer step's state" : "masters, outer step's state",
                                reals ? "2 Psi e" : "2 Psi e; and 2 Psi e", EACH("state") },
                              { "loss after 96 steps",
                                "a text; mean of 3 seeds",
                                { loss[0], loss[1], loss[2], loss[3], loss[4] } },
                              { clock_config()->simulated ? "96 steps take" : NULL,
                                "96 (3F) + 96/k R", EACH("time") },
                              { 0 } });
    if (run->world->size == 1)
        say_answer(run, "One rank has nobody to average with. Only DiLoCo's outer step changes its "
                        "training.");
    else
        say_answer(
            run,
            "%s, if steps and learning rate are equal: the loss is %.2f at k = 1, %.2f at k = 4 "
            "and %.2f at k = 48. At k = 16 it is %.2f, and with DiLoCo's outer step %.2f. The "
            "bytes fall to 1/k.",
            last[1] > last[0] && last[2] > last[0] && last[3] > last[0]
                ? "Not quite as well"
                : "With these weights and this rate some k do",
            last[0], last[1], last[3], last[2], last[4]);
    say_cost(run,
             "the training is not the unsplit one. DiLoCo needs %s more state per rank: "
             "v, and the weights at the start of the round.",
             value_text(run, cost_value(run, "state.diloco") - cost_value(run, "state.k16"),
                        "bytes"));
    say_use_when(
        run,
        "an all-reduce takes as long as a step's computation or longer, as between data centres. "
        "Keep k as small as the link allows.");
}

static void local_sgd(Run *run) {
    const LocalPlan post = { EVERY, EXACT, 0, 0 }, diloco = { EVERY, EXACT, 0.7, 0.9 };
    const LocalPlan shown = { EVERY, 1, 0, 0 };
    const size_t N = run->world->size;
    Training t = synthetic_training(run, &tiny, 1 + EVERY, SEQUENCES);
    double last[PLANS] = { 0 };
    Course c = { 0 };
    picture_begin(run, MEM_ACTIVATIONS);
    train_ranks(run, &t, &shown, &c);
    picture_end(run);
    snapshot_free(c.weights);
    picture_show(run,
                 page_text(run, "An exact step, then a round of k = %d local steps and its average",
                           EVERY),
                 PICTURE_CHART);
    t.steps = EXACT + 2 * EVERY;
    check_rule(run, "k = 1 is the unsplit training", &t, &plan[0], 1, rounding_limit(run));
    check_rule(run, "post-local SGD = the rule on one device", &t, &post, N, exact_limit(run));
    check_rule(run, "DiLoCo = the rule on one device", &t, &diloco, N, exact_limit(run));
    const size_t text_parameters = learn(run, last);
    say(run,
        "\nA round: each rank takes k steps of SGD alone, then the ranks average their weights. "
        "DiLoCo 16:\nk = 16, and an outer step: a second optimizer with Nesterov momentum. Its "
        "gradient d: the weights\nat the start of the round minus the mean at its end. v <- "
        "momentum v + d, w <- start - rate (d +\nmomentum v). (DiLoCo's paper has AdamW in the "
        "rounds, here SGD.) N ranks, Psi parameters of e bytes,\nR: an all-reduce, F: forward of a "
        "shard (a backward takes 2F). The table is of another model, on a\ntext (Psi e = %s). The "
        "picture's model has %s.%s\n",
        value_text(run, (double)(text_parameters * sizeof(real)), "bytes"),
        value_text(run, (double)(config_parameters(&tiny) * sizeof(real)), "bytes"),
        uneven_shares(run, "\n", SEQUENCES));
    page(run, last);
    data_free(&t.data);
}

static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    { "lr", "X", "0.3", "learning rate of the trainings on text" },
    { "link", "NAME[,NAME]", "slow", NULL },
    ONLY_STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(local_sgd, options);
