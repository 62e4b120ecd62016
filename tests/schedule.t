#!/bin/sh
# Tests the schedules of the pipeline chapters, and the stages that run them.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_schedule
