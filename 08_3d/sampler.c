// sampler.c writes text with a model that is cut over tp x pp. The file has attention with a cache
// of keys and values, forwards of new positions through the stages, and the choice of a token.
#include <math.h>
#include <stdlib.h>
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_pipeline_naive/pipeline.h"
#include "08_3d/sampler.h"
#include "common/comm/record.h"
#include "common/tensor/random.h"

// -------------------------------------------------- attention of new positions to all earlier ones

// Runs attention with the cache. S_QKV [T, A + 2K] has only the T new positions. A is the number of
// columns of this rank's queries, and K the number of columns of the rank's keys. K = A without
// grouped heads. The new keys and values join the cache. With rotary positions the new keys are
// already rotated. Then the new queries attend to the whole cache.
static void cached_forward(const AttentionHeads *h, Saved *s) {
    Cache *c = (Cache *)h->kind;
    size_t heads = range_size(h->heads), all = c->n + h->T;
    Tensor q = attention_part(h, s->t[S_QKV], 0), k = attention_part(h, s->t[S_QKV], 1),
           v = attention_part(h, s->t[S_QKV], 2);
    Tensor p = tensor_new(&s->attention, heads * h->T, all);
    Arena wide = arena(MEM_WORKSPACE); // for attention_repeat()
    // EXERCISE 08.sample-a (4 points): attend with the cache. c->k and c->v [context, K] have c->n
    // rows of earlier positions; put the new ones, k and v, behind them. Then p <- scores of q with
    // all keys, its causal softmax with scale 1/sqrt(D) at h->position, and S_MIX <- p times all
    // values. attention_repeat() gives each head of q its key and its value.
    tensor_copy(tensor_row_range(c->k, c->n, all), k);
    tensor_copy(tensor_row_range(c->v, c->n, all), v);
    op_heads_scores(p, q, attention_repeat(h, tensor_row_range(c->k, 0, all), &wide), 1, heads);
    op_causal_softmax(p, p, (real)(1 / sqrt((double)h->D)),
                      (HeadsPlace){ 1, heads, h->position, NULL });
    op_heads_mix(s->t[S_MIX], p, attention_repeat(h, tensor_row_range(c->v, 0, all), &wide), 1,
                 heads);
    // END
    arena_free(&wide);
    c->n = all;
}

// ---------------------------------------------------------------- one forward through the stages

static Batch batch_of(Arena *a, const int *tokens, size_t count, size_t first) {
    int *device[2] = { ints_new(a, count), ints_new(a, count) },
        *position = host_alloc(count * sizeof *position);
    for (size_t i = 0; i < count; i++) position[i] = (int)(first + i);
    ints_upload(device[0], tokens, count);
    ints_upload(device[1], position, count);
    free(position);
    return (Batch){ .B = 1, .T = count, .tokens = device[0], .position = device[1] };
}

// Runs this stage's part of a forward of `count` positions, from position `first` on. A message
// between stages is [count, C]. The last stage returns the logits of all rows if `all`, else the
// logits of the last row, which give the next token. The other stages return an empty tensor.
static Tensor forward(Sampler *s, Arena *a, const int *tokens, size_t count, size_t first,
                      bool all) {
    Comm *pp = s->mesh.pp;
    Arena scratch = arena(MEM_WORKSPACE), buffers = arena(MEM_COMMUNICATION);
    Batch b = batch_of(&scratch, tokens, count, first);
    size_t layers = s->m->n_layers - (s->head != NULL), C = s->m->config.width;
    Tensor x = { 0 }, y = tensor_new(&buffers, count, C), logits = { 0 };
    if (pp->rank > 0) {
        x = tensor_new(&buffers, count, C);
        comm_recv(pp, x, pp->rank - 1); // count * C elements
    }
    walk_forward_only(s->m->layers, layers, &b, x, y);
    if (s->head) {
        Saved saved = saved_new();
        Tensor rows = all ? y : tensor_row_range(y, count - 1, count);
        logits = tensor_new(a, rows.rows, range_size(s->head->vocab));
        record_enter(EVENT_FORWARD, b.number); // for the picture
        layer_forward(s->head, &b, rows, logits, &saved);
        record_leave();
        saved_free(&saved);
    } else {
        comm_send(pp, y, pp->rank + 1); // count * C elements
    }
    arena_free(&buffers);
    arena_free(&scratch);
    return logits;
}

