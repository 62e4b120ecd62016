// clock.h: what time it is for a rank: real time, or the time that a model of devices and links
// predicts.
//
// The simulated clock does the arithmetic for real and computes the time: integer picoseconds, so
// that a run shows the same digits on every machine and transport. A rank has a row for what it
// computes; a communicator has a lane for its collectives, and one for the messages of each of its
// ordered pairs of ranks.
//   compute       only the FLOPs of GEMMs take time, FLOPs / rate
//   collective    starts when its last member has come and the communicator's lane is free; lasts
//   alpha * steps +
//                 bytes / beta (steps and bytes of a ring or a chain: comm.h); ends for all members
//                 at once
//   send          leaves when it is issued and the lane of that pair is free; arrives alpha + bytes
//   / beta later; the
//                 sender goes on
// So the collectives of one communicator queue; those of two overlap. Lanes do not slow each other
// down, unless clock_set_one_port says so. Time stands still while the ledger is paused: the
// unsplit twin costs nothing.
//
// Nodes: neighbouring ranks of the world share one. alpha and beta are those of the link inside a
// node where all ranks of the collective, or both of the message, share a node, and those of the
// link between nodes elsewhere.
//
// Under the wall clock the same calls stamp real time.
#ifndef CLOCK_H
#define CLOCK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Picoseconds;
typedef struct {
    const char *name;
    double flops;
    const char *source;
} ClockDevice; // FLOP/s
// seconds, bytes/s; 0, 0: free
typedef struct {
    const char *name;
    double alpha, beta;
    const char *source;
} ClockLink;
extern const ClockDevice clock_devices[]; // end with name NULL
extern const ClockLink clock_links[];

typedef struct {
    bool simulated;
    ClockDevice device;
    ClockLink link, between; // inside a node, between nodes
    size_t node;             // ranks of a node; 0: all of them share one
} ClockConfig;
void clock_configure(const ClockConfig *c); // once per process, before the ranks start
const ClockConfig *clock_config(void);
bool clock_same_node(size_t a, size_t b); // do two ranks of the world share a node?

void clock_rank_begin(void);           // this rank's time 0: all its rows are free
Picoseconds clock_now(void);           // of this rank's compute row
void clock_charge_flops(double flops); // hears every GEMM (base/meter.h)
// From now on this rank's device computes at factor times the rate of --device; 1 after
// clock_rank_begin. For devices of unequal speed. Only the simulated clock has it.
void clock_set_speed(double factor);
// From now on this rank has one port out and one port in (off after clock_rank_begin): a message
// leaves when the one before has left, whoever it is for, and those that are received come in one
// after the other, in the order of the calls (or waits); each takes alpha + bytes / beta. For what
// a rank that everybody writes to costs. Not for collectives, and comm_arrival says when a message
// comes to the port.
void clock_set_one_port(bool on);
// From now on this rank's messages to others go over the link between nodes, whoever shares its
// node (off after clock_rank_begin). On both ends. Not for collectives.
void clock_set_own_nodes(bool on);
// From now on all of this rank's communication takes this link, which has a name, wherever its
// ranks are (NULL, and after clock_rank_begin: as --link and --node say). For a lesson that
// compares links: on all ranks at the same place.
void clock_set_link(const ClockLink *link);
ClockLink clock_link(bool one_node); // what a message inside a node, or between two, takes now
double clock_flops(void);            // FLOPs this rank has charged so far, under either clock
// ---- for picture.c, under the wall clock: time 0 of this rank, in seconds of now() ----
double clock_begun(void);
void clock_set_begun(double t);

// ---- for comm.c: each does nothing under the wall clock ----
// How long steps messages of bytes / steps each take, on the link inside a node or between nodes.
Picoseconds clock_transfer(bool one_node, size_t steps, size_t bytes);
void clock_wait_until(Picoseconds t); // the compute row stands idle until t, if that is later
// when a message that is ready then leaves
Picoseconds clock_port_out(Picoseconds ready, Picoseconds takes);
// when one that arrives then is all here
Picoseconds clock_port_in(Picoseconds arrives, Picoseconds takes);
#endif
