# Jobs.pm has functions for the tests in Perl. run_jobs() runs programs, by default two at a time,
# and keeps their output.
package Jobs;
use strict;
use warnings;
use Exporter 'import';
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More ();
use Time::HiRes qw(time);

our @EXPORT = qw(slurp rewrite_tensors last_of_each start run_jobs emu mpi forms_of forms_hold
    before_work lessons meshes program_of have_mpi complain ranks_of $work $all $hang $wait);
our $work = tempdir(CLEANUP => 1);
our $all = $ENV{TEST_ALL} || 0;

# limits in seconds, long because a machine may be busy. A program that runs longer than $hang
# counts as hung. $wait is the --timeout of a run that must time out. $wait is much longer than any
# other wait of a rank.
our ($hang, $wait) = (600, 20);
my $at_once = $ENV{TEST_AT_ONCE} || 2;
my $number = 0;

sub slurp { local $/; open my $f, '<', $_[0] or return ''; return scalar <$f> // '' }

# Copies a safetensors file. $change->($header, \$data) may change the header and the data that
# follow the header. The header is padded to a multiple of 8 bytes.
sub rewrite_tensors {
    my ($from, $to, $change) = @_;
    my $bytes = slurp($from);
    my $length = unpack 'Q<', $bytes;
    my $header = decode_json(substr $bytes, 8, $length);
    my $data = substr $bytes, 8 + $length;
    $change->($header, \$data);
    my $text = JSON::PP->new->canonical->encode($header);
    $text .= ' ' while length($text) % 8;
    open my $f, '>:raw', $to or die "$to: $!";
    print $f pack('Q<', length $text), $text, $data;
    close $f or die "$to: $!";
}

my $mpirun = system('command -v mpirun >/dev/null') == 0;
sub have_mpi { return $mpirun }

# Returns the lessons {key, ranks, source}, without the trainer.
sub lessons {
    my @found;
    for (split /\n/, `tools/lessons`) {
        my ($key, undef, undef, $ranks, undef, undef, $source) = split /\t/;
        push @found, { key => $key, ranks => $ranks, source => $source } unless $key eq '08-train';
    }
    return @found;
}

# Returns all meshes [dp, tp, pp] with dp <= 8, tp <= 4 and pp <= 8.
sub meshes {
    return map {
        my $dp = $_;
        map {
            my $tp = $_;
            map { [$dp, $tp, $_] } 1 .. 8
        } 1 .. 4
    } 1 .. 8;
}

# Returns the path of a program, as in program_of('fp64', '08_3d/train.c').
sub program_of {
    my ($build, $source) = @_;
    $source =~ s/\.c$//;
    return "build/cpu-$build/$source";
}

# A job is a hash with the words of a command. If `json` is true, start() adds --verbose and --json.
# run_jobs() adds status, out, err, seconds and, with `json`, page. emu() and mpi() return jobs.
sub emu {
    my ($ranks, @words) = @_;
    return { json => 1, words => ['tools/launch', '-e', $ranks, @words] };
}

sub mpi {
    my ($ranks, @words) = @_;
    return { json => 1, words => ['tools/launch', $ranks, @words] };
}

# Returns the words with the last value of each option only. Programs refuse an option that is given
# twice, but a test varies a model by adding options at the end. A job with the field `twice` passes
# all of its words.
sub last_of_each {
    my @words = @_;
    my %at = map { $words[$_] =~ /^(--[a-z0-9-]+)/ ? ($1 => $_) : () } 0 .. $#words;
    my @kept;
    my $keep = 1;
    for my $i (0 .. $#words) {
        $keep = $1 && $at{$1} == $i if $words[$i] =~ /^(--[a-z0-9-]+)/;
        push @kept, $words[$i] if $keep;
    }
    return @kept;
}

sub start {
    my ($job) = @_;
    $job->{place} = "$work/" . ++$number;
    $job->{began} = time;
    my @words =
        (@{ $job->{words} }, $job->{json} ? ('--verbose', '--json', "$job->{place}.json") : ());
    @words = last_of_each(@words) unless $job->{twice};
    my $pid = fork() // die "fork: $!";
    return $pid if $pid;
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', $job->{stdout} // "$job->{place}.out";
    open STDERR, '>', "$job->{place}.err";
    exec @words or exit 127;
}

sub finish {
    my ($job, $status) = @_;
    $job->{status} = $status & 127 ? 128 + ($status & 127) : $status >> 8;
    $job->{seconds} = time - $job->{began};
    $job->{out} = slurp("$job->{place}.out");
    $job->{err} = slurp("$job->{place}.err");
    $job->{page} = eval { decode_json(slurp("$job->{place}.json")) } || {} if $job->{json};
    unlink map { "$job->{place}.$_" } qw(out err json);
}

# Runs jobs and returns the jobs that ran. With until => time, jobs that have not started by then
# are left out.
sub run_jobs {
    my ($jobs, %how) = @_;
    my (%running, @ran);
    my @waiting = @$jobs;
    while (@waiting || %running) {
        @waiting = () if $how{until} && time > $how{until};
        while (@waiting && keys %running < ($how{at_once} || $at_once)) {
            my $job = shift @waiting;
            $running{ start($job) } = $job;
            push @ran, $job;
        }
        last unless %running;
        my $pid = waitpid -1, 0;
        my $status = $?;
        die "lost a child" if $pid < 0;
        finish(delete $running{$pid}, $status) if $running{$pid};
    }
    return @ran;
}

# Returns pairs { name, emu, mpi } of jobs of a lesson with other options. Each form is a list
# [ranks, options]. In fp32 a form has an emulated job `emu` and, if mpirun is there, a job `mpi` as
# processes. In fp64 every second form has an emulated job; with TEST_ALL=1 every form.
sub forms_of {
    my ($source, @forms) = @_;
    my @pairs;
    for my $precision (qw(fp32 fp64)) {
        my $program = program_of($precision, $source);
        for my $form (@forms[grep { $all || $precision eq 'fp32' || $_ % 2 == 0 } 0 .. $#forms]) {
            my ($ranks, @options) = @$form;
            my $pair = {
                name => "$precision, $ranks ranks @options",
                emu => emu($ranks, $program, @options)
            };
            $pair->{mpi} = mpi($ranks, $program, @options) if have_mpi() && $precision eq 'fp32';
            push @pairs, $pair;
        }
    }
    return @pairs;
}

# Runs the jobs of forms_of(). Checks that they pass, and that processes give the same bits as
# virtual ranks.
sub forms_hold {
    my (@pairs) = @_;
    run_jobs(
        [
            map {
                grep { defined }
                    @{$_}{qw(emu mpi)}
            } @pairs
        ]
    );
    for my $pair (@pairs) {
        my ($emu, $mpi) = @$pair{qw(emu mpi)};
        Test::More::ok($emu->{status} == 0 && $emu->{page}{pass}, "$pair->{name}: all checks hold")
            or Test::More::diag(complain($emu));
        next unless $mpi;
        Test::More::ok(
            $mpi->{status} == 0 && $mpi->{page}{pass},
            "$pair->{name}: all checks hold as processes, too"
        ) or Test::More::diag(complain($mpi));

        # Some programs have no digest (lessons.t).
        Test::More::is(
            $mpi->{page}{digest} // 'none',
            $emu->{page}{digest} // 'none',
            "$pair->{name}: the same bits as processes"
        );
    }
}

# Returns whether the run was refused before the work. The page of such a run has at most the title.
# With --verbose the title has two lines. Without --verbose the title is broken at spaces.
sub before_work {
    my ($job) = @_;
    return $job->{out} =~
        /\A(?:(?:\[[^\]\n]*\] [^\n]*\n){0,2}|\[[^\]\n]*\]  [^\n]*\n(?: {2,}[^\n]*\n)*\n)\z/;
}

# Returns the processes of one run, by rank. A rank's process is a descendant of the launcher and
# has the trainer's name.
sub ranks_of {
    my ($root) = @_;
    my (%parent, %name);
    for my $stat (glob '/proc/[0-9]*/stat') {
        my ($pid, $name, $parent) = slurp($stat) =~ /^(\d+) \((.*)\) \S (\d+)/ or next;
        ($parent{$pid}, $name{$pid}) = ($parent, $name);
    }
    my @found;
    for my $pid (grep { $name{$_} eq 'train' } keys %name) {
        my $up = $pid;
        $up = $parent{$up} while $up && $up != $root;
        push @found, $pid if $up;
    }
    my %rank =
        map { $_ => slurp("/proc/$_/environ") =~ /(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)/ ? $1 : 0 }
        @found;
    return sort { $rank{$a} <=> $rank{$b} } @found;
}

sub complain {
    my ($job) = @_;
    my @out = grep { /FAIL|^ / } split /\n/, $job->{out};
    splice @out, 12 if @out > 12;
    return join "\n", "@{ $job->{words} }", "status $job->{status}", @out, $job->{err};
}
1;
