#!/bin/sh
# Tests the model without its layers: cuts of parameters, initial weights, norm, optimizer, data,
# sizes.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_model
