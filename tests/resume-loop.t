#!/bin/sh
# Runs the scripts of docs/cluster.md with a small model. The loop resumes until the training is
# done, with rounds of at most two seconds. The Slurm job requeues itself, with stand-ins for srun
# and scontrol.
# slow: rounds end by time, and one run of 2,000 steps is the reference
# shellcheck disable=SC2016,SC2086    # other shells expand $ in quotes; one word per option
cd "$(dirname "$0")/.." || exit 3
. tests/tap.sh
root=$PWD
train=$PWD/${BUILD:-build/cpu-fp32}/08_3d/train
[ -x "$train" ] || { echo "1..0 # SKIP the trainer is not built"; exit 0; }
out=$tap_dir/out
head -c 10000 build/text.txt >"$tap_dir/text"
model="--layers 2 --width 16 --heads 4 --context 8 --batch 4 --micro-batch 2"
model="$model --eval-every 0 --reduce ordered --data $tap_dir/text"
losses() { grep -h '^{"step"' "$@" | grep -o '"step":[0-9]*\|"loss":[^,]*'; }

# Prints the script of docs/cluster.md in which these words occur.
script() {
    awk -v words="$1" \
        '/^```sh/ { inside = 1; text = ""; next }
        /^```/ { if (inside && index(text, words)) printf "%s", text
            inside = 0 }
        inside { text = text $0 "\n" }' docs/cluster.md
}
# Adapts the page's script to a small model: the same program, with additional options, on virtual
# ranks.
mkdir "$tap_dir/bin" "$tap_dir/loop" "$tap_dir/job"
cat >"$tap_dir/launch" <<END
#!/bin/sh
ranks=\$1
shift 2
case " \$* " in
    *" --resume "*) set -- "\$@" --micro-batch 2 --eval-every 0 --reduce ordered ;;
    *) set -- "\$@" $model --steps \$STEPS ;;
esac
echo round >>rounds
exec "$root/tools/launch" -e "\$ranks" "$train" "\$@" --log "log.\$(wc -l <rounds)"
END
chmod +x "$tap_dir/launch"

# ---- the loop ----
script 'while [ $status -eq 4 ]' >"$tap_dir/loop.sh"
grep -q -- '--exit-after 55' "$tap_dir/loop.sh"
ok $? "the page has a loop" "$tap_dir/loop.sh"
# A machine that trains all steps in the first round gets shorter rounds.
for minutes in 0.03 0.01 0.003 0.001; do
    rm -rf "$tap_dir/loop"
    mkdir "$tap_dir/loop"
    sed "s|tools/launch|$tap_dir/launch|; s|--exit-after 55|--exit-after $minutes|" \
        "$tap_dir/loop.sh" >"$tap_dir/quick.sh"
    (cd "$tap_dir/loop" && STEPS=2000 sh "$tap_dir/quick.sh") >"$out" 2>&1
    status=$?
    rounds=$(wc -l <"$tap_dir/loop/rounds")
    if [ "$status" -ne 0 ] || [ "$rounds" -gt 1 ]; then break; fi
done
[ "$status" -eq 0 ]
ok $? "the loop ends with status 0" "$out"
{ [ "$rounds" -gt 1 ] && [ "$(grep -c '^stopped: saved after' "$out")" -eq $((rounds - 1)) ]; }
ok $? "the loop takes several rounds ($rounds), and each round says what it saved" "$out"
tools/launch -e 4 "$train" --dp 2 --tp 2 --pp 1 $model --steps 2000 --log "$tap_dir/whole" >"$out" \
    2>&1
losses "$tap_dir/whole" >"$tap_dir/want"
i=0
while [ $i -lt "$rounds" ]; do i=$((i + 1)); losses "$tap_dir/loop/log.$i"; done >"$tap_dir/got"
{ [ "$(wc -l <"$tap_dir/got")" -ge 4000 ] && cmp -s "$tap_dir/want" "$tap_dir/got"; }
ok $? "the losses of the rounds are those of one run, every digit" "$tap_dir/got"

# ---- the Slurm job: its time is over when the second checkpoint exists ----
script 'scontrol requeue' >"$tap_dir/job.sh"
grep -q '^#SBATCH --signal=USR1@120$' "$tap_dir/job.sh"
ok $? "the page has a job that Slurm warns" "$tap_dir/job.sh"
cat >"$tap_dir/bin/srun" <<END
#!/bin/sh
[ "\$1" = --mpi=pmix ] || exit 9
shift 1
"$tap_dir/launch" 8 "\$@" --save-every 20 &
before=\$(ls -d checkpoints/step-*[0-9] 2>/dev/null | wc -l)
if [ \$before -lt 5 ]; then
    while [ \$(ls -d checkpoints/step-*[0-9] 2>/dev/null | wc -l) -lt \$((before + 2)) ] &&
        kill -0 \$!; do sleep 0.05; done
    kill -s USR1 \$!
fi
wait \$!
END
printf '#!/bin/sh\n[ "$*" = "requeue 77" ] && echo again >>requeued\n' >"$tap_dir/bin/scontrol"
chmod +x "$tap_dir/bin/srun" "$tap_dir/bin/scontrol"
sed 's|--save-every 100||' "$tap_dir/job.sh" >"$tap_dir/short.sh"
submit() { (cd "$tap_dir/job" && PATH="$tap_dir/bin:$PATH" SLURM_JOB_ID=77 STEPS=400 sh \
    "$tap_dir/short.sh"); }
starts=0
queued=yes
while [ -n "$queued" ] && [ $starts -lt 20 ]; do
    rm -f "$tap_dir/job/requeued"
    submit
    starts=$((starts + 1))
    queued=
    [ ! -e "$tap_dir/job/requeued" ] || queued=yes
done >"$out" 2>&1
{ [ $starts -gt 1 ] && [ -d "$tap_dir/job/checkpoints/step-000400" ] &&
    [ "$(grep -c '^stopped: saved after' "$out")" -eq $((starts - 1)) ]; }
ok $? "the job is started again until the training is done ($starts starts)" "$out"
tap_end
