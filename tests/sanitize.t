#!/usr/bin/perl
# Runs the trainer and two lessons, emulated, under sanitizers: addresses, undefined behaviour and
# leaks. TEST_ALL=1 runs every lesson, and looks for data races, too. First each sanitizer must find
# a planted mistake. Emulated ranks must run without MPI, whose own leaks and races would be
# reported.
# slow: the test builds the trainer and its libraries once more
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES NP ARGS PRECISION BACKEND SANITIZE)};
my $compiler = $ENV{OMPI_CC} || 'gcc';
{
    open my $f, '>', "$work/text" or die;
    print $f substr slurp('build/text.txt'), 0, 4000;
    close $f or die;
}

sub compiles {
    my ($name, $text, @flags) = @_;
    open my $f, '>', "$work/$name.c" or die;
    print $f $text;
    close $f or die;
    return system($compiler, '-g', @flags, '-o', "$work/$name", "$work/$name.c") == 0;
}

# ---- no MPI in emulated runs ----
my $train = program_of('fp32', '08_3d/train.c');
my @small = (
    qw(--layers 4 --width 16 --heads 4 --context 8 --batch 6 --micro-batch 1 --steps 3 --check
        --data),
    "$work/text"
);
SKIP: {
    skip "$train is not built", 2 unless -x $train;
    my $text =
          "#include <stdlib.h>\n#include <unistd.h>\nint MPI_Init_thread(int *n, char ***v, int "
        . "want, int *got) { (void)n; (void)v; (void)want; (void)got; _exit(99); }\n";
    skip 'no shared library can be made', 2 unless compiles('no_mpi.so', $text, qw(-shared -fPIC));
    my @preload = ('env', "LD_PRELOAD=$work/no_mpi.so");
    my $emulated = { words => [@preload, $train, @small, qw(--emulate 4)] };
    my $process =
        { words => [@preload, 'OMPI_COMM_WORLD_RANK=0', 'OMPI_COMM_WORLD_SIZE=1', $train, @small] };
    run_jobs([$emulated, $process]);
    is($emulated->{status}, 0, 'an emulated run does not start MPI') or diag(complain($emulated));
    is($process->{status}, 99, 'a process of mpirun starts MPI');
}

# ---- under a sanitizer ----
my %mistake = (
    'address' => [
        'address,undefined',
        "#include <stdlib.h>\nint main(int n, char **v) "
            . "{ (void)v; char *p = malloc(8); p[7 + n] = 1; return p[0]; }\n"
    ],
    'leak' => [
        'address,undefined',
        "#include <stdlib.h>\nvoid *volatile p;\nint main(void) "
            . "{ p = malloc(8); p = 0; return 0; }\n"
    ],
    'undefined' => [
        'address,undefined',
        "#include <limits.h>\nint main(int n, char **v) "
            . "{ (void)v; volatile int x = INT_MAX; x += n; return 0; }\n"
    ],
    'thread' => [
        'thread',
        "#include <pthread.h>\nint x;\nstatic void *run(void *p) { x++; return p; }\n"
            . "int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); x++; pthread_join(t, 0); return 0; }\n"
    ],
);
my @lessons = lessons();
my @sample = grep { $all || $_->{key} =~ /^(03-02|05-02)$/ } @lessons;
for my $sanitizer ('address,undefined', $all ? 'thread' : ()) {
    my @flags = ("-fsanitize=$sanitizer", '-fno-sanitize-recover=all', '-pthread');
    my @controls;
    for my $what (grep { $mistake{$_}[0] eq $sanitizer } sort keys %mistake) {
        next
            unless ok(
            compiles("mistake_$what", $mistake{$what}[1], @flags),
            "$sanitizer: the compiler has this sanitizer"
            );
        push @controls,
            { words => ['tools/launch', '-e', 0, "$work/mistake_$what"], what => $what };
    }
    run_jobs(\@controls);
    is($_->{status}, 3, "$sanitizer: a mistake ($_->{what}) is reported as a fault")
        or diag($_->{err})
        for @controls;

    my $build = 'fp32' . ($sanitizer eq 'thread' ? '-tsan' : '-asan');
    my %program = map { $_->{key} => program_of($build, $_->{source}) } @sample,
        { key => '08-train', source => '08_3d/train.c' };
    my $made = {
        words => [
            'make', '-j2',
            '--no-print-directory', "SANITIZE=$sanitizer",
            qw(STRICT=yes programs), "ONLY=@program{sort keys %program}"
        ]
    };
    run_jobs([$made]);
    is($made->{status}, 0, sprintf '%s: the build, %.0f s', $sanitizer, $made->{seconds})
        or diag($made->{out}, $made->{err});
    my @jobs =
        map { my $job = emu($_->{ranks}, $program{ $_->{key} }); $job->{what} = $_->{key}; $job }
        @sample;

    for my $case (
        '--dp 2 --tp 2 --pp 2 --zero 3 --recompute full',
        '--dp 3 --tp 1 --pp 2 --zero 2 --schedule gpipe',
        '--dp 2 --tp 4 --pp 1 --zero 1',
        '--dp 1 --tp 2 --pp 4 --recompute selective --schedule naive'
    ) {
        my ($dp, $tp, $pp) = $case =~ /(\d) --tp (\d) --pp (\d)/;
        my $job = emu(
            $dp * $tp * $pp,
            $program{'08-train'}, @small, split(' ', $case),
            '--export', "$work/$dp$tp$pp"
        );
        $job->{what} = "train $case";
        push @jobs, $job;
    }
    run_jobs(\@jobs);
    ok($_->{status} == 0 && $_->{err} eq '', "$sanitizer: $_->{what}")
        or diag(complain($_))
        for @jobs;
}
done_testing();
