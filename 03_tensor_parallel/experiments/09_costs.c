// 09_costs.c: see 09_costs.h.
#include "03_tensor_parallel/experiments/09_costs.h"
#include <stdio.h>
#include "judge/draw/picture.h"

enum { E = sizeof(real) };

void summa_measure_begin(const CommGrid *g, SummaMeasured *r) {
    comm_ledger_reset(g->in_row);
    comm_ledger_reset(g->in_col);
    comm_ledger_reset(g->in_depth);
    r->took = clock_now();
    memory_reset_peaks();
}
void summa_measure_end(const CommGrid *g, SummaMeasured *r) {
    r->traffic = grid_measured(g);
    r->took = clock_now() - r->took;
    r->panels = memory_peak(MEM_COMMUNICATION);
}
void summa_measure_state(SummaMeasured *r, const Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (m->units[i].n_params == BLOCK_PARAMS) r->block = m->units[i].size * E;
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
}

// ---------------------------------------------------------------- one linear layer

// In equal blocks every rank receives (q-1)/q^2 of X and of A in a product, and the bias but on row 0.
static void layer_bytes(Run *run, const CommGrid *g, const char *when, double times, double x, double a, double bias,
                        const SummaMeasured *r) {
    const double q = (double)g->cols, part = times * (q - 1) / (q * q) * E;
    char what[64];
    snprintf(what, sizeof what, "%s: received in the row", when);
    cost(run, what, "bytes", part * x, r->traffic.row.received);
    snprintf(what, sizeof what, "%s: received in the column", when);
    cost(run, what, "bytes", part * a + bias * E, r->traffic.col.received);
}

// A panel of X and one of A, where neither is the rank's own.
static void layer_panels(Run *run, const CommGrid *g, size_t x, size_t a, const SummaMeasured *r) {
    size_t q = g->cols, most = 0;
    for (size_t l = 0; l < q; l++) {
        size_t now = (g->col != l ? x : 0) + (g->row != l ? a : 0);
        if (now > most) most = now;
    }
    cost(run, "one layer: panels", "bytes", (double)(most * E), (double)r->panels);
}

void summa_layer_costs(Run *run, const CommGrid *g, size_t M, size_t K, size_t N, const SummaMeasured r[2]) {
    const size_t q = g->cols, q2 = q * q;
    if (M % q || K % q || N % q) return;                   // the closed forms are of equal blocks
    const double x = (double)(M * K), a = (double)(K * N), bias = q > 1 ? (double)(N / q) : 0;
    layer_bytes(run, g, "forward", 1, x, a, g->row != 0 ? bias : 0, &r[0]);
    layer_bytes(run, g, "backward", 2, x, a, g->row != 1 % q ? bias : 0, &r[1]);
    layer_panels(run, g, M * K / q2, K * N / q2, &r[0]);
    if (!clock_config()->simulated) return;
    const double send_x = chain_time(q, M * K / q2 * E), send_a = chain_time(q, K * N / q2 * E);
    const double turn = send_x + send_a + work_product(M / q, N / q, K / q).time, send_bias = chain_time(q, N / q * E);
    cost(run, "forward: q turns", "ps", (double)q * turn + send_bias, (double)r[0].took);
    cost(run, "backward: 2q turns", "ps", 2 * (double)q * turn + send_bias, (double)r[1].took);
    picture_show(run, "one linear layer, blocks on a grid", PICTURE_CHART);
}

// ---------------------------------------------------------------- a step of GPT

void summa_axis_costs(Run *run, const char *axis, const AxisTraffic *want, const AxisTraffic *got) {
    char what[64];
    for (size_t kind = 0; kind < COMM_KINDS; kind++) {
        if (want->calls[kind] == 0 && got->calls[kind] == 0) continue;
        snprintf(what, sizeof what, "%s: %ss a step", axis, comm_kind_name[kind]);
        cost(run, what, "calls", want->calls[kind], got->calls[kind]);
    }
    snprintf(what, sizeof what, "%s: sent a step", axis);
    cost(run, what, "bytes", want->sent, got->sent);
    snprintf(what, sizeof what, "%s: received a step", axis);
    cost(run, what, "bytes", want->received, got->received);
}

static size_t kept(const CutSizes *z, size_t tokens) { return tokens * kept_stage(z); }

