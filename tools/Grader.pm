# Grader.pm builds a program with a submitted body and runs it in a sandbox. tools/grade uses this
# module.
#
# The sandbox is bubblewrap. The sandbox has no network, and its own processes and user. In the
# sandbox are /usr and the libraries, and the headers to compile or the program to run. Only
# /tmp, the compiler's output and the folder of --save may be written. Files of /tmp, at most 64 MiB,
# end with the sandbox. Processor time, memory, processes and files are limited. The
# file that is compiled has our own bodies of its other exercises. No sandbox has other sources with
# solutions, the bugs or the tests. Each rank has its own sandbox, so ranks meet only in the broker
# (tools/grader/broker.c) and in the folder of --save. The broker runs outside and counts the bytes
# that the ranks send. The compared tensors leave the sandbox as records (tools/grader/probe.c),
# which tools/grader/compare.c compares with those of our own run.
package Grader;
use strict;
use warnings;
use Cwd qw(abs_path);
use Digest::MD5;
use Exercises;
use Exporter 'import';
use File::Basename qw(basename dirname);
use File::Path qw(make_path remove_tree);
use List::Util qw(first max);

our @EXPORT_OK = qw(grader_begin sandbox_missing compile_body compile_ours link_program run_program
    compare_runs body_symbols);
my (%flags, $work, $trusted);
my $suffix = join '',
    map { sprintf '%x', rand 16 } 1 .. 8;    # a random part of names, which no body can know
my $build = 'build/cpu-fp32';

sub quiet {
    my (@words) = @_;
    my $pid = open my $f, '-|' // die;
    if (!$pid) {
        open STDERR, '>&', \*STDOUT;
        open STDIN, '<', '/dev/null';
        exec @words or exit 127;
    }
    local $/;
    my $out = <$f> // '';
    close $f;
    return ($? == 0, $out);
}

# ---- the sandbox ----

# Returns undef if the sandbox works here, or else the reason why not.
sub sandbox_missing {
    my ($good, $out) = quiet(nobody(), 'bwrap', box(), '--', 'true');
    return undef if $good;
    return $out =~ /(\S[^\n]*)/ ? $1 : 'bwrap was not found';
}

# Returns the words that start a command as the user nobody, if root grades. The kernel's limit on
# processes does not hold for root, and a submission should not even begin as root.
sub nobody { return $> == 0 ? qw(setpriv --reuid=65534 --regid=65534 --clear-groups --) : () }

# Returns the options for the file system and the name spaces of the sandbox.
sub box {
    return (
        '--unshare-all',
        '--die-with-parent',
        '--new-session',
        '--uid', 65534, '--gid', 65534,
        (
            map { ('--ro-bind-try', $_, $_) }
                qw(/usr /bin /sbin /lib /lib32 /lib64 /etc/alternatives /etc/ld.so.cache)
        ),
        '--proc', '/proc', '--dev', '/dev', '--size',
        2**26,
        '--tmpfs',
        '/tmp', '--dir', '/work',
        '--chdir',
        '/work'
    );
}

# The environment in the sandbox. The broker adds the rank's number.
my %environment = (
    PATH => '/usr/bin:/bin',
    LC_ALL => 'C',
    NO_COLOR => 1,
    OPENBLAS_NUM_THREADS => 1,
    OMP_NUM_THREADS => 1
);

# Returns the words that start a command with limits, and in the sandbox unless submissions are
# trusted. `files` is a hash of path outside => path inside. A path inside that ends in + may be
# written. `bytes` limits the memory of each process, because all ranks must fit into the machine's
# memory.
sub confined {
    my ($seconds, $files, $bytes, $processes, @command) = @_;
    my @limits = (
        'prlimit', "--cpu=$seconds", "--as=$bytes", '--fsize=67108864',
        '--core=0', '--nofile=64', "--nproc=$processes", '--stack=1048576',
        '--'
    );
    return ('prlimit', @limits[1 .. 5], '--', @command) if $trusted;
    my @binds = map {
        my $inside = $files->{$_};
        $inside =~ s/\+$// ? ('--bind', $_, $inside) : ('--ro-bind', $_, $inside)
    } sort keys %$files;

    # Only /tmp and the files with + can be written, because other files would be memory that no
    # limit counts.
    my @read_only = map { ('--remount-ro', $_) } qw(/dev /);
    return (nobody(), 'bwrap', box(), @binds, @read_only, '--', @limits, @command);
}

# ---- the build ----

