// budget_schedule.c: computes the peak of activations from a stage's list of forwards and
// backwards. The file also chooses blocks to recompute, so that the peak is within a budget.
// budget_choose() of 04_budget.c makes the plan for one chunk with whole backwards.
#include "07_recompute/recompute.h"
#include <stdlib.h>

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// ---------------------------------------------------------------- one micro-batch in one chunk

// Returns the elements that a micro-batch holds between its forward and its backward. The elements
// are the inputs of blocks and head, and the items that blocks and head keep.
static size_t waiting(const BudgetStage *s, const Recompute *choice) {
    size_t kept = (s->blocks + s->last) * s->input + s->head;
    for (size_t i = 0; i < s->blocks; i++) kept += s->block[i].kept[choice[i]];
    return kept;
}

// The elements of a micro-batch whose backward has two halves. `highest` is the most elements
// during the first half, and `after` is the elements that stay for the second half.
typedef struct {
    size_t highest, after;
} Halves;
// Walks through the first half, from the last layer to the first. Each layer first adds the inputs
// of its weight gradients, then frees its kept items.
static Halves in_halves(const BudgetStage *s, const Recompute *choice) {
    size_t now = waiting(s, choice);
    size_t highest = now;
    if (s->last) {
        now += s->head_added;
        highest = now;
        now -= s->head_freed;
    }
    for (size_t i = s->blocks; i-- > 0;) {
        const BudgetBlock *b = &s->block[i];
        size_t kept = b->kept[choice[i]];
        size_t again = b->kept[RECOMPUTE_NONE] - kept;
        highest = most(highest, now + again + b->deferred);
        now += b->deferred;
        now -= kept;
    }
    now += s->first_deferred;
    return (Halves){ most(now, highest), now };
}

// ---------------------------------------------------------------- the walk

size_t budget_schedule_peak(const BudgetSchedule *s, const Recompute *choice) {
    size_t held = 0, peak = 0;
    for (size_t i = 0; i < s->list->n; i++) {
        PipeOp op = s->list->ops[i];
        if (op.what == UPDATE) continue;
        const BudgetStage *part = &s->part[op.chunk * s->micro_batches + op.micro_batch];
        const Recompute *own = choice; // choices of the blocks of this chunk
        for (size_t c = 0; c < op.chunk; c++) own += s->part[c * s->micro_batches].blocks;
        size_t waits = waiting(part, own);
        Halves halves = in_halves(part, own);
        switch (op.what) {
        case FORWARD: // after its forward the micro-batch waits for its backward
            peak = most(peak, held + budget_peak(part, own));
            held += waits;
            break;
        case BACKWARD: // after its backward the micro-batch holds nothing
            held -= waits;
            peak = most(peak, held + budget_peak(part, own));
            break;
        case BACKWARD_INPUTS: // the inputs of the weight gradients stay
            held -= waits;
            peak = most(peak, held + halves.highest);
            held += halves.after;
            break;
        default: // BACKWARD_WEIGHTS frees the inputs of the weight gradients
            held -= halves.after;
        }
    }
    return peak;
}

// ---------------------------------------------------------------- the choice

static size_t all_blocks(const BudgetSchedule *s) {
    size_t blocks = 0;
    for (size_t c = 0; c < s->chunks; c++) blocks += s->part[c * s->micro_batches].blocks;
    return blocks;
}

// Returns true if the list has one chunk, whole backwards and no update. budget_choose() handles
// only such lists.
static bool is_plain(const BudgetSchedule *s) {
    for (size_t i = 0; i < s->list->n; i++)
        if (s->list->ops[i].what > BACKWARD) return false;
    return s->chunks == 1;
}
// Returns the sizes of micro-batch 0. Sets in_flight to the largest number of micro-batches that
// the list has in flight.
static BudgetStage plain_stage(const BudgetSchedule *s) {
    size_t now = 0, highest = 0;
    for (size_t i = 0; i < s->list->n; i++) {
        if (s->list->ops[i].what == FORWARD) now++;
        else now--;
        highest = most(highest, now);
    }
    BudgetStage stage = s->part[0];
    stage.in_flight = highest;
    return stage;
}

// Chooses full for the first `full` blocks, selective for the next `selective` blocks, and none for
// the other blocks.
static void choose_first(size_t blocks, size_t full, size_t selective, Recompute *choice) {
    for (size_t i = 0; i < blocks; i++)
        choice[i] = i < full               ? RECOMPUTE_FULL
                    : i < full + selective ? RECOMPUTE_SELECTIVE
                                           : RECOMPUTE_NONE;
}
// Tries all pairs of `full`, the number of blocks that are recomputed in full, and `selective`, the
// number of blocks that are recomputed selectively. There are about blocks^2 / 2 pairs. Chooses the
// pair within the budget with the least work. All blocks of a stage have the same work. Other plans
// with the same numbers are not tried, so a cheaper plan may exist.
static bool choose_counts(const BudgetSchedule *s, size_t budget, Recompute *choice) {
    size_t blocks = all_blocks(s), best_full = 0, best_selective = 0;
    const BudgetBlock *block = NULL;
    for (size_t c = 0; c < s->chunks && !block; c++)
        if (s->part[c * s->micro_batches].blocks) block = s->part[c * s->micro_batches].block;
    double least = -1; // -1 means that no plan was found yet
    for (size_t full = 0; full <= blocks; full++)
        for (size_t selective = 0; full + selective <= blocks; selective++) {
            double again = 0;
            if (block)
                again = (double)full * block->again[RECOMPUTE_FULL] +
                        (double)selective * block->again[RECOMPUTE_SELECTIVE];
            if (least >= 0 && again >= least) continue;
            choose_first(blocks, full, selective, choice);
            if (budget_schedule_peak(s, choice) > budget) continue;
            least = again;
            best_full = full;
            best_selective = selective;
        }
    choose_first(blocks, best_full, best_selective, choice);
    return least >= 0;
}

bool budget_within(const BudgetSchedule *s, size_t budget, Recompute *choice) {
    if (!is_plain(s)) return choose_counts(s, budget, choice);
    BudgetStage stage = plain_stage(s);
    return budget_choose(&stage, budget, choice);
}

size_t budget_least(const BudgetSchedule *s) {
    size_t blocks = all_blocks(s);
    Recompute *choice = host_alloc((blocks + 1) * sizeof *choice);
    choose_first(blocks, blocks, 0, choice);
    BudgetStage stage = plain_stage(s);
    size_t least = is_plain(s) ? budget_peak(&stage, choice) : budget_schedule_peak(s, choice);
    free(choice);
    return least;
}
