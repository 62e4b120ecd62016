// train_finite.c checks --skip-nonfinite, and handles losses, gradients and weights that are not
// finite. If such a value ends the training, a check fails.
#include "08_3d/train_program.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/checkpoint_folder.h"

FiniteRule train_finite_rule(Run *run) {
    FiniteRule rule = { .skip_most = option_size(run, "skip-nonfinite") };
    REQUIRE(
        !rule.skip_most || !option_flag(run, "check"),
        "--skip-nonfinite: --check compares the loss of every step, and a loss that is not finite "
        "equals no number: leave --skip-nonfinite or --check out");
    REQUIRE(!rule.skip_most || !strcmp(option_text(run, "compress"), "none"),
            "--skip-nonfinite: the residual of --compress enters the next step, which would not be "
            "finite either: leave --skip-nonfinite or --compress out");
    return rule;
}

// Returns a number as text, without the sign that printf writes before some NaNs.
static const char *number(char text[32], double value) {
    if (isnan(value)) return "nan";
    snprintf(text, 32, "%.6g", value);
    return text;
}

static void say_where_to_resume(Run *run) {
    if (!run->is_root) return;
    const char *dir = option_given(run, "save")     ? option_text(run, "save")
                      : option_given(run, "resume") ? option_text(run, "resume")
                                                    : NULL;
    size_t n = 0, *steps = dir ? folder_steps(dir, &n) : NULL;
    if (n > 0)
        say(run,
            "Go on from the newest checkpoint, step-%06zu, with --resume %s; a smaller --lr may "
            "help.\n",
            steps[0], dir);
    else say(run, "There is no checkpoint to go on from: start again; a smaller --lr may help.\n");
    free(steps);
}

// Names the first rank whose part of the loss or of the gradient is not finite. The loss is checked
// before the sum over ranks. The gradient is checked after the sum, because the sum overwrites the
// earlier values. So the bad value of one replica is in the gradients of all replicas.
static void name_first_rank(Run *run, const Trainer *t, size_t step) {
    static const char what[] = "a step that is not finite changes nothing";
    char name[80];
    snprintf(name, sizeof name, "step %zu: the rank's part of the loss is finite", step);
    if (!check_true(run, what, name, isfinite(t->local_loss))) return;
    snprintf(name, sizeof name, "step %zu: the rank's part of the gradient is finite", step);
    if (!check_true(run, what, name, finite_tensors(t->model, UNIT_GRADIENTS))) return;
    snprintf(name, sizeof name, "step %zu: the gradient norm is finite", step);
    check_true(run, what, name, false);
}

StepOutcome train_finite_step(Run *run, FiniteRule *rule, const Trainer *t, size_t step,
                              StepResult r) {
    char loss[32], norm[32];
    if (trainer_overflowed(t, r)) {
        LossScale next = t->loss_scale;
        loss_scale_next(&next, false);
        say(run,
            "step %5zu   skipped: a gradient overflowed at loss scale %.0f, the next step has "
            "%.0f; weights and optimizer stay\n",
            step, t->loss_scale.factor, next.factor);
        return STEP_OVERFLOWED;
    }
    StepOutcome outcome = finite_step(rule, r);
    if (outcome == STEP_SKIPPED)
        say(run,
            "step %5zu   skipped: loss %s, gradient norm %s; weights and optimizer stay (%zu in a "
            "row, at most %zu)\n",
            step, number(loss, r.loss), number(norm, r.norm), rule->skipped, rule->skip_most);
    if (outcome != STEP_LOST) return outcome;
    name_first_rank(run, t, step);
    say(run,
        "step %5zu   loss %s, gradient norm %s: the training ends here, and nothing of this step "
        "is saved.\n",
        step, number(loss, r.loss), number(norm, r.norm));
    if (t->loss_scale.factor > 1 && t->loss_scale.patience == 0)
        say(run,
            "The loss scale %.0f is fixed: a smaller one, or --loss-scale dynamic, may help.\n",
            t->loss_scale.factor);
    say_where_to_resume(run);
    return STEP_LOST;
}

bool train_finite_weights(Run *run, FiniteRule *rule, const Trainer *t, size_t done) {
    bool finite = finite_tensors(t->model, UNIT_WEIGHTS);
    if (!side_any(!finite)) return true;
    char name[80];
    snprintf(name, sizeof name, "after update %zu the rank's weights are finite", done);
    check_true(run, "what is saved is finite", name, finite);
    say(run, "The training ends here, and these weights are not saved.\n");
    say_where_to_resume(run);
    rule->lost = true;
    return false;
}

bool train_finite_held_out(Run *run, FiniteRule *rule, double loss) {
    if (isfinite(loss)) return true;
    check_true(run, "a training that ends well is finite", "the held-out loss is finite", false);
    rule->lost = true;
    return false;
}
