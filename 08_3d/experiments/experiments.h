// experiments.h: functions of the experiments and programs of this chapter: pictures of the mesh,
// the unsplit model as a reference, predicted costs and times of a step, and checks of a training.
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
#include "judge/play/play.h"

// ------------------------------------------------- the mesh: options and pictures (mesh_picture.c)
// The degrees of --dp, --tp, --pp and --cp, which the program's options must have.
Degrees mesh_options(Run *run);
// A line for each stage, its replicas side by side: [ ] is a tensor-parallel group.
// stage_blocks: how many blocks each stage has, or NULL: without them.
void mesh_show(Run *run, Degrees n, const size_t *stage_blocks);
// For results(): "=fast", the link on which the group's messages travel; NULL for one rank, no
// group or the wall clock.
enum { LINK_NAME = 16 };
const char *mesh_link(const Comm *group, char text[LINK_NAME]);

// ---------------------------------------------------------------- the unsplit model (unsplit.c)
// The model on one device. A split step's loss, gradients and norm are compared with it. One rank
// calls these functions, and no ledger counts them. Free the model with model_free(). The gradients
// are those of the whole global batch of this step, computed without micro-batches.
Model *unsplit_model(const TrainerConfig *c);
// factor: of the loss scale; gradients contain it, the norm does not.
StepResult unsplit_gradients(Model *m, const TrainerConfig *c, const Data *d, uint64_t step,
                             double factor);

// ----------------------------------------------- the unsplit model under --compress (compressed.c)
// The unsplit model takes the gradient of each replica's sequences apart, as that replica does,
// and adds them by the same rule on one device (01.06). The rule is applied to each slice of
// each stage, because the trainer compresses these.
typedef struct Compressed Compressed;
Compressed *compressed_new(const Trainer *t); // collective; NULL on all ranks but 0
void compressed_free(Compressed *c);          // NULL is allowed
// unsplit_gradients() with the compressed sum over replicas, on rank 0. No ledger counts it.
StepResult compressed_gradients(Compressed *c, Model *m, const TrainerConfig *config, const Data *d,
                                uint64_t step, double factor);
// For a training that is resumed: reads from the checkpoint the elements that every rank has not
// sent, and its factors. c NULL: nothing happens.
void compressed_load(Compressed *c, const Checkpoint *from, const Trainer *t);

// ---------------------------------------------------------------- the costs of a step (predict.c)
// The costs of a step of the trainer on one rank, from the sizes alone (PTD-P section 3.2, ZeRO
// section 7, Korthikanti section 4). predict_step() reads neither a model nor a ledger.
typedef struct {
    // All-reduces on tp, or all calls on a grid; over dp.
    size_t tp_calls, dp_calls;
    size_t tp_received;             // bytes, on a grid
    size_t tp_gathers, tp_scatters; // all-gathers and reduce-scatters on tp
    // Sent by this rank in one step; dp: over dp x cp.
    size_t tp_bytes, pp_bytes, dp_bytes, tied_bytes;
    size_t cp_bytes;
    // Of the loss, and of the norm's squares, one per tensor.
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
// predict_activations.c: the peak of the activations in a step, in bytes.
// choice: the recomputation of each block of the stage; NULL: all blocks follow c->recompute.
size_t predict_activations(const TrainerConfig *c, Coordinates at, const Recompute *choice);

// ---------------------------------------------- how long a step takes (step_time.c, step_groups.c)
// The time of a layout's step on the simulated clock, from sizes alone. It plays the products,
// rings and messages of the cost model (common/model/costs.h) through the schedule. In picoseconds,
// from the first forward to the gradient's norm and ZeRO's gather. Not for --prefetch and
// --overlap, which hide communication, and not for --compress.
double step_time(const TrainerConfig *c);
// The same with the links and nodes of `clock`. Not for context parallelism, which reads the links
// of the run.
double step_time_with(const TrainerConfig *c, const ClockConfig *clock);
// The layout dp x tp x pp of the same ranks, with all else the same, that takes the least time.
// *present: the step of the layout of c.
// *best: the step of the returned layout.
Degrees step_time_best(const TrainerConfig *c, double *present, double *best);
// Do all groups of one kind lie in the nodes in the same way? If not, some ranks wait for other
// ranks at times that step_time() leaves out.
bool mesh_groups_alike(Degrees n);

// ---------------------------------------------------------------- layouts compared: 02_layouts.c
// layout_traffic.c: bytes that one rank sends in a step, inside its node and to other nodes.
typedef struct {
    double inside, between;
} LayoutTraffic;
// Predicted, for rank `rank` of the mesh.
// node: ranks per node; 0: one node for all.
// order: the process, a rank of the world, at each place of the mesh; NULL: rank r is process r.
LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank, size_t node,
                             LayoutOrder *order);
// Measured on this rank. Both neighbours in the pipeline get as many bytes.
LayoutTraffic layout_sent(const Mesh *m, LayoutOrder *process);

// A step in one layout, as measured.
typedef struct {
    Degrees n;
    StepResult result;
    // Picoseconds: the step; computing and exposed communication are means over the ranks. The rest
    // of the step is idle.
    double step, computing, exposed;
    // On rank 0: traffic of the rank that sends most; bytes of the rank that has most of weights,
    // gradients and moments, and of activations at their peak.
    LayoutTraffic sent;
    double state, activations;
    bool as_planned; // memory and step are those of the plan
} Layout;
// layout_page.c: the page. layout [n]: the fastest one first; opposed: the fastest layout, with its
// ranks numbered in the opposite order.
void layouts_page(Run *run, const Layout *layout, size_t n, const Layout *opposed);

