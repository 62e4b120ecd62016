#!/usr/bin/perl
# Tests overlapping with other sizes of buckets, from a bucket per tensor to one bucket of all. The
# time of a step is the one that the recurrence over the buckets predicts. Processes give the same
# bits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = '01_data_parallel/04_overlap.c';
plan skip_all => "$_ is not built" for grep { !-x } map { program_of($_, $source) } qw(fp32 fp64);
forms_hold(forms_of($source, [4, qw(--bucket 1)], [4, qw(--bucket 1024)], [5, qw(--bucket 4096 --link ethernet)], [4, qw(--bucket 65536)],
    [4, qw(--bucket 1000000)]));
done_testing();
