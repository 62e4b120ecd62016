#!/usr/bin/perl
# Tests make student and make check. The bodies must be gone, and the student's tree must build. A
# check must fail in every lesson with a removed body. With the solutions put back the files must be
# identical. Wrong arguments must be refused.
# slow: make test builds the lessons of some exercises, drawn with TEST_SEED; TEST_ALL=1 builds all
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin, "$FindBin::Bin/../tools";
use Beside;
use Exercises ();
use Jobs;
use List::Util qw(shuffle);
use Test::More;

my $seed = $ENV{TEST_SEED} // time % 100000;
note("TEST_SEED=$seed");
srand $seed;
chdir "$FindBin::Bin/.." or die;
my $built = 'build/cpu-fp32';
sub ran { my ($command) = @_; my $out = `$command 2>&1 </dev/null`; return ($? >> 8, $out) }

# Gives a tree our objects, so that only changed files are compiled.
sub warm {
    my ($dir) = @_;
    system(   "mkdir -p $dir/build && cp -p build/tools.mk build/text.txt $dir/build/ && "
            . "find $built -type f \\( -name '*.d' -o -name '*.info.c' -o -name flags \\) -exec cp -p --parents -t $dir {} + && "
            . "find $built -type f -name '*.[oa]' -print0 | { xargs -0 cp -l --parents -t $dir || xargs -0 cp -p --parents -t $dir; }"
    ) == 0 or die;
}

# Flags for a fast build of lessons that will fail. The Makefile does not count WERROR as a change
# of flags, so make does not rebuild the copied objects.
my $quick = "WERROR='-Wno-unused -O1 -g0'";

sub make_lesson {
    my ($dir, $what) = @_;
    my $flags = $all ? '' : $quick;
    return ran("cd $dir && env -u MAKEFLAGS -u MAKELEVEL make $flags ONLY='$what' programs");
}

# ---- refused arguments, in small trees ----
my $marker = '// EXERCISE 01.02a (4 points): Add.';
my $good =
    "int f(int x) {\n    $marker\n    // Use two.\n    x += 2;\n    // END\n    return x;\n}\n";

sub tree {
    my ($name, %file) = @_;
    my $dir = "$work/$name";
    Exercises::spew("$dir/01_a/$_", $file{$_}) for keys %file;
    Exercises::spew("$dir/01_a/01_x.c", "// ranks: 1\n");
    Exercises::spew("$dir/bugs/01-a.patch", "the solution\n");
    Exercises::spew("$dir/build/old.o", "old\n");
    system("mkdir $dir/tools && cp tools/student tools/Exercises.pm $dir/tools/") == 0 or die;
    return $dir;
}