static void attach(Sampler *s, bool cached) {
    for (size_t i = 0, block = 0; i < s->m->n_layers; i++)
        if (s->m->layers[i].kind == &tensor_parallel_block)
            s->m->layers[i].attention = cached ? &s->cache[block++].kind : NULL;
}

Tensor sampler_forward(Sampler *s, Arena *a, const int *tokens, size_t count, bool all) {
    Tensor logits = forward(s, a, tokens, count, s->n, all);
    s->n += count;
    return logits;
}
Tensor sampler_forward_whole(Sampler *s, Arena *a, const int *tokens, size_t count) {
    attach(s, false);
    Tensor logits = forward(s, a, tokens, count, 0, true);
    attach(s, true);
    return logits;
}
void sampler_forget(Sampler *s) {
    for (size_t i = 0; i < s->blocks; i++) s->cache[i].n = 0;
    s->n = 0;
}

// ------------------------------------------------------- the choice, which is equal in all layouts

// An entry's score is logit / temperature + a Gumbel number, or the logit if the temperature is 0.
// The entry with the largest score is drawn with probability softmax(logit / temperature) (Maddison
// et al. 2014). The Gumbel number is a function of (seed, number of the token, entry). So the
// choice is the same however the entries are cut over the ranks, and no rank needs all entries.
enum { KEY_SAMPLE = 5 }; // keys 1 to 4 belong to common/model
typedef struct {
    double logit, score;
    size_t entry;
} Candidate;
double sampler_score(const Choice *c, double logit, size_t number, size_t entry) {
    uint64_t key = random_key(random_key(random_key(c->seed, KEY_SAMPLE), number), entry);
    return c->temperature == 0 ? logit : logit / c->temperature - log(-log(random_unit(key)));
}
// If the scores are equal, the smaller entry is better.
static bool better(const Candidate *x, const Candidate *y) {
    return x->score != y->score ? x->score > y->score : x->entry < y->entry;
}

// The k best candidates so far, in a heap with the worst candidate at the root. Most candidates are
// worse than the root and cost one comparison, so the vocabulary is never sorted.
typedef struct {
    Candidate *list;
    size_t n, k; // n: the number of candidates in the heap
} Best;
static void offer(Best *best, Candidate c) {
    Candidate *list = best->list;
    size_t i = 0;
    if (best->n < best->k) { // c rises until its parent is worse
        for (i = best->n++; i > 0 && better(&list[(i - 1) / 2], &c); i = (i - 1) / 2)
            list[i] = list[(i - 1) / 2];
    } else if (better(&c, &list[0])) { // c replaces the root and sinks below worse candidates
        for (size_t below = 1; below < best->k; below = 2 * i + 1) {
            if (below + 1 < best->k && better(&list[below], &list[below + 1])) below++;
            if (better(&list[below], &c)) break;
            list[i] = list[below];
            i = below;
        }
    } else {
        return;
    }
    list[i] = c;
}
// Puts an entry among the best candidates if its score is high enough. With --top-k the k entries
// with the largest logits stay candidates. Without --top-k, k is 1, and only the entry with the
// best score stays.
static void offer_logit(Best *best, const Choice *c, double logit, size_t number, size_t entry) {
    double score = c->top_k ? logit : sampler_score(c, logit, number, entry);
    offer(best, (Candidate){ .logit = logit, .score = score, .entry = entry });
}

