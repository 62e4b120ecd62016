#!/usr/bin/perl
# make test BACKEND=cuda runs this file on a machine with a GPU, in both precisions. The file
# compares most ops with the CPU, and runs the library's tests, the trainer, and every lesson. The
# lessons run with virtual ranks and as processes on every possible transport. NVIDIA's
# compute-sanitizer comes last. STANDIN=yes runs the same on the stand-ins (tests/standin). make
# test without BACKEND=cuda runs tests/cuda.t instead.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Gpu;
use Jobs;
use Test::More;

my $kind = $ENV{TEST_BACKEND}
    or plan skip_all => 'make test BACKEND=cuda runs this test, on a machine with a GPU';
chdir "$FindBin::Bin/.." or die;
my $lesson = (grep { $_->{key} eq '01-02' } lessons())[0]{source};

# ---- the GPU ----
{
    my ($job) = run_jobs([emu(2, program("$kind-fp32", $lesson))]);
    BAIL_OUT($job->{err} =~ s/\n.*//sr) if $job->{status} == 2;
}

# ---- the possible transports ----
# Processes may share a GPU, but NCCL needs one GPU per rank. The stand-ins have as many GPUs as
# requested.
my @nccl_ranks = $kind eq 'standin' ? 1 .. 8 : grep {
    my ($job) = run_jobs([mpi($_, program("$kind-fp32", $lesson), qw(--transport nccl))]);
    $job->{err} !~ /needs a GPU for every rank|needs NCCL|nccl: /;
} 2, 3, 4, 6, 8 if have_mpi;
my $most = $nccl_ranks[-1] || 0;
note(
    have_mpi
    ? "emu, staged; nccl for "
        . ($most ? "up to $most ranks" : 'no lesson, for want of a GPU for each rank or of NCCL')
    : 'emu only: no mpirun here'
);
my @ways = ({ name => 'staged', transport => qr/^staged$/, options => [qw(--transport staged)] });
push @ways,
    {
    name => 'nccl',
    transport => qr/^nccl$/,
    options => [qw(--transport nccl)],
    most => $most,
    env => $kind eq 'standin' ? ['env', 'STANDIN_GPUS=8'] : []
    }
    if $most > 1;
@ways = () unless have_mpi;

for my $precision (qw(fp32 fp64)) {
    my $build = "$kind-$precision";
    outputs_on($build);
    library_on($build);
    lessons_on($build, $kind, [], @ways);
    storage_on($build, $kind, @ways);

    # comm_on() passes no --transport. Processes then choose NCCL if there are enough GPUs.
    comm_on($build, $ways[-1], $most > 1 ? grep { $_ > 1 && $_ <= 4 } @nccl_ranks : (2, 3))
        if @ways;
    trainer_on(
        $build,
        map { [\&emu, split ' '] } '1',
        '4 --dp 2 --tp 2',
        '4 --pp 2 --dp 2 --zero 3',
        '8 --dp 2 --tp 2 --pp 2 --recompute full --schedule gpipe'
    );
    trainer_on(
        $build,
        [\&mpi, 4, qw(--tp 2 --pp 2 --transport staged)],
        [\&mpi, 4, qw(--dp 2 --tp 2 --zero 2 --transport staged)]
    ) if have_mpi;
    trainer_on($build, [\&mpi, 4, qw(--tp 2 --pp 2 --transport nccl)])
        if $most >= 4 && $kind ne 'standin';
}

# ---- compute-sanitizer ----
# The programs run with virtual ranks, because NCCL's kernels are not part of this tree. racecheck
# examines shared memory, which our kernels do not use, so without TEST_ALL=1 one lesson is enough.
sub sanitizer {
    my ($nvcc) = slurp('build/tools-cuda.mk') =~ /^NVCC = (\S+)/m;
    my $beside = ($nvcc // '') =~ s{[^/]*$}{compute-sanitizer}r;
    return (grep { -x $_ } $beside, map { "$_/compute-sanitizer" } split /:/, $ENV{PATH})[0];
}
my @sample =
    $all ? lessons() : grep { $_->{key} =~ /^(01-02|01-06|03-06|05-02|06-04|07-02)$/ } lessons();
if ($kind eq 'standin') {

    # With STANDIN_CHECK=1 the stand-in looks for stray writes after every kernel. The stand-in's
    # other checks (poison, bounds) run in every test.
    for my $job (
        run_jobs(
            [
                map {
                    my $job = emu($_->{ranks}, program('standin-fp32', $_->{source}));
                    +{
                        words => ['env', 'STANDIN_CHECK=1', @{ $job->{words} }],
                        what => $_->{key}
                    }
                } @sample
            ]
        )
    ) {
        ok($job->{status} == 0 && $job->{err} eq '', "stray writes: $job->{what}")
            or diag(complain($job));
    }
}
SKIP: {
    my $sanitizer = sanitizer();
    skip 'compute-sanitizer is for a GPU', 1 if $kind eq 'standin';
    skip 'no compute-sanitizer here: a part of the CUDA Toolkit of its own, such as '
        . 'cuda-sanitizer-13-0', 1
        unless $sanitizer;
    my @jobs;
    for my $tool (qw(memcheck initcheck racecheck)) {
        push @jobs, map {
            {
                words => [
                    $sanitizer, '--tool', $tool,
                    qw(--error-exitcode 66),
                    program('cuda-fp32', $_->{source}),
                    qw(--timeout 600 --emulate),
                    $_->{ranks}
                ],
                what => "$tool: $_->{key}",
            }
        } $tool eq 'racecheck' && !$all ? $sample[0] : @sample;
    }
    run_jobs(\@jobs, at_once => 1);
    ok($_->{status} == 0, $_->{what}) or diag(complain($_)) for @jobs;
}
done_testing();
