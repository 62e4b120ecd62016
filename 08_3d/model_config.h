// model_config.h: config.json, which stands beside a model's weights and says the rest of the
// model. Hugging Face's GPT2LMHeadModel.from_pretrained(FOLDER) needs it. --export writes one with
// a mark, and replaces no other one.
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "common/model/model.h"

// usage_error() when the config.json beside this file of weights was not written by --export, or
// cannot be written: asked before the training. A pipe or a device has no config.json beside it.
void model_config_require(const char *weights);
// fault() when it cannot be written
void model_config_write(const ModelConfig *c, const char *weights);
// n_head of the config.json beside the weights; 0: it does not say
size_t model_config_heads(const char *weights);
// The weights in a folder with a config.json: model.safetensors, or the only file *.safetensors;
// free() it. NULL: the folder has no config.json, or has checkpoints. usage_error() where no file
// is the one.
char *model_folder_weights(const char *folder);
#endif
