#!/usr/bin/perl
# Tests --data with text, and with token files of llm.c (with a header) and nanoGPT (without). The
# order of the windows must be the same at every layout and after --resume. Also tests refused
# files.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
my @model = qw(--layers 2 --width 24 --heads 3 --context 12 --batch 8 --micro-batch 2 --steps 12
    --eval-every 0 --reduce ordered);
sub run { my ($job) = @_; $job->{json} = 0; run_jobs([$job]); return $job }
sub fine { my ($job, $what) = @_; return ok($job->{status} == 0, $what) || diag(complain($job)) }

sub file {
    my ($name, $bytes) = @_;
    open my $f, '>:raw', "$work/$name" or die;
    print $f $bytes;
    close $f or die;
    return "$work/$name";
}
my $log = "$work/log";

sub steps_of {
    return map { $_->{loss} } grep { defined $_->{grad_norm} } map { decode_json($_) } split /\n/,
        slurp($log);
}

sub losses {
    my ($ranks, @options) = @_;
    unlink $log;
    my $job = run(emu($ranks, $train, @model, @options, '--log', $log));
    fine($job, "$ranks ranks @options");
    return [steps_of()];
}

sub worst {
    my ($got, $want) = @_;
    return @$got == @$want
        ? max(map { abs($got->[$_] - $want->[$_]) / $want->[$_] } 0 .. $#$want)
        : 1;
}

# ---- the same tokens in three files give the same training ----
# 400 tokens are 29 windows, so 12 steps are more than three epochs.
my $text = substr slurp('build/text.txt'), 0, 400;
my @ids = unpack 'C*', $text;
sub llmc { my ($n, @tokens) = @_; return pack('V3 x1012', 20240520, 1, $n) . pack('v*', @tokens) }
my %file = (
    text => file('text', $text),
    llmc => file('llmc', llmc(scalar @ids, @ids)),
    nanogpt => file('nano.bin', pack 'v*', @ids)
);
my $want = losses(1, '--data', $file{text});
is_deeply(losses(1, '--data', $file{$_}, '--vocab', 256),
    $want, "$_: the losses of the text, every bit")
    for qw(llmc nanogpt);
isnt(losses(1, '--data', $file{text}, '--seed', 2)->[3],
    $want->[3], 'another seed gives another order');

# ---- the order does not depend on the layout, and a resumed run continues in this order ----
for my $layout (
    [4, qw(--dp 4 --tp 1 --pp 1)],
    [4, qw(--dp 2 --tp 1 --pp 2 --micro-batch 1)],
    [6, qw(--dp 2 --tp 3 --pp 1 --zero 2)]
) {
    my ($ranks, @options) = @$layout;
    cmp_ok(worst(losses($ranks, '--data', $file{llmc}, '--vocab', 256, @options), $want),
        '<', 1e-4, "$ranks ranks @options: the losses of one rank");
}
my $big = file('big', llmc(500, map { ($_ * 37) % 1000 } 1 .. 500));
my @big = ('--data', $big, '--vocab', 1000);
my $whole = losses(2, @big, qw(--dp 2 --tp 1 --pp 1));
fine(
    run(
        emu(
            2, $train, @model, @big, qw(--dp 2 --tp 1 --pp 1 --save),
            "$work/saved", '--save-every', 5
        )
    ),
    'a run of tokens is saved'
);
system('rm', '-rf', glob "$work/saved/step-00001*");
unlink $log;
fine(
    run(
        emu(
            2, $train, '--resume', "$work/saved",
            qw(--dp 2 --tp 1 --pp 1 --micro-batch 2 --reduce ordered --eval-every 0 --log), $log
        )
    ),
    'a run of tokens is resumed'
);
is_deeply(
    [steps_of()],
    [@$whole[5 .. 11]],
    'in the middle of an epoch: the same losses, every bit; --vocab comes from the checkpoint'
);
my $sample = program_of('fp32', '08_3d/sample.c');
SKIP: {
    skip "$sample is not built", 1 unless -x $sample;
    fine(run(emu(2, $sample, '--from', "$work/saved", '--ids', '37,74', qw(--tokens 8 --check))),
        'sample writes token ids');
}

# ---- several files by a pattern, in the order of their names, and held-out files ----
sub held_out {
    return map { $_->{eval_loss} } grep { !defined $_->{step} } map { decode_json($_) } split /\n/,
        slurp($log);
}
my @cut = (0, 101, 230, 360, 400);
for my $i (0 .. 3) {
    my @part = @ids[$cut[$i] .. $cut[$i + 1] - 1];
    my $name = $i < 3 ? "part_0$i" : 'held';
    file("$name.txt", pack 'C*', @part);
    file("$name.bin", pack 'v*', @part);
    file($i < 3 ? "shard_0$i" : 'last', llmc(scalar @part, @part));
}
losses(1, '--data', $file{text});
my @eval = held_out();
for my $case (
    ['texts', "$work/part_*.txt", "$work/held.txt"],
    ['nanoGPT\'s', "$work/part_*.bin", "$work/held.bin"],
    ['llm.c\'s', "$work/shard_*", "$work/last"]
) {
    my ($name, $data, $held) = @$case;
    my @vocab = $name eq 'texts' ? () : ('--vocab', 256);
    is_deeply(losses(1, '--data', $data, '--data-eval', $held, @vocab),
        $want, "$name: the losses of one text, every bit");
    is_deeply([held_out()], \@eval, "$name: the held-out loss of one text");
}
file('all_0.txt', substr $text, 0, 7);
file('all_1.txt', substr $text, 7);
is_deeply(
    losses(2, '--data', "$work/all_?.txt", qw(--dp 2 --tp 1 --pp 1)),
    losses(2, '--data', $file{text}, qw(--dp 2 --tp 1 --pp 1)),
    'the last tenth of several files'
);
if (have_mpi) {
    unlink $log;
    fine(
        run(
            mpi(
                2, $train, @model, '--data', "$work/part_*.txt", '--data-eval', "$work/held.txt",
                qw(--dp 2 --tp 1 --pp 1 --log), $log
            )
        ),
        'as processes'
    );
    is_deeply(
        [steps_of()],
        losses(2, '--data', $file{text}, qw(--dp 2 --tp 1 --pp 1)),
        'as processes: the same bits'
    );
}
file('odd[0].txt', $text);
is_deeply(losses(1, '--data', "$work/odd[0].txt"), $want, 'a file whose name looks like a pattern');

# ---- refused: one message, status 2, before the work ----
for my $case (
    [
        'ids beyond the vocabulary',
        qr/has token id 999, but a vocabulary of --vocab 500 ends at 499/,
        file('b1', slurp($big)),
        '--vocab', 500
    ],
    ['no --vocab', qr/has token ids: give --vocab/, $big],
    [
        'a header that promises more tokens',
        qr/corrupt or cut short: its header says 501 tokens, but it has 1000 bytes/,
        file('b2', llmc(501, (1) x 500)),
        '--vocab', 50
    ],
    ['an odd end', qr/corrupt or cut short/, file('b3', llmc(500, (1) x 500) . 'x'), '--vocab', 50],
    [
        'half a header',
        qr/cut short: llm.c's header has 1024 bytes, but the file 600/,
        file('b4', substr(llmc(500, (1) x 500), 0, 600)),
        '--vocab', 50
    ],
    [
        'another version',
        qr/has version 7 of llm.c's token files/,
        file('b5', pack('V3 x1012', 20240520, 7, 500) . pack('v*', (1) x 500)),
        '--vocab', 50
    ],
    [
        'an odd number of bytes',
        qr/odd number of bytes, 1001/,
        file('b6.bin', pack('v*', (1) x 500) . 'x'),
        '--vocab', 60000
    ],
    [
        'a file that is too short',
        qr/has 100 tokens, too few for --context 12: at least 130/,
        file('b7.bin', pack 'v*', (1) x 100),
        '--vocab', 50
    ],
    [
        'text that is called .bin',
        qr/b8\.bin is text: a file whose name ends in \.bin must have uint16 tokens\. To learn its bytes, give it another name/,
        file('b8.bin', $text),
        '--vocab',
        50257
    ],
    [
        'text with a vocabulary of tokens',
        qr/is text, whose tokens are bytes, but --vocab 50257 is for token files: leave --vocab out/,
        $file{text},
        '--vocab',
        50257
    ],
    [
        'held-out tokens of a text',
        qr/nano\.bin has tokens, but \S+text has text: --data and --data-eval must name the same kind of file/,
        $file{text},
        '--data-eval',
        $file{nanogpt}
    ],
    [
        'a pattern that matches two kinds of files',
        qr/part_01\.txt has text, but \S+part_01\.bin has tokens/,
        "$work/part_01.*", '--vocab', 256
    ],
    [
        'too little held out',
        qr/the text \S+short has 9 bytes, too few for --context 12: at least 13 are needed/,
        $file{text}, '--data-eval', file('short', 'too short')
    ],
    [
        'ids beyond the vocabulary in one of several files',
        qr/shard_9 has token id 300, but a vocabulary of --vocab 256 ends at 255/,
        "$work/shard_?*",
        '--data-eval',
        file('shard_9', llmc(20, (300) x 20)),
        '--vocab',
        256
    ],
    [
        'a pattern that nothing matches',
        qr/cannot read the text \S+none_\*: No such file/,
        "$work/none_*"
    ],
    [
        'text for a small vocabulary',
        qr/is text, whose tokens are bytes, but --vocab 100 is less than 256/,
        $file{text}, '--vocab', 100
    ],
) {
    my ($name, $words, $path, @options) = @$case;
    my $job = run(emu(2, $train, @model, '--data', $path, @options));
    is($job->{status}, 2, "$name: status 2") or diag(complain($job));
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    ok(@messages == 1 && $messages[0] =~ $words, "$name: one message") or diag($job->{err});
}

# ---- this tree's own text and a vocabulary of tokens are allowed, to measure a model's speed ----
my @own = map { run(emu(2, $train, @model, '--steps', 1, '--vocab', $_)) } 256, 300;
fine($_, "this tree's text") for @own;
unlike($own[0]{out}, qr/do not occur/, '--vocab 256: every entry occurs in the text');
like(
    $own[1]{out},
    qr/^this tree's text has 256 different bytes: the other 44 entries of --vocab do not occur; --data 'train_\*\.bin' learns tokens$/m,
    '--vocab 300: the page says that entries do not occur'
);
done_testing();
