// 06_checks.h: what 06_compression judges with: books of what was sent, and gradients made for the purpose.
#ifndef COMPRESSION_CHECKS_H
#define COMPRESSION_CHECKS_H
#include "01_data_parallel/compression.h"
#include "judge/frame/lesson.h"

// ---- Books: with error feedback nothing is lost, only late. Added up over the steps: my gradients; what every rank
//      took for their sum. (What I sent: the compression notes it in c->sent.) data NULL: no books are kept. ----
typedef struct { Tensor mine, believed; Arena arena; } Books;
Books books_new(Compression *c, size_t size);
void books_free(Books *b);
void books_note(Tensor sum, Tensor g);
// Two checks. On every rank: sent + kept back = my gradients. Over all ranks: believed + what the servers of 1-bit keep
// back = sent.
void books_check(Run *run, const Books *b, const Compression *c, const char *method);

// ---- Gradients with which a method loses nothing. SMALL: whole numbers. LARGE: their sum is beyond fp16. NOISE:
//      anything. EVEN: +-1/4, alike on all ranks. FLAT: A B^T, B of FLAT_RANK columns and the same on all ranks. ----
typedef enum { SMALL, LARGE, NOISE, EVEN, FLAT } Kind;
enum { FLAT_RANK = 2 };
void made_gradient(Run *run, const Model *m, Kind kind);      // into m's gradients: this rank's

// Which elements top-k takes, with many equal ones.
void compression_check_choice(Run *run);
// Every method with such gradients: what it makes of them is the all-reduce's sum. plans[METHODS].
void compression_check_exact(Run *run, const ModelConfig *model, const CompressionPlan *plans);
#endif
