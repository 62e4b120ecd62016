// 05_costs.c: see 05_costs.h.
#include "01_data_parallel/experiments/05_costs.h"
#include "common/model/costs.h"
#include "common/model/model.h"

double server_computing(const ServerSizes *z, size_t w) {
    size_t B = part_size(z->sequences, z->workers, w);
    return work_model(&z->model, B).time * (double)(w == 0 ? z->slow : 1);
}

double server_message(const ServerSizes *z) {
    return send_time(part_size(config_parameters(&z->model), z->servers, 0) * sizeof(real));
}

double server_all_steps(const ServerSizes *z, bool one_port) {
    double answered = 0, m = server_message(z);        // m: also how long a message keeps the port busy
    for (size_t step = 0; step < z->steps; step++) {
        double in = 0;
        for (size_t w = 0; w < z->workers; w++) {
            double comes = answered + (one_port ? (double)(w + 1) : 1) * m + server_computing(z, w) + m;
            in = one_port && w > 0 && in + m > comes ? in + m : comes > in ? comes : in;
        }
        answered = in;
    }
    return answered + (one_port ? (double)z->workers - 1 : 0) * m;
}

// ---------------------------------------------------------------- predicted and measured

// One all-reduce of the workers alone: bytes I sent.
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

void server_compare_costs(Run *run, const ServerSizes *z, const ServerSeen *is, Picoseconds one_port) {
    size_t V = z->model.vocab, C = z->model.width, Psi = config_parameters(&z->model), e = sizeof(real);
    size_t n = z->workers, k = z->servers;
    bool serves = run->world->rank < k;
    size_t piece = serves ? part_size(Psi, k, run->world->rank) : 0;
    double busy = 0;
    for (size_t w = 0; w < n; w++) busy += (double)z->steps * server_computing(z, w);
    size_t pushes = z->steps * Psi * e, answers = (z->steps + 1) * n * piece * e;      // the first answer is version 0
    cost(run, "sent: S a push, or n S/k of answers, a step", "bytes", (double)(serves ? answers : pushes),
         (double)is->sent);
    cost(run, "messages", "calls", (double)(serves ? (z->steps + 1) * n : z->steps * k), (double)is->calls);
    double ring_sent = ring_of_workers(run->world, serves, Psi);
    cost(run, "sent, one step in a ring of the workers", "bytes", serves ? 0 : ring_bytes(ALL_REDUCE_PASSES, n, Psi, e),
         ring_sent);
    cost(run, "parameters (server: its piece)", "bytes", (double)((serves ? piece : Psi) * e), (double)is->parameters);
    cost(run, "gradients (worker: wte twice)", "bytes", (double)((serves ? piece : Psi + V * C) * e),
         (double)is->gradients);
    cost(run, "AdamW's m and v: on servers only", "bytes", (double)(2 * piece * e), (double)is->optimizer);
    cost(run, "buffers: a piece from every worker", "bytes", (double)(n * piece * e), (double)is->buffers);
    cost(run, "computing, all ranks", "ps", busy, (double)is->timing.busy);
    cost(run, "synchronous, a link for each worker", "ps", server_all_steps(z, false), (double)is->timing.step);
    cost(run, "synchronous, one port a server", "ps", server_all_steps(z, true), (double)one_port);
}

void server_say_traffic(Run *run, const ServerSizes *z, Picoseconds took, Picoseconds one_port) {
    const double step = (double)took / (double)z->steps, step_one_port = (double)one_port / (double)z->steps;
    const size_t count = config_parameters(&z->model);
    size_t n = z->workers, k = z->servers, S = count * sizeof(real), piece = ceil_div(count, k) * sizeof(real);
    double ring = ring_bytes(ALL_REDUCE_PASSES, n, count, sizeof(real));
    double port_busy = (double)n * server_message(z) / step_one_port;
    say(run, "Per step a worker sends S = %.1f kB, a server n S/k = %.0f kB, a ring's rank 2(n-1)/n S = %.1f kB.",
        (double)S / 1e3, (double)(n * piece) / 1e3, ring / 1e3);
    say(run, "Synchronous steps of %.2f ms become %.2f ms if a server has one port, busy %.0f %% of it each way.\n",
        step * 1e-9, step_one_port * 1e-9, 100 * port_busy);
}
