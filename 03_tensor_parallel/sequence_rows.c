// sequence_rows.c: finds a rank's rows under sequence parallelism, and keeps the input of a
// column-parallel product for backward.
#include "03_tensor_parallel/sequence_rows.h"

Range sequence_rows(const Layer *l, const Batch *b) {
    return shard_range(b->B * b->T, l->comm->size, l->comm->rank);
}
Shape sequence_shape(const Layer *l, const Batch *b) { // pipeline messages have this shape, too
    return stored_shape(l, range_size(sequence_rows(l, b)), l->config->width);
}
Dropout sequence_dropout(const Layer *l, const Batch *b, int site) {
    Dropout d = layer_dropout(l, b, site);
    d.row0 = sequence_rows(l, b).lo; // else every rank would use the masks of the first rows
    return d;
}

static const KeptInput kept_inputs[] = { [KEEP_SHARD] = KEEP_SHARD, [KEEP_WHOLE] = KEEP_WHOLE };
void sequence_keep(Layer *l, KeptInput keep) { l->technique = (void *)&kept_inputs[keep]; }
static bool keeps_whole(const Layer *l) { return *(const KeptInput *)l->technique == KEEP_WHOLE; }

SequenceInput sequence_input(const Layer *l, const Batch *b, Saved *s, int name, Arena *scratch) {
    Range rows = sequence_rows(l, b);
    size_t M = b->B * b->T, C = l->config->width;
    saved_tensor(s, name, keeps_whole(l) ? M : range_size(rows), C);
    if (keeps_whole(l))
        return (SequenceInput){ tensor_row_range(s->t[name], rows.lo, rows.hi), s->t[name] };
    return (SequenceInput){ s->t[name], tensor_shaped(scratch, stored_shape(l, M, C)) };
}
Tensor sequence_input_again(const Layer *l, const Batch *b, const Saved *s, int name,
                            Arena *scratch) {
    if (keeps_whole(l)) return s->t[name];
    Tensor whole = tensor_shaped(scratch, hidden_shape(l, b));
    comm_all_gather_rows(l->comm, whole, s->t[name]); // a second all-gather of M*C
    return whole;
}
