#!/usr/bin/perl
# Tests the folder of --save. Only one run at a time may save there, so a second run in the same
# folder must be refused. Files that the program did not write must stay. A resumed run must report
# which options and data differ. A checkpoint with a changed byte must be refused. TEST_ALL=1 takes
# more pairs of runs in one folder, and more mutated checkpoints.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use File::Path qw(remove_tree make_path);
use Jobs;
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
my $seed = $ENV{SEED} || time % 100000;
diag("SEED=$seed");
srand $seed;

sub spew {
    my ($path, $text) = @_;
    open my $f, '>:raw', $path or die "$path: $!";
    print $f $text;
    close $f or die;
    return $path;
}
sub copy { my ($from, $to) = @_; system('cp', '-a', $from, $to) == 0 or die "cp $from $to" }
sub edit { my ($path, $change) = @_; local $_ = slurp($path); $change->(); spew($path, $_) }
sub run { my ($job) = @_; $job->{json} = 0; run_jobs([$job]); return $job }
sub index_of { return decode_json(slurp("$_[0]/index.json")) }

sub steps {
    my ($dir) = @_;
    return join ' ', map { s{.*/}{}r } sort glob "$dir/*";
}

sub lines {
    return map { decode_json($_) } split /\n/, slurp($_[0]);
}

my $data = spew("$work/tokens.bin", pack 'v*', map { int rand 20 } 1 .. 400);
my @model = (
    qw(--layers 1 --width 4 --heads 1 --context 4 --batch 4 --micro-batch 2 --vocab 20
        --warmup 2 --lr 0.003 --dp 2 --tp 1 --pp 1 --data),
    $data
);
my @rest = (qw(--eval-every 0 --timeout), $hang);
sub T { return run(emu(2, $train, @_)) }
sub fresh { return T(@model, @rest, @_) }
sub resumed { return T(qw(--dp 2 --tp 1 --pp 1 --micro-batch 2), @rest, '--resume', @_) }
sub fine { my ($job, $what) = @_; return is($job->{status}, 0, $what) || diag(complain($job)) }

sub refused {
    my ($job, $words, $what, $status) = @_;
    $status //= 2;
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    ok($job->{status} == $status && @messages == 1 && $messages[0] =~ $words,
        "$what: status $status, and one message that says why")
        or diag(complain($job));
}

# ---- files that the program did not write ----
my $victim = "$work/victim";
make_path($victim);
spew("$victim/thesis", 'ten years');

