#!/usr/bin/perl
# Tests that a training with --save that is told to stop saves and ends with status 4. The request
# may arrive twice, or go through a script of make. timeout(1) signals a process and its process
# group, so tools/launch may get one SIGTERM twice. A later second signal must end the run. Ranks
# that do not catch USR1 yet must get TERM.
# slow: a second signal comes after three seconds, and a rank is away for six
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use File::Path qw(remove_tree);
use Jobs;
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
$SIG{INT} = 'DEFAULT';    # a shell starts background jobs with SIGINT ignored
my ($dir, $log) = ("$work/saved", "$work/log");
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f or die }

# A step takes longer than the pause between two signals.
my ($ranks, $pause) = (2, 0.05);
my @options = (
    qw(--layers 8 --width 256 --heads 4 --context 64 --batch 32 --micro-batch 16 --threads 1),
    qw(--eval-every 0 --steps 1000000 --save-every 1000000 --data),
    "$work/text", '--save', $dir, '--log', $log, '--timeout', $hang
);

sub ended {
    my ($pid) = @_;
    my $deadline = time + $hang;
    while (time < $deadline) { return $? if waitpid($pid, 1) == $pid; sleep 0.01 }
    kill 'KILL', ranks_of($pid), $pid;
    return -1;
}

# Starts the job and waits for its first step. $send->(pid) sends the signal. Returns the job's
# status, output and errors.
sub signalled {
    my ($job, $send) = @_;
    remove_tree($dir);
    unlink $log;
    $job->{json} = 0;
    my $pid = start($job);
    my $deadline = time + $hang;
    sleep 0.01 until -s $log || time > $deadline;
    $send->($pid);
    my $status = ended($pid) >> 8;
    return ($status, map { slurp("$job->{place}.$_") } qw(out err));
}

sub saves {
    my ($what, $job, $send) = @_;
    my ($status, $out, $err) = signalled($job, $send);
    is($status, 4, "$what: status 4") or diag($err);
    my ($said) = $out =~ /^stopped: saved after (\d+) of 1000000 steps; go on with --resume/m;
    ok(
        $said && -e sprintf("$dir/step-%06d/index.json", $said),
        "$what: the page names the saved step, and the checkpoint is there"
    );
}

sub twice {
    my ($signal, $pid) = @_;
    kill $signal, $pid;
    sleep $pause;
    kill $signal, $pid;
}

# Returns a job that starts tools/run-lesson 08-train, as make run-08-train and make emu-08-train
# do.
sub script {
    my ($mode, @words) = @_;
    my @runs = ('env', "NP=$ranks", 'tools/run-lesson', $train =~ s{/08_3d/train$}{}r, $mode);
    return { words => [@runs, '08-train', @words] };
}
my $main = sub { kill 'TERM', $_[0] };
saves(
    'SIGTERM twice to tools/launch, emulated',
    emu($ranks, $train, @options),
    sub { twice('TERM', $_[0]) }
);
saves(
    'SIGINT twice to an emulated run',
    emu($ranks, $train, @options),
    sub { twice('INT', ranks_of($_[0])) }
);
saves('SIGTERM to make emu-08-train', script('emu', @options), $main);
saves('SIGINT to make emu-08-train', script('emu', @options), sub { kill 'INT', $_[0] });
SKIP: {
    skip 'no mpirun', 6 unless have_mpi;
    saves(
        'SIGTERM twice to tools/launch, processes',
        mpi($ranks, $train, @options),
        sub { twice('TERM', $_[0]) }
    );
    saves('SIGTERM to make run-08-train', script('run', @options), $main);

    # On a busy machine a rank may come late to the end of the step. The other ranks must wait for
    # this rank.
    saves(
        'SIGTERM while a rank is away for six seconds',
        mpi($ranks, $train, @options),
        sub {
            my ($pid) = @_;
            my ($late) = ranks_of($pid);
            kill 'STOP', $late;
            kill 'TERM', $pid;
            sleep 6;
            kill 'CONT', $late;
        }
    );
}

# A stopped program cannot save, so only the second signal ends this run.
my ($status, undef, $err) = signalled(
    emu($ranks, $train, @options),
    sub {
        my ($pid) = @_;
        kill 'STOP', ranks_of($pid);
        kill 'TERM', $pid;
        sleep 3.1;
        kill 'TERM', $pid;
    }
);
is($status, 3, 'a second signal after three seconds ends the run: status 3');
like(
    $err,
    qr/ended with status 137 \(it was told to stop by SIGTERM\): a fault$/m,
    'a second signal after three seconds kills the run'
);
ok(!-e "$dir/step-000001/index.json" && !glob("$dir/step-*[0-9]"),
    'a killed run has saved nothing');

# Returns the signal that a rank gets from tools/launch at Ctrl-C. The rank catches @catches and
# TERM.
sub signal_of_rank {
    my (@catches) = @_;
    my $rank = "\$SIG{\$_} = sub { print {\$f} shift; exit } for qw(TERM @catches);"
        . "open \$f, '>', '$log'; \$f->autoflush; print {\$f} 'ready '; sleep 1 while 1";
    my @words = ('tools/launch', 1, $^X, '-MIO::Handle', '-e', $rank, '--', '--save', 1);
    signalled({ words => \@words }, sub { kill 'INT', $_[0] });
    return slurp($log) =~ s/^ready //r;
}
SKIP: {
    skip 'no mpirun', 2 unless have_mpi;
    is(signal_of_rank('USR1'), 'USR1', 'Ctrl-C reaches a rank that can save as USR1');
    is(signal_of_rank(), 'TERM', 'Ctrl-C ends ranks that do not catch USR1 yet');
}
done_testing();
