#!/bin/sh
# Tests the ops.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_ops
