#!/usr/bin/perl
# The book: every link of every page leads to a page, an anchor or a figure of the book; nothing is read from the network; formulas are
# MathML; the search's index has every page. The player calculates what the chapters' C does, and runs in a browser.
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
# ---- the page that moves: what its WebAssembly says is what the same C says here; and it draws, whatever is set ----
sub slurp { local $/; open my $f, '<:encoding(UTF-8)', $_[0] or return ''; return scalar <$f> // '' }
sub found { return system("command -v $_[0] >/dev/null 2>&1") == 0 }
my ($browser) = grep { found($_) } qw(chromium chromium-browser google-chrome);
my $played = -f "$book/player_wasm.js" ? '' : 'tools/book found no clang, lld or wasi-libc';
# A page of the book with this script behind its own: the page as it is after it, and what its console said.
sub browse {
    my ($page, $script) = @_;
    my $html = $page eq '' ? "<body></body><script src=\"player_wasm.js\"></script>\n</body>" : $page{$page};
    $html =~ s{\n</body>}{\n<script>$script</script>\n</body>};
    open my $f, '>:encoding(UTF-8)', "$book/test.html" or die;
    print $f $html;
    close $f;
    my $dir = tempdir(CLEANUP => 1);
    system("timeout 120 $browser --headless --no-sandbox --disable-gpu --user-data-dir=$dir/profile --virtual-time-budget=20000"
           . " --enable-logging=stderr --dump-dom file://$book/test.html >$dir/dom 2>$dir/err");
    unlink "$book/test.html";
    return (slurp("$dir/dom"), join '', grep { /CONSOLE/ } split /^/, slurp("$dir/err"));
}
SKIP: {
    my $program = 'build/cpu-fp32/tests/test_player';
    skip "$program is not built", 2 unless -x $program;
    my $said = `$program`;
    is($?, 0, 'what the player says natively: closed forms') or diag($said);
    skip $played, 1 if $played;
    my $print = slurp('tests/test_player.js');
    my $wasm;
    if (found('node')) { $wasm = `cat $book/player_wasm.js tests/test_player.js | node -` }
    elsif ($browser) { ($wasm) = browse('', $print); $wasm =~ s{^.*<body[^>]*>|</body>.*$}{}gs }
    else { skip 'neither node nor a browser is installed', 1 }
    my @here = split /\n/, `$program print`;
    my @there = split /\n/, $wasm;
    my ($line) = grep { ($here[$_] // '') ne ($there[$_] // '') } 0 .. ($#here > $#there ? $#here : $#there);
    ok(@here > 6000 && !defined $line, 'the WebAssembly says the same: every schedule, p <= 8, m <= 24; sizes')
        or diag('line ' . ($line // 0) . ":\n  native " . ($here[$line // 0] // '') . "\n  wasm   " . ($there[$line // 0] // ''));
}
SKIP: {
    skip $played, 4 if $played;
    skip 'no Chromium is installed', 4 unless $browser;
    my ($dom, $console) = browse('player.html', <<'SCRIPT');
setTimeout(() => {
  const set = (name, v) => { const e = byId('set-' + name); e.value = v; e.dispatchEvent(new Event('input')); };
  const all = [...document.querySelectorAll('#player label input, #player select')];
  for (const least of [false, true])                   // one after the other, until all are at their largest, then at their least
    for (const e of all) { e.value = least ? 0 : e.max || e.options.length - 1; e.dispatchEvent(new Event('input')); }
  set('schedule', 2); set('p', 3); set('m', 7); set('t_f', 0); set('t_b', 1); set('link', 0);
  byId('start').click();
  for (let n = 0; n < 100 && now < end; n++) byId('step').click();
  document.body.dataset.stepped = byId('clock').textContent;
  let frame = 0;                                   // a browser without a window draws no frames of its own
  window.requestAnimationFrame = f => setTimeout(() => f(frame += 16), 16);
  byId('play').click();
  setTimeout(() => {
    byId('play').click();
    document.body.dataset.played = now > 0 && now < end;           // from the start again, for a second
  }, 1000);
}, 1000);
SCRIPT
    is($console, '', 'no message on the console, whatever is set');
    like($dom, qr/data-stepped="33 of 33 units"/, 'stepped to the end: 1F1B, p = 4, m = 8');
    like($dom, qr/data-played="true"/, 'and played');
    my ($timeline) = $dom =~ m{<svg id="timeline".*?</svg>}s ? $& : '';
    is(join(' ', map { scalar(() = $timeline =~ /<rect class="$_"/g) } qw(F B M)), '32 32 0', 'and as many boxes: forwards, backwards, no message');
}
my $without = tempdir(CLEANUP => 1);
open my $fake, '>', "$without/clang" or die;
print $fake "#!/bin/sh\nexit 1\n";
close $fake;
chmod 0755, "$without/clang";
$said = `PATH=$without:\$PATH tools/book $without/book 2>&1`;
is($?, 0, 'without clang: tools/book');
like($said, qr/^player\.html shows pictures: to play it needs clang.*\n.*pages/, 'says so in one line');
my $pictures = slurp("$without/book/player.html");
unlike($pictures, qr/player\.js/, 'the page has no player');
is(join(' ', grep { !-f "$without/book/$_" } $pictures =~ /<img src="([^"]+)"/g), '', 'but its pictures');
done_testing();
