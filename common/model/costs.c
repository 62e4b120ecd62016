// costs.c: holds the cost model's formulas.
#include "common/model/costs.h"
#include <math.h>
#include "common/comm/clock.h"
#include "common/model/block.h"

// ---- sizes ----

size_t part_size(size_t n, size_t parts, size_t i) { return n / parts + (i < n % parts); }

CutSizes cut_sizes(const ModelConfig *c, size_t t, size_t i) {
    const size_t key_heads = part_size(config_kv_heads(c), t, i);
    return (CutSizes){ .C = c->width,
                       .D = c->width / c->heads,
                       .T = c->context,
                       .Tk = c->context,
                       .heads = key_heads * config_head_ratio(c),
                       .key_heads = key_heads,
                       .gates = block_gates(c),
                       .norm_bias = c->norm == NORM_LAYER,
                       .qkv_bias = c->biases != BIASES_NONE,
                       .bias = c->biases == BIASES_ALL,
                       .statistics = c->norm == NORM_RMS ? 1 : 2,
                       .positions_width = c->positions == POSITIONS_LEARNED ? c->width : 0,
                       .untied = c->untied,
                       .hidden = part_size(block_hidden(c), t, i),
                       .vocab = part_size(c->vocab, t, i),
                       .blocks = c->layers,
                       .first = true,
                       .last = true,
                       .dropout = c->dropout > 0,
                       .storage = c->storage,
                       .gradient = config_gradient_element(c),
                       .t = t,
                       .rank = i };
}
CutSizes cut_sequence(CutSizes z, bool whole_inputs) {
    z.sequence = true;
    z.whole_inputs = whole_inputs;
    return z;
}
size_t cut_rows(const CutSizes *z, size_t B) {
    return z->sequence ? part_size(B * z->T, z->t, z->rank) : B * z->T;
}
CutSizes cut_stage(CutSizes z, size_t p, size_t i) {
    z.blocks = part_size(z.blocks, p, i);
    z.first = i == 0;
    z.last = i + 1 == p;
    return z;
}
CutSizes cut_positions(CutSizes z, const Positions *positions, bool online) {
    z.positions = positions->n ? *positions : (Positions){ 1, { { 0, z.Tk } } };
    z.T = positions_count(&z.positions);
    z.online = online;
    return z;
}
size_t cut_layers(const CutSizes *z) { return z->first + z->blocks + z->last; }
// Returns the columns of this rank's heads together.
static size_t columns(const CutSizes *z) { return z->heads * z->D; }
// Returns the columns of query, key and value of this rank's heads together.
static size_t qkv_columns(const CutSizes *z) { return (z->heads + 2 * z->key_heads) * z->D; }

// ---- parameters ----

void elements_tensors(const CutSizes *z, size_t tensor[TENSORS_OF_BLOCK]) {
    size_t C = z->C, A = columns(z), Q = qkv_columns(z), F = z->hidden, G = z->gates * F,
           norm_bias = z->norm_bias * C, bias = z->bias * C;
    const size_t elements[TENSORS_OF_BLOCK] = {
        C, norm_bias, C * Q, z->qkv_bias * Q, A * C, bias, // norm 1, q|k|v, projection
        C, norm_bias, C * G, z->bias * G,     F * C, bias, // norm 2, fc, second matrix
    };
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++) tensor[i] = elements[i];
}
size_t elements_sum(const size_t tensor[TENSORS_OF_BLOCK]) {
    size_t sum = 0;
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++) sum += tensor[i];
    return sum;
}
size_t elements_block(const CutSizes *z) {
    size_t tensor[TENSORS_OF_BLOCK];
    elements_tensors(z, tensor);
    return elements_sum(tensor);
}
size_t elements_wte(const CutSizes *z) { return z->vocab * z->C; }
size_t stage_tables(const CutSizes *z) {
    return z->untied ? (size_t)z->first + z->last : z->first || z->last;
}
size_t stage_table_gradients(const CutSizes *z) { return (size_t)z->first + z->last; }
bool stage_shares_table(const CutSizes *z) { return !z->untied && z->first != z->last; }
size_t elements_unit(const CutSizes *z, size_t i) {
    if (z->first && i == 0) return z->Tk * z->positions_width;
    return i < z->first + z->blocks ? elements_block(z) : (1 + z->norm_bias) * z->C;
}
size_t elements_stage(const CutSizes *z) {
    size_t sum = stage_tables(z) * elements_wte(z);
    for (size_t i = 0; i < cut_layers(z); i++) sum += elements_unit(z, i);
    return sum;
}
size_t elements_gradients(const CutSizes *z) {
    return elements_stage(z) + (stage_table_gradients(z) - stage_tables(z)) * elements_wte(z);
}

