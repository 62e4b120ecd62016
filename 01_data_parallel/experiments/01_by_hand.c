// 01_by_hand.c: prints the gradients of two samples, which a reader can compute on paper. Then a
// linear layer 10 -> 5 is trained for 100 epochs under each rule, on 100 samples in 4 shards of 25.
// AVERAGE and WHOLE must give the weights of the full batch. SUM must give the weights of the full
// batch with four times the learning rate.
#include "01_data_parallel/experiments/linear.h"

enum { IN = 10, OUT = 5, SAMPLES = 100, SHARDS = 4, SHARD = SAMPLES / SHARDS };
// The loss of every tenth epoch is recorded. LAST_PRINTED is the last of these epochs.
enum { EPOCHS = 100, PRINTED = EPOCHS / 10, LAST_PRINTED = 10 * (PRINTED - 1) };

// --------------------------------------------------------------- two samples, two shards, on paper

static void on_paper(Run *run) {
    static const real x[] = { 1, 2, 3, 0 }, target[] = { 0, 2, 3, 4 };
    const Linear identity = { .in = 2, .out = 2, .w = { 1, 0, 0, 1 } };
    const Samples both = { 2, x, target };
    Linear g, full;
    say(run, "On paper: 2 samples, one per shard: x = [1 2], target [0 2], and x = [3 0], target "
             "[3 4].");
    say(run, "y = xW + b, W = identity, b = 0, so y = x. Loss: the mean of (y - target)^2.");
    for (size_t k = 0; k < 2; k++) {
        double loss = linear_loss(&g, &identity, (Samples){ 1, x + 2 * k, target + 2 * k }, 2);
        linear_say_gradient(run, page_text(run, "shard %zu: loss %.2f", k, loss), &g, "");
    }
    double shard_loss[2], got[2][4];
    Linear sum = sum_over_shards(&identity, both, 2, OWN_COUNT, shard_loss);
    Linear whole = sum_over_shards(&identity, both, 2, WHOLE_COUNT, shard_loss);
    linear_loss(&full, &identity, both, 4);
    linear_say_gradient(run, "the sum of both", &sum, "");
    linear_say_gradient(run, "both at once", &full, "   the sum divided by 2");
    linear_say_gradient(run, "each divided by 4, then added", &whole,
                        "   the batch has 4 elements");
    static const double by_pencil[] = { 0.5, -6, 1, 0 };
    for (size_t i = 0; i < 4; i++) {
        got[0][i] = (double)sum.w[i] / 2;
        got[1][i] = (double)whole.w[i];
    }
    check_numbers(run, "on paper", "dW, averaged", got[0], by_pencil, 4, 0);
    check_numbers(run, "on paper", "dW, each divided by the whole batch", got[1], by_pencil, 4, 0);
}

// ---------------------------------------------------------------- trained

typedef struct {
    Linear layer;
    double loss[PRINTED]; // of all samples, in epochs 0, 10, 20, ...
} Trained;

static Trained train(const Linear *start, Samples all, Rule rule, double lr) {
    Trained t = { .layer = *start };
    for (size_t epoch = 0; epoch < EPOCHS; epoch++) {
        double shard_loss[SHARDS];
        double loss = train_epoch(&t.layer, all, SHARDS, rule, lr, shard_loss);
        if (epoch % 10 == 0) t.loss[epoch / 10] = loss;
    }
    return t;
}

typedef bool Judge(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
static void compare(Run *run, Judge *judge, const char *what, const Trained *got,
                    const Trained *want, double limit) {
    Snapshot *a = snapshot_new(run), *b = snapshot_new(run);
    linear_put(a, &got->layer, "W", "b");
    linear_put(b, &want->layer, "W", "b");
    judge(run, what, a, b, limit);
    snapshot_free(a);
    snapshot_free(b);
    if (judge == check_close)
        check_numbers(run, what, "loss", got->loss, want->loss, PRINTED, limit);
}

static void table(Run *run, const Trained *const of[5]) {
    Result rows[] = { { "full batch", "the mean over all elements", { 0 } },
                      { "shards averaged", "mean gradients of the shards, averaged", { 0 } },
                      { "shards added", "each shard divides by the batch; then added", { 0 } },
                      { "trap: means added", "mean gradients of the shards, added", { 0 } },
                      { "full batch, rate x 4", "its steps are as long as the trap's", { 0 } },
                      { 0 } };
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 3; k++)
            rows[i].cell[k] = page_text(run, "=%.4f", of[i]->loss[k * (PRINTED - 1) / 2]);
    say(run,
        "\n%d samples of %d outputs (%d elements) in %d shards of %d, learning rate 0.01. One step "
        "is one\nepoch. The loss:\n",
        SAMPLES, OUT, SAMPLES * OUT, SHARDS, SHARD);
    results(run, (const char *const[]){ "epoch 0", "epoch 40", "epoch 90", NULL }, rows);
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1,
            "01_by_hand plays its four devices itself: start it with one rank");
    on_paper(run);

    real x[SAMPLES * IN], target[SAMPLES * OUT];
    const Samples all = { SAMPLES, x, target };
    Linear start = { .in = IN, .out = OUT };
    linear_random(run, &start, x, target, SAMPLES);
    Trained whole = train(&start, all, FULL_BATCH, 0.01);
    Trained averaged = train(&start, all, AVERAGE, 0.01);
    Trained divided = train(&start, all, WHOLE, 0.01);
    Trained summed = train(&start, all, SUM, 0.01);
    Trained quick = train(&start, all, FULL_BATCH, SHARDS * 0.01);
    table(run, (const Trained *const[]){ &whole, &averaged, &divided, &summed, &quick });

    compare(run, check_close, "averaged = full batch", &averaged, &whole, LIMIT_ROUNDING);
    compare(run, check_close, "sum / whole batch = full batch", &divided, &whole, LIMIT_ROUNDING);
    compare(run, check_close, "summed, lr 0.01 = full, lr 0.04", &summed, &quick, LIMIT_ROUNDING);
    compare(run, check_differs, "trap: summed, not averaged", &summed, &whole, 0.05);
    say_answer(
        run,
        "Add them if each gradient is divided by the batch's %d elements (loss %.4f in epoch %d). "
        "Average them if each is divided by its own %d (%.4f). If means are added, each "
        "step is %d times too long. The loss is then lower (%.4f) only because a rate %d "
        "times as large makes the same steps.",
        SAMPLES * OUT, divided.loss[PRINTED - 1], LAST_PRINTED, SHARD * OUT,
        averaged.loss[PRINTED - 1], SHARDS, summed.loss[PRINTED - 1], SHARDS);
    say_cost(run,
             "every device has a copy of all %d parameters, and %d gradient elements per device "
             "are added in each step.",
             IN * OUT + OUT, IN * OUT + OUT);
    say_use_when(
        run,
        "a batch is cut over devices. Divide by the whole batch and add, because "
        "this is right for unequal shards, too. PyTorch's DDP averages, so multiply each rank's "
        "loss by N there.");
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
