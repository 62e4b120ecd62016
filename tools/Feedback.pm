# Feedback.pm explains a failed run in the words of the field. The explanation names the wrong
# tensors, the factor, the ranks, the first wrong step, and the mistake that usually has this
# effect. The frame measures the factor and the ranks (judge/frame/diagnose.c). The rules of
# Feedback.pm add the likely cause.
package Feedback;
use strict;
use warnings;
use Exporter 'import';
use File::Basename qw(dirname);

our @EXPORT = qw(wrong_sentence likely_cause hint cost_sentence fault_sentence);

# Returns the sentence after "Wrong:" of a page, without its line breaks.
sub wrong_sentence {
    my ($page) = @_;
    my ($text) = $page =~ /^ *Wrong:\s+(.*?)(?=^ {0,4}\S|^\s*$|\z)/ms or return undef;
    return $text =~ s/\s+/ /gr =~ s/ $//r;
}

sub close_to { my ($x, $y) = @_; return abs($x - $y) < 2e-3 * abs($y) }

# ---- tools/hints: what a wrong result of an exercise usually means ----

my %hints;    # id => ([conditions, mistake]...)

sub read_hints {
    my $file = dirname(__FILE__) . '/hints';
    open my $f, '<', $file or die "unsplit: $file: $!\n";
    while (<$f>) {
        next if /^#|^\s*$/;
        my ($ids, $conditions, $mistake) = /^(\S.*?) \| (.*) \| (.*\S)\s*$/
            or die "unsplit: $file, line $.: expected ID | CONDITIONS | MISTAKE\n";
        my @conditions = map {
            /^(!?)(.*)$/;
            { absent => $1 eq '!', pattern => qr/$2/m }
        } split / & /, $conditions;
        push @{ $hints{$_} }, [\@conditions, $mistake] for split ' ', $ids;
    }
    return \%hints;
}

sub times_ranks {
    my ($cost, $known) = @_;
    my $n = $known->{ranks} // 1;
    return $n > 1 && $cost->{predicted} > 0 && close_to($cost->{measured} / $cost->{predicted}, $n);
}