// ---- kept activations ----

void kept_items(const CutSizes *z, KeptItem item[KEPT_ITEMS]) {
    size_t C = z->C, A = columns(z), K = z->key_heads * z->D, F = z->hidden,
           scores = z->online ? 0 : z->heads * z->Tk, dropout = z->dropout;
    bool rows = z->sequence, inputs = rows && !z->whole_inputs;
    const KeptItem list[KEPT_ITEMS] = {
        { "input of norm 1 (the block's x)", KEPT_INPUT, C, 0, rows },
        { "mean and deviation of norm 1", KEPT_STATISTICS, z->statistics, 0, rows },
        { "input of q, k, v", KEPT_DENSE, C, 0, inputs },
        { "q and k", KEPT_DENSE, A + K, 0, false },
        { "v", KEPT_DENSE, K, 0, false },
        { "softmax output", KEPT_SCORES, scores, 0, false },
        { "logarithm of softmax's sum", KEPT_STATISTICS, z->online ? z->heads : 0, 0, false },
        { "attention dropout mask", KEPT_SCORES, 0, dropout * scores, false },
        { "attention dropout output", KEPT_SCORES, dropout * scores, 0,
          false }, // without dropout this output is the softmax output, which counts already
        { "input of the projection", KEPT_DENSE, A, 0, false },
        { "dropout mask 1", KEPT_DENSE, 0, dropout * C, rows },
        { "input of norm 2", KEPT_DENSE, C, 0, rows },
        { "mean and deviation of norm 2", KEPT_STATISTICS, z->statistics, 0, rows },
        { "input of fc", KEPT_DENSE, C, 0, inputs },
        { "input of GELU", KEPT_DENSE, z->gates * F, 0, false },
        { "input of the MLP's projection", KEPT_DENSE, F, 0, false },
        { "dropout mask 2", KEPT_DENSE, 0, dropout * C, rows },
    };
    for (size_t i = 0; i < KEPT_ITEMS; i++) item[i] = list[i];
}
size_t kept_scores(const CutSizes *z) {
    KeptItem item[KEPT_ITEMS];
    size_t sum = 0;
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        sum += item[i].kind == KEPT_SCORES ? item[i].elements : 0;
    return sum;
}
size_t kept_block(const CutSizes *z) {
    KeptItem item[KEPT_ITEMS];
    size_t sum = 0;
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        sum += item[i].kind == KEPT_INPUT ? 0 : item[i].elements;
    return sum;
}
// Counts the norm's output and statistics, the logits, and the sum of the logits' exponentials.
size_t kept_head(const CutSizes *z) { return z->C + z->statistics + z->vocab + 1; }
// Counts each output of width C between two layers of the stage once, because the output is also
// the input of the next layer. The logits count in kept_head. A later stage also keeps the input
// that it received. The first stage's input is the tokens, which do not count. The output that a
// stage sends is not kept.
size_t kept_between(const CutSizes *z) { return (!z->first + cut_layers(z) - 1) * z->C; }
size_t kept_stage(const CutSizes *z) {
    return kept_between(z) + z->blocks * kept_block(z) + (z->last ? kept_head(z) : 0);
}
size_t weight_bytes(const ModelConfig *c) { return element_size(c->storage); }
size_t gradient_bytes(const ModelConfig *c) { return element_size(config_gradient_element(c)); }
size_t master_bytes(const ModelConfig *c) { return c->storage == REALS ? 0 : sizeof(real); }
size_t adamw_bytes(const ModelConfig *c) { return 2 * sizeof(real) + master_bytes(c); }
size_t kept_model(const ModelConfig *c) {
    CutSizes z = cut_sizes(c, 1, 0);
    return kept_stage(&z);
}

