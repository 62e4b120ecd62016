// bigram.h: the smallest language model with both ends of GPT, for the experiment of 05_vocab.c:
// x = dropout(E[token]), logits = x E^T. Embedding and head share the table E [V, C].
#ifndef BIGRAM_H
#define BIGRAM_H
#include "common/model/data.h"
#include "common/model/layer.h"
#include "judge/frame/lesson.h"

enum { B = 3, T = 8, M = B * T, V = 61, C = 12 };
typedef struct {
    Range entries;                                     // of this rank
    Param embedding, head;                             // [V/t, C]: E, with a gradient for each use
    Tensor x, logits, sum, loss;                       // [M, C], [M, V/t], [M, 1], [M, 1]
    Arena parameters, gradients, kept, output;
} Bigram;
// Draws the rows of E for these entries: all of E where the model is unsplit.
Bigram bigram_new(uint64_t seed, Range entries);
void bigram_free(Bigram *m);
// x is whole on every rank, so every rank applies the same mask.
void bigram_drop(Run *run, Tensor x, const Batch *b);

// One rank of all: forward ends with the loss of each token in m->loss; backward adds the gradients
// of both uses of E.
void bigram_split_forward(Run *run, Bigram *m, const Batch *b);
void bigram_split_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx);
// The same on one device, with all of E.
void bigram_forward(Run *run, Bigram *m, const Batch *b);
void bigram_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx);
#endif
