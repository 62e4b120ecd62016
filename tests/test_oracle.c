// test_oracle.c: compares ten steps of a small GPT with PyTorch's steps in double. tests/oracle.py
// has written PyTorch's results to tests/oracle.txt, so the test needs no PyTorch. Dropout is off,
// because its random numbers differ from PyTorch's. Sequences end early at different lengths, and
// gradients are clipped. With --init the model and the results come from the library transformers
// (tests/llama.py).
//
// ranks: 1
// level: core
// question: Do the unsplit model and the trainer compute what PyTorch computes?
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/settings.h"
#include "08_3d/trainer.h"
#include "08_3d/weights.h"
#include "common/device/device.h"
#include "judge/frame/training.h"

static const ModelConfig sizes = { .layers = 2, .width = 4, .heads = 2, .context = 5, .vocab = 7 };
enum { STEPS = 10, BATCH = 4 };
static const double clip = 0.9, limit = 1e-8;

static const Option options[] = {
    { "file", "FILE", "tests/oracle.txt", "PyTorch's results" },
    { "start", NULL, NULL, "only print the initial weights and all tokens, for tests/oracle.py" },
    { "init", "PATH", NULL,
      "start with the model in this folder; --file then has only losses and norms" },
    { "unsplit", NULL, NULL, "use the unsplit model on one rank instead of the trainer" },
    { "optimizer", "sgd|adamw", "sgd", "the optimizer of the training" },
    { "dp", "N", "1", "data-parallel replicas" },
    { "tp", "N", "1", "tensor-parallel ranks of a stage" },
    { "pp", "N", "1", "pipeline stages" },
    { "cp", "N", "1", "context-parallel ranks" },
    { "sequence-parallel", NULL, NULL,
      "with --tp: norms, dropout and residual paths on 1/tp of the rows" },
    { "tensor", "1d|2d|2.5d|3d", "1d", "how tp ranks cut a layer" },
    { "recompute", "none|selective|full", "none", "activations that backward computes again" },
    { "zero", "0|1|2|3", "0", "ZeRO stage: shards state, gradients and weights over the replicas" },
    { "micro-batch", "N", "4", "the most sequences per replica and micro-batch" },
    { 0 },
};

// ---------------------------------------------- the file has lines of a name and numbers

// Returns the n numbers in the line of this name. Calls fault() if the file has no such line, or if
// the line does not have n numbers.
static double *numbers_of(FILE *f, const char *name, size_t n) {
    double *values = host_alloc(n * sizeof *values);
    char *line = NULL, *end;
    size_t room = 0, length = strlen(name), found = 0;
    rewind(f);
    while (getline(&line, &room, f) > 0) {
        if (strncmp(line, name, length) || line[length] != ' ') continue;
        char *at = line + length;
        for (double v = strtod(at, &end); end != at; v = strtod(at = end, &end)) {
            if (found < n) values[found] = v;
            found++;
        }
        break;
    }
    free(line);
    if (found != n)
        fault("the file has %zu numbers for %s, not %zu: tests/oracle.py writes it anew", found,
              name, n);
    return values;
}

static void put(Snapshot *s, FILE *f, const char *what, const Param *p) {
    Arena a = arena(MEM_REFERENCE);
    char name[80];
    size_t n = p->rows * p->cols;
    snprintf(name, sizeof name, "%s.%s", what, p->name);
    double *values = numbers_of(f, name, n);
    real *x = host_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (real)values[i];
    Tensor t = tensor_new(&a, p->rows, p->cols);
    tensor_upload(t, x);
    snapshot_put(s, p->name, p->rows, p->cols, t, 0, 0);
    free(values);
    free(x);
    arena_free(&a);
}

// Returns PyTorch's values of every tensor of the whole model, from the lines whose names begin
// with `what` and a dot. Only rank 0 has the file, so the other ranks get an empty snapshot.
static Snapshot *expected(Run *run, FILE *f, const char *what) {
    Snapshot *s = snapshot_new(run);
    if (!f) return s;
    Model *whole = model_describe(&sizes, model_layers(&sizes));
    for (size_t i = 0; i < whole->n_units; i++)
        for (size_t k = 0; k < whole->units[i].n_params && !whole->units[i].tied_to; k++)
            put(s, f, what, &whole->units[i].params[k]);
    model_free(whole);
    return s;
}

static void print_numbers(Tensor t) {
    real *x = host_alloc(tensor_count(t) * sizeof *x);
    tensor_download(x, t);
    for (size_t i = 0; i < tensor_count(t); i++) printf(" %.17g", (double)x[i]);
    printf("\n");
    free(x);
}

