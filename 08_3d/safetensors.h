// safetensors.h: writes a model's weights as one safetensors file
// (github.com/huggingface/safetensors, "Format"): an 8-byte little-endian header length, a JSON
// header padded with spaces to a multiple of 8, then the tensors, row-major.
//
// Names, shapes and layout are those of Hugging Face's (model_names.h), so GPT2LMHeadModel,
// LlamaForCausalLM or Qwen2ForCausalLM loads the file without changes. A tied table stands in the
// file once. The elements are F32, F64 or BF16. With 16-bit storage they are the masters, or their
// rounded copy. The bytes do not depend on the layout that trained the model.
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "08_3d/tensor_file.h"
#include "common/model/model.h"

// usage_error() when FILE, or config.json beside it, cannot be written, or when no class of Hugging
// Face's has such a model: rank 0 asks before the training, not after it.
void safetensors_require(const ModelConfig *c, const char *file);
// Collective: gathers the weights to rank 0, tensor by tensor. Rank 0 writes FILE.tmp and
// renames it (a pipe or a device is written in place), and config.json beside it
// (model_config.h). fault() when it cannot be written.
void safetensors_export(const Model *m, const char *file, FileType type);
#endif
