# shellcheck shell=sh
# both NAME: runs the program tests/NAME of each folder in BUILD, by default of both precisions, and
# joins the TAP under one plan. A program that ends badly without a failed test (killed, cut short)
# counts as a failed test.
both() {
    work=$(mktemp) || exit 3
    trap 'rm -f "$work"' EXIT
    for build in ${BUILD:-build/cpu-fp32 build/cpu-fp64}; do
        "$build/tests/$1" </dev/null
        printf '\nstatus %s\n' $?                 # a killed program may leave half a line
    done >"$work"
    awk '
        /^(not )?ok [0-9]+ - / { n++; bad += /^not/; sub(/ok [0-9]+/, "ok " n) }
        /^1\.\.[0-9]+$/ { planned = 1; next }
        /^status [0-9]+$/ {
            if (!planned || ($2 != 0 && !bad)) {
                print "not ok " ++n " - the program ended with status " $2
                bad = 1
            }
            all += bad; planned = bad = 0
            next
        }
        NF { print }
        END { print "1.." n; exit all > 0 }' "$work"
}
