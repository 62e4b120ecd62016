// weights.h declares functions that open the weights of a trained model. A rank reads only its own
// part. The weights are in one of these places:
//     a checkpoint (checkpoint.h)
//     a safetensors file with the names of Hugging Face's GPT-2, Llama or Qwen2; --export writes
//         such a file
//     several such files with their index
//     a folder with such a file, or such files, and a config.json
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "08_3d/checkpoint.h"
#include "08_3d/weight_files.h"

typedef struct {
    const char *option; // "from" or "init", for messages
    const char *from;   // a folder or a file; NULL: the weights are `values`, or initial
    // values[number]: the elements of the parameter with this number. values[0] is the beginning of
    // one array of all parameters, in model order, which weights_close() frees. NULL: no values.
    real **values;
    char *found;            // the file in a folder with a config.json; else NULL
    Checkpoint *checkpoint; // NULL: the weights are in no checkpoint
    WeightFiles files;
    ModelConfig model; // the model's sizes; no dropout
} Weights;
// Opens the weights at `from`. The sizes of the model follow from the config.json beside the file,
// and for GPT-2 also from the tensors and the file's header. Every name and shape in these files is
// checked. The sizes of a checkpoint follow from its options. Collective. Calls usage_error() if
// there is no model at `from`.
// heads: the number of heads, which must not differ from that of a checkpoint or a config.json;
// NULL: the files give the number.
Weights weights_open(Comm *world, const char *option, const char *from, const size_t *heads,
                     uint64_t seed);
// Allocates the weights of a described model, without gradients, and fills them. Calls
// usage_error() if a weight is not finite.
void weights_load(const Weights *w, Model *m);
// Fills the weights that a rank of an allocated model has, also under ZeRO.
void weights_fill(const Weights *w, Model *m);
void weights_close(Weights *w);
#endif
