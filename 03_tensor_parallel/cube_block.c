// cube_block.c: computes the block of a GPT on a cube. The block's steps are those of the unsplit
// block in common/model/layer.c. A linear layer calls the products of 11_cube.c and saves their
// operands. A norm adds two sums per row over ranks (cube_layers.c). All other steps send nothing.
#include "03_tensor_parallel/cube_layers.h"

// ---------------------------------------------------------- a linear layer that saves its operands
// Computes y = x w. Saves x as item `name`, because backward may gather X from x again, and because
// the backward of blockwise attention reads attention's output, S_MIX. Also saves the gathered X
// and W, unless backward gathers X and W again.
static void linear_forward(const Layer *l, CubeLayout at, Tensor y, Tensor x, const Param *w,
                           Saved *s, int name, int linear) {
    Arena scratch = arena(MEM_WORKSPACE);
    bool again = cube_of(l)->gather_again;
    CubeOperands o = cube_operands(at, again ? &scratch : &s->arena, x, w->w);
    cube_forward(at, y, o);
    s->t[name] = again ? x : cube_own_rows(at, o.x);           // [M/q^2, K/q]
    s->t[CUBE_WHOLE_X + linear] = again ? (Tensor){ 0 } : o.x; // [M/q, K/q]
    s->t[CUBE_WHOLE_W + linear] = again ? (Tensor){ 0 } : o.w; // [K/q, N/q]
    arena_free(&scratch);
}
static void linear_backward(const Layer *l, CubeLayout at, Tensor dx, Param *w, Tensor dy, Saved *s,
                            int name, int linear) {
    Arena scratch = arena(MEM_WORKSPACE);
    bool again = cube_of(l)->gather_again;
    CubeOperands o =
        again ? cube_operands(at, &scratch, s->t[name], w->w)
              : (CubeOperands){ s->t[CUBE_WHOLE_X + linear], s->t[CUBE_WHOLE_W + linear] };
    cube_backward(at, dx, w, dy, o);
    arena_free(&scratch);
}

// ---------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))
// Runs a block. The residual stream has the layout `at`. Between the two linear layers of
// attention, and of the MLP, activations have the layout `sw`.
static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    CubeLayout at = cube_stream(l, b), sw = cube_swapped(at);
    Batch own = cube_rows(b, sw); // attention: whole sequences, this rank's heads
    size_t C = l->config->width, M = x.rows, N = own.B * b->T;
    size_t A = p[QKV_B].w.cols / 3, F = p[FC_B].w.cols;
    Arena scratch = arena(MEM_WORKSPACE);

    Tensor norm1 = cube_new_x(l, s, &scratch, M, x.cols);
    saved_reals(s, S_STATS1, M, 2);
    cube_norm_forward(at, C, norm1, s->t[S_STATS1], x, &p[LN1_GAIN], &p[LN1_BIAS]);
    saved_tensor(s, S_QKV, N, 3 * A);
    linear_forward(l, at, s->t[S_QKV], norm1, &p[QKV_W], s, S_LN1, CUBE_QKV); // layout sw
    op_add_bias(s->t[S_QKV], s->t[S_QKV], p[QKV_B].w);
    Tensor mix = cube_new_x(l, s, &scratch, N, A);
    s->t[S_MIX] = mix;
    AttentionHeads heads = layer_heads(l, &own);
    attention_forward(&heads, s); // sends nothing
    saved_tensor(s, S_MIDDLE, M, x.cols);
    Tensor middle = s->t[S_MIDDLE];
    linear_forward(l, sw, middle, mix, &p[PROJ_W], s, S_MIX, CUBE_PROJ); // layout at
    op_add_bias(middle, middle, p[PROJ_B].w);
    op_dropout(middle, middle, cube_dropout(l, b, at, SITE_MIDDLE));
    op_add(middle, x, middle);

    Tensor norm2 = cube_new_x(l, s, &scratch, M, x.cols);
    saved_reals(s, S_STATS2, M, 2);
    cube_norm_forward(at, C, norm2, s->t[S_STATS2], middle, &p[LN2_GAIN], &p[LN2_BIAS]);
    saved_tensor(s, S_FC, N, F);
    linear_forward(l, at, s->t[S_FC], norm2, &p[FC_W], s, S_LN2, CUBE_FC); // layout sw
    op_add_bias(s->t[S_FC], s->t[S_FC], p[FC_B].w);
    Tensor act = cube_new_x(l, s, &scratch, N, F);
    op_gelu(act, s->t[S_FC]);
    linear_forward(l, sw, y, act, &p[OUT_W], s, S_ACT, CUBE_OUT); // layout at
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, cube_dropout(l, b, at, SITE_OUT));
    op_add(y, middle, y);
    arena_free(&scratch);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params;
    CubeLayout at = cube_stream(l, b), sw = cube_swapped(at);
    Batch own = cube_rows(b, sw);
    size_t C = l->config->width;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, x), dnorm = tensor_like(&scratch, x);
    Tensor dmiddle = tensor_like(&scratch, x), dfc = tensor_like(&scratch, s->t[S_FC]);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]), dqkv = tensor_like(&scratch, s->t[S_QKV]);

    op_dropout(d, dy, cube_dropout(l, b, at, SITE_OUT));
    bias_gradient(&p[OUT_B], d);
    linear_backward(l, sw, dfc, &p[OUT_W], d, s, S_ACT, CUBE_OUT);
    op_gelu_backward(dfc, s->t[S_FC], dfc);
    bias_gradient(&p[FC_B], dfc);
    linear_backward(l, at, dnorm, &p[FC_W], dfc, s, S_LN2, CUBE_FC);
    cube_norm_backward(at, C, dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], &p[LN2_GAIN], &p[LN2_BIAS],
                       dnorm);
    op_add(dmiddle, dy, dmiddle);

    op_dropout(d, dmiddle, cube_dropout(l, b, at, SITE_MIDDLE));
    bias_gradient(&p[PROJ_B], d);
    linear_backward(l, sw, dmix, &p[PROJ_W], d, s, S_MIX, CUBE_PROJ);
    AttentionHeads heads = layer_heads(l, &own);
    attention_backward(&heads, dqkv, dmix, s);
    bias_gradient(&p[QKV_B], dqkv);
    linear_backward(l, at, dnorm, &p[QKV_W], dqkv, s, S_LN1, CUBE_QKV);
    cube_norm_backward(at, C, dx, x, s->t[S_STATS1], &p[LN1_GAIN], &p[LN1_BIAS], dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

// Computes the freed probabilities of attention again, for selective recomputation.
static void rebuild(Layer *l, const Batch *b, Saved *s) {
    Batch own = cube_rows(b, cube_swapped(cube_stream(l, b)));
    AttentionHeads heads = layer_heads(l, &own);
    attention_rebuild(&heads, s);
}

const LayerKind cube_block = { .name = "3D block",
                               .output = cube_stream_shape,
                               .forward = block_forward,
                               .backward = block_backward,
                               .shed = block_shed,
                               .rebuild = rebuild };
