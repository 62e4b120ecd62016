# shellcheck shell=sh disable=SC2034    # the scripts that source this file use the seconds
# The shell tests source this file of TAP functions. A test file ends with `tap_end`. Limits are in
# seconds, long because a machine may be busy. A program that runs longer than $tap_hang counts as
# hung. $tap_wait is the --timeout of a run that must time out. $tap_wait is much longer than any
# other wait of a rank.
tap_hang=600
tap_wait=20
tap_n=0
tap_bad=0

# ok STATUS WHAT [FILE-THAT-EXPLAINS-A-FAILURE]: prints a test line, and the file if the test fails.
ok() {
    tap_n=$((tap_n + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $tap_n - $2"
    else
        tap_bad=1
        echo "not ok $tap_n - $2"
        [ -z "$3" ] || sed 's/^/#   /' "$3"
    fi
}

# clean WHAT COMMAND...: checks that the command prints no violation.
clean() {
    what=$1
    shift
    "$@" >"$tap_dir/offences" 2>&1
    if [ -s "$tap_dir/offences" ]; then ok 1 "$what" "$tap_dir/offences"; else ok 0 "$what"; fi
}

# has WHAT "PATTERN PATTERN..." COMMAND...: checks that the command's output matches each pattern.
has() {
    what=$1
    patterns=$2
    shift 2
    "$@" >"$tap_dir/output" 2>&1
    missed=0
    for pattern in $patterns; do
        grep -q -e "$pattern" "$tap_dir/output" || missed=1
    done
    ok $missed "$what" "$tap_dir/output"
}

# among PATTERN COMMAND...: prints the output lines that match.
among() {
    pattern=$1
    shift
    "$@" 2>&1 | grep -e "$pattern"
}

skip() {
    tap_n=$((tap_n + 1))
    echo "ok $tap_n - $1 # SKIP $2"
}

tap_end() {
    echo "1..$tap_n"
    exit $tap_bad
}

tap_dir=$(mktemp -d "${TMPDIR:-/tmp}/unsplit-test.XXXXXX") || exit 3
trap 'rm -rf "$tap_dir"' EXIT
