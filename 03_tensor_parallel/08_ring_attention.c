// ranks: 4
// level: extra
// question: How can ranks share a sequence that is too long for one of them?
// vary: SEQUENCES 2..4, layers 1..3, context 19..40, vocab 45..70, chunk 96|128|160
//
// The positions of a sequence are cut over the ranks of a group, cp. Norms, linear layers, embedding and loss work on
// one position at a time and need nothing from others. Attention does: queries stay where they are, keys and values
// travel round a ring. Softmax needs the sum of exp(score) over all keys, and they come a block at a time. So a rank
// keeps for each query and head its output so far, out, and lse, the logarithm of the sum so far. A block's own out_b
// and lse_b are merged in (online softmax), and the scores are dropped:
//
//     lse' = log(exp(lse) + exp(lse_b))          out' = exp(lse - lse') out + exp(lse_b - lse') out_b
//
// The larger of lse and lse_b is subtracted before exp, which would overflow otherwise.
// (Ring attention: Liu, Zaharia and Abbeel 2023; Brandon et al. 2023, striped; zigzag as in Llama 3 and
// zhuzilin/ring-flash-attention.) Sent per layer, with N ranks, b sequences of s positions, width h:
//
//     forward      k, v       N - 1 hops of 2 bsh/N elements        each k, v visits every rank
//     backward     k, v       N - 1 hops of 2 bsh/N                 again: they were not kept
//                  dk, dv     N hops of 2 bsh/N                     with their k, v, and one hop more: home
//     together                (6N-4) bsh/N
//
// Causal: a query sees no later key. With one chunk a rank computes half of its own block (a triangle), all of earlier
// ranks' and nothing of later ranks': the first rank has 1/2 block to do, the last N - 1/2. Zigzag cuts 2N chunks and
// gives a rank one from the front and the one as far from the back: equal work. Beside this file:
// ring_self_attention.c (Li et al. 2021: two passes, whole rows of scores) and ulysses.c (all-to-all, by heads).
// Parameters are whole on every rank; their gradients are summed over cp. Left out: 16-bit floats, documents packed in
// a sequence.
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/08_costs.h"
#include "judge/frame/training.h"
#include <stdio.h>

// ================================ the technique ================================

// ---------------------------------------------------------------- who has which positions

//     4 ranks   contiguous   000111222333        2 of 8 chunks each:   zigzag   0 1 2 3 3 2 1 0
Positions context_positions(size_t T, size_t n, size_t i, const AttentionKind *kind) {
    if (kind != &ring_attention_zigzag) return (Positions){ 1, { shard_range(T, n, i) } };
    return (Positions){ 2, { shard_range(T, 2 * n, i), shard_range(T, 2 * n, 2 * n - 1 - i) } };
}
Positions context_positions_of(const AttentionHeads *h, size_t rank) {
    return context_positions(h->length, h->cp->size, rank, h->kind);
}

// ---------------------------------------------------------------- the ring
// In step k = 0 .. N-1 a rank has the block of rank ring_owner(cp, k), which is k places before it. Two rooms in turn:
// one has the block that is here and leaves, the other the block that comes.

// Room for k | v, or their gradients, of one rank's positions: [B*T/N, 2A]. A: columns of the heads on this rank, h, or
// h/tp where heads are cut too.
static Tensor block_of(const AttentionHeads *h, size_t owner, Arena *room) {
    Positions theirs = context_positions_of(h, owner);
    return tensor_new(room, h->B * positions_count(&theirs), 2 * range_size(h->heads) * h->D);
}
static Tensor keys_and_values(Tensor qkv) { return tensor_col_range(qkv, qkv.cols / 3, qkv.cols); }
static Tensor my_block(const AttentionHeads *h, Tensor qkv, Arena *room) {         // a copy that can be sent
    Tensor mine = block_of(h, h->cp->rank, room);
    tensor_copy(mine, keys_and_values(qkv));
    return mine;
}

