#!/bin/sh
# Checks every cost of the trainer at several sizes and many meshes, with degree 1 among them. The
# program fails when one byte differs from the formulas of 08_3d/experiments/predict.c. One of three
# rows runs in fp32 and one in fp64, because only sizes in bytes differ. TEST_ALL=1 runs every row
# in both precisions.
# slow: about 100 trainings, most of one step
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh

# Some degrees do not divide the sequences or the heads.
small="--layers 4 --width 16 --heads 4 --context 8 --batch 5 --micro-batch 1"
middle="--layers 5 --width 48 --heads 6 --context 12 --batch 9 --micro-batch 2 --dropout 0.1"
large="--layers 6 --width 120 --heads 5 --context 24 --batch 16 --micro-batch 3
    --dropout 0.1 --optimizer sgd"

# Returns whether all groups of this many ranks have the same position in nodes of four ranks.
alike() { [ $(($1 % 4)) -eq 0 ] || [ $((4 % $1)) -eq 0 ]; }

# one PROGRAM SIZE-NAME SIZE DP TP PP OPTIONS: runs a training and checks its costs.
one() {
    row=$((row + 1))
    [ -n "$TEST_ALL" ] || [ $((row % 3)) -eq "$turn" ] || return
    ranks=$(($4 * $5 * $6))
    case $7 in *--cp*) ranks=$((ranks * 2)) ;; esac
    steps="--steps 1"
    case $7 in *--steps*) steps= ;; esac
    # shellcheck disable=SC2086    # options in one variable
    page=$("$1" --verbose --emulate "$ranks" $3 --dp "$4" --tp "$5" --pp "$6" $7 $steps \
        --eval-every 0 --data LICENSE 2>&1)
    status=$?
    costs=$(printf '%s\n' "$page" | grep -cE \
        '^\[08 train\] .* (calls|bytes sent|bytes|ps) +[0-9.]+ +[0-9.]+ +ok$')
    case $7 in *--overlap*) lines=11 ;; *) lines=10 ;; esac
    # --compress adds lines for calls, time and factors, and on one stage for the peak.
    case $7 in *--compress*) lines=$((lines + 3 + ($6 == 1))) ;; esac
    case $7 in *--sequence*) lines=$((lines + 2)) ;; esac
    case $7 in *--cp*) lines=$((lines + 1)) ;; esac
    # If the lists of step_time.c cover this step, its time is a cost, too, and the page says
    # whether another layout would be faster.
    listed=1
    case $7 in *--overlap* | *--compress* | *--prefetch* | *-budget* | *--tensor*) listed=0 ;; esac
    batch=${3#*--batch }
    [ $((${batch%% *} % $4)) -eq 0 ] || listed=0
    near=$((ranks / $4 / $6))
    [ "$ranks" -le 4 ] || { alike "$5" && alike $near && alike $((near * $4)) &&
        alike "$ranks"; } || listed=0
    [ "$status" -eq 0 ] && [ "$costs" -eq $((lines + listed)) ] &&
        [ "$(printf '%s\n' "$page" | grep -c 'By the cost model')" -eq $listed ]
    ok $? "$1: $2, $4 x $5 x $6 $7"
}

