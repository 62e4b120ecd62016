#!/usr/bin/perl
# The real-size examples of the READMEs: every figure that tests/test_real_size.c computes stands on its page, in the same words.
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
for (grep { /^\S+\.md: / } @out) {
    my ($page, $figure) = /^(\S+\.md): (.*)$/;
    $text{$page} //= do { local $/; open my $f, '<', $page or die "$page: $!"; my $t = <$f>; $t =~ s/\s+/ /g; $t };
    $figure =~ s/\s+/ /g;
    $seen{$page}++;
    ok(index($text{$page}, $figure) >= 0, "$page: $figure");
}
for my $page (glob '0*/README.md') {
    ok($seen{$page}, "$page: its real-size example is computed");
}
done_testing();
