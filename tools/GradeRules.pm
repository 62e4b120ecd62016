# GradeRules.pm checks a submitted body: its text and its object file. The text must be the inside
# of one function. Suspicious names in the text only give notes. tools/grade uses this module.
package GradeRules;
use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(code_of structure_fault text_faults public_functions object_facts large_variables);

# Removes the comments of a body and replaces its strings by "" and '0'. Returns (code, undef) or
# (undef, the mistake).
sub code_of {
    my ($text) = @_;
    return (undef, 'a line that ends in \\') if $text =~ /\\[ \t]*\r?\n/;
    my $code = '';
    for ($text) {
        pos = 0;
        while (pos() < length) {
            if (m{\G//[^\n]*}gc || m{\G/\*.*?\*/}gcs) { $code .= ' ' }

            # A string with letters before it is refused, because a raw string R"(...)" ends in
            # another way.
            elsif (m{\G\w["']}gc) { return (undef, 'a string with letters before it') }
            elsif (m{\G/\*}gc) { return (undef, 'a comment that does not end') }
            elsif (m{\G"(?:[^"\\\n]|\\.)*"}gc) { $code .= '""' }
            elsif (m{\G'(?:[^'\\\n]|\\.)+'}gc) { $code .= "'0'" }
            elsif (m{\G["']}gc) { return (undef, 'a string that does not end') }
            elsif (m{\G(.)}gcs) { $code .= $1 }
        }
    }
    return ($code, undef);
}

# suspicious names. Most of them stop the run, reach the system, or read what the check measures. A
# name is not suspicious if our solution of the same exercise uses it, too.
my $forbidden = qr/^(?:__\w*|_[A-Z]\w*|asm|goto|extern|static|typeof|main
    |fault|usage_error|REQUIRE|TODO|MEM_REFERENCE|host_alloc|end_all_ranks|ranks_are_processes|this_rank|this_world_size
    |comm_(?:ledger_reset|bytes_sent|run|choose|launched_by_mpi|process_begin|process_end|split|free)
    |data_free|model_free|optimizer_free
    |exit|quick_exit|abort|atexit|longjmp|setjmp|sigaction|fork|system|syscall|popen|execv?[lpe]*
    |malloc|calloc|realloc|free|alloca|aligned_alloc|posix_memalign|mmap|sbrk|brk|strdup|getenv|setenv|putenv|environ
    |f?open|fdopen|freopen|creat|f?write|f?read|f?close|v?[fsd]?n?printf|v?snprintf|puts|fputs|putchar|stdin|stdout|stderr
    |rename|unlink|truncate)$/x;

# names of the frame's functions. Such a name is suspicious only if it is called or if a header has
# it, because side_length is a good variable name.
my $of_the_frame =
    qr/^(?:check|snapshot|course|side|ledger|lesson|report|say|config|option|picture|memory|record|clock|grade|output|settings
    |exercise|device|MPI|PMPI|cblas|openblas|pthread|dl)_/x;

# names that are good for variables, too, so they are suspicious only as calls
my $forbidden_call = qr/^(?:costs?|say|main|kill|raise|signal|read|write|open|close|remove|link)$/;
my %keyword = map { $_ => 1 }
    qw(if for while switch return sizeof do else case default break continue void char int
    long unsigned float double
    bool real const signed short struct size_t);

# mathematical functions, calls that a compiler generates to copy, fill or compare memory, and two
# names that the compiler adds for shared code and stack checks
my %harmless = map { $_ => 1 }
    qw(sqrt sqrtf fabs fabsf fmin fmax fminf fmaxf exp expf log logf log2 pow powf floor ceil
    round tanh tanhf
    ldexp isnan isfinite memcpy memset memmove memcmp abs _GLOBAL_OFFSET_TABLE_ __stack_chk_fail);

# Returns the functions that these texts of headers declare, without the suspicious ones.
sub public_functions {
    my %known;
    for my $text (@_) {
        (my $code = $text) =~ s{//[^\n]*}{}g;
        $known{$1} = 1 while $code =~ /\b([a-z]\w+)\s*\(/g;
    }
    return {
        map { $_ => 1 }
        grep { !/$forbidden/ && !/$of_the_frame/ && !/$forbidden_call/ } keys %known
    };
}

# Returns undef, or the reason why the text is not the inside of one function. The reason is that
# brackets do not match, that the text has a # line, or a mistake of code_of(). As for the compiler,
# trigraphs are off, a line that ends in \ is continued, and a comment ends where C ends it.
sub structure_fault {
    my ($body) = @_;
    my ($code, $fault) = code_of($body =~ s/\\[ \t\f\v]*\r?\n//gr);
    return $fault if defined $fault;
    my @open;
    my %partner = (')' => '(', ']' => '[', '}' => '{');
    $code =~ s/<%/{/g;
    $code =~ s/%>/}/g;
    $code =~ s/<:/[/g;
    $code =~ s/:>/]/g;
    return 'a # line' if $code =~ /^\s*(?:#|%:)/m;

    for my $c ($code =~ /[()\[\]{}]/g) {
        if (!$partner{$c}) { push @open, $c }
        elsif (!@open || pop @open ne $partner{$c}) {
            return "a $c that closes nothing of the body";
        }
    }
    return "a $open[-1] that is not closed" if @open;
    return undef;
}

# Returns the first suspicious name, call or field in a submitted body, or a mistake of code_of(),
# or undef. tools/grade prints the result as a note and takes no points, because text can be spelled
# in many ways. `known` are functions that the body may call besides those of `ours`, the tree's own
# body. `taken` are names in headers.
sub text_faults {
    my ($body, $ours, $known, $taken) = @_;
    my ($code, $fault) = code_of($body);
    return $fault if defined $fault;
    my ($our_code) = code_of($ours);
    my %our = map { $_ => 1 } ($our_code // '') =~ /\b([A-Za-z_]\w*)/g;
    while ($code =~ /(?<![\w.])(?<!->)([A-Za-z_]\w*)(\s*\()?/g) {
        my ($name, $call) = ($1, $2);
        next if $our{$name};
        return "the name $name"
            if $name =~ /$forbidden/ || $name =~ /$of_the_frame/ && ($call || $taken->{$name});
        return "a call of $name" if $call && $name =~ /$forbidden_call/;
        return "a call of $name"
            if $call && !$keyword{$name} && !$known->{$name} && !$harmless{$name};
    }

    # Finds (name)(x) and (*name)(x). Casts are not calls.
    while ($code =~ /(\w*)\s*\(\s*([*&]?)\s*([A-Za-z_]\w*)\s*\)\s*\(/g) {
        my ($before, $star, $name) = ($1, $2, $3);
        next
            if $before =~ /^(?:if|while|switch)$/
            || !$star && ($keyword{$name} || $name =~ /_t$|^[A-Z]/);
        return "a call of ($star$name)";
    }
    while ($code =~ /(?:\.|->)\s*([A-Za-z_]\w*)/g) {    # fields of the frame's structs
        my $name = $1;
        return "the field $name" if !$our{$name} && $name =~ /^(?:ledger|state|link)$/;
    }
    return undef;
}

# Reads an object file. Returns the symbols that the file needs, the bytes of its variables, the
# largest stack frame, and the number of frames without a fixed size. gcc -fstack-usage wrote the
# frames to a file .su.
sub object_facts {
    my ($object) = @_;
    my %facts = (needs => {}, variables => 0, frame => 0, dynamic => 0);
    for (`nm -S '$object'`) {
        if (/^\s+U (\S+)/ || /^\s+w (\S+)/) { $facts{needs}{$1} = 1 }
        elsif (/^\S+ (\S+) [bBdDcCsSgG] \S/) { $facts{variables} += hex $1 }
    }
    die "unsplit: nm cannot read $object\n" if $?;
    (my $frames = $object) =~ s/\.o$/.su/;
    open my $f, '<', $frames or die "unsplit: $frames: $!\n";
    while (<$f>) {
        my (undef, $bytes, $kind) = split /\t/;
        $facts{frame} = $bytes if $bytes > $facts{frame};
        $facts{dynamic}++ if $kind =~ /^dynamic/ && $kind !~ /bounded/;
    }
    return \%facts;
}

# Returns a reason if the variables or the largest stack frame of the file with a submitted body
# have over $spare bytes more than those of our file, and otherwise undef. The arenas count neither.
my $spare = 4096;

sub large_variables {
    my ($theirs, $ours) = @_;
    return "more than $spare bytes of variables are outside of the arenas"
        if $theirs->{variables} > $ours->{variables} + $spare;
    return "more than $spare bytes of arrays are on the stack, outside of the arenas"
        if $theirs->{frame} > $ours->{frame} + $spare;
    return undef;
}
1;
