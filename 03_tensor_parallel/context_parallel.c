// context_parallel.c: makes the blocks of a model compute attention over the ranks of a group.
#include "03_tensor_parallel/context_parallel.h"

Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind) {
    const ModelConfig *c = &m->config;
    REQUIRE(cp->size <= c->context,
            "%zu context-parallel ranks need as many positions; a sequence has %zu: choose "
            "fewer ranks, or more --context",
            cp->size, c->context);
    REQUIRE(kind != &ulysses_attention || cp->size <= config_kv_heads(c),
            "Ulysses on %zu ranks needs as many heads%s; the model has %zu: choose fewer ranks, "
            "or more --%s",
            cp->size, config_head_ratio(c) > 1 ? " of key and value" : "", config_kv_heads(c),
            config_head_ratio(c) > 1 ? "kv-heads" : "heads");
    comm_connect(cp, COMM_NEIGHBOURS); // a send goes to the next rank only
    for (size_t i = 0; i < m->n_layers; i++) {
        m->layers[i].cp = cp;
        m->layers[i].attention = kind; // only blocks read this field
    }
    return context_positions(c->context, cp->size, cp->rank, kind);
}
