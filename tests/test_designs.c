// test_designs.c: checks that the judge of schedules and the executor agree on random lists of ops.
// A list that the judge calls legal must run in the executor with the gradients of one device, in
// every bit. A list that the judge calls illegal must deadlock, fail, or give other gradients.
// TEST_SEED repeats a draw.
//
// ranks: 1
// level: core
// question: Does every schedule run that the judge of the design exercises calls legal?
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/device/device.h"
#include "common/model/data.h"
#include "common/tensor/random.h"
#include "judge/frame/lesson.h"
#include "tap.h"
#include "tests/gradients.h"
#include <time.h>

enum { STAGES = 4, MICRO = 14 };
static const ModelConfig sizes = {
    .layers = 4, .width = 4, .heads = 2, .context = 3, .vocab = 7, .dropout = 0.1, .seed = 4
};

// ---------------------------------------------------------------- random lists

typedef struct {
    size_t p, m;
    Schedule stage[STAGES];
} Design;

static uint64_t state; // of the generator of random numbers
static size_t below(size_t n) {
    state = random_key(state, 1);
    return (size_t)(state % n);
}
static void shuffle(size_t *order, size_t n) {
    for (size_t k = n; k > 1; k--) {
        size_t other = below(k), last = order[k - 1];
        order[k - 1] = order[other];
        order[other] = last;
    }
}

// `forwards` and `backwards` are the orders of the stage's forwards and backwards. A stage runs at
// most `most` forwards ahead, unless the next backward needs more. With `halves` a backward may be
// split, and its second half comes at any later place.
static Schedule random_stage(const size_t *forwards, const size_t *backwards, size_t m, size_t most,
                             bool halves) {
    Schedule s = { 0 };
    bool ran[MICRO] = { false };
    size_t f = 0, b = 0, open[MICRO], opened = 0;
    while (b < m || opened > 0) {
        bool forward = f < m && f < b + most, backward = b < m && ran[backwards[b]];
        if (f < m && !backward && opened == 0) forward = true;
        size_t choice = below(8);
        if (forward && (choice < 5 || !backward)) {
            ran[forwards[f]] = true;
            schedule_add(&s, FORWARD, forwards[f++]);
        } else if (backward && (choice < 7 || opened == 0)) {
            bool split = halves && below(2) == 0;
            if (split) open[opened++] = backwards[b];
            schedule_add(&s, split ? BACKWARD_INPUTS : BACKWARD, backwards[b++]);
        } else if (opened > 0) {
            size_t which = below(opened);
            schedule_add(&s, BACKWARD_WEIGHTS, open[which]);
            open[which] = open[--opened];
        }
    }
    return s;
}

static Design random_design(void) {
    Design d = { .p = 2 + below(STAGES - 1), .m = 1 + below(MICRO) };
    size_t forwards[MICRO], backwards[MICRO];
    // In an extreme design a stage runs all forwards ahead, or only one forward. Such stages may
    // wait for each other's send buffers.
    bool halves = below(3) == 0, extreme = below(2) == 0;
    if (extreme) d.m = MICRO - below(6);
    for (size_t k = 0; k < d.m; k++) forwards[k] = backwards[k] = k;
    if (below(2) == 0) shuffle(forwards, d.m);
    if (below(2) == 0) shuffle(backwards, d.m);
    for (size_t i = 0; i < d.p; i++) {
        size_t most = !extreme ? 1 + below(d.m) : below(2) == 0 ? 1 : d.m;
        d.stage[i] = random_stage(forwards, backwards, d.m, most, halves);
    }
    if (below(3) > 0) return d;
    // Two ops of a stage change places, and sometimes the stage's last op is lost, too.
    Schedule *s = &d.stage[below(d.p)];
    size_t at = below(s->n), other = below(s->n);
    PipeOp op = s->ops[at];
    s->ops[at] = s->ops[other];
    s->ops[other] = op;
    if (below(4) == 0) s->n--;
    return d;
}

static void design_free(Design *d) {
    for (size_t i = 0; i < d->p; i++) schedule_free(&d->stage[i]);
}

// ---------------------------------------------------------------- the executor

// Runs the micro-batches on one device, in the order in which this stage finishes them. A backward
// in one op and the second half of a split backward add to the gradients of the weights.
static Model *one_device(const Schedule *list, const Batch *batch) {
    Model *whole = model_describe(&sizes, model_layers(&sizes));
    model_allocate(whole);
    for (size_t e = 0; e < list->n; e++) {
        PipeWhat what = list->ops[e].what;
        if (what == BACKWARD || what == BACKWARD_WEIGHTS)
            model_forward_backward(whole, &batch[list->ops[e].micro_batch]);
    }
    return whole;
}

