// ranks: 1
// level: core
// question: How close are trainings in 16 bits to the training in reals, over 300 steps of a text?
//
// Trains a small GPT on one device in five ways, from the same weights on the same tokens. `make
// bench ARGS="--only storage"` runs this program beside tools/torch_storage.py, which trains the
// same model. --reference writes the initial weights, the tokens and the losses for that program.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "06_zero/zero.h"
#include "common/device/device.h"
#include "08_3d/safetensors.h"
#include "judge/frame/training.h"
#include "tests/bench_files.h"

enum { REAL, MAIN, STORED, NO_MASTER, FP16, WAYS };
typedef struct {
    const char *id, *name;
    Element storage;
    bool main_gradients, no_master;
    LossScale scale;
} Way;
static const Way ways[WAYS] = {
    [REAL] = { "real", REAL_NAME, REALS, true, false, { .factor = 1 } },
    [MAIN] = { "main", "bf16, gradients " REAL_NAME, BF16S, true, false, { .factor = 1 } },
    [STORED] = { "stored", "bf16, gradients bf16", BF16S, false, false, { .factor = 1 } },
    [NO_MASTER] = { "no_master", "bf16, no master", BF16S, true, true, { .factor = 1 } },
    [FP16] = { "fp16",
               "fp16, gradients fp16",
               FP16S,
               false,
               false,
               { .factor = 0x1p16, .patience = 100 } },
};

static Training training(Run *run, const Way *way) {
    Training t = { .model = { .layers = 2,
                              .width = 64,
                              .heads = 4,
                              .context = 32,
                              .vocab = 256,
                              .seed = run->seed,
                              .storage = way->storage,
                              .main_gradients = way->main_gradients },
                   .steps = option_size(run, "steps"),
                   .sequences = option_size(run, "batch"),
                   .micro_batches = 1,
                   .optimizer = adamw(option_real(run, "lr")),
                   .clip = 1 };
    t.optimizer.no_master = way->no_master;
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           t.sequences);
    return t;
}

// Writes the tokens of a step, [sequences, T + 1] as int32.
static void write_tokens(FILE *f, const Training *t, const Batch *b) {
    size_t T = t->model.context, M = t->sequences * T;
    int *tokens = host_alloc(M * sizeof *tokens), *targets = host_alloc(M * sizeof *targets);
    device_download(tokens, b->tokens, M * sizeof *tokens);
    device_download(targets, b->targets, M * sizeof *targets);
    for (size_t i = 0; i < t->sequences; i++) {
        fwrite(tokens + i * T, sizeof *tokens, T, f);
        fwrite(targets + (i + 1) * T - 1, sizeof *targets, 1, f);
    }
    free(tokens);
    free(targets);
}

typedef struct {
    double last; // the mean loss of the last steps
    LossScale scale;
} Seen;

// loss[s] receives the loss of step s. Unless `directory` is NULL, also writes the initial weights
// and the tokens of all steps into `directory`, for --reference.
static Seen train(Run *run, const Way *way, double *loss, const char *directory) {
    Training t = training(run, way);
    Comm *dp = comm_split(run->world, 0, 0, "dp");
    Model *m = model_describe(&t.model, model_layers(&t.model));
    Seen seen = { .scale = way->scale };
    FILE *tokens_file = NULL;
    mixed_allocate(m, dp, &t.optimizer);
    if (directory) {
        char path[512];
        mkdir(directory, 0777);
        snprintf(path, sizeof path, "%s/weights.safetensors", directory);
        safetensors_require(&t.model, path);
        safetensors_export(m, path, sizeof(real) == 8 ? FILE_F64 : FILE_F32);
        tokens_file = file_of(directory, "tokens");
    }
    const size_t last = option_size(run, "last");
    for (size_t s = 0; s < t.steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(&t, &tokens, s, 1, 0);
        progress(run, way->name, s, t.steps);
        if (tokens_file) write_tokens(tokens_file, &t, batch);
        loss[s] = mixed_step(m, dp, &seen.scale, batch, 1, &t.optimizer, t.clip).loss;
        if (s + last >= t.steps) seen.last += loss[s] / (double)last;
        free(batch);
        arena_free(&tokens);
    }
    progress(run, way->name, t.steps, t.steps);
    if (tokens_file && (ferror(tokens_file) || fclose(tokens_file) != 0))
        fault("--reference %s: is the disk full?", directory);
    model_free(m);
    comm_free(dp);
    data_free(&t.data);
    return seen;
}

