// layer.h: declares layers. A model is a list of layers, so techniques can be combined. Data
// parallelism reduces the gradients of the list. A pipeline stage is a sub-list. Tensor parallelism
// replaces layers by layers with the same interface, which hold a part of the weights and
// communicate inside. ZeRO-2, ZeRO-3 and recomputation wrap a layer in another layer. For example,
// ZeRO-3's layer gathers the weights before it runs the inner layer.
//
// Shapes: B sequences, T positions, C width, H heads, V vocabulary entries. A block maps x [B*T, C]
// to y [B*T, C]. The embedding has no x, because its input is the batch's tokens. The head's y, the
// logits [B*T, V], is the loss's x. The loss's y is [B*T, 1]. A rank may hold only some rows or
// columns. So code that allocates a tensor between two layers gets the shape from layer_output().
#ifndef LAYER_H
#define LAYER_H
#include "common/comm/comm.h"
#include "common/model/unit.h"
#include "common/tensor/ops.h"

// These types describe how the families of models differ. The first value of each type is GPT-2's.
typedef enum { NORM_LAYER, NORM_RMS } NormKind;
typedef enum { POSITIONS_LEARNED, POSITIONS_ROTARY } PositionKind;
typedef enum { ACTIVATION_GELU, ACTIVATION_SWIGLU } ActivationKind;
typedef enum { BIASES_ALL, BIASES_NONE, BIASES_QKV } BiasKind; // QKV: only query, key and value

typedef struct {
    size_t layers, width, heads, context, vocab; // L blocks, C, H, longest T, V
    double dropout;                              // probability of dropping an element, 0 <= p < 1
    uint64_t seed;                               // the seed of initial weights and of dropout
    NormKind norm;
    PositionKind positions;
    ActivationKind activation;
    BiasKind biases;   // biases of the matrices. A layer norm has a bias, an RMS norm has none.
    size_t kv_heads;   // heads of key and value; 0: as many as of the query
    size_t ffn;        // features between the matrices of the MLP; 0: 4C
    bool untied;       // the head has its own table
    double rope_theta; // the base of the rotary angles; 0: 10000
    double norm_eps;   // epsilon of an RMS norm; 0: 1e-5
    // Weights and activations are stored in this element type. Statistics, scores, logits, losses,
    // masters and moments are always reals.
    Element storage;
    bool main_gradients; // true: gradients of weights are reals (Megatron); false: `storage`
} ModelConfig;
static inline Element config_gradient_element(const ModelConfig *c) {
    return c->main_gradients ? REALS : c->storage;
}
static inline size_t config_kv_heads(const ModelConfig *c) {
    return c->kv_heads ? c->kv_heads : c->heads;
}
// Returns the number of query heads per head of key and value.
static inline size_t config_head_ratio(const ModelConfig *c) {
    return c->heads / config_kv_heads(c);
}

// ---- The input of every layer: one micro-batch ----
typedef struct {
    size_t B, T;                 // sequences, positions of each on this rank
    const int *tokens, *targets; // [B*T] each; a negative target is not counted
    const int *position;   // [B*T]: each row's position in its sequence, ascending in a sequence
    size_t first_sequence; // global number of sequence 0; a coordinate of dropout
    uint64_t step;
    double token_weight; // 1 / counted tokens of the whole global batch; the dy of each token loss
    bool training;       // dropout is on
    size_t number;       // number among the micro-batches of a step, for pictures
} Batch;

