// sample_run.c: the program 08_3d/sample: reads its options, writes the text with the sampler,
// checks it and shows the page.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/output.h"
#include "judge/draw/picture.h"

// ---------------------------------------------------------------- tokens

typedef struct {
    int *token;                                    // [all], of which n are written
    size_t n, all, prompt;                         // the first `prompt` tokens are given
} Text;

static Text text_of_ids(Run *run, size_t vocab, size_t more) {
    const char *list = option_text(run, "ids");
    Text t = { .token = host_alloc((strlen(list) + 1 + more) * sizeof(int)) };
    for (const char *s = list;; s++) {
        char *end;
        REQUIRE(*s >= '0' && *s <= '9',
                "--ids %s: expected token ids with commas between them, such as 15496,11", list);
        unsigned long id = strtoul(s, &end, 10);
        REQUIRE(id < vocab, "--ids: %lu is no entry of this vocabulary: ids go from 0 to %zu", id,
                vocab - 1);
        t.token[t.n++] = (int)id;
        s = end;
        REQUIRE(*s == ',' || *s == 0,
                "--ids %s: expected token ids with commas between them, such as 15496,11", list);
        if (*s == 0) break;
    }
    return t;
}
static Text text_begin(Run *run, size_t vocab) {
    size_t more = option_size(run, "tokens");
    bool ids = option_given(run, "ids");
    REQUIRE(more > 0 && more <= 1000000, "--tokens %zu: expected 1 to 1000000", more);
    REQUIRE(!ids || !option_given(run, "prompt"),
            "--prompt and --ids both say how the text begins: give one of them");
    REQUIRE(ids || vocab == 256,
            "this model has a vocabulary of %zu entries, not of bytes: give --ids, or use "
            "tools/gpt2-text, which has a tokenizer",
            vocab);
    Text t;
    if (ids) {
        t = text_of_ids(run, vocab, more);
    } else {
        const unsigned char *prompt = (const unsigned char *)option_text(run, "prompt");
        t = (Text){ .n = strlen((const char *)prompt) };
        t.token = host_alloc((t.n + more) * sizeof(int));
        for (size_t i = 0; i < t.n; i++) t.token[i] = prompt[i];
    }
    t.prompt = t.n;
    t.all = t.n + more;
    return t;
}

static void text_show(Run *run, const Text *t, bool ids) {
    char *out = host_alloc(12 * t->n + 1), *at = out;
    for (size_t i = 0; i < t->n; i++) {
        int c = t->token[i];
        if (ids)
            at += sprintf(at, "%s%d", i ? "," : "", c);
        else if (c == '\n' || (c >= 32 && c < 127))
            *at++ = (char)c;
        else
            at += sprintf(at, "\\x%02x", (unsigned)c);
    }
    *at = 0;
    if (ids) {
        say(run, "The ids it wrote (it was given the first %zu):", t->prompt);
        say(run, "%s\n", out);
    } else {
        say(run, "The text it wrote (it was given '%s'):", option_text(run, "prompt"));
        say(run, "%s\n", out);
    }
    report_config_text(run, ids ? "ids_written" : "text_written", out);
    free(out);
}

// ---------------------------------------------------------------- the loop

// The windows of the text that the model saw, one after another, as ranges [start, end).
typedef struct {
    Range *window;
    size_t n;
} Windows;
static void put(Snapshot *s, const Windows *w, size_t k, size_t vocab, Tensor logits, size_t row,
                size_t col) {
    char name[40];
    snprintf(name, sizeof name, "logits of window %zu", k);
    snapshot_put(s, name, range_size(w->window[k]), vocab, logits, row, col);
}

static void write_text(Run *run, Sampler *s, Text *t, Windows *w, Snapshot *got,
                       SampleMeasured *r) {
    size_t T = s->m->config.context, V = s->m->config.vocab, start = 0;
    w->window = host_alloc((t->all + 1) * sizeof *w->window);
    for (w->n = 0; t->n < t->all; t->n++) {
        if (s->n == 0 || t->n - start > T) {
            // A token's keys depend on its position, learned or rotary. When the context is
            // full, the text moves up, and its last half is read again from position 0.
            if (t->n - start > T) start = t->n - (T > 1 ? T / 2 : 1);
            sampler_forget(s);
            // nothing follows the last token
            size_t end = t->all - 1 - start < T ? t->all - 1 : start + T;
            w->window[w->n++] = (Range){ start, end };
        }
        progress(run, "token", t->n - t->prompt, t->all - t->prompt);
        Arena a = arena(MEM_WORKSPACE);
        size_t row = s->n, next = start + row;
        bool last = t->n + 1 == t->all;
        if (last) picture_begin(run, MEM_ACTIVATIONS);
        double begun = now();
        Tensor logits = sampler_forward(s, &a, t->token + next, t->n - next, got != NULL);
        r->seconds += now() - begun;
        r->rows += (double)(t->n - next);
        if (got && s->head) put(got, w, w->n - 1, V, logits, row, s->head->vocab.lo);
        begun = now();
        t->token[t->n] = sampler_choose(s, logits, t->n);
        r->seconds += now() - begun;
        if (last) picture_end(run);
        arena_free(&a);
    }
    progress(run, "token", t->all - t->prompt, t->all - t->prompt);
}

