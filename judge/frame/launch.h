// launch.h: declares the choice of the transport and of the number of ranks.
#ifndef LAUNCH_H
#define LAUNCH_H
#include "common/comm/comm.h"

extern const char *const transport_name[]; // by Transport: "emu", ...
typedef struct {
    const char *transport; // the text of --transport; NULL: not given
    size_t emulate;        // the number of virtual ranks; 0: not given
    size_t default_ranks;  // the lesson's own rank count, for a run without launcher and --emulate
} LaunchWish;
typedef struct {
    Transport transport;
    char why[160]; // the reason, for the title
    size_t ranks;
} LaunchChoice;
// Calls usage_error() if the wish is impossible.
LaunchChoice launch_choose(const LaunchWish *wish);
#endif
