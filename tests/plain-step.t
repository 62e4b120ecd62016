#!/usr/bin/perl
# Compares train_step_plain() of trainer.c, which has dp x tp x pp in one function, with the
# trainer's own step. The two steps must give the same bits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_plain_step.c';
my @layouts = (
    [8],
    [8, qw(--dp 2 --tp 4 --pp 1)],
    [4, qw(--dp 4 --tp 1 --pp 1)],
    [3, qw(--dp 1 --tp 1 --pp 3)],
    [1, qw(--dp 1 --tp 1 --pp 1)]
);

for my $precision (qw(fp32 fp64)) {
    my $program = program_of($precision, $source);
    plan skip_all => "$program is not built" unless -x $program;
    for my $layout (@layouts) {
        my ($ranks, @options) = @$layout;
        my ($job) = run_jobs([emu($ranks, $program, @options)]);
        ok($job->{status} == 0 && $job->{page}{pass},
            "$precision, $ranks ranks @options: plain = trainer")
            or diag(complain($job));
        is(scalar @{ $job->{page}{checks} || [] },
            3, 'plain step: weights, losses and norms are compared');
    }
}
done_testing();
