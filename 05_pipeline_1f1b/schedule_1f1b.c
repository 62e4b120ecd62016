// schedule_1f1b.c: see schedule_1f1b.h.
#include "05_pipeline_1f1b/schedule_1f1b.h"

Schedule schedule_1f1b(size_t p, size_t m, size_t i) {
    size_t warmup = p - 1 - i < m ? p - 1 - i : m;         // one for each stage behind me: then something comes back
    Schedule s = {0};
    for (size_t k = 0; k < warmup; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = warmup; k < m; k++) {                  // steady: one in, one out
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k - warmup);
    }
    for (size_t k = m - warmup; k < m; k++) schedule_add(&s, BACKWARD, k);
    return s;
}
