// options.c: reads the command line, and checks every value before any rank starts to work.
#include "judge/frame/frame.h"
#include "common/device/device.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const Option common_options[] = {
    { "emulate", "N", NULL, "run N virtual ranks in this process" },
    { "transport", "emu|mpi", NULL,
      "how ranks communicate; without it: mpi under a launcher, else emu" },
    { "reduce", "ordered|fast", "ordered",
      "add in rank order on every transport, or in the library's order" },
    { "threads", "N", "1",
      "threads per rank, for products and row-wise ops; the bits of products may depend on N" },
    { "clock", "wall|simulated", NULL,
      "real time, or the computed time of devices and links; without it: simulated for virtual or "
      "crowded ranks" },
    { "device", "NAME", "lesson", "the simulated clock's device: lesson, h100, a100, core" },
    { "link", "NAME[,NAME]", "fast,slow",
      "the simulated clock's links, inside a node and between nodes: fast, slow, free, nvlink, ib, "
      "ethernet" },
    { "node", "N", NULL, "N neighbouring ranks share a node; without it all ranks share one" },
    { "rails", "N", NULL,
      "the simulated clock's network cards of a node, which a collective uses together; without it "
      "one per rank" },
    { "seed", "N", "1", "seed of weights, data and dropout" },
    { "storage", "real|bf16|fp16", "real",
      "how weights and activations are stored; with 16 bits the optimizer keeps masters in reals" },
    { "json", "FILE", NULL, "write settings, checks, costs and the verdict to FILE" },
    { "svg", "FILE", NULL, "write the lesson's picture to FILE" },
    { "trace", "FILE", NULL, "write all ranks' events to FILE, as a trace for ui.perfetto.dev" },
    { "timeout", "SECONDS", "60",
      "longest wait of a rank in one call, except for work that rank 0 does alone" },
    { "deadlock", "SECONDS", "10",
      "how long processes wait for each other before they report a deadlock and end" },
    { "verbose", NULL, NULL, "print a line for each check and each cost, to the last digit" },
    { "color", NULL, NULL, "colours, as on a terminal (there NO_COLOR=1 turns them off)" },
    { "help", NULL, NULL, "print this text" },
    { 0 },
};

// A program for GPUs adds these options. `transport` replaces the common option of this name.
static const Option gpu_options[] = {
    { "transport", "emu|staged|nccl", NULL,
      "how ranks communicate; without it: nccl if a launcher starts them with a GPU for each rank, "
      "staged if they share GPUs, else emu" },
    { "tf32", NULL, NULL,
      "products may round their factors to 10 bits: faster, but the checks then fail" },
    { 0 },
};

typedef enum { FLAG, WHOLE, REAL, CHOICE, TEXT } Kind;

static Kind kind_of(const Option *o) {
    if (o->value == NULL) return FLAG;
    if (strcmp(o->value, "N") == 0) return WHOLE;
    if (strcmp(o->value, "X") == 0) return REAL;
    if (strcmp(o->value, "SECONDS") == 0 || strcmp(o->value, "MINUTES") == 0) return REAL;
    return strchr(o->value, '|') != NULL ? CHOICE : TEXT;
}

// ---- values ----
// The whole text is one value. Whole numbers have no sign, and an overflow is an error.

static bool read_whole(const char *text, uint64_t *value) {
    if (*text == 0 || strspn(text, "0123456789") != strlen(text)) return false;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return errno == 0;
}

static bool read_real(const char *text, double *value) {
    if (*text == 0 || strspn(text, "+-.0123456789eE") != strlen(text)) return false;
    char *end;
    *value = strtod(text, &end);
    return *end == 0 && isfinite(*value);
}

static bool is_choice(const char *text, const char *choices) {
    size_t length = strlen(text);
    for (const char *c = choices; length > 0; c++) {
        size_t word = strcspn(c, "|");
        if (word == length && strncmp(c, text, word) == 0) return true;
        c += word;
        if (*c == 0) break;
    }
    return false;
}

static void validate(const OptionValue *s) {
    const Option *o = &s->option;
    uint64_t whole;
    double number;
    switch (kind_of(o)) {
    case WHOLE:
        REQUIRE(read_whole(s->text, &whole), "--%s %s: expected a whole number, 0 or more", o->name,
                s->text);
        break;
    case REAL:
        REQUIRE(read_real(s->text, &number), "--%s %s: expected a number, such as 0.5", o->name,
                s->text);
        break;
    case CHOICE:
        REQUIRE(is_choice(s->text, o->value), "--%s %s: expected one of %s", o->name, s->text,
                o->value);
        break;
    case TEXT:
        REQUIRE(*s->text != 0, "--%s needs a value that is not empty: --%s %s", o->name, o->name,
                o->value);
        break;
    case FLAG: break;
    }
}

