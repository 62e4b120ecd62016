// clock.c: computes each rank's time, on the simulated clock or the wall clock.
#include "common/comm/clock.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "common/tensor/memory.h"
#include "common/base/meter.h"
#include "common/base/util.h"

static ClockConfig config;                // set before the ranks start
static _Thread_local Picoseconds compute; // simulated clock: this rank's present time
static _Thread_local bool one_port;
static _Thread_local ClockLink only_link; // if its name is set, replaces config's links
static _Thread_local Picoseconds out_free, in_free;
static _Thread_local double begun; // wall clock: now() at this rank's time 0
// speed is the speed of this rank's device, relative to config.device.
static _Thread_local double flops, speed = 1;

void clock_configure(const ClockConfig *c) { config = *c; }
const ClockConfig *clock_config(void) { return &config; }

void clock_rank_begin(void) {
    compute = out_free = in_free = 0;
    one_port = false;
    only_link = (ClockLink){ 0 };
    flops = 0;
    meter_product = clock_charge_flops;
    speed = 1;
    begun = now();
}

Picoseconds clock_now(void) {
    return config.simulated ? compute : (Picoseconds)((now() - begun) * 1e12);
}
double clock_flops(void) { return flops; }

double clock_begun(void) { return begun; }
void clock_set_begun(double t) { begun = t; }

void clock_charge_flops(double n) {
    if (ledger_paused()) return;
    flops += n;
    if (!config.simulated) return;
    // Round to whole picoseconds before the division, so that half the speed takes exactly twice
    // the time.
    double usual = round(n * 1e12 / config.device.flops);
    compute += (Picoseconds)llround(usual / speed);
}
void clock_charge_copy(size_t bytes) {
    if (!config.simulated || ledger_paused()) return;
    compute += (Picoseconds)llround(2 * (double)bytes * 1e12 / config.device.memory);
}
void clock_set_speed(double factor) {
    if (!(factor > 0) || !isfinite(factor))
        fault("clock_set_speed(%g): choose a speed above 0; 1 is the speed of --device", factor);
    speed = factor;
}

bool clock_same_node(size_t a, size_t b) {
    return config.node == 0 || a / config.node == b / config.node;
}
void clock_set_link(const ClockLink *link) { only_link = link ? *link : (ClockLink){ 0 }; }
size_t clock_cards(size_t n, const size_t *rank) {
    size_t node = config.node, least = n, last = 0;
    if (node == 0) return CLOCK_INSIDE;
    for (size_t i = 0; i < n; i++) last = rank[i] / node > last ? rank[i] / node : last;
    size_t *in_node = host_alloc((last + 1) * sizeof *in_node);
    for (size_t i = 0; i < n; i++) in_node[rank[i] / node]++;
    for (size_t i = 0; i <= last; i++)
        if (in_node[i] && in_node[i] < least) least = in_node[i];
    free(in_node);
    if (least == n) return CLOCK_INSIDE;
    return config.rails && config.rails < least ? config.rails : least;
}
ClockLink clock_link(size_t cards) {
    if (only_link.name) return only_link;
    if (cards == CLOCK_INSIDE) return config.link;
    ClockLink link = config.between;
    link.beta *= (double)cards;
    // All bytes also pass the link inside the node.
    if (config.link.beta > 0) link.beta = fmin(link.beta, config.link.beta);
    return link;
}
Picoseconds clock_transfer(size_t cards, size_t steps, size_t bytes) {
    const ClockLink link = clock_link(cards);
    if (link.beta == 0) return 0;
    return (Picoseconds)llround((double)steps * link.alpha * 1e12 +
                                (double)bytes * 1e12 / link.beta);
}
void clock_wait_until(Picoseconds t) {
    if (config.simulated && t > compute) compute = t;
}

void clock_set_one_port(bool on) { one_port = on; }
static Picoseconds later(Picoseconds a, Picoseconds b) { return a > b ? a : b; }
Picoseconds clock_port_out(Picoseconds ready, Picoseconds takes) {
    if (!one_port) return ready;
    Picoseconds leaves = later(ready, out_free);
    out_free = leaves + takes;
    return leaves;
}
Picoseconds clock_port_in(Picoseconds arrives, Picoseconds takes) {
    if (!one_port) return arrives;
    in_free = later(arrives, in_free + takes);
    return in_free;
}
