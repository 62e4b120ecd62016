#!/bin/sh
# Compares the step of 08_3d/plan's recurrences with the player of expected steps (judge/play), on
# random layouts (tests/test_plan_time.c). The test runs in both builds, because the size of a real
# differs.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_plan_time
