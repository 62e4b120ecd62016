// random.h: provides counter-based random numbers. A value is a function of the seed and of a
// place. The place of an initial weight is its tensor and its index in the whole tensor. The place
// of a dropout value is step, layer, site (which dropout of the layer), sequence, position and
// feature (in attention: the head and the key's position). A value never depends on a rank, a
// micro-batch or a local index. So every split draws the same numbers, and a recomputed forward
// draws them again.
//
// The functions use the common subset of C and C++, so ops can call them on any device.
#ifndef RANDOM_H
#define RANDOM_H
#include <stdint.h>
#include <math.h>
#include "common/device/for_each.h"

// Returns a hash of x by splitmix64's finaliser (Steele, Lea, Flood 2014). The function is a
// bijection that mixes every bit into all other bits.
ITEM uint64_t random_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}
// Returns a key with one more coordinate. The order of the coordinates matters: key(key(s, a), b)
// differs from key(key(s, b), a).
ITEM uint64_t random_key(uint64_t key, uint64_t coordinate) {
    return random_mix(key + UINT64_C(0x9e3779b97f4a7c15) * (coordinate + 1));
}
// Returns a value in (0, 1]. The value is 1 only if all upper 53 bits of the key are 1.
ITEM double random_unit(uint64_t key) { return ((double)(key >> 11) + 0.5) * 0x1p-53; }
// Returns a normal value with mean 0 and deviation 1 (Box and Muller 1958). The function computes
// in double in both precisions, so weights in fp32 are the rounded weights of fp64.
ITEM double random_normal(uint64_t key) {
    double u = random_unit(key), v = random_unit(random_key(key, 1));
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
// Returns the place of i in a shuffle of 0 .. n-1, without storing the list. A Feistel network
// permutes the numbers below the next power of 4 (Luby and Rackoff 1988). The network runs again on
// its result until the result is below n (cycle walking; Black and Rogaway 2002). The key
// determines the order.
ITEM uint64_t random_permute(uint64_t key, uint64_t i, uint64_t n) {
    int half = 0;
    while (half < 31 && (UINT64_C(1) << 2 * half) < n) half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            const uint64_t next = left ^ (random_key(random_key(key, round), right) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
#endif
