#!/usr/bin/perl
# Checks the costs of ZeRO's stages 1, 2 and 3 (06_zero) with formulas of this test, for several N,
# m, links and precisions. The traffic of the stages must be 2, m + 1 and 3 m passes over the
# parameters. The state must take 8 + 8/N, 4 + 12/N and 16/N bytes per parameter. Also checks the
# unit in flight and the time of every ring.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my %program =
    map { my $stage = $_->{source} =~ /zero([123])\.c$/ ? $1 : 0; ($stage => $_->{source}) }
    grep { $_->{key} =~ /^06-/ } lessons();
plan skip_all => 'the lessons of chapter 06 are not built'
    if grep { !$program{$_} || !-x program_of('fp32', $program{$_}) } 1 .. 3;

# The lessons' model has 2 blocks, width 15, 11 positions and 53 words. The units of the model are
# wte, wpe, the blocks and the last norm.
my $wte = 53 * 15;
my @others = (11 * 15, (12 * 15 * 15 + 13 * 15) x 2, 2 * 15);
my %link =
    (free => [0, 0], nvlink => [2e-6, 450e9], ib => [5e-6, 50e9], ethernet => [30e-6, 1.25e9]);

# Returns the size of a ring's chunk, which is also the size of the largest shard.
sub chunk { my ($size, $n) = @_; return int(($size + $n - 1) / $n) }
sub sum { my $sum = 0; $sum += $_ for @_; return $sum }

sub ring_bytes {
    my ($n, $e, @sizes) = @_;
    return sum(map { ($n - 1) * chunk($_, $n) * $e } @sizes);
}

sub ring_time {
    my ($n, $e, $alpha, $beta, $passes, @sizes) = @_;
    return 0 unless $beta;
    return sum(
        map {
            sprintf '%.0f',
                $passes * (($n - 1) * $alpha * 1e12 + ring_bytes($n, $e, $_) * 1e12 / $beta)
        } @sizes
    );
}

# Returns a function that finds a measurement of the job by the beginning of the cost's name:
# $find->('all traffic').
sub finder {
    my ($job) = @_;
    my %measured =
        map { ("$_->{name}, $_->{unit}" => $_->{measured}) } @{ $job->{page}{costs} || [] };
    return sub {
        my ($what) = @_;
        my ($key) = grep { /^m = $job->{m}: \Q$what\E/ } sort keys %measured;
        return $key ? $measured{$key} : "no cost \"$what\"";
    };
}

my (@jobs, @links);
for my $n (1, 2, 3, 4, 8) {
    for my $m (1, 2, 3) {
        for my $stage (1 .. 3) {
            @links = qw(ethernet free nvlink ib) unless @links;
            my $precision = $n == 3 && -x program_of('fp64', $program{$stage}) ? 'fp64' : 'fp32';
            my $link = shift @links;
            push @jobs,
                {
                %{
                    emu($n, program_of($precision, $program{$stage}),
                        '--micro-batches', $m, '--link', $link, '--steps', 2,
                        $m == 2 ? ('--dropout', 0) : ())
                },
                n => $n,
                m => $m,
                stage => $stage,
                link => $link,
                e => $precision eq 'fp64' ? 8 : 4
                };
        }
    }
}
my @mpi = map {
    my $stage = $_;
    have_mpi
        ? {
        %{
            mpi(
                4,
                program_of('fp32', $program{$stage}),
                qw(--micro-batches 3 --link nvlink --steps 2)
            )
        },
        n => 4,
        m => 3,
        stage => $stage,
        link => 'nvlink',
        e => 4,
        as => 'mpi'
        }
        : ()
} 1 .. 3;
run_jobs([@jobs, @mpi]);

