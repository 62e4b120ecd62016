#!/usr/bin/perl
# Tests make grade and tools/task. The solutions of this tree and other right solutions must get all
# points, and open exercises none. No attack may earn points without the work or leave the sandbox.
# Each wrong body must lose points, and the reason must name its mistake. tests/graded has the
# submissions. make test takes a sample, drawn with TEST_SEED; TEST_ALL=1 takes all.
# slow: each submission is compiled and runs as processes three times
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin, "$FindBin::Bin/../tools";
use Cwd ();
use Exercises ();
use Graded;
use GradeRules;
use Grader;
use Jobs;
use JSON::PP;
use List::Util qw(shuffle);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @all = Exercises::exercises('.');
my %exercise = map { $_->{id} => $_ } @all;
my $e = $exercise{'01.02a'};
plan skip_all => 'exercise 01.02a is not in this tree' unless $e;
sub ran { my ($command) = @_; my $out = `$command 2>&1 </dev/null`; return ($? >> 8, $out) }

# ---- usage ----
sub refused {
    my ($what, $wanted, $pattern, $command) = @_;
    my ($status, $out) = ran($command);
    is($status, $wanted, $what);
    like($out, $pattern, "$what: in words");
}
refused('no submission', 2, qr/usage: make grade SUBMISSION=/, 'tools/grade');
refused('a submission that is not there', 2, qr/is not a folder/, "tools/grade $work/nowhere");
refused('an unknown exercise', 2, qr/no exercise '77'; there are: /, 'tools/grade . 77');
refused(
    'results that cannot be written',
    2,
    qr/cannot be written/,
    "tools/grade --json $work/nowhere/results.json ."
);
refused('results that are a folder', 2, qr/cannot be written/, "tools/grade --json $work .");
mkdir "$work/none";
refused('a class without students', 2, qr/no folders of students/,
    "tools/grade --class $work/none");
refused('an unknown option', 2, qr/Unknown option/, 'tools/grade --no-such .');
refused('two draws', 2, qr/--seed and --seed-from/, 'tools/grade --seed 1 --seed-from x .');

# ---- the sandbox's own files ----
SKIP: {
    skip 'no sandbox here', 1 if defined Grader::sandbox_missing();
    my $write = 'for f in /work /dev/shm /tmp; do echo x >$f/x && echo $f; done';
    open my $inside, '-|', Grader::confined(10, {}, 2**30, 16, 'sh', '-c', "($write) 2>/dev/null")
        or die;
    is(join('', <$inside>), "/tmp\n", 'a submission can write only to /tmp');
}

# ---- without a sandbox ----
mkdir "$work/bin";
chmod 0755, $work;    # the sandbox starts as user nobody
Exercises::spew("$work/bin/bwrap",
    "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n");
