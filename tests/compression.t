#!/bin/sh
# Tests the number formats of compressed gradients, top-k, and PowerSGD's columns.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_compression