void summa_memory_costs(Run *run, const GridPlace *at, size_t sequences, const SummaMeasured *r) {
    const CutSizes whole = cut_sizes(at->c, 1, 0), z = grid_sizes(at);
    size_t parameters = grid_elements_stage(at, &whole) * E;
    cost(run, "parameters of a block", "bytes", (double)(grid_elements_block(at) * E), (double)r->block);
    cost(run, "parameters", "bytes", (double)parameters, (double)r->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)(parameters + grid_elements_wte(at) * E), (double)r->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * parameters), (double)r->optimizer);
    size_t tokens = grid_sequences(at, sequences) * at->c->context;
    cost(run, "activations, peak", "bytes", (double)(kept(&z, tokens) * E), (double)r->activations);
}

// ---------------------------------------------------------------- the page

// Cells of one device and of tensor parallelism by columns and rows (03.06) on as many ranks, computed.
typedef struct { char block[40], parameters[40], activations[40], received[40], took[40]; } Column;
static void fill(Column *col, const ModelConfig *c, size_t n, size_t sequences) {
    const CutSizes z = cut_sizes(c, n, 0);
    const Traffic t = traffic_tensor_parallel(&z, n, sequences, false);
    if (n > c->heads) {
        *col = (Column){ "=-", "=-", "=-", "=-", "=-" };
        return;
    }
    snprintf(col->block, 40, "=%.1f kB", (double)(elements_block(&z) * E) / 1e3);
    snprintf(col->parameters, 40, "=%.1f kB", (double)(elements_stage(&z) * E) / 1e3);
    snprintf(col->activations, 40, "=%.1f kB", (double)(kept(&z, sequences * c->context) * E) / 1e3);
    snprintf(col->received, 40, "=%.1f kB", t.bytes / 1e3);
    snprintf(col->took, 40, "=%.2f ms", (3 * work_stage(&z, sequences).time + t.time) / 1e9);
}

static void table(Run *run, const GridPlace *at, size_t sequences, const SummaMeasured *r) {
    const ModelConfig *c = at->c;
    const size_t n = run->world->size, q = at->q;
    Column one, line;
    fill(&one, c, 1, sequences);
    fill(&line, c, n, sequences);
    char title[2][40], took[40];
    snprintf(title[0], 40, "1D: each of %zu", n);
    snprintf(title[1], 40, "%zu x %zu: each", q, q);
    snprintf(took, sizeof took, "=%.2f ms", (double)r->took / 1e9);
    const char *const columns[] = { "one device", title[0], title[1], NULL };
    const Result rows[] = {
        { "parameters of a block", "12 h²/q², and on row 0 13 h/q",
          { one.block, line.block, "parameters of a block" } },
        { "parameters", "every matrix in q² blocks", { one.parameters, line.parameters, "parameters" } },
        { "activations, peak", "÷ q², but statistics ÷ q", { one.activations, line.activations, "activations, peak" } },
        { "received in the row", "3(q-1)/q² of X; norms, loss", { NULL, NULL, "row: received a step" } },
        { "received in the column", "3(q-1)/q² of A; vectors", { NULL, NULL, "column: received a step" } },
        { "received per step", "the two; 1D: 8bsh(p-1)/p a block", { "=0 kB", line.received, "received a step" } },
        { clock_config()->simulated ? "time of the layers" : NULL, "rank 0; nothing is overlapped",
          { one.took, line.took, took } }, {0} };
    results(run, columns, rows);
    say(run, "  b = %zu sequences of s = %zu; h = %zu, %zu heads, %zu blocks, %zu vocabulary entries; p = %zu, q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, n, q);
    say(run, "  of X, of A: of both factors of every product, forward and twice backward; 1D: lesson 06, computed");
    if (q > 1)
        say(run, "  A block receives less than in 1D from bs = 36h/(8q-13) = %.0f tokens on; here there are %zu.",
            36.0 * (double)c->width / (8.0 * (double)q - 13), sequences * c->context);
}

void summa_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, const SummaMeasured *r) {
    const GridPlace at = grid_place(c, g);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridTraffic want = grid_stage(&at, &whole, sequences, false), *got = &r->traffic;
    summa_axis_costs(run, "row", &want.row, &got->row);
    summa_axis_costs(run, "column", &want.col, &got->col);
    cost(run, "received a step", "bytes", want.row.received + want.col.received, got->row.received + got->col.received);

    summa_memory_costs(run, &at, sequences, r);
    if (clock_config()->simulated && grid_even(&at, sequences))
        cost(run, "the layers, a step", "ps", want.products.time + want.transfers, (double)r->took);
    table(run, &at, sequences, r);
}
