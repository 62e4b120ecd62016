# Gpu.pm has functions for the tests of BACKEND=cuda, on a GPU or on the stand-ins. Some functions
# compare a build with the CPU's build of the same precision.
package Gpu;
use strict;
use warnings;
use Exporter 'import';
use JSON::PP;
use Jobs;
use List::Util qw(max);
use Test::More;

our @EXPORT = qw(comm_on program lessons_on library_on outputs_on storage_on trainer_on);

# Returns the path of a program, as in program('standin-fp32', '08_3d/train.c').
sub program { my ($build, $source) = @_; return "build/$build/" . $source =~ s/\.c$//r }
sub cpu_of { return $_[0] =~ s/^.*-/cpu-/r }

# Reduces a page to its words without numbers: each check and each cost, with the verdict. The name
# of the tensor with the largest error is left out, because the name depends on rounding.
sub verdicts {
    my ($page) = @_;
    return join "\n", map { s/, worst [^:]*//r } map {
        my $list = $page->{$_} || [];
        map { ($_->{what} // '') . " $_->{name}: " . ($_->{pass} ? 'ok' : 'FAIL') } @$list
    } qw(checks costs);
}

# Returns the costs of a page. Costs are the same on every backend, because they are counted and
# never rounded.
sub costs {
    my ($page) = @_;
    return join "\n",
        map { "$_->{name}: $_->{predicted} $_->{measured} $_->{unit}" } @{ $page->{costs} || [] };
}

# Compares lessons of a build with the CPU, emulated and as processes.
#   keys       the keys of these lessons; an empty list selects all lessons
# Each way to start processes is a hash with these fields:
#   name       its name in the names of the tests
#   transport  a pattern of the transport's name
#   options    further options
#   env        words before the command
#   most       the largest number of ranks
#   every      3 takes every third of these lessons
# A digest may differ from the CPU's, because matrix products are rounded differently. On all
# transports of a build the digests are equal.
sub lessons_on {
    my ($build, $backend, $keys, @ways) = @_;
    my %chosen = map { $_ => 1 } @$keys;
    forms_on($build, $backend, \@ways,
        map { [$_] } grep { !@$keys || $chosen{ $_->{key} } } lessons());
}

# Compares lessons with options, as lessons_on() does. Each form is [lesson, options].
sub forms_on {
    my ($build, $backend, $ways, @forms) = @_;
    my (@rows, @jobs);
    for my $form (@forms) {
        my ($lesson, @options) = @$form;
        my ($ranks, $source) = @$lesson{qw(ranks source)};
        my %row = (
            name => join(' ', $build, $lesson->{key}, @options),
            cpu => emu($ranks, program(cpu_of($build), $source), @options),
            emu => emu($ranks, program($build, $source), @options)
        );
        for my $way (grep { $ranks <= ($_->{most} || $ranks) && @rows % ($_->{every} || 1) == 0 }
            @$ways) {
            my $job = mpi($ranks, program($build, $source), @options, @{ $way->{options} || [] });
            $job->{words} = [@{ $way->{env} || [] }, @{ $job->{words} }];
            push @{ $row{ways} }, { %$way, job => $job };
        }
        push @rows, \%row;
        push @jobs, @row{qw(cpu emu)}, map { $_->{job} } @{ $row{ways} || [] };
    }
    run_jobs(\@jobs);
    for my $row (@rows) {
        my ($cpu, $emu) = @$row{qw(cpu emu)};
        ok($emu->{status} == 0 && $emu->{page}{pass} && $emu->{err} eq '',
            "$row->{name}: all checks hold emulated")
            or diag(complain($emu));
        is(
            "$emu->{page}{backend}, $emu->{page}{transport}",
            "$backend, emu",
            "$row->{name}: on this backend"
        );
        is(
            verdicts($emu->{page}),
            verdicts($cpu->{page}),
            "$row->{name}: the checks and costs of the CPU"
        );
        is(costs($emu->{page}), costs($cpu->{page}), "$row->{name}: every cost is the CPU's");
        for my $way (@{ $row->{ways} || [] }) {
            my $job = $way->{job};
            ok($job->{status} == 0 && $job->{page}{pass} && $job->{err} eq '',
                "$row->{name}: all checks hold, $way->{name}")
                or diag(complain($job));
            like($job->{page}{transport} // '',
                $way->{transport}, "$row->{name}: on this transport");
            is(
                $job->{page}{digest},
                $emu->{page}{digest},
                "$row->{name}: the same bits emulated and as processes"
            );
        }
    }
}

# Runs the tests of the library in a GPU build, except the test of the program $left_out.
sub library_on {
    my ($build, $left_out) = @_;
    for my $program (qw(memory ops storage layers model comm compression)) {
        next if $left_out && $program eq $left_out;
        my ($job) = run_jobs([{ words => ["build/$build/tests/test_$program"] }]);
        my @failed = grep { /^not ok/ } split /\n/, $job->{out};
        ok($job->{status} == 0 && !@failed && $job->{out} =~ /^1\.\.\d+$/m, "$build: test_$program")
            or diag(complain($job), join "\n", @failed);
    }
}

# Tests Comm between processes. The results must have the same bits as those of virtual ranks. Calls
# that do not match, and a lost rank, must end the run with status 3.
sub comm_on {
    my ($build, $way, @ranks) = @_;
    my @launch = (@{ $way->{env} || [] }, 'tools/launch');
    my $comm = program($build, 'tests/test_comm.c');
    for my $ranks (@ranks) {
        my ($job, $emu) = run_jobs(
            [
                { words => [@launch, $ranks, $comm] },
                { words => ['tools/launch', '-e', $ranks, $comm] }
            ]
        );
        my ($transport) = $job->{out} =~ /^# (\w+), /;
        ok(
            $job->{status} == 0 && ($transport // '') eq $way->{name} && $job->{out} !~ /^not ok/m,
            "$build: test_comm, $way->{name}, $ranks ranks"
        ) or diag(complain($job), grep { /^not/ } split /^/, $job->{out});
        my ($bits, $same) = map { $_->{out} =~ /^(# bits .*)/m } $job, $emu;
        is($bits, $same, "$build: the bits of virtual ranks, $way->{name}, $ranks ranks");
    }
    for my $case (qw(mismatch killed)) {
        my ($job) = run_jobs(
            [
                {
                    words => [
                        @launch, $ranks[-1], $comm, '--timeout', $case eq 'killed' ? $hang : $wait,
                        $case
                    ]
                }
            ]
        );
        is($job->{status}, 3, "$build: $case, $way->{name}: status 3") or diag(complain($job));
    }
}

# Compares the results of most ops with the CPU's results for the same inputs.
sub outputs_on {
    my ($build) = @_;
    my @program = map { "build/$_/tests/test_outputs" } cpu_of($build), $build;
    my ($written) = run_jobs([{ words => [$program[0], '--write', "$work/outputs"] }]);
    my ($compared) = run_jobs([{ words => [$program[1], '--compare', "$work/outputs"] }]);
    is($written->{status}, 0, "$build: the CPU wrote what its ops put out")
        or diag(complain($written));
    my @failed = grep { /^not ok|^#  / } split /\n/, $compared->{out};
    ok($compared->{status} == 0 && !@failed && $compared->{out} =~ /^1\.\.\d{3}$/m,
        "$build: the same results from this backend")
        or diag("status $compared->{status}",
        $compared->{err}, join "\n", grep { defined } @failed[0 .. 19]);
    note($_) for $compared->{out} =~ /^# (\w.*)$/mg;
    unlink "$work/outputs";
}

# Tests numbers of 16 bits in lessons with --storage and in the trainer. A lesson's checks compare
# with the unsplit computation in the same storage. Losses and norms of the trainer must be close to
# the CPU's, within the limits of 16 bits, and equal on all transports.
sub storage_on {
    my ($build, $backend, @ways) = @_;
    my $ranks = 4;
    @ways = grep { $ranks <= ($_->{most} || $ranks) } @ways;
    my %lesson = map { $_->{key} => $_ } lessons();
    my @stored = (
        ['03-06', qw(--storage bf16)],
        ['05-02', qw(--storage bf16)],
        ['06-04', qw(--storage fp16 --gradients stored)]
    );
    my @forms = map { my ($key, @options) = @$_; [$lesson{$key}, @options] } @stored;
    forms_on($build, $backend, \@ways, @forms);

    # relative limits of losses and of norms
    my %limit = (bf16 => [1e-3, 4e-3], fp16 => [1.25e-4, 5e-4]);

    for my $storage (sort keys %limit) {
        my $log = "$work/storage";
        my @train = (
            qw(--dp 2 --tp 2 --pp 1 --steps 3 --eval-every 0 --batch 4 --layers 2 --width 16
                --heads 2),
            qw(--context 16 --reduce ordered --storage),
            $storage
        );
        my @jobs = map { emu($ranks, program($_, '08_3d/train.c'), @train) } cpu_of($build), $build;
        for my $way (@ways) {
            my $job =
                mpi($ranks, program($build, '08_3d/train.c'), @train, @{ $way->{options} || [] });
            $job->{words} = [@{ $way->{env} || [] }, @{ $job->{words} }];
            push @jobs, $job;
        }
        push @{ $jobs[$_]{words} }, '--log', "$log-$_" for 0 .. $#jobs;
        run_jobs(\@jobs);
        my $failed = grep { $_->{status} != 0 } @jobs;
        is($failed, 0, "$build: train --storage $storage") or diag(map { complain($_) } @jobs);
        my @steps = map {
            [
                map { [@{$_}{qw(loss grad_norm)}] }
                    grep { exists $_->{loss} } map { decode_json($_) } split /\n/,
                slurp("$log-$_")
            ]
        } 0 .. $#jobs;
        unlink map { "$log-$_" } 0 .. $#jobs;
        my ($cpu, $emu, @processes) = @steps;

        for my $i (0, 1) {
            my $error = max map { abs($emu->[$_][$i] / $cpu->[$_][$i] - 1) } 0 .. $#$cpu;
            cmp_ok($error, '<=', $limit{$storage}[$i],
                      "$build, $storage: "
                    . qw(losses norms) [$i] . ' of '
                    . @$cpu
                    . " steps are the CPU's within "
                    . $limit{$storage}[$i]);
        }
        is_deeply($processes[$_], $emu, "$build, $storage: every digit, $ways[$_]{name}")
            for 0 .. $#processes;
    }
}

# Compares the trainer with its own unsplit model. Each case is a list [start, ranks, options],
# where `start` is a reference to a function such as emu or mpi.
sub trainer_on {
    my ($build, @cases) = @_;
    my @train = (
        program($build, '08_3d/train.c'),
        qw(--check --steps 2 --eval-every 0 --batch 4 --layers 2 --width 16 --heads 2 --context 16)
    );
    my @jobs = map {
        my ($start, $ranks, @options) = @$_;
        my $job = $start->($ranks, @train, @options);
        $job->{name} = "train @options";
        $job
    } @cases;
    for my $job (run_jobs(\@jobs)) {
        ok($job->{status} == 0 && $job->{page}{pass}, "$build: $job->{name}")
            or diag(complain($job));
    }
}
1;
