#!/usr/bin/perl
# Tests --storage in the lessons. Most lessons with tensors take the option, and all their checks
# and costs must hold in bf16 and in fp16. Processes must have the bits of virtual ranks. The other
# lessons must refuse the option, with a reason. TEST_ALL=1 runs all lessons, and more forms of
# each. Otherwise a third of the lessons is drawn; SEED=N repeats a draw.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use List::Util qw(shuffle);
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $seed = $ENV{SEED} || time % 100000;
diag("SEED=$seed");
srand $seed;

# lessons that refuse, with words of the reason; other lessons must run
my %refuses = (
    '00' => 'finite differences',
    (map { ("0$_-01" => 'plain C arrays') } 1, 2, 3, 6, 7),
    (map { ("0$_-01" => 'has no tensors') } 4, 5),
    '06-06' => 'compares all storages',
    '08-01' => 'has no model',
    '08-02' => 'layouts in reals',
    '08-plan' => '--precision',
    '08-sample' => 'weights in reals',
);

# In these lessons gradients of weights are reals in any storage.
my %main_only = map { $_ => 1 } qw(01-03 01-05 01-06 01-08 01-09 01-10 03-02 03-03 03-04 03-05);
my @lessons = grep { -x program_of('fp32', $_->{source}) } lessons();
my @takes = grep { !$refuses{ $_->{key} } } @lessons;
plan skip_all => 'the lessons are not built' unless @takes;
cmp_ok(scalar @takes, '>=', 20, 'at least 20 lessons take --storage') if @lessons == lessons();

# ---- the lessons, at their own ranks ----
sub gradients { return $main_only{ $_[0]{key} } ? () : ('--gradients', $_[1]) }
my @chosen = $all ? @takes : (shuffle @takes)[0 .. $#takes / 3];
my @forms;
for my $lesson (sort { $a->{key} cmp $b->{key} } @chosen) {
    my ($key, $ranks, $program) =
        (@{$lesson}{qw(key ranks)}, program_of('fp32', $lesson->{source}));
    my $form = sub {
        my ($n, $program, @options) = @_;
        return { name => "$key, $n ranks @options", emu => emu($n, $program, @options) };
    };
    push @forms, $form->($ranks, $program, qw(--storage bf16));
    push @forms, $form->($ranks, $program, qw(--storage fp16), gradients($lesson, 'stored'));
    $forms[-1]{mpi} = mpi($ranks, $program, qw(--storage fp16), gradients($lesson, 'stored'))
        if have_mpi && ($all || $lesson == $chosen[0]);
    next unless $all;
    my $few = $key =~ /^03-(09|10|11)$/ ? 1 : $ranks > 2 ? $ranks - 1 : $ranks;
    push @forms, $form->($few, $program, qw(--storage bf16 --seed 2), gradients($lesson, 'stored'));
    push @forms, $form->($few, $program, qw(--storage fp16 --reduce fast)) if $key ne '01-05';
    my $double = program_of('fp64', $lesson->{source});
    push @forms, $form->($ranks, $double, qw(--storage bf16)) if -x $double;
}
forms_hold(@forms);

# ---- the digest depends on the storage ----
my $program = program_of('fp32', '01_data_parallel/02_all_reduce.c');
my @stored = map { emu(4, $program, '--storage', $_) } qw(real bf16 fp16);
run_jobs([@stored]);
my %digests = map { ($_->{page}{digest} // 'none') => 1 } @stored;
is(scalar(keys %digests), 3, 'reals, bf16 and fp16 give different bits');

# ---- a lesson that stores only reals gives the reason ----
my @rejecting = map {
    +{
        %{ emu($_->{ranks}, program_of('fp32', $_->{source}), qw(--storage bf16)) },
        key => $_->{key}
    }
} grep { $refuses{ $_->{key} } } @lessons;
run_jobs([@rejecting]);
for my $job (@rejecting) {
    my $reason = $refuses{ $job->{key} };
    ok(
        $job->{status} == 2
            && $job->{err} =~ /^unsplit: --storage bf16: .*\Q$reason\E.*; leave the option out$/m,
        "$job->{key} refuses --storage bf16: $reason"
    ) or diag(complain($job));
}
my ($wrong) = run_jobs([emu(4, $program, qw(--storage fp8))]);
like($wrong->{err}, qr/--storage fp8: expected one of real\|bf16\|fp16/, 'another format');
my $test = 'build/cpu-fp32/tests/test_lesson';
my ($plain) = -x $test ? run_jobs([emu(1, $test, qw(--storage bf16))]) : ();
like(
    $plain->{err},
    qr/--storage bf16: this program stores reals only; leave the option out/,
    'a program without the option refuses --storage'
) if $plain;
done_testing;
