#!/usr/bin/perl
# Tests BACKEND=cuda as far as a machine without a GPU allows. Lessons of every chapter run on the
# stand-ins for CUDA (tests/standin), with virtual ranks, and as processes with NCCL. With
# TEST_ALL=1 the processes also share a GPU. A lesson must get the verdicts of the CPU. If nvcc is
# installed, it must build a lesson, and with TEST_ALL=1 or on a machine with a GPU all programs.
# With a GPU the lessons also run on the GPU.
# slow: products on the stand-ins are plain loops, and nvcc compiles the kernels
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Gpu;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{
    qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES NP ARGS PRECISION BACKEND SANITIZE STANDIN ARCH)};

# ways to run as processes. The stand-ins have as many GPUs as requested.
my @any = have_mpi ? { name => 'as processes', transport => qr/^(staged|nccl)$/ } : ();
my @gpus = (qw(env STANDIN_GPUS=8 tools/launch));
my @both = (
    @any,
    have_mpi
    ? {
        name => 'by NCCL',
        transport => qr/^nccl$/,
        options => [qw(--transport nccl)],
        env => [@gpus[0, 1]]
        }
    : ()
);

sub mpi_nccl {
    my $job = mpi(@_, qw(--transport nccl));
    return { %$job, words => [@gpus[0, 1], @{ $job->{words} }] };
}
my @precisions = $all ? qw(fp32 fp64) : qw(fp32);

# ---- 1. the stand-ins ----
for my $precision (@precisions) {
    my $build = "standin-$precision";
    outputs_on($build);

    # make test builds these lessons for the stand-ins, and runs every fourth of them with NCCL.
    # TEST_ALL=1 runs every lesson, with NCCL and staged.
    my @keys = $all ? () : qw(01-02 02-03 03-06 04-03 05-02 06-04 07-03 08-01);
    lessons_on($build, 'standin', \@keys,
        $all ? @both : map { +{ %$_, every => 4 } } grep { $_->{name} eq 'by NCCL' } @both);

    # The lessons run the layers, whose ops library_on() tests. So only TEST_ALL=1 runs the test of
    # the layers.
    library_on($build, $all ? undef : 'layers');
    storage_on($build, 'standin', @both);
    trainer_on(
        $build,
        [\&emu, 4, qw(--dp 2 --tp 2)],
        [\&emu, 4, qw(--pp 2 --dp 2 --zero 3 --storage fp16 --gradients stored)]
    );
    trainer_on(
        $build,
        [\&mpi, 4, qw(--tp 2 --pp 2)],
        [\&mpi_nccl, 8, qw(--layers 4 --batch 8 --dp 2 --tp 2 --pp 2 --storage bf16)]
    ) if have_mpi;
}

