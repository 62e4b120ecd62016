# Graded.pm reads the submissions of tests/graded: attacks, honest solutions and wrong bodies.
#
#     == a kind
#     name * 01.02a                 an exercise's submission; `make test` draws from those with *
#         s: old => new             replaces a text of our solution, each time it occurs
#         before: text              stands in front of the body
#         after: text               stands behind the body
#         body: text                replaces our solution
#         helpers: text             the lines of the helper region
#         points: 2                 the most points that an attack may earn; `all` sets no limit
#         expect: pattern           a pattern of the reason that a wrong body gets
#
# In a text RIGHT stands for our solution. IN_ORDER stands for code in which every rank computes and
# sums the gradients of all shards. ESCAPE is a path outside of the sandbox. \n, \f and \\ stand for
# a new line, a form feed and a backslash. A text may continue on more deeply indented lines.
package Graded;
use strict;
use warnings;
use Exercises ();
use Exporter 'import';

our @EXPORT = qw(graded submission_of);

my $in_order = 'Arena own = arena(MEM_WORKSPACE);
    Tensor sum = tensor_new(&own, m->g.rows, m->g.cols);
    for (size_t r = 0; r < dp->size; r++) {
        double part = local_gradients(m, d, step, shard_range(sequences, dp->size, r), 1 / (double)data_count(d, step, 0, sequences));
        if (r == dp->rank) loss = part;
        if (r == 0) tensor_copy(sum, m->g);
        else op_add(sum, sum, m->g);
    }
    tensor_copy(m->g, sum);
    arena_free(&own);';

# Returns the submissions of a file. Each is a hash:
# { name, id, kind, often, s => [[old, new]...], before, ... }. `often` is true with a *.
sub graded {
    my ($file) = @_;
    my (@found, $kind, $field);
    for (split /\n/, Exercises::slurp($file)) {
        next if /^#/ || /^\s*$/;
        if (/^== (.*)/) { $kind = $1; next }
        if (/^(\S+) (\* )?(\S+)$/) {
            push @found, { name => $1, often => !!$2, id => $3, kind => $kind, s => [] };
            next;
        }
        if (/^    (s|before|after|body|helpers|points|expect): ?(.*)$/) {
            $field = $1;
            if ($field eq 's') { push @{ $found[-1]{s} }, [split / =>(?: |$)/, $2, 2] }
            else { $found[-1]{$field} = $2 }
        } elsif (/^\s{8}\s*(.*)$/ && $field ne 's') {
            $found[-1]{$field} .= "\n$1";
        } else {
            die "$file: what is '$_'?\n";
        }
    }
    return @found;
}

sub plain {
    my ($text, $right, $escape) = @_;
    return $text =~ s/\bRIGHT\b/$right/gr =~ s/\bIN_ORDER\b/$in_order/gr =~
        s/\bESCAPE\b/$escape/gr =~ s/\\(n|f|\\)/{ n => "\n", f => "\f", '\\' => '\\' }->{$1}/ger;
}

# Writes a submission to a folder: the exercise's markers around another body. `escape` is a path
# outside of the sandbox.
sub submission_of {
    my ($g, $folder, $escape, %exercise) = @_;
    my $e = $exercise{ $g->{id} } or die "there is no exercise $g->{id}\n";
    my $clean = Exercises::slurp($e->{file});
    my $right = substr $clean, $e->{begin}, $e->{end} - $e->{begin};
    my $body = exists $g->{body} ? plain($g->{body}, $right, $escape) : $right;
    for (@{ $g->{s} }) {
        my ($old, $new) = @$_;
        index($body, $old) >= 0 or die "$g->{name}: the solution of $g->{id} has no '$old'\n";
        $body =~ s/\Q$old\E/plain($new \/\/ '', $right, $escape)/ge;
    }
    $body = plain($g->{before}, $right, $escape) . "\n$body" if defined $g->{before};
    $body .= "\n" . plain($g->{after}, $right, $escape) if defined $g->{after};

    # Only the marked regions count, so the other exercises of the file are left out.
    my $helpers =
        defined $g->{helpers}
        ? Exercises::helper_region($g->{id}, plain($g->{helpers}, $right, $escape) . "\n")
        : '';
    my $text = "$helpers    // EXERCISE $g->{id} ($e->{points} points): the task.\n" . $body =~
        s/\n?\z/\n/r . "    // END\n";
    Exercises::spew("$folder/$e->{file}", $text);
}
1;
