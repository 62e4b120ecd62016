// ranks: 1
// level: core
// question: When a model is a chain of layers on several devices, who works when, and how do small batches help?
//
// Four tiny layers, y = tanh(W x + b) with W [2, 2], on two or four imagined devices: plain arrays, one process, nobody
// talks. Seven samples are cut into micro-batches. A loop plays the schedule: every op really computes, and its times
// are written down. An op starts at max(end of what it needs, end of the device's last op); a forward takes 1 unit of
// time, a backward 2.
// Left out: the time a message takes. Numbers in the output start at 1, as in the tables of other texts.
#include "common/lesson.h"
#include "common/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, WIDTH = 2, SAMPLES = 7, PIECES = 4, STEPS = 3 };          // 7 samples in 4 micro-batches: 2, 2, 2, 1
enum { T_FORWARD = 1, T_BACKWARD = 2, MOST_UNITS = LAYERS * PIECES * (T_FORWARD + T_BACKWARD) };
static const real rate = (real)0.5;

typedef real Vector[WIDTH];
// One layer: W, with b as its last column; and their gradients.
typedef struct { real w[WIDTH][WIDTH + 1], g[WIDTH][WIDTH + 1]; } Chain;
typedef struct { Vector x[SAMPLES], target[SAMPLES]; } Samples;

// ---------------------------------------------------------------- one layer, one sample

static void layer_forward(const Chain *l, const Vector x, Vector y) {
    for (size_t r = 0; r < WIDTH; r++) {
        real z = l->w[r][WIDTH];
        for (size_t c = 0; c < WIDTH; c++) z += l->w[r][c] * x[c];
        y[r] = (real)tanh((double)z);
    }
}

static void layer_backward(Chain *l, const Vector x, const Vector y, const Vector dy, Vector dx) {
    for (size_t c = 0; c < WIDTH; c++) dx[c] = 0;
    for (size_t r = 0; r < WIDTH; r++) {
        real dz = dy[r] * (1 - y[r] * y[r]);
        for (size_t c = 0; c < WIDTH; c++) {
            l->g[r][c] += dz * x[c];
            dx[c] += l->w[r][c] * dz;
        }
        l->g[r][WIDTH] += dz;
    }
}

// Half the squared distance, divided by all samples of the batch: micro-batches then just add up.
static double loss_of(const Vector y, const Vector target, Vector dy) {
    double sum = 0;
    for (size_t r = 0; r < WIDTH; r++) {
        dy[r] = (y[r] - target[r]) / SAMPLES;
        sum += 0.5 * (double)(y[r] - target[r]) * (double)(y[r] - target[r]) / SAMPLES;
    }
    return sum;
}

static void update(Chain *l) {
    for (size_t r = 0; r < WIDTH; r++)
        for (size_t c = 0; c <= WIDTH; c++) l->w[r][c] -= rate * l->g[r][c];
}

// ---------------------------------------------------------------- unsplit: one device, micro-batch after micro-batch

static double unsplit_step(Chain *layer, const Samples *data, size_t pieces) {
    double loss = 0;
    for (size_t l = 0; l < LAYERS; l++) memset(layer[l].g, 0, sizeof layer[l].g);
    for (size_t k = 0; k < pieces; k++) {
        Range mine = shard_range(SAMPLES, pieces, k);
        double part = 0;                                   // as on the devices: first the sum of each micro-batch
        for (size_t s = mine.lo; s < mine.hi; s++) {
            Vector h[LAYERS + 1], d, dx;
            memcpy(h[0], data->x[s], sizeof h[0]);
            for (size_t l = 0; l < LAYERS; l++) layer_forward(&layer[l], h[l], h[l + 1]);
            part += loss_of(h[LAYERS], data->target[s], d);
            for (size_t l = LAYERS; l-- > 0; memcpy(d, dx, sizeof d)) layer_backward(&layer[l], h[l], h[l + 1], d, dx);
        }
        loss += part;
    }
    for (size_t l = 0; l < LAYERS; l++) update(&layer[l]);
    return loss;
}

