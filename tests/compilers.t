#!/usr/bin/perl
# Tests other compilers and MPICH, if they are installed. Each must build the library and a lesson
# without a warning, and the lesson must give the same bits. TEST_ALL=1 builds all programs.
# Also tests when a warning ends the build, and when objects are rebuilt.
# slow: each compiler builds the library
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Cwd qw(abs_path);
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{
    qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES NP ARGS PRECISION BACKEND SANITIZE CC MPIRUN)};
my @lessons = ('03_tensor_parallel/06_transformer', $all ? '04_pipeline_naive/03_gpipe' : ());
for (@lessons) { plan skip_all => "build/cpu-fp32/$_ is not built" unless -x "build/cpu-fp32/$_" }

sub found {
    my ($name) = @_;
    return (grep { -x } map { "$_/$name" } split /:/, $ENV{PATH})[0];
}

sub make {
    my $job = { words => ['make', '--no-print-directory', @_] };
    run_jobs([$job]);
    return $job;
}

sub spew {
    my ($file, $text) = @_;
    open my $f, '>', $file or die "$file: $!";
    print $f $text;
    close $f or die;
}

# Builds the lessons in this folder, or with TEST_ALL=1 all programs. Returns true on success.
sub builds {
    my ($name, $folder, @settings) = @_;
    my @programs = $all ? () : ("ONLY=@{[map { qq($folder/$_) } @lessons]}");
    my $job = make('-j2', 'STRICT=yes', "O=$folder", @settings, @programs, 'programs');
    return ok(
        $job->{status} == 0 && "$job->{out}$job->{err}" !~ /warning:/,
        sprintf '%s: builds without a warning, %.0f s',
        $name, $job->{seconds}
    ) || diag(complain($job)) && 0;
}

sub same_bits {
    my ($name, $job, $default) = @_;
    ok($job->{status} == 0 && $job->{page}{pass}, "$name: all checks hold") or diag(complain($job));
    is(
        $job->{page}{digest},
        $default->{page}{digest} // 'the digest of the default build',
        "$name: the bits of the default build"
    );
}

