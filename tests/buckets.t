#!/usr/bin/perl
# Tests overlapping with other sizes of buckets, from a bucket per tensor to one bucket of all. A
# step must take the time that the recurrence over the buckets predicts. Processes must give the
# same bits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = '01_data_parallel/04_overlap.c';
my @built = grep { -x program_of($_, $source) } qw(fp32 fp64);
plan skip_all => "$source is not built" unless @built;
my @forms = forms_of(
    $source,
    [4, qw(--bucket 1)],
    [4, qw(--bucket 1024)],
    [5, qw(--bucket 4096 --link ethernet)],
    [4, qw(--bucket 65536)],
    [4, qw(--bucket 1000000)]
);
forms_hold(
    grep {
        my $form = $_;
        grep { $form->{name} =~ /^$_,/ } @built
    } @forms
);
done_testing();