// out, lse <- merged block by block. The block that is here goes on to the next rank while my queries attend to it.
static void ring_forward(const AttentionHeads *h, Saved *s) {
    Comm *cp = h->cp;
    Positions mine = context_positions_of(h, cp->rank);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = my_block(h, s->t[S_QKV], &room[0]), coming = {0};
    attention_begin(h, s);                                                 // out (S_MIX) = 0, lse = -inf: no key yet
    for (size_t k = 0; k < cp->size; k++) {
        Positions theirs = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = block_of(h, ring_owner(cp, k + 1), &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp));             // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        attention_attend(h, &mine, here, &theirs, s);                      // merges this block, but not its later keys
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
}

// k and v make their round again. Their gradient follows them a step behind: each rank adds its part and sends it on.
static void ring_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    Comm *cp = h->cp;
    Positions mine = context_positions_of(h, cp->rank);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) }, scratch = arena(MEM_WORKSPACE);
    Arena sums[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = my_block(h, s->t[S_QKV], &room[0]), coming = {0}, sum = {0}, sum_coming = {0};
    Tensor home = block_of(h, cp->rank, &scratch);                         // dk | dv of my keys, from all queries
    Tensor dq = tensor_col_range(dqkv, 0, dqkv.cols / 3), dot = tensor_new(&scratch, dmix.rows, range_size(h->heads));
    Request *sum_leaves = NULL, *sum_arrives = NULL;
    // ds = p (dp - dot), with dot the sum of p dp over ALL keys. As dp = dout . v and out = sum p v: dot = dout . out.
    op_heads_dot(dot, s->t[S_MIX], dmix);
    tensor_fill(dq, 0);
    for (size_t k = 0; k < cp->size; k++) {
        Positions theirs = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = block_of(h, ring_owner(cp, k + 1), &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp));             // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        sum = block_of(h, ring_owner(cp, k), &sums[k % 2]);                // my part of dk | dv of the block here
        tensor_fill(sum, 0);
        attention_attend_backward(h, &mine, dq, sum, here, &theirs, dmix, dot, s);     // p again, from the final lse
        // EXERCISE 03.08a (4 points): bring dk | dv home. sum [B*T/N, 2A] is what my queries do to the keys that are
        // here. From step 1 on, the parts of all ranks that had these keys before have been received from the previous
        // rank in sum_coming: add them. Then start to send the sum to the next rank, which has these keys next, or owns
        // them, and to receive in sum_coming the previous rank's sum, of the keys that are here in step k + 1: block_of
        // gives it room in sums[k % 2]. After the last step those keys are mine; their place is home. sum_leaves and
        // sum_arrives are the requests: wait for those of step k - 1, then free their room, sums[(k + 1) % 2]. A group
        // of one rank sends nothing: home is a copy of sum.
        comm_wait(sum_arrives);
        if (k > 0) op_add(sum, sum, sum_coming);
        comm_wait(sum_leaves);
        arena_free(&sums[(k + 1) % 2]);
        sum_coming = k + 1 == cp->size ? home : block_of(h, ring_owner(cp, k + 1), &sums[k % 2]);
        if (cp->size > 1) {
            sum_leaves = comm_start_send(cp, sum, ring_next(cp));          // dk | dv: 2 B T/N A elements, N times
            sum_arrives = comm_start_recv(cp, sum_coming, ring_previous(cp));
        } else {
            tensor_copy(home, sum);
        }
        // END
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
    comm_wait(sum_leaves);
    comm_wait(sum_arrives);                                                // the N-th hop: mine is home
    tensor_copy(keys_and_values(dqkv), home);
    arena_free(&sums[0]);
    arena_free(&sums[1]);
    arena_free(&scratch);
}

const AttentionKind ring_attention = { .name = "ring", .forward = ring_forward, .backward = ring_backward };
const AttentionKind ring_attention_zigzag = { .name = "zigzag", .forward = ring_forward, .backward = ring_backward };

// ---------------------------------------------------------------- the model

Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind) {
    const ModelConfig *c = &m->config;
    REQUIRE(cp->size <= c->context, "%zu context-parallel ranks need as many positions; a sequence has %zu: choose "
            "fewer ranks, or more --context", cp->size, c->context);
    REQUIRE(kind != &ulysses_attention || cp->size <= c->heads, "Ulysses on %zu ranks needs as many heads; the model "
            "has %zu: choose fewer ranks, or more --heads", cp->size, c->heads);
    comm_connect(cp, COMM_NEIGHBOURS);                                     // messages go to the next rank only
    for (size_t i = 0; i < m->n_layers; i++) {
        m->layers[i].cp = cp;
        m->layers[i].attention = kind;                                     // only blocks read it
    }
    return context_positions(c->context, cp->size, cp->rank, kind);
}

