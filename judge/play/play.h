// play.h: declares the player. An experiment lists the expected steps of each rank, from sizes
// alone. The steps are products, collectives and messages. The experiment also counts the bytes
// that each rank holds and drops. The player computes the cost of the lists, which is peaks of
// memory, the time of the training step, and exposed and hidden communication. If the ranks
// deadlock, the player shows which rank waits for which. The player runs no model and sends no
// message.
//
//     Play *p = play_new(4, clock_config());
//     size_t world = play_group(p, "world", 0, 4, 1);
//     for (size_t rank = 0; rank < 4; rank++) {
//         play_work(p, rank, 2500);
//         play_call(p, rank, world, COMM_ALL_REDUCE, 1000, sizeof(float));
//     }
//     if (!play_run(p)) { ... play_why(p) ... }
//     PlayTiming t = play_timing(p);
//
// The player's time follows the rules of the simulated clock (clock.h). A rank does its steps in
// order. A group has one lane for its collectives. A collective starts when all members have
// called it and the lane is free. The collective takes the time of the ring in comm.h. An ordered
// pair of ranks of a group has one lane for its messages. A message leaves when it is sent and the
// lane is free. A rank that starts a collective, or waits for a collective, first waits for all
// members. Each member must have started every collective that this rank has started on the group,
// because comm.c then needs the ends of these collectives. The player has no broadcast, no reduce
// and no clock_set_one_port.
//
// Messages have no tags. The n-th receive that a rank posts for a peer takes the n-th message of
// that peer. The sender's wait ends when the receive is posted.
#ifndef PLAY_H
#define PLAY_H
#include "common/comm/comm.h"

typedef struct Play Play;
// Returns a player with the links and nodes of `clock`. If clock is NULL, no link takes time.
Play *play_new(size_t ranks, const ClockConfig *clock);
void play_free(Play *p);
// Adds a communicator of n ranks: first, first + stride, ... Returns the group's number. Member i
// of the group is rank first + i * stride.
size_t play_group(Play *p, const char *name, size_t first, size_t n, size_t stride);
// Adds a communicator of any ranks, in ascending order.
size_t play_group_of(Play *p, const char *name, size_t n, const size_t *rank);

// ---- the steps of a rank, in their order ----

// play_work and the functions that start a collective or a message append a step to this rank's
// list, and return the step's place in the list.
size_t play_length(const Play *p, size_t rank); // returns the number of steps in the list
size_t play_work(Play *p, size_t rank, Picoseconds takes);
// Starts a collective. `count` is the elements of the whole tensor, and `size` the bytes per
// element. A call of comm.h whose name ends in _rows cuts between rows. For such a call, `count` is
// the number of rows, and `size` the bytes per row. The n-th collective of a group must have the
// same kind and bytes for all members; otherwise the function calls fault(). play_send and
// play_post call fault() if the lengths of a message and its receive differ.
size_t play_start(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size);
// Sends a message to member `to` of the group. play_post starts a receive from member `from`.
size_t play_send(Play *p, size_t rank, size_t group, size_t to, size_t bytes);
// Sends a message that takes the time `takes`, whichever link the message passes.
size_t play_send_taking(Play *p, size_t rank, size_t group, size_t to, size_t bytes,
                        Picoseconds takes);
size_t play_post(Play *p, size_t rank, size_t group, size_t from, size_t bytes);
// Waits for a collective, a posted message or a sent message. If step is PLAY_NEVER, or later in
// the list, the rank waits for ever.
void play_wait(Play *p, size_t rank, size_t step);
static const size_t PLAY_NEVER = SIZE_MAX;
// Starts a collective and waits for it.
void play_call(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size);
// play_hold counts bytes that the rank allocates, and play_drop bytes that the rank frees, in the
// order of the calls. These calls append no step and take no time.
void play_hold(Play *p, size_t rank, MemoryCategory category, size_t bytes);
void play_drop(Play *p, size_t rank, MemoryCategory category, size_t bytes);

// ---- the cost of the steps ----

// Plays all lists. Returns false if the ranks deadlock.
bool play_run(Play *p);

size_t play_peak(const Play *p, size_t rank, MemoryCategory category);
Picoseconds play_end(const Play *p, size_t rank); // returns the end of this rank's last step

// The times of all ranks, defined as in Timing of judge/draw/picture.h. The field `step` is the
// time of the training step. This time lasts from the first start of a product or collective to the
// last end of a product, collective or received message. The fields `exposed` and `hidden` are
// added over the ranks.
typedef struct {
    Picoseconds step, exposed, hidden;
} PlayTiming;
PlayTiming play_timing(const Play *p);

// A step, after play_run. The fields `begin` and `end` are times of a product, of a message on its
// lane, or of a wait.
typedef enum { PLAY_WORK, PLAY_START, PLAY_SEND, PLAY_POST, PLAY_WAIT } PlayWhat;
typedef struct {
    PlayWhat what;
    size_t group, member, peer; // members: of this rank, and at the other end of a message
    size_t number;              // number in the group's collectives, or the pair's messages, from 0
    size_t target;              // PLAY_WAIT: the step to wait for
    Picoseconds takes, begin, end;
} PlayStep;
size_t play_done(const Play *p, size_t rank); // returns the number of steps that the rank has done
const PlayStep *play_step(const Play *p, size_t rank, size_t step);
// Returns the step at which this rank is stuck, or NULL if the rank is not stuck.
const PlayStep *play_stuck(const Play *p, size_t rank);
// Returns a line for each rank that is stuck: its call, and the ranks that it waits for. The caller
// frees the text.
char *play_why(const Play *p);
#endif
