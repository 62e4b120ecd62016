// 05_log.h: what an asynchronous parameter server did, line by line; what it must have done; and the reference.
#ifndef SERVER_LOG_H
#define SERVER_LOG_H
#include "01_data_parallel/parameter_server.h"
#include "01_data_parallel/experiments/05_costs.h"

// A push: of which worker, the version of the weights that its gradient was taken at, and when it arrived.
typedef struct { size_t worker, taken; Picoseconds arrival; } Served;
// Line v is the push that made version v + 1 of the weights out of version v. Version 0 is what all begin with.
typedef struct {
    size_t workers, steps, staleness;              // steps of each worker; a staleness of `steps` is no bound
    char name[24];                                 // "staleness 1", "no bound"
    Served *line;                                  // [workers * steps]; NULL: none, a synchronous training
    Picoseconds begin;                             // when version 0 was sent
    bool same;                                     // every server served in this order
} Log;
Log log_new(size_t workers, size_t steps, size_t staleness);
void log_free(Log *log);

// What a server writes down, for the comparison alone: of every version of its piece of the weights the gradient that
// was applied, the weights that came of it, and the gradient's squares, per update and tensor.
typedef struct { Trajectory *got; double *squares; } Notes;
void notes_version(Notes *notes, size_t version, const Model *m);
// After a training, collective. All get server 0's log, the losses (of each update; each worker has those of its steps)
// and the norms (from each server's squares), for the comparison: the training needs none.
void log_tell(Log *log, const Cluster *c, Notes *notes, const double *loss, size_t tensors);
// The reference: one device (rank 0, uncounted) that takes each push's gradient at the version of the weights which its
// worker had, and applies it to the newest. A step of the Trajectory is a line of the log.
Trajectory log_replay(Run *run, const Training *t, const Log *log);
// Is it the log that must come of these sizes?
void log_check(Run *run, const Log *log, const ServerSizes *z);
// Whichever worker is the slowest, the others must wait for it, and it must not wait. In the log it is always one.
void log_check_bound(Run *run, const Cluster *c, bool (*may_go_on)(const Cluster *, const size_t *, size_t, size_t));
// Every bit of gradients, weights, losses and norms; but where servers share a tensor, norms within the rounding.
void server_compare(Run *run, const Cluster *c, const char *what, Trajectory *got, Trajectory *want);
// The most that is seen in a log. Lag: versions between the weights of a gradient and those it is applied to. Ahead:
// steps that a worker which begins one has done more than the slowest. And pushes a millisecond until the first worker
// is through.
typedef struct { size_t lag, ahead; double pushes; } LogSeen;
LogSeen log_look(const Log *log);
// The most versions that the bound on staleness allows a gradient to lag.
size_t log_oldest(const Log *log);
#endif