bool option_value_is_number(const OptionValue *s) {
    return kind_of(&s->option) == WHOLE || kind_of(&s->option) == REAL;
}

uint64_t option_value_whole(const OptionValue *s, uint64_t lo, uint64_t hi) {
    uint64_t value;
    if (s->text == NULL) fault("--%s has neither a value nor a default", s->option.name);
    REQUIRE(read_whole(s->text, &value) && lo <= value && value <= hi,
            "--%s %s: expected a whole number from %" PRIu64 " to %" PRIu64, s->option.name,
            s->text, lo, hi);
    return value;
}

double option_value_real(const OptionValue *s) {
    double value;
    if (s->text == NULL) fault("--%s has neither a value nor a default", s->option.name);
    REQUIRE(read_real(s->text, &value), "--%s %s: expected a number, such as 0.5", s->option.name,
            s->text);
    return value;
}

// ---- the table ----

// Returns the place of an option, or s->count if the option is unknown.
static size_t look_up(const OptionValues *s, const char *name) {
    size_t i = 0;
    while (i < s->count && strcmp(s->list[i].option.name, name) != 0) i++;
    return i;
}

static size_t place_of(const OptionValues *s, const char *name) {
    size_t i = look_up(s, name);
    if (i == s->count) fault("this program has no option --%s", name);
    return i;
}

const OptionValue *options_find(const OptionValues *s, const char *name) {
    return &s->list[place_of(s, name)];
}

void options_require_storage(const OptionValues *s) {
    const char *storage = options_find(s, "storage")->text;
    const Option *o = s->own;
    if (strcmp(storage, "real") == 0) return;
    while (o && o->name && strcmp(o->name, "storage") != 0) o++;
    REQUIRE(o && o->name, "--storage %s: this program stores reals only; leave the option out",
            storage);
    REQUIRE(strcmp(o->value, "real") != 0, "--storage %s: %s; leave the option out", storage,
            o->help);
}

void options_free(OptionValues *s) {
    for (size_t i = 0; i < s->count; i++) free(s->list[i].copied);
}

// Adds a table of options. An option with the name of an earlier option replaces that option, but
// keeps the earlier help if its own help is NULL.
static void add_options(OptionValues *s, const Option *o) {
    const char *heading = NULL;
    for (; o != NULL && o->name != NULL; o++) {
        if (*o->name == 0) { // the entry is a heading or an example
            heading = o->help;
            continue;
        }
        size_t i = look_up(s, o->name);
        if (i == MOST_OPTIONS)
            fault("there is room for %d options only: raise MOST_OPTIONS", MOST_OPTIONS);
        if (i == s->count) {
            s->list[i].heading = heading;
            heading = NULL;
            s->count++;
        }
        const char *help = o->help ? o->help : s->list[i].option.help;
        s->list[i].option = *o;
        s->list[i].option.help = help;
    }
}

static OptionValues options_table(const Option *own) {
    OptionValues s = { 0 };
    add_options(&s, common_options);
    if (device_is_gpu()) add_options(&s, gpu_options);
    s.common = s.count;
    add_options(&s, own);
    s.own = own;
    for (size_t i = 0; i < s.count; i++) s.list[i].text = s.list[i].option.fallback;
    return s;
}

