#!/usr/bin/perl
# tools/launch must select the right BLAS kernels, and a program started without tools/launch must
# print advice. The rule is tested on made-up processors, and in programs in which OpenBLAS is made
# to choose badly (tests/openblas_choice.c). With OPENBLAS_VERBOSE=2 OpenBLAS itself prints its
# choice.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{qw(OPENBLAS_CORETYPE MAKEFLAGS MFLAGS MAKELEVEL)};
my $program = program_of('fp32', 'tests/test_kernels.c');
my $library = "$FindBin::Bin/../build/cpu-fp32/tests/openblas_choice.so";
my $lesson = program_of('fp32', '03_tensor_parallel/02_linear.c');
-x $_ or plan skip_all => "$_ is not built" for $program, $library, $lesson;

# job() returns a job with OpenBLAS's messages on and with settings for OpenBLAS.
my @limited = qw(timeout 600 env OPENBLAS_VERBOSE=2);

sub job {
    my ($settings, @words) = @_;
    return { words => [@limited, "LD_PRELOAD=$library", @$settings, @words] };
}
sub loaded { return join ' ', $_[0]{err} =~ /^Core: (\w+)$/mg }
sub said { my ($job, $what) = @_; return ($job->{out} =~ /^\Q$what\E: (.*)$/m)[0] // '(nothing)' }
sub advised { return join '; ', ($_[0]{out} =~ s/\s+/ /gr) =~ /(\w+ kernels \(.*?\))/g }

# ---- the rule ----
my ($sse, $avx, $avx2, $avx512) = 0 .. 3;
my %better = (
    "Prescott $sse" => 'none',
    "Prescott $avx" => 'Sandybridge',
    "Prescott $avx2" => 'Haswell',
    "Prescott $avx512" => 'SkylakeX',
    "Nehalem $avx2" => 'Haswell',
    "Barcelona $avx2" => 'Haswell',
    "Barcelona $sse" => 'none',
    "Nano $avx" => 'Sandybridge',
    "Sandybridge $avx" => 'none',
    "Sandybridge $avx2" => 'Haswell',
    "Piledriver $avx" => 'none',
    "Steamroller $avx2" => 'Haswell',
    "Haswell $avx2" => 'none',
    "Haswell $avx512" => 'SkylakeX',
    "Zen $avx2" => 'none',
    "Zen $avx512" => 'SkylakeX',
    "Haswell $sse" => 'none',
    "SkylakeX $avx2" => 'none',
    "SkylakeX $avx512" => 'none',
    "Cooperlake $avx512" => 'none',
    "SapphireRapids $avx512" => 'none',
    "Unknown $avx512" => 'none',
    "PRESCOTT $avx512" => 'none',
    "Bobcat $avx" => 'none',
    "neoversen1 $avx512" => 'none',
    "LaterThanAll $avx512" => 'none',
    '' => 'none'
);
my $plain = job([], $program, sort keys %better);
run_jobs([$plain]);
is(said($plain, "'$_'"), $better{$_}, "the rule: '$_'") for sort keys %better;

# ---- a right choice stays ----
my ($core, $vectors) = (said($plain, 'in use'), said($plain, 'processor'));
my $best = $better{"Prescott $vectors"};
my $nobody = job(['CHOICE=Prescott', 'OPENBLAS_CORETYPE=Prescott'], $program);
run_jobs([$nobody]);
my $why =
      $core eq 'none' ? 'this BLAS is not OpenBLAS'
    : $best eq 'none' ? 'this processor has no newer vectors'
    : loaded($nobody) !~ /^Prescott/ ? 'this OpenBLAS does not choose when it is loaded'
    : undef;
my @launch = ('tools/launch', '-e', 2);
SKIP: {
    skip $why, 1 if $why;
    skip "OpenBLAS's choice is not right here: " . loaded($plain), 3
        if $better{"$core $vectors"} && $better{"$core $vectors"} ne 'none';
    my $titled = job([], @launch, $lesson);
    run_jobs([$titled]);
    is(loaded($titled), $core, "$core, which OpenBLAS chooses here, stays")
        or diag(complain($titled));
    is(advised($titled), '', 'the title has no hint') or diag(complain($titled));
}

# ---- tools/launch sets better kernels; without it a program prints the variable to set ----
SKIP: {
    skip $why, 1 if $why;
    my @bad = ('CHOICE=Prescott');
    my $bare = job(\@bad, $lesson, '--emulate', 2);
    my $virtual = job(\@bad, @launch, $lesson);
    my @other = map { job([@$_], @launch, $lesson) } ["OPENBLAS_CORETYPE=$best"],
        ['OPENBLAS_CORETYPE=Prescott', @bad];
    my $processes = job(\@bad, 'tools/launch', 2, $lesson);
    my $test = job(\@bad, @launch, $program);
    my $foreign = job(\@bad, 'tools/launch', '-e', 0, 'env');
    run_jobs([$bare, $virtual, @other, $test, $foreign, have_mpi() ? $processes : ()]);
    is(loaded($bare), 'Prescott', 'a program started without tools/launch keeps the old kernels')
        or diag(complain($bare));
    is(
        advised($bare),
        "Prescott kernels (faster: OPENBLAS_CORETYPE=$best)",
        'a program started without tools/launch prints the variable to set'
    );
    is($bare->{status}, 0, 'a program started without tools/launch passes');
    is(loaded($virtual), $best, 'a lesson with virtual ranks gets better kernels')
        or diag(complain($virtual));
    is(advised($virtual), '', 'a lesson with virtual ranks prints no hint');
    is($virtual->{status}, 0, 'a lesson with virtual ranks passes') or diag(complain($virtual));
    is(said($test, 'in use'), $best, 'a test program gets better kernels') or diag(complain($test));
    unlike($foreign->{out}, qr/OPENBLAS_CORETYPE/, "a program of another tree gets no setting");
    my ($digest, $wanted) = map { ($_->{out} =~ /digest (\w+)/)[0] } $virtual, $other[0];
    is($digest, $wanted, "tools/launch gives the bits of OPENBLAS_CORETYPE=$best");
    is(loaded($other[0]), $best, "a user may set OPENBLAS_CORETYPE=$best");
    is(loaded($other[1]), 'Prescott', "OPENBLAS_CORETYPE=Prescott of the user stays");
    is(advised($other[1]), '', "OPENBLAS_CORETYPE=Prescott of the user gives no hint");
SKIP: {
        skip 'no mpirun', 4 unless have_mpi();
        is(loaded($processes), "$best $best", 'both processes of mpirun get better kernels')
            or diag(complain($processes));
        is(advised($processes), '', 'rank 0 prints no hint');
        is($processes->{status}, 0, 'processes of mpirun pass') or diag(complain($processes));
        is(($processes->{out} =~ /digest (\w+)/)[0],
            $digest, 'processes of mpirun give the same bits');
    }
}

# ---- an OpenBLAS without the better kernels keeps its own ----
SKIP: {
    skip $why, 1 if $why;
    my ($lacking, $unmoved) =
        map { job(['CHOICE=Prescott', "ANSWER=$_"], @launch, $lesson) } qw(NoSuchKernels Prescott);
    my $old = job(['CHOICE=Sandybridge', 'ANSWER=Prescott'], @launch, $program);
    run_jobs([$lacking, $unmoved, $old]);
    is(() = loaded($lacking) =~ /\w+/g,
        1, 'an OpenBLAS that does not know the name chooses by itself')
        or diag(complain($lacking));
    is(loaded($unmoved), 'Prescott', 'OpenBLAS has no better kernels: its own choice stays')
        or diag(complain($unmoved));
    is($_->{status}, 0, 'the program passes with the kernels of OpenBLAS')
        or diag(complain($_))
        for $lacking, $unmoved;
    skip 'Sandybridge is right for this processor', 1 if $vectors < $avx2;
    is(loaded($old), 'Sandybridge',
        'old kernels stay if OpenBLAS answers a better name with worse kernels');
}

# ---- make doctor shows the kernels of programs ----
SKIP: {
    skip $why, 1 if $why;
    my ($doctor, $demanded) = map { job(['CHOICE=Prescott', @$_], 'tools/doctor') } [],
        ['OPENBLAS_CORETYPE=Prescott'];
    run_jobs([$doctor, $demanded]);
    like($doctor->{out},
        qr/^found +BLAS .*kernels for $best \(tools\/launch sets OPENBLAS_CORETYPE\)$/m,
        'make doctor')
        or diag($doctor->{out}, $doctor->{err});
    like(
        $demanded->{out},
        qr/^found +BLAS .*kernels for Prescott, as OPENBLAS_CORETYPE demands; they are older .*$best$/m,
        "make doctor says when the user's kernels are older than the processor"
    ) or diag($demanded->{out}, $demanded->{err});
}
done_testing();
