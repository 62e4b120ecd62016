#!/usr/bin/perl
# Checks the end of a failed run of tools/run-tests. The lines must show each failed test with its
# diagnostics, how a file died, Perl's warnings, and the counts.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;

sub file {
    my ($name, @lines) = @_;
    open my $f, '>', "$work/$name.t" or die;
    print $f map { "$_\n" } @lines;
    close $f or die;
    return "$work/$name.t";
}
sub run { my ($job) = run_jobs([{ words => ['tools/run-tests', @_] }]); return $job }

sub block {
    my ($job, $title) = @_;
    my ($lines) = $job->{out} =~ /^\Q$title\E\n((?: {4}.*\n)*)/m or return 'no such block';
    return $lines =~ s/^ {4}//mgr;
}
sub last_line { my ($job) = @_; return (split /\n/, $job->{out})[-1] }

my @perl = ('#!/usr/bin/perl', 'use strict;', 'use warnings;', 'use Test::More tests => 4;');
my $good = file(
    'good', '#!/bin/sh', 'echo "1..2"',
    'echo "ok 1 - one"',
    'echo "ok 2 - two # SKIP not here"'
);
my $perl = file(
    'perl', @perl, 'diag("SEED=5");',
    'ok(1, "right");',
    'is(1, 2, "one is two");',
    'ok(0, "long") or diag(join "\n", 1 .. 100);',
    'ok(0, "short");'
);
my $shell = file(
    'shell',
    '#!/bin/sh',
    'echo "ok 1 - right"',
    'echo "not ok 2 - wrong"',
    'echo "#   what it said"',
    'echo "ok 3 - right"',
    'echo "# beside"',
    'echo "1..3"',
    'exit 1'
);
my $died = file(
    'died',
    '#!/bin/sh',
    'echo "1..4"',
    'echo "ok 1 - right"',
    'echo "last words" >&2',
    'kill -KILL $$'
);
my $short = file('short', '#!/bin/sh', 'echo "1..2"', 'echo "ok 1 - right"');
my $left = file('left', '#!/bin/sh', 'echo "ok 1 - right"', 'echo "1..1"', 'exit 7');
my $warns = file('warns', @perl, 'my $none;', 'ok(1, "a$none") for 1 .. 4;');
my $none = file('none', '#!/bin/sh', 'echo "1..0 # SKIP nothing here"');
my $stops = file(
    'stops', '#!/bin/sh',
    'echo "no compiler" >&2',
    'echo "Bail out! it does not build"',
    'exit 3'
);

my $all = run($good, $none);
is($all->{status}, 0, 'all is well: status 0') or diag(complain($all));
is(last_line($all), '2 passed, 0 failed', 'all is well: the counts');

my $mixed = run($perl, $good, $shell, $died, $short, $left, $warns);
is($mixed->{status}, 1, 'failures: status 1');
is(
    last_line($mixed),
    '12 passed, 8 failed',
    'the counts: a file that died, was cut short, or warned is one failure'
) or diag($mixed->{out});
is(
    block($mixed, "$perl, failed: 2 - one is two"),
    "#   Failed test 'one is two'\n#   at $perl line 7.\n#          got: '1'\n#     expected: "
        . "'2'\n",
    'Perl: a failed test with its diagnostics'
);
like(
    block($mixed, "$perl, failed: 3 - long"),
    qr/\A#   Failed test 'long'\n.*\n# 1\n(?:# \d+\n)*# 38\n\(62 lines more\)\n\z/,
    'Perl: long diagnostics are cut'
);
is(
    block($mixed, "$perl, failed: 4 - short"),
    "#   Failed test 'short'\n#   at $perl line 9.\n",
    'Perl: the next test has its own diagnostics'
);
is(
    block($mixed, "$shell, failed: 2 - wrong"),
    "#   what it said\n",
    'shell: the comments after the test, up to the next test'
);
like(
    block($mixed, "$died, not whole: signal 9, 1 tests of 4"),
    qr/\A1\.\.4\nok 1 - right\nlast words\n(?:Killed\n)?\z/,
    'a file that died: the signal and the last lines'
);
is(
    block($mixed, "$short, not whole: exit status 0, 1 tests of 2"),
    "1..2\nok 1 - right\n",
    'a file that is cut short'
);
is(
    block($mixed, "$left, not whole: exit status 7, 1 tests of 1"),
    "ok 1 - right\n1..1\n",
    'a file that fails without a failed test'
);
like(
    block($mixed, "$warns, Perl's warnings:"),
    qr/\A(?:Use of uninitialized value \$none in concatenation .* at \Q$warns\E line 6\.\n){4}\z/,
    'a warning of Perl is shown'
);

my $stopped = run($stops);
is($stopped->{status}, 1, 'a file stops the run: status 1');
is(
    block($stopped, "$stops, not whole: bailed out, 0 tests of no plan"),
    "Bail out! it does not build\nno compiler\n",
    'a file that stops the run gives the reason'
);
is(last_line($stopped), '0 passed, 1 failed', 'a file that stops the run is one failure');
done_testing();
