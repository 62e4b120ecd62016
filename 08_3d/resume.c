// resume.c: compares the options and the data of a run with those of its checkpoint, gives the
// run its id, and looks through the folder of --save before the first step.
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
#include "08_3d/mesh.h"

// The weights have their shapes from these: no run may change them.
static const char *const model_options[] = { "layers", "width", "heads", "context", "vocab", NULL };
// A run that resumes may change these with --override only, and the content of --data.
static const char *const training_options[] = {
    "batch", "seed", "lr", "min-lr", "warmup", "decay-steps", "weight-decay", "beta1", "beta2", "eps",
    "clip", "dropout",
    "optimizer", "compress", "keep-one-of", "power-rank", NULL,
};
// Any run may change these. "ranks" is no option, but it is said, too.
static const char *const layout_options[] = {
    "steps", "ranks", "dp", "tp", "pp", "cp", "tensor", "depth", "micro-batch", "schedule",
    "chunks", "stage-layers", "rebalance", "zero", "prefetch", "overlap", "attention",
    "sequence-parallel", "recompute", "activation-budget", "reduce", "threads", "eval-every",
    "data", "data-eval", NULL,
};

// ---------------------------------------------------------------- the values of options

enum { VALUE = 24 };
// The value of an option that does not define the training; text has room for a number. NULL: it
// was not given.
static const char *layout_value(Run *run, const char *name, char text[VALUE]) {
    static const char *const degree_names[] = { "dp", "tp", "pp", "cp", "ranks" };
    const Degrees n = mesh_degrees(run);
    const size_t degree[] = { n.dp, n.tp, n.pp, n.cp, run->world->size };
    for (size_t i = 0; i < sizeof degree / sizeof *degree; i++)
        if (strcmp(name, degree_names[i]) == 0) {
            snprintf(text, VALUE, "%zu", degree[i]);
            return text;
        }
    const char *value = option_text(run, name);
    return value || !option_flag(run, name) ? value : "yes";       // a flag has no text
}

// Without --decay-steps the learning rate falls over the first run's --steps. Without --vocab
// tokens are bytes.
static const char *training_value(Run *run, const char *name) {
    const char *value = option_text(run, name);
    if (!value && strcmp(name, "decay-steps") == 0) return option_text(run, "steps");
    if (!value && strcmp(name, "vocab") == 0) return "256";
    return value;
}

