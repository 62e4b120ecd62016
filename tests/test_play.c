// test_play.c: compares the player of expected steps (judge/play) with closed forms and with
// emulated runs.
//   1. The lists of six schedules of chapters 04 and 05 against the recurrence of their times, to
//      the picosecond.
//   2. The executor with such lists, emulated, on the simulated clock: the time and the peak of the
//      buffers of every rank.
//   3. Random programs of work, collectives and messages, emulated: the time of every rank; and, if
//      the ranks deadlock, the call in which each rank waits.
//   4. Exposed and hidden time, memory, and wrong lists, by hand.
// TEST_ALL=1 takes every case of 1., and more random cases of 2. and 3. TEST_SEED=N draws other
// cases.
//
// ranks: 1
// level: core
// question: Does the player say what the executor and the communicators do?
#include <sys/mman.h>
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/device/device.h"
#include "common/tensor/random.h"
#include "tap.h"
#include "judge/frame/lesson.h"

enum { MOST_P = 8, MOST_M = 16, MOST_RANKS = 8, TEXT = 4096 };

static bool every_case;
static uint64_t drawn;
static size_t below(size_t n) {
    drawn = random_key(drawn, 1);
    return drawn % n;
}

// ---------------------------------------------------------------- the results of a child process

typedef struct {
    Picoseconds end;
    size_t communication; // peak of MEM_COMMUNICATION
} Found;
static Found *found; // [MOST_RANKS], shared with the children

static const ClockLink fast = { "fast", 50e-9, 400e6, "" },
                       slow = { "slow", 250e-9, 400e6 / 12, "" };
// Returns the clock of a case with nodes of `node` ranks (0: one node). In nodes of 3 ranks the
// inside link is the slow link.
static ClockConfig clock_of(size_t node) {
    ClockConfig c = { .simulated = true,
                      .device = { "lesson", 1e9, 1e9, "" },
                      .link = node == 3 ? slow : fast,
                      .between = node == 3 ? fast : slow,
                      .node = node,
                      .rails = node / 2 };
    return c;
}
enum { PS_PER_FLOP = 1000 }; // the rate of device lesson

// run_child() runs body on emulated ranks in a child process, because a deadlock ends the process.
// run_child() returns the child's exit status, and `said` receives the child's stderr.
typedef struct {
    size_t ranks;
    const ClockConfig *clock;
    void (*body)(Comm *, void *);
    void *context;
} Child;
static void run_ranks(void *child) {
    const Child *c = child;
    clock_configure(c->clock);
    Launch launch = { .ranks = c->ranks, .timeout = 60 }; // virtual ranks
    comm_run(&launch, c->body, c->context);
}
static int run_child(size_t ranks, const ClockConfig *clock, void (*body)(Comm *, void *),
                     void *context, char *said) {
    Child child = { ranks, clock, body, context };
    return tap_child(run_ranks, &child, said, TEXT);
}

// ------------------------------------------------ 1. lists, and the recurrence of their times

typedef enum { NAIVE, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_AUTO, RULES } Rule;
typedef struct {
    Rule rule;
    size_t p, m, v, node;
    OpTimes times[MOST_P];
    Schedule stage[MOST_P];
} Case;

static void fill(Case *c) {
    for (size_t i = 0; i < c->p; i++) switch (c->rule) {
        case NAIVE: c->stage[i] = schedule_naive(c->p, c->m, i); break;
        case GPIPE: c->stage[i] = schedule_gpipe(c->p, c->m, i); break;
        case ONE_F_ONE_B: c->stage[i] = schedule_1f1b(c->p, c->m, i); break;
        case INTERLEAVED: c->stage[i] = schedule_interleaved(c->p, c->m, c->v, i); break;
        case ZB_H1: c->stage[i] = schedule_zb_h1(c->p, c->m, i); break;
        case ZB_AUTO: c->stage[i] = schedule_zb_auto(c->p, c->m, i, c->p, c->times[0]); break;
        case RULES: break;
        }
}

