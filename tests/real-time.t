#!/usr/bin/perl
# Checks that a page in real time claims only times that can be measured.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
plan skip_all => 'no mpirun' unless have_mpi;

# In real time a rank cannot measure when a message moves before the wait. So the hidden time is 0
# or unknown, and the exposed time is part of the step.
for my $lesson (qw(04_pipeline_naive/02_naive 04_pipeline_naive/03_gpipe 05_pipeline_1f1b/02_1f1b))
{
    next unless -x program_of('fp32', "$lesson.c");
    my ($job) = run_jobs([mpi(2, program_of('fp32', "$lesson.c"), qw(--clock wall))]);
    my @lines = $job->{out} =~ /^(step .* hidden.*)$/mg;
    ok($job->{status} == 0 && @lines > 0, "$lesson in real time") or diag(complain($job));
    is(scalar(grep { !/ (?:0\.000 us|unknown time) hidden/ } @lines),
        0, "$lesson: no hidden time that cannot be measured")
        or diag(@lines);
    my %second = (s => 1, ms => 1e-3, us => 1e-6);
    is(
        scalar(
            grep {
                !/^step ([\d.]+) (\w+), .*communication, mean: ([\d.]+) (\w+) exposed/
                    || $3 * $second{$4} > $1 * $second{$2}
            } @lines
        ),
        0,
        "$lesson: a rank waits no longer than the step"
    ) or diag(@lines);
}

# The table of 01.04 has hidden times of 0, for sums at the end of backward, and unknown hidden
# times, for buckets.
my ($buckets) =
    run_jobs([mpi(2, program_of('fp32', '01_data_parallel/04_overlap.c'), qw(--clock wall))]);
is($buckets->{status}, 0, '01.04 in real time') or diag(complain($buckets));
like(
    $buckets->{out},
    qr/^  hidden, mean of ranks +0 s +unknown /m,
    '01.04: no hidden time that cannot be measured'
);
done_testing();
