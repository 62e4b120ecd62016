// ranks: 1
// level: core
// question: When a model's layers are spread over devices, which device works when, and what do micro-batches gain?
//
// Four layers of one number each, y = tanh(w x + b), on two or four imagined devices: plain arrays in one process,
// without communication. Seven samples are cut into micro-batches. A loop plays the schedule: every op really computes,
// and its times are written down. An op starts at max(end of what it needs, end of the device's last op); a forward
// takes 1 unit of time, a backward 2.
// Left out: the time a message takes.
#include "judge/frame/lesson.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, SAMPLES = 7, PIECES = 4, STEPS = 3 };           // 7 samples in 4 micro-batches: 2, 2, 2, 1
enum { T_FORWARD = 1, T_BACKWARD = 2, MOST_UNITS = LAYERS * PIECES * (T_FORWARD + T_BACKWARD) };
static const real rate = (real)0.5;

typedef struct { real w, b, dw, db; } Link;                // one layer, and its gradients
typedef struct { char what; size_t k; } Op;                // 'F' or 'B', of micro-batch k
typedef struct {
    Link layer[LAYERS];                                    // my layers
    size_t n;
    real h[SAMPLES][LAYERS + 1];                           // kept from forward to backward: my input and every output
    real d[SAMPLES];                                       // what goes back to the device before me
    Op op[2 * PIECES];                                     // my list: what I do, in this order
    size_t ops;
    char at[MOST_UNITS][4];                                // by unit of time: "F0", "--" still at it, ". " idle
} Device;
typedef struct {
    size_t p, pieces, end, busy;                           // end: of the last op; busy: units of work of all devices
    double loss;
    real x[SAMPLES], target[SAMPLES];
    Device device[LAYERS];                                 // p of them
} Line;

// ---------------------------------------------------------------- one layer, one sample; one device, one micro-batch

static real link_forward(const Link *l, real x) { return (real)tanh((double)(l->w * x + l->b)); }
static real link_backward(Link *l, real x, real y, real dy) {      // adds to the gradients, returns dx
    real dz = dy * (1 - y * y);
    l->dw += dz * x;
    l->db += dz;
    return dz * l->w;
}

static void run_forward(Line *t, size_t i, Range mine) {
    Device *me = &t->device[i];
    for (size_t s = mine.lo; s < mine.hi; s++) {
        // The message: the last output of the device before me becomes my input.
        me->h[s][0] = i == 0 ? t->x[s] : me[-1].h[s][me[-1].n];
        for (size_t l = 0; l < me->n; l++) me->h[s][l + 1] = link_forward(&me->layer[l], me->h[s][l]);
    }
}

static double run_backward(Line *t, size_t i, Range mine) {
    Device *me = &t->device[i];
    double loss = 0;
    for (size_t s = mine.lo; s < mine.hi; s++) {
        if (i + 1 == t->p) {
            // Half the squared distance, divided by all samples of the batch: micro-batches then just add up.
            real far = me->h[s][me->n] - t->target[s];
            loss += 0.5 * (double)(far * far) / SAMPLES;
            me->d[s] = far / SAMPLES;
        } else {
            me->d[s] = me[1].d[s];                         // the message: the gradient of my last output comes back
        }
        for (size_t l = me->n; l-- > 0;)
            me->d[s] = link_backward(&me->layer[l], me->h[s][l], me->h[s][l + 1], me->d[s]);
    }
    return loss;
}

// ---------------------------------------------------------------- three ways to order the ops, alike on every device

typedef void Rule(Device *d, size_t pieces);
static void add(Device *d, char what, size_t k) { d->op[d->ops++] = (Op){ what, k }; }
static void forwards_only(Device *d, size_t pieces) { for (size_t k = 0; k < pieces; k++) add(d, 'F', k); }
static void there_and_back(Device *d, size_t pieces) {     // naive: the next forward starts after this backward
    for (size_t k = 0; k < pieces; k++) { add(d, 'F', k); add(d, 'B', k); }
}
static void all_there_all_back(Device *d, size_t pieces) { // all forwards, then all backwards
    forwards_only(d, pieces);
    for (size_t k = 0; k < pieces; k++) add(d, 'B', k);
}