// Sets the times of the ops by `kind`:
//   0  equal stages; a backward takes as long as two forwards
//   1  unequal stages
//   2  unequal stages, and unequal halves of a backward
//   3  random times
static void times_of(Case *c, size_t kind, Picoseconds message) {
    for (size_t i = 0; i < c->p; i++) {
        size_t f = kind == 0   ? 1000
                   : kind == 1 ? 700 + 130 * ((i * 5) % 7)
                   : kind == 2 ? 311 * (1 + i)
                               : 1 + below(9999);
        size_t b = kind == 2 ? 400 + 77 * ((i * 3) % 5) : kind == 3 ? below(9999) : f;
        c->times[i] = (OpTimes){ f, b,
                                 kind == 2   ? 123 + 55 * i
                                 : kind == 3 ? below(9999)
                                             : f,
                                 message };
    }
}

static size_t takes(PipeOp op, const OpTimes *t) {
    bool inputs = op.what == BACKWARD || op.what == BACKWARD_INPUTS;
    bool weights = op.what == BACKWARD || op.what == BACKWARD_WEIGHTS;
    return (op.what == FORWARD) * t->forward + inputs * t->backward_inputs +
           weights * t->backward_weights;
}

// Times has the end of each op of a stage, and the time when the op's message arrives. An op starts
// at the later of two times: the end of the previous op, and the arrival of its input. A message
// leaves after the previous message to the same stage has arrived. The times are computed from zero
// again and again, until nothing changes. The executor's rule says which op an op needs.
typedef struct {
    size_t end[3 * MOST_M * 4], arrives[3 * MOST_M * 4];
} Times;
static size_t recurrence(const Case *c) {
    static Times at[MOST_P];
    size_t last = 0;
    memset(at, 0, sizeof at);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < c->p; i++) {
            size_t lane[MOST_P] = { 0 }, now = 0;
            for (size_t e = 0; e < c->stage[i].n; e++) {
                PipeOp op = c->stage[i].ops[e];
                StageOp needs, feeds;
                size_t ready = 0, k = 0;
                if (pipe_op_needs(op, i, c->p, c->v, &needs)) {
                    while (!pipe_op_is(c->stage[needs.stage].ops[k], needs.op)) k++;
                    ready = needs.stage == i ? at[i].end[k] : at[needs.stage].arrives[k];
                }
                now = (now > ready ? now : ready) + takes(op, &c->times[i]);
                size_t arrives = now;
                if (pipe_op_feeds(op, i, c->p, c->v, &feeds) && feeds.stage != i) {
                    size_t *free_at = &lane[feeds.stage];
                    *free_at = arrives = (now > *free_at ? now : *free_at) + c->times[i].message;
                }
                changed |= now != at[i].end[e] || arrives != at[i].arrives[e];
                at[i].end[e] = now;
                at[i].arrives[e] = arrives;
                last = now > last ? now : last;
            }
        }
    }
    return last;
}

static size_t cases, wrong;
static void one_schedule(Case *c) {
    Timeline t = timeline_of_stages(c->stage, c->p, c->m, c->times);
    size_t want = recurrence(c);
    cases++;
    if ((t.stuck || t.end != want) && !wrong++)
        printf("# rule %d, p = %zu, m = %zu, v = %zu: %zu, not %zu\n", c->rule, c->p, c->m, c->v,
               t.end, want);
    timeline_free(&t);
}
static void schedules(void) {
    for (size_t r = 0; r < RULES; r++)
        for (size_t p = 1; p <= MOST_P; p++)
            for (size_t m = 1; m <= MOST_M; m++)
                for (size_t kind = 0; kind < 4; kind++)
                    for (size_t link = 0; link < 3; link++)
                        for (size_t v = 1; v <= (r == INTERLEAVED ? 4 : 1); v++) {
                            static const size_t message[] = { 0, 170, 1900 };
                            Case c = { .rule = (Rule)r, .p = p, .m = m, .v = v };
                            if (r == INTERLEAVED && v > 1 && m % p) continue;
                            if (!every_case && below(8)) continue;
                            times_of(&c, kind, message[link]);
                            fill(&c);
                            one_schedule(&c);
                            for (size_t i = 0; i < p; i++) schedule_free(&c.stage[i]);
                        }
    ok(!wrong,
       "%zu cases of six schedules: the player's step is the recurrence's, to the picosecond",
       cases);
}

