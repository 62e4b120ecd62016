// resume.c compares the options and the data of a run with those of the checkpoint of --resume, and
// gives the run its id. Before the first step resume_run() checks the folder of --save.
#include "08_3d/resume.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include "08_3d/checkpoint_folder.h"

// These options define the model. No resumed run may change an option of the model.
static const char *const model_options[] = { "layers", "width",          "heads",      "context",
                                             "vocab",  "family",         "kv-heads",   "ffn",
                                             "untied", "attention-bias", "rope-theta", "norm-eps",
                                             NULL };
// The training is defined by the options of the model and by these options. A resumed run may
// change one of these options, or the content of --data, only with --override.
static const char *const training_options[] = {
    "batch",        "seed",     "lr",          "min-lr",     "warmup", "decay-steps",
    "weight-decay", "beta1",    "beta2",       "eps",        "clip",   "dropout",
    "optimizer",    "compress", "keep-one-of", "power-rank", NULL,
};
// Any resumed run may change these options, with one exception. If a training began without
// --data-eval, a resumed run needs --override data to add --data-eval. The storage may change
// because a checkpoint has masters.
// "ranks" is not an option, but the page reports a change of the ranks, too.
static const char *const layout_options[] = {
    "steps",
    "ranks",
    "dp",
    "tp",
    "pp",
    "cp",
    "tensor",
    "depth",
    "micro-batch",
    "schedule",
    "chunks",
    "stage-layers",
    "rebalance",
    "zero",
    "prefetch",
    "overlap",
    "attention",
    "sequence-parallel",
    "recompute",
    "activation-budget",
    "reduce",
    "threads",
    "storage",
    "gradients",
    "loss-scale",
    "eval-every",
    "data",
    "data-eval",
    "skip-nonfinite",
    NULL,
};

// ---------------------------------------------------------------- the values of options

static RunOption *look_up(const RunOptions *o, const char *name) {
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->option[i].name, name) == 0) return &o->option[i];
    fault("the run has no option --%s", name);
}
const char *run_option(const RunOptions *o, const char *name) { return look_up(o, name)->value; }
bool run_option_given(const RunOptions *o, const char *name) { return look_up(o, name)->given; }
static void take(RunOptions *o, const char *name, const char *text) {
    RunOption *option = look_up(o, name);
    if (option->given || !text) return;
    option->value = text;
    option->taken = true;
}

// Returns the value that a training has for an option of the model or of the training. Without
// --decay-steps the value is --steps, because the learning rate falls over the steps of the first
// run. Without --vocab the value is 256, because tokens are bytes.
static const char *training_value(const RunOptions *o, const char *name) {
    const char *value = run_option(o, name);
    if (!value && strcmp(name, "decay-steps") == 0) return run_option(o, "steps");
    if (!value && strcmp(name, "vocab") == 0) return "256";
    return value;
}

static void record(const RunOptions *o, cJSON *object, const char *const *names) {
    for (; *names; names++)
        if (training_value(o, *names))
            cJSON_AddStringToObject(object, *names, training_value(o, *names));
}
void resume_record(const RunOptions *o, cJSON *index) {
    cJSON *options = cJSON_AddObjectToObject(index, "options");
    cJSON *layout = cJSON_AddObjectToObject(index, "layout");
    record(o, options, model_options);
    record(o, options, training_options);
    for (const char *const *name = layout_options; *name; name++) {
        const char *value = run_option(o, *name);
        if (value) cJSON_AddStringToObject(layout, *name, value);
    }
}

// "0.003" and "3e-3" are the same number.
static bool same(const char *a, const char *b) {
    if (!a || !b) return a == b;
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    bool numbers = end_a != a && !*end_a && end_b != b && !*end_b;
    return numbers ? x == y : strcmp(a, b) == 0;
}

// ---------------------------------------------------------------- --override

// Returns whether the list has this word.
// list: words with commas between them, such as "lr,data".
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}
static bool overridden(const RunOptions *o, const char *name) {
    return run_option_given(o, "override") && has_word(run_option(o, "override"), name);
}

