#!/bin/sh
# Tests the derivatives, the accumulation and the memory of layers, plain and wrapped, and of the
# whole model.
# slow: derivatives by finite differences, of every kind of layer
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_layers
