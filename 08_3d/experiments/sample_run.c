// sample_run.c holds the loop of the program 08_3d/sample, which writes the text with the sampler.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/output.h"
#include "judge/draw/picture.h"

// ---------------------------------------------------------------- the loop

static void write_text(Run *run, Sampler *s, SampleText *t, SampleWindows *w, Snapshot *got,
                       SampleMeasured *r) {
    size_t T = s->m->config.context, V = s->m->config.vocab, start = 0;
    w->window = host_alloc((t->all + 1) * sizeof *w->window);
    for (w->n = 0; t->n < t->all; t->n++) {
        if (s->n == 0 || t->n - start > T) {
            // A token's keys depend on its position, learned or rotary. So when the context of T
            // positions is full, the model reads the last T/2 tokens again from position 0.
            if (t->n - start > T) start = t->n - (T > 1 ? T / 2 : 1);
            sampler_forget(s);
            // The last token is in no window, because no token follows it.
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
        if (got && s->head) sample_put(got, w, w->n - 1, V, logits, row, s->head->vocab.lo);
        begun = now();
        t->token[t->n] = sampler_choose(s, logits, t->n);
        r->seconds += now() - begun;
        if (last) picture_end(run);
        arena_free(&a);
    }
    progress(run, "token", t->all - t->prompt, t->all - t->prompt);
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
// The sizes of a model without --from. With 2, 3 or 4 ranks at least one of the numbers of heads,
// blocks and entries is not a multiple of the number of ranks. So the run also checks unequal
// parts.
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
                "--%s out",
                of_small[i], of_small[i]);
    size_t heads = option_given(run, "heads") ? option_size(run, "heads") : 0;
    return weights_open(run->world, "from", option_text(run, "from"),
                        option_given(run, "heads") ? &heads : NULL, run->seed);
}
// Applies --context to a model with rotary positions. No tensor of such a model has a row for each
// position, so a cache may be shorter than the model allows.
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
    SampleText text = sample_text_begin(run, w.model.vocab);
    Choice choice = choice_of(run);
    memory_set_poison(false); // filling new memory with NaN would slow the training down
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
    SampleWindows windows = { 0 };
    comm_ledger_reset(s.mesh.tp);
    comm_ledger_reset(s.mesh.pp);
    write_text(run, &s, &text, &windows, got, &r);
    r.tp_bytes = (double)comm_bytes_sent(s.mesh.tp);
    r.pp_bytes = (double)comm_bytes_sent(s.mesh.pp);
    sample_text_show(run, &text, ids);
    double written = (double)(text.all - text.prompt);
    double speed = written / r.seconds;
    say(run, "%.0f tokens in %.3g s of real time: %.*f tokens/s", written, r.seconds,
        speed < 100 ? 1 : 0, speed);
    report_config_number(run, "tokens_per_second", speed);
    Timing timing = picture_timing(run);
    // A single rank only computes, so its chart would show nothing.
    if (world > 1 || option_flag(run, "verbose") || option_text(run, "svg") ||
        option_text(run, "trace")) {
        say(run, "\n");
        picture_show(run, "the last token", PICTURE_ALIKE_ONCE);
        picture_summary(run, &timing);
    }
    if (check) sample_compare(run, &s, &w, &text, &windows, got);
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