// Plays every device's list: asks the devices in turn, again and again, whether their next op can run.
static void play(Line *t) {
    size_t next[LAYERS] = {0}, free_at[LAYERS] = {0};
    size_t end[2][LAYERS][PIECES] = {{{0}}};               // of forward [0], backward [1] of k on i; 0: not yet
    t->loss = t->end = t->busy = 0;
    for (size_t i = 0; i < t->p; i++)
        for (size_t u = 0; u < MOST_UNITS; u++) strcpy(t->device[i].at[u], ". ");
    for (size_t i = 0, in_vain = 0; in_vain <= t->p; i = (i + 1) % t->p, in_vain++) {       // until nobody can go on
        Device *me = &t->device[i];
        if (next[i] == me->ops) continue;
        Op op = me->op[next[i]];
        bool back = op.what == 'B', none = !back && i == 0;            // device 0's forward needs nobody
        size_t need = none ? 0 : !back ? end[0][i - 1][op.k] : i + 1 < t->p ? end[1][i + 1][op.k] : end[0][i][op.k];
        if (!none && need == 0) continue;                  // what it needs is not there yet
        size_t start = need > free_at[i] ? need : free_at[i], duration = back ? T_BACKWARD : T_FORWARD;
        Range mine = shard_range(SAMPLES, t->pieces, op.k);
        if (back) t->loss += run_backward(t, i, mine);
        else run_forward(t, i, mine);
        for (size_t u = start; u < start + duration; u++) strcpy(me->at[u], "--");
        me->at[start][0] = op.what;
        me->at[start][1] = (char)('0' + op.k);
        end[back][i][op.k] = free_at[i] = start + duration;
        t->busy += duration;
        if (free_at[i] > t->end) t->end = free_at[i];
        next[i]++;
        in_vain = 0;
    }
}

// ---------------------------------------------------------------- training on p devices; p = 1 is the unsplit chain

// The same weights and samples, whatever p is.
static Line line_up(Run *run, size_t p, size_t pieces, Rule *rule) {
    Line t = { .p = p, .pieces = pieces };
    for (size_t i = 0; i < p; i++) {
        Range mine = shard_range(LAYERS, p, i);
        for (size_t l = mine.lo; l < mine.hi; l++)
            t.device[i].layer[t.device[i].n++] = (Link){ .w = (real)random_normal(random_key(run->seed, l)),
                                                         .b = (real)random_normal(random_key(run->seed, 10 + l)) };
        rule(&t.device[i], pieces);
    }
    for (size_t s = 0; s < SAMPLES; s++) {
        t.x[s] = (real)random_normal(random_key(run->seed, 20 + s));
        t.target[s] = (real)(random_unit(random_key(run->seed, 30 + s)) - 0.5);
    }
    return t;
}

enum { NUMBERS = STEPS * LAYERS * 4 };                     // w, b and their gradients, of every layer, after every step
static void train(Line *t, double loss[STEPS], double *number) {
    for (size_t step = 0; step < STEPS; step++) {
        play(t);
        loss[step] = t->loss;
        for (size_t i = 0; i < t->p; i++)
            for (size_t l = 0; l < t->device[i].n; l++) {
                Link *k = &t->device[i].layer[l];
                *number++ = k->w -= rate * k->dw;
                *number++ = k->b -= rate * k->db;
                *number++ = k->dw, *number++ = k->db;
                k->dw = k->db = 0;                         // for the next step
            }
    }
}

static void compare(Run *run, const char *what, Line *split) {
    Line whole = line_up(run, 1, split->pieces, there_and_back);
    double loss[STEPS], want_loss[STEPS], number[NUMBERS], want_number[NUMBERS];
    train(split, loss, number);
    train(&whole, want_loss, want_number);
    for (size_t i = 0; i < split->p; i++) {
        char row[2 * MOST_UNITS + 1] = "";
        for (size_t u = 0; u < split->end; u++) strcat(row, split->device[i].at[u]);
        say(run, "  %zu %s", i, row);
    }
    check_numbers(run, what, "weights and gradients of every step", number, want_number, NUMBERS, 0);
    check_numbers(run, what, "loss of every step", loss, want_loss, STEPS, 0);
}

// ---------------------------------------------------------------- pictures

