// fuzz_options.c: reads random bytes as a command line, one argument per line. Each number among
// the values is then read as a real, and --layers as a whole number.
// with: judge/frame/options.c
#include <getopt.h>
#include "judge/frame/frame.h"
#include "tests/fuzz.h"

const LessonInfo lesson_info = { .id = "00.00", .name = "fuzz", .question = "?", .ranks = 1 };
bool device_is_gpu(void) { return false; }

static const Option own[] = {
    { "layers", "N", "2", "blocks" },           { "lr", "X", NULL, "rate" },
    { "zero", "0|1|2|3", "0", "of the state" }, { "check", NULL, NULL, "compare" },
    { "data", "FILE", NULL, "text" },           { 0 },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 32 };
    static char *text; // The next call frees the text, because usage_error() does not return.
    char *argument[MOST + 2] = { "program" };
    int n = 1;
    free(text);
    text = malloc(size + 1);
    if (size) memcpy(text, data, size);
    text[size] = 0;
    for (char *at = text; n <= MOST && at < text + size; at += strlen(at) + 1) {
        at[strcspn(at, "\n")] = 0;
        argument[n++] = at;
    }
    if (setjmp(fuzz_refused)) return 0;
    optind = 0; // makes glibc's getopt start again
    OptionValues s = options_parse(n, argument, own);
    for (size_t i = 0; i < s.count; i++) {
        if (!s.list[i].text || !option_value_is_number(&s.list[i])) continue;
        double real = option_value_real(&s.list[i]);
        if (real - real != 0) abort(); // infinite or NaN
    }
    if (option_value_whole(options_find(&s, "layers"), 1, 64) > 64) abort();
    return 0;
}
