#!/bin/sh
# Tests the rule of all schedules, pipe_op_needs(), and the executor on lists of ops, also on lists
# that occur in no lesson of chapters 04 and 05.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_pipeline