// -------------------------------------------------------- 2. the executor on the simulated clock

enum { WIDTH = 8, POSITIONS = 3 };
static size_t sequences_of(size_t k) { return 1 + k % 2; }
static size_t layer_flops(size_t number, bool forward) {
    return forward ? 3 + number % 4 : 5 + 2 * (number % 3);
}

static void charge_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    clock_charge_flops((double)(layer_flops(l->number, true) * b->B));
    tensor_fill(y, 1);
}
static void charge_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dy;
    (void)s;
    clock_charge_flops((double)(layer_flops(l->number, false) * b->B));
    if (l->number > 0) tensor_fill(dx, 1);
}
static const LayerKind charges = { .name = "charges",
                                   .output = hidden_shape,
                                   .forward = charge_forward,
                                   .backward = charge_backward };

static ModelConfig sizes_of(const Case *c) {
    return (ModelConfig){
        .layers = c->p * c->v, .width = WIDTH, .heads = 1, .context = POSITIONS, .vocab = 1
    };
}
static void run_executor(Comm *world, void *context) {
    const Case *c = context;
    ModelConfig sizes = sizes_of(c);
    Range chunk[4];
    Batch batch[MOST_M];
    for (size_t k = 0; k < c->v; k++)
        chunk[k] = pipeline_stage_layers(&sizes, NULL, c->p * c->v, k * c->p + world->rank);
    Model *m = model_describe_chunks(&sizes, chunk, c->v);
    for (size_t n = 0; n < m->n_layers; n++) m->layers[n].kind = &charges;
    for (size_t k = 0; k < c->m; k++)
        batch[k] = (Batch){ .B = sequences_of(k), .T = POSITIONS, .number = k };
    clock_rank_begin();
    memory_reset_peaks();
    zero_bubble_run(world, m, &c->stage[world->rank], batch, c->m);
    found[world->rank].end = clock_now();
    found[world->rank].communication = memory_peak(MEM_COMMUNICATION);
    model_free(m);
}

// A layer without halves does its whole backward in the first half.
static void expect_op(Play *play, size_t rank, PipeOp op, const void *context) {
    const Case *c = context;
    ModelConfig sizes = sizes_of(c);
    Range layers = pipeline_stage_layers(&sizes, NULL, c->p * c->v, op.chunk * c->p + rank);
    size_t flops = 0;
    for (size_t n = layers.lo; n < layers.hi && op.what != BACKWARD_WEIGHTS; n++)
        flops += layer_flops(n, op.what == FORWARD) * sequences_of(op.micro_batch);
    play_work(play, rank, flops * PS_PER_FLOP);
}

