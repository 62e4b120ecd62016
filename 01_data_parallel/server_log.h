// server_log.h: what an asynchronous parameter server did, line by line; and what it must have done.
#ifndef SERVER_LOG_H
#define SERVER_LOG_H
#include "common/course.h"

// Line v is the push that made version v + 1 of the weights out of version v. Version 0 is what all begin with.
typedef struct { size_t worker, taken; Picoseconds arrival; } Served;  // taken: the version its gradient was taken at

// The log of `workers` that take `steps` steps each, at most `staleness` apart: from how long they compute for one
// (computing[workers]) and how long a message takes. All are sent version 0 at `begin`.
void log_predict(Served *log, size_t workers, size_t steps, size_t staleness, Picoseconds begin,
                 const double *computing, double message);
void log_check(Run *run, const char *what, const Served *got, const Served *want, size_t lines);

// The most that is seen in a log. Lag: versions between the weights of a gradient and those it is applied to. Ahead:
// steps that a worker which begins one has done more than the slowest. And pushes a millisecond until the first worker
// is through.
typedef struct { size_t lag, ahead; double pushes; } LogSeen;
LogSeen log_look(const Served *log, size_t workers, size_t steps, Picoseconds begin);

// Collective: all get the log of rank 0. Is the order in mine the same? (A smaller piece arrives a little earlier.)
bool log_tell(Run *run, Served *log, size_t lines, bool mine);
// The reference: one device (rank 0, uncounted) that takes each push's gradient at the version of the weights which its
// worker had, and applies it to the newest. A step of the Course is a line of the log: t->steps is how many there are.
Course log_replay(Run *run, const Training *t, size_t workers, const Served *log);
#endif
