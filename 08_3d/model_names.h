// model_names.h declares the names and the layout of a model's tensors in Hugging Face's files. In
// GPT-2's files a tensor has the name and the layout of this program. In Llama's and Qwen2's files
// a matrix of a block is transposed, [out, in]. The matrices q | k | v and gate | up of this
// program are each several tensors in the files of Llama and Qwen2.
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H
#include "common/model/model.h"

// The class in Hugging Face's library that loads the model. NO_HUB_FAMILY: there is no such class.
typedef enum { NO_HUB_FAMILY, HUB_GPT2, HUB_LLAMA, HUB_QWEN2 } HubFamily;
HubFamily hub_family(const ModelConfig *c);

// One tensor of a file. `columns` is the range of the parameter's columns that the tensor has. The
// shape in the file is [columns] for a vector, [columns, rows] for a transposed matrix, else [rows,
// columns].
enum { MOST_PARTS = 3, PART_NAME = 72 };
typedef struct {
    char name[PART_NAME];
    Range columns;
    bool vector, transposed;
    size_t rows; // rows of the parameter
} NamedPart;
// Fills the parts of a whole parameter, and returns the number of parts. Returns 0 if the family
// has no such tensor.
size_t model_parts(const ModelConfig *c, const Param *p, NamedPart part[MOST_PARTS]);
// Returns the number of the part's element that is at this row and column of the parameter.
size_t part_place(const NamedPart *part, size_t row, size_t column);
#endif
