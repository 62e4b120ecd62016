// ops.h: the mathematics of a Transformer, forward and backward. GEMMs are the BLAS's; everything
// else is written once for every device, in ops.c. Output first, then inputs. Wrong shapes are a
// fault() that names both.
//
// Outputs are OVERWRITTEN, gradients of parameters too: who accumulates adds the finished
// contribution once (layer.h).
#ifndef OPS_H
#define OPS_H
#include "common/tensor/tensor.h"

// --- products ---
void op_matmul(Tensor y, Tensor x, Tensor w);    // y[M,N] = x[M,K] w[K,N]
void op_matmul_nt(Tensor y, Tensor x, Tensor w); // y[M,N] = x[M,K] w[N,K]^T
void op_matmul_tn(Tensor y, Tensor x, Tensor w); // y[M,N] = x[K,M]^T w[K,N]

// --- element by element ---
void op_add(Tensor y, Tensor a, Tensor b);         // y = a + b; y may be a or b
void op_max(Tensor y, Tensor a, Tensor b);         // the larger; a NaN stays one; y may be a or b
void op_scale(Tensor y, Tensor x, real s);         // y = s x; y may be x
void op_multiply(Tensor y, Tensor a, Tensor b);    // y = a * b, element by element
void op_add_bias(Tensor y, Tensor x, Tensor bias); // y = x + bias[1,N] on every row; y may be x
void op_sum_rows(Tensor sum, Tensor x); // sum[1,N]: the bias gradient; rows added in order
void op_gelu(Tensor y, Tensor x);       // tanh form, as GPT-2
void op_gelu_backward(Tensor dx, Tensor x, Tensor dy); // dx may be dy

// Dropout: y = x * keep / (1-p). The mask is a function of key and the GLOBAL coordinates of an
// element, so it is never stored: backward calls the same function on dy. p = 0 copies. y may be x.
typedef struct {
    uint64_t key;
    double p;
    size_t row0, col0; // where x, a part of a whole tensor, begins in it
    // Rows of the whole that are tokens: row i is position[i] in global sequence first_sequence + i
    // / T, which has `length` positions. position NULL: i mod T. T 0: no tokens, row i is global
    // row i.
    size_t T, length, first_sequence;
    const int *position;
} Dropout;
void op_dropout(Tensor y, Tensor x, Dropout d);

// --- layer norm (Ba, Kiros, Hinton 2016), epsilon 1e-5 ---
// stats[M,2]: mean and 1/deviation of a row.
void op_layer_norm(Tensor y, Tensor stats, Tensor x, Tensor gain, Tensor bias);
void op_layer_norm_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void op_layer_norm_grads(Tensor dgain, Tensor dbias, Tensor x, Tensor stats, Tensor dy);
// The same of rows that are spread over ranks. x, y, gain, bias have some of a row's `whole`
// columns; stats and sums have all rows. sums[M,2] are over my columns; the caller adds them over
// the ranks that share the rows, then applies. The variance is mean(x^2) - mean(x)^2, so that one
// all-reduce of the sums is enough; its relative error is that of 1 + mean^2 / variance roundings.
// stats may be sums. op_layer_norm_grads needs my columns only.
void op_layer_norm_sums(Tensor sums, Tensor x); // of x and x^2
void op_layer_norm_apply(Tensor y, Tensor stats, Tensor sums, Tensor x, Tensor gain, Tensor bias,
                         size_t whole);