static void one_execution(Case *c) {
    char said[TEXT];
    ClockConfig clock = clock_of(c->node);
    size_t bytes[MOST_M];
    Play *play = play_new(c->p, &clock);
    size_t pp = play_group(play, "world", 0, c->p, 1);
    for (size_t k = 0; k < c->m; k++) bytes[k] = sequences_of(k) * POSITIONS * WIDTH * sizeof(real);
    for (size_t i = 0; i < c->p; i++) {
        PipelineSteps s = { .p = c->p,
                            .v = c->v,
                            .i = i,
                            .group = pp,
                            .list = &c->stage[i],
                            .compute = expect_op,
                            .context = c,
                            .bytes = bytes,
                            .m = c->m };
        pipeline_steps(play, i, &s, NULL);
    }
    bool legal = play_run(play),
         same = run_child(c->p, &clock, run_executor, c, said) == (legal ? 0 : STATUS_FAULT);
    const char *what = "status";
    for (size_t i = 0; same && legal && i < c->p; i++) {
        what = "time";
        same = found[i].end == play_end(play, i);
        if (same) what = "MEM_COMMUNICATION";
        same =
            same && (c->p == 1 || found[i].communication == play_peak(play, i, MEM_COMMUNICATION));
        if (!same)
            printf("# stage %zu: %zu ps and %zu bytes of buffers, not %zu and %zu\n", i,
                   (size_t)play_end(play, i), play_peak(play, i, MEM_COMMUNICATION),
                   (size_t)found[i].end, found[i].communication);
    }
    cases++;
    if (!same && !wrong++)
        printf("# rule %d, p = %zu, m = %zu, v = %zu, node %zu: %s\n# %s\n", c->rule, c->p, c->m,
               c->v, c->node, what, said);
    play_free(play);
}
static void executions(void) {
    cases = wrong = 0;
    for (size_t n = 0; n < (every_case ? 1500 : 60); n++) {
        Case c = { .rule = (Rule)below(RULES),
                   .p = 1 + below(MOST_P),
                   .m = 1 + below(MOST_M),
                   .v = 1,
                   .node = below(4) };
        if (c.rule == INTERLEAVED) {
            c.v = 1 + below(4);
            c.p = 1 + below(4);
            c.m = c.p * (1 + below(4));
        }
        times_of(&c, 3, below(5000)); // for ZB_AUTO
        fill(&c);
        one_execution(&c);
        for (size_t i = 0; i < c.p; i++) schedule_free(&c.stage[i]);
    }
    ok(!wrong, "%zu runs of the executor: end and buffers of every rank are the player's", cases);
}

// ---------------------------------------------------------------- 3. random programs

typedef enum { WORK, START, SEND, POST, WAIT } What;
typedef struct {
    What what;
    CommKind kind;
    size_t which, peer, count, target;
} Action; // which: 0 world, 1 row, 2 column
typedef struct {
    Action action[400];
    size_t n;
} Program;
typedef struct {
    size_t ranks;
    Program of[MOST_RANKS];
} Programs;

static size_t members(size_t ranks, size_t which, size_t rank, size_t *first, size_t *stride) {
    *first = which == 0 ? 0 : which == 1 ? rank - rank % 2 : rank % 2;
    *stride = which == 2 ? 2 : 1;
    if (which == 0) return ranks;
    if (which == 1) return *first + 1 < ranks ? 2 : 1;
    return (ranks - *first + 1) / 2;
}
static size_t action(Program *p, Action a) {
    p->action[p->n] = a;
    return p->n++;
}

// Open is an operation without its wait. Each collective is started on all members, and each
// message has a sender and a receiver. The waits come later, at random places. The waits of a
// group's collectives keep their order.
typedef struct {
    size_t target, which;
    bool message;
} Open;
static Programs random_programs(void) {
    static Open open[MOST_RANKS][400];
    static const CommKind kinds[] = { COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER,
                                      COMM_ALL_TO_ALL };
    size_t n_open[MOST_RANKS] = { 0 }, late = 1 + below(6);
    Programs all = { .ranks = 1 + below(MOST_RANKS) };
    for (size_t n = 20 + below(60); n > 0; n--) {
        size_t rank = below(all.ranks), which = below(3), first, stride;
        size_t size = members(all.ranks, which, rank, &first, &stride);
        size_t count = below(200), kind = below(sizeof kinds / sizeof *kinds);
        Program *own = &all.of[rank];
        if (below(3) == 0) action(own, (Action){ .what = WORK, .count = below(3000) });
        else if (below(2) == 0) {
            for (size_t i = 0; i < size; i++) {
                size_t r = first + i * stride;
                Action a = { START, kinds[kind], which, 0, count, 0 };
                open[r][n_open[r]++] = (Open){ action(&all.of[r], a), which, false };
                if (kinds[kind] == COMM_ALL_TO_ALL) {
                    // An all-to-all has no start of its own. So its action comes after the waits of
                    // the group's open collectives, and its wait follows at once.
                    Program *p = &all.of[r];
                    p->n--;
                    n_open[r]--;
                    for (size_t k = 0; k < n_open[r];) {
                        if (open[r][k].which != which || open[r][k].message) {
                            k++;
                            continue;
                        }
                        action(p, (Action){ .what = WAIT, .target = open[r][k].target });
                        memmove(&open[r][k], &open[r][k + 1], (--n_open[r] - k) * sizeof(Open));
                    }
                    size_t at = action(p, a);
                    action(p, (Action){ .what = WAIT, .target = at });
                }
            }
        } else if (size > 1) {
            size_t me = (rank - first) / stride, peer = (me + 1 + below(size - 1)) % size,
                   other = first + peer * stride;
            count = 20 * me +
                    peer; // equal for all messages of the pair, so two messages may change places
            open[rank][n_open[rank]++] =
                (Open){ action(own, (Action){ SEND, COMM_SEND, which, peer, count, 0 }), which,
                        true };
            open[other][n_open[other]++] =
                (Open){ action(&all.of[other], (Action){ POST, COMM_SEND, which, me, count, 0 }),
                        which, true };
        }
        for (size_t r = 0; r < all.ranks; r++)
            while (n_open[r] > 0 && (n == 1 || below(late) == 0)) {
                size_t k = below(n_open[r]);
                if (!open[r][k].message) { // the oldest collective of its group
                    size_t oldest = 0;
                    while (open[r][oldest].message || open[r][oldest].which != open[r][k].which)
                        oldest++;
                    k = oldest;
                }
                action(&all.of[r], (Action){ .what = WAIT, .target = open[r][k].target });
                memmove(&open[r][k], &open[r][k + 1], (--n_open[r] - k) * sizeof(Open));
            }
    }
    return all;
}

