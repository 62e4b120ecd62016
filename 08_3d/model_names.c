// model_names.c holds the table of names in Hugging Face's files.
#include "08_3d/model_names.h"
#include <stdio.h>
#include <string.h>

HubFamily hub_family(const ModelConfig *c) {
    const bool gpt2 = c->norm == NORM_LAYER && c->positions == POSITIONS_LEARNED &&
                      c->activation == ACTIVATION_GELU && c->biases == BIASES_ALL;
    const bool llama = c->norm == NORM_RMS && c->positions == POSITIONS_ROTARY &&
                       c->activation == ACTIVATION_SWIGLU && c->biases != BIASES_ALL;
    if (gpt2 && config_kv_heads(c) == c->heads) return HUB_GPT2;
    if (llama) return c->biases == BIASES_QKV ? HUB_QWEN2 : HUB_LLAMA;
    return NO_HUB_FAMILY;
}

// The name of a tensor in this program, and the names of its parts in Llama's files. The parts are
// ranges of the tensor's columns.
typedef struct {
    const char *ours, *part[MOST_PARTS];
} Names;
static const Names names_of_blocks[] = {
    { "ln_1.weight", { "input_layernorm.weight" } },
    { "attn.c_attn.weight",
      { "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight" } },
    { "attn.c_attn.bias",
      { "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias" } },
    { "attn.c_proj.weight", { "self_attn.o_proj.weight" } },
    { "ln_2.weight", { "post_attention_layernorm.weight" } },
    { "mlp.c_fc.weight", { "mlp.gate_proj.weight", "mlp.up_proj.weight" } },
    { "mlp.c_proj.weight", { "mlp.down_proj.weight" } },
    { 0 },
};
static const Names names_outside[] = {
    { "wte.weight", { "model.embed_tokens.weight" } },
    { "ln_f.weight", { "model.norm.weight" } },
    { "lm_head.weight", { "lm_head.weight" } },
    { 0 },
};

static const Names *names_of(const Names *list, const char *ours) {
    while (list->ours && strcmp(list->ours, ours) != 0) list++;
    if (!list->ours) fault("%s has no name in the files of Llama", ours);
    return list;
}

// Returns the columns of part k. With grouped heads part 0, the query, is p->ratio times as wide as
// each other part.
static Range columns_of(const Param *p, size_t parts, size_t k) {
    if (parts == 1) return (Range){ 0, p->cols };
    size_t narrow = p->cols / (p->ratio + p->blocks - 1);
    if (k == 0) return (Range){ 0, p->ratio * narrow };
    return (Range){ (p->ratio + k - 1) * narrow, (p->ratio + k) * narrow };
}

size_t model_parts(const ModelConfig *c, const Param *p, NamedPart part[MOST_PARTS]) {
    if (p->cols == 0) return 0;
    NamedPart whole = { .columns = { 0, p->cols }, .vector = p->vector, .rows = p->rows };
    if (hub_family(c) == HUB_GPT2) {
        part[0] = whole;
        snprintf(part[0].name, PART_NAME, "%s", p->name);
        return 1;
    }
    size_t block = 0, n = 0;
    int prefix = 0;
    const bool in_block = sscanf(p->name, "h.%zu.%n", &block, &prefix) == 1;
    const Names *names = names_of(in_block ? names_of_blocks : names_outside, p->name + prefix);
    while (n < MOST_PARTS && names->part[n]) n++;
    for (size_t k = 0; k < n; k++) {
        part[k] = whole;
        part[k].columns = columns_of(p, n, k);
        // A vocabulary table is [V, C] in the files, too. So only matrices of blocks are
        // transposed.
        part[k].transposed = in_block && !p->vector;
        if (in_block)
            snprintf(part[k].name, PART_NAME, "model.layers.%zu.%s", block, names->part[k]);
        else snprintf(part[k].name, PART_NAME, "%s", names->part[k]);
    }
    return n;
}

size_t part_place(const NamedPart *part, size_t row, size_t column) {
    size_t own = column - part->columns.lo;
    return part->transposed ? own * part->rows + row : row * range_size(part->columns) + own;
}
