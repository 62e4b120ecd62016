#!/usr/bin/perl
# Every patch of bugs/ must apply, and the check that a bug's header names must catch the bug. First
# tools/try-bug itself is tested with patches that need different verdicts. Every 60th bug is tried;
# TEST_ALL=1 or BUGS_EVERY=1 tries all. With TEST_ALL=1 every twelfth bug also runs under
# sanitizers, so that no bug is caught by chance. Also tests tools/mutate.
# slow: for each bug a copy of the tree is compiled
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete $ENV{SANITIZE};
my @sanitized = ('env', 'SANITIZE=address,undefined', 'tools/try-bug');

# ---- the tool, on a program that can fail on request ----
my $source = slurp('tests/test_lesson.c');
my $past =
      "__attribute__((constructor)) static void past(void) "
    . "{ volatile int a[1] = {0}, i = 1; i = a[i]; }\n";
my @verdicts = (
    [
        'right',
        "args: --mode element\ncaught-by: split = unsplit by rows",
        "$source// a comment\n",
        'caught by the right check'
    ],
    [
        'fault',
        "args: --mode leak\ncaught-by: leak: ",
        "$source// a comment\n",
        'caught by the right check'
    ],
    [
        'ranks',
        "args: --mode replicas\nranks: 2\ncaught-by: replica",
        "$source// a comment\n",
        'caught by the right check'
    ],
    [
        'other',
        "args: --mode element\ncaught-by: by cols",
        "$source// a comment\n",
        'caught by another check'
    ],
    [
        'words',
        "args: --mode element\ncaught-by: question",
        "$source// a comment\n",
        'caught by another check'
    ],
    [
        'usage',
        "args: --mode pigeon\ncaught-by: --mode pigeon",
        "$source// a comment\n",
        'caught by another check'
    ],
    [
        'past', "args: --mode element\ncaught-by: split = unsplit by rows",
        "$source$past", 'caught by the right check'
    ],
    ['missed', 'caught-by: by rows', "$source// a comment\n", 'missed'],
    ['warns', 'caught-by: by rows', "${source}static int unused;\n", 'missed'],
    ['syntax', 'caught-by: by rows', "$source} a mistake\n", 'does not build'],
    ['header', 'caught-by:', "$source// a comment\n", 'the header lacks lesson, what or caught-by'],
);
my @jobs;
for my $case (@verdicts) {
    my ($name, $header, $text, $verdict) = @$case;
    { open my $f, '>', "$work/changed.c" or die; print $f $text; close $f }
    my $label = 'tests/test_lesson.c';
    my $diff = `diff -u --label a/$label --label b/$label $label $work/changed.c`;
    open my $f, '>', "$work/$name.patch" or die;
    print $f "lesson: tests/test_lesson\nwhat: a test\nseen: -\n$header\n\n$diff";
    close $f or die;
    push @jobs,
        { words => ['tools/try-bug', "$work/$name.patch"], what => $name, verdict => $verdict };
}
{
    my $gone = slurp("$work/right.patch");
    $gone =~ s/^ (.+)$/ $1 gone/mg;
    open my $f, '>', "$work/gone.patch" or die;
    print $f $gone;
    close $f;
    push @jobs,
        {
        words => ['tools/try-bug', "$work/gone.patch"],
        what => 'gone',
        verdict => 'does not apply'
        };
    push @jobs,
        {
        words => ['tools/try-bug', '-n', "$work/$_->[0].patch"],
        what => "-n $_->[0]",
        verdict => $_->[1]
        }
        for ['gone', 'does not apply'], ['right', 'applies'];
}
if ($all) {
    push @jobs,
        {
        words => [@sanitized, "$work/$_->[0].patch"],
        what => "$_->[0], sanitized",
        verdict => $_->[1]
        }
        for ['past', 'undefined behaviour'], ['fault', 'caught by the right check'],
        ['right', 'caught by the right check'];
}
run_jobs(\@jobs);
for my $job (@jobs) {
    my $good = $job->{verdict} =~ /right|applies$/ ? 0 : 1;
    like($job->{out}, qr/  \Q$job->{verdict}\E$/m, "the tool, $job->{what}: $job->{verdict}")
        or diag($job->{out}, $job->{err});
    is($job->{status}, $good, "the tool, $job->{what}: status $good");
}

# ---- mutants of a technique ----
{
    my @jobs = (
        { words => [qw(tools/mutate -v -n 2 02_grad_accumulation/02_accumulate.c)] },
        { words => [qw(tools/mutate -n 2 08_3d/train.c)] },
        { words => [qw(tools/mutate -n)] }
    );
    run_jobs(\@jobs);
    like(
        $jobs[0]{out},
        qr/02_accumulate.c:\d+: .* -> .* caught: .*\n.*\n.* 2 caught, 0 by a later lesson only, 0 not\n2 mutants: 100.0% caught/,
        'tools/mutate: two mutants are caught'
    ) or diag($jobs[0]{out}, $jobs[0]{err});
    is($jobs[0]{status}, 0, 'tools/mutate: status 0');
    is($jobs[1]{status}, 2, 'tools/mutate refuses a file without a technique');
    is($jobs[2]{status}, 2, 'tools/mutate refuses -n without a number');
}

# ---- the bugs of bugs/ ----
my $every = $ENV{BUGS_EVERY} || ($all ? 1 : 60);
my @patches = sort glob 'bugs/*.patch';
SKIP: {
    skip 'there is no bug yet', 1 unless @patches;
    my @dry = map { { words => ['tools/try-bug', '-n', $_], patch => $_ } } @patches;
    run_jobs(\@dry);
    is($_->{status}, 0, "$_->{patch} applies") or diag($_->{out}, $_->{err}) for @dry;
    my @tried = map { { words => ['tools/try-bug', $patches[$_]], patch => $patches[$_] } }
        grep { $_ % $every == 0 } 0 .. $#patches;
    run_jobs(\@tried);
    is($_->{status}, 0, "$_->{patch} is caught by the right check")
        or diag($_->{out}, $_->{err})
        for @tried;
    note(scalar @tried, ' of ', scalar @patches, ' bugs tried');
    my @careful =
        $all
        ? map { { words => [@sanitized, $patches[$_]], patch => $patches[$_] } }
        grep { $_ % 12 == 0 } 0 .. $#patches
        : ();
    run_jobs(\@careful);
    is($_->{status}, 0, "$_->{patch}, sanitized, is caught by the right check")
        or diag($_->{out}, $_->{err})
        for @careful;
}
done_testing();
