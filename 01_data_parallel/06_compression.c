// ranks: 4
// level: extra
// question: Can ranks send a fraction of their gradients' bytes and still train the model?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// As in 02_all_reduce every rank holds the whole model and a part of the batch; only the all-reduce of the gradients is
// another: 16-bit elements, one element in 32, the largest (top-k), signs (1-bit), or matrices of rank 2 (PowerSGD).
// What comes out is no longer the sum, so the reference is the same changed rule on one device. What a rank did not
// send it keeps, and sends later: this error feedback decides whether the model trains.
// Left out: the warm-up of 1-bit Adam and PowerSGD (some exact steps first), and overlapping with backward.
#include "01_data_parallel/compression.h"
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/06_checks.h"
#include "01_data_parallel/experiments/06_costs.h"
#include "01_data_parallel/experiments/06_curves.h"
#include "01_data_parallel/experiments/06_reference.h"
#include <stdio.h>

// ================================ the technique ================================

// Each method has three questions: what is sent, how many bytes (n elements of e bytes, N ranks), and what stays behind
// in the residual e. x <- g + e;  send C(x);  e <- x - C(x): so nothing is lost, only late.

static Tensor row(Tensor t, size_t r) { return tensor_row_range(t, r, r + 1); }

// All-to-all: every rank cuts its packed elements in N parts and sends part r to rank r. What came for me is
// [N, my part], row r from rank r.
static Tensor exchange(Comm *dp, Arena *a, Tensor packed) {
    const size_t n = tensor_count(packed);
    Range mine = shard_range(n, dp->size, dp->rank);
    Tensor in = tensor_new(a, dp->size, range_size(mine));
    comm_connect(dp, COMM_EVERYBODY);
    comm_group_start(dp);
    for (size_t r = 0; r < dp->size; r++) {
        Range part = shard_range(n, dp->size, r);
        if (r == dp->rank) {
            tensor_copy(row(in, r), tensor_flat_range(packed, mine.lo, mine.hi));
            continue;
        }
        comm_send(dp, tensor_flat_range(packed, part.lo, part.hi), r);
        comm_recv(dp, row(in, r), r);
    }
    comm_group_end(dp);
    return in;
}

// e was x, what this rank wanted to send; `sent` is what the others understand. The rest is for later.
static void keep_the_rest(const Compression *c, Tensor e, Tensor sent) {
    if (c->plan.forgets) tensor_fill(e, 0);
    else compression_subtract(e, sent);
}

// For the checks alone: all that was ever sent, added up.
static void note_sent(Compression *c, const CompressedBucket *b, Tensor sent) {
    if (!c->sent.data) return;
    Tensor sum = tensor_flat_range(c->sent, b->range.lo, b->range.hi);
    op_add(sum, sum, sent);
}

// 16 bits: an all-reduce in its two halves, each with half the bytes. Between them the sum is a real's: only what
// travels is short. No residual is kept: a rounding changes an element by 2^-11 of itself at most.
static void half(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g);
    Tensor packed = tensor_new(&a, 1, packed_count(n, 16)), most = half_largest(&a, g);
    real largest;
    comm_all_reduce_max(dp, most);                         // one element: the price of knowing that no sum overflows
    tensor_download(&largest, most);
    const double scale = half_scale((double)largest, dp->size);
    half_write(packed, g, scale);
    Tensor in = exchange(dp, &a, packed);                   // (N-1)/N of 2 n bytes

    Range mine = elements_of_part(n, 16, dp->size, dp->rank);
    Tensor sum = tensor_new(&a, 1, range_size(mine)), out = tensor_new(&a, 1, in.cols);
    tensor_fill(sum, 0);
    for (size_t r = 0; r < dp->size; r++) half_add(sum, row(in, r));       // in rank order
    half_write(out, sum, 1);
    comm_all_gather(dp, packed, out);                       // (N-1)/N of 2 n bytes
    half_read(g, packed, scale);
    arena_free(&a);
    (void)b, (void)e;
}

// Top-k: the k largest elements of gradient and residual, 4 bytes of place and e bytes of value each. All others stay
// in the residual.
static void top_k(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), k = kept_of(n, c->plan.one_of), length = packed_count(k, 32) + k;
    Tensor all = tensor_new(&a, dp->size, length), sent = tensor_new(&a, 1, n), mine = row(all, dp->rank);
    tensor_fill(sent, 0);
    tensor_fill(mine, 0);
    // EXERCISE 01.06a (4 points): error feedback. g [1, n] is my gradient, e [1, n] what I have not sent yet. Make e
    // what I would like to send now, write its k largest elements into `mine` (top_k_write), and unpack them again
    // into `sent` (top_k_add), which is zero. Leave in e what is still unsent (keep_the_rest). Nothing is sent here.
    op_add(e, e, g);
    top_k_write(mine, e, k);
    top_k_add(sent, mine, k);
    keep_the_rest(c, e, sent);
    // END
    note_sent(c, b, sent);
    comm_all_gather(dp, tensor_reshape(all, 1, dp->size * length), mine);      // (N-1) k (4 + e) bytes
    tensor_fill(g, 0);
    for (size_t r = 0; r < dp->size; r++) top_k_add(g, row(all, r), k);  // in rank order
    arena_free(&a);
}

