// ranks: 1
// level: core
// question: How many tokens does a training step take in a second, and what share of the products' peak is that?
//
// With one rank and without --trainer the program times steps of the unsplit model. Otherwise the
// program times steps of the trainer. The program prints the median time of a step, and the peak of
// the same run. For the peak all ranks multiply square matrices at the same time; the peak is the
// sum of their best rates. `make bench` runs this program beside tools/torch_step.py, which trains
// the same model. With --reference the program measures nothing, but writes the initial weights,
// the tokens and the expected losses, which tools/torch_step.py reads.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "08_3d/safetensors.h"
#include "08_3d/settings.h"
#include "common/device/device.h"
#include "common/base/output.h"
#include "judge/frame/training.h"
#include "tests/bench_files.h"

static const Option options[] = {
    { "layers", "N", "4", "blocks" },
    { "width", "N", "128", "features of a token" },
    { "heads", "N", "4", "attention heads" },
    { "context", "N", "64", "tokens of a sequence" },
    { "vocab", "N", "256", "vocabulary entries" },
    { "batch", "N", "4", "sequences of a step" },
    { "micro-batch", "N", NULL,
      "sequences per replica and micro-batch; by default all of the replica's" },
    { "trainer", NULL, NULL, "use the trainer also with one rank" },
    { "dp", "N", "1", "data-parallel replicas" },
    { "tp", "N", "1", "tensor-parallel ranks of a stage" },
    { "pp", "N", "1", "pipeline stages" },
    { "schedule", "naive|gpipe|1f1b", "1f1b", "order of forwards and backwards in the pipeline" },
    { "zero", "0|1|2|3", "0", "ZeRO stage: shards state, gradients and weights over the replicas" },
    { "seconds", "X", "3",
      "to measure for; at least five steps, after two steps that are not counted" },
    { "square", "N", "1024", "rows of the matrices whose product is the peak" },
    { "reference", "DIR", NULL,
      "only write a start and ten steps: DIR/weights.safetensors, tokens, losses" },
    { "reduce", "ordered|fast", "fast", NULL },
    STORAGE_OPTION,
    { 0 },
};
enum { WARM_UP = 2, FEWEST = 5, MOST = 5000, REFERENCE_STEPS = 10 };

// ---------------------------------------------------------------- the peak

// Returns the FLOP/s of this rank's best product.
static double measure_peak(size_t square) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, square, square), y = tensor_new(&a, square, square),
           z = tensor_new(&a, square, square);
    double best = INFINITY, flops = 2 * pow((double)square, 3);
    tensor_randomize(x, 1, 1);
    tensor_randomize(y, 2, 1);
    op_matmul(z, x, y);
    for (double end = now() + 0.5; now() < end;) {
        double start = now();
        op_matmul(z, x, y);
        device_synchronize();
        best = fmin(best, now() - start);
    }
    arena_free(&a);
    return flops / best;
}

// ------------------------------------------------ a step of the unsplit model or of the trainer

typedef struct {
    Trainer *trainer; // NULL: the unsplit model
    Model *model;
    Optimizer optimizer;
    Data data;
    size_t batch;
} Subject;

static double unsplit_step(Subject *s, uint64_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(&s->data, &tokens, step, 0, s->batch, s->batch);
    model_zero_gradients(s->model);
    double loss = model_forward_backward(s->model, &b) * b.token_weight;
    model_fold_tied(s->model);
    optimizer_step(&s->optimizer, s->model, clip_factor(model_grad_norm(s->model, NULL), 1));
    arena_free(&tokens);
    return loss;
}
static double one_step(Subject *s, uint64_t step) {
    if (!s->trainer) return unsplit_step(s, step);
    StepResult r = trainer_gradients(s->trainer, &s->data, step);
    trainer_update(s->trainer, r);
    return r.loss;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double user_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec;
}

// Returns the median time of a step between two barriers. The slowest rank sets this time. *steps
// must be 0, and receives the number of measured steps. *user receives this rank's mean user CPU
// time per measured step.
static double measure_steps(Run *run, Subject *s, double budget, size_t *steps, double *user) {
    double *seconds = host_alloc(MOST * sizeof *seconds), begun = 0;
    bool more = true;
    for (size_t step = 0; more; step++) {
        comm_barrier(run->world);
        double start = now();
        one_step(s, step);
        device_synchronize();
        comm_barrier(run->world);
        if (step == WARM_UP) begun = start;
        if (step + 1 == WARM_UP) *user = user_seconds();
        if (step >= WARM_UP) seconds[(*steps)++] = now() - start;
        more = *steps < FEWEST || (now() - begun < budget && *steps < MOST);
        side_broadcast(&more, sizeof more); // rank 0's clock decides
    }
    *user = (user_seconds() - *user) / (double)*steps;
    qsort(seconds, *steps, sizeof *seconds, ascending);
    double median = seconds[*steps / 2];
    free(seconds);
    return median;
}

// ---------------------------------------------------------------- a reference for another program

