#!/bin/sh
# Checks the rules of the tree: which folder may include which, and the required parts of a lesson
# and of a page. Most checks first run on a small tree that breaks their rule, and must find the
# violation.
# slow: the test compiles broken trees and runs shellcheck
# shellcheck disable=SC2317    # the checks are called by name, as arguments of has and clean
cd "$(dirname "$0")/.." || exit 3
root=$PWD
. tests/tap.sh

# ---- the checks: each prints the violations in the current folder, one per line ----
# The argument of some checks is the folder of the objects.
chapter_sources() { ls [0-9][0-9]_*/*.[ch] [0-9][0-9]_*/experiments/*.[ch] 2>/dev/null; }
lessons() { { ls [0-9][0-9]_*/[0-9][0-9]_*.c; grep -ls '^// ranks: ' judge/*.c [0-9][0-9]_*/*.c; } \
    2>/dev/null | sort -u; }

# Finds conditional compilation, except the guard of a header: #ifndef X, then #define X.
conditional_compilation() {
    for file in $(chapter_sources); do
        awk '/^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else)([^a-z]|$)/ {
            guard = FILENAME ~ /\.h$/ && ++n == 1 && $1 == "#ifndef"
            if (guard) { name = $2; line = FNR; text = $0; next }
            print FILENAME ":" FNR ": " $0
        }
        name != "" && FNR == line + 1 && !($1 == "#define" && $2 == name) {
            print FILENAME ":" line ": " text
        }' "$file"
    done
}

# Finds writable globals of chapters. Virtual ranks of one process would share such a global.
writable_globals() {
    for file in $(chapter_sources | grep 'c$'); do
        [ -e "$file" ] || continue
        objdump -t "$1/${file%.c}.o" | awk -v file="$file" '
            / \.data\.rel\.ro/ { next }
            / (\.data|\.bss|\.tdata|\.tbss|\*COM\*)[^ \t]*\t0*[1-9a-f][0-9a-f]* / {
                print file ": " $NF
            }'
    done
}

# Checks the globals of common/ and judge/, where a process may have the variables of the list
# once_a_process. These variables are written before the ranks start, by the only rank of an MPI
# process, or by the virtual rank that holds the baton. A thread's variable belongs to one rank.
once_a_process='
util.o: stop_came stop_time interrupt_time end_all_ranks ranks_are_processes usage_wait
comm_emu.o: stage
comm_mpi.o: longest_wait crowded under_way contributions mpi_meanwhile timeout
waits.o: ranks_here slot_bytes slots seconds window blocked polls seen next_look last_look visible
process.o: host original status_at_end
device_cpu.o: device_threads device_meanwhile
clock.o: config
memory.o: process process_most'
shared_globals() {
    find "$1/common" "$1/judge" -name '*.o' 2>/dev/null | while read -r object; do
        name=$(basename "$object")
        allowed=$(printf '%s\n' "$once_a_process" | sed -n "s/^$name: //p" | tr '\n' ' ')
        objdump -t "$object" | awk -v name="$name" -v allowed=" $allowed " '
            / \.data\.rel\.ro/ { next }
            / (\.data|\.bss|\*COM\*)[^ \t]*\t0*[1-9a-f][0-9a-f]* / {
                variable = $NF
                sub(/\.[0-9]+$/, "", variable)             # a variable in a function: kept.0
                if (!index(allowed, " " variable " ")) print name ": " variable
            }'
    done
}

# Finds pointers that are read or written through a pointer to another pointer type. Compilers may
# assume that these are different objects.
cast_addresses() { find common judge [0-9][0-9]_* tests tools -name '*.[ch]' -exec grep \
    -nE '\*\*\) *&' {} +; }