# Returns the contents of a folder except the lock: names, links, files.
sub whole {
    my ($dir) = @_;
    return
        `cd '$dir' && find . ! -name .unsplit-lock | LC_ALL=C sort | while read -r f; do ls -ld --time-style=+ "\$f" | cut -d ' ' -f 1; readlink "\$f"; [ -L "\$f" ] || [ ! -f "\$f" ] || cat "\$f"; echo "\$f"; done`;
}
my $dir = "$work/dir";
for my $case (
    [
        'a link that ends in .part',
        sub { symlink $victim, "$dir/step-000099.part" },
        qr{step-000099\.part was not made by this program}
    ],
    [
        'a link with the name of the first .part',
        sub { symlink $victim, "$dir/step-000005.part" },
        qr{step-000005\.part was not made by this program}
    ],
    [
        'a link with the name of a checkpoint',
        sub { symlink $victim, "$dir/step-000005" },
        qr{step-000005 was not made by this program}
    ],
    [
        'a file with the name of a checkpoint',
        sub { spew("$dir/step-000010", 'a file') },
        qr{step-000010 was not made by this program}
    ],
    [
        'notes in a folder with the name of a checkpoint',
        sub { mkdir "$dir/step-000010"; spew("$dir/step-000010/notes.txt", 'mine') },
        qr{step-000010/notes\.txt was not written by this}
    ],
    [
        'an empty folder with the name of a checkpoint',
        sub { mkdir "$dir/step-000010" },
        qr{step-000010 is no checkpoint: it has no index\.json}
    ],
    [
        'notes in a .part',
        sub { mkdir "$dir/step-000005.part"; spew("$dir/step-000005.part/notes.txt", 'mine') },
        qr{step-000005\.part/notes\.txt was not written by this}
    ],
    [
        'a file with the name of a checkpoint file',
        sub {
            mkdir "$dir/step-000005.part";
            spew("$dir/step-000005.part/rank-0000.safetensors", 'mine, not yours');
        },
        qr{rank-0000\.safetensors was not written}
    ],
    [
        'an index of another program',
        sub {
            mkdir "$dir/step-000005.part";
            spew("$dir/step-000005.part/index.json", '{"weight_map":{}}');
        },
        qr{index\.json was not written}
    ],
    [
        'a link in a .part',
        sub {
            mkdir "$dir/step-000005.part";
            symlink "$victim/thesis", "$dir/step-000005.part/index.json";
        },
        qr{index\.json was not written}
    ],
    [
        'a pipe in a .part',
        sub { mkdir "$dir/step-000005.part"; system 'mkfifo', "$dir/step-000005.part/index.json" },
        qr{index\.json was not written}
    ],
    [
        'a folder in a .part',
        sub { make_path("$dir/step-000005.part/index.json") },
        qr{index\.json was not written}
    ],
    [
        'a link with the name of the lock',
        sub { symlink "$victim/thesis", "$dir/.unsplit-lock" },
        qr{\.unsplit-lock in it was not written by this program}
    ],
    [
        'a file with the name of the lock',
        sub { spew("$dir/.unsplit-lock", 'mine') },
        qr{\.unsplit-lock in it was not written by this program}
    ],
) {
    my ($name, $make, $words) = @$case;
    remove_tree($dir);
    mkdir $dir;
    $make->();
    my $before = whole($dir);
    refused(fresh('--save', $dir, qw(--save-every 5 --steps 10)), $words, $name);
    refused(fresh('--save', $dir, qw(--save-every 5 --steps 10 --save-over)),
        $words, "$name, with --save-over")
        if $name =~ /notes|lock/;
    is(whole($dir), $before, "$name: nothing is touched");
    is(
        slurp("$victim/thesis") . steps($victim),
        'ten yearsthesis',
        "$name: the target of a link is not touched"
    );
}
remove_tree($dir);
make_path("$dir/step-10", "$dir/step-000010.bak", "$dir/step-000020.old.part");
spew("$dir/step-10/notes", 'mine');
fine(
    fresh('--save', $dir, qw(--save-every 5 --steps 10)),
    'a run beside names that only look like checkpoints'
);
is(
    steps($dir),
    'step-000005 step-000010 step-000010.bak step-000020.old.part step-10',
    'names that only look like checkpoints stay'
);

# A killed run leaves a partial checkpoint, whose name ends in .part. The next run must remove this
# checkpoint.
copy("$dir/step-000010", "$dir/step-000012.part");
unlink "$dir/step-000012.part/index.json";
truncate "$dir/step-000012.part/rank-0001.safetensors", 0;
mkdir "$dir/step-000011.part";
fine(resumed($dir, '--save', $dir, qw(--steps 12)), 'a run beside the files of a killed run');
ok(!(grep { /00001[12]\.part/ } glob "$dir/*") && -e "$dir/step-000012/index.json",
    'the files of a killed run are removed');

# Files of other programs may also appear during training.
{
    remove_tree($dir);
    my $job = emu(2, $train, @model, @rest, '--save', $dir, qw(--save-every 20 --steps 1000000));
    $job->{json} = 0;
    my $pid = start($job);
    my $deadline = time + $hang;
    sleep 0.02 until -e "$dir/step-000020/index.json" || time > $deadline;
    my ($newest) = map { /step-(\d+)$/ } reverse sort glob "$dir/step-*[0-9]";
    symlink $victim, sprintf '%s/step-%06d.part', $dir, $newest + 20 * $_ for 2 .. 200;
    waitpid $pid, 0;
    my $err = slurp("$job->{place}.err");
    ok($? >> 8 == 3 && $err =~ m{cannot make the folder step-\d+\.part in it: File exists},
        'a link that appears later: status 3')
        or diag($err);
    is(steps($victim), 'thesis', 'a link that appears later is not followed');
    unlink glob "$dir/*.part";
    remove_tree($dir);
    fine(fresh('--save', $dir, qw(--save-every 5 --steps 10)), 'a run of ten steps');
}

