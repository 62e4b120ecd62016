#!/bin/sh
# Compares the plans of budget_choose() with all possible plans.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_budget
