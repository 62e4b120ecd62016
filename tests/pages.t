#!/usr/bin/perl
# The page of every lesson: at most 40 lines of 100 columns, with its own ranks and with eight. The trainer's, which has a line per ten
# steps, is another kind.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @lessons = grep { $_->{key} ne '08-train' && $_->{key} ne '00' } lessons();
plan skip_all => 'there is no lesson yet' unless @lessons;
my @jobs;
for my $lesson (@lessons) {
    my %ranks = map { $_ => 1 } $lesson->{ranks}, 8;
    push @jobs, map { +{ words => ['env', 'COLUMNS=100', 'tools/launch', '-e', $_, program_of('fp32', $lesson->{source})],
                         name => "$lesson->{key}, $_ ranks", own => $_ == $lesson->{ranks} } } sort keys %ranks;
}
run_jobs(\@jobs);
for my $job (@jobs) {
    next if $job->{status} == 2 && !$job->{own};           # a lesson that has other ranks only
    my @lines = split /\n/, $job->{out}, -1;
    pop @lines;
    ok($job->{status} == 0 && @lines <= 40, "$job->{name}: " . @lines . ' lines') or diag($job->{err});
    is(join("\n", grep { length > 100 } @lines), '', "$job->{name}: no line is wider");
}
done_testing();
