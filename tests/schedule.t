#!/bin/sh
# The schedules of the pipeline chapters, and the stages they run on.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_schedule
