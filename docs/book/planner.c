// planner.c: defines the functions that planner.html calls. tools/book compiles this file to
// WebAssembly together with 08_3d/plan_*.c and their modules. The page changes a setting by the
// setting's place in a list, and a number. Three functions return texts in JSON: the list of
// settings, the chosen layout, and the search of layouts.
//
// size_t has 64 bits here (wide.h), so counts equal those of 08_3d/plan in every digit.
#include "docs/book/wasm.h"
#include "08_3d/plan.h"
#include "judge/frame/lesson.h"
#include <stdio.h>
#include <string.h>

static PlanTask task;
static PlanLayout layout;
static size_t model, cluster, format, attention, sequence, balance,
    again; // the places of the chosen names in their lists

// The options of 08_3d/plan.
//   key    the name in a layout's JSON; NULL if a layout does not have the setting
//   names  the names to choose from; NULL for a preset, which has its own name, and for a number
//   count  where the number is, or the place of the chosen name; NULL for a real number
//   real   where the real number is, counted in `unit` on the page
static const char *const attentions[] = { "blockwise", "plain", NULL };
static const char *const no_yes[] = { "no", "yes", NULL }, *const zero_stages[] = { "0", "1", "2",
                                                                                    "3", NULL };
static const char *const balances[] = { "blocks", "cost", NULL };
static const char *const recomputes[] = { "none", "selective", "full", NULL };
static const struct Setting {
    const char *name, *key;
    const char *const *names;
    size_t *count;
    double *real, unit;
} setting[] = {
    { "model", .count = &model },
    { "cluster", .count = &cluster },
    { "precision", .count = &format },
    { "attention", .names = attentions, .count = &attention },
    { "gpus", .count = &task.gpus },
    { "batch", .count = &task.model.batch },
    { "layers", .count = &task.model.model.layers },
    { "width", .count = &task.model.model.width },
    { "heads", .count = &task.model.model.heads },
    { "context", .count = &task.model.model.context },
    { "vocab", .count = &task.model.model.vocab },
    { "memory", .real = &task.cluster.memory, .unit = 1e9 },
    { "peak", .real = &task.cluster.flops, .unit = 1e12 },
    { "inside", .real = &task.cluster.inside.beta, .unit = 1e9 },
    { "between", .real = &task.cluster.between.beta, .unit = 1e9 },
    { "node", .count = &task.cluster.node },
    { "rails", .count = &task.cluster.rails },
    { "margin", .real = &task.cluster.reserve, .unit = 1e9 },
    { "dp", "dp", .count = &layout.n.dp },
    { "tp", "tp", .count = &layout.n.tp },
    { "pp", "pp", .count = &layout.n.pp },
    { "cp", "cp", .count = &layout.n.cp },
    { "micro-batch", "micro_batch", .count = &layout.micro_batch },
    { "chunks", "chunks", .count = &layout.chunks },
    { "balance", "balanced", balances, .count = &balance },
    { "zero", "zero", zero_stages, .count = &layout.zero },
    { "sequence-parallel", "sequence", no_yes, .count = &sequence },
    { "recompute", "recompute", recomputes, .count = &again },
};
enum { SETTINGS = sizeof setting / sizeof *setting, ROOM = 8192 };

// ---------------------------------------------------------------- settings

static char *text; // the text that was returned last
static size_t length, room;
static void write_text(const char *part) {
    size_t n = strlen(part);
    if (length + n >= room) {
        room = 2 * room + n + ROOM;
        text = realloc(text, room);
        if (!text) fault("out of memory for %zu bytes of text", room);
    }
    memcpy(text + length, part, n + 1);
    length += n;
}
// Writes the names of at most `most` structures of `size` bytes. Each structure begins with its
// name. A NULL name ends the array earlier.
static void write_names(const void *first, size_t size, size_t most) {
    const char *comma = "\"";
    write_text("[");
    for (const char *p = first; most-- && *(const char *const *)(const void *)p;
         p += size, comma = ", \"") {
        write_text(comma);
        write_text(*(const char *const *)(const void *)p);
        write_text("\"");
    }
    write_text("]");
}
// Returns {"memory": names of categories, "settings": [{"name", "key", "names"}]}.
const char *EXPORT(planner_settings)(void) {
    char part[200];
    length = 0;
    write_text("{\"memory\": ");
    write_names(plan_memory_name, sizeof *plan_memory_name, PLAN_MEMORY);
    write_text(", \"settings\": [");
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct Setting *s = &setting[i];
        snprintf(part, sizeof part,
                 "%s{\"name\": \"%s\", \"key\": \"%s\", \"names\": ", i ? ", " : "", s->name,
                 s->key ? s->key : "");
        write_text(part);
        if (s->count == &model) write_names(plan_models, sizeof *plan_models, SIZE_MAX);
        else if (s->count == &cluster) write_names(plan_clusters, sizeof *plan_clusters, SIZE_MAX);
        else if (s->count == &format) write_names(plan_formats, sizeof *plan_formats, SIZE_MAX);
        else if (s->names) write_names(s->names, sizeof *s->names, SIZE_MAX);
        else write_text("[]");
        write_text("}");
    }
    write_text("]}");
    return text;
}

