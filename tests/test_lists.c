// test_lists.c: compares the judge of schedules with the executor on random lists. Every list that
// the judge calls legal must run in the executor, and every message must reach its op. Every list
// that the judge calls a deadlock must also deadlock in the executor, with the same stages waiting
// for the same stages. The layers compute nothing; they only check that they got the right message.
// Also tests the automatic lists of zero bubble and the lists of PipeDream against closed forms.
// TEST_ALL=1 takes 10,000 legal lists. TEST_SEED=N draws other lists.
//
// ranks: 1
// level: core
// question: Does the executor run the lists that the judge calls legal, and only those?
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "common/device/device.h"
#include "common/tensor/random.h"
#include "tap.h"
#include "tests/makespan.h"

enum { MOST_P = 8, MOST_M = 24, MOST_V = 4, MOST_PULLS = 3, TEXT = 4096 };
typedef struct {
    size_t p, m, v;
    Schedule stage[MOST_P];
} Lists;

// ---------------------------------------------------------------- random lists

static uint64_t drawn;
static size_t below(size_t n) {
    drawn = random_key(drawn, 1);
    return drawn % n;
}

// Progress has the ops that a stage has done, and the messages that each stage has sent to this
// stage. A message is stored as the op that takes it.
typedef struct {
    bool done[UPDATE][MOST_V][MOST_M];
    bool halves[MOST_V][MOST_M];                 // this backward has two halves
    PipeOp message[MOST_P][2 * MOST_V * MOST_M]; // [from]
    size_t sent[MOST_P], taken[MOST_P];          // [from]
} Progress;

// Returns whether stage i can run this op without a wait, if sends never wait. A stage takes
// messages in the order in which they were sent.
static bool possible(const Lists *l, const Progress *at, size_t i, PipeOp op) {
    const Progress *own = &at[i];
    bool half = op.what == BACKWARD_INPUTS || op.what == BACKWARD_WEIGHTS;
    if (own->done[op.what][op.chunk][op.micro_batch]) return false;
    if (op.what != FORWARD && half != own->halves[op.chunk][op.micro_batch]) return false;
    StageOp needs;
    if (!pipe_op_needs(op, i, l->p, l->v, &needs)) return true;
    size_t from = needs.stage;
    size_t next = own->taken[from];
    if (from != i) return next < own->sent[from] && pipe_op_is(op, own->message[from][next]);
    const bool(*done)[MOST_V][MOST_M] = own->done;
    PipeOp need = needs.op;
    bool whole = need.what == BACKWARD_INPUTS && done[BACKWARD][need.chunk][need.micro_batch];
    return whole || done[need.what][need.chunk][need.micro_batch];
}

static void add(Lists *l, Progress *at, size_t i, PipeOp op) {
    schedule_add_op(&l->stage[i], op);
    at[i].done[op.what][op.chunk][op.micro_batch] = true;
    StageOp other;
    if (pipe_op_needs(op, i, l->p, l->v, &other) && other.stage != i) at[i].taken[other.stage]++;
    if (!pipe_op_feeds(op, i, l->p, l->v, &other) || other.stage == i) return;
    Progress *to = &at[other.stage];
    to->message[i][to->sent[i]++] = other.op;
}

// The stages take turns at random; stage i adds up to turns[i] ops in a turn. A stage without a
// habit takes a random possible op. A stage with a habit always takes the first possible op
// (forwards come first), or always the last.
static Lists random_lists(void) {
    Lists l = { .p = 1 + below(MOST_P), .m = 1 + below(MOST_M), .v = 1 + below(MOST_V) };
    Progress *at = host_alloc(l.p * sizeof *at);
    size_t turns[MOST_P], habit[MOST_P], halves = below(3), left = 0;
    for (size_t i = 0; i < l.p; i++) {
        turns[i] = 1 + below(8);
        habit[i] = below(4);
        left += 2 * l.m * l.v;
        for (size_t n = 0; n < l.m * l.v; n++) {
            bool cut = halves && below(3) < halves;
            at[i].halves[n / l.m][n % l.m] = cut;
            left += cut;
        }
    }
    while (left) {
        size_t i = below(l.p);
        for (size_t turn = 0; turn < turns[i]; turn++) {
            PipeOp can[UPDATE * MOST_V * MOST_M];
            size_t n = 0;
            for (size_t what = 0; what < UPDATE; what++)
                for (size_t k = 0; k < l.v * l.m; k++) {
                    PipeOp op = { (PipeWhat)what, .chunk = k / l.m, .micro_batch = k % l.m };
                    if (possible(&l, at, i, op)) can[n++] = op;
                }
            if (!n) break;
            add(&l, at, i, can[habit[i] == 0 ? 0 : habit[i] == 1 ? n - 1 : below(n)]);
            left--;
        }
    }
    free(at);
    return l;
}

