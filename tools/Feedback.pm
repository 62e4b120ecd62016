# Feedback.pm explains a failed run in the words of the field: which tensors are wrong, by which
# factor, on which ranks, from which step, and the mistake that usually has this effect. tools/check
# and tools/grade use it. The frame measures the factor and the ranks (judge/frame/diagnose.c); the
# rules below add the likely cause.
package Feedback;
use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(wrong_sentence likely_cause cost_sentence fault_sentence);

# The sentence after "Wrong:" of a page, without its line breaks.
sub wrong_sentence {
    my ($page) = @_;
    my ($text) = $page =~ /^ *Wrong:\s+(.*?)(?=^ {0,4}\S|^\s*$|\z)/ms or return undef;
    return $text =~ s/\s+/ /gr =~ s/ $//r;
}

sub close_to { my ($x, $y) = @_; return abs($x - $y) < 2e-3 * abs($y) }

# Returns a likely cause of a wrong result, or undef. sentence: of wrong_sentence. known: { ranks,
# micro_batches, reason }. reason: the judge's reason, or the line under the failed check.
sub likely_cause {
    my ($sentence, $known) = @_;
    return undef unless defined $sentence;
    return 'ranks that hold the same elements must hold the same bits: a sum or a broadcast over '
        . 'the ranks is missing, or only a part of the tensor went through it'
        if ($known->{reason} // '') =~ /different bits/
        && $sentence !~ /^\S*[^.]*\b1 of \d+ tensors[^.]*wte/;
    my ($n, $m) = ($known->{ranks} // 1, $known->{micro_batches} // 0);
    if ($sentence =~ /(\d[\d.e+]*) times too (small|large)/) {
        my ($factor, $small) = ($1, $2 eq 'small');
        my $everywhere = $sentence =~ /on every rank|\bnumber|loss/;
        return "every value is the sum divided by the number of ranks, $n: the loss is already a "
            . "mean over the whole batch, so the gradients are only added"
            if $small && $n > 1 && close_to($factor, $n);
        return "every value is $n times the right one: $n ranks added the same whole value, or "
            . "the division by the number of ranks is missing"
            if !$small && $n > 1 && close_to($factor, $n);
        return "every value is divided by the number of micro-batches, $m, once more: the loss is "
            . "already a mean over the whole batch"
            if $small && $m > 1 && close_to($factor, $m);
        return "every value is $m times the right one: each micro-batch is scaled as if it were "
            . "the whole batch"
            if !$small && $m > 1 && close_to($factor, $m);
        return 'a part was added twice: it is counted by two ranks, or added to a buffer that '
            . 'already held it'
            if !$small && close_to($factor, 2);
        return 'half is missing: one of two parts was not added, or a sum was divided by 2'
            if $small && close_to($factor, 2);
        return 'all wrong tensors have the same factor: look for a division or a scale that is '
            . 'done twice, or not at all';
    }
    return 'only the tied table is wrong: it is used twice and has two gradients, which must be '
        . 'added once, after the last backward and before a sum over ranks'
        if $sentence =~ /\b1 of \d+ tensors[^.]*(?:differ|are|is)[^.]*\bwte\b/;
    return "the steps before are right, and step $1 is not: something of the step before is left "
        . "over, such as gradients that were not set to zero"
        if $sentence =~ /of step ([1-9]\d*)\b/;
    return 'the shares of the loss have wrong weights: a loss is a mean over all counted tokens, '
        . 'so each part counts by its tokens'
        if $sentence =~ /loss\b[^.]* differs/
        && $sentence =~ /accumulated|replicas|average|batch|at once/;
    return 'the loss is wrong, so begin with the forward; if the first loss is right, look at the '
        . 'backward and the update'
        if $sentence =~ /loss\b[^.]* differs/;
    return 'nothing arrived: the result was never written, or it stayed in a local buffer'
        if $sentence =~ /are all zero|is all zero/;
    return 'a sign is wrong: look for a minus, or for a difference in the wrong order'
        if $sentence =~ /of the wrong sign/;
    return "rank $1 alone is right or wrong: look for a condition on the rank, or for a result "
        . "that only one rank has"
        if $sentence =~ /differ on rank (\d+)[,.;]/;
    return 'only some ranks are wrong: look at what the first and the last rank do differently, '
        . 'and at the bounds of shard_range'
        if $sentence =~ /differ on (?:ranks|\d+ of \d+ ranks)/;
    return 'the statement compares the ranks or an order: look at which rank does what, and when'
        if $sentence =~ /does not hold/;
    return 'no factor explains it: a part of the data is missing, taken twice, or at another place'
        if $sentence =~ /no single factor/;
    return undef;
}

# Explains a cost that differs from its prediction: { name, unit, measured, predicted }.
sub cost_sentence {
    my ($cost) = @_;
    my ($is, $should, $unit) = @$cost{qw(measured predicted unit)};
    my $times = $should > 0 && $is > 0 ? $is / $should : 0;
    my $how = $is > $should ? 'more' : 'less';
    my $text = "$cost->{name}: measured $is $unit, predicted $should";
    $text .= sprintf ' (%.3g times as much)', $times if $times && abs($times - 1) > 0.004;
    my $calls = $unit =~ /call|message/ ? 'calls' : $unit =~ /byte|element/ ? 'bytes' : '';
    $text .= '; the communication is done in more pieces than needed, or twice'
        if $calls eq 'calls' && $how eq 'more';
    $text .= '; a communication is missing'
        if $calls eq 'calls' && $how eq 'less' && $cost->{name} !~ /memory|peak|held/;
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

# Explains a run that ended before its verdict.
sub fault_sentence {
    my ($fault) = @_;
    return "$fault: a send and its receive are in the wrong order, or some ranks leave out a call "
        . "that all ranks must make"
        if $fault =~ /deadlock|all ranks wait|blocked/i;
    return "$fault: a loop does not end, or a rank waits for a message that nobody sends"
        if $fault =~ /longer than allowed|waited/;
    return "$fault: an index is outside of its array, or a tensor was used before tensor_new"
        if $fault =~ /not its own|signal 11|sanitizer/;
    return $fault;
}
1;
