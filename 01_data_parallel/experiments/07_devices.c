// 07_devices.c: see 07_devices.h.
#include "01_data_parallel/experiments/07_devices.h"
#include <stdlib.h>

// strtoul would take signs and blanks, too.
static size_t whole(const char *text, char **end) {
    *end = (char *)text;
    return *text >= '1' && *text <= '9' ? strtoul(text, end, 10) : 0;
}

Devices devices_read(Run *run, const char *option, size_t change, size_t changed) {
    Devices d = { run->world->size, (size_t *)host_alloc(run->world->size * sizeof(size_t)), change, changed };
    const char *text = option_text(run, option), *at = text;
    for (size_t r = 0; r < d.n; r++) {
        char *end;
        d.slow[r] = whole(at, &end);
        REQUIRE(d.slow[r] >= 1 && d.slow[r] <= 1000 && (*end == ',' || *end == 0),
                "--%s %s: expected whole numbers from 1 to 1000, such as 1,1,2,4", option, text);
        at = *end ? end + 1 : text;
    }
    return d;
}

size_t devices_slowness(const Devices *d, size_t rank, size_t step) {
    return d->slow[rank] * (rank == 0 && step >= d->change ? d->changed : 1);
}

void devices_free(Devices *d) { free(d->slow); }
