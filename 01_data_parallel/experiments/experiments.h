// experiments.h: functions that experiments of this chapter and of later chapters share. The
// functions run trainings, predict the costs of all-reduces, buckets and compressed gradients, and
// compute references on one device.
#ifndef DATA_PARALLEL_EXPERIMENTS_H
#define DATA_PARALLEL_EXPERIMENTS_H
#include "01_data_parallel/compression.h"
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/parameter_server.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"
#include "judge/frame/training.h"

// ------------------------------------------------ measured.c: trainings, and their costs on a rank

// Returns a training with SGD on random sequences, with one micro-batch per shard and the element
// types of --storage.
Training synthetic_training(Run *run, const ModelConfig *model, size_t steps, size_t sequences);
// Returns the model with all layers, allocated. Equal seeds give equal weights on all ranks.
Model *whole_model(const ModelConfig *model);
// Returns a training of a small model with SGD on the text of --data, because a model cannot learn
// random sequences.
Training text_training(Run *run, size_t steps, size_t sequences, double rate);
// Returns the loss of m's weights on the first 8 batches of the text. The ledger does not count
// this work.
double text_loss(const Training *t, Model *m);

// The measured costs of a rank.
typedef struct {
    double calls, sent;                               // of all CommKinds, in all steps
    double reductions, reduced;                       // calls and bytes of all-reduces
    double broadcasts, broadcast;                     // calls and bytes of broadcasts
    double parameters, gradients, optimizer, buffers; // bytes held
    double buffers_peak, activations_peak;            // bytes, since the last reset of peaks
    Timing last; // times of the recorded step, which measured_now()'s caller fills in
} Measured;
Measured measured_now(const Comm *c);

// A replica whose gradients are reduced in buckets.
typedef struct {
    Comm *dp;
    Buckets *buckets;
    Tensor sum; // a second gradient buffer; only chapter 02's 03_no_sync allocates and uses `sum`
} BucketReplica;
// Trains on all ranks. `step` gets a BucketReplica, and returns this rank's part of the loss and
// the gradient's norm. A bucket is closed at `capacity` bytes. t->recorded must be true, because
// *seen gets the times of the recorded step.
Trajectory replica_train(Run *run, const Training *t, Step *step, size_t capacity, Measured *seen);

// --------------------------------------------------- ring_costs.c: four ways to make an all-reduce

typedef enum { RING, GATHER, TREE, HALVING, WAYS } Way;
extern const char *const way_name[WAYS];
size_t way_height(size_t N); // log2 N, rounded up

typedef struct {
    size_t messages, bytes; // sent
    size_t scratch;         // bytes of scratch memory
} WayCosts;
// Predicts the costs of rank r of N for `count` elements of e bytes.
WayCosts way_costs(Way way, size_t N, size_t r, size_t count, size_t e);

// Returns the picoseconds over link l until the last rank is done. Each rank has one port in and
// one port out (clock.h).
double way_time_on(const ClockLink *l, Way way, size_t N, size_t count, size_t e);
// Returns the bytes of the smallest multiple of N elements for which the ring is no slower than the
// tree, over this run's link between nodes. The link's beta must not be 0.
size_t way_ring_overtakes(size_t N, size_t e);

// ------------------------------------------ ring_nodes.c: 03_ring's hierarchical way over nodes

// Returns this rank's tensor of small whole numbers. Sums of such tensors over ranks are exact.
Tensor ring_tensor(Run *run, Arena *memory, size_t count);
// Compares the sum of the hierarchical way with the library's sum. Compares the bytes and the time
// of the hierarchical way and of the library's flat ring with formulas. If there are several nodes,
// prints the table of these costs and returns true. If there is one node, returns false. If the
// ranks do not fill the nodes, only prints a message and returns false.
bool ring_nodes(Run *run);

// ------------------------------------------------------------- bucket_costs.c: reducing in buckets

// Numbers of elements of the tensors on a rank.
typedef struct {
    size_t wte, wpe;                // the two tables
    size_t block[TENSORS_OF_BLOCK]; // a block's tensors, in model order
    size_t norm, norm_bias;         // gain and bias of the last norm
} TensorElements;
// A bucket is complete after the backward of `layer`, which has the bucket's first tensor in model
// order. Layer 0 is the stage's first layer.
typedef struct {
    size_t elements, layer;
} BucketPiece;
// Predicts the buckets that the rule of 04_overlap.c makes of the tensors of the stage z, and
// returns the number of buckets. *piece, which the caller frees, has the buckets in the order of
// their starts. If the stage shares wte with another stage, the last piece is wte alone.
size_t bucket_pieces(const CutSizes *z, const TensorElements *of, size_t capacity,
                     BucketPiece **piece);

