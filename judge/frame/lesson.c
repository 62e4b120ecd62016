// lesson.c: launches the ranks of a program, prints title and verdict, and returns the exit status.
#include "judge/frame/frame.h"
#include "judge/draw/memory_samples.h"
#include "judge/frame/presets.h"
#include "judge/frame/process.h"
#include "common/comm/clock.h"
#include "common/device/device.h"
#include "common/device/blas_kernels.h"
#include "common/base/output.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_title(const Program *p, size_t ranks) {
    printf("%s %s, %s, %s%s, %zu rank%s (%s), ", p->tag, device_name(),
           transport_name[p->choice.transport], REAL_NAME, p->tf32 ? " with products in tf32" : "",
           ranks, ranks == 1 ? "" : "s", p->choice.why);
    if (p->threads > 1) printf("%zu threads each%s, ", p->threads, threads_advice());
    printf("reduce %s, seed %" PRIu64 ", ", p->launch.reduce == REDUCE_FAST ? "fast" : "ordered",
           p->seed);
    const ClockConfig *c = clock_config();
    if (c->simulated && c->node > 0)
        printf("clock simulated (device %s, nodes of %zu, link %s inside, %s between)",
               c->device.name, c->node, c->link.name, c->between.name);
    else if (c->simulated)
        printf("clock simulated (device %s, link %s)", c->device.name, c->link.name);
    else printf("clock wall");
    if (kernels_advised() && !getenv("OPENBLAS_CORETYPE"))
        printf(", %s kernels (faster: OPENBLAS_CORETYPE=%s)", kernels_in_use(), kernels_advised());
    printf("\n");
    printf("%s %s\n", p->tag, lesson_info.question);
}

static void finish_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout))
        fault("standard output could not be written; free space on the disk, or write the output "
              "elsewhere");
}

// ---- the verdict ----

static void print_verdict(Run *run, double seconds, bool pass) {
    const struct RunState *s = run->state;
    size_t checks = s->check_count, costs = s->cost_count;
    printf("%s %s  ", s->program->tag, report_mark(run, pass, "PASS", "FAIL"));
    if (checks + costs == 0) printf("nothing was checked");
    else if (pass)
        printf("%zu check%s, %zu cost%s", checks, checks == 1 ? "" : "s", costs,
               costs == 1 ? "" : "s");
    else
        printf("%zu of %zu checks, %zu of %zu costs failed", s->checks_failed, checks,
               s->costs_failed, costs);
    if (s->digest) printf("  digest %016" PRIx64, s->digest);
    printf("  %.2f s\n", seconds);
}

// Returns the exit status, which is the same on every rank. The JSON is written before the verdict
// is printed, because a full disk must be noticed before a PASS is printed.
static int verdict(Run *run) {
    const struct RunState *s = run->state;
    int status = 0;
    if (run->world->rank == 0) report_costs(run);
    if (run->world->rank == 0 && !s->program->verbose && s->check_count + s->cost_count > 0)
        page_checked(run);
    bool open = exercises_report(run->world) > 0;
    if (run->world->rank == 0) {
        bool pass =
            s->check_count + s->cost_count > 0 && s->checks_failed + s->costs_failed == 0 && !open;
        if (!open) page_endings(run, pass);
        double seconds = now() - s->program->started;
        const char *json = option_text(run, "json");
        if (json != NULL) report_json(run, json, seconds, pass);
        print_verdict(run, seconds, pass);
        finish_output();
        status = s->stopped ? STATUS_STOPPED : 0;
        if (!pass) status = STATUS_CHECK_FAILED;
    }
    side_broadcast(&status, sizeof status);
    return status;
}

// Checks before the work that --json, --svg and --trace can be written.
static void require_files(Run *run) {
    static const char *const options[] = { "json", "svg", "trace" };
    for (size_t i = 0; run->is_root && i < sizeof options / sizeof *options; i++)
        if (option_text(run, options[i]) != NULL)
            output_require(options[i], option_text(run, options[i]));
}
void report_picture(Run *run) { run->state->plotted = true; }
void report_stopped(Run *run) { run->state->stopped = true; }
double run_seconds(const Run *run) { return now() - run->state->program->started; }
void report_ended_early(Run *run) { run->state->pictured = true; }
static void require_picture(Run *run) {
    const struct RunState *s = run->state;
    REQUIRE(s->pictured || s->plotted || option_text(run, "svg") == NULL,
            "--svg: this lesson draws no picture; leave the option out, or choose a lesson with a "
            "picture");
    REQUIRE(s->pictured || option_text(run, "trace") == NULL,
            "--trace: this lesson draws no picture of events; leave the option out, or choose a "
            "lesson with one");
}

