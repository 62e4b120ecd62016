#!/usr/bin/perl
# Runs every lesson at its own rank count: with virtual ranks in both precisions, and every third
# lesson as MPI processes in fp32. At other rank counts the test uses virtual ranks: a third of the
# lessons at 1 and 8 ranks in fp32, a third at 3 ranks in fp32, and a third at 3 ranks in fp64.
# Every eighth lesson runs with another seed, every twelfth as processes in fp64, and some with
# --reduce fast.
# TEST_ALL=1 runs both precisions at 1 to 8 ranks, and as processes at 1, 2, 3, 5 and 8 ranks.
# TEST_QUICK=1 runs fp32 at the lesson's own rank count only, and every twelfth lesson as processes.
# slow: each of the 53 lessons runs three or four times
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @lessons = lessons();
my $quick = $ENV{TEST_QUICK};
my @precisions = $quick ? 'fp32' : qw(fp32 fp64);
plan skip_all => 'there is no lesson yet' unless @lessons;

# Lessons without a digest compare whole numbers only, in checks of true and false.
my %no_digest = map { $_ => 1 } '08-01';

sub digests_agree {
    my ($key, $name, @jobs) = @_;
    my $want = $no_digest{$key} ? undef : $jobs[0]{page}{digest} // 'a digest';
    is($_->{page}{digest}, $want, $name) for @jobs[1 .. $#jobs];
}

# the number of a lesson's costs without a closed form, for which the player plays a list of steps
my %played = (
    '01-04' => 3,
    '01-05' => 1,
    '01-07' => 9,
    '02-03' => 3,
    '03-08' => 6,
    '03-13' => 3,
    '03-14' => 3,
    '04-03' => 1,
    '05-02' => 5,
    '05-03' => 5,
    '05-04' => 4,
    '05-05' => 8,
    '05-06' => 9,
    '05-07' => 16,
    '06-05' => 8,
    '07-04' => 4,
    '08-02' => 11,
    '08-train' => 1
);

# Returns whether the job ends with status 2 and one message with a reason, before the work.
sub refused {
    my ($job) = @_;
    return $job->{status} == 2 && $job->{err} =~ /\Aunsplit: [^\n]{20,}\n\z/ && before_work($job);
}

my %one =
    map { $_ => 1 } qw(08-plan 08-sample);    # long programs: fp32 only, and one other rank count
my (@jobs, @own);
for my $i (0 .. $#lessons) {
    my $lesson = $lessons[$i];
    for my $precision (@precisions) {
        next if $one{ $lesson->{key} } && $precision eq 'fp64' && !$all;
        my $program = program_of($precision, $lesson->{source});
        my %pair = (
            key => $lesson->{key},
            name => "$lesson->{key} $precision",
            ranks => $lesson->{ranks},
            emu => emu($lesson->{ranks}, $program)
        );

        # Few lessons run as processes, because processes take longer to start than most lessons
        # take to run.
        $pair{mpi} = mpi($lesson->{ranks}, $program)
            if have_mpi
            && ($all || ($precision eq 'fp32' && !$quick && $i % 3 == 0) || $i % 12 == 0);
        push @own, \%pair;
        push @jobs, grep { $_ } @pair{qw(emu mpi)};
    }
}

# rank counts above 8 that make a grid or a cube
my %larger = ('03-09' => [9, 16], '03-10' => [18], '03-11' => [27]);
my @other;
my $n = 0;
for my $lesson (@lessons) {
    my %counts =
        ({ fp32 => [1, 8], fp64 => [] }, { fp32 => [3], fp64 => [] }, { fp32 => [], fp64 => [3] })
        [$n++ % 3]->%*;
    for my $precision (@precisions) {
        next if $one{ $lesson->{key} } && $precision eq 'fp64' && !$all;
        my @larger = $all || $precision eq 'fp32' ? ($larger{ $lesson->{key} } // [])->@* : ();
        for my $ranks ($all ? 1 .. 8 : $one{ $lesson->{key} } ? 2 : $counts{$precision}->@*,
            @larger) {
            next if $quick || $ranks == $lesson->{ranks};
            my $program = program_of($precision, $lesson->{source});
            my %pair = (
                key => $lesson->{key},
                name => "$lesson->{key} $precision",
                ranks => $ranks,
                emu => emu($ranks, $program)
            );
            $pair{mpi} = mpi($ranks, $program)
                if have_mpi && $all && grep { $_ == $ranks } 1, 2, 3, 5, 8;
            push @other, \%pair;
            push @jobs, grep { $_ } @pair{qw(emu mpi)};
        }
    }
}

# No check may depend on the page's seed or on sums in rank order.
my @varied;
for my $i ($quick ? () : 0 .. $#lessons) {
    my $lesson = $lessons[$i];
    my $program = program_of('fp32', $lesson->{source});
    push @varied, map {
        my $job = emu($lesson->{ranks}, $program, '--seed', $_);
        +{ %$job, name => "$lesson->{key} seed $_" }
    } $all ? (2, 12345) : $i % 8 == 3 ? 12345 : ();
    push @varied,
        {
        %{ mpi($lesson->{ranks}, $program, qw(--reduce fast)) },
        name => "$lesson->{key} reduce fast, as processes"
        }
        if have_mpi && $lesson->{ranks} > 1 && ($all || $i % 8 == 1);
}
push @jobs, @varied;
run_jobs(\@jobs);

for my $pair (@own) {
    my ($emu, $mpi) = @$pair{qw(emu mpi)};
    ok($emu->{status} == 0 && $emu->{page}{pass}, "$pair->{name}: all checks hold emulated")
        or diag(complain($emu));
    my $digest = $emu->{page}{digest};
    if ($no_digest{ $pair->{key} }) {
        ok(exists $emu->{page}{digest} && !defined $digest, "$pair->{name}: there is no digest");
    } else {
        like($digest // '', qr/^(?!0{16})[0-9a-f]{16}$/, "$pair->{name}: there is a digest");
    }
    is($emu->{page}{ranks},
        $pair->{ranks}, "$pair->{name}: the rank count is the one of its first lines");
    is(
        scalar(grep { $_->{played} } @{ $emu->{page}{costs} // [] }),
        $played{ $pair->{key} } // 0,
        "$pair->{name}: costs without a closed form"
    );
SKIP: {
        skip have_mpi ? 'as processes: with TEST_ALL=1' : 'no mpirun', 2 unless $mpi;
        ok($mpi->{status} == 0 && $mpi->{page}{pass}, "$pair->{name}: all checks hold as processes")
            or diag(complain($mpi));
        digests_agree($pair->{key}, "$pair->{name}: the same bits emulated and as processes",
            $emu, $mpi);
    }
}
for my $job (@varied) {
    ok($job->{status} == 0 && $job->{page}{pass}, $job->{name}) or diag(complain($job));
}
my ($ran, $refused) = (0, 0);
for my $pair (@other) {
    my ($emu, $mpi) = @$pair{qw(emu mpi)};
    my $name = "$pair->{name}, $pair->{ranks} ranks";
    my $no = refused($emu);
    ok(
        $no || ($emu->{status} == 0 && $emu->{page}{pass}),
        "$name: " . ($no ? 'refused with a reason' : 'all checks hold')
    ) or diag(complain($emu));
    $no ? $refused++ : $ran++;
    next unless $mpi;
    is($mpi->{status}, $emu->{status}, "$name: as processes the same status")
        or diag(complain($mpi));
    digests_agree($pair->{key}, "$name: as processes the same bits", $emu, $mpi) unless $no;
}
note("other rank counts: $ran ran, $refused were refused");
my ($slow) = sort { $b->{seconds} <=> $a->{seconds} } @jobs;
note(sprintf 'slowest: %s, %.1f s', "@{ $slow->{words} }", $slow->{seconds});
done_testing();
