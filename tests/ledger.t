#!/usr/bin/perl
# The bytes that the ledger records as sent must equal the bytes given to MPI, which
# tests/pmpi_count.c counts between the program and MPI.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max min sum);
use Test::More;

chdir "$FindBin::Bin/.." or die;
plan skip_all => 'no mpirun' unless have_mpi;
my ($ranks, $lesson_steps) = (4, 3);
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f or die }

sub counted {
    my ($precision, $source, @options) = @_;
    my $library = "$FindBin::Bin/../build/cpu-$precision/tests/pmpi_count.so";
    my $program = program_of($precision, $source);
    plan skip_all => "$program or $library is not built" unless -x $program && -e $library;
    my $job =
        { words =>
            ['tools/launch', $ranks, 'env', "LD_PRELOAD=$library", $program, '--verbose', @options]
        };
    $job->{name} = join ' ', $precision, $source =~ s/\.c$//r,
        @options ? "@options[0 .. min(7, $#options)]" : ();
    return $job;
}

# Returns the bytes given to MPI by rank: in total, in sums, and "calls:bytes" of every stretch
# between two collectives.
sub given {
    my ($job) = @_;
    my (@bytes, @sums, @stretches);
    while ($job->{err} =~ /^pmpi rank (\d+) calls \d+ bytes (\d+) sums (\d+) stretches(.*)$/mg) {
        ($bytes[$1], $sums[$1], $stretches[$1]) = ($2, $3, [split ' ', $4]);
    }
    my $reports = () = $job->{err} =~ /^pmpi rank/mg;
    is($reports, $ranks, "$job->{name}: every process reports once") or diag(complain($job));
    return { bytes => \@bytes, sums => \@sums, stretches => \@stretches };
}

# Returns the smallest and the largest measured value of a cost line of the page.
sub ledger {
    my ($job, $name, $unit) = @_;
    my ($lo, $hi) =
        $job->{out} =~ /^\[[^\]]*\] \Q$name\E +\Q$unit\E +\S+ +(\d+)(?:\.\.(\d+))? +ok$/m
        or do { fail("$job->{name}: a cost line $name"); return (0, 0) };
    return ($lo, $hi // $lo);
}

# The page of a lesson describes one step. The lesson runs at least three such steps with SGD and
# three with AdamW, and the messages of one step are one stretch.
my @lessons = map {
    my $source = $_;
    map { counted($_, $source) } qw(fp32 fp64)
} '04_pipeline_naive/02_naive.c', '04_pipeline_naive/03_gpipe.c', '05_pipeline_1f1b/02_1f1b.c';

# In the trainer one more step adds only the messages of one step.
my @model = (
    qw(--layers 8 --width 24 --heads 4 --context 8 --batch 9 --micro-batch 2 --eval-every 0 --data),
    "$work/text"
);
my @trained = map {
    my $how = $_;
    [map { counted('fp32', '08_3d/train.c', split(' ', $how), @model, '--steps', $_) } 2, 3]
    } '--dp 1 --tp 1 --pp 4 --clock simulated',
    '--dp 1 --tp 1 --pp 4 --schedule gpipe --clock wall',
    '--dp 2 --tp 1 --pp 2 --zero 1 --clock simulated', '--dp 1 --tp 4 --pp 1';
my $rows = counted('fp32', 'tests/test_comm.c', 'sent');
run_jobs([$rows, @lessons, map { @$_ } @trained]);

# Collectives of rows and all-to-all are built from messages.
{
    my $given = given ($rows);
    my %ledger = $rows->{err} =~ /^ledger rank (\d+) bytes (\d+)$/mg;
    is($given->{sums}[$_], $ledger{$_}, "rows and all-to-all: rank $_ gives MPI the ledger's bytes")
        for 0 .. $ranks - 1;
    cmp_ok($ledger{0}, '>', 0, "the ledger's bytes of rows and all-to-all are not 0");
}

for my $job (@lessons) {
    is($job->{status}, 0, "$job->{name}: status") or diag(complain($job));
    my $given = given ($job);
    my ($calls, $bytes) = map { [ledger($job, 'messages sent', $_)] } qw(calls bytes);
    ok($calls->[0] > 0 && $calls->[1] == 2 * $calls->[0],
        "$job->{name}: a stage in the middle sends twice as often as a stage at an end");
    for my $rank (0 .. $ranks - 1) {
        my $end = $rank > 0 && $rank < $ranks - 1 ? 1 : 0;
        my $step = "$calls->[$end]:$bytes->[$end]";
        my $found = grep { $_ eq $step } @{ $given->{stretches}[$rank] || [] };
        cmp_ok($found, '>=', 2 * $lesson_steps,
            "$job->{name}: rank $rank gives MPI the ledger's calls and bytes, $step, in every step")
            or diag("@{ $given->{stretches}[$rank] || [] }");
    }
}
for my $pair (@trained) {
    is($_->{status}, 0, "$_->{name}: status") or diag(complain($_)) for @$pair;
    my @given = map { given ($_)->{bytes} } @$pair;
    my @step = map { ($given[1][$_] // 0) - ($given[0][$_] // 0) } 0 .. $ranks - 1;
    is_deeply(
        [min(@step), max(@step)],
        [ledger($pair->[1], 'pipeline traffic', 'bytes sent')],
        "$pair->[1]{name}: a step gives MPI the ledger's bytes"
    ) or diag("by rank: @step");
    my $silent = $pair->[0]{name} =~ /--pp 1/;
    is(
        scalar(grep { $_ > 0 } @step),
        $silent ? 0 : $ranks,
        "$pair->[1]{name}: " . ($silent ? 'no rank sends' : 'every rank sends')
    );
}

# The ledger counts a ring's bytes by convention (comm.h). A sum in rank order sends as many bytes:
# each rank receives its shard from every other rank, and then sends the shard's sum to them. So one
# more step of data parallelism gives MPI exactly 2 (N-1) times the bytes of the parameters, over
# all ranks.
my @replicas = map {
    counted('fp32', '08_3d/train.c', qw(--dp 4 --tp 1 --pp 1 --reduce ordered),
        @model, '--steps', $_)
} 2, 3;
run_jobs(\@replicas);
is($_->{status}, 0, "$_->{name}: status") or diag(complain($_)) for @replicas;
my @sums = map { sum(@{ given ($_)->{sums} }) } @replicas;
my ($parameters) = $replicas[0]{out} =~ /(\d+) parameters/;
is(
    $sums[1] - $sums[0],
    2 * ($ranks - 1) * $parameters * 4,
    'a step of data parallelism sends 2 (N-1) gradients, all ranks together'
);
done_testing();
