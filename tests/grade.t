#!/usr/bin/perl
# Tests make grade: our own solutions get all points, open exercises get none. Every known way to
# cheat is refused, and a submission shows each way. A hang or a crash costs one exercise.
# TEST_ALL=1 grades all our solutions, otherwise some.
# slow: each submission is compiled and runs as processes three times
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin, "$FindBin::Bin/../tools";
use Cwd ();
use Exercises ();
use GradeRules;
use Jobs;
use JSON::PP;
use Test::More;

chdir "$FindBin::Bin/.." or die;
plan skip_all => 'no mpirun' unless have_mpi;
my @all = Exercises::exercises('.');
my ($e) = grep { $_->{id} eq '01.02a' } @all;
plan skip_all => 'exercise 01.02a is not in this tree' unless $e;
sub ran { my ($command) = @_; my $out = `$command 2>&1 </dev/null`; return ($? >> 8, $out) }

# ---- usage ----
sub refused { my ($what, $wanted, $pattern, $command) = @_; my ($status, $out) = ran($command); is($status, $wanted, $what); like($out, $pattern, "$what: in words") }
refused('no submission', 2, qr/usage: make grade SUBMISSION=/, 'tools/grade');
refused('a submission that is not there', 2, qr/is not a folder/, "tools/grade $work/nowhere");
refused('an unknown exercise', 2, qr/no exercise '77'; there are: /, 'tools/grade . 77');
refused('results that cannot be written', 2, qr/cannot be written/, "tools/grade --json $work/nowhere/results.json .");
refused('results that are a folder', 2, qr/cannot be written/, "tools/grade --json $work .");
mkdir "$work/none";
refused('a class without students', 2, qr/no folders of students/, "tools/grade --class $work/none");
refused('an unknown option', 2, qr/Unknown option/, 'tools/grade --no-such .');
is(system("make -s student DIR=$work/student >/dev/null"), 0, "a student's tree");
refused("a student's tree grades nobody", 3, qr/this is a student's tree/, "$work/student/tools/grade .");

# ---- the rules, one by one ----
my $known = public_functions("Tensor tensor_new(Arena *a);\nvoid comm_send(Comm *c);\nvoid comm_free(Comm *c);\n");
my $ours = 'comm_ledger_reset(dp); x = 1;';
my %text = (
    'x = y; // a "comment' => undef, 'f = "a // string"; /* a comment { */' => undef, 'comm_send(dp); tensor_new(a);' => undef,
    'comm_ledger_reset(dp);' => undef, 'for (int i = 0; i < (int)sizeof x; i++) { a[i] = sqrt(2); }' => undef, 'double cost = 0; cost++;' => undef,
    'm->data = t.cols;' => undef, 'x = 1e5f; c = \'"\';' => undef,
    'exit(0);' => 'the name exit', 'void (*f)(int) = exit;' => 'the name exit', 'comm_free(dp);' => 'the name comm_free', 'helper(x);' => 'a call of helper',
    'cost(run, "a", "b", 1, 1);' => 'a call of cost', 'dp->ledger[0].calls = 1;' => 'the field ledger', 'ledger_pause();' => 'the name ledger_pause',
    'static real x[9];' => 'the name static', 'goto out;' => 'the name goto', 'asm("nop");' => 'the name asm', '__builtin_trap();' => 'the name __builtin_trap',
    "#include <stdio.h>\n" => 'a # line', "%:include <stdio.h>\n" => 'a # line', "x = \\\n1;" => 'a line that ends in \\', 'a <: 0 :> = 1;' => 'a digraph',
    '} int f(void) {' => 'a } that closes nothing of the body', 'if (x) {' => 'a { that is not closed', 'f(x];' => 'a ] that closes nothing of the body',
    'side_length = 1;' => undef, 'if (x) (void)y; x = (real)(y); a = (Tensor)(b);' => undef,
    'x = R"(" )"; (exit2)(1); /*"*/' => 'a string with letters before it', 'x = L"a";' => 'a string with letters before it',
    '(helper)(x);' => 'a call of (helper)', 'void (*f)(int) = helper;' => 'a call of (*f)', 'int f [[gnu::constructor]] (void) { }' => 'an attribute',
    'mine.category = MEM_REFERENCE;' => 'the name MEM_REFERENCE',
    'x = 1; /* no end' => 'a comment that does not end', 'x = "no end;' => 'a string that does not end', 'ex\\u0069t(0);' => 'a character that is no C',
);
for my $body (sort keys %text) {
    my $fault = text_faults($body, $ours, $known);
    is($fault, $text{$body}, 'the rule: ' . ($body =~ s/\n/ /gr) . ' has ' . ($text{$body} // 'nothing wrong'));
}

# ---- submissions: the file of 01.02a, with another body ----
my $clean = Exercises::slurp($e->{file});
my $right = substr $clean, $e->{begin}, $e->{end} - $e->{begin};
my %verdict;
# These submissions are built and run, several seconds each, and they resemble others. So they run
# with TEST_ALL=1 only.
my %seldom = map { $_ => 1 } qw(honest-otherwise works-twice never-ends recomputes recomputes-in-order large-array knows-the-sizes hard-on-the-compiler bytes
    more-memory knows-the-ranks);
sub submit {
    my ($name, $body, $verdict) = @_;
    return if $seldom{$name} && !$all;
    Exercises::spew("$work/class/$name/$e->{file}", Exercises::splice_body($clean, $e->{id}, $body =~ s/\n?\z/\n/r));
    $verdict{$name} = $verdict;
}
# Computes each shard's gradient on every rank and adds them in rank order: right to the last bit.
my $in_order = 'Arena mine = arena(MEM_WORKSPACE);
    Tensor sum = tensor_new(&mine, m->g.rows, m->g.cols);
    for (size_t r = 0; r < dp->size; r++) {
        double part = local_gradients(m, d, step, shard_range(sequences, dp->size, r), 1 / (double)data_count(d, step, 0, sequences));
        if (r == dp->rank) loss = part;
        if (r == 0) tensor_copy(sum, m->g);
        else op_add(sum, sum, m->g);
    }
    tensor_copy(m->g, sum);
    arena_free(&mine);';
my $whole = 'loss = local_gradients(m, d, step, shard_range(sequences, dp->size, dp->rank), 1 / (double)data_count(d, step, 0, sequences));
    local_gradients(m, d, step, (Range){ 0, sequences }, 1 / (double)data_count(d, step, 0, sequences));';

# Points: all, or half for the numbers, plus a sixth per layer.
submit('honest', $right, [4, qr/^$/]);
submit('honest-otherwise', "for (int i = 0; i < 1; i++) {\n    // my own words: exit(0)\n    $right\n    }", [4, qr/^$/]);
submit('in-halves', $right =~ s/data_parallel_all_reduce\(dp, m\)/comm_all_reduce(dp, tensor_flat_range(m->g, 0, tensor_count(m->g) \/ 2));
    comm_all_reduce(dp, tensor_flat_range(m->g, tensor_count(m->g) \/ 2, tensor_count(m->g)))/r, [8 / 3, qr/^bytes: all-reduces.*measured 8, predicted 4/]);
submit('more-memory', "Arena more = arena(MEM_ACTIVATIONS);\n    tensor_new(&more, 1000, 1000);\n    arena_free(&more);\n$right", [10 / 3, qr/^memory: activations, peak/]);
submit('works-twice', "local_gradients(m, d, step, (Range){ 0, sequences }, 1);\n$right", [8 / 3, qr/^memory: .*\n +time: computing/]);
submit('no-reduction', $right =~ s/data_parallel_all_reduce\(dp, m\);//r, [0, qr/^numbers: .*error/]);
submit('open', 'TODO("01.02a");', [0, qr/^open$/]);
submit('empty', '// nothing yet', [0, qr/^open$/]);
# Refused or lost points.
my $left = 'refused: the body has';
submit('exits', "exit(0);\n$right", [0, qr/^$left the name exit$/]);
submit('leaves', '_exit(0);', [0, qr/^$left a call of _exit$/]);
submit('forges-its-page', qq(FILE *f = fopen("page.json", "w");\n    fputs("{\\"pass\\":true}", f);\n    fclose(f);\n    _Exit(0);), [0, qr/^$left the name fopen$/]);
submit('recomputes', $whole, [0, qr/^numbers: SGD: replicas = shards in order/]);
submit('recomputes-in-order', $in_order, [0, qr/^refused: the results stay right when what its messages carry is altered/]);
submit('sends-for-show', "$right\n    $in_order", [0, qr/^refused: the results stay right when what its messages carry is altered/]);
submit('side-channel', qq($right\n    side_broadcast(&loss, sizeof loss);), [0, qr/^$left the name side_broadcast$/]);
submit('pauses-the-ledger', "ledger_pause();\n$right\n    ledger_resume();", [0, qr/^$left the name ledger_pause$/]);
submit('writes-the-ledger', "$right\n    dp->ledger[COMM_ALL_REDUCE].calls = 1;", [0, qr/^$left the field ledger$/]);
submit('allocates', "real *mine = malloc(100000);\n$right\n    free(mine);", [0, qr/^$left the name malloc$/]);
submit('static-array', "static real mine[5000];\n    mine[step] = 1;\n$right", [0, qr/^$left the name static$/]);
submit('array-of-any-size', "volatile real mine[sequences * dp->size * 100];\n    mine[dp->size] = 1;\n$right", [0, qr/^refused: memory outside the ledger: arrays whose size/]);
submit('large-array', "volatile real mine[50000];\n    mine[step] = 1;\n$right", [0, qr/^refused: memory outside the ledger: more than 4096 bytes on the stack/]);
submit('knows-the-sizes', $right =~ s/data_parallel_all_reduce\(dp, m\)/comm_all_reduce(dp, tensor_flat_range(m->g, 0, 16237))/r, [0, qr/^(numbers: |\[rank \d\] ).*ranks, --seed/]);
submit('knows-the-ranks', "if (dp->size == 4 && sequences == 7) {\n    $right\n    }", [0, qr/^numbers: /]);
submit('closes-the-function', "    return 0;\n}\nint more(void) {\n    return 1;", [0, qr/^$left a \} that closes nothing/]);
submit('includes', "#include <stdlib.h>\n$right", [0, qr/^$left a # line$/]);
submit('does-not-compile', "int x = ;\n$right", [0, qr/^it does not build: .*error/]);
submit('hard-on-the-compiler', "const char x[] = {[0 ... 2000000000] = 1};\n    loss += x[dp->rank];\n$right", [0, qr/^it does not build: .*\S/]);
submit('crashes', "*(volatile int *)(step * 0) = 1;\n$right", [0, qr/signal|status 3|a fault/]);
submit('never-ends', "for (volatile int i = 1; i;) { }\n$right", [0, qr/longer than allowed|a fault|waited|status 3/]);
submit('deadlock', "if (dp->rank == 0) comm_recv(dp, m->g, 1);\n$right", [0, qr/with \d ranks/]);
# The markers.
submit('twice', $right, [0, qr/^refused: its marker stands there twice$/]);
{
    my $file = "$work/class/twice/$e->{file}";
    Exercises::spew($file, Exercises::slurp($file) . "// EXERCISE 01.02a (4 points): again\n// END\n");
    Exercises::spew("$work/class/no-end/$e->{file}", $clean =~ s{// END}{}gr);
    $verdict{'no-end'} = [0, qr/^refused: its `\/\/ END` is missing$/];
    Exercises::spew("$work/class/no-file/notes", 'I was ill');
    $verdict{'no-file'} = [0, qr/^refused: \S+ is not there$/];
    # A file of another tree, such as ours.
    mkdir "$work/class/$_" for qw(linked linked-folder);
    mkdir "$work/class/linked/01_data_parallel";
    symlink Cwd::abs_path($e->{file}), "$work/class/linked/$e->{file}";
    symlink Cwd::abs_path('01_data_parallel'), "$work/class/linked-folder/01_data_parallel";
    $verdict{$_} = [0, qr/^refused: \S+ is not a plain file of its own$/] for qw(linked linked-folder);
    # A file as other systems and editors save it, otherwise unchanged.
    Exercises::spew("$work/class/windows/$e->{file}", "\xef\xbb\xbf" . $clean =~ s/ {4}/\t/gr =~ s/\n/\r\n/gr =~ s/optimizer_step\(o, m, 1\)/optimizer_step(o, m, 2)/r);
    $verdict{windows} = [4, qr/^$/];
    submit('bytes', "// \xe4 \0 \xe6\xa2\xaf\n$right", [4, qr/^$/]);
    Exercises::spew("$work/class/no-text/$e->{file}", join '', map { chr } 0 .. 255);
    $verdict{'no-text'} = [0, qr/^refused: its marker is not there$/];
    # One file without its folder, with the task deleted.
    if ($all) {
        Exercises::spew("$work/class/one-file/02_all_reduce.c", $clean =~ s{(// EXERCISE 01\.02a)[^\n]*\n(?:\s*//[^\n]*\n)*}{$1\n}r);
        $verdict{'one-file'} = [4, qr/^$/];
    }
}

mkdir "$work/results";
my ($status, $out) = ran("tools/grade --seed 5 --class --json $work/results $work/class 01.02a");
is($status, 0, 'a class is graded') or diag($out);
my %table = $out =~ /^== (\S+)\n(.*?)(?=^== |\z)/msg;
is(scalar keys %table, scalar keys %verdict, 'a table for every student');
for my $name (sort keys %verdict) {
    my ($points, $why) = @{ $verdict{$name} };
    my $table = $table{$name} // '';
    my ($got) = $table =~ /^total +(\S+) of 4 points/m;
    cmp_ok(abs(($got // -1) - $points), '<', 0.01, "$name: " . sprintf('%.2f', $points) . ' points') or diag($table);
    my ($reasons) = $table =~ /^exercise [^\n]*\n01\.02a [^\n]*\n(.*?)\n?^total/ms;
    like(($reasons // '-') =~ s/^ +//r, $why, "$name: the reason");
    my $page = eval { decode_json(Exercises::slurp("$work/results/$name.json")) } || {};
    cmp_ok(abs(($page->{score} // -1) - $points), '<', 0.01, "$name: the score of its JSON");
    is_deeply([sort keys %{ $page->{tests}[0] || {} }], [qw(max_score name output score status visibility)], "$name: its JSON as Gradescope reads it");
    is($page->{tests}[0]{status}, $points == 4 ? 'passed' : 'failed', "$name: the status in its JSON");
}
is_deeply([glob "$work/results/*.tmp"], [], 'no half-written results stay');

# ---- a solution taken from existing functions: refused before anything is built ----
sub elsewhere {
    my ($id, $name, $body, $pattern) = @_;
    my ($it) = grep { $_->{id} eq $id } @all;
    Exercises::spew("$work/elsewhere/$it->{file}", Exercises::splice_body(Exercises::slurp($it->{file}), $id, "$body\n"));
    my ($status, $out) = ran("tools/grade $work/elsewhere $id");
    is($status, 0, "$id, $name: graded");
    like($out, qr/^ +refused: the body has a call of $pattern\n.*^total +0 of/ms, "$id, $name: refused");
}
elsewhere('01.01a', 'the whole batch at once', 'if (rule == AVERAGE) loss_and_gradient(&g, &t.layer, x, target, SAMPLES);', 'loss_and_gradient');
elsewhere('01.01a', 'the other training', 'if (rule == AVERAGE) return train(start, x, target, FULL_BATCH, lr);', 'train');
elsewhere('01.03a', "the library's sum", 'comm_all_reduce(c, t);', 'comm_all_reduce');
elsewhere('01.03a', 'another way', 'tree_all_reduce(c, t);', 'tree_all_reduce');
elsewhere('01.03b', 'the ring', 'ring_all_reduce(c, t);', 'ring_all_reduce');
elsewhere('04.03a', 'another loop', 's.result = pipeline_naive(pp, m, batch, micro_batches);', 'pipeline_naive');
elsewhere('05.02a', 'the executor', 's.result = pipeline_run(pp, m, &list, batch, micro_batches);', 'pipeline_run');

# ---- interrupted: no file remains ----
{
    mkdir "$work/tmp";
    my $pid = fork // die;
    if (!$pid) {
        $ENV{TMPDIR} = "$work/tmp";
        open STDOUT, '>', '/dev/null';
        exec 'tools/grade', "$work/class/honest", $e->{id};
    }
    my $built = "$work/tmp/unsplit-grade.*/page-*";        # of the first run
    for (1 .. 10 * $hang) { last if glob $built; select undef, undef, undef, 0.1 }
    kill 'INT', $pid;
    waitpid $pid, 0;
    is($? >> 8, 3, 'interrupted: status 3');
    is_deeply([glob "$work/tmp/unsplit-grade.*"], [], 'interrupted: no folder stays');
    unlike(`ps -eo args`, qr{\Q$work\E/tmp/}, 'interrupted: no process stays');
}

# ---- a crashing body costs only its own exercise; the same --seed draws the same ----
Exercises::spew("$work/two/$_", Exercises::slurp($_)) for map { $_->{file} } grep { $_->{id} =~ /^01\.0[12]/ } @all;
Exercises::spew("$work/two/$e->{file}", Exercises::slurp("$work/class/crashes/$e->{file}"));
($status, $out) = ran("make -s grade SUBMISSION=$work/two EXERCISES='01.01 01.02' JSON=$work/two.json ARGS='--seed 7'");
is($status, 0, 'a crash is no fault of the grader') or diag($out);
like($out, qr/^01\.02a .* 0 of 4$/m, 'the exercise that crashes has no points');
my @others = grep { $_->{id} =~ /^01\.0[12]/ && $_->{id} ne '01.02a' } @all;
like($out, qr/^\Q$_->{id}\E .* $_->{points} of $_->{points}$/m, "$_->{id}, beside it, has all") for @others;
is((decode_json(Exercises::slurp("$work/two.json")))->{tests}[0]{visibility}, 'visible', 'the JSON through make');
my (undef, $again) = ran("tools/grade --seed 7 $work/two 01.02a");
is_deeply([$again =~ /\((with [^)]*)\)/], [$out =~ /\((with [^)]*)\)/], 'the same seed, the same sizes and ranks');
my (undef, $other) = ran("tools/grade --seed 8 $work/two 01.02a");
isnt(($other =~ /\((with [^)]*)\)/)[0], ($out =~ /\((with [^)]*)\)/)[0], 'another seed, others');

# ---- this tree, and the student's tree ----
my @sample = $all ? map { $_->{id} } @all : do { my $n = 0; grep { $n++ % 40 == 7 } map { $_->{id} } @all };
($status, $out) = ran("tools/grade . @sample");
is($status, 0, 'our own solutions are graded');
like($out, qr/^total +(\S+) of \1 points/m, 'and have all points') or diag($out);
($status, $out) = ran("tools/grade $work/student");
is($status, 0, 'open exercises are graded');
is(() = $out =~ /^ +open$/mg, scalar @all, 'all are open');
like($out, qr/^total +0 of [1-9]/m, 'and have no points');
done_testing();
