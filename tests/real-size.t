#!/usr/bin/perl
# Every number that tests/test_real_size.c computes must be on its page, with the same words next to
# the number. Bold print and line breaks do not matter. The sign … in the expected words stands for
# 1 to 120 characters of other words.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $program = program_of('fp32', 'tests/test_real_size.c');
plan skip_all => "$program is not built" unless -x $program;
my @out = `$program --emulate 1`;
is($?, 0, 'the figures are computed');
my (%text, %seen);

sub page_text {
    my ($page) = @_;
    open my $f, '<', $page or die "$page: $!";
    my $text = do { local $/; <$f> };
    $text =~ s/\*\*//g;
    $text =~ s/\s+/ /g;
    return $text;
}
for (grep { /^\S+\.md: / } @out) {
    my ($page, $figure) = /^(\S+\.md): (.*)$/;
    $text{$page} //= page_text($page);
    $seen{$page}++;

    # A number at either end of the words must not be part of a longer number.
    my @words = map { (/^\d/ ? '(?<![\d.,])' : '') . quotemeta($_) . (/\d$/ ? '(?![.,]?\d)' : '') }
        split / … /, $figure;
    my $words = join '.{1,120}?', @words;
    ok($text{$page} =~ /$words/, "$page: $figure");
}
for my $page (glob '0*/README.md') {
    ok($seen{$page}, "$page: the real-size example of the page is computed");
}
done_testing();
