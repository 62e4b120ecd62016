#!/usr/bin/perl
# Tests over which ranks a unit's gradient is summed (tests/test_units.c). A parameter may be
# partial over a row of ranks, a unit may have its own replicas, and ZeRO's shards are gathered
# again.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
for my $precision (qw(fp32 fp64)) {
    my $program = program_of($precision, 'tests/test_units.c');
SKIP: {
        skip "$program is not built", 1 unless -x $program;
        for my $job (
            run_jobs([emu(6, $program), have_mpi && $precision eq 'fp32' ? mpi(6, $program) : ()]))
        {
            ok(
                $job->{status} == 0 && $job->{page}{pass},
                "$precision, $job->{page}{transport}: every check"
            ) or diag(complain($job));
            is(
                scalar @{ $job->{page}{checks} || [] },
                41,
                '5 stages: 2 x 2 of one step, 4 evaluations, 3 of the state; the weights of '
                    . 'wte; a text'
            );
        }
    }
}
done_testing();
