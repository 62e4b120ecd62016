#!/usr/bin/perl
# Checks the costs of 03_tensor_parallel/06_transformer with formulas of this test, in the papers'
# letters: traffic, parameters, the tensors that backward reads, and the exposed time. Sizes,
# degrees, links and precisions vary. Four all-reduces per layer send 8 b s h (t-1)/t elements per
# rank. A layer has 12 h^2/t + 7 h/t + 6 h parameters per rank.
# slow: each form runs in both precisions, and as processes
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = '03_tensor_parallel/06_transformer.c';
plan skip_all => "$source is not built" unless -x program_of('fp32', $source);

my ($b, $s, $V) = (3, 7, 61);    # the lesson's sequences, positions and words
my %link =
    (free => [0, 0], nvlink => [2e-6, 450e9], ib => [5e-6, 50e9], ethernet => [30e-6, 1.25e9]);
my @jobs;

sub job {
    my ($start, $t, $precision, $L, $h, $a, $dropout, $link, @more) = @_;
    my @words = (
        '--layers', $L, '--width', $h, '--heads', $a,
        '--dropout', $dropout, '--link', $link, @more
    );
    push @jobs,
        {
        %{ $start->($t, program_of($precision, $source), @words) },
        t => $t,
        e => $precision eq 'fp64' ? 8 : 4,
        L => $L,
        h => $h,
        a => $a,
        dropout => $dropout,
        link => $link,
        as => $start == \&mpi ? ', processes' : ''
        };
}
my @links = sort keys %link;
for my $precision (grep { -x program_of($_, $source) } qw(fp32 fp64)) {
    for my $size ([1, 16, 8, 0.1], [2, 32, 8, 0], [3, 24, 8, 0.2]) {
        for my $t (1, 2, 4, 8) {
            job(\&emu, $t, $precision, @$size, $links[0]);
            push @links, shift @links;
        }
    }
}
job(\&mpi, 4, 'fp32', 2, 32, 8, 0.1, 'nvlink', qw(--clock simulated)) if have_mpi;
run_jobs(\@jobs);

for my $job (@jobs) {
    my ($t, $e, $L, $h, $a) = @$job{qw(t e L h a)};
    my $name =
          "L = $L, h = $h, a = $a, t = $t, dropout $job->{dropout}, $job->{link}, "
        . 8 * $e
        . " bit$job->{as}";
    ok($job->{status} == 0 && $job->{page}{pass}, "$name: the lesson's own predictions hold")
        or diag(complain($job));
    my %measured = map { ($_->{name} => $_->{measured}) } @{ $job->{page}{costs} || [] };
    my ($alpha, $beta) = @{ $link{ $job->{link} } };
    my $sent =
        sub { my ($count, $size) = @_; return 2 * ($t - 1) * int(($count + $t - 1) / $t) * $size };
    my $lasts = sub {
        return $beta
            ? sprintf '%.0f', 2 * ($t - 1) * $alpha * 1e12 + $sent->(@_) * 1e12 / $beta
            : 0;
    };
    my $bsh = $b * $s * $h;
    my $norm = 12 * $L + 4;                 # one number per tensor of the model
    my $block = (12 * $h**2 + 7 * $h) / $t + 6 * $h;
    my $words = int(($V + $t - 1) / $t);    # entries of rank 0, whose costs are the largest
    my $kept =
        $bsh * (16 + 48 / $t + ($job->{dropout} ? 8 : 4) * $a * $s / ($h * $t) + 16 / $h) / 4;
    my $state = $L * $block + ($words + $s + 2) * $h;
    is(
        $measured{'all-reduces in the layers, a step'},
        4 * $L + 5,
        "$name: four all-reduces per layer"
    );
    is(
        $measured{'sent in the layers, a step'},
        $L * 8 * $bsh * ($t - 1) / $t * $e + 2 * $sent->($bsh, $e) + 3 * $sent->($b * $s, $e),
        "$name: 8 b s h (t-1)/t elements per layer"
    );
    is(
        $measured{'parameters'},
        $state * $e,
        "$name: parameters, with 12 h^2/t + 7 h/t + 6 h per block"
    );
    is($measured{'gradients (wte twice)'}, ($state + $words * $h) * $e, "$name: gradients");
    is($measured{"AdamW's m and v"}, 2 * $state * $e, "$name: the state of AdamW");
    is(
        $measured{'activations, peak'},
        ($L * $kept + $bsh + $b * $s * ($h + 3 + $words)) * $e,
        "$name: activations"
    );
    my $talk = (4 * $L + 2) * $lasts->($bsh, $e) + 3 * $lasts->($b * $s, $e) + $lasts->($norm, 8);

    # A block's forward takes 24 b s h^2 + 4 b s^2 h FLOPs. Rank 0's part of the head takes 2 b s h
    # V/t. Forward and backward take three times as many. A FLOP takes 1000 ps.
    my $work = 3 * 1000 * ($L * (24 * $bsh * $h + 4 * $bsh * $s) / $t + 2 * $bsh * $words);
    is($measured{'exposed communication of all ranks'}, $t * $talk, "$name: exposed communication");
    is($measured{'step'}, $work + $talk, "$name: the step");
}
done_testing();