// Returns the elements of B sequences, with per_token elements for each token and per_row elements
// for each local row (cut_rows).
static size_t activations(const CutSizes *z, size_t B, size_t per_token, size_t per_row) {
    return B * z->T * per_token + cut_rows(z, B) * per_row;
}
size_t activations_block(const CutSizes *z, size_t B) {
    KeptItem item[KEPT_ITEMS];
    size_t per[2] = { 0, 0 };
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        per[item[i].by_row] += item[i].kind == KEPT_INPUT ? 0 : item[i].elements;
    return activations(z, B, per[0], per[1]);
}
size_t activations_scores(const CutSizes *z, size_t B) {
    return activations(z, B, kept_scores(z), 0);
}
size_t activations_head(const CutSizes *z, size_t B) {
    size_t input = z->whole_inputs ? 0 : z->C;
    return activations(z, B, kept_head(z) - input - z->statistics, input + z->statistics);
}
size_t activations_between(const CutSizes *z, size_t B) {
    return activations(z, B, 0, kept_between(z));
}
size_t activations_stage(const CutSizes *z, size_t B) {
    return activations_between(z, B) + z->blocks * activations_block(z, B) +
           (z->last ? activations_head(z, B) : 0);
}
size_t activations_block_reals(const CutSizes *z, size_t B) {
    KeptItem item[KEPT_ITEMS];
    size_t per[2] = { 0, 0 };
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        per[item[i].by_row] += item[i].kind == KEPT_STATISTICS ? item[i].elements : 0;
    return activations(z, B, per[0], per[1]);
}
size_t activations_head_reals(const CutSizes *z, size_t B) {
    return activations(z, B, z->vocab + 1, z->statistics);
}
// Returns the bytes of `all` elements, of which `reals` are reals in every --storage.
static size_t in_bytes(const CutSizes *z, size_t all, size_t reals) {
    return reals * sizeof(real) + (all - reals) * element_size(z->storage);
}
size_t activations_bytes(const CutSizes *z, size_t B) {
    return in_bytes(z, activations_stage(z, B),
                    z->blocks * activations_block_reals(z, B) +
                        (z->last ? activations_head_reals(z, B) : 0));
}
size_t kept_block_bytes(const CutSizes *z) {
    return in_bytes(z, kept_block(z), 2 * z->statistics + (z->online ? z->heads : 0));
}
size_t kept_scores_bytes(const CutSizes *z) { return in_bytes(z, kept_scores(z), 0); }
size_t kept_head_bytes(const CutSizes *z) {
    return in_bytes(z, kept_head(z), z->statistics + z->vocab + 1);
}
size_t kept_between_bytes(const CutSizes *z) { return in_bytes(z, kept_between(z), 0); }
size_t kept_stage_bytes(const CutSizes *z) {
    return kept_between_bytes(z) + z->blocks * kept_block_bytes(z) +
           (z->last ? kept_head_bytes(z) : 0);
}
// Counts the features of x and dy that are kept for each product and norm, and the statistics of
// the two norms. For GPT-2 the features are:
//   product or norm         x    dy
//   q, k, v                 C    3C/t
//   projection              C/t  C
//   fc                      C    4C/t
//   the MLP's second matrix 4C/t C
//   norm 1                  -    C      (x is the layer's input, which the walk keeps)
//   norm 2                  C    C
// With sequence parallelism, dy of the two biases that are added after a sum is kept separately,
// for the local rows.
size_t deferred_block(const CutSizes *z, size_t B) {
    size_t C = z->C, A = columns(z), F = z->hidden, kept = z->sequence ? 3 + 2 * z->bias : 3;
    return activations(z, B, 4 * C + A + qkv_columns(z) + (1 + z->gates) * F,
                       kept * C + 2 * z->statistics);
}
size_t deferred_head(const CutSizes *z, size_t B) {
    return activations(z, B, z->vocab + z->C, z->C + z->statistics);
}
size_t deferred_block_bytes(const CutSizes *z, size_t B) {
    return in_bytes(z, deferred_block(z, B), cut_rows(z, B) * 2 * z->statistics);
}
double kept_bytes(const CutSizes *z, size_t B, size_t element, size_t mask, bool scores) {
    KeptItem item[KEPT_ITEMS];
    size_t per[2] = { 0, 0 };
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        if (item[i].kind != KEPT_STATISTICS && (scores || item[i].kind != KEPT_SCORES))
            per[item[i].by_row] += item[i].elements * element + item[i].masks * mask;
    return (double)activations(z, B, per[0], per[1]);
}

