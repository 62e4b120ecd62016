// chunks.c: describes a stage of several chunks (03_interleaved.c), prepares its micro-batches, and
// runs evaluations.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdlib.h>

Model *interleaved_describe(const ModelConfig *c, const size_t *blocks, size_t p, size_t v,
                            size_t i) {
    Range *chunk = host_alloc(v * sizeof *chunk);
    for (size_t k = 0; k < v; k++) chunk[k] = pipeline_stage_layers(c, blocks, v * p, k * p + i);
    Model *m = model_describe_chunks(c, chunk, v);
    free(chunk);
    return m;
}

PipelineStage interleaved_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    s.chunks = model_chunks(m);
    if (s.chunks == 1) return s;
    free(s.micro);
    s.micro = host_alloc(s.chunks * micro_batches * sizeof *s.micro);
    for (size_t n = 0; n < s.chunks * micro_batches; n++) {
        Range chunk = model_chunk(m, n / micro_batches);
        bool end = s.last && chunk.hi == m->n_layers;
        s.micro[n] =
            pipeline_batch(&batch[n % micro_batches], &m->layers[chunk.lo], range_size(chunk), end);
    }
    return s;
}

// Runs one micro-batch forward through chunk after chunk for evaluation, and keeps no activations.
// If the pipeline has one stage, this stage runs all its chunks as one chunk, without messages.
double interleaved_loss(Comm *pp, Model *m, const Batch *b) {
    size_t p = pp->size, i = pp->rank, v = model_chunks(m);
    if (p == 1 || v == 1) return pipeline_loss(pp, m, b);
    double loss = 0;
    comm_connect(pp, COMM_NEIGHBOURS);
    for (size_t chunk = 0; chunk < v; chunk++) {
        bool first = i == 0 && chunk == 0, last = i + 1 == p && chunk + 1 == v;
        Range r = model_chunk(m, chunk);
        Layer *layers = &m->layers[r.lo];
        Arena input = arena(MEM_ACTIVATIONS);
        Arena output = arena(last ? MEM_WORKSPACE : MEM_COMMUNICATION);
        Tensor x = { 0 }, y = tensor_shaped(&output, layer_output(&m->layers[r.hi - 1], b));
        if (!first) x = tensor_shaped(&input, layer_input(layers, b));
        if (!first) comm_recv(pp, x, (i + p - 1) % p); // B*T*C elements: x
        walk_forward_only(layers, range_size(r), b, x, y);
        arena_free(&input);
        if (last) loss = tensor_sum(y);
        else comm_send(pp, y, (i + 1) % p); // B*T*C elements: y
        arena_free(&output);
    }
    return loss;
}
