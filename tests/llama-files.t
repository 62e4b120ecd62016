#!/usr/bin/perl
# Tests train --init, sample --from and train --export at several layouts, with models of Hugging
# Face's Llama and Qwen2. Also tests files in several pieces, half precision, and rejected files.
# tests/llama.py has made the models and has written PyTorch's results.
# TEST_ALL=1 takes every model at every layout with both optimizers.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my ($train, $sample, $oracle) = (
    program_of('fp32', '08_3d/train.c'),
    program_of('fp32', '08_3d/sample.c'),
    program_of('fp64', 'tests/test_oracle.c')
);
plan skip_all => "$train, $sample and $oracle are not built"
    unless -x $train || -x $sample || -x $oracle;
my @how = ('--timeout', $hang);
sub run { my ($job) = @_; run_jobs([$job]); return $job }

sub fine {
    my ($job, $what) = @_;
    return ok($job->{status} == 0 && $job->{page}{pass}, $what) || diag(complain($job));
}
sub config { my ($job, $name) = @_; return $job->{page}{config}{$name} // '' }

sub spew {
    my ($file, $content) = @_;
    open my $f, '>:raw', $file or die "$file: $!";
    print $f $content;
    close $f or die;
}
my @models = qw(grouped tied qwen2 shards);

sub expected_in {
    my ($folder) = @_;
    return {
        map { my ($name, @values) = split; $name => \@values } split /\n/,
        slurp("$folder/expected.txt")
    };
}
my %want = map { $_ => expected_in("tests/llama/$_") } @models;
my $tokens = "$work/tokens.bin";
spew($tokens, pack 'v*', map { ($_ * 7919 + ($_ >> 3)) % 11 } 1 .. 2000);

# ---- ten steps as PyTorch computes them in double ----
my @layouts = (
    [1, '--unsplit'],
    [2, qw(--dp 2 --zero 1)],
    [2, qw(--tp 2 --sequence-parallel)],
    [2, qw(--pp 2 --micro-batch 1)],
    [4, qw(--dp 2 --tp 2 --zero 3 --recompute selective)],
    [8, qw(--dp 2 --tp 2 --pp 2 --zero 2 --micro-batch 1 --recompute full)],
    [4, qw(--cp 2 --dp 2 --zero 3 --micro-batch 1)],
    [4, qw(--tp 2 --pp 2 --sequence-parallel --recompute full)],
    [3, qw(--dp 3)]
);
my @jobs;
for my $m (0 .. $#models) {
    for my $l (0 .. $#layouts) {
        for my $o (0, 1) {
            next unless -x $oracle;
            next unless $ENV{TEST_ALL} || $o == ($l + $m) % 2;
            my ($ranks, @options) = @{ $layouts[$l] };
            my $folder = "tests/llama/$models[$m]";
            push @jobs,
                {
                %{
                    emu($ranks, $oracle, '--init', $folder, '--file', "$folder/expected.txt",
                        @options, '--optimizer', (qw(sgd adamw))[$o], @how)
                },
                name => "$models[$m], "
                    . (qw(SGD AdamW))[$o]
                    . ", $ranks ranks @options: losses and norms of ten steps as PyTorch"
                };
        }
    }
}
run_jobs(\@jobs);
for my $job (@jobs) {
    my @checks = @{ $job->{page}{checks} || [] };
    ok($job->{status} == 0 && @checks == 2 && max(map { $_->{error} } @checks) <= 1e-8,
        $job->{name})
        or diag(complain($job));
}

# A changed number in the file must make a check fail.
if (-x $oracle) {
    for my $key (qw(sgd.loss adamw.norm)) {
        my $text = slurp('tests/llama/grouped/expected.txt');
        my ($optimizer) = split /\./, $key;
        ok($text =~ s/^(\Q$key\E(?: \S+){9} )(\S+)/$1 . ($2 + 1e-6)/me,
            "the last number of $key can be changed");
        spew("$work/changed", $text);
        my $job = run(
            emu(
                2, $oracle, qw(--init tests/llama/grouped --tp 2 --file),
                "$work/changed", '--optimizer', $optimizer, @how
            )
        );
        is($job->{status}, 1, 'a changed number of the expected results makes a check fail');
    }
}

# ---- text: the logits of each position, and 20 greedy tokens ----
sub worst {
    my ($file, @want) = @_;
    my @got = map { [split] } split /\n/, slurp($file);
    return 1 if @got < @want;
    return max(
        map {
            my $i = $_;
            map { abs($got[$i][$_] - $want[$i][$_]) } 0 .. $#{ $want[$i] }
        } 0 .. $#want
    );
}

sub greedy {
    my ($from, $ids, @options) = @_;
    return run(
        emu(@options, '--from', $from, '--ids', $ids, qw(--tokens 20 --temperature 0), @how));
}
SKIP: {
    skip "$sample is not built", 1 unless -x $sample;
    for my $model (@models) {
        my $w = $want{$model};
        for my $layout ([1], [2], [2, '--pp', 2], [4, '--pp', 2]) {
            my ($ranks, @options) = @$layout;
            my $job = greedy(
                "tests/llama/$model", join(',', @{ $w->{ids} }),
                $ranks, $sample, @options, qw(--check --logits),
                "$work/logits"
            );
            fine($job, "$model, $ranks ranks @options: all checks hold");
            like(
                $job->{out},
                qr/No tokenizer is read, so the text is missing/,
                "$model, $ranks ranks @options: ids, and the reason for no text"
            );
            is(
                config($job, 'ids_written'),
                join(',', @{ $w->{greedy} }),
                "$model, $ranks ranks @options: the tokens of generate()"
            );
            cmp_ok(worst("$work/logits", map { $w->{"logits$_"} } 0 .. $#{ $w->{ids} }),
                '<', 1e-5, "$model, $ranks ranks @options: the logits of every position");
        }
    }
    fine(
        run(
            emu(
                $_, $sample, qw(--pp),
                $_ == 4 ? 4 : 1,
                qw(--family llama --kv-heads 3 --ffn 50 --untied --train-steps 10 --tokens 30),
                @how
            )
        ),
        "the default small Llama of sample, $_ ranks"
    ) for 3, 4;
    my $short = greedy('tests/llama/tied', '1,2,3', 2, $sample, qw(--context 8 --check));
    fine($short, 'a cache shorter than the model allows');
    is(
        (grep { $_->{id} eq 'cache' } @{ $short->{page}{costs} })[0]{measured},
        2 * 2 * 8 * 8 * 4,
        'a short cache has as many rows as --context'
    );
}

# ---- import and export: the same tensors, at any layout ----
sub tensors {
    my %all;
    for my $file (@_) {
        my $bytes = slurp($file);
        my $length = unpack 'Q<', $bytes;
        my $header = decode_json(substr $bytes, 8, $length);
        delete $header->{__metadata__};
        for my $name (keys %$header) {
            my ($lo, $hi) = @{ $header->{$name}{data_offsets} };
            $all{$name} =
                join(' ', $header->{$name}{dtype}, @{ $header->{$name}{shape} }) . unpack 'H*',
                substr $bytes, 8 + $length + $lo, $hi - $lo;
        }
    }
    return \%all;
}
my @still = (qw(--steps 1 --lr 0 --eval-every 0 --batch 4 --micro-batch 1 --data), $tokens);
my @ways = (
    [1],
    [8, qw(--dp 2 --tp 2 --pp 2 --zero 3)],
    [4, qw(--dp 4 --tp 1 --pp 1 --zero 2)],
    [2, qw(--dp 1 --tp 1 --pp 2)]
);
mkdir "$work/gpt2";
spew("$work/gpt2/model.safetensors", slurp('tests/gpt2.safetensors'));
spew("$work/gpt2/config.json",
          '{"n_head": 3, "model_type": "gpt2", "n_layer": 3, "n_embd": 12, "n_positions": 16, '
        . '"vocab_size": 11}');
SKIP: {
    skip "$train is not built", 1 unless -x $train;
    for my $i (0 .. $#models + 1) {
        my $folder = $i < @models ? "tests/llama/$models[$i]" : "$work/gpt2";
        my $theirs = tensors(glob "$folder/*.safetensors");
        delete $theirs->{'transformer.h.0.attn.bias'};
        $theirs = { map { s/^transformer\.//r => $theirs->{$_} } keys %$theirs };
        my ($ranks, @options) = @{ $ways[$i % @ways] };
        mkdir "$work/out$i";
        fine(
            run(
                emu(
                    $ranks, $train, '--init', $folder, @still, @options, '--export',
                    "$work/out$i/model.safetensors", @how
                )
            ),
            "$folder: --init, --export, $ranks ranks @options"
        );
        is_deeply(tensors("$work/out$i/model.safetensors"),
            $theirs, "$folder: the same names, shapes and bytes");
        next if $i == @models;
        my ($ours, $config) = map { decode_json(slurp("$_/config.json")) } "$work/out$i", $folder;
        my @same = qw(architectures model_type hidden_size intermediate_size num_hidden_layers
            num_attention_heads num_key_value_heads max_position_embeddings
            vocab_size hidden_act rms_norm_eps rope_parameters tie_word_embeddings);
        push @same, qw(attention_bias mlp_bias) if $config->{model_type} eq 'llama';
        is_deeply(
            [map { $ours->{$_} } @same],
            [map { $config->{$_} } @same],
            "$folder: the same config.json"
        );
    }

    # In GPT2LMHeadModel the name of the head's own table is lm_head.weight. The names of all other
    # tensors begin with "transformer.".
    mkdir "$work/untied";
    fine(
        run(
            emu(
                2,
                $train,
                qw(--untied --layers 2 --width 12 --heads 3 --context 16 --vocab 11 --dp 1
                    --tp 1 --pp 2),
                @still,
                '--export',
                "$work/untied/model.safetensors",
                @how
            )
        ),
        'an untied GPT-2: --export'
    );
    my $apart = tensors("$work/untied/model.safetensors");
    is(join(' ', sort grep { !/^transformer\./ } keys %$apart),
        'lm_head.weight', 'an untied GPT-2: names that GPT2LMHeadModel reads');
    fine(
        run(
            emu(
                2, $train, '--init', "$work/untied", @still,
                qw(--dp 1 --tp 2 --pp 1 --export),
                "$work/untied/again.safetensors", @how
            )
        ),
        'an untied GPT-2: --init reads the export'
    );
    is_deeply(tensors("$work/untied/again.safetensors"),
        $apart, 'an untied GPT-2: a second export has the same bytes');
    my $checked = run(
        emu(
            8, $train,
            qw(--init tests/llama/qwen2 --check --dropout 0 --steps 3 --eval-every 0 --batch 8
                --dp 2 --tp 2 --pp 2 --zero 2 --optimizer sgd --lr 0.05
                --context 16 --data), $tokens, '--save', "$work/saved", @how
        )
    );
    fine($checked, '--init with --check: the unsplit model begins with the same weights');
    my $resumed = run(
        emu(
            2, $train, '--resume', "$work/saved", '--save', "$work/saved",
            qw(--check --dp 1 --tp 2 --pp 1 --zero 0 --steps 5), @how
        )
    );
    fine($resumed, '--resume goes on with a checkpoint of --init, at another layout');
    mkdir "$work/resumed";
    fine(
        run(
            emu(
                4, $train, '--resume', "$work/saved",
                qw(--check --dp 2 --tp 1 --pp 2 --steps 7 --export),
                "$work/resumed/model.safetensors", @how
            )
        ),
        '--resume goes on once more, at a third layout'
    );
    my ($after, $before) = map { decode_json(slurp("$_/config.json")) } "$work/resumed",
        'tests/llama/qwen2';
    is_deeply(
        [map { $after->{$_} } qw(model_type rms_norm_eps rope_parameters)],
        [map { $before->{$_} } qw(model_type rms_norm_eps rope_parameters)],
        'after two resumed runs biases, theta and eps stay'
    );
    fine(run(emu(2, $train, '--init', "$work/saved", @still, @how)),
        '--init from these checkpoints');
    skip "$sample is not built", 1 unless -x $sample;
    fine(greedy("$work/saved", '1,2', 2, $sample, '--check'), 'sample --from these checkpoints');
}

# ---- transformers reads our export and gives its logits, its text and ten more steps ----
# The exports come from short trainings at tp 2 x pp 2. tests/llama.py fails unless the class loads
# every tensor.
my %families = (
    'llama grouped untied' =>
        [qw(--family llama --kv-heads 2 --ffn 30 --untied), 'LlamaForCausalLM'],
    'llama tied' => [qw(--family llama --ffn 30), 'LlamaForCausalLM'],
    'qwen2' => [
        qw(--family llama --kv-heads 2 --ffn 30 --attention-bias --rope-theta 500 --norm-eps 1e-6),
        'Qwen2ForCausalLM'
    ],
    'gpt2' => [qw(--family gpt2), 'GPT2LMHeadModel'],
);
SKIP: {
    skip "$train, $sample or $oracle is not built", 1 unless -x $train && -x $sample && -x $oracle;
    my $python = $ENV{PYTHON} // 'python3';
    skip "$python has no torch or transformers", 1
        if system("$python -c 'import torch, transformers' >/dev/null 2>&1");
    for my $family (sort keys %families) {
        my @family = @{ $families{$family} };
        my $class = pop @family;
        my $folder = "$work/for $family";
        mkdir $folder;
        run(
            emu(
                4,
                $train,
                @family,
                qw(--layers 2 --width 24 --heads 4 --context 32 --vocab 11 --dp 1 --tp 2 --pp 2
                    --batch 4
                    --steps 3 --eval-every 0 --data),
                $tokens,
                '--export',
                "$folder/model.safetensors",
                @how
            )
        );
        is(decode_json(slurp("$folder/config.json"))->{architectures}[0],
            $class, "$family: the export is of a $class");
        my $said = `$python tests/llama.py '$folder' 2>&1`;
        is($? >> 8, 0, "$family: transformers loads the export and trains on") or diag($said), next;
        my $w = expected_in($folder);
        my $job = greedy(
            $folder, join(',', @{ $w->{ids} }),
            1, $sample, qw(--check --logits),
            "$work/logits_$class"
        );
        is(config($job, 'ids_written'), join(',', @{ $w->{greedy} }), "$family: the same text");
        cmp_ok(worst("$work/logits_$class", map { $w->{"logits$_"} } 0 .. $#{ $w->{ids} }),
            '<', 1e-5, "$family: the logits of every position");
        my @ten = map {
            [$_, "the unsplit model"],
                [$_, '8 ranks', qw(--dp 2 --tp 2 --pp 2 --zero 2 --micro-batch 1)]
        } qw(sgd adamw);
        for (@ten) {
            my ($optimizer, $where, @layout) = @$_;
            my $steps = run(
                emu(
                    @layout ? 8 : 1,
                    $oracle, '--init', $folder, '--file', "$folder/expected.txt",
                    @layout ? @layout : '--unsplit',
                    '--optimizer', $optimizer, @how
                )
            );
            my @checks = @{ $steps->{page}{checks} || [] };
            ok($steps->{status} == 0 && @checks == 2 && max(map { $_->{error} } @checks) <= 1e-8,
                "$family: the losses and norms of ten steps, $optimizer, $where")
                or diag(complain($steps));
        }
    }
}

# ---- half precision ----
# $half cuts the bits of a float to 16 bits, and $whole gives the bits of the float with this value.
# So two files have the same numbers, one in 16 and one in 32 bits.
sub half_of {
    my ($bits) = @_;
    my ($sign, $exponent, $fraction) =
        ($bits >> 16 & 0x8000, ($bits >> 23 & 255) - 112, $bits >> 13 & 1023);
    return $exponent > 0 ? $sign | $exponent << 10 | $fraction : $sign;
}

sub float_of {
    my ($half) = @_;
    my $exponent = $half >> 10 & 31;
    return ($half & 0x8000) << 16 | ($exponent ? $exponent + 112 << 23 | ($half & 1023) << 13 : 0);
}
unless (-x $train && -x $sample) { done_testing; exit }
my %type = (BF16 => [sub { $_[0] >> 16 }, sub { $_[0] << 16 }], F16 => [\&half_of, \&float_of]);
for my $type (sort keys %type) {
    my ($half, $whole) = @{ $type{$type} };
    my @said;
    for my $wide (0, 1) {
        my $folder = "$work/$type$wide";
        mkdir $folder;
        spew("$folder/config.json", slurp('tests/llama/grouped/config.json'));
        rewrite_tensors(
            'tests/llama/grouped/model.safetensors',
            "$folder/model.safetensors",
            sub {
                my ($header, $data) = @_;
                my @bits = map { $half->($_) } unpack 'V*', $$data;
                $$data = $wide ? pack 'V*', map { $whole->($_) } @bits : pack 'v*', @bits;
                for my $t (grep { ref $_ && $_->{dtype} } values %$header) {
                    next if $wide;
                    $t->{dtype} = $type;
                    $_ /= 2 for @{ $t->{data_offsets} };
                }
            }
        );
        my $job = greedy($folder, '3,1,4', 1, $sample, qw(--check --logits), "$work/logits");
        fine($job, "$type" . ($wide ? ', the same numbers as F32' : ''));
        push @said, slurp("$work/logits");
    }
    ok(length $said[0] && $said[0] eq $said[1], "$type is read bit by bit");
}

# ---- refused: one message, status 2 ----
my %source = (one => 'grouped', several => 'shards', tied => 'tied');
my $number = 0;

sub copy_of {
    my ($kind, $change) = @_;
    my $folder = "$work/copy" . ++$number;
    mkdir $folder;
    for my $file (glob "tests/llama/$source{$kind}/*") {
        my ($name) = $file =~ m{([^/]+)$};
        spew("$folder/$name", slurp($file));
    }
    $change->($folder);
    return $folder;
}

sub header {
    my ($change, $file) = @_;
    $file //= 'model.safetensors';
    return sub { rewrite_tensors("$_[0]/$file", "$_[0]/$file", $change) }
}

sub json {
    my ($file, $change) = @_;
    return sub {
        my $j = decode_json(slurp("$_[0]/$file"));
        $change->($j);
        spew("$_[0]/$file", encode_json($j));
    }
}

sub setting {
    my ($key, $value) = @_;
    return json('config.json', sub { $_[0]{$key} = $value });
}
my $index = 'model.safetensors.index.json';
my ($first, $second) = map { "model-0000$_-of-00002.safetensors" } 1, 2;
my $q = 'model.layers.1.self_attn.q_proj.weight';
my @cases = (
    ['a tensor is missing', one => header(sub { delete $_[0]{$q} }), qr/it has no tensor \Q$q/],
    [
        'a tensor has another name',
        one => header(
            sub {
                $_[0]{'model.layers.1.self_attn.q_norm.weight'} =
                    delete $_[0]{'model.layers.1.input_layernorm.weight'};
            }
        ),
        qr/it has no tensor model\.layers\.1\.input_layernorm\.weight/
    ],
    [
        'a tensor too many',
        one => header(
            sub { $_[0]{'model.layers.0.self_attn.o_proj.bias'} = $_[0]{'model.norm.weight'} }
        ),
        qr/the tensor model\.layers\.0\.self_attn\.o_proj\.bias has no place in a model of 2 layers of this kind/
    ],
    [
        'a matrix lies',
        one => header(sub { $_[0]{'model.layers.0.mlp.down_proj.weight'}{shape} = [12, 16] }),
        qr/down_proj\.weight does not have the shape \[16, 12\]/
    ],
    [
        'twice in a header',
        one => sub {
            my $b = slurp("$_[0]/model.safetensors");
            $b =~ s/self_attn\.k_proj/self_attn.q_proj/;
            spew("$_[0]/model.safetensors", $b);
        },
        qr/is in the header twice/
    ],
    [
        'cut short',
        one => sub { truncate "$_[0]/model.safetensors", 9000 },
        qr/does not lie in the file, or the file is cut short/
    ],
    ['empty', one => sub { spew("$_[0]/model.safetensors", '') }, qr/it is empty/],
    [
        'no config.json',
        one => sub { rename "$_[0]/model.safetensors", "$_[0]/w.st"; unlink "$_[0]/config.json" },
        qr/it has the names of Llama, and no config\.json/,
        'w.st'
    ],
    [
        'config.json is cut short',
        one => sub { truncate "$_[0]/config.json", 300 },
        qr/config\.json cannot be read, or is not JSON/
    ],
    [
        'another family',
        one => setting(model_type => 'mamba'),
        qr/a model of the type mamba is not supported: only gpt2, llama and qwen2 are/
    ],
    [
        'more layers',
        one => setting(num_hidden_layers => 3),
        qr/it has no tensor model\.layers\.2\./
    ],
    [
        'fewer layers',
        one => setting(num_hidden_layers => 1),
        qr/the tensor model\.layers\.1\.\S+ has no place in a model of 1 layers/
    ],
    [
        'another width',
        one => setting(intermediate_size => 13),
        qr/gate_proj\.weight does not have the shape \[13, 16\]/
    ],
    ['no width', one => setting(intermediate_size => undef), qr/lacks intermediate_size/],
    [
        'heads of another width',
        one => setting(head_dim => 8),
        qr/heads of 8 columns are not supported/
    ],
    [
        'half a head',
        one => setting(num_attention_heads => 4.5),
        qr/num_attention_heads is no whole number/
    ],
    [
        'other heads of key and value',
        one => setting(num_key_value_heads => 4),
        qr/k_proj\.weight does not have the shape \[16, 16\]/
    ],
    [
        'scaled positions',
        one => setting(rope_parameters => { rope_type => 'llama3', rope_theta => 5e5 }),
        qr/rotary positions of the type llama3 are not supported/
    ],
    [
        'scaled positions, named as before',
        one => setting(rope_scaling => { type => 'linear', factor => 2 }),
        qr/rotary positions of the type linear are not supported/
    ],
    [
        'another activation',
        one => setting(hidden_act => 'gelu'),
        qr/hidden_act gelu is not supported: only silu is/
    ],
    [
        'biases everywhere',
        one => setting(attention_bias => JSON::PP::true),
        qr/attention_bias true is not supported/
    ],
    ['a negative eps', one => setting(rms_norm_eps => -1), qr/rms_norm_eps is no number above 0/],
    [
        'tied, with another head',
        one => setting(tie_word_embeddings => JSON::PP::true),
        qr/lm_head\.weight differs from model\.embed_tokens\.weight, but config\.json ties them/
    ],
    [
        'untied without a head',
        tied => setting(tie_word_embeddings => JSON::PP::false),
        qr/it has no tensor lm_head\.weight/
    ],
    [
        'a file of the index is missing',
        several => sub { unlink "$_[0]/$second" },
        qr/cannot read .*\Q$second/
    ],
    [
        'the index is cut short',
        several => sub { truncate "$_[0]/$index", 500 },
        qr/\Q$index\E is no index/
    ],
    [
        'the index names a file elsewhere',
        several => json($index, sub { $_ = '../x' for values %{ $_[0]{weight_map} } }),
        qr/is no index: expected an object weight_map/
    ],
    [
        'the index omits a tensor',
        several => json($index, sub { delete $_[0]{weight_map}{$q} }),
        qr/the tensor \Q$q\E is in \S+, but the index omits it/
    ],
    [
        'the index has a tensor too many',
        several => json($index, sub { $_[0]{weight_map}{more} = $first }),
        qr/the tensor more is missing in \Q$first/
    ],
    [
        'a tensor stands in both files',
        several => header(
            sub { $_[0]{'model.embed_tokens.weight'} = $_[0]{$q} // $_[0]{'lm_head.weight'} },
            $second
        ),
        qr/the tensor model\.embed_tokens\.weight is in \Q$second\E, but the index places it in \Q$first/
    ],
);
my (@asked, @named);
for my $case (@cases) {
    my ($name, $kind, $change, $words, $file) = @$case;
    my $folder = copy_of($kind, $change);
    my $path = $file ? "$folder/$file" : $folder;
    push @asked, emu(1, $sample, '--from', $path, qw(--ids 1), @how),
        emu(2, $train, '--init', $path, @still, @how);
    push @named, ["sample, $name", $words], ["train, $name", $words];
}
for my $case (
    ['--layers 3', qr/--layers 3: the model of --init \S+ has --layers 2: leave --layers out/],
    ['--heads 2', qr/--heads 2: the config\.json beside \S+ says 4: leave --heads out/],
    ['--kv-heads 4', qr/has --kv-heads 2: leave/],
    ['--vocab 12', qr/has --vocab 11: leave/],
    ['--family gpt2', qr/has --family llama: leave/],
    ['--attention-bias', qr/--attention-bias: the model of --init \S+ is without it: leave/],
    ['--rope-theta 1000', qr/has --rope-theta 10000: leave/],
    ['--context 64', qr/has at most 32 positions: choose --context 32 or less/],
    [
        "--resume $work/saved",
        qr/--init begins a training, and --resume continues one: leave --init or --resume out/
    ],
) {
    push @asked,
        emu(2, $train, qw(--init tests/llama/grouped), @still, split(' ', $case->[0]), @how);
    push @named, ["--init with $case->[0]", $case->[1]];
}
push @asked, emu(1, $train, qw(--kv-heads 2 --export), "$work/none.st", @still, @how),
    emu(1, $train, qw(--rope-theta 5), @still, @how),
    emu(1, $sample, qw(--from tests/llama/tied --ids 1 --kv-heads 2), @how),
    emu(1, $sample, qw(--from tests/llama/tied --ids 1 --context 33), @how),
    emu(1, $sample, qw(--from tests/llama/tied --ids 1 --heads 2), @how),
    emu(3, $sample, qw(--from tests/llama/grouped --ids 1), @how);
push @named,
    [
    '--export of GPT-2 with grouped heads',
    qr/no class of Hugging Face's has GPT-2's block with grouped heads/
    ],
    ['--rope-theta of GPT-2', qr/--rope-theta is of --family llama/],
    ['sample: an option of the model', qr/--kv-heads is of the model without --from/],
    ['sample: a longer cache', qr/--context 33: choose 1 to 32/],
    ['sample: other heads', qr/--heads 2: the config\.json beside \S+ says 4: leave --heads out/],
    [
    'more ranks than heads of key and value',
    qr/need as many heads of key and value; the model has 2/
    ];
run_jobs(\@asked);
for my $i (0 .. $#asked) {
    my ($name, $words) = @{ $named[$i] };
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $asked[$i]{err};
    ok($asked[$i]{status} == 2 && @messages == 1 && $messages[0] =~ $words, "refused: $name")
        or diag(complain($asked[$i]));
}

# ---- any bytes give a model, or one message ----
srand 3;
my @mutated;
for my $i (1 .. ($all ? 400 : 24)) {
    my $file = $i % 3 == 0 ? 'config.json' : $i % 3 == 1 ? $index : $first;
    push @mutated, {
        %{
            emu(
                1, $sample, '--from',
                copy_of(
                    'several',
                    sub {
                        my $bytes = slurp("$_[0]/$file");
                        my $most = $file eq $first ? 1800 : length $bytes;
                        substr($bytes, rand $most, 1) = chr rand 256 for 1 .. 1 + rand 4;
                        substr($bytes, rand length $bytes) = '' if rand() < 0.1;
                        spew("$_[0]/$file", $bytes);
                    }
                ),
                qw(--ids 1 --tokens 2),
                @how
            )
        },
        name => "$file, change $i"
    };
}
run_jobs(\@mutated);
for my $job (@mutated) {
    my @messages = grep { /^(unsplit: |\[rank \d+\] )/ } split /\n/, $job->{err};
    ok($job->{status} == 0 || ($job->{status} == 2 && @messages == 1), "corrupt: $job->{name}")
        or diag(complain($job));
}
done_testing;
