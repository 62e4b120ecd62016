#!/usr/bin/perl
# Tests line charts. Points must be at the right place, in characters and as SVG. Emulated runs and
# processes must write equal bytes. Files must be complete or absent.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $program = program_of('fp32', 'tests/test_plot.c');
plan skip_all => "$program is not built" unless -x $program;

sub plot {
    my ($ranks, $which, @more) = @_;
    return {
        words => [
            'tools/launch', $ranks > 0 ? ('-e', $ranks) : -$ranks,
            $program, '--verbose', '--plot', $which, @more
        ]
    };
}

# ---- the charts ----
my %run;
for my $which (qw(linear log flat none)) {
    $run{$which}{emu} = plot(2, $which, '--svg', "$work/$which-emu.svg");
    $run{$which}{mpi} = plot(-2, $which, '--svg', "$work/$which-mpi.svg") if have_mpi;
}
run_jobs([map { values %$_ } values %run]);
for my $which (sort keys %run) {
    my %svg;
    for my $way (sort keys %{ $run{$which} }) {
        my $job = $run{$which}{$way};
        is($job->{status}, 0, "$which, $way: status") or diag(complain($job));
        my ($chart) = $job->{out} =~ /^(a "chart" & its <title>.*?)^\[test plot\]/ms;
        $job->{chart} = $chart // '';
        is(join("\n", grep { length > 78 || /\s$/ } split /\n/, $job->{chart}),
            '', "$which, $way: 78 columns, no spaces at the end");
        $svg{$way} = slurp("$work/$which-$way.svg");
        like(
            $svg{$way},
            qr/\A<svg xmlns="[^"]+" viewBox="0 0 800 420".*<\/svg>\n\z/s,
            "$which, $way: an SVG"
        );
        like(
            $svg{$way},
            qr/>a "chart" &amp; its &lt;title><\/text>/,
            "$which, $way: the SVG has its title"
        );
        unlike($svg{$way}, qr/nan|inf/, "$which, $way: the SVG has finite numbers only");
    }
    is($svg{emu}, $svg{mpi}, "$which: the same file emulated and as processes") if have_mpi;
}

# Returns the points of the polylines, in units of the chart: 0 to 1 from left to right, and from
# bottom to top.
sub points {
    my ($which) = @_;
    return map {
        [map { my ($x, $y) = split /,/; [($x - 70) / 530, (370 - $y) / 330] } split]
    } slurp("$work/$which-emu.svg") =~ /points="([^"]*)"/g;
}

sub near {
    my ($got, $want) = @_;
    return @$got == @$want
        && !
        grep { abs($got->[$_][0] - $want->[$_][0]) + abs($got->[$_][1] - $want->[$_][1]) > 0.002 }
        0 .. $#$want;
}
my ($up, $down, $gaps, $again) = points('linear');
ok(near($up, [map { [$_ / 8, $_ / 8] } 0 .. 8]), 'linear: a rising line');
ok(near($down, [map { [$_ / 8, 1 - $_ / 8] } 0 .. 8]), 'linear: a falling line');
ok(near($gaps, [[0.5, 0.25], [1, 0.25]]), 'linear: no point for a missing value');
($up, $down, $gaps) = points('log');

# The values of y go from 1000 / 4^8 to 4^8 / 2.
my ($lo, $hi) = (log(1000) - 8 * log(4), 8 * log(4) - log(2));
ok(near($up, [map { [$_ / 8, ($_ * log(4) - log(2) - $lo) / ($hi - $lo)] } 0 .. 8]),
    'log: a power is a straight line');
ok(near($down, [map { [$_ / 8, (log(1000) - $_ * log(4) - $lo) / ($hi - $lo)] } 0 .. 8]),
    'log: a falling power is a straight line');
like(
    $run{linear}{emu}{chart},
    qr/^ +80 \+b\. +\.\*$/m,
    'characters: the highest row, its tick and its points'
);
like($run{linear}{emu}{chart}, qr/^ +0 \+\*\.\. +\.\.b$/m, 'characters: the lowest row');
like($run{linear}{emu}{chart}, qr/^ +0 +2 +4 +6 +8$/m, 'characters: the ticks below');
like(
    $run{linear}{emu}{chart},
    qr/a up & <up>   b down   c gaps   d up again   \* several\n   not drawn: 1 point, not finite\n/,
    'characters: the legend, and the points that are not drawn'
);
like($run{log}{emu}{chart}, qr/^ +1 +10 +100 +1k +10k$/m, 'log: powers of ten below');
like(
    $run{none}{emu}{chart},
    qr/\A[^\n]*: no points, nothing to draw\n\z/,
    'no points at all: a line reports this'
);

# ---- charts that cannot be drawn or written ----
mkdir "$work/folder" or die;
my @bad = (
    [plot(2, 'many'), 3, qr/9 lines: draw at most 8/, 'too many lines'],
    [
        plot(2, 'linear', '--svg', "$work/no/folder/x"),
        2,
        qr/--svg \S+: cannot write it/,
        'a folder that does not exist'
    ],
    [
        plot(2, 'linear', '--svg', '/dev/full'),
        3, qr/--svg \/dev\/full: cannot write it: No space/,
        'a full disk'
    ],
    [
        plot(2, 'linear', '--trace', "$work/folder/x"),
        2,
        qr/--trace: this lesson draws no picture of events/,
        'a trace of a line chart'
    ],
    [
        plot(2, 'no-file', '--svg', "$work/folder/x"),
        2,
        qr/--svg: this lesson draws no picture;/,
        '--svg with a chart that is never a file'
    ],
    [
        plot(2, 'nothing', '--svg', "$work/folder/x"),
        2,
        qr/--svg: this lesson draws no picture;/,
        '--svg without a chart'
    ]
);
run_jobs([map { $_->[0] } @bad]);
for (@bad) {
    my ($job, $status, $message, $name) = @$_;
    is($job->{status}, $status, "$name: status $status") or diag(complain($job));
    like($job->{err}, qr/\A[^\n]*$message[^\n]*\n\z/, "$name: one message");
}
my $job = {
    words => [
        'sh', '-c',
        "trap '' XFSZ; (ulimit -f 1; $program --svg $work/folder/x; echo status \$?) 2>&1 | cat"
    ]
};
run_jobs([$job]);
like(
    $job->{out},
    qr/--svg \S+: cannot write it: File too large[^\n]*\n.*status 3/s,
    'a file that does not fit is a fault'
);
is(join(' ', glob "$work/folder/*"), '', 'nothing half-written is left');
done_testing();
