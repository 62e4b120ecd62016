#!/usr/bin/perl
# Tests every kind of context parallelism, combined with tensor and sequence parallelism,
# recomputation, split backwards and ZeRO. TEST_ALL=1 also runs on two ranks.
# slow: each form runs in both precisions, and as processes
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_context.c';
plan skip_all => "$source is not built" if grep { !-x program_of($_, $source) } qw(fp32 fp64);
my @pairs = forms_of($source, map { [$_] } $all ? 1 .. 4 : (1, 3, 4));
forms_hold(@pairs);
cmp_ok(scalar @{ $_->{emu}{page}{checks} || [] }, '>=', 80, "$_->{name}: all checks were made")
    for @pairs;

# Tests the mesh of 08.01 with a fourth axis, --cp.
my $mesh = program_of('fp32', '08_3d/01_mesh.c');
my @meshes = map { emu($_->[0], $mesh, @$_[1 .. $#$_]) } [8, qw(--cp 2 --tp 2 --pp 1)],
    [8, qw(--cp 2 --tp 2 --pp 2)], [6, qw(--cp 3 --tp 1 --pp 1)];
my $wrong = emu(8, $mesh, qw(--cp 3));
run_jobs([@meshes, $wrong]);
for my $job (@meshes) {
    ok($job->{status} == 0 && $job->{page}{pass}, "mesh @{ $job->{words} }[-6 .. -1]")
        or diag(complain($job));
    is(
        (
            scalar grep { $_->{name} eq 'context parallel (cp)' && $_->{pass} }
                @{ $job->{page}{checks} || [] }
        ),
        1,
        'the mesh has its cp groups'
    );
}
ok($wrong->{status} == 2 && $wrong->{err} =~ /with --cp, ask for a multiple of 3 ranks/,
    '--cp that does not divide the ranks is refused');
done_testing();
