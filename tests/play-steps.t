#!/bin/sh
# Compares the player of expected steps with closed forms, the executor and the communicators.
# TEST_ALL=1 takes every closed form, and more random cases. TEST_SEED=N draws other cases.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_play
