// experiments.h declares functions of this chapter's experiments and programs. Some functions print
// pictures of the mesh, compute the unsplit model's gradients as a reference, predict the costs and
// the time of a step, and check a training. Other functions print the pages of the programs sample
// and plan.
#ifndef EXPERIMENTS_08_H
#define EXPERIMENTS_08_H
#include "08_3d/checkpoint.h"
#include "08_3d/layouts.h"
#include "08_3d/mesh.h"
#include "08_3d/plan.h"
#include "08_3d/sampler.h"
#include "08_3d/trainer.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"
#include "judge/frame/training.h"
#include "judge/play/play.h"

// ------------------------------------------------- the mesh: options and pictures (mesh_picture.c)
// Returns the degrees of --dp, --tp, --pp and --cp, which the program's options must have.
Degrees mesh_options(Run *run);
// Prints each stage, with the stage's replicas side by side. A wide stage takes several lines. [ ]
// is a tensor-parallel group.
// stage_blocks: the number of blocks of each stage; NULL: the lines show no blocks.
void mesh_show(Run *run, Degrees n, const size_t *stage_blocks);
// Returns the link on which the group's messages travel, as a cell for results(), such as "=fast".
// Returns NULL if group is NULL or has one rank, or under the wall clock.
enum { LINK_NAME = 16 };
const char *mesh_link(const Comm *group, char text[LINK_NAME]);

// ---------------------------------------------------------------- the unsplit model (unsplit.c)
// Returns the model on one device, the reference for a split step's loss, gradients and norm. One
// rank calls the functions of this section, and no ledger counts their work. Free the model with
// model_free().
Model *unsplit_model(const TrainerConfig *c);
// Computes the gradients of the whole global batch of this step, without micro-batches.
// factor: the loss scale. The gradients contain the factor, the norm does not.
StepResult unsplit_gradients(Model *m, const TrainerConfig *c, const Data *d, uint64_t step,
                             double factor);

// ----------------------------------------------- the unsplit model under --compress (compressed.c)
// The reference computes the gradient of each replica's sequences on one device, and adds these
// gradients by the compression rule (01.06, 01.08). The reference applies the rule to each slice of
// each stage, because the trainer compresses these slices.
typedef struct Compressed Compressed;
// On rank 0 returns the reference for a trainer under --compress. The other ranks get NULL.
// Collective.
Compressed *compressed_new(const Trainer *t);
void compressed_free(Compressed *c); // NULL is allowed
// Does the same as unsplit_gradients(), but with the compressed sum over replicas. Only rank 0
// calls this function, and no ledger counts its work.
StepResult compressed_gradients(Compressed *c, Model *m, const TrainerConfig *config, const Data *d,
                                uint64_t step, double factor);
// Reads each rank's residuals and PowerSGD factors from the checkpoint of a resumed training. c
// NULL: the function does nothing.
void compressed_load(Compressed *c, const Checkpoint *from, const Trainer *t);

// ---------------------------------------------------------------- the costs of a step (predict.c)
// Costs of a step of the trainer on one rank, from sizes alone (PTD-P section 3.2, ZeRO section 7,
// Korthikanti section 4). predict_step() reads neither a model nor a ledger.
typedef struct {
    // tp_calls: all-reduces over tp, or all calls on a grid or cube.
    // dp_calls: calls over dp; 0 under ZeRO, where no check needs the number.
    size_t tp_calls, dp_calls;
    size_t tp_received;             // bytes, on a grid or cube
    size_t tp_gathers, tp_scatters; // all-gathers and reduce-scatters over tp
    // Bytes that this rank sends in one step. dp_bytes: over dp x cp.
    size_t tp_bytes, pp_bytes, dp_bytes, tied_bytes;
    size_t cp_bytes;
    // Bytes that this rank sends for the loss, and for the norm's squares, one per tensor.
    size_t scalar_bytes;
    size_t parameters, gradients, optimizer; // bytes between steps
    size_t activations;                      // peak bytes during the step
    // With --compress only.
    //     compression       bytes kept between steps (PowerSGD's Q)
    //     compression_peak  peak bytes while gradients are summed
    //     dp_time           picoseconds of that sum on the simulated clock, from the arrival of the
    //                       last replica
    size_t compression, compression_peak;
    double dp_time;
} Prediction;
Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw);
// Returns the peak of the activations in a step, in bytes (predict_activations.c).
// choice: the recomputation of each block of the stage; NULL: all blocks follow c->recompute.
size_t predict_activations(const TrainerConfig *c, Coordinates at, const Recompute *choice);

