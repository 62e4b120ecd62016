#!/bin/sh
# The numbers that compressed gradients are made of.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_compression
