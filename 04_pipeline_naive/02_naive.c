// ranks: 4
// level: core
// question: If each rank holds only a few layers, can the ranks train the model and get the same bits as one device?
// vary: SEQUENCES 4..7, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// Holds: rank i has shard_range(L, p, i) of the L blocks, their gradients and optimizer state. Rank
//     0 also has the embedding, the last rank the last norm and the head. These two ranks both have
//     the embedding table wte, V*C elements.
// Sends: per micro-batch y [B*T, C] to rank i + 1 and dx [B*T, C] to rank i - 1. Per step one
//     all-reduce of wte's gradient over {first, last}, and sums of 1 and 12L + 4 doubles over all
//     ranks.
// Saves: memory for the weights, gradients and optimizer state of the other stages, about (p-1)/p
//     of each.
// Costs: time. At most one rank computes at a time, so with equal stages a step takes m(p(f+b) +
//     2(p-1)d). If messages take no time, each rank is idle for 1 - 1/p of the step.
// Every bit of loss, norm and weights must equal that of one device that adds the gradients of the
// same m micro-batches in the same order.
// There are p stages, one per rank, m micro-batches of B sequences, L blocks, V vocabulary entries,
// T positions and C columns. f, b and d are the times of a stage's forward, of its backward and of
// a message. Left out: ranks that work at the same time (03_gpipe.c).
#include "04_pipeline_naive/pipeline.h"

// Runs all micro-batches of a step on this stage. The forward and the backward of a micro-batch
// come before those of the next micro-batch. x is the input of the stage's layers, and y is their
// output. dx and dy are the gradients of x and y. comm_send returns when the neighbour has received
// the message, so the sent tensor can be freed.
PipelineResult pipeline_naive(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    // EXERCISE 04.02a (4 points): the naive loop. For each micro-batch: receive x, forward, send y;
    // receive dy, backward, send dx. The first and the last stage (s.first, s.last) have a
    // neighbour on one side only. With b = &s.micro[k], micro-batch k has the tensors b->x and
    // b->dx of shape b->in, and b->y and b->dy of shape b->out. Allocate x in &b->input;
    // pipeline_backward frees x. Allocate the other three in an arena of MEM_COMMUNICATION that you
    // free yourself, y as soon as it is sent. Calls: tensor_shaped, comm_recv, comm_send,
    // pipeline_forward, pipeline_backward, arena_free.
    for (size_t k = 0; k < micro_batches; k++) {
        PipelineBatch *b = &s.micro[k];
        Arena buffers = arena(MEM_COMMUNICATION);

        if (!s.first) {
            b->x = tensor_shaped(&b->input, b->in);
            comm_recv(pp, b->x, s.before); // B*T*C elements: x
        }
        if (!s.last) b->y = tensor_shaped(&buffers, b->out);
        pipeline_forward(&s, k);                  // y from x
        if (!s.last) comm_send(pp, b->y, s.next); // B*T*C elements: y
        arena_free(&buffers);

        if (!s.last) {
            b->dy = tensor_shaped(&buffers, b->out);
            comm_recv(pp, b->dy, s.next); // B*T*C elements: dy
        }
        if (!s.first) b->dx = tensor_shaped(&buffers, b->in);
        pipeline_backward(&s, k);                     // dx from dy; adds to the weights' gradients
        if (!s.first) comm_send(pp, b->dx, s.before); // B*T*C elements: dx
        arena_free(&buffers);
    }
    // END
    return pipeline_end(&s);
}

StepResult naive_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                      size_t micro_batches) {
    model_zero_gradients(m);
    PipelineResult r = pipeline_naive(rank->pp, m, batch, micro_batches);
    return pipeline_update(rank, m, o, batch, r);
}

// ------------------------------------------------------------ the end of a step, for all schedules

StepResult pipeline_update(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                           PipelineResult r) {
    // wte is used twice. The first stage has the embedding's part of wte's gradient, the last stage
    // the head's part. The norm and the two updates of wte need the sum.
    pipeline_tied_sum(m, rank->tied);
    // Only the last stage knows the loss; the other stages add zeros.
    comm_all_reduce_doubles(rank->pp, &r.loss, 1);
    // Every stage contributes one number per tensor of the model. The number is the sum of the
    // squares of the tensor's gradient if the stage has the tensor, else 0. The numbers are added
    // over the stages, then over the tensors in model order. So the norm has the same bits for
    // every cut of the model. wte counts once, on the first stage.
    double norm = model_grad_norm(m, rank->pp);          // all-reduces 12 L + 4 doubles
    optimizer_step(o, m, clip_factor(norm, rank->clip)); // updates this stage's layers
    rank->in_flight = r.in_flight;
    return (StepResult){ r.loss * batch[0].token_weight, norm }; // the weight is 1 / counted tokens
}

void pipeline_tied_sum(Model *m, Comm *tied) {
    if (m->config.untied) return; // head and embedding have a table each
    if (!tied) {
        // A pipeline of one stage has both uses of wte and adds their gradients. A middle stage has
        // no wte, so nothing is added.
        model_fold_tied(m);
        return;
    }
    // EXERCISE 04.02b (2 points): the tied sum. This stage is the first or the last of several
    // stages. model_wte(m) is the embedding's unit on the first stage and NULL elsewhere.
    // model_wte_head(m) is the head's copy of this unit on the last stage. The gradient g of both
    // units must become the sum of the two. Make one call. tied is the group of these two stages.
    Unit *table = model_wte(m) ? model_wte(m) : model_wte_head(m);
    comm_all_reduce(tied, table->g); // V*C elements; before this call g has the part of one use
    // END
}

Comm *pipeline_tied_group(Comm *pp) {
    bool end = pp->rank == 0 || pp->rank + 1 == pp->size;
    Comm *group = comm_split(pp, end ? 0 : 1, pp->rank, "tied");
    if (end && pp->size > 1) return group;
    comm_free(group);
    return NULL;
}

// -------------------------------------------------------------- evaluation: the forward half alone

double pipeline_loss(Comm *pp, Model *m, const Batch *b) {
    size_t p = pp->size, i = pp->rank;
    bool first = i == 0, last = i + 1 == p;
    Arena input = arena(MEM_ACTIVATIONS), output = arena(last ? MEM_WORKSPACE : MEM_COMMUNICATION);
    Tensor x = { 0 }, y = tensor_shaped(&output, layer_output(&m->layers[m->n_layers - 1], b));
    comm_connect(pp, COMM_NEIGHBOURS);
    if (!first) {
        x = tensor_shaped(&input, layer_input(&m->layers[0], b));
        comm_recv(pp, x, i - 1); // B*T*C elements: x
    }
    walk_forward_only(m->layers, m->n_layers, b, x, y);
    arena_free(&input);
    double loss = last ? tensor_sum(y) : 0;
    if (!last) comm_send(pp, y, i + 1); // B*T*C elements: y
    arena_free(&output);
    return loss;
}
