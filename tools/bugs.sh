# shellcheck shell=sh disable=SC2034,SC2119,SC2120,SC2154    # scripts source this file
# try-bug and break source this file in the root of the tree. Its functions read a patch of bugs/
# and apply the patch to a scratch copy of the tree. The head of tools/try-bug describes the format
# of a patch.

# bug_read PATCH: sets patch, diff (the patch's full path), lesson, test, precision, kind,
# sanitizers and build, and reads the header for bug_field(). SANITIZE in the environment selects
# sanitizers, as for make. Three kinds of bugs are built without sanitizers:
#   - bugs with a test, because tests run the plain build
#   - bugs on the stand-ins for CUDA
#   - bugs whose header says "sanitizers: no"
bug_read() {
    patch=$1
    case $patch in
        /*) diff=$patch ;;
        *) diff=$PWD/$patch ;;
    esac
    bug_header="
$(sed '/^$/q' "$diff" 2>/dev/null)"
    lesson=$(bug_field lesson)
    test=$(bug_field test)
    precision=$(bug_field precision)
    kind=$(bug_field backend)
    sanitizers=$SANITIZE
    [ -z "$test$kind" ] && [ "$(bug_field sanitizers)" != no ] || sanitizers=
    build=build/${kind:-cpu}-${precision:-fp32}
    case $sanitizers in
        '') ;;
        thread) build=$build-tsan ;;
        *) build=$build-asan ;;
    esac
}
# bug_field NAME: prints this field of the header. The shell itself finds the field, because to
# start a program for each of thousands of fields would take long.
bug_field() {
    field=${bug_header#*"
$1:"}
    [ "$field" != "$bug_header" ] || return 0
    field=${field%%"
"*}
    printf '%s\n' "${field#"${field%%[! ]*}"}"
}

# Applies the patch. Neighbouring lines may have changed a little since the patch was made.
bug_apply() { git apply "$@" "$diff" 2>/dev/null || git apply -C1 "$@" "$diff" 2>/dev/null; }

# Applies the bug in a scratch copy and builds the lesson there. Returns 1 if the patch does not
# apply, and 2 if the tree does not build.
bug_put_in() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/unsplit-bug.XXXXXX") || exit 3
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 3' INT TERM
    tools/scratch-tree -l "$scratch" "$build" || exit 3
    export GIT_CEILING_DIRECTORIES="${scratch%/*}"
    cd "$scratch" || exit 3
    bug_apply || return 1
    only=$build/$lesson
    for program in $(bug_field needs); do only="$only $build/$program"; done
    make --no-print-directory BACKEND="$([ -n "$kind" ] && echo cuda || echo cpu)" \
        STANDIN="${kind:+yes}" SANITIZE="$sanitizers" PRECISION="${precision:-fp32}" \
        WERROR= ONLY="$only" programs ${test:+preloads} >make.log 2>&1 || {
        tail -n 20 make.log >&2
        return 2
    }
}

# Runs the bug's test, if the header names a test. Otherwise runs the lesson as the header says.
# $1: another number of ranks for the lesson.
bug_run() {
    if [ -n "$test" ]; then
        "$test"
        return
    fi
    # shellcheck disable=SC2046    # one word per argument
    env $(bug_field env) tools/launch $([ -n "$(bug_field processes)" ] || printf %s -e) \
        "${1:-$(bug_field processes | grep . || bug_field ranks | grep . || echo 0)}" \
        "$build/$lesson" $(bug_field args)
}
