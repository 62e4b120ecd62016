#!/usr/bin/perl
# Tests the trainer with --compress, which sends the gradient over dp in fewer bytes (01.06). Also
# tests the table of 08_3d/reference.md with the savings of --compress and of other optimisations.
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
my $text = "$work/text.txt";    # the beginning of the tree's text
{
    open my $f, '>', $text or die "$text: $!";
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f or die "$text: $!";
}

# The unsplit model adds its gradients per replica, with the same compression. With
# --tp 1 the trainer has the bits of the unsplit model. With --tp 2 or 3 the products have other
# sizes and round differently, and PowerSGD may enlarge this difference.
my @model = (
    qw(--layers 4 --width 24 --heads 3 --context 9 --batch 7 --micro-batch 1 --steps 6
        --eval-every 0 --check --reduce ordered --data),
    $text
);
my @jobs;
for my $way (
    [2, 'fp32', qw(--dp 2 --tp 1 --compress top-k)],
    [4, 'fp64', qw(--dp 4 --tp 1 --compress power-sgd)],
    [8, 'fp32', qw(--dp 4 --tp 1 --pp 2 --compress top-k --keep-one-of 7 --schedule zero-bubble)],
    [8, 'fp32', qw(--dp 2 --tp 2 --pp 2 --compress power-sgd --recompute full --sequence-parallel)],
    [
        6, 'fp64',
        qw(--dp 2 --tp 3 --pp 1 --compress power-sgd --power-rank 3 --optimizer adamw --lr 0.003)
    ],
    [
        6, 'fp32',
        qw(--dp 3 --tp 1 --pp 2 --compress top-k --schedule interleaved --chunks 2 --batch 12)
    ],
    [2, 'fp32', qw(--dp 2 --tp 1 --compress top-k --attention blockwise --recompute selective)]
) {
    my ($ranks, $precision, @options) = @$way;
    next unless -x $train{$precision};    # a planted bug is tried in one precision
    my @run = ($train{$precision}, @model, qw(--optimizer sgd --lr 0.1), @options);
    push @jobs,
        {
        %{ emu($ranks, @run) },
        name => "$ranks ranks @options, $precision",
        options => "@options",
        how => 'emu'
        };
    push @jobs,
        {
        %{ mpi($ranks, @run) },
        name => "$jobs[-1]{name}, as processes",
        options => "@options",
        how => 'mpi'
        }
        if have_mpi && $ranks != 6;
}
run_jobs(\@jobs);
for my $i (0 .. $#jobs) {
    my $job = $jobs[$i];
    my @checks = grep { $_->{what} =~ /^3D = unsplit/ && $_->{name} !~ /^loss/ }
        @{ $job->{page}{checks} || [] };
    my @costs = grep {
               $_->{pass}
            && $_->{name} =~
            /^(compressed sums|factors, between steps|data-parallel traffic|gradients)$/
    } @{ $job->{page}{costs} || [] };
    ok($job->{status} == 0 && $job->{page}{pass} && @checks == 3 && @costs == 4,
        "compressed: $job->{name}")
        or diag(complain($job));
    my ($sum) =
        grep { $_->{name} eq 'sum over replicas' && $_->{pass} } @{ $job->{page}{costs} || [] };
    ok($sum && $sum->{unit} eq 'ps',
        "compressed: $job->{name}: the sum takes the predicted time, to the picosecond")
        if $job->{how} eq 'emu';
    is(max(map { $_->{error} } @checks), 0, "compressed: $job->{name}: every bit")
        if $job->{options} !~ /--tp [23]/;
    is(
        $job->{page}{digest},
        $jobs[$i - 1]{page}{digest} // 'a digest',
        "compressed: $job->{name}: the bits of virtual ranks"
    ) if $job->{how} eq 'mpi';
}

my @small = (
    qw(--layers 4 --width 32 --heads 4 --context 16 --steps 5 --dropout 0.1 --batch 8
        --micro-batch 2 --reduce ordered --data),
    $text
);
my @adamw = qw(--optimizer adamw --lr 0.003);

sub bits {
    my ($mesh, @options) = @_;
    my ($dp, $tp, $pp) = @$mesh;
    return emu($dp * $tp * $pp, $train{fp32}, @small, '--dp', $dp, '--tp', $tp, '--pp', $pp,
        @options);
}

