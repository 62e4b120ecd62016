#!/usr/bin/perl
# The table of steps must have a line at the beginning, at the end, for each tenth, and about every
# ten seconds, even without a terminal.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use JSON::PP;
use Jobs;
use Test::More;
use Time::HiRes qw(time sleep);

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f }
my @tiny = (
    qw(--layers 1 --width 8 --heads 2 --context 8 --batch 2 --micro-batch 2 --eval-every 0 --data),
    "$work/text"
);
my $line = qr/^step +(\d+)   loss +\S+   gradient norm +\S+   lr \S+ +\d+ tokens\/s(.*)$/m;

# ---- a short run: the tenths, with the remaining time; no peak is measured ----
my ($short, $real) = run_jobs(
    [emu(2, $train, @tiny, qw(--steps 40)), emu(2, $train, @tiny, qw(--steps 4 --clock wall))]);
my %line = $short->{out} =~ /$line/g;
is(
    join(' ', sort { $a <=> $b } keys %line),
    '0 4 8 12 16 20 24 28 32 36 39',
    'a line for each tenth, and for the last step'
);
like($line{0}, qr/^ real time$/, 'the first line: the clock is simulated, the speed is real')
    or diag($short->{out});
like($line{20}, qr/^ real time, \d+ s left$/, 'a line in between has the time that is left');
like($line{39}, qr/^ real time$/, 'the last line has no time left');
like($short->{out}, qr/^The last step, simulated: /m, 'the chart is simulated');
like($real->{out}, qr/^step +1 .* tokens\/s, \d+ s left$/m, 'in real time nothing is simulated')
    or diag($real->{out});
like($real->{out}, qr/^The last step, real time: /m, 'in real time the chart is not simulated');

# ---- a long run is stopped for more than ten seconds, so the next step has a line, with MFU ----
my ($log, $out) = ("$work/log", "$work/out");
my $pid = fork() // die;
if (!$pid) {
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', $out;
    exec $train, @tiny, qw(--emulate 2 --steps 10000000 --log), $log;
}
my $deadline = time + $hang;
sleep 0.05 until time > $deadline || (-s $log // 0) > 500;
kill 'STOP', $pid;
sleep 10.5;
my $before = -s $log;
kill 'CONT', $pid;
my @late;

# If the line has not come a thousand steps later, it will not come.
until (@late || time > $deadline || -s $log > $before + 200_000) {
    @late = slurp($out) =~ /^(step +\d+ .* MFU .*)$/mg;
    sleep 0.05;
}
like(
    $late[0] // '',
    qr/ tokens\/s real time, \d+ h \d+ min left, MFU \d+\.\d %$/,
    'after ten seconds: a line with MFU'
);
SKIP: {
    skip 'there is no such line', 1 unless @late;
    my ($step) = $late[0] =~ /^step +(\d+) /;
    isnt($step % 1000000, 0, 'the line after ten seconds is no tenth');
}
kill 'KILL', $pid;
waitpid $pid, 0;

# ---- events in the log ----
my $job = emu(2, $train, @tiny, qw(--steps 6 --eval-every 2 --save),
    "$work/saved", qw(--save-every 3 --dp 1 --tp 1 --pp 2 --layers 4 --rebalance 1 --log), $log);
run_jobs([$job]);
is($job->{status}, 0, 'a run with events') or diag(complain($job));
my @events = grep { $_->{event} } map { decode_json($_) } split /\n/, slurp($log);
my %at;
push @{ $at{ $_->{event} } }, $_->{step} for @events;
is_deeply(
    [@at{qw(eval checkpoint)}],
    [[2, 4, 6], [3, 6]],
    'evaluations and checkpoints, by the number of steps done'
);
my $moves = () = $job->{out} =~ /^ +from step \d+ on, blocks of the stages/mg;
is(scalar @{ $at{rebalance} || [] }, $moves, 'the log has each move of blocks that the page has');
is(
    (
        scalar
            grep { join(' ', sort keys %$_) eq 'eval_loss event run step' && $_->{eval_loss} > 0 }
            @events
    ),
    3,
    'evaluations have their loss'
);
done_testing();