// One bit: to each rank its part of the signs, and a scale; it adds them up as this part's server, and answers with
// signs, too. Both directions lose something, so both keep a residual: e is the worker's, b->server_error the server's.
static void one_bit(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), N = dp->size;
    Tensor packed = tensor_new(&a, 1, packed_count(n, 1)), scales = tensor_new(&a, 1, N);
    Tensor my_scale = tensor_flat_range(scales, dp->rank, dp->rank + 1);

    op_add(e, e, g);                                       // as a worker
    Tensor sent = one_bit_write(&a, packed, my_scale, e);
    keep_the_rest(c, e, sent);
    note_sent(c, b, sent);
    Tensor in = exchange(dp, &a, packed);                   // (N-1)/N of n/8 bytes
    comm_all_gather(dp, scales, my_scale);                 // (N-1) e bytes

    Tensor sum = b->server_error;                          // as a server: my residual of this part, then the sum
    for (size_t r = 0; r < N; r++) one_bit_add(sum, row(in, r), tensor_flat_range(scales, r, r + 1));
    Tensor answer = tensor_new(&a, 1, in.cols);
    Tensor answered = one_bit_write(&a, answer, my_scale, sum);
    keep_the_rest(c, sum, answered);
    comm_all_gather(dp, packed, answer);                    // (N-1)/N of n/8 bytes
    comm_all_gather(dp, scales, my_scale);                 // (N-1) e bytes

    for (size_t r = 0; r < N; r++) {                       // every rank unpacks every answer
        Range part = elements_of_part(n, 1, N, r);
        one_bit_read(tensor_flat_range(g, part.lo, part.hi), packed, part.lo, tensor_flat_range(scales, r, r + 1));
    }
    arena_free(&a);
}

// PowerSGD. M of a rank is its gradient and its residual; the matrix that counts is their sum over ranks. Q points
// where that sum was large before; P = M Q is where it is large now; projected on P's columns, P P^T M is the best that
// r columns can say once they are orthonormal. M is never sent: P and Q are linear in it, so they can be added over
// ranks.
static void power_sgd(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const PowerLengths length = power_lengths(b);
    Tensor rest = tensor_new(&a, 1, length.rest), ps = tensor_new(&a, 1, length.p), qs = tensor_new(&a, 1, length.q);
    Tensor sent = tensor_new(&a, 1, tensor_count(g));
    size_t at = 0, at_q = 0;
    op_add(e, e, g);
    tensor_copy(sent, e);                                  // so it stays for what is sent as it is
    power_pack(b, rest, g);
    if (length.rest) comm_all_reduce(dp, rest);            // vectors and small matrices: as they are, no residual
    power_unpack(b, g, rest);
    tensor_fill(ps, 0);
    tensor_fill(qs, 0);

    // EXERCISE 01.06b (8 points): a round of PowerSGD. For every matrix m of b->params that is low_rank: M =
    // power_matrix(e, m) [rows, cols] is my part of the matrix to send, m->q [cols, rank] is Q of the last round.
    // Orthonormalise Q (orthonormalise), P = M Q (op_matmul), where P is power_next(ps, &at, m->rows, m->rank); then
    // ONE all-reduce of all P's. Orthonormalise every P, Q = M^T P (op_matmul_tn), where Q is
    // power_next(qs, &at_q, m->cols, m->rank); ONE all-reduce of all Q's. Copy each Q to m->q for the next round; the
    // sum over ranks is P Q^T (op_matmul_nt), to be left in power_matrix(g, m), and its N-th part in
    // power_matrix(sent, m) (op_scale). Without such a matrix (length.p is 0) there is no call.
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        orthonormalise(m->q);
        op_matmul(power_next(ps, &at, m->rows, m->rank), power_matrix(e, m), m->q);         // [n, r] = [n, k] [k, r]
    }
    if (length.p) comm_all_reduce(dp, ps);                 // 2 (N-1)/N of r rows e bytes for each matrix
    at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        Tensor p = power_next(ps, &at, m->rows, m->rank);
        orthonormalise(p);
        op_matmul_tn(power_next(qs, &at_q, m->cols, m->rank), power_matrix(e, m), p);      // [k, r] = [n, k]^T [n, r]
    }
    if (length.q) comm_all_reduce(dp, qs);                 // 2 (N-1)/N of r cols e bytes for each matrix
    at = at_q = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        tensor_copy(m->q, power_next(qs, &at_q, m->cols, m->rank));
        op_matmul_nt(power_matrix(g, m), power_next(ps, &at, m->rows, m->rank), m->q);     // [n, k] = [n, r] [k, r]^T
        op_scale(power_matrix(sent, m), power_matrix(g, m), (real)1 / (real)dp->size);
    }
    // END

    note_sent(c, b, sent);
    keep_the_rest(c, e, sent);
    arena_free(&a);
}