// ---- FLOPs ----

Work work_product(size_t m, size_t n, size_t k) {
    // Each term is a multiplication and an addition.
    double flops = 2 * (double)m * (double)n * (double)k;
    return (Work){ flops, round(flops * 1e12 / clock_config()->device.flops) };
}
double copy_time(size_t bytes) {
    // The copy reads and writes each byte.
    return round(2 * (double)bytes * 1e12 / clock_config()->device.memory);
}
Work work_times(double times, Work w) { return (Work){ times * w.flops, times * w.time }; }
Work work_sum(Work a, Work b) { return (Work){ a.flops + b.flops, a.time + b.time }; }

Work work_scores(const CutSizes *z, size_t B) {
    if (!z->online) return work_times((double)(B * z->heads), work_product(z->T, z->Tk, z->D));
    size_t pairs = 0; // position t sees t + 1 keys
    for (size_t i = 0; i < z->positions.n; i++) {
        Range r = z->positions.chunk[i];
        pairs += (r.hi * (r.hi + 1) - r.lo * (r.lo + 1)) / 2;
    }
    return work_times((double)(B * z->heads), work_product(pairs, 1, z->D));
}
// The forward of an unsplit GPT-2 block has 24 M C^2 + 4 M T C FLOPs. In Megatron's letters these
// are 24 b s h^2 + 4 b s^2 h.
Work work_block(const CutSizes *z, size_t B) {
    size_t M = B * z->T, C = z->C, A = columns(z), F = z->hidden;
    // the products of q, k, v and of the projection
    Work attention = work_sum(work_product(M, qkv_columns(z), C), work_product(M, C, A));
    // the products of fc and of the second matrix
    Work mlp = work_sum(work_product(M, z->gates * F, C), work_product(M, C, F));
    // q k^T, and the product of the softmax with v
    return work_sum(work_sum(attention, mlp), work_times(2, work_scores(z, B)));
}

Work work_head(const CutSizes *z, size_t B) { return work_product(B * z->T, z->vocab, z->C); }
Work work_stage(const CutSizes *z, size_t B) {
    Work blocks = work_times((double)z->blocks, work_block(z, B));
    return z->last ? work_sum(blocks, work_head(z, B)) : blocks;
}
Work work_model(const ModelConfig *c, size_t B) {
    CutSizes z = cut_sizes(c, 1, 0);
    return work_times(3, work_stage(&z, B));
}

// ---- traffic ----

