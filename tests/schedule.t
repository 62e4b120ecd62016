#!/bin/sh
# Tests the schedules of chapters 04 and 05 as lists of ops, and the layers of each stage.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_schedule
