#!/bin/sh
# The rule of all schedules, and the executor on schedules that no lesson of chapters 04 and 05 has.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_pipeline