// ---------------------------------------------------------------- the same chain on devices

typedef struct {
    Chain layer[LAYERS];                                   // my layers
    size_t n;
    Vector h[SAMPLES][LAYERS + 1];                         // kept from forward to backward: my input and every output
    Vector d[SAMPLES];                                     // what goes back to the device before me
} Device;
typedef struct { char what; size_t k; } Op;                // 'F' or 'B', of micro-batch k
typedef struct { Op op[2 * PIECES]; size_t n; } List;      // what one device does, in order

static void run_forward(Device *device, size_t i, const Samples *data, Range mine) {
    Device *me = &device[i];
    for (size_t s = mine.lo; s < mine.hi; s++) {
        // The message: the last output of the device before me becomes my input.
        memcpy(me->h[s][0], i == 0 ? data->x[s] : device[i - 1].h[s][device[i - 1].n], sizeof(Vector));
        for (size_t l = 0; l < me->n; l++) layer_forward(&me->layer[l], me->h[s][l], me->h[s][l + 1]);
    }
}

static double run_backward(Device *device, size_t p, size_t i, const Samples *data, Range mine) {
    Device *me = &device[i];
    double loss = 0;
    for (size_t s = mine.lo; s < mine.hi; s++) {
        Vector d;
        if (i + 1 == p) loss += loss_of(me->h[s][me->n], data->target[s], d);
        else memcpy(d, device[i + 1].d[s], sizeof d);      // the message: the gradient of my last output comes back
        for (size_t l = me->n; l-- > 0; memcpy(d, me->d[s], sizeof d))
            layer_backward(&me->layer[l], me->h[s][l], me->h[s][l + 1], d, me->d[s]);
    }
    return loss;
}

// Who was at what in every unit of time: an op in its first unit, '-' in its others, 0 when idle.
typedef struct { size_t p, end, busy; Op at[LAYERS][MOST_UNITS]; double loss; } Played;

// Plays one list per device. Asks the devices in turn, again and again, whether their next op can run.
static Played play(Device *device, size_t p, const List *list, const Samples *data, size_t pieces) {
    Played out = { .p = p };
    size_t next[LAYERS] = {0}, free_at[LAYERS] = {0}, left = 0, in_vain = 0;
    size_t end[2][LAYERS][PIECES] = {{{0}}};               // of forward [0], backward [1] of k on i; 0: not yet
    for (size_t i = 0; i < p; i++) left += list[i].n;
    for (size_t i = 0; left; i = (i + 1) % p) {
        if (in_vain++ > p) fault("the lists wait for each other: nobody can go on");
        if (next[i] == list[i].n) continue;
        Op op = list[i].op[next[i]];
        bool back = op.what == 'B', none = !back && i == 0;            // device 1's forward needs nobody
        size_t need = none ? 0 : !back ? end[0][i - 1][op.k] : i + 1 < p ? end[1][i + 1][op.k] : end[0][i][op.k];
        if (!none && need == 0) continue;                  // what it needs is not there yet
        size_t start = need > free_at[i] ? need : free_at[i], duration = back ? T_BACKWARD : T_FORWARD;
        if (back) out.loss += run_backward(device, p, i, data, shard_range(SAMPLES, pieces, op.k));
        else run_forward(device, i, data, shard_range(SAMPLES, pieces, op.k));
        for (size_t u = start; u < start + duration; u++) out.at[i][u] = (Op){ u == start ? op.what : '-', op.k };
        end[back][i][op.k] = free_at[i] = start + duration;
        out.busy += duration;
        if (free_at[i] > out.end) out.end = free_at[i];
        next[i]++;
        left--;
        in_vain = 0;
    }
    return out;
}

// ---------------------------------------------------------------- three ways to order the ops

