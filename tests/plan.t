#!/usr/bin/perl
# Compares 08_3d/plan with the trainer on random small layouts (dp x tp x pp x cp). The planned
# memory equals the trainer's, to the byte. The planned step equals the simulated clock, to the
# picosecond if heads, blocks and micro-batches divide. Otherwise it is within 2 % (4 or 15 % in two
# cases below). The plan does not use the clock.
# TEST_SEED=1234 draws the same layouts again; TEST_ALL=1: 200 instead of 12.
# slow: each layout is planned and trained
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max sum);
use Test::More;

chdir "$FindBin::Bin/.." or die;
my ($plan, $train) = map { program_of('fp32', $_) } '08_3d/plan.c', '08_3d/train.c';
plan skip_all => "$plan is not built" unless -x $plan && -x $train;
my $seed = $ENV{TEST_SEED} // ($all ? time % 1000000 : 1);
note("TEST_SEED=$seed draws these layouts again");
srand $seed;

sub any { return $_[rand @_] }
sub up_to { my ($n) = @_; return 1 + int rand $n }             # 1 .. n
sub divides { my ($x, $y) = @_; return $x % $y == 0 || $y % $x == 0 }

# In every other layout the sizes divide.
my $drawn = 0;
sub draw {
    my $cp = (1, 1, 2, 2, 1, 1, 4, 4, 1, 1, 2, 2, 1, 1, 3, 3)[$drawn % 16];
    my $even = $drawn++ % 2;
    my $most = int(8 / $cp);
    my ($dp, $tp, $pp) = any(grep { my ($x, $y, $z) = @$_; $x * $y * $z <= $most && (!$even || $cp == 3 || 8 % ($x * $y * $z * $cp) == 0) }
                             map { my $x = $_; map { my $y = $_; map { [$x, $y, $_] } 1 .. 8 } 1 .. 4 } 1 .. 8)->@*;
    my $v = $pp > 1 && rand 3 < 1 ? 1 + up_to(2) : 1;
    my $layers = $pp * $v * up_to(2) + ($even ? 0 : int rand 3);
    my $heads = $even ? $tp * up_to(2) : max($tp, up_to(5));
    my $b = up_to(3);
    my $m = $v > 1 ? $pp * up_to(3) : up_to(9);
    my $batch = max($dp, $dp * $m * $b - ($even || $v > 1 ? 0 : int rand $dp * $b));
    my $width = $heads * 4 * up_to(3);
    my $context = 4 * up_to(4) + ($even ? 0 : int rand 3);
    my $sequence = $tp > 1 && rand 2 < 1;
    $context = $tp * 4 if $even && $sequence;
    $context = $cp * 8 * up_to(3) if $even && $cp > 1;
    $context = $cp * 2 * $tp if $even && $cp > 1 && $sequence;
    my $vocab = 256;
    my ($zero, $recompute) = (any(0, 0, 1, 2, 3), any(qw(none selective full)));
    my $world = $dp * $tp * $pp * $cp;
    my $attention = any('plain', 'blockwise');                 # cp > 1 needs blockwise attention
    my @model = ('--layers', $layers, '--heads', $heads, '--width', $width, '--context', $context, '--batch', $batch,
                 '--micro-batch', $b, '--zero', $zero, '--recompute', $recompute, '--dropout', any(0, 0.1), '--attention', $attention);
    my @chunks = $v > 1 ? ('--chunks', $v) : ();
    my $what = "$dp,$tp,$pp,$cp @model @chunks" . ($sequence ? ' sequence parallelism' : '');
    # are the ring's ranks alike?
    my $ring = $cp == 1 || $context % (2 * $cp) == 0 && (4 % ($tp * $cp) == 0 || $tp % 4 == 0);
    my $cut = !divides($tp, 4) || !$ring;
    # Groups that have the same position in the nodes of four.
    my $exact = $layers % ($pp * $v) == 0 && $heads % $tp == 0 && $vocab % $tp == 0 && $batch % ($dp * $b) == 0
             && divides($tp, 4) && divides($tp * $cp, 4) && divides($tp * $cp * $dp, 4) && divides($world, 4)
             && $ring
             && (!$sequence || $context / $cp * $b % $tp == 0);
    return ({ %{ emu(1, $plan, @model, @chunks, qw(--cluster lesson --precision fp32 --vocab), $vocab, '--gpus', $world,
                     '--sequence-parallel', $sequence ? 'yes' : 'no', '--explain', "$dp,$tp,$pp,$cp") }, what => $what, cp => $cp, exact => $exact,
               # Some replica or slice groups are in one node, others in two. So ZeRO's sums and the
               # ring wait for each other within a micro-batch. In a ring with unequal ranks each
               # rank waits differently for each message.
               limit => $cut && ($zero >= 2 || $cp > 1 && !divides($tp, 4)) ? 0.15 : !$ring ? 0.04 : 0.02 },
            { %{ emu($world, $train, @model, ($v > 1 ? (qw(--schedule interleaved), @chunks) : ()), ($sequence ? '--sequence-parallel' : ()),
                     '--dp', $dp, '--tp', $tp, '--pp', $pp, ($cp > 1 ? ('--cp', $cp) : ()), qw(--steps 1 --eval-every 0 --threads 1 --data LICENSE)) } });
}
my @jobs = map { draw() } 1 .. ($all ? 200 : 12);
run_jobs(\@jobs);
my ($exact, $exact_ring) = (0, 0);
while (my ($planned, $trained) = splice @jobs, 0, 2) {
    my $what = $planned->{what};
    unless ($planned->{status} == 0 && $trained->{status} == 0) {
        fail($what);
        diag("TEST_SEED=$seed", complain($_)) for grep { $_->{status} } $planned, $trained;
        next;
    }
    my ($p, $t) = ($planned->{page}{config}, $trained->{page}{config});
    my %measured = map { $_->{name} => $_->{measured} } @{ $trained->{page}{costs} };
    for my $name ('parameters', 'gradients', 'optimizer state', 'activations, peak') {
        is($p->{$name}, $measured{$name}, "$name: $what") or diag("TEST_SEED=$seed");
    }
    my $sent = { 'tensor-parallel traffic' => 'tp_bytes', 'pipeline traffic' => 'pp_bytes', 'data-parallel traffic' => 'dp_bytes',
                 'tied embedding' => 'tied_bytes', ($planned->{cp} > 1 ? ('context-parallel traffic' => 'cp_bytes') : ()) };
    for my $name (sort keys %$sent) {
        is($p->{ $sent->{$name} }, $measured{$name}, "$name: $what") or diag("TEST_SEED=$seed");
    }
    if ($planned->{exact}) {
        is($p->{step}, $t->{step_ps}, "the step to the picosecond: $what") or diag("TEST_SEED=$seed");
        $exact++;
        $exact_ring += $planned->{cp} > 1;
    } else {
        my $error = abs($p->{step} / $t->{step_ps} - 1);
        ok($error < $planned->{limit}, sprintf 'the step within %g %% (%.3f %%): %s', 100 * $planned->{limit}, 100 * $error, $what) or diag("TEST_SEED=$seed");
    }
}
cmp_ok($exact, '>=', 5, 'some layouts were compared to the picosecond');
cmp_ok($exact_ring, '>=', 1, 'rings, too');