// Returns how many letters of a must be changed, added or removed to get b (Levenshtein 1966). Only
// the first 64 letters of b count.
static size_t edit_distance(const char *a, const char *b) {
    size_t row[65], n = strlen(b) < 64 ? strlen(b) : 64;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != 0; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

// The word may have parts with hyphens between. Compares the word with every run of as many
// neighbouring words of the help, joined by hyphens. Returns the smallest distance. For example,
// lerning-rate has distance 1 from "highest learning rate".
static size_t help_distance(const char *word, const char *help) {
    const char *const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t best = SIZE_MAX, words = 1;
    for (const char *c = word; *c; c++) words += *c == '-';
    for (const char *from = help; *from; from += strspn(from, letters)) {
        char phrase[64] = "";
        from += strcspn(from, letters);
        if (*from == 0) break;
        const char *next = from;
        for (size_t n = 0; n < words && strlen(phrase) + strspn(next, letters) + 2 < sizeof phrase;
             n++) {
            sprintf(phrase + strlen(phrase), "%s%.*s", n ? "-" : "", (int)strspn(next, letters),
                    next);
            next += strspn(next, letters);
            next += strcspn(next, letters);
        }
        size_t distance = edit_distance(word, phrase);
        best = distance < best ? distance : best;
    }
    return best;
}

// Suggests the option with the nearest name. If no name is near, suggests an option whose help
// contains a similar word.
static _Noreturn void unknown_option(const OptionValues *s, const char *argument) {
    enum { NEAR = 2, LETTERS_PER_SLIP = 5 };
    char word[64];
    const char *bare = argument + strspn(argument, "-");
    const Option *nearest = &s->list[0].option, *described = NULL;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(bare, "="), bare);
    for (size_t i = 1; i < s->count; i++) {
        const Option *o = &s->list[i].option;
        if (edit_distance(word, o->name) < edit_distance(word, nearest->name)) nearest = o;
    }
    size_t least = strlen(word) / LETTERS_PER_SLIP + 1;
    for (size_t i = 0; i < s->count; i++) {
        size_t distance = help_distance(word, s->list[i].option.help);
        if (distance >= least) continue;
        least = distance;
        described = &s->list[i].option;
    }
    if (described && edit_distance(word, nearest->name) > NEAR)
        usage_error("unknown option %s; the nearest is --%s (%s), and --help lists them all",
                    argument, described->name, described->help);
    usage_error("unknown option %s; the nearest is --%s, and --help lists them all", argument,
                nearest->name);
}

// Rejects the beginning of a name, which getopt_long() accepts. Otherwise a new option with the
// same beginning could change the meaning of an old command line.
static void require_whole_name(const OptionValues *s, const Option *o, const char *argument) {
    size_t length = strcspn(argument + 2, "=");
    if (length != strlen(o->name) || strncmp(argument + 2, o->name, length) != 0)
        unknown_option(s, argument);
}

static _Noreturn void bad_option(const OptionValues *s, int answer, char **argv) {
    if (optopt >= 256) {
        const Option *o = &s->list[optopt - 256].option;
        require_whole_name(s, o, argv[optind - 1]);
        if (answer == ':')
            usage_error("--%s needs a value: --%s %s (%s)", o->name, o->name, o->value, o->help);
        usage_error("--%s takes no value: write only --%s", o->name, o->name);
    }
    if (optopt != 0) unknown_option(s, (char[]){ '-', (char)optopt, 0 });
    unknown_option(s, argv[optind - 1]);
}

// The place of a file is its device and inode. If the file does not exist yet, device and inode are
// those of its folder, and name is the file's name.
typedef struct {
    dev_t device;
    ino_t inode;
    const char *name;
} FilePlace;
static bool file_place(const char *path, FilePlace *place) {
    struct stat info;
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";
    *place = (FilePlace){ .name = "" };
    if (stat(path, &info) != 0) {
        if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
        place->name = slash ? slash + 1 : path;
        if (stat(folder, &info) != 0) return false;
    } else if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        return false; // several options may write to the same terminal or pipe
    }
    place->device = info.st_dev;
    place->inode = info.st_ino;
    return true;
}

static bool names_a_file(const OptionValue *s) {
    static const char *const kinds[] = { "FILE", "FILES", "DIR", "PATH" };
    for (size_t i = 0; s->given && s->option.value && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(s->option.value, kinds[i]) == 0) return true;
    return false;
}

// Requires that an option with value "FILE" does not name the file of another option, because the
// program may write this file. Options for FILES, DIR or PATH may name the same place, as --save
// and --resume often do.
static void require_different_files(const OptionValues *s) {
    for (size_t i = 0; i < s->count; i++) {
        const OptionValue *a = &s->list[i];
        FilePlace x, y;
        if (!names_a_file(a) || strcmp(a->option.value, "FILE") != 0 || !file_place(a->text, &x))
            continue;
        for (size_t k = 0; k < s->count; k++) {
            const OptionValue *b = &s->list[k];
            if (k == i || !names_a_file(b) || !file_place(b->text, &y)) continue;
            REQUIRE(x.device != y.device || x.inode != y.inode || strcmp(x.name, y.name) != 0,
                    "--%s %s and --%s %s name the same file: give each a file of its own",
                    a->option.name, a->text, b->option.name, b->text);
        }
    }
}

