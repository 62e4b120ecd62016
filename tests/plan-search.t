#!/usr/bin/perl
# Tests the search of 08_3d/plan: the order of its list, its files, the layouts that it prunes, and
# the options that it refuses.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $plan = program_of('fp32', '08_3d/plan.c');
plan skip_all => "$plan is not built" unless -x $plan;

# Layouts that fit must come first, and the fastest layout must be the first of them. --explain must
# give a layout the numbers that the list has.
my $gpus = $all ? 1024 : 128;
my ($search, $alone, $none, $wrong, $large, $ring, $positions, $thirds) = run_jobs(
    [
        emu(
            1, $plan, qw(--model llama2-7b --gpus 16 --layouts),
            "$work/layouts", '--svg', "$work/plan.svg"
        ),
        emu(
            1, $plan,
            qw(--model llama2-7b --gpus 16 --zero 3 --recompute full --micro-batch 2 --explain),
            '16,1,1'
        ),
        emu(1, $plan, qw(--model ptdp-1t --gpus 8)),
        emu(1, $plan, '--explain', '3,8,8'),
        emu(1, $plan, qw(--model ptdp-1t --gpus 3072)),
        emu(1, $plan, qw(--model llama2-7b --gpus 16 --sequence-parallel yes --explain), '4,2,1,2'),
        emu(1, $plan, qw(--gpus 5000 --explain), '1,1,1,5000'),
        emu(1, $plan, qw(--node 3 --gpus), $gpus)
    ]
);
is($search->{status}, 0, 'a search') or diag(complain($search));
require JSON::PP;
my @layouts = map { JSON::PP::decode_json($_) } split /\n/, slurp("$work/layouts");
my @fit = grep { $_->{fits} } @layouts;
ok(@fit > 10 && @fit < @layouts, 'some layouts fit, some do not');
is_deeply(
    [map { $_->{step} } @fit],
    [sort { $a <=> $b } map { $_->{step} } @fit],
    'the fastest layout comes first'
);
is_deeply(
    [map { $_->{fits} ? 1 : 0 } @layouts],
    [(1) x @fit, (0) x (@layouts - @fit)],
    'layouts that do not fit come last'
);
ok(
    !(grep { !$_->{limit} } @layouts[@fit .. $#layouts]),
    'a layout that does not fit has its reason'
);
my ($same) = grep {
           $_->{dp} == 16
        && $_->{zero} == 3
        && $_->{recompute} eq 'full'
        && $_->{micro_batch} == 2
} @layouts;
is(
    sprintf('%.6g', $same->{step}),
    sprintf('%.6g', $alone->{page}{config}{step} * 1e-12),
    'a layout of the list has the step of --explain'
);
my ($with_ring) = grep {
           $_->{dp} == 4
        && $_->{tp} == 2
        && $_->{cp} == 2
        && $_->{zero} == 0
        && $_->{sequence}
        && $_->{recompute} eq 'none'
        && $_->{micro_batch} == 1
} @layouts;
is(
    sprintf('%.6g', $with_ring->{step}),
    sprintf('%.6g', $ring->{page}{config}{step} * 1e-12),
    'a layout of the list with a ring has the step of --explain'
);
like(
    $ring->{out},
    qr/Ring attention in a block: 2048 of 4096 positions/,
    'the page explains the ring'
);
like(
    $search->{page}{config}{reason},
    qr/^dp \d+ x tp \d+ x pp \d+.* is the fastest that fits: .*takes [\d.]+ times as long \(.*\)\.$/,
    'a sentence says why the best layout is the best'
);
like(
    $positions->{err} // $positions->{out},
    qr/2048 positions for 5000/,
    'a message refuses more ranks than positions'
);
like(slurp("$work/plan.svg"), qr/<svg.*Pareto front.*class="front" d="M.*<\/svg>/s, 'the picture');
like($none->{out}, qr/Nothing fits/, 'the page says that a model is too large');
is($wrong->{status}, 2, 'a product that is not the number of GPUs is refused');
is($large->{status}, 0, '3,072 GPUs') or diag(complain($large));

# Nodes of 3 GPUs cut most groups of ranks.
is($thirds->{status}, 0, '--node 3') or diag(complain($thirds));
my $best = $thirds->{page}{config};
my @best = map { $best->{$_} } qw(best_dp best_tp best_pp best_cp);
ok($best->{fits} eq 'yes' && $best[0] * $best[1] * $best[2] * $best[3] == $gpus,
    "--node 3 finds a layout: @best");

# A search that prunes must print the page of a search that plays every layout, apart from the
# number of played layouts and the times.
my @tasks = (
    [qw(--model llama2-7b --gpus 16)],
    [qw(--model ptdp-3.6b --gpus 24 --node 3)],
    [qw(--model ptdp-18b --gpus 64 --memory 40)],
    [qw(--model llama2-7b --gpus 32 --precision fp32 --attention plain)]
);
my @pages =
    run_jobs([map { emu(1, $plan, @$_), emu(1, $plan, @$_, "--layouts", "$work/all") } @tasks]);
for my $task (@tasks) {
    my @page = map { $_->{out} } splice @pages, 0, 2;
    my ($pruned) = $page[0] =~ /Of (\d+) layouts, \d+ were simulated;/;
    my ($all_of_them) = $page[1] =~ /Of (\d+) layouts, \1 were simulated\./;
    is($pruned, $all_of_them, "some layouts are pruned: @$task");
    s/^Of \d+ layouts.*?(?=^The fastest)|[\d.]+ s$//gms for @page;
    is($page[0], $page[1], "a search that prunes prints the same page: @$task");
}

is($search->{page}{config}{step_s}, $search->{page}{config}{step} * 1e-12, 'step_s');
is($search->{page}{config}{memory_bytes}, $search->{page}{config}{memory}, 'memory_bytes');
is_deeply(
    $layouts[0]{units},
    { time => 's', memory => 'bytes', traffic => 'bytes' },
    'the units of a layout'
);

# The message must name the wrong option.
for my $case (
    [
        '--efficiency 2',
        qr/--efficiency 2: a share of the peak is above 0 and at most 1; without the option 0\.82/
    ],
    ['--efficiency 0', qr/--efficiency.* must be above 0/],
    ["--layouts $work/no/folder", qr/--layouts \S+folder: cannot write it: No such file/],
    ["--json $work/no/folder", qr/--json \S+folder: cannot write it: No such file/],
    ["--svg $work/no/folder", qr/--svg \S+folder: cannot write it: No such file/],
    [
        '--gpus 101',
        qr/101 GPUs need the factor 101 in 96 heads \(--tp\), up to 96 blocks \(--pp\), 1536 sequences \(--dp\), 1024 pairs of positions \(--cp\): none of them divides by 101/
    ],
    [
        '--gpus 1023',
        qr/1023 GPUs need --pp 341, because the other free degrees cannot take its factors, and there are 96 blocks/
    ],
    [
        '--gpus 202 --tp 2',
        qr/202 GPUs, with the degrees that are given, need the factor 101 in up to 96 blocks \(--pp\)/
    ],
    [
        '--gpus 1024 --layers 1 --heads 4 --width 64 --batch 2 --cp 1',
        qr/need the factor 1024 in 4 heads \(--tp\), up to 1 blocks \(--pp\), 2 sequences \(--dp\): together they have the factor 8;/
    ],
    ['--model llama-70b', qr/--model llama-70b: choose --model llama2-70b, with its own block/],
    ['--model llama2-70b --gpus 16 --tp 16', qr/8 heads of key and value do not divide by --tp 16/],
    [
        '--model llama2-70b --gpus 16 --explain 1,16,1',
        qr/the model has 8 heads of key and value, so tp is at most 8/
    ],
    ['--gpus 20 --tp 5', qr/96 heads do not divide by --tp 5/],
    ['--gpus 97 --pp 97', qr/--pp 97: there are 96 blocks/],
    ['--gpus 16 --tp 3', qr/16 GPUs do not divide by the degrees that are given, --tp 3/],
    [
        '--gpus 16 --tp 2 --pp 2 --dp 2 --cp 1',
        qr/--dp x --tp x --pp x --cp is 8, and there are 16 GPUs/
    ],
    ['--gpus 16 --micro-batch 3', qr/--micro-batch 3: the search tries 1, 2, 4 and 8/],
    [
        '--gpus 16 --chunks 5',
        qr/--chunks 5: with --pp above 1 the search tries the numbers that divide the blocks of the largest stage/
    ],
    [
        '--gpus 8 --images 2',
        qr/--images 2: gpt3-175b has no vision tower; choose --model qwen2vl-7b/
    ],
    [
        '--gpus 256 --dp 1 --pp 1',
        qr/--tp up to 64 is tried, and --cp up to 16 where a chunk has 256 positions/
    ],
) {
    my ($options, $words) = @$case;
    my ($job) = run_jobs([{ words => ['tools/launch', '-e', 1, $plan, split ' ', $options] }])
        ;    # no emu(), which adds --json, because a case has --json
    ok($job->{status} == 2 && $job->{err} =~ $words, "$options: refused") or diag(complain($job));
}
is((run_jobs([emu(1, $plan, qw(--gpus 8 --model ptdp-1.7b --efficiency 1))]))[0]{status},
    0, '--efficiency 1 is all of the peak');
for my $case (['--rails 0', qr/--rails 0: expected a whole number from 1/],
    ['--overlap dp,xp', qr/--overlap dp,xp: expected none, or some of dp,tp,pieces,pp/]) {
    my ($job) = run_jobs(
        [emu(1, $plan, qw(--gpus 8 --model ptdp-1.7b --explain), '8,1,1', split ' ', $case->[0])]);
    ok($job->{status} == 2 && $job->{err} =~ $case->[1], "$case->[0]: refused")
        or diag(complain($job));
}

# The stages do not divide the blocks. The search makes parts of equal cost, as Llama 3 cuts 126
# blocks over 16 stages. With --balance cost a layout of --explain has such parts, too.
my @llama = qw(--model llama3-405b --cluster dgx-h100 --gpus 2048 --batch 512 --dp 16 --tp 8 --pp 16
    --zero 1 --micro-batch 1 --chunks 1 --recompute none --memory 200);
my ($uneven, $same_uneven, @balance) = run_jobs(
    [
        emu(1, $plan, @llama),
        emu(1, $plan, @llama, qw(--sequence-parallel yes --balance cost --explain), '16,8,16'),
        map {
            emu(1, $plan, qw(--model llama3-8b --cluster dgx-h100 --gpus 32 --batch 256 --explain),
                '4,2,4', qw(--zero 1 --balance), $_)
        } qw(cost blocks)
    ]
);
like(
    $uneven->{out},
    qr/7 blocks in the\s+first part, 7 in the last, up to 8 in others/,
    'parts of 7, 8, ... 8 and 7 blocks'
) or diag(complain($uneven));
is(
    $uneven->{page}{config}{step},
    $same_uneven->{page}{config}{step},
    'parts of 7, 8, ... 8 and 7 blocks: --explain gives the same step'
) or diag(complain($same_uneven));

# The head of llama3-8b has as many weights as 2.4 blocks.
cmp_ok(
    $balance[1]{page}{config}{step},
    '>',
    1.05 * $balance[0]{page}{config}{step},
    'parts of equal blocks are slower'
) or diag(map { complain($_) } @balance);

# The vision tower must match its closed form. The tower has blocks of 24 C^2 FLOPs per patch, and
# attention of all patches of an image to each other. The tower also has a patch embedding whose
# input has no gradient, and a merger of four patches.
my @tower = (
    qw(--cluster lesson --precision fp32 --attention plain --gpus 1 --batch 1 --explain), '1,1,1'
);
my ($seeing, $blind, $language, @towers) = run_jobs(
    [
        emu(1, $plan, qw(--model qwen2vl-7b), @tower),
        emu(1, $plan, qw(--model qwen2vl-7b --images 0), @tower),
        emu(1, $plan, qw(--model qwen2-7b), @tower),
        map {
            emu(1, $plan, qw(--model qwen2vl-7b --gpus 64 --explain),
                '8,2,4', qw(--zero 1 --balance), $_)
        } qw(cost blocks)
    ]
);
my ($C, $T, $images, $merged, $wide) = (1280, 64 * 64, 2, 4 * 1280, 3584);
my $rows = $images * $T;
my $blocks = 32 * (24 * $rows * $C**2 + 4 * $images * $T**2 * $C);
my $merger = 2 * $rows / 4 * ($merged**2 + $merged * $wide);
my $flops = 3 * $blocks + 2 * 2 * $rows * 1176 * $C + 3 * $merger;
my ($with, $without, $text) = map { $_->{page}{config} } $seeing, $blind, $language;
cmp_ok(abs(($with->{step} - $without->{step}) / ($flops * 1e3) - 1),
    '<', 1e-9, 'the time of a vision tower')
    or diag(complain($seeing));
my $ends = 1176 * $C + 2 * $C;
my $mlp = $merged**2 + $merged + $merged * $wide + $wide;
my $tower = 32 * (12 * $C**2 + 13 * $C) + $ends + $mlp;
is($with->{parameters} - $without->{parameters}, 4 * $tower, 'the weights of a vision tower');
is_deeply(
    [@$without{qw(step parameters memory)}],
    [@$text{qw(step parameters memory)}],
    'without images the plan is that of the language model alone'
);
like(
    $towers[0]{out},
    qr/the stage     3 blocks, embedding, .*of it         the vision tower +0\.3388 billion/s,
    'the first stage has fewer blocks, and the tower'
) or diag(complain($towers[0]));
cmp_ok(
    $towers[1]{page}{config}{step},
    '>',
    1.1 * $towers[0]{page}{config}{step},
    'equal blocks behind a tower are slower'
) or diag(map { complain($_) } @towers);

# The page must give reasons: the neighbouring layouts that are slower or do not fit, the item that
# breaks first, and the price.
my ($why) =
    run_jobs([emu(1, $plan, qw(--verbose --model llama2-13b --gpus 64 --price-per-gpu-hour 2.5))]);
my $config = $why->{page}{config};
like(
    $why->{out},
    qr/all else as it is +(?:[\d.]+|does not fit) .*What slows this layout most:.*links between nodes at half their rate +[\d.]+\s.* GB\s+free\./s,
    'the page names neighbours, and what breaks first'
) or diag(complain($why));
is($config->{price_per_day}, 64 * 24 * 2.5, 'the price of a day');
my $tokens = 86400 / $config->{step_s} * 1024 * 4096;
cmp_ok(abs($config->{price_per_billion_tokens} / ($config->{price_per_day} / $tokens * 1e9) - 1),
    '<', 1e-6, 'the price of a billion tokens');

# If nothing fits, the page gives advice, and the memory and the number of GPUs that it names must
# suffice.
my ($memory, $more, $degrees) =
    $none->{out} =~ /Try: --memory (\d+), --gpus (\d+) \(dp (\d+ x tp \d+ x pp \d+), ZeRO 3\)/;
ok($memory && $more, 'the page advises what to try') or diag(complain($none));
my @degrees = $degrees =~ /\d+/g;
my ($roomy, $many, $few) = run_jobs(
    [
        emu(1, $plan, qw(--model ptdp-1t --gpus 8 --memory), $memory),
        map {
            my $dp = $degrees[0] / $_;
            emu(1, $plan,
                qw(--model ptdp-1t --zero 3 --recompute full --sequence-parallel yes --gpus),
                $more / $_, '--explain', "$dp,$degrees[1],$degrees[2]")
        } 1,
        2
    ]
);
is($roomy->{page}{config}{fits}, 'yes', 'the advised memory is enough') or diag(complain($roomy));
is(
    "$many->{page}{config}{fits} $few->{page}{config}{fits}",
    'yes no',
    'the advised number of GPUs is enough, and half of the number is not'
) or diag(complain($many));

# --papers prints a row for each published step, and the errors of the rows outside the fit.
my ($papers) =
    run_jobs(
    [emu(1, $plan, qw(--gpus 1 --model ptdp-1.7b --explain), '1,1,1', qw(--papers --verbose))]);
my @row = $papers->{out} =~ /^  (\S.*? +[AH]100 .*%  (?:fit|held out))$/mg;
my @held = map { /([+-][\d.]+) %  held out/ ? abs $1 : () } @row;
is(scalar @row, 35, 'rows of published steps');
is(scalar @held, 17, 'every other row of a GPU is held out');
my @other = map { /([+-][\d.]+) %  other system/ ? abs $1 : () } split /\n/, $papers->{out};
is(scalar @other, 23, 'rows of other systems');
my $mean_of_others = eval { my $sum = 0; $sum += $_ for @other; $sum / @other };
cmp_ok(abs($mean_of_others - 100 * $papers->{page}{config}{other_systems_mean}),
    '<', 0.1, 'the mean error of other systems');
my @errors = $papers->{out} =~ /([+-][\d.]+) %  (?:fit|held out|other system)$/mg;
my ($table) = slurp('08_3d/reference.md') =~ /\| rows \| GPU \| how long.*?\n\n/s ? $& : '';
$table =~ s/\xe2\x88\x92/-/g;    # the minus sign
my @listed = $table =~ /(?<= )([+-]?\d+\.\d)(?=[,; ])/g;
is_deeply(
    [sort { $a <=> $b } map { $_ + 0 } @listed],
    [sort { $a <=> $b } map { $_ + 0 } @errors],
    'the reference page lists the errors of all rows'
);
is(scalar(() = $papers->{out} =~ /not counted$/mg), 6, 'rows that are not counted');
my ($expected) = $papers->{out} =~ s/\s+/ /gr =~ /(Published steps of .*?took longer)/;
is(
    $expected,
    sprintf(
        'Published steps of Megatron-LM and Llama 3 differ from the plan by %.1f %% on average (17 steps,'
            . ' worst %.1f %%), those of other systems by %.1f %% (23 steps, worst %.1f %%;'
            . ' 18 took longer',
        map { 100 * $papers->{page}{config}{$_} }
            qw(held_out_mean held_out_worst other_systems_mean other_systems_worst)
    ),
    'the page says which error to expect'
);
my ($mean, $worst) =
    (eval { my $sum = 0; $sum += $_ for @held; $sum / @held }, (sort { $b <=> $a } @held)[0]);
cmp_ok(abs($mean - 100 * $papers->{page}{config}{held_out_mean}),
    '<', 0.1, 'the mean error of the rows held out');
ok($mean <= 7 && $worst <= 12, sprintf 'mean %.1f %%, worst %.1f %%', $mean, $worst);

for my $rows (['held out', 'held_out'], ['other systems', 'other_systems']) {
    my ($words, $name) = @$rows;
    my $said = sprintf 'mean error %.1f %%, worst %.1f %%',
        map { 100 * $papers->{page}{config}{"${name}_$_"} } qw(mean worst);
    my $page = slurp('08_3d/reference.md') =~ s/\s+/ /gr;
    ok($page =~ /$words: \Q$said\E/, "the reference page says: $words: $said");
}

# Collectives over two nodes of four ranks have closed forms for 1 network card per node, for 4
# cards and for the hierarchical form. The gradient is most of the bytes.
my @sum = (
    qw(--cluster lesson --precision fp32 --layers 4 --heads 4 --width 128 --context 16 --vocab
        256 --batch 8 --gpus 8 --dropout 0 --explain),
    '8,1,1'
);
my ($one, $four, $two_steps) = run_jobs(
    [
        emu(1, $plan, @sum, '--rails', 1),
        emu(1, $plan, @sum),
        emu(1, $plan, @sum, qw(--collectives hierarchical))
    ]
);
my $n = $one->{page}{config}{parameters} / 4;
my ($in, $out) = (400e6, 400e6 / 12);
my $ring_time = sub { my ($rate) = @_; return 14 * 250e-9 + 14 * 4 * $n / 8 / $rate };
my $hierarchical = 2 * (3 * 50e-9 + 3 * $n / $in) + 2 * (250e-9 + $n / 2 / $out);
my ($faster, $steps) =
    map { ($one->{page}{config}{step} - $_->{page}{config}{step}) * 1e-12 } $four, $two_steps;
cmp_ok(abs($faster / ($ring_time->($out) - $ring_time->(4 * $out)) - 1), '<', 0.02, 'four cards')
    or diag(complain($four));
cmp_ok(abs($steps / ($ring_time->($out) - $hierarchical) - 1),
    '<', 0.02, 'first inside the nodes, then between the nodes')
    or diag(complain($two_steps));

my @message = (qw(--gpus 64 --model ptdp-18b --micro-batch 1 --recompute full --explain), '2,8,4');
my ($plain, $scattered) =
    run_jobs([emu(1, $plan, @message), emu(1, $plan, @message, '--scatter-gather')]);
is(
    $scattered->{page}{config}{pp_bytes} * 8,
    $plain->{page}{config}{pp_bytes},
    'scattered messages have 1/tp of the bytes'
) or diag(complain($scattered));
cmp_ok(
    $scattered->{page}{config}{tp_bytes},
    '>',
    $plain->{page}{config}{tp_bytes},
    'scattered messages are gathered over tp'
);

# bytes per parameter of each format, without and with the distributed optimizer over 8 replicas
for my $format (['mixed', 16, 4 + 12 / 8], ['bf16', 18, 6 + 12 / 8], ['fp32', 16, 8 + 8 / 8]) {
    my ($name, @bytes) = @$format;
    for my $zero (0, 1) {
        my ($job) = run_jobs(
            [
                emu(
                    1, $plan, qw(--gpus 8 --model llama2-7b --batch 8 --zero),
                    $zero, qw(--explain), '8,1,1', qw(--precision), $name
                )
            ]
        );
        my $c = $job->{page}{config};
        my $each = ($c->{parameters} + $c->{gradients} + $c->{'optimizer state'}) / 6738415616;
        cmp_ok(abs($each / $bytes[$zero] - 1),
            '<', 1e-3, "$name, ZeRO $zero: $bytes[$zero] bytes per parameter")
            or diag("$each", complain($job));
    }
}
done_testing();
