// weights.h: opens the weights of a trained model. A rank reads only its own part. The weights are
// in one of three places:
//     a checkpoint (checkpoint.h)
//     a safetensors file with the names of Hugging Face's GPT-2; --export writes such a file
//     a folder with such a file and its config.json
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "08_3d/checkpoint.h"
#include "08_3d/tensor_file.h"

typedef struct {
    const char *from;       // a folder or a file; NULL: `values`, or initial values
    // The elements of each parameter, by its number, side by side in model order; NULL: there are
    // none.
    real **values;
    char *found;            // the file in a folder with a config.json; else NULL
    Checkpoint *checkpoint;                        // NULL: no folder
    TensorFile file;
    ModelConfig model;                             // its sizes; no dropout
} Weights;
// Collective. The sizes of the model follow from the tensors of the file. usage_error() if there is
// no model at `from`.
// heads: the model's number of heads. NULL: the number comes from the file's header or from the
// config.json beside the file.
Weights weights_open(Comm *world, const char *from, const size_t *heads, uint64_t seed);
// Allocates the weights of a described model, without gradients, and fills them. usage_error()
// where one is missing.
void weights_load(const Weights *w, Model *m);
void weights_close(Weights *w);
#endif