# Finds warnings of Perl in the programs of tools/ and tests/.
perl_warnings() {
    grep -ls '^#!.*perl' tools/* tests/*.t | while read -r file; do
        perl -Itools -Itests -wc "$file" 2>&1 | grep -v 'syntax OK$'
    done
}

# Lists the objects of chapters, common/ and judge/ that are built. device_cuda.c is left out,
# because it defines the functions of device_cpu.c.
built_objects() {
    { chapter_sources; find common judge -mindepth 2 -name '*.c' ! -name device_cuda.c; } |
        sed -n "s|^\(.*\)\.c\$|$1/\1.o|p" |
        while read -r object; do [ ! -e "$object" ] || echo "$object"; done
}

# Finds public functions and data with one name in two files. The linker would take either without a
# message.
namesakes() {
    built_objects "$1" | xargs nm -g --defined-only | awk 'NF == 3 { print $3 }' | sort | uniq -d
}

# Lists the objects of judge/ and of experiments/ that the linker would add to these objects, by
# following undefined symbols.
judge_linked() {
    objects=$1
    shift
    built_objects "$objects" | xargs nm -A -g | awk -v folder="$objects/" -v roots="$*" '
        {
            file = substr($0, length(folder) + 1)
            sub(/:.*/, "", file)
            built[file] = 1
            if ($(NF - 1) == "U") wants[file] = wants[file] " " $NF
            else where[$NF] = file
        }
        END {
            n = split(roots, queue, " ")
            for (i = 1; i <= n; i++) seen[queue[i]] = 1
            for (i = 1; i <= n; i++) {
                if (!built[queue[i]]) print queue[i] ": not built"
                count = split(wants[queue[i]], symbol, " ")
                for (k = 1; k <= count; k++) {
                    object = where[symbol[k]]
                    if (object == "" || seen[object]++) continue
                    if (object ~ /^judge\/|\/experiments\//)
                        print object ": for " symbol[k] " of " queue[i]
                    else queue[++n] = object
                }
            }
        }'
}

# Finds files that call each other in a circle. tsort prints the members of each circle.
circles() {
    built_objects "$1" | xargs nm -A -g | awk -v folder="$1/" '
        {
            file = substr($0, length(folder) + 1)
            sub(/:.*/, "", file)
            if ($(NF - 1) == "U") wants[file] = wants[file] " " $NF
            else where[$NF] = file
        }
        END {
            for (file in wants) {
                count = split(wants[file], symbol, " ")
                for (k = 1; k <= count; k++)
                    if (symbol[k] in where) print file, where[symbol[k]]
            }
        }' | { tsort >/dev/null; } 2>&1
}

backend_names() {
    chapter_sources | xargs -r grep \
        -nE '\b(MPI_[A-Za-z]|cuda[A-Z]|cublas[A-Z]|nccl[A-Z]|cblas_|openblas_|pthread_)|<(mpi|omp|pthread|cblas|nccl|cuda[a-z_]*)\.h>'
}

# Finds names of CUDA and NCCL in common/ outside device_cuda, for_each_cuda and comm_nccl.
gpu_names() {
    find common -name '*.[ch]' | while read -r file; do
        case $file in
            common/device/device_cuda.* | common/comm/comm_nccl.* | common/device/for_each_cuda.*) \
                ;;
            *) grep -nHE \
                '\b(cuda[A-Z]|cublas[A-Z]|nccl[A-Z]|__CUDACC__|CUDA_STANDIN)|<(nccl|cuda[a-z_]*|cublas[a-z_0-9]*)\.h>' "$file" ;;
        esac
    done
}

# Finds includes that are not allowed. common/ may include only common/. judge/ may include common/
# and judge/. A technique may include common/ and techniques of chapters up to its own. An
# experiment may also include judge/, and experiments of chapters up to its own. In chapter 08 the
# programs train*, sample* and plan* may include the same files as an experiment, but trainer.c may
# not.
wrong_includes() {
    # shellcheck disable=SC2016    # awk's $1
    { chapter_sources; find common judge -name '*.[ch]' 2>/dev/null; } | xargs -r awk '
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, part, "\"")
            what = part[2]
            chapter = FILENAME ~ /^[0-9]/
            experiment = FILENAME ~ /\/experiments\//
            program = FILENAME ~ /^08_3d\/(train|sample|plan)(_[a-z]+)?\.[ch]$/
            if (what ~ /^common\//) next
            if (what ~ /^judge\// && (experiment || program || FILENAME ~ /^judge\//)) next
            earlier = chapter && what ~ /^[0-9][0-9]_/ &&
                substr(what, 1, 2) + 0 <= substr(FILENAME, 1, 2) + 0
            if (earlier && what ~ /^[^\/]*\/[^\/]*$/) next
            if (earlier && what ~ /\/experiments\/[^\/]*$/ && (experiment || program)) next
            print FILENAME ":" FNR ": " $0
        }'
}