// Moves an op to an earlier place in its stage's list, past ops of the other direction, or past any
// op. The op never passes the op of this stage that it needs.
static void pull_forward(Lists *l) {
    size_t i = below(l->p), e = below(l->stage[i].n);
    PipeOp *ops = l->stage[i].ops, op = ops[e];
    StageOp needs = { 0 };
    bool own = pipe_op_needs(op, i, l->p, l->v, &needs) && needs.stage == i;
    bool any = below(4) == 0;
    for (; e > 0 && (any || (ops[e - 1].what == FORWARD) != (op.what == FORWARD)); e--) {
        if (own && pipe_op_is(ops[e - 1], needs.op)) return;
        ops[e] = ops[e - 1];
        ops[e - 1] = op;
    }
}

// ---------------------------------------------------------------- the executor, computing nothing

// Returns the value that this layer writes into its output for this micro-batch. `sign` is 1 in
// forward and -1 in backward.
static real mark(const Batch *b, size_t layer, int sign) {
    return (real)(sign * (int)(100 * b->number + layer + 1));
}
static void expect(Tensor t, real want) {
    double got = tensor_sum(t);
    if (got != (double)want) fault("a message reached the wrong op: %g, not %g", got, (double)want);
}
static void marks_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    if (l->number > 0) expect(x, mark(b, l->number - 1, 1));
    tensor_fill(y, mark(b, l->number, 1));
}
static void marks_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)s;
    if (l->number < l->config->layers + 2) expect(dy, mark(b, l->number + 1, -1));
    if (l->number > 0) tensor_fill(dx, mark(b, l->number, -1));
}
static const LayerKind marks = {
    .name = "marks", .output = hidden_shape, .forward = marks_forward, .backward = marks_backward
};

static void run_stage(Comm *world, void *lists) {
    const Lists *l = lists;
    ModelConfig sizes = { .layers = l->p * l->v, .width = 1, .heads = 1, .context = 1, .vocab = 1 };
    Range chunk[MOST_V];
    Batch batch[MOST_M];
    for (size_t c = 0; c < l->v; c++)
        chunk[c] = pipeline_stage_layers(&sizes, NULL, l->p * l->v, c * l->p + world->rank);
    Model *m = model_describe_chunks(&sizes, chunk, l->v);
    for (size_t n = 0; n < m->n_layers; n++) m->layers[n].kind = &marks;
    for (size_t k = 0; k < l->m; k++) batch[k] = (Batch){ .B = 1, .T = 1, .number = k };
    zero_bubble_run(world, m, &l->stage[world->rank], batch, l->m);
    model_free(m);
}

// run() calls run_ranks() in a child process, because a deadlock ends the process.
static void run_ranks(void *lists) {
    const Lists *l = lists;
    Launch launch = { .ranks = l->p, .timeout = 60 }; // virtual ranks
    comm_run(&launch, run_stage, lists);
}
static int run(Lists *l, char *said) { return tap_child(run_ranks, l, said, TEXT); }

// ---------------------------------------------------------------- both compared

static size_t count[LISTS_DEADLOCK + 1], by_buffers, failed[LISTS_DEADLOCK + 1];

