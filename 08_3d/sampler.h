// sampler.h declares a sampler, which writes text with a model that is cut over tp x pp, one token
// after another. The sampler keeps a cache of keys and values.
#ifndef SAMPLER_H
#define SAMPLER_H
#include "08_3d/mesh.h"
#include "08_3d/weights.h"

// The keys and values of this rank's heads in one block. kind must be the first member, because the
// attention gets a pointer to kind and casts this pointer to a pointer to the Cache.
typedef struct {
    AttentionKind kind;
    Tensor k, v; // [context, columns of this rank's heads of key and value] each
    size_t n;    // rows that are filled
} Cache;
typedef struct {
    double temperature; // 0: always the likeliest entry
    size_t top_k;       // 0: all entries may win
    uint64_t seed;
} Choice;
typedef struct {
    Mesh mesh;
    Model *m;      // this stage's layers without the loss; this rank's part of their tensors
    Layer *head;   // the last layer on the last stage; else NULL
    Cache *cache;  // [blocks]
    size_t blocks; // blocks of this stage
    size_t n;      // positions in the caches
    Arena memory;  // holds the caches
    Choice choice;
} Sampler;

// ---- All ranks call these functions, except sampler_score(). ----
Sampler sampler_new(Comm *world, const Weights *w, size_t tp, size_t pp, Choice choice);
void sampler_free(Sampler *s);
// Runs a forward of `count` tokens that follow the tokens in the cache. The last stage gets the
// logits [rows, V/tp] of all these tokens if `all`, else of the last token. The other stages get an
// empty tensor.
Tensor sampler_forward(Sampler *s, Arena *a, const int *tokens, size_t count, bool all);
// Runs a forward from position 0, without the cache. The cache does not change. The last stage gets
// the logits of all tokens, and the other stages get an empty tensor.
Tensor sampler_forward_whole(Sampler *s, Arena *a, const int *tokens, size_t count);
void sampler_forget(Sampler *s); // empties the caches
// Chooses token `number` of the text by the last row of logits. All ranks return the same token.
int sampler_choose(Sampler *s, Tensor logits, size_t number);
// Returns the score of an entry with this logit for token `number`. The largest score wins.
double sampler_score(const Choice *c, double logit, size_t number, size_t entry);
#endif
