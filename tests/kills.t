#!/usr/bin/perl
# Kills runs, and resumes them.
#   targets  tools/launch, mpirun, a rank, an emulated run
#   signals  TERM, INT, KILL, or a temporary stop
#   moments  at start-up, in a step, while a checkpoint is written, while the checkpoint gets its
#            name
# The folder of --save also has files of other programs. The status must be that of docs/cluster.md,
# no process may remain, and no other file of the folder may change. At most --save-every steps may
# be lost, and the resumed run must have the losses of an uninterrupted run.
#
# TEST_ALL=1 takes 200 runs instead of 6. SEED=N draws the runs of that seed.
# slow: each test waits for a moment, kills the run and resumes it
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use File::Path qw(remove_tree);
use Jobs;
use List::Util qw(max);
use POSIX qw(SIGTERM);
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
$SIG{INT} = 'DEFAULT';    # a shell starts background jobs with SIGINT ignored
my $seed = $ENV{SEED} || time % 100000;
diag("SEED=$seed");
srand $seed;

my ($steps, $every, $ranks, $timeout) = (400, 3, 3, 10);
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f or die }
my @model = (
    qw(--layers 3 --width 16 --heads 2 --context 8 --batch 6 --micro-batch 2 --reduce ordered
        --eval-every 0 --dp 1 --tp 1 --pp 3),
    '--steps', $steps, '--data', "$work/text"
);
my ($dir, $log) = ("$work/saved", "$work/log");
my @save = ('--save', $dir, '--save-every', $every, '--log', $log);

sub losses {
    my ($file) = @_;
    return map { $_->{step} => $_->{loss} } grep { defined $_->{grad_norm} } map {
        eval { decode_json($_) }
            // ()
    } split /\n/, slurp($file);
}
sub run { my ($job) = @_; $job->{json} = 0; run_jobs([$job]); return $job }
run(emu($ranks, $train, @model, '--log', "$work/whole"));
my %whole = losses("$work/whole");
is(scalar keys %whole, $steps, 'an uninterrupted run');

# ---- files of other programs, before and after ----
sub furnish {
    remove_tree($dir, "$work/elsewhere");
    unlink $log;
    mkdir $_ or die for $dir, "$dir/step-notes", "$work/elsewhere";
    for my $file ("$dir/notes.txt", "$dir/step-notes/today", "$work/elsewhere/thesis") {
        open my $f, '>', $file or die;
        print $f "mine\n";
        close $f or die;
    }
    symlink "$work/elsewhere", "$dir/old-run" or die;
}

sub furniture {
    return join ' ',
        (
        map { "$_=" . slurp($_) } "$dir/notes.txt",
        "$dir/step-notes/today", "$work/elsewhere/thesis"
        ),
        readlink "$dir/old-run" // 'no link';
}

sub others {
    return grep {
        !/^(?:step-\d+(?:\.part)?|step-replaced\.part|\.unsplit-lock|notes\.txt|step-notes|old-run)$/
    } map { s{.*/}{}r } glob "$dir/* $dir/.[a-z]*";
}

sub checkpoints {
    my @found = sort grep { /step-\d+$/ } glob "$dir/step-*";
    return @found;
}
sub parts { my ($what) = @_; my @found = glob "$dir/step-*.part$what"; return scalar @found }

# ---- processes of a run: tools/launch and all of its descendants, found in /proc ----
sub children_of { my ($pid) = @_; return split ' ', slurp("/proc/$pid/task/$pid/children") }
sub name_of { my ($pid) = @_; return slurp("/proc/$pid/comm") =~ s/\n//r }

sub alive {
    return grep { -d "/proc/$_" && slurp("/proc/$_/stat") !~ /\) [ZX] / } @_;
}

# Returns the process id of mpirun or of the emulated program.
sub job_of {
    my ($launch) = @_;
    return grep { name_of($_) =~ /^(?:mpirun|train)$/ } children_of($launch);
}

# Returns whether tools/launch has set its traps. The trap of TERM is set after that of INT.
sub traps_set {
    my ($launch) = @_;
    my ($caught) = slurp("/proc/$launch/status") =~ /^SigCgt:\s*(\w+)/m or return 0;
    return hex($caught) >> (SIGTERM - 1) & 1;
}

