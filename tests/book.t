#!/usr/bin/perl
# The book: every link of every page leads to a page, an anchor or a figure of the book; nothing is read from the network; formulas are
# MathML; the search's index has every page.
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Find qw(find);
use File::Temp qw(tempdir);
use FindBin;
use Test::More;
chdir "$FindBin::Bin/.." or die;
plan skip_all => 'pandoc is not installed' if system('command -v pandoc >/dev/null 2>&1') != 0;

my $book = tempdir(CLEANUP => 1) . '/book';
my $said = `tools/book $book 2>&1`;
is($?, 0, 'tools/book') or BAIL_OUT($said);
my %page;
find({ no_chdir => 1, wanted => sub { return unless /\.html$/; local $/; open my $f, '<:encoding(UTF-8)', $_ or die; $page{ s{^\Q$book\E/}{}r } = scalar <$f> } }, $book);
cmp_ok(scalar(keys %page), '>', 40, 'pages');
my %anchors = map { my $p = $_; $p => { map { $_ => 1 } $page{$p} =~ /\bid="([^"]+)"/g } } keys %page;
sub plain { my ($path) = @_; 1 while $path =~ s{(^|/)\./}{$1} || $path =~ s{[^/]+/\.\./}{}; return $path }
my (@lost, @remote);
for my $page (sort keys %page) {
    for my $link ($page{$page} =~ /\b(?:href|src)="([^"]*)"/g) {
        next if $link =~ m{^https?://|^mailto:};
        my ($to, $anchor) = $link =~ /^([^#]*)#?(.*)$/;
        my $target = $to eq '' ? $page : plain((dirname($page) eq '.' ? '' : dirname($page) . '/') . $to);
        if (!-f "$book/$target") { push @lost, "$page -> $link"; next }
        push @lost, "$page -> $link (no such anchor)" if $anchor ne '' && !$anchors{$target}{$anchor};
    }
    push @remote, "$page: $1" while $page{$page} =~ /<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"/g;
}
is(join("\n", @lost), '', 'links lead somewhere');
is(join("\n", @remote), '', 'nothing comes from the network');
like($page{'06_zero/index.html'}, qr/<math /, 'formulas are MathML');
like($page{'index.html'}, qr/<nav>.*01 data parallel/s, 'the list of chapters stands beside each page');
open my $f, '<', "$book/index.js" or die;
my $index = do { local $/; <$f> };
is(join(' ', grep { index($index, "\"$_") < 0 } grep { !/LICENSE|^bugs|^tests|^Makefile|^tools|CONTRIB|\.(t|sh|py|h|patch|md|yml)\.html$|index\.html$|^docs/ && /\.c\.html$/ } keys %page), '', 'the search knows every source');
done_testing();
