// data.h: where tokens come from. The sequence with global number n of step s is a function of
// (seed, s, n): who asks, and how the batch is cut, does not matter. So every rank knows the whole
// order, and the global token count, without communication, and a training that is taken up again
// goes on where it was.
//
// A file is cut in windows of `context` tokens (and the next one, the last target). Every epoch
// takes each window of the training part once, in an order of its own: a permutation that is
// computed, not stored (random_permute).
#ifndef DATA_H
#define DATA_H
#include "common/model/attention.h"

typedef struct {
    const char *path;
    const unsigned char *text; // the whole file
    bool mapped;               // text is a file's pages, shared by all ranks of a node
    size_t bytes;              // of the file
    size_t begin, tokens;      // tokens lie behind its header
    size_t first;              // how many tokens the files before it have
} DataFile;

typedef struct {
    DataFile *files; // one after the other; NULL: synthetic tokens
    size_t n_files;
    char *names;                 // the files' paths
    size_t token_bytes;          // 1: bytes of text, 2: uint16
    size_t tokens, train_tokens; // of all files; those behind train_tokens are held out
    size_t vocab, context;       // V, T
    size_t batch; // sequences of a step, for the order of a file's: who trains says it
    uint64_t seed;
    Positions positions; // of each sequence, which ones a batch has; n 0: all
    bool ragged;         // sequences end early at different lengths: unequal token counts
} Data;
Data data_synthetic(size_t vocab, size_t context, uint64_t seed); // ragged
// path: a file, or a pattern such as train_*.bin: all files that match, sorted by name, one after
// the other (a window may reach from one into the next). eval: the held-out files, likewise; NULL:
// the last tenth of path's tokens is held out. Files are text of bytes; path NULL: this tree's own
// text. Or token files: llm.c's, by their header (magic 20240520, version 1), and nanoGPT's, uint16
// without a header, by their name, which ends in .bin. vocab 0: 256, of bytes only. All have rank
// 0's file: who cannot see it, or sees another one, is sent it over the side channel; so it may be
// a pipe. Of a token file all is read once, a part by each rank. False, on all ranks alike: it
// cannot be read, is corrupt or too short, or has ids beyond the vocabulary; why says so and names
// the fix, and *d needs no data_free().
enum { DATA_WHY = 2048 };
bool data_open(Data *d, const char *path, const char *eval, size_t vocab, size_t context,
               uint64_t seed, char why[DATA_WHY]);
void data_free(Data *d);
// of all bytes of the files of --data; reads all of them
uint64_t data_fingerprint(const Data *d, size_t *bytes);

// Micro-batch of B sequences from global sequence number `first` of a step whose global batch is
// `global` sequences.
Batch data_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B, size_t global);
// The same for many micro-batches: token_weight is found once a step, 1 / data_count(d, step, 0,
// global).
Batch data_micro_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B,
                       double token_weight);
// counted tokens of these sequences
size_t data_count(const Data *d, uint64_t step, size_t first, size_t B);
// Of a file: which of data_windows() windows of `context` tokens is sequence n of a step.
size_t data_windows(const Data *d);
size_t data_window(const Data *d, uint64_t step, size_t n);
// Held-out text, in data_eval_windows() windows of `context` tokens. A batch has B of `some`
// windows, spread evenly over them, from number `first` of these on; token_weight 1 / B*T.
size_t data_eval_windows(const Data *d);
Batch data_eval_batch(const Data *d, Arena *a, size_t first, size_t B, size_t some);
// Of the whole held-out text, nats a token: what knowing only how frequent each one is would give.
double data_entropy(const Data *d);
#endif