typedef struct {
    size_t buckets;
    double bytes;           // sent by each rank
    size_t scratch;         // bytes of the sums in flight
    double exposed, hidden; // picoseconds, added over ranks
    double hidden_last;     // picoseconds hidden on the last rank, which has the smallest shard
    double step;            // picoseconds until backward and the last bucket have ended
} BucketCosts;
// Predicts the costs of a step whose `sequences` are cut over the ranks, and on each rank in
// micro-batches. The last micro-batch's backward starts the buckets. A bucket begins when its
// gradients are final on all ranks and the bucket before has ended.
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences,
                         size_t micro_batches);

// ----------------------------------------------- compression_costs.c: 06_compression, 08_power_sgd

typedef struct {
    double sent; // bytes that rank r of N sends
    size_t calls;
    size_t errors;  // elements of residuals, which are kept between steps
    size_t factors; // elements of the matrices q, which are kept between steps
    size_t buffers; // elements of communication memory at the peak, with the factors
} CompressionCosts;
// Predicts the costs of a step on rank r of N ranks. Each rank has a replica of the part z of the
// model, which may be a stage or a slice.
CompressionCosts compression_costs(const CutSizes *z, const CompressionPlan *plan, size_t N,
                                   size_t r);
// Predicts the picoseconds of a compressed sum by TOP_K or POWER_SGD on the simulated clock, from
// the moment when the last replica begins the sum. The N ranks have `cards` network cards between
// nodes (clock.h). Choosing the largest elements and making columns orthonormal take no time,
// because the clock counts products only.
double compression_time(const CutSizes *z, const CompressionPlan *plan, size_t N, size_t cards);

// ------------------------------------------------- page_texts.c: texts of several pages

// Returns a sentence for a page: ranks with fewer sequences wait for the other ranks. `before`, a
// space or a newline, stands in front of the sentence. Returns an empty text if all shares are
// equal.
const char *uneven_shares(Run *run, const char *before, size_t sequences);

// ------------------------------------------------ compression_reference.c: the rules on one device

// The state that N ranks would keep, on one device. error [N, Psi] has a residual per rank,
// server_error [1, Psi] the residuals of all servers.
typedef struct {
    CompressionPlan plan;
    CompressedBucket *buckets;
    size_t n_buckets;
    Tensor error, server_error;
    Arena arena;
} OneDevice;
OneDevice one_device_new(const CompressionPlan *plan, const Model *m, size_t shards, uint64_t seed);
void one_device_free(OneDevice *o);
// Sets sum [1, Psi] to the sum that N ranks with the rows of g [N, Psi] would reconstruct.
void one_device_sum(OneDevice *o, Tensor sum, Tensor g);
// Trains on rank 0. The rule of `plan` gets the gradients of `shards` shards. The ledger
// does not count this work. Returns an empty trajectory on the other ranks.
Trajectory one_device_course(Run *run, const Training *t, const CompressionPlan *plan,
                             size_t shards);

// ---------------------------------------------- compression_checks.c: 06_compression, 08_power_sgd

// Measured costs of a step: bytes that a rank sends, calls, picoseconds.
typedef struct {
    double sent, calls, step;
} CompressionSeen;
// Trains on all ranks with a compressed sum, or for plan NULL with the exact sum. If seen is given,
// the function fills *seen in, and checks the costs of a compressed sum.
Trajectory compression_train(Run *run, const Training *t, const CompressionPlan *plan,
                             CompressionSeen *seen);
// Compares a training with the rule on one device, and checks the training's costs.
void compression_check_rule(Run *run, const Training *t, const CompressionPlan *plan,
                            CompressionSeen *seen);

// COMPRESSION_LONG is the number of steps of a training on text.
enum { COMPRESSION_LONG = 60, MOST_CURVES = 8 };
typedef struct {
    const char *name;
    const CompressionPlan *plan; // NULL: the exact sum
    bool alone; // one device applies the rule to the whole gradient; the curve is not drawn
} Curve;
// Trains on the text --data with the rate --lr and draws the losses of n curves, at most
// MOST_CURVES. Sets last[n] to the mean loss of the last ten steps.
void compression_curves(Run *run, const Curve *curve, size_t n, double *last);
// The options of 06_compression and 08_power_sgd: --data and --lr for the curves, and --link.
extern const Option compression_options[];
// Shows one picture of two steps, first with the exact all-reduce and then with a compressed one.
void compression_show_steps(Run *run, const Training *t, const CompressionPlan *plan,
                            const char *title);

// ------------------------------------------------- page_texts.c: 06_compression, 08_power_sgd

// Returns the bytes sent, in percent of the exact sum's bytes. Returns 0 if there is one rank,
// which sends nothing.
double compression_share(const CompressionSeen *seen, const CompressionSeen *exact);
// Returns the table cell of the bytes sent. compression_share() follows the bytes, unless seen is
// exact or the exact sum sends nothing.
const char *compression_sent(Run *run, const CompressionSeen *seen, const CompressionSeen *exact);

