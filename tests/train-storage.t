#!/usr/bin/perl
# Trains with 16-bit storage, compared with the unsplit model. Processes must have the bits of
# virtual ranks. At the same layout a resumed run must have the bits of the whole run. A run may
# also resume at another layout or in another storage. All ranks must skip a step whose gradients
# overflow. Also tests exported weights.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use File::Path qw(remove_tree);
use Jobs;
use List::Util qw(max);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my %train = map { $_ => program_of($_, '08_3d/train.c') } qw(fp32 fp64);
my $sample = program_of('fp32', '08_3d/sample.c');
plan skip_all => "$train{fp32} is not built" unless -x $train{fp32};
my $text = "$work/text.txt";
{ open my $f, '>', $text or die; print $f slurp('LICENSE'); close $f or die }
my @model = (
    qw(--layers 4 --width 48 --heads 4 --context 8 --batch 9 --micro-batch 2 --eval-every 0
        --warmup 2 --reduce ordered --timeout),
    $hang, '--data', $text
);

sub run { my ($job) = @_; run_jobs([$job]); return $job }

sub fine {
    my ($job, $what) = @_;
    return ok($job->{status} == 0 && $job->{page}{pass}, $what) || diag(complain($job));
}

sub refused {
    my ($job, $words, $what) = @_;
    return ok($job->{status} == 2 && $job->{err} =~ $words, $what) || diag(complain($job));
}

sub lines {
    my ($log) = @_;
    return map { decode_json($_) } split /\n/, slurp($log);
}

sub losses {
    return [
        map { [@{$_}{qw(step loss grad_norm loss_scale)}] }
        grep { exists $_->{step} && !$_->{event} } lines(@_)
    ];
}

sub cost {
    my ($job, $id) = @_;
    my ($cost) = grep { $_->{id} eq $id } @{ $job->{page}{costs} || [] };
    return $cost->{measured} // -1;
}

# Returns the tensors of a safetensors file: name => [type, bytes].
sub tensors {
    my ($file) = @_;
    my $bytes = slurp($file);
    my $length = unpack 'Q<', $bytes;
    my $header = decode_json(substr $bytes, 8, $length);
    delete $header->{__metadata__};
    return map {
        my ($lo, $hi) = @{ $header->{$_}{data_offsets} };
        $_ => [$header->{$_}{dtype}, substr $bytes, 8 + $length + $lo, $hi - $lo]
    } keys %$header;
}

# Rounds 32-bit floats to the nearest bf16, ties to even. Returns 16-bit values. No value here is
# infinite or NaN.
sub bf16 {
    return pack 'v*', map { ($_ + 0x7fff + ($_ >> 16 & 1)) >> 16 } unpack 'V*', $_[0];
}