// Runs on the last stage. Gathers each rank's k candidates, and keeps the k best of all.
static size_t choose(Sampler *s, Tensor logits, size_t number) {
    Comm *tp = s->mesh.tp;
    const Choice *c = &s->choice;
    size_t V = s->m->config.vocab, k = c->top_k == 0 ? 1 : c->top_k < V ? c->top_k : V;
    size_t n = tp->size * k;
    real *row = host_alloc(logits.cols * sizeof *row), *pairs = host_alloc(2 * n * sizeof *pairs);
    Best best = { .list = host_alloc(k * sizeof *best.list), .k = k };
    Arena buffers = arena(MEM_COMMUNICATION);
    Tensor all = tensor_new(&buffers, tp->size, 2 * k);
    Tensor part = tensor_row_range(all, tp->rank, tp->rank + 1);
    tensor_download(row, tensor_row_range(logits, logits.rows - 1, logits.rows));
    for (size_t i = 0; i < logits.cols; i++) {
        size_t entry = s->head->vocab.lo + i;
        // A NaN has no order, so a NaN counts as the lowest logit. The checks report a NaN.
        double logit = isnan(row[i]) ? -HUGE_VAL : (double)row[i];
        offer_logit(&best, c, logit, number, entry);
    }
    // A rank with fewer than k entries adds candidates that cannot win.
    for (size_t i = 0; i < k; i++) {
        pairs[2 * i] = i < best.n ? (real)best.list[i].logit : -(real)HUGE_VAL;
        pairs[2 * i + 1] = i < best.n ? (real)best.list[i].entry : (real)V;
    }
    tensor_upload(part, pairs);
    comm_all_gather(tp, all, part); // 2k elements per rank: logit, entry
    tensor_download(pairs, all);
    best.n = 0;
    for (size_t i = 0; i < n; i++)
        offer_logit(&best, c, (double)pairs[2 * i], number, (size_t)pairs[2 * i + 1]);
    Candidate first = { .score = -HUGE_VAL, .entry = V };
    for (size_t i = 0; i < k; i++) {
        best.list[i].score = sampler_score(c, best.list[i].logit, number, best.list[i].entry);
        if (better(&best.list[i], &first)) first = best.list[i];
    }
    arena_free(&buffers);
    free(row);
    free(pairs);
    free(best.list);
    return first.entry;
}

int sampler_choose(Sampler *s, Tensor logits, size_t number) {
    Comm *pp = s->mesh.pp;
    Arena buffers = arena(MEM_COMMUNICATION);
    Tensor token = tensor_new(&buffers, 1, 1);
    real value = s->head ? (real)choose(s, logits, number) : 0;
    tensor_upload(token, &value);
    // The message is one token. The first stage needs the token as its next input. The other stages
    // get the token, because every rank keeps the whole text.
    comm_broadcast(pp, token, pp->size - 1);
    tensor_download(&value, token);
    arena_free(&buffers);
    return (int)value;
}

// ---------------------------------------------------------------- layers and caches of a rank

Sampler sampler_new(Comm *world, const Weights *w, size_t tp, size_t pp, Choice choice) {
    const ModelConfig *c = &w->model;
    Sampler s = { .mesh = mesh_new(world, (Degrees){ .dp = 1, .tp = tp, .pp = pp }),
                  .choice = choice,
                  .memory = arena(MEM_ACTIVATIONS) };
    Range layers = pipeline_stage_layers(c, NULL, pp, s.mesh.at.pp);
    bool last = s.mesh.at.pp + 1 == pp;
    layers.hi -= last; // leaves out the last layer, the loss
    s.m = model_describe(c, layers);
    tensor_parallel(s.m, s.mesh.tp);
    weights_load(w, s.m);
    if (last) s.head = &s.m->layers[s.m->n_layers - 1];
    s.blocks = s.m->n_layers - last - (s.mesh.at.pp == 0);
    s.cache = host_alloc(s.blocks * sizeof *s.cache);
    size_t heads = range_size(s.m->layers[s.mesh.at.pp == 0].heads) / config_head_ratio(c);
    size_t K = heads * (c->width / c->heads); // columns of this rank's keys
    for (size_t i = 0; i < s.blocks; i++)
        s.cache[i] = (Cache){ .kind = { .name = "cached", .forward = cached_forward },
                              .k = tensor_new(&s.memory, c->context, K),
                              .v = tensor_new(&s.memory, c->context, K) };
    attach(&s, true);
    comm_connect(s.mesh.pp, COMM_NEIGHBOURS);
    return s;
}
void sampler_free(Sampler *s) {
    arena_free(&s->memory);
    model_free(s->m);
    mesh_free(&s->mesh);
    free(s->cache);
}
