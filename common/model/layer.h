// layer.h: a model is a list of layers. This one idea makes every technique compose: data
// parallelism reduces the gradients of the list, a pipeline stage is a sub-list, tensor parallelism
// replaces layers by layers of the same interface that hold a part and communicate inside, ZeRO and
// recomputation wrap a layer in one that gathers or computes again before it steps inside.
//
// Shapes: B sequences, T positions, C width, H heads, V vocabulary entries. A layer maps x [B*T, C]
// to y [B*T, C]; the embedding has no x (its input is the batch's tokens), the head's y is [B*T,
// V], the logits, and the loss's [B*T, 1], one a token. Where a rank holds a part of the rows or
// columns, its layers say which shape that is: who allocates between layers asks layer_output().
#ifndef LAYER_H
#define LAYER_H
#include "common/comm/comm.h"
#include "common/model/unit.h"
#include "common/tensor/ops.h"

typedef struct {
    size_t layers, width, heads, context, vocab; // L blocks, C, H, longest T, V
    double dropout;                              // probability of dropping an element, 0 <= p < 1
    uint64_t seed;                               // of initial weights and dropout
} ModelConfig;

// ---- What a layer may know of the world: one micro-batch. ----
typedef struct {
    size_t B, T;                 // sequences, positions of each on this rank
    const int *tokens, *targets; // [B*T] each; a negative target is not counted
    const int *position;         // [B*T]: where each row stands in its whole sequence; ascending
    size_t first_sequence;       // the global number of sequence 0: the key of its dropout
    uint64_t step;
    double token_weight; // 1 / counted tokens of the whole global batch: the head's dy
    bool training;       // dropout on
    size_t number;       // among the micro-batches of a step: for pictures
} Batch;

// ---- What forward keeps for backward: one object per layer and micro-batch. ----
enum { SAVED_TENSORS = 22, SAVED_GRADIENTS = 12 };
// What backward of inputs leaves to backward of weights: the arguments of linear_gradients, of
// norm_gradients, or of bias_gradient (w NULL).
typedef struct {
    Param *w, *bias;
    Tensor x, stats, dy;
    bool norm;
} WeightGradient;
typedef struct Saved {
    Tensor t[SAVED_TENSORS]; // each kind of layer names its own
    Arena arena, attention;  // attention: the [T, T] items, which selective recomputation sheds
    Arena later;             // during the first half of a backward: what the second will read
    WeightGradient deferred[SAVED_GRADIENTS]; // [n_deferred], between the two halves of a backward
    size_t n_deferred;
    Tensor input;                  // the layer's x, which its walker keeps
    struct ActivationStash *inner; // of a layer around several, between the halves of its backward
} Saved;
Saved saved_new(void);
void saved_free(Saved *s);

// ---- Attention: what lies between the two matrices of a block, for the heads and the positions of
// this rank. ----
typedef struct AttentionKind AttentionKind;
typedef struct {
    size_t B, T, D; // sequences, positions of each on this rank, columns of a head
    Range heads;    // of this rank, numbered in the whole layer
    uint64_t key;   // dropout of the attention probabilities
    double drop;
    size_t first_sequence;
    const int *position;       // [B*T], as in Batch; NULL: 0, 1, 2, ...
    const AttentionKind *kind; // NULL: the plain one, which keeps [T, T] for each head
    Comm *cp;                  // who has the other positions of these sequences; NULL: nobody
    size_t length;             // positions of a whole sequence, on all ranks of cp
} AttentionHeads;
struct AttentionKind {
    const char *name;
    // S_MIX [B*T, A] from S_QKV [B*T, 3A]. What rebuild can compute again lies in s->attention,
    // which selective recomputation frees; the rest in s->arena.
    void (*forward)(const AttentionHeads *h, Saved *s);
    void (*backward)(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s);
    void (*rebuild)(const AttentionHeads *h, Saved *s); // NULL: s->attention is empty
};