// One line a time slice, one column a device.
static const char *slice_line(char *line, const Line *t, size_t u) {
    sprintf(line, "t%zu", u);
    for (size_t i = 0; i < t->p; i++) {
        char cell[32] = "idle";
        if (t->device[i].at[u][0] == 'F') sprintf(cell, "MB%c Stage%zu", t->device[i].at[u][1], i);
        sprintf(line + strlen(line), " | %-10s", cell);
    }
    return line;
}

static void order_in_words(char *line, const Line *t) {
    for (size_t u = 0; u < t->end; u++)
        for (size_t i = 0; i < t->p; i++) {
            char what = t->device[i].at[u][0], *end = line + strlen(line);
            if (what == 'F') sprintf(end, "%s%zu forward", u ? " - " : "", i);
            if (what == 'B') sprintf(end, " - %zu backward", i);
        }
}

static double idle(const Line *t) { return (double)(t->p * t->end - t->busy) / (double)(t->p * t->end); }

static void show_results(Run *run, const Line *two, const Line *naive, const Line *piped) {
    const Line *way[] = { two, naive, piped };
    char end[3][16], share[3][16];
    for (size_t k = 0; k < 3; k++) {
        sprintf(end[k], "=%zu", way[k]->end);
        sprintf(share[k], "=%.1f %%", 100 * idle(way[k]));
    }
    results(run, (const char *const[]){ "naive", "naive", "micro-batched", NULL }, (const Result[]){
        { "p devices, m micro-batches", NULL, { "=2, 1", "=4, 4", "=4, 4" } },
        { "step, units of time", "mp(f+b); (m+p-1)(f+b)", { end[0], end[1], end[2] } },
        { "idle share", "1-1/p; (p-1)/(m+p-1)", { share[0], share[1], share[2] } }, {0} });
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson imagines its devices: start it with one rank");
    Line slices = line_up(run, LAYERS, PIECES, forwards_only), piped = line_up(run, LAYERS, PIECES, all_there_all_back);
    Line two = line_up(run, 2, 1, there_and_back), naive = line_up(run, LAYERS, PIECES, there_and_back);
    char line[400] = "", text[400] = "";
    play(&slices);
    say_detail(run, "Forwards of %d micro-batches (MB) through %d stages; idle devices are the bubble:", PIECES,
               LAYERS);
    for (size_t u = 0; u < slices.end; u++) say_detail(run, "  %s", slice_line(line, &slices, u));
    check_true(run, "time slice t3", "all four devices are at work",
               !strcmp(slice_line(line, &slices, 3), "t3 | MB3 Stage0 | MB2 Stage1 | MB1 Stage2 | MB0 Stage3"));

    say(run, "A row is a device. F0 is the forward of micro-batch 0: 1 unit of time. B0-- is its backward: 2.");
    say(run, "\nNaive, 2 devices with 2 layers each, the whole batch at once:");
    compare(run, "naive, 2 devices = unsplit", &two);
    order_in_words(text, &two);
    check_true(run, "naive, 2 devices: order", text, !strcmp(text, "0 forward - 1 forward - 1 backward - 0 backward"));
    say(run, "\nNaive, 4 devices with a layer each, %d micro-batches one after the other:", PIECES);
    compare(run, "naive, 4 devices = unsplit", &naive);
    say(run, "\nMicro-batched, 4 devices: all forwards, then all backwards:");
    compare(run, "micro-batched = unsplit", &piped);
    double p = LAYERS, m = PIECES, both = T_FORWARD + T_BACKWARD;
    double units[] = { two.end, naive.end, piped.end }, want_units[] = { 2 * both, m * p * both, (m + p - 1) * both };
    double share[] = { idle(&two), idle(&naive), idle(&piped) };
    double want_share[] = { 1 - 1 / 2.0, 1 - 1 / p, (p - 1) / (m + p - 1) };
    check_numbers(run, "played = formula", "step time: 2(f+b), mp(f+b), (m+p-1)(f+b)", units, want_units, 3, 0);
    check_numbers(run, "played = formula", "idle share: 1-1/2, 1-1/p, (p-1)/(m+p-1)", share, want_share, 3, 1e-15);
    show_results(run, &two, &naive, &piped);
}

EXPERIMENT(by_hand, NULL);
