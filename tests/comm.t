#!/bin/sh
# Tests Comm with virtual ranks and with processes. test_comm runs at several rank counts, and its
# sums must have the same bits in both. Every mistake must end with its exit status and its message.
# BUILD is the build folder.
# slow: the test waits until the time of each hanging run is over
# shellcheck disable=SC2317    # emu is called by name, as an argument
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
program=${BUILD:-build/cpu-fp32}/tests/test_comm
if [ ! -x "$program" ]; then
    echo "1..0 # SKIP $program is not built"
    exit 0
fi
emu() { tools/launch -e "$@"; }
mpi=tools/launch
no_mpi="no mpirun"
command -v mpirun >/dev/null || mpi=
case $BUILD in *san*) mpi='' no_mpi="sanitizers complain about MPI itself" ;; esac
out=$tap_dir/out

# whole WHAT COMMAND...: checks that test_comm ran its whole plan and that every test passed.
whole() {
    what=$1
    shift
    "$@" >"$out" 2>&1
    status=$?
    passed=$(grep -c '^ok ' "$out")
    { [ $status -eq 0 ] && [ "$passed" -gt 30 ] && grep -q "^1\.\.$passed\$" "$out"; } || status=1
    ok $status "$what" "$out"
}

# ends STATUS MESSAGES PATTERN WHAT COMMAND...: checks the exit status, the number of ranks with a
# message (0: any), and the pattern.
ends() {
    wanted=$1 messages=$2 pattern=$3 what=$4
    shift 4
    "$@" >"$out" 2>&1
    status=$?
    spoken=$(grep -c -e '^unsplit:' -e '^\[rank' "$out")
    good=1
    if [ $status -eq "$wanted" ] && grep -q -e "$pattern" "$out"; then
        if [ "$messages" -eq 0 ] || [ "$messages" -eq "$spoken" ]; then good=0; fi
    fi
    echo "exit status $status, wanted $wanted; pattern $pattern" >>"$out"
    ok $good "$what" "$out"
}

# Runs that wait for --timeout run in the background; `waited NAME` shows the result at the end.
wait_meanwhile() {
    seconds=$1
    shift
    for name in "$@"; do
        $mpi 3 "$program" --timeout "$seconds" "$name" >"$tap_dir/$name" 2>&1
        echo $? >"$tap_dir/$name.status"
    done
}
waited() {
    wait
    cat "$tap_dir/$1"
    return "$(cat "$tap_dir/$1.status")"
}
if [ -n "$mpi" ]; then
    wait_meanwhile $tap_wait missing deadlock &
    wait_meanwhile $tap_wait rendezvous slow-broadcast &
    wait_meanwhile $tap_wait never-arrives slow-gather &
    wait_meanwhile $((2 * tap_wait)) lonely-usage &
fi

# ---- right programs ----
for n in 1 2 3 4 5 8; do
    whole "$n virtual ranks" emu $n "$program"
    grep '^# bits' "$out" >"$tap_dir/bits-$n"
done
whole "4 virtual ranks, --reduce fast" emu 4 "$program" --fast
for n in 1 2 4; do
    [ -n "$mpi" ] || { skip "$n processes" "$no_mpi"; continue; }
    whole "$n processes" $mpi $n "$program"
    grep '^# bits' "$out" >"$tap_dir/bits-mpi"
    cmp -s "$tap_dir/bits-$n" "$tap_dir/bits-mpi"
    ok $? "the same bits from $n virtual ranks and $n processes" "$tap_dir/bits-mpi"
    whole "$n processes, --reduce fast" $mpi $n "$program" --fast
done

