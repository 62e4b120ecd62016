#!/usr/bin/perl
# Tests --save and --resume. At the same layout a resumed run must have the bits of an uninterrupted
# run. At another layout a resumed run must have the losses of an uninterrupted run, up to rounding.
# Runs are killed, even while they write. Also tests SIGTERM, a full disk, and files that are torn,
# foreign or of another model.
#
# TEST_ALL=1 kills 100 runs instead of 3.
# slow: runs are killed, resumed and compared
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use File::Path qw(remove_tree);
use Jobs;
use List::Util qw(max);
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my %train = map { $_ => program_of($_, '08_3d/train.c') } qw(fp32 fp64);
plan skip_all => "$train{fp32} is not built" unless -x $train{fp32};
my $double = -x $train{fp64};    # the fp64 build is missing in a planted bug's tree
my $text = "$work/text.txt";
{
    open my $f, '>', $text or die;
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f
        or die
}

# Some layouts do not divide these sizes: 9 sequences, 6 blocks, 5 heads.
my @model = (
    qw(--layers 6 --width 30 --heads 5 --context 12 --batch 9 --micro-batch 2 --steps 9
        --warmup 3 --data),
    $text
);
my @how = (qw(--eval-every 0 --reduce ordered --timeout), $hang);
$SIG{INT} = 'DEFAULT';    # a shell starts background jobs with SIGINT ignored
my $seed = $ENV{SEED} || time % 100000;
diag("SEED=$seed");
srand $seed;