// Returns whether the executor's ranks wait for the stages that the judge names. Each line of the
// judge names a stage and the stage that it waits for.
static bool same_waits(const char *why, const char *said) {
    for (const char *line = why; *line; line += strcspn(line, "\n") + 1) {
        size_t i, to;
        char op[16], want[64];
        static const char buffer[] = "stage %zu waits before %15s for a send buffer: stage %zu";
        static const char input[] = "stage %zu waits before %15s for %*s of stage %zu";
        bool send = sscanf(line, buffer, &i, op, &to) == 3;
        if (!send && sscanf(line, input, &i, op, &to) != 3) return false;
        const char *in = send ? "send to" : "recv from";
        snprintf(want, sizeof want, "  rank %zu waits in %s rank %zu of", i, in, to);
        if (!strstr(said, want)) return false;
    }
    return *why;
}

static void compare(Lists *l) {
    char said[TEXT];
    Judgement j = judge_lists(l->stage, l->p, l->m, l->v, &(OpTimes){ 1, 1, 1, 1 });
    int status = run(l, said);
    bool same = (status == 0) == (j.verdict == LISTS_LEGAL);
    if (j.verdict == LISTS_DEADLOCK)
        same = status == 3 && strstr(said, "no rank can go on") && same_waits(j.why, said);
    by_buffers += j.verdict == LISTS_DEADLOCK && strstr(j.why, "send buffer");
    count[j.verdict]++;
    if (!same && !failed[j.verdict]++) {
        printf("# verdict %d, the executor's status %d\n", j.verdict, status);
        printf("# the judge: %s\n# the executor: %s\n", j.why, said);
        for (size_t i = 0; i < l->p; i++) {
            char *text = schedule_text(&l->stage[i]);
            printf("# stage %zu: %s\n", i, text);
            free(text);
        }
    }
    for (size_t i = 0; i < l->p; i++) schedule_free(&l->stage[i]);
}

// Makes equal lists for all stages: all forwards of a chunk, then all forwards of the next chunk,
// then the backwards from the last chunk to the first.
static Lists breadth_first(size_t p, size_t v, size_t m) {
    Lists l = { .p = p, .m = m, .v = v };
    for (size_t i = 0; i < p; i++)
        for (size_t n = 0; n < 2 * v * m; n++) {
            size_t c = n / m;
            PipeOp op = { FORWARD, .micro_batch = n % m, .chunk = c };
            if (c >= v) op = (PipeOp){ BACKWARD, .micro_batch = n % m, .chunk = 2 * v - 1 - c };
            schedule_add_op(&l.stage[i], op);
        }
    return l;
}

// Makes the automatic lists of 05.06 (zero bubble), for random times of the ops and of a message.
static Lists zero_bubble(void) {
    Lists l = { .p = 1 + below(MOST_P), .m = 1 + below(MOST_M), .v = 1 };
    OpTimes times = { 1 + below(20), below(20), below(20), below(60) };
    size_t cap = 1 + below(2 * l.p);
    for (size_t i = 0; i < l.p; i++) l.stage[i] = schedule_zb_auto(l.p, l.m, i, cap, times);
    return l;
}

// Returns whether two functions find the same op, or both find none. The rules for the op that an
// op needs or feeds are written twice: for the executor, and in pipeline_steps.c for the expected
// steps.
static bool same_op(bool any, StageOp a, bool other, StageOp b) {
    bool same = a.stage == b.stage && a.op.what == b.op.what && a.op.chunk == b.op.chunk;
    return any == other && (!any || (same && a.op.micro_batch == b.op.micro_batch));
}
static void same_rules(void) {
    bool same = true;
    for (size_t p = 1; p <= MOST_P; p++)
        for (size_t v = 1; v <= MOST_V; v++)
            for (size_t n = 0; n < p * v * (UPDATE + 1); n++) {
                PipeOp op = { (PipeWhat)(n / (p * v)), .micro_batch = 3, .chunk = n / p % v };
                StageOp a, b;
                size_t i = n % p;
                bool needs = steps_needs(op, i, p, v, &a);
                same &= same_op(needs, a, pipe_op_needs(op, i, p, v, &b), b);
                bool feeds = steps_feeds(op, i, p, v, &a);
                same &= same_op(feeds, a, pipe_op_feeds(op, i, p, v, &b), b);
            }
    for (size_t n = 0; n < (UPDATE + 1) * (UPDATE + 1); n++) {
        PipeOp op = { .what = (PipeWhat)(n / (UPDATE + 1)) };
        PipeOp needed = { .what = (PipeWhat)(n % (UPDATE + 1)) };
        same &= steps_op_is(op, needed) == pipe_op_is(op, needed);
    }
    ok(same, "the expected steps and the executor have the same rules, p = 1..8, v = 1..4");
}

