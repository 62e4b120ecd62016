#!/usr/bin/perl
# Tests pictures of runs: the chart in the terminal, --svg and --trace. Under the simulated clock
# emulated runs and processes must write equal bytes. Also tests real time, files that cannot be
# written, and unknown names.
use strict;
use warnings;
use B;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{qw(COLUMNS NO_COLOR)};
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f or die }
my @small = (
    qw(--layers 8 --width 24 --heads 4 --context 8 --batch 8 --micro-batch 1 --steps 2
        --eval-every 0 --data),
    "$work/text"
);

# ---- mistakes in a trace ----
my $json = JSON::PP->new;

sub number {
    my ($x) = @_;
    return
           defined $x
        && !ref $x
        && B::svref_2object(\$x)->FLAGS & (B::SVp_IOK | B::SVp_NOK)
        && !(B::svref_2object(\$x)->FLAGS & B::SVp_POK);
}
sub ps { return sprintf('%.0f', $_[0] * 1e6) + 0 }    # microseconds to exact picoseconds

sub trace_faults {
    my ($text, $ranks) = @_;
    my $t = eval { $json->decode($text) } or return "not JSON: $@";
    return 'no list traceEvents' unless ref $t eq 'HASH' && ref $t->{traceEvents} eq 'ARRAY';
    my (@bad, %rows, %named, %flow, %counted, %processes);
    for my $e (@{ $t->{traceEvents} }) {
        my $what = $json->canonical->encode($e);
        my $ph = $e->{ph} // '';
        push @bad, "ph: $what" unless $ph =~ /^[XMsfC]$/;
        push @bad, "pid: $what"
            unless number($e->{pid}) && $e->{pid} =~ /^\d+$/ && $e->{pid} < $ranks;
        push @bad, "name: $what" unless length($e->{name} // '');
        push @bad, "ts: $what" if $ph ne 'M' && !(number($e->{ts}) && $e->{ts} >= 0);
        push @bad, "tid: $what" if $ph =~ /^[Xsf]$/ && !number($e->{tid});
        return @bad if @bad;
        my $row = join ' ', $e->{pid}, $e->{tid} // '';

        if ($ph eq 'X') {
            push @bad, "dur: $what" unless number($e->{dur}) && $e->{dur} >= 0;
            push @bad, "cat: $what" unless length($e->{cat} // '');
            push @bad, "bytes: $what" unless number($e->{args}{bytes});
            push @{ $rows{$row} }, [ps($e->{ts}), ps($e->{ts}) + ps($e->{dur} // 0), $what];
        } elsif ($ph eq 'M') {
            $processes{ $e->{pid} } = $e->{args}{name} if $e->{name} eq 'process_name';
            $named{$row} = 1 if $e->{name} eq 'thread_name' && length($e->{args}{name} // '');
        } elsif ($ph eq 'C') {
            push @bad, "bytes: $what" unless number($e->{args}{bytes}) && $e->{args}{bytes} >= 0;
            push @bad, "goes back: $what" if ps($e->{ts}) < ($counted{ $e->{pid} } // 0);
            $counted{ $e->{pid} } = ps($e->{ts});
        } else {
            push @bad, "id: $what" unless length($e->{id} // '');
            push @bad, "does not bind to its slice: $what" if $ph eq 'f' && ($e->{bp} // '') ne 'e';
            push @{ $flow{ $e->{id} // '' }{$ph} }, { %$e, row => $row };
        }
    }
    push @bad, "rank $_ has no name"
        for grep { ($processes{$_} // '') ne "rank $_" } 0 .. $ranks - 1;
    push @bad, "row $_ has no name" for grep { !$named{$_} } keys %rows;
    for my $row (sort keys %rows) {
        my @open;
        for my $slice (sort { $a->[0] <=> $b->[0] || $b->[1] <=> $a->[1] } @{ $rows{$row} }) {
            pop @open while @open && $open[-1][1] <= $slice->[0];
            push @bad, "overlaps $open[-1][2]: $slice->[2]" if @open && $slice->[1] > $open[-1][1];
            push @open, $slice;
        }
    }
    for my $id (sort keys %flow) {
        my ($s, $f) = map { $flow{$id}{$_} || [] } qw(s f);
        if (@$s != 1 || @$f != 1) { push @bad, "flow $id: " . @$s . ' s, ' . @$f . ' f'; next }
        push @bad, "flow $id: received before it was sent" if ps($s->[0]{ts}) > ps($f->[0]{ts});
        push @bad, "flow $id: names differ"
            if "$s->[0]{name} $s->[0]{cat}" ne "$f->[0]{name} $f->[0]{cat}";
        for my $end ($s->[0], $f->[0]) {
            push @bad, "flow $id: no slice there"
                unless grep { $_->[0] <= ps($end->{ts}) && ps($end->{ts}) <= $_->[1] }
                @{ $rows{ $end->{row} } };
        }
    }
    return @bad;
}

# ---- mistakes in XML ----
sub xml_faults {
    my ($text) = @_;
    my @open;
    my $roots = 0;
    my $attribute = qr/\s+[A-Za-z:_][\w:.-]*="[^"<&]*"/;
    while ($text =~ /\G(?:([^<]+)|<(\/?)([A-Za-z][\w:-]*)($attribute*)\s*(\/?)>)/gc) {
        my ($words, $closes, $name, $attributes, $empty) = ($1, $2, $3, $4, $5);
        if (defined $words) {
            return "bare &: $words" if $words =~ /&(?!(?:amp|lt|gt|quot|apos|#\d+);)/;
            return "text outside: $words" if !@open && $words =~ /\S/;
            next;
        }
        if ($closes) { return "</$name>" unless @open && pop(@open) eq $name; next }
        my %seen;
        $seen{$_}++ && return "$_ twice in <$name>" for $attributes =~ /([\w:.-]+)=/g;
        $roots++ unless @open;
        push @open, $name unless $empty;
    }
    return 'at: ' . substr $text, pos($text) // 0, 40 if (pos($text) // 0) < length $text;
    return "open: @open" if @open;
    return $roots == 1 ? () : "$roots roots";
}

# ---- trace_faults() and xml_faults() find the mistakes of wrong input ----
sub event {
    my (%e) = @_;
    return {
        name => 'x',
        cat => 'c',
        ph => 'X',
        ts => 1,
        dur => 2,
        pid => 0,
        tid => 0,
        args => { bytes => 0 },
        %e
    };
}

sub trace_of {
    my @names = (
        { name => 'process_name', ph => 'M', pid => 0, args => { name => 'rank 0' } },
        map {
            +{
                name => 'thread_name',
                ph => 'M',
                pid => 0,
                tid => $_,
                args => { name => 'row' }
            }
        } 0,
        1
    );
    return $json->encode({ traceEvents => [@names, @_] });
}
my @flow = (
    event(ph => 's', id => 'a', ts => 2),
    event(ph => 'f', id => 'a', ts => 5, tid => 1, bp => 'e')
);
my @pair = (event(), event(ts => 4, tid => 1));
is_deeply([trace_faults(trace_of(@pair, @flow), 1)], [], 'a right trace passes');
like((trace_faults(trace_of(event(), event(ts => 2)), 1))[0],
    qr/overlaps/, 'overlapping slices are found');
is_deeply([trace_faults(trace_of(event(dur => 4), event(ts => 2)), 1)], [], 'nested slices pass');
like((trace_faults(trace_of(@pair, $flow[0]), 1))[0],
    qr/1 s, 0 f/, 'a message that is not received is found');
like((trace_faults(trace_of(@pair, @flow, $flow[1]), 1))[0],
    qr/1 s, 2 f/, 'a message that is received twice is found');
like(
    (trace_faults(trace_of(@pair, { %{ $flow[0] }, ts => 2.5 }, { %{ $flow[1] }, ts => 2.4 }), 1))
    [0],
    qr/before it was sent/,
    'a message that arrives before its send is found'
);
like((trace_faults(trace_of(event(ts => '1')), 1))[0], qr/^ts/, 'a time that is a string is found');
like((trace_faults(trace_of(event(pid => 1)), 1))[0],
    qr/^pid/, 'a rank that does not exist is found');
like((trace_faults(trace_of(event(ph => 'B')), 1))[0], qr/^ph/,
    'an unknown kind of event is found');
like(
    (trace_faults(trace_of(event(tid => 2)), 1))[0],
    qr/has no name/,
    'a row without a name is found'
);
is_deeply([xml_faults("<a b=\"1\">x &amp; y<c/></a>\n")], [], 'right XML passes');
ok(scalar(xml_faults($_)), "wrong XML is seen: $_")
    for '<a>', '<a></b>', '<a b=1/>', '<a>&</a>', '<a b="<"/>', '<a/><a/>', '<a b="1" b="2"/>',
    '<a';

# ---- the pictures themselves ----
my @runs;
for my $case (
    [4, 'free', '--dp 1 --tp 1 --pp 4'],
    [4, 'nvlink', '--dp 1 --tp 1 --pp 4 --schedule gpipe'],
    [4, 'ib', '--dp 2 --tp 2 --pp 1 --zero 3'],
    [8, 'ethernet', '--dp 2 --tp 2 --pp 2 --recompute full'],
    [4, 'ethernet', '--dp 1 --tp 1 --pp 4 --schedule naive']
) {
    my ($ranks, $link, $options) = @$case;
    for my $clock ('simulated', $link eq 'free' || $ranks == 8 ? 'wall' : ()) {
        my %run = (
            name => "$options, $link, $clock",
            ranks => $ranks,
            clock => $clock,
            m => $options =~ /--dp 2/ ? 4 : 8
        );
        for my $way ('emu', have_mpi ? 'mpi' : ()) {
            my $files = "$work/picture" . @runs . $way;
            $run{$way} = ($way eq 'emu' ? \&emu : \&mpi)->(
                $ranks, $train, @small, split(' ', $options),
                '--link', $link, '--clock', $clock,
                '--reduce', 'ordered', '--svg', "$files.svg",
                '--trace', "$files.json"
            );
            $run{$way}{files} = $files;
        }
        push @runs, \%run;
    }
}
run_jobs(
    [
        map {
            grep { $_ }
                @$_{qw(emu mpi)}
        } @runs
    ]
);
for my $run (@runs) {
    my %bytes;
    for my $way (grep { $run->{$_} } qw(emu mpi)) {
        my $job = $run->{$way};
        is($job->{status}, 0, "$run->{name}, $way: status") or diag(complain($job));
        $bytes{$_}{$way} = slurp("$job->{files}.$_") for qw(svg json);
        my @bad = trace_faults($bytes{json}{$way}, $run->{ranks});
        is(scalar @bad, 0, "$run->{name}, $way: a right trace")
            or diag(join "\n", splice @bad, 0, 5);
        is_deeply([xml_faults($bytes{svg}{$way})], [], "$run->{name}, $way: a right SVG");
        like(
            $bytes{svg}{$way},
            qr/<svg xmlns="http:\/\/www.w3.org\/2000\/svg" viewBox="0 0 \d+ \d+"/,
            "$run->{name}, $way: the SVG has a size"
        );
        my %did;

        for my $e (grep { $_->{ph} eq 'X' }
            @{ (eval { $json->decode($bytes{json}{$way}) } || {})->{traceEvents} || [] }) {
            $did{"$e->{pid} $e->{name}"} = 1 if $e->{tid} == 0;
        }
        my @lacks = grep { !$did{$_} } map {
            my $r = $_;
            map { ("$r forward $_", "$r backward $_") } 0 .. $run->{m} - 1
        } 0 .. $run->{ranks} - 1;
        is("@lacks", '',
            "$run->{name}, $way: every rank goes forward and back with every micro-batch");
    }
    next unless $run->{clock} eq 'simulated' && $run->{mpi};
    for my $kind (qw(svg json)) {
        ok($bytes{$kind}{emu} eq $bytes{$kind}{mpi},
            "$run->{name}: the same $kind emulated and as processes");
    }
}

# ---- the chart ----
my @charts = map {
    my $columns = $_;
    map {
        +{
            columns => $columns,
            color => $_,
            words => [
                'env', $columns ? "COLUMNS=$columns" : (),
                'tools/launch', '-e', 4, $train, @small,
                qw(--dp 1 --tp 1 --pp 4 --batch 4 --link nvlink),
                $_ ? '--color' : ()
            ]
        }
    } 0, 1
} '', 80, 200, 40, 'wide', 99999;
run_jobs(\@charts);
for my $job (@charts) {
    my ($chart) = $job->{out} =~ /^(The last step, simulated: .*?kept: activations[^\n]*\n)/ms
        or diag(complain($job));
    $chart //= '';
    my $name = "COLUMNS=$job->{columns}" . ($job->{color} ? ', coloured' : '');
    is(
        scalar($chart =~ s/\e\[[0-9;]*m//g) > 0,
        $job->{color} == 1,
        "$name: colours only when asked for"
    );
    my $width = $job->{columns} =~ /^(40|80|200)$/ ? $job->{columns} : 100;

    # The legend is 60 columns wide, even if the terminal is narrower.
    my @long = grep { length > ($width > 60 ? $width : 60) } split /\n/, $chart;
    is("@long", '', "$name: no line is longer than the width");
    my ($longest) = sort { $b <=> $a } map { length } $chart =~ /^rank.*$/mg;
    is($longest, $width, "$name: the rows fill the width");
    for my $rank (0 .. 3) {
        my ($row) = $chart =~ /^rank $rank  +(.*)$/m;
        my @lacks = $width < 80 ? () : grep { ($row // '') !~ /$_/ } map { ("F$_", "B$_") } 0 .. 3;
        ok($row && !@lacks, "$name: rank $rank has a row, and its micro-batches")
            or diag("lacks @lacks\n$chart");
    }
}

# ---- ranks that do the same are drawn once ----
# An arrow points to the rank that receives, by the rank's number in the world.
{
    my ($job) = run_jobs(
        [
            {
                words => [
                    'env', 'COLUMNS=100', 'tools/launch', '-e', 4, $train, @small,
                    qw(--dp 2 --tp 1 --pp 2 --batch 4)
                ]
            }
        ]
    );
    my ($first, $last) = map { $job->{out} =~ /^$_  [^\n]*\n +link (\S+)$/m ? $1 : '' } '0 to 1',
        '2 to 3';
    ok(
        $first =~ />/ && $first !~ /</ && $last =~ /</ && $last !~ />/,
        'two replicas: stage 0 sends to higher ranks, stage 1 to lower ranks'
    ) or diag(complain($job), $job->{out});
}

# ---- files that cannot be written ----
mkdir "$work/folder" or die;
my @tiny = (@small, qw(--steps 1));
for my $option (qw(svg trace)) {
    for my $file ("$work/no/such/folder/x", "$work/folder", '/dev/full') {
        my @jobs = ({ words => ['tools/launch', '-e', 2, $train, @tiny, "--$option", $file] });
        push @jobs, { words => ['tools/launch', 2, $train, @tiny, "--$option", $file] }
            if have_mpi && $file =~ /no.such/;
        run_jobs(\@jobs);
        for my $job (@jobs) {

            # An error found before the work is a usage error.
            my $expected = $file eq '/dev/full' ? 3 : 2;
            is($job->{status}, $expected, "--$option $file: status $expected")
                or diag(complain($job));
            like(
                $job->{err},
                qr/\A\S[^\n]*--$option \Q$file\E: cannot write it: \w[^\n]*\n\z/,
                "--$option $file: one message names it"
            );
        }
    }
    my $job = {
        words => [
            'sh',
            '-c',
            "trap '' XFSZ; (ulimit -f 1; $train @small --emulate 2 --$option $work/folder/x) "
                . "2>&1 | cat"
        ]
    };
    run_jobs([$job]);
    like(
        $job->{out},
        qr/--$option \S+: cannot write it: File too large/,
        "--$option: a file that does not fit is a fault"
    ) or diag(complain($job));
}
is(join(' ', grep { -e } glob("$work/folder/* $work/*.tmp"), '/dev/full.tmp'),
    '', 'nothing half-written is left');
ok(-c '/dev/full', 'a device is not replaced');

# ---- unknown names; a lesson without a picture ----
for my $case (
    ['--device h200', qr/--device h200 is not known: choose .*h100/],
    ['--link token-ring', qr/--link token-ring is not known: choose .*nvlink/],
    ['--clock sun', qr/--clock sun: expected one of wall\|simulated/],
    ['--svg', qr/--svg needs a value/]
) {
    for my $job (
        run_jobs(
            [
                { words => ['tools/launch', '-e', 2, $train, @tiny, split ' ', $case->[0]] },
                have_mpi
                ? { words => ['tools/launch', 2, $train, @tiny, split ' ', $case->[0]] }
                : ()
            ]
        )
    ) {
        is($job->{status}, 2, "$case->[0]: status 2");
        like(
            $job->{err},
            qr/\Aunsplit: [^\n]*(?:$case->[1])[^\n]*\n\z/,
            "$case->[0]: one message with the names there are"
        );
    }
}
my ($plain) = grep { $_->{key} eq '01-01' } lessons();
if ($plain) {
    my $job = {
        words => [
            'tools/launch', '-e', 0, program_of('fp32', $plain->{source}),
            '--svg', "$work/none.svg"
        ]
    };
    run_jobs([$job]);
    is($job->{status}, 2, 'a lesson without a picture refuses --svg');
    like(
        $job->{err},
        qr/\Aunsplit: --svg: this lesson draws no picture[^\n]*\n\z/,
        'one message refuses --svg'
    );
    ok(!-e "$work/none.svg", 'a refused --svg writes nothing');
}

# ---- PICTURE_DETAIL: a chart for --verbose only; files are always written ----
for my $case (
    [
        program_of('fp32', '07_recompute/03_selective.c'),
        qr/^Recompute (\w+): [\d.]+ ms /m,
        'selective', 'none selective full'
    ],
    [
        program_of('fp32', '01_data_parallel/07_balance.c'),
        qr/^(time of a step); from step/m,
        '', 'time of a step'
    ]
) {
    my ($program, $title, $page, $log) = @$case;
    my ($brief, $long) = run_jobs(
        [
            { words => ['tools/launch', '-e', 4, $program, '--svg', "$work/detail.svg"] },
            { words => ['tools/launch', '-e', 4, $program, '--verbose'] }
        ]
    );
    is(join(' ', $brief->{out} =~ /$title/g), $page, "$program: the charts of the page");
    is(join(' ', $long->{out} =~ /$title/g), $log,
        "$program: --verbose adds the charts of the log");
    ok(-s "$work/detail.svg", "$program: --svg is written");
    unlink "$work/detail.svg";
}

done_testing();
