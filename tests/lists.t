#!/bin/sh
# The judge of schedules and the executor on random lists: TEST_ALL=1 takes 10,000 legal ones instead of 200, TEST_SEED=N draws others.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
BUILD=${BUILD:-build/cpu-fp32}            # nothing is computed
both test_lists
