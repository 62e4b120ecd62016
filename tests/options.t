#!/usr/bin/perl
# Tests the command line: --help in groups, suggestions for unknown options, and refused options,
# such as an option given twice or one file for two options.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
my $lesson = program_of('fp32', '03_tensor_parallel/02_linear.c');
plan skip_all => "$train is not built" unless -x $train;
my $alone = !-x $lesson;    # a planted bug's tree builds only the trainer

# ---- --help ----
my ($help, $simple) = run_jobs(
    [map { +{ words => ['tools/launch', '-e', 2, $_, '--help'] } } $train, $alone ? () : $lesson]);
is($help->{status}, 0, '--help: status');
my @headings = $help->{out} =~ /^(\S.*):\n  --/mg;
is(
    join(', ', @headings),
    'Parallelism, Model, Data, Training, Memory, Checkpoints, Output, Run, as in every program',
    '--help of the trainer: its groups'
);
my ($examples) = $help->{out} =~ /^Examples:\n(.*?)\n\n/ms;
is(scalar(() = ($examples // '') =~ /^  \S/mg), 5, '--help of the trainer: five examples');
like(
    $help->{out},
    qr/^Training:\n(?:  --.*\n)*  --lr X +highest learning rate \(default 0\.003\)\n/m,
    '--help of the trainer: an option in its group'
);

unless ($alone) {
    is(
        join(', ', $simple->{out} =~ /^(\S.*):\n  --/mg),
        'Options of every program',
        '--help of a lesson has no groups'
    );
    unlike($simple->{out}, qr/Examples/, '--help of a lesson has no examples');
}

# The trainer must accept the options of every example. --help ends the run before a file is read,
# so the examples' files need not exist.
for my $example (($examples // '') =~ /^  (?:mpirun -np \d+ )?train (.*)$/mg) {
    my @words = map { s/^'|'$//gr } split ' ', $example =~ s/my\.txt/$work\/none/r;
    my ($job) = run_jobs([{ words => [qw(tools/launch -e 0), $train, @words, '--help'] }]);
    is($job->{status}, 0, "the example train $example") or diag(complain($job));
}

# ---- refused: one message, status 2, before the work ----
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f }
symlink 'one', "$work/link" or die;
mkdir "$work/sub" or die;
my @tiny = (
    qw(--layers 2 --width 16 --heads 2 --context 8 --batch 4 --micro-batch 4 --eval-every 0 --data),
    "$work/text"
);
my $twice = qr/--steps is given twice: give it once/;
my $same = qr/name the same file: give each a file of its own/;
my @cases = (
    [
        $train,
        '--lerning-rate 1',
        qr/unknown option --lerning-rate; the nearest is --lr \(highest learning rate\), and --help lists them all/
    ],
    [$train, '--learning-rate=1', qr/the nearest is --lr \(/],
    [$train, '--sead 1', qr/the nearest is --seed,/],
    [$train, '--step 1', qr/the nearest is --steps,/],
    [$train, '--batch-size 1', qr/the nearest is --batch,/],
    [$train, '--steps 2 --steps 3', $twice, 'mpi'],
    [$train, '--steps=2 --steps 2', $twice],
    [$train, '--check --check', qr/--check is given twice/],
    [$lesson, '--seed 1 --seed 1', qr/--seed is given twice/],
    [$lesson, '--verbose --verbose', qr/--verbose is given twice/],
    [$train, "--log $work/X --json $work/X", qr/--json $work\/X and --log $work\/X $same/, 'mpi'],
    [$train, "--log $work/X --json $work/sub/../X", $same],
    [$train, "--log $work/text", $same],
    [$train, "--json $work/X --svg $work/X", $same],
    [$train, "--trace $work/X --export $work/X", $same],
    [$train, "--save $work/X --log $work/X", $same],
    [$train, "--export $work/one --log $work/link", $same, 'exists'],
    [$lesson, "--json $work/X --svg $work/X", $same],
    [
        $train,
        '--steps 5 --warmup 6',
        qr/--warmup 6: the learning rate falls after it, and --steps ends at step 5: choose --warmup 5 or less/
    ],
    [$train, '--beta1 1', qr/--beta1 1: expected at least 0 and less than 1, such as 0\.9/],
    [$train, '--beta2 -0.1', qr/--beta2 -0\.1: expected at least 0 and less than 1/],
    [$train, '--eps 0', qr/--eps 0: expected more than 0/],
    [
        $train,
        '--optimizer sgd --beta1 0.9',
        qr/--beta1 is of AdamW: leave --beta1 out, or choose --optimizer adamw/
    ],
);
my @jobs;

for my $case (@cases) {
    my ($program, $options, $words, $how) = @$case;
    next if $alone && $program eq $lesson;
    for my $way (\&emu, ($how // '') eq 'mpi' && have_mpi ? \&mpi : ()) {
        my @model = $program eq $train ? @tiny : ();
        push @jobs,
            {
            words => $way->(2, $program, @model, split ' ', $options)->{words},
            twice => 1,
            want => $words,
            name => $options,
            how => $how // ''
            };
    }
}
for my $job (@jobs) {    # a link's target is known only if the file exists
    if ($job->{how} eq 'exists') { open my $f, '>', "$work/one" or die; close $f }
    run_jobs([$job]);
    is($job->{status}, 2, "$job->{name}: status 2") or diag(complain($job));
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    is(scalar @messages, 1, "$job->{name}: one message") or diag($job->{err});
    like($messages[0] // '', $job->{want}, "$job->{name}: the message names the fix");
    ok(before_work($job), "$job->{name}: the run ends before the work") or diag($job->{out});
}
ok(!-e "$work/X", 'no file is made');
like(slurp("$work/text"), qr/^1 2 3 /, 'the text is as it was');

# ---- accepted options ----
my ($brief, $long) = run_jobs([map { emu(1, $train, @tiny, '--steps', $_) } 10, 20]);
like(
    $brief->{out},
    qr/^the learning rate only rises, to 0\.0015, because --warmup 20 is longer than the training of 10 steps$/m,
    'a training shorter than the default --warmup says so'
) or diag(complain($brief));
unlike($long->{out}, qr/only rises/, 'a training longer than the default --warmup does not say so');
my ($null, $small, $betas, $default) = run_jobs(
    [
        emu(
            2, $train, @tiny, qw(--steps 2 --log /dev/null --export),
            "$work/weights", qw(--svg /dev/null)
        ),
        emu(1, $train, @tiny, qw(--steps 2 --warmup 2 --lr 6e-6)),
        map { emu(1, $train, @tiny, qw(--steps 3 --warmup 2 --reduce ordered), @$_) }
            [qw(--beta1 0.5 --beta2 0.5 --eps 1e-3)],
        []
    ]
);
is($null->{status}, 0, 'two options may name a device') or diag(complain($null));
like($small->{out}, qr/^step +1 .* lr 6e-06 /m, '--lr 6e-6 is shown as it is')
    or diag($small->{out});

# The test itself opens the pipe for reading and writing, so the pipe has a reader.
system('mkfifo', "$work/read") == 0 or die "mkfifo $work/read";
open my $pipe, '+<', "$work/read" or die;
my ($piped) = run_jobs([emu(1, $train, @tiny, qw(--steps 2 --warmup 2 --log), "$work/read")]);
is($piped->{status}, 0, 'a log may be a pipe that a program reads') or diag(complain($piped));
sysread $pipe, my $log, 1 << 16;
is(scalar(() = ($log // '') =~ /^\{"step":/mg),
    2, 'the reader of the pipe gets the lines of the log');
close $pipe;
is($betas->{status}, 0, '--beta1, --beta2, --eps') or diag(complain($betas));
isnt(
    $betas->{page}{digest} // '',
    $default->{page}{digest} // '',
    '--beta1, --beta2 and --eps change the training'
);
done_testing();