# In common/ a folder may include only itself and the folders before it in this list.
folders="base device tensor comm model"
wrong_arrows() {
    # shellcheck disable=SC2016    # awk's $1
    find common -mindepth 2 -name '*.[ch]' -exec awk -v folders="$folders" '
        BEGIN { n = split(folders, name, " "); for (i = 1; i <= n; i++) place[name[i]] = i }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, quoted, "\"")
            split(quoted[2], to, "/")
            split(FILENAME, from, "/")
            if (to[1] != "common" || !(to[2] in place) || !(from[2] in place) ||
                place[to[2]] > place[from[2]])
                print FILENAME ":" FNR ": " $0
        }' {} +
}

missing_header_lines() {
    for file in $(lessons); do "$root/tools/lesson-info" tsv "$file" >/dev/null; done
}

# Finds lines of C with more than 100 columns. Lines that programs read, such as a lesson's
# question, may be longer.
long_lines() {
    # shellcheck disable=SC2016    # Perl expands these
    find common judge [0-9][0-9]_* tests -maxdepth 2 -name '*.[ch]' -print0 |
        xargs -0 perl \
        -CSD -ne \
        'chomp; print "$ARGV:$.\n" if length > 100 && !m{^// (question|vary): }; close ARGV if eof'
}

# Finds lines of scripts with more than 100 columns. Data may be longer: a text in quotes or a
# pattern of 60 columns or more, and the texts after <<.
long_script_lines() {
    # shellcheck disable=SC2016    # Perl expands these
    find tools tests -maxdepth 1 -type f ! -name '*.[ch]' ! -name tasks -print0 |
        xargs -0 grep -lE '^#!.*(sh|perl)$|^package |shell=sh' |
        xargs -r perl -CSD -ne 'chomp;
            $long = length > 100 && $end eq "" && !/(["`\x27]).{60,}\1/ &&
                !/(\b(qr|m|s)\W|^\s*!?[\/`|]).{60,}/;
            print "$ARGV:$.\n" if $long;
            if ($end ne "") { $end = "" if /^\s*$end$/ }
            elsif (/<<~?["\x27]?([A-Z]+)\b/) { $end = $1 }
            if (eof) { close ARGV; $end = "" }'
}

# Finds numbered files of more than 220 lines.
techniques() { ls [0-9][0-9]_*/[0-9][0-9]_*.c 2>/dev/null; }
long_techniques() { techniques | xargs -r wc -l |
    awk '$2 != "total" && $1 > 220 { print $2 ": " $1 " lines" }'; }

# Finds heads of numbered files without a line Holds, Sends, Saves or Costs.
headless_techniques() {
    for file in $(techniques); do
        for word in Holds Sends Saves Costs; do
            sed '/^[^\/]/q' "$file" | grep -q "^// $word:" ||
                echo "$file: the head has no line $word:"
        done
    done
}

# Finds pages with wrong headings. A chapter's page has all headings, in order, and at most 1,900
# words. Another page may leave headings out, and has the name of its lesson, NN_name.c, or of a
# file of experiments/ that several lessons share. reference*.md has no such rules.
wrong_pages() {
    for folder in [0-9][0-9]_*/; do
        [ -d "$folder" ] || continue
        [ -f "${folder}README.md" ] || { echo "${folder}README.md: missing"; continue; }
        words=$(wc -w <"${folder}README.md")
        [ "$words" -le 1900 ] || echo "${folder}README.md: $words words"
    done
    for page in [0-9][0-9]_*/*.md; do
        case ${page##*/} in reference*.md) continue ;; esac
        [ -f "$page" ] || continue
        all=1
        if [ "${page##*/}" != README.md ]; then
            all=0
            shared=${page%/*}/experiments/${page##*/}
            [ -f "${page%.md}.c" ] || [ -f "${shared%.md}.c" ] ||
                echo "$page: no lesson has this name"
        fi
        awk -v page="$page" -v all="$all" '
            BEGIN {
                n = split("The question|The picture|On a 2×2 example|The code|Run it|What it costs|Use it when, until|" \
                          "Exercises|Further reading", want, "|")
                next_one = 1
            }
            /^```/ { fence = !fence }
            !fence && /^## / {
                text = substr($0, 4)
                while (!all && next_one <= n && index(text, want[next_one]) != 1) next_one++
                if (next_one <= n && index(text, want[next_one]) == 1) next_one++
                else print page ":" FNR ": heading \"" text "\" where " \
                    (next_one > n ? "none" : "\"" want[next_one] "\"") " belongs"
            }
            END { if (all && next_one <= n)
                print page ": no heading \"" want[next_one] "\" in its place" }' "$page"
    done
}

# Finds functions that a page names in backquotes but that this tree does not have. The names of
# other libraries begin differently.
unknown_functions() {
    # shellcheck disable=SC2016    # backquotes of Markdown
    names='`(comm|op|tensor|layer|model|param|pipeline|trainer|mesh|check|clock|side)_[a-z0-9_]+`'
    cat [0-9][0-9]_*/*.[ch] [0-9][0-9]_*/experiments/*.[ch] common/*/*.[ch] common/*.[ch] \
        judge/*.[ch] judge/*/*.[ch] tests/*.[ch] 2>/dev/null |
        grep -oE '[a-z][a-z0-9_]+' | sort -u >"$tap_dir/known"
    grep -oHnE "$names" README.md common/*.md [0-9][0-9]_*/*.md docs/*.md 2>/dev/null |
        tr -d '`' | awk -F: -v known="$tap_dir/known" '
            BEGIN { while ((getline name <known) > 0) has[name] = 1 }
            !($3 in has) { print $1 ":" $2 ": " $3 " is no function of this tree" }'
}

# A chapter's page must have a row for every marked exercise: | 01.02a: its title | `file` | minutes
# | points |. common/llama.md has the rows of week 0.
unlisted_exercises() {
    for file in $(chapter_sources); do
        sed -nE 's%^ *// EXERCISE ([0-9.]+[a-z]|[0-9]+\.[a-z]+-[a-z]) \(([0-9]+) points?\).*%\1 \2%p' "$file" |
            while read -r id points; do
            grep -qsE "^\| $id: [^|]*\| .${file##*/}. \| [0-9]+ \| $points \|$" \
                "${file%/*}/README.md" ||
                echo "$file: no row of ${file%/*}/README.md has exercise $id, its file and" \
                    "$points points"
        done
    done
    sed -nE 's%^ *// EXERCISE (00\.[a-z]+-[a-z]) \(([0-9]+) points?\).*%\1 \2%p' common/*/*.c |
        while read -r id points; do
        grep -qsE "^\| $id: [^|]*\| .[a-z]+\.c. \| [0-9]+ \| $points \|$" common/llama.md ||
            echo "common: no row of common/llama.md has exercise $id and its $points points"
    done
}

unlisted_lessons() {
    tools/list >"$tap_dir/list"
    for file in $(lessons); do
        key=$(tools/lesson-info tsv "$file" | cut -f 1)
        grep -q "^$key " "$tap_dir/list" || echo "$file: make list has no $key"
    done
}

# ---- a tree that breaks every rule ----
bad=$tap_dir/bad
mkdir -p "$bad/common/tensor" "$bad/02_two" "$bad/03_three" "$bad/o/02_two" "$bad/o/03_three"
cat >"$bad/02_two/01_by_hand.c" <<'END'
// ranks: many
// level: core
#include "03_three/three.h"
#include <mpi.h>
#ifdef FAST
#endif
int common_symbol;
static int static_zero;
static double static_one[2] = {1, 2};
static _Thread_local int thread_own;
static const int fine = 3;
int *use(void);
int *use(void) { static_one[0] += thread_own++; static_zero += fine; return &static_zero; }
END
cat >"$bad/03_three/three.h" <<'END'
#ifndef THREE_H
#define THREE_H
#include "common/comm/comm.h"
#include "02_two/two.h"
#if 1
#endif
#endif
END
cat >"$bad/03_three/three.c" <<'END'
#include "judge/frame/lesson.h"
#include "02_two/experiments/two.h"
static const char *const names[] = {"read", "only"};
const char *name(int i);
const char *name(int i) { return names[i]; }
END
mkdir -p "$bad/o/common/base"
cat >"$bad/common/util.c" <<'END'
typedef struct Node { void *next; } Node;
static Node *list;
int usage_wait;
static _Thread_local int thread_own;
void put(Node *n);
void put(Node *n) {
    static Node *kept;
    Node **last = (Node **)&n->next;
    *last = thread_own++ ? kept : list;
    list = kept = n;
}
END
printf 'int name(void);\nint name(void) { return 0; }\n' >"$bad/03_three/two.c"
mkdir -p "$bad/04_four" "$bad/judge/frame" "$bad/o/04_four" "$bad/o/judge/frame"
printf 'int shown(void);\nint shared(void);\nint shared(void) { return shown(); }\n' \
    >"$bad/04_four/shared.c"
printf 'int shared(void);\nint step(void);\nint step(void) { return shared(); }\n' \
    >"$bad/04_four/step.c"
printf 'int alone(void);\nint alone(void) { return 1; }\nint used(void);\nint used(void) { return alone(); }\n' >"$bad/04_four/alone.c"
printf 'int back(void);\nint there(void) { return back(); }\n' >"$bad/04_four/there.c"
printf 'int there(void);\nint back(void) { return there(); }\n' >"$bad/04_four/back.c"
printf 'int shown(void);\nint shown(void) { return 2; }\n' >"$bad/judge/frame/shown.c"
printf '#include "02_two/two.h"\n#include <cuda_runtime.h>\n' >"$bad/common/thing.c"
printf '#include "common/base/util.h"\n#include "common/comm/comm.h"\n#include "ops.h"\n' \
    >"$bad/common/tensor/ops.c"
mkdir "$bad/tools"
printf '#!/usr/bin/perl\nuse warnings;\nprint qw(1,2);\n' >"$bad/tools/warns"
printf '#!/usr/bin/perl\nuse warnings;\nprint 1, 2;\n' >"$bad/tools/fine"
{ yes '// a long lesson' | head -n 300; printf '//%0119d\n' 0; } >"$bad/03_three/02_long.c"
printf '//%098d\n//%099d\n' 0 0 >"$bad/common/long.h"
mkdir "$bad/tests"
printf '#!/bin/sh\n# %098d\n# %099d\necho "%0100d"\ncat <<END\n%0101d\nEND\n# %0101d\n' 0 0 0 0 0 \
    >"$bad/tests/long.t"
printf '// EXERCISE 02.01%s (3 points): a task\n' a b c >>"$bad/02_two/01_by_hand.c"
printf '## The question\n## On a 2×2 example\n## The picture\n' >"$bad/02_two/README.md"
yes word | head -n 1900 >>"$bad/02_two/README.md"
cat >>"$bad/02_two/README.md" <<'END'
| 02.01a: a task | `01_by_hand.c` | 10 | 3 |
| 02.01b: a task | `01_by_hand.c` | 10 | 4 |
END
# shellcheck disable=SC2016    # backquotes of Markdown
printf 'Call `comm_here`, then `comm_gone`.\n' >"$bad/03_three/reference.md"
printf 'void comm_here(void);\n' >"$bad/common/named.h"
printf '## The question\n## Exercises\n## The picture\n' >"$bad/02_two/01_by_hand.md"
printf '## The question\n## The picture\n## Exercises\n' >"$bad/02_two/03_gone.md"
printf '## The question\n' >"$bad/03_three/shared.md"
mkdir "$bad/03_three/experiments"
: >"$bad/03_three/experiments/shared.c"
printf '#include "judge/frame/lesson.h"\n#include "02_two/experiments/two.h"\n' \
    >"$bad/03_three/experiments/02_long.c"
{ sed /include/d "$bad/03_three/three.c" |
    ${OMPI_CC:-gcc} -fcommon -fPIC -x c -c -o "$bad/o/03_three/three.o" - &&
    mkdir "$bad/o/03_three/experiments" &&
    for file in 02_long experiments/02_long experiments/shared; do ${OMPI_CC:-gcc} -x c \
    -c -o "$bad/o/03_three/$file.o" /dev/null || exit 3; done &&
    ${OMPI_CC:-gcc} -c -o "$bad/o/03_three/two.o" "$bad/03_three/two.c" &&
    for file in 04_four/shared 04_four/step 04_four/alone 04_four/there 04_four/back \
        judge/frame/shown; do ${OMPI_CC:-gcc} \
    -c -o "$bad/o/$file.o" "$bad/$file.c" || exit 3; done &&
    ${OMPI_CC:-gcc} -c -o "$bad/o/common/base/util.o" "$bad/common/util.c" &&
    sed '/include/d' "$bad/02_two/01_by_hand.c" |
    ${OMPI_CC:-gcc} -fcommon -x c -c -o "$bad/o/02_two/01_by_hand.o" -; } || exit 3
cd "$bad" || exit 3
has "the check of #if finds an #if in a source and in a header" "01_by_hand.c:5 three.h:5" \
    conditional_compilation
clean "the check of #if lets the guard of a header pass" among three.h:1: conditional_compilation
has "the check of globals finds all four kinds" "static_zero static_one thread_own common_symbol" \
    writable_globals o
clean "the check of globals lets constants pass" among "fine\|three" writable_globals o
has "the check of common's globals finds a list, and a global of a function" \
    "util.o:.list util.o:.kept" shared_globals o
clean "the check of common's globals lets listed globals and a thread's own pass" \
    among "usage_wait\|thread_own" shared_globals o
has "the check of addresses finds an address that is cast" "common/util.c:8" cast_addresses
has "the check of namesakes finds a function of two files" "^name$" namesakes o
clean "the check of namesakes lets other functions pass" among "^use$" namesakes o
has "the check of links finds the judge behind another object" \
    "^judge/frame/shown.o:.*04_four/shared.o" judge_linked o 04_four/step.o
clean "the check of links lets an object without the judge pass" judge_linked o 04_four/alone.o
has "the check of circles finds two files that call each other" "04_four/there.o 04_four/back.o" \
    circles o
clean "the check of circles lets a chain of files pass" among "shown" circles o
has "the check of backend names finds mpi.h" "01_by_hand.c:4" \
    backend_names
has "the check of CUDA's names finds a file of common/ that should not know CUDA" \
    "common/thing.c:2" \
    gpu_names
has "the check of includes finds a later chapter, and a chapter in common/" \
    "01_by_hand.c:3 common/thing.c:1" \
    wrong_includes
has "the check of includes finds judge and experiment in a technique" "three.c:1 three.c:2" \
    wrong_includes
clean "the check of includes lets an experiment include both" \
    among "experiments/02_long.c" wrong_includes
clean "the check of includes lets an earlier chapter pass" among "three.h:" wrong_includes
has "the check of arrows finds a folder above, and a name without its folder" "ops.c:2 ops.c:3" \
    wrong_arrows
clean "the check of arrows lets a folder below pass" among "ops.c:1" wrong_arrows
has "the check of header lines finds missing and malformed lines" \
    "02_long.c.*ranks 02_long.c.*level 01_by_hand.c.*question 01_by_hand.c.*many" \
    missing_header_lines
has "the check of length finds 301 lines" "02_long.c" \
    long_techniques
has "the check of heads finds a head that says nothing" "02_long.c.*Holds 02_long.c.*Costs" \
    headless_techniques
has "the check of lines finds lines of 121 and of 101 columns" "02_long.c:301 common/long.h:2" \
    long_lines
clean "the check of lines lets 100 columns pass" among "long.h:1" long_lines
has "the check of scripts finds 101 columns, and a long line after a text" \
    "tests/long.t:3 tests/long.t:8" long_script_lines
clean "the check of scripts lets 100 columns, and texts in quotes and after << pass" \
    among "long.t:[24-7]" long_script_lines
has "the check of pages finds a missing page and headings in the wrong order" \
    "03_three/README.md 02_two/README.md:2 02_two/README.md:.*words" \
    wrong_pages
has "the check of pages finds a page without a lesson, and wrong headings of a lesson" \
    "02_two/01_by_hand.md:3 02_two/03_gone.md:.no.lesson" \
    wrong_pages
clean "the check of pages lets the page of a lesson leave headings out" \
    among "03_gone.md:[0-9]" wrong_pages
clean "the check of pages lets a page have the name of a shared header" \
    among "shared.md" wrong_pages
has "the check of names finds a function that does not exist" "reference.md:1:.comm_gone" \
    unknown_functions
clean "the check of names lets a function of a header pass" among "comm_here" unknown_functions
has "the check of exercises finds a missing row and other points" \
    "exercise.02.01b exercise.02.01c" unlisted_exercises
clean "the check of exercises lets a listed exercise pass" among "02.01a" unlisted_exercises
has "the check of Perl files finds a warning" "separate.words.with.commas.at.tools/warns.line.3" \
    perl_warnings
clean "the check of Perl files lets a file without a warning pass" among "fine" perl_warnings
cd "$root" || exit 3

# ---- this tree ----
clean "no chapter has conditional compilation" conditional_compilation
for precision in fp32 ${TEST_ALL:+fp64}; do
    objects=build/cpu-$precision
    clean "no chapter has a writable global, $objects" writable_globals "$objects"
    clean "common/ and judge/ have only the globals listed here, $objects" shared_globals \
        "$objects"
    clean "no two files have a public function or datum of one name, $objects" namesakes "$objects"
    clean "no files call each other in a circle, $objects" circles "$objects"
    # shellcheck disable=SC2046    # a list of objects
    clean "the trainer and its modules link no judge and no experiment, $objects" judge_linked \
        "$objects" \
        $(printf '%s\n' 08_3d/*.c | grep -vE '/(train|sample|plan)(_[a-z]+)?\.c$' | sed 's/c$/o/')
    clean "the two linear layers link no judge and no experiment, $objects" \
        judge_linked "$objects" 03_tensor_parallel/02_linear.o
done
clean "no address of a pointer is cast" cast_addresses
clean "no chapter names a backend" backend_names
clean "in common/, only the device, the transports and the launch header know CUDA and NCCL" \
    gpu_names
clean "a technique includes common/ and techniques up to its chapter, an experiment the judge, \
too, and common/ no chapter" wrong_includes
clean "in common/ every arrow points to an earlier folder: $folders" wrong_arrows
clean "every lesson has its ranks, level and question" missing_header_lines
clean "make list has every lesson" unlisted_lessons
clean "the pages list every marked exercise with its file and points" unlisted_exercises
clean "no technique is longer than 220 lines" long_techniques
clean "the head of every technique says what it holds, sends, saves and costs" headless_techniques
clean "no line of C is wider than 100 columns" long_lines
clean "no line of a script is wider than 100 columns, except data" long_script_lines
clean "Perl compiles its files without a warning" perl_warnings
clean "texts name only functions that exist" unknown_functions
clean "every chapter has its page, and pages have their headings in order" wrong_pages
if command -v shellcheck >/dev/null; then
    clean "shellcheck finds nothing in the scripts" tools/lint scripts
else
    skip "shellcheck finds nothing in the scripts" "shellcheck is not installed"
fi
tap_end
