#!/bin/sh
# Tests memory and tensors.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_memory
