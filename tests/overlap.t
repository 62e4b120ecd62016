#!/usr/bin/perl
# Tests that messages move while ranks compute: by a single copy between processes or, if a
# container forbids this copy, in MPI calls between products.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $program = program_of('fp32', 'tests/test_overlap.c');
plan skip_all => "$program is not built" unless -x $program;
plan skip_all => 'no mpirun' unless have_mpi;
$ENV{LAUNCH_LIMIT} = 600;

my $forbid = 'build/cpu-fp32/tests/no_single_copy.so';
my ($built, $boards) = ($program, 0);

sub run_it {
    my ($ranks, $env, @options) = @_;
    my $job = mpi($ranks, $built, '--board', "$work/board" . $boards++, @options);
    $job->{words} = ['env', @$env, @{ $job->{words} }];
    return run_jobs([$job]);
}

# Checks that messages move. A message that does not move takes minutes, so the test ends.
sub moves {
    my ($what, $job) = @_;
    ok($job->{status} == 0 && $job->{page}{pass}, $what)
        or diag(complain($job)), done_testing(), exit 1;
    is($job->{err}, '', "$what: no warning");
}

my ($silent) = run_it(2, [], '--silent', '--timeout', 20);
my $single_copy = $silent->{status} == 0;
SKIP: {
    skip 'no single copy between processes here', 2 unless $single_copy;
    moves('one copy, no product', $silent);
}
for my $schedule (qw(gpipe 1f1b)) {
    for my $ranks (2, 3) {
        moves("$schedule, $ranks stages", run_it($ranks, [], '--schedule', $schedule));
        moves(
            "$schedule, $ranks stages, no single copy",
            run_it(
                $ranks, ['OMPI_MCA_btl_vader_single_copy_mechanism=none'],
                '--schedule', $schedule
            )
        );
    }
}

# The program detects that the copy is forbidden, so Open MPI prints no warnings.
moves('the single copy is forbidden', run_it(2, ["LD_PRELOAD=$forbid"], '--schedule', '1f1b'));

# On the stand-ins ranks with GPUs send through host memory (staged), or with NCCL.
SKIP: {
    $built = 'build/standin-fp32/tests/test_overlap';
    skip 'the stand-ins are not built', 1 unless -x $built;
    for my $transport (qw(staged nccl)) {
        moves("$transport, $_",
            run_it(2, ['STANDIN_GPUS=2'], '--transport', $transport, '--schedule', $_))
            for qw(gpipe 1f1b);
    }
}
done_testing();