static void rank_body(Comm *world, void *context) {
    Program *program = context;
    struct RunState state = { .program = program, .settings = program->settings };
    Run run = {
        .world = world, .seed = program->seed, .reduce = program->launch.reduce, .state = &state
    };
    run.is_root = world->rank == 0;
    if (run.is_root && program->verbose) print_title(program, world->size);
    if (run.is_root && !program->verbose) page_title(program, world->size);
    require_files(&run);
    program->lesson(&run);
    require_picture(&run);
    char written = 0;
    // All ranks wait here for rank 0, which may still write files.
    side_broadcast(&written, sizeof written);
    memory_rank_end(); // a leak on any rank ends the run before the verdict
    comm_barrier(world);
    program->status = verdict(&run); // all virtual ranks write the same value
    samples_free();
    report_free(&run);
}

// ---- the launch ----

static void read_common_options(Program *p) {
    const OptionValues *s = &p->settings;
    const OptionValue *emulate = options_find(s, "emulate"), *timeout = options_find(s, "timeout");
    p->seed = option_value_whole(options_find(s, "seed"), 0, UINT64_MAX);
    options_require_storage(s);
    const char *terminal = getenv("TERM");
    p->color = options_find(s, "color")->given || (page_on_terminal() && !getenv("NO_COLOR") &&
                                                   terminal && strcmp(terminal, "dumb") != 0);
    p->verbose = options_find(s, "verbose")->given;
    p->wish.transport = options_find(s, "transport")->text;
    p->wish.default_ranks = lesson_info.ranks;
    if (emulate->text != NULL) p->wish.emulate = (size_t)option_value_whole(emulate, 1, 512);
    p->tf32 = device_is_gpu() && options_find(s, "tf32")->given;
    REQUIRE(!p->tf32 || sizeof(real) == sizeof(float),
            "--tf32 rounds products of fp32, but this program computes in %s: leave --tf32 out, or "
            "build with PRECISION=fp32",
            REAL_NAME);
    p->launch.reduce =
        strcmp(options_find(s, "reduce")->text, "fast") == 0 ? REDUCE_FAST : REDUCE_ORDERED;
    const OptionValue *threads = options_find(s, "threads");
    if (threads->text != NULL) p->threads = (size_t)option_value_whole(threads, 1, 1024);
    p->launch.timeout = option_value_real(timeout);
    REQUIRE(p->launch.timeout > 0 && p->launch.timeout <= 1e6,
            "--timeout %s: expected seconds, more than 0 and at most 1000000", timeout->text);
    p->launch.deadlock = option_value_real(options_find(s, "deadlock"));
    REQUIRE(p->launch.deadlock > 0 && p->launch.deadlock <= 1e6,
            "--deadlock %s: expected seconds, more than 0 and at most 1000000",
            options_find(s, "deadlock")->text);
    usage_wait = 1 + (long)(p->launch.timeout / 2);
}

static ClockLink link_named(const char *text, size_t length) {
    size_t l = 0;
    while (clock_links[l].name &&
           (strlen(clock_links[l].name) != length || strncmp(clock_links[l].name, text, length)))
        l++;
    REQUIRE(clock_links[l].name,
            "--link %.*s is not known: choose fast, slow, free, nvlink, ib or ethernet",
            (int)length, text);
    return clock_links[l];
}

