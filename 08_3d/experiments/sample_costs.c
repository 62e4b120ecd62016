// sample_costs.c computes, from sizes alone, the bytes that a rank sends and keeps while the
// program writes text. The file also prints the table and the answer.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include "common/model/costs.h"

// Returns the number of computed positions, and adds the bytes sent over tp and pp, independently
// of the measured loop of sample_run.c.
static double forwards(const ModelConfig *c, const SampleSizes *z, double *tp, double *pp) {
    size_t e = sizeof(real), T = c->context, blocks = part_size(c->layers, z->pp, z->pp_rank),
           in_cache = 0, rows = 0;
    bool first = z->pp_rank == 0, last = z->pp_rank + 1 == z->pp;
    size_t k = z->top_k ? (z->top_k < c->vocab ? z->top_k : c->vocab) : 1;
    for (size_t i = 0; i < z->tokens; i++) {
        size_t n = i ? 1 : z->prompt;
        // If the context is full, the model reads the last T/2 tokens again.
        if (in_cache + n > T) {
            n = T / 2 ? T / 2 : 1;
            in_cache = 0;
        }
        in_cache += n;
        rows += n;
        *tp += (double)(2 * blocks + first) * ring_bytes(ALL_REDUCE_PASSES, z->tp, n * c->width, e);
        if (last) *tp += ring_bytes(ONE_PASS, z->tp, z->tp * 2 * k, e);
        // The last stage sends the token to the other stages. Every other stage sends activations.
        *pp += last ? (z->pp > 1 ? (double)e : 0) : (double)(n * c->width * e);
    }
    return (double)rows;
}

void sample_costs(Run *run, const ModelConfig *c, const SampleSizes *z, const SampleMeasured *got) {
    double tp = 0, pp = 0, rows = forwards(c, z, &tp, &pp);
    size_t K = part_size(config_kv_heads(c), z->tp, z->tp_rank) * (c->width / c->heads);
    double cache =
        (double)(2 * part_size(c->layers, z->pp, z->pp_rank) * c->context * K * sizeof(real));
    check_cost(run, "positions", "positions computed", "positions", formula(rows), NOT_PREDICTED,
               got->rows);
    check_cost(run, "tp.sent", "tensor-parallel traffic", "bytes sent", formula(tp), NOT_PREDICTED,
               got->tp_bytes);
    check_cost(run, "pp.sent", "pipeline traffic", "bytes sent", formula(pp), NOT_PREDICTED,
               got->pp_bytes);
    check_cost(run, "cache", "keys and values kept", "bytes", formula(cache), NOT_PREDICTED,
               got->cache);
    // Without a cache each token needs a forward of all positions of its window.
    size_t again = 0, start = 0;
    for (size_t i = 0; i < z->tokens; i++) {
        size_t known = z->prompt + i;
        if (known - start > c->context) start = known - (c->context / 2 ? c->context / 2 : 1);
        again += known - start;
    }
    const bool grouped = config_head_ratio(c) > 1;
    char without[24];
    snprintf(without, sizeof without, "=%zu", again);
    // The row of bytes sent over tp needs tp > 1, and the row of bytes sent over pp needs pp > 1.
    Result row[5] = {
        { "positions computed",
          "cache: prompt, 1 per token; T/2 if text exceeds T",
          { "positions", without } },
        { "keys and values kept",
          grouped ? "2 L/pp T K/tp elements, K columns of keys" : "2 L/pp T C/tp elements",
          { "cache", "=0 B" } },
    };
    size_t shown = 2;
    if (z->tp > 1)
        row[shown++] = (Result){ "tensor parallel, sent",
                                 "per block 2 all-reduces of [positions, C]",
                                 { "tp.sent", "=-" } };
    if (z->pp > 1)
        row[shown++] = (Result){ "pipeline, sent",
                                 "[positions, C] forward, a token back",
                                 { "pp.sent", "=-" } };
    say(run,
        "\nIn each block a new token's query is multiplied with the keys of all tokens so far, and "
        "the values");
    say(run, "of these tokens are mixed. The cache keeps these keys and values. Without the cache "
             "each token needs");
    say(run, "a forward of the whole text so far. Both ways keep only the last T/2 tokens when the "
             "text exceeds T.");
    results(run, (const char *const[]){ "with the cache", "without", NULL }, row);
    char full[120] = "";
    if (z->prompt + z->tokens - 1 > c->context)
        snprintf(
            full, sizeof full,
            " When the context of %zu is full, half of it is computed again, so a longer context "
            "saves more.",
            c->context);
    const double computed = cost_value(run, "positions");
    if ((double)again > computed)
        say_answer(run,
                   "Their keys and values, because no later token changes them. For %zu new tokens "
                   "%.0f positions are computed instead of %zu, %.1f times fewer.%s",
                   z->tokens, computed, again, (double)again / computed, full);
    else
        say_answer(run,
                   "Their keys and values, because no later token changes them. A text of %zu new "
                   "token%s needs %.0f positions, as many as without a cache.",
                   z->tokens, z->tokens == 1 ? "" : "s", computed);
    say_cost(run, "memory: %s of keys and values per rank, for one text of at most %zu tokens.",
             cost_text(run, "cache"), c->context);
    say_use_when(
        run, "a model writes token by token. For throughput write many texts at once: each step "
             "reads all weights, for one text or for many.");
}