// ================================ the experiment ================================

static const AttentionKind *const kinds[CONTEXT_KINDS] = { &ring_attention, &ring_attention_zigzag,
                                                           &ring_self_attention, &ulysses_attention };

// ---------------------------------------------------------------- a GPT is trained, its sequences cut over all ranks

enum { SEQUENCES = 3, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61, .dropout = 0.1 };
static const double max_norm = 0.5;                                // small enough that every step is clipped

typedef struct { Comm *cp; ContextTrained r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Comm *cp = ((Measuring *)measuring)->cp;
    ContextTrained *r = &((Measuring *)measuring)->r;
    model_zero_gradients(m);
    comm_ledger_reset(cp);
    // My positions of every sequence. token_weight is of the whole batch: nothing is divided afterwards.
    double loss = model_forward_backward(m, b) * b->token_weight;
    r->sent = comm_bytes_sent(cp);
    model_fold_tied(m);
    comm_all_reduce(cp, m->g);                                     // each rank's positions have a part of every sum
    r->sums = comm_bytes_sent(cp) - r->sent;
    comm_all_reduce_doubles(cp, &loss, 1);
    double norm = model_grad_norm(m, NULL);                        // the same on every rank
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static ContextTrained train(Run *run, const Training *unsplit, const AttentionKind *kind, Trajectory *c) {
    Measuring measuring = { .cp = run->world };
    Training t = *unsplit;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    t.data.positions = context_parallel(m, run->world, kind);
    model_allocate(m);
    training_run(c, m, &t, 1, 0, step, &measuring);
    ContextTrained *r = &measuring.r;
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return *r;
}

static void trainings(Run *run) {
    Training t = { .model = tiny, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1, .clip = max_norm };
    t.model.seed = run->seed;
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    for (int adam = 0; adam < 2; adam++) {                         // SGD, then AdamW
        t.optimizer = adam ? adamw(0.01) : sgd(0.5);
        Trajectory want = training_unsplit(run, &t, 1);
        for (int i = 0; i < CONTEXT_KINDS; i++) {
            char what[40];
            snprintf(what, sizeof what, "split = unsplit, %s", kinds[i]->name);
            Trajectory got = trajectory_new(run, &t);
            ContextTrained r = train(run, &t, kinds[i], &got);
            training_compare(run, what, &got, &want, LIMIT_ROUNDING);
            check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, max_norm));
            if (adam) context_trained_costs(run, &t, i, &r);
            trajectory_free(&got);
        }
        trajectory_free(&want);
    }
    data_free(&t.data);
}

// ---------------------------------------------------------------- attention alone: time, work, and large scores

static const ContextSizes alone = { .chunk = 192, .heads = 8, .D = 4 };    // chunk: positions of a rank

static void attention_alone(Run *run) {
    // In fp32 a score of 500 is rounded by 3e-5, and its exp by as much.
    const double limit = sizeof(real) == 8 ? 1e-10 : 1e-3;
    comm_connect(run->world, COMM_NEIGHBOURS);
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    if (run->is_root) context_attend(run, &alone, NULL, want);
    ledger_resume();
    for (int i = 0; i < CONTEXT_KINDS; i++) {
        Snapshot *got = snapshot_new(run);
        ContextMeasured r = context_attend(run, &alone, kinds[i], got);
        char what[48];
        snprintf(what, sizeof what, "split = plain, %s", kinds[i]->name);
        check_close(run, what, got, want, limit);
        context_attention_costs(run, &alone, i, &r);
        snapshot_free(got);
    }
    snapshot_free(want);
    context_results(run, &alone);
}

static void ring(Run *run) {
    REQUIRE(run->world->size <= tiny.heads, "%zu ranks cannot share %zu heads, as Ulysses does: start at most %zu",
            run->world->size, tiny.heads, tiny.heads);
    require_one_link(run);
    trainings(run);
    attention_alone(run);
}

static const Option options[] = {
    { "picture", "contiguous|zigzag", "contiguous", "which of the two --svg and --trace write" },
    {0},
};
EXPERIMENT(ring, options);
