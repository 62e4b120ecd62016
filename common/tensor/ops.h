// ops.h: declares the mathematics of a Transformer, forward and backward. A BLAS computes the
// matrix products (GEMMs). ops.c computes all other ops, written once for every device. An op's
// outputs are its first arguments, before the inputs. Only op_adamw(w, g, m, v) also updates
// arguments after an input: m and v. A wrong shape is a fault() that names the shapes.
//
// Operands may be stored in 16 bits. An op computes in reals, and rounds an output once. Statistics
// and sums of norms, lse, dot, all operands of cross entropy, m and v must be reals, otherwise the
// op calls fault().
//
// An op OVERWRITES its outputs, also gradients of parameters. The caller adds such a gradient to
// earlier contributions. Only op_rotate, op_merge_heads, op_exp_sum, op_cross_entropy_backward and
// the optimizers update operands in place.
#ifndef OPS_H
#define OPS_H
#include "common/tensor/tensor.h"

// --- products ---
// The BLAS chooses the order of additions by the sizes of the matrices. So rows or columns that are
// computed alone may differ by rounding from the same rows or columns of the whole product.
void op_matmul(Tensor y, Tensor x, Tensor w);    // y[M,N] = x[M,K] w[K,N]
void op_matmul_nt(Tensor y, Tensor x, Tensor w); // y[M,N] = x[M,K] w[N,K]^T
void op_matmul_tn(Tensor y, Tensor x, Tensor w); // y[M,N] = x[K,M]^T w[K,N]

// --- element by element ---
void op_add(Tensor y, Tensor a, Tensor b); // y = a + b; y may be a or b
void op_max(Tensor y, Tensor a, Tensor b); // y = max(a, b); NaN stays NaN; y may be a or b
// y[1,N] = ((row 0 of parts[M,N] + row 1) + row 2) + ..., or the maxima of the columns. NaN stays
// NaN. In 16 bits a sum is rounded once. y may be a row of parts. On a GPU, the transports emu and
// nccl use op_combine for sums in rank order.
void op_combine(Tensor y, Tensor parts, bool max);
void op_scale(Tensor y, Tensor x, real s);      // y = s x; y may be x
void op_multiply(Tensor y, Tensor a, Tensor b); // y = a * b, element by element
// y = x + bias[1,N] on every row; y may be x. If bias has 0 columns, the model has no such bias,
// and y = x.
void op_add_bias(Tensor y, Tensor x, Tensor bias);
// sum[1,N] = the sum of the rows, added in order. The gradient of a bias is such a sum.
void op_sum_rows(Tensor sum, Tensor x);
void op_gelu(Tensor y, Tensor x);                      // tanh form, as in GPT-2
void op_gelu_backward(Tensor dx, Tensor x, Tensor dy); // dx may be dy
// SwiGLU (Shazeer 2020, section 2) computes y[M,F] = silu(gate) * up, with x[M,2F] = gate | up. In
// backward, dy may be the first F columns of dx.
void op_swiglu(Tensor y, Tensor x);
void op_swiglu_backward(Tensor dx, Tensor x, Tensor dy);
// Computes GELU if y and x have the same shape, SwiGLU if y is half as wide as x.
void op_activation(Tensor y, Tensor x);
void op_activation_backward(Tensor dx, Tensor x, Tensor dy);

// Dropout computes y = x * keep / (1-p), where the mask `keep` is 0 or 1. The mask is a function of
// key and the GLOBAL coordinates of an element. The mask is never stored, because backward calls
// the same function on dy. With p = 0, y = x. y may be x.
typedef struct {
    uint64_t key;
    double p;
    size_t row0, col0; // where x, a part of a whole tensor, begins in the whole
    // These fields are for rows that are tokens. i is row0 + the row of x. Row i has position[i] in
    // global sequence first_sequence + i / T, which has `length` positions. If position is NULL,
    // row i has position i mod T. If T is 0, rows are no tokens, and row i is global row i.
    size_t T, length, first_sequence;
    const int *position;
} Dropout;
void op_dropout(Tensor y, Tensor x, Dropout d);

