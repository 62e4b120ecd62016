#!/usr/bin/perl
# Tests that train --export writes config.json beside the weights, for
# GPT2LMHeadModel.from_pretrained(FOLDER) and for sample --from FOLDER. Another program's
# config.json must never be replaced. If python3 (or $PYTHON) has torch and transformers, Hugging
# Face's model of that folder must write the same text.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my ($train, $sample) = map { program_of('fp32', $_) } '08_3d/train.c', '08_3d/sample.c';
plan skip_all => "$train is not built" unless -x $train;
my @how = ('--timeout', $hang);
sub run { my ($job) = @_; run_jobs([$job]); return $job }

sub fine {
    my ($job, $what) = @_;
    return ok($job->{status} == 0 && $job->{page}{pass}, $what) || diag(complain($job));
}
sub config { my ($job, $name) = @_; return $job->{page}{config}{$name} // '' }
my $text = "$work/text.txt";
{ open my $f, '>', $text or die; print $f join ' ', 1 .. 2000; close $f or die }
my @model = (
    1,
    $train,
    qw(--layers 2 --width 24 --heads 3 --context 12 --batch 2 --micro-batch 2 --steps 1
        --dropout 0.25 --eval-every 0 --data),
    $text,
    @how
);
sub export_to { my ($file) = @_; return run(emu(@model, '--export', $file)) }

sub spew {
    my ($file, $content) = @_;
    open my $f, '>:raw', $file or die "$file: $!";
    print $f $content;
    close $f or die;
}

sub refused {
    my ($job, $words, $what) = @_;
    ok($job->{status} == 2 && $job->{err} =~ $words, $what) || diag(complain($job));
}

# a model with another vocabulary, of 11 entries
my $gpt2 = do { local $/; open my $f, '<:raw', 'tests/gpt2.safetensors' or die; <$f> };

# ---- the written files ----
my $folder = "$work/exported";
mkdir $folder;
fine(export_to("$folder/model.safetensors"), 'a model is exported');
my %want = (
    exported_by => 'unsplit',
    architectures => ['GPT2LMHeadModel'],
    model_type => 'gpt2',
    vocab_size => 256,
    n_positions => 12,
    n_ctx => 12,
    n_embd => 24,
    n_layer => 2,
    n_head => 3,
    n_inner => undef,
    activation_function => 'gelu_new',
    layer_norm_epsilon => 1e-5,
    scale_attn_weights => JSON::PP::true,
    tie_word_embeddings => JSON::PP::true,
    attn_pdrop => 0.25,
    embd_pdrop => 0.25,
    resid_pdrop => 0.25,
    bos_token_id => undef,
    eos_token_id => undef,
    torch_dtype => 'float32'
);
is_deeply(decode_json(slurp("$folder/config.json")),
    \%want, 'config.json has the fields that GPT2LMHeadModel needs');
fine(export_to("$folder/model.safetensors"), '--export replaces its own config.json');

# ---- a config.json of another program stays ----
my $other = "$work/other";
mkdir $other;
for my $foreign ('{"n_head": 3}', '{"exported_by": "somebody"}', 'no JSON', '') {
    spew("$other/config.json", $foreign);
    refused(
        export_to("$other/model.safetensors"),
        qr/config\.json would be replaced, which --export did not write: move it away/,
        "--export does not replace a config.json with '$foreign'"
    );
    ok(
        slurp("$other/config.json") eq $foreign && !-e "$other/model.safetensors",
        "--export writes nothing beside a config.json with '$foreign'"
    );
}
unlink "$other/config.json";
symlink 'nowhere', "$other/config.json" or die;
refused(
    export_to("$other/model.safetensors"),
    qr/config\.json would be replaced/,
    '--export does not replace a link'
);
unlink "$other/config.json";
refused(
    export_to("$other/config.json"),
    qr/config\.json is written beside the weights: choose another name/,
    'weights cannot have the name config.json'
);
fine(export_to('/dev/null'), '--export to a device');
ok(!-e '/dev/config.json', 'a device gets no config.json beside it');

# ---- sample --from FOLDER ----
SKIP: {
    skip "$sample is not built", 9 unless -x $sample;
    my $from = sub {
        my ($from, @options) = @_;
        return run(
            emu(1, $sample, '--from', $from, qw(--temperature 0 --tokens 20), @options, @how));
    };
    my $written = config($from->("$folder/model.safetensors"), 'text_written');
    like($written, qr/^The .{20}/s, 'sample writes a text from the file');
    is(config($from->($folder), 'text_written'),
        $written, '--from FOLDER takes model.safetensors of the folder');
    spew("$folder/third.safetensors", $gpt2);
    is(config($from->($folder), 'text_written'),
        $written, '--from FOLDER takes model.safetensors beside other files');
    rename "$folder/model.safetensors", "$folder/other.safetensors" or die;
    refused(
        $from->($folder),
        qr/has 2 files \*\.safetensors, and none is model\.safetensors: name the file/,
        '--from FOLDER refuses to choose one of two files'
    );
    unlink "$folder/third.safetensors";
    is(config($from->($folder), 'text_written'),
        $written, '--from FOLDER takes the only file *.safetensors');
    unlink "$folder/other.safetensors";
    refused(
        $from->($folder),
        qr/there is a config\.json, but no file \*\.safetensors/,
        '--from FOLDER: a config.json alone'
    );
    fine(run(emu(@model, '--save', $other)), 'a folder with a checkpoint');
    spew("$other/model.safetensors", $gpt2);
    spew("$other/config.json", '{"n_head": 3}');
    is(config($from->($other), 'text_written'), $written, 'a checkpoint comes first');
    my $python = $ENV{PYTHON} // 'python3';
    skip "$python has no torch or transformers", 1
        if system("$python -c 'import torch, transformers' >/dev/null 2>&1");
    export_to("$folder/model.safetensors");
    my $ids = config($from->($folder, qw(--tokens 6 --ids), '84,104,101'), 'ids_written');
    my $said =
        `$python tools/torch_sample.py $folder --ids 84,104,101 --tokens 6 --written $ids 2>&1`;
    is($? >> 8, 0, "Hugging Face's model of that folder writes the same text") or diag($said);
}
done_testing();
