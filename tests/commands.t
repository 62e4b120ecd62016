#!/bin/sh
# Tests the commands that a user can type: make's targets, the launcher's exit statuses, set-up.
# slow: make starts about 40 times, and a bug is compiled in a copy of the tree
# shellcheck disable=SC2016,SC2317    # other shells expand $ in quotes; names call functions
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
. tests/commands.sh

# ---- make's own targets ----
ends 0 "make help names the commands" "make.run.* make.test make.list make.doctor clean NP= ARGS=" \
    make help
ends 0 "make doctor finds all that the tests themselves need, and tells how fast a core is" \
    "found.*MPI found.*BLAS found.*prove Everything.needed ^cores.*one.reaches.[1-9][0-9]*.GFLOP/s.*[0-9].%.of.its.[1-9][0-9]*.in" make doctor
ends 0 "make list has a line for every lesson" "$(tools/lessons | sed 's/\t.*//; s/^/^/')" make list
ends 2 "an unknown chapter prints the list" "no.lesson.or.chapter question" make run-99
ends 2 "an unknown lesson prints the list" "no.lesson.or.chapter question" make emu-01-99
ends 2 "an unknown backend is refused by name" "BACKEND=tpu BACKEND=cpu.or.BACKEND=cuda" make \
    BACKEND=tpu
ends 2 "without CUDA the build ends with a message that names the fix" \
    "in.CUDA_HOME=/nowhere CUDA_HOME=/its/folder leave.BACKEND=cuda.out" \
    make BACKEND=cuda CUDA_HOME=/nowhere
ends 2 "an unknown precision is refused" "PRECISION=fp32.or.PRECISION=fp64" make PRECISION=fp16
ends 2 "an unknown sanitizer is refused" "thread" make SANITIZE=memory

# ---- a program needs its chapter, the included chapters, common and judge; a test needs all ----
# compiled FOLDERS PROGRAM: checks that a fresh build of PROGRAM compiles files of these folders
# only.
compiled() {
    make --no-print-directory -n programs O="$tap_dir/anew" ONLY="$tap_dir/anew/$2" \
        >"$tap_dir/dry" 2>&1
    folders=$(sed -n 's|^echo "compiling \([^/]*\)/.*|\1|p' "$tap_dir/dry" | sort -u | tr '\n' ' ')
    [ "$folders" = "$1 " ] || echo "(compiles $folders)" >>"$tap_dir/dry"
    [ "$folders" = "$1 " ]
    ok $? "$2 needs $1" "$tap_dir/dry"
}
compiled "04_pipeline_naive 05_pipeline_1f1b common judge" 05_pipeline_1f1b/02_1f1b
compiled "common judge" judge/run_00
compiled "$(echo [0-9][0-9]_*) common judge tests" tests/test_ops

# ---- the launcher's statuses ----
for status in 0 1 2 3 4; do
    ends $status "status $status passes the launcher, emulated" "" tools/launch -e 0 sh -c \
        "exit $status"
    ends $status "status $status passes the launcher, as processes" "" tools/launch 2 sh -c \
        "exit $status"
done
for death in "exit 7" "kill -SEGV \$\$" "kill -KILL \$\$" "kill -ABRT \$\$"; do
    ends 3 "$death is a fault, emulated" "a.fault" tools/launch -e 0 sh -c "$death"
    ends 3 "$death is a fault, as processes" "a.fault" tools/launch 2 sh -c "$death"
done
ends 3 "a rank that is killed before it begins is named" "rank.1.was.ended.by.signal.9 a.fault" \
    tools/launch 2 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || kill -KILL $$; sleep 30'
ends 3 "a hanging job ends at LAUNCH_LIMIT" "longer.than.allowed" env LAUNCH_LIMIT=2 tools/launch \
    2 sleep 30
ends 3 "a missing program is named" "no.program.*nowhere" tools/launch 2 build/nowhere
ends 2 "a rank count must be a number" "whole.number" tools/launch two true

# ---- the first lesson, and the chapter of this lesson ----
first=$(tools/lessons | awk -F '\t' '$1 ~ /^[0-9][0-9]-/ { print $1; exit }')
if [ -n "$first" ]; then
    ends 0 "make run-$first shows the page of its lesson" "^\[.*PASS" make "run-$first"
    ends 0 "make emu-$first does without mpirun" "^\[.*PASS" make "emu-$first"
    ends 0 "NP= changes the ranks" "1.rank" make "emu-$first" NP=1
    ends 0 "PRECISION=fp64 is another build" "fp64" make "emu-$first" PRECISION=fp64
    ends 0 "ARGS= reaches the lesson" "--seed" make "emu-$first" ARGS=--help
    # The value of a variable is plain text for the shell and for make.
    touch="touch $tap_dir/made"
    text="; $touch | $touch & \$($touch) \$(shell $touch) \`$touch\`"
    ends 2 "make emu-$first evaluates no ARGS" "expected.a.whole.number,.0 exit.status.2" make \
        "emu-$first" ARGS="--seed 2$text"
    ends 2 "make play-$first evaluates no ARGS" "expected.a.whole.number,.0 with.status.2" make \
        "play-$first" ARGS="--seed 2$text"
    ends 2 "make bench evaluates no ARGS" "unsplit:.cannot.write" make bench \
        ARGS="--json $tap_dir/no/such $text"
    ends 2 "make evaluates no NP" "number.of.ranks.must.be.a.whole.number" make "emu-$first" \
        NP="1'$text"
    ends 2 "make break evaluates no BUG" "no.bug.'x'" make break-01 BUG="x'$text"
    ends 2 "make student evaluates neither DIR nor EXERCISES" "no.exercise.'y'" make student \
        DIR="$tap_dir/x'$text" EXERCISES="y' $text"
    ends 2 "make grade evaluates neither SUBMISSION nor JSON" "SUBMISSION=x'.*is.not.a.folder" \
        make grade SUBMISSION="x'$text" JSON="y'$text"
    [ ! -e "$tap_dir/made" ]
    ok $? "no command in a variable has run"
    ends 2 "a quotation mark without a partner is refused" "has.no.partner" make "emu-$first" \
        ARGS="--seed '2"
    ends 2 "the words of ARGS are split at blanks" "unexpected.argument.b:" make "emu-$first" \
        ARGS="--json a b"
    ends 2 "the words of ARGS are not split inside quotation marks" "--json.a.b/c:.cannot.write" \
        make "emu-$first" ARGS="--json 'a b/c'"
    ends 2 "a wrong option ends make, and make prints the status" "exit.status.2" make \
        "run-$first" ARGS=--no-such-option
    chapter=${first%-*}
    lessons=$(tools/lessons | awk -F '\t' -v chapter="$chapter-" 'index($1, chapter) == 1' | wc -l)
    make "emu-$chapter" >"$tap_dir/chapter" 2>&1 &&
        [ "$(grep -c '^emulated ' "$tap_dir/chapter")" -eq "$lessons" ]
    ok $? "make emu-$chapter has one verdict line per lesson" "$tap_dir/chapter"
    ends 2 "a chapter whose lessons fail fails, with the page and the status" \
        "exit.status.2.*invalid" \
        make "emu-$chapter" ARGS=--no-such-option