# Returns the kinds of calls in which the ranks wait after a deadlock (send, receive, collective, or
# several), or ''.
sub waits {
    my ($fault) = @_;
    return '' unless ($fault // '') =~ /deadlock|all ranks wait/;
    my @waits;
    push @waits, 'send' if $fault =~ /waits until rank|waits in send/;
    push @waits, 'receive' if $fault =~ /waits to receive|waits in recv/;
    push @waits, 'collective' if $fault =~ /waits in (?!send|recv)/;
    return join ' ', @waits;
}
my %cause_of_waits = (
    send =>
        'every rank waits until its message is received, and none receives: a receive is missing, or both sides send first',
    receive =>
        'every rank waits for a message, and none sends: a send is missing, or both sides receive first',
    collective =>
        'the ranks wait in different collectives: all ranks of a group make the same calls in the same order',
    'send collective' =>
        'some ranks wait in a collective, and the others until a message is received: all ranks make the same calls in the same order, and no rank leaves one out',
    'receive collective' =>
        'some ranks wait in a collective, and the others for a message: all ranks make the same calls in the same order, and no rank leaves one out'
);

# Returns the findings of a run, one per line, as tools/hints describes them.
sub findings {
    my ($sentence, $known) = @_;
    my @lines = map { "page $_" } $sentence // ();
    push @lines, abs($1) > abs($2) ? 'first larger' : 'first smaller'
        if ($sentence // '') =~
        /Number \d+ of \d+ is (-?\d(?:[\d.e+-]*\d)?) instead of (-?\d(?:[\d.e+-]*\d)?)/;
    push @lines, map { "wrong $_->[0], $_->[1]: $_->[2]" } @{ $known->{wrong} || [] };
    push @lines, map {
        my $how =
              $_->{measured} == 0 ? 'none'
            : $_->{measured} > $_->{predicted} ? 'more'
            : 'less';
        my $each = times_ranks($_, $known) ? ', once per rank' : '';
        "cost $_->{name}, $_->{unit}: $how$each"
    } @{ $known->{costs} || [] };
    push @lines, "fault $known->{fault}" if defined $known->{fault};
    push @lines, map { "waits $_" } grep { $_ ne '' } waits($known->{fault});
    return join "\n", @lines;
}

# Returns the mistake that usually causes a run's findings in this exercise, or undef. `sentence` is
# the result of wrong_sentence(). `known` is { id, wrong => ([check, name, why]...), costs =>
# ({ name, unit, measured, predicted }...), fault }. A field is missing if the run has no such
# finding.
sub hint {
    my ($sentence, $known) = @_;
    return undef unless defined $known->{id};
    read_hints() unless %hints;
    my $findings = findings($sentence, $known);
    return undef if $findings eq '';
    for my $hint (@{ $hints{ $known->{id} } || [] }) {
        my ($conditions, $mistake) = @$hint;
        return $mistake
            unless grep { $_->{absent} == ($findings =~ $_->{pattern} ? 1 : 0) } @$conditions;
    }
    return $cause_of_waits{ waits($known->{fault}) };
}

# ---- the likely mistake ----

# Returns the mistake behind a wrong sign, or behind a factor that all wrong tensors share, or
# undef.
sub cause_of_factor {
    my ($sentence, $known) = @_;
    my ($n, $m) = ($known->{ranks} // 1, $known->{micro_batches} // 0);
    return 'a sign is wrong: look for a minus, or for a difference in the wrong order'
        if $sentence =~ /of the wrong sign/;
    return undef
        if $sentence =~ /on average/ || $sentence !~ /(\d[\d.e+]*) times too (small|large)/;
    my ($factor, $small) = ($1, $2 eq 'small');
    return
        "every value is the sum divided by the number of ranks, $n: partial sums are only added, never averaged"
        if $small && $n > 1 && close_to($factor, $n) && ($known->{id} // '') =~ /^03/;
    return
        "every value is the sum divided by the number of ranks, $n: the loss is already a mean over the whole batch, so the gradients are only added"
        if $small && $n > 1 && close_to($factor, $n);
    my @costs = @{ $known->{costs} || [] };
    my $large = !$small && $n > 1 && close_to($factor, $n);
    return
        "$n ranks computed the same whole batch, and the sum added their $n equal values: each rank computes its own shard only"
        if $large && grep { $_->{name} =~ /computing|FLOP/ && times_ranks($_, $known) } @costs;
    return
        "the sum over the $n ranks was made once more: after the first sum every rank has the whole value, and a second sum adds it $n times"
        if $large && grep {
        $_->{unit} =~ /call|message/ && $_->{predicted} > 0 && $_->{measured} > $_->{predicted}
        } @costs;
    return
        "every value is $n times the right one: $n ranks added the same whole value, or the division by the number of ranks is missing"
        if $large;
    return
        "every value is divided by the number of micro-batches, $m, once more: the loss is already a mean over the whole batch"
        if $small && $m > 1 && close_to($factor, $m);
    return
        "every value is $m times the right one: each micro-batch is scaled as if it were the whole batch"
        if !$small && $m > 1 && close_to($factor, $m);
    return
        'a part was added twice: it is counted by two ranks, or added to a buffer that already held it'
        if !$small && close_to($factor, 2);
    return 'half is missing: one of two parts was not added, or a sum was divided by 2'
        if $small && close_to($factor, 2);
    return
        'all wrong tensors have the same factor: look for a division or a scale that is done twice, or not at all';
}

my @general = (
    [
        qr/are all zero|is all zero/,
        'nothing arrived: the result was never written, or it stayed in a local buffer'
    ],
    [
        qr/differ on (?:ranks|\d+ of \d+ ranks)/,
        'only some ranks are wrong: look at what the first and the last rank do differently, and at the bounds of shard_range'
    ],
    [
        qr/on average \S+ times too small/,
        'the values are too small, but not all by one factor: a part is missing, such as a shard, a micro-batch or the share of a rank'
    ],
    [
        qr/on average \S+ times too large/,
        'the values are too large, but not all by one factor: a part is counted twice, or has too large a weight'
    ],
    [
        qr/does not hold/,
        'the statement compares the ranks or an order: look at which rank does what, and when'
    ],
    [
        qr/no single factor/,
        'no factor explains it: a part of the data is missing, taken twice, or at another place'
    ]
);

# Returns a likely cause of a wrong result, or undef. `sentence` is the result of wrong_sentence().
# `known` is { ranks, micro_batches, reason } and the fields of hint(). `reason` is the judge's
# reason, or the line under the failed check.
sub likely_cause {
    my ($sentence, $known) = @_;
    return hint($sentence, $known) unless defined $sentence;
    my $factor = cause_of_factor($sentence, $known);
    return $factor if defined $factor;
    return
        'only the tied table is wrong: it is used twice and has two gradients, which must be added once, after the last backward and before a sum over ranks'
        if $sentence =~ /\b1 of \d+ tensors[^.]*(?:differ|are|is)[^.]*\bwte\b/;
    my $hint = hint($sentence, $known);
    return $hint if defined $hint;
    return
        'ranks that hold the same elements must hold the same bits: a sum or a broadcast over the ranks is missing, or only a part of the tensor went through it'
        if ($known->{reason} // '') =~ /different bits/;
    my ($missing) =
        grep {
        $_->{measured} == 0 && $_->{unit} =~ /call|message|byte/ && $_->{name} !~ /peak|held|kept/
        } @{ $known->{costs} || [] };
    return "a communication is missing: $missing->{name} is 0" if $missing;
    return
        "the steps before are right, and step $1 is not: something of the step before is left over, such as gradients that were not set to zero"
        if $sentence =~ /of step ([1-9]\d*)\b/;
    return 'the shares of the loss have wrong weights: a loss is a mean over all counted tokens, '
        . 'so each part counts by its tokens'
        if $sentence =~ /loss\b[^.]* differs/
        && $sentence =~ /accumulated|replicas|average|batch|at once/;
    return 'the loss is wrong, so begin with the forward; if the first loss is right, look at the '
        . 'backward and the update'
        if $sentence =~ /loss\b[^.]* differs/;
    return
        "rank $1 alone is right or wrong: look for a condition on the rank, or for a result that only one rank has"
        if $sentence =~ /differ on rank (\d+)[,.;]/;

    for (@general) {
        my ($pattern, $cause) = @$_;
        return $cause if $sentence =~ $pattern;
    }
    return undef;
}

# Returns a text about a cost that differs from its prediction, with the likely mistake. The cost is
# { name, unit, measured, predicted }.
sub cost_sentence {
    my ($cost) = @_;
    my ($measured, $predicted, $unit) = @$cost{qw(measured predicted unit)};
    my $times = $predicted > 0 && $measured > 0 ? $measured / $predicted : 0;
    my $how = $measured > $predicted ? 'more' : 'less';
    my $text = "$cost->{name}: measured $measured $unit, predicted $predicted";
    $text .= sprintf ' (%.3g times as much)', $times if $times && abs($times - 1) > 0.004;
    my $calls = $unit =~ /call|message/ ? 'calls' : $unit =~ /byte|element/ ? 'bytes' : '';
    $text .= '; the communication is done in more pieces than needed, or twice'
        if $calls eq 'calls' && $how eq 'more';
    $text .= '; a communication is missing'
        if $calls ne '' && $how eq 'less' && $cost->{name} !~ /memory|peak|held|activations|kept/;
    $text .= '; the work is done more often than needed' if $unit =~ /FLOP/ && $how eq 'more';
    $text .= '; a part of the work is left out' if $unit =~ /FLOP/ && $how eq 'less';
    $text .= '; more is kept at once than the method allows: a backward begins too late'
        if $cost->{name} =~ /in flight/ && $how eq 'more';
    $text .= '; something is kept longer than needed, or allocated twice'
        if $calls eq 'bytes'
        && $how eq 'more'
        && $cost->{name} =~ /peak|held|memory|activations|kept/;
    $text .= '; more is sent than needed: a whole instead of a part, or the same data twice'
        if $calls eq 'bytes' && $how eq 'more' && $cost->{name} =~ /sent|received|traffic/;
    $text .=
          '; the work or the waiting is longer than the method allows: look for computation done '
        . 'twice, and for waits before independent work'
        if $unit eq 'ps' && $how eq 'more';
    return $text;
}

sub fault_sentence {
    my ($fault) = @_;
    return "$fault: a send and its receive are in the wrong order, or some ranks leave out a call "
        . "that all ranks must make"
        if $fault =~ /deadlock|all ranks wait|blocked/i;
    return "$fault: a loop does not end, or a rank waits for a message that nobody sends"
        if $fault =~ /longer than allowed|waited/;
    return
        "$fault: the two sides of a message or of a collective name different parts, or take them in another order"
        if $fault =~ /sizes do not match/;
    return
        "$fault: a tensor of no size was used: its message has not been received, or the call that makes it has not run"
        if $fault =~ /\[0, 0\]/;
    return "$fault: an index is outside of its array, or a tensor was used before tensor_new"
        if $fault =~ /not its own|signal 11|sanitizer/;
    return $fault;
}
1;