# ---- mistakes: their status, and the messages of virtual ranks and processes ----
mistake() {
    ends "$2" 1 "$3" "3 virtual ranks: $1" emu 3 "$program" "$1"
    [ -n "$mpi" ] || { skip "3 processes: $1" "$no_mpi"; return; }
    case $1:$4 in
        lonely-usage:* | *:waited*) ends "$2" "${5:-0}" "$4" "3 processes: $1" waited "$1" ;;
        *) ends "$2" "${5:-0}" "$4" "3 processes: $1" $mpi 3 "$program" --timeout $tap_hang "$1" ;;
    esac
}
both() { mistake "$1" "$2" "$3" "$3" "$4"; }
# As processes any rank may time out first, even a rank that has finished, because it waits for the
# other ranks at the end.
mistake mismatch 3 "rank [0-9] calls all-reduce on world.*rank [0-9] calls broadcast from rank 0" \
    "calls do not match in \\(all-reduce on\\|broadcast from rank 0 of\\) world"
mistake count 3 "world (4 elements.*world (5 elements" \
    "calls do not match in broadcast from rank 2 of world ([45] elements"
mistake root 3 "broadcast from rank 0.*broadcast from rank 1" \
    "calls do not match in broadcast from rank [01] of world"
mistake missing 3 \
    "rank 1 waits in all-reduce on world (4 elements, [0-9]* bytes), not reached by rank 0" \
    "waited $tap_wait s in \\(recv from rank 1 of world (4 elements\\|all-reduce on world\\)"
mistake deadlock 3 "rank 1 waits in recv from rank 0 of world (1000 elements" \
    "waited $tap_wait s in \\(recv from rank\\|end-of-run barrier\\)"
mistake rendezvous 3 "rank 1 waits in send to rank 0 of world" \
    "waited $tap_wait s in \\(send to rank\\|end-of-run barrier\\)"
mistake short 3 "rank 0 sends [0-9]* bytes, where rank 2 receives [0-9]*" \
    "from rank 0 of world (5 elements.*has [0-9]* bytes" 1
mistake long 3 "rank 0 sends [0-9]* bytes, where rank 2 receives [0-9]*" \
    "from rank 0 of world (4 elements.*has [0-9]* bytes" 1
both unreceived 3 \
    "comm_free of world, but send to rank 1 of world (1000 .* was started and never waited for"
both unconnected 3 \
    "\(send\|recv\) between ranks [01] and [01] of world, which comm_connect has not connected"
mistake never-arrives 3 "rank 0 waits in recv from rank 1 of world (4 elements" \
    "waited $tap_wait s in \\(recv from rank 1\\|end-of-run barrier\\)"
both unwaited-recv 3 "comm_free of world, but recv from rank 0 of world (4 .*never waited for"
both arrival-of-send 3 "comm_arrival on world of one send"
both arrival-after-wait 3 "comm_arrival on world of one recv: .* before its comm_wait"
both unwaited 3 "comm_free of world, but all-reduce on world (4 .*never waited for"
both changed-late 3 \
    "rank 2. the input of all-reduce on world (70001 .* was changed before comm_wait" 1
both changed 3 "rank 2. the input of all-reduce on world (4 .* was changed before comm_wait" 1
both sent-changed 3 "rank 0. the input of send to rank 1 .* was changed before comm_wait" 1
both order 3 "out of order"
both twice 3 "was waited for before"
# Any rank may print first, and the parts of the ranks differ in size.
both part 3 "this rank's part of 1000 elements is 33[34], but .* has 4"
both rows 3 "this rank's rows of .100, 10. are .3[34], 10., but .* is .1, 10."
mistake rows-of-others 3 "elements in rows of 8, .*elements in rows of 4," \
    "calls do not match in all-gather on world (1000 elements in rows of [48],"
both to-all 3 "3 ranks have 33[34] elements each for this rank, but .* has 4"
both overlap 3 "all-to-all on world: out and in overlap"
both elements 3 "reduce-scatter on world: the input is stored in fp[36][24], the output in fp16"
mistake other-element 3 \
    "world (4 elements, \(16\|32\) bytes).*world (4 elements, 8 bytes)\|world (4 elements, 8 bytes).*world (4 elements, \(16\|32\) bytes)" \
    "calls do not match in all-reduce on world (4 elements"
