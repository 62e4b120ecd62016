// model_config.h declares functions that read and write the config.json beside a model's weights.
// The config.json has the model's sizes. from_pretrained(), a function of Hugging Face's
// GPT2LMHeadModel, LlamaForCausalLM and Qwen2ForCausalLM, needs this file. --export writes a
// config.json with a mark, and never replaces a file without this mark.
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "08_3d/model_names.h"
#include "08_3d/tensor_file.h"

// Checks, before the training, that config.json can be written beside this file of weights. Calls
// usage_error() if the present config.json was not written by --export, if config.json cannot be
// written, or if `weights` itself has this name. For a pipe or a device no config.json is written.
void model_config_require(const char *weights);
// Writes the config.json. Calls fault() if the file cannot be written. type: the type of the
// weights.
void model_config_write(const ModelConfig *c, const char *weights, FileType type);
// Reads the config.json beside the weights into *c. Returns NO_HUB_FAMILY if there is no
// config.json. No model_type means GPT-2. For GPT-2 a missing size becomes 0, because most sizes
// follow from the tensors. Calls usage_error() if config.json is not JSON, if a Llama or Qwen2
// lacks a size, or if this program would compute the model in another way than Hugging Face.
// option: "from" or "init", for the messages.
HubFamily model_config_read(const char *option, const char *weights, ModelConfig *c);
// Returns the path of the weights in a folder with a config.json: model.safetensors,
// model.safetensors.index.json, or the only file *.safetensors. The caller frees the path. Returns
// NULL if the folder has no config.json, or has checkpoints. Calls usage_error() if the folder has
// no such file, or several files *.safetensors with other names.
char *model_folder_weights(const char *option, const char *folder);
#endif