for precision in fp32 fp64; do
    program=build/cpu-$precision/08_3d/train
    row=0
    [ $precision = fp32 ] && turn=1 || turn=0
    for mesh in "1 1 1" "2 1 1" "3 1 1" "1 2 1" "1 4 1" "1 1 2" "1 1 4" "2 2 2" "2 2 1" "2 1 3"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" "--zero 0 --schedule naive"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--zero 0 --schedule 1f1b --recompute selective --overlap"
        one $program middle "$middle" "$1" "$2" "$3" "--zero 1 --schedule gpipe --recompute full"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--zero 2 --schedule 1f1b --recompute selective"
        one $program large "$large" "$1" "$2" "$3" "--zero 3 --schedule 1f1b"
    done
    for mesh in "1 1 1" "1 1 2" "2 2 2" "2 1 3"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" \
            "--zero 0 --schedule zero-bubble --recompute selective"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--zero 2 --schedule zero-bubble --recompute full"
        one $program large "$large" "$1" "$2" "$3" "--zero 3 --schedule zero-bubble"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--sequence-parallel --zero 1 --schedule zero-bubble"
    done
    for mesh in "1 1 1" "2 1 1" "1 2 1" "2 1 2"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" \
            "--attention blockwise --zero 0 --schedule gpipe --recompute selective"
        one $program small "$small" "$1" "$2" "$3" \
            "--cp 2 --zero 0 --schedule naive --recompute selective"
        one $program middle "$middle" "$1" "$2" "$3" "--cp 2 --zero 0 --schedule 1f1b --overlap"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--cp 2 --zero 1 --schedule gpipe --recompute full"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--cp 2 --zero 2 --schedule 1f1b --sequence-parallel"
        one $program large "$large" "$1" "$2" "$3" "--cp 2 --zero 3 --schedule 1f1b"
    done
    for mesh in "1 1 1" "1 2 1" "2 4 1" "2 2 2" "1 3 2"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" \
            "--sequence-parallel --zero 0 --schedule naive --recompute selective"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--sequence-parallel --zero 0 --schedule 1f1b --overlap"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--sequence-parallel --zero 1 --schedule gpipe --recompute full"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--sequence-parallel --zero 2 --schedule 1f1b --recompute selective"
        one $program large "$large" "$1" "$2" "$3" "--sequence-parallel --zero 3 --schedule 1f1b"
    done
    for mesh in "2 1 1" "3 1 2" "4 1 1"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" \
            "--compress top-k --keep-one-of 5 --schedule zero-bubble"
        one $program middle "$middle" "$1" "$2" "$3" "--compress power-sgd --schedule gpipe"
    done
    one $program large "$large" 2 5 1 "--compress power-sgd --power-rank 3 --recompute full"
    one $program middle "$middle" 2 2 2 "--compress power-sgd --sequence-parallel"
    # In 16-bit storage masters are state of the optimizer, and messages have the stored type.
    for mesh in "2 1 1" "1 3 2" "2 2 2"; do
        # shellcheck disable=SC2086    # three numbers
        set -- $mesh
        one $program small "$small" "$1" "$2" "$3" \
            "--storage bf16 --gradients stored --zero 0 --schedule naive"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--storage fp16 --gradients stored --zero 1 --schedule gpipe --recompute full"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--storage bf16 --zero 2 --schedule zero-bubble --recompute selective"
        one $program middle "$middle" "$1" "$2" "$3" \
            "--storage bf16 --gradients stored --zero 0 --sequence-parallel --overlap"
        one $program large "$large" "$1" "$2" "$3" "--storage fp16 --zero 3 --schedule 1f1b"
    done
    # A stage of several chunks needs a number of micro-batches that is a multiple of the number of
    # stages.
    groups="--layers 9 --width 48 --heads 6 --context 12 --batch 15 --micro-batch 2 --dropout 0.1"
    one $program groups "$groups" 1 1 4 "--zero 0 --schedule interleaved"
    one $program groups "$groups" 2 2 2 \
        "--zero 1 --schedule interleaved --chunks 3 --recompute selective"
    one $program groups "$groups" 1 2 2 \
        "--zero 0 --schedule interleaved --chunks 4 --recompute full --overlap"
    one $program groups "$groups" 2 1 4 "--zero 3 --schedule interleaved --recompute full"
    one $program groups "$groups" 2 1 2 \
        "--compress top-k --schedule interleaved --stage-layers 1,3,4,1"
    one $program groups "$groups" 2 1 2 "--zero 2 --schedule interleaved --stage-layers 1,3,4,1"
    one $program groups "$groups" 2 1 4 \
        "--storage bf16 --gradients stored --zero 3 --schedule interleaved"
    # The last of several steps is measured. Stage 0 has one block, so its ranks end ZeRO's gather
    # of the previous step sooner than the ranks of the last stage.
    uneven="--layers 4 --width 36 --heads 4 --context 4 --batch 2 --micro-batch 1"
    for zero in 1 2; do
        one $program uneven "$uneven" 2 1 2 \
            "--zero $zero --schedule 1f1b --stage-layers 1,3 --steps 2"
        one $program uneven "$uneven" 1 1 2 \
            "--cp 2 --zero $zero --schedule 1f1b --recompute selective --stage-layers 1,3 --steps 4"
    done
done

# The suggested faster layout must take the predicted time, and its own page must call it the
# fastest.
small="--emulate 8 $large --steps 1 --eval-every 0 --data LICENSE"
# shellcheck disable=SC2086,SC2046    # options in one variable
set -- $(build/cpu-fp32/08_3d/train $small --dp 2 --tp 1 --pp 4 |
    sed -n 's/^ *By the cost model dp \([0-9]*\) x tp \([0-9]*\) x pp \([0-9]*\) would .* a step of \([0-9.]*\) \([a-z]*\), not .*/\1 \2 \3 \4 \5/p')
# shellcheck disable=SC2086
page=$(build/cpu-fp32/08_3d/train $small --dp "$1" --tp "$2" --pp "$3")
printf '%s\n' "$page" | \
    grep -q "By the cost model no other dp x tp x pp of these ranks would be 1 % faster"
ok $? "the trainer names the fastest layout: $1 x $2 x $3"
step=$(printf '%s\n' "$page" | sed -n 's/^step \([0-9.]*\) ms, idle.*/\1/p')
awk -v step="$step" -v claimed="$4" \
    'BEGIN { exit !(step > 0 && step / claimed > 0.99 && step / claimed < 1.01) }'
ok $? "the fastest layout takes the predicted step: $4 $5 (measured $step ms)"
tap_end