// ---- Layers ----
typedef struct Layer Layer;
typedef struct {
    const char *name;
    // of y, on this rank; NULL: a wrapper, its inner layer's
    Shape (*output)(const Layer *l, const Batch *b);
    // of x; NULL: as the output, or the inner layer's
    Shape (*input)(const Layer *l, const Batch *b);
    // dx takes x's memory, and forward may overwrite x: [B*T, V] is large. The layer before must
    // not need its y then.
    bool in_place;
    void (*forward)(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
    // dx is overwritten; empty for the embedding.
    void (*backward)(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
    void (*shed)(Saved *s); // drops what rebuild can compute again; NULL: nothing
    void (*rebuild)(Layer *l, const Batch *b, Saved *s);
    // backward in two halves, in this order. NULL, in plain layers: layer_defer and layer_deferred;
    // in wrappers: none.
    void (*backward_inputs)(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
    void (*backward_weights)(Layer *l, const Batch *b, Tensor x, Saved *s);
    // The walk calls it before the layer in front of l computes, forward or backward: time to fetch
    // what l needs. NULL: nothing.
    void (*prepare)(Layer *l, bool backward);
} LayerKind;
struct Layer {
    const LayerKind *kind;
    const ModelConfig *config;
    size_t number; // 0 embedding, 1..L blocks, L+1 head, L+2 loss: a key of dropout
    size_t chunk;  // which of its rank's parts of the model it is in: see model.h
    Unit **units;  // embedding: wte, wpe; block: its own; head: last norm, wte (tied)
    size_t n_units;
    Range heads, vocab; // my heads and vocabulary entries; all of them in the unsplit layers
    Comm *comm;         // whom this layer communicates with; NULL in the unsplit layers
    const AttentionKind *attention; // of a block; NULL: the plain one
    Comm *cp;                       // who has the other positions of its sequences; NULL: nobody
    Layer *inner; // the wrapped layer, or several neighbours; NULL in plain layers
    size_t n_inner;
    void *technique; // what who wrapped it keeps, where comm is not enough
};
// What the layer's y and dy, and its x and dx, are on this rank. The embedding has no x.
Shape layer_output(const Layer *l, const Batch *b);
Shape layer_input(const Layer *l, const Batch *b);
bool layer_in_place(const Layer *l);
static inline void layer_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    l->kind->forward(l, b, x, y, s);
}
static inline void layer_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx,
                                  Saved *s) {
    l->kind->backward(l, b, x, dy, dx, s);
}
// The two halves of backward (Qi et al. 2023, zero bubble pipelines): dx first, which the stage
// before waits for; the weights' gradients any time later. Same bits as backward. Any plain layer
// has them: in the first half linear_gradients and norm_gradients put copies of their arguments
// into s, in the place of all that forward kept there; the second half calls them again.
void layer_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void layer_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s);
// What plain layers do by default. A wrapper whose backward does nothing with the gradients of
// weights has these two.
void layer_defer(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void layer_deferred(Layer *l, const Batch *b, Tensor x, Saved *s);

// Puts a layer around l: l becomes `kind`, which communicates over `comm`, with what l was as its
// inner layer. Returns that.
Layer *layer_wrap(Layer *l, const LayerKind *kind, Comm *comm); // around several: model_wrap_range

// The unsplit layers: the reference of every split one.
extern const LayerKind layer_embedding, layer_block, layer_head, layer_loss;

// Names of a block's parameters and of what it saves, for its twin in chapter 03.
enum {
    LN1_GAIN,
    LN1_BIAS,
    QKV_W,
    QKV_B,
    PROJ_W,
    PROJ_B,
    LN2_GAIN,
    LN2_BIAS,
    FC_W,
    FC_B,
    OUT_W,
    OUT_B,
    BLOCK_PARAMS
};
enum {
    S_LN1,
    S_STATS1,
    S_QKV,
    S_PROBS,
    S_DROPPED,
    S_MIX,
    S_MIDDLE,
    S_LN2,
    S_STATS2,
    S_FC,
    S_ACT,
    // block; the last three items: of other kinds of attention
    S_LSE,
    S_HEADS_QKV,
    S_HEADS_MIX,
    BLOCK_ITEMS
};
enum { S_LN, S_STATS }; // head
enum { S_SUM };         // loss
enum { S_DY };          // embedding, between the halves of its backward
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_MIDDLE, SITE_OUT }; // a layer's dropout

// ---- Pieces that both twins are made of. ----
Shape hidden_shape(const Layer *l, const Batch *b); // [B*T, C], whole on this rank
Shape logits_shape(const Layer *l, const Batch *b); // [B*T, V], of my vocabulary entries
Shape token_shape(const Layer *l, const Batch *b);  // [B*T, 1]
// of [B*T, C]; row0, col0: of a part
Dropout layer_dropout(const Layer *l, const Batch *b, int site);
void linear(Tensor y, Tensor x, const Param *w); // y = x w
// adds to w.g and bias.g (or NULL)
void linear_gradients(Param *w, Param *bias, Tensor x, Tensor dy);
void bias_gradient(Param *bias, Tensor dy); // its second half alone
void norm_gradients(Param *gain, Param *bias, Tensor x, Tensor stats, Tensor dy);
AttentionHeads layer_heads(const Layer *l, const Batch *b);
void attention_forward(const AttentionHeads *h, Saved *s); // S_MIX from S_QKV, as h->kind does it
void attention_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s);
void attention_rebuild(const AttentionHeads *h, Saved *s); // what was freed in s->attention
void block_shed(Saved *s);
void block_rebuild(Layer *l, const Batch *b, Saved *s);
void embedding_gradients(Layer *l, const Batch *b, Tensor dy); // wte and wpe
void loss_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
// keeps dy
void embedding_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void embedding_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s);
void saved_tensor(Saved *s, int name, size_t rows, size_t cols);

// ---- The plain walk over a list of layers. ----
// What one micro-batch keeps on one stage between its forward and its backward.
typedef struct ActivationStash {
    size_t n;
    Tensor x; // input of the first layer; owned by who called
    // y of every layer but the last, which is the caller's
    struct {
        Tensor y;
        Arena arena;
        Saved saved;
    } * layer;
} ActivationStash;
// y: the last layer's output, the caller's memory. The flight keeps x (which must live until
// backward) and allocates the rest.
ActivationStash *walk_forward(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y);
// Frees every output and saved object as soon as its layer is done, and the flight. dx empty: the
// first layer is the embedding.
void walk_backward(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                   Tensor dx);
// The same in two halves; the second one frees.
void walk_backward_inputs(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                          Tensor dx);
void walk_backward_weights(Layer *layers, size_t n, const Batch *b, ActivationStash *f);
void activation_stash_free(ActivationStash *f); // without a backward
// Where no backward comes: a layer's output lives until the next one has read it, nothing else is
// kept.
void walk_forward_only(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y);
#endif
