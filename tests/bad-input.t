#!/usr/bin/perl
# Tests invalid input. Each run must print exactly one message, which names the fix. A mistake that
# is found before the work must give status 2 and no work, and a later mistake must give status 3.
# Also tests files that cannot be read or written, and ranks that are killed or hang.
# slow: each mistake has its own run, and many of these runs are repeated with processes
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
{ open my $f, '>', "$work/empty" or die; close $f }
{ open my $f, '>', "$work/short" or die; print $f 'too short'; close $f }

# The model is small, because some mistakes are found only at the end of the run.
my @tiny = (
    qw(--layers 2 --width 16 --heads 2 --context 8 --batch 4 --micro-batch 4 --steps 2
        --eval-every 0 --timeout),
    $hang
);
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f }
push @tiny, '--data', "$work/text";
mkdir "$work/index" or die;
for my $pipe ("$work/pipe", "$work/index/index.json") {
    system('mkfifo', $pipe) == 0 or die "mkfifo $pipe";
}

# the ranks, the options (after those of the small model), the exit status, and a pattern of the
# message. A row with 'mpi' also runs as processes.
my @mistakes = (
    [2, '--sead 1', 2, qr/unknown option --sead; the nearest is --seed/, 'mpi'],
    [2, '--micro-bach 1', 2, qr/the nearest is --micro-batch/],
    [2, '--batc 4', 2, qr/unknown option --batc; the nearest is --batch/, 'mpi'],
    [2, '--tf32', 2, qr/unknown option --tf32/],
    [2, '--clock sun', 2, qr/--clock sun: expected one of wall\|simulated/],
    [2, '--device x', 2, qr/--device x is not known: choose lesson, h100/],
    [2, '--link x', 2, qr/--link x is not known: choose fast, slow, free, nvlink/],
    [2, '--schedule diagonal', 2, qr/--schedule diagonal: expected one of naive\|gpipe\|1f1b/],
    [2, '--zero 4', 2, qr/--zero 4: expected one of 0\|1\|2\|3/],
    [
        2,
        '--prefetch --zero 2',
        2,
        qr/--prefetch gathers weights ahead, and with --zero 2 every rank has all weights: choose --zero 3/
    ],
    [
        2, '--prefetch --zero 3 --schedule zero-bubble',
        2, qr/--prefetch gathers for whole backwards, and .* leave --prefetch out/
    ],
    [
        2,
        '--overlap --schedule zero-bubble',
        2,
        qr/--overlap reduces the gradients that a whole backward has completed.* choose --schedule 1f1b/
    ],
    [
        2, '--overlap --rebalance 5',
        2, qr/--rebalance moves layers, and --overlap lists the layers of a stage only once/
    ],
    [
        2,
        '--overlap --zero 1',
        2,
        qr/--overlap all-reduces whole gradients, and --zero 1 reduces them in parts: choose --zero 0/
    ],
    [
        2, '--overlap --zero 3',
        2, qr/--zero 3 reduces them in parts: choose --zero 0, or --zero 3 with --prefetch/
    ],
    [2, '--compress zip', 2, qr/--compress zip: expected one of none\|top-k\|power-sgd/],
    [
        2, '--dp 1 --tp 1 --compress top-k',
        2, qr/--compress saves bytes between replicas, and there is one: choose --dp 2 or more/,
        'mpi'
    ],
    (
        map {
            [
                2, "--dp 2 --compress top-k --zero $_", 2,
                qr/--compress leaves the whole sum on every replica, and --zero $_ leaves a part of it: choose --zero 0/
            ]
        } 1 .. 3
    ),
    [
        2,
        '--dp 2 --compress top-k --overlap',
        2,
        qr/--compress needs a unit's whole gradient .* and --overlap sends uncompressed buckets: leave --compress or --overlap out/
    ],
    [
        2,
        '--dp 2 --compress top-k --rebalance 5',
        2,
        qr/--rebalance moves layers, but the residuals of --compress stay on their ranks/
    ],
    [
        4,
        '--dp 2 --tp 1 --cp 2 --compress top-k',
        2,
        qr/--compress takes a replica's whole gradient, and with --cp a rank has the gradient of some positions only/
    ],
    [
        8,
        '--dp 2 --tp 4 --tensor 2d --compress power-sgd',
        2,
        qr/--compress takes matrices as --tensor 1d cuts them/
    ],
    [
        4,
        '--dp 2 --tp 2 --compress top-k',
        2,
        qr/the slices of --tp 2 would choose different elements of their common norms: choose --tp 1, or --compress power-sgd/
    ],
    [2, '--dp 2 --compress top-k --keep-one-of 0', 2, qr/--keep-one-of must be at least 1/],
    [2, '--dp 2 --compress power-sgd --power-rank 0', 2, qr/--power-rank must be at least 1/],
    [
        2,
        '--dp 2 --keep-one-of 4',
        2,
        qr/--keep-one-of is of --compress top-k: choose --compress top-k/
    ],
    [
        2,
        '--dp 2 --compress top-k --power-rank 4',
        2,
        qr/--power-rank is of --compress power-sgd: choose it/
    ],
    [2, '--recompute some', 2, qr/expected one of none\|selective\|full/],
    [2, '--optimizer adam', 2, qr/expected one of sgd\|adamw/],
    [2, '--lr fast', 2, qr/--lr fast: expected a number/],
    [2, '--lr -1', 2, qr/--lr and --weight-decay must not be negative/],
    [2, '--weight-decay -0.1', 2, qr/must not be negative/],
    [
        2,
        '--optimizer sgd --weight-decay 0.5',
        2,
        qr/--weight-decay 0\.5: only AdamW decays weights here; leave it out/
    ],
    [2, '--clip -1', 2, qr/--clip must not be negative: 0 turns clipping off/],
    [2, '--clip nan', 2, qr/--clip nan: expected a number/],
    [2, '--dropout 1', 2, qr/dropout must be at least 0 and less than 1/],
    [2, '--steps 0', 2, qr/--steps must be at least 1/, 'mpi'],
    [2, '--steps 1.5', 2, qr/--steps 1\.5: expected a whole number/],
    [2, '--steps -3', 2, qr/--steps -3: expected a whole number/],
    [2, '--batch 0', 2, qr/--batch 0 leaves some/],
    [2, '--batch 99999999999999', 2, qr/--batch 99999999999999: expected at most \d+/],
    [
        4,
        '--dp 4 --batch 3',
        2,
        qr/--batch 3 leaves some of the 4 replicas without a sequence: choose at least --batch 4/,
        'mpi'
    ],
    [2, '--micro-batch 0', 2, qr/--micro-batch must be at least 1/],
    [2, '--layers 0', 2, qr/at least one layer/],
    [
        2,
        '--width 18 --heads 4',
        2,
        qr/width 18 does not divide into 4 heads: choose --width as a multiple of --heads/,
        'mpi'
    ],
    [3, '--dp 2', 2, qr/a multiple of 2 ranks, but there are 3: choose degrees/, 'mpi'],
    [
        4,
        '--dp 1 --tp 2 --pp 1',
        2,
        qr/ 4(?: ranks)?: choose --dp, --tp and --pp whose product is the number of ranks/,
        'mpi'
    ],
    [4, '--tp 3', 2, qr/choose degrees whose product is 4/],
    [4, '--dp 0', 2, qr/are at least 1/],
    (
        map { [4, $_, 2, qr/choose degrees whose product is 4/] } '--dp 18446744073709551615',
        '--dp 4294967296 --tp 4294967296'
    ),
    [
        4,
        '--tp 4',
        2,
        qr/--tp 4 needs as many heads; the model has 2: choose --tp 2, or more --heads/
    ],
    [
        4,
        '--heads 1',
        2,
        qr/--tp 2 needs as many heads; the model has 1: choose --tp 1, or more --heads/
    ],
    [
        4,
        '--pp 4',
        2,
        qr/--pp 4 needs as many blocks; the model has 2: choose --pp 2, or more --layers/,
        'mpi'
    ],
    [
        4,
        '--layers 1',
        2,
        qr/--pp 2 needs as many blocks; the model has 1: choose --pp 1, or more --layers/
    ],
    (
        map { [2, $_, 2, qr/at most 65536 layers, 1048576 columns and 1048576 positions/] }
            '--context 18446744073709551615',
        '--width 4294967296',
        '--layers 18446744073709551615'
    ),
    [
        2,
        '--pp 2 --schedule interleaved --layers 4 --batch 3 --micro-batch 1',
        2,
        qr/groups of --pp 2, each through all chunks, and a replica has 3: choose --batch and --micro-batch for a multiple of 2/,
        'mpi'
    ],
    [
        2,
        '--pp 2 --schedule interleaved',
        2,
        qr/--chunks 2 on each of 2 stages needs 4 blocks; the model has 2: choose --chunks 1, or more --layers/
    ],
    [
        2,
        '--pp 2 --schedule interleaved --chunks 0',
        2,
        qr/--chunks 0: a stage has at least one chunk/
    ],
    [
        2,
        '--pp 2 --chunks 2',
        2,
        qr/--chunks 2: only interleaved stages have several: choose --schedule interleaved/
    ],
    [
        2,
        '--pp 2 --schedule interleaved --layers 4 --stage-layers 2,2',
        2,
        qr/expected 4 numbers, one for each chunk of each stage of --pp 2/
    ],
    [
        2,
        '--pp 2 --stage-layers 2,1',
        2,
        qr/--stage-layers add up to 3, but the model has --layers 2/,
        'mpi'
    ],
    (
        map {
            [
                2, "--pp 2 --stage-layers $_",
                2, qr/--stage-layers \Q$_\E: expected 2 numbers, one for each stage of --pp 2/
            ]
        } '2',
        '1,1,1', '0,2',
        '18446744073709551615,3',
        '99999999999999999999,1',
        '1;1'
    ),
    (
        map {
            [
                2, "--pp 2 --stage-layers $_", 2,
                qr/--stage-layers \Q$_\E: expected whole numbers with commas between them, such as 3,4,3/
            ]
        } 'x',
        '1,x', '1,', ',1,1', '-1,3',
        '1,,1'
    ),
    [
        2,
        "--data $work/nowhere",
        2,
        qr/cannot read the text \S+nowhere: No such file.*; give --data FILE/,
        'mpi'
    ],
    [
        2,
        "--data $work/empty",
        2,
        qr/the text \S+empty has 0 bytes, too few for --context 8: at least 90 are needed/
    ],
    [2, "--data $work/short", 2, qr/has 9 bytes, too few/],
    [
        2,
        "--data $work",
        2,
        qr/cannot read the text \S+: it is a folder, and only a regular file can be read; give --data FILE/
    ],
    [
        2,
        "--data $work/pipe",
        2,
        qr/cannot read the text \S+pipe: it is a pipe, and only a regular file can be read/,
        'mpi'
    ],
    [
        2,
        '--data /dev/zero',
        2,
        qr/cannot read the text \/dev\/zero: it is a device, and only a regular file can be read/
    ],
    [
        2,
        "--resume $work/index",
        2,
        qr/\S+index\.json cannot be read: it is a pipe, and only a regular file can be read/
    ],
    [
        2,
        "--exit-after 1",
        2,
        qr/--exit-after says when the run saves and ends: give --save DIR, too/
    ],
    [2, "--save $work/never --exit-after 0", 2, qr/--exit-after 0: expected minutes, more than 0/],
    [2, "--log $work/no/folder", 2, qr/cannot write the log \S+folder: No such file/, 'mpi'],

    # A log that cannot be written must be found before the memory of a large model is allocated.
    [2, "--log $work/no/folder --layers 48 --width 4096", 2, qr/cannot write the log/],
    [
        2,
        "--export $work/no/folder",
        2,
        qr/--export \S+folder: cannot write it: No such file.*; name a file in a folder that exists/,
        'mpi'
    ],
    (
        map { [2, "--$_ $work/pipe", 2, qr/--$_ \S+pipe: no program reads this pipe: start its/] }
            qw(log json svg trace export)
    ),
    [2, "--export $work", 2, qr/--export \S+: cannot write it: Is a directory/],
    [
        2,
        "--json $work/no/folder",
        2,
        qr/--json \S+folder: cannot write it: No such file.*; name a file in a folder that exists/,
        'mpi'
    ],
    (
        map {
            [
                2, "--$_ $work/no/folder",
                2, qr/--$_ \S+folder: cannot write it: No such file.*; name a file in a folder/,
                'mpi'
            ]
        } qw(svg trace)
    ),
    [2, 'train', 2, qr/unexpected argument train: options start with --/],
    (
        -c '/dev/full'
        ? (
            [2, '--log /dev/full', 3, qr/cannot write the log \/dev\/full: No space left/, 'mpi'],
            [
                2, '--export /dev/full',
                3, qr/--export \/dev\/full: cannot write it: No space left/, 'mpi'
            ],
            (
                map { [2, "--$_ /dev/full", 3, qr/--$_ \/dev\/full: cannot write it/] }
                    qw(json svg trace)
            )
            )
        : ()
    ),
);
my @jobs;
for my $mistake (@mistakes) {
    my ($ranks, $options, $status, $words, $mpi) = @$mistake;
    for my $way (\&emu, $mpi && have_mpi ? \&mpi : ()) {
        my $job = $way->($ranks, $train, @tiny, split ' ', $options);
        @$job{qw(name want words_wanted)} =
            (($way == \&emu ? 'emulated: ' : 'processes: ') . $options, $status, $words);
        push @jobs, $job;
    }
}

