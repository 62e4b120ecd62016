// 05_page.h: the table of results of 05_parameter_server: how fast pushes come, how old they are, and what it does to
// the loss.
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H
#include "01_data_parallel/experiments/05_log.h"

// The lesson's training; log->line NULL: synchronous. Fills in the log, and how long it took.
typedef Trajectory ServerTraining(Run *run, const Cluster *c, const Training *t, Log *log, Picoseconds *took);
// Collective. log: with the bound on staleness, and without one. took: all steps of the synchronous training t. The
// losses are those of longer trainings on text, as the data of t cannot be learnt.
void server_results(Run *run, const Cluster *c, const Training *t, const Log *log[2], Picoseconds took,
                    ServerTraining *train);
#endif
