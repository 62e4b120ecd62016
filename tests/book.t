#!/usr/bin/perl
# Tests the book. Every link of every page must lead to a page, an anchor or a figure of the book.
# No page may read from the network. Formulas must be MathML. The search index must have the C
# sources. The player and the planner must calculate the same as the chapters' C and run in a
# browser.
# slow: the C is compiled to WebAssembly, and a browser opens the pages
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Find qw(find);
use File::Temp qw(tempdir);
use FindBin;
use Test::More;
chdir "$FindBin::Bin/.." or die;

# Links the C of player.html and planner.html for this machine, to find a missing file without the
# compiler for WebAssembly, too. Functions that a page does not call are dropped.
my @files = map { [split] } `tools/book --files`;
my $compiler = $ENV{OMPI_CC} || 'gcc';
for my $page ('player', 'planner') {
    my $files = shift @files;
    my $dir = tempdir(CLEANUP => 1);
    my (@objects, @failed);
    for my $file ("tests/test_$page.c", @$files) {
        push @objects, "$dir/" . ($file =~ tr{/}{_}r) . '.o';
        push @failed, $file
            if system("$compiler -std=gnu11 -w -I. -D__wasm__ -DEXPERIMENT_SYMBOL=unused "
                . "-ffunction-sections -fdata-sections -c -o $objects[-1] $file") != 0;
    }

    # The page defines page_progress() in JavaScript, so here the linker gives it an address.
    my $link = "$compiler -Wl,--gc-sections,--defsym=page_progress=0 -o $dir/page";
    my $said = `$link @objects -lm 2>&1`;
    ok($? == 0 && !@failed, "the files of $page.html are complete") or diag("@failed\n$said");
}
if (system('command -v pandoc >/dev/null 2>&1') != 0) {
    diag('pandoc is not installed, so the book is not built');
    done_testing();
    exit;
}

my $book = tempdir(CLEANUP => 1) . '/book';
my $said = `tools/book $book 2>&1`;
unless (is($?, 0, 'tools/book')) {
    diag($said);
    done_testing();
    exit;
}
my %page;
find(
    {
        no_chdir => 1,
        wanted => sub {
            return unless /\.html$/;
            local $/;
            open my $f, '<:encoding(UTF-8)', $_ or die;
            $page{s{^\Q$book\E/}{}r} = scalar <$f>;
        }
    },
    $book
);
cmp_ok(scalar(keys %page), '>', 40, 'pages');
my %anchors = map {
    my $p = $_;
    $p => { map { $_ => 1 } $page{$p} =~ /\bid="([^"]+)"/g }
} keys %page;