double ring_bytes(size_t passes, size_t n, size_t count, size_t size) {
    return (double)(passes * (n - 1) * ceil_div(count, n) * size); // n - 1 chunks in a pass
}
// Returns the number of network cards for a collective of the first n ranks (clock.h).
static size_t cards_of_first(size_t n) {
    size_t node = clock_config()->node, rails = clock_config()->rails;
    if (node == 0 || n <= node) return CLOCK_INSIDE;
    size_t least = n % node ? n % node : node;
    return rails && rails < least ? rails : least;
}
static double time_of(size_t cards, size_t messages, double bytes) {
    const ClockLink link = clock_link(cards);
    return link.beta == 0 ? 0
                          : round((double)messages * link.alpha * 1e12 + bytes * 1e12 / link.beta);
}
double ring_time(size_t passes, size_t n, size_t count, size_t size) {
    return time_of(cards_of_first(n), passes * (n - 1), ring_bytes(passes, n, count, size));
}
double chain_time(size_t n, size_t bytes) {
    return n == 1 ? 0 : time_of(cards_of_first(n), n - 1, (double)bytes);
}
double send_time(size_t bytes) { return time_of(CLOCK_INSIDE, 1, (double)bytes); }

size_t message_elements(const CutSizes *z, size_t B) { return cut_rows(z, B) * z->C; }

Traffic traffic_tensor_parallel(const CutSizes *z, size_t t, size_t B, bool forward_again) {
    size_t M = B * z->T, passes = ALL_REDUCE_PASSES, e = element_size(z->storage), s = sizeof(real);
    double wide = (double)(z->blocks * (forward_again ? 6 : 4) + z->first + z->last),
           narrow = z->last ? 3 : 0;
    return (Traffic){
        .calls = wide + narrow,
        .bytes = wide * ring_bytes(passes, t, M * z->C, e) + narrow * ring_bytes(passes, t, M, s),
        .time = wide * ring_time(passes, t, M * z->C, e) + narrow * ring_time(passes, t, M, s)
    };
}

SequenceTraffic traffic_sequence_parallel(const CutSizes *z, size_t B, bool forward_again) {
    // A chunk of the ring has as many rows as the largest part.
    size_t t = z->t, M = B * z->T, rows = t * ceil_div(M, t), e = element_size(z->storage);
    double again = z->whole_inputs ? 0 : 1, blocks = (double)z->blocks,
           repeated = forward_again ? blocks * 2 : 0;
    SequenceTraffic s = { .gathers = blocks * (4 + 2 * again) + repeated + z->first +
                                     z->last * (1 + again),
                          .scatters = blocks * 4 + repeated + z->first + z->last,
                          .sums = z->last ? 3 : 0 };
    double wide = s.gathers + s.scatters;
    s.bytes = wide * ring_bytes(ONE_PASS, t, rows * z->C, e) +
              s.sums * ring_bytes(ALL_REDUCE_PASSES, t, M, sizeof(real));
    s.time = wide * ring_time(ONE_PASS, t, rows * z->C, e) +
             s.sums * ring_time(ALL_REDUCE_PASSES, t, M, sizeof(real));
    return s;
}

void elements_partial_sums(const CutSizes *z, size_t elements[PARTIAL_SUMS]) {
    const size_t norm = 1 + z->norm_bias;
    // norm 1; projection's bias and norm 2; second matrix's bias; last norm
    const size_t vectors[PARTIAL_SUMS] = { norm, z->bias + norm, z->bias, norm };
    for (size_t i = 0; i < PARTIAL_SUMS; i++) elements[i] = vectors[i] * z->C;
}
Traffic traffic_partial_sums(const CutSizes *z) {
    const size_t e = element_size(z->gradient);
    size_t elements[PARTIAL_SUMS];
    Traffic sum = { 0 };
    elements_partial_sums(z, elements);
    for (size_t i = 0; i < PARTIAL_SUMS; i++) {
        if (elements[i] == 0) continue; // nothing is sent
        double times = i + 1 < PARTIAL_SUMS ? (double)z->blocks : z->last;
        sum.calls += times;
        sum.bytes += times * ring_bytes(ALL_REDUCE_PASSES, z->t, elements[i], e);
        sum.time += times * ring_time(ALL_REDUCE_PASSES, z->t, elements[i], e);
    }
    return sum;
}