# Three more mistakes: a rank count above the maximum, --emulate under mpirun, and a full standard
# output.
push @jobs,
    {
    %{ emu(600, $train) },
    name => '--emulate 600',
    want => 2,
    words_wanted => qr/--emulate 600: expected a whole number from 1 to 512/
    };
push @jobs,
    {
    %{ mpi(2, $train, '--emulate', 2) },
    name => '--emulate under mpirun',
    want => 2,
    words_wanted =>
        qr/--emulate makes virtual ranks in one process, but mpirun started 2 processes: leave the option or mpirun out/
    }
    if have_mpi;
push @jobs,
    {
    %{ emu(2, $train, @tiny) },
    name => 'standard output full',
    want => 3,
    words_wanted => qr/standard output could not be written/,
    stdout => '/dev/full'
    }
    if -c '/dev/full';
$_->{json} = 0 for @jobs;
run_jobs(\@jobs);
for my $job (@jobs) {
    is($job->{status}, $job->{want}, "$job->{name}: status $job->{want}") or diag(complain($job));
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    is(scalar @messages, 1, "$job->{name}: one message") or diag($job->{err});
    like($messages[0] // '', $job->{words_wanted}, "$job->{name}: the message names the fix");
    ok(before_work($job), "$job->{name}: the run ends before the work")
        or diag($job->{out})
        if $job->{want} == 2;
}
is((scalar grep { /--(log|export|json) \// } map { "@{ $_->{words} }" } @jobs) > 8,
    1, 'files that cannot be written are among these mistakes');
ok(!-e '/dev/full' || (-c '/dev/full' && !-e '/dev/full.tmp'), 'a device is not replaced');
ok(!(grep { -e "$work/$_" } 'no', 'text.tmp'), 'no file remains');

# ---- a rank that dies, a rank that hangs ----
SKIP: {
    skip 'no mpirun', 8 unless have_mpi;

    # The launcher sees that a rank has died, so no rank waits for it. A stopped rank is noticed by
    # the ranks that wait for it.
    for my $case (['KILL', 10 * $hang], ['STOP', $wait]) {
        my ($signal, $timeout) = @$case;
        my $log = "$work/$signal.log";
        my $job = mpi(4, $train, @tiny, '--steps', 1000000, '--timeout', $timeout, '--log', $log);
        $job->{json} = 0;
        my $pid = start($job);
        my $deadline = time + $hang;
        sleep 0.05 while time < $deadline && (-s $log // 0) < 500;    # until the run trains
        my @ranks = ranks_of($pid);
        is(scalar @ranks, 4, "SIG$signal: four ranks are training");
        kill $signal, $ranks[2] if @ranks == 4;
        $deadline = time + $hang;
        my $ended = 0;

        until ($ended || time > $deadline) {
            $ended = waitpid($pid, 1) == $pid;
            sleep 0.05;
        }
        my $status = $ended ? $? >> 8 : 'none: the run hangs';
        if (!$ended) { kill 'KILL', @ranks; kill 'TERM', $pid; waitpid $pid, 0 }
        my $err = slurp("$job->{place}.err");
        is($status, 3, "SIG$signal of one rank: status 3") or diag($err);
        like(
            $err,
            $signal eq 'STOP'
            ? qr/^\[rank \d\] waited $wait s in .*; --timeout sets how long\. /m
            : qr/^unsplit: .* ended with status \d+ \(.*\): a fault$/m,
            "SIG$signal of one rank: a message names the rank"
        ) or diag($err);
        my @left;
        do {
            @left = grep { -d "/proc/$_" && slurp("/proc/$_/stat") !~ /\) Z / } @ranks;
            sleep 0.05;
        } while (@left && time < $deadline);
        is("@left", '', "SIG$signal of one rank: no rank remains");
        kill 'KILL', @left;
    }
}
done_testing();
