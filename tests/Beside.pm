# Beside.pm looks for answers beside an exercise. An answer is a function of a student's tree that
# has most of a solution's text, with other names. tests/student.t uses this module.
package Beside;
use strict;
use warnings;
use Exercises ();
use Exporter 'import';

our @EXPORT = qw(beside);

# A short solution is like many functions, so only solutions of at least $tokens tokens count. A
# function stands beside an exercise if the function has at least $share of the solution's runs of
# $run tokens.
my ($tokens, $run, $share) = (25, 9, 0.6);

# Runs that more than $idiom functions have are idioms of C. A solution with fewer than $least other
# runs counts as an idiom, too.
my ($idiom, $least) = (10, 6);
my %keyword =
    map { $_ => 1 } qw(for while if else return size_t real double bool break continue switch case);

# Returns the runs of tokens of a C text, and the number of tokens. Comments are left out, and all
# names are alike.
sub runs {
    my ($text) = @_;
    $text =~ s{//[^\n]*|/\*.*?\*/}{}gs;
    my @token =
        map { /^[A-Za-z_]/ ? $keyword{$_} ? $_ : 'name' : /^"/ ? 'text' : $_ }
        $text =~
        /("(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|\d[\w.]*|[-+*\/%&|^=<>!]=|&&|\|\||->|\+\+|--|\S)/g;
    my %runs;
    $runs{ join ' ', @token[$_ .. $_ + $run - 1] } = 1 for 0 .. @token - $run;
    return (\%runs, scalar @token);
}

# Returns { "ID path:function" => share } of the tree in a folder. %solution has the texts of the
# solutions by id. Idioms, such as a loop over all units, do not count.
sub beside {
    my ($tree, %solution) = @_;
    my (%of_run, @functions, %often);
    for my $id (sort keys %solution) {
        my ($runs, $n) = runs($solution{$id});
        next if $n < $tokens;
        push @{ $of_run{$_} }, $id for keys %$runs;
    }
    for my $file (grep { /\.[ch]$/ } Exercises::tree_files($tree)) {
        my $text = Exercises::slurp("$tree/$file");
        while (
            $text =~ /^(?!\s|\/\/|#|enum|struct|typedef)([^\n;]*?\b(\w+)\([^;{}]*\)\s*\{.*?^\})/msg)
        {
            my ($body, $function) = ($1, $2);
            my ($runs) = runs($body);
            my @shared = grep { $of_run{$_} } keys %$runs;
            $often{$_}++ for @shared;
            push @functions, ["$file:$function", @shared];
        }
    }
    my (%count, %found);
    for my $run (grep { ($often{$_} // 0) <= $idiom } keys %of_run) {
        $count{$_}++ for @{ $of_run{$run} };
    }
    for (@functions) {
        my ($name, @shared) = @$_;
        my %same;
        $same{$_}++ for map { @{ $of_run{$_} } } grep { $often{$_} <= $idiom } @shared;
        for my $id (grep { $count{$_} >= $least && $same{$_} >= $share * $count{$_} } keys %same) {
            $found{"$id $name"} = $same{$id} / $count{$id};
        }
    }
    return \%found;
}
1;
