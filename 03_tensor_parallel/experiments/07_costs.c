// 07_costs.c: sequence parallelism: calls, bytes, memory and time of a step; and Korthikanti et al. 2022, figure 7.
#include <math.h>
#include <stdio.h>
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/draw/picture.h"
#include "common/model/costs.h"

const char *const sequence_way_name[SEQUENCE_WAYS] = { "tensor parallel", "inputs kept whole", "gathered again" };

// ---------------------------------------------------------------- measured

SequenceSent sequence_sent(const Comm *tp) {
    return (SequenceSent){ tp->ledger[COMM_ALL_GATHER].calls, tp->ledger[COMM_REDUCE_SCATTER].calls,
                           tp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(tp) };
}

static size_t sequences_of(const Training *t, size_t k) { return range_size(training_micro_batch(t, 1, 0, k)); }

void sequence_held(SequenceMeasured *r, const Model *m, const Training *t) {
    Batch largest = { .B = sequences_of(t, 0), .T = t->model.context };
    Shape message = layer_output(&m->layers[1], &largest);
    r->message = message.rows * message.cols * sizeof(real);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
}

// ---------------------------------------------------------------- predicted

static CutSizes sizes(Run *run, const Training *t, SequenceWay way, size_t rank) {
    CutSizes z = cut_sizes(&t->model, run->world->size, rank);
    return way == TENSOR_ONLY ? z : cut_sequence(z, way == SEQUENCE_WHOLE);
}

// In the layers, per step: all micro-batches.
static SequenceTraffic traffic(const CutSizes *z, const Training *t) {
    SequenceTraffic all = {0};
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = sequences_of(t, k);
        Traffic reduce = traffic_tensor_parallel(z, z->t, B, false);
        SequenceTraffic s = { .sums = reduce.calls, .bytes = reduce.bytes, .time = reduce.time };
        if (z->sequence) s = traffic_sequence_parallel(z, B, false);
        all.gathers += s.gathers; all.scatters += s.scatters; all.sums += s.sums;
        all.bytes += s.bytes; all.time += s.time;
    }
    return all;
}

static void line(Run *run, SequenceWay way, const char *what, const char *unit, double predicted, double measured) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", sequence_way_name[way], what);
    cost(run, name, unit, predicted, measured);
}

// The paper's forms, where everything divides by t: what was asserted above is equal to them.
static void closed_forms(Run *run, const Training *t, SequenceWay way, const CutSizes *z) {
    const size_t n = z->t, B = sequences_of(t, 0);
    const double bsh = (double)(B * z->T * z->C), T = (double)n, h = (double)z->C;
    const double scores = (t->model.dropout > 0 ? 2 : 1) * (double)(t->model.heads * z->T) / h;
    if (B * z->T % n || way == TENSOR_ONLY) return;
    double rows = way == SEQUENCE_WHOLE ? 2 + 2 / T : 4 / T, kept = bsh * (rows + 12 / T + scores / T + 4 / h / T);
    if (t->model.heads % n == 0)
        check_true(run, sequence_way_name[way], "the closed form of what a block keeps",
                   fabs((double)(activations_block(z, B) + message_elements(z, B)) - kept) < 1e-6);
    CutSizes block = *z;
    block.blocks = 1;
    block.first = block.last = false;
    double sent = (way == SEQUENCE_WHOLE ? 8 : 10) * bsh * (T - 1) / T;
    check_true(run, sequence_way_name[way], "the closed form of what a block sends",
               fabs(traffic_sequence_parallel(&block, B, false).bytes / sizeof(real) - sent) < 1e-6);
}

static void times(Run *run, const Training *t, SequenceWay way, const Timing *timing) {
    const size_t n = run->world->size;
    double flops = 0, slowest = 0;
    for (size_t rank = n; rank-- > 0;) {                   // rank 0 last: it has most of everything, the others wait
        CutSizes z = sizes(run, t, way, rank);
        slowest = 0;
        for (size_t k = 0; k < t->micro_batches; k++) {
            Work step = work_times(3, work_stage(&z, sequences_of(t, k)));
            flops += step.flops;
            slowest += step.time;
        }
    }
    line(run, way, "products, all ranks", "FLOPs", flops, timing->flops);
    if (!clock_config()->simulated) return;
    CutSizes z = sizes(run, t, way, 0);
    double communication = traffic(&z, t).time + ring_time(ALL_REDUCE_PASSES, n, config_tensors(&t->model),
                                                           sizeof(double));
    if (way != TENSOR_ONLY) communication += traffic_partial_sums(&z).time;
    line(run, way, "step", "ps", slowest + communication, (double)timing->step);
    line(run, way, "exposed, all ranks", "ps", (double)n * communication, (double)timing->exposed);
}