// --------------------------------------------------------- the costs of a training (train_costs.c)
// Shows the mesh, with the blocks of each stage.
void train_show_mesh(Run *run, const TrainerConfig *c);
// Starts the ledgers anew. train_costs_end() compares the costs of the step in between with
// predict_step().
void train_costs_begin(Trainer *t);
void train_costs_end(Run *run, Trainer *t);
// The table of traffic by group and link, and of memory by category. Call it after
// train_costs_end().
void train_results(Run *run, const Trainer *t);
// Checks the time of the last step on the simulated clock against step_time(), if step_time() lists
// the step. Collective.
void train_check_time(Run *run, const Trainer *t, const Timing *timing);
// Says which dp x tp x pp of the same ranks would have been faster on the simulated clock, all else
// the same. Says nothing where step_time() does not list this step.
void train_say_faster(Run *run, const Trainer *t);

// ------------------------------------------------------- the checks of a training (train_checks.c)
// Under --check the split model is compared with the unsplit one; else replicas with each other.
typedef struct {
    double *loss, *norm;
} LossCurve; // [steps]
// usage_error() for a model that --check cannot judge.
void train_checks_require(Run *run, const TrainerConfig *c);
// The gradients of the first step, before its update. Collective. unsplit: the model that rank 0
// trains beside the split one; NULL elsewhere.
void train_check_first(Run *run, const Trainer *t, const Model *unsplit);
// After the training: the losses and norms of these steps, and the weights.
void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, LossCurve got,
                  LossCurve want);
// With --check and --save. train_check_epochs() checks that each epoch takes every window of the
// text once. train_check_saved() reads the checkpoint of step `done` into the unsplit model and its
// optimizer o. Their weights and moments must equal those of the ranks in every bit.
void train_check_epochs(Run *run, const Data *d);
void train_check_saved(Run *run, const Trainer *t, Model *unsplit, Optimizer *o, size_t done);

// ------------------------------------------------------- the memory of a training (train_memory.c)
// The peak in the ledger beside the peak of the process. Virtual ranks are one process.
void train_show_memory(Run *run); // collective

// ---------------------------------------------------------------- the program sample
// sample_run.c: the options of 08_3d/sample, its loop, its page.
void sample_run(Run *run);
typedef struct {
    int *token;            // [all], of which n are written
    size_t n, all, prompt; // the first `prompt` tokens are given
} SampleText;
// The windows of the text that the model saw, one after another, as ranges [start, end).
typedef struct {
    Range *window;
    size_t n;
} SampleWindows;
// sample_checks.c. sample_put() puts the logits of window k from this row and column on.
// sample_compare() judges all windows and every token. Collective.
void sample_put(Snapshot *s, const SampleWindows *w, size_t k, size_t vocab, Tensor logits,
                size_t row, size_t col);
void sample_compare(Run *run, Sampler *s, const Weights *w, const SampleText *t,
                    const SampleWindows *windows, Snapshot *got);
// sample_train.c: trains the model of w on a text of this tree, on rank 0, for a few seconds, and
// gives all ranks its weights. Collective.
void sample_train(Run *run, Weights *w);
// sample_costs.c: the bytes that a rank sends and keeps while it writes, from sizes alone.
typedef struct {
    size_t tp, pp, tp_rank, pp_rank, top_k, prompt, tokens;
} SampleSizes;
typedef struct {
    double rows, tp_bytes, pp_bytes, cache;
    double seconds; // real time
} SampleMeasured;
void sample_costs(Run *run, const ModelConfig *c, const SampleSizes *z, const SampleMeasured *got);

// ---------------------------------------------------------------- the program plan
// plan_anchors.c: the errors of the plan's steps on n published ones. fast: how many steps of the
// plan are too short.
typedef struct {
    double mean, worst;
    size_t n, fast;
} AnchorErrors;
// held_out: of the systems of the fit. others: of other systems.
typedef struct {
    AnchorErrors held_out, others;
} Anchors;
// Compares the plan with published steps. print: the table, too.
Anchors plan_anchors(Run *run, bool print);
// plan_papers.c: the plan beside published tables. Rank 0 computes; the others wait for its
// verdict.
void plan_papers(Run *run);

// A GPT of PTD-P and Korthikanti: 2048 positions, 51200 vocabulary entries.
#define PAPER_GPT(L, h, a) \
    { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 51200, .dropout = 0.1 }
PlanTask paper_task(PlanModel model, size_t gpus); // a task on some kind of DGX A100
bool paper_within(double x, double want, double share);
// Is `text` what x is when it is rounded or cut? "41.3" stands for any number less than 0.1 away.
bool paper_printed(double x, const char *text);

// ---- step_groups.c ----
// The groups of a mesh for the player of expected steps (step_time.c).

// group[r] <- the group of rank r: the ranks that differ from it along these axes only.
void step_groups(Play *play, Degrees n, unsigned axes, const char *name, size_t *group);
// Do the ranks of cp share a node, in this stage and in each group that keeps step with it?
bool step_cp_near(Degrees n, Coordinates at);
#endif
