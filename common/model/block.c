// block.c: holds the table of a block's tensors.
#include "common/model/block.h"

void block_tensors(const ModelConfig *c, BlockTensor tensor[BLOCK_PARAMS]) {
    const size_t C = c->width, F = block_hidden(c), gates = block_gates(c), QKV = block_qkv(c);
    const size_t norm_bias = c->norm == NORM_LAYER, bias = c->biases == BIASES_ALL,
                 qkv_bias = c->biases != BIASES_NONE;
    const BlockTensor table[BLOCK_PARAMS] = {
        [LN1_GAIN] = { "ln_1.weight", 0, C, 1, .cut = CUT_NOTHING, .gain = true },
        [LN1_BIAS] = { "ln_1.bias", 0, norm_bias * C, 1, .cut = CUT_NOTHING },
        [QKV_W] = { "attn.c_attn.weight", C, QKV, 3, .cut = CUT_COLUMNS_BY_HEADS },
        [QKV_B] = { "attn.c_attn.bias", 0, qkv_bias * QKV, 3, .cut = CUT_COLUMNS_BY_HEADS },
        [PROJ_W] = { "attn.c_proj.weight", C, C, 1, .cut = CUT_ROWS_BY_HEADS,
                     .into_residual = true },
        [PROJ_B] = { "attn.c_proj.bias", 0, bias * C, 1, .cut = CUT_NOTHING },
        [LN2_GAIN] = { "ln_2.weight", 0, C, 1, .cut = CUT_NOTHING, .gain = true },
        [LN2_BIAS] = { "ln_2.bias", 0, norm_bias * C, 1, .cut = CUT_NOTHING },
        [FC_W] = { "mlp.c_fc.weight", C, gates * F, gates, .cut = CUT_COLUMNS_BY_HIDDEN },
        [FC_B] = { "mlp.c_fc.bias", 0, bias * gates * F, gates, .cut = CUT_COLUMNS_BY_HIDDEN },
        [OUT_W] = { "mlp.c_proj.weight", F, C, 1, .cut = CUT_ROWS_BY_HIDDEN,
                    .into_residual = true },
        [OUT_B] = { "mlp.c_proj.bias", 0, bias * C, 1, .cut = CUT_NOTHING },
    };
    for (size_t i = 0; i < BLOCK_PARAMS; i++) {
        tensor[i] = table[i];
        tensor[i].ratio = table[i].cut == CUT_COLUMNS_BY_HEADS ? config_head_ratio(c) : 1;
    }
}
