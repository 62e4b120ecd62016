#!/usr/bin/perl
# Tests the trainer with random options: layouts, schedules, sizes that do not divide. Most runs are
# compared with the unsplit model (--check) and with the formulas of their costs. Some run without
# --check, with options that --check excludes. Some have one wrong option, which must give status 2,
# one message that names the option, and no work. make test makes 20 draws from seed 1, always the
# same. TEST_ALL=1 makes 5,000 draws from a seed that is printed. TEST_SEED=N draws from seed N;
# TEST_RUNS=100 makes 100 draws.
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
my $seed = $ENV{TEST_SEED} // ($all ? time % 1000000 : 1);
my $runs = $ENV{TEST_RUNS} // ($all ? 5000 : 20);
diag("TEST_SEED=$seed draws these options again") if $all;
srand $seed;

my $text = "$work/text.txt";
{
    open my $f, '>', $text or die "$text: $!";
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f or die "$text: $!";
}

# The schedules of this trainer come from its --help.
my $help = `$train{fp32} --help`;
my ($schedules) = $help =~ /--schedule (\S+)/;
my @schedules = split /\|/, $schedules;

# possible tp groups: --tensor, tp, the ranks of a row, and further options. 2d takes q x q ranks,
# 2.5d q x q x depth ranks with depth <= q, and 3d q x q x q ranks. Without --depth the trainer
# takes the smallest possible depth.
my @grids =
    $help =~ /--tensor \S*3d/
    ? (
    ['2d', 4, 2],
    ['2d', 9, 3],
    ['2.5d', 4, 2],
    ['2.5d', 8, 2],
    ['2.5d', 8, 2, '--depth', 2],
    ['2.5d', 9, 3, '--depth', 1],
    ['3d', 8, 2]
    )
    : ();

sub any { return $_[rand @_] }
sub up_to { my ($n) = @_; return 1 + int rand $n }    # returns 1 to n

# Cuts n things into this many parts. No part is empty.
sub cut {
    my ($n, $parts) = @_;
    my @part = (1) x $parts;
    $part[rand $parts]++ for 1 .. $n - $parts;
    return @part;
}