for my $job (@jobs, @mpi) {
    my ($n, $m, $e) = @$job{qw(n m e)};
    my $name =
          "ZeRO-$job->{stage}, N = $n, m = $m, $job->{link}, "
        . 8 * $e . ' bit'
        . ($job->{as} ? ', processes' : '');
    ok($job->{status} == 0 && $job->{page}{pass}, "$name: the lesson's own predictions hold")
        or diag(complain($job));
    my $find = finder($job);
    my $psi = sum($wte, @others);
    my $shard = sum(map { chunk($_, $n) } $wte, @others);
    my $part =
        $m > 1
        ? chunk($others[1], $n)
        : 0;    # if m > 1: the chunk of a block that arrives and is added
                # $units counts passes; $state and $in_flight count elements
    my ($units, $state, $in_flight) =
          $job->{stage} == 1 ? (2, 2 * $psi + $wte + 2 * $shard, 0)
        : $job->{stage} == 2 ? ($m + 1, $psi + 3 * $shard, 2 * $wte + $others[1] + $part)
        : (3 * $m, 4 * $shard, 3 * $wte + 2 * $others[1] + $part);
    my $scalars = 2 * ring_bytes($n, 8, 2 + 12 * 2 + 2, 1);
    is(
        $find->('all traffic'),
        $units * ring_bytes($n, $e, @others) + 2 * ring_bytes($n, $e, $wte) + $scalars,
        "$name: $units passes over the parameters"
    );
    is($find->('all state'), $state * $e, "$name: state");
    is($find->('in flight: '), $in_flight * $e, "$name: in flight");
    my ($alpha, $beta) = @{ $link{ $job->{link} } };
    my $time =
        $units * ring_time($n, $e, $alpha, $beta, 1, @others) +
        2 * ring_time($n, $e, $alpha, $beta, 1, $wte) +
        ring_time($n, 8, $alpha, $beta, 2, 2 + 12 * 2 + 2, 1);
    is($find->('exposed'), $n * $time, "$name: exposed communication");

    # Rank 0 has the largest part of the 11 sequences. A block's forward takes 24 M C^2 + 4 M T C
    # FLOPs, and the head's forward 2 M C V. A FLOP takes 1000 ps. Forward and backward take three
    # times as many.
    my ($C, $T) = (15, 11);
    my $M = chunk(11, $n) * $T;
    my $computing = 3 * 1000 * (2 * (24 * $M * $C**2 + 4 * $M * $T * $C) + 2 * $M * $C * 53);
    is($find->('step'), $computing + $time, "$name: the step");
}

# ---- 16 bits: a weight and its gradient of 2 bytes each; master, m and v of 4 bytes each ----
# In table I of Rajbhandari et al. 2020, 128e9 parameters on 16 ranks take 608, 368 and 128 GB per
# rank.
my @bytes16 = ([4, 12], [2, 14], [0, 16]);    # bytes held whole, bytes divided by N
is_deeply(
    [map { 128 * ($_->[0] + $_->[1] / 16) } @bytes16],
    [608, 368, 128],
    'ZeRO-1, 2 and 3 in table I, 128B, N = 16'
);
my @halves = map {
    +{
        %{ emu(4, program_of('fp32', $program{$_}), qw(--storage bf16 --gradients stored)) },
        m => 3,
        stage => $_
    }
} 1 .. 3;
run_jobs(\@halves);
for my $job (@halves) {
    my ($psi, $own) = (sum($wte, @others), sum(map { chunk($_, 4) } $wte, @others));
    my ($whole, $divided) = @{ $bytes16[$job->{stage} - 1] };
    my $second = $job->{stage} == 1 ? 2 * $wte : 0;    # the head's gradient of wte
    ok($job->{status} == 0 && $job->{page}{pass},
        "ZeRO-$job->{stage} in bf16: the lesson's predictions hold")
        or diag(complain($job));
    is(
        finder($job)->('all state'),
        $whole * $psi + $second + $divided * $own,
        "ZeRO-$job->{stage} in bf16: $whole + $divided/N bytes per parameter"
    );
}

