#!/usr/bin/perl
# The trainer on layouts and schedules drawn by chance, each against the unsplit model beside it (--check) and the formulas of its costs.
# What is drawn follows from a seed, which is printed: TEST_SEED=1234 draws the same again. TEST_ALL=1: 300 instead of 30.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max sum0);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my %train = map { $_ => program_of($_, '08_3d/train.c') } qw(fp32 fp64);
plan skip_all => "$train{fp32} is not built" unless -x $train{fp32} && -x $train{fp64};
my $seed = $ENV{TEST_SEED} // time % 1000000;
my $runs = $all ? 300 : 30;
note("TEST_SEED=$seed draws these layouts again");
srand $seed;

my $text = "$work/text.txt";
{
    open my $f, '>', $text or die "$text: $!";
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f or die "$text: $!";
}
# The schedules and flags that this trainer has.
my $help = `$train{fp32} --help`;
my ($schedules) = $help =~ /--schedule (\S+)/;
my @schedules = split /\|/, $schedules;
# Where a tp group may stand: --tensor, tp, the ranks of a row, and what else must be said. 2d and 2.5d take q x q and q x q x depth ranks, depth <= q; 3d q x q x q.
my @grids = $help =~ /--tensor \S*3d/ ? (['2d', 4, 2], ['2d', 9, 3], ['2.5d', 4, 2], ['2.5d', 8, 2], ['2.5d', 8, 2, '--depth', 2], ['2.5d', 9, 3, '--depth', 1],
                                          ['3d', 8, 2]) : ();

sub any { return $_[rand @_] }
sub up_to { my ($n) = @_; return 1 + int rand $n }             # 1 .. n
# n things in so many parts, none empty.
sub cut { my ($n, $parts) = @_;
    my @part = (1) x $parts;
    $part[rand $parts]++ for 1 .. $n - $parts;
    return @part }

sub draw {
    my ($dp, $tp, $pp) = any(grep { my ($x, $y, $z) = @$_; $x * $y * $z <= 8 && $x * $y * $z > 1 }
                             map { my $x = $_; map { my $y = $_; map { [$x, $y, $_] } 1 .. 8 } 1 .. 4 } 1 .. 8)->@*;
    my ($tensor, $row, @depth) = ('1d', $tp);
    if (@grids && rand 5 < 1) {
        ($tensor, $tp, $row, @depth) = any(@grids)->@*;
        ($dp, $pp) = any(grep { $_->[0] * $_->[1] * $tp <= 18 } map { my $x = $_; map { [$x, $_] } 1 .. 4 } 1 .. 4)->@*;
    }
    my $schedule = any(grep { $tensor eq '1d' || $_ ne 'zero-bubble' } @schedules);
    my $chunks = $schedule eq 'interleaved' && $pp > 1 ? 1 + up_to(2) : 1;
    my $layers = $pp * $chunks + int rand 4;
    my $heads = max($row, up_to(4));
    my $micro = up_to(3);
    # Interleaved stages need a multiple of pp micro-batches; all others take what comes, fewer than stages, too.
    my $m = $chunks > 1 ? $pp * up_to(2) : up_to(6);
    my $batch = $dp * (($m - 1) * $micro + up_to($micro)) - ($dp > 1 ? int rand $dp : 0);
    $batch = $dp * $m * $micro if $chunks > 1 || $batch < $dp;
    my $zero = $schedule eq 'zero-bubble' ? int rand 2 : int rand 4;
    my @words = ('--dp', $dp, '--tp', $tp, '--pp', $pp, '--schedule', $schedule, '--layers', $layers, '--heads', $heads, '--width', 4 * $heads * up_to(3),
                 '--context', 4 + int rand 12, '--batch', $batch, '--micro-batch', $micro, '--zero', $zero, '--recompute', any(qw(none selective full)),
                 '--seed', up_to(1000), '--steps', 3, '--clip', any(0, 0.3, 1));
    my $cp = $help =~ /--cp/ && $tensor eq '1d' && $dp * $tp * $pp <= 4 && rand 2 < 1 ? any(grep { $_ * $dp * $tp * $pp <= 8 } 2 .. 4) : 1;
    push @words, '--cp', $cp if $cp > 1;
    push @words, qw(--attention blockwise) if $help =~ /--attention/ && $cp == 1 && rand 6 < 1;
    push @words, '--tensor', $tensor, @depth if $tensor ne '1d';
    push @words, '--chunks', $chunks if $chunks > 1;
    push @words, '--stage-layers', join ',', cut($layers, $pp * $chunks) if $pp > 1 && rand 2 < 1;
    push @words, '--prefetch' if $zero == 3 && rand 2 < 1;
    push @words, '--overlap' if $zero == 0 && $schedule ne 'zero-bubble' && rand 3 < 1;
    if ($dp > 1 && $zero == 0 && $cp == 1 && $tensor eq '1d' && !(grep { $_ eq '--overlap' } @words) && rand 2 < 1) {
        push @words, $tp == 1 && rand 2 < 1 ? ('--compress', 'top-k', '--keep-one-of', up_to(40)) : ('--compress', 'power-sgd', '--power-rank', up_to(4));
    }
    push @words, '--sequence-parallel' if $tp > 1 && $tensor eq '1d' && $help =~ /--sequence-parallel/ && rand 3 < 1;
    push @words, '--rebalance', 1 if $pp > 1 && !grep({ /^--(prefetch|overlap|compress)$/ } @words) && rand 4 < 1;
    push @words, any([qw(--optimizer sgd --lr 0.1)], [qw(--optimizer adamw --lr 0.003)])->@*;
    my $precision = any(qw(fp32 fp32 fp64));
    # A budget between what is needed, which the refusals say stage by stage, and twice that.
    if (rand 4 < 1) {
        s/^(selective|full)$/none/ for @words;
        my $needed = 1;
        my @try = last_of_each($train{$precision}, '--emulate', $dp * $tp * $pp * $cp, @words, qw(--check --steps 1 --eval-every 0 --data), $text, '--activation-budget');
        while (`@try $needed 2>&1` =~ /it needs (\d+) bytes/) { $needed = $1 }
        push @words, '--activation-budget', int($needed * (1 + rand));
    }
    my $start = have_mpi && rand 6 < 1 && $dp * $tp * $pp * $cp <= 4 ? \&mpi : \&emu;
    my $job = $start->($dp * $tp * $pp * $cp, $train{$precision}, @words, qw(--check --reduce ordered --eval-every 0 --data), $text);
    $job->{what} = "$precision @words";
    return $job;
}

my @jobs = map { draw() } 1 .. $runs;
run_jobs(\@jobs);
for my $job (@jobs) {
    my @checks = @{ $job->{page}{checks} || [] };
    ok($job->{status} == 0 && $job->{page}{pass} && grep({ $_->{what} eq '3D = unsplit' } @checks), $job->{what}) or diag("TEST_SEED=$seed", complain($job));
}
my %drawn = map { my ($schedule) = $_->{what} =~ /--schedule (\S+)/; ($schedule => 1) } @jobs;
is(join(' ', sort keys %drawn), join(' ', sort @schedules), 'every schedule was drawn') if $runs >= 100;
my @missed = grep { my ($tensor, $tp) = @$_; !grep { $_->{what} =~ /--tp $tp .*--tensor \Q$tensor\E / } @jobs } @grids;
is(scalar @missed, 0, 'every grid was drawn') if $runs >= 100;
done_testing();
