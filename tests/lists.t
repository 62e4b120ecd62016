#!/bin/sh
# Compares the judge of schedules with the executor on random lists. TEST_ALL=1 takes 10,000 legal
# lists instead of 200. TEST_SEED=N draws other lists.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
BUILD=${BUILD:-build/cpu-fp32}            # one build is enough: the program computes no numbers
both test_lists
