// model_config.c: writes, reads and finds config.json and the weights beside it.
#include "08_3d/model_config.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/base/input.h"
#include "common/base/output.h"

static const char mark_key[] = "exported_by", mark[] = "unsplit";
// A config.json of Hugging Face's GPT-2 has less than 1 kB.
enum { MOST_BYTES = 1 << 20 };

// The path of the config.json in the folder of a file. free() it.
static char *path_beside(const char *weights) {
    const char *slash = strrchr(weights, '/');
    int folder = slash ? (int)(slash + 1 - weights) : 0;
    size_t room = (size_t)folder + sizeof "config.json";
    char *path = host_alloc(room);
    snprintf(path, room, "%.*sconfig.json", folder, weights);
    return path;
}

// Returns NULL if there is no file of JSON. Free the result with cJSON_Delete().
static cJSON *read_config(const char *path) {
    size_t bytes;
    char why[INPUT_WHY];
    char *text = input_text(path, MOST_BYTES, &bytes, why);
    if (!text) return NULL;
    cJSON *config = cJSON_ParseWithLength(text, bytes);
    free(text);
    return config;
}

// May --export write this file? Yes if there is none, or if it has the mark of --export.
static bool may_write(const char *path) {
    struct stat found;
    if (lstat(path, &found) != 0) return true;
    cJSON *config = read_config(path);
    const char *by = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, mark_key));
    bool ours = by && strcmp(by, mark) == 0;
    cJSON_Delete(config);
    return ours;
}

static bool is_plain_file(const char *weights) {
    struct stat found;
    return stat(weights, &found) != 0 || S_ISREG(found.st_mode);
}

void model_config_require(const char *weights) {
    if (!is_plain_file(weights)) return;
    char *path = path_beside(weights);
    REQUIRE(strcmp(path, weights) != 0,
            "--export %s: config.json is written beside the weights: choose "
            "another name for these, such as model.safetensors",
            weights);
    REQUIRE(may_write(path),
            "--export %s: %s would be replaced, which --export did not write: move it away, or "
            "export into another folder",
            weights, path);
    output_require("export", path);
    free(path);
}

// The id for begin and end of a text. GPT-2's vocabulary has one entry for both. A vocabulary of
// bytes has no such entry.
static const char *text_end(const ModelConfig *c) { return c->vocab == 50257 ? "50256" : "null"; }

void model_config_write(const ModelConfig *c, const char *weights) {
    if (!is_plain_file(weights)) return;
    char *path = path_beside(weights);
    if (!may_write(path))
        fault("--export %s: the weights are written, but %s is now a file that --export did not "
              "write",
              weights, path);
    Output o = output_open("export", path);
    fprintf(o.f,
            "{\n  \"%s\": \"%s\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": "
            "\"gpt2\",\n",
            mark_key, mark);
    fprintf(o.f,
            "  \"vocab_size\": %zu,\n  \"n_positions\": %zu,\n  \"n_ctx\": %zu,\n  \"n_embd\": "
            "%zu,\n"
            "  \"n_layer\": %zu,\n  \"n_head\": %zu,\n  \"n_inner\": null,\n",
            c->vocab, c->context, c->context, c->width, c->layers, c->heads);
    fprintf(o.f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
                 "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n");
    fprintf(o.f, "  \"attn_pdrop\": %g,\n  \"embd_pdrop\": %g,\n  \"resid_pdrop\": %g,\n",
            c->dropout, c->dropout, c->dropout);
    fprintf(o.f, "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
            text_end(c), text_end(c), sizeof(real) == 8 ? "float64" : "float32");
    output_close(&o);
    free(path);
}

size_t model_config_heads(const char *weights) {
    char *path = path_beside(weights);
    cJSON *config = read_config(path);
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(config, "n_head");
    double value = cJSON_IsNumber(heads) ? heads->valuedouble : 0;
    cJSON_Delete(config);
    free(path);
    return value >= 1 && value < 1e6 ? (size_t)value : 0;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

char *model_folder_weights(const char *folder) {
    bool config = false, checkpoints = false, model = false;
    size_t files = 0, room = strlen(folder) + 2 + sizeof((struct dirent *)NULL)->d_name;
    char *path = host_alloc(room);
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        config |= strcmp(e->d_name, "config.json") == 0;
        checkpoints |= strcmp(e->d_name, "index.json") == 0 || strncmp(e->d_name, "step-", 5) == 0;
        if (model || !ends_with(e->d_name, ".safetensors")) continue;
        model = strcmp(e->d_name, "model.safetensors") == 0;
        files++;
        snprintf(path, room, "%s/%s", folder, e->d_name);
    }
    if (d) closedir(d);
    if (!config || checkpoints) {
        free(path);
        return NULL;
    }
    REQUIRE(files > 0, "--from %s: there is a config.json, but no file *.safetensors with weights",
            folder);
    REQUIRE(model || files == 1,
            "--from %s: it has %zu files *.safetensors, and none is model.safetensors: name the "
            "file",
            folder, files);
    return path;
}