chmod 0755, "$work/bin/bwrap";
refused(
    'no sandbox', 3,
    qr/no sandbox here \(bwrap: No permissions.*--trusted/s,
    "env PATH=$work/bin:\$PATH tools/grade . 01.02a"
);
{
    my ($status, $out) = ran("env PATH=$work/bin:\$PATH tools/grade --trusted --seed 5 . 01.02b");
    is($status, 0, '--trusted grades without a sandbox') or diag($out);
    like($out, qr/^total +2 of 2/m, '--trusted without a sandbox gives the points');
}
my $sandbox = system('bwrap --unshare-all --ro-bind / / true >/dev/null 2>&1') == 0;

# ---- only the structure of the text decides; suspicious names are noted ----
my %structure = (
    'x = y; // a "comment {' => undef,
    'f = "a // string {"; /* } */' => undef,
    "#define x y\n" => 'a # line',
    "  %:include <x>\n" => 'a # line',
    "/\\\n* { *\\\n/ x = 1;" => undef,
    "// a comment\\\n } {" => undef,
    '} int f(void) {' => 'a } that closes nothing of the body',
    'if (x) {' => 'a { that is not closed',
    'f(x];' => 'a ] that closes nothing of the body',
    'a <: 0 :> = 1;' => undef,
    '%> int f(void) <%' => 'a } that closes nothing of the body',
    'x = 1; /* no end' => 'a comment that does not end',
    "x = 1;\\ \n#define y" => undef
);
for my $body (sort keys %structure) {
    is(structure_fault($body), $structure{$body},
              'the structure of '
            . ($body =~ s/\n/ /gr) . ' has '
            . ($structure{$body} // 'nothing wrong'));
}
my $known = public_functions("Tensor tensor_new(Arena *a);\nvoid comm_send(Comm *c);\n");
is(text_faults('comm_send(dp); tensor_new(a);', '', $known),
    undef, 'a function of the headers is not suspicious');
is(
    text_faults('exit(0);', '', $known),
    'the name exit',
    'a name that no solution needs is suspicious'
);

# ---- the submissions of tests/graded ----
my $seed = $ENV{TEST_SEED} // time % 100000;
note("TEST_SEED=$seed");
srand $seed;
my %graded = map { $_ => [graded("tests/graded/$_.txt")] } qw(attacks honest wrong);
cmp_ok(scalar @{ $graded{attacks} }, '>=', 60, 'at least 60 attacks');
cmp_ok(scalar(keys %{ { map { $_->{kind} => 1 } @{ $graded{attacks} } } }),
    '>=', 10, 'of at least 10 kinds');
cmp_ok(scalar @{ $graded{honest} }, '>=', 40, 'at least 40 right solutions in other words');
cmp_ok(scalar @{ $graded{wrong} }, '>=', 60, 'at least 60 wrong bodies');

# One submission for each protection: altered messages, object code, functions with the same result,
# the broker's count, a factor in words, helper functions.
my %always = map { $_ => 1 }
    qw(sends-for-show comma-call list-by-call ledger-hides-a-call divided-again helper);
my %often = (attacks => 2, honest => 1, wrong => 1);
my @chosen;
for my $kind (sort keys %graded) {
    my @of = map {
        { %$_, of => $kind }
    } @{ $graded{$kind} };
    push @chosen, grep { $always{ $_->{name} } } @of;
    @of = grep {
        !$always{ $_->{name} } && ($all || $_->{often} && $_->{id} =~ /^0(?:1\.02|1\.03|3\.02)/)
    } @of;
    @of = (shuffle(@of))[0 .. $often{$kind} - 1] unless $all;
    push @chosen, grep { defined } @of;
}
my %verdict;
for my $g (@chosen) {
    my $name = "$g->{of}-$g->{name}";
    ok(!$verdict{$name}, "$name has a name of its own");
    submission_of($g, "$work/class/$name", "$work/escaped-$name", %exercise);
    my $of = $exercise{ $g->{id} }{points};
    my ($least, $most, $why) =
          $g->{of} eq 'honest' ? ($of, $of, qr/^$/)
        : $g->{of} eq 'wrong' ? (0, $of - 0.01, qr/$g->{expect}/)
        : (0, !defined $g->{points} ? 0 : $g->{points} eq 'all' ? $of : $g->{points}, qr//);
    $verdict{$name} = { id => $g->{id}, least => $least, most => $most, why => $why };
}

# Each lesson must have the sizes of its line `// vary:`.
my %lessons = map { $_->{lesson} => 1 } @all;
for my $lesson (sort keys %lessons) {
    my $text = join '', map { Exercises::slurp($_) }
        grep { -e } $lesson, $lesson =~ s{([^/]*)$}{experiments/$1}r;
    my ($line) = $text =~ m{^// vary: (.*)$}m or next;
    my @missing = grep { $_ ne 'ranks' && $text !~ /\b\Q$_\E = [\d.]/ }
        map { /^(\w+)/ } split /,\s*/, $line;
    is("@missing", '', "$lesson has the sizes of its line `// vary:`");
}

# The sandbox must have the texts that lessons read.
for my $file (glob '[0-9][0-9]_*/experiments/*.c') {
    my ($text) = Exercises::slurp($file) =~ /"data", "FILE", "([^"]+)"/ or next;
    like(
        Exercises::slurp('tools/Grader.pm'),
        qr{=> '/work/\Q$text\E'},
        "$file: the sandbox has its text, $text"
    );
}

# ---- markers and files, most of which need no run ----
my $clean = Exercises::slurp($e->{file});
my $right = substr $clean, $e->{begin}, $e->{end} - $e->{begin};

sub submit {
    my ($name, $text, $points, $why) = @_;
    Exercises::spew("$work/class/$name/$e->{file}", $text);
    $verdict{$name} = { id => $e->{id}, least => $points, most => $points, why => $why };
}
submit('open', Exercises::splice_body($clean, $e->{id}, Exercises::todo($e)), 0, qr/^open$/);
submit('empty', Exercises::splice_body($clean, $e->{id}, "// nothing yet\n"), 0, qr/^open$/);
submit(
    'twice', $clean . "// EXERCISE 01.02a (4 points): again\n// END\n",
    0, qr/^refused: the file has the marker twice$/
);
submit('no-end', $clean =~ s{// END}{}gr,
    0, qr/^refused: the `\/\/ END` of the exercise is missing$/);
submit('no-text', join('', map { chr } 0 .. 255), 0, qr/^refused: the file has no marker$/);
submit('does-not-compile', Exercises::splice_body($clean, $e->{id}, "int x = ;\n$right"),
    0, qr/^the body does not build: your-body:1:.*error/);

# the file with a byte order mark, tabs and CR LF, as other systems and editors save it
submit('windows', "\xef\xbb\xbf" . $clean =~ s/ {4}/\t/gr =~ s/\n/\r\n/gr, 4, qr/^$/);
Exercises::spew("$work/class/no-file/notes", 'I was ill');
$verdict{'no-file'} =
    { id => $e->{id}, least => 0, most => 0, why => qr/^refused: \S+ is not there$/ };
mkdir "$work/class/$_" for qw(linked linked-folder);
mkdir "$work/class/linked/01_data_parallel";
symlink Cwd::abs_path($e->{file}), "$work/class/linked/$e->{file}";
symlink Cwd::abs_path('01_data_parallel'), "$work/class/linked-folder/01_data_parallel";
$verdict{$_} = {
    id => $e->{id},
    least => 0,
    most => 0,
    why => qr/^refused: \S+ is not a plain file of its own$/
    }
    for qw(linked linked-folder);

SKIP: {
    skip 'no sandbox here', 1 unless $sandbox;
    my %ids = map { $_->{id} => 1 } values %verdict;
    mkdir "$work/results";
    my ($status, $out) =
        ran("tools/grade --seed 5 --class --json $work/results $work/class " . join ' ',
        sort keys %ids);
    is($status, 0, 'a class is graded') or diag($out);
    my %table = $out =~ /^== (\S+)\n(.*?)(?=^== |\z)/msg;
    is(scalar keys %table, scalar keys %verdict, 'a table for every student');
    for my $name (sort keys %verdict) {
        my ($id, $least, $most, $why) = @{ $verdict{$name} }{qw(id least most why)};
        my $table = $table{$name} // '';
        my ($row, $reasons) = $table =~ /^(\Q$id\E [^\n]*)\n((?: {10}[^\n]*\n)*)/m;
        my ($points) = ($row // '') =~ / (\S+) of \d+$/;
        ok(defined $points && $points >= $least - 0.01 && $points <= $most + 0.01,
            "$name: $least to $most points")
            or diag($table);
        like(($reasons // '-') =~ s/^ +//gmr =~ s/\n\z//r, $why, "$name: the reason");
        my $page = eval { decode_json(Exercises::slurp("$work/results/$name.json")) } || {};
        my ($test) = grep { $_->{name} =~ /^\Q$id\E / } @{ $page->{tests} || [] };
        is_deeply(
            [sort keys %{ $test || {} }],
            [qw(max_score name output score status visibility)],
            "$name: its JSON as Gradescope reads it"
        );
    }
    is_deeply([glob "$work/escaped-*"], [], 'nothing left the sandbox');
    is((grep { m{^\s*1 /work/program} } `ps -eo ppid,args`), 0, 'no process outlives its grading');
    is_deeply([glob "$work/results/*.tmp"], [], 'no half-written results stay');
    my @rows = split /\n/, Exercises::slurp("$work/results/class.csv");
    is(scalar @rows, 1 + keys %verdict, 'class.csv has a row per student');
    like($rows[0], qr/^student,.*01\.02a.*,total,of$/, 'class.csv has a column per exercise');
    like(
        Exercises::slurp("$work/results/exercises.csv"),
        qr/^01\.02a,[^\n]*,\d+,\d+,\d+,\d+,\d+,\w/m,
        'exercises.csv says how many students failed each exercise'
    );

    # ---- an interrupted make grade leaves no file ----
    mkdir "$work/tmp";
    my $pid = fork // die;
    if (!$pid) {
        $ENV{TMPDIR} = "$work/tmp";
        open STDOUT, '>', '/dev/null';
        exec 'tools/grade', "$work/class/windows", $e->{id};
    }
    my $built = "$work/tmp/unsplit-grade.*/job-*/way0/run.run";    # of the first run
    for (1 .. 10 * $hang) { last if glob $built; select undef, undef, undef, 0.1 }
    kill 'INT', $pid;
    waitpid $pid, 0;
    is($? >> 8, 3, 'interrupted: status 3');
    is_deeply([glob "$work/tmp/unsplit-grade.*"], [], 'interrupted: no folder stays');

    # ---- the draws of a seed; each student has a draw ----
    if ($all) {
        my $draw = sub {
            (ran("tools/grade @_ $work/class/does-not-compile-late 01.02a"))[1] =~
                /\((with [^)]*)\)/ ? $1 : '';
        };
        Exercises::spew(
            "$work/class/does-not-compile-late/$e->{file}",
            Exercises::splice_body($clean, $e->{id}, "(void)dp;\n")
        );
        my $first = $draw->('--seed 7');
        like(
            $first,
            qr/^with [567] ranks/,
            'the first run has more than 4 ranks, and no power of two'
        );
        is($draw->('--seed 7'), $first, 'the same seed gives the same sizes and ranks');
        isnt($draw->('--seed 8'), $first, 'another seed gives other sizes and ranks');
        my $first_draw = $draw->('--seed-from anna');
        is($draw->('--seed-from anna'), $first_draw, 'the same text gives the same draw');
        isnt($draw->('--seed-from bert'), $first_draw, 'another text gives another draw');
    }

    # ---- the capstone ----
    my @capstones = graded('tests/graded/capstone.txt');
    @capstones = $capstones[0] unless $all;
    push @capstones, { name => 'own', id => '06.02b', s => [] } if $all;
    for my $g (@capstones) {
        my $folder = "$work/capstones/$g->{name}";
        my $file = $exercise{ $g->{id} }{file};
        Exercises::copy_files('.', $folder, grep { $_ ne $file } map { $_->{file} } @all);
        submission_of($g, "$work/piece", '', %exercise);
        my ($body) = Exercises::find_body(Exercises::slurp("$work/piece/$file"), $g->{id});
        Exercises::spew("$folder/$file",
            Exercises::splice_body(Exercises::slurp($file), $g->{id}, $body));
    }
    ($status, $out) = ran("tools/grade --seed $seed --class $work/capstones capstone");
    is($status, 0, 'the capstone is graded') or diag($out);
    %table = $out =~ /^== (\S+)\n(.*?)(?=^== |\z)/msg;
    for my $g (@capstones) {
        my $table = $table{ $g->{name} } // '';
        my ($points) = $table =~ /^08\.capstone .* (\S+) of 20$/m;
        my $reasons = join '', $table =~ /^ {10}(.*\n)/mg;
        if (!defined $g->{expect}) {
            is($points, 20, 'the capstone: our own pieces have all points') or diag($table);
            next;
        }
        ok(
            defined $points && $points > 5 && $points < 19.9,
            "the capstone, $g->{name}: a wrong piece loses points"
        ) or diag($table);
        like($reasons, qr/$g->{expect}/m, "the capstone, $g->{name}: the message names the piece");
        like(
            $reasons,
            qr/^layout .* needs \Q$g->{id}\E$/m,
            "the capstone, $g->{name}: the layouts that need the piece fail"
        );
        my @others = grep { $_ ne $g->{id} } $reasons =~ /^(0[1-7]\.\d\d[a-z]): /mg;
        is("@others", '', "the capstone, $g->{name}: no other piece is named");
    }

    # ---- this tree ----
    my @sample = $all ? map { $_->{id} } @all : ('02.03a');
    ($status, $out) =
        ran("make -s grade SUBMISSION=. EXERCISES='@sample' JSON=$work/own.json ARGS='--seed 9'");
    is($status, 0, 'the solutions of this tree are graded');
    like($out, qr/^total +(\S+) of \1 points/m, 'the solutions of this tree have all points')
        or diag($out);
    is((decode_json(Exercises::slurp("$work/own.json")))->{tests}[0]{visibility},
        'visible', 'the JSON through make');
}

# ---- the other kinds of exercises ----
refused('tasks are listed', 0, qr/^02\.p  predict .*^05\.d  design /ms, 'tools/task');
refused('a right prediction', 0, qr/^right: the run measured 2 calls/m,
    'tools/task predict 03.p 2');
refused(
    'a wrong prediction',
    1,
    qr/100 % away\. Your answer is 2 times/,
    'tools/task predict 03.p 4'
);
for my $id (map { /^predict (\S+)/ ? $1 : () } split /\n/, Exercises::slurp('tools/tasks')) {
    refused(
        "prediction $id has a measured number",
        1,
        qr/^not yet: 7 /m,
        "tools/task predict $id 7"
    );
}
refused('no prediction', 2, qr/ANSWER= a number/, 'tools/task predict 03.p');
Exercises::spew("$work/design", "# three stages\n" . "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5\n" x 3);
refused(
    'a legal design',
    0,
    qr/^legal, \d+ units, at most 1 in flight.*place/ms,
    "tools/task design 04.d $work/design"
);
Exercises::spew("$work/design", "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5\n" x 3);
refused(
    'a design over its bound',
    1,
    qr/breaks the bound: 6 6 6 in flight, and 3 are allowed/,
    "tools/task design 04.d $work/design"
);
Exercises::spew("$work/design", "B0 F0 F1 F2 F3 F4 F5 B1 B2 B3 B4 B5\n" x 3);
refused('a design that is not legal', 1, qr/^not legal: /m, "tools/task design 04.d $work/design");
Exercises::spew("$work/layout", "--dp 16 --tp 4 --pp 4 --micro-batch 1 --zero 1\n");
refused(
    'a layout that fits',
    0,
    qr/^legal, fits: [\d.]+ s per step, [\d.]+ GB per GPU, [\d.]+ GB sent.*place +GB sent +s /ms,
    "tools/task design 08.d $work/layout"
);
Exercises::spew("$work/layout", "--dp 8 --tp 8 --pp 4 --micro-batch 1 --zero 1\n");
refused(
    'a layout that takes too long',
    1,
    qr/^legal, fits: [\d.]+ s per step.*, but a step may take 17 s$/m,
    "tools/task design 08.d $work/layout"
);
Exercises::spew("$work/layout", "--dp 32 --tp 8 --pp 1 --micro-batch 4 --zero 0\n");
refused(
    'a layout that does not fit',
    1,
    qr/^legal, but it does not fit: [\d.]+ GB/m,
    "tools/task design 08.d $work/layout"
);
Exercises::spew("$work/layout", "--dp 8 --tp 8 --pp 4 --micro-batch 1 --memory 1000\n");
refused(
    'a layout that changes the cluster',
    2,
    qr/may have only --dp/,
    "tools/task design 08.d $work/layout"
);
{
    my ($status, $out) = ran("tools/task plant $work/planted 02 3");
    is($status, 0, 'a mistake is planted') or diag($out);
    my ($patch) = $out =~ m{SEED=3 planted (bugs/\S+)\.$}m;
    ok(
        defined $patch && !-e "$work/planted/bugs" && !-e "$work/planted/tests/graded",
        'the tree with the planted mistake has no bugs and no submissions'
    );
    my $changed = grep { Exercises::slurp("$work/planted/$_") ne Exercises::slurp($_) }
        Exercises::slurp($patch // $0) =~ m{^\+\+\+ b/(\S+)}mg;
    cmp_ok($changed, '>=', 1, 'the file of the planted mistake has changed');
}
refused(
    'the capstone of a tree',
    0,
    qr/^dp \d+ tp \d+ pp \d+ .*every loss, gradient and weight/m,
    'tools/task capstone 1'
);
unlink map { "build/leaderboard-$_.d.csv" } qw(04 08);
done_testing();
