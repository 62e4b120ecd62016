#!/usr/bin/perl
# Compares the ledger with malloc's peak, which malloc_peak.c counts, with the device memory of the
# stand-ins, and with the resident memory that the operating system reports. So a copy or buffer
# that the ledger misses fails this test, if it exceeds the tolerance ($share and %constant below).
# slow: models of up to 5 million parameters train at 4 of 13 layouts, in three or four ways
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max sum0);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
my $standin = 'build/standin-fp32/08_3d/train';
my $count = 'build/cpu-fp32/tests/malloc_peak.so';
plan skip_all => "$train is not built" unless -x $train && -e $count;

# The model has 5 million parameters, 20 MB. A process also has memory outside the ledger: MPI's own
# memory, a piece of a sum (1 MB), the description of blocks, events and options.
my @model = qw(--layers 4 --width 320 --heads 5 --context 16 --batch 4 --micro-batch 1 --steps 2
    --eval-every 1);
my ($share, %constant) = (
    0.02,
    emulated => 1.5e6,
    'as processes' => 8e6,
    'on the stand-ins' => 1e6,
    'on the stand-ins, NCCL' => 1.2e6
);
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 3000; close $f }
push @model, '--data', "$work/text";

my @layouts = (
    ['dp', 2, qw(--dp 2)],
    ['tp', 2, qw(--tp 2 --dp 1 --pp 1)],
    ['pp', 2, qw(--pp 2 --dp 1 --tp 1)],
    ['GPipe', 2, qw(--pp 2 --dp 1 --tp 1 --schedule gpipe)],
    (map { ["ZeRO-$_", 2, '--dp', 2, '--zero', $_] } 1 .. 3),
    ['dp, ordered', 2, qw(--dp 2 --reduce ordered)],
    ['recomputed, ZeRO-3', 2, qw(--dp 2 --zero 3 --recompute full)],
    ['3D', 8, qw(--dp 2 --tp 2 --pp 2)],
    ['one rank', 1],
    ['fp16, main gradients', 2, qw(--dp 2 --storage fp16 --loss-scale 1024)],
    ['bf16, ZeRO-1', 2, qw(--dp 2 --zero 1 --storage bf16 --gradients stored)],
);

# bytes per parameter and rank with 16-bit storage: the weight, the gradient, and the master with
# two moments
my %state = ('fp16, main gradients' => 2 + 4 + 12, 'bf16, ZeRO-1' => 2 + 2 + 12 / 2);

sub with {
    my ($job, %env) = @_;
    return { %$job, words => ['env', (map { "$_=$env{$_}" } sort keys %env), @{ $job->{words} }] };
}
sub numbers { my ($job, $name) = @_; return split ' ', $job->{page}{config}{$name} // '' }

# Returns the ledger of each process, with the scratch for widened copies of 16-bit tensors, which
# the ledger leaves out. With `emulated` all ranks are in one process.
sub ledgers {
    my ($job, $emulated) = @_;
    my @ledger = numbers($job, 'process_memory_most');
    my @scratch = numbers($job, 'scratch_most');
    return max(@ledger) + sum0(@scratch) if $emulated;
    return map { $ledger[$_] + ($scratch[$_] // 0) } 0 .. $#ledger;
}

sub compare {
    my ($name, $how, $job, $file) = @_;
    ok($job->{status} == 0 && $job->{page}{pass}, "$name, $how: the training passes")
        or return diag(complain($job));
    my @given = sort { $b <=> $a } slurp($file) =~ /^(?:train|device \d+:) (\d+)/mg;
    my @ledger = sort { $b <=> $a } ledgers($job, $how eq 'emulated' || $how eq 'on the stand-ins');
    is(scalar @given, scalar @ledger, "$name, $how: a count from every process")
        or return diag(slurp($file));

    # A run longer than ten seconds measures the fastest rate of products, for the MFU. The three
    # matrices of this measurement, of 1024 x 1024, are not in the ledger.
    my $peak = $job->{out} =~ / MFU / ? 3 * 4 * 1024**2 : 0;
    my @off =
        grep { abs($given[$_] - $ledger[$_]) > $share * $ledger[$_] + $constant{$how} + $peak }
        0 .. $#ledger;
    is(
        scalar @off, 0,
        sprintf '%s, %s: the ledger has %.1f MB at most, the allocator gave out %.1f MB',
        $name, $how, map { $_ / 1e6 } $ledger[0],
        $given[0]
    ) or diag("ledger @ledger, allocator @given");
}

# Checks the bytes of the state: the bytes that malloc gave out, without the ledger's bytes of
# everything else. The tied table has two gradients, which is 2 % more.
sub state_of {
    my ($name, $job, $file, $ranks) = @_;
    my %cost = map { $_->{id} => $_->{measured} } @{ $job->{page}{costs} };
    my ($parameters) = $job->{out} =~ /^(\d+) parameters/m;
    my ($given) = slurp($file) =~ /^train (\d+)/m;
    my ($ledger) = ledgers($job, 1);
    my $others = $ledger - $ranks * ($cost{parameters} + $cost{gradients} + $cost{optimizer});
    my $state = ($given - $others) / ($ranks * $parameters);
    ok(
        abs($state / $state{$name} - 1) < 0.05,
        sprintf '%s: malloc gave out %.2f bytes per parameter and rank for %g',
        $name, $state, $state{$name}
    );
    return;
}

for my $layout (@layouts[grep { $all || $_ % 4 == 0 } 0 .. $#layouts]) {
    my ($name, $ranks, @options) = @$layout;
    my %file = map { ($_ => "$work/$name $_") } qw(emulated processes standin nccl);

    # malloc does not provide the stacks of the threads, so they are not in the peak.
    my %job = (
        emulated => with(
            emu($ranks, $train, @model, @options),
            LD_PRELOAD => $count,
            MALLOC_PEAK => $file{emulated}
        )
    );
    $job{processes} = with(
        mpi($ranks, $train, @model, @options),
        LD_PRELOAD => $count,
        MALLOC_PEAK => $file{processes}
    ) if have_mpi;
    $job{standin} = with(emu($ranks, $standin, @model, qw(--width 160), @options),
        STANDIN_MEMORY_LOG => $file{standin})
        if -x $standin;
    $job{nccl} = with(
        mpi($ranks, $standin, @model, qw(--width 160 --transport nccl), @options),
        STANDIN_MEMORY_LOG => $file{nccl},
        STANDIN_GPUS => 8
    ) if -x $standin && have_mpi && $name =~ /^(dp|tp|pp|ZeRO-3)$/;
    run_jobs([@job{ sort keys %job }]);
    compare($name, 'emulated', $job{emulated}, $file{emulated});
    state_of($name, $job{emulated}, $file{emulated}, $ranks) if $state{$name};

    if ($job{processes}) {
        compare($name, 'as processes', $job{processes}, $file{processes});

        # The resident memory also has the program itself, and counts whole pages.
        my @ledger = numbers($job{processes}, 'memory_most');
        my @resident = numbers($job{processes}, 'resident_most');
        my @over = grep { $resident[$_] > 1.15 * $ledger[$_] + 60e6 } 0 .. $#ledger;
        ok(
            @ledger == $ranks && !@over,
            sprintf '%s: resident at most 1.15 times the ledger and 60 MB: %.1f, %.1f MB',
            $name, map { max(@$_) / 1e6 } \@resident, \@ledger
        );
    }
    compare($name, 'on the stand-ins, NCCL', $job{nccl}, $file{nccl}) if $job{nccl};
    compare($name, 'on the stand-ins', $job{standin}, $file{standin}) if $job{standin};
}
done_testing();
