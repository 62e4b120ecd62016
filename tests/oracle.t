#!/usr/bin/perl
# Compares PyTorch's results in double (tests/oracle.txt) with the unsplit model and with the
# trainer in several layouts.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $program = program_of('fp64', 'tests/test_oracle.c');
plan skip_all => "$program is not built" unless -x $program;

my @layouts = (
    [1, '--unsplit'],
    [1, qw(--micro-batch 1)],
    [2, qw(--dp 2 --zero 1)],
    [2, qw(--tp 2)],
    [2, qw(--pp 2 --micro-batch 1)],
    [2, qw(--cp 2)],
    [4, qw(--cp 2 --tp 2 --sequence-parallel)],
    [4, qw(--cp 2 --dp 2 --zero 3 --micro-batch 1)],
    [2, qw(--tp 2 --sequence-parallel)],
    [4, qw(--dp 2 --tp 2 --sequence-parallel --zero 2 --micro-batch 1)],
    [4, qw(--dp 2 --tp 2 --zero 3)],
    [8, qw(--dp 2 --tp 2 --pp 2 --zero 2 --micro-batch 1)],
    [3, qw(--dp 3)],
    [4, qw(--tp 4 --tensor 2d)],
    [8, qw(--dp 2 --tp 4 --tensor 2d --zero 2 --micro-batch 1)],
    [8, qw(--tp 8 --tensor 2.5d)],
    [8, qw(--tp 8 --tensor 3d)]
);

for my $layout (@layouts) {
    my ($ranks, @options) = @$layout;
    for my $optimizer (qw(sgd adamw)) {
        my @jobs = (
            emu($ranks, $program, @options, '--optimizer', $optimizer),
            have_mpi
                && $ranks == 4 ? mpi($ranks, $program, @options, '--optimizer', $optimizer) : ()
        );
        run_jobs(\@jobs);
        ok($_->{status} == 0 && $_->{page}{pass}, "$optimizer, $ranks ranks @options: as PyTorch")
            or diag(complain($_))
            for @jobs;
        is(scalar @{ $jobs[0]{page}{checks} || [] },
            6, 'start, gradients of the first and last step, weights, losses, norms');
    }
}

# A changed number in the file must make a check fail.
my $text = slurp('tests/oracle.txt');
for my $key (
    'start.wte.weight', 'sgd.first-gradients.h.1.ln_2.bias',
    'sgd.weights.wpe.weight', 'sgd.loss',
    'sgd.norm'
) {
    my $changed = $text =~ s/^(\Q$key\E \S+ )(\S+)/$1 . ($2 + 1e-6)/mer;
    isnt($changed, $text, "$key can be changed");
    { open my $f, '>', "$work/changed" or die; print $f $changed; close $f or die }
    my ($job) = run_jobs([emu(1, $program, '--file', "$work/changed")]);
    is($job->{status}, 1, "a changed $key makes a check fail");
}
my ($gone) = run_jobs([emu(1, $program, '--file', "$work/gone")]);
is($gone->{status}, 2, 'without the file of results: status 2');
done_testing();