# If all elements count as largest, or no matrix becomes smaller, the sum must be exact in every
# bit. If elements are left out, or with --power-rank 1, the training must differ.
for my $mesh ([4, 1, 1], [2, 1, 2]) {
    my @same = map { bits($mesh, @adamw, @$_) } [], [qw(--compress top-k --keep-one-of 1)],
        [qw(--compress power-sgd --power-rank 32)],
        [qw(--compress top-k)], [qw(--compress power-sgd --power-rank 1)];
    run_jobs(\@same);
    my ($sum, @of) = map { $_->{status} == 0 && $_->{page}{digest} || 'none' } @same;
    ok($sum ne 'none' && $of[0] eq $sum && $of[1] eq $sum,
        "--compress that leaves nothing out, @$mesh: the bits of the exact sum")
        or diag("$sum @of");
    ok(
        $of[2] ne 'none'
            && $of[3] ne 'none'
            && $of[2] ne $sum
            && $of[3] ne $sum
            && $of[2] ne $of[3],
        "--compress that leaves something out, @$mesh: other bits"
    );
}

# A resumed run keeps its residuals. At another layout the residuals would belong to other ranks, so
# another layout must be refused.
for my $way ([[4, 1, 1], qw(--compress top-k)], [[2, 2, 2], qw(--compress power-sgd)]) {
    my ($mesh, @options) = @$way;
    my ($what, $ranks, $dir) =
        ("@$mesh @options", $mesh->[0] * $mesh->[1] * $mesh->[2], "$work/compressed");
    my @rest = ('--check', '--resume', "$dir/step-000002");
    my $first =
        bits($mesh, @adamw, '--check', @options, '--save', $dir,
        qw(--save-over --save-every 2 --export),
        "$work/whole");
    run_jobs([$first]);
    my @again = (bits($mesh, @rest, '--export', "$work/emu"));
    push @again,
        {
        %{ $again[0] },
        words => [
            'tools/launch', $ranks,
            @{ $again[0]{words} }[3 .. $#{ $again[0]{words} } - 1], "$work/mpi"
        ]
        }
        if have_mpi;
    my $dropped = bits([1, 1, 1], @rest, qw(--compress none --override compress));
    my $other = bits([2, 1, 1], @rest);
    run_jobs([@again, $dropped, $other]);
    ok($_->{status} == 0 && $_->{page}{pass}, "--resume, $what")
        or diag(complain($_))
        for $first, @again, $dropped;
    ok(
        length slurp("$work/whole") && slurp("$work/whole") eq slurp("$work/$_"),
        "--resume, $what: the weights of a run that was not interrupted, $_"
    ) for 'emu', have_mpi ? 'mpi' : ();
    ok(
        $other->{status} == 2
            && $other->{err} =~
            /has the residuals of each rank for the layout dp \d x tp \d x pp \d, blocks [\d ]+, .*, and this run has the layout dp 2 x tp 1 x pp 1, blocks 4, .*: choose the former layout, or drop the residuals with --compress none/,
        "--resume, $what: another layout is refused"
    ) or diag(complain($other));
}

# ---- the table of the page: every row, to the last digit ----
my @rows =
    grep { @$_ }
    map { [/^\| `(--[^`]+)` \| `(--[^`]+)` \| [^|]* \| ([\d.]+ m?s) \| ([\d.]+ m?s) \|$/] }
    grep { /^\| `--/ } split /\n/, slurp('08_3d/reference.md');
cmp_ok(scalar @rows, '>=', 7, 'the table of the optimisations');
my %took;    # jobs by options
for my $options (map { ($_->[1], "$_->[1] $_->[0]") } @rows) {

    # A text of --data allows no vocabulary of more than 256 entries, but the tree's own text does.
    $took{$options} ||= {
        %{
            emu(
                8, $train{fp32},
                split(' ', $options),
                qw(--steps 2 --eval-every 0 --clock simulated),
                $options =~ /--vocab/ ? () : ('--data', $text)
            )
        },
        what => $options
    };
}
run_jobs([map { $took{$_} } sort keys %took]);
$_->{step} = $_->{status} == 0 && $_->{out} =~ /^step ([0-9.]+ m?s), idle/m ? $1 : 'none'
    for values %took;
for my $row (@rows) {
    my ($option, $layout, $without, $with) = @$row;
    is($took{$layout}{step}, $without, "$layout: a step without $option")
        or diag(complain($took{$layout}));
    is($took{"$layout $option"}{step}, $with, "$layout: a step with $option")
        or diag(complain($took{"$layout $option"}));
}
done_testing();