# ---- 05_prefetch: the same traffic as without prefetch; 2 m passes if weights are kept ----
# Also checks the memory in flight, and bounds of the step's time.
my ($prefetch) = map { $_->{source} } grep { $_->{key} eq '06-05' } lessons();
my @four = (11 * 15, (12 * 15 * 15 + 13 * 15) x 4, 2 * 15);
my @ahead;
for my $n (1, 2, 3, 4, 8) {
    for my $m (1, 2, 3) {
        for my $reshard (qw(yes no)) {
            @links = qw(ib ethernet free nvlink) unless @links;
            my $link = shift @links;
            my $precision = $n == 3 && -x program_of('fp64', $prefetch) ? 'fp64' : 'fp32';
            push @ahead,
                {
                %{
                    emu($n, program_of($precision, $prefetch),
                        '--micro-batches', $m, '--link', $link, '--steps', 2,
                        '--reshard-after-forward', $reshard)
                },
                n => $n,
                m => $m,
                reshard => $reshard,
                link => $link,
                e => $precision eq 'fp64' ? 8 : 4
                };
        }
    }
}
push @ahead,
    {
    %{
        mpi(
            4,
            program_of('fp32', $prefetch),
            qw(--micro-batches 3 --link nvlink --steps 2 --clock simulated)
        )
    },
    n => 4,
    m => 3,
    reshard => 'yes',
    link => 'nvlink',
    e => 4,
    as => 'mpi'
    }
    if have_mpi;
run_jobs(\@ahead);

for my $job (@ahead) {
    my ($n, $m, $e) = @$job{qw(n m e)};
    my $name =
          "prefetch, N = $n, m = $m, reshard $job->{reshard}, $job->{link}, "
        . 8 * $e . ' bit'
        . ($job->{as} ? ', processes' : '');
    ok($job->{status} == 0 && $job->{page}{pass}, "$name: the lesson's own predictions hold")
        or diag(complain($job));
    my $find = finder($job);
    my $units = $job->{reshard} eq 'yes' ? 3 * $m : 2 * $m;
    my $scalars = 2 * ring_bytes($n, 8, 2 + 12 * 4 + 2, 1);
    is(
        $find->('all traffic'),
        $units * ring_bytes($n, $e, @four) + 2 * ring_bytes($n, $e, $wte) + $scalars,
        "$name: $units passes over the parameters"
    );

    # The peak is in the backward of a block, while the gradient of the block above is being
    # reduced. A rank then holds the gradients of both blocks and the weights of two blocks. With
    # several ranks a rank also holds room for the contributions of all ranks, and with m > 1 also
    # its chunk of the new sum. If weights are kept, a rank holds the weights of wpe and
    # of three blocks. The weights of wte and its two gradients are in flight, too.
    my $block = $four[1];
    my $weights = $job->{reshard} eq 'yes' ? 2 * $block : $four[0] + 3 * $block;
    my $sum = ($n > 1 ? $n * chunk($block, $n) : 0) + ($m > 1 ? chunk($block, $n) : 0);
    my $most = $weights + 2 * $block + $sum;

    # With one rank, kept weights and nothing to add, the peak is in the backward of the last block,
    # below the norm.
    $most += $four[-1] if "$n $m $job->{reshard}" eq '1 1 no';
    is($find->('in flight: '), (3 * $wte + $most) * $e, "$name: in flight");

    # Overlap moves time from exposed to hidden, so exposed plus hidden time stays the predicted
    # communication time. The step takes at least rank 0's computation, and at most computation plus
    # communication.
    my ($alpha, $beta) = @{ $link{ $job->{link} } };
    my $time =
        $units * ring_time($n, $e, $alpha, $beta, 1, @four) +
        2 * ring_time($n, $e, $alpha, $beta, 1, $wte) +
        ring_time($n, 8, $alpha, $beta, 2, 2 + 12 * 4 + 2, 1);
    is($find->('exposed') + $find->('hidden'),
        $n * $time, "$name: exposed and hidden communication");
    my ($C, $T) = (15, 11);
    my $M = chunk(11, $n) * $T;
    my $computing = 3 * 1000 * (4 * (24 * $M * $C**2 + 4 * $M * $T * $C) + 2 * $M * $C * 53);
    my $step = $find->('step');
    ok(
        $step >= $computing
            && $step <= $computing + $time
            && ($time == 0 || $step < $computing + $time),
        "$name: the step is between these bounds"
    );
}
done_testing();
