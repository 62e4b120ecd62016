// weights.h: the weights of a trained model: from a checkpoint (checkpoint.h), from a safetensors
// file with the names of Hugging Face's GPT-2, which --export writes, too, or from a folder with
// such a file and its config.json. A rank reads only its own part.
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
// A file's sizes are those of its tensors. heads: those of the model; NULL: as its header or a
// config.json beside it says. Collective. usage_error() where this is no model.
Weights weights_open(Comm *world, const char *from, const size_t *heads, uint64_t seed);
// Allocates the weights of a described model, without gradients, and fills them. usage_error()
// where one is missing.
void weights_load(const Weights *w, Model *m);
void weights_close(Weights *w);
#endif
