// ranks: 4
// level: core
// question: How do the ranks compute the loss when none of them has all logits of a token?
//
// Holds:  E [V, C] is the table of embedding and head. A rank has the rows of E for its V/t
//         vocabulary entries, and their logits [M, V/t]. X and dX [M, C] are whole on every rank.
// Sends:  forward all-reduces X (M C elements), and makes three all-reduces in the loss (M elements
//         each). Backward all-reduces dX (M C elements). In an all-reduce of n elements each rank
//         sends 2 (t-1) ceil(n/t).
// Saves:  each rank has 1/t of E, of its gradient, and of the M V logits.
// Costs:  five all-reduces per step, exposed. The loss exchanges 3 M elements instead of the M V
//         logits.
// The loss and all gradients must equal the unsplit computation's within rounding, and the
// looked-up rows in every bit. Shoeybi et al. 2019, section 3. Left out: positions, norms, and
// GPT's layers (06_transformer.c).
#include "03_tensor_parallel/tensor_parallel.h"

// Sets row i of y [M, C] to row tokens[i] of the whole table. `table` has this rank's rows of the
// whole table, from row `first` on. The backward of this lookup is embedding_gradients() of
// common/model/layer.c. That backward sends nothing, because dy is whole on every rank, and each
// rank adds the rows of its own entries.
void vocab_parallel_lookup(Comm *tp, Tensor y, Tensor table, const int *tokens, size_t first) {
    op_embed_tokens(y, table, tokens, first); // zeros for entries of other ranks
    // For each token one rank has put the row, and the other ranks have put zeros. Adding zeros
    // rounds nothing, so the sum equals that row exactly.
    comm_all_reduce(tp, y); // M C elements
}

// Sets loss [M, 1], the same on every rank, to log(sum over all V of exp(logit)) - logit of the
// target. A negative target has loss 0. No rank ever has all logits of a token. Each rank puts
// one element per token into each of three all-reduces. logits [M, V/t] become exponentials, and
// sum [M, 1] becomes their sum over all ranks. Backward reads the exponentials and the sum.
void vocab_parallel_loss(Comm *tp, Tensor loss, Tensor sum, Tensor logits, const int *targets,
                         size_t first) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, logits.rows, 1);
    Tensor picked = tensor_new(&scratch, logits.rows, 1);
    op_row_max(max, logits);
    // 1. The ranks will add their exponentials. So all exponentials must be relative to the same
    // number, the largest logit of all ranks.
    comm_all_reduce_max(tp, max); // M elements
    op_pick_target(picked, logits, targets, first);
    // 2. One rank holds the target's logit. The other ranks have put 0.
    comm_all_reduce(tp, picked);  // M elements
    op_exp_sum(sum, logits, max); // logits <- exp(logits - max)
    // 3. Each rank has the sum over its own vocabulary entries only.
    comm_all_reduce(tp, sum);                       // M elements
    op_token_loss(loss, picked, max, sum, targets); // log(sum) + max - picked
    arena_free(&scratch);
}

// Runs backward of logits = x E^T. The product is column-parallel, because E^T is cut by columns.
// loss_backward() has computed this rank's dlogits [M, V/t] = (exponential / sum - onehot) dloss
// without a message.
void vocab_parallel_backward(Comm *tp, Tensor dx, Tensor dlogits, Tensor x, Param *table) {
    op_matmul(dx, dlogits, table->w);          // [M, C] = [M, V/t] x [V/t, C]
    linear_gradients(table, NULL, dlogits, x); // [V/t, C] = [M, V/t]^T x [M, C]: finished
    // dX = dlogits E sums over all V entries. Each rank has the partial sum over its own V/t
    // entries.
    comm_all_reduce(tp, dx); // M C elements
}
