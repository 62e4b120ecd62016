// context_parallel.c: finds the positions of each rank of a group, makes room for a block in the
// ring of 08_ring_attention.c, and gives a model attention over a group.
#include "03_tensor_parallel/context_parallel.h"

Positions context_positions_of(const AttentionHeads *h, size_t rank) {
    return context_positions(h->length, h->cp->size, rank, h->kind);
}

// Returns room with the columns of k. If heads are grouped, k has fewer columns than q.
Tensor ring_block(const AttentionHeads *h, size_t owner, Element element, Arena *room) {
    Positions p = context_positions_of(h, owner);
    size_t rows = h->B * positions_count(&p);
    return tensor_shaped(room, tensor_shape(rows, 2 * attention_key_columns(h), element));
}
Tensor ring_sums(const AttentionHeads *h, size_t owner, Arena *room) {
    return ring_block(h, owner, REALS, room);
}
Tensor ring_own_block(const AttentionHeads *h, Tensor qkv, Arena *room) {
    Tensor copy = ring_block(h, h->cp->rank, qkv.element, room);
    tensor_copy(copy, attention_keys_values(h, qkv));
    return copy;
}

Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind) {
    const ModelConfig *c = &m->config;
    REQUIRE(cp->size <= c->context,
            "%zu context-parallel ranks need as many positions; a sequence has %zu: choose "
            "fewer ranks, or more --context",
            cp->size, c->context);
    REQUIRE(kind != &ulysses_attention || cp->size <= config_kv_heads(c),
            "Ulysses on %zu ranks needs as many heads%s; the model "
            "has %zu: choose fewer ranks, or more --%s",
            cp->size, config_head_ratio(c) > 1 ? " of key and value" : "", config_kv_heads(c),
            config_head_ratio(c) > 1 ? "kv-heads" : "heads");
    comm_connect(cp, COMM_NEIGHBOURS); // a send goes to the next rank only
    for (size_t i = 0; i < m->n_layers; i++) {
        m->layers[i].cp = cp;
        m->layers[i].attention = kind; // only blocks read this field
    }
    return context_positions(c->context, cp->size, cp->rank, kind);
}
