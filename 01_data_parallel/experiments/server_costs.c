// server_costs.c: predicts times, bytes and memory of 05_parameter_server from sizes and speeds.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>

double server_computing(const ServerSizes *z, size_t w) {
    return work_model(z->model, part_size(z->sequences, z->workers, w)).time *
           (double)(w == 0 ? z->slow : 1);
}
static double message(const ServerSizes *z, size_t e) {
    return send_time(part_size(config_parameters(z->model), z->servers, 0) * e);
}
double server_push(const ServerSizes *z) { return message(z, gradient_bytes(z->model)); }
double server_answer(const ServerSizes *z) { return message(z, weight_bytes(z->model)); }
// Returns the time of all steps of the synchronous training if each worker has its own link. A step
// has two messages, and between them the computation of the slowest worker. The recorded time
// begins with the first computation, after the first answer, and ends with the last answer.
static double all_steps(const ServerSizes *z) {
    double slowest = 0;
    for (size_t w = 0; w < z->workers; w++) slowest = fmax(slowest, server_computing(z, w));
    return (double)z->steps * (server_answer(z) + slowest + server_push(z));
}
// Returns the time of all steps with one port per server. Then the server's answers leave one after
// the other, and the pushes arrive one after the other, in the workers' order. The first answer of
// version 0 is not in the recorded time.
static double all_steps_one_port(const ServerSizes *z) {
    // `in` is the time when the last push so far has arrived. A message waits until the message
    // before it has passed the port.
    double answered = 0, push = server_push(z), answer = server_answer(z);
    for (size_t step = 0; step < z->steps; step++) {
        double in = 0;
        for (size_t w = 0; w < z->workers; w++) {
            double comes = answered + (double)(w + 1) * answer + server_computing(z, w) + push;
            in = w > 0 && in + push > comes ? in + push : fmax(comes, in);
        }
        answered = in;
    }
    return answered + ((double)z->workers - 1) * answer;
}

void server_costs(Run *run, const ServerSizes *z, const Measured *seen, Picoseconds one_port) {
    const CutSizes whole = cut_sizes(z->model, 1, 0);
    size_t Psi = elements_stage(&whole), gradients = elements_gradients(&whole);
    size_t n = z->workers, k = z->servers, steps = z->steps, e = weight_bytes(z->model),
           of_gradient = gradient_bytes(z->model);
    bool serves = run->world->rank < k;
    size_t piece = serves ? part_size(Psi, k, run->world->rank) : 0, holds = serves ? piece : Psi;
    // A server's first answers send version 0, before step 0.
    size_t sent = serves ? (steps + 1) * n * piece * e : steps * Psi * of_gradient;
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "sent", "sent: S a push, or n S/k of answers, a step", "bytes",
                               BY_FORMULA((double)sent), seen->sent },
                             { "held.parameters", "parameters (server: its piece)", "bytes",
                               BY_FORMULA((double)(holds * e)), seen->parameters },
                             { "held.gradients", "gradients (worker: wte twice)", "bytes",
                               BY_FORMULA((double)((serves ? piece : gradients) * of_gradient)),
                               seen->gradients },
                             { "held.optimizer",
                               z->model->storage == REALS ? "AdamW's m and v: on servers only"
                                                          : "m, v and masters: on servers only",
                               "bytes", BY_FORMULA((double)(piece * adamw_bytes(z->model))),
                               seen->optimizer },
                             { "held.buffers", "buffers: a piece from every worker", "bytes",
                               BY_FORMULA((double)(n * piece * of_gradient)), seen->buffers },
                             { "time.links", "synchronous, a link for each worker", "ps",
                               BY_FORMULA(all_steps(z)), (double)seen->last.step },
                             { "time.one-port", "synchronous, one port a server", "ps",
                               BY_PLAY(all_steps_one_port(z)), (double)one_port },
                             { 0 } });
}