// ---------------------------------------------- how long a step takes (step_time.c, step_groups.c)
// Returns the time of a layout's step on the simulated clock, from sizes alone, in picoseconds. The
// function plays the products, rings and messages of the cost model (common/model/costs.h) through
// the schedule. The time begins with the first forward, or with ZeRO-3's gather of wte. The time
// ends after the all-reduces of the loss and the norm, and after the gathers of ZeRO-1 and ZeRO-2.
// The function does not work for grids and cubes, --prefetch, --overlap, --compress, --rebalance
// and --activation-budget.
double step_time(const TrainerConfig *c);
// Returns the time of step_time() with the links and nodes of `clock`. c must not have context
// parallelism, because the times of ring attention use the links of the run.
double step_time_with(const TrainerConfig *c, const ClockConfig *clock);
// Returns the layout dp x tp x pp whose step takes the least time, for the same ranks and with all
// else the same.
// *present: the time of a step in the layout of c.
// *best: the time of a step in the returned layout.
Degrees step_time_best(const TrainerConfig *c, double *present, double *best);
// Returns whether all groups of one kind are placed on nodes alike. If not, some ranks wait for
// other ranks at times that step_time() leaves out.
bool mesh_groups_alike(Degrees n);

// ---------------------------------------------------------------- layouts compared: 02_layouts.c
// The bytes that one rank sends in a step, inside its node and to other nodes (layout_traffic.c).
typedef struct {
    double inside, between;
} LayoutTraffic;
// Predicts the bytes that rank `rank` of the mesh sends.
// node: ranks per node; 0: one node for all.
// order: gives the process, a rank of the world, that is rank r of the mesh; NULL: process r.
LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank, size_t node,
                             LayoutOrder *order);
// Returns the bytes that this rank has sent. The previous and the next stage get the same number of
// bytes.
// process: as `order` of layout_traffic().
LayoutTraffic layout_sent(const Mesh *m, LayoutOrder *process);

// A step in one layout, as measured.
typedef struct {
    Degrees n;
    StepResult result;
    // Times in picoseconds. step: the whole step. computing, exposed: the time in which a rank
    // computes, or waits for communication, as a mean over the ranks. In the rest of the step a
    // rank is idle.
    double step, computing, exposed;
    // The largest values over all ranks. Only rank 0 has these values.
    // sent: the traffic inside nodes and between nodes.
    // state: the bytes of weights, gradients and moments.
    // activations: the peak bytes of the activations.
    LayoutTraffic sent;
    double state, activations;
    // Whether memory and time equal the memory and time of the plan. Also true where no plan is
    // compared: on other ranks than rank 0, and in the opposite order of ranks.
    bool as_planned;
} Layout;
// Returns whether the plan predicts the memory and the step of this layout (layout_plan.c). Rank 0
// judges, because only rank 0 has the largest values over all ranks.
bool layout_as_planned(const TrainerConfig *c, const Layout *l);
// Returns whether the plan of an interleaved pipeline on a slow link matches the played step. The
// function uses c with another mesh and other chunks.
bool layout_lanes_as_played(const TrainerConfig *c);
// Prints the page of the layouts (layout_page.c).
// layout [n]: the fastest layout first.
// opposed: the fastest layout, with its ranks numbered in the opposite order.
// c: the sizes of the model and the batch. All layouts have the same sizes.
void layouts_page(Run *run, const Layout *layout, size_t n, const Layout *opposed,
                  const TrainerConfig *c);

// --------------------------------------------------------- the costs of a training (train_costs.c)
// Resets the ledgers and the peaks of memory before a step. After the step, train_costs_end()
// compares the costs of the step with predict_step().
void train_costs_begin(Trainer *t);
void train_costs_end(Run *run, Trainer *t);

// ---------------------------------------------------------- the page of a training (train_page.c)
// Shows the mesh, with the blocks of each stage.
void train_show_mesh(Run *run, const TrainerConfig *c);
// Prints the table of traffic by group and link, and of memory by category. Call this function
// after train_costs_end().
void train_results(Run *run, const Trainer *t);
// Checks the time of the last step on the simulated clock against step_time(), if step_time() can
// play the step. Collective.
void train_check_time(Run *run, const Trainer *t, const Timing *timing);
// Prints the dp x tp x pp of the same ranks that would have been fastest on the simulated clock,
// with all else the same. If no layout is 1 % faster, prints that no layout is 1 % faster. Prints
// nothing if step_time() cannot play this step.
void train_say_faster(Run *run, const Trainer *t);

// ------------------------------------------------------- the checks of a training (train_checks.c)
// The values of each step. Under --check the checks compare the split model with the unsplit model.
// Without --check the checks compare only the replicas with each other.
typedef struct {
    double *loss, *norm;
} LossCurve; // [steps]
// Calls usage_error() for a model that --check cannot judge.
void train_checks_require(Run *run, const TrainerConfig *c);
// Checks the gradients of the first step that is not skipped, before the update. Collective.
// unsplit: the model that rank 0 trains beside the split model; NULL on the other ranks.
void train_check_first(Run *run, const Trainer *t, const Model *unsplit);
// Checks, after the training, the losses and norms of these steps, and the weights.
void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, LossCurve got,
                  LossCurve want);