// Chooses the clock, the device and the links. The default is the simulated clock if ranks are
// virtual, outnumber the cores, or use the transport `staged`, because real times are then
// misleading.
static void choose_clock(const Program *p) {
    const OptionValues *s = &p->settings;
    const char *clock = options_find(s, "clock")->text, *device = options_find(s, "device")->text;
    const char *link = options_find(s, "link")->text;
    const OptionValue *node = options_find(s, "node"), *rails = options_find(s, "rails");
    size_t d = 0, inside = strcspn(link, ",");
    while (clock_devices[d].name && strcmp(clock_devices[d].name, device)) d++;
    REQUIRE(clock_devices[d].name, "--device %s is not known: choose lesson, h100, a100 or core",
            device);
    const char *between = link[inside] ? link + inside + 1 : link;
    REQUIRE(between == link || node->text || !options_find(s, "link")->given,
            "--link %s names a link between nodes, but all ranks share one node: give the ranks "
            "per node with --node N, or name one link",
            link);
    bool own = false; // true if the program's own table has --rails, as the planner's has
    for (const Option *o = s->own; o && o->name; o++) own = own || !strcmp(o->name, "rails");
    REQUIRE(node->text || !rails->text || own,
            "--rails %s are cards between nodes, but all ranks share one node: give the ranks per "
            "node with --node N, or leave --rails out",
            rails->text);
    const Transport transport = p->choice.transport;
    bool crowded = transport == TRANSPORT_EMU || transport == TRANSPORT_STAGED ||
                   (long)p->choice.ranks > sysconf(_SC_NPROCESSORS_ONLN);
    clock_configure(&(ClockConfig){
        .simulated = clock ? strcmp(clock, "simulated") == 0 : crowded,
        .device = clock_devices[d],
        .link = link_named(link, inside),
        .between = link_named(between, strlen(between)),
        .node = node->text ? (size_t)option_value_whole(node, 1, SIZE_MAX) : 0,
        .rails = rails->text ? (size_t)option_value_whole(rails, 1, SIZE_MAX) : 0 });
}

void require_one_link(Run *run) {
    const ClockConfig *c = clock_config();
    bool differ = c->link.alpha != c->between.alpha || c->link.beta != c->between.beta;
    bool nodes = c->simulated && c->node > 0 && c->node < run->world->size;
    REQUIRE(!nodes || !differ,
            "--node %zu: this lesson predicts times for one link only, but link %s inside a node "
            "and link %s between nodes differ: leave --node out, or name one link with --link %s",
            c->node, c->link.name, c->between.name, c->between.name);
}

static int help(const OptionValues *s, const char *program) {
    size_t rank = 0, size = 1;
    process_launched(&rank, &size);
    if (rank == 0) options_print_help(s, program);
    finish_output();
    process_end(0);
    return 0;
}

// Begins the process. If the launcher and the program belong to different MPIs, the processes
// cannot find each other. Every process is then a world of one rank, and usage_error() ends the
// process.
static void begin_process(int *argc, char ***argv) {
    size_t rank, started;
    process_launched(&rank, &started); // the launcher's numbers, because MPI has not started
    process_begin(argc, argv);
    if (started == 1 || this_world_size > 1) return;
    this_rank = rank; // so that only the first process prints the message
    usage_wait = 3;   // seconds; then the other processes end, even if the launcher ends no process
    usage_error(
        "the launcher started %zu processes, but MPI finds only one: the program was built with "
        "another MPI than the launcher's. Name both, as in make CC=mpicc.mpich MPIRUN=mpirun.mpich",
        started);
}

int experiment_main(int argc, char **argv, const Experiment *experiment) {
    Program program = { .lesson = experiment->run, .started = now(), .status = STATUS_FAULT };
    setvbuf(stdout, NULL, _IOLBF, 0); // writes every line at once, even into a pipe
    signal(SIGXFSZ, SIG_IGN); // a write beyond `ulimit -f` then fails with a message and status 3
    // tools/launch starts programs in the background, where shells ignore SIGINT.
    signal(SIGINT, SIG_DFL);
    begin_process(&argc, &argv);
    snprintf(program.tag, sizeof program.tag, "[%s %s]", lesson_info.id, lesson_info.name);
    program.settings = options_parse(argc, argv, experiment->options);
    if (program.settings.help) program.status = help(&program.settings, argv[0]);
    else {
        read_common_options(&program);
        program.choice = launch_choose(&program.wish);
        program.launch.transport = program.choice.transport;
        program.launch.ranks = program.choice.ranks;
        choose_clock(&program);
        device_init();
        if (program.threads) device_set_threads(program.threads);
        if (program.tf32) device_allow_tf32();
        comm_run(&program.launch, rank_body, &program);
        process_end(program.status);
    }
    return program.status;
}