# ---- two runs, one folder ----
my ($id) = index_of("$dir/step-000010")->{run};
like($id, qr/^[0-9a-f]{16}$/, 'a checkpoint has the id of its run');
refused(
    fresh('--save', $dir, qw(--steps 10)),
    qr/step-0000(05|10) is a checkpoint of another run, $id: .*save elsewhere, or remove this checkpoint with --save-over/,
    'a new run in a used folder'
);
{
    my $log = "$work/ids.log";
    unlink $log;
    my $job = resumed($dir, '--save', $dir, qw(--steps 12 --log), $log);
    fine($job, 'a resumed run goes on');
    like(
        $job->{out},
        qr/^run $id goes on from \S+step-000010: 10 of 12 steps were done before, steps 12 \(was 10\)$/m,
        'a line names the run that continues, and the differences'
    );
    is(index_of("$dir/step-000012")->{run}, $id, 'a resumed run keeps its id');
    my %ids = map { $_->{run} // 'none' => 1 } lines($log);
    is(join(' ', keys %ids), $id, 'each line of the log has the id of the run');
    refused(
        resumed("$dir/step-000005", '--save', $dir, qw(--steps 12)),
        qr/step-0000\d\d is of this run, but later than step 5, from which the run continues/,
        'a run that goes back'
    );
    fine(resumed("$dir/step-000005", '--save', $dir, qw(--save-over --save-every 2 --steps 8)),
        'a run that goes back, with --save-over');
    is(
        steps($dir),
        'step-000005 step-000006 step-000008',
        'a run that goes back removes the later checkpoints'
    );
    fine(fresh('--save', $dir, qw(--save-over --save-every 3 --steps 3)),
        'a new run with --save-over');
    is(steps($dir), 'step-000003',
        'a new run with --save-over removes the checkpoints of the other run');
    isnt(index_of("$dir/step-000003")->{run}, $id, 'a new run with --save-over has its own id');
}
{
    my $good = 0;
    my $pairs = $all ? 20 : 2;
    for my $n (1 .. $pairs) {
        my $used = $n % 2 == 0;    # a pair is two resumed runs, or two new runs
        remove_tree($dir) unless $used;
        my @jobs = map {
            $used
                ? emu(2, $train, qw(--dp 2 --tp 1 --pp 1),
                @rest, '--resume', $dir, '--save', $dir, qw(--steps 40 --save-every 1))
                : emu(2, $train, @model, @rest, '--save', $dir, qw(--steps 20 --save-every 1))
        } 1, 2;
        $_->{json} = 0 for @jobs;
        run_jobs(\@jobs);
        my ($first, $second) = sort { $a->{status} <=> $b->{status} } @jobs;
        my $refused =
            $second->{status} == 2 && $second->{err} =~ /another run|all of its \d+ steps are done/;
        my %ids = map { (index_of($_)->{run} // 'none') => 1 } glob "$dir/step-*";
        my $whole = !grep {
            my $c = index_of($_);
            my ($step) = /(\d+)$/;
            $c->{step} != $step
                || grep { !-e }
                map { sprintf "%s/rank-%04d.safetensors", $dir . sprintf('/step-%06d', $step), $_ }
                0, 1
        } glob "$dir/step-*";
        $good +=
            $first->{status} == 0 && $refused && keys %ids == 1 && $whole && !glob "$dir/*.part";
        diag(complain($second)) unless $refused;
    }
    is($good, $pairs,
              "$pairs pairs of runs in one folder: one trains, the other is refused, and all "
            . "checkpoints are of one run");

    # The lock ends with its process, however the process ends.
    remove_tree($dir);
    my $job = emu(2, $train, @model, @rest, '--save', $dir, qw(--save-every 5 --steps 1000000));
    $job->{json} = 0;
    my $pid = start($job);
    my $deadline = time + $hang;
    sleep 0.02 until -e "$dir/step-000005/index.json" || time > $deadline;
    refused(
        resumed($dir, '--save', $dir, qw(--steps 10)),
        qr/another run saves in this folder, process \d+ on \S+: wait until it has ended, or save elsewhere/,
        'a second run'
    );
    refused(
        fresh('--save', $dir, qw(--steps 10)),
        qr/another run saves in this folder/,
        'a second run, new'
    );
    kill 'KILL', ranks_of($pid);
    waitpid $pid, 0;
    my ($newest) = map { /step-0*(\d+)$/ } reverse sort glob "$dir/step-*[0-9]";
    fine(resumed($dir, '--save', $dir, '--steps', $newest + 1), 'after a kill the folder is free');
}

# ---- differences when resuming ----
remove_tree($dir);
my $log = "$work/appended.log";
unlink $log;
fine(fresh('--save', $dir, qw(--save-every 4 --steps 8 --log), $log), 'a run of eight steps');
for my $case (
    ['batch', 6],
    ['seed', 2],
    ['lr', 0.1],
    ['min-lr', 0],
    ['warmup', 1],
    ['decay-steps', 99],
    ['weight-decay', 0],
    ['clip', 0.5],
    ['dropout', 0.5],
    ['optimizer', 'sgd'],
    ['compress', 'top-k'],
    ['keep-one-of', 2, '--compress', 'top-k', '--override', 'compress'],
    ['power-rank', 1, '--compress', 'power-sgd', '--override', 'compress']
) {
    my ($name, $value, @more) = @$case;
    my @options = ($dir, "--$name", $value, @more, qw(--steps 9));
    refused(
        resumed(@options),
        qr/it was trained with --$name .*, not $value: leave --$name out, or say --override $name/,
        "--$name $value"
    );
    @options = grep { !/^(--override|compress)$/ } @options;
    my $job =
        resumed(@options, '--override', join ',', 'lr', $name, grep { $_ eq 'compress' } @more);
    fine($job, "--$name $value with --override");
    like(
        $job->{out},
        qr/, overridden: $name \Q$value\E \(was /,
        "--$name $value with --override: the page says so"
    ) or diag($job->{out});
}
fine(
    resumed($dir, qw(--steps 9 --lr 3e-3 --batch 4)),
    'an option with its old value needs no --override'
);
refused(resumed($dir, qw(--steps 9 --width 8)),
    qr/it was trained with --width 4, not 8: leave --width out/, '--width');
refused(
    resumed($dir, qw(--steps 9 --override), 'lr,width'),
    qr/--override lr,width: 'width' is none of the options that it can name: data,batch,/,
    '--override width'
);
refused(
    resumed($dir, qw(--steps 9 --override), 'lr,'),
    qr/--override lr,: '' is none of the options/,
    '--override with a comma too many'
);
refused(
    fresh(qw(--steps 9 --override lr)),
    qr/--override says what a resumed training may change/,
    '--override without --resume'
);
refused(
    fresh(qw(--steps 9 --newest-good)),
    qr/--newest-good chooses among the checkpoints in the folder of --resume/,
    '--newest-good without --resume'
);
refused(
    fresh(qw(--steps 9 --min-lr 1)),
    qr/--min-lr 1: expected a rate from 0 to --lr 0.003/,
    '--min-lr above --lr'
);
refused(
    fresh(qw(--steps 9 --decay-steps 0)),
    qr/--decay-steps must be at least 1/,
    '--decay-steps 0'
);
refused(
    fresh(qw(--steps 9 --keep 2)),
    qr/--keep says how to save, and --save DIR where/,
    '--keep without --save'
);
refused(
    fresh(qw(--steps 9 --keep 0 --save), "$work/keep0"),
    qr/--keep must be at least 1/,
    '--keep 0'
);
my $other = spew("$work/other.bin", slurp($data));
like(
    resumed($dir, qw(--steps 9 --data), $other)->{out},
    qr/, data \Q$other\E \(was \Q$data\E\)/,
    'a new path of the same data is reported'
);
edit($other, sub { substr($_, 300, 1) ^= "\1" });
refused(
    resumed($dir, qw(--steps 9 --data), $other),
    qr/it was trained on data of 800 bytes, sum [0-9a-f]{16}, and \S+ has 800 bytes, sum .*say --override data/,
    'other data'
);
fine(resumed($dir, qw(--steps 9 --override data --data), $other), 'other data with --override');
refused(
    resumed($dir, qw(--steps 9 --data-eval), $other),
    qr/it was trained on nine tenths of --data, because --data-eval was not given: leave --data-eval out, or say --override data/,
    '--data-eval, which was not given'
);
fine(resumed($dir, qw(--steps 9 --override data --data-eval), $other),
    '--data-eval with --override');
{
    my ($held_out, $of_eval) = (spew("$work/held-out.bin", slurp($other)), "$work/of-eval");
    my @again = ($of_eval, '--save', $of_eval, qw(--save-every 2 --keep 1 --eval-every 100));
    fine(
        fresh(
            '--data-eval', $held_out, '--save', $of_eval,
            qw(--save-every 2 --keep 1 --steps 4),
            qw(--skip-nonfinite 2 --eval-every 100)
        ),
        'a run with --data-eval'
    );
    my $same = resumed(@again, qw(--steps 6));
    fine($same, 'a run with --data-eval goes on');
    unlike($same->{out}, qr/held-out text of|skip-nonfinite/, 'no difference is reported');
    is(index_of("$of_eval/step-000006")->{layout}{'skip-nonfinite'},
        2, '--skip-nonfinite is that of the checkpoint');
    edit($held_out, sub { substr($_, 300, 1) ^= "\1" });
    my $changed = resumed(@again, qw(--steps 8));
    fine($changed, 'a run goes on with another held-out text');
    like(
        $changed->{out},
        qr/, held-out text of 800 bytes, sum [0-9a-f]{16} \(was 800 bytes, sum [0-9a-f]{16}\)$/m,
        'another held-out text is reported'
    );
    is(index_of("$of_eval/step-000008")->{best}{step},
        8, 'the losses of another held-out text are not compared with earlier losses');
}
like(
    run(
        emu(
            1, $train, @rest, '--resume', $dir,
            qw(--steps 9 --micro-batch 4 --recompute full --threads 1)
        )
    )->{out},
    qr/ steps were done before, steps 9 \(was 8\), ranks 1 \(was 2\), dp 1 \(was 2\), micro-batch 4 \(was 2\), recompute full \(was none\), threads 1 \(was left out\)$/m,
    'another layout is reported'
);

# ---- --steps is the step to stop at; the learning rate continues; the log is appended ----
spew($log, slurp($log) . '{"step":');    # half a line of a killed run
fine(resumed($dir, qw(--steps 12 --log), $log), 'four steps more');
unlike(slurp($log), qr/^\{"step":\{/m, 'half a line is not continued');
my @logged = grep { !$_->{event} } map { decode_json($_) } grep { /\}$/ } split /\n/, slurp($log);
is(
    join(' ', map { $_->{step} // 'end' } @logged),
    '0 1 2 3 4 5 6 7 end 8 9 10 11 end',
    'the log has both parts'
);
is(
    join(
        ' ',
        do {
            my %ids = map { $_->{run} => 1 } @logged;
            keys %ids;
        }
    ),
    index_of("$dir/step-000008")->{run},
    'the log is of one run'
);
my %rate = map { $_->{step} => $_->{lr} } grep { defined $_->{step} } @logged;
ok($rate{7} > $rate{8} && abs($rate{8} - 0.0003) < 1e-9 && abs($rate{11} - 0.0003) < 1e-9,
    'after --decay-steps the rate stays at a tenth')
    or diag(join ' ', map { "$_:$rate{$_}" } sort keys %rate);
unlink $log;
fine(fresh(qw(--steps 6 --decay-steps 4 --min-lr 0.001 --log), $log), '--decay-steps and --min-lr');
is(
    join(' ', map { sprintf '%.6f', $_->{lr} } grep { defined $_->{step} } lines($log)),
    '0.001500 0.003000 0.003000 0.002000 0.001000 0.001000',
    'the rates are those of the formula'
);

# ---- torn checkpoints ----
my $torn = "$work/torn";
for my $case (
    [
        'a rate in the index',
        'index.json',
        sub { s/"0\.003"/"0.007"/ or die },
        qr/step-000008\/index\.json is not what was written: the sum over its bytes/
    ],
    [
        'a step in the index',
        'index.json',
        sub { s/"step":\t8/"step":\t7/ or die },
        qr/step-000008\/index\.json is not what was written/
    ],
    [
        'the sum of the index',
        'index.json',
        sub { s/("sum":\t".)./$1x/ or die },
        qr/step-000008\/index\.json is not what was written/
    ],
    [
        'a weight', 'rank-0000.safetensors',
        sub { substr($_, -50, 1) ^= "\1" },
        qr/step-000008\/rank-0000\.safetensors is not what was written/
    ],
    [
        'a file that is cut short', 'rank-0000.safetensors',
        sub { $_ = substr $_, 0, -8 }, qr/step-000008\/rank-0000\.safetensors/
    ],
    [
        'an index of the version before',
        'index.json',
        sub { s/"version":\t2/"version":\t1/ or die },
        qr/index\.json is of an earlier version of this program/
    ],
) {
    my ($name, $file, $change, $words) = @$case;
    remove_tree($torn);
    copy($dir, $torn);
    edit("$torn/step-000008/$file", $change);
    refused(resumed($torn, qw(--steps 9)),
        qr/$words.*; the newest good one is \Q$torn\E\/step-000004: --newest-good takes it/, $name);
    refused(
        resumed("$torn/step-000008", qw(--steps 9)),
        qr/$words(?!.*newest good)/,
        "$name, of that checkpoint"
    );
    next unless $name =~ /weight|sum/;
    my $job = resumed($torn, qw(--newest-good --steps 9 --save-every 4 --save), "$torn/");
    fine($job, "$name, with --newest-good");
    like(
        $job->{out},
        qr/$words.*; step-000004 is taken$/m,
        "$name, with --newest-good: the page says so"
    );
    is(
        steps($torn),
        'step-000004 step-000008 step-000009',
        "$name, with --newest-good: the torn checkpoint is replaced"
    );
    fine(resumed("$torn/step-000008", qw(--steps 9)), "$name: the new checkpoint is good");
}
remove_tree($torn);
copy($dir, $torn);
rename "$torn/step-000008", "$torn/step-000007" or die;
refused(
    resumed($torn, qw(--steps 9)),
    qr/step-000007\/index\.json is of step 8, and its folder has the name of another step/,
    'a folder with another name'
);
copy("$dir/step-000008", "$work/mine");
fine(resumed("$work/mine", qw(--steps 9)), "a checkpoint under a name that the user chose");

# ---- --keep measures the held-out loss before each checkpoint, whatever --eval-every is ----
remove_tree($dir);
my $kept = T((grep { !/^--eval-every$/ } @model),
    '--timeout', $hang, '--save', $dir,
    qw(--save-every 2 --eval-every 100 --steps 14 --lr 0.5 --keep 2 --decay-steps 200));
fine($kept, '--keep 2');
my @loss = $kept->{out} =~ /^ +held-out loss (\d+\.\d+)$/mg;
my ($best) = sort { $loss[$a] <=> $loss[$b] } 0 .. $#loss;
my %want = map { sprintf('step-%06d', $_) => 1 } 12, 14, 2 * ($best + 1);
is(
    steps($dir),
    join(' ', sort keys %want),
    'the newest two checkpoints and the best checkpoint are kept'
);
is(
    index_of("$dir/step-000014")->{best}{step},
    2 * ($best + 1),
    'the index says which checkpoint is the best'
);
like(
    $kept->{out},
    qr/^lowest held-out loss of a checkpoint: \Q$loss[$best]\E, step @{[2 * ($best + 1)]}$/m,
    'the page says which checkpoint is the best'
);
spew("$dir/step-000012/notes.txt", 'mine');
my $again = resumed($dir, qw(--steps 18 --keep 1));
refused($again, qr/--keep says how to save/, '--keep without --save, when resumed');
refused(
    resumed($dir, '--save', $dir, qw(--steps 18 --save-every 2 --keep 1)),
    qr{step-000012/notes\.txt was not written by this version of this program},
    'notes in a checkpoint'
);
unlink "$dir/step-000012/notes.txt";
fine(resumed($dir, '--save', $dir, qw(--steps 18 --save-every 2 --keep 1)), '--keep 1, resumed');
%want = map { sprintf('step-%06d', $_) => 1 } 18, 2 * ($best + 1);
is(
    steps($dir),
    join(' ', sort keys %want),
    'the newest checkpoint and the best checkpoint are kept'
);

fine(resumed("$dir/step-000018", '--save', $dir, qw(--steps 19)), 'a named checkpoint continues');
is(
    index_of("$dir/step-000019")->{best}{step},
    2 * ($best + 1),
    'the index of a continued run has the best checkpoint'
);
fine(resumed($dir, '--save', "$work/elsewhere", qw(--steps 20)),
    'the run continues and saves elsewhere');
is(index_of("$work/elsewhere/step-000020")->{best},
    undef, 'in another folder another checkpoint is the best');

# ---- all bytes are on the disk before the folder gets its name ----
SKIP: {
    my $record = 'build/cpu-fp32/tests/record_sync.so';
    skip "$record is not built", 1 unless -e $record;
    my ($calls, $synced) = ("$work/calls", "$work/synced");
    my $saves = emu(2, $train, @model, @rest, '--save', $synced, qw(--steps 4 --save-every 2));
    unshift @{ $saves->{words} }, 'env', "LD_PRELOAD=$record", "SYNC_LOG=$calls";
    fine(run($saves), 'a run whose calls are recorded');
    is_deeply(
        [
            map { s/\Q$synced\E/DIR/gr =~ s/rank-000[01]/rank-0000/r }
                grep { /\Q$synced\E/ } split /\n/,
            slurp($calls)
        ],
        [
            map {
                my $to = "DIR/step-00000$_";
                my $part = "$to.part";
                (
                    ("fsync $part/rank-0000.safetensors") x 2,    # the ranks come in any order
                    "fsync $part/index.json",
                    "fsync $part",
                    "rename $part $to",
                    'fsync DIR'
                )
            } 2,
            4
        ],
        'the files and their folder are synced before the rename, and the folder above after it'
    );
}

# ---- any byte may be changed ----
SKIP: {
    my $program = 'build/cpu-fp32/tests/test_checkpoint';
    skip "$program is not built", 1 unless -x $program;
    remove_tree($dir);
    fine(fresh('--save', $dir, qw(--save-every 2 --steps 2 --zero 1)), 'a checkpoint');
    my $runs = $all ? 100_000 : 300;
    my $said = `$program $dir $runs $seed 2>/dev/null`;
    is($?, 0, "$runs mutated checkpoints") or diag($said);
    diag(grep { /changed checkpoints/ } split /^/, $said);
}
done_testing();