// --- layer norm (Ba, Kiros, Hinton 2016), epsilon 1e-5 ---
// stats[M,2] has the mean and 1/deviation of each row.
void op_layer_norm(Tensor y, Tensor stats, Tensor x, Tensor gain, Tensor bias);
void op_layer_norm_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void op_layer_norm_grads(Tensor dgain, Tensor dbias, Tensor x, Tensor stats, Tensor dy);
// The functions with _sums or _apply compute the layer norm of rows that are spread over ranks. x,
// y, dx, dy, gain and bias hold only some of a row's `whole` columns. sums[M,2] has the sums over
// the local columns. The caller adds the sums over the ranks that share the rows, then applies the
// sums. In forward one all-reduce is enough, because the variance is mean(x^2) - mean(x)^2. The
// relative error of this variance is a rounding error times 1 + mean^2 / variance. In
// op_layer_norm_apply stats and sums may be the same tensor. op_layer_norm_grads needs only the
// local columns.
void op_layer_norm_sums(Tensor sums, Tensor x); // computes the sums of x and x^2
void op_layer_norm_apply(Tensor y, Tensor stats, Tensor sums, Tensor x, Tensor gain, Tensor bias,
                         size_t whole);
// Computes the sums of g and of g h, where g = dy gain and h = (x - mean) / deviation.
void op_layer_norm_backward_sums(Tensor sums, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void op_layer_norm_backward_apply(Tensor dx, Tensor sums, Tensor x, Tensor stats, Tensor gain,
                                  Tensor dy, size_t whole);

// --- RMS norm (Zhang and Sennrich 2019): x / root of the mean of x^2, times a gain ---
// stats[M,1] has 1 / sqrt(mean(x^2) + epsilon) of each row.
void op_rms_norm(Tensor y, Tensor stats, Tensor x, Tensor gain, double epsilon);
void op_rms_norm_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void op_rms_norm_grads(Tensor dgain, Tensor x, Tensor stats, Tensor dy);

// --- rotary positions (Su et al. 2021, section 3.2.2), in place ---
// Rotates pairs of columns. x is [M, heads*D]. Columns i and i + D/2 of each head are a pair (as in
// Hugging Face's Llama). The op rotates the pair by the angle direction * position * theta^(-2i/D).
// Row r has position[r], or r mod T if position is NULL.
void op_rotate(Tensor x, size_t D, const int *position, size_t T, double theta, int direction);

// --- grouped heads (Ainslie et al. 2023): heads of D columns ---
// y[M, n ratio D] has each head of x[M, n D] `ratio` times.
void op_repeat_heads(Tensor y, Tensor x, size_t D);
// y[M, n D] is the sum of each group of `ratio` heads of x[M, n ratio D].
void op_fold_heads(Tensor y, Tensor x, size_t D);

// --- attention, per head: Tq queries and Tk keys per sequence ---
// q and o are [B*Tq, heads*D], k and v are [B*Tk, heads*D]. p is [B*heads*Tq, Tk] with rows in
// (sequence, head, query) order. With 0 heads (a rank without a head) nothing happens.
// op_heads_scores computes p = q k^T, and in backward dP = do v^T.
void op_heads_scores(Tensor p, Tensor q, Tensor k, size_t B, size_t heads);
// op_heads_mix computes o = p v, and in backward dq = dS k.
void op_heads_mix(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// op_heads_mix_t computes o = p^T v for v [B*Tq, heads*D] and o [B*Tk, heads*D]. Backward needs
// dv = P^T do and dk = dS^T q.
void op_heads_mix_t(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// HeadsPlace has the positions of p's queries [B*Tq] and keys [B*Tk] in their sequences. In each
// sequence the positions ascend and may have gaps, so a rank may hold any chunks of a sequence.
// NULL means 0, 1, 2, ...
typedef struct {
    size_t B, heads;
    const int *query, *key;
} HeadsPlace;
// Writes to each row of p the softmax of scale*s over the keys that do not come after the query,
// and 0 elsewhere. A row without such keys is all 0. p may be s.
void op_causal_softmax(Tensor p, Tensor s, real scale, HeadsPlace at);
// Computes ds = scale p (dp - sum of p dp in the row). ds may be dp.
void op_causal_softmax_backward(Tensor ds, Tensor p, Tensor dp, real scale, HeadsPlace at);
// Computes the softmax over some of the keys. The caller joins the parts (online softmax; Milakov
// and Gimelshein 2018, section 3). lse [B*Tq, heads] is the logarithm of the sum of exp(scale s)
// over the local keys that a query attends to. lse is -inf if there is no such key.
void op_causal_softmax_lse(Tensor p, Tensor lse, Tensor s, real scale, HeadsPlace at);
// Joins two parts of attention. o [M, heads*D] and lse [M, heads] are results over some keys.
// o_more and lse_more are results over other keys. Writes the joined results to o and lse.
void op_merge_heads(Tensor o, Tensor lse, Tensor o_more, Tensor lse_more);
// Recomputes p from the lse of all keys. p is exp(scale s - lse) for the keys that a query attends
// to, else 0.
void op_causal_probabilities(Tensor p, Tensor s, Tensor lse, real scale, HeadsPlace at);
// Computes dot [B*Tq, heads], the sum of p dp over all keys, which equals the sum of o do over the
// columns of a head. The backward of a softmax over a part of the keys needs dot.
void op_heads_dot(Tensor dot, Tensor o, Tensor d_o);
// Computes ds = scale p (dp - dot) for the keys that a query attends to, else 0. ds may be dp.
void op_causal_scores_backward(Tensor ds, Tensor p, Tensor dp, Tensor dot, real scale,
                               HeadsPlace at);
// Each op_heads_*_triangle function computes its product for queries that attend to keys 0 .. i
// only, where i is the query's number (Tq = Tk). The function does about half the work of the
// function without _triangle. The part of p above the diagonal is neither written nor read.
void op_heads_scores_triangle(Tensor p, Tensor q, Tensor k, size_t B, size_t heads);
void op_heads_mix_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
void op_heads_mix_t_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads);
// Dropout of attention has the coordinates (global sequence, query's position, global head, key's
// position). Local head h is global head0 + h.
void op_dropout_heads(Tensor y, Tensor x, uint64_t key, double prob, size_t first_sequence,
                      size_t head0, HeadsPlace at);

// --- embedding: y[r] = wte[token r - vocab0] + wpe[position r] ---
// op_embed_tokens writes row token - vocab0 of wte to each row of y. If wte has no such row,
// because the token is another rank's entry (vocabulary-parallel), the row of y is zero.
// op_embed_tokens_grad adds the rows of dy with the same token, in order.
void op_embed_tokens(Tensor y, Tensor wte, const int *tokens, size_t vocab0);
void op_embed_tokens_grad(Tensor dwte, const int *tokens, Tensor dy, size_t vocab0);
// A row of y is NaN if wpe has no row for its position. If wpe has 0 columns, the model has no wpe,
// and y = x.
void op_add_positions(Tensor y, Tensor x, Tensor wpe, const int *position);
// A row of dwpe is zero if no row of dy has the position of this row of dwpe.
void op_add_positions_grad(Tensor dwpe, const int *position, Tensor dy);

// --- cross entropy, in parts between which a vocabulary-parallel head communicates ---
// The columns of logits are the entries vocab0 .. vocab0+cols-1 of the vocabulary. A negative
// target is not counted, so its loss and its gradient are 0.
void op_row_max(Tensor max, Tensor logits); // max[M,1]
// picked[M,1] is the target's logit, or 0 if the target is negative or another rank's entry.
void op_pick_target(Tensor picked, Tensor logits, const int *targets, size_t vocab0);
// Replaces logits by exp(logits - max). sum[M,1] is the sum of each row.
void op_exp_sum(Tensor sum, Tensor logits, Tensor max);
// Computes loss = log(sum) + max - picked.
void op_token_loss(Tensor loss, Tensor picked, Tensor max, Tensor sum, const int *targets);
// Replaces logits, which hold exponentials by now, by (exponential / sum - onehot) * dloss[M,1].
void op_cross_entropy_backward(Tensor logits, Tensor sum, const int *targets, Tensor dloss,
                               size_t vocab0);

// --- optimizers, on flat ranges of equal shape ---
// Computes w -= lr (scale g + weight_decay w).
void op_sgd(Tensor w, Tensor g, real scale, real lr, real weight_decay);
// In step t, correction1 is 1 - beta1^t and correction2 is 1 - beta2^t.
typedef struct {
    real lr, beta1, beta2, epsilon, weight_decay, correction1, correction2;
} AdamW;
// Updates w, m and v (Loshchilov and Hutter 2019).
void op_adamw(Tensor w, Tensor g, Tensor m, Tensor v, real scale, AdamW a);
#endif