# ---- beside the unsplit model with the same storage ----
# precision, storage, gradients, the way to start (mpi or emu), ranks and options
my @rows = (
    [qw(fp32 bf16 main   mpi 8 --dp 2 --tp 2 --pp 2 --optimizer sgd --lr 0.1)],
    [qw(fp32 bf16 stored emu 4 --dp 2 --tp 1 --pp 2 --zero 1 --optimizer sgd --lr 0.1)],
    [qw(fp32 bf16 stored mpi 4 --dp 2 --tp 2 --pp 1 --zero 2 --recompute full)],
    [qw(fp32 bf16 main   emu 4 --dp 2 --tp 1 --pp 2 --zero 3 --schedule zero-bubble)],
    [
        qw(fp32 bf16 stored emu 4 --dp 2 --tp 1 --pp 2 --batch 8 --schedule interleaved --zero
            3 --prefetch)
    ],
    [
        qw(fp32 fp16 stored emu 4 --dp 2 --tp 2 --pp 1 --overlap --recompute selective
            --optimizer sgd --lr 0.1)
    ],
    [qw(fp32 fp16 main   mpi 4 --dp 2 --tp 2 --pp 1 --zero 3 --family llama --kv-heads 2 --ffn 50)],
    [qw(fp32 fp16 stored emu 2 --dp 1 --tp 1 --pp 2 --schedule gpipe --activation-budget 130000)],
    [qw(fp32 bf16 stored emu 4 --dp 1 --tp 2 --pp 2 --sequence-parallel --schedule zero-bubble)],
    [
        qw(fp32 bf16 stored emu 4 --dp 2 --tp 2 --pp 1 --attention blockwise
            --optimizer sgd --lr 0.1)
    ],
    [qw(fp32 bf16 main   emu 4 --dp 1 --tp 1 --pp 4 --layers 6 --rebalance 1)],
    [qw(fp32 fp16 stored emu 4 --dp 2 --tp 1 --pp 2 --rebalance 1 --zero 3 --stage-layers), '3,1'],
    [qw(fp32 bf16 stored mpi 4 --dp 1 --tp 1 --pp 2 --cp 2 --optimizer sgd --lr 0.1)],
    [qw(fp32 fp16 main   emu 8 --dp 2 --tp 2 --pp 1 --cp 2 --zero 3 --family llama --kv-heads 2)],
    [qw(fp32 bf16 stored mpi 4 --dp 1 --tp 4 --pp 1 --tensor 2d --optimizer sgd --lr 0.1)],
    [qw(fp32 fp16 main   emu 16 --dp 1 --tp 8 --pp 2 --tensor 2.5d --recompute full)],
    [qw(fp32 bf16 stored emu 16 --dp 2 --tp 8 --pp 1 --tensor 3d --zero 2 --recompute selective)],
    [qw(fp32 bf16 main   emu 4 --dp 2 --tp 1 --pp 2 --compress top-k --optimizer sgd --lr 0.1)],
    [qw(fp32 fp16 main   mpi 4 --dp 2 --tp 2 --pp 1 --compress power-sgd --loss-scale 1024)],
    [qw(fp64 bf16 main   emu 4 --dp 2 --tp 1 --pp 2 --zero 2 --optimizer sgd --lr 0.1)],
    [qw(fp64 bf16 main   emu 4 --dp 1 --tp 4 --pp 1 --tensor 2d --optimizer sgd --lr 0)],
);
my @jobs;
for my $row (@rows) {
    my ($precision, $storage, $gradients, $start, $ranks, @options) = @$row;
    next unless -x $train{$precision};
    my @words = (
        $ranks, $train{$precision}, @model, qw(--steps 3 --check --storage),
        $storage, '--gradients', $gradients, @options
    );
    my $pair = {
        name => "$precision, $storage, gradients $gradients, $ranks ranks @options",
        emu => emu(@words)
    };
    $pair->{mpi} = mpi(@words) if $start eq 'mpi' && have_mpi;
    push @jobs, $pair;
}
forms_hold(@jobs);