sub lines {
    my ($log) = @_;
    return map { decode_json($_) } grep { /^\{"step"/ } split /\n/, slurp($log);
}

sub losses {
    return map { $_->{loss} } lines(@_);
}

sub worst {
    my ($got, $want) = @_;
    return max(map { abs($got->[$_] - $want->[$_]) / abs $want->[$_] } 0 .. $#$want);
}
sub copy { my ($from, $to) = @_; system('cp', '-a', $from, $to) == 0 or die "cp $from $to" }

sub run {
    my ($job, %how) = @_;
    $job->{json} = 0;
    $job->{$_} = $how{$_} for keys %how;
    run_jobs([$job]);
    return $job;
}
sub fine { my ($job, $what) = @_; return ok($job->{status} == 0, $what) || diag(complain($job)) }

# ---- the same layout: bit for bit ----
my @layouts = (
    [1, ''],
    [4, '--dp 4 --tp 1 --pp 1 --zero 1'],
    [4, '--dp 2 --tp 2 --pp 1 --zero 3'],
    [4, '--dp 1 --tp 2 --pp 2'],
    [6, '--dp 2 --tp 1 --pp 3 --zero 2'],
    [8, '--dp 2 --tp 2 --pp 2 --zero 3 --recompute full'],
);
for my $optimizer ('adamw', 'sgd') {
    for my $layout ($optimizer eq 'sgd' ? $layouts[2] : @layouts) {
        my ($ranks, $options) = @$layout;
        my @options = (@model, @how, '--optimizer', $optimizer, split ' ', $options);
        my $name = "$optimizer, $ranks ranks $options";
        my $dir = "$work/same";
        remove_tree($dir);
        fine(
            run(
                emu(
                    $ranks, $train{fp32}, @options, '--export',
                    "$work/whole.st", '--log', "$work/whole.log"
                )
            ),
            "$name: a whole run"
        );
        fine(run(emu($ranks, $train{fp32}, @options, '--save', $dir, '--save-every', 4)),
            "$name: a run that saves");
        is(
            join(' ', map { s{.*/}{}r } sort glob "$dir/*"),
            'step-000004 step-000008 step-000009',
            "$name: the folder has three checkpoints and nothing else"
        );
        remove_tree("$dir/step-000009", "$dir/step-000008");

        # A resumed run gets the layout, the files and @how. The options of the model come from the
        # checkpoint.
        unlink "$work/rest.log";    # a resumed run would append
        my $again = run(
            emu(
                $ranks, $train{fp32}, '--resume', $dir,
                '--micro-batch', 2, @how, split(' ', $options),
                '--export', "$work/rest.st", '--log', "$work/rest.log"
            )
        );
        fine($again, "$name: a second run resumes");
        my @whole = map { [@{$_}{qw(step loss grad_norm lr)}] } lines("$work/whole.log");
        my @rest = map { [@{$_}{qw(step loss grad_norm lr)}] } lines("$work/rest.log");
        is_deeply(
            \@rest,
            [@whole[4 .. 8]],
            "$name: steps 4 to 8 have the same losses, norms and rates"
        );
        ok(
            slurp("$work/rest.st") eq slurp("$work/whole.st"),
            "$name: a resumed run has the same weights, every bit"
        );
    }
}

# ---- another layout, in double, where rounding is small ----
# Each layout saves once, and another layout resumes.
my @others = (
    [1, ''],
    [4, '--dp 4 --tp 1 --pp 1 --zero 3'],
    [3, '--dp 1 --tp 3 --pp 1'],
    [6, '--dp 1 --tp 1 --pp 6 --schedule gpipe'],
    [8, '--dp 2 --tp 2 --pp 2 --zero 2'],
    [5, '--dp 5 --tp 1 --pp 1 --zero 1'],
    [4, '--dp 2 --tp 1 --pp 2 --zero 3 --prefetch']
);
for my $k ($double ? 0 .. $#others : ()) {
    my ($ranks, $options) = @{ $others[$k] };
    my ($to, $with) = @{ $others[($k + 3) % @others] };
    my $dir = "$work/other";
    remove_tree($dir);
    run(
        emu(
            $ranks, $train{fp64}, @model, @how, split(' ', $options),
            '--save', $dir, '--save-every', 5, '--log', "$work/whole.log"
        )
    );
    remove_tree("$dir/step-000009");
    my $start = $k % 2 && have_mpi ? \&mpi : \&emu;
    unlink "$work/rest.log";
    my $again = run(
        $start->(
            $to, $train{fp64}, '--resume', $dir,
            '--micro-batch', 1, @how, split(' ', $with),
            '--log', "$work/rest.log"
        )
    );
    fine($again, "saved by $ranks ranks $options, resumed by $to $with");
    my @whole = losses("$work/whole.log");
    my @rest = losses("$work/rest.log");
    cmp_ok(@rest == 4 ? worst(\@rest, [@whole[5 .. 8]]) : 1,
        '<', 1e-10, 'a run resumed at another layout has the losses of an uninterrupted run');
}

# ---- other programs can read a checkpoint: JSON, and tensors at their offsets ----
{
    my $dir = "$work/same";
    remove_tree($dir);
    run(emu(4, $train{fp32}, @model, @how, qw(--dp 1 --tp 2 --pp 2 --save), $dir));
    my $index = decode_json(slurp("$dir/step-000009/index.json"));
    is(scalar @{ $index->{files} }, 4, 'the index names a file for each rank');
    my $elements = 0;
    for my $file (glob "$dir/step-000009/*.safetensors") {
        my $bytes = slurp($file);
        my $length = unpack 'Q<', $bytes;
        my $header = decode_json(substr $bytes, 8, $length);
        my $notes = delete $header->{__metadata__};
        for my $name (keys %$header) {
            my ($lo, $hi) = @{ $header->{$name}{data_offsets} };
            my $n = 1;
            $n *= $_ for @{ $header->{$name}{shape} };
            die "$file: $name" unless $hi - $lo == 4 * $n && 8 + $length + $hi <= length $bytes;
            $elements += $n if $notes->{$name};
        }
    }
    my ($C, $L, $T, $V) = (30, 6, 12, 256);
    is(
        $elements,
        $V * $C + $T * $C + $L * (12 * $C * $C + 13 * $C) + 2 * $C,
        'all files together have every weight once'
    );
}

# ---- refused, with one message ----
{
    my $good = "$work/same/step-000009";
    my $bad = "$work/bad";
    my $file = "$bad/rank-0001.safetensors";
    my $edit = sub {
        my ($path, $change) = @_;
        local $_ = slurp($path);
        $change->();
        open my $f, '>:raw', $path or die;
        print $f $_;
        close $f;
    };
    my @cases = (
        [
            'a file that is cut short',
            sub { truncate $file, 1000 },
            qr/rank-0001\.safetensors is no safetensors file, or cut short: 1000 bytes/
        ],
        [
            'a flipped bit',
            sub {
                $edit->($file, sub { substr($_, -100, 1) ^= "\1" });
            },
            qr/rank-0001\.safetensors is not what was written/
        ],
        ['a file that is missing', sub { unlink $file }, qr/cannot read .*rank-0001\.safetensors/],
        [
            'an index that is cut short',
            sub { truncate "$bad/index.json", 100 },
            qr/index\.json is no JSON: it is torn/
        ],
        [
            'an index of another program',
            sub {
                $edit->("$bad/index.json", sub { $_ = '{"weight_map":{}}' });
            },
            qr/is no checkpoint of this program/
        ],
        [
            'an index of the future',
            sub {
                $edit->("$bad/index.json", sub { s/"version":\s*2/"version": 3/ });
            },
            qr/of a later version of this program/
        ],
        ['no checkpoint', sub { remove_tree($bad); mkdir $bad }, qr/there is no checkpoint in /],
        ['no folder', sub { remove_tree($bad) }, qr/there is no checkpoint in /],
        ['a file in double', sub { }, qr/has F32 weights: leave PRECISION=fp64 out/, 'fp64'],
        [
            'another width',
            sub { },
            qr/it was trained with --width 30, not 60: leave --width out/,
            'fp32',
            '--width',
            60
        ],
        [
            'another optimizer',
            sub { },
            qr/it was trained with --optimizer adamw, not sgd: leave --optimizer out, or say --override optimizer/,
            'fp32',
            '--optimizer',
            'sgd'
        ],
        ['nothing left to do', sub { }, qr/all of its 9 steps are done; give more --steps/],
        ['--check', sub { }, qr/it was trained without --check/, 'fp32', '--check', '--steps', 10],
    );
    for my $case (@cases) {
        my ($name, $change, $words, $precision, @options) = @$case;
        next if ($precision // '') eq 'fp64' && !$double;
        remove_tree($bad);
        copy($good, $bad);
        $change->();
        my $job = run(emu(2, $train{ $precision // 'fp32' }, '--resume', $bad, @how, @options));
        is($job->{status}, 2, "$name: status 2") or diag(complain($job));
        my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
        is(scalar @messages, 1, "$name: one message") or diag($job->{err});
        like($messages[0] // '', $words, "$name: the message names the mistake");
    }
}

# ---- places that cannot be written ----
{
    my $dir = "$work/full";
    run(emu(2, $train{fp32}, @model, @how, '--save', $dir, '--save-every', 3, '--steps', 3));
    my $before = slurp("$dir/step-000003/index.json");

    # A limit of the file size stands for a full disk. SIGXFSZ would end a program that does not
    # handle the limit.
    my $job = emu(
        2, $train{fp32}, @how, '--resume', $dir, '--micro-batch',
        2, '--steps', 9, '--save', $dir, '--save-every',
        5
    );
    $job->{words} = ['sh', '-c', 'ulimit -f 60; exec "$@"', 'sh', @{ $job->{words} }];
    run($job);
    is($job->{status}, 3, 'a full disk: status 3') or diag(complain($job));
    like(
        $job->{err},
        qr/^\[rank \d\] --save .*: cannot write it: File too large;/m,
        'a full disk: the message names the file'
    );
    ok(
        slurp("$dir/step-000003/index.json") eq $before && !-e "$dir/step-000005",
        'the older checkpoint is untouched, and there is no half of a new checkpoint'
    );
    fine(
        run(emu(2, $train{fp32}, '--resume', $dir, '--steps', 4, @how)),
        'a full disk: the older checkpoint can be resumed'
    );
    my $no = run(emu(2, $train{fp32}, @model, @how, '--save', "$text/folder"));
    is($no->{status}, 2, 'a folder that cannot be made: status 2, before the work');
    ok(before_work($no), 'a folder that cannot be made: the run ends before the work');
    my $without = run(emu(2, $train{fp32}, @model, @how, '--save-every', 3));
    like(
        $without->{err},
        qr/--save-every says how to save, and --save DIR where/,
        '--save-every without --save'
    );
}

# ---- SIGTERM, and kills ----
# Returns the status of the process when it has ended, or -1 after $hang seconds.
sub ended {
    my ($pid) = @_;
    my $deadline = time + $hang;
    while (time < $deadline) { return $? if waitpid($pid, 1) == $pid; sleep 0.02 }
    kill 'KILL', $pid;
    return -1;
}
my @long = (@model, qw(--eval-every 0 --reduce ordered --timeout), $hang);

sub until_saved {
    my ($dir, $n) = @_;
    my $deadline = time + $hang;
    sleep 0.01 while time < $deadline && (() = glob "$dir/step-*[0-9]") < $n;
}

for my $signal (qw(TERM INT USR1)) {
    my $dir = "$work/$signal";
    my $job = emu(4, $train{fp32}, @long, '--steps', 1000000, '--save', $dir, '--save-every', 5);
    $job->{json} = 0;
    my $pid = start($job);
    until_saved($dir, 2);
    kill $signal, ranks_of($pid);
    my $status = ended($pid);
    is($status >> 8, 4, "SIG$signal: status 4") or diag(slurp("$job->{place}.err"));
    my ($said) = slurp("$job->{place}.out") =~
        /^stopped: saved after (\d+) of 1000000 steps; go on with --resume/m;
    ok($said && -e sprintf("$dir/step-%06d/index.json", $said),
        "SIG$signal: the page names the saved step, and the checkpoint exists");
}
{
    my $last = run(
        emu(
            2, $train{fp32}, @long, '--save', "$work/last", '--exit-after', 1e-9, '--steps', 1,
            '--warmup', 1
        )
    );
    is($last->{status}, 0, '--exit-after: a complete training is not stopped')
        or diag(complain($last));
    my $first = run(emu(2, $train{fp32}, @long, '--save', "$work/first", '--exit-after', 1e-9));
    is($first->{status}, 4, '--exit-after: one step is always done, status 4')
        or diag(complain($first));
    like(
        $first->{out},
        qr/^stopped: saved after 1 of 9 steps; go on with --resume/m,
        '--exit-after: the page names the saved step'
    );
}
SKIP: {
    skip 'no mpirun', 6 unless have_mpi;

    # tools/launch itself and one rank are enough here; tests/kills.t tries the other cases.
    my ($dir, $job, $pid);
    for my $case (
        ['SIGTERM to tools/launch', 'TERM', sub { $_[0] }],
        ['SIGINT to one process', 'INT', sub { (ranks_of($_[0]))[1] }]
    ) {
        my ($what, $signal, $target) = @$case;
        $dir = "$work/$signal-mpi";
        $job = mpi(4, $train{fp32}, @long, '--steps', 1000000, '--save', $dir, '--save-every', 5);
        $job->{json} = 0;
        $pid = start($job);
        until_saved($dir, 2);
        kill $signal, $target->($pid);
        my $status = ended($pid);
        is($status >> 8, 4, "$what: all save and end, status 4")
            or diag(slurp("$job->{place}.err"));
        ok(slurp("$job->{place}.out") =~ /^stopped: saved after (\d+) /m,
            "$what: the page names the saved step");
    }

    if ($all) {    # mpirun itself gets SIGTERM, waits, warns its ranks, waits again and kills
        local $ENV{OMPI_MCA_odls_base_sigkill_timeout} = 20;
        $dir = "$work/term-mpirun";
        $job = mpi(4, $train{fp32}, @long, '--steps', 1000000, '--save', $dir, '--save-every', 5);
        $job->{json} = 0;
        $pid = start($job);
        until_saved($dir, 2);
        kill 'TERM', split ' ', slurp("/proc/$pid/task/$pid/children");
        is(ended($pid) >> 8, 1, 'SIGTERM to mpirun: status 1, whatever its ranks return');
        ok(slurp("$job->{place}.out") =~ /^stopped: saved after (\d+) /m,
            'SIGTERM to mpirun: the ranks save');
    }

    my $kills = $all ? 100 : 3;
    my ($lost, $named, $wrong) = (0, 0, 0);
    $dir = "$work/killed";
    my $most = 40;
    run(emu(4, $train{fp32}, @long, '--steps', $most, '--log', "$work/whole.log"));
    my %whole = map { $_->{step} => $_->{loss} } lines("$work/whole.log");
    my $n = 0;
    while ($n < $kills) {
        remove_tree($dir);
        my @resume = ();
        for (1 .. 3) {    # a run is killed up to three times
            last if $n == $kills;
            my $log = "$work/killed.log";
            my $job = mpi(
                4, $train{fp32}, @resume ? () : @long,
                qw(--micro-batch 2 --eval-every 0 --reduce ordered --timeout), $hang, '--steps',
                $most, '--save', $dir,
                '--save-every', 2, '--log', $log, @resume
            );
            unlink $log;
            $job->{json} = 0;
            my $pid = start($job);
            my $deadline = time + $hang;
            sleep 0.01 while time < $deadline && !-s $log;
            sleep rand 0.3;
            my @ranks = ranks_of($pid);
            my $rank = int rand 4;
            kill 'KILL', $ranks[$rank] if @ranks == 4;
            my $status = ended($pid);
            my $reached = max(0, map { $_->{step} } lines($log));

            # If the training was complete, no rank waited for the killed rank.
            last if $status == 0 || $reached == $most - 1;
            $n++;
            $lost++ if $status >> 8 != 3;
            my $err = slurp("$job->{place}.err");
            $named++ if $err =~ /^\[rank \d\] rank $rank is gone: /m;
            diag("status " . ($status >> 8) . ", $err") if $status >> 8 != 3;
            $wrong++ for grep { $_->{loss} != $whole{ $_->{step} } } lines($log);
            my ($newest) = sort { $b cmp $a } glob "$dir/step-*[0-9]";
            $lost++ if $newest && $newest =~ /step-(\d+)/ && $1 < $reached - 2;
            @resume = $newest ? ('--resume', $dir) : ();
        }
    }
    is($lost, 0,
        "$kills killed runs: each ended with status 3 and lost at most --save-every steps");
    is($named, $kills, "$kills killed runs: the killed rank is named, long before --timeout");
    is($wrong, 0, 'resumed runs have the losses of an uninterrupted run, every digit');
}
done_testing();
