// layer_times.c: measures the time of each layer of a stage, for the cut of 04_partition.c. A
// wrapper reads the clock before and after the layer.
#include "04_pipeline_naive/pipeline.h"
#include "common/comm/clock.h"
#include "common/device/device.h"

static double moment(void) {
    // Waits for the kernels that a GPU has not run yet.
    if (!clock_config()->simulated) device_synchronize();
    return (double)clock_now();
}
static void timed_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    double begin = moment();
    layer_forward(l->inner, b, x, y, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    double begin = moment();
    layer_backward(l->inner, b, x, dy, dx, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx,
                                  Saved *s) {
    double begin = moment();
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    double begin = moment();
    layer_backward_weights(l->inner, b, x, s);
    *(double *)l->technique += moment() - begin;
}
static const LayerKind timed = {
    .name = "timed",
    .forward = timed_forward,
    .backward = timed_backward,
    .backward_inputs = timed_backward_inputs,
    .backward_weights = timed_backward_weights,
};

void partition_time_layers(Model *m, double *cost) {
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        layer_wrap(&m->layers[i], &timed, NULL);
        m->layers[i].technique = &cost[number <= m->config.layers ? number : m->config.layers + 1];
    }
}