static void move(Program *p, size_t from, size_t to) {
    Action moved = p->action[from];
    size_t low = from < to ? from : to, high = from < to ? to : from;
    if (from < to) memmove(&p->action[from], &p->action[from + 1], (to - from) * sizeof moved);
    else memmove(&p->action[to + 1], &p->action[to], (from - to) * sizeof moved);
    p->action[to] = moved;
    for (size_t i = 0; i < p->n; i++) {
        size_t *target = &p->action[i].target;
        if (p->action[i].what != WAIT || *target < low || *target > high) continue;
        if (*target == from) *target = to;
        else *target += from < to ? (size_t)-1 : 1;
    }
}
// Draws an action of a random rank. If the action waits for a message, the rank then waits right
// after the start of the message, or posts the receive only just before the wait.
static void disturb(Programs *all) {
    Program *p = &all->of[below(all->ranks)];
    size_t at = p->n ? below(p->n) : 0;
    if (p->n == 0 || p->action[at].what != WAIT || p->action[p->action[at].target].what == START)
        return;
    size_t target = p->action[at].target;
    if (p->action[target].what == POST && below(2)) move(p, target, at - 1);
    else move(p, at, target + 1);
}

static Request *start(Comm *c, const Action *a, Arena *arena) {
    size_t part = range_size(shard_range(a->count, c->size, c->rank));
    Tensor whole = tensor_new(arena, 1, a->count), local = tensor_new(arena, 1, part);
    tensor_fill(whole, 1);
    tensor_fill(local, 1);
    switch (a->kind) {
    case COMM_ALL_REDUCE: return comm_start_all_reduce(c, whole);
    case COMM_REDUCE_SCATTER: return comm_start_reduce_scatter(c, local, whole);
    case COMM_ALL_GATHER: return comm_start_all_gather(c, whole, local);
    case COMM_ALL_TO_ALL: comm_all_to_all(c, tensor_new(arena, c->size, part), whole); return NULL;
    case COMM_BROADCAST:
    case COMM_REDUCE:
    case COMM_SEND:
    case COMM_KINDS: break;
    }
    return a->what == SEND ? comm_start_send(c, whole, a->peer)
                           : comm_start_recv(c, whole, a->peer);
}
static void run_program(Comm *world, void *context) {
    const Programs *all = context;
    const Program *p = &all->of[world->rank];
    Comm *comm[] = { world, comm_split(world, world->rank / 2, world->rank, "row"),
                     comm_split(world, world->rank % 2, world->rank, "column") };
    Request *request[400] = { 0 };
    Arena memory = arena(MEM_WORKSPACE);
    for (size_t i = 0; i < 3; i++) comm_connect(comm[i], COMM_EVERYBODY);
    clock_rank_begin();
    for (size_t i = 0; i < p->n; i++) {
        const Action *a = &p->action[i];
        if (a->what == WORK) clock_charge_flops((double)a->count);
        else if (a->what == WAIT) comm_wait(request[a->target]);
        else request[i] = start(comm[a->which], a, &memory);
    }
    found[world->rank].end = clock_now();
    arena_free(&memory);
    comm_free(comm[1]);
    comm_free(comm[2]);
}

