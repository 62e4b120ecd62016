// clock.h: keeps each rank's time. The time is real (wall clock), or predicted by a model of
// devices and links (simulated clock).
//
// Under the simulated clock, ranks really do the arithmetic, but the clock computes how long the
// arithmetic takes, in integer picoseconds. So a run prints the same times on every machine and
// transport. A rank has a row for its computation. A communicator (Comm) has a lane for its
// collectives, and one lane for the messages of each ordered pair of ranks.
//   compute     A GEMM takes its FLOPs / rate. All other ops take no time. A copy in memory takes
//               time where a lesson charges the copy (clock_charge_copy).
//   collective  A collective starts when its last member is ready and the lane is free. The
//               collective takes alpha * steps + bytes / beta, and ends on all members at the
//               same time. steps and bytes are those of a ring or a chain (comm.h).
//   send        A message leaves when it is issued and the pair's lane is free. The message arrives
//               alpha + bytes / beta later. The sender does not wait.
// The collectives of one communicator run one after the other. Collectives of different
// communicators may overlap. Transfers in different lanes do not slow each other down, except with
// clock_set_one_port. Time stops while the ledger is paused (ledger_pause). So the unsplit twin,
// the same model on rank 0 for comparison, takes no time.
//
// With --node N, N neighbouring ranks of the world share a node. If all ranks of a collective, or
// both ranks of a message, share a node, alpha and beta belong to the link inside a node. Otherwise
// alpha and beta belong to the link between nodes, which is one network card. A message uses one
// card. A collective uses one card (a rail) for each of its ranks in a node, at most --rails cards,
// because NCCL builds one ring per card. If the nodes have unequal numbers of the collective's
// ranks, the smallest number counts. Several cards together are at most as fast as the link inside
// a node, because all bytes also pass the link inside the node.
//
// Under the wall clock clock_now() returns real time, and no function adds time.
#ifndef CLOCK_H
#define CLOCK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Picoseconds;
typedef struct {
    const char *name;
    double flops;  // FLOP/s
    double memory; // bytes/s of a copy, with the bytes read and the bytes written
    const char *source;
} ClockDevice;
// alpha is the latency of a message in seconds. beta is the rate in bytes/s. If beta is 0,
// communication takes no time.
typedef struct {
    const char *name;
    double alpha, beta;
    const char *source;
} ClockLink;

typedef struct {
    bool simulated;
    ClockDevice device;
    ClockLink link, between; // inside a node, between nodes
    size_t node;             // ranks per node; 0: all ranks share one node
    size_t rails;            // at most this many network cards per node; 0: a card for each rank
} ClockConfig;
// Call this function once per process, before the ranks start.
void clock_configure(const ClockConfig *c);
const ClockConfig *clock_config(void);
// Returns whether two ranks of the world share a node.
bool clock_same_node(size_t a, size_t b);

void clock_rank_begin(void); // sets this rank's time to 0
// Returns the time of this rank's compute row. Under the wall clock returns the time since this
// rank's time 0.
Picoseconds clock_now(void);
// Counts FLOPs. Under the simulated clock also adds the time of the FLOPs to the compute row. Every
// GEMM calls this function (base/meter.h). While the ledger is paused, the function does nothing.
void clock_charge_flops(double flops);
// Adds the time of a copy inside the device's memory to the compute row. The copy reads `bytes`
// bytes and writes as many. Lesson 01.09 charges its copies, because its fused all-reduces save
// latencies but need copies. Under the wall clock, and while the ledger is paused, the function
// does nothing.
void clock_charge_copy(size_t bytes);
// After this call this rank's device computes at `factor` times the rate of --device, for devices
// of unequal speed. clock_rank_begin() sets the factor to 1. Only the simulated clock uses the
// factor.
void clock_set_speed(double factor);
// After clock_set_one_port(true) this rank has one outgoing and one incoming port.
// clock_rank_begin() switches the ports off. A message leaves after the rank's previous message has
// left, even if the two messages go to different ranks. Received messages come in one after the
// other, in the order of the comm_recv() and comm_wait() calls. Each message takes alpha + bytes /
// beta. The ports model a rank that all other ranks send to, such as a parameter server.
// Collectives are not affected. comm_arrival returns the time when a message reaches the incoming
// port.
void clock_set_one_port(bool on);
// After this call all communication of this rank uses `link`, which must have a name. NULL, or
// clock_rank_begin(), restores the links of --link and --node. All ranks must call this function at
// the same place.
void clock_set_link(const ClockLink *link);
// Values of `cards`, the number of network cards that a message or collective uses. CLOCK_INSIDE is
// 0 and means that all its ranks share a node.
enum { CLOCK_INSIDE, CLOCK_ONE_CARD };
// Returns the number of network cards for a collective of the n ranks rank[], numbered in the
// world.
size_t clock_cards(size_t n, const size_t *rank);
// Returns the present link inside a node (CLOCK_INSIDE), or between nodes over `cards` network
// cards.
ClockLink clock_link(size_t cards);
double clock_flops(void); // returns the FLOPs that this rank has counted, under either clock
// ---- for judge/draw/picture.c, under the wall clock ----
// Returns time 0 of this rank, in seconds of now().
double clock_begun(void);
void clock_set_begun(double t);

// ---- the simulated clock ----
// Returns the time of `steps` messages of bytes / steps each, inside a node or over `cards` cards.
Picoseconds clock_transfer(size_t cards, size_t steps, size_t bytes);
void clock_wait_until(Picoseconds t); // moves the compute row to t, if t is later
// A message is ready at the time `ready`, and takes the time `takes`. Returns the time when the
// message leaves.
Picoseconds clock_port_out(Picoseconds ready, Picoseconds takes);
// A message reaches the port at the time `arrives`, and takes the time `takes`. Returns the time
// when the message has come in.
Picoseconds clock_port_in(Picoseconds arrives, Picoseconds takes);
#endif
