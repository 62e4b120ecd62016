// ranks: 1
// level: core
// question: In which order may a pipeline stage do its forwards and backwards, and which order keeps little in memory?
//
// Holds: a list of ops per stage. This lesson runs no op. Lists are legal if each list has every op
//     once, every receive gets the message that it waits for, and every send gets a buffer.
// Sends: at most one message per op, in list order. A forward sends to the next stage, a backward
//     to the previous stage, if there is such a stage.
// Saves: memory. 1F1B has at most min(p-i, m) micro-batches in flight on stage i, GPipe has m.
// Costs: as much time as GPipe, (m+p-1)(f+b). A forward takes f = 1 unit of time, a backward b = 2,
//     a message none.
// Narayanan et al. 2021 (PTD-P), figure 4. A micro-batch is in flight on a stage between its
// forward and its backward on this stage.
// Left out: chunks, halves of backwards, and times of messages (make play-05:
// experiments/player.c).
#include "05_pipeline_1f1b/by_hand.h"

// ---------------------------------------------------------------- the rule of 1F1B, by hand

// Returns the list of stage i. The stage first runs p - 1 - i forwards ahead, one for each later
// stage, so that each later stage has an op to run. Then the stage runs a forward and a backward in
// turn, because from then on gradients come back. At the end the stage runs the backwards that are
// left.
Schedule by_hand_1f1b(size_t p, size_t m, size_t i) {
    Schedule list = { 0 };
    size_t ahead = p - 1 - i, forwards = 0, backwards = 0;
    // EXERCISE 05.01a (2 points): write the list of 1F1B by hand. First add `ahead` forwards, but
    // at most m. Then add a forward and a backward in turn, until no forward is left. Then add the
    // other backwards. Both kinds come in ascending order. Call: schedule_add(&list, what,
    // micro_batch), where `what` is FORWARD or BACKWARD.
    while (forwards < ahead && forwards < m) schedule_add(&list, FORWARD, forwards++); // warm-up
    while (forwards < m) {                                                             // steady
        schedule_add(&list, FORWARD, forwards++);
        schedule_add(&list, BACKWARD, backwards++);
    }
    while (backwards < m) schedule_add(&list, BACKWARD, backwards++); // cool-down
    // END
    return list;
}

// ---------------------------------------------------------------- the judge

// A Mailbox holds the messages of one direction between two neighbours. Messages arrive in the
// order in which they were sent, and carry no name.
typedef struct {
    size_t sent[2 * MOST_MICRO], n, read;
} Mailbox;

// Takes the next message. Returns false if no message has arrived yet; then the stage waits. *wrong
// becomes true if the message belongs to another micro-batch.
static bool receive(Mailbox *from, size_t k, bool *wrong) {
    if (from->read == from->n) return false;
    *wrong |= from->sent[from->read++] != k;
    return true;
}
// Adds a message. The sender goes on at once.
static void send(Mailbox *to, size_t k) { to->sent[to->n++] = k; }
// A message leaves its send buffer when the receiver has received the previous message, because
// then the receiver posts the next receive.
enum { SEND_BUFFERS = 2 };
static bool buffers_full(const Mailbox *to) { return to->n > to->read + SEND_BUFFERS; }

size_t by_hand_duration(PipeOp op) { return op.what == BACKWARD ? T_BACKWARD : T_FORWARD; }

static Outcome illegal(Verdict why) { return (Outcome){ why, 0, { { 0 } } }; }

// Plays the lists. The judge visits the stages in turn, and runs a stage's next op if the op can
// run. An op starts at max(end of the op that it needs, end of the stage's previous op).
// pipe_op_needs names the needed op. Forward k needs forward k of the previous stage. Backward k
// needs backward k of the next stage, or on the last stage forward k. A result of another stage
// comes as a message. In wrong lists the message may belong to another op. The op's own message
// needs a send buffer. If an op can run, the ops of other stages cannot stop this op. So if one
// order of visits reaches the end of the lists, every order does.
Outcome by_hand_judge(const Schedule *stage, size_t p, size_t m) {
    Outcome out = { LEGAL, 0, { { 0 } } };
    Mailbox on[MOST_STAGES] = { 0 };   // from stage i to stage i + 1
    Mailbox back[MOST_STAGES] = { 0 }; // from stage i to stage i - 1
    // end[i][0][k] is the time at which forward k ends on stage i, and end[i][1][k] that of
    // backward k. 0: the op has not run yet.
    size_t end[MOST_STAGES][2][MOST_MICRO] = { { { 0 } } };
    size_t next[MOST_STAGES] = { 0 }, free_at[MOST_STAGES] = { 0 };
    bool received[MOST_STAGES] = { 0 }; // the next op waits only for a send buffer
    for (size_t i = 0; i < p; i++)
        if (stage[i].n != 2 * m) return illegal(NOT_ONCE);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < p; i++) {
            if (next[i] == 2 * m) continue;
            PipeOp op = stage[i].ops[next[i]];
            size_t k = op.micro_batch, start = free_at[i];
            bool backward = op.what == BACKWARD, wrong = false;
            if (k >= m || end[i][backward][k]) return illegal(NOT_ONCE);
            StageOp needs, feeds;
            if (pipe_op_needs(op, i, p, 1, &needs)) {
                Mailbox *from = backward ? &back[needs.stage] : &on[needs.stage];
                if (needs.stage != i && !received[i] && !receive(from, k, &wrong)) continue;
                if (wrong) return illegal(WRONG_MESSAGE);
                size_t needed_end = end[needs.stage][needs.op.what != FORWARD][k];
                // The stage waits for a later op of its own list.
                if (!needed_end) return illegal(DEADLOCK);
                if (needed_end > start) start = needed_end;
            }
            Mailbox *to = backward ? &back[i] : &on[i];
            bool sends = pipe_op_feeds(op, i, p, 1, &feeds);
            moved |= !received[i];
            received[i] = sends && buffers_full(to);
            if (received[i]) continue;
            if (sends) send(to, k);
            end[i][backward][k] = free_at[i] = start + by_hand_duration(op);
            if (free_at[i] > out.end) out.end = free_at[i];
            out.start[i][next[i]++] = start;
            moved = true;
        }
    }
    for (size_t i = 0; i < p; i++)
        if (next[i] < 2 * m) out.verdict = DEADLOCK;
    return out;
}
