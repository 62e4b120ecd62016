// comm_nccl.c: ranks are processes with a GPU each; NCCL moves their tensors. Empty where NCCL is not built in.
#include "transport.h"

const char *nccl_missing(void) {
    return "this program was built without NCCL; make doctor says what is missing";
}

void nccl_run(const LaunchOptions *o, RankBody body) {
    (void)o, (void)body;
    fault("nccl_run: %s", nccl_missing());
}