// Changes a setting. A preset (a model, a cluster) also sets the settings that belong to it.
void EXPORT(planner_set)(int i, double value) {
    const struct Setting *s = &setting[i];
    if (s->real) *s->real = value * s->unit;
    else *s->count = (size_t)value;
    if (s->count == &model) task.model = plan_models[model];
    if (s->count == &cluster) {
        task.cluster = plan_clusters[cluster];
        task.how = plan_how(&task.cluster);
    }
    if (s->count == &format) task.format = plan_formats[format];
    task.blockwise = attention == 0;
    layout.sequence = sequence;
    layout.balanced = balance;
    layout.recompute = (Recompute)again;
}
double EXPORT(planner_get)(int i) {
    const struct Setting *s = &setting[i];
    return s->real ? *s->real / s->unit : (double)*s->count;
}

// ---------------------------------------------------------------- results

static bool possible(const PlanTask *t, char *why, size_t n) {
    const ModelConfig *m = &t->model.model;
    bool sizes =
        m->layers && m->width && m->heads && m->context && m->vocab && t->model.batch && t->gpus;
    const PlanCluster *c = &t->cluster;
    if (!sizes || c->memory <= 0 || c->flops <= 0 || c->inside.beta <= 0 || c->between.beta <= 0)
        snprintf(why, n, "all sizes must be above 0");
    else if (m->width % m->heads)
        snprintf(why, n, "width %zu does not divide into %zu heads", m->width, m->heads);
    else if (m->heads % config_kv_heads(m))
        snprintf(why, n, "%zu heads do not share %zu heads of key and value", m->heads,
                 config_kv_heads(m));
    else return true;
    return false;
}
static void write_sentence(const char *key, const char *sentence) {
    write_text("{\"");
    write_text(key);
    write_text("\": \"");
    write_text(sentence);
    write_text("\"");
}

// Returns {"refused": reason} or {"parameters": N, "tokens": tokens per step, "layout": the JSON of
// plan_layout_json()}.
const char *EXPORT(planner_layout)(void) {
    char why[500], part[PLAN_JSON];
    length = 0;
    if (!possible(&task, why, sizeof why) || !plan_possible(&task, &layout, why, sizeof why)) {
        write_sentence("refused", why);
    } else {
        PlanResult r = plan_layout(&task, &layout);
        snprintf(part, sizeof part,
                 "{\"parameters\": %zu, \"tokens\": %zu, \"layout\": ", plan_parameters(&task),
                 task.model.batch * task.model.model.context);
        write_text(part);
        plan_layout_json(&task, &r, part, sizeof part);
        write_text(part);
    }
    write_text("}");
    return text;
}

// Reports the progress of the search to the page, through a function that the page gives to the
// module. Outside of a page there is no report.
#ifdef __wasm__
__attribute__((import_module("page"), import_name("progress"))) void page_progress(int done,
                                                                                   int all);
void progress(Run *run, const char *what, size_t done, size_t all) {
    (void)run;
    (void)what;
    page_progress((int)done, (int)all);
}
static Run page, *const shown = &page;
#else
static Run *const shown = NULL;
#endif

// Returns a text in JSON. `cp` is the context-parallel degree of all searched layouts. 0 means any
// degree.
//   reason    why the first layout is the best, or why no layout is possible or fits
//   feasible  the number of layouts that fit
//   front     places in `layouts` of the layouts on the Pareto front of memory and time
//   layouts   the best layouts first
const char *EXPORT(planner_search)(int cp) {
    PlanFixed all = { .cp = (size_t)cp, .zero = -1, .sequence = -1, .recompute = -1 };
    char why[500], part[PLAN_JSON];
    PlanList list = { 0 };
    length = 0;
    if (possible(&task, why, sizeof why)) {
        list = plan_search(shown, &task, &all, false);
        plan_reason(&task, &list, why, sizeof why);
        if (list.n == 0) {
            size_t n = (size_t)snprintf(why, sizeof why, "No layout has equal parts: ");
            plan_why_none(&task, &all, why + n, sizeof why - n);
        }
    }
    const PlanResult **front = host_alloc(list.n * sizeof *front);
    size_t on_front = plan_front(&list, front);
    write_sentence("reason", why);
    snprintf(part, sizeof part, ", \"feasible\": %zu, \"front\": [", list.feasible);
    write_text(part);
    for (size_t i = 0; i < on_front; i++) {
        snprintf(part, sizeof part, "%s%zu", i ? ", " : "", (size_t)(front[i] - list.result));
        write_text(part);
    }
    write_text("], \"layouts\": [");
    for (size_t i = 0; i < list.n; i++) {
        if (i) write_text(",\n");
        plan_layout_json(&task, &list.result[i], part, sizeof part);
        write_text(part);
    }
    write_text("]}");
    free(front);
    plan_list_free(&list);
    return text;
}
