// test_player.c: compares docs/book/player.c with closed forms. With the argument print the program
// prints all results. The results are every schedule for p = 1..8 and some m up to 24, messages
// with and without a time, and the memory of some models. tests/test_player.js prints the same
// results from the page's WebAssembly. tests/book.t compares the two outputs.
// NOLINTNEXTLINE(bugprone-suspicious-include)
#include "docs/book/player.c"
#include "tap.h"

static void play(int schedule, int p, int m, int t_f, int t_b, int message) {
    const int slot = schedule % SHOWN;
    int end = player_play(slot, schedule, p, m, t_f, t_b, message);
    printf("schedule %d p %d m %d times %d %d %d: %d", schedule, p, m, t_f, t_b, message, end);
    if (end >= 0) printf(" %d %d", player_busy(slot), player_chunks(slot));
    printf("\n");
    for (int i = 0; i < p && end >= 0; i++) {
        for (int k = 0; k < player_ops(slot, i); k++)
            printf(" %d.%d.%d.%d.%d.%d.%d.%d", player_op_what(slot, i, k),
                   player_op_micro_batch(slot, i, k), player_op_chunk(slot, i, k),
                   player_op_start(slot, i, k), player_op_end(slot, i, k),
                   player_op_arrives(slot, i, k), player_op_to(slot, i, k),
                   player_in_flight(slot, i, player_op_start(slot, i, k)));
        printf("\n");
    }
}

static const int models[][6] = { { 9, 12, 3, 10, 37, 1 },
                                 { 12, 768, 12, 1024, 50257, 0 },
                                 { 96, 12288, 96, 2048, 51200, 1 },
                                 { 128, 16384, 128, 16384, 50257, 1 } };
static void memory(const int *c) {
    player_model(c[0], c[1], c[2], c[3], c[4], c[5]);
    printf("model %d %d %d %d %d %d: %.0f\n", c[0], c[1], c[2], c[3], c[4], c[5],
           player_parameters());
    for (int stage = 0; stage < 4; stage++)
        for (int n = 1; n <= 1024; n *= 2)
            for (int what = 0; what < 3; what++)
                printf(" %.0f %.0f", player_state(stage, n, what, 0),
                       player_state(stage, n, what, 1));
    printf("\n");
    for (int how = 0; how < 3; how++)
        for (int what = 0; what < 4; what++)
            for (int t = 1; t <= 8; t *= 2) printf(" %.0f", player_kept(how, what, t));
    for (int p = 1; p <= 8; p++)
        for (int i = 0; i < p; i++) printf(" %.0f", player_stage_kept(p, i));
    printf("\n");
}

static void closed_forms(void) {
    bool spans = true, flights = true, chunks = true, halves = true, others = true;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 24; m++)
            for (int schedule = 0; schedule < 3; schedule++) {
                spans &= player_play(0, schedule, p, m, 1, 2, 0) ==
                         2 * (schedule == 0 ? m * p * 3 : (m + p - 1) * 3);
                for (int i = 0; i < p; i++) {
                    int most = 0, want = schedule == 0 ? 1 : schedule == 1 || p - i > m ? m : p - i;
                    for (int k = 0; k < player_ops(0, i); k++) {
                        int n = player_in_flight(0, i, player_op_start(0, i, k));
                        most = n > most ? n : most;
                    }
                    flights &= most == want;
                }
            }
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 24; m++) {
            int interleaved_end = player_play(0, INTERLEAVED, p, m, 1, 2, 0);
            chunks &= interleaved_end == (m % p ? -2 : 3 * (2 * m + p - 1));
            int zb_end = player_play(1, 4, p, m, 1, 2, 0);
            if (m >= p) halves &= zb_end == 6 * m + 2 * (p - 1);
            others &= player_play(0, 6, p, m, 1, 2, 0) > 0;
            others &=
                player_play(1, TWO_VERSIONS, p, m, 1, 2, 0) == (m < p ? -3 : 6 * (2 * m + p - 1));
            others &= player_play(0, ZB_AUTO, p, m, 1, 2, 0) <= zb_end;
        }
    ok(chunks, "interleaved in two chunks: (m + (p - 1) / 2)(t_f + t_b), for multiples of p");
    ok(halves, "ZB-H1: m (t_f + t_b) + (p - 1)(t_f + t_b / 2 - t_b / 2)");
    ok(others, "two batches of 2BW take the time of 1F1B with as many micro-batches; "
               "the list made for these times is no slower than ZB-H1");
    ok(spans, "makespans: naive mp(t_f + t_b), GPipe and 1F1B (m + p - 1)(t_f + t_b)");
    ok(flights, "in flight: naive 1, GPipe m, 1F1B min(p - i, m)");
    // Uses sizes that 8 divides. The bytes per parameter are those of ZeRO's figure 1. A block
    // keeps 64 h + 8 a s bytes per token in fp32, and 4 elements of statistics. The block's input
    // is counted in the layer before the block.
    player_model(8, 64, 8, 16, 64, 1);
    double whole = player_parameters(), bytes[] = { 16, 4 + 12 / 8., 2 + 14 / 8., 16 / 8. };
    bool state = true;
    for (int stage = 0; stage < 4; stage++) {
        double sum = 0;
        for (int what = 0; what < 3; what++) sum += player_state(stage, 8, what, 1);
        state &= sum == bytes[stage] * whole;
    }
    ok(state, "ZeRO, mixed precision: 16, 4 + 12/N, 2 + 14/N and 16/N bytes per parameter");
    ok(whole == 8 * (12 * 64 * 64 + 13 * 64) + 64 * 64 + 16 * 64 + 2 * 64,
       "parameters: L (12 C^2 + 13 C) + VC + TC + 2C");
    double block = (64 * 64 + 8 * 8 * 16) / 4 + 4 - 64, head = 64 + 2 + 64 + 1, sums[3] = { 0 };
    for (int how = 0; how < 3; how++)
        for (int what = 0; what < 4; what++) sums[how] += player_kept(how, what, 1);
    double scores = 2 * 8 * 16, between = 9 * 64;
    ok(sums[0] == between + 8 * block + head, "nothing recomputed: everything");
    ok(sums[1] == between + 8 * (block - scores) + scores,
       "selective: one block's attention probabilities");
    ok(sums[2] == between + block, "full: one block");
    player_model(3, 27, 9, 24, 53, 1);
    static const double measured[3] = { 319392, 223776, 122976 };
    for (int how = 0; how < 3; how++) {
        double sum = 0;
        for (int what = 0; what < 4; what++) sum += player_kept(how, what, 4);
        ok(3 * 24 * 4 * sum == measured[how],
           "as 07/03_selective measures on rank 0 of 4: %.0f bytes", measured[how]);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "print") == 0) {
        for (int schedule = 0; schedule < SCHEDULES; schedule++)
            for (int p = 1; p <= 8; p++)
                for (int m = 1; m <= 24; m += schedule < 3 ? 1 : 3) {
                    play(schedule, p, m, 1, 2, 0);
                    play(schedule, p, m, 3, 5, 2);
                }
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) memory(models[i]);
        return 0;
    }
    closed_forms();
    return tap_end();
}
