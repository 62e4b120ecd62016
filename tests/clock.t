#!/usr/bin/perl
# Compares the simulated clock with the closed forms (tests/test_clock) at several rank counts,
# links and precisions. The times must be the same for virtual ranks and for processes.
# slow: each form runs in both precisions, and as processes
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my (@jobs, @pairs);
for my $precision (qw(fp32 fp64)) {
    my $program = program_of($precision, 'tests/test_clock.c');
    plan skip_all => "$program is not built" unless -x $program;
    for my $link (qw(free nvlink ib)) {
        for my $ranks (1, 2, 3, 4, 8) {
            my $pair = {
                name => "$precision, $link, $ranks ranks",
                emu => emu($ranks, $program, '--link', $link)
            };
            $pair->{mpi} = mpi($ranks, $program, '--link', $link, '--clock', 'simulated')
                if have_mpi && $ranks == 4;
            push @pairs, $pair;
        }
    }

    # Some sizes of a node divide the world, and some do not. With ib,nvlink the link inside a node
    # is the slow one.
    for my $case ([2, 2], [3, 2], [4, 2], [4, 1], [4, 3], [8, 4], [8, 4, 1], [8, 4, 3]) {
        my ($ranks, $node, $rails) = @$case;
        for my $links ('nvlink,ib', 'ib,nvlink', 'slow') {
            my @options = ('--node', $node, '--link', $links, $rails ? ('--rails', $rails) : ());
            my $pair = {
                name => "$precision, $links, $ranks ranks, nodes of $node"
                    . ($rails ? ", $rails rails" : ''),
                nodes => 1,
                emu => emu($ranks, $program, @options)
            };
            $pair->{mpi} = mpi($ranks, $program, @options, '--clock', 'simulated')
                if have_mpi && $ranks == 4 && $node == 2;
            push @pairs, $pair;
        }
    }
}

# invalid clocks, links, nodes, rails and speeds; only --speed 4 is valid
my $program = program_of('fp32', 'tests/test_clock.c');
my $wall = { words => ['tools/launch', '-e', 2, $program, '--verbose', '--clock', 'wall'] };
my @nodes = map { emu(4, $program, split) } '--link nvlink,ib', '--link nvlink,quick --node 2',
    '--link ,ib --node 2', '--node 0', '--rails 2';
my @speeds = map { emu(2, $program, '--speed', $_) } qw(4 0 -1);

# A lesson whose result depends on time must refuse the real clock, and invalid speeds.
my $balance = program_of('fp32', '01_data_parallel/07_balance.c');
my @balance =
    map { { words => ['tools/launch', '-e', 3, $balance, '--verbose', split] } } '--clock wall',
    '--slow 1,0,2', '--slow 1,,2';

# These lessons predict times for one link only, so they must refuse two links.
my @one_link = map { emu(4, program_of('fp32', $_), '--node', 2, '--link', 'fast,slow') }
    qw(01_data_parallel/05_parameter_server.c 04_pipeline_naive/02_naive.c
    04_pipeline_naive/03_gpipe.c
    05_pipeline_1f1b/02_1f1b.c 07_recompute/02_full.c);
my @h100 = map { emu(4, $program, qw(--link ib --device), $_) } qw(lesson h100);
run_jobs(
    [
        (
            map {
                grep { $_ }
                    @$_{qw(emu mpi)}
            } @pairs
        ),
        $wall,
        @nodes,
        @speeds,
        @balance,
        @one_link,
        @h100
    ]
);

# Returns the cost lines of the page without the verdicts: name, unit, predicted and measured value.
sub costs {
    return join "\n", grep { s/^\[.*?\] (.*\S)\s+(\S+)\s+(ok|FAIL)$/$1 $2/ } split /\n/,
        $_[0]{out} =~ s/.*^\[[^\n]*\] cost  //msr;
}
for my $pair (@pairs) {
    my ($emu, $mpi) = @$pair{qw(emu mpi)};
    ok($emu->{status} == 0 && $emu->{page}{pass}, "$pair->{name}: the closed forms hold")
        or diag(complain($emu));
    my @times = grep { $_->{unit} eq 'ps' && $_->{name} =~ /^(?:naive|GPipe|1F1B)/ }
        @{ $emu->{page}{costs} || [] };
    is(
        scalar @times,
        $pair->{nodes} ? 0 : $pair->{name} =~ /free/ ? 12 : 8,
        "$pair->{name}: all step times were compared"
    );
    my @lanes = grep { $_->{name} =~ /^(?:all-reduce|two|a blocking|a message|broadcast|reduce) / }
        @{ $emu->{page}{costs} || [] };
    is(scalar @lanes, 10, "$pair->{name}: the times of links and lanes were compared");
    is(scalar(grep { $_->{measured} <= 0 || $_->{measured} != $_->{predicted} } @times),
        0, "$pair->{name}: all step times are above 0 and as predicted");
    next unless $mpi;
    ok($mpi->{status} == 0 && $mpi->{page}{pass},
        "$pair->{name}: the closed forms hold as processes, too")
        or diag(complain($mpi));
    isnt(costs($emu), '', "$pair->{name}: there are cost lines");
    is(costs($mpi), costs($emu), "$pair->{name}: the same costs emulated and as processes");

    # With nodes the test program only measures times, and no digest includes times.
    is(
        $mpi->{page}{digest},
        $pair->{nodes} ? undef : $emu->{page}{digest} // 'a digest',
        "$pair->{name}: the same bits as processes"
    );
}
is($wall->{status}, 2, 'real time is refused') or diag(complain($wall));
like($wall->{err}, qr/\Aunsplit: [^\n]*--clock simulated\n\z/, 'one message refuses real time');
is(join(' ', map { $_->{status} } @nodes),
    '2 2 2 2 2', 'invalid links, nodes and rails are refused');
like(
    $nodes[0]{err},
    qr/\Aunsplit: [^\n]*give the ranks per node with --node N[^\n]*\n\z/,
    'a link between nodes without nodes is refused'
);
like($nodes[1]{err}, qr/--link quick is not known/, 'an unknown link is refused by its name');
is($speeds[0]{status}, 0, 'the closed forms hold for a device of four times the rate')
    or diag(complain($speeds[0]));
for my $bad (@speeds[1, 2]) {
    is($bad->{status}, 3, 'an invalid speed is refused') or diag(complain($bad));
    like(
        $bad->{err},
        qr/clock_set_speed\(.*: choose a speed above 0/,
        'the message names the invalid speed'
    );
}
for my $bad (@balance) {
    is($bad->{status}, 2, "balance: $bad->{words}[-1] is refused") or diag(complain($bad));
    like(
        $bad->{err},
        qr/\Aunsplit: [^\n]*(?:leave --clock out|whole numbers from 1)[^\n]*\n\z/,
        "balance: one message refuses $bad->{words}[-1]"
    );
}
for my $bad (@one_link) {
    is($bad->{status}, 2, "two links are refused: $bad->{words}[3]") or diag(complain($bad));
    like(
        $bad->{err},
        qr/\Aunsplit: [^\n]*leave --node out, or name one link with --link slow\n\z/,
        "one message refuses two links: $bad->{words}[3]"
    );
}
is($h100[0]{status}, 0, 'the closed forms hold for a slow device with a real link')
    or diag(complain($h100[0]));
isnt(costs($h100[0]), costs($h100[1]), 'a faster device gives other times');
done_testing();
