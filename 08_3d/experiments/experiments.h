// experiments.h: what the experiments and the programs of this chapter share: mesh and pictures,
// the unsplit model that a training is compared with, the prediction of a step's costs and time,
// and the checks of a training.
#ifndef EXPERIMENTS_08_H
#define EXPERIMENTS_08_H
#include "08_3d/checkpoint.h"
#include "08_3d/trainer.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"

// ---------------------------------------------------------------- the mesh: options and pictures (mesh_picture.c)
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
// What the layouts are compared with: one step's loss, gradients and norm of the model on one
// device. Uncounted, on one rank; free with model_free. Its gradients: of the whole global batch
// of this step, at once.
Model *unsplit_model(const TrainerConfig *c);
StepResult unsplit_gradients(Model *m, const TrainerConfig *c, const Data *d, uint64_t step);

// ---------------------------------------------------------------- the unsplit model under --compress (compressed.c)
// The unsplit model takes the gradient of each replica's sequences apart, as that replica does,
// and adds them by the same rule on one device (01.06). The rule is applied to each slice of
// each stage, because the trainer compresses these.
typedef struct Compressed Compressed;
Compressed *compressed_new(const Trainer *t);      // collective; NULL on all ranks but 0
void compressed_free(Compressed *c);               // NULL is allowed
// One step's gradient of the unsplit model m, on rank 0: unsplit_gradients, but for the sum over
// replicas. Uncounted.
StepResult compressed_gradients(Compressed *c, Model *m, const TrainerConfig *config, const Data *d,
                                uint64_t step);
// What rank `rank` of the mesh has not sent, and its factors, [compressed_count] as
// compression_state_read() orders them: for a training that is taken up. Each replica of a slice
// gives its factors; they are alike.
size_t compressed_count(const Compressed *c, size_t rank);
void compressed_resume(Compressed *c, size_t rank, const real *state);
// Every rank's, from a checkpoint; c NULL: nothing happens.
void compressed_load(Compressed *c, const Checkpoint *from, const Trainer *t);

// ---------------------------------------------------------------- what a step costs (predict.c)
// What a step of the trainer must cost one rank, from the sizes alone (techniques: PTD-P section
// 3.2, ZeRO section 7, Korthikanti section 4). Nothing here looks at a model or at a ledger.
typedef struct {
    // All-reduces on tp, or all calls on a grid; over dp.
    size_t tp_calls, dp_calls;
    size_t tp_received;                                    // bytes, on a grid
    size_t tp_gathers, tp_scatters;                        // all-gathers and reduce-scatters on tp
    // Sent by this rank in one step; dp: over dp x cp.
    size_t tp_bytes, pp_bytes, dp_bytes, tied_bytes;
    size_t cp_bytes;
    // The loss, and the norm's squares, one a tensor.
    size_t scalar_bytes;
    size_t parameters, gradients, optimizer;               // bytes between steps
    size_t activations;                                    // peak bytes during the step
    // With --compress: kept between steps (PowerSGD's Q), and the most while gradients are summed; and picoseconds of
    // that sum on the simulated clock, from when the last replica has come.
    size_t compression, compression_peak;
    double dp_time;
} Prediction;
Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw);

// ---------------------------------------------------------------- how long a step takes (step_time.c)
// How long a step of a layout takes on the simulated clock, from sizes alone: the cost model's
// products, rings and messages (common/model/costs.h), played through the schedule. No model, no
// run. Picoseconds, from the first forward to the gradient's norm and ZeRO's gather. Not for
// --prefetch and --overlap, which hide communication.
double step_time(const TrainerConfig *c);
// The layout dp x tp x pp of the same ranks, with all else the same, that takes the least time;
// *time is its step.
Degrees step_time_best(const TrainerConfig *c, double *time);

// ---------------------------------------------------------------- the costs of a training (train_costs.c)
// What a step of the trainer has cost, beside predict_step(), and the table that a page shows.
// The mesh, with the blocks of each stage.
void train_show_mesh(Run *run, const TrainerConfig *c);
// Starts the ledgers anew; train_costs_end() compares what the step in between has cost with the
// formulas.
void train_costs_begin(Trainer *t);
void train_costs_end(Run *run, Trainer *t);
// Traffic by group and the link that it takes, and memory by category. After train_costs_end.
void train_results(Run *run, const Trainer *t);
// Which dp x tp x pp of the same ranks would have been faster on the simulated clock, all else
// the same. Silent where step_time() does not have this step: under real time, with --prefetch
// or --overlap.
void train_say_faster(Run *run, const Trainer *t, const Timing *timing);

// ---------------------------------------------------------------- the checks of a training (train_checks.c)
// What the trainer compares: with the unsplit model under --check, else the replicas with each
// other.
typedef struct { double *loss, *norm; } LossCurve;     // [steps]
// Usage_error() for a model that --check cannot judge.
void train_checks_require(Run *run, const TrainerConfig *c);
// Collective. unsplit: the model trained beside it, on rank 0; NULL elsewhere.
// gradients, before the update
void train_check_first(Run *run, const Trainer *t, const Model *unsplit);
// After the training: losses and norms of these steps, weights.
void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, LossCurve got,
                  LossCurve want);
// With --check and --save. The order of the text is one without replacement; the checkpoint of
// step `done`, read into the unsplit model and o, its optimizer, has the weights and moments
// that the ranks hold, every bit.
void train_check_epochs(Run *run, const Data *d);
void train_check_saved(Run *run, const Trainer *t, Model *unsplit, Optimizer *o, size_t done);

// ---------------------------------------------------------------- the memory of a training (train_memory.c)
// What the ledger says beside what the process had, on the trainer's page.
// Virtual ranks are one process.
void train_show_memory(Run *run);                  // collective
#endif
