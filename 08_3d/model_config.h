// model_config.h: config.json beside a model's weights, with the model's sizes. from_pretrained()
// of Hugging Face's GPT2LMHeadModel, LlamaForCausalLM and Qwen2ForCausalLM needs it. --export
// writes a config.json with a mark, and never replaces one without this mark.
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "08_3d/model_names.h"
#include "08_3d/tensor_file.h"

// Call it before the training. usage_error() if the config.json beside this file of weights was not
// written by --export, or cannot be written. A pipe or a device has no config.json beside it.
void model_config_require(const char *weights);
// type: of the weights. fault() when it cannot be written
void model_config_write(const ModelConfig *c, const char *weights, FileType type);
// Reads the config.json beside the weights into *c. GPT-2: a field that it lacks stays 0, because
// the tensors have most sizes; no model_type means GPT-2. NO_HUB_FAMILY: there is no config.json.
// usage_error() for a model that this program would compute in another way. option: "from" or
// "init", for the messages.
HubFamily model_config_read(const char *option, const char *weights, ModelConfig *c);
// Returns the path of the weights in a folder with a config.json: model.safetensors,
// model.safetensors.index.json, or the only file *.safetensors. The caller frees the path. NULL:
// the folder has no config.json, or has checkpoints. usage_error(): the folder has no such file, or
// several.
char *model_folder_weights(const char *option, const char *folder);
#endif