sub refused {
    my ($what, $pattern, $dir, @words) = @_;
    my ($status, $out) = ran("$dir/tools/student @words");
    is($status, 2, "refused with status 2: $what");
    like($out, $pattern, "the message gives the reason: $what");
}
my $named = $good =~ s/01\.02a/01.x-a/r;
my $plain = tree('plain', '02_x.c' => $good, 'module.c' => $good =~ s/02a/01b/r);
refused('no folder', qr/usage: make student DIR=/, $plain);
refused('a folder that is not empty', qr/exists and is not an empty folder/, $plain, $plain);
refused('a file for a folder', qr/not an empty folder/, $plain, "$plain/01_a/02_x.c");
refused(
    'an unknown exercise',
    qr/no exercise '01.02b'; there are: 01.01b 01.02a/,
    $plain, "$work/new", '01.02b'
);
refused('an unknown chapter', qr/no exercise '03'/, $plain, "$work/new", '01 03');
ok(!-e "$work/new", 'a refused command writes nothing');
my %malformed = (
    'an exercise inside another' => [
        $good =~ s/    x \+= 2;/    $marker\n    x++;/r,
        qr/02_x.c, line 4: an exercise inside exercise 01.02a/
    ],
    'an exercise that is not closed' =>
        [$good =~ s{    // END\n}{}r, qr/line 2: exercise 01.02a has no/],
    'an END alone' => ["$good// END\n", qr/line 8: .* without an exercise/],
    'no points' => [$good =~ s/ \(4 points\)//r, qr/line 2: expected/],
    '0 points' => [$good =~ s/\(4/(0/r, qr/line 2: expected/],
    'no task' => [$good =~ s/: Add\./:/r, qr/line 2: expected/],
    'an id of another form' => [$good =~ s/01\.02a/1.2/r, qr/line 2: expected/],
    'an id twice' => ["$good$good", qr/line 9: exercise 01.02a stands in 01_a\/02_x.c, too/],
    'a lesson that does not exist' => [$good =~ s/01\.02a/01.03a/r, qr/there is no lesson 01.03/],
    'a program that does not exist' => [$named, qr/exercise 01.x-a: there is no lesson 01.x/],
    'a chapter that does not exist' => [$good =~ s/01\.02a/09.03a/r, qr/there is no lesson 09.03/],
    'no solution' => [$good =~ s/    x \+= 2;\n//r, qr/01.02a has no solution/],
);

for my $what (sort keys %malformed) {
    my ($text, $pattern) = @{ $malformed{$what} };
    refused($what, $pattern, tree("bad" . ++(our $n), '02_x.c' => $text), "$work/new");
}
refused(
    'no exercises at all',
    qr/no exercises in this tree/,
    tree('none', '02_x.c' => "int x;\n"), "$work/new"
);

# ---- the removed bodies ----
my ($status, $out) = ran("$plain/tools/student $work/one 01.02");
is($status, 0, 'one lesson is cut') or diag($out);

sub region { my ($id) = @_; return Exercises::helper_region($id, '') }
is(
    Exercises::slurp("$work/one/01_a/02_x.c"),
    region('01.02a') . $good =~ s/x \+= 2;/TODO("01.02a");/r,
    'the task and a TODO stay'
);
is(
    Exercises::slurp("$work/one/01_a/module.c"),
    $good =~ s/02a/01b/r,
    'exercises that were not chosen keep their solutions'
);
ok(!-e "$work/one/$_", "$_ stays out") for qw(bugs build);
like(
    $out,
    qr/^01\.02a +4 points +make run-01-02 +01_a\/02_x.c:2 +Add$/m,
    'the output lists the exercises'
);
($status, $out) = ran("mkdir $work/empty && $plain/tools/student $work/empty");
is($status, 0, 'an empty folder is accepted');
like($out, qr/^2 exercises, 8 points/m, 'without a choice all exercises are cut');
my $program = tree('program', 'x.c' => $named, '02_x.c' => $good);
($status, $out) = ran("$program/tools/student $work/program-cut 01.x");
is(
    Exercises::slurp("$work/program-cut/01_a/x.c"),
    region('01.x-a') . $named =~ s/x \+= 2;/TODO("01.x-a");/r,
    'a program without a number is cut by its name'
);
is(Exercises::slurp("$work/program-cut/01_a/02_x.c"),
    $good, 'the exercise of another program is not cut');
like(
    $out,
    qr/^01\.x-a +4 points +make run-01-x +01_a\/x.c:2 +Add$/m,
    'the output lists the exercise of a program by its name'
);
SKIP: {
    skip 'no git', 2 if system('command -v git >/dev/null');
    system("cd $plain && git init -q . && git add 01_a tools && echo secret >notes") == 0 or die;
    ($status, $out) = ran("$plain/tools/student $work/cloned");
    is($status, 0, 'make student works in a clone');
    ok(-e "$work/cloned/01_a/02_x.c" && !-e "$work/cloned/notes" && !-e "$work/cloned/.git",
        'the tree of a clone has the tracked files only');
}

# ---- the exercises of this tree: all removed ----
my @all = Exercises::exercises('.');
my %lessons = map { $_->{lesson} =~ s/\.c$//r => 1 } @all;
my $student = "$work/student";
($status, $out) = ran("make -s student DIR=$student");
is($status, 0, 'make student') or BAIL_OUT("make student: $out");
warm($student);
my @cut = sort keys %lessons;
@cut = (shuffle(@cut))[0 .. 2] unless $all;
($status, $out) = make_lesson($student, $all ? '' : join ' ', map { "$built/$_" } @cut);
is($status, 0, 'the tree builds with all exercises cut') or diag($out);
unlike($out, qr/warning:/, 'the tree builds without a warning with all exercises cut');

# The emulated run in fp32 is enough to see that a lesson ends and fails.
for my $lesson (@cut) {
    my ($options) = map { $_->{options} } grep { $_->{lesson} eq "$lesson.c" } @all;
    my ($status, $out) = ran("cd $student && tools/launch -e 0 $built/$lesson $options");
    is($status, 1, "$lesson with all exercises cut runs to its end and fails") or diag($out);
}
{
    my $restored = 0;
    my %text = map { $_->{file} => Exercises::slurp("$student/$_->{file}") } @all;
    for my $e (@all) {
        my $body = substr(Exercises::slurp($e->{file}), $e->{begin}, $e->{end} - $e->{begin});
        unlike($text{ $e->{file} }, qr/\Q$body\E/, "$e->{id} is cut out of $e->{file}");
        $text{ $e->{file} } = Exercises::splice_body($text{ $e->{file} }, $e->{id}, $body);
        my $empty = region($e->{id});
        is($text{ $e->{file} } =~ s/\Q$empty\E//g, 1, "$e->{id} has a region for helper functions");
    }
    s{^ *// Most points: .*\n}{}mg for values %text;
    for my $gone (
        qw(bugs tests/graded tests/grade.t tools/grade tools/grader docs/instructors.md
        docs/answers.md docs/syllabus.md)
    ) {
        ok(!-e "$student/$gone", "$gone stays out of a student's tree");
    }
    is($text{$_}, Exercises::slurp($_), "$_ with its solutions put back is unchanged")
        for sort keys %text;
    my @differ = grep { !/^Only in|student.mk/ } split /\n/,
        `diff -rq --exclude=.git --exclude=bugs --exclude=build . $student`;
    is(scalar @differ, scalar keys %text, 'no other file differs') or diag(join "\n", @differ);
}

# ---- no answer stands beside an exercise ----
{
    my %solution = map {
        my $text = Exercises::slurp($_->{file});
        ($_->{id} => substr $text, $_->{begin}, $_->{end} - $_->{begin})
    } @all;
    my $found = beside($student, %solution);
    my %argued = map { /^\| (0\d\.\S+) \| `(\S+:\w+)` \|/ ? ("$1 $2" => 1) : () } split /\n/,
        Exercises::slurp('docs/instructors.md');
    for my $answer (sort keys %$found) {
        ok($argued{$answer},
            sprintf '%s has %.0f %% of the solution: docs/instructors.md says why it stays',
            $answer, 100 * $found->{$answer});
    }
    ok($found->{$_}, "docs/instructors.md: $_ is still similar to the solution")
        for sort keys %argued;

    # The check must find a copy with other names.
    my $copy = $solution{'01.03a'} =~ s/\b(?!for|size_t)([a-z]\w*)\b/other_$1/gr;
    Exercises::spew("$work/copied/01_a/copy.c", "void copy(int n) {\n$copy}\n");
    is_deeply(
        [keys %{ beside("$work/copied", '01.03a' => $solution{'01.03a'}) }],
        ['01.03a 01_a/copy.c:copy'],
        'a solution with other names in another file is found'
    );
}

# ---- make check: what is wrong, without a solution ----
{
    my $tree = "$work/checked";
    ($status, $out) = ran("tools/student $tree 01.02");
    is($status, 0, 'a tree with two open exercises') or diag($out);
    warm($tree);
    my $file = '01_data_parallel/02_all_reduce.c';
    my %body =
        map { $_->{id} => substr(Exercises::slurp($file), $_->{begin}, $_->{end} - $_->{begin}) }
        grep { $_->{file} eq $file } @all;
    my $fill = sub {
        my ($id, $body, $helpers) = @_;
        my $text = Exercises::splice_body(Exercises::slurp("$tree/$file"), $id, $body);
        my $empty = region($id);
        $text =~ s/\Q$empty\E/Exercises::helper_region($id, $helpers)/e if defined $helpers;
        Exercises::spew("$tree/$file", $text);
    };
    my $check = sub { return ran("cd $tree && make -s check EX=01.02a") };
    ($status, $out) = $check->();
    isnt($status, 0, 'make check fails for an open exercise');
    like(
        $out,
        qr/^01\.02a  the shard.*most points: one all-reduce.*open: replace the TODO/ms,
        'make check says that the exercise is open'
    );
    $fill->('01.02b', $body{'01.02b'});
    $fill->('01.02a', "$body{'01.02a'}    op_scale(m->g, m->g, (real)1 / (real)dp->size);\n");
    ($status, $out) = $check->();
    like(
        $out,
        qr/4 ranks\s+wrong: .*4 times too small.*likely: every value is the sum divided by the number of ranks, 4.*5 ranks\s+wrong: .*5 times too small/s,
        'a wrong factor: make check names the tensors, the factor, the ranks and the likely mistake'
    );
    $fill->('01.02a', "$body{'01.02a'}    data_parallel_all_reduce(dp, m);\n");
    ($status, $out) = $check->();
    like(
        $out,
        qr/4 times too large.*the sum over the 4 ranks was made once more/s,
        'make check names a sum that is done twice'
    );
    $fill->('01.02a', "$body{'01.02a'}    if (dp->rank == 0) comm_all_reduce(dp, m->g);\n");
    ($status, $out) = $check->();
    like(
        $out,
        qr/calls do not match: rank 0 calls all-reduce.*all ranks must make the same calls/,
        'make check names a call that some ranks leave out, and the ranks'
    );
    $fill->('01.02a', "    int x = ;\n");
    ($status, $out) = $check->();
    like(
        $out,
        qr/the exercise does not build: .*error/,
        'make check shows an error of the compiler'
    );
    $fill->(
        '01.02a',
        $body{'01.02a'} =~ s/data_parallel_all_reduce\(dp, m\)/add_up(dp, m)/r,
        "static void add_up(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }\n"
    );
    ($status, $out) = $check->();
    is($status, 0, 'make check accepts a right body with a helper function') or diag($out);
    like(
        $out,
        qr/4 ranks\s+right: \d+ checks and \d+ costs\n  5 ranks\s+right/,
        'make check uses two rank counts'
    );
    ($status, $out) = ran("cd $tree && make -s grade SUBMISSION=.");
    like($out, qr/this is a student's tree: make check/, "a student's tree grades nobody");
}

# ---- one exercise at a time ----
my @alone = $all ? @all : (shuffle(@all))[0, 1];
my @jobs;
for my $half (0 .. ($all ? 1 : 0)) {
    my $dir = "$work/half$half";
    my @of_tree = map { $alone[$_] } grep { !$all || $_ % 2 == $half } 0 .. $#alone;
    system("tools/scratch-tree $dir $built") == 0 or die;
    my $script = "cd $dir || exit 9\n";
    for my $e (@of_tree) {
        my ($id, $program) = ($e->{id}, "$built/" . $e->{lesson} =~ s/\.c$//r);
        Exercises::spew("$work/$id.c",
            Exercises::splice_body(Exercises::slurp($e->{file}), $id, Exercises::todo($e)));
        $script .=
              "cp $e->{file} $work/$id.whole && cp $work/$id.c $e->{file}\n"
            . "make $quick ONLY=$program programs >$work/$id.make 2>&1\necho \$? >$work/$id.built\n"
            . "tools/launch -e 0 $program $e->{options} --json $work/$id.json >$work/$id.page 2>&1\necho \$? >$work/$id.status\n"
            . "cp $work/$id.whole $e->{file}\n";
    }
    Exercises::spew("$work/half$half.sh", $script);
    push @jobs,
        { words => ['env', '-u', 'MAKEFLAGS', '-u', 'MAKELEVEL', 'sh', "$work/half$half.sh"] };
}
run_jobs(\@jobs);
for my $e (@alone) {
    my ($id, $page) =
        ($e->{id}, eval { JSON::PP::decode_json(slurp("$work/$e->{id}.json")) } || {});
    is(slurp("$work/$id.built") + 0, 0, "$id cut alone: builds") or diag(slurp("$work/$id.make"));
    is(slurp("$work/$id.status") + 0, 1, "$id cut alone: the lesson runs to its end and fails")
        or diag(slurp("$work/$id.page"));
    like(
        slurp("$work/$id.page"),
        qr/^exercise \Q$id\E is open: \Q$e->{file}\E:\d+\n\[.*FAIL/m,
        "$id cut alone: the page names the open exercise before the verdict"
    );
    my @failed = grep { !$_->{pass} } @{ $page->{checks} || [] }, @{ $page->{costs} || [] };
    ok(@failed > 0, "$id cut alone: a check of the lesson fails");
}
note(scalar @all, ' exercises');
done_testing();
