// data.h: provides tokens for training, synthetic or from files. Sequence n of step s is a function
// of n, s and the fields of Data, such as the seed and the text of the files. The sequence does not
// depend on the rank that asks, or on how the batch is cut.
// So every rank knows the whole order and the global token count without communication, and a
// resumed training continues in the same order.
//
// The training tokens, and the held-out tokens, are cut into windows of `context` tokens. The token
// after a window is the window's last target. Every epoch takes each training window once, and
// every epoch has its own order. This order is a permutation that is computed, not stored
// (random_permute).
#ifndef DATA_H
#define DATA_H
#include "common/model/attention.h"

typedef struct {
    const char *path;
    const unsigned char *text; // the bytes of the whole file
    bool mapped;               // true: text is mapped, and all ranks of a node share its pages
    size_t bytes;              // bytes of the file
    size_t begin, tokens;      // the first byte after the header; the number of tokens
    size_t first;              // number of tokens in all files before this file
} DataFile;

typedef struct {
    DataFile *files; // all files, in order; NULL: synthetic tokens
    size_t n_files;
    char *names;           // all paths, one after another, each with its final '\0'
    size_t token_bytes;    // 1: bytes of text, 2: uint16
    size_t tokens;         // tokens of all files
    size_t train_tokens;   // training tokens; all later tokens are held out
    size_t vocab, context; // V, T
    size_t batch;          // sequences per step; data_window() needs this number
    uint64_t seed;
    Positions positions; // local positions of each sequence; n = 0: all
    bool ragged;         // the sequences have unequal numbers of counted tokens
} Data;
// Returns a Data with synthetic tokens, whose sequences have unequal numbers of counted tokens.
Data data_synthetic(size_t vocab, size_t context, uint64_t seed);
// Opens the files of --data (path) and --data-eval (eval). path is a file, or a pattern such as
// train_*.bin. A pattern means all matching files, sorted by name, as one text. So a window may
// reach from one file into the next. path NULL means the text of this tree (build/text.txt). eval
// names the held-out files, by a file or a pattern. eval NULL means the last tenth of path's
// tokens.
//
// A file is text of bytes, or tokens in one of two formats. llm.c's format has a header (magic
// 20240520, version 1), then uint16 tokens. nanoGPT's format has only uint16 tokens, and the name
// of such a file ends in .bin. vocab 0 means 256, and is allowed only for text of bytes.
//
// All ranks use the files that rank 0 sees. A rank that cannot see such a file, or sees another
// text, gets the text from rank 0 over the side channel (comm.h). To check the ids of token files,
// every rank reads one part of the tokens.
//
// Returns false on all ranks if a file cannot be read or is corrupt, if the text is too short, or
// if ids are beyond the vocabulary. why then names the reason and the fix, and *d needs no
// data_free().
enum { DATA_WHY = 2048 };
bool data_open(Data *d, const char *path, const char *eval, size_t vocab, size_t context,
               uint64_t seed, char why[DATA_WHY]);
void data_free(Data *d);
// Returns a hash of the bytes of all files that have training tokens, or of all other files if
// held_out is true. Sets *bytes to the number of the hashed bytes.
uint64_t data_fingerprint(const Data *d, bool held_out, size_t *bytes);

// Returns the micro-batch of B sequences from global sequence number `first` on, in a step whose
// global batch has `global` sequences.
Batch data_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B, size_t global);
// Returns the micro-batch of data_batch, but with this token_weight. So the caller counts the
// tokens of a step once: token_weight is usually 1 / data_count(d, step, 0, global), times the loss
// scale if the run has one.
Batch data_micro_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B,
                       double token_weight);
// Returns the number of counted tokens of B sequences of the step, from number `first` on.
size_t data_count(const Data *d, uint64_t step, size_t first, size_t B);
// data_windows() returns the number of training windows. data_window() returns the window that is
// sequence n of a step.
size_t data_windows(const Data *d);
size_t data_window(const Data *d, uint64_t step, size_t n);
// data_eval_windows() returns the number of windows of `context` tokens in the held-out text. An
// evaluation uses `some` of these windows, spread evenly over the text. data_eval_batch() returns B
// of the used windows, from number `first` on. The batch's token_weight is 1 / (B*T).
size_t data_eval_windows(const Data *d);
Batch data_eval_batch(const Data *d, Arena *a, size_t first, size_t B, size_t some);
// Returns the entropy of the held-out text, in nats per token. A model that knows only the
// frequencies of the tokens has this loss.
double data_entropy(const Data *d);
#endif
