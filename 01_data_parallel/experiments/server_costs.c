// server_costs.c: predicts times, bytes and memory of 05_parameter_server from sizes and speeds
// (experiments.h).
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
// The time of all steps of the synchronous training if each worker has its own link. A step has two
// messages, and between them the computation of the slowest worker.
static double all_steps(const ServerSizes *z) {
    double slowest = 0;
    for (size_t w = 0; w < z->workers; w++) slowest = fmax(slowest, server_computing(z, w));
    return (double)z->steps * (server_answer(z) + slowest + server_push(z));
}
// The time of all steps with one port per server. Then the server's answers leave one after the
// other, and the pushes arrive one after the other, in the workers' order.
static double all_steps_one_port(const ServerSizes *z) {
    // a message keeps the port busy
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

// Makes one all-reduce of the workers alone. Returns the bytes that this rank sent.
static double ring_of_workers(Comm *world, bool serves, size_t count) {
    Comm *ring = comm_split(world, serves, 0, "ring");
    Arena a = arena(MEM_WORKSPACE);
    Tensor g = tensor_new(&a, 1, count);
    tensor_fill(g, 0);
    if (!serves) comm_all_reduce(ring, g);
    double sent = (double)comm_bytes_sent(ring);
    arena_free(&a);
    comm_free(ring);
    return sent;
}

void server_costs(Run *run, const ServerSizes *z, const Measured *seen, Picoseconds one_port) {
    const CutSizes whole = cut_sizes(z->model, 1, 0);
    size_t Psi = elements_stage(&whole), gradients = elements_gradients(&whole);
    size_t n = z->workers, k = z->servers, steps = z->steps, e = weight_bytes(z->model),
           of_gradient = gradient_bytes(z->model);
    bool serves = run->world->rank < k;
    size_t piece = serves ? part_size(Psi, k, run->world->rank) : 0, holds = serves ? piece : Psi;
    // A server's first answers send version 0, before step 0.
    size_t messages = serves ? (steps + 1) * n : steps * k;
    size_t sent = serves ? messages * piece * e : steps * Psi * of_gradient;
    double busy = 0, ring = serves ? 0 : ring_bytes(ALL_REDUCE_PASSES, n, Psi, of_gradient);
    for (size_t w = 0; w < n; w++) busy += (double)steps * server_computing(z, w);
    check_costs(
        run, "%s", "%s",
        (CostRow[]){
            { "sent", "sent: S a push, or n S/k of answers, a step", "bytes",
              BY_FORMULA((double)sent), seen->sent },
            { "calls", "messages", "calls", BY_FORMULA((double)messages), seen->calls },
            { "sent.ring", "sent, one step in a ring of the workers", "bytes", BY_FORMULA(ring),
              ring_of_workers(run->world, serves, Psi) },
            { "held.parameters", "parameters (server: its piece)", "bytes",
              BY_FORMULA((double)(holds * e)), seen->parameters },
            { "held.gradients", "gradients (worker: wte twice)", "bytes",
              BY_FORMULA((double)((serves ? piece : gradients) * of_gradient)), seen->gradients },
            { "held.optimizer",
              z->model->storage == REALS ? "AdamW's m and v: on servers only"
                                         : "m, v and masters: on servers only",
              "bytes", BY_FORMULA((double)(piece * adamw_bytes(z->model))), seen->optimizer },
            { "held.buffers", "buffers: a piece from every worker", "bytes",
              BY_FORMULA((double)(n * piece * of_gradient)), seen->buffers },
            { "time.computing", "computing, all ranks", "ps", BY_FORMULA(busy),
              (double)seen->last.busy },
            { "time.links", "synchronous, a link for each worker", "ps", BY_FORMULA(all_steps(z)),
              (double)seen->last.step },
            { "time.one-port", "synchronous, one port a server", "ps",
              BY_PLAY(all_steps_one_port(z)), (double)one_port },
            { 0 } });
}