static void add(List *l, char what, size_t k) { l->op[l->n++] = (Op){ what, k }; }
static void forwards_only(List *l, size_t pieces) { for (size_t k = 0; k < pieces; k++) add(l, 'F', k); }
static void there_and_back(List *l, size_t pieces) {       // naive: the next micro-batch starts when this one is back
    for (size_t k = 0; k < pieces; k++) { add(l, 'F', k); add(l, 'B', k); }
}
static void all_there_all_back(List *l, size_t pieces) {   // send them all off, then fetch them all back
    forwards_only(l, pieces);
    for (size_t k = 0; k < pieces; k++) add(l, 'B', k);
}

// ---------------------------------------------------------------- pictures

static void draw(Run *run, const Played *t) {
    for (size_t i = 0; i < t->p; i++) {
        char row[2 * MOST_UNITS + 1] = "";
        for (size_t u = 0; u < t->end; u++) {
            Op op = t->at[i][u];
            if (op.what == 'F' || op.what == 'B') sprintf(row + 2 * u, "%c%zu", op.what, op.k + 1);
            else strcpy(row + 2 * u, op.what ? "--" : ". ");
        }
        say(run, "  device %zu  %s", i + 1, row);
    }
}

// The table of the notes: one line a time slice, one column a device.
static const char *slice_line(char *line, const Played *t, size_t u) {
    sprintf(line, "t%zu", u + 1);
    for (size_t i = 0; i < t->p; i++) {
        char cell[64] = "idle";
        if (t->at[i][u].what) sprintf(cell, "MB%zu Stage%zu", t->at[i][u].k + 1, i + 1);
        sprintf(line + strlen(line), " | %-10s", cell);
    }
    return line;
}

static void order_in_words(char *line, const Played *t) {
    for (size_t u = 0; u < t->end; u++)
        for (size_t i = 0; i < t->p; i++) {
            char what = t->at[i][u].what, *end = line + strlen(line);
            if (what == 'F') sprintf(end, "%s%zu forward", u ? " - " : "", i + 1);
            if (what == 'B') sprintf(end, " - %zu backward", i + 1);
        }
}

// ---------------------------------------------------------------- the comparison

static void begin(Chain *layer, Samples *data, uint64_t seed) {
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < WIDTH * (WIDTH + 1); i++)
            layer[l].w[i / (WIDTH + 1)][i % (WIDTH + 1)] = (real)random_normal(random_key(random_key(seed, l), i));
    for (size_t s = 0; s < SAMPLES; s++)
        for (size_t c = 0; c < WIDTH; c++) {
            data->x[s][c] = (real)random_normal(random_key(random_key(seed, 100 + s), c));
            data->target[s][c] = (real)(random_unit(random_key(random_key(seed, 200 + s), c)) - 0.5);
        }
}

static void put(Snapshot *s, const Chain *l, size_t number) {
    for (size_t i = 0; i < 2; i++) {
        char name[40];
        Arena a = arena(MEM_WORKSPACE);
        Tensor t = tensor_new(&a, WIDTH, WIDTH + 1);
        tensor_upload(t, i ? l->g[0] : l->w[0]);
        sprintf(name, "%s of layer %zu", i ? "gradients" : "weights", number + 1);
        snapshot_put(s, name, WIDTH, WIDTH + 1, t, 0, 0);
        arena_free(&a);
    }
}

