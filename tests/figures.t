#!/bin/sh
# The figures of the pages must equal the output of their commands, byte by byte. First the check is
# tested with wrong figures.
# slow: the test runs a lesson for each of about fifty figures
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
train=build/cpu-fp32/08_3d/train
if [ ! -x "$train" ]; then
    skip "the figures" "$train is not built"
    tap_end
fi
mkdir "$tap_dir/page"
page=$tap_dir/page/README.md
text=$tap_dir/text
seq 1000 >"$text"
command="$train --emulate 2 --dp 1 --tp 1 --pp 2 --layers 2 --width 16"
command="$command --heads 2 --context 8 --batch 4 --micro-batch 1 --steps 1 --data $text"

page() { printf '%s\n' "# A page" "$@" >"$page"; }
# finds STATUS WHAT PATTERN [OPTION]: checks the status and the output of tools/figures.
finds() {
    tools/figures ${4:+"$4"} "$page" >"$tap_dir/output" 2>&1
    status=$?
    grep -q -e "$3" "$tap_dir/output" && [ "$status" -eq "$1" ]
    ok $? "$2" "$tap_dir/output"
}
page "<!-- figure: $command -->" '![a pipeline](figures/two.svg)'
finds 1 "a missing figure is named" "README.md:2: figures/two.svg is missing" --check
[ ! -e "$tap_dir/page/figures" ]
ok $? "the check does not draw a missing figure"
finds 0 "a missing figure is drawn" "README.md:2: figures/two.svg drawn"
finds 0 "the check holds for a figure that was drawn" "1 figures, all equal" --check
finds 0 "an unchanged figure is not drawn again" "1 figures, 0 drawn anew"
sed 's/rank 1/rank 2/' "$tap_dir/page/figures/two.svg" >"$tap_dir/changed"
cp "$tap_dir/changed" "$tap_dir/page/figures/two.svg"
finds 1 "a stale figure is named" "figures/two.svg differs from the figure" --check
cmp -s "$tap_dir/changed" "$tap_dir/page/figures/two.svg"
ok $? "the check does not change a stale figure"
page "<!-- figure: $command --link ib -->" '![a pipeline](figures/two.svg)'
finds 1 "a figure of another command is stale" "differs from the figure" --check
finds 0 "the figure of another command is drawn" "drawn$"
page "<!-- figure: $command --sead 1 -->" '![a pipeline](figures/two.svg)'
finds 1 "a command that fails is named with its message" "the nearest is --seed" --check
page "<!-- figure: build/cpu-fp32/01_data_parallel/01_by_hand -->" '![none](figures/two.svg)'
finds 1 "a lesson without a picture is named" "draws no picture" --check
page "<!-- figure: rm -rf / -->" '![none](figures/two.svg)'
finds 1 "only programs of this tree are run" "a program of this tree" --check
page "<!-- figure: build/cpu-fp32/nothing -->" '![none](figures/two.svg)'
finds 1 "a program that is not built is named" "make builds it" --check
page '![none](figures/two.svg)'
finds 1 "a figure without a command is named" "README.md:2: no comment before figures/two.svg" \
    --check
page "<!-- figure: $command -->" '' '![none](figures/two.svg)'
finds 1 "a command without a figure is named" "README.md:2: expected" --check
page "words"
finds 1 "a figure that no page shows is named" "figures/two.svg: no page shows it" --check
printf '%s\n' "<!-- figure: $command -->" '![a pipeline](figures/two.svg)' \
    >"$tap_dir/page/02_two.md"
finds 0 "the page of a lesson may show a figure" "0 figures, all equal" --check

tools/figures --check >"$tap_dir/output" 2>&1
ok $? "the figures of this tree equal the output of their commands" "$tap_dir/output"
figures=$(cat [0-9][0-9]_*/*.md | grep -c '^<!-- figure: ')
grep -q "^$figures figures, " "$tap_dir/output"
ok $? "all $figures figures of chapters and lessons were checked" "$tap_dir/output"
tap_end
