#!/usr/bin/perl
# Checks the bits and the memory of stages that keep the input of every k-th block only
# (tests/test_segments.c), for several rank counts and numbers of micro-batches.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_segments.c';
my @built = grep { -x program_of($_, $source) } qw(fp32 fp64);
plan skip_all => "$source is not built" unless @built;
my @jobs;
for my $precision (@built) {
    for my $case ([1], [2], [3, qw(--batch 9 --micro-batches 4)], [8, qw(--storage bf16)]) {
        my ($ranks, @options) = @$case;
        push @jobs,
            {
            %{ emu($ranks, program_of($precision, $source), @options) },
            name => "$ranks ranks @options, $precision"
            };
    }
}
run_jobs(\@jobs);
for my $job (@jobs) {
    ok($job->{status} == 0 && $job->{page}{pass}, "$job->{name}: every segment = unsplit")
        or diag(complain($job));
    is(scalar @{ $job->{page}{costs} || [] }, 4, "$job->{name}: the peak of four lengths");
}
done_testing();
