// model_config.c writes and reads config.json, and finds the weights in a folder.
#include "08_3d/model_config.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/base/input.h"
#include "common/base/output.h"
#include "common/model/block.h"

static const char mark_key[] = "exported_by", mark[] = "unsplit";
// The most bytes of a config.json. Hugging Face's config.json of GPT-2 has less than 1 kB.
enum { MOST_BYTES = 1 << 20 };

static char *path_beside(const char *weights) {
    const char *slash = strrchr(weights, '/');
    int folder = slash ? (int)(slash + 1 - weights) : 0;
    size_t room = (size_t)folder + sizeof "config.json";
    char *path = host_alloc(room);
    snprintf(path, room, "%.*sconfig.json", folder, weights);
    return path;
}

// Returns the content of a config.json, or NULL if the file does not exist or is not JSON. The
// caller calls cJSON_Delete().
static cJSON *read_config(const char *path) {
    size_t bytes;
    char why[INPUT_WHY];
    char *text = input_text(path, MOST_BYTES, &bytes, why);
    if (!text) return NULL;
    cJSON *config = cJSON_ParseWithLength(text, bytes);
    free(text);
    return config;
}

// Returns whether --export may write the file. The file must not exist, or must have the mark of
// --export.
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

// ---------------------------------------------------------------- writing

// Returns the entry that marks the beginning and the end of a text. GPT-2's vocabulary has one
// entry for both marks. For other vocabularies this program does not know the entry.
static const char *text_end(const ModelConfig *c) { return c->vocab == 50257 ? "50256" : "null"; }
static const char *truth(bool value) { return value ? "true" : "false"; }

static void write_gpt2(FILE *f, const ModelConfig *c) {
    char inner[24] = "null"; // null stands for 4 times n_embd
    if (c->ffn) snprintf(inner, sizeof inner, "%zu", c->ffn);
    fprintf(f, "  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n");
    fprintf(f,
            "  \"vocab_size\": %zu,\n  \"n_positions\": %zu,\n  \"n_ctx\": %zu,\n  \"n_embd\": "
            "%zu,\n"
            "  \"n_layer\": %zu,\n  \"n_head\": %zu,\n  \"n_inner\": %s,\n",
            c->vocab, c->context, c->context, c->width, c->layers, c->heads, inner);
    fprintf(f,
            "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
            "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": %s,\n",
            truth(!c->untied));
    fprintf(f, "  \"attn_pdrop\": %g,\n  \"embd_pdrop\": %g,\n  \"resid_pdrop\": %g,\n", c->dropout,
            c->dropout, c->dropout);
}

