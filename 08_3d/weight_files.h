// weight_files.h declares functions that open the files with a model's tensors: one safetensors
// file, or several files that an index names. The index is Hugging Face's
// model.safetensors.index.json, whose weight_map gives each tensor's file. weight_files_open()
// checks that each tensor is in exactly one file, and that the index and the files agree.
#ifndef WEIGHT_FILES_H
#define WEIGHT_FILES_H
#include "08_3d/tensor_file.h"

typedef struct {
    TensorFile *file; // [n]
    size_t n;
} WeightFiles;
enum { WEIGHT_FILES_WHY = 1024 };
// Opens the files of `path`: a safetensors file, or an index (*.index.json) beside its files. If
// the function returns false, `why` names the file and the reason.
bool weight_files_open(WeightFiles *w, const char *path, char why[WEIGHT_FILES_WHY]);
void weight_files_close(WeightFiles *w);
// Returns the tensor with this name, or NULL.
const FileTensor *weight_files_find(const WeightFiles *w, const char *name);
#endif
