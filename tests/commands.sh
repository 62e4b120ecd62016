# shellcheck shell=sh disable=SC2154    # tap_dir is tap.sh's
# Sourced by the tests of commands, behind tests/tap.sh: make's variables are as if nothing had been said, and a command is judged by
# its status and its lines.
unset NP ARGS PRECISION BACKEND SANITIZE MPIRUN MAKEFLAGS MFLAGS MAKELEVEL

# ends WANTED-STATUS WHAT PATTERNS COMMAND...: the status, and a line for each pattern.
ends() {
    wanted=$1
    what=$2
    patterns=$3
    shift 3
    "$@" >"$tap_dir/output" 2>&1 </dev/null
    status=$?
    missed=0
    for pattern in $patterns; do
        grep -q -e "$pattern" "$tap_dir/output" || missed=1
    done
    [ "$status" -eq "$wanted" ] || missed=1
    echo "(ended with status $status, wanted $wanted; wanted lines: $patterns)" >>"$tap_dir/output"
    ok $missed "$what" "$tap_dir/output"
}
