// fuzz_main.c replaces libFuzzer. The command fuzz_X -runs=N [-seed=N] FILE... tests each FILE
// unchanged, then N inputs. An input is one of the files with one to four random changes. A change
// replaces a byte, flips a bit, cuts bytes out, cuts the file short, inserts a word, or replaces
// the end by the end of one of the files. The same seed gives the same inputs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum { MOST = 1 << 14 };

static uint64_t state;
static size_t below(size_t n) { // xorshift* (Vigna 2016)
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return n ? (size_t)((state * UINT64_C(2685821657736338717)) >> 32) % n : 0;
}

static size_t change(uint8_t *data, size_t size, const uint8_t *other, size_t other_size) {
    static const char *const words[] = {
        "0", "-1", "18446744073709551615", "1e999", "null", "{}", "[", "\"", "\\u0000", "\n"
    };
    uint8_t old[MOST];
    size_t at = below(size + 1), n = below(size - at + 1), from = below(other_size);
    memcpy(old, data, size);
    switch (below(6)) {
    case 0:
        if (size) data[below(size)] = (uint8_t)below(256);
        return size;
    case 1:
        if (size) data[below(size)] ^= (uint8_t)(1 << below(8));
        return size;
    case 2: memmove(data + at, data + at + n, size - at - n); return size - n; // cut out
    case 3: return at;                                                         // cut short
    case 4: {                                                                  // a word
        const char *word = words[below(sizeof words / sizeof *words)];
        n = strlen(word);
        if (size + n > MOST) return size;
        memcpy(data + at, word, n);
        memcpy(data + at + n, old + at, size - at);
        return size + n;
    }
    // replaces the end by the end of one of the files
    default:
        n = other_size - from;
        if (at + n > MOST) return size;
        memcpy(data + at, other + from, n);
        return at + n;
    }
}

int main(int count, char **argument) {
    static uint8_t corpus[64][MOST], data[MOST];
    size_t size[64], files = 0, runs = 0;
    state = 1;
    for (int i = 1; i < count; i++) {
        if (strncmp(argument[i], "-runs=", 6) == 0) runs = strtoul(argument[i] + 6, NULL, 10);
        else if (strncmp(argument[i], "-seed=", 6) == 0)
            state = strtoull(argument[i] + 6, NULL, 10) | 1;
        else if (argument[i][0] != '-' && files < 64) {
            FILE *f = fopen(argument[i], "rb");
            if (!f) {
                perror(argument[i]);
                return 2;
            }
            size[files] = fread(corpus[files], 1, MOST, f);
            fclose(f);
            LLVMFuzzerTestOneInput(corpus[files], size[files]);
            files++;
        }
    }
    if (!files) {
        fprintf(stderr, "usage: %s -runs=N [-seed=N] FILE...\n", argument[0]);
        return 2;
    }
    for (size_t run = 0; run < runs; run++) {
        size_t k = below(files), n = size[k], other = below(files);
        memcpy(data, corpus[k], n);
        for (size_t changes = 1 + below(4); changes; changes--)
            n = change(data, n, corpus[other], size[other]);
        LLVMFuzzerTestOneInput(data, n);
    }
    fprintf(stderr, "Done %zu runs\n", runs);
    return 0;
}
