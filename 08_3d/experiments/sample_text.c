// sample_text.c makes the tokens of the prompt for 08_3d/sample, and prints the written text.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static SampleText text_of_ids(Run *run, size_t vocab, size_t more) {
    const char *list = option_text(run, "ids");
    SampleText t = { .token = host_alloc((strlen(list) + 1 + more) * sizeof(int)) };
    for (const char *s = list;; s++) {
        char *end;
        REQUIRE(*s >= '0' && *s <= '9',
                "--ids %s: expected token ids with commas between them, such as 15496,11", list);
        unsigned long id = strtoul(s, &end, 10);
        REQUIRE(id < vocab, "--ids: %lu is no entry of this vocabulary: ids go from 0 to %zu", id,
                vocab - 1);
        t.token[t.n++] = (int)id;
        s = end;
        REQUIRE(*s == ',' || *s == 0,
                "--ids %s: expected token ids with commas between them, such as 15496,11", list);
        if (*s == 0) break;
    }
    return t;
}
SampleText sample_text_begin(Run *run, size_t vocab) {
    size_t more = option_size(run, "tokens");
    bool ids = option_given(run, "ids");
    REQUIRE(more > 0 && more <= 1000000, "--tokens %zu: expected 1 to 1000000", more);
    REQUIRE(!ids || !option_given(run, "prompt"),
            "--prompt and --ids both say how the text begins: give one of them");
    REQUIRE(ids || vocab == 256,
            "this model has a vocabulary of %zu entries, not of bytes: give --ids, or use "
            "tools/gpt2-text, which has a tokenizer",
            vocab);
    SampleText t;
    if (ids) {
        t = text_of_ids(run, vocab, more);
    } else {
        const unsigned char *prompt = (const unsigned char *)option_text(run, "prompt");
        t = (SampleText){ .n = strlen((const char *)prompt) };
        t.token = host_alloc((t.n + more) * sizeof(int));
        for (size_t i = 0; i < t.n; i++) t.token[i] = prompt[i];
    }
    t.prompt = t.n;
    t.all = t.n + more;
    return t;
}

void sample_text_show(Run *run, const SampleText *t, bool ids) {
    char *out = host_alloc(12 * t->n + 1), *at = out;
    for (size_t i = 0; i < t->n; i++) {
        int c = t->token[i];
        if (ids) at += sprintf(at, "%s%d", i ? "," : "", c);
        else if (c == '\n' || (c >= 32 && c < 127)) *at++ = (char)c;
        else at += sprintf(at, "\\x%02x", (unsigned)c);
    }
    *at = 0;
    if (ids)
        say(run,
            "The ids of the prompt (the first %zu) and the ids that the model wrote. No tokenizer "
            "is read, so the text is missing:",
            t->prompt);
    else say(run, "The prompt '%s' and the text that the model wrote:", option_text(run, "prompt"));
    say(run, "%s\n", out);
    report_config_text(run, ids ? "ids_written" : "text_written", out);
    free(out);
}
