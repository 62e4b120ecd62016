#!/usr/bin/perl
# tools/play and make play-KEY must play a recording event by event in a terminal, and print its
# last picture without a terminal. A file that is no recording must get a message.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
delete @ENV{
    qw(COLUMNS NO_COLOR MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES NP ARGS PRECISION BACKEND SANITIZE)
};
my $train = program_of('fp32', '08_3d/train.c');
plan skip_all => "$train is not built" unless -x $train;
{ open my $f, '>', "$work/text" or die; print $f join ' ', 1 .. 1000; close $f or die }
my @small = (
    qw(--layers 4 --width 24 --heads 4 --context 8 --batch 4 --micro-batch 1 --steps 1 --link
        ib --data),
    "$work/text"
);
my $pipeline = "$work/pipeline.json";
my $mesh = "$work/mesh.json";
my @made = (
    emu(4, $train, @small, qw(--dp 1 --tp 1 --pp 4 --trace), $pipeline),
    emu(8, $train, @small, qw(--trace), $mesh)
);
run_jobs(\@made);
is($_->{status}, 0, 'there is a recording') or diag(complain($_)) for @made;

# ---- without a terminal: the last picture ----
sub command { my $job = { words => [@_] }; run_jobs([$job]); return $job }
for my $columns (40, 80, 200) {
    my $job = command('env', "COLUMNS=$columns", 'tools/play', $pipeline);
    is($job->{status}, 0, "$columns columns: status 0") or diag(complain($job));
    like(
        $job->{out},
        qr/^36 of 36 events, [\d.]+ [um]?s of simulated t/m,
        "$columns columns: all events have happened"
    );
    is(scalar(grep { length > $columns } split /\n/, $job->{out}),
        0, "$columns columns: no line is longer");
    next if $columns < 80;
    for my $rank (0 .. 3) {
        my ($row) = $job->{out} =~ /^rank $rank +(\S.*)$/m;
        my @order = ($row // '') =~ /([FB]\d)/g;
        my @forward = map { "F$_" } 0 .. 3;
        is(
            "@{[sort @order]}",
            'B0 B1 B2 B3 F0 F1 F2 F3',
            "$columns columns: rank $rank has all its boxes"
        ) or diag($job->{out});
        is("@{[grep { /F/ } @order]}",
            "@forward", "$columns columns: rank $rank, forwards in order");
    }
    unlike($job->{out}, qr/\e/, "$columns columns: no escape codes");
}
like(command('tools/play', $mesh)->{out}, qr/^rank 7 +\S/m, 'eight ranks have eight rows');

# ---- with a terminal, which script(1) makes; the keys are typed ahead ----
sub screens {
    my ($keys, $file, $setting) = @_;
    open my $f, '>', "$work/keys" or die;
    print $f $keys;
    close $f or die;
    my $settings = $setting // 'TERM=xterm';
    my $out =
        `$settings timeout $hang script -qec 'stty cols 80 rows 24; tools/play $file' /dev/null <$work/keys 2>&1`;
    my $status = $? >> 8;
    $out =~ s/\r//g;
    return ($status, $out, map { s/\e\[[0-9;?]*[A-Za-z]//gr } split /\e\[H\e\[2J/, $out);
}
SKIP: {
    skip 'no script(1)', 16 if system('command -v script >/dev/null') != 0;
    my ($status, $raw, @screen) = screens('q', $pipeline);
    is($status, 0, 'q ends the player');
    like(
        $screen[1],
        qr/^0 of 36 events, nothing has happened yet$/m,
        'at first no event has happened'
    );
    like($raw, qr/\e\[\?1049h.*\e\[\?1049l/s, 'the screen is restored');
    ($status, $raw, @screen) = screens("\e[C q", $pipeline);
    like(
        $screen[-1],
        qr/^2 of 36.*^rank 0 \[2\] +F0.*^rank 0 starts forward of micro-batch 1$/ms,
        'right and space advance by an event each'
    );
    like($raw, qr/\e\[1;7;36mF/, 'the last event stands out');
    ($status, $raw, @screen) = screens("\e[C   \eOD\e[Dq", $pipeline);
    like($screen[-1], qr/^2 of 36/m, 'left goes back by an event');
    ($status, $raw, @screen) = screens("\e[D\e[Dq", $pipeline);
    like($screen[-1], qr/^0 of 36/m, 'left does not go before the beginning');
    ($status, $raw, @screen) = screens("\e[F   q", $pipeline);
    like($screen[-1], qr/^36 of 36/m, 'end shows all events; space does not go further');
    ($status, $raw, @screen) = screens("\e[F\e[Hxyz1q", $pipeline);
    like($screen[-1], qr/^0 of 36/m, 'home goes to the beginning; other keys do nothing');
    ($status, $raw, @screen) = screens('   q', $pipeline);
    like(
        $screen[-1],
        qr/^rank 1 starts forward of micro-batch 0; it received it from rank 0$/m,
        'a forward names the rank that sent its input'
    );
    ($status, $raw, @screen) = screens(' ' x 40 . 'q', $pipeline);
    like($screen[-1], qr/^36 of 36/m, 'space leads to the last event');
    ok(!grep({ length > 80 } map { split /\n/ } @screen), 'no line is longer than the terminal');
    my @said = map { /^(rank \d starts backward.*)$/mg }
        map { (screens(' ' x $_ . 'q', $pipeline))[-1] } 8 .. 16;
    ok(
        scalar(
            grep {
                /^rank 2 starts backward of micro-batch 0; it received its gradient from rank 3$/
            } @said
        ),
        'a backward names the rank that sent its gradient'
    ) or diag("@said");
    ($status, $raw, @screen) = screens('  q', $pipeline, 'TERM=dumb');
    is($status, 0, 'the player runs on a terminal without escape codes');
    unlike($raw, qr/\e/, 'a terminal without escape codes gets none');
    ($status, $raw, @screen) = screens('  q', $pipeline, 'TERM=xterm NO_COLOR=1');
    unlike($raw, qr/\e\[[0-9;]*m/, 'NO_COLOR: no colours');
}

# ---- files that are no recording ----
my %broken = (
    'not JSON' => '{"traceE',
    'no events' => '{"a":1}',
    'nothing computes' => '{"traceEvents":[]}',
    'no times' => '{"traceEvents":[{"ph":"X","pid":0,"tid":0}]}',
    'a number' => '17',
    'numbers instead of events' => '{"traceEvents":[1,2]}',
    empty => '',
    binary => join('', map { chr } 0 .. 255),
    'times that are words' => '[{"ph":"X","pid":0,"tid":0,"ts":"soon","dur":1,"name":"forward 0"}]',
    'cut short' => substr(slurp($pipeline), 0, 3000)
);
for my $what (sort keys %broken) {
    open my $f, '>', "$work/broken.json" or die;
    print $f $broken{$what};
    close $f or die;
    my $job = command('tools/play', "$work/broken.json");
    is($job->{status}, 2, "$what: status 2");
    like($job->{err}, qr/\Aunsplit: [^\n]*broken\.json[^\n]*\n\z/, "$what: one message");
    is($job->{out}, '', "$what: nothing else");
}
for my $words ([], ["$work/none.json"], [$work], ['a', 'b']) {
    my $job = command('tools/play', @$words);
    is($job->{status}, 2, "tools/play @$words: status 2");
    like($job->{err}, qr/\Aunsplit: [^\n]+\n\z/, "tools/play @$words: one message");
}

# ---- make play-KEY ----
my $job = command(qw(make --no-print-directory play-08 NP=4), "ARGS=@small --dp 1 --tp 1 --pp 4");
is($job->{status}, 0, 'make play-08 records the trainer and plays the file')
    or diag(complain($job));
like($job->{out}, qr/^36 of 36 events.*^rank 3 \[0\] +F0/ms, 'make play-08 shows the recording');
$job = command(qw(make --no-print-directory play-05), 'ARGS=--schedule interleaved --p 2 --m 4');
is($job->{status}, 0, 'make play-05 plays any schedule') or diag(complain($job));
like(
    $job->{out},
    qr/^32 of 32 events.*^rank 1 \[0\] +F0.*^Legal: 13.5 units\./ms,
    'make play-05 shows the cost of the schedule'
);
$job = command(qw(make --no-print-directory play-05), "ARGS=--list 'F0 B0 F1 B1 / F0 F1 B0 B1'");
like(
    $job->{out},
    qr/^Deadlock.*^  stage 1 waits before F1 for F1 of stage 0, which has B0 to run first$/ms,
    'a typed list: the page shows which stage waits for which'
);
my @unlike =
    (join(' ', map({ "F$_" } 0 .. 7), map { "B$_" } 0 .. 7), join(' ', map { "F$_ B$_" } 0 .. 7));
$job = command(qw(make --no-print-directory play-05), "ARGS=--list '$unlike[0] / $unlike[1]'");
like(
    $job->{out},
    qr/^Deadlock.*^  stage 1 waits before B3 for a send buffer: stage 0, which waits before F7, has posted no receive for B1$/ms,
    'a typed list: the page shows which stage waits for which send buffer'
);
$job = command(qw(make --no-print-directory play-05), "ARGS=--list 'F0 Q'");
is($job->{status}, 2, 'a text that is no list is refused');
like(
    $job->{err},
    qr/--list, stage 0: 'Q' does not begin with an op/,
    'a text that is no list gets a message'
);
$job = command(qw(make --no-print-directory play-01-01));
is($job->{status}, 2, 'a lesson without a picture is refused');
like($job->{err}, qr/draws no picture/, 'a lesson without a picture gets a message');
$job = command(qw(make --no-print-directory play-77));
like($job->{err}, qr/no lesson or chapter '77'/, 'a lesson that does not exist is named');
done_testing();