static Play *expected(const Programs *all, const ClockConfig *clock) {
    static const char *const name[] = { "world", "row", "column" };
    size_t group[3][MOST_RANKS]; // [which][rank]: the group of this rank
    Play *play = play_new(all->ranks, clock);
    for (size_t which = 0; which < 3; which++)
        for (size_t r = 0; r < all->ranks; r++) {
            size_t first, stride, n = members(all->ranks, which, r, &first, &stride);
            group[which][r] =
                r == first ? play_group(play, name[which], first, n, stride) : group[which][first];
        }
    for (size_t r = 0; r < all->ranks; r++) {
        size_t step[400];
        for (size_t i = 0; i < all->of[r].n; i++) {
            const Action *a = &all->of[r].action[i];
            size_t g = group[a->which][r];
            switch (a->what) {
            case WORK: play_work(play, r, a->count * PS_PER_FLOP); break;
            case START: step[i] = play_start(play, r, g, a->kind, a->count, sizeof(real)); break;
            case SEND: step[i] = play_send(play, r, g, a->peer, a->count * sizeof(real)); break;
            case POST: step[i] = play_post(play, r, g, a->peer, a->count * sizeof(real)); break;
            case WAIT: play_wait(play, r, step[a->target]); break;
            }
        }
    }
    return play;
}

// Returns whether each line of the player occurs in the messages of the emulated ranks. The ranks
// add the size of the call in brackets.
static bool same_waits(const char *why, const char *said) {
    char head[300], tail[300];
    for (const char *at = why; *at; at += strcspn(at, "\n") + 1) {
        size_t length = strcspn(at, "\n"), call = strcspn(at, ",\n");
        snprintf(head, sizeof head, "  %.*s (", (int)call, at);
        snprintf(tail, sizeof tail, ")%.*s\n", (int)(length - call), at + call);
        const char *line = strstr(said, head), *end = line ? strchr(line, ')') : NULL;
        if (!end || strncmp(end, tail, strlen(tail)) != 0) return false;
    }
    return *why;
}

static void programs(void) {
    size_t legal = 0, stuck = 0;
    wrong = 0;
    for (size_t n = 0; n < (every_case ? 8000 : 300); n++) {
        static Programs all;
        char said[TEXT];
        all = random_programs();
        for (size_t k = n % 2 == 0 ? 1 + below(40) : 0; k > 0; k--) disturb(&all);
        ClockConfig clock = clock_of(below(5));
        Play *play = expected(&all, &clock);
        bool goes = play_run(play);
        char *why = play_why(play);
        int status = run_child(all.ranks, &clock, run_program, &all, said);
        bool same = status == (goes ? 0 : STATUS_FAULT);
        if (!goes) same = same && strstr(said, "no rank can go on") && same_waits(why, said);
        for (size_t r = 0; same && goes && r < all.ranks; r++)
            same = found[r].end == play_end(play, r);
        legal += goes;
        stuck += !goes;
        if (!same && !wrong++)
            printf("# program %zu, %zu ranks, status %d\n# %s\n# %s\n", n, all.ranks, status, why,
                   said);
        free(why);
        play_free(play);
    }
    ok(!wrong && legal > 100 && stuck > 10,
       "random programs: %zu run with the player's times, %zu deadlock with the player's waits",
       legal, stuck);
}

// ---------------------------------------------------------------- 4. by hand