static void print_start(const ModelConfig *c, const Data *d) {
    Model *m = model_describe(c, model_layers(c));
    model_allocate(m);
    printf("sizes %zu %zu %zu %zu %zu %d %d\n", c->layers, c->width, c->heads, c->context, c->vocab,
           STEPS, BATCH);
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++) {
            printf("start.%s", m->units[i].params[k].name);
            print_numbers(m->units[i].params[k].w);
        }
    for (size_t step = 0; step < STEPS; step++) {
        Arena a = arena(MEM_WORKSPACE);
        Batch b = data_batch(d, &a, step, 0, BATCH, BATCH);
        int tokens[2][256];
        size_t M = b.B * b.T;
        if (M > 256) fault("a step has %zu tokens: more than 256", M);
        device_download(tokens[0], b.tokens, M * sizeof(int));
        device_download(tokens[1], b.targets, M * sizeof(int));
        for (size_t which = 0; which < 2; which++) {
            printf("%s%zu", which ? "targets" : "tokens", step);
            for (size_t i = 0; i < M; i++) printf(" %d", tokens[which][i]);
            printf("\n");
        }
        arena_free(&a);
    }
    model_free(m);
}

// ---------------------------------------------------------------- ten steps

static StepResult unsplit_gradients(Model *m, const Data *d, size_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, 0, BATCH, BATCH);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);
    arena_free(&tokens);
    return (StepResult){ loss, model_grad_norm(m, NULL) };
}

static void compare(Run *run, FILE *f, const char *heading, const char *what, Snapshot *got) {
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", heading, what ? "." : "", what ? what : "");
    Snapshot *want = expected(run, f, name);
    check_close(run, name, got, want, limit);
    snapshot_free(want);
    snapshot_free(got);
}

static void oracle(Run *run) {
    bool unsplit = option_flag(run, "unsplit");
    const char *name = option_text(run, "optimizer"), *path = option_text(run, "file");
    ModelConfig c = sizes;
    c.seed = run->seed;
    Weights init = { 0 };
    const bool other = option_given(run, "init");
    if (other) init = weights_open(run->world, "init", option_text(run, "init"), NULL, run->seed);
    if (other) c = init.model;
    Data d = data_synthetic(c.vocab, c.context, run->seed);
    if (option_flag(run, "start")) {
        print_start(&c, &d);
        data_free(&d);
        return;
    }
    REQUIRE(sizeof(real) == sizeof(double),
            "the numbers are PyTorch's in double: make PRECISION=fp64");
    FILE *f = run->world->rank == 0 ? fopen(path, "r") : NULL;
    REQUIRE(f || run->world->rank > 0, "--file %s cannot be read", path);
    Optimizer o = strcmp(name, "sgd") ? adamw(0.01) : sgd(0.1);
    o.weight_decay = strcmp(name, "sgd") ? 0.1 : 0; // decay of matrices only
    Trainer *t = NULL;
    Model *m;
    if (unsplit) {
        m = model_describe(&c, model_layers(&c));
        model_allocate(m);
        optimizer_allocate(&o, m);
    } else {
        TrainerConfig config = { .model = c,
                                 .batch = BATCH,
                                 .micro_batch = option_size(run, "micro-batch"),
                                 .clip = clip,
                                 .mesh = { option_size(run, "dp"), option_size(run, "tp"),
                                           option_size(run, "pp"), option_size(run, "cp") },
                                 .tensor = settings_tensor(option_text(run, "tensor")),
                                 .schedule = schedule_1f1b,
                                 .sequence = option_flag(run, "sequence-parallel"),
                                 .recompute = settings_recompute(option_text(run, "recompute")),
                                 .reduction =
                                     trainer_reduction((size_t)atoi(option_text(run, "zero")),
                                                       false, false, false) };
        trainer_require(&config);
        t = trainer_new(run->world, &config, o);
        m = t->model;
    }
    if (other) {
        weights_fill(&init, m);
        weights_close(&init);
    } else {
        Snapshot *start = snapshot_new(run);
        model_snapshot(m, start, UNIT_WEIGHTS, NULL);
        compare(run, f, "start", NULL, start);
    }
    double loss[STEPS], norm[STEPS];
    for (size_t step = 0; step < STEPS; step++) {
        StepResult r = t ? trainer_gradients(t, &d, step) : unsplit_gradients(m, &d, step);
        loss[step] = r.loss, norm[step] = r.norm;
        if (!other && (step == 0 || step + 1 == STEPS)) {
            Snapshot *s = snapshot_new(run);
            model_snapshot(m, s, UNIT_GRADIENTS, NULL);
            compare(run, f, name, step ? "last-gradients" : "first-gradients", s);
        }
        if (t) trainer_update(t, r);
        else optimizer_step(&o, m, clip_factor(r.norm, clip));
    }
    if (!other) {
        Snapshot *weights = snapshot_new(run);
        model_snapshot(m, weights, UNIT_WEIGHTS, NULL);
        compare(run, f, name, "weights", weights);
    }
    char key[2][32];
    snprintf(key[0], sizeof key[0], "%s.loss", name);
    snprintf(key[1], sizeof key[1], "%s.norm", name);
    for (size_t i = 0; i < 2; i++) {
        double *want = f ? numbers_of(f, key[i], STEPS) : NULL;
        check_numbers(run, key[i], "of ten steps", i ? norm : loss, want, STEPS, limit);
        free(want);
    }
    if (f) fclose(f);
    if (t) trainer_free(t);
    else model_free(m);
    data_free(&d);
}

EXPERIMENT(oracle, options);
