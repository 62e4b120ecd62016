#!/bin/sh
# Tests that budget_choose() finds a plan with the least work, by trying every plan.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_budget
