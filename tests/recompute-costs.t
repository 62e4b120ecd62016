#!/usr/bin/perl
# Checks the costs of recomputation (07_recompute) with formulas of this test: the second forward,
# to the picosecond, and the kept activations. Rank counts, links, micro-batches and dropout vary.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my %source = map { $_->{key} => $_->{source} } lessons();
my ($full, $selective) = map { $source{$_} && program_of('fp32', $source{$_}) } qw(07-02 07-03);
plan skip_all => 'the lessons of chapter 07 are not built'
    unless $full && $selective && -x $full && -x $selective;
sub part { my ($size, $n) = @_; return int(($size + $n - 1) / $n) }    # rank 0 has the largest part

my (@full, @selective);
for my $n (1, 2, 3, 4, 8) {
    for my $case ([3, 0.1, 'free'], [7, 0, 'ib'], [1, 0.1, 'ethernet']) {
        my ($m, $dropout, $link) = @$case;
        push @full,
            {
            %{
                emu(
                    $n, $full, '--micro-batches', $m,
                    '--dropout', $dropout, '--link', $link,
                    '--steps', 1
                )
            },
            n => $n,
            name => "full, N = $n, m = $m, dropout $dropout, $link"
            };
        push @selective,
            {
            %{ emu($n, $selective, '--dropout', $dropout, '--link', $link) },
            n => $n,
            link => $link,
            dropout => $dropout,
            name => "selective, N = $n, dropout $dropout, $link"
            };
    }
}
my @fp64 =
    -x program_of('fp64', $source{'07-03'})
    ? { %{ emu(4, program_of('fp64', $source{'07-03'})) }, name => 'selective, fp64' }
    : ();
run_jobs([@full, @selective, @fp64]);

sub costs_of {
    my ($job) = @_;
    ok($job->{status} == 0 && $job->{page}{pass}, "$job->{name}: the lesson's own predictions hold")
        or diag(complain($job));
    return map { ("$_->{name}, $_->{unit}" => $_->{measured}) } @{ $job->{page}{costs} || [] };
}
costs_of($_) for @fp64;

for my $job (@full) {
    my %measured = costs_of($job);
    my ($keep, $blocks, $stages) =
        map { $measured{"$_: this stage computes, ps"} // 0 } 'keep everything', 'recompute blocks',
        'recompute stages';
    cmp_ok($keep, '>', 0, "$job->{name}: computing takes time");
    is(3 * $stages,
        4 * $keep, "$job->{name}: with its second forward a stage takes 4/3 of the time");

    # 9 blocks of width 12, 7 sequences of 10 tokens, 1000 ps per FLOP
    next unless $job->{n} == 1;
    my ($M, $C, $T) = (70, 12, 10);
    is(
        $blocks - $keep,
        9 * (24 * $M * $C**2 + 4 * $M * $T * $C) * 1000,
        "$job->{name}: recomputed blocks take the time of another forward"
    );
}

my %link = (free => [0, 0], ib => [5e-6, 50e9], ethernet => [30e-6, 1.25e9]);
for my $job (@selective) {
    my %measured = costs_of($job);
    my ($L, $B, $T, $C, $H, $n) = (3, 3, 24, 27, 9, $job->{n});
    my ($M, $heads, $hidden) = ($B * $T, part($H, $n), part(4 * $C, $n));
    my $D = $C / $H;
    my $scores = $B * $heads * 2 * $T * $T * $D;    # q k^T of this rank's heads
    my $block = 2 * $M * $C * (4 * $heads * $D + 2 * $hidden) + 2 * $scores;
    my ($alpha, $beta) = @{ $link{ $job->{link} } };
    my $steps = 2 * ($n - 1);
    my $ring =
        $beta
        ? sprintf '%.0f', $steps * $alpha * 1e12 + $steps * part($M * $C, $n) * 4 * 1e12 / $beta
        : 0;
    my ($none, $less, $most) = map { $measured{"$_: step, ps"} // 0 } qw(none selective full);
    cmp_ok($none, '>', 0, "$job->{name}: a step takes time");
    is($less - $none, $L * $scores * 1000, "$job->{name}: selective takes q k^T once more");
    is(
        $most - $none,
        $L * ($block * 1000 + 2 * $ring),
        "$job->{name}: full takes another forward with its two all-reduces"
    );
    my ($all, $shed) = map { $measured{"$_: activation peak, bytes"} // 0 } qw(none selective);
    my ($kept, $head) = (($job->{dropout} ? 2 : 1) * $heads * $T, $C + 2 + part(53, $n) + 1);
    my $worst = $kept > $head ? $kept : $head;
    is(
        $all - $shed,
        $M * 4 * ($L * $kept + $head - $worst),
        "$job->{name}: selective keeps the probabilities of one block only"
    );
}
done_testing();