static void require_overrides(const RunOptions *o) {
    if (!run_option_given(o, "override")) return;
    REQUIRE(run_option_given(o, "resume"),
            "--override says what a resumed training may change: give --resume DIR, too");
    const char *list = run_option(o, "override");
    char known[512] = "data";
    for (const char *const *name = training_options; *name; name++)
        snprintf(known + strlen(known), sizeof known - strlen(known), ",%s", *name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        REQUIRE(word[0] && has_word(known, word),
                "--override %s: '%s' is none of the options that it can name: %s", list, word,
                known);
    }
}

// ---------------------------------------------------------------- the checkpoint of --resume

static void take_options(RunOptions *o, const Checkpoint *c, const char *const *names) {
    for (; *names; names++) take(o, *names, checkpoint_option(c, *names));
}

static void require_same_training(const RunOptions *o, const char *dir, const Checkpoint *c) {
    for (const char *const *name = model_options; *name; name++) {
        const char *before = checkpoint_option(c, *name);
        const char *asked = training_value(o, *name);
        // A checkpoint without --family was written before this option existed.
        if (!before && !strcmp(*name, "family")) before = "gpt2";
        REQUIRE(
            before || !asked,
            "--resume %s: it was trained without --%s: leave --%s out, because the weights have "
            "the former shape",
            dir, *name, *name);
        REQUIRE(same(before, asked),
                "--resume %s: it was trained with --%s %s, not %s: leave --%s out, because the "
                "weights have the former shape",
                dir, *name, before, asked ? asked : "?", *name);
    }
    for (const char *const *name = training_options; *name; name++) {
        const char *before = checkpoint_option(c, *name);
        const char *asked = run_option(o, *name);
        REQUIRE(same(before, asked) || overridden(o, *name),
                "--resume %s: it was trained with --%s %s, not %s: leave --%s out, or say "
                "--override %s",
                dir, *name, before ? before : "left out", asked ? asked : "left out", *name, *name);
    }
    // Without --data-eval the last tenth of --data is held out. With --data-eval the training also
    // learns this tenth.
    REQUIRE(checkpoint_index_layout(checkpoint_index(c), "data-eval") ||
                !run_option(o, "data-eval") || overridden(o, "data"),
            "--resume %s: it was trained on nine tenths of --data, because --data-eval was not "
            "given: leave --data-eval out, or say --override data",
            dir);
    bool check = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(checkpoint_index(c)->json, "check"));
    REQUIRE(check == (run_option(o, "check") != NULL),
            "--resume %s: it was trained with%s --check, which has other token counts: %s", dir,
            check ? "" : "out", check ? "give --check" : "leave --check out");
}

Checkpoint *resume_open(Comm *world, RunOptions *o, char note[CHECKPOINT_NOTE]) {
    *note = 0;
    require_overrides(o);
    REQUIRE(run_option_given(o, "resume") || !run_option(o, "newest-good"),
            "--newest-good chooses among the checkpoints in the folder of --resume: give --resume "
            "DIR, too");
    const char *save = run_option(o, "save"), *dir = run_option(o, "resume");
    // The lock comes before the search for the newest checkpoint. So no other run can add a newer
    // checkpoint to the folder of --save after the search.
    if (save && world->rank == 0 && !folder_claim(save))
        snprintf(note, CHECKPOINT_NOTE,
                 "%.600s: this file system has no locks: let no other run save there\n", save);
    if (!dir) return NULL;
    char why[CHECKPOINT_WHY];
    size_t used = strlen(note);
    Checkpoint *c = checkpoint_open(world, dir, run_option(o, "newest-good") != NULL, why,
                                    note + used, CHECKPOINT_NOTE - used);
    REQUIRE(c, "--resume %s: %s%s", dir, why,
            strstr(why, "; the newest good one is ") ? ": --newest-good takes it" : "");
    take_options(o, c, model_options);
    take_options(o, c, training_options);
    static const char *const from_layout[] = { "steps",         "data",      "data-eval",
                                               "storage",       "gradients", "loss-scale",
                                               "skip-nonfinite" };
    for (size_t i = 0; i < sizeof from_layout / sizeof *from_layout; i++)
        take(o, from_layout[i], checkpoint_index_layout(checkpoint_index(c), from_layout[i]));
    require_same_training(o, dir, c);
    return c;
}

