// comm_run.c: starts the ranks of a run on the transport that the launch names.
#include "common/comm/transport.h"

void comm_run(const Launch *l, void (*body)(Comm *world, void *context), void *context) {
    RankBody whole = { body, context };
    if (l->transport == TRANSPORT_EMU) emu_run(l, whole);
    else if (l->transport == TRANSPORT_NCCL) nccl_run(l, whole);
    else mpi_run(l, whole);
}