// ---- balance_forecast.c: the devices, shares and times of 07_balance ----
enum { BALANCE_STEPS = 12, MOST_DEVICES = 32 };
typedef enum { EQUAL, STATIC, DYNAMIC, POLICIES } Policy;
// For a sequence device r takes slow[r] times as long as a device of the full rate. Device 0 takes
// `changed` times as long as before in step `change` and later. n is the number of devices.
typedef struct {
    const ModelConfig *model;
    size_t sequences, change, changed, n, slow[MOST_DEVICES];
} Devices;
// A training, as measured or predicted.
typedef struct {
    Range share[BALANCE_STEPS * MOST_DEVICES]; // [BALANCE_STEPS][n]
    double time[BALANCE_STEPS];                // picoseconds of a step, equal on all ranks
    Measured costs;                            // of a measured training only
} BalanceRecord;
BalanceRecord balance_forecast(Policy p, const Devices *d);
// Returns the picoseconds of a step, with its all-reduce, if sequences could be cut so that all
// devices finish at the same time.
double balance_ideal(const Devices *d, size_t step);

// ---- balance_page.c ----
// Plots the time of every step of seen[POLICIES], and the ideal time. The unit is one sequence on a
// device of the full rate.
void balance_show_times(Run *run, const Devices *d, const BalanceRecord *seen, int picture);
// Prints the page's table. `ideal` is the time of all steps if sequences could be cut.
void balance_table(Run *run, const Devices *d, const BalanceRecord *seen, double ideal);

// ---- server_costs.c: predictions from sizes and speeds alone ----
typedef struct {
    const ModelConfig *model;
    size_t sequences;
    size_t steps; // of each worker
    size_t servers, workers;
    size_t slow; // the first worker takes `slow` times as long per sequence as the other workers
} ServerSizes;
// Predicts the picoseconds of a forward and backward of worker w's sequences.
double server_computing(const ServerSizes *z, size_t w);
// server_push predicts the picoseconds of a push to server 0, which has the largest piece.
// server_answer predicts the picoseconds of an answer of server 0.
double server_push(const ServerSizes *z);
double server_answer(const ServerSizes *z);
// Compares the costs of a synchronous training with predictions. `one_port` is the time of the same
// training with one port per server.
void server_costs(Run *run, const ServerSizes *z, const Measured *seen, Picoseconds one_port);

// ---- server_log.c ----
// The log of an asynchronous parameter server, in the order in which the server served the pushes.
// Line v is the push that made version v + 1 of the weights from version v.
typedef struct {
    size_t workers;
    size_t steps;      // of each worker
    size_t staleness;  // the bound, at most steps, because no worker can be further ahead
    char name[24];     // "staleness 1", "no bound"
    Served *line;      // [workers * steps], or NULL if the server is synchronous
    Picoseconds begin; // when version 0 was sent
} ServerLog;
ServerLog server_log_new(size_t workers, size_t steps, size_t staleness);

// Returns the largest age of a gradient: the number of updates between the weights at which the
// gradient was taken and the weights that it changes.
size_t server_log_oldest(const ServerLog *log);

// Checks that the pushes were served in the order of their arrival. Of pushes that arrive at the
// same time, the push of the worker with the lower number is first. Also checks the bound on the
// age of gradients.
void server_log_check(Run *run, const ServerLog *log);
// Trains the reference on one device, rank 0. The ledger does not count this work. The device takes
// each push's gradient at the version that the worker had, and applies this gradient to the newest
// weights. A step of the result is a line of the log.
Trajectory server_log_replay(Run *run, const Training *t, const ServerLog *log);

// ---- server_training.c: trainings with a parameter server ----
typedef struct {
    // The log of server 0, on all ranks. A synchronous server has no lines. The caller frees
    // log.line.
    ServerLog log;
    bool one_port; // a server has one port in and one port out (clock.h)
    Measured seen;
} ServerRecord;
// Trains synchronously if record->log has no lines, else asynchronously, and fills in the record. A
// step of the result is a step of all workers, or one push of the log. The result has no norms.
Trajectory server_train(Run *run, const Cluster *c, const Training *t, ServerRecord *record);

// The losses of trained weights on a text, in nats per byte, means of SERVER_SEEDS seeds. Every
// worker makes SERVER_LONG steps. The SERVER_RULES are synchronous, with a bound, and without a
// bound.
enum { SERVER_LONG = 40, SERVER_RULES = 3, SERVER_SEEDS = 3 };
typedef struct {
    double half[SERVER_RULES];   // after took / 2
    double end[SERVER_RULES];    // at the end
    size_t pushes[SERVER_RULES]; // in the weights after took / 2
    double took;                 // picoseconds of the synchronous training
} ServerLosses;
ServerLosses server_losses(Run *run, const Cluster *c, size_t staleness);
#endif