// ---------------------------------------------------------------- the folder of --save

typedef struct {
    char name[FOLDER_NAME];
    size_t step;
    bool part;
} Entry;
// Returns the entries of dir that have names of checkpoints. Calls usage_error() if this program
// has not written such an entry.
static Entry *entries_of(const char *dir, size_t *n) {
    size_t step, room = 0;
    bool part;
    char why[FOLDER_WHY] = "";
    DIR *d = opendir(dir);
    while (d && readdir(d)) room++;
    if (d) rewinddir(d);
    Entry *list = host_alloc((room + 1) * sizeof *list);
    *n = 0;
    for (const struct dirent *e; d && *n < room && (e = readdir(d));) {
        if (!folder_step(e->d_name, &step, &part)) continue;
        REQUIRE(folder_is_ours(dir, e->d_name, why),
                "--save %s: %s: move it away, or save elsewhere", dir, why);
        list[*n] = (Entry){ .step = step, .part = part };
        folder_name(list[(*n)++].name, step, part);
    }
    if (d) closedir(d);
    return list;
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Returns whether the checkpoint in `path` may stay if this run begins after step `from`. The
// checkpoint must belong to this run, or be torn if this run is resumed. The checkpoint's step must
// be at most `from`, unless --newest-good may have skipped the checkpoint.
static bool may_stay(const RunOptions *o, const char *path, size_t step, const SavedRun *saved,
                     size_t from, char why[FOLDER_WHY]) {
    CheckpointIndex x;
    const bool read = folder_index(&x, path, why), own = read && strcmp(x.run.id, saved->id) == 0;
    if (read && !own)
        snprintf(why, FOLDER_WHY, "%.600s is a checkpoint of another run, %s", path, x.run.id);
    if (own)
        snprintf(why, FOLDER_WHY,
                 "%.600s is of this run, but later than step %zu, from which the run continues",
                 path, from);
    checkpoint_index_free(&x);
    const bool passed_over =
        run_option(o, "newest-good") && same_folder(run_option(o, "resume"), run_option(o, "save"));
    return (own || (!read && from > 0)) && (step <= from || passed_over);
}

// Removes the .part folders of killed runs and, with --save-over, every checkpoint that may not
// stay. Without --save-over, calls usage_error() for such a checkpoint.
static void require_folder(const RunOptions *o, const char *dir, const SavedRun *saved,
                           size_t from) {
    size_t n;
    Entry *list = entries_of(dir, &n);
    char why[FOLDER_WHY] = "";
    const bool over = run_option(o, "save-over") != NULL;
    for (size_t i = 0; i < n; i++) {
        char *path = folder_path(dir, list[i].name);
        bool stays = !list[i].part && may_stay(o, path, list[i].step, saved, from, why);
        REQUIRE(
            stays || list[i].part || over,
            "--save %s: %s: continue the newest checkpoint with --resume %s, save elsewhere, or "
            "remove this checkpoint with --save-over",
            dir, why, dir);
        if (stays) list[i].name[0] = 0;
        free(path);
    }
    for (size_t i = 0; i < n; i++)
        REQUIRE(!list[i].name[0] || folder_remove(dir, list[i].name, why), "--save %s: %s", dir,
                why);
    free(list);
}

// ---------------------------------------------------------------- the run

static void new_id(char id[RUN_ID]) {
    uint64_t bits = 0;
    if (this_rank == 0 && getrandom(&bits, sizeof bits, 0) != sizeof bits)
        fault("no random number for the run's name");
    snprintf(id, RUN_ID, "%016" PRIx64, bits);
    side_broadcast(id, RUN_ID);
}

static FileSum data_sum(const Data *data, bool held_out) {
    FileSum sum = { 0 };
    if (this_rank == 0) sum.sum = data_fingerprint(data, held_out, &sum.bytes);
    side_broadcast(&sum, sizeof sum);
    return sum;
}
static bool same_sum(FileSum a, FileSum b) { return a.sum == b.sum && a.bytes == b.bytes; }
// Returns whether the content of the files without training tokens has changed. Returns false if
// the checkpoint has no sum over this content.
static bool other_held_out(const Checkpoint *before, FileSum held_out) {
    const FileSum was = checkpoint_index(before)->run.held_out;
    return was.bytes > 0 && !same_sum(was, held_out);
}

static void require_same_data(const RunOptions *o, const Checkpoint *before, FileSum data) {
    FileSum was = checkpoint_index(before)->run.data;
    const char *dir = run_option(o, "resume"), *path = run_option(o, "data");
    REQUIRE(same_sum(was, data) || overridden(o, "data"),
            "--resume %s: it was trained on data of %zu bytes, sum %016" PRIx64
            ", and %s has %zu bytes, sum %016" PRIx64
            ": give the same --data, or say --override data",
            dir, was.bytes, was.sum, path ? path : "this tree's text", data.bytes, data.sum);
}

SavedRun resume_run(const RunOptions *o, const Checkpoint *before, const Data *data) {
    SavedRun saved = { 0 };
    const char *dir = run_option(o, "save");
    if (before) saved = checkpoint_index(before)->run;
    else new_id(saved.id);
    if (before || dir) {
        saved.data = data_sum(data, false);
        saved.held_out = data_sum(data, true);
        if (before) require_same_data(o, before, saved.data);
    }
    // Losses on another held-out text cannot be compared.
    if (before && other_held_out(before, saved.held_out)) saved.best_step = 0;
    if (before && dir) { // the best step must be in the folder of --save
        char *above = folder_path(checkpoint_folder(before), "..");
        if (!same_folder(above, dir)) saved.best_step = 0;
        free(above);
    }
    if (dir && this_rank == 0) require_folder(o, dir, &saved, before ? checkpoint_step(before) : 0);
    return saved;
}

// Returns the checkpoint's value of an option of the layout. If storage, gradients or
// skip-nonfinite is missing, the checkpoint was written before the option existed, so the function
// returns the option's default.
static const char *layout_before(const CheckpointIndex *x, const char *name) {
    const char *was = checkpoint_index_layout(x, name);
    if (!was && strcmp(name, "storage") == 0) return "real";
    if (!was && strcmp(name, "gradients") == 0) return "main";
    if (!was && strcmp(name, "skip-nonfinite") == 0) return "0";
    return was;
}
char *resume_line(const RunOptions *o, const Checkpoint *before, const SavedRun *run) {
    enum { ROOM = 4096 };
    const CheckpointIndex *x = checkpoint_index(before);
    char list[1024] = "", *line = host_alloc(ROOM);
    for (const char *const *name = layout_options; *name; name++) {
        const char *was = layout_before(x, *name), *is = run_option(o, *name);
        if (!same(was, is))
            snprintf(list + strlen(list), sizeof list - strlen(list), ", %s %s (was %s)", *name,
                     is ? is : "left out", was ? was : "left out");
    }
    for (const char *const *name = training_options; *name; name++) {
        const char *was = checkpoint_option(before, *name), *is = run_option(o, *name);
        if (!same(was, is))
            snprintf(list + strlen(list), sizeof list - strlen(list),
                     ", overridden: %s %s (was %s)", *name, is ? is : "left out",
                     was ? was : "left out");
    }
    if (other_held_out(before, run->held_out))
        snprintf(list + strlen(list), sizeof list - strlen(list),
                 ", held-out text of %zu bytes, sum %016" PRIx64 " (was %zu bytes, sum %016" PRIx64
                 ")",
                 run->held_out.bytes, run->held_out.sum, x->run.held_out.bytes,
                 x->run.held_out.sum);
    snprintf(line, ROOM, "run %s goes on from %s: %zu of %zu steps were done before%s", x->run.id,
             checkpoint_folder(before), x->step, (size_t)strtoull(run_option(o, "steps"), NULL, 10),
             list);
    return line;
}
