#!/bin/sh
# Tests that the judge of schedules and the executor agree, on random schedules.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_designs