# Nodes cut the tensor-parallel group of one stage or one replica. The plan plays equal groups once,
# and these groups separately.
for my $case ([5, 1, 2, 4], [3, 3, 2, 1]) {
    my ($node, $dp, $tp, $pp) = @$case;
    my $world = $dp * $tp * $pp;
    my @model = (qw(--layers 8 --heads 4 --width 32 --context 16 --batch 12 --micro-batch 1 --dropout 0 --attention plain --node), $node);
    my ($planned, $trained) = run_jobs([emu(1, $plan, @model, qw(--cluster lesson --precision fp32 --vocab 256 --gpus), $world, '--explain', "$dp,$tp,$pp"),
        emu($world, $train, @model, '--dp', $dp, '--tp', $tp, '--pp', $pp, qw(--steps 1 --eval-every 0 --threads 1 --data LICENSE))]);
    is($planned->{page}{config}{step}, $trained->{page}{config}{step_ps}, "where nodes of $node cut one group: $dp x $tp x $pp to the picosecond") or diag(map { complain($_) } $planned, $trained);
}

# A replica with fewer sequences than micro-batches has an empty last micro-batch, also on a ring
# with unequal ranks.
my ($empty) = run_jobs([emu(1, $plan, qw(--layers 1 --heads 2 --width 16 --context 5 --batch 4 --micro-batch 1 --zero 1 --cluster lesson --precision fp32),
                            qw(--vocab 256 --gpus 6 --explain), "3,1,1,2")]);
is($empty->{status}, 0, 'an empty micro-batch on a ring') or diag(complain($empty));

# Checks that the plan and the clock share no code: the plan's object files need no symbol of the
# clock.
my @objects = map { s/\.c$/.o/r } map { "build/cpu-fp32/$_" } glob('08_3d/plan*.c'), glob('08_3d/experiments/plan_*.c');
my $names = join '', map { `nm -u $_` } @objects;
like($names, qr/ring_bytes/, 'nm lists the functions that the plan calls');
unlike($names, qr/ U (?:clock_|step_time|ring_time|send_time|tree_time|work_product)/, 'the plan calls no function of the clock');

done_testing();
