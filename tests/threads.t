#!/usr/bin/perl
# Tests --threads. At each number of threads the checks must hold, and an emulated run and processes
# must give the same bits. Also tests the default number.
# slow: each number of threads runs as processes, too
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
my @tiny = qw(--layers 2 --width 48 --heads 4 --context 16 --batch 4 --steps 3 --eval-every 0);
my ($probe) = run_jobs([emu(1, $train, @tiny, qw(--threads 2))]);
plan skip_all => 'this compiler has no OpenMP'
    if $probe->{status} == 2 && $probe->{err} =~ /built without OpenMP/;

sub passes {
    my ($job, $what) = @_;
    return ok($job->{status} == 0 && $job->{page}{pass}, $what) || diag(complain($job));
}
sub digest { return $_[0]{page}{digest} // 'none' }

sub cores {
    my ($n, $job) = @_;
    return {
        %$job,
        words => [
            'env', "LD_PRELOAD=build/cpu-fp32/tests/pretend_cores.so",
            "PRETEND_CORES=$n", @{ $job->{words} }
        ]
    };
}

# ---- lessons and the trainer, with several threads ----
for my $case (
    ['03_tensor_parallel/06_transformer.c', 4],
    ['06_zero/04_zero3.c', 4],
    ['07_recompute/03_selective.c', 4],
    ['08_3d/train.c', 4, @tiny, '--check']
) {
    my ($source, $ranks, @options) = @$case;
    my $program = program_of('fp32', $source);
    for my $threads (1, 2, 3) {
        my @jobs = (
            emu($ranks, $program, @options, '--threads', $threads),
            have_mpi ? mpi($ranks, $program, @options, '--threads', $threads) : ()
        );
        run_jobs([@jobs]);
        passes($jobs[0], "$source, $threads threads");
        next unless have_mpi;
        passes($jobs[1], "$source, $threads threads, as processes");
        is(digest($jobs[1]), digest($jobs[0]), "$source, $threads threads: the same bits");
    }
}

# ---- the number of threads per rank ----
my ($emu, $few, $checked, $ordered, $asked, $mpi) = run_jobs(
    [
        cores(8, emu(2, $train, @tiny)),
        cores(3, emu(4, $train, @tiny)),
        cores(8, emu(2, $train, @tiny, '--check')),
        cores(8, emu(2, $train, @tiny, qw(--reduce ordered))),
        cores(8, emu(2, $train, @tiny, qw(--threads 3))),
        have_mpi ? cores(8, mpi(2, $train, @tiny)) : ()
    ]
);

sub threads {
    my ($job, $n, $what) = @_;
    like($job->{out}, qr/, $n threads? per rank$/m, $what) or diag(complain($job));
}
threads($emu, 4, 'the trainer divides the cores among the ranks');
threads($few, 1, 'a rank has at least one thread');
threads($checked, 1, 'one with --check');
threads($ordered, 1, 'with --reduce ordered a rank has one thread');
threads($asked, 3, '--threads sets the number of threads');
if ($mpi) {
    threads($mpi, 4, 'processes of one machine share its cores');
    is(digest($mpi), digest($emu),
        'with more cores than ranks, too, the same bits emulated and as processes');
}
my ($lesson) = run_jobs([cores(8, emu(4, program_of('fp32', '03_tensor_parallel/02_linear.c')))]);
unlike($lesson->{out}, qr/threads (?:each|per rank)/, 'a lesson has one thread');

# ---- waiting threads sleep if tools/launch starts the program (OpenMP prints its settings)
SKIP: {
    local $ENV{OMP_DISPLAY_ENV} = 'verbose';
    local @ENV{qw(OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME)};
    delete @ENV{qw(OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME)};
    my $bare = sub {
        my (@settings) = @_;
        return { json => 1, words => ['env', @settings, $train, '--emulate', 2, @tiny] };
    };
    my ($launched, $users) = run_jobs([emu(2, $train, @tiny), $bare->('OMP_WAIT_POLICY=active')]);

    # OpenMP prints the number of checks before a thread sleeps.
    my $looks = sub { my ($job) = @_; return join ' ', $job->{err} =~ /GOMP_SPINCOUNT = '(\w+)'/g };
    skip 'this OpenMP does not say its settings', 2 unless $looks->($launched) =~ /\d/;
    is($looks->($launched), '0', 'tools/launch makes waiting threads sleep');
    like($looks->($users), qr/^[1-9]\d*$/, 'a setting of the user\'s stays');
}
for my $wrong (0, 2000, 'two') {
    my ($job) = run_jobs([emu(2, $train, @tiny, '--threads', $wrong)]);
    is($job->{status}, 2, "--threads $wrong: status 2");
    like(
        $job->{err},
        qr/--threads $wrong: expected a whole number/,
        "--threads $wrong: the message"
    );
}
done_testing();
