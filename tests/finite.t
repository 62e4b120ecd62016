#!/usr/bin/perl
# Tests that a training with numbers that are not finite ends with status 1. The trainer must name
# the step and the rank, save nothing of that step, and say where to resume. With --skip-nonfinite
# the trainer must skip the step. Weights that are not finite must be refused.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $train = program_of('fp32', '08_3d/train.c');
my $sample = program_of('fp32', '08_3d/sample.c');
my $spoil = "build/cpu-fp32/tests/nan_product.so";

# The tree of a planted bug does not build sample, so the test also runs without sample.
-x $_ or plan skip_all => "$_ is not built" for $train, $spoil;
my $text = "$work/text.txt";
{
    open my $f, '>', $text or die;
    print $f substr slurp('build/text.txt'), 0, 10000;
    close $f
        or die
}
my @tiny = (
    qw(--layers 2 --width 16 --heads 2 --context 8 --batch 4 --micro-batch 2 --eval-every 0 --data),
    $text
);
my @lost = qw(--lr 1e30 --clip 0 --optimizer sgd);

sub run { my ($job) = @_; run_jobs([$job]); return $job }

sub lines {
    my ($log) = @_;
    return map { decode_json($_) } split /\n/, slurp($log);
}

sub saved {
    my ($dir) = @_;
    return join ' ', map { s{.*/}{}r } sort glob "$dir/step-*";
}

sub failed {
    my ($job) = @_;
    return join '; ', map { $_->{name} } grep { !$_->{pass} } @{ $job->{page}{checks} || [] };
}

