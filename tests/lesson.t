#!/usr/bin/perl
# Tests the frame: options, checks, costs, verdict, exit status, JSON and digest, with virtual ranks
# and as processes.
# slow: each mode runs with 1, 3 and 4 virtual ranks and as processes, and one run exceeds its
# --timeout
use strict;
use warnings;
use FindBin;
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

chdir "$FindBin::Bin/.." or die;
my $build = $ENV{BUILD} || 'build/cpu-fp32';
my $program = "$build/tests/test_lesson";
my $work = tempdir(CLEANUP => 1);
my $precision = $build =~ /fp64/ ? 'fp64' : 'fp32';
plan skip_all => "$program is not built" unless -x $program;

# ways to start a program: a name, and the words before the options
my @emulated = map { ["emu $_", "tools/launch -e $_ $program"] } 1, 3, 4;
my $processes = ['mpi 2', "tools/launch 2 $program"];
my $have_mpi = system('command -v mpirun >/dev/null') == 0;
my @ways = (@emulated, $have_mpi ? $processes : ());

sub slurp { local $/; open my $f, '<', $_[0] or return ''; return scalar <$f> // '' }

sub start {
    my ($command) = @_;
    my $status = system("($command) >$work/out 2>$work/err") >> 8;
    return ($status, slurp("$work/out"), slurp("$work/err"));
}

# Starts a run in the background. Rank 0 of this run sleeps at the end for longer than --timeout, as
# if rank 0 wrote a large file. The other ranks must wait for rank 0.
my $slow_command =
    "tools/launch 3 $program --mode slow --timeout 20 2>&1 >/dev/null; echo status \$?";
open my $slow, '-|', $have_mpi ? $slow_command : 'true' or die;

# ---- every mode: its exit status and its output ----
# mode, exit status, a pattern of the output, the fewest ranks that can show the pattern, and
# whether processes show the pattern, too
my $fail = qr/\S+ +limit \S+ +FAIL/;
my @modes = (
    [
        'pass', 0,
        qr/^\[test lesson\] PASS  18 checks, 2 costs  digest [0-9a-f]{16}  \d+\.\d\d s$/m,
        1, 1
    ],
    [
        'element',
        1,
        qr/by rows +max 9\.\de-04  limit.*FAIL\n +by rows: worst element \(5, 4\) of \[6, 5\]: got /,
        1,
        1
    ],
    ['element', 1, qr/got \S+ from rank \d, expected \S+; 1 of 30 differ\n/, 1],
    ['bit', 1, qr/by rows +max $fail\n.*element \(5, 4\).*\n.* by cols +every bit +limit 0 +ok/, 1],
    [
        'nan', 1,
        qr/flat +max nan +limit \S+ +FAIL\n    flat: NaN at \(5, 4\), put by rank \d \(got\)/,
        1, 1
    ],
    ['nan-expected', 1, qr/flat: NaN at \(5, 4\), put by rank 0 \(expected\)/, 1],
    [
        'missing', 1,
        qr/by cols: (element \(0, \d\) of \[6, 5\] was put by no rank|no rank put this tensor)/,
        1, 1
    ],
    ['name', 1, qr/flat: no rank put this tensor/, 1],
    ['empty', 1, qr/no tensor +max nan .*FAIL\n    nothing was put/, 1],
    [
        'replicas', 1,
        qr/replica +max [1-9]$fail\n +replica: ranks 0 and \d hold different bits at \(5, 4\): /,
        2, 1
    ],
    ['many', 1, qr/8 tensors, worst more 1 +max $fail\n    more 1: /, 2],
    [
        'trap', 1,
        qr/a trap that does nothing +5 tensors, worst \S.* max 0\.0e\+00  least 1\.0e-01  FAIL/, 1
    ],
    [
        'print-bit',
        1,
        qr/replicas +replica +max nan +limit 0 +FAIL\n    replica: ranks 0 and \d hold different bits of the same 30 elements/,
        2,
        1
    ],
    ['print-nan', 1, qr/replicas +indexed .*FAIL\n    indexed: 1 NaN, put by rank \d/, 1, 1],
    [
        'print-missing', 1, qr/by cols: the ranks' parts have \d+ elements of \[6, 5\], or overlap/,
        2, 1
    ],
    ['print-overlap', 1, qr/flat: the ranks' parts have 32 elements of \[6, 5\], or overlap/, 1, 1],
    [
        'number',
        1,
        qr/losses +max $fail\n    losses: worst is number 1 \(from 0\) of 3: got 2\.25\d+, expected 2\.25 /,
        1,
        1
    ],
    ['number-nan', 1, qr/losses: number 2 is -?nan, expected 0\.1/, 1],
    ['number-rank', 1, qr/losses: ranks 0 and \d hold different bits at number 2/, 2, 1],
    [
        'false',
        1,
        qr/agrees +does not +on every rank +FAIL\n    agrees: does not hold on 1 of \d ranks, first on/,
        1
    ],
    [
        'cost', 1,
        qr/ bytes by rank .*FAIL\n    bytes by rank: rank \d measured 410\d, predicted 4\d+$/m,
        1, 1
    ],
    [
        'cost-nan', 1,
        qr/fraction idle .*FAIL\n    fraction idle: rank 0 measured -?nan, predicted 0\.1875/, 1
    ],
    [
        'open',
        1,
        qr/^exercise 00\.01a is open: tests\/test_lesson\.c:\d+\n\[test lesson\] FAIL  0 of 12 checks, 0 of 2 costs failed /m,
        1,
        1
    ],
    ['nothing', 1, qr/^\[test lesson\] FAIL  nothing was checked  \d+\.\d\d s$/m, 1, 1],
    [
        'default', 0,
        qr/^\[test lesson\] defaults +every rank has its own +holds +on every rank +ok$/m,
        1, 1
    ],
);
my %digest;
for my $way (@ways) {
    my ($name, $command) = @$way;
    my ($ranks) = $name =~ /(\d+)/;
    for my $mode (@modes) {
        my ($what, $expected, $words, $fewest, $processes_too) = @$mode;
        next if $ranks < $fewest || ($name =~ /mpi/ && !$processes_too);
        my ($status, $out, $err) = start("$command --mode $what --verbose --json $work/page.json");
        is($status, $expected, "$name, $what: exit status") or diag($out, $err);
        like($out, $words, "$name, $what: the words");
        my $page = eval { decode_json(slurp("$work/page.json")) };
        ok($page && ($page->{pass} ? 0 : 1) == $expected, "$name, $what: the JSON agrees")
            or diag($@);
        is(
            $page->{config}{size},
            $what eq 'default' ? 200 : 5,
            "$name, $what: the JSON has the value of an option"
        );
        is(
            $page->{digest} // 'none',
            ($out =~ / digest (\S+)/)[0] // 'none',
            "$name, $what: the digest of the page, or none"
        );
        unlink "$work/page.json";
        my $verdict = (split /\n/, $out)[-1];
        like(
            $verdict,
            $expected ? qr/ FAIL  / : qr/ PASS  /,
            "$name, $what: the verdict is the last line"
        );
        ($digest{$what}{$ranks}) = $verdict =~ /digest (\S+)/;
        is($err, '', "$name, $what: no message on stderr");
    }
}

# ---- the digest covers the values and does not depend on the rank that holds them ----
is($digest{pass}{$_}, $digest{pass}{1}, "digest with $_ ranks as with one rank")
    for sort keys %{ $digest{pass} };
isnt($digest{element}{3}, $digest{pass}{3}, 'another element gives another digest');
isnt($digest{number}{3}, $digest{pass}{3}, 'another loss, another digest');
SKIP: {
    skip 'no mpirun', 1 unless $have_mpi;
    my (undef, $out) = start("tools/launch -e 2 $program --mode number");
    my ($emulated) = $out =~ /digest (\S+)/;
    is($emulated, $digest{number}{2}, 'the same digest emulated and as processes');
}

# ---- the page ----
{
    my ($status, $out) =
        start("$program --verbose --seed 7 --loud --size 12 --note 'a b' --json $work/page.json");
    is($status, 0, 'started bare');
    my @lines = split /\n/, $out;
    like(
        $lines[0],
        qr/^\[test lesson\] cpu, emu, $precision, 3 ranks \(.+\), reduce ordered, seed 7, clock simulated \(.+\)$/,
        'the title'
    );
    is($lines[1], '[test lesson] Does the frame "notice" every kind of mistake?', 'the question');
    is($lines[2], 'size 12 rate 0.5 note a b given 1', 'option values');
    like($lines[3],
        qr/^\[test lesson\] split = unsplit   by rows   max 0\.0e\+00  limit 1\.0e-\d\d  ok$/,
        'a check');
    like($out, qr/^\[test lesson\] cost +unit +predicted +measured\n/m, 'the heading of the costs');
    like(
        $out,
        qr/^\[test lesson\] bytes by rank +bytes +4096\.\.4098 +4096\.\.4098 +ok\n/m,
        'a cost by rank'
    );
    like(
        $out,
        qr/^\[test lesson\] fraction idle +0\.1875 +0\.1875 +ok$/m,
        'a cost that is not whole'
    );
    unlike($out, qr/\033/, 'no colour unless asked for');
    my (undef, $colored) = start("$program --verbose --color");
    like($colored, qr/\033\[32mok\033\[0m\n/, 'green with --color');

    my $page = decode_json(slurp("$work/page.json"));
    my @head = qw(lesson title backend transport precision ranks);
    is_deeply(
        [sort keys %$page],
        [sort @head, qw(config checks costs digest seconds pass)],
        'JSON: the keys'
    );
    is_deeply([@$page{@head}], ['test', 'lesson', 'cpu', 'emu', $precision, 3], 'JSON: the head');
    my %config =
        (reduce => 'ordered', seed => 7, mode => 'pass', size => 12, rate => 0.5, note => 'a b');
    is_deeply(
        $page->{config},
        { %config, loud => JSON::PP::true, infinite => undef, quoted => "a \"b\"\n\\c" },
        'JSON: the configuration'
    );
    is(scalar @{ $page->{checks} }, 18, 'JSON: the checks');
    is_deeply(
        [sort keys %{ $page->{checks}[0] }],
        [qw(error limit name pass what)],
        'JSON: a check'
    );
    my %cost = (
        id => 'bytes by rank',
        name => 'bytes by rank',
        unit => 'bytes',
        predicted => 4098,
        measured => 4098
    );
    is_deeply(
        $page->{costs}[0],
        { %cost, played => JSON::PP::false, pass => JSON::PP::true },
        'JSON: a cost'
    );
    like(
        slurp("$work/page.json"),
        qr/"predicted":4098,"measured":4098,/,
        'JSON: numbers are numbers'
    );
    is($page->{digest}, $digest{pass}{1}, 'JSON: the digest, which does not depend on the seed');
    my ($given) = start("$program --mode default --size 12");
    is($given, 0, 'an option that was given has no other default');
}

# ---- the page without --verbose ----
{
    my ($status, $out) = start("COLUMNS=90 $program --emulate 3");
    is($status, 0, 'the page: status');
    like(
        $out,
        qr/^\[test lesson\]  Does the frame "notice" every kind of mistake\?\n {2}3 ranks, emu \(.+; seed 1\n/s,
        'the page: its title'
    );
    unlike($out, qr/ ok$/m, 'the page: no line of its own for a check that holds');
    (my $compared) = $out =~ /^  Compared: +(\d+ comparisons: .*?)\n\[/ms;
    like(
        $compared,
        qr/\d+\s+equal\s+in\s+every\s+bit,\s+\d+\s+within\s+their\s+limits\s+\(largest\s+error\s+\S+,\s+limit\s+1\.0e-\d\d\)/,
        'the page: comparisons by kind, and the worst error'
    );
    like(
        $compared,
        qr/differs?,\s+as\s+(?:it|they)\s+must;\s+2\s+of\s+2\s+costs\s+exact$/,
        'the page: traps and costs'
    );
    like(
        $out,
        qr/^ +here +formula\n  bytes +4\.10 kB  4096 \+ rank\n  idle +0\.1875\n  a text +as it is\n/m,
        'the page: the table of results'
    );
    is(scalar(grep { length > 90 } split /\n/, $out),
        0, 'the page: no line is wider than the terminal');
    my (undef, $table) = start("$program --emulate 3 --mode page --node 2 --link fast,slow");
    like(
        $table,
        qr/^  spread +1\.00\.\.3\.00 kB\n  share +27\.3 %\n/m,
        'the page: cells by rank, and in percent'
    );
    my $ending =
          "  Answer:      Rank 2 holds 1.00..3.00 kB, at most 3000 bytes.\n  Cost:        one "
        . "message\n  Use it when: there is a test.\n";
    like(
        $table,
        qr/^  Compared: .*\n(?: .*\n)*?\Q$ending\E\[test lesson\] PASS/m,
        'the page: answer, cost and use, before the verdict'
    );
    like(
        $table,
        qr/link\s+fast\s+in\s+nodes\s+of\s+2,\s+slow\s+between/,
        'the page: both links in the title'
    );
    my ($failed, $words) = start("$program --emulate 3 --mode cost");
    like(
        $words,
        qr/^  Compared: .*; 1\s+of\s+2\s+costs\s+exact$/ms,
        'the page: how many costs hold'
    );
    unlike($words, qr/Answer:/, 'the page: no answer where a cost differs');
    is($failed, 1, 'the page: a cost that differs');
    like(
        $words,
        qr/ bytes by rank .*FAIL\n    bytes by rank: rank \d measured/,
        'the page: in full'
    );
    unlike($words, qr/fraction idle .* ok$/m, 'the page: a cost that holds has no line');
    (undef, $words) = start("$program --emulate 3 --mode element");
    like($words, qr/by rows +max .*FAIL\n.*element/, 'the page: a check that fails, in full');
    like(
        $words,
        qr/^  Compared: +\d+ comparisons: 1 failed, /m,
        'the page: the number of failed comparisons'
    );
}

# ---- usage: status 2, one message that names the fix, before the title ----
my @mistakes = (
    ['--seed x', qr/--seed x: expected a whole number/],
    ['--seed 1x', qr/whole number/],
    ["--seed ''", qr/whole number/],
    ['--seed 99999999999999999999', qr/whole number/],
    ['--timeout 0', qr/expected seconds/],
    ['--timeout -1', qr/--timeout -1: expected seconds, more than 0/],
    ['--timeout nan', qr/expected a number/],
    ['--emulate 0', qr/--emulate 0: expected a whole number from 1/],
    ['--emulate 1e3', qr/whole number/],
    ['--transport pigeon', qr/--transport pigeon: expected one of emu\|mpi/],
    ['--reduce order', qr/expected one of ordered\|fast/],
    ['--sead 1', qr/unknown option --sead; the nearest is --seed/],
    ['--lound', qr/unknown option --lound; the nearest is --loud/],
    ['--siz 3', qr/unknown option --siz; the nearest is --size/],
    ['--siz=3', qr/unknown option --siz=3; the nearest is --size/],
    ['--siz', qr/unknown option --siz; the nearest is --size/],
    ['--lou', qr/unknown option --lou; the nearest is --loud/],
    ['--lou=3', qr/unknown option --lou=3; the nearest/],
    ['--size 3 --rat=1', qr/unknown option --rat=1; the nearest is --rate/],
    ['--note --siz --siz 3', qr/unknown option --siz;/],
    ['--h', qr/unknown option --h;/],
    ['-x', qr/unknown option -x/],
    ['--clock pigeon', qr/--clock pigeon: expected one of wall\|simulated/],
    ['--tf32', qr/unknown option --tf32/],
    ['--seed', qr/--seed needs a value: --seed N/],
    ['--loud=3', qr/--loud takes no value/],
    ['--size 1.5', qr/--size 1\.5: expected a whole number/],
    ['--size -1', qr/--size -1: expected a whole number/],
    ['--rate 1x', qr/--rate 1x: expected a number/],
    ['--mode pas', qr/--mode pas: expected one of pass\|/],
    ["--json ''", qr/--json needs a value/],
    ['seed', qr/unexpected argument seed: options start with --/],
);
for my $mistake (@mistakes) {
    my ($args, $words) = @$mistake;
    my ($status, $out, $err) = start("$program $args");
    is($status, 2, "$args: status 2");
    like($err, qr/\Aunsplit: [^\n]*$words[^\n]*\n\z/, "$args: one message with the fix");
    is($out, '', "$args: nothing else");
}
SKIP: {
    skip 'no mpirun', 6 unless $have_mpi;
    for my $args ('--seed x', '--sead 1') {
        my ($status, $out, $err) = start("$processes->[1] $args");
        is($status, 2, "mpi 2, $args: status 2");
        is(scalar(() = $err =~ /^unsplit: /mg), 1, "mpi 2, $args: one message") or diag($err);
        unlike($out, qr/\S/, "mpi 2, $args: nothing else");
    }
}
for my $way ([bare => $program], $have_mpi ? $processes : ()) {
    my ($status, $out) = start("$way->[1] --help");
    is($status, 0, "$way->[0], --help: status 0");
    is(scalar(() = $out =~ /^usage: /mg), 1, "$way->[0], --help: printed once");
    like(
        $out,
        qr/^  --size N +a whole number \(default 5\)$/m,
        "$way->[0], --help: own options with defaults"
    );
    like(
        $out,
        qr/^  --clock wall\|simulated +.*; without it: simulated for virtual or crowded ranks$/m,
        "$way->[0], --help: values by their names"
    );
    like(
        $out,
        qr/^  --timeout SECONDS +\S.*\(default 60\)$/m,
        "$way->[0], --help: common options with defaults"
    );
}

# ---- files that cannot be written: a usage error if found before the work, else a fault ----
for my $way ([bare => $program], $have_mpi ? $processes : ()) {
    for my $file ($way->[0] eq 'bare' ? ('/dev/full', $work) : (), "$work/no/such/folder.json") {
        my ($status, undef, $err) = start("$way->[1] --json $file");
        my $expected = $file eq '/dev/full' ? 3 : 2;
        is($status, $expected, "$way->[0], --json $file: status $expected");
        is(scalar(() = $err =~ /^(?:unsplit: |\[rank)/mg),
            1, "$way->[0], --json $file: one message")
            or diag($err);
        like(
            $err,
            qr/--json \Q$file\E: cannot write it: \w/,
            "$way->[0], --json $file: the message names the file"
        );
    }
}
ok(-c '/dev/full' && !-e '/dev/full.tmp', 'a device is not replaced');
{
    for my $name (qw(mine.json.tmp mine.json.tmp2)) {
        open my $f, '>', "$work/$name" or die;
        print $f 'mine';
        close $f or die;
    }
    for my $way ([bare => $program], $have_mpi ? $processes : ()) {
        my ($status) = start("$way->[1] --json $work/mine.json");
        ok($status == 0 && eval { decode_json(slurp("$work/mine.json")) },
            "$way->[0]: the page is written");
        is(
            join(' ', map { s/.*\///r } sort glob "$work/mine*"),
            'mine.json mine.json.tmp mine.json.tmp2',
            "$way->[0]: no other file is written"
        );
        is(slurp("$work/mine.json.tmp") . slurp("$work/mine.json.tmp2"),
            'minemine', "$way->[0]: files of the user stay");
    }
}
{
    my $accent = "\xc3\xa9";
    my @notes = (
        ["caf$accent", "caf\x{e9}"],
        ["\xe9t$accent", "\x{fffd}t\x{e9}"],
        ["a\xff\xc3", "a\x{fffd}\x{fffd}"],
        ["\xed\xa0\x80 \xc0\xaf \xf5", "\x{fffd}\x{fffd}\x{fffd} \x{fffd}\x{fffd} \x{fffd}"],
        ["\xf0\x9f\x98\x80 \xe2\x82", "\x{1f600} \x{fffd}\x{fffd}"]
    );
    for my $note (@notes) {
        my ($status) = start("$program --note '$note->[0]' --json $work/page.json");
        my $page = eval { decode_json(slurp("$work/page.json")) };
        is(
            $page && $page->{config}{note},
            $note->[1],
            'JSON: bytes '
                . join(' ', map { sprintf '%02x', ord } split //, $note->[0])
                . ' of a text'
        ) or diag($@);
    }
}
SKIP: {
    skip 'no mpirun', 1 unless $have_mpi;
    is(
        join('', <$slow>),
        "status 0\n",
        'rank 0 may take longer than --timeout at the end, when it writes files: no rank complains'
    );
}

# ---- progress of long work: on a terminal only; script(1) provides the terminal ----
my (undef, undef, $silent) = start("$program --emulate 2 --mode long");
is($silent, '', 'no progress if standard error is no terminal');
SKIP: {
    skip 'no script(1)', 4 if system('command -v script >/dev/null') != 0;
    my $began = clock_gettime(CLOCK_MONOTONIC);
    my $screen =
        `TERM=xterm timeout 600 script -qec '$program --emulate 2 --mode long --rate $began' /dev/null </dev/null 2>&1`;
    is($? >> 8, 0, 'on a terminal: status 0');
    my ($first, $second) =
        $screen =~ /\r\e\[Kpart (\d+) of 1000000000\r\e\[Kpart (\d+) of 1000000000/;
    ok(
        defined $second && $first >= 2000 && $second > $first,
        'on a terminal: progress appears after two seconds'
    ) or diag($screen);
    like(
        $screen,
        qr/part \d+ of 1000000000\r\e\[Ka line in between/,
        'on a terminal: a line of the page replaces the progress'
    );
    my ($rest) = $screen =~ /a line in between\r?\n(.*)/s;
    like(
        $rest,
        qr/\A(?:\r\e\[Kpart \d+ of 1000000000)+\r\e\[K(?!part)/,
        'on a terminal: the progress is cleared at the end'
    );
}
SKIP: {
    skip 'no /dev/full', 4 unless -c '/dev/full';
    for my $args ('', '--help') {
        my $status = system("$program $args >/dev/full 2>$work/err") >> 8;
        is($status, 3, "stdout full, '$args': status 3");
        like(slurp("$work/err"), qr/could not be written/, "stdout full, '$args': the message");
    }
}
{
    my ($status, undef, $err) = start("$program --mode leak");
    is($status, 3, 'a leak is a fault');
    like($err, qr/leak: /, 'a leak is named');
}
done_testing();