static void record(Run *run, cJSON *object, const char *const *names) {
    for (; *names; names++)
        if (training_value(run, *names))
            cJSON_AddStringToObject(object, *names, training_value(run, *names));
}
void resume_record(Run *run, cJSON *index) {
    cJSON *options = cJSON_AddObjectToObject(index, "options"),
          *layout = cJSON_AddObjectToObject(index, "layout");
    record(run, options, model_options);
    record(run, options, training_options);
    char text[VALUE];
    for (const char *const *name = layout_options; *name; name++) {
        const char *value = layout_value(run, *name, text);
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

// Does the list "lr,data" have this word?
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}
static bool overridden(Run *run, const char *name) {
    return option_given(run, "override") && has_word(option_text(run, "override"), name);
}

static void require_overrides(Run *run) {
    if (!option_given(run, "override")) return;
    REQUIRE(option_given(run, "resume"),
            "--override says what a resumed training may change: give --resume DIR, too");
    const char *list = option_text(run, "override");
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

static void take_options(Run *run, const Checkpoint *c, const char *const *names) {
    for (; *names; names++)
        if (checkpoint_option(c, *names)) option_default(run, *names, checkpoint_option(c, *names));
}

static void require_same_training(Run *run, const char *dir, const Checkpoint *c) {
    for (const char *const *name = model_options; *name; name++) {
        const char *was = checkpoint_option(c, *name), *is = training_value(run, *name);
        REQUIRE(same(was, is),
                "--resume %s: it was trained with --%s %s, not %s: leave --%s out, because the "
                "weights have that shape",
                dir, *name, was ? was : "?", is, *name);
    }
    for (const char *const *name = training_options; *name; name++) {
        const char *was = checkpoint_option(c, *name), *is = option_text(run, *name);
        REQUIRE(same(was, is) || overridden(run, *name),
                "--resume %s: it was trained with --%s %s, not %s: leave --%s "
                "out, or say --override %s",
                dir, *name, was ? was : "left out", is ? is : "left out", *name, *name);
    }
    bool check = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(checkpoint_index(c)->json, "check"));
    REQUIRE(check == option_flag(run, "check"),
            "--resume %s: it was trained with%s --check, which has other token counts: %s", dir,
            check ? "" : "out", check ? "give --check" : "leave --check out");
}

Checkpoint *resume_open(Run *run) {
    require_overrides(run);
    REQUIRE(option_given(run, "resume") || !option_flag(run, "newest-good"),
            "--newest-good chooses among the checkpoints in the folder of --resume: give that, "
            "too");
    const char *save = option_text(run, "save"), *dir = option_text(run, "resume");
    if (save && run->is_root && !folder_claim(save))   // before the newest checkpoint is looked for
        say(run, "%s: this file system has no locks: see to it that no other run saves there\n",
            save);
    if (!dir) return NULL;
    char why[CHECKPOINT_WHY];
    Checkpoint *c = checkpoint_open(run, dir, option_flag(run, "newest-good"), why);
    REQUIRE(c, "--resume %s: %s%s", dir, why,
            strstr(why, "; the newest good one is ") ? ": --newest-good takes it" : "");
    take_options(run, c, model_options);
    take_options(run, c, training_options);
    const char *steps = checkpoint_index_layout(checkpoint_index(c), "steps");
    const char *data = checkpoint_index_layout(checkpoint_index(c), "data");
    if (steps) option_default(run, "steps", steps);
    if (data) option_default(run, "data", data);
    const char *eval = checkpoint_index_layout(checkpoint_index(c), "data-eval");
    if (eval) option_default(run, "data-eval", eval);
    run->seed = (uint64_t)option_size(run, "seed");
    require_same_training(run, dir, c);
    return c;
}

// ---------------------------------------------------------------- the folder of --save

typedef struct { char name[FOLDER_NAME]; size_t step; bool part; } Entry;
// The names in dir that this program gives to checkpoints. usage_error() where one of them is
// not this program's.
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

// May this run, which begins after step `from`, leave the checkpoint where it is? It may belong
// to this run up to this step. A torn one may stay, too, where this run goes on behind it or
// where --newest-good has passed over it.
static bool may_stay(Run *run, const char *path, size_t step, const SavedRun *saved, size_t from,
                     char why[FOLDER_WHY]) {
    CheckpointIndex x;
    const bool read = folder_index(&x, path, why), own = read && strcmp(x.run.id, saved->id) == 0;
    if (read && !own)
        snprintf(why, FOLDER_WHY, "%.600s is a checkpoint of another run, %s", path, x.run.id);
    if (own)
        snprintf(why, FOLDER_WHY, "%.600s is of this run, but after step %zu, where it goes on",
                 path, from);
    checkpoint_index_free(&x);
    const bool passed_over = option_flag(run, "newest-good") &&
                             same_folder(option_text(run, "resume"), option_text(run, "save"));
    return (own || (!read && from > 0)) && (step <= from || passed_over);
}

// What a killed run left as .part is removed, and, with --save-over, what must not be mixed with
// this run.
static void require_folder(Run *run, const char *dir, const SavedRun *saved, size_t from) {
    size_t n;
    Entry *list = entries_of(dir, &n);
    char why[FOLDER_WHY] = "";
    const bool over = option_flag(run, "save-over");
    for (size_t i = 0; i < n; i++) {
        char *path = folder_path(dir, list[i].name);
        bool stays = !list[i].part && may_stay(run, path, list[i].step, saved, from, why);
        REQUIRE(stays || list[i].part || over,
                "--save %s: %s: --resume %s takes the newest one up; save elsewhere, or say "
                "--save-over, which removes it",
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

static void require_same_data(Run *run, const Checkpoint *before, FileSum data) {
    FileSum was = checkpoint_index(before)->run.data;
    const char *dir = option_text(run, "resume"), *path = option_text(run, "data");
    REQUIRE((was.sum == data.sum && was.bytes == data.bytes) || overridden(run, "data"),
            "--resume %s: it was trained on data of %zu bytes, sum %016" PRIx64
            ", and %s has %zu bytes, sum %016" PRIx64
            ": give the same --data, or say --override data",
            dir, was.bytes, was.sum, path ? path : "this tree's text", data.bytes, data.sum);
}

SavedRun resume_run(Run *run, const Checkpoint *before, const Data *data) {
    SavedRun saved = {0};
    const char *dir = option_text(run, "save");
    if (before) saved = checkpoint_index(before)->run;
    else new_id(saved.id);
    if (before || dir) {
        FileSum now = {0};
        if (this_rank == 0) now.sum = data_fingerprint(data, &now.bytes);
        side_broadcast(&now, sizeof now);
        if (before) require_same_data(run, before, now);
        saved.data = now;
    }
    if (before && dir) {                           // the best step is one of this folder's
        char *above = folder_path(checkpoint_folder(before), "..");
        if (!same_folder(above, dir)) saved.best_step = 0;
        free(above);
    }
    if (dir && run->is_root) require_folder(run, dir, &saved, before ? checkpoint_step(before) : 0);
    return saved;
}

void resume_say(Run *run, const Checkpoint *before) {
    const CheckpointIndex *x = checkpoint_index(before);
    char list[1024] = "", text[VALUE];
    for (const char *const *name = layout_options; *name; name++) {
        const char *was = checkpoint_index_layout(x, *name), *is = layout_value(run, *name, text);
        if (!same(was, is))
            snprintf(list + strlen(list), sizeof list - strlen(list), ", %s %s (was %s)", *name,
                     is ? is : "left out", was ? was : "left out");
    }
    for (const char *const *name = training_options; *name; name++)
        if (!same(checkpoint_option(before, *name), option_text(run, *name)))
            snprintf(list + strlen(list), sizeof list - strlen(list),
                     ", overridden: %s %s (was %s)", *name,
                     option_text(run, *name) ? option_text(run, *name) : "left out",
                     checkpoint_option(before, *name) ? checkpoint_option(before, *name)
                                                      : "left out");
    say(run, "run %s goes on from %s: %zu of %zu steps were done before%s\n", x->run.id,
        checkpoint_folder(before), x->step, option_size(run, "steps"), list);
}
