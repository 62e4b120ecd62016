#!/bin/sh
# Compares the plan with the figures of PTD-P and of Korthikanti et al., and with the closed form of
# ring attention. Also checks the fitted constants of two GPUs (tests/test_plan_papers.c).
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_plan_papers