// ---------------------------------------------------------------- the references

static void without_cache(Sampler *s, const Text *t, const Windows *w, Snapshot *want) {
    for (size_t k = 0; k < w->n; k++) {
        Arena a = arena(MEM_WORKSPACE);
        Tensor logits =
                sampler_forward_whole(s, &a, t->token + w->window[k].lo, range_size(w->window[k]));
        if (s->head) put(want, w, k, s->m->config.vocab, logits, 0, s->head->vocab.lo);
        arena_free(&a);
    }
}

// Makes the choice of this row again on one rank. True: the choice is this token, or rounding could
// make it this token.
static int by_value(const void *a, const void *b) {
    real x = *(const real *)a, y = *(const real *)b;
    return (x < y) - (x > y);
}
static bool is_choice(const Choice *c, const real *row, size_t V, size_t number, size_t token) {
    size_t k = c->top_k && c->top_k < V ? c->top_k : V, ties = k, choice = V;
    real *sorted = host_alloc(V * sizeof *sorted);
    memcpy(sorted, row, V * sizeof *sorted);
    qsort(sorted, V, sizeof *sorted, by_value);
    real least = sorted[k - 1];
    // ties: the number of entries with exactly this logit that are among the k. The first ones are.
    while (sorted[k - ties] > least) ties--;
    double most = 0, score_of_token = -HUGE_VAL;
    double near = 100 * LIMIT_ROUNDING * (1 + fabs((double)sorted[0]));
    // Could rounding change which entries are among the k?
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

// On rank 0: forwards of the whole model over each whole window. True: this model would have chosen
// every token.
static bool unsplit(const Weights *w, const Choice *c, const Text *t, const Windows *windows,
                    Snapshot *want) {
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
        put(want, windows, k, V, logits, 0, 0);
        real *row = host_alloc(V * sizeof *row);
        size_t first = r.lo + 1 > t->prompt ? r.lo + 1 : t->prompt;
        // The tokens that were chosen in this window. The previous window has chosen the token
        // after its last position, so the first choice of this window is behind that.
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

static void write_logits(Run *run, const Windows *w, Snapshot *got, size_t vocab) {
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

static void compare(Run *run, Sampler *s, const Weights *w, const Text *t, const Windows *windows,
                    Snapshot *got) {
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

// ---------------------------------------------------------------- the program

static Choice choice_of(Run *run) {
    Choice c = { .temperature = option_real(run, "temperature"),
                 .top_k = option_size(run, "top-k"),
                 .seed = run->seed };
    REQUIRE(c.temperature >= 0,
            "--temperature %g: expected 0, which always takes the likeliest, or more",
            c.temperature);
    return c;
}
// The sizes of a model without --from. No size divides by all of 2, 3 and 4 ranks.
static const ModelConfig small = {
    .layers = 4, .width = 36, .heads = 9, .context = 24, .vocab = 256
};

static ModelConfig small_model(Run *run) {
    ModelConfig c = small;
    c.seed = run->seed;
    config_family(&c, strcmp(option_text(run, "family"), "llama") ? FAMILY_GPT2 : FAMILY_LLAMA);
    if (option_given(run, "kv-heads")) c.kv_heads = option_size(run, "kv-heads");
    if (option_given(run, "ffn")) c.ffn = option_size(run, "ffn");
    REQUIRE(!option_given(run, "kv-heads") || c.kv_heads > 0,
            "--kv-heads 0: the heads share at least one head of key and value");
    REQUIRE(!option_given(run, "ffn") || c.ffn > 0, "--ffn 0: the MLP has at least one feature");
    c.untied = option_flag(run, "untied");
    config_require(&c);
    return c;
}
static Weights opened_model(Run *run) {
    static const char *const of_small[] = { "family", "kv-heads", "ffn", "untied" };
    for (size_t i = 0; i < sizeof of_small / sizeof *of_small; i++)
        REQUIRE(!option_given(run, of_small[i]),
                "--%s is of the model without --from: the model of --from has its own; leave "
                "--%s out", of_small[i], of_small[i]);
    size_t heads = option_given(run, "heads") ? option_size(run, "heads") : 0;
    return weights_open(run->world, "from", option_text(run, "from"),
                        option_given(run, "heads") ? &heads : NULL, run->seed);
}
// No tensor has a row for each rotary position, so a cache may be shorter than the model allows.
static void take_context(Run *run, ModelConfig *c) {
    if (!option_given(run, "context")) return;
    size_t n = option_size(run, "context");
    REQUIRE(c->positions == POSITIONS_ROTARY,
            "--context %zu: the positions of this model are learned: leave --context out", n);
    REQUIRE(n > 0 && n <= c->context, "--context %zu: choose 1 to %zu, the positions of this model",
            n, c->context);
    c->context = n;
}

void sample_run(Run *run) {
    size_t world = run->world->size, pp = option_size(run, "pp");
    REQUIRE(pp > 0 && world % pp == 0, "--pp %zu: %zu ranks are not a multiple of it", pp, world);
    size_t tp = option_given(run, "tp") ? option_size(run, "tp") : world / pp;
    REQUIRE(tp * pp == world,
            "--tp %zu x --pp %zu is not %zu ranks: start as many (--emulate %zu), or leave --tp "
            "out",
            tp, pp, world, tp * pp);
    bool from = option_given(run, "from"), ids = option_given(run, "ids");
    bool check = option_flag(run, "check") || !from;
    Weights w = { 0 };
    if (from) w = opened_model(run);
    else w.model = small_model(run);
    take_context(run, &w.model);
    REQUIRE(pp <= w.model.layers,
            "--pp %zu needs as many blocks; the model has %zu: choose --pp %zu, or less", pp,
            w.model.layers, w.model.layers);
    REQUIRE(check || !option_given(run, "logits"),
            "--logits writes what --check has compared: give both");
    if (run->is_root && option_given(run, "logits"))
        output_require("logits", option_text(run, "logits"));
    Text text = text_begin(run, w.model.vocab);
    Choice choice = choice_of(run);
    memory_set_poison(false);                      // the training shall be fast
    if (!from) sample_train(run, &w);
    memory_set_poison(check);

    size_t before = memory_now(MEM_ACTIVATIONS);
    Sampler s = sampler_new(run->world, &w, tp, pp, choice);
    SampleMeasured r = { .cache = (double)(memory_now(MEM_ACTIVATIONS) - before) };
    say(run,
        "%zu parameters: L %zu blocks, C %zu columns, %zu heads, context T %zu, %zu entries; "
        "tp %zu x pp %zu\n",
        config_parameters(&w.model), w.model.layers, w.model.width, w.model.heads, w.model.context,
        w.model.vocab, tp, pp);
    Snapshot *got = check ? snapshot_new(run) : NULL;
    Windows windows = { 0 };
    comm_ledger_reset(s.mesh.tp);
    comm_ledger_reset(s.mesh.pp);
    write_text(run, &s, &text, &windows, got, &r);
    r.tp_bytes = (double)comm_bytes_sent(s.mesh.tp);
    r.pp_bytes = (double)comm_bytes_sent(s.mesh.pp);
    text_show(run, &text, ids);
    double written = (double)(text.all - text.prompt);
    say(run, "%.0f tokens in %.3g s of real time: %.4g tokens/s", written, r.seconds,
        written / r.seconds);
    report_config_number(run, "tokens_per_second", written / r.seconds);
    Timing timing = picture_timing(run);
    // One rank only computes, so its chart would show nothing.
    if (world > 1 || option_flag(run, "verbose") || option_text(run, "svg") ||
        option_text(run, "trace")) {
        say(run, "\n");
        picture_show(run, "the last token", PICTURE_ALIKE_ONCE);
        picture_summary(run, &timing);
    }
    if (check) compare(run, &s, &w, &text, &windows, got);
    SampleSizes z = { .tp = tp,
                      .pp = pp,
                      .tp_rank = s.mesh.at.tp,
                      .pp_rank = s.mesh.at.pp,
                      .top_k = s.choice.top_k,
                      .prompt = text.prompt,
                      .tokens = text.all - text.prompt };
    sample_costs(run, &w.model, &z, &r);
    if (got) snapshot_free(got);
    sampler_free(&s);
    weights_close(&w);
    free(text.token);
    free(windows.window);
}
