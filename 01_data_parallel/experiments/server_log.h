// server_log.h: the log of an asynchronous parameter server. The log holds the order in which the
// server served the pushes. It is predicted from sizes and speeds, and replayed on one device.
#ifndef SERVER_LOG_H
#define SERVER_LOG_H
#include "01_data_parallel/parameter_server.h"
#include "judge/frame/training.h"

// Line v is the push that made version v + 1 of the weights from version v.
typedef struct {
    size_t workers, steps, staleness;              // steps per worker; staleness = steps: no bound
    char name[24];                                 // "staleness 1", "no bound"
    Served *line;                                  // [workers * steps]; NULL: synchronous
    Picoseconds begin;                             // when version 0 was sent
    bool same;                                     // every server served in this order
} ServerLog;
ServerLog server_log_new(size_t workers, size_t steps, size_t staleness);
// Collective: every rank gets server 0's lines, and log->same says whether the others agree.
void server_log_share(ServerLog *log, const Cluster *c);

// The largest values in a log.
//     lag     versions between the weights that gave a gradient and the weights that it changes
//     ahead   steps that a worker, at the start of a step, has done more than the slowest worker
//     pushes  per millisecond, until the first worker has finished
typedef struct { size_t lag, ahead; double pushes; } ServerLogSeen;
ServerLogSeen server_log_look(const ServerLog *log);

// Checks that the log is the one that follows from the times (picoseconds): computing[w] of a step
// of worker w, and one message. Also checks the bounds on staleness and age.
void server_log_check(Run *run, const ServerLog *log, const double *computing, double message);
// The reference: one device (rank 0, uncounted) takes each push's gradient at the version that its
// worker had, and applies it to the newest weights. A step of the result is a line of the log.
Trajectory server_log_replay(Run *run, const Training *t, const ServerLog *log);
#endif