OptionValues options_parse(int argc, char **argv, const Option *own) {
    OptionValues s = options_table(own);
    struct option table[MOST_OPTIONS + 1] = { 0 };
    for (size_t i = 0; i < s.count; i++) {
        const Option *o = &s.list[i].option;
        table[i] = (struct option){ o->name, o->value ? required_argument : no_argument, NULL,
                                    256 + (int)i };
    }
    opterr = 0;
    for (int answer; (answer = getopt_long(argc, argv, ":", table, NULL)) != -1;) {
        if (answer < 256) bad_option(&s, answer, argv);
        OptionValue *set = &s.list[answer - 256];
        // true for --name value, false for --name=value
        bool apart = set->option.value != NULL && optarg == argv[optind - 1];
        require_whole_name(&s, &set->option, argv[optind - (apart ? 2 : 1)]);
        REQUIRE(!set->given, "--%s is given twice: give it once", set->option.name);
        set->given = true;
        if (set->option.value != NULL) set->text = optarg;
        validate(set);
        if (strcmp(set->option.name, "help") == 0) {
            s.help = true;
            break;
        }
    }
    REQUIRE(s.help || optind >= argc,
            "unexpected argument %s: options start with --, and --help lists them", argv[optind]);
    require_different_files(&s);
    return s;
}

enum { HELP_COLUMN = 32 };

static void print_options(const OptionValue *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Option *o = &list[i].option;
        if (list[i].heading) printf("%s%s:\n", i ? "\n" : "", list[i].heading);
        int width = printf("  --%s%s%s ", o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("%*s%s", width < HELP_COLUMN ? HELP_COLUMN - width : 0, "", o->help);
        if (o->value != NULL && o->fallback != NULL) printf(" (default %s)", o->fallback);
        printf("\n");
    }
}

void options_print_help(const OptionValues *s, const char *program) {
    printf("usage: %s [options]\n", program);
    printf("       mpirun -np N %s [options]\n\n", program);
    printf("%s %s: %s\n", lesson_info.id, lesson_info.name, lesson_info.question);
    printf("Without a launcher and without --emulate it runs %zu virtual rank%s.\n\n",
           lesson_info.ranks, lesson_info.ranks == 1 ? "" : "s");
    if (s->count > s->common) {
        if (!s->list[s->common].heading) printf("Options of this program:\n");
        print_options(s->list + s->common, s->count - s->common);
        printf("\n");
    }
    bool grouped = s->count > s->common && s->list[s->common].heading;
    printf(grouped ? "Run, as in every program:\n" : "Options of every program:\n");
    print_options(s->list, s->common);
    bool titled = false;
    for (const Option *o = s->own; o && o->name; o++) {
        if (*o->name || !o->value) continue; // an example has a value and no name
        if (!titled) printf("\nExamples:\n");
        printf("  %s\n      %s\n", o->value, o->help);
        titled = true;
    }
    printf(
        "\nExit status: 0 all checks hold, 1 a check failed, 2 usage, 3 a fault while running%s.\n",
        look_up(s, "exit-after") < s->count ? ", 4 stopped and saved: continue with --resume" : "");
}

// ---- reading options in a lesson ----

static const OptionValue *asked(Run *run, const char *name) {
    return options_find(&run->state->settings, name);
}
size_t option_size(Run *run, const char *name) {
    return (size_t)option_value_whole(asked(run, name), 0, SIZE_MAX);
}
double option_real(Run *run, const char *name) { return option_value_real(asked(run, name)); }
Element option_storage(const Run *run) {
    const char *storage = options_find(&run->state->settings, "storage")->text;
    return strcmp(storage, "bf16") == 0 ? BF16S : strcmp(storage, "fp16") == 0 ? FP16S : REALS;
}
bool option_main_gradients(const Run *run) {
    const OptionValues *s = &run->state->settings;
    const size_t i = look_up(s, "gradients");
    return i == s->count || strcmp(s->list[i].text, "main") == 0;
}
double storage_limit(Element e) {
    return e == BF16S ? 32 * 0x1p-9 : e == FP16S ? 32 * 0x1p-12 : LIMIT_ROUNDING;
}
double rounding_limit(const Run *run) { return storage_limit(option_storage(run)); }
double numbers_limit(const Run *run) {
    return rounding_limit(run) / (option_storage(run) == REALS ? 1 : 8);
}
double exact_limit(const Run *run) {
    return run->reduce == REDUCE_ORDERED ? 0 : rounding_limit(run);
}
const char *option_text(Run *run, const char *name) { return asked(run, name)->text; }
bool option_flag(Run *run, const char *name) {
    const OptionValue *o = asked(run, name);
    return o->given || o->text; // a text: option_default() has set the flag
}
bool option_given(Run *run, const char *name) { return asked(run, name)->given; }
void option_default(Run *run, const char *name, const char *text) {
    OptionValues *s = &run->state->settings;
    OptionValue *o = &s->list[place_of(s, name)];
    if (o->given) return;
    char *copy = text_copy(text);
    free(o->copied);
    o->copied = copy;
    o->text = copy;
    validate(o);
}
