// test_planner.c: compares docs/book/planner.c with the plan that planner.c calls. With the
// argument print the program prints some layouts and a search. tests/test_planner.js prints the
// same output from the page's WebAssembly, and tests/book.t compares the two outputs. With the
// argument search the program prints the layouts of that search, one per line, in the format of
// 08_3d/plan --layouts.
// NOLINTNEXTLINE(bugprone-suspicious-include)
#include "docs/book/planner.c"
#include "tap.h"

static void set(const char *name, double value) {
    for (int i = 0; i < SETTINGS; i++)
        if (!strcmp(setting[i].name, name)) {
            planner_set(i, value);
            return;
        }
    fault("no setting %s", name);
}
static void set_all(const char *line) { // "name=number ..."
    char name[32];
    double value;
    int n;
    for (; sscanf(line, " %31[^=]=%lf%n", name, &value, &n) == 2; line += n) set(name, value);
}

// The layouts come in this order:
// - GPT-3 on 1,024 A100s in two ways (08_3d/plan.md)
// - a model with a trillion parameters
// - a Llama in fp32 on H100s, with sizes that no preset has, unequal parts and ZeRO-3
// - 32 blocks on 3 GPUs of the lessons' cluster
// - long sequences over cp
// - plain attention
// - an invalid layout
#define PRESETS "model=0 cluster=0 precision=0 attention=0 gpus=1024 "
static const char *const layouts[] = {
    PRESETS "dp=16 tp=8 pp=8 cp=1 micro-batch=4 chunks=4 zero=1 sequence-parallel=1 recompute=1",
    PRESETS "dp=32 tp=4 pp=8 micro-batch=2 chunks=4 zero=1 sequence-parallel=1 recompute=1",
    "model=10 cluster=0 gpus=3072 dp=6 tp=8 pp=64 micro-batch=1 chunks=2 zero=0 "
    "sequence-parallel=1 recompute=2",
    "model=13 cluster=2 precision=1 gpus=24 batch=100 layers=81 memory=141 between=12.5 "
    "dp=8 tp=3 pp=1 micro-batch=3 chunks=1 zero=3 sequence-parallel=0 recompute=0",
    "model=12 cluster=4 gpus=3 dp=1 tp=1 pp=3 micro-batch=1 chunks=1 zero=0 sequence-parallel=0 "
    "recompute=0",
    PRESETS "context=16384 batch=192 dp=8 tp=8 pp=4 cp=4 micro-batch=1 chunks=1 zero=1 "
            "sequence-parallel=1 recompute=0",
    PRESETS "attention=1 dp=32 tp=8 pp=4 cp=1 micro-batch=1 chunks=1 zero=0 sequence-parallel=0 "
            "recompute=1",
    PRESETS "dp=3 tp=8 pp=8",
};
static const char *const searched =
    "model=12 cluster=0 precision=0 attention=0 gpus=16 batch=96 memory=40";
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void print(void) {
    printf("%s\n", planner_settings());
    for (size_t i = 0; i < LAYOUTS; i++) {
        set_all(layouts[i]);
        printf("%s\n", planner_layout());
    }
    set_all(searched);
    printf("%s\n", planner_search(0));
    printf("%s\n", planner_search(1));
}
static void print_search(void) {
    set_all(searched);
    const char *at = strstr(planner_search(0), "[{");
    size_t n = strlen(at + 1) - strlen("]}");
    for (size_t i = 0; i < n; i++)
        if (at[i + 1] != ',' || at[i + 2] != '\n') putchar(at[i + 1]);
    putchar('\n');
}

static bool says(const char *part) { return strstr(planner_layout(), part) != NULL; }
int main(int argc, char **argv) {
    if (argc > 1) {
        if (!strcmp(argv[1], "print")) print();
        else print_search();
        return 0;
    }
    bool alike = true;
    for (size_t i = 0; i + 1 < LAYOUTS; i++) {
        char json[PLAN_JSON];
        set_all(layouts[i]);
        PlanResult r = plan_layout(&task, &layout);
        plan_layout_json(&task, &r, json, sizeof json);
        alike &= says(json);
    }
    ok(alike, "layouts have the plan's times and memory");
    set_all(layouts[4]);
    ok(task.cluster.between.beta == plan_clusters[4].between.beta && layout.n.pp == 3,
       "a preset replaces own sizes");
    set_all(layouts[LAYOUTS - 1]);
    ok(says("{\"refused\": \"its product is 192, and there are 1024 GPUs (--gpus)\"}"),
       "a product that is not the number of GPUs");
    set("width", 12289);
    ok(says("width 12289 does not divide into 96 heads"), "a width that heads do not divide");
    set("layers", 0);
    ok(says("all sizes must be above 0"), "no blocks");
    ok(strstr(planner_search(0), "\"feasible\": 0, \"front\": [], \"layouts\": []}") != NULL,
       "without blocks there is nothing to search");
    set_all("model=0 cluster=0 gpus=101 batch=5");
    ok(strstr(planner_search(0), "{\"reason\": \"No layout has equal parts") != NULL,
       "a search on GPUs that no layout divides evenly");
    return tap_end();
}
