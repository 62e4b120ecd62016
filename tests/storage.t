#!/bin/sh
# Tests numbers of 16 bits, and the ops on them.
cd "$(dirname "$0")/.." || exit 3
. tests/both.sh
both test_storage