# ---- the training ends: every ZeRO stage, stages of a pipeline, processes ----
my @layouts = (
    (map { [\&emu, 4, '--dp', 2, '--tp', 1, '--pp', 2, '--zero', $_] } 0 .. 3),
    [\&emu, 4, qw(--dp 1 --tp 2 --pp 2 --sequence-parallel)],
    [\&emu, 2, qw(--dp 1 --tp 1 --pp 1 --cp 2)],
    [\&emu, 4, qw(--dp 1 --tp 4 --pp 1 --tensor 2d)],
    [\&emu, 1, '--check'],
    have_mpi ? [\&mpi, 4, qw(--dp 2 --tp 1 --pp 2 --zero 2)] : ()
);
for my $i (0 .. $#layouts) {
    my ($start, $ranks, @layout) = @{ $layouts[$i] };
    my ($dir, $name) = ("$work/lost-$i", "$ranks ranks @layout");
    my $job = run(
        $start->(
            $ranks, $train, @tiny, @lost, @layout, qw(--steps 6 --save),
            $dir, '--save-every', 1, '--log', "$dir.log", '--svg', "$dir.svg"
        )
    );
    is($job->{status}, 1, "$name: a lost training ends with status 1") or diag(complain($job));
    like(
        failed($job),
        qr/^step \d+: the rank's part of the loss is finite$/,
        "$name: one check fails and names the step"
    );
    my ($step) = failed($job) =~ /(\d+)/;

    # Only a pipeline's last stage has the loss.
    my $first = $name =~ /--pp 2/ ? '[23]' : 0;
    like(
        $job->{out},
        qr/is finite: does not hold on \d of $ranks ranks, first on rank $first$/m,
        "$name: the check names the first rank"
    );
    like(
        $job->{out},
        qr/^step +$step   loss nan, gradient norm nan: the training ends here, and nothing of this step is saved\.$/m,
        "$name: the page names the cause"
    );
    is(
        saved($dir),
        join(' ', map { sprintf 'step-%06d', $_ } 1 .. $step // 0),
        "$name: only the steps before are saved"
    );
    my $go = sprintf 'Go on from the newest checkpoint, step-%06d, with --resume %s; ', $step // 0,
        $dir;
    like($job->{out}, qr/^\Q$go\E/m, "$name: the page names the checkpoint to resume from");
    my @lines = lines("$dir.log");
    @lines = grep { ($_->{event} // '') ne 'checkpoint' } @lines;
    is_deeply(
        [map { $_->{event} // $_->{step} } @lines],
        [0 .. $step // 0, 'lost'],
        "$name: the log ends with this step"
    );
    ok(!defined $lines[$step // 0]{loss}, "$name: the log has null as the loss of this step");
}
my $none = run(emu(2, $train, @tiny, @lost, qw(--steps 6)));
like(
    $none->{out},
    qr/^There is no checkpoint to go on from: start again/m,
    'without --save the page says that no checkpoint exists'
) or diag(complain($none));
is($none->{status}, 1, 'without --save a lost training ends with status 1');

# ---- an update that is not finite: the weights are not saved, not exported, and fail the run ----
for my $how ([qw(--save-every 1 --save), "$work/infinite"], ['--export', "$work/infinite.st"], []) {
    my $job = run(emu(2, $train, @tiny, qw(--lr 1e39 --warmup 0 --optimizer sgd --steps 2), @$how));
    is($job->{status}, 1, "an update that is not finite, @$how: status 1") or diag(complain($job));
    like(
        failed($job),
        $how->[0] && $how->[0] =~ /save/
        ? qr/^after update 1 the rank's weights are finite$/
        : qr/^step 1: the rank's part of the loss is finite$/,
        "an update that is not finite, @$how: the check gives the reason"
    );
}
is(saved("$work/infinite"), '', 'weights that are not finite are not saved');
ok(!-s "$work/infinite.st", 'weights that are not finite are not exported');
my $last = run(emu(2, $train, @tiny, @lost, qw(--steps 1)));
is($last->{status}, 1, 'a last update that is not finite: status 1');
like(
    failed($last),
    qr/^the held-out loss is finite$/,
    'a last update that is not finite fails the check of the held-out loss'
) or diag(complain($last));

# ---- a NaN in one product: the run ends, or skips the step and leaves weights and moments ----
sub spoilt {
    my ($call, $job, @more) = @_;
    return {
        %$job, words => ['env', "LD_PRELOAD=$spoil", "NAN_CALL=$call", @more, @{ $job->{words} }]
    };
}

# Returns the number of a product in step 2, at this fraction of the step. The difference between
# runs of one and two steps gives the products per step, because the evaluation at the end has
# products, too.
sub within_step_2 {
    my ($start, $share, @run) = @_;
    my @products = map {
        run(spoilt(-2, $start->(@run, '--steps', $_), "PRODUCTS=$work/products"));
        slurp("$work/products")
    } 1, 2;
    return int((2 + $share) * ($products[1] - $products[0]));
}
for my $layout (
    [1],
    [4, qw(--dp 2 --tp 2 --pp 1)],
    (map { [4, '--dp', 2, '--tp', 1, '--pp', 2, '--zero', $_] } 1 .. 3)
) {
    my ($ranks, @layout) = @$layout;
    my $name = "$ranks ranks @layout";
    my @run = ($ranks, $train, @tiny, @layout, qw(--reduce ordered));
    my $dir = "$work/skip-@layout" =~ s/ /_/gr;
    my $call = within_step_2(\&emu, 0.5, @run);
    my $ends = run(spoilt($call, emu(@run, '--steps', 6)));
    is($ends->{status}, 1, "$name, a NaN in one product: status 1") or diag(complain($ends));
    my ($step) = failed($ends) =~ /^step (\d+): the rank's part of the (?:loss|gradient) is finite$/
        or diag(failed($ends));
    is($step, 2, "$name: the run ends in the step of the product with a NaN");
    my $job = run(
        spoilt(
            $call,
            emu(
                @run, qw(--steps 6 --skip-nonfinite 1 --save-every 1 --save),
                $dir, '--log', "$dir.log"
            )
        )
    );
    is($job->{status}, 0, "$name: --skip-nonfinite 1 continues") or diag(complain($job));
    my ($before, $after, $next) = map {
        my $at = sprintf '%s/step-%06d', $dir, $step + $_;
        join '', map { slurp($_) } sort glob "$at/rank-*"
    } 0 .. 2;
    ok(length $before && $before eq $after,
        "$name, skipped: weights and moments are those before the step, every bit");
    ok($before ne $next, "$name, skipped: the next update changes the weights");
    my ($steps) =
        slurp(sprintf '%s/step-%06d/index.json', $dir, $step + 1) =~ /"optimizer_step":\s*(\d+)/;
    is($steps, $step, "$name, skipped: the optimizer does not count the step");
    is_deeply([map { $_->{step} } grep { ($_->{event} // '') eq 'skipped' } lines("$dir.log")],
        [$step], "$name, skipped: the log names the step");
    like($job->{out}, qr/^step +$step   skipped: /m, "$name, skipped: the page names the step");
}
SKIP: {
    skip 'no mpirun', 2 unless have_mpi;
    my @run = (2, $train, @tiny, qw(--dp 2 --tp 1 --pp 1 --reduce ordered));
    my $call = within_step_2(\&mpi, 0.05, @run);    # in a forward
    for my $rank (0, 1) {
        my $job = run(spoilt($call, mpi(@run, '--steps', 4), "NAN_RANK=$rank"));
        like(
            $job->{out},
            qr/part of the loss is finite: does not hold on 1 of 2 ranks, first on rank $rank$/m,
            "the page names the rank with the first bad number: $rank"
        ) or diag(complain($job));
    }
}

# ---- skipped steps in a row ----
my $row = run(emu(2, $train, @tiny, @lost, qw(--steps 9 --skip-nonfinite 2)));
is($row->{status}, 1, '--skip-nonfinite 2 ends at the third skipped step in a row')
    or diag(complain($row));
my @skipped = $row->{out} =~ /^step +(\d+)   skipped: /mg;
my ($end) = $row->{out} =~ /^step +(\d+)   loss \S+, gradient norm \S+: the training ends here/m;
ok(@skipped == 2 && $skipped[1] == $skipped[0] + 1 && ($end // 0) == $skipped[1] + 1,
    "... skipped: @skipped, the end: " . ($end // 'none'));
for my $no (['--check'], [qw(--dp 2 --tp 1 --pp 1 --compress power-sgd)]) {
    my $job = run(emu(2, $train, @tiny, '--skip-nonfinite', 1, @$no));
    ok(
        $job->{status} == 2
            && $job->{err} =~
            /--skip-nonfinite: .* leave --skip-nonfinite or --(?:check|compress) out/,
        "--skip-nonfinite with @$no is refused"
    ) or diag(complain($job));
}

# ---- weights that are not finite are refused, by sample and by --resume ----
{
    run(
        emu(
            2, $train, @tiny, qw(--steps 2 --dp 1 --tp 2 --pp 1 --export),
            "$work/good.st", '--save', "$work/good"
        )
    );
    my $put = sub {
        my ($file, $bytes) = @_;
        open my $f, '>:raw', $file or die;
        print $f $bytes;
        close $f or die;
    };
    my $bytes = slurp("$work/good.st");
    substr($bytes, -4) = pack 'f<', 'nan';
    $put->("$work/nan.st", $bytes);

    # The checkpoint gets a number that is not finite, and a right checksum, FNV-1a.
    my $sum = sub {
        use integer;
        my $h = -3750763034362895579;
        $h = ($h ^ $_) * 1099511628211 for unpack 'C*', $_[0];
        return sprintf '%016x', $h;
    };
    my $dir = "$work/good/step-000002";
    my $file = slurp("$dir/rank-0001.safetensors");
    my $index = slurp("$dir/index.json");
    my $right_sum = $sum->($file);
    like($index, qr/"$right_sum"/, 'the sum of a file is FNV-1a');

    substr($file, 8 + unpack('Q<', $file), 4) = pack 'f<', 'inf';
    my $changed_sum = $sum->($file);
    $put->("$dir/rank-0001.safetensors", $file);
    my $text = $index =~ s/"$right_sum"/"$changed_sum"/r =~ s/,\n\t"sum":.*//sr;
    $put->("$dir/index.json", "$text,\n\t\"sum\":\t\"" . $sum->($text) . "\"\n}\n");
    for my $case (
        -x $sample
        ? (
            ['sample --from a file', emu(1, $sample, '--from', "$work/nan.st", '--heads', 2)],
            ['sample --from a checkpoint', emu(1, $sample, '--from', $dir)]
        )
        : (),
        [
            '--resume',
            emu(
                2, $train, '--resume', "$work/good",
                qw(--dp 1 --tp 2 --pp 1 --micro-batch 2 --eval-every 0 --steps 4)
            )
        ]
    ) {
        my ($name, $job) = @$case;
        run($job);
        is($job->{status}, 2, "$name: status 2") or diag(complain($job));
        like(
            $job->{err},
            qr/: element \d+ of \S+ is not a finite number, so the training that wrote it was lost: /,
            "$name: the message names the tensor"
        );
    }
}
done_testing();
