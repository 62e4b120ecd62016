#!/bin/sh
# The lessons train a GPT-2. Here they train a Llama. In a copy of the tree the sizes of an
# experiment's model get the fields of the family. The program must pass every comparison with the
# unsplit model and every cost. TEST_ALL=1: every lesson that trains a model. The test leaves out
# the grids, which refuse the family (03.09 to 03.12), and the closed forms of a GPT-2 block
# (01.04, 03.06, 03.07, 07.03). tests/llama.t has these techniques in the trainer.
# slow: programs are compiled
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
built=build/cpu-fp64
[ -x $built/06_zero/04_zero3 ] || { echo "1..0 # SKIP $built is not built"; exit 0; }

some="01_data_parallel/02_all_reduce 03_tensor_parallel/08_ring_attention 04_pipeline_naive/03_gpipe
    05_pipeline_1f1b/05_pipedream_2bw 06_zero/04_zero3 07_recompute/04_budget"
all="01_data_parallel/02_all_reduce 01_data_parallel/05_parameter_server
    01_data_parallel/06_compression 01_data_parallel/07_balance 01_data_parallel/08_power_sgd
    01_data_parallel/10_local_sgd 02_grad_accumulation/02_accumulate 02_grad_accumulation/03_no_sync
    03_tensor_parallel/08_ring_attention 04_pipeline_naive/02_naive 04_pipeline_naive/03_gpipe
    04_pipeline_naive/04_partition 05_pipeline_1f1b/02_1f1b 05_pipeline_1f1b/03_interleaved
    05_pipeline_1f1b/04_pipedream 05_pipeline_1f1b/05_pipedream_2bw 05_pipeline_1f1b/06_zero_bubble
    05_pipeline_1f1b/07_compare 06_zero/02_zero1 06_zero/03_zero2 06_zero/04_zero3
    06_zero/05_prefetch 07_recompute/02_full 07_recompute/04_budget"
lessons=$some
[ -z "$TEST_ALL" ] || lessons=$all

family=".norm = NORM_RMS, .positions = POSITIONS_ROTARY,"
family="$family .activation = ACTIVATION_SWIGLU, .biases = BIASES_NONE, .ffn = 20"
tree=$tap_dir/tree
tools/scratch-tree "$tree" $built || exit 3
programs=
for lesson in $lessons; do
    more=
    # Grouped heads, where the technique cuts attention.
    [ "$lesson" != 03_tensor_parallel/08_ring_attention ] || more=", .kv_heads = 3"
    # Rotary positions turn pairs of columns, so a head has an even number of them.
    sed -i -e "s/^\(static const ModelConfig [a-z]* = {\)/\1 $family$more, /" -e \
        's/\.width = 15, \.heads = 3/.width = 18, .heads = 3/' \
        -e 's/\.width = 27, \.heads = 9/.width = 36, .heads = 9/' \
        "$tree/${lesson%/*}/experiments/${lesson#*/}.c"
    programs="$programs $built/$lesson"
done
(cd "$tree" && env -u MAKEFLAGS -u MAKELEVEL make PRECISION=fp64 ONLY="$programs" programs) \
    >"$tap_dir/make" 2>&1
ok $? "the lessons build with Llama's sizes" "$tap_dir/make"
for lesson in $lessons; do
    grep -q 'NORM_RMS' "$tree/${lesson%/*}/experiments/${lesson#*/}.c"
    ok $? "$lesson has a Llama"
    ranks=0
    # Ulysses needs a head of key and value per rank
    [ "$lesson" != 03_tensor_parallel/08_ring_attention ] || ranks=3
    tools/launch -e $ranks "$tree/$built/$lesson" >"$tap_dir/page" 2>&1 &&
        grep -q '^\[.*\] PASS' "$tap_dir/page"
    ok $? "$lesson trains it: every comparison, every cost" "$tap_dir/page"
done
tap_end