else
    skip "make run-NN-KK and its relatives" "there is no lesson yet"
fi

# ---- make bench: a two-line question is shown completely ----
mkdir -p "$tap_dir/cpu/tests"
cat >"$tap_dir/cpu/tests/bench_record" <<'END'
#!/bin/sh
printf '[record]  Is a question\n          shown whole?\n          4 ranks\n\na figure\n[record] PASS  1 check, 0 costs  0.00 s\n'
END
chmod +x "$tap_dir/cpu/tests/bench_record"
tools/bench "$tap_dir/cpu" --only record >"$tap_dir/bench" 2>&1
printf '[record]  Is a question\n          shown whole?\n          4 ranks\n\na figure\n\n' |
    cmp - "$tap_dir/bench" >&2
ok $? "make bench shows each page with its title, without its verdict" "$tap_dir/bench"

# ---- bugs, as shown to a student ----
bug=01-divided-again
if [ -e "bugs/$bug.patch" ]; then
    ends 0 "make break-01 lists the bugs of chapter 01" "BUG=name ${bug#01-}" make break-01
    ends 2 "an unknown bug prints the list" "no.bug.'no-such-bug' ${bug#01-}" make break-01 \
        BUG=no-such-bug
    ends 2 "a chapter without bugs is refused" "no.bugs.for.chapter.'99' 01" make break-99
    # $bug starts with the chapter's number, which is allowed in the name.
    ends 0 "make break-01 BUG=$bug shows the lesson failing" \
        "^what: ^wrong:.*4.times.too.small FAIL ended.with.status" make break-01 BUG="$bug"
    mkdir "$tap_dir/tree"
    tools/scratch-tree "$tap_dir/tree" build/cpu-fp32
    # This patch has no bug, so the lesson passes with the patch.
    (cd "$tap_dir/tree" && { cat LICENSE && echo "A line."; } >longer && {
        printf 'lesson: 01_data_parallel/01_by_hand\nwhat: nothing\nseen: -\ncaught-by: nothing\n\n'
        diff -u --label a/LICENSE --label b/LICENSE LICENSE longer
    } >bugs/01-none.patch)
    ends 1 "a bug without effect is reported" "PASS the.lesson.passes.with.the.bug" \
        "$tap_dir/tree/tools/break" 01 none
    sed -i 's/^ .*/ no such line/' "$tap_dir/tree/bugs/01-none.patch"
    ends 3 "a bug that does not apply is reported" "does.not.apply" \
        "$tap_dir/tree/tools/break" 01 none
else
    skip "make break-01" "there are no bugs"
fi

# ---- set-up on a machine that has only a shell; the test provides apt-get, id and sudo ----
mkdir "$tap_dir/bin"
for tool in sh dirname mktemp rm cat head env mkdir; do ln -s "$(command -v $tool)" \
    "$tap_dir/bin/$tool"; done
printf '#!/bin/sh\necho "apt-get ran: $*"\n' >"$tap_dir/bin/apt-get"
printf '#!/bin/sh\necho "${FAKE_ID:-0}"\n' >"$tap_dir/bin/id"
printf '#!/bin/sh\necho "sudo ran: $*"\n' >"$tap_dir/bin/sudo"
chmod +x "$tap_dir/bin/apt-get" "$tap_dir/bin/id" "$tap_dir/bin/sudo"
ends 2 "set-up as root updates and installs, and prints its commands" \
    "^set-up:.*apt-get ran:.update ran:.install.*libopenmpi-dev.*libopenblas-dev" \
    env PATH="$tap_dir/bin" tools/setup build
ends 2 "set-up as a user prints the command to type" \
    "sudo.apt-get.update.*apt-get.install.*libopenmpi-dev SETUP=yes" \
    env PATH="$tap_dir/bin" FAKE_ID=1000 SETUP= tools/setup build
ends 2 "set-up with SETUP=yes goes through sudo" "sudo.ran:.*apt-get.*install" \
    env PATH="$tap_dir/bin" FAKE_ID=1000 SETUP=yes tools/setup build

ends 2 "set-up for the book names its own packages" \
    "sudo.apt-get.update.*apt-get.install.*pandoc.clang.lld.wasi-libc" \
    env PATH="$tap_dir/bin" FAKE_ID=1000 SETUP= tools/setup book

tap_end