// Returns the filter for the tensors that every rank compares. Under --reduce ordered the filter is
// NULL, which means all tensors. Under --reduce fast the filter leaves out copies within a replica,
// because their bits may differ.
Which train_originals(const Run *run);

// --------------------------------------------------- the state of a resumed run (train_saved.c)
// Checks that two epochs each take every window of the text once, in different orders.
void train_check_epochs(Run *run, const Data *d);
// Reads the checkpoint of step `done` into the unsplit model and its optimizer o. Checks that these
// weights, moments and masters equal those of the ranks in every bit. Call this function only with
// --check and --save.
void train_check_saved(Run *run, const Trainer *t, Model *unsplit, Optimizer *o, size_t done);

// ------------------------------------------------------- the memory of a training (train_memory.c)
// Prints the peak bytes in the ledger and the peak resident bytes of a process. Virtual ranks are
// one process.
void train_show_memory(Run *run); // collective

// ---------------------------------------------------------------- the program sample
// Runs the program 08_3d/sample: its options, its loop, its page (sample_run.c).
void sample_run(Run *run);
typedef struct {
    int *token;            // [all]; the first n are known so far
    size_t n, all, prompt; // the first `prompt` tokens are given
} SampleText;
// The windows of the text, in the order in which the model saw the windows, as ranges [start, end)
// of tokens. Neighbouring windows overlap.
typedef struct {
    Range *window;
    size_t n;
} SampleWindows;
// ---- sample_text.c ----
// Returns the tokens of --prompt or --ids, with room for --tokens more. vocab: the number of
// entries of the vocabulary. Calls usage_error() for tokens that the vocabulary lacks.
SampleText sample_text_begin(Run *run, size_t vocab);
// Prints the text as letters, or with `ids` as token ids.
void sample_text_show(Run *run, const SampleText *t, bool ids);
// ---- sample_checks.c ----
// Puts the logits of window k into the snapshot, from this row and column on.
void sample_put(Snapshot *s, const SampleWindows *w, size_t k, size_t vocab, Tensor logits,
                size_t row, size_t col);
// Checks the logits of all windows and the choice of every token. Collective.
void sample_compare(Run *run, Sampler *s, const Weights *w, const SampleText *t,
                    const SampleWindows *windows, Snapshot *got);
// Trains the model of w on rank 0 for a few seconds, on a text of this tree. All ranks get the
// weights (sample_train.c). Collective.
void sample_train(Run *run, Weights *w);
// The sizes from which sample_costs() computes the bytes that a rank sends and keeps while the
// program writes text (sample_costs.c).
typedef struct {
    size_t tp, pp, tp_rank, pp_rank, top_k, prompt, tokens;
} SampleSizes;
typedef struct {
    double rows, tp_bytes, pp_bytes, cache;
    double seconds; // real time
} SampleMeasured;
void sample_costs(Run *run, const ModelConfig *c, const SampleSizes *z, const SampleMeasured *got);

// ---------------------------------------------------------------- the program plan
// The errors of the planned times of n published steps (plan_anchors.c).
// mean, worst: the mean and the largest error, as a share of the published time.
// longest: how much longer than planned a published step took at most, as a share of the plan's
// time.
// fast: the number of steps for which the plan's time is too short.
typedef struct {
    double mean, worst, longest;
    size_t n, fast;
} AnchorErrors;
// held_out: the errors on rows that are held out, of the systems of the fit.
// others: the errors on other systems.
typedef struct {
    AnchorErrors held_out, others;
} Anchors;
// Compares the plan with published steps. print: also prints the table.
Anchors plan_anchors(Run *run, bool print);
// Compares the plan with published tables (plan_papers.c). All ranks compare PTD-P's sizes. Rank 0
// alone compares ZeRO's figures, and the other ranks wait for its verdict.
void plan_papers(Run *run);

// Describes a GPT of PTD-P and Korthikanti: 2048 positions, 51200 vocabulary entries.
#define PAPER_GPT(L, h, a) \
    { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 51200, .dropout = 0.1 }
// Returns a task on a cluster of DGX A100.
PlanTask paper_task(PlanModel model, size_t gpus);
bool paper_within(double x, double want, double share);
// Returns whether `text` is the number x, rounded or cut. For example, "41.3" stands for any x that
// differs from 41.3 by less than 0.1.
bool paper_printed(double x, const char *text);
#endif