// Trains STEPS steps on p devices by the rule and on one device, compares, and returns the last step as it was played.
static Played compare(Run *run, const char *what, size_t p, size_t pieces, void (*rule)(List *, size_t)) {
    Chain whole[LAYERS] = {0};
    Samples data;
    begin(whole, &data, run->seed);
    Device *device = host_alloc(p * sizeof *device);
    List list[LAYERS] = {0};
    Chain *split[LAYERS];                                  // layer l, on whatever device it is
    for (size_t i = 0; i < p; i++) {
        Range mine = shard_range(LAYERS, p, i);
        device[i].n = range_size(mine);
        for (size_t l = mine.lo; l < mine.hi; l++) *(split[l] = &device[i].layer[l - mine.lo]) = whole[l];
        rule(&list[i], pieces);
    }
    Played t = {0};
    double loss[STEPS], want_loss[STEPS];
    for (size_t step = 0; step < STEPS; step++) {
        for (size_t l = 0; l < LAYERS; l++) memset(split[l]->g, 0, sizeof split[l]->g);
        t = play(device, p, list, &data, pieces);
        for (size_t l = 0; l < LAYERS; l++) update(split[l]);
        loss[step] = t.loss;
        want_loss[step] = unsplit_step(whole, &data, pieces);
    }
    draw(run, &t);
    size_t all = p * t.end;
    say(run, "  %zu units of time; the %zu devices are idle for %zu of their %zu", t.end, p, all - t.busy, all);
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    for (size_t l = 0; l < LAYERS; l++) {
        put(got, split[l], l);
        put(want, &whole[l], l);
    }
    check_equal(run, what, got, want);
    check_numbers(run, what, "loss of every step", loss, want_loss, STEPS, 0);
    snapshot_free(got);
    snapshot_free(want);
    free(device);
    return t;
}

static double idle(const Played *t) { return (double)(t->p * t->end - t->busy) / (double)(t->p * t->end); }

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson imagines its devices: start it with one rank");
    Chain layer[LAYERS] = {0};
    Device *device = host_alloc(LAYERS * sizeof *device);
    Samples data;
    List list[LAYERS] = {0};
    begin(layer, &data, run->seed);
    for (size_t i = 0; i < LAYERS; i++) {
        device[i] = (Device){ .layer = { layer[i] }, .n = 1 };
        forwards_only(&list[i], PIECES);
    }
    Played slices = play(device, LAYERS, list, &data, PIECES);
    char line[400] = "";
    say(run, "Forwards of %d micro-batches (MB) through %d stages; idle devices are the bubble:", PIECES, LAYERS);
    for (size_t u = 0; u < slices.end; u++) say(run, "  %s", slice_line(line, &slices, u));
    check_true(run, "time slice t4", "all four devices are at work",
               !strcmp(slice_line(line, &slices, 3), "t4 | MB4 Stage1 | MB3 Stage2 | MB2 Stage3 | MB1 Stage4"));
    free(device);

    say(run, "\nNaive, 2 devices with 2 layers each, the whole batch at once:");
    Played two = compare(run, "naive, 2 devices = unsplit", 2, 1, there_and_back);
    char words[400] = "";
    order_in_words(words, &two);
    const char *order = "1 forward - 2 forward - 2 backward - 1 backward";
    check_true(run, "naive, 2 devices: order", words, !strcmp(words, order));
    say(run, "\nNaive, 4 devices, %d micro-batches one after the other:", PIECES);
    Played naive = compare(run, "naive, 4 devices = unsplit", LAYERS, PIECES, there_and_back);
    say(run, "\nMicro-batched, 4 devices: all forwards, then all backwards:");
    Played piped = compare(run, "micro-batched = unsplit", LAYERS, PIECES, all_there_all_back);

    double p = LAYERS, m = PIECES, both = T_FORWARD + T_BACKWARD;
    double units[] = { two.end, naive.end, piped.end }, want_units[] = { 2 * both, m * p * both, (m + p - 1) * both };
    double share[] = { idle(&two), idle(&naive), idle(&piped) };
    double want_share[] = { 1 - 1 / 2.0, 1 - 1 / p, (p - 1) / (m + p - 1) };
    check_numbers(run, "played = formula", "step time: 2(f+b), mp(f+b), (m+p-1)(f+b)", units, want_units, 3, 0);
    check_numbers(run, "played = formula", "idle share: 1-1/2, 1-1/p, (p-1)/(m+p-1)", share, want_share, 3, 1e-15);
}

int main(int argc, char **argv) { return lesson_main(argc, argv, by_hand, NULL); }