# In double, without --tp, every 16-bit number is the rounding of the same real as in the unsplit
# model. Only the order of sums differs, so an error of the split is visible. On a grid this holds
# only for forward, because in backward ranks add partial sums of 16 bits. With rate 0 every loss
# comes from forward alone.
for my $pair (grep { $_->{name} =~ /^fp64/ } @jobs) {
    my $forward = $pair->{name} =~ /--tensor/;
    my @errors =
        map { $_->{error} // 1 }
        grep { $_->{limit} && (!$forward || $_->{name} =~ /^loss/) }
        @{ $pair->{emu}{page}{checks} };
    ok(@errors >= ($forward ? 1 : 4) && max(@errors) < 1e-10,
        "$pair->{name}: errors of " . ($forward ? 'forward' : 'all') . " below 1e-10: @errors");
}

# Weights stored in 16 bits have half of the bytes, and the state also has a master in reals.
{
    my @words = (2, $train{fp32}, @model, qw(--steps 2 --dp 2 --tp 1 --pp 1 --zero 0));
    my ($real, $main, $stored) = my @three = map { emu(@words, @$_) } [], [qw(--storage bf16)],
        [qw(--storage bf16 --gradients stored)];
    run_jobs(\@three);
    fine($_, "a run without --check, @{ $_->{words} }[-2, -1]") for @three;
    my ($psi) = $real->{out} =~ /^(\d+) parameters/m;
    my %bytes = (parameters => [4, 2, 2], optimizer => [8, 12, 12]);
    for my $id (sort keys %bytes) {
        is(
            join(' ', map { cost($_, $id) / $psi } @three),
            "@{ $bytes{$id} }",
            "$id, in bytes per parameter: real, bf16, with stored gradients"
        );
    }
    is(join(' ', map { cost($_, 'gradients') / cost($real, 'gradients') } @three),
        '1 1 0.5', 'gradients: main gradients are reals, stored gradients are half as large');
    is(join(' ', map { cost($_, 'dp.sent') / cost($real, 'dp.sent') } @three),
        '1 1 0.5', 'bytes sent: main gradients are reals, stored ones half as large');
    cmp_ok(
        cost($main, 'activations'),
        '<',
        0.6 * cost($real, 'activations'),
        'activations are half as large, except statistics and logits'
    );
}

# ---- an overflow: all ranks skip the step, and the factor is halved ----
my @scaled = (qw(--storage fp16 --steps 12 --loss-scale), 'dynamic,2097152,2');
{
    my @words = (4, $train{fp32}, @model, qw(--dp 2 --tp 1 --pp 2 --zero 2), @scaled);
    my $check = emu(@words, qw(--check --gradients stored), '--log', "$work/check.log");
    my $emu = emu(@words, '--log', "$work/emu.log");
    my @both = ($check, $emu, have_mpi ? mpi(@words, '--log', "$work/mpi.log") : ());
    run_jobs(\@both);
    fine($_, 'overflows do not end a run: ' . join ' ', @{ $_->{words} }[1, -2]) for @both;
    my @skipped = grep { ($_->{event} // '') eq 'skipped' } lines("$work/emu.log");
    my @steps = map { $_->{step} } @skipped;
    ok(@steps >= 2 && @steps < 12, 'some steps are skipped, not all: ' . @steps);
    ok(!(grep { $_->{next_loss_scale} != $_->{loss_scale} / 2 } @skipped),
        'each skipped step halves the factor');
    is(
        join(' ',
            $emu->{out} =~
                /^step +(\d+)   skipped: a gradient overflowed at loss scale \d+, the next step has \d+; weights and optimizer stay$/mg
        ),
        "@steps",
        'the page names the skipped steps'
    );
    my @losses = @{ losses("$work/emu.log") };
    is(join(' ', map { $_->[0] } grep { !defined $_->[2] } @losses),
        "@steps", 'in the log the norm of a skipped step is null');
    my %skipped = map { $_ => 1 } @steps;
    my ($good, $doubled) = (0, 0);

    for my $i (1 .. $#losses) {
        $good = $skipped{ $i - 1 } ? 0 : $good + 1;
        my $want = $losses[$i - 1][3] * ($skipped{ $i - 1 } ? 0.5 : $good == 2 ? 2 : 1);
        if ($good == 2) { $good = 0; $doubled++ }
        is($losses[$i][3], $want, "step $i has the factor that follows");
    }
    cmp_ok($doubled, '>', 0, 'two steps in a row without an overflow double the factor');
    is($emu->{page}{config}{overflows}, scalar @steps, 'the JSON has the number of skipped steps');
    is_deeply(losses("$work/mpi.log"), \@losses,
        'processes skip the same steps, with the same losses')
        if have_mpi;
    my $fixed = run(emu(@words, '--loss-scale', 2097152));
    ok(
        $fixed->{status} == 1
            && $fixed->{out} =~
            /^The loss scale 2097152 is fixed: a smaller one, or --loss-scale dynamic, may help\.$/m,
        'a fixed factor that is too large ends the run'
    ) or diag(complain($fixed));
}

# ---- checkpoints hold masters: a resumed run has the bits of the whole run ----
for my $case ([4, qw(--dp 2 --tp 2 --pp 1 --zero 3 --storage bf16 --gradients stored)],
    [4, qw(--dp 2 --tp 1 --pp 2 --zero 1), @scaled]) {
    my ($ranks, @options) = @$case;
    my ($name, $dir) = ("$ranks ranks @options", "$work/same");
    my %last = @options;
    my $middle = 6;
    remove_tree($dir);
    unlink "$work/rest.log";
    my @words = (
        $ranks, $train{fp32}, @model, '--steps',
        12, @options, '--log', "$work/whole.log",
        '--export', "$work/whole.st"
    );
    fine(run(emu(@words, '--save', $dir, '--save-every', $middle)), "$name: a run that saves");
    my @whole = @{ losses("$work/whole.log") };
    remove_tree("$dir/step-000012");
    my $scale = decode_json(slurp("$dir/step-000006/index.json"))->{loss_scale};
    is_deeply(
        $scale,
        $last{'--storage'} eq 'fp16' ? { factor => $whole[$middle][3], good => 1 } : undef,
        "$name: the loss scale is in the middle of its patience"
    );
    my @layout = (
        '--dp', $last{'--dp'}, '--tp', $last{'--tp'},
        '--pp', $last{'--pp'}, '--zero', $last{'--zero'}
    );
    my @how = (@layout, qw(--micro-batch 2 --eval-every 0 --reduce ordered --timeout), $hang);
    my $again = run(
        emu(
            $ranks, $train{fp32}, '--resume', $dir,
            @how, '--log', "$work/rest.log", '--export',
            "$work/rest.st"
        )
    );
    fine($again, "$name: a resumed run has the storage of the checkpoint");
    is_deeply(
        losses("$work/rest.log"),
        [@whole[$middle .. 11]],
        "$name: the same losses, norms and loss scales, every digit"
    );
    ok(
        slurp("$work/rest.st") eq slurp("$work/whole.st"),
        "$name: a resumed run has the same masters, every bit"
    );
}

# The last run into "same" was in fp16, at dp 2 x pp 2. The checkpoint of this run after 6 steps has
# each weight as a real.
{
    my $dir = "$work/same";
    my %file = map { tensors($_) } glob "$dir/step-000006/rank-*";
    is(join(' ', sort { $a cmp $b } keys %{ { map { $_->[0] => 1 } values %file } }),
        'F32', 'a checkpoint has reals only');
    my @weights = map { unpack 'V*', $file{$_}[1] } grep { !/\.[mv]$/ } keys %file;
    my $rounded = grep { !($_ & 0x1fff) } @weights;    # fp16 has 13 fewer bits of fraction
    cmp_ok($rounded, '<', 0.1 * @weights, 'the weights of a checkpoint are masters, not rounded');
    my @how = (qw(--micro-batch 2 --eval-every 0 --reduce ordered --timeout), $hang, '--steps', 8);
    my $fp16 = emu(1, $train{fp32}, '--resume', $dir, @how, '--log', "$work/fp16.log");
    my $real =
        emu(2, $train{fp32}, '--resume', $dir, @how, qw(--dp 1 --tp 2 --pp 1 --storage real --log),
        "$work/real.log");
    my $bf16 =
        emu(2, $train{fp32}, '--resume', $dir, @how, qw(--dp 2 --tp 1 --pp 1 --storage bf16 --log),
        "$work/bf16.log");
    run_jobs([$fp16, $real, $bf16]);
    fine($fp16, 'a checkpoint is resumed at another layout');
    fine($real, 'a checkpoint is resumed in another storage: real');
    fine($bf16, 'a checkpoint is resumed in another storage: bf16');
    like($real->{out}, qr/, storage real \(was fp16\)/, 'the page names the change of storage');
    my @loss = map { losses("$work/$_.log")->[0][1] } qw(fp16 real bf16);
    cmp_ok(abs($_ / $loss[1] - 1), '<', 1e-3, "the first loss is close to that with reals: $_")
        for @loss;
    is_deeply(
        [
            map { exists $_->{loss_scale} ? 1 : 0 } map {
                (grep { exists $_->{tokens} } lines("$work/$_.log"))[0]
            } qw(fp16 real bf16)
        ],
        [1, 0, 0],
        'only fp16 has a loss scale'
    );
    if (-x $sample) {
        my @from =
            map { run(emu(1, $sample, '--from', $_, qw(--tokens 8 --temperature 0 --check))) } $dir;
        fine($_, 'sample reads the checkpoint') for @from;
    }
}

# ---- exported weights; a training that begins with them ----
{
    my @words = (2, $train{fp32}, @model, qw(--dp 1 --tp 2 --pp 1 --steps 2 --storage bf16));
    my $f32 = emu(@words, '--export', "$work/f32.safetensors");
    my $bf16 = emu(@words, qw(--export-type bf16 --export), "$work/bf16.safetensors");
    run_jobs([$f32]);
    fine($f32, '--export with --storage bf16');
    run_jobs([$bf16]);
    fine($bf16, '--export-type bf16');
    is(decode_json(slurp("$work/config.json"))->{torch_dtype},
        'bfloat16', 'config.json names the type');
    my %full = tensors("$work/f32.safetensors");
    my %half = tensors("$work/bf16.safetensors");
    is_deeply([sort keys %half], [sort keys %full], 'both files have the same tensors');
    is(join(' ', map { $_->{'wte.weight'}[0] } \%full, \%half),
        'F32 BF16', 'each file has its type');
    ok(!(grep { $half{$_}[1] ne bf16($full{$_}[1]) } keys %full), 'BF16 is the rounded F32');
    ok(
        (
            grep {
                bf16($_->[1]) ne pack 'v*', map { $_ >> 16 } unpack 'V*', $_->[1]
            } values %full
        ),
        'F32 is a master, not a rounded weight'
    );

    # With rate 0 no weight changes, so every master keeps its first value.
    my $from = run(
        emu(
            @words, qw(--lr 0 --zero 1 --dp 2 --tp 1 --init),
            "$work/f32.safetensors", '--export',
            "$work/same.safetensors"
        )
    );
    fine($from, 'a training begins with the exported weights');
    my %same = tensors("$work/same.safetensors");
    ok(
        !(grep { $same{$_}[1] ne $full{$_}[1] } keys %full),
        'the masters have every bit of the exported weights'
    );
    if (-x $sample) {
        my $job = run(
            emu(
                1, $sample, '--from', "$work/bf16.safetensors",
                qw(--tokens 8 --temperature 0 --check --heads 4)
            )
        );
        fine($job, 'sample reads BF16');
    }
}

# ---- refused, with one message ----
my @refused = (
    [
        qr/--compress shortens gradients itself, .*: choose --gradients main, or leave --compress out/,
        2,
        qw(--storage bf16 --gradients stored --dp 2 --compress power-sgd)
    ],
    [
        qr/--compress adds .* an overflow would stay in the residual: choose --loss-scale N, /,
        2, qw(--storage fp16 --dp 2 --compress power-sgd)
    ],
    [
        qr/--loss-scale 1024: --storage bf16 has the range of reals/,
        1, qw(--storage bf16 --loss-scale 1024)
    ],
    [
        qr/--loss-scale dynamic,4,0: expected a power of two/, 1,
        qw(--storage fp16 --loss-scale), 'dynamic,4,0'
    ],
    [
        qr/--gradients stored: with --storage real gradients are reals in any case/,
        1, qw(--gradients stored)
    ],
    [
        qr/--export-type says how to export, and --export FILE where: give both/,
        1, qw(--export-type bf16)
    ],
);
my @no = map {
    my ($words, $ranks, @options) = @$_;
    +{ %{ emu($ranks, $train{fp32}, @model, @options) }, wanted => $words }
} @refused;
run_jobs(\@no);
refused($_, $_->{wanted}, "refused: $_->{wanted}") for @no;

done_testing;
