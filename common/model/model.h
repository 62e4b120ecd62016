// model.h: declares a model, which is a list of layers or a part of this list. The model is GPT-2
// (pre-norm, learned positions, tanh GELU, tied embeddings, biases) or Llama (RMS norm, rotary
// positions, SwiGLU, no biases). Qwen2 is Llama with biases of q, k and v.
//
// A model is DESCRIBED first. The techniques then change the description (cut parameters, wrap
// layers). Then the model is allocated.
//     Model *m = model_describe(&config, model_layers(&config)); // or a pipeline stage's part
//     tensor_parallel(m, tp);                                    // chapter 03, if wanted
//     recompute(m, RECOMPUTE_FULL);                              // chapter 07, if wanted
//     model_allocate(m);                                         // or zero3_allocate(m, dp)
#ifndef MODEL_H
#define MODEL_H
#include "common/model/layer.h"

typedef struct Model {
    ModelConfig config;
    // The list is the embedding, L blocks, head and loss, or a part of that list, or several such
    // parts (chunks).
    Layer *layers;
    size_t n_layers;
    // The units are in model order: wte, wpe, h.0, ..., ln_f, then the head's use of wte, or its
    // own table if untied.
    Unit *units;
    Unit **units_of_layers; // Layer.units points into this list of pointers to units.
    size_t n_units;
    // w and g [1, size] have the weights and the gradients of all units except a tied use, one unit
    // after another. ZeRO-2 and a model that only runs forward have no g, and ZeRO-3 has neither w
    // nor g. On a parameter server (01.05) w and g have only the server's piece.
    Tensor w, g;
    size_t size; // local elements; a tied tensor counts once
    Arena parameters, gradients, optimizer;
    // Only ZeRO-2 and ZeRO-3 use these arenas, of MEM_COMMUNICATION. A vocabulary's table stays
    // whole for a step. `gathered` holds the table's whole weights (ZeRO-3), `buffers` the table's
    // whole gradients.
    Arena gathered, buffers;
} Model;

// Returns the range [0, L+3) of all layers: embedding, L blocks, head, loss. In a list without the
// loss, the last y is the logits.
static inline Range model_layers(const ModelConfig *c) { return (Range){ 0, c->layers + 3 }; }
void config_require(const ModelConfig *c); // calls usage_error() for impossible values
// config_family() sets the norm, positions, activation and biases of a family (Llama: Touvron et
// al. 2023). Sizes, kv_heads, ffn and untied stay as they are, because the models of a family have
// different values.
typedef enum { FAMILY_GPT2, FAMILY_LLAMA } Family;
void config_family(ModelConfig *c, Family family);
// Returns whether c describes a GPT-2, of any sizes.
bool config_is_gpt2(const ModelConfig *c);
// Returns the parameters of the whole model, with a tied wte once. GPT-2 has V*C + T*C + L*(12*C*C
// + 13*C) + 2*C parameters.
size_t config_parameters(const ModelConfig *c);
// Returns the number of tensors: 2 + 12 L + 2, and one more for the head's own table if untied. A
// tensor that the family does not have counts, too, but has no elements.
size_t config_tensors(const ModelConfig *c);

Model *model_describe(const ModelConfig *c, Range layers);
// Sets the replicas of all units that have none yet to dp. Call this function between description
// and allocation.
void model_replicas(Model *m, Comm *dp);
// Wraps layers [lo, lo + n) of a described model in one new layer. The n layers become inner layers
// of the new one, so m->layers becomes shorter by n - 1. Returns the new layer.
Layer *model_wrap_range(Model *m, size_t lo, size_t n, const LayerKind *kind, Comm *comm);
// Returns a model of several chunks of the list of layers, in model order, for interleaved
// pipelines (Narayanan et al. 2021, section 2.2).
Model *model_describe_chunks(const ModelConfig *c, const Range *chunks, size_t n);
size_t model_chunks(const Model *m);             // returns 1 without interleaving
Range model_chunk(const Model *m, size_t chunk); // returns the chunk's layers in m->layers
// Allocates the weights of all units with their initial values, and all gradients. ZeRO has its own
// allocators.
void model_allocate(Model *m);
// Allocates the weights only. A caller that needs gradients allocates them.
void model_allocate_weights(Model *m);
// Makes every unit read its weights from w [1, size], which holds another version of the weights in
// the order of m->w.
void model_attach_weights(Model *m, Tensor w);
void model_free(Model *m);
// Sets the offset of each parameter in its unit, and the sizes of the units and of the model.
// Allocators call this function, after all changes of the description.
void model_measure(Model *m);
// Returns the unit whose first parameter has this name, or NULL.
Unit *model_unit(Model *m, const char *first_param);
// model_wte() returns the embedding's unit of wte. model_wte_head() returns the head's unit of wte,
// which is a tied use, or a copy of wte if the embedding is on another stage. Each function returns
// NULL if the layers of m do not have the unit. An untied head has no unit of wte.
Unit *model_wte(Model *m);
Unit *model_wte_head(Model *m);

void model_zero_gradients(Model *m);
// Runs forward and backward of one micro-batch, and adds its gradients. Returns the sum of token
// losses, without the factor token_weight.
double model_forward_backward(Model *m, const Batch *b);
// Runs a forward that keeps nothing for backward. Returns the sum of token losses.
double model_loss(Model *m, const Batch *b);
// Calls unit_partial_sums for each unit whose whole gradient (Unit.g) is in memory. Call this
// function once per step, after the last backward and before model_fold_tied. Under ZeRO-2 and
// ZeRO-3 backward has already called unit_partial_sums for each unit whose gradient it has reduced
// and dropped.
void model_partial_sums(Model *m);
// Adds the head's gradient of wte to the embedding's gradient, if both are on this rank. Call this
// function once per step.
void model_fold_tied(Model *m);

// A StepResult has the mean loss per counted token, and the gradient norm before clipping. The norm
// is the same on all ranks. In chapters 01 and 02 the loss is this rank's part. In other chapters
// the loss is the same on all ranks.
typedef struct {
    double loss, norm;
} StepResult;

// param_owned() returns the elements [lo, hi) of the unit that belong to p and that this rank owns.
// param_owned_part() returns these elements of one of the unit's [own] tensors.
Range param_owned(const Unit *u, const Param *p);
Tensor param_owned_part(const Unit *u, Tensor own, Range r);

// Writes to squares [config_tensors] the sum of squares of each tensor's final gradient. Counts
// only elements that this rank owns and whose parameter has in_norm.
void model_grad_squares(const Model *m, double *squares);
// Returns the square root of the sum of squares[0], squares[1], ..., added in this order.
double norm_of_squares(const double *squares, size_t n);
// Returns the norm of the whole gradient. The squares are added over `ranks`, the ranks that share
// the gradient (NULL: this rank has the whole gradient), then over the tensors. Every element has
// one owner; the other ranks add zeros.
double model_grad_norm(const Model *m, Comm *ranks);
// Returns the factor of clipping, min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0.
double clip_factor(double norm, double max_norm);
#endif
