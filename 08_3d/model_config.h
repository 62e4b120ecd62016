// model_config.h: config.json beside a model's weights, with the model's sizes. Hugging Face's
// GPT2LMHeadModel.from_pretrained(FOLDER) needs it. --export writes a config.json with a mark, and
// never replaces one without this mark.
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "common/model/model.h"

// Call it before the training. usage_error() if the config.json beside this file of weights was not
// written by --export, or cannot be written. A pipe or a device has no config.json beside it.
void model_config_require(const char *weights);
// fault() when it cannot be written
void model_config_write(const ModelConfig *c, const char *weights);
// n_head of the config.json beside the weights; 0: there is none.
size_t model_config_heads(const char *weights);
// The weights in a folder with a config.json: model.safetensors, or the only file *.safetensors;
// free() it. NULL: the folder has no config.json, or has checkpoints. usage_error() if the folder
// has no such file, or several.
char *model_folder_weights(const char *folder);
#endif
