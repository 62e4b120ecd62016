#!/bin/sh
# Every lesson, as it is run: emulated and as MPI processes with the same bits, in both precisions, with one rank and with a number
# of ranks that divides little. With TEST_ALL=1: all rank counts up to 8, fp64 as processes too, and the sanitizers' builds.
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
tools/lessons >"$tap_dir/lessons" || exit 3

# runs WANTED-STATUSES WHAT HOW BUILD RANKS: HOW is emu or mpi; $page and $digest are left behind.
runs() {
    if [ "$3" = emu ]; then how=-e; else how=; fi
    # shellcheck disable=SC2086    # $how may be nothing, $options several words
    tools/launch $how "$5" "$4/$program" $options >"$tap_dir/page" 2>&1
    status=$?
    digest=$(tail -n 1 "$tap_dir/page" | sed -n 's/.*PASS.* digest \([0-9a-f]*\).*/\1/p')
    case " $1 " in *" $status "*) verdict=0 ;; *) verdict=1 ;; esac
    if [ $status -eq 0 ] && [ -z "$digest" ]; then verdict=1; fi
    echo "(ended with status $status)" >>"$tap_dir/page"
    ok $verdict "$id $name: $2" "$tap_dir/page"
}

same_bits() {
    echo "emulated $1, processes $2" >"$tap_dir/bits"
    [ "$1" = "$2" ]
    ok $? "$id $name: $3" "$tap_dir/bits"
}

while IFS='	' read -r key id name ranks _ _ source; do
    program=${source%.c}
    options=
    [ "$key" != 08-train ] || options="--check --steps 3 --reduce ordered"
    runs 0 "$ranks virtual ranks, fp32" emu build/cpu-fp32 "$ranks"
    emulated=$digest
    runs 0 "$ranks processes, fp32" mpi build/cpu-fp32 "$ranks"
    same_bits "$emulated" "$digest" "virtual ranks and processes compute the same bits, fp32"
    runs 0 "$ranks virtual ranks, fp64" emu build/cpu-fp64 "$ranks"
    emulated=$digest
    [ "$ranks" -eq 1 ] || runs 0 "1 rank" emu build/cpu-fp32 1
    runs "0 2" "3 ranks work, or are refused" emu build/cpu-fp32 3
    [ -n "$TEST_ALL" ] || continue
    runs 0 "$ranks processes, fp64" mpi build/cpu-fp64 "$ranks"
    same_bits "$emulated" "$digest" "virtual ranks and processes compute the same bits, fp64"
    for n in 2 4 5 6 7 8; do
        for build in build/cpu-fp32 build/cpu-fp64; do
            [ "$n" -eq "$ranks" ] || runs "0 2" "$n ranks work, or are refused, $build" emu $build "$n"
        done
    done
    for build in build/cpu-fp32-asan build/cpu-fp32-tsan; do
        runs 0 "$build" emu $build "$ranks"
    done
done <"$tap_dir/lessons"
tap_end