// Two ranks work 10 us, start an all-reduce of 1000 elements, and work 4 us beside it. Then rank 0
// sends a message, and rank 1 works 1 us before it waits for the message.
static void exposed_and_hidden(void) {
    ClockConfig clock = clock_of(0);
    clock.link = (ClockLink){ "round", 1e-6, 1e9, "" }; // 1 us, and one byte per nanosecond
    Play *p = play_new(2, &clock);
    size_t world = play_group(p, "world", 0, 2, 1);
    for (size_t r = 0; r < 2; r++) {
        play_work(p, r, 10000000);
        size_t sum =
            play_start(p, r, world, COMM_ALL_REDUCE, 1000, 4); // 2 us, and 4 us for 4000 bytes
        play_work(p, r, 4000000);
        play_wait(p, r, sum);
    }
    size_t receive = play_post(p, 1, world, 0, 3000);
    play_send(p, 0, world, 1, 3000); // 1 us, and 3 us for 3000 bytes
    play_work(p, 1, 1000000);
    play_wait(p, 1, receive);
    bool goes = play_run(p);
    PlayTiming t = play_timing(p);
    ok(goes && t.step == 20000000, "a step of 10 + 6 + 4 us");
    ok(t.exposed == 7000000 && t.hidden == 9000000,
       "of the sum 4 us are hidden and 2 us exposed; of the message 1 us and 3 us");
    play_free(p);
}

static void held(void) {
    Play *p = play_new(1, NULL);
    play_hold(p, 0, MEM_ACTIVATIONS, 700);
    play_drop(p, 0, MEM_ACTIVATIONS, 600);
    play_hold(p, 0, MEM_WORKSPACE, 50);
    play_hold(p, 0, MEM_ACTIVATIONS, 20);
    ok(play_peak(p, 0, MEM_ACTIVATIONS) == 700 && play_peak(p, 0, MEM_WORKSPACE) == 50,
       "the peak of each category of memory");
    play_free(p);
}

static void drops_too_much(void) {
    Play *p = play_new(1, NULL);
    play_hold(p, 0, MEM_WORKSPACE, 3);
    play_drop(p, 0, MEM_WORKSPACE, 4);
}
static void other_collective(void) {
    Play *p = play_new(2, NULL);
    size_t world = play_group(p, "world", 0, 2, 1);
    play_call(p, 0, world, COMM_ALL_REDUCE, 8, 4);
    play_call(p, 1, world, COMM_ALL_GATHER, 8, 4);
}
static void other_length(void) {
    Play *p = play_new(2, NULL);
    size_t world = play_group(p, "world", 0, 2, 1);
    play_wait(p, 0, play_send(p, 0, world, 1, 8));
    play_wait(p, 1, play_post(p, 1, world, 0, 9));
    play_run(p);
}
static void chain(void) {
    Play *p = play_new(2, NULL);
    play_call(p, 0, play_group(p, "world", 0, 2, 1), COMM_BROADCAST, 8, 4);
}
static void no_member(void) {
    Play *p = play_new(4, NULL);
    play_call(p, 2, play_group(p, "tp", 1, 2, 2), COMM_ALL_REDUCE, 8, 4);
}

int main(void) {
    const char *seed = getenv("TEST_SEED");
    every_case = getenv("TEST_ALL") != NULL;
    drawn = seed ? strtoul(seed, NULL, 10) : 1;
    found = mmap(NULL, MOST_RANKS * sizeof *found, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) fault("mmap");
    device_init();
    schedules();
    executions();
    programs();
    exposed_and_hidden();
    held();
    ends(drops_too_much, STATUS_FAULT, "rank 0 drops 4 bytes of memory category 5, but it holds 3");
    ends(other_collective, STATUS_FAULT,
         "rank 1 starts all-gather of 32 bytes on world, where another rank");
    ends(other_length, STATUS_FAULT,
         "rank 1 starts send of 9 bytes on world, where another rank starts send of 8");
    ends(chain, STATUS_FAULT, "the player has no broadcast");
    ends(no_member, STATUS_FAULT, "rank 2 is no member of tp");
    return tap_end();
}
