#!/usr/bin/perl
# Tests the coordinator with cycles and fused all-reduces of several sizes. The sums must have the
# bits of one device, and all costs must be exact. The best cycle must lie between the extremes:
# with a shorter cycle the ranks wait for answers, and with a longer cycle they send late. The best
# size of an all-reduce must lie between the extremes, too: smaller all-reduces pay more latencies,
# and a larger all-reduce is copied before it leaves.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = '01_data_parallel/09_coordinator.c';
my ($program, $doubles) = map { program_of($_, $source) } qw(fp32 fp64);
plan skip_all => "$program is not built" unless -x $program;

my (@jobs, %at);
for my $cycle (1, 3, 6, 12, 24) {
    for my $fused (1, 3, 6, 24) {
        my @options = ('--cycle', $cycle, '--fused', $fused);
        push @jobs,
            $at{"$cycle $fused"} = { %{ emu(4, $program, @options) }, name => "fp32 @options" };
        push @jobs, { %{ emu(3, $doubles, @options) }, name => "fp64, 3 ranks, @options" }
            if -x $doubles;
    }
}
run_jobs(\@jobs);
ok($_->{status} == 0 && $_->{page}{pass}, "$_->{name}: all checks hold")
    or diag(complain($_))
    for @jobs;

sub step {
    my ($time) = grep { $_->{id} eq 'time.cache' } @{ $at{"@_"}{page}{costs} // [] };
    return $time->{measured} // 0;
}
my @cycles = map { step($_, 24) } 1, 3, 24;
ok(
    $cycles[1] > 0 && $cycles[1] < $cycles[0] && $cycles[1] < $cycles[2],
    'the best cycle is neither the shortest nor the longest'
) or diag("@cycles");
my @sizes = map { step(24, $_) } 1, 6, 24;
ok(
    $sizes[1] > 0 && $sizes[1] < $sizes[0] && $sizes[1] < $sizes[2],
    'the best all-reduce is neither the smallest nor the largest'
) or diag("@sizes");
done_testing();