// ---- Saved has the tensors that forward keeps for backward, per layer and micro-batch ----
enum { SAVED_TENSORS = 22, SAVED_GRADIENTS = 12 };
// A WeightGradient is a gradient of weights that the first half of a backward leaves to the second
// half. The fields are the arguments of linear_gradients, of norm_gradients (norm is true), or of
// bias_gradient (w is NULL).
typedef struct {
    Param *w, *bias;
    Tensor x, stats, dy;
    bool norm;
} WeightGradient;
typedef struct Saved {
    Tensor t[SAVED_TENSORS]; // each kind of layer has its own names for these tensors
    Element storage;         // type of activations; set by layer_forward()
    Arena arena, attention;  // attention: the [T, T] items, which selective recomputation drops
    Arena later; // used in the first half of a backward: holds the tensors for the second half
    WeightGradient deferred[SAVED_GRADIENTS]; // [n_deferred], between the two halves of a backward
    size_t n_deferred;
    Tensor input; // the layer's x, which the walk keeps
} Saved;
Saved saved_new(void);
void saved_free(Saved *s);

// ---- Attention: between QKV_W and PROJ_W of a block, for this rank's heads and positions ----
typedef struct AttentionKind AttentionKind;
typedef struct {
    size_t B, T, D; // sequences, positions of each on this rank, columns of a head
    Range heads;    // heads of this rank, numbered in the whole layer
    size_t ratio;   // this many neighbouring heads share one head of key and value; 0: 1
    double theta;   // the base of rotary positions; 0: no rotation
    uint64_t key;   // key, drop and first_sequence: dropout of the attention probabilities
    double drop;
    size_t first_sequence;
    const int *position;       // [B*T], as in Batch; NULL: 0, 1, 2, ...
    const AttentionKind *kind; // NULL: plain attention, which keeps [T, T] per sequence and head
    Comm *cp;                  // the ranks that share the positions of a sequence; NULL: no others
    size_t length;             // positions of a whole sequence, on all ranks of cp
} AttentionHeads;
struct AttentionKind {
    const char *name;
    // Computes S_MIX [B*T, A] from S_QKV [B*T, A + 2K], whose queries and keys are rotated already.
    // A is the number of this rank's query columns, and K = A / ratio. s->attention has the items
    // that rebuild can recompute; selective recomputation frees these items. All other items are in
    // s->arena.
    void (*forward)(const AttentionHeads *h, Saved *s);
    void (*backward)(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s);
    void (*rebuild)(const AttentionHeads *h, Saved *s); // NULL: s->attention is empty
};

