// sample_checks.c compares the logits of 08_3d/sample with forwards without a cache and with the
// unsplit model. The unsplit model must also choose every token of the text, up to rounding.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/output.h"

void sample_put(Snapshot *s, const SampleWindows *w, size_t k, size_t vocab, Tensor logits,
                size_t row, size_t col) {
    char name[40];
    snprintf(name, sizeof name, "logits of window %zu", k);
    snapshot_put(s, name, range_size(w->window[k]), vocab, logits, row, col);
}

// ---------------------------------------------------------------- the references

static void without_cache(Sampler *s, const SampleText *t, const SampleWindows *w, Snapshot *want) {
    for (size_t k = 0; k < w->n; k++) {
        Arena a = arena(MEM_WORKSPACE);
        Tensor logits =
            sampler_forward_whole(s, &a, t->token + w->window[k].lo, range_size(w->window[k]));
        if (s->head) sample_put(want, w, k, s->m->config.vocab, logits, 0, s->head->vocab.lo);
        arena_free(&a);
    }
}

static int by_value(const void *a, const void *b) {
    real x = *(const real *)a, y = *(const real *)b;
    return (x < y) - (x > y);
}
// Returns true if this token is the choice of this row, or if rounding could make this token the
// choice.
static bool is_choice(const Choice *c, const real *row, size_t V, size_t number, size_t token) {
    size_t k = c->top_k && c->top_k < V ? c->top_k : V, ties = k, choice = V;
    real *sorted = host_alloc(V * sizeof *sorted);
    memcpy(sorted, row, V * sizeof *sorted);
    qsort(sorted, V, sizeof *sorted, by_value);
    real least = sorted[k - 1];
    // ties: the number of entries that have exactly the logit `least` and are among the k largest.
    // Of entries with equal logits the first entries are among the k largest.
    while (sorted[k - ties] > least) ties--;
    double most = 0, score_of_token = -HUGE_VAL;
    double near = 100 * LIMIT_ROUNDING * (1 + fabs((double)sorted[0]));
    // unsure: rounding could change which entries are among the k largest.
    bool unsure = k < V && sorted[k] != least && (double)(least - sorted[k]) < near;
    for (size_t v = 0; v < V; v++) {
        if (row[v] < least || (row[v] == least && !ties)) continue;
        ties -= row[v] == least;
        double score = sampler_score(c, (double)row[v], number, v);
        if (v == token) score_of_token = score;
        if (choice == V || score > most) {
            most = score;
            choice = v;
        }
    }
    free(sorted);
    if (c->temperature > 0) near /= c->temperature;
    return choice == token || (score_of_token != most && most - score_of_token < near) ||
           (unsure && (double)(row[token] - least) > -near);
}

// Runs forwards of the whole model over each window, on rank 0. Returns true if this model, too,
// chooses every token of the sampler, up to rounding.
static bool unsplit(const Weights *w, const Choice *c, const SampleText *t,
                    const SampleWindows *windows, Snapshot *want) {
    Model *m = model_describe(&w->model, (Range){ 0, w->model.layers + 2 }); // no loss
    size_t V = w->model.vocab;
    bool same = true;
    weights_load(w, m);
    for (size_t k = 0; k < windows->n; k++) {
        Range r = windows->window[k];
        size_t n = range_size(r);
        Arena a = arena(MEM_WORKSPACE);
        int *tokens = ints_new(&a, n), *position = ints_new(&a, n),
            *count = host_alloc(n * sizeof *count);
        for (size_t i = 0; i < n; i++) count[i] = (int)i;
        ints_upload(tokens, t->token + r.lo, n);
        ints_upload(position, count, n);
        Batch b = { .B = 1, .T = n, .tokens = tokens, .position = position };
        Tensor logits = tensor_new(&a, n, V), none = { 0 };
        walk_forward_only(m->layers, m->n_layers, &b, none, logits);
        sample_put(want, windows, k, V, logits, 0, 0);
        real *row = host_alloc(V * sizeof *row);
        size_t first = r.lo + 1 > t->prompt ? r.lo + 1 : t->prompt;
        // The previous window has chosen all tokens before `known`. The last of these tokens
        // follows the last position of that window.
        size_t known = k ? windows->window[k - 1].hi + 1 : 0;
        for (size_t i = first > known ? first : known; i <= r.hi; i++) {
            tensor_download(row, tensor_row_range(logits, i - 1 - r.lo, i - r.lo));
            same &= is_choice(c, row, V, i, (size_t)t->token[i]);
        }
        free(row);
        free(count);
        arena_free(&a);
    }
    model_free(m);
    return same;
}

static void write_logits(Run *run, const SampleWindows *w, Snapshot *got, size_t vocab) {
    if (!run->is_root || !option_given(run, "logits")) return;
    Output o = output_open("logits", option_text(run, "logits"));
    for (size_t k = 0; k < w->n; k++) {
        char name[40];
        snprintf(name, sizeof name, "logits of window %zu", k);
        const real *value = snapshot_values(got, name);
        for (size_t i = 0; i < range_size(w->window[k]) * vocab; i++)
            fprintf(o.f, "%.9g%c", (double)value[i], (i + 1) % vocab ? ' ' : '\n');
    }
    output_close(&o);
}

void sample_compare(Run *run, Sampler *s, const Weights *w, const SampleText *t,
                    const SampleWindows *windows, Snapshot *got) {
    Snapshot *plain = snapshot_new(run), *one = snapshot_new(run);
    bool same = true;
    ledger_pause();
    without_cache(s, t, windows, plain);
    if (run->world->rank == 0) same = unsplit(w, &s->choice, t, windows, one);
    ledger_resume();
    check_close(run, "with the cache = a whole forward", got, plain, LIMIT_ROUNDING);
    check_close(run, "tp x pp = unsplit", got, one, LIMIT_ROUNDING);
    check_true(run, "tp x pp = unsplit", "every token is the unsplit model's choice", same);
    write_logits(run, windows, got, w->model.vocab);
    snapshot_free(plain);
    snapshot_free(one);
}
