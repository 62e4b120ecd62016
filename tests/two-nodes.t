#!/bin/sh
# Tests two hosts on one machine: two network and UTS namespaces, each with an address and a name,
# and a cable (veth) between them. mpirun enters the second namespace by a script in place of ssh.
# docs/cluster.md shows these commands.
cd "$(dirname "$0")/.." || exit 3
if [ "$1" != inside ]; then
    skip_all() { echo "1..0 # SKIP $1"; exit 0; }
    [ -x "${BUILD:-build/cpu-fp32}/08_3d/train" ] || skip_all "the trainer is not built"
    for tool in mpirun unshare nsenter ip; do command -v $tool >/dev/null ||
        skip_all "no $tool"; done
    unshare -n -u sh -c 'ip link set lo up && hostname a && ip link add v type veth peer name w' \
        2>/dev/null ||
        skip_all "network and UTS namespaces with a cable are not allowed here"
    exec unshare -n -u sh tests/two-nodes.t inside
fi
. tests/tap.sh
train=$PWD/${BUILD:-build/cpu-fp32}/08_3d/train
out=$tap_dir/out

hostname node-a
ip link set lo up
# shellcheck disable=SC2016    # the inner shell expands it
unshare -n -u sh -c 'hostname node-b; ip link set lo up; echo $$ >"$0"; exec sleep 3600' \
    "$tap_dir/pid" &
while [ ! -s "$tap_dir/pid" ]; do sleep 0.05; done
b=$(cat "$tap_dir/pid")
trap 'kill "$b"; rm -rf "$tap_dir"' EXIT
in_b() { nsenter -t "$b" -n -u "$@"; }
ip link add cable-a type veth peer name cable-b
ip link set cable-b netns "$b"
ip addr add 10.77.0.1/24 dev cable-a
ip link set cable-a up
in_b ip addr add 10.77.0.2/24 dev cable-b
in_b ip link set cable-b up

# mpirun passes a host's name and a command to this script.
printf '#!/bin/sh\nshift\nexec nsenter -t %s -n -u sh -c "$*"\n' "$b" >"$tap_dir/enter"
chmod +x "$tap_dir/enter"
printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >"$tap_dir/hosts"
export OMPI_MCA_plm_rsh_agent="$tap_dir/enter" OMPI_MCA_btl=tcp,vader,self \
    OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 \
    OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
root=
[ "$(id -u)" != 0 ] || root=--allow-run-as-root
export MPIRUN="mpirun --bind-to none $root --hostfile $tap_dir/hosts"

head -c 10000 build/text.txt >"$tap_dir/text"
model="--layers 2 --width 16 --heads 2 --context 8 --batch 4 --micro-batch 2"
model="$model --eval-every 0 --reduce ordered --data $tap_dir/text"
losses() { grep -o '"loss":[^,]*' "$1"; }

mpirun --bind-to none $root --hostfile "$tap_dir/hosts" -n 4 hostname >"$out" 2>&1
{ [ "$(grep -c '^node-a$' "$out")" = 2 ] && [ "$(grep -c '^node-b$' "$out")" = 2 ]; }
ok $? "two of four processes are on each host" "$out"

# shellcheck disable=SC2086    # one word per option
{
    tools/launch -e 4 "$train" $model --steps 8 --log "$tap_dir/one" >"$out" 2>&1
    ok $? "four virtual ranks" "$out"
    for layout in "--dp 4 --tp 1 --pp 1" "--dp 1 --tp 2 --pp 2"; do
        tools/launch -e 4 "$train" $model --steps 8 $layout --log "$tap_dir/one" >"$out" 2>&1
        tools/launch 4 "$train" $model --steps 8 $layout --timeout $tap_hang --log "$tap_dir/two" \
            >"$out" 2>&1
        ok $? "two hosts, $layout" "$out"
        losses "$tap_dir/one" >"$tap_dir/one.losses"
        losses "$tap_dir/two" >"$tap_dir/two.losses"
        { [ "$(wc -l <"$tap_dir/two.losses")" -ge 8 ] &&
            cmp -s "$tap_dir/one.losses" "$tap_dir/two.losses"; }
        ok $? "two hosts, $layout: every digit of the losses" "$tap_dir/two.losses"
    done

    # until_training: waits until the log has lines, so the ranks are training.
    until_training() { until [ -s "$tap_dir/log" ] ||
        ! kill -0 "$1" 2>/dev/null; do sleep 0.1; done; }
    tools/launch 4 "$train" $model --steps 100000000 --timeout $tap_hang --log "$tap_dir/log" \
        >"$out" 2>&1 &
    until_training $!
    ranks_in_b() {
        for stat in /proc/[0-9]*; do
            [ "$(readlink "$stat/ns/net")" = "$(readlink "/proc/$b/ns/net")" ] &&
                [ "$(cat "$stat/comm")" = train ] &&
                echo "${stat#/proc/}"
        done 2>/dev/null
    }
    ranks_in_b | xargs kill -9
    wait $!
    status=$?
    { [ $status -eq 3 ] && grep -q 'rank [23] .*signal 9' "$out"; }
    ok $? "the ranks of a host are killed: status 3, a killed rank is named (status $status)" \
        "$out"

    # The cable is pulled. No process ends, but no message arrives. mpirun notices this after 2 s of
    # silence and three probes.
    rm -f "$tap_dir/log"
    export OMPI_MCA_oob_tcp_keepalive_time=2 OMPI_MCA_oob_tcp_keepalive_intvl=1 \
        OMPI_MCA_oob_tcp_keepalive_probes=3
    LAUNCH_LIMIT=$tap_hang tools/launch 4 "$train" $model --steps 100000000 --timeout $tap_hang \
        --log "$tap_dir/log" >"$out" 2>&1 &
    until_training $!
    ip link set cable-a down
    wait $!
    status=$?
    { [ $status -eq 3 ] && grep -q 'lost communication with a remote daemon' "$out" &&
        grep -q 'on node 10.77.0.2$' "$out"; }
    ok $? "the cable is pulled: status 3, and the other host is named (status $status)" "$out"
    waited=0
    until [ -z "$(ranks_in_b)" ] || [ $waited -ge $tap_hang ]; do
        sleep 1
        waited=$((waited + 1))
    done
    [ -z "$(ranks_in_b)" ]
    ok $? "the cable is pulled: the ranks of the other host end, too"
}
tap_end