static Schedule *zero_bubble_all(size_t p, size_t m, size_t cap) {
    static const OpTimes units = { 1, 1, 1, 0 };
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++)
        stage[i] = cap ? schedule_zb_auto(p, m, i, cap, units) : schedule_zb_h1(p, m, i);
    return stage;
}
// *most receives the largest number of micro-batches in flight on a stage.
static bool legal(Schedule *stage, size_t p, size_t m, const OpTimes *times, size_t *most) {
    *most = 0;
    for (size_t i = 0; i < p; i++) {
        const size_t flight = list_in_flight(&stage[i]);
        if (flight > *most) *most = flight;
    }
    return judge_lists(stage, p, m, 1, times).verdict == LISTS_LEGAL;
}
// Checks the lists of 05.06 with equal times F = B = W, and ZB-H1 also with the times of a block: B
// is longer than F, and W is shorter. If m < p, the step of ZB-H1 ends with p - m more W's.
static void zero_bubble_lists(void) {
    static const OpTimes units = { 1, 1, 1, 0 }, block = { 12, 14, 10, 0 };
    bool capped = true, fixed = true, planned = true;
    for (size_t p = 1; p <= 8; p++)
        for (size_t m = 1; m <= 24; m++) {
            const size_t caps[] = { p, 2 * p - 1 }, late = p > m ? p - m : 0;
            size_t most;
            for (size_t k = 0; k < 2; k++) {
                Schedule *stage = zero_bubble_all(p, m, caps[k]);
                capped &= legal(stage, p, m, &units, &most) && most <= caps[k];
                schedule_all_free(stage, p);
            }
            Schedule *stage = zero_bubble_all(p, m, 0);
            fixed &= legal(stage, p, m, &units, &most) && most == (p < m ? p : m);
            fixed &= lists_makespan(stage, p, m, &units) == 3 * m + p - 1 + late;
            fixed &= lists_makespan(zero_bubble_all(p, m, 0), p, m, &block) ==
                     36 * m + 16 * (p - 1) + 10 * late;
            if ((p == 2 || p == 4 || p == 8) && (m == p || m == 2 * p || m == 4 * p))
                planned &=
                    lists_makespan(zero_bubble_all(p, m, 2 * p - 1), p, m, &units) == 3 * m + p - 1;
        }
    ok(capped, "automatic lists are legal, and in flight are at most the cap; p = 1..8, m = 1..24");
    ok(fixed, "ZB-H1 takes m(F+B+W) + (p-1)(F+B-W), with min(p, m) in flight");
    ok(planned, "automatic lists with the cap 2p-1 take 3m + p - 1 if F = B = W = 1");
}

// Returns the time of `steps` steps in a row, with 4 stages and 8 micro-batches. The cap 0 means
// ZB-H1.
static size_t steps_of(size_t cap, const OpTimes *times, size_t steps) {
    const size_t p = 4, m = 8;
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) {
        stage[i] = cap ? schedule_zb_auto(p, m, i, cap, *times) : schedule_zb_h1(p, m, i);
        stage[i] = schedule_repeated(stage[i], m, steps, false);
    }
    return lists_makespan(stage, p, steps * m, times);
}
static void known_times(void) {
    static const OpTimes units = { 1, 1, 1, 0 };
    // 1F1B takes 33 units, of which 9 are idle. ZB-H1 has (p-1)(F+B-W) = 3 idle units.
    ok(steps_of(0, &units, 1) == 27 && steps_of(4, &units, 1) == 29 && steps_of(7, &units, 1) == 27,
       "p = 4, m = 8, F = B = W = 1: ZB-H1 27, automatic lists 29 (cap p) and 27 (cap 2p-1)");
    ok(steps_of(0, &units, 2) == 27 + 27 && steps_of(7, &units, 2) == 27 + 24,
       "two steps without a barrier: ZB-H1 54; the cap 2p-1 has no bubble in its next step, 51");
    // A list that is planned without the time of a message takes 398 units.
    ok(steps_of(4, &(OpTimes){ 12, 14, 10, 3 }, 1) == 384,
       "the planner knows the time of a message: F 12, B 14, W 10, a message 3 take 384 units");
}

