#!/bin/sh
# Tests the rule for all schedules, and the executor on lists, also on lists that occur in no lesson
# of chapters 04 and 05.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_pipeline