// Writes the initial weights, the tokens of every step [sequences, T + 1] as int32, and the loss of
// every step before its update.
static void write_reference(Run *run, Subject *s, const char *directory) {
    char path[512];
    mkdir(directory, 0777);
    snprintf(path, sizeof path, "%s/weights.safetensors", directory);
    if (run->is_root) safetensors_require(&s->model->config, path);
    safetensors_export(s->model, path, sizeof(real) == 8 ? FILE_F64 : FILE_F32);
    size_t T = s->data.context, M = s->batch * T;
    int *tokens = host_alloc(M * sizeof *tokens), *targets = host_alloc(M * sizeof *targets);
    FILE *f = file_of(directory, "tokens"), *losses = file_of(directory, "losses");
    for (size_t step = 0; step < REFERENCE_STEPS; step++) {
        Arena a = arena(MEM_WORKSPACE);
        Batch b = data_batch(&s->data, &a, step, 0, s->batch, s->batch);
        device_download(tokens, b.tokens, M * sizeof *tokens);
        device_download(targets, b.targets, M * sizeof *targets);
        for (size_t i = 0; i < s->batch; i++) {
            fwrite(tokens + i * T, sizeof *tokens, T, f);
            fwrite(targets + (i + 1) * T - 1, sizeof *targets, 1, f);
        }
        fprintf(losses, "%.9g\n", one_step(s, step));
        arena_free(&a);
    }
    bool written = ferror(f) == 0 && ferror(losses) == 0;
    if (fclose(f) != 0 || fclose(losses) != 0 || !written)
        fault("--reference %s: is the disk full?", directory);
    free(tokens);
    free(targets);
    check_true(run, "written", directory, true);
}

// ---------------------------------------------------------------- the run

// Returns the FLOPs of the matrix products of a step on this many tokens. Forward takes 2 (12 L C^2
// + V C) + 4 L T C FLOPs per token, because the attention's products cover masked keys, too.
// Backward takes twice as many.
static double flops_of(const ModelConfig *c, double tokens) {
    double L = (double)c->layers, C = (double)c->width;
    return 3 * tokens *
           (2 * (12 * L * C * C + (double)c->vocab * C) + 4 * L * (double)c->context * C);
}

static void bench(Run *run) {
    size_t dp = option_size(run, "dp"), batch = option_size(run, "batch"), steps = 0;
    TrainerConfig c = { .model = { .layers = option_size(run, "layers"),
                                   .width = option_size(run, "width"),
                                   .seed = run->seed,
                                   .heads = option_size(run, "heads"),
                                   .context = option_size(run, "context"),
                                   .vocab = option_size(run, "vocab") },
                        .mesh = { dp, option_size(run, "tp"), option_size(run, "pp"), 1 },
                        .batch = batch,
                        .clip = 1,
                        .schedule = settings_schedule(option_text(run, "schedule")),
                        .reduction = trainer_reduction((size_t)atoi(option_text(run, "zero")),
                                                       false, false, false) };
    c.micro_batch = option_given(run, "micro-batch") ? option_size(run, "micro-batch")
                    : dp                             ? ceil_div(batch, dp)
                                                     : 1;
    config_store(run, &c.model);
    trainer_require(&c);
    double seconds_most = option_real(run, "seconds");
    const char *reference = option_text(run, "reference");
    bool unsplit = run->world->size == 1 && !option_flag(run, "trainer");
    REQUIRE(seconds_most > 0 && option_size(run, "square") > 0,
            "--seconds and --square must be more than 0");
    REQUIRE(!reference || unsplit,
            "--reference: only the unsplit model writes one; use one rank, without --trainer");

    Subject s = { .batch = batch, .optimizer = adamw(1e-3) };
    s.data = data_synthetic(c.model.vocab, c.model.context, run->seed);
    s.data.ragged = false;
    memory_set_poison(false); // filling new memory with NaN takes time
    double peak = reference ? 1 : measure_peak(option_size(run, "square"));
    comm_all_reduce_doubles(run->world, &peak, 1);
    if (unsplit) {
        s.model = model_describe(&c.model, model_layers(&c.model));
        model_allocate(s.model);
        optimizer_allocate(&s.optimizer, s.model);
    } else {
        s.trainer = trainer_new(run->world, &c, s.optimizer);
    }
    if (reference) {
        write_reference(run, &s, reference);
    } else {
        double user = 0, seconds = measure_steps(run, &s, seconds_most, &steps, &user);
        double tokens = (double)(batch * c.model.context), flops = flops_of(&c.model, tokens);
        size_t resident = resident_most(), *sizes, *all;
        all = side_gather(&resident, sizeof resident, &sizes);
        for (size_t r = 0; run->is_root && r < run->world->size; r++)
            resident = all[r] > resident ? all[r] : resident;
        say(run,
            "%zu parameters, %zu tokens per step: %.3f ms (median of %zu), %.0f tokens/s, %.2f of "
            "the peak of %.1f GFLOP/s, %.0f MB resident in a process",
            config_parameters(&c.model), batch * c.model.context, 1e3 * seconds, steps,
            tokens / seconds, flops / seconds / peak, 1e-9 * peak, 1e-6 * (double)resident);
        report_config_number(run, "step_seconds", seconds);
        report_config_number(run, "step_user_seconds", user);
        report_config_number(run, "tokens_per_second", tokens / seconds);
        report_config_number(run, "peak_share", flops / seconds / peak);
        report_config_number(run, "peak_flops", peak);
        report_config_number(run, "resident_bytes", (double)resident);
        if (run->is_root) {
            free(all);
            free(sizes);
        }
        // If a step seems much faster than its products at the peak, the clock did not wait for the
        // step's end, or the FLOPs are counted wrongly.
        check_true(run, "a step is no faster than its products", "at the peak",
                   flops <= 1.5 * seconds * peak);
    }
    if (s.trainer) trainer_free(s.trainer);
    else model_free(s.model);
    data_free(&s.data);
}

EXPERIMENT(bench, options);