// Returns the most versions that a stage must hold at once. A stage holds all versions from the
// oldest that a later op reads to the newest.
static size_t versions_needed(const Schedule *s) {
    size_t newest = 0, most = 1;
    for (size_t e = 0; e < s->n; e++) {
        newest += s->ops[e].what == UPDATE;
        for (size_t later = e + 1; later < s->n; later++)
            if (s->ops[later].what != UPDATE && newest + 1 > most + s->ops[later].version)
                most = newest + 1 - s->ops[later].version;
    }
    return most;
}
static Schedule stashing(size_t p, size_t n, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, n, i);
}
static void pipedream_lists(void) {
    bool times = true, own = true, in_sync = true;
    for (size_t p = 1; p <= 8; p++)
        for (size_t n = 1; n <= 24; n++) {
            times &= makespan(stashing, p, n, 1, 2) == (n + p - 1) * 3;
            for (size_t i = 0; i < p; i++) {
                Schedule s = stashing(p, n, i), sync = schedule_pipedream(VERTICAL_SYNC, p, n, i);
                own &= versions_needed(&s) == (p - i < n ? p - i : n);
                in_sync &= versions_needed(&sync) == (p < n ? p : n);
                schedule_free(&s);
                schedule_free(&sync);
            }
        }
    ok(times, "PipeDream: n mini-batches take (n+p-1)(t_f+t_b); p = 1..8, n = 1..24");
    ok(own && in_sync, "PipeDream: stage i needs p-i versions, and p with vertical sync");
}

int main(void) {
    const char *seed = getenv("TEST_SEED");
    size_t cases = getenv("TEST_ALL") ? 10000 : 200;
    drawn = seed ? strtoul(seed, NULL, 10) : 1;
    device_init();
    same_rules();
    zero_bubble_lists();
    known_times();
    pipedream_lists();
    for (size_t n = 0; count[LISTS_LEGAL] < cases; n++) {
        Lists l = random_lists();
        size_t pulls = n % 3 == 0 ? 1 + below(MOST_PULLS) : 0;
        for (; pulls > 0; pulls--) pull_forward(&l);
        compare(&l);
    }
    size_t illegal = count[LISTS_DEADLOCK] + count[LISTS_WRONG_MESSAGE];
    for (size_t n = 0; n < cases / 4; n++) {
        Lists l = zero_bubble();
        compare(&l);
    }
    illegal = count[LISTS_DEADLOCK] + count[LISTS_WRONG_MESSAGE] - illegal;
    ok(illegal == 0,
       "the automatic lists of zero bubble are legal, for %zu times of ops and messages",
       cases / 4);
    for (size_t p = 2; p <= 4; p++)
        for (size_t v = 2; v <= 3; v++)
            for (size_t m = 1; m <= MOST_M; m++) {
                Lists l = breadth_first(p, v, m);
                compare(&l);
            }
    ok(!failed[LISTS_LEGAL], "%zu legal lists run, and every message reaches its op",
       count[LISTS_LEGAL]);
    ok(!failed[LISTS_DEADLOCK] && by_buffers > 0,
       "%zu lists deadlock, %zu of them for a send buffer: the same ranks wait for each other",
       count[LISTS_DEADLOCK], by_buffers);
    ok(!failed[LISTS_WRONG_MESSAGE] && count[LISTS_WRONG_MESSAGE] > 0 && !count[LISTS_NOT_ONCE],
       "%zu lists with a message for another op do not run", count[LISTS_WRONG_MESSAGE]);
    return tap_end();
}