# Compiles the parts that all programs share. `settings` are words for make, such as ARCH=native.
sub grader_begin {
    my ($folder, $is_trusted, @settings) = @_;
    ($work, $trusted) = ($folder, $is_trusted);
    my ($good, $out) = quiet(
        'env', '-u', 'MAKEFLAGS', '-u',
        'MAKELEVEL', 'make', '--no-print-directory', @settings,
        'grader-flags'
    );
    die "unsplit: make grader-flags failed: $out\n" unless $good;
    %flags = $out =~ /^(\w+) (.*)$/mg;
    $flags{compile} =~ s/^\S+/$flags{compiler}/;

    # The sources are small, so a fast compilation matters more than a fast program.
    $flags{compile} =~ s/-O3 -g/-O1/;
    make_path("$work/include", "$work/shared");
    for my $header (glob('common/*/*.h judge/*/*.h [0-9][0-9]_*/*.h [0-9][0-9]_*/experiments/*.h'))
    {
        copy_files('.', "$work/include", $header);
    }
    my @names = map { "-D$_=$_$suffix" } qw(grader_result grader_mark grader_enter grader_leave);
    my $object = sub {
        my ($file, @more) = @_;
        my $name = basename($file, '.c') . '.o';
        return [
            "shared/$name",
            "$flags{compile} -Itools/grader @more -w -c -o '$work/shared/$name' $file"
        ];
    };
    my $program = sub {
        my ($name) = @_;
        return [
            $name, "$flags{compiler} -std=gnu11 -O1 -I. -o '$work/$name' tools/grader/$name.c -lm"
        ];
    };
    my @own = map { $object->($_, @names) } qw(tools/grader/mpi.c tools/grader/probe.c);
    my @same = map { $object->($_) }
        qw(common/comm/comm_mpi.c common/comm/comm_nccl.c common/comm/waits.c
        judge/frame/process.c);
    push @same, map { $program->($_) } qw(broker compare);
    copy_files('build', $work, 'text.txt');
    copy_files('.', $work, 'LICENSE');
    my $kept = kept_parts(map { $_->[1] =~ s/\Q$work\E//gr } @same);
    my @have = grep { -e "$kept/$_->[0]" } @same;
    copy_files($kept, $work, map { $_->[0] } @have);
    my @new = grep { !-e "$work/$_->[0]" } @same;
    spew("$work/jobs", join "\0", map { $_->[1] } @own, @new);
    ($good, $out) = quiet('sh', '-c', "xargs -0 -P 4 -n 1 sh -c <'$work/jobs'");
    die "unsplit: $out\n" unless $good;
    keep_parts($kept, map { $_->[0] } @new);
    my ($kernels) = `tools/kernels $build/01_data_parallel/01_by_hand 2>/dev/null`;
    $environment{OPENBLAS_CORETYPE} = $1 if defined $kernels && $kernels =~ /(\w+)/;
}

# Returns the folder of the build for parts that are the same in every grading. The folder's name
# changes with the commands, tools/grader, the headers of common/, the sources of common/comm, and
# judge/frame/process.[ch].
sub kept_parts {
    my (@commands) = @_;
    my $digest = Digest::MD5->new;
    $digest->add($_) for @commands;
    $digest->add(slurp($_))
        for sort glob 'tools/grader/*.[ch] common/*/*.h common/comm/*.c judge/frame/process.[ch]';
    return "$build/grader/" . $digest->hexdigest;
}

# Copies new parts to the folder of kept_parts(). Two gradings may run at once, so a part gets its
# name only when it is complete. If the tree cannot be written, no part is kept.
sub keep_parts {
    my ($kept, @parts) = @_;
    eval {
        for my $part (@parts) {
            copy_files($work, "$kept/new-$$", $part);
            make_path(dirname("$kept/$part"));
            rename "$kept/new-$$/$part", "$kept/$part" or die "$!\n";
        }
        remove_tree("$kept/new-$$");
    };
}

# Returns the body in a block whose first line marks where the body runs. The names in this line are
# drawn anew in each grading. `number` is the number of the body, if a program has several marked
# bodies.
sub mark_body {
    my ($body, $number) = @_;
    $number //= 1;
    return "{ extern int grader_enter$suffix(int); extern void grader_leave$suffix(const int *); "
        . "const int inside$suffix __attribute__((cleanup(grader_leave$suffix), unused)) = grader_enter$suffix($number);\n#line 1 \"your-body\"\n$body}\n";
}

sub compile_words {
    my ($source, $object, $name) = @_;
    my $symbol = "experiment_" . $name =~ s{[/]}{_}gr =~ s/\.c$//r;
    return
          "$flags{compile} -w -fno-inline -ffunction-sections -fstack-usage "
        . "-DDEFAULT_TEXT='\"build/text.txt\"' -DEXPERIMENT_SYMBOL=$symbol -c -o $object "
        . "$source";
}

# Compiles $text in place of our own file $name, for example with other sizes. Returns the object.
sub compile_ours {
    my ($folder, $name, $text) = @_;
    my $object = "$folder/" . $name =~ s{/}{-}gr =~ s/\.c$/.o/r;
    spew("$folder/$name", $text);
    my ($good, $out) = quiet('sh', '-c', compile_words("$folder/$name", $object, $name));
    die "unsplit: $name does not build: $out\n" unless $good;
    return $object;
}

# Compiles a file with a submitted body, in the sandbox. Returns (object, undef) or (undef, the
# compiler's first message).
sub compile_body {
    my ($folder, $name, $text) = @_;
    make_path("$folder/out");
    chmod 0777, "$folder/out";
    spew("$folder/body.c", $text);
    my $object = "$folder/out/body.o";
    unlink $object;
    my %files = (
        "$work/include" => '/work/include',
        "$folder/body.c" => '/work/body.c',
        "$folder/out" => '/work/out+'
    );
    my ($from, $to, $in) =
        $trusted
        ? ("$folder/body.c", $object, '.')
        : ('/work/body.c', '/work/out/body.o', '/work/include');

   # Only the functions that our object has stay visible to other files. So a helper function cannot
   # take the place of a function of the frame.
    my $ours = "$build/" . $name =~ s/\.c$/.o/r;
    my @globals =
        map { /^\S+ \S (\S+)/ ? "--keep-global-symbol=$1" : () } `nm -g --defined-only '$ours'`;
    my $words = compile_words($from, $to, $name) =~ s/ -I\. / -I$in /r . " && objcopy @globals $to";
    local %ENV = %environment;
    my ($good, $out) = quiet(confined(20, \%files, 2**30, 64, 'sh', '-c', $words));
    my ($error) = $out =~ /((?:your-body:\d+:|fatal|error)[^\n]*error[^\n]*)/;
    $error //= ($out =~ /([^\n]*(?:error|exhausted)[^\n]*)/)[0] // 'the compiler gave up';
    return (undef, $error =~ s{/work/}{}gr)
        if !$good || !-f $object || -l $object || slurp($object) !~ /^\x7fELF/;
    return ($object, undef);
}

sub link_program {
    my ($program, $lesson, @objects) = @_;
    my $info = "$build/" . $lesson =~ s/\.c$/.info.o/r;
    my @wraps = map { "-Wl,--wrap=$_" }
        qw(check_close check_equal check_differs check_replicas check_numbers check_true
        report_json);
    my @shared = glob "$work/shared/*.o";
    my ($good, $out) = quiet('sh', '-c',
              "$flags{compiler} -pthread -s -o $program @objects @shared $info @wraps "
            . "-Wl,--start-group $build/judge.a $build/common.a "
            . join(' ', glob "$build/[0-9]*.a")
            . " -Wl,--end-group $flags{openmp} $flags{libs}");
    return $good ? undef : ($out =~ /((?:undefined reference|multiple definition)[^\n]*)/)[0]
        // $out =~ s/\n.*//sr;
}

# ---- a run ----

# Runs a program. Returns the broker's results, { files, counts, entered, peak, seconds, text },
# with fault => text after a fault; or { broken => text }. `counts` has [calls, bytes] for each
# rank, communicator, kind and type. `entered` has how often each marked body began. `text` is the
# output of rank 0.
sub run_program {
    my (%o) = @_;
    my $files = $o{files};
    unlink map { "$files.$_" } qw(run results out err);
    my @options = (
        @{ $o{options} }, '--clock', 'simulated', '--seed',
        $o{seed}, '--timeout', $o{seconds}, '--json',
        '/tmp/page.json'
    );

    # Lessons read only two texts, build/text.txt and LICENSE. Lesson 06.06 learns LICENSE.
    my %seen = (
        $o{program} => '/work/program',
        "$work/text.txt" => '/work/build/text.txt',
        "$work/LICENSE" => '/work/LICENSE'
    );

    # A program that saves needs a folder that all of its ranks share. The folder is empty at first.
    if ("@options" =~ m{--save (\S+)}) {
        my $saved = $1;
        my $folder = "$files.saved";
        remove_tree($folder);
        make_path($folder);
        chmod 0777, $folder;
        $seen{$folder} = "/work/$saved+";
        @options = map { $_ eq $saved && $trusted ? $folder : $_ } @options;
    }
    my @command = confined(
        $o{seconds}, \%seen, 2**30, 16,
        $trusted ? $o{program} : '/work/program',
        map { $trusted && $_ eq '/tmp/page.json' ? "$files.page" : $_ } @options
    );
    local %ENV = %environment;
    my $status = system {"$work/broker"} "$work/broker", $o{ranks}, $o{seconds},
        $o{alter} // 'none', $files, @command;
    return { broken => "the broker ended with status $status" } if $status;
    my $run = slurp("$files.run");
    my %seen_run = (files => $files, counts => {}, entered => {}, peak => 0, seconds => 0);
    $seen_run{counts}{$3} = [$1, $2] while $run =~ /^count (\d+) (\d+) (.*)$/mg;
    $seen_run{entered}{$1} = $2 while $run =~ /^entered (\d+) (\d+)$/mg;
    my @ranks;

    while ($run =~ /^rank (\d+) status (\d+) peak (\d+) seconds (\S+) bye (\d)$/mg) {
        push @ranks, { rank => $1, status => $2, bye => $5 };
        $seen_run{peak} = max($seen_run{peak}, $3);
        $seen_run{seconds} += $4;
    }
    my $errors = slurp("$files.err");
    $seen_run{text} = slurp("$files.out");
    my ($why) = $run =~ /^why (.*)$/m;
    return { %seen_run, fault => $why } if defined $why;
    my ($message) = $errors =~ /^((?:unsplit: |\[rank )(?!.*deadlock).*)$/m;
    return { %seen_run, fault => $message } if defined $message;
    my $bad = first { $_->{status} > 1 } @ranks;
    my $signal =
        $bad && $bad->{status} > 128
        ? 'rank '
        . $bad->{rank}
        . ' was ended by signal '
        . ($bad->{status} - 128)
        . signal_text($bad->{status} - 128)
        : undef;
    return { %seen_run, fault => $signal // "rank $bad->{rank} ended with status $bad->{status}" }
        if $bad;
    my $early = first { !$_->{bye} } @ranks;
    return { %seen_run, fault => "rank $early->{rank} ended before the end of the program" }
        if $early;
    return \%seen_run;
}

sub signal_text {
    my ($n) = @_;
    my %text = (
        11 => ': it reads or writes memory that is not its own',
        8 => ': it divides by zero',
        9 => ': it was killed',
        6 => ': it aborted',
        24 => ': it used too much processor time',
        31 => ': a forbidden system call'
    );
    return $text{$n} // '';
}

# ---- the judge ----

# Compares the records of two runs. Returns { wrong => [[what, name, why]...] }, with page => text,
# or with other => text if the records are not those of this run. Returns only { other => text } if
# the records cannot be read.
sub compare_runs {
    my ($theirs, $ours, $bits) = @_;
    my ($good, $out) =
        quiet("$work/compare", "$theirs.results", "$ours.results", $bits ? 'bits' : ());
    return { other => 'the records of the run cannot be read' } unless $good;
    my %result = (wrong => []);
    for (split /\n/, $out) {
        push @{ $result{wrong} }, [split /\|/, $1, 3] if /^wrong (.*)/;
        $result{other} //= $1 if /^other (.*)/;
        $result{page} = $1 if /^page (.*)/;
    }
    return \%result;
}

# ---- the functions that the object code of a body uses ----

# Returns { symbol => number of references } for the function with the body. References through a
# function that our object does not have, such as a student's helper, count, too.
sub body_symbols {
    my ($object, $our_functions) = @_;
    my (%refers, $section);
    for (`objdump -r '$object' 2>/dev/null`) {
        if (/^RELOCATION RECORDS FOR \[(.*)\]/) { $section = $1 }
        elsif (/^[0-9a-f]{16} R_\S+\s+(\S+)/) {
            my $symbol = $1 =~ s/[-+]0x[0-9a-f]+$//r;
            $refers{$section}{$symbol}++;
        }
    }
    my @open = grep { $refers{$_}{"grader_enter$suffix"} } keys %refers;
    my (%seen, %found);
    while (defined(my $s = shift @open)) {
        next if $seen{$s}++;
        for my $symbol (keys %{ $refers{$s} }) {
            my $name = $symbol =~ s/^\.text\.(?:unlikely\.)?//r =~
                s/\.(?:constprop|isra|part|cold)[.\d]*//gr;
            $found{$name} += $refers{$s}{$symbol} unless $name =~ /$suffix|^\./;
            push @open, grep { $refers{$_} } ".text.$name" if !$our_functions->{$name};
            push @open, $symbol if $symbol =~ /^\.(?:data|rodata)/ && $refers{$symbol};
        }
    }
    return \%found;
}
1;
