# shellcheck shell=sh disable=SC2154    # tap.sh sets tap_dir
# The tests of commands source this file after tests/tap.sh. The file clears make's variables.
unset NP ARGS PRECISION BACKEND SANITIZE MPIRUN MAKEFLAGS MFLAGS MAKELEVEL

# ends WANTED-STATUS WHAT PATTERNS COMMAND...: checks the status, and that each pattern matches a
# line.
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
