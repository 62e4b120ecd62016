# Exercises.pm finds the exercises in the sources. An exercise is a solution between two markers:
#
#     // EXERCISE 01.02a (4 points): a title. The task, as many
#     // lines as it takes.
#     <statements: the solution; its first line is not a comment>
#     // END
#
# The id names the lesson that judges the exercise, 01.02. The exercise may be in another file: a
# module of the chapter or of common/. If a program has no number, the id has the program's name:
# 08.sample-a. 00.unsplit-a is an exercise of week 0, judge/run_00.c.
# After an error a function of this module dies with a message for the user that ends in a newline.
# Only bodies() and find_body() give the mistake to their caller.
package Exercises;
use strict;
use warnings;
use Exporter 'import';
use File::Basename qw(dirname);
use File::Find qw(find);
use File::Path qw(make_path);

my $id = qr/\d\d\.(?:\d\d|[a-z]+-)[a-z]/;
our @EXPORT =
    qw(exercises chosen bodies find_body splice_body find_helpers splice_helpers helper_region
    decisive todo tree_files copy_files slurp spew);

sub slurp {
    my ($path) = @_;
    local $/;
    open my $f, '<:raw', $path or die "unsplit: $path: $!\n";
    return scalar <$f> // '';
}

sub spew {
    my ($path, $text) = @_;
    make_path(dirname $path);
    open my $f, '>:raw', $path or die "unsplit: $path: $!\n";
    print $f $text or die "unsplit: $path: $!\n";
    close $f or die "unsplit: $path: $!\n";
}

