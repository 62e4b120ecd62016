#!/usr/bin/perl
# Tests the lessons that store 16 bits: all checks and costs hold, emulated and as processes, with
# the same bits. The other programs refuse --storage.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @lessons = qw(01_data_parallel/02_all_reduce.c 03_tensor_parallel/06_transformer.c
    05_pipeline_1f1b/02_1f1b.c
    06_zero/02_zero1.c 06_zero/03_zero2.c 06_zero/04_zero3.c);
plan skip_all => 'the lessons are not built'
    if grep { !-x program_of('fp32', $_) || !-x program_of('fp64', $_) } @lessons;

for my $lesson (@lessons) {
    my @forms = ([4, qw(--storage bf16)], [4, qw(--storage fp16 --gradients stored)]);
    push @forms, [3, qw(--storage bf16 --gradients stored --seed 2)],
        [2, qw(--storage fp16 --reduce fast)]
        if $all;
    forms_hold(forms_of($lesson, @forms));
}

# ---- the digest depends on the storage ----
my $lesson = program_of('fp32', $lessons[0]);
my @stored = map { emu(4, $lesson, '--storage', $_) } qw(real bf16 fp16);
run_jobs([@stored]);
my %digests = map { ($_->{page}{digest} // 'none') => 1 } @stored;
is(scalar(keys %digests), 3, 'reals, bf16 and fp16 give different bits');

# ---- every program either declares --storage or refuses it ----
my @refusals;
for my $other (lessons()) {
    next if grep { $_ eq $other->{source} } @lessons;
    my $program = program_of('fp32', $other->{source});
    push @refusals,
        { %{ emu($other->{ranks}, $program, qw(--storage bf16)) }, name => $other->{key} }
        if -x $program;
}
run_jobs([@refusals]);
for my $job (@refusals) {
    ok(
        $job->{status} == 2
            && $job->{err} =~
            /--storage bf16: this program stores reals only; leave the option out/,
        "$job->{name} refuses --storage bf16"
    ) or diag(complain($job));
}
my ($wrong) = run_jobs([emu(4, $lesson, qw(--storage fp8))]);
like($wrong->{err}, qr/--storage fp8: expected one of real\|bf16\|fp16/, 'another format');
done_testing;