static void run_design(Comm *world, void *which) {
    Design *d = which;
    Arena tokens = arena(MEM_WORKSPACE);
    Data data = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[MICRO];
    for (size_t k = 0; k < d->m; k++) {
        batch[k] = data_batch(&data, &tokens, 0, k, 1, d->m);
        batch[k].number = k;
    }
    const Schedule *list = &d->stage[world->rank];
    Range layers = pipeline_stage_layers(&sizes, NULL, d->p, world->rank);
    Model *part = model_describe_chunks(&sizes, &layers, 1);
    model_allocate(part);
    zero_bubble_run(world, part, list, batch, d->m);
    Model *whole = one_device(list, batch);
    double differs = !same_gradients(part, whole);
    comm_all_reduce_doubles(world, &differs, 1);
    if (world->rank == 0 && differs > 0) _exit(1);
    model_free(whole);
    model_free(part);
    arena_free(&tokens);
    data_free(&data);
}

static void execute(void *design) {
    Design *d = design;
    end_all_ranks = _exit;
    Launch launch = { .ranks = d->p, .timeout = 60 }; // virtual ranks
    device_init();
    comm_run(&launch, run_design, d);
}

// ---------------------------------------- the executor's message for an impossible list

static void refuses(const char *text, size_t m, const char *words) {
    Design d = { .m = m };
    Schedule *stage = lists_parse(text, &d.p);
    for (size_t i = 0; i < d.p; i++) d.stage[i] = stage[i];
    char said[2048];
    int status = tap_child(execute, &d, said, sizeof said);
    if (!ok(status == 3 && strstr(said, words), "the executor refuses %s: %s", text, words))
        printf("#   status %d, and it said: %s\n", status, said);
    free(stage);
    design_free(&d);
}

static void refused_lists(void) {
    static const char before[] = "runs the backward of micro-batch 0 before its forward, or twice";
    refuses("F0 B0 / F0 B0 / B0 F0", 1, before);
    refuses("F0 F1 B0 B1 / B0 F0 F1 B1", 2, before);
    refuses("F0 I0 W0 / I0 F0 W0", 1, before);
    refuses("F0 F1 B0 B1 / F0 F1 B0 B0", 2, before);
    refuses("F0 I0 W0 / F0 W0 I0", 1, "backward of weights 0 without its backward of inputs");
    refuses("F0 B0 / F0 B0 F1 B1", 1, "op 2 of the list of stage 1 has micro-batch 1, but there");
}

// ---------------------------------------------------------------- the comparison

typedef struct {
    const char *name;
    size_t wanted, tried, agreed, hung;
} Kind; // one for each verdict of the judge

static void print_design(const Design *d, const char *judged, int status, const char *said) {
    printf("#   judge: %s; executor: status %d. %.200s\n#   ", judged, status, said);
    for (size_t i = 0; i < d->p; i++) {
        char *text = schedule_text(&d->stage[i]);
        printf("%s%s", i == 0 ? "" : " / ", text);
        free(text);
    }
    printf("\n");
}

static void try_design(Kind *kinds) {
    Design d = random_design();
    Judgement j = judge_lists(d.stage, d.p, d.m, 1, &(OpTimes){ 1, 1, 1, 0 });
    Kind *kind = &kinds[j.verdict];
    if (kind->tried < kind->wanted) {
        char said[2048];
        int status = tap_child(execute, &d, said, sizeof said);
        bool agrees = (status == 0) == (j.verdict == LISTS_LEGAL);
        kind->tried++;
        kind->hung += status == 3 && strstr(said, "deadlock");
        kind->agreed += agrees;
        if (!agrees) print_design(&d, kind->name, status, said);
    }
    design_free(&d);
}

int main(void) {
    Kind kinds[] = { [LISTS_LEGAL] = { "legal: runs, with the gradients of one device", 150, 0, 0,
                                       0 },
                     [LISTS_NOT_ONCE] = { "an op twice or never: does not run", 10, 0, 0, 0 },
                     [LISTS_WRONG_MESSAGE] = { "a wrong message: other gradients", 15, 0, 0, 0 },
                     [LISTS_DEADLOCK] = { "deadlock: does not run", 40, 0, 0, 0 } };
    const char *seed = getenv("TEST_SEED");
    state = seed != NULL ? strtoul(seed, NULL, 10) : (uint64_t)time(NULL) % 100000;
    printf("# TEST_SEED=%lu\n", (unsigned long)state);
    for (size_t n = 0; n < 3000; n++) try_design(kinds);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        ok(kinds[k].tried == kinds[k].wanted && kinds[k].agreed == kinds[k].tried,
           "%s: %zu of %zu random schedules", kinds[k].name, kinds[k].agreed, kinds[k].wanted);
    refused_lists();
    // If an op comes before an op of the same stage that it needs, the executor fails at this op.
    // In other deadlocks the ranks wait for each other.
    ok(kinds[LISTS_DEADLOCK].hung >= 8, "the executor reports at least 8 of these deadlocks");
    return tap_end();
}
