// weights.h: opens the weights of a trained model. They come from a checkpoint (checkpoint.h), from
// a safetensors file with the names of Hugging Face's GPT-2 (--export writes such a file), or from
// a folder with such a file and its config.json. A rank reads only its own part.
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "08_3d/checkpoint.h"
#include "08_3d/tensor_file.h"

typedef struct {
    // a folder or a file; NULL: values, or initial values
    const char *from;
    // The elements of each parameter, by its number, side by side in model order; NULL: there are
    // none.
    real **values;
    // the file in a folder with a config.json; else NULL
    char *found;
    Checkpoint *checkpoint;                        // NULL: no folder
    TensorFile file;
    ModelConfig model;                             // its sizes; no dropout
} Weights;
// The sizes of the model follow from the tensors of the file. heads: the model's number of heads;
// NULL: take it from the file's header or from a config.json beside the file. Collective.
// usage_error() if there is no model at `from`.
Weights weights_open(Comm *world, const char *from, const size_t *heads, uint64_t seed);
// Allocates the weights of a described model, without gradients, and fills them. usage_error()
// where one is missing.
void weights_load(const Weights *w, Model *m);
void weights_close(Weights *w);
#endif
