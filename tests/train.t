#!/usr/bin/perl
# Compares the trainer with the unsplit model at every factorisation of the ranks, schedule, ZeRO
# stage and recomputation. Also tests runs that must give equal bits, the falling loss, the log and
# the safetensors file. make test takes 16 of the 48 combinations in each part. The 16 combinations
# contain every pair of schedule and ZeRO stage, and each of these two with every recomputation.
# TEST_ALL=1 takes all 48, and then the whole cross product in both precisions, as far as
# TRAIN_SECONDS (900) allow. TRAIN_MATRIX=FILE names the file for the table of the largest errors.
# slow: about 330 trainings, most beside the unsplit training
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use List::Util qw(max shuffle);
use Test::More;
use Time::HiRes qw(time);

chdir "$FindBin::Bin/.." or die;
my %train = map { $_ => program_of($_, '08_3d/train.c') } qw(fp32 fp64);
plan skip_all => "$train{fp32} is not built" unless -x $train{fp32} && -x $train{fp64};

# The text is short, because this test does not test evaluation.
my $text = "$work/text.txt";
{
    open my $f, '>', $text or die "$text: $!";
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f or die "$text: $!";
}

my @factorisations;    # [dp, tp, pp]
for my $world (1, 2, 4, 6, 8) {
    for my $dp (grep { $world % $_ == 0 } 1 .. $world) {
        push @factorisations,
            map { [$dp, $_, $world / $dp / $_] } grep { $world / $dp % $_ == 0 } 1 .. $world;
    }
}
my @schedules = qw(naive gpipe 1f1b zero-bubble);
my @recomputes = qw(none selective full);
my (@combinations, @chosen); # all [schedule, ZeRO, recompute]; the combinations that this run tries
for my $s (0 .. $#schedules) {
    for my $zero (0 .. 3) {
        for my $r (0 .. $#recomputes) {
            my $combination = [$schedules[$s], $zero, $recomputes[$r]];
            push @combinations, $combination;

            push @chosen, $combination if $all || $r == ($s + $zero) % 3;
        }
    }
}
is(scalar @factorisations, 29, 'the ranks 1, 2, 4, 6 and 8 have 29 factorisations');
is(scalar @combinations, 48, 'there are 48 combinations of schedule, ZeRO and recomputation');

# ---- the matrix ----
# Some layouts do not divide these sizes: 9 sequences, 8 heads over 3 or 6 ranks, 8 blocks over 3 or
# 6 stages.
my @model = (
    qw(--layers 8 --width 48 --heads 8 --context 16 --batch 9 --micro-batch 1 --check --reduce
        ordered --data),
    $text
);
my %uneven = (1 => '8', 2 => '3,5', 3 => '4,1,3', 4 => '1,3,2,2', 6 => '2,1,1,1,2,1');

sub row {
    my ($mesh, $combination, %how) = @_;
    my ($dp, $tp, $pp) = @$mesh;
    my ($schedule, $zero, $recompute) = @$combination;
    my $precision = $how{precision} || 'fp32';
    my @options = (
        '--dp', $dp, '--tp', $tp, '--pp', $pp,
        '--schedule', $schedule, '--zero', $zero, '--recompute', $recompute
    );
    push @options, $how{adamw} ? qw(--optimizer adamw --lr 0.003) : qw(--optimizer sgd --lr 0.1);
    push @options, '--stage-layers', $uneven{$pp} if $how{uneven} && $uneven{$pp};
    my $halves = $schedule eq 'zero-bubble';    # hiding communication needs whole backwards
    my $overlap = $how{overlap} && $zero == 0 && !$halves;
    push @options, '--overlap' if $overlap;
    push @options, '--rebalance', 2 if $how{rebalance} && !$overlap;
    push @options, '--sequence-parallel' if $how{sequence};
    push @options, '--prefetch' if $how{prefetch} && $zero == 3 && !$halves;
    push @options, '--steps', $how{steps} || ($all ? 10 : 3);
    my $job = ($how{mpi} ? \&mpi : \&emu)->($dp * $tp * $pp, $train{$precision}, @model, @options);
    @$job{qw(mesh schedule zero recompute how)} = (
        "${dp}x${tp}x$pp",
        $schedule,
        $zero,
        $recompute,
        join ' ',
        $precision,
        $how{adamw} ? 'adamw' : 'sgd',
        $how{mpi} ? 'mpi' : 'emu',
        $how{uneven} ? 'uneven' : (),
        $overlap ? 'overlap' : (),
        $how{rebalance} && !$overlap ? 'rebalanced' : (),
        $how{sequence} ? 'sequence' : ()
    );
    return $job;
}

my (@rows, %met, @pairs);
for my $i (0 .. $#factorisations) {
    my $mesh = $factorisations[$i];
    my $combination = $chosen[(7 * $i + 3) % @chosen];
    my %how = (
        precision => $i % 3 == 1 ? 'fp64' : 'fp32',
        adamw => $i % 4 == 2,
        uneven => $i % 2,
        overlap => 1
    );
    push @rows, row($mesh, $combination, %how);
    $met{"@$combination"} = 1 if $mesh->[0] > 1 && $mesh->[2] > 1;

    # One factorisation for each number of ranks also runs as processes.
    next unless have_mpi && grep { "@$mesh" eq $_ } '1 1 1', '2 1 1', '2 1 2', '1 3 2', '2 2 2';
    push @rows, row($mesh, $combination, %how, mpi => 1);
    push @pairs, [@rows[-2, -1]];
}

# A schedule matters only with stages, and ZeRO only with replicas. These rows add the combinations
# that no earlier row has with both stages and replicas.
my $extra = 0;
for my $combination (grep { !$met{"@$_"} } @chosen) {
    push @rows,
        row(
        [2, 2, 2], $combination,
        steps => 4,
        precision => $extra % 3 == 2 ? 'fp64' : 'fp32',
        adamw => $extra % 4 == 1,
        uneven => $extra % 2,
        overlap => $extra % 4 == 1,
        rebalance => $extra % 4 == 3
        );
    $extra++;
}

# Interleaved stages have 2 or 3 chunks. m is a multiple of the number of stages.
my %parts = (
    '2 2' => '3,2,1,2',
    '2 3' => '2,1,1,1,1,2',
    '3 2' => '1,2,1,1,2,1',
    '4 2' => '1,1,1,1,1,1,1,1'
);    # "pp chunks"
my @interleaved;
{
    my @meshes = ([2, 2, 2], [1, 2, 3], [2, 1, 4], [3, 1, 2], [1, 1, 2], [2, 1, 3], [1, 2, 4]);
    for my $zero (0 .. 3) {
        for my $r ($all ? (0 .. 2) : $zero % 3) {
            my ($i, $recompute) = (scalar @interleaved, $recomputes[$r]);
            my ($dp, $tp, $pp) = @{ $meshes[$i % @meshes] };
            my $chunks = $pp == 2 && $i % 3 != 1 ? 3 : 2;
            my $job = row(
                [$dp, $tp, $pp], ['interleaved', $zero, $recompute],
                steps => 4,
                precision => $i % 3 == 2 ? 'fp64' : 'fp32',
                adamw => $i % 4 == 1,
                overlap => $i % 2
            );
            push @{ $job->{words} }, '--chunks', $chunks, '--batch', 2 * $dp * $pp - ($dp > 1),
                $i % 2 ? ('--stage-layers', $parts{"$pp $chunks"}) : ();
            push @{ $job->{words} }, '--prefetch' if $zero == 3 && $i % 2;
            push @interleaved, $job;
        }
    }
    push @rows, @interleaved;
}
run_jobs(\@rows);

