#!/usr/bin/perl
# Balancing with other speeds: a device so slow that it gets nothing to do, equal devices, the slowest one first; with the same bits
# as processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @pairs;
for my $precision (qw(fp32 fp64)) {
    my $program = program_of($precision, '01_data_parallel/07_balance.c');
    plan skip_all => "$program is not built" unless -x $program;
    for my $form ([4, qw(--slow 1,1,1,100)], [3, qw(--slow 1)], [5, qw(--slow 1000,1,3)]) {
        my ($ranks, @options) = @$form;
        my $pair = { name => "$precision, $ranks ranks @options", emu => emu($ranks, $program, @options) };
        $pair->{mpi} = mpi($ranks, $program, @options) if have_mpi && $precision eq 'fp32';
        push @pairs, $pair;
    }
}
run_jobs([map { grep { defined } @{$_}{qw(emu mpi)} } @pairs]);

for my $pair (@pairs) {
    my ($emu, $mpi) = @$pair{qw(emu mpi)};
    ok($emu->{status} == 0 && $emu->{page}{pass}, "$pair->{name}: all checks hold") or diag(complain($emu));
    next unless $mpi;
    ok($mpi->{status} == 0 && $mpi->{page}{pass}, "$pair->{name}: as processes, too") or diag(complain($mpi));
    is($mpi->{page}{digest}, $emu->{page}{digest}, "$pair->{name}: with the same bits");
}
done_testing();
