// stage.c: finds the layers of a stage, and runs their forward and backward for one micro-batch.
// This file sends no message.
#include "04_pipeline_naive/pipeline.h"
#include <stdio.h>
#include <stdlib.h>

Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i) {
    Range r = shard_range(c->layers, p, i);
    if (blocks) {
        r = (Range){ 0, 0 };
        for (size_t k = 0; k <= i; k++) {
            r.lo = r.hi;
            r.hi += blocks[k];
        }
    }
    // Block k is layer k + 1, because layer 0 is the embedding. The last stage also has the two
    // layers of head and loss.
    return (Range){ i == 0 ? 0 : r.lo + 1, i + 1 == p ? r.hi + 3 : r.hi + 1 };
}

PipelineBatch pipeline_batch(const Batch *b, Layer *layers, size_t n_layers, bool end) {
    return (PipelineBatch){ .batch = b,
                            .layers = layers,
                            .n_layers = n_layers,
                            .in = layer_input(&layers[0], b),
                            .out = layer_output(&layers[n_layers - 1], b),
                            .end = end,
                            .input = arena(MEM_COMMUNICATION),
                            .gradient = arena(MEM_WORKSPACE) };
}

PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    size_t p = pp->size, i = pp->rank;
    PipelineStage s = { .m = m,
                        .micro_batches = micro_batches,
                        .chunks = 1,
                        .first = i == 0,
                        .last = i + 1 == p,
                        .before = (i + p - 1) % p,
                        .next = (i + 1) % p };
    s.micro = host_alloc(micro_batches * sizeof *s.micro);
    for (size_t k = 0; k < micro_batches; k++)
        s.micro[k] = pipeline_batch(&batch[k], m->layers, m->n_layers, s.last);
    comm_connect(pp, COMM_NEIGHBOURS);
    return s;
}

void pipeline_forward(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    Arena losses = arena(MEM_WORKSPACE);
    arena_set_category(&b->input, MEM_ACTIVATIONS); // the message x is kept for the backward
    Tensor y = b->end ? tensor_shaped(&losses, b->out) : b->y; // last stage: y is a loss per token
    b->kept = walk_forward(b->layers, b->n_layers, b->batch, b->x, y);
    if (b->end) {
        b->loss = tensor_sum(y);
        s->result.loss += b->loss;
    }
    arena_free(&losses);
    s->in_flight++;
    if (s->in_flight > s->result.in_flight) s->result.in_flight = s->in_flight;
}

void pipeline_require_forward(const PipelineStage *s, size_t k) {
    if (s->micro[k].kept) return;
    size_t stage = s->first ? 0 : s->before + 1;
    char chunk[40] = "";
    if (s->chunks > 1) snprintf(chunk, sizeof chunk, " through chunk %zu", k / s->micro_batches);
    fault("stage %zu runs the backward of micro-batch %zu%s before its forward, or twice: a "
          "backward needs what its forward on the same stage kept, and frees it",
          stage, k % s->micro_batches, chunk);
}

void pipeline_backward(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    pipeline_require_forward(s, k);
    Arena losses = arena(MEM_WORKSPACE);
    if (b->end) { // token_weight: 1 / counted tokens of the whole batch
        b->dy = tensor_shaped(&losses, b->out);
        tensor_fill(b->dy, (real)b->batch->token_weight);
    }
    walk_backward(b->layers, b->n_layers, b->batch, b->kept, b->dy, b->dx);
    b->kept = NULL;
    arena_free(&losses);
    arena_free(&b->input); // x
    s->in_flight--;
}

PipelineResult pipeline_end(PipelineStage *s) {
    free(s->micro);
    return s->result;
}