void sequence_costs(Run *run, const Training *t, SequenceWay way, const SequenceMeasured *r) {
    const CutSizes z = sizes(run, t, way, run->world->rank);
    const size_t e = sizeof(real), B = sequences_of(t, 0);             // the first micro-batch is the largest
    SequenceTraffic layers = traffic(&z, t);
    Traffic partial = way == TENSOR_ONLY ? (Traffic){0} : traffic_partial_sums(&z);
    line(run, way, "all-gathers per step", "calls", layers.gathers, (double)r->layers.gathers);
    line(run, way, "reduce-scatters per step", "calls", layers.scatters, (double)r->layers.scatters);
    line(run, way, "all-reduces per step", "calls", layers.sums, (double)r->layers.sums);
    line(run, way, "sent in the layers per step", "bytes", layers.bytes, (double)r->layers.bytes);
    line(run, way, "sums of partial gradients", "calls", partial.calls, (double)r->partial.sums);
    line(run, way, "sent for partial gradients", "bytes", partial.bytes, (double)r->partial.bytes);
    line(run, way, "parameters", "bytes", (double)(elements_stage(&z) * e), (double)r->parameters);
    line(run, way, "gradients", "bytes", (double)(elements_gradients(&z) * e), (double)r->gradients);
    line(run, way, "AdamW's m and v", "bytes", (double)(2 * elements_stage(&z) * e), (double)r->optimizer);
    line(run, way, "activations, peak", "bytes", (double)(activations_stage(&z, B) * e), (double)r->activations);
    line(run, way, "message to a next stage", "bytes", (double)(message_elements(&z, B) * e), (double)r->message);
    closed_forms(run, t, way, &z);
    Timing timing = picture_timing(run);
    times(run, t, way, &timing);
    bool drawn = way == SEQUENCE_SHARD;
    picture_show(run, sequence_way_name[way], PICTURE_CHART | (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
}

// ---------------------------------------------------------------- the paper's figure 7

// Activations in per cent of tensor parallelism alone, t = 8, 2 bytes per element, 1 per mask, from the cost model.
// "Full" keeps a block's whole input on every rank.
static void figure7(Run *run) {
    static const struct { const char *name; size_t a, h; double published[4]; } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },     { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },  { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    say_detail(run, "per cent of tensor parallelism: sequence parallel, selective recomputation, both, full");
    for (size_t i = 0; i < 4; i++) {
        ModelConfig c = { .layers = 1, .width = model[i].h, .heads = model[i].a, .context = 2048, .vocab = 51200,
                          .dropout = 0.1 };
        CutSizes tensor = cut_sizes(&c, 8, 0), rows = cut_sequence(tensor, false);
        double all = kept_bytes(&tensor, 1, 2, 1, true) / 100, input = 2.0 * (double)(c.context * c.width);
        double percent[4] = { kept_bytes(&rows, 1, 2, 1, true) / all, kept_bytes(&tensor, 1, 2, 1, false) / all,
                              kept_bytes(&rows, 1, 2, 1, false) / all, input / all };
        say_detail(run, "  %-5s %6.1f %6.1f %6.1f %6.1f", model[i].name, percent[0], percent[1], percent[2],
                   percent[3]);
        // printed to 0.1 per cent
        check_numbers(run, "Korthikanti, figure 7", model[i].name, percent, model[i].published, 4, 1e-3);
    }
}

// ---------------------------------------------------------------- the page

#define EACH_WAY(what) { "tensor parallel: " what, "inputs kept whole: " what, "gathered again: " what }
void sequence_results(Run *run, const Training *t) {
    static const char *const columns[] = { "tensor parallel", "rows cut, kept", "gathered again", NULL };
    const size_t n = run->world->size, M = sequences_of(t, 0) * t->model.context;
    char calls[SEQUENCE_WAYS][40];
    for (SequenceWay way = 0; way < SEQUENCE_WAYS; way++) {
        CutSizes z = sizes(run, t, way, 0);
        SequenceTraffic s = traffic(&z, t);
        snprintf(calls[way], sizeof calls[way], "=%.0f, %.0f, %.0f", s.gathers, s.scatters, s.sums);
    }
    const Result rows[] = {
        { "activations, peak", "of a block: below", EACH_WAY("activations, peak") },
        { "message to a next stage", "bsh; bsh/t; bsh/t", EACH_WAY("message to a next stage") },
        { "gathers, scatters, sums", "0,0,4; 4,4,0; 6,4,0", { calls[0], calls[1], calls[2] } },
        { "sent in the layers", "8; 8; 10 bsh(t-1)/t", EACH_WAY("sent in the layers per step") },
        { "sent for partial sums", "6Lh + 2h, once per step", EACH_WAY("sent for partial gradients") },
        { clock_config()->simulated ? "step" : NULL, "products, messages", EACH_WAY("step") },
        {0}
    };
    results(run, columns, rows);
    say(run, "  formulas of calls and bytes: of one block. L = %zu, h = %zu, a = %zu, s = %zu, t = %zu; b <= %zu",
        t->model.layers, t->model.width, t->model.heads, t->model.context, n, sequences_of(t, 0));
    const char *scores = t->model.dropout > 0 ? "2as/h" : "as/h";
    say(run, "  a block keeps b s h times (12 + %s)/t, and 4 + 4/h; 2 + 2/t + 4/(ht); 4/t + 4/(ht)",
        scores);
    if (M % n) say(run, "  t does not divide %zu rows: the first ranks have one more.", M);
    if (t->model.heads % n)
        say(run, "  t does not divide the heads: rank 0 has most. Where it does, the formulas are exact.");
    figure7(run);
}
