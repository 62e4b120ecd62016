#!/bin/sh
# Every cost of the trainer at three sizes and many meshes, degree 1 among them: the program fails when one byte differs from the
# formulas of 08_3d/predict.c. Emulated; both precisions.
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh

# a size: its options; sequences and heads do not divide by the degrees
small="--layers 4 --width 16 --heads 4 --context 8 --batch 5 --micro-batch 1"
middle="--layers 5 --width 48 --heads 6 --context 12 --batch 9 --micro-batch 2 --dropout 0.1"
large="--layers 6 --width 120 --heads 5 --context 24 --batch 16 --micro-batch 3 --dropout 0.1 --optimizer sgd"

# one PROGRAM SIZE-NAME SIZE DP TP PP OPTIONS
one() {
    ranks=$(($4 * $5 * $6))
    # shellcheck disable=SC2086    # options in one variable
    page=$("$1" --verbose --emulate "$ranks" $3 --dp "$4" --tp "$5" --pp "$6" $7 --steps 1 --eval-every 0 --data LICENSE 2>&1)
    status=$?
    costs=$(printf '%s\n' "$page" | grep -cE '^\[08 train\] .* (calls|bytes sent|bytes) +[0-9.]+ +[0-9.]+ +ok$')
    case $7 in *--overlap*) lines=11 ;; *) lines=10 ;; esac
    [ "$status" -eq 0 ] && [ "$costs" -eq $lines ]
    ok $? "$1: $2, $4 x $5 x $6 $7"
}

for precision in fp32 fp64; do
    program=build/cpu-$precision/08_3d/train
    for mesh in "1 1 1" "2 1 1" "3 1 1" "1 2 1" "1 4 1" "1 1 2" "1 1 4" "2 2 2" "2 2 1" "2 1 3"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" "--zero 0 --schedule naive"
        one $program middle "$middle" "$1" "$2" "$3" "--zero 0 --schedule 1f1b --recompute selective --overlap"
        one $program middle "$middle" "$1" "$2" "$3" "--zero 1 --schedule gpipe --recompute full"
        one $program middle "$middle" "$1" "$2" "$3" "--zero 2 --schedule 1f1b --recompute selective"
        one $program large "$large" "$1" "$2" "$3" "--zero 3 --schedule 1f1b"
    done
done
tap_end
