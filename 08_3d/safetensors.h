// safetensors.h declares functions that write a model's weights as one safetensors file, whose form
// tensor_file.h describes.
//
// Names, shapes and layout are those of Hugging Face (model_names.h), so GPT2LMHeadModel,
// LlamaForCausalLM or Qwen2ForCausalLM loads the file without changes. The file has a tied table
// only once. The elements are F32, F64 or BF16. With 16-bit storage the elements are the masters,
// or the masters' rounded copies. The same weights give the same bytes in every layout.
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "08_3d/tensor_file.h"
#include "common/model/model.h"

// Checks, before the training and on rank 0, that FILE and the config.json beside it can be
// written. Calls usage_error() if a file cannot be written, or if no class of Hugging Face's has
// such a model.
void safetensors_require(const ModelConfig *c, const char *file);
// Gathers the weights to rank 0, tensor by tensor. Rank 0 writes FILE.tmp and renames it to FILE. A
// pipe or a device is written in place. Rank 0 also writes the config.json beside FILE
// (model_config.h). Collective. Calls fault() if a file cannot be written.
void safetensors_export(const Model *m, const char *file, FileType type);
#endif