// Writes the config.json of a Llama or Qwen2. Hugging Face's Llama has dropout in attention only,
// so the model's dropout is not written. Newer versions of the library read rope_parameters, older
// versions read rope_theta.
static void write_llama(FILE *f, const ModelConfig *c) {
    const bool qwen2 = hub_family(c) == HUB_QWEN2;
    const double theta = c->rope_theta > 0 ? c->rope_theta : 10000,
                 eps = c->norm_eps > 0 ? c->norm_eps : 1e-5;
    fprintf(f, "  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
            qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM", qwen2 ? "qwen2" : "llama");
    fprintf(f,
            "  \"vocab_size\": %zu,\n  \"max_position_embeddings\": %zu,\n  \"hidden_size\": %zu,\n"
            "  \"intermediate_size\": %zu,\n  \"num_hidden_layers\": %zu,\n"
            "  \"num_attention_heads\": %zu,\n  \"num_key_value_heads\": %zu,\n",
            c->vocab, c->context, c->width, block_hidden(c), c->layers, c->heads,
            config_kv_heads(c));
    fprintf(f,
            "  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": %.12g,\n  \"rope_theta\": %.12g,\n"
            "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %.12g},\n",
            eps, theta, theta);
    if (qwen2) fprintf(f, "  \"use_sliding_window\": false,\n");
    else fprintf(f, "  \"attention_bias\": false,\n  \"mlp_bias\": false,\n");
    fprintf(f, "  \"attention_dropout\": 0.0,\n  \"tie_word_embeddings\": %s,\n",
            truth(!c->untied));
}

void model_config_write(const ModelConfig *c, const char *weights, FileType type) {
    static const char *const torch[] = { "float64", "float32", "float16", "bfloat16" };
    if (!is_plain_file(weights)) return;
    char *path = path_beside(weights);
    if (!may_write(path))
        fault("--export %s: the weights are written, but %s is now a file that --export did not "
              "write",
              weights, path);
    Output o = output_open("export", path);
    fprintf(o.f, "{\n  \"%s\": \"%s\",\n", mark_key, mark);
    if (hub_family(c) == HUB_GPT2) write_gpt2(o.f, c);
    else write_llama(o.f, c);
    fprintf(o.f, "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
            text_end(c), text_end(c), torch[type]);
    output_close(&o);
    free(path);
}

// ---------------------------------------------------------------- reading

typedef struct {
    const char *option, *path;
    cJSON *json;
} Reading;
static const cJSON *field(const Reading *r, const char *key) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(r->json, key);
    return cJSON_IsNull(value) ? NULL : value;
}
// Returns 0 if the file has no such key.
static size_t size_of(const Reading *r, const char *key) {
    const cJSON *value = field(r, key);
    if (!value) return 0;
    double n = cJSON_IsNumber(value) ? value->valuedouble : 0;
    REQUIRE(n >= 1 && n <= 4294967296.0 && n == (double)(size_t)n,
            "--%s: %s: %s is no whole number of at least 1", r->option, r->path, key);
    return (size_t)n;
}
static size_t needed_size(const Reading *r, const char *key) {
    size_t n = size_of(r, key);
    REQUIRE(n > 0, "--%s: %s lacks %s, and no tensor has it", r->option, r->path, key);
    return n;
}
static double number_of(const Reading *r, const cJSON *value, const char *key, double fallback) {
    if (!value) return fallback;
    double x = cJSON_IsNumber(value) ? value->valuedouble : 0;
    REQUIRE(x > 0 && x < 1e30, "--%s: %s: %s is no number above 0", r->option, r->path, key);
    return x;
}
static bool flag_of(const Reading *r, const char *key, bool fallback) {
    const cJSON *value = field(r, key);
    REQUIRE(!value || cJSON_IsBool(value), "--%s: %s: %s is neither true nor false", r->option,
            r->path, key);
    return value ? cJSON_IsTrue(value) : fallback;
}
// Calls usage_error() if the file has the other value of the flag, because this program cannot
// compute such a model.
static void require_flag(const Reading *r, const char *key, bool wanted) {
    REQUIRE(flag_of(r, key, wanted) == wanted,
            "--%s: %s: a model with %s %s is not supported: only %s is", r->option, r->path, key,
            truth(!wanted), truth(wanted));
}
static void require_text(const Reading *r, const char *key, const char *first, const char *second) {
    const char *text = cJSON_GetStringValue(field(r, key));
    REQUIRE(!text || strcmp(text, first) == 0 || strcmp(text, second) == 0,
            "--%s: %s: a model with %s %s is not supported: only %s is", r->option, r->path, key,
            text, first);
}

static void read_gpt2(const Reading *r, ModelConfig *c) {
    c->layers = size_of(r, "n_layer");
    c->width = size_of(r, "n_embd");
    c->heads = size_of(r, "n_head");
    c->context = size_of(r, "n_positions");
    c->vocab = size_of(r, "vocab_size");
    c->ffn = size_of(r, "n_inner");
    c->untied = !flag_of(r, "tie_word_embeddings", true);
    require_text(r, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    require_flag(r, "scale_attn_weights", true);
    require_flag(r, "scale_attn_by_inverse_layer_idx", false);
    double eps = number_of(r, field(r, "layer_norm_epsilon"), "layer_norm_epsilon", 1e-5);
    REQUIRE(eps == 1e-5, "--%s: %s: layer_norm_epsilon %g is not supported: only 1e-5 is",
            r->option, r->path, eps);
}

static void require_unscaled(const Reading *r, const cJSON *rotation) {
    const char *type =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rotation, "rope_type"));
    if (!type) type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rotation, "type"));
    REQUIRE(!type || strcmp(type, "default") == 0,
            "--%s: %s: rotary positions of the type %s are not supported: only unscaled ones are",
            r->option, r->path, type);
}
// Reads the rotary positions. Older versions of config.json have rope_theta and rope_scaling. Newer
// versions have an object rope_parameters, with the base rope_theta and the kind of scaling.
static void read_rotation(const Reading *r, ModelConfig *c) {
    const cJSON *newer = field(r, "rope_parameters"), *scaling = field(r, "rope_scaling");
    const cJSON *theta = cJSON_GetObjectItemCaseSensitive(newer, "rope_theta");
    c->rope_theta = number_of(r, theta ? theta : field(r, "rope_theta"), "rope_theta", 10000);
    require_unscaled(r, newer);
    require_unscaled(r, scaling);
}

