#!/usr/bin/perl
# What the ledger says was sent from rank to rank is what was given to MPI: counted by tests/pmpi_count.c between the program and MPI.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max min);
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
    my $job = { words => ['tools/launch', $ranks, 'env', "LD_PRELOAD=$library", $program, @options] };
    $job->{name} = join ' ', $precision, $source =~ s/\.c$//r, @options ? "@options[0 .. min(7, $#options)]" : ();
    return $job;
}
# What MPI was given: calls and bytes by rank.
sub given {
    my ($job) = @_;
    my %given = map { $_ => [] } qw(calls bytes);
    while ($job->{err} =~ /^pmpi rank (\d+) calls (\d+) bytes (\d+)$/mg) { ($given{calls}[$1], $given{bytes}[$1]) = ($2, $3) }
    my $reports = () = $job->{err} =~ /^pmpi rank/mg;
    is($reports, $ranks, "$job->{name}: every process reports once") or diag(complain($job));
    return \%given;
}
# What the ledger measured: the smallest and the largest of a cost line of the page.
sub ledger {
    my ($job, $name, $unit) = @_;
    my ($lo, $hi) = $job->{out} =~ /^\[[^\]]*\] \Q$name\E +\Q$unit\E +\S+ +(\d+)(?:\.\.(\d+))? +ok$/m or do { fail("$job->{name}: a cost line $name"); return (0, 0) };
    return ($lo, $hi // $lo);
}

# Lessons: their pages are about one step, and they train a whole number of them, each with the same messages: at least three under SGD
# and three under AdamW.
my %lesson = ('04_pipeline_naive/02_naive.c' => 'messages sent', '04_pipeline_naive/03_gpipe.c' => 'messages sent, as when naive',
              '05_pipeline_1f1b/02_1f1b.c' => 'messages sent, 1F1B');
my @lessons = map { my $source = $_; map { +{ %{ counted($_, $source) }, cost => $lesson{$source} } } qw(fp32 fp64) } sort keys %lesson;
# The trainer: one step more is one step's messages more, whatever else it sends.
my @model = (qw(--layers 8 --width 24 --heads 4 --context 8 --batch 9 --micro-batch 2 --eval-every 0 --data), "$work/text");
my @trained = map { my $how = $_; [map { counted('fp32', '08_3d/train.c', split(' ', $how), @model, '--steps', $_) } 2, 3] }
    '--dp 1 --tp 1 --pp 4 --clock model', '--dp 1 --tp 1 --pp 4 --schedule gpipe --clock wall', '--dp 2 --tp 1 --pp 2 --zero 1 --clock model', '--dp 1 --tp 4 --pp 1';
run_jobs([@lessons, map { @$_ } @trained]);

for my $job (@lessons) {
    is($job->{status}, 0, "$job->{name}: status") or diag(complain($job));
    my $given = given($job);
    my %steps;
    for my $unit (qw(calls bytes)) {
        my ($lo, $hi) = ledger($job, $job->{cost}, $unit);
        my @by_rank = map { $_ // 0 } @{ $given->{$unit} }[0 .. $ranks - 1];
        $steps{ $lo ? min(@by_rank) / $lo : 0 }++;
        $steps{ $hi ? max(@by_rank) / $hi : 0 }++;
        is(scalar(grep { $_ == min(@by_rank) } @by_rank), 2, "$job->{name}: the two ends send the least $unit");
    }
    my ($steps) = keys %steps;
    is(scalar keys %steps, 1, "$job->{name}: all the same number of times what the ledger says") or diag(join ' ', keys %steps);
    ok($steps =~ /^\d+$/ && $steps >= 2 * $lesson_steps && $steps % (2 * $lesson_steps) == 0, "$job->{name}: and that is the number of steps, $steps");
}
for my $pair (@trained) {
    is($_->{status}, 0, "$_->{name}: status") or diag(complain($_)) for @$pair;
    my @given = map { given($_)->{bytes} } @$pair;
    my @step = map { ($given[1][$_] // 0) - ($given[0][$_] // 0) } 0 .. $ranks - 1;
    is_deeply([min(@step), max(@step)], [ledger($pair->[1], 'pipeline traffic', 'bytes sent')], "$pair->[1]{name}: a step gives MPI what the ledger says")
        or diag("by rank: @step");
    my $silent = $pair->[0]{name} =~ /--pp 1/;
    is(scalar(grep { $_ > 0 } @step), $silent ? 0 : $ranks, "$pair->[1]{name}: " . ($silent ? 'no rank sends' : 'every rank sends'));
}
done_testing();
