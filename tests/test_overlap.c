// test_overlap.c: checks that messages move while ranks compute. The test uses the order of events,
// because times on a busy machine mean nothing. A stage computes forward k + 1 without a stop until
// the next stage has begun forward k with the message sent before. Backwards do the same in the
// other direction. If a message needed its sender inside Comm, or a receiver that polls, both
// stages would wait for each other.
//
// ranks: 2
// level: core
// question: Does a message move while its sender computes?
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/frame/lesson.h"

enum { MICRO = 5, WIDTH = 1024, ROWS = 768, LIMIT = 120 /* seconds, against a hang */ };
static const ModelConfig model = {
    .layers = 0, .width = WIDTH, .heads = 1, .context = ROWS, .vocab = 2
};

// All processes share a Board. begun[op][stage][micro-batch]: the stage has begun this op.
typedef struct {
    atomic_bool begun[2][16][MICRO];
} Board;
static _Thread_local struct {
    Board *board;
    size_t stage, stages;
    bool silent, late;
} me;

// Computes until the neighbour `stage` has begun this op of micro-batch k, or sets me.late after
// LIMIT seconds. With `silent` the stage sleeps instead, so no code of this tree runs meanwhile.
static void compute_until(int what, size_t stage, size_t k) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, 64, 64), y = tensor_new(&a, 64, 64);
    tensor_fill(x, 1);
    for (double since = now(); !me.board->begun[what][stage][k] && !me.late;
         me.late = now() > since + LIMIT)
        if (me.silent) usleep(100);
        else op_matmul(y, x, x);
    arena_free(&a);
}

// Runs a layer's forward. Every layer fills y with the number of the micro-batch. Only the first
// layer of a stage also checks x, and computes until the next stage has begun the micro-batch
// before.
static void meter_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    tensor_fill(y, (real)b->number);
    if (l->technique) return;
    me.board->begun[FORWARD][me.stage][b->number] = true;
    if (x.data && tensor_sum(tensor_row_range(x, 0, 1)) != (double)(b->number * WIDTH))
        fault("another message came");
    if (me.stage + 1 < me.stages && b->number > 0)
        compute_until(FORWARD, me.stage + 1, b->number - 1);
}
static void meter_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dy;
    (void)s;
    if (dx.data) tensor_fill(dx, 1);
    if (l->technique) return;
    me.board->begun[BACKWARD][me.stage][b->number] = true;
    if (me.stage > 0 && b->number > 0) compute_until(BACKWARD, me.stage - 1, b->number - 1);
}
static const LayerKind meter = {
    .name = "meter", .output = hidden_shape, .forward = meter_forward, .backward = meter_backward
};

static Board *board_of(Run *run) {
    const char *path = option_text(run, "board");
    REQUIRE(path, "--board FILE: name a file; all processes share it");
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Board)) != 0) fault("%s cannot be written", path);
    void *p = mmap(NULL, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) fault("%s cannot be mapped", path);
    close(file);
    return p;
}

static void overlap(Run *run) {
    Comm *w = run->world;
    ModelConfig c = model;
    c.layers = w->size;
    me.board = board_of(run);
    me.stage = w->rank;
    me.stages = w->size;
    me.silent = option_flag(run, "silent");
    Model *m = model_describe(&c, pipeline_stage_layers(&c, NULL, w->size, w->rank));
    for (size_t i = 0; i < m->n_layers; i++) {
        m->layers[i].kind = &meter;
        m->layers[i].technique = i ? m : NULL;
    }
    ScheduleRule rule =
        strcmp(option_text(run, "schedule"), "gpipe") ? schedule_1f1b : schedule_gpipe;
    Schedule s = rule(w->size, MICRO, w->rank);
    Batch batch[MICRO];
    for (size_t k = 0; k < MICRO; k++) batch[k] = (Batch){ .B = 1, .T = ROWS, .number = k };
    comm_barrier(w);
    PipelineResult r = pipeline_run(w, m, &s, batch, MICRO);
    check_true(run, "messages move while their senders compute", option_text(run, "schedule"),
               !me.late);
    check_true(run, "the pipeline ran", "in flight", r.in_flight > 0);
    schedule_free(&s);
    model_free(m);
}

static const Option options[] = {
    { "board", "FILE", NULL, "a file that all processes share: of zeros, or not yet there" },
    { "schedule", "gpipe|1f1b", "gpipe", "the order of forwards and backwards" },
    { "silent", NULL, NULL, "compute without products: only a single copy moves messages then" },
    { "timeout", "SECONDS", "300", NULL },
    { 0 },
};
EXPERIMENT(overlap, options);