both myself 3 "send to myself"
both nobody 3 "recv on world names rank 3, but there are 3 ranks"
both gaps 3 "broadcast on world: the tensor is not contiguous"
both leak 3 "rank 2. leak" 1
both fault 3 "rank 2. the fault of one rank" 1
both usage 2 "unsplit: the same mistake on every rank" 1
both grid 2 "unsplit: a grid of 2 x 2 x 1 ranks needs 4, but world has 3" 1
both lonely-usage 2 "unsplit: the mistake of one rank" 1

# ---- all processes wait: a message shows which rank waits for which; a slow rank is no deadlock
knot() { ends 3 1 "$2" "3 processes, --deadlock: $1" $mpi 3 "$program" --timeout $tap_hang \
    --deadlock 2 "$1"; }
if [ -n "$mpi" ]; then
    for mode in deadlock rendezvous; do
        knot $mode "the cycle: rank [01] waits for rank [01], which waits for rank [01]$"
        grep -q "^  rank 0 waits [0-9]* s in \(recv from\|send to\) rank 1 of world" "$out"
        ok $? "3 processes, --deadlock: $mode: every rank's call" "$out"
    done
    knot missing \
        "rank 1 waits [0-9]* s in all-reduce on world (4 elements, [0-9]* bytes), not reached by rank 0$"
    ends 0 0 "" "a slow rank is no deadlock" $mpi 3 "$program" --timeout 20 --deadlock 1 \
        slow-broadcast
else
    skip "deadlocks of processes" "$no_mpi"
fi

# ---- slow cases ----
if [ -z "$mpi" ]; then
    skip "a rank 0 that takes longer than --timeout, and more bytes than an int counts" "$no_mpi"
else
    ends 0 0 "" "all wait for rank 0's broadcast, beyond --timeout" waited slow-broadcast
    ends 0 0 "" "all wait for a rank 0 that gathers late, beyond --timeout" waited slow-gather
    ends 3 0 "^\[rank [12]\] rank 0 is stopped: process" \
        "nobody waits longer for a stopped rank 0" $mpi 3 "$program" --timeout 2 slow-stopped
    if [ -n "$TEST_ALL" ]; then
        ends 0 0 "^ok 1 - 2147483653 bytes" "more bytes than an int counts" $mpi 2 "$program" huge
    else
        skip "more bytes than an int counts" "4 GB of memory: with TEST_ALL=1 only"
    fi
fi

# ---- the choice of transport ----
ends 2 1 "mpirun -np 4" "--transport mpi without a launcher" "$program" --mpi
ends 2 1 "at most 512" "too many virtual ranks" "$program" --emulate 513
ends 2 1 "leave one of the two options out" "--emulate with --transport mpi" "$program" --emulate \
    2 --mpi
ends 2 1 "srun --mpi=pmix" "Slurm tasks that do not know of each other" \
    env SLURM_NTASKS=4 SLURM_PROCID=0 "$program"
ends 0 0 "default: virtual ranks" "started bare" "$program"
if [ -n "$mpi" ]; then
    ends 2 1 "mpirun started 2 processes" "--emulate under mpirun" $mpi 2 "$program" --emulate 2
    ends 2 1 "mpirun started 2 processes" "--transport emu under mpirun" $mpi 2 "$program" --emu
    ends 3 0 "signal 9" "a killed process ends the others" $mpi 3 "$program" killed
    grep -q '^\[rank [01]\] rank 2 is gone: its process has ended; ' "$out"
    ok $? "the other ranks name a killed process" "$out"
    finalize=$PWD/build/cpu-fp32/tests/pmpi_finalize.so
    ends 0 0 "" "a fault in MPI_Finalize, after the work, changes no status" $mpi 2 env \
        LD_PRELOAD="$finalize" "$program"
    ends 2 1 "the same mistake" "a fault in MPI_Finalize does not change the status of a mistake" \
        $mpi 2 env LD_PRELOAD="$finalize" "$program" usage
else
    skip "--emulate, --transport emu, a killed process and a process that ends badly" "$no_mpi"
fi
tap_end
