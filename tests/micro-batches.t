#!/usr/bin/perl
# Tests pipelines with fewer, equally many and more micro-batches than stages, including numbers
# that do not divide. Either all checks and costs must hold, or a message must say which number the
# method needs.
# TEST_ALL=1 takes 1, 2, 3, 4 and 8 stages instead of 3.
# slow: about fifty runs with virtual ranks
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(uniq);
use Test::More;

chdir "$FindBin::Bin/.." or die;

# a lesson, the sequences of its batch, its other options, the p and m that the lesson accepts, and
# the reason for refusing other p and m
my @lessons = (
    ['04_pipeline_naive/02_naive', 5],
    ['04_pipeline_naive/03_gpipe', 7],
    ['05_pipeline_1f1b/02_1f1b', 11],
    ['05_pipeline_1f1b/03_interleaved', 11, '', sub { $_[1] % $_[0] == 0 }, qr/in groups of p = /],
    ['05_pipeline_1f1b/03_interleaved', 11, '--chunks 1'],
    [
        '05_pipeline_1f1b/05_pipedream_2bw', 11,
        '', sub { $_[1] >= $_[0] },
        qr/at least as many as the \d stages/
    ],
    ['05_pipeline_1f1b/06_zero_bubble', 11],
    ['07_recompute/04_budget', 9, '--batch 9']
);
plan skip_all => "$_ is not built" for grep { !-x } map { program_of('fp32', $_->[0]) } @lessons;

my @jobs;
for my $lesson (@lessons) {
    my ($name, $sequences, $options, $legal, $why) = @$lesson;
    for my $p ($all ? (1, 2, 3, 4, 8) : 3) {
        for my $m (uniq grep { $_ >= 1 && $_ <= $sequences } 1, $p - 1, $p, $p + 1, 2 * $p,
            2 * $p + 1) {
            push @jobs,
                {
                %{
                    emu(
                        $p,
                        program_of('fp32', $name),
                        split(' ', $options // ''),
                        '--micro-batches', $m
                    )
                },
                name => join(' ', $name, $options || (), "p = $p, m = $m"),
                legal => !$legal || $legal->($p, $m),
                why => $why
                };
        }
    }
}
run_jobs(\@jobs);
for my $job (@jobs) {
    if ($job->{legal}) {
        ok($job->{status} == 0 && $job->{page}{pass}, $job->{name}) or diag(complain($job));
    } else {
        ok($job->{status} == 2 && $job->{err} =~ $job->{why} && before_work($job),
            "$job->{name}: refused, with the reason")
            or diag(complain($job));
    }
}
done_testing();
