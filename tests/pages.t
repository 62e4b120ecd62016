#!/usr/bin/perl
# Checks that the page of every lesson has at most 40 lines of 100 columns. At the lesson's own
# ranks the page comes from docs/pages. With eight ranks every third lesson runs; TEST_ALL=1 runs
# all. The trainer's page is not tested, because its number of lines depends on the run.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my @lessons = grep { $_->{key} ne '08-train' && $_->{key} ne '00' } lessons();
plan skip_all => 'there is no lesson yet' unless @lessons;

sub fits {
    my ($name, $page) = @_;
    utf8::decode($page);    # columns are characters
    my @lines = split /\n/, $page, -1;
    pop @lines;

    cmp_ok(scalar @lines, '<=', 40, "$name: " . @lines . ' lines');
    is(join("\n", grep { length > 100 } @lines), '', "$name: no line is wider");
}

# Checks that a page ends with its answer, the cost, when to use the technique, and the verdict. The
# answer must have a number. Returns the answer.
sub ending {
    my ($name, $page) = @_;
    my ($answer) = $page =~
        /^  Answer:      (.+?)\n  Cost:        .+?\n  Use it when: .+?\n\[[^\]]+\] PASS /ms;
    ok(defined $answer, "$name: the page ends with its answer, its cost and its use") or return '';
    like($answer, qr/\d/, "$name: the answer has a number");
    return $answer =~ s/\s+/ /gr;
}

my (%answer, $others);
my %page = join('', map { slurp($_) } glob 'docs/pages/*.md') =~
    /^```console\n\$ build\/cpu-fp32\/(\S+)\n(.*?)^```$/msg;
for my $lesson (@lessons) {
    my $page = $page{ $lesson->{source} =~ s/\.c$//r };
    ok(defined $page, "$lesson->{key}: docs/pages has its page (make pages)") or next;
    fits($lesson->{key}, $page);
    $answer{ $lesson->{key} } = ending($lesson->{key}, $page);
}

my @jobs;
for my $i (0 .. $#lessons) {
    my $lesson = $lessons[$i];
    next if $lesson->{ranks} == 8 || !($all || $i % 3 == 0);
    push @jobs,
        {
        words =>
            ['env', 'COLUMNS=100', 'tools/launch', '-e', 8, program_of('fp32', $lesson->{source})],
        name => "$lesson->{key}, 8 ranks"
        };
}
run_jobs(\@jobs);
for my $job (@jobs) {
    next if $job->{status} == 2;    # a lesson that needs another rank count
    is($job->{status}, 0, "$job->{name}: the lesson runs") or diag(complain($job));
    fits($job->{name}, $job->{out});
    my ($key) = $job->{name} =~ /^(\S+),/;
    $others++ if ending($job->{name}, $job->{out}) ne $answer{$key};
}

# At least half of the answers must differ from those at the lessons' own ranks. A lesson for one
# rank gives the same answer.
cmp_ok($others, '>=', @jobs / 2, 'with other ranks the answers have other numbers');
done_testing();
