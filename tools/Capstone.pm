# Capstone.pm draws the layouts of the capstone, in which chapter 08's trainer calls a student's
# bodies of chapters 01 to 07. Capstone.pm also finds the exercises whose bodies this training can
# reach. tools/grade and tools/task use this module.
package Capstone;
use strict;
use warnings;
use Exercises;
use Exporter 'import';

our @EXPORT = qw(capstone_exercise capstone_layouts capstone_pieces);

my $lesson = '08_3d/train.c';
my $options =
    '--check --steps 3 --layers 6 --width 24 --heads 4 --context 8 --batch 12 --micro-batch 1 --eval-every 0';

sub capstone_exercise {
    return {
        id => '08.capstone',
        points => 20,
        title => 'your own pieces train chapter 08',
        task => 'your own pieces train chapter 08',
        file => $lesson,
        lesson => $lesson,
        options => $options,
        key => '08-train',
        capstone => 1
    };
}

# Returns the layouts of a draw. The kinds of layouts have a fixed order. A layout is { ranks,
# words, options }. `words` has the layout's own options without dashes, and `options` has all
# options of the run. The function draw->(n, purpose) returns a number below n. The layouts
# 'interleaved', 'replicas' and 'compressing' have 5, 6 or 7 ranks, and the others have 8.
sub capstone_layouts {
    my ($draw) = @_;
    my $one_of = sub { my ($purpose, @of) = @_; return $of[$draw->(scalar @of, $purpose)] };
    my @recompute = $draw->(2, 'recompute') ? qw(full selective) : qw(selective full);
    my $moves = $one_of->('moves', '--rebalance 1', '--activation-budget 40000');
    my @layouts = (
        '--dp 2 --tp 2 --pp 2 --schedule zero-bubble --sequence-parallel'
            . " --zero @{[1 + $draw->(2, 'shards')]} --recompute $recompute[0]",
        $one_of->('interleaved', '--dp 2 --tp 1 --pp 3', '--dp 3 --tp 1 --pp 2')
            . " --schedule interleaved --chunks 2 --overlap --recompute $recompute[1]",
        $one_of->(
            'gathered',
            '--dp 4 --tp 2 --pp 1',
            '--dp 2 --tp 4 --pp 1',
            '--dp 2 --tp 2 --pp 2'
            )
            . ' --zero 3 --prefetch',
        "--dp @{[5 + $draw->(3, 'replicas')]} --tp 1 --pp 1 --zero 3",
        $one_of->(
            'positions',
            '--dp 2 --tp 2 --pp 1',
            '--dp 1 --tp 2 --pp 2',
            '--dp 2 --tp 1 --pp 2'
            )
            . ' --cp 2 --zero '
            . $draw->(3, 'context'),
        $one_of->(
            'grid',
            '--dp 2 --tp 4 --pp 1 --tensor 2d',
            '--dp 1 --tp 8 --pp 1 --tensor 2.5d',
            '--dp 1 --tp 8 --pp 1 --tensor 3d'
        ),
        "--dp @{[5 + $draw->(3, 'compressing')]} --tp 1 --pp 1 "
            . $one_of->('compress', '--compress top-k --keep-one-of 8', '--compress power-sgd'),
        $one_of->('moved', '--dp 2 --tp 2 --pp 2', '--dp 2 --tp 1 --pp 4') . " $moves",
        $one_of->('stored', '--dp 2 --tp 2 --pp 2', '--dp 4 --tp 1 --pp 2')
            . ' --storage fp16 --zero '
            . $draw->(3, 'masters')
    );
    return map {
        my $ranks = 1;
        $ranks *= $_ for /--(?:dp|tp|pp|cp) (\d+)/g;
        { ranks => $ranks, words => s/--//gr, options => "$options $_" }
    } @layouts;
}

sub symbols_of {
    my ($path, $kinds) = @_;
    return map { /^\S+ $kinds (\S+)/ ? $1 : () } `nm --defined-only '$path' 2>/dev/null`;
}

# Returns the exercises of chapters 01 to 07 whose files are linked into the trainer.
sub capstone_pieces {
    my ($build, @all) = @_;
    my %linked = map { $_ => 1 } symbols_of("$build/" . $lesson =~ s/\.c$//r, qr/[tT]/);
    my %files;
    for my $e (grep { $_->{id} =~ /^0[1-7]\./ && $_->{file} =~ /^0[1-7]_/ } @all) {
        $files{ $e->{file} } //= do {
            my @defines = symbols_of("$build/" . $e->{file} =~ s/\.c$/.o/r, qr/T/);
            { linked => @defines > 0 && !grep { !$linked{$_} } @defines };
        };
    }
    return grep { $files{ $_->{file} } && $files{ $_->{file} }{linked} } @all;
}
1;