sub plain {
    my ($path) = @_;
    1 while $path =~ s{(^|/)\./}{$1} || $path =~ s{[^/]+/\.\./}{};
    return $path;
}
my (@lost, @remote);
for my $page (sort keys %page) {
    for my $link ($page{$page} =~ /\b(?:href|src)="([^"]*)"/g) {
        next if $link =~ m{^https?://|^mailto:};
        my ($to, $anchor) = $link =~ /^([^#?]*)(?:\?\w+)?#?(.*)$/;
        $anchor = "" if $anchor =~ /=/;    # the settings of a player or the planner
        my $target =
            $to eq '' ? $page : plain((dirname($page) eq '.' ? '' : dirname($page) . '/') . $to);
        if (!-f "$book/$target") { push @lost, "$page -> $link"; next }
        push @lost, "$page -> $link (no such anchor)"
            if $anchor ne '' && !$anchors{$target}{$anchor};
    }
    push @remote, "$page: $1"
        while $page{$page} =~ /<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"/g;
}
is(join("\n", @lost), '', 'every link leads to a page and an anchor');
is(join("\n", @remote), '', 'no page reads from the network');
like($page{'06_zero/index.html'}, qr/<math /, 'formulas are MathML');
like(
    $page{'index.html'},
    qr/<nav .*Chapter 01: Data parallelism/s,
    'the list of chapters stands beside each page'
);
like(
    $page{'05_pipeline_1f1b/02_1f1b.html'},
    qr/<h2 id="what-it-prints">.*Answer:.*<h2 id="the-source">.*schedule_1f1b/s,
    'the page of a lesson has its output and its source'
);
like(
    $page{'05_pipeline_1f1b/02_1f1b.html'},
    qr{<footer><a href="\.\./05_pipeline_1f1b/01_by_hand\.html">.*05_pipeline_1f1b/03_interleaved\.html},
    'a page links to the pages before and after'
);
like(
    $page{'05_pipeline_1f1b/index.html'},
    qr{<aside class="contents">.*href="#the-question"}s,
    'a chapter has a table of contents'
);
open my $f, '<', "$book/index.js" or die;
my $index = do { local $/; <$f> };
is(
    join(
        ' ',
        grep { index($index, "\"$_") < 0 } grep {
            !/LICENSE|^bugs|^tests|^Makefile|^tools|CONTRIB|\.(t|sh|py|h|patch|md|yml)\.html$|index\.html$|^docs/
                && /\.c\.html$/
        } keys %page
    ),
    '',
    'the search index has every source'
);

# ---- the player's page ----
sub slurp {
    local $/;
    open my $f, '<:encoding(UTF-8)', $_[0] or return '';
    return scalar <$f> // '';
}
sub found { return system("command -v $_[0] >/dev/null 2>&1") == 0 }
my ($browser) = grep { found($_) } qw(chromium chromium-browser google-chrome);
my $played = -f "$book/player_wasm.js" ? '' : 'tools/book found no clang, lld or wasi-libc';

# Runs a page of the book (or an empty page) with this script at its end. Returns the resulting page
# and its console output.
sub browse {
    my ($page, $script, $address) = @_;
    my $html = $page{$page} // "<body></body><script>$page</script>\n</body>";
    $html =~ s{\n</body>}{\n<script>$script</script>\n</body>};
    open my $f, '>:encoding(UTF-8)', "$book/test.html" or die;
    print $f $html;
    close $f;
    my $dir = tempdir(CLEANUP => 1);
    system(   "timeout 600 $browser --headless --no-sandbox --disable-gpu "
            . "--user-data-dir=$dir/profile --virtual-time-budget=20000"
            . " --enable-logging=stderr --dump-dom 'file://$book/test.html"
            . ($address // '')
            . "' >$dir/dom 2>$dir/err");
    unlink "$book/test.html";
    return (slurp("$dir/dom"), join '', grep { /CONSOLE/ } split /^/, slurp("$dir/err"));
}

# Checks that the output of the WebAssembly, $wasm, equals the output of $program and has more than
# $lines lines.
sub same_as_native {
    my ($wasm, $program, $lines, $what) = @_;
    my @from_native = split /\n/, `$program print`;
    my @from_wasm = split /\n/, $wasm;
    my ($line) =
        grep { ($from_native[$_] // '') ne ($from_wasm[$_] // '') }
        0 .. ($#from_native > $#from_wasm ? $#from_native : $#from_wasm);
    ok(@from_native > $lines && !defined $line, $what)
        or diag('line '
            . ($line // 0)
            . ":\n  native "
            . ($from_native[$line // 0] // '')
            . "\n  wasm   "
            . ($from_wasm[$line // 0] // ''));
}

sub run_wasm {
    my ($module, $script) = @_;
    if (found('node')) {
        my $dir = tempdir(CLEANUP => 1);
        open my $f, '>:encoding(UTF-8)', "$dir/run.js" or die;
        print $f $module, $script;
        close $f;
        return `node $dir/run.js`;
    }
    return unless $browser;
    my ($said) = browse($module, $script);
    return $said =~ s{^.*<body[^>]*>|</body>.*$}{}gsr;
}
SKIP: {
    my $program = 'build/cpu-fp32/tests/test_player';
    skip "$program is not built", 2 unless -x $program;
    my $said = `$program`;
    is($?, 0, 'the results of the native player equal closed forms') or diag($said);
    skip $played, 1 if $played;
    my $wasm = run_wasm(slurp("$book/player_wasm.js"), slurp('tests/test_player.js'));
    skip 'neither node nor a browser is installed', 1 unless defined $wasm;
    same_as_native($wasm, $program, 6000,
        'the WebAssembly gives the native results: every schedule, p <= 8, m <= 24; sizes');
}
SKIP: {
    skip $played, 7 if $played;
    like(
        $page{'05_pipeline_1f1b/index.html'},
        qr{<iframe class="player"[^>]*src="\.\./player\.html\?embed#schedule=2&amp;beside=2},
        'a chapter contains the player'
    );
    skip 'no Chromium is installed', 6 unless $browser;
    my ($two) = browse('player.html', '', '#schedule=3&beside=5&p=4&m=8');
    my ($both) = $two =~ m{<svg id="timeline".*?</svg>}s ? $& : '';
    is(join(' ', map { scalar(() = $both =~ /<rect class="$_/g) } qw(F B I W)),
        '96 64 32 32', 'two schedules: interleaved has twice the ops, ZB-H1 halves');
    like(
        $two,
        qr{interleaved, 2 chunks</b>: a step takes.*zero bubble \(ZB-H1\)</b>: a step takes}s,
        'two schedules: those of the address'
    );
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
    like(
        $dom,
        qr/data-stepped="33 of 33 units"/,
        'the step button leads to the end: 1F1B, p = 4, m = 8'
    );
    like($dom, qr/data-played="true"/, 'the play button plays');
    my ($timeline) = $dom =~ m{<svg id="timeline".*?</svg>}s ? $& : '';
    is(join(' ', map { scalar(() = $timeline =~ /<rect class="$_"/g) } qw(F B M)),
        '32 32 0', 'as many boxes as forwards and backwards, and no message');
}

# ---- the planner ----
SKIP: {
    my ($program, $plan) = map { "build/cpu-fp32/$_" } 'tests/test_planner', '08_3d/plan';
    skip "$program is not built", 3 unless -x $program;
    my $said = `$program`;
    is($?, 0, 'the results of the native planner equal the plan') or diag($said);
    my $dir = tempdir(CLEANUP => 1);
    system(
        "$plan --model llama2-7b --gpus 16 --batch 96 --memory 40 --layouts $dir/layouts >/dev/null"
    );
    my $listed = `$program search`;
    ok(
        $listed =~ tr/\n// > 1000 && $listed eq slurp("$dir/layouts"),
        'the search of the native planner has the layouts of plan --layouts'
    );
    skip $played, 1 if $played;
    my ($module) = $page{'planner.html'} =~ /^(const PLANNER_WASM = .*)$/m or die;
    my $wasm = run_wasm("$module\n", slurp('tests/test_planner.js'));
    skip 'neither node nor a browser is installed', 1 unless defined $wasm;
    same_as_native($wasm, $program, 1000,
        'the WebAssembly gives the native results: layouts, a search');
}
SKIP: {
    skip $played, 10 if $played;
    like($page{'08_3d/plan.html'},
        qr{href="\.\./planner\.html"}, 'the page of the plan leads to the planner');
    unlike($page{'planner.html'}, qr/<link[^>]*stylesheet/,
        'the planner is one file, with its style');
    skip 'no Chromium is installed, or 08_3d/plan is not built', 8
        unless $browser && -x 'build/cpu-fp32/08_3d/plan';

    # The page's time is simulated, but the worker's time is real: a search takes seconds. So the
    # page waits for the worker.
    my $script = <<'SCRIPT';
const move = (name, place) => { const e = byId(`set-${name}`); e.value = place; e.dispatchEvent(new Event('input')); };
const note = name => { document.body.dataset[name] = [location.hash, ...[...byId('tiles').children].map(t => t.firstChild.textContent)].join(' '); };
const states = [
  () => { note('linked'); move('tp', 2); },
  () => { note('moved'); byId('table').querySelector('tbody tr:nth-child(2)').click(); },
  () => { document.body.dataset.row = [...byId('table').querySelectorAll('tbody tr')].findIndex(row => row.className === 'here'); location.hash = '#gpus=16&model=llama2-7b&dp=3&tp=1&pp=1'; },
  () => { document.body.dataset.refused = byId('verdict').textContent; move('model', 11); move('gpus', 4); },
  () => { document.body.dataset.reason = byId('reason').textContent; move('model', 1); move('gpus', 5); },
  () => { document.body.dataset.best = byId('verdict').textContent; move('recompute', 2); note('full');
          byId('layouts').dispatchEvent(new PointerEvent('pointermove', { clientX: 500, clientY: 900 }));
          byId('layouts').dispatchEvent(new PointerEvent('click', { clientX: 500, clientY: 900 })); },
  () => { document.body.dataset.pointed = laid().every(s => s.key === 'sequence' || s.key === 'balanced' || byId('pointed').textContent.includes(shown(s, get(s.name)))); }];
setTimeout(function next() {
  for (let i = 0, sum = 0; i < 3e7; i++) sum += i;
  if (plans && byId('searching').hidden) states.shift()();
  if (states.length) setTimeout(next, 50);
}, 200);
SCRIPT
    my @task =
        qw(--model llama2-7b --cluster dgx-a100 --precision mixed --attention blockwise --gpus
        16 --batch 96 --memory 40);
    my @layout =
        qw(--cp 1 --micro-batch 1 --chunks 4 --balance blocks --zero 1 --sequence-parallel no
        --recompute full);
    my $address = sub {
        my ($dp, $tp, $pp) = @_;
        "#@task --dp $dp --tp $tp --pp $pp @layout" =~ s/^#--/#/r =~ s/ --/&/gr =~ s/ /=/gr;
    };
    my ($dom, $console) = browse('planner.html', $script, $address->(8, 1, 2));
    is($console, '', 'no message on the console, whatever is set');

    my $said = sub {
        my $dir = tempdir(CLEANUP => 1);
        system(   "build/cpu-fp32/08_3d/plan @task @layout --explain @{[join ',', @_]} --json "
                . "$dir/json >/dev/null");
        my ($memory, $step, $mfu) =
            map { slurp("$dir/json") =~ /"$_":\s*"?([\d.e+]+)/ ? $1 : 0 } qw(memory step mfu);
        return sprintf '%#.3g GB %#.3g s %.1f%%', $memory / 1e9, $step / 1e12, 100 * $mfu;
    };
    my $noted =
        sub { my ($text) = $dom =~ /data-$_[0]="([^"]*)"/; return ($text // '') =~ s/&amp;/&/gr };
    for (
        ['linked', 'the planner shows the layout of its address', 8, 1, 2],
        ['moved', 'the slider of tp moves, and dp makes room', 2, 4, 2]
    ) {
        my ($name, $what, @degrees) = @$_;
        like($noted->($name), qr/^\Q${\ $address->(@degrees)} ${\ $said->(@degrees)} /, $what);
    }
    is($noted->('row'), 1, 'a click chooses the second row of the table');
    is(
        $noted->('refused'),
        'This layout is impossible: its product is 3, and there are 16 GPUs (--gpus).',
        'the planner says why a layout is impossible'
    );
    like(
        $noted->('reason'),
        qr/^Nothing fits: even the layout that needs least memory exceeds the 76 usable GB\./,
        'the planner says why nothing fits: 6 GPUs, 800 sequences'
    );
    is(
        $noted->('best') . ($noted->('full') =~ /&recompute=(\w+)/)[0],
        'Fits. It is the fastest layout that fits.full',
        'a preset sets the fastest layout'
    );
    is($noted->('pointed'), 'true', 'a click on a point of the picture chooses its layout');
}
my $without = tempdir(CLEANUP => 1);
open my $fake, '>', "$without/clang" or die;
print $fake "#!/bin/sh\nexit 1\n";
close $fake;
chmod 0755, "$without/clang";
$said = `PATH=$without:\$PATH tools/book $without/book 2>&1`;
is($?, 0, 'without clang tools/book succeeds');
like(
    $said,
    qr/^player\.html shows pictures and planner\.html is left out: they need clang.*apt-get install.*\n.*pages/,
    'without clang one line gives the reason'
);
ok(!-e "$without/book/planner.html", 'without clang there is no planner');
unlike(slurp("$without/book/08_3d/plan.html") . slurp("$without/book/index.html"),
    qr/href="[^"]*planner\.html/, 'without clang no page links to the planner');
my $pictures = slurp("$without/book/player.html");
unlike($pictures, qr/player\.js/, 'without clang the player is left out');
is(join(' ', grep { !-f "$without/book/$_" } $pictures =~ /<img src="([^"]+)"/g),
    '', 'without clang the pictures of the player stay');
done_testing();
