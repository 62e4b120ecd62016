// predict.c: see predict.h.
#include "08_3d/predict.h"

enum { E = sizeof(real) };

// What a ring sends per rank, for a whole of `count` elements over n ranks.
static size_t ring(size_t n, size_t count) { return (n - 1) * ceil_div(count, n) * E; }

// ---------------------------------------------------------------- my part of the model

typedef struct {
    size_t blocks, A, F, V;                                // blocks of my stage; my columns of attention, MLP; my words
    bool first, last;
    size_t block, wte, wpe, ln_f;                          // elements of each unit
} Part;

static Part my_part(const TrainerConfig *c, Coordinates at) {
    const ModelConfig *m = &c->model;
    size_t C = m->width, t = c->mesh.tp;
    Part p = { .first = at.pp == 0, .last = at.pp + 1 == c->mesh.pp };
    p.blocks = c->stage_blocks ? c->stage_blocks[at.pp] : range_size(shard_range(m->layers, c->mesh.pp, at.pp));
    p.A = range_size(shard_range(m->heads, t, at.tp)) * (C / m->heads);
    p.F = range_size(shard_range(4 * C, t, at.tp));
    p.V = range_size(shard_range(m->vocab, t, at.tp));
    // qkv, proj, fc, out; norms and row-cut biases whole
    p.block = (C + 1) * 3 * p.A + p.A * C + (C + 1) * p.F + p.F * C + 6 * C;
    p.wte = p.V * C;
    p.wpe = m->context * C;
    p.ln_f = 2 * C;
    return p;
}

// Adds up f(unit) over the units of a stage; wte is given apart.
typedef struct { size_t wte, others; } PerUnit;
static PerUnit over_units(const Part *p, size_t (*f)(size_t size, size_t n, size_t rank), size_t n, size_t rank) {
    PerUnit sum = { .others = p->blocks * f(p->block, n, rank) };
    if (p->first || p->last) sum.wte = f(p->wte, n, rank);
    if (p->first) sum.others += f(p->wpe, n, rank);
    if (p->last) sum.others += f(p->ln_f, n, rank);
    return sum;
}
static size_t unit_whole(size_t size, size_t n, size_t rank) { (void)n; (void)rank; return size; }
static size_t unit_shard(size_t size, size_t n, size_t rank) { return range_size(shard_range(size, n, rank)); }
static size_t unit_ring(size_t size, size_t n, size_t rank) { (void)rank; return ring(n, size); }

// ---------------------------------------------------------------- traffic

// B*T rows of micro-batch k of this replica.
static size_t rows(const TrainerConfig *c, size_t dp_rank, size_t m, size_t k) {
    size_t mine = range_size(shard_range(c->batch, c->mesh.dp, dp_rank));
    return range_size(shard_range(mine, m, k)) * c->model.context;
}

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const Part *p, size_t m) {
    size_t C = c->model.width, t = c->mesh.tp, d = c->mesh.dp;
    // of [B*T, C] a block: 4, and 2 in a second forward
    size_t reductions = c->recompute == RECOMPUTE_FULL ? 6 : 4;
    for (size_t k = 0; k < m; k++) {
        size_t M = rows(c, at.dp, m, k);
        size_t wide = p->blocks * reductions + p->first + p->last, narrow = 3 * p->last;
        out->tp_calls += wide + narrow;
        out->tp_bytes += wide * 2 * ring(t, M * C) + narrow * 2 * ring(t, M);
        out->pp_bytes += (!p->last + !p->first) * M * C * E;                     // activations on, their gradients back
    }
    PerUnit units = over_units(p, unit_ring, d, at.dp), whole = over_units(p, unit_whole, d, at.dp);
    switch (c->zero) {
    case 0: out->dp_bytes = 2 * ring(d, whole.wte + whole.others); break;        // one all-reduce
    case 1: out->dp_bytes = 2 * (units.wte + units.others); break;
    case 2: out->dp_bytes = 2 * units.wte + (m + 1) * units.others; break;
    case 3: out->dp_bytes = 2 * units.wte + 3 * m * units.others; break;
    }
    if (c->mesh.pp > 1 && (p->first || p->last)) out->tied_bytes = 2 * ring(2, p->wte);
    size_t world = d * t * c->mesh.pp, holders = c->zero ? world : t * c->mesh.pp, tensors = 12 * c->model.layers + 4;
    out->scalar_bytes = 2 * (world - 1) * ceil_div(1, world) * sizeof(double) +
                        2 * (holders - 1) * ceil_div(tensors, holders) * sizeof(double);
}

// ---------------------------------------------------------------- memory

static void state(Prediction *out, const TrainerConfig *c, Coordinates at, const Part *p, bool adamw) {
    PerUnit whole = over_units(p, unit_whole, c->mesh.dp, at.dp), shard = over_units(p, unit_shard, c->mesh.dp, at.dp);
    size_t all = (whole.wte + whole.others) * E, mine = (shard.wte + shard.others) * E;
    size_t second_use = p->first && p->last ? whole.wte * E : 0;                 // the head's own gradient of wte
    out->parameters = c->zero < 3 ? all : mine;
    out->gradients = c->zero < 2 ? all + second_use : mine;
    out->optimizer = adamw ? 2 * (c->zero ? mine : all) : 0;
}

// Elements a row (one token) of what forward keeps (Korthikanti section 4.1, fp32; the norms' two statistics; masks are
// not stored), for one stage: until the backward comes, and at most `passing` for the layer that is at work.
static void activations(Prediction *out, const TrainerConfig *c, Coordinates at, const Part *p, size_t m) {
    const ModelConfig *mc = &c->model;
    size_t C = mc->width, T = mc->context;
    size_t probabilities = range_size(shard_range(mc->heads, c->mesh.tp, at.tp)) * T * (mc->dropout > 0 ? 2 : 1);
    bool full = c->recompute == RECOMPUTE_FULL, selective = c->recompute == RECOMPUTE_SELECTIVE;
    size_t dense = 2 * C + 2 * 2 + 3 * p->A + p->A + C + 2 * p->F;               // norms, statistics, qkv, mix, ...
    size_t head = p->last ? C + 2 + p->V + 1 : 0;                                // last norm, statistics, logits, sum
    size_t light = C + p->blocks * C - (p->last ? 0 : C);                        // input or embedding; blocks' outputs
    size_t blocks = full ? 0 : p->blocks * (dense + (selective ? 0 : probabilities));
    size_t passing = full ? dense + probabilities : selective ? probabilities : 0;
    if (passing < head) passing = head;

    Schedule s = c->schedule(c->mesh.pp, m, at.pp);
    size_t held = 0;                                                             // rows in flight
    for (size_t i = 0; i < s.n; i++) {
        size_t M = rows(c, at.dp, m, s.ops[i].micro_batch);
        size_t others = s.ops[i].what == FORWARD ? held : held - M;
        size_t now = (others * (light + blocks + head) + M * (light + blocks + passing)) * E;
        if (now > out->activations) out->activations = now;
        held = s.ops[i].what == FORWARD ? held + M : held - M;
    }
    schedule_free(&s);
}

Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw) {
    Coordinates at = mesh_coordinates(c->mesh, rank);
    Part p = my_part(c, at);
    size_t m = ceil_div(ceil_div(c->batch, c->mesh.dp), c->micro_batch);
    Prediction out = {0};
    traffic(&out, c, at, &p, m);
    state(&out, c, at, &p, adamw);
    activations(&out, c, at, &p, m);
    return out;
}