# ---- compilers ----
my $default = abs_path(found($ENV{OMPI_CC} || 'gcc') // die 'no compiler');
my (%seen, %default_run) = ($default => 'the default');
for my $lesson (@lessons) { ($default_run{$lesson}) = run_jobs([emu(4, "build/cpu-fp32/$lesson")]) }
my %number = map { /(\w+)-(\d+)$/ && $2 >= ($1 eq 'gcc' ? 11 : 14) ? ("$1-$2" => $2) : () }
    map { glob "$_/gcc-[0-9]* $_/clang-[0-9]*" } split /:/, $ENV{PATH};
my @installed =
    sort { $a =~ s/\d+//r cmp $b =~ s/\d+//r || $number{$a} <=> $number{$b} } keys %number;
for my $compiler (@installed, grep { !$number{$_} } qw(gcc-11 gcc-12 gcc-13 gcc-14 gcc clang)) {
SKIP: {
        my $path = found($compiler) or skip "$compiler: not installed", 1;
        my $same = $seen{ abs_path($path) };
        skip "$compiler: the same program as $same", 1 if $same;
        $seen{ abs_path($path) } = $compiler;
        my $folder = "$work/$compiler";
        builds($compiler, $folder, "OMPI_CC=$compiler", "MPICH_CC=$compiler") or next;
        for my $lesson (@lessons) {
            my ($job) = run_jobs([emu(4, "$folder/$lesson")]);
            same_bits("$compiler, $lesson", $job, $default_run{$lesson});
        }
    }
}

# ---- MPICH beside Open MPI ----
SKIP: {
    found($_) or skip "MPICH: there is no $_", 1 for qw(mpicc.mpich mpirun.mpich);
    builds('MPICH', "$work/mpich", 'CC=mpicc.mpich')
        or skip 'the lessons do not build with MPICH', 1;
    for my $lesson (@lessons) {
        my ($emulated) = run_jobs([emu(3, "build/cpu-fp32/$lesson")]);
        my $job = mpi(3, "$work/mpich/$lesson");
        unshift @{ $job->{words} }, qw(env MPIRUN=mpirun.mpich);
        run_jobs([$job]);
        same_bits("MPICH, $lesson, 3 processes", $job, $emulated);
        is($job->{page}{ranks}, 3, "MPICH, $lesson: the processes know of each other");
    }
    skip 'no other mpirun', 1
        if !have_mpi() || abs_path(found('mpirun')) eq abs_path(found('mpirun.mpich'));
    for my $mixed (
        ["$work/mpich/$lessons[0]", 'mpirun of another MPI', []],
        [
            "build/cpu-fp32/$lessons[0]", 'mpirun.mpich, for a program of another MPI',
            [qw(env MPIRUN=mpirun.mpich)]
        ]
    ) {
        my ($program, $name, $before) = @$mixed;
        my $job = { words => [@$before, 'tools/launch', 3, $program] };
        run_jobs([$job]);
        is($job->{status}, 2, "$name: status 2, not as many worlds of one process")
            or diag(complain($job));
        like(
            $job->{err},
            qr/^unsplit: the launcher started 3 processes, but .*make CC=mpicc\.mpich MPIRUN=mpirun\.mpich$/m,
            "$name: the fix"
        );
        is($job->{out}, '', "$name: no page");
    }
}

# ---- objects belong to one compiler and one MPI ----
{
    my @object = ("O=$work/anew", "ONLY=$work/anew/common/base/util.o", 'programs');
    my $anew = sub {
        my ($compiled, $what, @how) = @_;
        is(make(@how, @object)->{out} =~ tr/\n//, $compiled, $what);
    };
    $anew->(1, 'an object is built');
    $anew->(0, 'an unchanged object is not built again');
    $anew->(0, 'STRICT=yes builds no object again', 'STRICT=yes');

    # A second wrapper, also named mpicc, reports another MPI, and later another version of the
    # compiler.
    mkdir "$work/bin";
    my $mpicc = found('mpicc');
    spew("$work/bin/mpicc",
        qq(#!/bin/sh\n[ "\$1" != -show ] || echo "gcc -I/of/another/mpi"\nexec $mpicc "\$@"\n));
    chmod 0755, "$work/bin/mpicc";
    {
        local $ENV{PATH} = "$work/bin:$ENV{PATH}";
        $anew->(1, 'another MPI behind mpicc: all objects are rebuilt');
    }
    spew("$work/bin/mpicc",
        qq(#!/bin/sh\n[ "\$1" != --version ] || { echo "gcc 99"; exit; }\nexec $mpicc "\$@"\n));
    {
        local $ENV{PATH} = "$work/bin:$ENV{PATH}";
        $anew->(1, 'another version of the compiler: all objects are rebuilt');
    }
    $anew->(1, 'the first compiler rebuilds all objects');
}

# ---- a warning ends the build in tests only ----
{
    my $tree = "$work/tree";
    my $program = "build/cpu-fp32/$lessons[0]";
    system('tools/scratch-tree', $tree, 'build/cpu-fp32') == 0 or die;
    spew("$tree/$lessons[0].c", slurp("$lessons[0].c") . "static int nobody_reads_this;\n");
    spew("$tree/tools/run-tests", "#!/bin/sh\necho the tests would run now\n");
    my @here = ('-C', $tree);
    my @lesson = ("ONLY=$program", 'programs');
    my $test = make(@here, 'test');
    ok($test->{status} != 0 && $test->{err} =~ /error: .*nobody_reads_this/,
        'make test: a warning ends the build')
        or diag(complain($test));
    unlike(
        $test->{out},
        qr/the tests would run now/,
        'make test: a warning ends the build before the tests'
    );
    my $plain = make(@here, @lesson);
    ok($plain->{status} == 0 && $plain->{err} =~ /warning: .*nobody_reads_this/,
        'make: a warning does not end the build')
        or diag(complain($plain));
    unlink "$tree/$program.o";
    my $let = make(@here, 'STRICT=yes', 'WERROR=', @lesson);
    is($let->{status}, 0, 'WERROR= : a warning does not end the build') or diag(complain($let));
    unlink "$tree/$program.o";
    spew("$tree/student.mk", "WERROR = -Wno-unused\n");
    my $student = make(@here, 'STRICT=yes', @lesson);
    ok($student->{status} == 0 && $student->{err} !~ /warning/,
        "a student's tree: a variable that an open exercise leaves unused gives no warning")
        or diag(complain($student));
}
done_testing();
