// weight_files.h: the files with a model's tensors: one safetensors file, or several that an index
// names (model.safetensors.index.json of Hugging Face's, whose weight_map gives each tensor's
// file). A tensor stands in exactly one file, and the index and the files agree.
#ifndef WEIGHT_FILES_H
#define WEIGHT_FILES_H
#include "08_3d/tensor_file.h"

typedef struct {
    TensorFile *file; // [n]
    size_t n;
} WeightFiles;
enum { WEIGHT_FILES_WHY = 1024 };
// path: a safetensors file, or an index (*.index.json) beside its files. False: `why` names the
// file and the reason.
bool weight_files_open(WeightFiles *w, const char *path, char why[WEIGHT_FILES_WHY]);
void weight_files_close(WeightFiles *w);
// NULL where there is none
const FileTensor *weight_files_find(const WeightFiles *w, const char *name);
#endif