void op_layer_norm_backward_sums(Tensor sums, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void op_layer_norm_backward_apply(Tensor dx, Tensor sums, Tensor x, Tensor stats, Tensor gain,
                                  Tensor dy, size_t whole);

// --- attention, per head, of Tq queries and Tk keys a sequence. q and o are [B*Tq, heads*D], k and
// v [B*Tk, heads*D];
//     p is [B*heads*Tq, Tk] with rows in (sequence, head, query) order. heads may be 0 (a rank
//     without a head): nothing happens. ---
// p = q k^T     also dP = do v^T
void op_heads_scores(Tensor p, Tensor q, Tensor k, size_t B, size_t heads);
// o = p v       also dq = dS k
void op_heads_mix(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// o = p^T v     dv = P^T do, dk = dS^T q
void op_heads_mix_t(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// Where the queries [B*Tq] and keys [B*Tk] of p stand in their sequences: ascending in each, but
// not without gaps, so that a rank may have any chunks of a sequence. NULL: 0, 1, 2, ...
typedef struct {
    size_t B, heads;
    const int *query, *key;
} HeadsPlace;
// A row: softmax of scale*s over the keys that do not come after the query, else 0; all 0 where all
// come after it. p may be s.
void op_causal_softmax(Tensor p, Tensor s, real scale, HeadsPlace at);
// ds may be dp
void op_causal_softmax_backward(Tensor ds, Tensor p, Tensor dp, real scale, HeadsPlace at);
// Of some keys only, which the caller puts together (online softmax; Milakov and Gimelshein 2018,
// section 3). lse [B*Tq, heads]: of each query and head the logarithm of the sum of exp(scale s)
// over the keys that it sees here; -inf: none.
void op_causal_softmax_lse(Tensor p, Tensor lse, Tensor s, real scale, HeadsPlace at);
// o [M, heads*D] and lse [M, heads] of some keys <- of those and of the keys of o_more and
// lse_more.
void op_merge_heads(Tensor o, Tensor lse, Tensor o_more, Tensor lse_more);
// p again, from the lse of all keys: exp(scale s - lse) of the keys that a query sees, else 0.
void op_causal_probabilities(Tensor p, Tensor s, Tensor lse, real scale, HeadsPlace at);
// Softmax's backward where a row's keys are not all here: dot [B*Tq, heads] is sum(p dp) over all
// of them, which is the product of o and do, head by head.
void op_heads_dot(Tensor dot, Tensor o, Tensor d_o);
// may be dp
void op_causal_scores_backward(Tensor ds, Tensor p, Tensor dp, Tensor dot, real scale,
                               HeadsPlace at);
// The three products where query i of a sequence sees its keys 0 .. i (Tq = Tk): half the work.
// What lies above the diagonal of p is neither written nor read.
void op_heads_scores_triangle(Tensor p, Tensor q, Tensor k, size_t B, size_t heads);
void op_heads_mix_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
void op_heads_mix_t_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// Attention dropout's coordinates are (global sequence, query's position, global head, key's
// position); local head h is global head0 + h.
void op_dropout_heads(Tensor y, Tensor x, uint64_t key, double prob, size_t first_sequence,
                      size_t head0, HeadsPlace at);

// --- embedding: y[r] = wte[token r - vocab0] + wpe[position r]; a token outside wte's rows
// contributes nothing
//     (vocabulary-parallel). All are overwritten; a token's rows of dy are added in order. ---
// zero rows where foreign
void op_embed_tokens(Tensor y, Tensor wte, const int *tokens, size_t vocab0);
void op_embed_tokens_grad(Tensor dwte, const int *tokens, Tensor dy, size_t vocab0);
// NaN where wpe has no such row
void op_add_positions(Tensor y, Tensor x, Tensor wpe, const int *position);
// zero where no row has the position
void op_add_positions_grad(Tensor dwpe, const int *position, Tensor dy);

// --- cross entropy, cut where a vocabulary-parallel head communicates. Columns of logits are
// entries vocab0 ..
//     vocab0+cols-1. A negative target is not counted: loss 0, gradient 0. ---
void op_row_max(Tensor max, Tensor logits); // [M,1]
// [M,1], 0: not my entry
void op_pick_target(Tensor picked, Tensor logits, const int *targets, size_t vocab0);
void op_exp_sum(Tensor sum, Tensor logits, Tensor max); // logits <- exp(logits - max); sum[M,1]
// log(sum) + max - picked
void op_token_loss(Tensor loss, Tensor picked, Tensor max, Tensor sum, const int *targets);
void op_cross_entropy_backward(Tensor logits, Tensor sum, const int *targets, Tensor dloss,
                               size_t vocab0);
// logits (now exponentials) <- (exponential / sum - onehot) * dloss[M,1]

// --- optimizers, on flat ranges of equal shape ---
// w -= lr (scale g + weight_decay w)
void op_sgd(Tensor w, Tensor g, real scale, real lr, real weight_decay);
// Corrections: 1 - beta^t.
typedef struct {
    real lr, beta1, beta2, epsilon, weight_decay, correction1, correction2;
} AdamW;
// Loshchilov and Hutter 2019
void op_adamw(Tensor w, Tensor g, Tensor m, Tensor v, real scale, AdamW a);
#endif
