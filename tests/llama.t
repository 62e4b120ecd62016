#!/usr/bin/perl
# Tests Llama's block under the trainer: RMS norm, rotary positions, SwiGLU, grouped heads, an
# untied head. Each row is compared with the unsplit model, and its costs must be exact to the byte.
# TEST_ALL=1 runs each row in both precisions, tied and untied.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my %train = map { $_ => program_of($_, '08_3d/train.c') } qw(fp32 fp64);
plan skip_all => "$train{fp32} is not built" unless -x $train{fp32};
my $text = "$work/text.txt";
{
    open my $f, '>', $text or die "$text: $!";
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f or die "$text: $!";
}

# For each change common/llama.md gives the number of lines in the section of ops.c that has the
# name of the change. Empty lines do not count. A student's copy lacks some of these lines.
if (!-e 'student.mk') {
    my @changes = ('RMS norm', 'rotary positions', 'SwiGLU', 'grouped heads');
    my ($page, $ops) = map { slurp($_) } 'common/llama.md', 'common/tensor/ops.c';
    for my $change (@changes) {
        my ($section) = $ops =~ m{^(// ---- \Q$change\E ----\n.*?)^// ---- }ms;
        my ($told) = $page =~ /^\| \Q$change\E \| (\d+) \|/m;
        my $counted = grep { /\S/ } split /\n/, $section // '';
        is($told, $counted, "common/llama.md has the number of lines of $change");
    }
}

# Two heads of the query share a head of key and value. The widths of the block, of the keys and of
# the MLP differ: 48, 24 and 38.
my @model = (
    qw(--family llama --layers 4 --width 48 --heads 8 --kv-heads 4 --ffn 38 --context 10
        --batch 8 --micro-batch 2 --steps 3
        --eval-every 0 --check --data), $text
);
my @rows = (
    [1, ''],
    [4, '--dp 1 --tp 4 --pp 1 --dropout 0 --attention-bias'],
    [6, '--dp 2 --tp 3 --pp 1 --sequence-parallel --attention-bias'],
    [8, '--dp 2 --tp 2 --pp 2'],
    [8, '--dp 2 --tp 2 --pp 2 --zero 1 --recompute selective'],
    [8, '--dp 2 --tp 2 --pp 2 --zero 2 --sequence-parallel --schedule gpipe'],
    [8, '--dp 2 --tp 2 --pp 2 --zero 3 --recompute full --sequence-parallel'],
    [4, '--dp 4 --tp 1 --pp 1 --zero 3 --prefetch'],
    [8, '--dp 2 --tp 2 --pp 2 --schedule interleaved --chunks 2 --zero 2'],
    [8, '--dp 1 --tp 2 --pp 4 --schedule zero-bubble --sequence-parallel --attention-bias'],
    [8, '--dp 2 --tp 2 --pp 1 --cp 2 --sequence-parallel'],
    [6, '--dp 1 --tp 1 --pp 2 --cp 3 --recompute full --zero 3'],
    [8, '--dp 4 --tp 1 --pp 2 --overlap'],
    [4, '--dp 2 --tp 1 --pp 2 --compress top-k'],
    [8, '--dp 2 --tp 2 --pp 2 --compress power-sgd'],
    [4, '--dp 2 --tp 2 --pp 1 --attention blockwise --activation-budget 150000'],
    [4, '--dp 2 --tp 1 --pp 2 --stage-layers 3,1 --rebalance 1'],
    [6, '--family gpt2 --dp 2 --tp 3 --pp 1 --sequence-parallel --zero 2'],
    [4, '--family gpt2 --dp 1 --tp 2 --pp 2 --schedule zero-bubble'],
);
my $usual = -x $train{fp64} ? 'fp64' : 'fp32';
my @jobs;
for my $i (0 .. $#rows) {
    my ($ranks, $options) = @{ $rows[$i] };
    for my $precision (qw(fp32 fp64)) {
        for my $untied (0, 1) {
            next unless $ENV{TEST_ALL} || ($precision eq $usual && $untied == $i % 2);
            next unless -x $train{$precision};
            my $way = $options . ($untied ? ' --untied' : '');
            push @jobs,
                {
                %{
                    emu($ranks, $train{$precision},
                        last_of_each(@model, qw(--optimizer sgd --lr 0.05), split ' ', $way))
                },
                name => "$precision, $ranks ranks $way"
                };
        }
    }
}
run_jobs(\@jobs);
for my $job (@jobs) {
    my @checks = grep { $_->{what} =~ /^3D = unsplit/ } @{ $job->{page}{checks} || [] };
    my @wrong = grep { !$_->{pass} } @{ $job->{page}{costs} || [] };
    ok(
        $job->{status} == 0
            && $job->{page}{pass}
            && @checks >= 4
            && !@wrong
            && @{ $job->{page}{costs} } >= 10,
        $job->{name}
    ) or diag(complain($job));
    my $limit = $job->{name} =~ /power/ ? 1e-8 : 1e-12;
    cmp_ok(max(map { $_->{error} } @checks), '<=', $limit, "$job->{name}: the errors in double")
        if $job->{name} =~ /^fp64/;
}

# A checkpoint stores the family. At another layout a rank reads other columns of the query.
{
    my @sizes = (
        qw(--layers 2 --width 48 --heads 8 --kv-heads 4 --ffn 38 --untied --context 10 --batch
            8 --micro-batch 2 --data),
        $text
    );
    my @how = qw(--eval-every 0 --reduce ordered);
    my @saved = (
        emu(
            8, $train{fp32}, qw(--family llama),
            @sizes, @how, qw(--dp 2 --tp 2 --pp 2 --zero 2 --steps 2 --decay-steps 4 --save),
            "$work/runs"
        ),
        emu(
            1, $train{fp32}, qw(--family llama), @sizes,
            @how, qw(--steps 4 --log), "$work/whole.log"
        )
    );
    run_jobs(\@saved);
    my $rest =
        emu(3, $train{fp32}, qw(--resume), "$work/runs", @how,
        qw(--micro-batch 2 --dp 1 --tp 3 --pp 1 --steps 4 --log),
        "$work/rest.log");
    run_jobs([$rest]);
    ok(!(grep { $_->{status} } @saved, $rest), 'a checkpoint of 8 ranks, resumed on 3')
        or diag(map { complain($_) } @saved, $rest);
    my %loss = map {
        my $log = $_;
        $log => [
            map { /^\{"step":[23],.*"loss":([0-9.e-]+)/ ? $1 : () } split /\n/,
            slurp("$work/$log.log")
        ]
    } qw(whole rest);
    my @apart = map { abs($loss{whole}[$_] - $loss{rest}[$_]) } 0, 1;
    ok(@{ $loss{rest} } == 2 && max(@apart) < 1e-5,
        'a checkpoint of 8 ranks, resumed on 3, gives the losses of the whole run')
        or diag("@{ $loss{whole} } | @{ $loss{rest} }");
    my $other = emu(1, $train{fp32}, qw(--family gpt2 --resume), "$work/runs", @how);
    run_jobs([$other]);
    ok(
        $other->{status} == 2
            && join(' ', split ' ', $other->{err}) =~
            /it was trained with --family llama, not gpt2/,
        'a checkpoint of a Llama refuses --family gpt2'
    ) or diag(complain($other));
    my $biased = emu(1, $train{fp32}, qw(--attention-bias --resume), "$work/runs", @how);
    run_jobs([$biased]);
    ok(
        $biased->{status} == 2
            && join(' ', split ' ', $biased->{err}) =~
            /it was trained without --attention-bias: leave --attention-bias out/,
        'a checkpoint without biases refuses --attention-bias'
    ) or diag(complain($biased));
}

# The trainer must give the reason for each refusal.
my @refused = (
    [
        '--tp 2 --kv-heads 1 --heads 2',
        qr/--tp 2 needs as many heads of key and value; the model has 1: choose --tp 1, or more --kv-heads/
    ],
    [
        '--kv-heads 3',
        qr/8 heads do not share 3 heads of key and value: choose --heads as a multiple of --kv-heads/
    ],
    ['--kv-heads 0', qr/--kv-heads 0: the heads share at least one head/],
    [
        '--ffn 1 --tp 2 --pp 1',
        qr/--tp 2 needs as many features of the MLP; the model has 1: choose --tp 1, or a larger --ffn/
    ],
    ['--ffn 0', qr/--ffn 0: the MLP has at least one feature/],
    [
        '--width 40 --heads 8 --kv-heads 8',
        qr/rotary positions turn pairs of columns, but a head has 5: choose --width/
    ],
    [
        '--tp 4 --dp 1 --pp 1 --tensor 2d',
        qr/a grid cuts layer norms, learned positions .* only --family gpt2 has/
    ],
    [
        '--tp 8 --dp 1 --pp 1 --tensor 2.5d',
        qr/a grid cuts layer norms, learned positions .* only --family gpt2 has/
    ],
    [
        '--tp 8 --dp 1 --pp 1 --tensor 3d',
        qr/a grid cuts layer norms, learned positions .* only --family gpt2 has/
    ],
);
my @asked = map {
    my ($options) = @$_;
    my %given = map { $_ => 1 } $options =~ /(--[a-z-]+)/g;
    my @base = (qw(--family llama --steps 1 --eval-every 0 --data), $text);
    push @base, '--width', 48 unless $given{'--width'};
    push @base, '--heads', 8 unless $given{'--heads'};
    emu($options =~ /--tp ([48])/ ? $1 : 2, $train{fp32}, @base, split ' ', $options)
} @refused;
run_jobs(\@asked);
for my $i (0 .. $#asked) {
    my $said = join ' ', split ' ', $asked[$i]{err};
    ok($asked[$i]{status} == 2 && $said =~ $refused[$i][1], "refused: $refused[$i][0]")
        or diag(complain($asked[$i]));
}
done_testing;
