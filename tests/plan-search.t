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

# Checks a search. Layouts that fit come first, the fastest first. A layout derived alone gives the same numbers.
# Files and refusals are checked, too.
my $gpus = $all ? 1024 : 128;
my ($search, $alone, $none, $wrong, $large, $ring, $positions, $thirds) = run_jobs([
    emu(1, $plan, qw(--model llama2-7b --gpus 16 --layouts), "$work/layouts", '--svg', "$work/plan.svg"),
    emu(1, $plan, qw(--model llama2-7b --gpus 16 --zero 3 --recompute full --micro-batch 2 --explain), '16,1,1'),
    emu(1, $plan, qw(--model ptdp-1t --gpus 8)), emu(1, $plan, '--explain', '3,8,8'), emu(1, $plan, qw(--model ptdp-1t --gpus 3072)),
    emu(1, $plan, qw(--model llama2-7b --gpus 16 --sequence-parallel yes --explain), '4,2,1,2'), emu(1, $plan, qw(--gpus 5000 --explain), '1,1,1,5000'),
    emu(1, $plan, qw(--node 3 --gpus), $gpus)]);
is($search->{status}, 0, 'a search') or diag(complain($search));
require JSON::PP;
my @layouts = map { JSON::PP::decode_json($_) } split /\n/, slurp("$work/layouts");
my @fit = grep { $_->{fits} } @layouts;
ok(@fit > 10 && @fit < @layouts, 'some layouts fit, some do not');
is_deeply([map { $_->{step} } @fit], [sort { $a <=> $b } map { $_->{step} } @fit], 'the fastest first');
is_deeply([map { $_->{fits} ? 1 : 0 } @layouts], [(1) x @fit, (0) x (@layouts - @fit)], 'layouts that do not fit come last');
ok(!(grep { !$_->{limit} } @layouts[@fit .. $#layouts]), 'and has its reason');
my ($same) = grep { $_->{dp} == 16 && $_->{zero} == 3 && $_->{recompute} eq 'full' && $_->{micro_batch} == 2 } @layouts;
is(sprintf('%.6g', $same->{step}), sprintf('%.6g', $alone->{page}{config}{step} * 1e-12), 'one of them, derived alone');
my ($with_ring) = grep { $_->{dp} == 4 && $_->{tp} == 2 && $_->{cp} == 2 && $_->{zero} == 0 && $_->{sequence} && $_->{recompute} eq 'none' && $_->{micro_batch} == 1 } @layouts;
is(sprintf('%.6g', $with_ring->{step}), sprintf('%.6g', $ring->{page}{config}{step} * 1e-12), 'one with a ring, too');
like($ring->{out}, qr/Ring attention in a block: 2048 of 4096 positions/, 'the page explains the ring');
like($search->{page}{config}{reason}, qr/^dp \d+ x tp \d+ x pp \d+.* is the fastest that fits: .*takes [\d.]+ times as long \(.*\)\.$/, 'why it is the best, in a sentence');
like($positions->{err} // $positions->{out}, qr/2048 positions for 5000/, 'more ranks than positions');
like(slurp("$work/plan.svg"), qr/<svg.*Pareto front.*class="front" d="M.*<\/svg>/s, 'the picture');
like($none->{out}, qr/Nothing fits/, 'a model that is too large');
is($wrong->{status}, 2, 'a product that is not the number of GPUs is refused');
is($large->{status}, 0, '3,072 GPUs') or diag(complain($large));
# Nodes cut most groups. Replicas and stages with the same links are played once.
is($thirds->{status}, 0, '--node 3') or diag(complain($thirds));
my $best = $thirds->{page}{config};
my @best = map { $best->{$_} } qw(best_dp best_tp best_pp best_cp);
ok($best->{fits} eq 'yes' && $best[0] * $best[1] * $best[2] * $best[3] == $gpus, "--node 3 finds a layout: @best");

# A search that prunes prints the same page as a search that plays every layout.
my @tasks = ([qw(--model llama2-7b --gpus 16)], [qw(--model ptdp-3.6b --gpus 24 --node 3)],
             [qw(--model ptdp-18b --gpus 64 --memory 40)], [qw(--model llama2-7b --gpus 32 --precision fp32 --attention plain)]);
my @pages = run_jobs([map { emu(1, $plan, @$_), emu(1, $plan, @$_, "--layouts", "$work/all") } @tasks]);
for my $task (@tasks) {
    my @page = map { $_->{out} } splice @pages, 0, 2;
    my ($pruned) = $page[0] =~ /Of (\d+) layouts, \d+ were simulated;/;
    my ($all_of_them) = $page[1] =~ /Of (\d+) layouts, \1 were simulated\./;
    is($pruned, $all_of_them, "some layouts are pruned: @$task");
    s/^Of \d+ layouts.*?(?=^If)|[\d.]+ s$//gms for @page;
    is($page[0], $page[1], 'and the rest of the page is the same');
}

# A number's unit is in its name or beside it.
is($search->{page}{config}{step_s}, $search->{page}{config}{step} * 1e-12, 'step_s');
is($search->{page}{config}{memory_bytes}, $search->{page}{config}{memory}, 'memory_bytes');
is_deeply($layouts[0]{units}, { time => 's', memory => 'bytes', traffic => 'bytes' }, 'the units of a layout');

# A refusal names the wrong number, and comes before the search.
for my $case (
    ['--efficiency 2', qr/--efficiency 2: a share of the peak is above 0 and at most 1; without the option 0\.76/],
    ['--efficiency 0', qr/--efficiency.* must be above 0/],
    ["--layouts $work/no/folder", qr/--layouts \S+folder: cannot write it: No such file/],
    ["--json $work/no/folder", qr/--json \S+folder: cannot write it: No such file/],
    ["--svg $work/no/folder", qr/--svg \S+folder: cannot write it: No such file/],
    ['--gpus 7', qr/7 GPUs need the factor 7 in 96 heads \(--tp\), 96 blocks \(--pp\), 1536 sequences \(--dp\), 1024 pairs of positions \(--cp\): none of them divides by 7/],
    ['--gpus 14 --tp 2', qr/14 GPUs, with the degrees that are given, need the factor 7 in 96 blocks \(--pp\)/],
    ['--gpus 1024 --layers 1 --heads 4 --width 64 --batch 2 --cp 1', qr/need the factor 1024 in 4 heads \(--tp\), 1 blocks \(--pp\), 2 sequences \(--dp\): together they have the factor 8;/],
    ['--model llama-70b', qr/--model llama-70b: choose --model llama2-70b, with its own block/],
    ['--model llama2-70b --gpus 16 --tp 16', qr/8 heads of key and value do not divide by --tp 16/],
    ['--model llama2-70b --gpus 16 --explain 1,16,1', qr/the model has 8 heads of key and value, so tp is at most 8/],
    ['--gpus 20 --tp 5', qr/96 heads do not divide by --tp 5/],
    ['--gpus 20 --pp 5', qr/96 blocks do not divide by --pp 5/],
    ['--gpus 16 --tp 3', qr/16 GPUs do not divide by the degrees that are given, --tp 3/],
    ['--gpus 16 --tp 2 --pp 2 --dp 2 --cp 1', qr/--dp x --tp x --pp x --cp is 8, and there are 16 GPUs/],
    ['--gpus 16 --micro-batch 3', qr/--micro-batch 3: 1, 2, 4 and 8 are tried/],
    ['--gpus 16 --chunks 5', qr/--chunks 5: up to 4 are tried/],
    ['--gpus 256 --dp 1 --pp 1', qr/--tp up to 64 is tried, and --cp up to 16 where a chunk has 256 positions/],
) {
    my ($options, $words) = @$case;
    my ($job) = run_jobs([{ words => ['tools/launch', '-e', 1, $plan, split ' ', $options] }]);        # --json is the case's own
    ok($job->{status} == 2 && $job->{err} =~ $words, "$options: refused") or diag(complain($job));
}
is((run_jobs([emu(1, $plan, qw(--gpus 8 --model ptdp-1.7b --efficiency 1))]))[0]{status}, 0, '--efficiency 1 is all of the peak');
done_testing();