# Waits for the moment: a change in the folder or the log, or a time after the start of
# tools/launch. Returns false if the run has ended before this moment.
sub await {
    my ($launch, $moment) = @_;
    my $reached = int rand 30;
    my %reached_moment = (
        'start-up' => sub { traps_set($launch) },
        step => sub { slurp($log) =~ tr/\n// > $reached },
        save => sub { checkpoints() > $reached / 4 && parts('') },
        rename => sub { checkpoints() > $reached / 4 && parts('/index.json') },
    );
    sleep rand 0.5 if $moment eq 'start-up';
    my $deadline = time + $hang;
    until ($reached_moment{$moment}->()) {
        return 0 if time > $deadline || waitpid($launch, 1) == $launch;
        sleep 0.0005;
    }
    return 1;
}

sub ended {
    my ($launch) = @_;
    my $deadline = time + $hang;
    while (time < $deadline) {
        return $? & 127 ? 128 + ($? & 127) : $? >> 8 if waitpid($launch, 1) == $launch;
        sleep 0.01;
    }
    return 'none: the run hangs';
}

# Returns the allowed statuses. If tools/launch is killed, its status is 137. If another process is
# killed, or a rank stays stopped, the status is 3, or 0 if the run had ended. A run that is stopped
# only for a while ends with 0. After TERM or INT to mpirun the status is 1, and otherwise 4, or 0
# if the run had ended. At start-up 3 is allowed, too, because there is nothing to save.
sub wanted {
    my ($target, $signal, $early) = @_;
    my @late = $early ? (0, 3) : 0;
    return (0) if $signal eq 'STOP' && $target ne 'rank';
    return (0, 3) if $signal eq 'STOP';
    return (137) if $signal eq 'KILL' && $target eq 'launch';
    return (0, 3) if $signal eq 'KILL';
    return (1, @late) if $target eq 'mpirun';
    return (4, @late);
}

my %count;

sub kill_one {
    my ($emulated, $target, $signal, $moment) = @_;
    my $what = ($emulated ? 'emulated, ' : 'processes, ') . "$signal to $target, $moment";
    furnish();
    my $furniture = furniture();
    my $job =
        $emulated
        ? emu($ranks, $train, @model, @save)
        : mpi($ranks, $train, @model, @save, '--timeout', $signal eq 'STOP' ? $timeout : $hang);
    $job->{json} = 0;
    my $launch = start($job);
    my $came = await($launch, $moment);
    my $before_kill = slurp($log) =~ tr/\n//;
    my @all = ($launch);
    for (my $k = 0; $k < @all; $k++) { push @all, children_of($all[$k]) }
    my ($main) = job_of($launch);
    my @ranks = grep { name_of($_) eq 'train' } @all;
    my $pid = $target eq 'launch' ? $launch : $target eq 'rank' ? $ranks[rand @ranks] : $main;
    my $killed = $came && $pid && kill $signal, $pid;
    if ($killed && $signal eq 'STOP' && $target ne 'rank') { sleep 0.3; kill 'CONT', $pid }
    my $status = $came ? ended($launch) : $? >> 8;
    my ($out, $err) = map { slurp("$job->{place}.$_") } qw(out err);

    # Waits until no process remains, because after a KILL of tools/launch the run continues to its
    # end.
    my $deadline = time + $hang;
    sleep 0.01 while time < $deadline && alive(@all);
    my @left = alive(@all);
    kill 'KILL', @left;
    my @wrong;
    push @wrong, "processes are left: @left" if @left;
    my @want = $killed ? wanted($target, $signal, $moment eq 'start-up') : (0);
    push @wrong, "status $status, wanted one of @want" unless grep { $status eq $_ } @want;
    push @wrong, 'the signal was lost: the run continued to its end'
        if $killed && $status eq '0' && $signal =~ /TERM|INT/ && $before_kill < $steps / 2;
    push @wrong, 'a rank was killed, and the message does not name the rank'
        if $killed
        && $target eq 'rank'
        && !$emulated
        && $signal eq 'KILL'
        && $status == 3
        && $err !~ /^(?:\[rank \d\]|unsplit:) rank \d /m;
    push @wrong, "files of other programs have changed: " . furniture()
        if furniture() ne $furniture;
    push @wrong, 'other files are in the folder: ' . join ' ', others() if others();

    my %before = losses($log);
    my $trained = 1 + max(-1, keys %before);
    my ($newest) = map { /(\d+)$/ ? 0 + $1 : () } (checkpoints())[-1] // 'step-0';
    push @wrong, "$trained steps were trained, and the newest checkpoint has $newest"
        if $newest < $trained - $every;
    if ($status eq '4') {
        my ($said) =
            $out =~ /^stopped: saved after (\d+) of $steps steps; go on with --resume \Q$dir\E$/m;
        push @wrong, 'the page does not say which step it saved'
            unless defined $said && $said == $newest && $said == $trained;
    }
    my $again = $newest == $steps ? undef : run(
        emu(
            $ranks, $train,
            $newest
            ? (
                '--resume', $dir,
                qw(--reduce ordered --eval-every 0 --micro-batch 2 --dp 1 --tp 1 --pp 3)
                )
            : @model,
            '--save', $dir,
            '--save-every',
            1000, '--log',
            "$work/rest"
        )
    );
    my %rest = $again ? losses("$work/rest") : ();
    push @wrong, 'the run is not resumed: ' . complain($again)
        if $again && ($again->{status} != 0 || keys %rest != $steps - $newest);
    push @wrong, 'losses differ from those of the run that was not killed'
        if grep { $before{$_} != $whole{$_} } keys %before
        or grep { $rest{$_} != $whole{$_} } keys %rest;
    push @wrong, "files of other programs have changed after the resumed run"
        if furniture() ne $furniture;
    unlink "$work/rest";
    ok(!@wrong, $what) or diag(join "\n", @wrong, $out, $err);
    $count{ sprintf '%-9s %-8s %-4s', $emulated ? 'emulated' : 'processes', $target,
        $signal }{ $killed ? $status : 'not killed' }++;
}

my @targets = (
    (map { [1, $_] } qw(launch program)),
    have_mpi ? (map { [0, $_] } qw(launch mpirun rank)) : ()
);
my @cases = map {
    my $target = $_;
    map {
        my $signal = $_;
        map { [@$target, $signal, $_] } qw(start-up step save rename)
    } qw(TERM INT KILL STOP)
} @targets;

# A small number of runs draws other targets, signals and moments each time. 200 runs have every
# case at least twice.
my $n = $all ? 200 : 6;
my @chosen;
while (@chosen < $n) {
    my @shuffled = map { $_->[1] } sort { $a->[0] <=> $b->[0] } map { [rand, $_] } @cases;
    push @chosen, splice @shuffled, 0, $n - @chosen;
}
kill_one(@$_) for @chosen;
diag(
    map {
        my $row = $_;
        "$row  "
            . join(', ', map { "status $_: $count{$row}{$_}" } sort keys %{ $count{$row} }) . "\n"
    } sort keys %count
) if $all;
done_testing();