# ---- 2. impossible requests: the status, and one message with the fix ----
my $lesson = '01_data_parallel/02_all_reduce.c';
my $program = program('standin-fp32', $lesson);
my @rejected = (
    [
        'no GPU', 2, qr/there is none here .*leave BACKEND=cuda out/,
        'env', 'STANDIN_GPUS=0', $program
    ],
    [
        'a transport of the CPU',
        2, qr/--transport mpi: expected one of emu\|staged\|nccl/,
        $program, qw(--transport mpi)
    ],
    [
        'a transport of GPUs',
        2,
        qr/--transport nccl: expected one of emu\|mpi$/m,
        program('cpu-fp32', $lesson),
        qw(--transport nccl)
    ],
    [
        'staged without processes',
        2, qr/--transport staged needs processes: start it as `mpirun/,
        $program, qw(--transport staged)
    ],
    [
        'staged and emulated',
        2, qr/virtual ranks, but --transport staged needs processes: leave one/,
        $program, qw(--transport staged --emulate 2)
    ],
    [
        'too small a GPU', 3,
        qr/out of memory: \d+ bytes .*; choose fewer ranks/, 'env',
        'STANDIN_MEMORY=1000000', $program
    ],
    [
        'a kernel that fails',
        3, qr/cudaMemcpyAsync failed: .*the last op launched is op_\w+; .*compute-sanitizer/,
        'env', 'STANDIN_KERNEL_ERROR=500', $program
    ],
);
push @rejected,
    [
    'more ranks than GPUs',
    2, qr/--transport nccl needs a GPU for every rank, .*--transport staged/,
    'tools/launch', 4, $program, qw(--transport nccl)
    ],
    [
    'a kernel that fails, of processes', 3,
    qr/the last op launched is op_\w+/, 'env',
    'STANDIN_KERNEL_ERROR=500', 'tools/launch',
    4, $program
    ]
    if have_mpi;
for my $case (@rejected) {
    my ($name, $status, $words, @command) = @$case;
    my ($job) = run_jobs([{ words => \@command }]);
    is($job->{status}, $status, "$name: status $status") or diag(complain($job));
    like($job->{err}, $words, "$name: the message");
}
{
    my ($job) = run_jobs([{ words => ['env', 'UNSPLIT_KERNELS=ask', $program] }]);
    is("$job->{status} $job->{out}", '0 ', 'tools/kernels gets an answer, and no lesson runs');
}
{
    my ($job) =
        run_jobs([{ words => [$program, '--verbose', '--tf32', '--json', "$work/tf32.json"] }]);
    like(
        $job->{out},
        qr/^\[.*\] standin, emu, fp32 with products in tf32, /,
        '--tf32: the title names tf32'
    );
    is($job->{status}, 1, '--tf32: the checks fail');
    my ($plain, $allowed) = run_jobs(
        [emu(4, $program), { json => 1, words => ['env', 'NVIDIA_TF32_OVERRIDE=1', $program] }]);
    is($allowed->{status}, 0, 'TF32 that only the environment allows: the checks hold')
        or diag(complain($allowed));
    is(
        $allowed->{page}{digest},
        $plain->{page}{digest},
        'TF32 that only the environment allows: the same bits'
    );
    my ($title) = run_jobs(
        [
            {
                words => [
                    'env', 'STANDIN_GPUS=4', 'tools/launch', 4, $program,
                    qw(--verbose --transport staged)
                ]
            }
        ]
    );
    like(
        $title->{out},
        qr/standin, staged, fp32, 4 ranks \(processes: --transport staged\)/,
        '--transport staged works even with enough GPUs for NCCL'
    ) if have_mpi;
}

# ---- 3. NCCL: the bits of virtual ranks, its error messages, lost ranks ----
SKIP: {
    skip 'no mpirun', 1 unless have_mpi;
    my $comm = program('standin-fp32', 'tests/test_comm.c');
    for my $case ([1], [3], $all ? ([2], [8]) : (), [4, '--fast']) {
        my ($ranks, @fast) = @$case;
        my ($nccl, $emu) = run_jobs(
            [
                { words => [@gpus, $ranks, $comm, @fast] },
                @fast ? () : { words => ['tools/launch', '-e', $ranks, $comm] }
            ]
        );
        ok(
            $nccl->{status} == 0
                && $nccl->{out} =~ /^# nccl, $ranks ranks/
                && $nccl->{out} !~ /^not ok/m,
            "test_comm, $ranks ranks @fast"
        ) or diag(complain($nccl), grep { /^not/ } split /^/, $nccl->{out});
        next if @fast;
        my ($bits, $same) = map { /^(# bits .*)/m } $nccl->{out}, $emu->{out};
        is($bits, $same, "the bits of virtual ranks, $ranks ranks");
    }
    my @cases = (
        [mismatch => qr/calls do not match in (all-reduce on|broadcast from rank 0 of) world/],
        [
            count =>
                qr/calls do not match in broadcast|broadcast of 4 float32.* meets broadcast of 5/
        ],
        [
            'other-element' =>
                qr/calls do not match in all-reduce|of 4 (float32|bfloat16).* meets all-reduce of 4/
        ],
        [root => qr/calls do not match in broadcast|root 0 meets .*root 1|root 1 meets .*root 0/],
        [missing => qr/waited $wait s in (recv from rank 1 of|all-reduce on) world/],
        [deadlock => qr/waited $wait s in (recv from rank|end-of-run barrier)/],
        [rendezvous => qr/waited $wait s in (send to rank|end-of-run barrier)/],
        [short => qr/the message has 16 bytes|of 5 float32 meets message of 4/],
        [long => qr/the message has 20 bytes|of 4 float32 meets message of 5/],
        [
            unreceived => qr/send to rank 1 of world .* was started and never waited for/
        ],
        ['never-arrives' => qr/waited $wait s in (recv from rank 1|end-of-run barrier)/],
        ['unwaited-recv' => qr/recv from rank 0 of world .* never waited for/],

        # The message may follow another line, because another rank may report first that rank 2 is
        # gone.
        [
            'changed-late' =>
                qr/^\[rank 2\] the input of all-reduce on world .* was changed before comm_wait$/m
        ],
        [
            'sent-changed' =>
                qr/^\[rank 0\] the input of send to rank 1 .* was changed before comm_wait$/m
        ],
        [killed => qr/signal 9/],
    );
    my @jobs = map {
        { words => [@gpus, 3, $comm, '--timeout', $_->[1] =~ /waited/ ? $wait : $hang, $_->[0]] }
    } @cases;
    my @ran = run_jobs(\@jobs, at_once => 4);    # more than usual, because some jobs only wait
    for (map { [$cases[$_], $ran[$_]] } 0 .. $#ran) {
        my ($case, $job) = @$_;
        is($job->{status}, 3, "NCCL, $case->[0]: status 3") or diag(complain($job));
        like($job->{err}, $case->[1], "NCCL, $case->[0]: the message");
    }
    for (
        [
            'an error that NCCL reports',
            'STANDIN_NCCL_ERROR=5',
            qr/all-reduce on world .* failed: .*NCCL_DEBUG/
        ],
        ['a rank that dies', 'STANDIN_NCCL_DIE=5', qr/signal 9/]
    ) {
        my ($name, $how, $words) = @$_;
        my ($job) = run_jobs(
            [
                {
                    words => [
                        'env', $how, @gpus[1 .. $#gpus],
                        4, $program, qw(--transport nccl --timeout), $hang
                    ]
                }
            ]
        );
        is($job->{status}, 3, "NCCL, $name: status 3") or diag(complain($job));
        like($job->{err}, $words, "NCCL, $name: the message");
    }
}

# ---- 4. nvcc ----
SKIP: {
    # This part runs only if the probes of make doctor find the CUDA Toolkit.
    system('sh -c ". tools/probes.sh; probe_cuda" >/dev/null 2>&1') == 0
        or skip 'no CUDA Toolkit here (make doctor)', 1;
    my $build = 'cuda-test-fp32';
    my $began = time;
    my $cuda = program($build, $lesson);

    # Without TEST_ALL=1 only this lesson is compiled, with -O1. The lesson's libraries have all
    # files with kernels.
    my $make = "make --no-print-directory BACKEND=cuda STRICT=yes ARCH=80 O=build/$build"
        . ($all ? '' : ' OPTIMIZE-cuda=-O1');
    my $log = $all ? `$make 2>&1` : `$make programs ONLY=$cuda 2>&1`;
    is($?, 0, 'nvcc and the C compiler build without a warning') or diag($log), last SKIP;
    my @kernels = split ' ', `grep -lE '^ +FOR_EACH(_PART)?.[a-z]' common/tensor/*.c [0-9]*/*.c`;
    ok(-e "build/$build/" . s/\.c$/.o/r, "nvcc compiles $_") for @kernels;
    note(sprintf 'built in %d s', time - $began);
    my ($help) = run_jobs([{ words => [$cuda, '--help'] }]);
    like($help->{out}, qr/--transport emu\|staged\|nccl .*--tf32 /s, '--help needs no GPU');
    my ($job) = run_jobs([emu(4, $cuda)]);

    if ($job->{status} != 2 || $job->{err} !~ /there is none here/) {
        is(system("$make >/dev/null 2>&1"), 0, 'everything builds');
        outputs_on($build);
        lessons_on($build, 'cuda', [], @any);
        library_on($build);
        last SKIP;
    }
    my ($page) = run_jobs([{ words => ['tools/run-lesson', "build/$build", 'run', '01-02'] }]);
    is($page->{status}, 2, 'without a GPU: status 2, also as processes') or diag(complain($page));
    like(
        $page->{err},
        qr/^unsplit: this program was built for GPUs, and there is none here .* leave BACKEND=cuda out$/m,
        'without a GPU: the message names the fix'
    );
    is(scalar(() = $page->{err} =~ /^unsplit: this/mg), 1, 'said once');
}
done_testing();