typedef void (*Compress)(Compression *c, CompressedBucket *b, Tensor g, Tensor e);
// A step's gradient, bucket by bucket.
void compression_all_reduce(Compression *c, Tensor g) {
    static const Compress compress[METHODS] = { half, top_k, one_bit, power_sgd };
    for (size_t i = c->n_buckets; i-- > 0;) {  // the last layers' gradients are finished first
        CompressedBucket *b = &c->buckets[i];
        Tensor e = c->error;
        if (e.data) e = tensor_flat_range(c->error, b->range.lo, b->range.hi);
        compress[c->plan.method](c, b, tensor_flat_range(g, b->range.lo, b->range.hi), e);
    }
}

// ================================ the experiment ================================

enum { SEQUENCES = 7, STEPS = 3, ONE_OF = 32, RANK = 2, MIN_RATE = 2 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

static const char *const method_name[METHODS] = { "fp16", "top-k", "1-bit", "PowerSGD" };
static const CompressionPlan plans[METHODS] = {
    { .method = HALF }, { .method = TOP_K, .one_of = ONE_OF }, { .method = ONE_BIT },
    { .method = POWER_SGD, .rank = RANK, .min_rate = MIN_RATE } };

typedef struct { Comm *dp; Compression *c; Books books; } Replica;     // c NULL: the exact sum

static StepResult replica_step(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Replica *r = replica;
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    books_note(r->books.mine, m->g);
    if (r->c) compression_all_reduce(r->c, m->g);          // the only line that differs from 02_all_reduce
    else data_parallel_all_reduce(r->dp, m);
    books_note(r->books.believed, m->g);
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };                     // loss: my shard's part
}

static Trajectory train(Run *run, const Training *t, const CompressionPlan *plan, CompressionSeen *seen) {
    Comm *dp = run->world;
    Trajectory course = trajectory_new(run, t);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    Replica r = { .dp = dp, .c = plan ? compression_new(dp, plan, m, run->seed) : NULL };
    if (seen && r.c && r.c->error.data) r.books = books_new(r.c, m->size);
    comm_ledger_reset(dp);
    Picoseconds begin = clock_now();
    training_run(&course, m, t, dp->size, dp->rank, replica_step, &r);
    Picoseconds took = clock_now() - begin;
    if (seen) {
        size_t calls = 0;
        for (size_t k = 0; k < COMM_KINDS; k++) calls += dp->ledger[k].calls;
        *seen = (CompressionSeen){ comm_bytes_sent(dp), calls, memory_now(MEM_GRADIENTS), memory_now(MEM_COMMUNICATION),
                            memory_peak(MEM_COMMUNICATION), took / t->steps };
        if (r.c && r.c->error.data) books_check(run, &r.books, r.c, method_name[plan->method]);
    }
    comm_all_reduce_doubles(dp, course.loss, t->steps);    // for the log
    if (r.c) compression_free(r.c);
    books_free(&r.books);
    model_free(m);
    return course;
}

static void same_rule_on_one_device(Run *run, const Training *t, const CompressionPlan *plan, CompressionSeen *seen) {
    char what[64];
    snprintf(what, sizeof what, "%s = the rule on one device", method_name[plan->method]);
    // PowerSGD alone adds with all-reduces; where the library chooses their order, its small differences pass through
    // an orthonormalisation, which may enlarge them.
    double limit = plan->method == POWER_SGD && every_bit(run) > 0 ? 100 * LIMIT_ROUNDING : 0;
    Trajectory got = train(run, t, plan, seen), want = one_device_course(run, t, plan, run->world->size);
    training_compare(run, what, &got, &want, limit);
    trajectory_free(&got);
    trajectory_free(&want);
}

static void compression(Run *run) {
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    CompressionSeen seen[METHODS], exact;
    double loss[CURVES];
    for (Method i = 0; i < METHODS; i++) {
        same_rule_on_one_device(run, &t, &plans[i], &seen[i]);
        compression_compare_costs(run, &tiny, &plans[i], method_name[i], STEPS, &seen[i]);
    }
    compression_check_choice(run);
    compression_check_exact(run, &tiny, plans);
    compression_show_steps(run, &t, &plans[TOP_K]);
    Trajectory plain = train(run, &t, NULL, &exact);
    trajectory_free(&plain);
    compression_curves(run, &t, plans, train, loss);
    compression_results(run, method_name, STEPS, seen, &exact, loss);
    data_free(&t.data);
}

static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text that the loss curves are drawn of" },
    { "lr", "X", "0.15", "learning rate of the loss curves" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(compression, options);
