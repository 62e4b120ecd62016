// sampler.h: text from a model that is cut over tp x pp, one token after another, with a cache of
// keys and values.
#ifndef SAMPLER_H
#define SAMPLER_H
#include "08_3d/mesh.h"
#include "08_3d/weights.h"

// What one block has seen so far, of this rank's heads. kind stands first: an attention finds the
// rest behind it.
typedef struct {
    AttentionKind kind;
    // [context, heads/tp * D] each, of which n rows are filled
    Tensor k, v;
    size_t n;
} Cache;
// temperature 0: the likeliest entry;
typedef struct {
    double temperature;
    size_t top_k;
    uint64_t seed;
} Choice;
// top_k 0: all entries
typedef struct {
    Mesh mesh;
    // my stage's layers, my part of their tensors; no loss
    Model *m;
    // the last of them on the last stage; else NULL
    Layer *head;
    Cache *cache; // [blocks of this stage]
    size_t blocks, n; // n: positions in the caches
    Arena memory; // of the caches
    Choice choice;
} Sampler;

// collective
Sampler sampler_new(Comm *world, const Weights *w, size_t tp, size_t pp, Choice choice);
void sampler_free(Sampler *s);
// Forward of these tokens, which follow the n in the cache: [rows, V/tp] logits on the last stage,
// of all of them, or of the last one; elsewhere empty.
Tensor sampler_forward(Sampler *s, Arena *a, const int *tokens, size_t count, bool all);
// The same from position 0 without a cache, which stays as it is.
Tensor sampler_forward_whole(Sampler *s, Arena *a, const int *tokens, size_t count);
void sampler_forget(Sampler *s); // empties the caches
// The next token by the last row of logits, the same on all ranks; number: which token of the text
// it will be.
int sampler_choose(Sampler *s, Tensor logits, size_t number);
// By which the choice is made: of an entry with this logit, for token `number`.
double sampler_score(const Choice *c, double logit, size_t number, size_t entry);
#endif
