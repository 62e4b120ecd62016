#!/bin/sh
# Tests layers, plain and wrapped, and the whole model: derivatives, accumulation and memory.
# slow: derivatives by finite differences, of every kind of layer
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_layers