static void write_losses(const char *directory, const double *loss, size_t steps) {
    FILE *f = file_of(directory, "losses");
    for (size_t s = 0; s < steps; s++) fprintf(f, "%.9g\n", loss[s]);
    if (ferror(f) || fclose(f) != 0) fault("--reference %s: is the disk full?", directory);
}

static void bench(Run *run) {
    const size_t steps = option_size(run, "steps"), last = option_size(run, "last");
    const char *directory = option_text(run, "reference");
    double *loss[WAYS];
    Seen seen[WAYS];
    REQUIRE(run->world->size == 1, "the ways train on one device: start one rank");
    REQUIRE(last > 0 && last <= steps && option_size(run, "batch") > 0,
            "--last must be from 1 to --steps, and --batch at least 1");
    memory_set_poison(false); // filling new memory with NaN takes time
    for (size_t w = 0; w < WAYS; w++) {
        loss[w] = host_alloc(steps * sizeof(double));
        seen[w] = train(run, &ways[w], loss[w], w == REAL ? directory : NULL);
    }
    if (directory) write_losses(directory, loss[REAL], steps);
    say(run, "%-24s %10s %10s %10s  loss of the last %zu steps, beside %s", "step", "100", "200",
        "300", last, ways[REAL].name);
    for (size_t w = 0; w < WAYS; w++) {
        double at[3];
        char id[32], skipped[48] = "";
        for (size_t k = 0; k < 3; k++) at[k] = loss[w][(k + 1) * steps / 3 - 1];
        if (seen[w].scale.skipped)
            snprintf(skipped, sizeof skipped, ", %zu steps skipped", seen[w].scale.skipped);
        say(run, "%-24s %10.4f %10.4f %10.4f  %.4f, %+.4f%s", ways[w].name, at[0], at[1], at[2],
            seen[w].last, seen[w].last - seen[REAL].last, skipped);
        snprintf(id, sizeof id, "loss.%s", ways[w].id);
        report_config_number(run, id, seen[w].last);
    }
    double earlier = 0; // as .last of REAL, but the mean begins and ends one step earlier
    for (size_t s = steps - last; s < steps; s++)
        earlier += loss[REAL][s > 0 ? s - 1 : 0] / (double)last;
    say(run,
        "The loss still falls by %.4f per step, and a run with a skipped step is one step behind. "
        "A smaller\ndistance has another sign with another --seed.",
        earlier - seen[REAL].last);
    // Each way must have learnt. Otherwise its distance from reals says nothing.
    for (size_t w = 0; w < WAYS; w++)
        check_true(run, ways[w].name, "the loss falls by a quarter",
                   seen[w].last < 0.75 * loss[w][0]);
    for (size_t w = 0; w < WAYS; w++) free(loss[w]);
}

static const Option options[] = {
    { "steps", "N", "300", "training steps of each way" },
    { "last", "N", "20", "last steps, whose losses are averaged" },
    { "batch", "N", "16", "sequences of a step" },
    { "lr", "X", "2e-4", "learning rate of AdamW" },
    { "data", "FILE", "LICENSE", "the text" },
    { "reference", "DIR", NULL,
      "also write the start, the tokens and the losses of reals: DIR/weights.safetensors, ..." },
    { 0 },
};
EXPERIMENT(bench, options);
