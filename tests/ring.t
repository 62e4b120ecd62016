#!/usr/bin/perl
# Tests the four ways of 01.03 to make an all-reduce at eight sizes (tests/test_ring.c). The ways
# run as virtual ranks and as processes, in reals and in 16 bits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_ring.c';
plan skip_all => "$_ is not built" for grep { !-x } map { program_of($_, $source) } qw(fp32 fp64);
forms_hold(forms_of($source, [1], [4], [6], [4, qw(--storage bf16)], [5, qw(--storage fp16)]));
done_testing();