sub holds {
    my ($job) = @_;
    my @checks = @{ $job->{page}{checks} || [] };
    my $curves = grep { $_->{name} =~ /^(loss|gradient norm) of every step$/ } @checks;
    my $gradients = grep { $_->{what} =~ /gradients$/ && $_->{name} =~ /^100 tensors/ } @checks;
    my $weights = grep { $_->{what} =~ /weights/ && $_->{name} =~ /^100 tensors/ } @checks;
    my $exact = $job->{how} =~ /fp64|sgd/;
    return
           $job->{status} == 0
        && $job->{page}{pass}
        && $curves == 2
        && $gradients == 1
        && $weights == ($exact ? 1 : 0);
}

sub name {
    my ($job) = @_;
    return
        "$job->{mesh} $job->{schedule} zero $job->{zero} recompute $job->{recompute} $job->{how}";
}

sub worst {
    my ($job, $key) = @_;
    return max map { $_->{$key} // 'nan' } @{ $job->{page}{checks} || [{}] };
}

my @table = (
    "| dp x tp x pp | schedule | ZeRO | recompute | run | largest error | limit | seconds |",
    '|---|---|---|---|---|---|---|---|'
);
for my $job (@rows) {
    ok(holds($job), name($job)) or diag(complain($job));

    # Under AdamW the limits of fp32 differ by check, so the table shows the error that is nearest
    # to its limit.
    my ($near) = sort { $b->{error} / $b->{limit} <=> $a->{error} / $a->{limit} }
        @{ $job->{page}{checks} || [] };
    push @table, sprintf '| %s | %s | %d | %s | %s | %.1e | %.0e | %.1f |',
        @$job{qw(mesh schedule zero recompute how)},
        $near ? @$near{qw(error limit)} : ('nan', 'nan'), $job->{seconds};
}
is(
    $_->[0]{page}{digest},
    $_->[1]{page}{digest} // 'a digest',
    name($_->[0]) . ': the same bits as processes'
) for @pairs;
my %seen = map { ("$_->{schedule} $_->{zero} $_->{recompute}" => 1) }
    grep { $_->{schedule} ne 'interleaved' && $_->{mesh} =~ /[2-8]x.*x[2-8]/ } @rows;
is(scalar keys %seen, @chosen, 'every combination has run with replicas and stages');
note($_) for @table;

# ---- sequence parallelism ----
{
    my @meshes = ([2, 2, 2], [1, 3, 2], [2, 4, 1], [1, 2, 3], [3, 2, 1], [1, 8, 1]);
    my @jobs;
    for my $i (0 .. $#chosen) {
        my ($mesh, $combination) = ($meshes[$i % @meshes], $chosen[$i]);
        my %how = (
            steps => 3,
            precision => $i % 5 == 1 ? 'fp64' : 'fp32',
            adamw => $i % 4 == 1,
            uneven => $i % 2,
            overlap => $i % 3 == 0,
            sequence => 1,
            prefetch => $i % 2
        );
        push @jobs, row($mesh, $combination, %how);

        # Some rows, with every ZeRO stage, also run as processes.
        next unless have_mpi && $i % 5 == 0;
        push @jobs, row($mesh, $combination, %how, mpi => 1);
    }
    run_jobs(\@jobs);
    for my $i (0 .. $#jobs) {
        my $job = $jobs[$i];
        ok(holds($job), name($job)) or diag(complain($job));
        my $sent = grep { $_->{name} eq 'tensor-parallel gathers' && $_->{pass} }
            @{ $job->{page}{costs} || [] };
        is($sent, 1, name($job) . ': as many all-gathers as predicted');
        is(
            $job->{page}{digest},
            $jobs[$i - 1]{page}{digest} // 'a digest',
            name($job) . ': the bits of virtual ranks'
        ) if $job->{how} =~ /mpi/;
    }

    # A micro-batch of one sequence has two rows, fewer than the four ranks.
    my $short = emu(
        4, $train{fp32},
        qw(--dp 1 --tp 4 --pp 1 --sequence-parallel --check --layers 2 --width 16 --heads 4
            --context 2
            --batch 3 --micro-batch 1 --steps 3 --optimizer sgd --lr 0.1 --eval-every 0 --data),
        $text
    );
    run_jobs([$short]);
    ok(
        $short->{status} == 0 && $short->{page}{pass},
        'sequence parallelism with fewer rows than ranks'
    ) or diag(complain($short));
}

# ---- context parallelism: also unequal chunks, chunks of one position, and chunks in tiles ----
{
    my @meshes =
        ([1, 1, 1, 2], [2, 1, 1, 2], [1, 2, 2, 2], [1, 1, 2, 3], [1, 3, 1, 2], [2, 2, 1, 2])
        ;    # dp, tp, pp, cp
    my @contexts = (19, 16, 4, 150, 19, 7);
    my @jobs;
    for my $i (0 .. $#chosen) {
        my ($dp, $tp, $pp, $cp) = @{ $meshes[$i % @meshes] };
        my ($schedule, $zero, $recompute) = @{ $chosen[$i] };
        my $precision = $i % 5 == 1 ? 'fp64' : 'fp32';
        my @options = (
            '--dp', $dp, '--tp', $tp, '--pp', $pp, '--cp', $cp, '--schedule', $schedule, '--zero',
            $zero, '--recompute', $recompute,
            '--context', $contexts[$i % @contexts],
            qw(--layers 3 --width 36 --heads 6 --batch 5 --micro-batch 1 --steps 3 --check
                --eval-every 2
                --reduce ordered --data), $text,
            $i % 4 == 1 ? qw(--optimizer adamw --lr 0.003) : qw(--optimizer sgd --lr 0.1)
        );
        my $whole = $schedule ne 'zero-bubble';    # backwards are not split
        push @options, '--overlap' if $zero == 0 && $i % 2 && $whole;
        push @options, '--prefetch' if $zero == 3 && $i % 2 && $whole;
        push @options, '--sequence-parallel' if $tp > 1 && $i % 3;
        my $job = emu($dp * $tp * $pp * $cp, $train{$precision}, @options);
        push @jobs,
            {
            %$job,
            name => "cp $cp, ${dp}x${tp}x$pp $schedule zero $zero recompute $recompute $precision"
            };
        next unless have_mpi && $i % 8 == 4;
        push @jobs,
            {
            %{ mpi($dp * $tp * $pp * $cp, $train{$precision}, @options) },
            name => "$jobs[-1]{name}, as processes"
            };
    }

    my $blocks = emu(
        2, $train{fp32},
        qw(--dp 1 --tp 2 --pp 1 --attention blockwise --context 150 --layers 2 --width 16
            --heads 4 --batch 3
            --recompute selective --steps 3 --check --optimizer sgd --lr 0.1 --eval-every 0 --data),
        $text
    );
    run_jobs([@jobs, $blocks]);
    for my $i (0 .. $#jobs) {
        my $job = $jobs[$i];
        ok($job->{status} == 0 && $job->{page}{pass}, $job->{name}) or diag(complain($job));
        my $sent =
            grep { $_->{name} eq 'context-parallel traffic' && $_->{pass} && $_->{measured} > 0 }
            @{ $job->{page}{costs} || [] };
        is($sent, 1, "$job->{name}: keys are sent as predicted");
        is(
            $job->{page}{digest},
            $jobs[$i - 1]{page}{digest} // 'a digest',
            "$job->{name}: the bits of virtual ranks"
        ) if $job->{name} =~ /processes/;
    }
    ok($blocks->{status} == 0 && $blocks->{page}{pass}, '--attention blockwise')
        or diag(complain($blocks));
}

# ---- interleaved stages with sequence parallelism, and with context parallelism ----
{
    my @jobs;
    for my $zero (0 .. 3) {
        for my $r ($all ? (0 .. 2) : $zero % 3) {
            my ($i, $recompute) = (scalar @jobs, $recomputes[$r]);
            my @options = (
                qw(--schedule interleaved --layers 5 --width 24 --heads 4 --micro-batch 1
                    --steps 3 --check --eval-every 0 --reduce ordered --data),
                $text,
                '--zero',
                $zero,
                '--recompute',
                $recompute,
                $i % 3 == 1 ? qw(--optimizer adamw --lr 0.003) : qw(--optimizer sgd --lr 0.1),
                $zero == 0 ? '--overlap' : $zero == 3 && $recompute ne 'full' ? '--prefetch' : ()
            );
            for my $split (
                ['--sequence-parallel', 8, qw(--dp 2 --tp 2 --pp 2 --batch 7 --context 7)],
                ['--cp 2', 8, qw(--dp 1 --tp 2 --pp 2 --batch 4 --context 9)]
            ) {
                my ($how, $ranks, @mesh) = @$split;
                push @jobs,
                    {
                    %{
                        emu($ranks, $train{ $recompute eq 'selective' ? 'fp64' : 'fp32' },
                            @mesh, split(' ', $how), @options)
                    },
                    name => "$how, interleaved zero $zero recompute $recompute"
                    };
            }
        }
    }
    run_jobs(\@jobs);
    ok($_->{status} == 0 && $_->{page}{pass}, $_->{name}) or diag(complain($_)) for @jobs;
}

# ---- a budget for activations: the peak is as predicted, and no bit changes ----
{
    my @small = (
        qw(--layers 6 --width 32 --heads 4 --context 24 --batch 9 --micro-batch 2 --steps 3
            --check --eval-every 0 --reduce ordered --data),
        $text
    );

    # Some rows have stages of several chunks, split backwards, or --rebalance. With the larger
    # budget --rebalance moves blocks. With the smaller budget no block can move.
    my @ways = (
        [2, '--dp 1 --tp 1 --pp 2 --schedule interleaved --batch 8', 230000, 400000],
        [
            8,
            '--dp 2 --tp 2 --pp 2 --schedule interleaved --stage-layers 2,1,1,2 --zero 2 '
                . '--batch 15',
            185088,
            330000
        ],
        [4, '--dp 2 --tp 1 --pp 2 --schedule zero-bubble --zero 3', 1110000, 1120000],
        [8, '--dp 1 --tp 2 --pp 4 --schedule zero-bubble --sequence-parallel', 632448, 640000],
        [3, '--dp 1 --tp 1 --pp 3 --stage-layers 1,1,4 --rebalance 1', 165000, 250000],
        [1, ''],
        [8, '--dp 2 --tp 2 --pp 2'],
        [8, '--dp 1 --tp 4 --pp 2 --sequence-parallel'],
        [8, '--dp 2 --tp 1 --pp 4 --zero 3 --stage-layers 1,2,2,1'],
        [8, '--dp 1 --tp 2 --pp 2 --cp 2 --zero 2'],
        [4, '--dp 1 --tp 4 --pp 1 --tensor 2d'],

        # Rank 0 has 3 of the 7 positions in zigzag chunks, and rank 1 has 4.
        [2, '--dp 1 --tp 1 --pp 1 --cp 2 --context 7', 40000, 80000]
    );
    my @jobs;
    for my $way (@ways[$all ? (0 .. $#ways) : (0, 4, 9, -1)]) {
        my ($ranks, $options, @budgets) = @$way;
        @budgets = (220000, 300000) unless @budgets;
        push @jobs,
            {
            %{
                emu($ranks, $train{fp32}, @small, split(' ', $options), '--activation-budget', $_)
            },
            budget => $_,
            name => "$ranks ranks $options, budget $_"
            }
            for @budgets;
        push @jobs,
            {
            %{ emu($ranks, $train{fp32}, @small, split ' ', $options) },
            name => "$ranks ranks $options, no budget"
            };
    }
    run_jobs(\@jobs);
    while (my ($tight, $wide, $without) = splice @jobs, 0, 3) {
        for my $job ($tight, $wide) {
            ok($job->{status} == 0 && $job->{page}{pass}, $job->{name}) or diag(complain($job));
            my ($peak) = grep { $_->{name} eq 'activations, peak' } @{ $job->{page}{costs} || [] };
            cmp_ok($peak ? max(@{$peak}{ grep { /^measured/ } keys %$peak }) : 1e9,
                '<=', $job->{budget}, "$job->{name}: the measured peak is within the budget");
            is(
                $job->{page}{digest},
                $without->{page}{digest} // 'a digest',
                "$job->{name}: all bits are those of a run that keeps everything"
            );
        }
        next unless $wide->{name} =~ /--rebalance/;
        like(
            $wide->{out},
            qr/from step 1 on, blocks of the stages: 2 2 2/,
            "$wide->{name}: blocks move"
        );
        unlike(
            $tight->{out},
            qr/from step \d+ on, blocks/,
            "$tight->{name}: blocks stay, because the budget does not let them move"
        );
    }
    my $none = emu(2, $train{fp32}, @small, qw(--dp 1 --tp 1 --pp 2 --activation-budget 1000));
    run_jobs([$none]);
    like(
        $none->{err},
        qr/--activation-budget 1000 is not enough for stage 0 even if every block recomputes fully: the stage needs \d+ bytes/,
        'a budget that is too small says what is needed'
    );
    my ($needed) = $none->{err} =~ /the stage needs (\d+) bytes/;
    my ($enough, $less) = map {
        emu(
            2, $train{fp32}, @small,
            qw(--dp 1 --tp 1 --pp 2 --activation-budget),
            ($needed || 0) - $_
        )
    } 0, 1;
    run_jobs([$enough, $less]);
    ok($enough->{status} == 0 && $enough->{page}{pass}, 'the budget of the message is enough')
        or diag(complain($enough));
    is($less->{status}, 2, 'a byte less than the budget of the message is not enough');
}

# ---- a tp group as a grid: 2D and 2.5D; and as a cube: 3D ----
# Two replicas do not divide 9 sequences in micro-batches of 3, and 2 columns do not divide 5 heads.
# With micro-batches of 1 a row of the grid has no sequence.
{
    my @blocks = (
        qw(--layers 2 --width 20 --heads 5 --context 9 --batch 9 --steps 3 --eval-every 0
            --check --reduce ordered --data),
        $text
    );
    my (@jobs, @pairs, $n);
    my @grids = (['2d', 2, 4, 2], ['2.5d', 2, 8, 1], ['3d', 2, 8, 2]);
    for my $g (0 .. $#grids) {
        my ($tensor, $dp, $tp, $pp) = @{ $grids[$g] };
        for my $s (0, 1) {
            for my $zero (0 .. 3) {
                for my $r (0, 1) {
                    my $sgd = ++$n % 3;

                    # make test takes 4 of the 16 combinations of a grid: each ZeRO stage once,
                    # every other value twice.
                    next unless $all || ($s == ($zero + $g) % 2 && $r == (int($zero / 2) + $g) % 2);
                    my ($schedule, $recompute) = ((qw(gpipe 1f1b))[$s], (qw(none full))[$r]);
                    my @options = (
                        @blocks, '--tensor', $tensor, '--dp', $dp, '--tp', $tp, '--pp', $pp,
                        '--schedule', $schedule, '--zero', $zero,
                        '--recompute', $recompute, '--micro-batch', $n % 4 ? 3 : 1,
                        $sgd ? qw(--optimizer sgd --lr 0.1) : qw(--optimizer adamw --lr 0.003)
                    );
                    my $precision = $sgd ? 'fp32' : 'fp64';
                    push @jobs,
                        {
                        %{ emu($dp * $tp * $pp, $train{$precision}, @options) },
                        name => "--tensor $tensor, ${dp}x${tp}x$pp $schedule zero $zero recompute "
                            . "$recompute $precision"
                        };
                }
            }
        }
    }
    for my $other (
        ['2d', 2, 9, 1],
        ['2d', 4, 1, 1],
        ['2.5d', 1, 8, 2],
        ['2.5d', 1, 4, 1],
        ['2.5d', 1, 18, 1],
        ['3d', 2, 8, 1],
        ['3d', 4, 1, 1],
        ['3d', 1, 27, 1]
    ) {
        my ($tensor, $dp, $tp, $pp) = @$other;
        push @jobs,
            {
            %{
                emu($dp * $tp * $pp,
                    $train{fp64}, @blocks, '--tensor', $tensor, '--dp', $dp, '--tp', $tp, '--pp',
                    $pp, qw(--recompute selective))
            },
            name => "--tensor $tensor, ${dp}x${tp}x$pp recompute selective"
            };
    }
    push @jobs, map {
        my ($ranks, @options) = @$_;
        +{
            %{ emu($ranks, $train{fp64}, @blocks, '--tensor', '2d', @options) },
            name => "--tensor 2d @options"
        }
        } [8, qw(--dp 2 --tp 4 --zero 3 --prefetch)],
        [8, qw(--dp 1 --tp 4 --pp 2 --schedule interleaved --chunks 2 --layers 4 --batch 8)],
        [8, qw(--dp 2 --tp 4 --overlap)], [16, qw(--dp 2 --tp 4 --pp 2 --overlap)],
        [4, qw(--tp 4 --pp 1 --attention blockwise)];
    push @jobs, map {
        my ($ranks, @options) = @$_;
        +{
            %{ emu($ranks, $train{fp64}, @blocks, '--tensor', '3d', @options) },
            name => "--tensor 3d @options"
        }
        } [16, qw(--dp 2 --tp 8 --zero 3 --prefetch)], [16, qw(--dp 2 --tp 8 --overlap)],
        [32, qw(--dp 2 --tp 8 --pp 2 --overlap)],
        [16, qw(--dp 1 --tp 8 --pp 2 --schedule interleaved --chunks 2 --layers 4 --batch 8)],
        [8, qw(--tp 8 --pp 1 --attention blockwise)];
    push @jobs, map {
        my ($ranks, @options) = @$_;
        +{
            %{ emu($ranks, $train{fp64}, @blocks, '--tensor', '2.5d', @options) },
            name => "--tensor 2.5d @options"
        }
    } [16, qw(--dp 2 --tp 8 --overlap)], [32, qw(--dp 2 --tp 8 --pp 2 --overlap)];
    push @jobs,
        {
        %{ emu(16, $train{fp32}, @blocks, qw(--tensor 3d --dp 2 --tp 8 --reduce fast)) },
        name => '--tensor 3d --reduce fast: copies on a plane'
        };
    push @jobs,
        {
        %{ emu(8, $train{fp32}, @blocks, qw(--tensor 2.5d --depth 2 --tp 8 --reduce fast)) },
        name => '--tensor 2.5d --reduce fast: copies in depth'
        };
    for my $grid (['2d', 4], ['2.5d', 8], ['3d', 8]) {
        next unless have_mpi;
        my @options = (@blocks, '--tensor', $grid->[0], '--dp', 1, '--tp', $grid->[1], '--pp', 1);
        push @pairs,
            [
            $grid->[0],
            emu($grid->[1], $train{fp32}, @options),
            mpi($grid->[1], $train{fp32}, @options)
            ];
    }
    run_jobs([@jobs, map { @$_[1, 2] } @pairs]);
    for my $job (@jobs) {
        my %of = map { ("$_->{name}" => 1) } @{ $job->{page}{checks} || [] };
        my @costs = grep { $_->{name} =~ /^tensor-parallel/ } @{ $job->{page}{costs} || [] };
        ok(
            $job->{status} == 0
                && $job->{page}{pass}
                && $of{'loss of every step'}
                && $of{'gradient norm of every step'}
                && @costs == 3,
            $job->{name}
        ) or diag(complain($job));
        ok((grep { $_->{what} =~ /^copies within a replica/ } @{ $job->{page}{checks} }),
            "$job->{name}: the copies are compared")
            if $job->{name} =~ /copies/;
    }
    is(
        $_->[1]{page}{digest},
        $_->[2]{page}{digest} // 'a digest',
        "--tensor $_->[0]: the same bits as processes"
        )
        or diag(complain($_->[2]))
        for @pairs;
    my @refused = (
        ['8 ranks are no square', 8, qw(--tp 8 --tensor 2d)],
        ['only --tensor 2.5d has layers', 4, qw(--tp 4 --tensor 2d --depth 2)],
        ['no q x q x d grid', 6, qw(--tp 6 --tensor 2.5d)],
        ['--cp cuts', 8, qw(--tp 4 --cp 2 --pp 1 --tensor 2d)],
        ['--sequence-parallel cuts', 4, qw(--tp 4 --tensor 2d --sequence-parallel)],
        ['need as many heads', 9, qw(--tp 9 --tensor 2d --heads 2)],
        ['4 are no such cube', 4, qw(--tp 4 --tensor 3d)],
        ['--cp cuts', 16, qw(--tp 8 --cp 2 --pp 1 --tensor 3d)],
        ['--sequence-parallel cuts', 8, qw(--tp 8 --tensor 3d --sequence-parallel)]
    );
    my @no = map {
        my ($why, $ranks, @options) = @$_;
        +{ %{ emu($ranks, $train{fp32}, @options) }, why => $why }
    } @refused;
    run_jobs(\@no);
    ok($_->{status} == 2 && $_->{err} =~ /\Q$_->{why}/, "refused: $_->{why}")
        or diag(complain($_))
        for @no;
}

# ---- equal bits ----
# Replicas and accumulation do not give equal bits. The tied embedding adds its two gradients before
# the sum over replicas, but after the sum over micro-batches, so the sums are grouped differently.
# Without --check the digest covers the weights after the last step, but not the norm, because ZeRO
# sums the norm in another order.
my @small = (
    qw(--layers 4 --width 32 --heads 4 --context 16 --steps 5 --dropout 0.1 --reduce ordered
        --data),
    $text
);

sub bits {
    my ($mesh, @options) = @_;
    my ($dp, $tp, $pp) = @$mesh;
    return emu($dp * $tp * $pp, $train{fp32}, @small, '--dp', $dp, '--tp', $tp, '--pp', $pp,
        @options);
}

my @adamw = qw(--optimizer adamw --lr 0.003);
my @sgd = qw(--optimizer sgd --lr 0.1);
my @batch = qw(--batch 8 --micro-batch 2);
my @ladder = (
    (
        map {
            my $mesh = $_;
            [
                "naive = gpipe = 1f1b = zero-bubble, " . join('x', @$mesh),
                map { bits($mesh, @batch, @adamw, '--schedule', $_) }
                    qw(naive gpipe 1f1b zero-bubble)
            ]
        } [1, 1, 3],
        [1, 2, 2],
        [2, 1, 4]
    ),
    (
        map {
            my ($mesh, @how) = @$_;
            [
                "1f1b = interleaved, " . join('x', @$mesh) . " @how",
                map { bits($mesh, @batch, @adamw, '--clip', 0.5, @how, '--schedule', $_) }
                    qw(1f1b interleaved)
            ]
        } [[1, 1, 2]],
        [[2, 2, 2], qw(--zero 1 --recompute full)],
        [[2, 1, 2], qw(--zero 3 --prefetch)],
        [[1, 2, 4], qw(--layers 9)],
        [[2, 1, 2], qw(--overlap --batch 7 --micro-batch 1)]
    ),
    [
        'interleaved, 2 chunks = 3 = 4, 1x1x2',
        map { bits([1, 1, 2], @batch, @adamw, qw(--layers 8 --schedule interleaved --chunks), $_) }
            2 .. 4
    ],
    (
        map {
            my ($zero, @mesh) = @$_;
            [
                "none = selective = full, zero $zero, " . join('x', @mesh),
                map { bits(\@mesh, @batch, @adamw, '--zero', $zero, '--recompute', $_) }
                    qw(none selective full)
            ]
        } [0, 1, 1, 1],
        [0, 1, 2, 2],
        [3, 2, 1, 2],
        [2, 2, 2, 2]
    ),
    (
        map {
            my ($kind, $optimizer, @mesh) = @$_;
            [
                "zero 0 = zero 1, no clipping, $kind, " . join('x', @mesh),
                map { bits(\@mesh, @batch, @$optimizer, '--clip', 0, '--zero', $_) } 0,
                1
            ]
        } ['sgd', \@sgd, 2, 1, 1],
        ['adamw', \@adamw, 4, 1, 1],
        ['adamw', \@adamw, 3, 1, 2],
        ['adamw', \@adamw, 2, 2, 2]
    ),
    [
        'zero 0 = 1 = 2 = 3, no clipping, one micro-batch, 4x1x1',
        map { bits([4, 1, 1], @batch, @adamw, '--clip', 0, '--zero', $_) } 0 .. 3
    ],
    (
        map {
            my ($mesh, @how) = @$_;
            [
                "zero 3 = zero 3 with prefetch, " . join('x', @$mesh) . " @how",
                map { bits($mesh, @batch, @adamw, '--clip', 0.5, '--zero', 3, @how, @$_) } [],
                ['--prefetch']
            ]
        } [[4, 1, 1]],
        [[2, 1, 4], qw(--schedule gpipe)],
        [[2, 2, 2], qw(--recompute full)],
        [[3, 1, 2], qw(--recompute selective --batch 7)]
    ),
    (
        map {
            my ($mesh, @how) = @$_;
            [
                "zero 0 = zero 0 with overlap, " . join('x', @$mesh) . " @how",
                map { bits($mesh, @batch, @adamw, '--clip', 0.5, @how, @$_) } [],
                ['--overlap']
            ]
        } [[4, 1, 1]],
        [[2, 1, 2], qw(--schedule naive --micro-batch 4)],
        [[2, 1, 4], qw(--schedule gpipe)],
        [[2, 2, 2], qw(--recompute full)],
        [[3, 1, 2], qw(--recompute selective --batch 7)],
        [[2, 4, 1], qw(--tensor 2d --recompute full)],
        [[2, 4, 2], qw(--tensor 2d --schedule gpipe)],
        [[2, 9, 2], qw(--tensor 2d --context 2)],
        [[2, 8, 1], qw(--tensor 2.5d --batch 7)],
        [[2, 8, 2], qw(--tensor 2.5d --schedule interleaved)],
        [[2, 8, 1], qw(--tensor 3d --recompute selective)],
        [[2, 8, 2], qw(--tensor 3d --batch 6)]
    ),
    (
        map {
            my $dp = $_;
            [
                "pp 1 = 2 = 4, dp $dp, with clipping",
                map { bits([$dp, 1, $_], @batch, @adamw, '--clip', 0.5) } 1,
                2, 4
            ]
        } 1,
        2
    ),
    (
        map {
            my ($mesh, $blocks, @how) = @$_;
            [
                "blocks that stay = that move, " . join('x', @$mesh) . " $blocks @how",
                map {
                    bits($mesh, @batch, @adamw, '--layers', 6, '--stage-layers', $blocks, @how, @$_)
                } [],
                ['--rebalance', 2]
            ]
        } [[1, 1, 3], '1,1,4'],
        [[2, 1, 2], '3,1,1,1', qw(--zero 3 --schedule interleaved)],
        [[2, 2, 2], '5,1', '--zero', 1, '--recompute', 'full'],
        [[2, 1, 2], '1,5', qw(--zero 3 --schedule zero-bubble)]
    ),
    [
        'pp 1 = 2 = 4 = 4 unevenly cut, 6 blocks',
        map { bits([1, 1, $_->[0]], @batch, @sgd, '--layers', 6, @$_[1 .. $#$_]) } [1],
        [2],
        [4],
        [4, '--stage-layers', '1,2,1,2']
    ],
);
if (have_mpi) {
    for my $case (
        [[2, 2, 2], '--zero', 3, '--recompute', 'full'],
        [[1, 1, 4], '--schedule', 'gpipe'],
        [[3, 2, 1], '--zero', 2],
        [[2, 1, 3], '--overlap'],
        [[2, 1, 2], qw(--schedule interleaved --zero 3 --prefetch)]
    ) {
        my ($mesh, @options) = @$case;
        my $ranks = $mesh->[0] * $mesh->[1] * $mesh->[2];
        my $job = bits($mesh, @batch, @adamw, @options);
        push @ladder,
            [
            'emu = mpi, ' . join('x', @$mesh) . " @options",
            $job,
            {
                %$job,
                words => ['tools/launch', $ranks, @{ $job->{words} }[3 .. $#{ $job->{words} }]]
            }
            ];
    }
}
my @reseeded = grep { $all || $_ % 8 == 0 } 0 .. $#ladder;
my %other = map {
    my (undef, $job) = @{ $ladder[$_] };
    ($_ => { %$job, words => [@{ $job->{words} }, '--seed', 2] })
} @reseeded;
run_jobs([(map { my (undef, @jobs) = @$_; @jobs } @ladder), values %other]);
for my $i (0 .. $#ladder) {
    my ($what, @jobs) = @{ $ladder[$i] };
    my @digests = map { $_->{status} == 0 && $_->{page}{digest} || 'none' } @jobs;
    ok($digests[0] ne 'none' && !(grep { $_ ne $digests[0] } @digests), "equal bits: $what")
        or diag("@digests", map { complain($_) } grep { $_->{status} } @jobs);
    isnt($other{$i}{page}{digest}, $digests[0], "other bits from another seed: $what")
        if $other{$i};
    like(
        $_->{out},
        qr/from step 2 on, blocks of the (stages|chunks): \d/,
        "blocks have moved: $what"
    ) for grep { "@{ $_->{words} }" =~ /--rebalance/ } @jobs;
}

# ---- reductions hidden by the last backward ----
# With --overlap a step is only a little shorter, because computation takes most of a step. But the
# simulated times are exact.
{
    my @pairs = map {
        my ($mesh, @how) = @$_;
        [
            join('x', @$mesh) . " @how",
            map {
                bits(
                    $mesh,
                    qw(--width 64 --layers 6 --steps 1 --batch 8 --micro-batch 2 --clock simulated
                        --link ethernet), @how, @$_
                )
            } [],
            ['--overlap']
        ]
        } [[4, 1, 1]], [[2, 1, 2]], [[2, 1, 2], qw(--schedule gpipe --recompute full)],
        [[2, 4, 1], qw(--tensor 2d)], [[2, 8, 1], qw(--tensor 2.5d)], [[2, 8, 1], qw(--tensor 3d)];
    run_jobs([map { @$_[1, 2] } @pairs]);
    for my $pair (@pairs) {
        my ($what, @jobs) = @$pair;
        my @took = map { $_->{out} =~ /^step ([0-9.]+) ms,/m ? $1 : 0 } @jobs;
        ok($took[1] > 0 && $took[1] < $took[0],
            "--overlap, $what: a step of $took[1] ms, not $took[0]")
            or diag(map { complain($_) } @jobs);
        my @costs = map {
            my ($job) = @_;
            my ($line) =
                grep { $_->{name} eq 'data-parallel buckets' } @{ $_->{page}{costs} || [] };
            $line
        } @jobs;
        ok(!$costs[0] && $costs[1] && $costs[1]{pass} && $costs[1]{measured} > 2,
            "--overlap, $what: in buckets");
    }
}

# ---- the log and the export ----
my @tiny =
    (qw(--layers 2 --width 16 --heads 2 --context 8 --batch 4 --micro-batch 2 --data), $text);
{
    my $job =
        emu(4, $train{fp32}, @tiny, qw(--steps 7 --eval-every 3 --lr 0.01 --log), "$work/log");
    run_jobs([$job]);
    is($job->{status}, 0, '--log: the run') or diag(complain($job));
    my @lines = map {
        eval { decode_json($_) }
    } split /\n/, slurp("$work/log");
    my @events = grep { $_->{event} } @lines;
    @lines = grep { !$_->{event} } @lines;
    is(
        join(' ', map { "$_->{event} $_->{step}" } @events),
        'eval 3 eval 6',
        '--log: an object for each evaluation'
    );
    is((scalar grep { $_->{eval_loss} > 0 && keys %$_ == 4 } @events),
        2, '--log: an evaluation has its held-out loss');
    is(scalar @lines, 8, '--log: an object per step, and an object at the end');
    my $end = pop @lines;
    my $fields = join ' ', sort qw(step loss grad_norm lr tokens seconds tokens_per_second run);
    is((scalar grep { join(' ', sort keys %$_) eq $fields } @lines),
        7, '--log: the fields of a step');
    is(join(' ', map { $_->{step} } @lines), '0 1 2 3 4 5 6', '--log: the steps');
    is(
        (
            scalar grep {
                $_->{tokens} == 4 * 8 && $_->{seconds} > 0 && $_->{loss} > 0 && $_->{grad_norm} > 0
            } @lines
        ),
        7,
        '--log: the values'
    );
    unlike(slurp("$work/log") =~ s/"run":"[0-9a-f]{16}"//gr,
        qr/(?<!"event"):"/, '--log: numbers are numbers');
    is(join(' ', sort keys %$end), 'eval_loss run', '--log: the end');
    ok(abs($end->{eval_loss} - $job->{page}{config}{eval_loss}) < 1e-6,
        '--log: the held-out loss is that of --json');
}

# ---- the JSON and the log when no option was given, or when a number is not finite ----
{
    my $default = emu(8, $train{fp32}, @tiny, qw(--steps 1));
    my $check = emu(4, $train{fp32}, @tiny, qw(--steps 1 --check --zero 2));
    my $lost = emu(4, $train{fp32}, @tiny, qw(--steps 3 --lr 1e30 --clip 0 --optimizer sgd --log),
        "$work/nan.log");
    run_jobs([$default, $check, $lost]);
    my $config = sub {
        join ' ', map { $_[0]{page}{config}{$_} // 'none' } qw(dp tp pp zero dropout);
    };
    is($config->($default), '2 2 2 0 0', '--json: degrees that were not given');
    is($config->($check), '1 2 2 2 0.1', '--json: the dropout of --check');
    unlike(
        encode_json($check->{page}{config}),
        qr/"(dp|tp|pp|zero|dropout)":"/,
        '--json: numbers are numbers'
    );
    is(
        $default->{page}{config}{eval_windows},
        int((1000 - 1) / 8),
        '--json: how many windows were held out'
    );
    my @lines = map {
        eval { decode_json($_) }
    } split /\n/, slurp("$work/nan.log");
    is(scalar @lines, 3, '--log: JSON also when a loss that is not finite ends the training');
    is((scalar grep { exists $_->{loss} && !defined $_->{loss} } @lines),
        1, '--log: null for a number that is not finite');
    is($lost->{status}, 1, 'a lost training does not pass');
}

# ---- an MPI library that adds in another order ----
SKIP: {
    skip 'no mpirun', 2 unless have_mpi;

    # A ring adds in an order that depends on the element.
    local $ENV{OMPI_MCA_coll_libnbc_iallreduce_algorithm} = 1;
    my @jobs = map {
        mpi(8, $train{fp32},
            qw(--dp 4 --tp 1 --pp 2 --layers 2 --steps 10 --context 16 --eval-every 0), @$_)
    } [], [qw(--check --optimizer sgd)];
    run_jobs(\@jobs, at_once => 1);
    ok(
        $_->{status} == 0
            && (grep { $_->{what} =~ /^copies within a replica/ } @{ $_->{page}{checks} }),
        'copies of a tensor in another place of the buffer are close'
        )
        or diag(complain($_))
        for @jobs;
}

# Returns the header (name => [dtype, shape, first byte, one past the last]), or dies with the
# mistake of the file.
sub safetensors {
    my ($file) = @_;
    my $all = slurp($file);
    my $length = unpack 'Q<', $all;
    die "the header's length is $length in a file of " . length($all) . " bytes\n"
        if 8 + $length > length $all;
    die "the data do not start at a multiple of 8\n" if $length % 8;
    my $header = decode_json(substr $all, 8, $length);
    delete $header->{__metadata__};
    my $end = 0;

    for my $name (
        sort { $header->{$a}{data_offsets}[0] <=> $header->{$b}{data_offsets}[0] }
        keys %$header
    ) {
        my ($first, $last) = @{ $header->{$name}{data_offsets} };
        die "$name starts at $first, not at $end\n" if $first != $end;
        my $bytes = $header->{$name}{dtype} eq 'F64' ? 8 : 4;
        $bytes *= $_ for @{ $header->{$name}{shape} };
        die "$name has " . ($last - $first) . " bytes, its shape has $bytes\n"
            if $last - $first != $bytes;
        $end = $last;
    }
    die 'the file has '
        . length($all)
        . ' bytes, the header ends at '
        . (8 + $length + $end) . "\n"
        if length($all) != 8 + $length + $end;
    return ($header, substr $all, 8 + $length);
}
{
    my @same = (@tiny, qw(--steps 1 --lr 0 --eval-every 0 --layers 2));
    my %layout = (
        '1x1x1' => [1],
        '2x2x2' => [8, qw(--dp 2 --tp 2 --pp 2 --zero 3)],
        '1x2x2' => [4, qw(--dp 1 --tp 2 --pp 2 --recompute full)],
        '4x1x1' => [4, qw(--dp 4 --zero 2)]
    );
    my (@jobs, %file);
    for my $layout (sort keys %layout) {
        my ($ranks, @options) = @{ $layout{$layout} };
        for my $precision ($layout eq '1x1x1' ? qw(fp32 fp64) : 'fp32') {
            my $file = $file{"$layout $precision"} = "$work/$layout.$precision";
            push @jobs, emu($ranks, $train{$precision}, @same, @options, '--export', $file);
        }
    }
    run_jobs(\@jobs);
    is($_->{status}, 0, "--export: the run $_->{words}[2]") or diag(complain($_)) for @jobs;
    my $W = 16;
    my %want = (
        'wte.weight' => [256, $W],
        'wpe.weight' => [8, $W],
        'ln_f.weight' => [$W],
        'ln_f.bias' => [$W]
    );
    for my $block (map { "h.$_" } 0, 1) {
        $want{"$block.$_.weight"} = $want{"$block.$_.bias"} = [$W] for qw(ln_1 ln_2);
        my %linear = (
            'attn.c_attn' => [$W, 3 * $W],
            'attn.c_proj' => [$W, $W],
            'mlp.c_fc' => [$W, 4 * $W],
            'mlp.c_proj' => [4 * $W, $W]
        );
        for my $name (keys %linear) {
            $want{"$block.$name.weight"} = $linear{$name};
            $want{"$block.$name.bias"} = [$linear{$name}[1]];
        }
    }
    for my $key (sort keys %file) {
        my ($header, $data) = eval { safetensors($file{$key}) };
        ok($header, "--export, $key: a safetensors file without gaps") or diag($@);
        is_deeply({ map { $_ => $header->{$_}{shape} } keys %$header },
            \%want, "--export, $key: the names and shapes of Hugging Face's GPT-2");
        my $type = $key =~ /fp64/ ? 'F64' : 'F32';
        is(
            (scalar grep { $_->{dtype} eq $type } values %$header),
            scalar keys %want,
            "--export, $key: $type"
        );
        is(
            (
                scalar grep { !($_ == $_ && abs $_ < 10) } unpack $type eq 'F64' ? 'd<*' : 'f<*',
                $data // ''
            ),
            0,
            "--export, $key: finite values"
        );
    }
    my $unsplit = slurp($file{'1x1x1 fp32'});
    ok($unsplit eq slurp($file{"$_ fp32"}), "--export: the same bytes from $_ as from one rank")
        for grep { $_ ne '1x1x1' } sort keys %layout;

    # Evaluation on the same weights: the sums are cut differently, the windows are the same.
    my @losses = map { $_->{page}{config}{eval_loss} // 'nan' } @jobs;
    is(
        (scalar grep { abs($_ - $losses[0]) < 1e-5 } @losses),
        scalar @losses,
        "--export: one held-out loss, @losses"
    );
    my ($narrow, $short) =
        map { emu(1, $train{fp32}, @tiny, qw(--steps 1), @$_, '--export', "$work/thin") }
        [qw(--width 1 --heads 1)], [qw(--context 1)];
    run_jobs([$narrow]);
    my ($header) = eval { safetensors("$work/thin") };
    is_deeply(
        [map { $header->{$_}{shape} } 'wpe.weight', 'h.0.attn.c_attn.weight', 'ln_f.bias'],
        [[8, 1], [1, 3], [1]],
        '--export: a matrix of one row is a matrix'
    );
    run_jobs([$short]);
    ($header) = eval { safetensors("$work/thin") };
    is_deeply(
        [map { $header->{$_}{shape} } 'wpe.weight', 'ln_f.bias'],
        [[1, 16], [16]],
        '--export: a table of one position is a table'
    );
    my $trained = emu(4, $train{fp32}, @tiny, qw(--steps 2 --lr 0.01 --export), "$work/trained");
    run_jobs([$trained]);
    ok(
        $trained->{status} == 0
            && length slurp("$work/trained")
            && $unsplit ne slurp("$work/trained"),
        '--export: other bytes after training'
    );
}

# ---- dropout that empties whole rows: the next norm magnifies rounding ----
{
    my @narrow = qw(--check --dp 1 --tp 5 --pp 1 --zero 3 --layers 2 --width 5 --heads 5 --context 7
        --batch 1 --steps 4 --eval-every 0 --dropout);
    my @jobs = map { emu(5, $train{fp32}, @narrow, @$_) } map { [0.9, '--seed', $_] } 1 .. 12,
        815593;
    my ($wide, $double) = (
        emu(5, $train{fp32}, @narrow, qw(0.9 --width 60 --heads 6)),
        emu(5, $train{fp64}, @narrow, 0.9)
    );
    run_jobs([@jobs, $wide, $double]);
    is((scalar grep { $_->{status} == 0 } @jobs), scalar @jobs, 'strong dropout in a narrow model')
        or diag(map { complain($_) } grep { $_->{status} } @jobs);
    my ($limit, $of_wide, $of_double) = map {
        my ($check) = grep { $_->{name} =~ /28 tensors/ } @{ $_->{page}{checks} };
        $check->{limit}
    } $jobs[0], $wide, $double;
    ok(
        abs($limit - 1e-5 * 0.9**5 / sqrt(1e-5)) < 1e-8 && $of_wide == 1e-5 && $of_double == 1e-10,
        "a narrow model has its own limit, $limit; a wide model $of_wide, in double $of_double"
    );
}

# ---- few columns: a norm magnifies rounding in some random rows ----
{
    my @narrow = (
        [
            4,
            qw(--dp 1 --tp 2 --pp 2 --layers 4 --heads 2 --width 4 --context 5 --micro-batch 3
                --batch 3 --clip 0.01 --dropout 0 --seed 814745)
        ],
        [
            8,
            qw(--dp 2 --tp 2 --pp 2 --layers 3 --heads 2 --width 4 --context 18 --micro-batch
                2 --batch 10 --optimizer sgd --lr 0.1 --seed 439912)
        ],
        [
            9,
            qw(--dp 1 --tp 3 --pp 3 --layers 4 --heads 3 --width 3 --context 20
                --micro-batch 2 --batch 2 --clip 0.01 --zero 3 --optimizer sgd --lr 0.1 --dropout 0
                --sequence-parallel --seed 254282)
        ],
        [
            2,
            qw(--tp 2 --pp 1 --layers 5 --heads 2 --width 4 --context 17 --micro-batch 1
                --batch 3 --schedule zero-bubble --activation-budget 300000 --clip 0.01)
        ],
        map {
            [
                2, qw(--tp 2 --pp 1 --layers 1 --context 5 --batch 2 --heads),
                $_->[0], '--width', $_->[1]
            ]
        } [5, 5],
        [2, 6],
        [7, 7],
        [1, 1]
    );
    $narrow[-1] =
        [2, qw(--tp 1 --pp 2 --layers 2 --context 5 --batch 2 --heads 1 --width 1 --dropout 0)];
    my @jobs = map {
        my ($ranks, @options) = @$_;
        emu($ranks, $train{fp32}, @options, qw(--check --steps 3 --eval-every 0 --data), $text)
    } @narrow;
    my @two = map {
        emu(2, $train{$_},
            qw(--tp 1 --pp 2 --layers 2 --heads 1 --width 2 --steps 1 --check --data), $text)
    } qw(fp32 fp64);
    my $unchecked =
        emu(2, $train{fp32}, qw(--tp 1 --pp 2 --layers 2 --heads 1 --width 2 --steps 1 --data),
        $text);
    run_jobs([@jobs, @two, $unchecked]);
    is($_->{status}, 0, 'a narrow model: ' . ("@{ $_->{words} }" =~ /(--width \d+)/)[0])
        or diag(complain($_))
        for @jobs;
    my @limits = map {
        my ($check) = grep { $_->{what} =~ /^3D = unsplit/ } @{ $_->{page}{checks} };
        sprintf '%.1e', $check->{limit} // 0
    } @jobs[0, 2, 4 .. 7];
    is(
        "@limits",
        '1.0e-04 3.2e-04 3.2e-05 1.6e-05 1.0e-05 1.0e-05',
        'the limits of 4, 3, 5, 6, 7 columns and of one column'
    );
    ok(
        $_->{status} == 2
            && $_->{err} =~
            /a norm of --width 2 lets through is mostly rounding: choose --width 3 or more/,
        'two columns: --check is refused'
        )
        or diag(complain($_))
        for @two;
    my ($grid, $wider) = map {
        emu(
            4,
            $train{fp32},
            qw(--dp 1 --tp 4 --pp 1 --tensor 2d --layers 1 --context 5 --heads 2 --steps 1
                --check --data),
            $text,
            '--width',
            $_
        )
    } 6, 8;
    run_jobs([$grid, $wider]);
    ok(
        $grid->{status} == 2
            && $grid->{err} =~
            /with --tensor 2d the norm of --width 6 adds too much rounding to judge: choose --width 8/,
        'few columns on a grid: refused'
    ) or diag(complain($grid));
    is($wider->{status}, 0, 'eight columns on a grid are accepted') or diag(complain($wider));
    is($unchecked->{status}, 0, 'two columns: a training without --check is accepted')
        or diag(complain($unchecked));
}

# ---- the loss falls ----
sub learns {
    my ($what, $share, $job) = @_;
    run_jobs([$job]);
    my ($loss, $entropy) = @{ $job->{page}{config} || {} }{qw(eval_loss byte_entropy)};
    is($job->{page}{config}{eval_windows}, 256, "$what: at most 256 windows");
    ok(
        $job->{status} == 0 && $entropy > 2 && $loss > 0.5 && $loss <= $share * $entropy,
        sprintf '%s: held-out loss %.3f, at most %.1f of %.3f',
        $what,
        $loss // 'nan',
        $share,
        $entropy // 'nan'
    ) or diag(complain($job));
    note(sprintf '%.0f s', $job->{seconds});
}
my $start = have_mpi ? \&mpi : \&emu;
learns('30 steps of the default run',
    1, $start->(8, $train{fp32}, qw(--steps 30 --warmup 5 --eval-every 0)));
SKIP: {
    skip 'the whole default run, and that of make run: TEST_ALL=1', 4 unless $all;
    learns('the default run', 0.8, $start->(8, $train{fp32}));
    my ($small, $steps) = slurp('tools/run-lesson') =~ /^small="(.*)"\nsteps=(\d+)$/m
        or die 'no options in tools/run-lesson';
    learns('the training of make run',
        0.65, $start->(8, $train{fp32}, split(' ', $small), '--steps', $steps));
}

# ---- the whole cross product, in an order whose beginning is a fair sample ----
SKIP: {
    skip 'the whole cross product: TEST_ALL=1', 1 unless $all;
    srand 1;
    my @product;
    for my $mesh (@factorisations) {
        for my $combination (@combinations) {
            push @product,
                row(
                $mesh, $combination,
                steps => 4,
                precision => $_,
                adamw => $_ eq 'fp64' && @product % 3 == 0,
                overlap => @product % 2
                ) for qw(fp32 fp64);
        }
    }
    my $limit = $ENV{TRAIN_SECONDS} || 900;
    my @ran = run_jobs([shuffle @product], until => time + $limit);
    my @bad = grep { !holds($_) } @ran;
    is(scalar @bad, 0, sprintf 'the cross product: %d of %d runs in %d seconds',
        scalar @ran, scalar @product, $limit);
    diag(name($_), "\n", complain($_)) for @bad > 5 ? @bad[0 .. 4] : @bad;
    push @table, '',
        sprintf 'Cross product, 4 steps: %d of %d runs; largest error fp32 %.1e, fp64 %.1e.',
        scalar @ran, scalar @product, map {
        my $precision = $_;
        max 0, map { worst($_, 'error') } grep { $_->{how} =~ /$precision/ } @ran
        } qw(fp32 fp64);
    note($table[-1]);
}

if ($ENV{TRAIN_MATRIX}) {
    open my $f, '>', $ENV{TRAIN_MATRIX} or die "$ENV{TRAIN_MATRIX}: $!";
    print $f map { "$_\n" } @table;
    close $f or die "$ENV{TRAIN_MATRIX}: $!";
}

# With 3 columns the ranks of a cube have 2 and 1 columns. So ZeRO cuts the copies of a vector at
# different elements.
my $cube = emu(
    16, $train{fp32},
    qw(--dp 2 --tp 8 --pp 1 --tensor 3d --heads 3 --width 3 --layers 1 --context 8 --batch 8),
    qw(--zero 3 --reduce ordered --steps 1 --warmup 0 --eval-every 0)
);
run_jobs([$cube]);
is($cube->{status}, 0, 'a cube with unequal parts, under ZeRO-3') or diag(complain($cube));
done_testing();