# Returns the options with this option set or added. An option without a value is a flag.
sub with {
    my ($words, $name, $value) = @_;
    my @words = @$words;
    my ($at) = grep { $words[$_] eq $name } 0 .. $#words;
    splice @words, $at, defined $value ? 2 : 1 if defined $at;
    return [@words, $name, $value // ()];
}

# Draws options of 16-bit storage. Compression takes main gradients and a fixed loss scale. With the
# default scale of 65536 a gradient near 1 may overflow in one order of a sum only.
sub storage_words {
    my ($compressed) = @_;
    my ($storage, $gradients) = (any(qw(bf16 fp16)), $compressed ? 'main' : any(qw(main stored)));
    my $scale = $compressed ? 1024 : any(1024, 'dynamic,4096,2');
    return ('--storage', $storage, '--gradients', $gradients,
        $storage eq 'fp16' ? ('--loss-scale', $scale) : ());
}

# Draws a layout and a model that can be trained. Returns ranks and options.
sub draw {
    my ($precision) = @_;
    my ($dp, $tp, $pp) =
        any(grep { my ($x, $y, $z) = @$_; $x * $y * $z <= 8 && $x * $y * $z > 1 } meshes())->@*;
    my ($tensor, $row, @depth) = ('1d', $tp);
    if (@grids && rand 5 < 1) {
        ($tensor, $tp, $row, @depth) = any(@grids)->@*;
        ($dp, $pp) = any(
            grep { $_->[0] * $_->[1] * $tp <= 18 } map {
                my $x = $_;
                map { [$x, $_] } 1 .. 4
            } 1 .. 4
        )->@*;
    }
    my $schedule = any(grep { $tensor eq '1d' || $_ ne 'zero-bubble' } @schedules);
    my $chunks = $schedule eq 'interleaved' && $pp > 1 ? 1 + up_to(2) : 1;
    my $layers = $pp * $chunks + int rand 4;
    my $heads = max($row, up_to(4));
    my $half = rand 3 < 1;    # 16-bit storage
    my $width = $heads * up_to(12);
    $width += $heads while $half && $width < 24;
    my $micro = up_to(3);

    # Interleaved stages need a multiple of pp micro-batches. All other schedules accept any number,
    # even fewer micro-batches than stages.
    my $m = $chunks > 1 ? $pp * up_to(2) : up_to(6);
    my $batch = $dp * (($m - 1) * $micro + up_to($micro)) - ($dp > 1 ? int rand $dp : 0);
    $batch = $dp * $m * $micro if $chunks > 1 || $batch < $dp;
    my $zero = $schedule eq 'zero-bubble' ? int rand 2 : int rand 4;
    my $cp =
           $tensor eq '1d'
        && $dp * $tp * $pp <= 4
        && rand 2 < 1 ? any(grep { $_ * $dp * $tp * $pp <= 8 } 2 .. 4) : 1;
    my $context = max($cp, rand 8 < 1 ? up_to(4) : 4 + int rand 16);
    my $steps = 2 + int rand 3;
    my @words = (
        '--dp', $dp,
        '--tp', $tp,
        '--pp', $pp,
        '--schedule', $schedule,
        '--layers', $layers,
        '--heads', $heads,
        '--width', $width,
        '--context', $context,
        '--batch', $batch,
        '--micro-batch', $micro,
        '--zero', $zero,
        '--recompute', any(qw(none selective full)),
        '--seed', up_to(1000),
        '--steps', $steps,
        '--clip', any(0, 0.01, 0.3, 1),
        '--eval-every', int rand 3,
        '--warmup', int rand($steps + 1)
    );
    push @words, '--cp', $cp if $cp > 1;
    push @words, qw(--attention blockwise) if $cp == 1 && rand 6 < 1;
    push @words, '--tensor', $tensor, @depth if $tensor ne '1d';
    push @words, '--chunks', $chunks if $chunks > 1;
    push @words, '--stage-layers', join ',', cut($layers, $pp * $chunks) if $pp > 1 && rand 2 < 1;
    push @words, '--prefetch' if $zero == 3 && $schedule ne 'zero-bubble' && rand 2 < 1;
    push @words, '--overlap' if $zero == 0 && $schedule ne 'zero-bubble' && rand 3 < 1;

    if (   $dp > 1
        && $zero == 0
        && $cp == 1
        && $tensor eq '1d'
        && !(grep { $_ eq '--overlap' } @words)
        && rand 2 < 1) {
        push @words, $tp == 1 && rand 2 < 1
            ? ('--compress', 'top-k', '--keep-one-of', up_to(40))
            : ('--compress', 'power-sgd', '--power-rank', up_to(4));
    }
    push @words, '--sequence-parallel' if $tp > 1 && $tensor eq '1d' && rand 3 < 1;
    push @words, '--rebalance', up_to(2)
        if $pp > 1 && !grep({ /^--(prefetch|overlap|compress)$/ } @words) && rand 4 < 1;

    # A large rate makes rounding errors grow beyond the limit in 16 bits, and behind norms of few
    # columns.
    push @words,
        any(
        ['--optimizer', 'sgd', '--lr', $half || $width < 4 ? any(0, 0.1) : any(0, 0.1, 0.5)],
        ['--optimizer', 'adamw', '--lr', any(0, 0.003, 0.01), '--weight-decay', any(0, 0.1)]
    )->@*;
    push @words, '--dropout', $half ? any(0, 0.1) : any(0, 0.1, 0.5, 0.9) if rand 3 < 1;

    # With few tokens a gradient has few directions, or is only rounding errors. Then the next Q
    # of PowerSGD is rounding errors, too, and no two layouts agree.
    my ($dropout) = "@words" =~ /--dropout (\S+)/;
    @words = @{ with(with(\@words, '--power-rank', 1), '--dropout', 0) }
        if "@words" =~ /--power-rank/ && $batch * $context * (1 - ($dropout // 0)) < 32;
    push @words, storage_words("@words" =~ /--compress/) if $half;
    push @words, '--threads', up_to(3) if rand 4 < 1;
    push @words, '--reduce', any(qw(ordered fast));
    push @words, '--clock', any(qw(wall simulated)) if rand 6 < 1;
    push @words, '--node', up_to(4) if rand 6 < 1;
    push @words, '--data', $text;

    # The budget lies between the required memory and twice the required memory, which the error
    # messages name per stage.
    if (rand 4 < 1) {
        s/^(selective|full)$/none/ for @words;
        my $needed = 1;
        my @try = (
            $train{$precision}, '--emulate',
            $dp * $tp * $pp * $cp,
            @{ with(with(\@words, '--steps', 1), '--warmup', 0) },
            qw(--check --activation-budget)
        );
        while (`@try $needed 2>&1` =~ /the stage needs (\d+) bytes/) { $needed = $1 }
        push @words, '--activation-budget', int($needed * (1 + rand));
    }
    return ($dp * $tp * $pp * $cp, @words);
}

# wrong options: name, value (none for a flag), and the pattern of the message
my @wrong = (
    ['--dp', 0, qr/--dp/],
    ['--tp', 7, qr/--tp/],
    ['--pp', 11, qr/--pp/],
    ['--layers', 0, qr/at least one layer|--layers 0/],
    ['--width', 0, qr/width|column/],
    ['--heads', 0, qr/at least one/],
    ['--context', 0, qr/at least one/],
    ['--batch', 0, qr/--batch/],
    ['--batch', 'ten', qr/--batch ten/],
    ['--micro-batch', 0, qr/--micro-batch/],
    ['--schedule', 'none', qr/--schedule none/],
    ['--zero', 4, qr/--zero 4/],
    ['--recompute', 'some', qr/--recompute some/],
    ['--optimizer', 'lion', qr/--optimizer lion/],
    ['--lr', -1, qr/--lr/],
    ['--lr', 'nan', qr/--lr/],
    ['--clip', -1, qr/--clip/],
    ['--clip', 'inf', qr/--clip/],
    ['--dropout', 1, qr/dropout/],
    ['--dropout', -0.5, qr/dropout/],
    ['--steps', 0, qr/--steps/],
    ['--steps', 2000000000, qr/--steps/],
    ['--threads', 0, qr/--threads/],
    ['--eval-every', -1, qr/--eval-every/],
    ['--warmup', 'x', qr/--warmup/],
    ['--seed', 'x', qr/--seed/],
    ['--data', '/nowhere/text', qr{/nowhere/text}],
    ['--save-every', 3, qr/--save-every/],
    ['--skip-nonfinite', 'x', qr/--skip-nonfinite/],
    ['--activation-budget', 1, qr/--activation-budget/],
    ['--stage-layers', '1,,2', qr/--stage-layers/],
    ['--stage-layers', 0, qr/--stage-layers/],
    ['--chunks', 0, qr/--chunks/],
    ['--tensor', '4d', qr/--tensor 4d/],
    ['--depth', 5, qr/depth|grid|1d/],
    ['--cp', 99, qr/--cp/],
    ['--keep-one-of', 0, qr/--keep-one-of/],
    ['--power-rank', 0, qr/--power-rank/],
    ['--resume', '/nowhere', qr/--resume/],
    ['--save', '/dev/null/x', qr/--save/],
    ['--export', '/nowhere/x', qr/--export/],
    ['--log', '/nowhere/x', qr{/nowhere/x}],
    ['--weight-decay', -1, qr/--weight-decay/],
    ['--node', 'x', qr/--node/],
    ['--reduce', 'slow', qr/--reduce slow/],
    ['--no-such-option', 1, qr/--no-such-option/],
    ['--timeout', 0, qr/--timeout/]
);

sub job {
    my ($i) = @_;
    my ($precision, $kind, $as_processes) = (any(qw(fp32 fp32 fp64)), int rand 10, rand(40) < 1);
    my ($ranks, @words) = draw($precision);
    my $wrong = $kind == 0 ? any(@wrong) : undef;
    @words = @{ with(\@words, @$wrong[0, 1]) } if $wrong;
    push @words,
        any(
        "@words" =~ /--compress/ ? () : ['--skip-nonfinite', up_to(3)],
        ['--export', "$work/export-$i"],
        ['--save', "$work/save-$i", '--save-every', up_to(3)],
        ['--log', "$work/log-$i"]
        )->@*
        if $kind == 1;
    push @words, '--check' if $kind > 1;

    # No limit can separate a bug from the rounding of norms over so few columns, so --check must
    # refuse this width.
    my ($width) = "@words" =~ /--width (\d+)/;
    $wrong = ['--width', $width, qr/--check: .*--width $width[ ,]/]
        if $kind > 1 && ($width == 2 || ($width < 8 && "@words" =~ /--tensor [23]/));

    # $empty is the share of rows that dropout empties. With many empty rows --check must refuse the
    # dropout in fp32.
    my $empty = "@words" =~ /--dropout (\S+)/ ? $1**$width : 0;
    $wrong = ['--dropout', 'of empty rows', qr/--check: --dropout .*--width $width,/]
        if $kind > 1 && !$wrong && $precision eq 'fp32' && $empty > 0.6;
    my $start = $as_processes && have_mpi && $ranks <= 4 && $kind ? \&mpi : \&emu;
    my $job = $start->($ranks, $train{$precision}, @words);
    return {
        %$job,
        words => ['timeout', '-k', 5, $hang, @{ $job->{words} }],
        what => "$precision $ranks ranks @words",
        kind => $kind,
        wrong => $wrong
    };
}

sub judge {
    my ($job) = @_;
    my @checks = @{ $job->{page}{checks} || [] };
    my $good = $job->{status} == 0 && $job->{page}{pass};
    $good &&= grep { $_->{what} eq '3D = unsplit' } @checks if $job->{kind} > 1;
    if ($job->{wrong}) {
        my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
        $good =
               $job->{status} == 2
            && @messages == 1
            && $messages[0] =~ $job->{wrong}[2]
            && before_work($job);
    }
    ok($good, ($job->{wrong} ? "refused, $job->{wrong}[0]: " : '') . $job->{what})
        or diag("TEST_SEED=$seed", complain($job));
}

# The trainings run in batches of 100, and the results of a batch are printed before the next batch.
my @jobs;
for (my $i = 1; $i <= $runs; $i += 100) {
    my @batch = map { job($_) } $i .. ($i + 99 < $runs ? $i + 99 : $runs);
    run_jobs(\@batch);
    judge($_) for @batch;
    push @jobs, map { { what => $_->{what}, wrong => $_->{wrong} } } @batch;
}
my %drawn = map { my ($schedule) = $_->{what} =~ /--schedule (\S+)/; ($schedule => 1) } @jobs;
if ($runs >= 1000) {
    is(
        join(' ', sort grep { $drawn{$_} } @schedules),
        join(' ', sort @schedules),
        'every schedule was drawn'
    );
    my @missed = grep {
        my ($tensor, $tp) = @$_;
        !grep { $_->{what} =~ /--tp $tp .*--tensor \Q$tensor\E / } @jobs
    } @grids;
    is(scalar @missed, 0, 'every grid was drawn');
    my %tried = map { ($_->{wrong}[0] => 1) } grep { $_->{wrong} } @jobs;
    is(scalar(grep { !$tried{ $_->[0] } } @wrong), 0, 'every wrong option was drawn');
}
done_testing();
