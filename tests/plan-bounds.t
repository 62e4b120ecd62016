#!/bin/sh
# Tests the bounds by which a search of 08_3d/plan prunes (tests/test_search.c). The plan computes
# in doubles in both builds, so one build is enough.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
BUILD=${BUILD:-build/cpu-fp32}
both test_search
