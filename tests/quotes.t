#!/bin/sh
# Checks that the output and the cost tables on the pages equal the output of the programs.
# slow: the test runs about a hundred commands
# shellcheck disable=SC2016    # other shells expand $ in quotes
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
. tests/commands.sh

# ---- quoted output ----
cat >"$tap_dir/page.md" <<'END'
```console
$ tools/launch -e 0 printf '%s\n' 'grad W1   max 2.1e-07  limit 1.0e-05  ok' 'took 3.45 s' 'a' 'b' 'last'
grad W1  max 9e-08  limit 1.0e-05  ok
took 12 s
...
last
```
END
ends 0 "a quote may differ in times and rounding errors, and leave lines out" \
    "^same.*page.md:2 1.quotes" \
    tools/check-quotes "$tap_dir/page.md"
sed 's/limit 1.0e-05  ok$/limit 1.0e-04  ok/' "$tap_dir/page.md" >"$tap_dir/limit.md"
ends 1 "a quote with another limit is caught" "^DIFFERS.*limit.md:2 ^+grad.*1.0e-05" \
    tools/check-quotes "$tap_dir/limit.md"
sed '/^\.\.\./d' "$tap_dir/page.md" >"$tap_dir/short.md"
ends 1 "a quote that lacks lines is caught" "^DIFFERS" tools/check-quotes "$tap_dir/short.md"
mkdir -p "$tap_dir/book/tools" "$tap_dir/book/01_one"
cp tools/check-quotes "$tap_dir/book/tools"
printf '%s\n' '```console' '$ tools/no-such-tool' 'words' '```' >"$tap_dir/book/01_one/02_two.md"
ends 1 "without a name on the page its own lesson is compared" \
    "^DIFFERS.*01_one/02_two.md:2 1.quotes" \
    "$tap_dir/book/tools/check-quotes"
# Some pages are compared with TEST_ALL=1 only, because their commands take long.
# docs/instructors.md quotes make grade. docs/pages has the output of all lessons. The references
# have tables of many runs.
set --
for page in README.md common/README.md common/llama.md [0-9][0-9]_*/*.md docs/*.md \
    docs/pages/*.md; do
    grep -qs '^```console' "$page" || continue
    case $page:$TEST_ALL in
        docs/instructors.md: | docs/pages/*: | */reference.md:) skip "the output quoted in $page" \
            "the output takes long: with TEST_ALL=1" ;;
        *) set -- "$@" "$page" ;;
    esac
done
tools/check-quotes "$@" >"$tap_dir/quotes" 2>&1
for page; do
    awk -v page="$page:" '/^(same|DIFFERS) / { of_page = index($2, page) == 1 } of_page' \
        "$tap_dir/quotes" >"$tap_dir/of-page"
    grep -q '^same ' "$tap_dir/of-page" && ! grep -q '^DIFFERS' "$tap_dir/of-page"
    ok $? "the output quoted in $page is what its commands print" "$tap_dir/of-page"
done

# ---- cost tables: 3 all-reduces send 2 (N-1)/N of 64992 bytes each, for N = 2 and 4 ----
if [ -x build/cpu-fp32/01_data_parallel/02_all_reduce ]; then
    cat >"$tap_dir/costs.md" <<'END'
<!-- costs: build/cpu-fp32/01_data_parallel/02_all_reduce --emulate {2,4} --link ethernet -->
| | formula | predicted | measured |
|---|---|---|---|
| sent | 3 · 2(N-1)/N · 64992 | 194976 | 194976; 292464 |
| weights, `1` of them | | all | 64992 |
| activations | | 148608..198144 | 198144 |
| step, ms | | 4.85 | 4846713600 ps |
| idle | | | 14.5 % |
END
    # spoilt CHANGE PATTERNS WHAT: changes the page with sed. The check must refuse this page.
    spoilt() {
        sed "$1" "$tap_dir/costs.md" >"$tap_dir/spoilt.md"
        ends 1 "$3" "$2" tools/check-tables "$tap_dir/spoilt.md"
    }
    ends 0 "a cost table may have the numbers that its commands print" \
        "^1.cost.tables,.9.numbers 2.commands" \
        tools/check-tables "$tap_dir/costs.md"
    spoilt "s/292464/292465/" "spoilt.md:4:.292465.is.not.among.what.is.measured" \
        "another count is caught"
    spoilt "s/| 194976 |/| 194977 |/" "spoilt.md:4:.194977.is.not.among.what.is.predicted" \
        "another predicted count is caught"
    spoilt "s/148608\.\./148609../" "spoilt.md:6:.148609\.\.198144" "another range is caught"
    spoilt "s/4\.85/4.84/" "spoilt.md:7:.4.84" "another rounded time is caught"
    spoilt "s/14\.5/14.6/" "spoilt.md:8:.14.6" "another share"
    spoilt "1d" "needs.its.commands" "a table of costs without its commands is caught"
    spoilt "4,\$ s/[0-9]//g" "no.number.of.this.table.could" "a table without numbers is caught"
    spoilt "1s#--emulate#--emulate 4; build/cpu-fp32/03_tensor_parallel/05_vocab &#" \
        ".05_vocab.--emulate.*prints.no.number.of.this.table" \
        "a command without a number in the table is caught"
    spoilt "s/{2,4}/{2,none}/" "--emulate.none.*status.2" "a command that fails is caught"
    spoilt "1s/\$/\n/" "no.table.follows" "commands without a table are caught"
    sed "s/\b70848\b/70852/" common/README.md >"$tap_dir/spoilt.md"
    ends 1 "another count in a page of the book is caught" "spoilt.md:[0-9]*:.70852" \
        tools/check-tables "$tap_dir/spoilt.md"
    # make test takes every third page, and TEST_ALL=1 takes all.
    set --
    for page in README.md common/*.md [0-9][0-9]_*/*.md docs/*.md docs/pages/*.md; do
        grep -qs '^<!-- costs:' "$page" || continue
        turn=$(((${turn:-0} + 1) % 3))
        if [ "$turn" -eq 1 ] || [ -n "$TEST_ALL" ]; then set -- "$@" "$page"; fi
    done
    ends 0 "the cost tables of the pages equal the output of their commands" \
        "cost.tables,.[0-9]*.numbers" tools/check-tables "$@"
else
    skip "cost tables" "the lessons are not built"
fi
tap_end
