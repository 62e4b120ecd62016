// player.h: draws, judges and times any schedule, for 01_by_hand: a known one, make play-05
// ARGS="--p 4 --m 8 --schedule interleaved --v 2", or a list that the reader types (--list).
#ifndef PLAYER_H
#define PLAYER_H
#include "judge/frame/lesson.h"

bool player_asked(Run *run);                       // is one of the player's options given?
void player(Run *run);
// The options, for the lesson's table.
#define PLAYER_OPTIONS \
    { "schedule", "naive|gpipe|1f1b|interleaved|zb-h1|zb-auto", NULL, \
      "draw, judge and time this schedule" }, \
    { "list", "OPS", NULL, \
      "or this one: 'F0 F1 B0 B1 / F0 B0 F1 B1'; I0 W0 for B0 in halves, F0c1 of chunk 1" }, \
    { "p", "N", "4", "stages" }, \
    { "m", "N", "8", "micro-batches" }, \
    { "v", "N", "2", "chunks on each stage, of interleaved ones" }, \
    { "tf", "X", "1", "units of time that the forward of a stage takes" }, \
    { "tb", "X", "1", "units of its backward of inputs" }, \
    { "tw", "X", "1", "units of its backward of weights; a whole backward takes tb + tw" }, \
    { "message", "X", NULL, \
      "units of a message; without it: as over --link between the equal stages of 05.02" }, \
    { "link", "NAME[,NAME]", "free", NULL }
#endif
