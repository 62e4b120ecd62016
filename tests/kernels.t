#!/usr/bin/perl
# The right BLAS kernels however a program is started: the rule on made-up processors, and programs in which OpenBLAS is made
# to choose badly (tests/openblas_choice.c). With OPENBLAS_VERBOSE=2 OpenBLAS itself says what it loads, at every start.
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

# A job with OpenBLAS talking, and with settings for it. A program that starts again and again is ended.
my @limited = qw(timeout 600 env OPENBLAS_VERBOSE=2 OMP_WAIT_POLICY=passive);     # set: for that a program would start again, too
sub job { my ($settings, @words) = @_; return { words => [@limited, "LD_PRELOAD=$library", @$settings, @words] } }
sub loaded { return join ' ', $_[0]{err} =~ /^Core: (\w+)$/mg }
sub said { my ($job, $what) = @_; return ($job->{out} =~ /^\Q$what\E: (.*)$/m)[0] // '(nothing)' }
sub mended { return join '; ', ($_[0]{out} =~ s/\s+/ /gr) =~ /(\w+ kernels \(.*?\))/g }

# ---- the rule ----
my ($sse, $avx, $avx2, $avx512) = 0 .. 3;
my %better = (
    "Prescott $sse" => 'none', "Prescott $avx" => 'Sandybridge', "Prescott $avx2" => 'Haswell', "Prescott $avx512" => 'SkylakeX',
    "Nehalem $avx2" => 'Haswell', "Barcelona $avx2" => 'Haswell', "Barcelona $sse" => 'none', "Nano $avx" => 'Sandybridge',
    "Sandybridge $avx" => 'none', "Sandybridge $avx2" => 'Haswell', "Piledriver $avx" => 'none', "Steamroller $avx2" => 'Haswell',
    "Haswell $avx2" => 'none', "Haswell $avx512" => 'SkylakeX', "Zen $avx2" => 'none', "Zen $avx512" => 'SkylakeX',
    "Haswell $sse" => 'none', "SkylakeX $avx2" => 'none', "SkylakeX $avx512" => 'none', "Cooperlake $avx512" => 'none',
    "SapphireRapids $avx512" => 'none', "Unknown $avx512" => 'none', "PRESCOTT $avx512" => 'none', "Bobcat $avx" => 'none',
    "neoversen1 $avx512" => 'none', "LaterThanAll $avx512" => 'none', '' => 'none');
my $plain = job([], $program, sort keys %better);
run_jobs([$plain]);
is(said($plain, "'$_'"), $better{$_}, "the rule: '$_'") for sort keys %better;

# ---- the right choice is left alone ----
my ($core, $vectors) = (said($plain, 'in use'), said($plain, 'processor'));
my $best = $better{"Prescott $vectors"};
my $nobody = job(['CHOICE=Prescott', 'OPENBLAS_CORETYPE=Prescott'], $program);
run_jobs([$nobody]);
my $why = $core eq 'none' ? 'this BLAS is not OpenBLAS' : $best eq 'none' ? 'this processor has no newer vectors'
        : loaded($nobody) !~ /^Prescott/ ? 'this OpenBLAS does not choose when it is loaded' : undef;
SKIP: {
    skip $why, 1 if $why;
    skip "it is not right here: " . loaded($plain), 3 if loaded($plain) =~ / /;
    my $titled = job([], $lesson);
    run_jobs([$titled]);
    is(said($plain, 'mended'), 'none', "$core, which OpenBLAS chooses here, stays");
    is(loaded($titled), $core, 'the program starts once');
    is(mended($titled), '', 'and its title does not speak of it') or diag(complain($titled));
}

# ---- a bad one is mended, however the program is started ----
SKIP: {
    skip $why, 1 if $why;
    my @bad = ('CHOICE=Prescott');
    my $title = "$best kernels (OpenBLAS had chosen Prescott)";
    my $bare = job(\@bad, $program, 'two  words', '', "a\nline", "Prescott $avx2");
    my $virtual = job(\@bad, $lesson, '--emulate', 2);
    my @other = map { job([@$_], $lesson, '--emulate', 2) } ["OPENBLAS_CORETYPE=$best"], ['OPENBLAS_CORETYPE=Prescott', @bad];
    my $launched = { words => [@limited, 'tools/launch', 2, 'env', "LD_PRELOAD=$library", @bad, $lesson] };
    run_jobs([$bare, $virtual, @other, have_mpi() ? $launched : ()]);
    is(loaded($bare), "Prescott $best", 'a test program: Prescott is loaded, then better kernels') or diag(complain($bare));
    is(said($bare, 'in use'), $best, 'which are then in use');
    is(said($bare, 'mended'), 'Prescott', 'what OpenBLAS had chosen is remembered');
    is(said($bare, 'OPENBLAS_CORETYPE'), 'none', 'the environment is as it was');
    like($bare->{out}, qr/^'two  words': none\n'': none\n'a\nline': none\n'Prescott $avx2': Haswell\n\z/m, 'so are the arguments');
    is(loaded($virtual), "Prescott $best", 'a lesson with virtual ranks') or diag(complain($virtual));
    is(mended($virtual), $title, 'its title says it, once');
    is(() = $virtual->{out} =~ /OpenBLAS/g, 1, 'and nothing else does');
    is($virtual->{status}, 0, 'it passes') or diag(complain($virtual));
    my ($digest, $wanted, $old) = map { ($_->{out} =~ /digest (\w+)/)[0] } $virtual, @other;
    is($digest, $wanted, "with the bits of OPENBLAS_CORETYPE=$best");
    is(loaded($other[0]), $best, 'which, set by a user, is no second start');
    is(loaded($other[1]), 'Prescott', "OPENBLAS_CORETYPE=Prescott is the user's will");
    is(mended($other[1]), '', 'and nothing is said');
    SKIP: {
        skip 'no mpirun', 4 unless have_mpi();
        is(join(' ', sort split ' ', loaded($launched)), "Prescott Prescott $best $best", 'processes of mpirun: both')
            or diag(complain($launched));
        is(mended($launched), $title, 'rank 0 says it');
        is($launched->{status}, 0, 'they pass') or diag(complain($launched));
        is(($launched->{out} =~ /digest (\w+)/)[0], $digest, 'with the same bits');
    }
}

# ---- what can go wrong goes no further ----
SKIP: {
    skip $why, 1 if $why;
    my $stuck = job(['CHOICE=Prescott', 'NO_EXEC=yes'], $lesson, '--emulate', 2);
    my $lacking = job(['CHOICE=Prescott', 'ANSWER=NoSuchKernels'], $lesson, '--emulate', 2);
    my $unmoved = job(['CHOICE=Prescott', 'ANSWER=Prescott'], $lesson, '--emulate', 2);
    my $old = job(['CHOICE=Sandybridge', 'ANSWER=Prescott'], $program);
    my $same = job(['CHOICE=Prescott', 'NO_EXEC=yes'], $program);
    run_jobs([$stuck, $lacking, $unmoved, $old, $same]);
    is(loaded($stuck), 'Prescott', 'a program that cannot start again goes on');
    is(mended($stuck), '', 'and says nothing');
    is(said($same, 'OPENBLAS_CORETYPE'), 'none', 'with the environment as it was');
    is(() = loaded($lacking) =~ /\w+/g, 2, 'an OpenBLAS without those kernels is asked once');
    is(loaded($unmoved), 'Prescott Prescott', 'so is one that takes the old ones again');
    is(mended($unmoved), '', 'of which nothing is said');
    is($_->{status}, 0, 'it passes') or diag(complain($_)) for $stuck, $lacking, $unmoved;
    skip 'Sandybridge is right for this processor', 3 if $vectors < $avx2;
    is(loaded($old), 'Sandybridge Prescott Sandybridge', 'from a worse choice than the first there is a way back');
    is(said($old, 'mended'), 'none', 'and nothing was mended');
    is(said($old, 'OPENBLAS_CORETYPE'), 'none', 'the environment is as it was');
}

# ---- make doctor shows what programs get ----
SKIP: {
    skip $why, 1 if $why;
    my ($doctor, $demanded) = map { job(['CHOICE=Prescott', @$_], 'tools/doctor') } [], ['OPENBLAS_CORETYPE=Prescott'];
    run_jobs([$doctor, $demanded]);
    like($doctor->{out}, qr/^found +BLAS .*kernels for $best \(OpenBLAS had chosen Prescott\)$/m, 'make doctor')
        or diag($doctor->{out}, $doctor->{err});
    like($demanded->{out}, qr/^found +BLAS .*kernels for Prescott, as OPENBLAS_CORETYPE demands; they are older .*$best$/m,
         "and it says when the user's are older than the processor") or diag($demanded->{out}, $demanded->{err});
}
done_testing();
