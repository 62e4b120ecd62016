// server_costs.c: see server_costs.h.
#include "01_data_parallel/server_costs.h"
#include "common/model/formulas.h"
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