// ---- Layers ----
typedef struct Layer Layer;
typedef struct {
    const char *name;
    // The shape of y on this rank. NULL in a wrapper means the shape of its last inner layer's y.
    Shape (*output)(const Layer *l, const Batch *b);
    // The shape of x. NULL means the shape of y, or in a wrapper without `output` the shape of its
    // first inner layer's x.
    Shape (*input)(const Layer *l, const Batch *b);
    // If true, dx takes the memory of x, and forward may overwrite x, because the loss's x [B*T, V]
    // is large. So the previous layer must not need its own y in backward.
    bool in_place;
    void (*forward)(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
    // dx is overwritten. The embedding has an empty dx.
    void (*backward)(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
    void (*shed)(Saved *s); // frees the items that rebuild can recompute; NULL: frees nothing
    void (*rebuild)(Layer *l, const Batch *b, Saved *s);
    // backward_inputs and backward_weights are the two halves of backward, in this order. In a
    // plain layer NULL means layer_defer and layer_deferred. In a wrapper NULL means that the
    // wrapper has no halves.
    void (*backward_inputs)(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
    void (*backward_weights)(Layer *l, const Batch *b, Tensor x, Saved *s);
} LayerKind;
struct Layer {
    const LayerKind *kind;
    const ModelConfig *config;
    size_t number; // 0 embedding, 1..L blocks, L+1 head, L+2 loss; a coordinate of dropout
    size_t chunk;  // the number of the layer's chunk on this rank (model.h)
    // The embedding has wte and wpe, a block its own unit, the head the last norm and its table.
    Unit **units;
    size_t n_units;
    Range heads; // the local heads
    Range vocab; // the local entries of the vocabulary
    Comm *comm;  // the ranks that this layer communicates with; NULL in the unsplit layers
    const AttentionKind *attention; // the attention of a block; NULL: plain attention
    Comm *cp;     // the ranks that share the positions of a sequence; NULL: no other rank
    Layer *inner; // the wrapped layer or layers; NULL in plain layers
    size_t n_inner;
    void *technique; // further state of the technique, if comm is not enough
};
// layer_output returns the shape of y and dy on this rank, and layer_input the shape of x and dx.
// The embedding has no x.
Shape layer_output(const Layer *l, const Batch *b);
Shape layer_input(const Layer *l, const Batch *b);
// Returns whether dx takes the memory of x (LayerKind.in_place).
bool layer_in_place(const Layer *l);
static inline void layer_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    s->storage = l->config->storage;
    l->kind->forward(l, b, x, y, s);
}
static inline void layer_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx,
                                  Saved *s) {
    l->kind->backward(l, b, x, dy, dx, s);
}
// layer_backward_inputs and layer_backward_weights are the two halves of backward, for zero bubble
// pipelines (Qi et al. 2023). The first half computes dx, because the previous stage waits for dx.
// The weights' gradients may come at any later time. The bits are the same as those of backward.
// Every plain layer has both halves. In the first half linear_gradients, bias_gradient and
// norm_gradients copy their arguments into s, where the copies replace forward's items. The second
// half calls the same functions again with the copies.
void layer_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void layer_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s);
// A wrapper may use layer_defer and layer_deferred as its halves if its backward does nothing with
// the gradients of weights.
void layer_defer(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void layer_deferred(Layer *l, const Batch *b, Tensor x, Saved *s);

// Wraps l: l becomes a layer of `kind` that communicates over `comm`, and the old l becomes its
// inner layer. Returns the inner layer. model_wrap_range wraps several layers.
Layer *layer_wrap(Layer *l, const LayerKind *kind, Comm *comm);

// The unsplit layers are the reference of every split layer.
extern const LayerKind layer_embedding, layer_block, layer_head, layer_loss;

// These values number a block's parameters in its unit, and the saved items in Saved.t. Chapter 03
// uses the same names.
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
    // S_LSE, S_HEADS_QKV and S_HEADS_MIX belong to other kinds of attention than plain attention.
    S_LSE,
    S_HEADS_QKV,
    S_HEADS_MIX,
    BLOCK_ITEMS
};
enum { S_LN, S_STATS }; // items of the head
enum { S_SUM };         // items of the loss
enum { S_DY };          // items of the embedding, between the halves of its backward
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_MIDDLE, SITE_OUT }; // the dropouts of a layer

