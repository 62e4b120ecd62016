#!/bin/sh
# Tests the number formats of compressed gradients.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_compression
