#!/usr/bin/perl
# Tests 08_3d/sample. The text must be the same at every layout, from a checkpoint and from an
# exported file. The logits must equal those of Hugging Face's GPT-2 on the same weights, up to
# rounding; tests/gpt2.py has stored them. Also tests the choice of tokens, and refused options.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max sum);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my ($sample, $train) = map { program_of('fp32', "08_3d/$_.c") } qw(sample train);
plan skip_all => "$sample or $train is not built" unless -x $sample && -x $train;
my @how = ('--timeout', $hang);
sub run { my ($job, %how) = @_; $job->{$_} = $how{$_} for keys %how; run_jobs([$job]); return $job }

sub fine {
    my ($job, $what) = @_;
    return ok($job->{status} == 0 && $job->{page}{pass}, $what) || diag(complain($job));
}
sub config { my ($job, $name) = @_; return $job->{page}{config}{$name} // '' }

# ---- the small model without --from: no size divides; 40 tokens exceed the context ----
# After ten steps of training the text is noise, but processes must write the same text.
my @forms = (
    [1],
    [2],
    [3, qw(--pp 3 --top-k 7)],
    [4, qw(--pp 2 --temperature 0)],
    [2, qw(--top-k 100)],
    [8, qw(--pp 4 --temperature 2)],
    [5, '--prompt', 'a text that is longer than the 24 positions of its context']
);
forms_hold(forms_of('08_3d/sample.c', map { [@$_, qw(--train-steps 10)] } @forms));

# ---- a trained model: one text from every source ----
my $dir = "$work/saved";
my $text = "$work/text.txt";
{
    open my $f, '>', $text or die;
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f
        or die
}
fine(
    run(
        emu(
            4,
            $train,
            qw(--dp 1 --tp 2 --pp 2 --layers 6 --width 30 --heads 5 --context 12 --batch 8
                --steps 30 --eval-every 0 --data),
            $text,
            '--save',
            $dir,
            '--export',
            "$work/model.st",
            @how
        )
    ),
    'a model is trained, saved and exported'
);
my %said;
for my $from ($dir, "$work/model.st") {
    for my $layout ([1], [2], [3, '--pp', 3], [4, '--pp', 2], [6, '--pp', 6]) {
        my ($ranks, @options) = @$layout;
        for my $choice ([qw(--temperature 0)], [qw(--top-k 5)], [qw(--temperature 1.5 --seed 7)]) {
            my $job =
                run(emu($ranks, $sample, '--from', $from, @options, @$choice, '--check', @how));
            fine($job, "$ranks ranks @options @$choice: all checks hold");
            $said{"@$choice"}{ config($job, 'text_written') }++;
        }
    }
}
is(scalar keys %{ $said{$_} },
    1, "$_: one text at all layouts, from the checkpoint and from the file")
    or diag(join "\n", keys %{ $said{$_} })
    for sort keys %said;
is(scalar(keys %{ { map { (keys %{ $said{$_} })[0] => 1 } keys %said } }),
    3, 'each way to choose tokens gives another text');
my $greedy = (keys %{ $said{'--temperature 0'} })[0];
my $one = run(emu(1, $sample, '--from', $dir, qw(--top-k 1 --seed 9), @how));
is(config($one, 'text_written'), $greedy, '--top-k 1 is greedy, whatever the seed');
like(
    $one->{out},
    qr/^ *40 tokens in \S+ s of real time: \S+ tokens\/s$/m,
    'the page has the tokens per second, in real time'
);
cmp_ok(config($one, 'tokens_per_second'), '>', 0, 'the JSON has the tokens per second');

# ---- Hugging Face's GPT-2: the same logits ----
my ($ids, @rows) = split /\n/, slurp('tests/gpt2.txt');
$ids =~ tr/ /,/;
my @want = map { [split] } @rows;

sub gpt2 {
    my ($ranks, $file, @options) = @_;
    return run(
        emu(
            $ranks, $sample, '--from', $file, @options, '--ids', $ids,
            qw(--tokens 1 --check --logits),
            "$work/logits", @how
        )
    );
}

sub worst {
    my @got = map { [split] } split /\n/, slurp("$work/logits");
    return 1 if @got != @want;
    return max(
        map {
            my $i = $_;
            map { abs($got[$i][$_] - $want[$i][$_]) } 0 .. $#{ $want[$i] }
        } 0 .. $#want
    );
}
for my $layout ([1], [2], [3, '--pp', 3], [6, '--pp', 2]) {
    my ($ranks, @options) = @$layout;
    fine(gpt2($ranks, 'tests/gpt2.safetensors', '--heads', 3, @options),
        "Hugging Face's file, $ranks ranks @options");
    cmp_ok(worst(), '<', 1e-5, 'the logits of every position are those of Hugging Face');
}
sub rewrite { my ($to, $change) = @_; rewrite_tensors('tests/gpt2.safetensors', $to, $change) }

sub strip {
    my ($h) = @_;
    for my $name (grep { /^transformer\./ } keys %$h) {
        $h->{ $name =~ s/^transformer\.//r } = delete $h->{$name};
    }
}
mkdir "$work/beside";
rewrite("$work/beside/model.safetensors", sub { strip($_[0]) });
{
    open my $f, '>', "$work/beside/config.json" or die;
    print $f '{"n_head": 3, "model_type": "gpt2"}';
    close $f
}
fine(gpt2(1, "$work/beside/model.safetensors"), 'names without a prefix, heads from config.json');
cmp_ok(worst(), '<', 1e-5, 'names without a prefix, heads from config.json: the same logits');
rewrite("$work/noted.st", sub { $_[0]{__metadata__}{n_head} = '3' });
fine(gpt2(2, "$work/noted.st"), 'heads from the header');
fine(gpt2(1, 'tests/gpt2.safetensors', '--heads', 4), 'other heads: another model');
cmp_ok(worst(), '>', 1e-3, 'another number of heads gives other logits');

# ---- the choice of tokens ----
# zero() sets the table to zero, so all logits are equal, and the first k entries are chosen about
# equally often.
sub zero {
    my ($h, $data) = @_;
    my ($lo, $hi) = @{ $h->{'transformer.wte.weight'}{data_offsets} };
    substr($$data, $lo, $hi - $lo) = "\0" x ($hi - $lo);
}
rewrite("$work/equal.st", \&zero);
for my $case ([11, 0, 1], [3, 3, 2], [1, 1, 3], [11, 11, 1], [11, 500, 2]) {
    my ($among, $k, $ranks) = @$case;
    my $job = run(
        emu(
            $ranks, $sample, '--from', "$work/equal.st",
            qw(--heads 3 --ids 5 --tokens 1100 --temperature 1 --top-k),
            $k, @how
        )
    );
    my (undef, @written) = split /,/, config($job, 'ids_written');
    my %count;
    $count{$_}++ for @written;
    is(
        join(' ', sort { $a <=> $b } keys %count),
        join(' ', 0 .. $among - 1),
        "equal logits, --top-k $k: entries 0 to " . ($among - 1)
    );
    my $each = 1100 / $among;
    cmp_ok(sum(map { ($_ - $each)**2 / $each } values %count),
        '<', 35, "equal logits, --top-k $k: each entry about equally often (chi-square)");
}

rewrite(
    "$work/nan.st",
    sub {
        my ($h, $data) = @_;
        substr($$data, $h->{'transformer.ln_f.bias'}{data_offsets}[0], 4) = pack 'f<', 'NaN';
    }
);
my $nan = run(emu(2, $sample, '--from', "$work/nan.st", qw(--heads 3 --ids 5), @how));
ok($nan->{status} == 2 && $nan->{err} =~ /element 0 of \S+ is not a finite number/,
    'weights with a NaN: status 2')
    or diag(complain($nan));

# ---- rejected requests: one message, status 2 ----
mkdir "$work/hollow";
rewrite("$work/half.st", sub { delete $_[0]{'transformer.h.1.mlp.c_fc.bias'} });
rewrite("$work/shape.st", sub { $_[0]{'transformer.ln_f.bias'}{shape} = [3, 4] });
rewrite("$work/type.st", sub { $_[0]{'transformer.ln_f.bias'}{dtype} = 'I32' });
{
    open my $f, '>', "$work/none.st" or die;
    print $f "no tensors here, but more than eight bytes";
    close $f
}
for my $case (
    ['no such file', qr/--from: cannot read .*gone/, 1, '--from', "$work/gone"],
    ['no checkpoint in a folder', qr/there is no checkpoint in /, 1, '--from', "$work/hollow"],
    [
        "heads that differ from the checkpoint's",
        qr/--heads 7: the model of the checkpoint \S+ has \d+: leave --heads out/,
        1, '--from', $dir, '--heads', 7
    ],
    ['no safetensors file', qr/is no safetensors file/, 1, '--from', "$work/none.st"],
    ['no heads', qr/says n_head: give --heads/, 1, '--from', 'tests/gpt2.safetensors', '--ids', 1],
    [
        'a tensor is missing',
        qr/no tensor h\.1\.mlp\.c_fc\.bias/,
        1, '--from', "$work/half.st", '--heads', 3, '--ids', 1
    ],
    [
        'another shape',
        qr/ln_f\.bias does not have the shape/,
        1, '--from', "$work/shape.st", '--heads', 3, '--ids', 1
    ],
    [
        'whole numbers',
        qr/ln_f\.bias is not of the type F64, F32, F16 or BF16: convert it/,
        1, '--from', "$work/type.st", '--heads', 3, '--ids', 1
    ],
    [
        'heads that do not divide',
        qr/does not divide into 5 heads/,
        1, '--from', 'tests/gpt2.safetensors', '--heads', 5, '--ids', 1
    ],
    [
        'text for a model of ids',
        qr/give --ids, or use tools\/gpt2-text/,
        1, '--from', 'tests/gpt2.safetensors', '--heads', 3
    ],
    [
        'an id beyond the vocabulary',
        qr/11 is no entry of this vocabulary: ids go from 0 to 10/,
        1, '--from', 'tests/gpt2.safetensors', '--heads', 3, '--ids', '1,11'
    ],
    ['no ids', qr/--ids 1,,2: expected token ids/, 1, '--ids', '1,,2'],
    ['both', qr/--prompt and --ids both say/, 1, '--ids', 1, '--prompt', 'a'],
    ['no tokens', qr/--tokens 0: expected 1/, 1, '--tokens', 0],
    ['a negative temperature', qr/--temperature -1: expected 0/, 1, '--temperature', -1],
    ['more stages than blocks', qr/--pp 5 needs as many blocks/, 5, '--pp', 5],
    ['another product', qr/--tp 2 x --pp 3 is not 3 ranks/, 3, '--pp', 3, '--tp', 2],
    [
        'logits without a check',
        qr/--logits writes what --check has compared/,
        1, '--from', $dir, '--logits', "$work/logits"
    ],
) {
    my ($name, $words, $ranks, @options) = @$case;
    my $job = run(emu($ranks, $sample, @options, @how));
    is($job->{status}, 2, "$name: status 2") or diag(complain($job));
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    ok(@messages == 1 && $messages[0] =~ $words, "$name: one message names the mistake")
        or diag($job->{err});
}

# ---- tools/gpt2-text without a tokenizer, and with a module that replaces Hugging Face's ----
my $said = `tools/gpt2-text tests/gpt2.safetensors hello --tokenizer $work/none.json 2>&1`;
is($? >> 8, 2, 'tools/gpt2-text without a tokenizer: status 2');
like(
    $said,
    qr/\Atools\/gpt2-text: .*(pip install|no tokenizer)/,
    'tools/gpt2-text without a tokenizer says what is missing'
);

# Writes a replacement for the package tokenizers, whose tokens are the letters a to k.
mkdir "$work/package";
{ open my $f, '>', "$work/package/tokenizers.py" or die; print $f <<'END'; close $f }
class Tokenizer:
    def __init__(self, ids): self.ids = ids
    @staticmethod
    def from_file(file): return Tokenizer(None)
    def encode(self, text): return Tokenizer([ord(letter) - ord("a") for letter in text])
    def decode(self, ids): return "".join(chr(ord("a") + i) for i in ids)
END
{ open my $f, '>', "$work/tokenizer.json" or die; close $f }
my $by_ids = run(
    emu(
        2, $sample,
        qw(--from tests/gpt2.safetensors --heads 3 --ids), '7,4,10',
        qw(--tokens 5 --temperature 0), @how
    )
);
my $letters = join '', map { chr(ord('a') + $_) } split /,/, config($by_ids, 'ids_written');
$said =
    `PYTHONPATH=$work/package RANKS=3 tools/gpt2-text tests/gpt2.safetensors hek --tokenizer $work/tokenizer.json --heads 3 --tokens 5 --temperature 0 2>&1`;
is($said, "$letters\n", 'tools/gpt2-text reads and writes text');
like($letters, qr/\Ahek[a-k]{5}\z/, 'the written text continues the given text');
done_testing();