// ---- Pieces that the unsplit layers and those of chapter 03 share ----
Shape hidden_shape(const Layer *l, const Batch *b); // returns [B*T, C], whole on this rank
// Returns [B*T, number of local entries of the vocabulary].
Shape logits_shape(const Layer *l, const Batch *b);
Shape token_shape(const Layer *l, const Batch *b); // returns [B*T, 1]
// Returns the dropout at this site of the layer, for a whole tensor [B*T, C]. For a part of the
// tensor, the caller sets row0 and col0.
Dropout layer_dropout(const Layer *l, const Batch *b, int site);
void linear(Tensor y, Tensor x, const Param *w); // computes y = x w
// Adds the gradients of y = x w + bias to w->g and bias->g. bias may be NULL.
void linear_gradients(Param *w, Param *bias, Tensor x, Tensor dy);
void bias_gradient(Param *bias, Tensor dy); // adds only the gradient of the bias
// Computes y = norm(x). norm[0] is the gain, norm[1] the bias. Keeps the statistics of the rows in
// s->t[stats]. A layer norm has mean and 1/deviation [rows, 2]. An RMS norm has 1/root mean square
// [rows, 1].
void normalize(const Layer *l, const Param norm[2], Tensor y, Tensor x, Saved *s, int stats);
void normalize_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy);
void norm_gradients(Param *gain, Param *bias, Tensor x, Tensor stats, Tensor dy);
AttentionHeads layer_heads(const Layer *l, const Batch *b);
// Returns how many neighbouring heads of the query share one head of key and value (grouped heads,
// Ainslie et al. 2023). A rank has A columns of the query, and K = A / ratio columns each of key
// and value.
static inline size_t attention_ratio(const AttentionHeads *h) { return h->ratio ? h->ratio : 1; }
static inline size_t attention_key_columns(const AttentionHeads *h) {
    return range_size(h->heads) / attention_ratio(h) * h->D;
}
// Returns columns of q|k|v [rows, A + 2K], or of its gradient. `which` is 0 for the query, 1 for
// the key, 2 for the value.
Tensor attention_part(const AttentionHeads *h, Tensor qkv, size_t which);
// Returns [rows, A] from keys or values [rows, K]. The result has each head of `keys` once for each
// query head of its group. Without groups the function returns `keys` itself.
Tensor attention_repeat(const AttentionHeads *h, Tensor keys, Arena *scratch);
// Does the backward of attention_repeat. Returns [rows, K], the sums of the gradients `wide` [rows,
// A] over each group of heads. Without groups the function returns `wide` itself.
Tensor attention_fold(const AttentionHeads *h, Tensor wide, Arena *scratch);
// With rotary positions, attention_forward first rotates the queries and keys of S_QKV. Then
// attention_forward computes S_MIX by h->kind. attention_backward computes the gradient of S_QKV by
// h->kind, then rotates the gradients of queries and keys back.
void attention_forward(const AttentionHeads *h, Saved *s);
void attention_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s);
// Recomputes the freed items of s->attention.
void attention_rebuild(const AttentionHeads *h, Saved *s);
void block_shed(Saved *s);
void block_rebuild(Layer *l, const Batch *b, Saved *s);
void embedding_gradients(Layer *l, const Batch *b, Tensor dy); // adds the gradients of wte and wpe
void loss_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
// Keeps a copy of dy in s, for embedding_backward_weights.
void embedding_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);
void embedding_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s);
void saved_tensor(Saved *s, int name, size_t rows, size_t cols); // allocates an activation
void saved_reals(Saved *s, int name, size_t rows, size_t cols);  // allocates an item of reals
// Returns the shape [rows, cols] of an activation, with the element type in which the model stores
// activations.
static inline Shape stored_shape(const Layer *l, size_t rows, size_t cols) {
    return tensor_shape(rows, cols, l->config->storage);
}

// ---- The plain walk over a list of layers ----
// A LayerStash has the tensors of one layer that a micro-batch keeps. The last layer's y is in the
// caller's memory.
typedef struct {
    Tensor y;
    Arena arena;
    Saved saved;
} LayerStash;
// An ActivationStash has the tensors that one micro-batch keeps on one stage between its forward
// and its backward.
typedef struct ActivationStash {
    size_t n;
    Tensor x;          // input of the first layer; owned by the caller
    LayerStash *layer; // [n]
} ActivationStash;
// Runs the layers forward. y is the last layer's output, in the caller's memory. The returned stash
// refers to x, so x must live until backward. The walk allocates the outputs of the other layers.
ActivationStash *walk_forward(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y);
// Runs the layers backward. Frees a layer's output and saved items as soon as the layer is done,
// and the stash at the end. An empty dx means that the first layer is the embedding.
void walk_backward(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                   Tensor dx);
// walk_backward_inputs and walk_backward_weights are the two halves of walk_backward. The second
// half frees the outputs, the saved items and the stash.
void walk_backward_inputs(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                          Tensor dx);
void walk_backward_weights(Layer *layers, size_t n, const Batch *b, ActivationStash *f);
void activation_stash_free(ActivationStash *f); // frees the stash without a backward
// Runs the layers forward, without a backward later. A layer's output lives until the next layer
// has read it. Nothing else is kept.
void walk_forward_only(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y);
#endif