static void read_llama(const Reading *r, ModelConfig *c, bool qwen2) {
    config_family(c, FAMILY_LLAMA);
    if (qwen2) c->biases = BIASES_QKV;
    c->layers = needed_size(r, "num_hidden_layers");
    c->width = needed_size(r, "hidden_size");
    c->heads = needed_size(r, "num_attention_heads");
    c->kv_heads = size_of(r, "num_key_value_heads");
    c->ffn = needed_size(r, "intermediate_size");
    c->context = needed_size(r, "max_position_embeddings");
    c->vocab = needed_size(r, "vocab_size");
    c->untied = !flag_of(r, "tie_word_embeddings", false);
    c->norm_eps = number_of(r, field(r, "rms_norm_eps"), "rms_norm_eps", 1e-6);
    read_rotation(r, c);
    require_text(r, "hidden_act", "silu", "swish");
    if (!qwen2) require_flag(r, "attention_bias", false);
    require_flag(r, "mlp_bias", false);
    require_flag(r, "use_sliding_window", false);
    size_t columns = size_of(r, "head_dim");
    REQUIRE(!columns || columns * c->heads == c->width,
            "--%s: %s: heads of %zu columns are not supported: hidden_size %zu and %zu heads make "
            "%zu",
            r->option, r->path, columns, c->width, c->heads, c->width / c->heads);
}

HubFamily model_config_read(const char *option, const char *weights, ModelConfig *c) {
    char *path = path_beside(weights);
    struct stat found;
    HubFamily family = NO_HUB_FAMILY;
    if (stat(path, &found) == 0) {
        Reading r = { .option = option, .path = path, .json = read_config(path) };
        REQUIRE(cJSON_IsObject(r.json), "--%s: %s cannot be read, or is not JSON", option, path);
        const char *type = cJSON_GetStringValue(field(&r, "model_type"));
        if (!type || strcmp(type, "gpt2") == 0) family = HUB_GPT2;
        else if (strcmp(type, "llama") == 0) family = HUB_LLAMA;
        else if (strcmp(type, "qwen2") == 0) family = HUB_QWEN2;
        REQUIRE(family != NO_HUB_FAMILY,
                "--%s: %s: a model of the type %s is not supported: only gpt2, llama and qwen2 "
                "are",
                option, path, type);
        if (family == HUB_GPT2) read_gpt2(&r, c);
        else read_llama(&r, c, family == HUB_QWEN2);
        cJSON_Delete(r.json);
    }
    free(path);
    return family;
}

// ---------------------------------------------------------------- finding the weights

static const char index_name[] = "model.safetensors.index.json";

static char *path_in(const char *folder, const char *name) {
    size_t room = strlen(folder) + 1 + strlen(name) + 1;
    char *path = host_alloc(room);
    snprintf(path, room, "%s/%s", folder, name);
    return path;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

char *model_folder_weights(const char *option, const char *folder) {
    bool config = false, checkpoints = false, model = false, shards = false;
    size_t files = 0, room = strlen(folder) + 2 + sizeof((struct dirent *)NULL)->d_name;
    char *path = host_alloc(room);
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        config |= strcmp(e->d_name, "config.json") == 0;
        checkpoints |= strcmp(e->d_name, "index.json") == 0 || strncmp(e->d_name, "step-", 5) == 0;
        shards |= strcmp(e->d_name, index_name) == 0;
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
    if (!model && shards) {
        free(path);
        return path_in(folder, index_name);
    }
    REQUIRE(files > 0, "--%s %s: there is a config.json, but no file *.safetensors with weights",
            option, folder);
    REQUIRE(model || files == 1,
            "--%s %s: it has %zu files *.safetensors, and none is model.safetensors: name the "
            "file",
            option, folder, files);
    return path;
}