# Finds the exercises of one text. Returns a list of { id, points, task, line, indent, begin, end }.
# begin and end are the offsets of the body. Adds each mistake to the given list, as "line N: ...".
sub bodies {
    my ($text, $complaints) = @_;
    my (@found, $open);
    my ($line, $at) = (0, 0);
    for (split /^/m, $text) {
        $line++;
        my $begin = $at;
        $at += length;
        if (m{^(\s*)//\s*EXERCISE\b(.*)$}) {
            my ($indent, $rest) = ($1, $2);
            push @$complaints, "line $line: an exercise inside exercise $open->{id}" if $open;
            if ($rest !~ /^ ($id) \(([1-9]\d*) points?\): (\S.*?)\s*$/) {
                push @$complaints, "line $line: expected `// EXERCISE 01.02a (4 points): the task`";
                $open = undef;
                next;
            }
            $open = {
                id => $1,
                points => $2,
                task => $3,
                line => $line,
                indent => $indent,
                heading => 1
            };
        } elsif (m{^\s*// END\s*$}) {
            if (!$open) { push @$complaints, "line $line: `// END` without an exercise"; next }
            $open->{end} = $begin;
            $open->{begin} = $begin if $open->{heading};
            push @found, $open;
            $open = undef;
        } elsif ($open && $open->{heading}) {
            if (m{^\s*// ?(.*?)\s*$}) { $open->{task} .= " $1" }
            else { ($open->{begin}, $open->{heading}) = ($begin, 0) }
        }
    }
    push @$complaints, "line $open->{line}: exercise $open->{id} has no `// END`" if $open;
    return @found;
}

# Returns all exercises of the tree in this folder, sorted by id. Each exercise has the fields of
# bodies() and { file, lesson, key, title, options }. `lesson` is the program that judges. `key` is
# the lesson's key in make run-KEY, and `options` has the options of the lesson's line `// grade:`.
sub exercises {
    my ($root) = @_;
    my (@complaints, %by_id);
    for my $path (
        sort glob
        "$root/[0-9][0-9]_*/*.[ch] $root/[0-9][0-9]_*/experiments/*.[ch] $root/common/*/*.[ch]") {
        my $file = $path =~ s{^\Q$root\E/}{}r;
        my $text = slurp($path);
        my @bad;
        for my $e (bodies($text, \@bad)) {
            $e->{file} = $file;
            my ($chapter, $name) = $e->{id} =~ /^(\d\d)\.(\d\d|[a-z]+)/;
            my ($lesson) =
                grep { -e } $chapter eq '00'
                ? "$root/judge/run_00.c"
                : glob "$root/${chapter}_*/$name" . ($name =~ /\d/ ? '_*.c' : '.c');
            push @bad, "line $e->{line}: exercise $e->{id}: there is no lesson $chapter.$name"
                unless $lesson;
            push @bad, "line $e->{line}: exercise $e->{id} stands in $by_id{$e->{id}}{file}, too"
                if $by_id{ $e->{id} };
            push @bad, "line $e->{line}: exercise $e->{id} has no solution"
                if substr($text, $e->{begin}, $e->{end} - $e->{begin}) !~ /\S/;
            next if @bad;
            $e->{lesson} = $lesson =~ s{^\Q$root\E/}{}r;
            ($e->{options}) = slurp($lesson) =~ m{^// grade: (.*(?:\n// --.*)*)$}m;
            $e->{options} = ($e->{options} // '') =~ s{\n// }{ }gr;
            $e->{key} = $chapter eq '00' ? $chapter : "$chapter-$name";
            $e->{title} =
                $e->{task} =~ /^(.{1,55}?)[.:](\s|$)/ ? $1 : substr($e->{task}, 0, 53) . '...';
            $by_id{ $e->{id} } = $e;
        }
        push @complaints, map { "unsplit: $file, $_\n" } @bad;
    }
    die @complaints if @complaints;
    return map { $by_id{$_} } sort keys %by_id;
}

# Returns the exercises that the words name: a chapter 01, a lesson 01.02 or 08.sample, or an
# exercise 01.02a. Without words returns all exercises.
sub chosen {
    my ($all, @words) = @_;
    return @$all unless @words;
    my %wanted;
    for my $word (@words) {
        my @these = grep { $_->{id} =~ /^\Q$word\E($|\.|-|(?<=\d)[a-z]$)/ } @$all;
        die "unsplit: there is no exercise '$word'; there are: ",
            join(' ', map { $_->{id} } @$all), "\n"
            unless @these;
        $wanted{ $_->{id} } = 1 for @these;
    }
    return grep { $wanted{ $_->{id} } } @$all;
}

# Finds the body of exercise id in a text that a student has edited. Returns (body, undef) or
# (undef, the mistake). Only the id and the two markers count.
sub find_body {
    my ($text, $id) = @_;
    my (@found, $inside, $heading, $body);
    for (split /^/m, $text) {
        my $opens = m{^\s*//\s*EXERCISE\s+($id)\b};
        return (undef, "exercise $1 begins inside $id: the `// END` of $id is missing")
            if $opens && $inside;
        if ($opens) { ($inside, $heading, $body) = (1, 1, '') if $1 eq $id; next }
        next unless $inside;
        if (m{^\s*// END\s*$}) { push @found, $body; $inside = 0; next }
        next if $heading && m{^\s*//};
        $heading = 0;
        $body .= $_;
    }
    return (undef, "the `// END` of the exercise is missing") if $inside;
    return (undef, @found ? 'the file has the marker twice' : 'the file has no marker')
        if @found != 1;
    return ($found[0], undef);
}

# Returns the text with another body between the markers of exercise id.
sub splice_body {
    my ($text, $id, $body) = @_;
    my ($e) = grep { $_->{id} eq $id } bodies($text, []);
    die "unsplit: there is no exercise $id in this text\n" unless $e;
    substr($text, $e->{begin}, $e->{end} - $e->{begin}) = $body;
    return $text;
}

# ---- helper functions beside a body ----
# A student's tree has this region above the function with the exercise. The region is compiled at
# file level, so a body may call helper functions:
#     // HELPERS 01.02a: functions of your own, if you need any
#     // END HELPERS
sub helper_region {
    my ($id, $lines) = @_;
    return "// HELPERS $id: functions of your own, if you need any\n$lines// END HELPERS\n";
}

sub find_helpers {
    my ($text, $id) = @_;
    return $text =~ m{^// HELPERS \Q$id\E\b[^\n]*\n(.*?)^// END HELPERS}ms ? $1 : '';
}

# Returns the text with lines above the function of exercise id, after the last top-level line of
# code before this function.
sub splice_helpers {
    my ($text, $id, $lines) = @_;
    my ($e) = grep { $_->{id} eq $id } bodies($text, []);
    die "unsplit: there is no exercise $id in this text\n" unless $e;
    my $before = substr $text, 0, $e->{begin};
    my $at = 0;
    $at = $+[0]
        while $before =~ m{^(?:\}[^\n]*|\#include[^\n]*|(?!//)\S[^\n]*;(?:\s*//[^\n]*)?)\n}mg;
    substr($text, $at, 0) = $lines;
    return $text;
}

# ---- tools/decisive: the part of the grade that carries most points of an exercise ----
# Returns { id => { layer, why } }. `layer` is numbers, bytes, memory or time. If an exercise has no
# line, its numbers are decisive.
sub decisive {
    my ($root) = @_;
    return unless -e "$root/tools/decisive";
    return map {
        /^([\d.]+[\w.-]*)\s+(numbers|bytes|memory|time)\s+(\S.*?)\s*$/
            ? ($1 => { layer => $2, why => $3 })
            : ()
    } split /\n/, slurp("$root/tools/decisive");
}

sub todo { my ($e) = @_; return qq($e->{indent}TODO("$e->{id}");\n) }

# Returns the files of a tree: in a clone the files that git tracks, elsewhere all files except
# those that the build made.
sub tree_files {
    my ($root) = @_;
    my @files;
    if (-e "$root/.git") {
        @files = split /\0/, `git -C '$root' ls-files -z`;
        die "unsplit: git cannot list the files of $root\n" if $? || !@files;
    } else {
        find(
            {
                no_chdir => 1,
                wanted => sub {
                    my $file = s{^\Q$root\E/?}{}r;
                    if ($file =~ m{^(build|\.git)$}) { $File::Find::prune = 1 }
                    elsif (-f && !/\.tmp$/) { push @files, $file }
                }
            },
            $root
        );
    }
    return sort grep { -e "$root/$_" } @files;
}

sub copy_files {
    my ($root, $to, @files) = @_;
    for my $file (@files) {
        spew("$to/$file", slurp("$root/$file"));
        my @stat = stat "$root/$file";
        chmod $stat[2] & 07777, "$to/$file";

        # Copied objects keep their times, so make does not rebuild them.
        utime @stat[8, 9], "$to/$file";
    }
}
1;
