#!/usr/bin/perl
# Runs tests/test_exact_sums.c, with gradients for which a method of compression loses nothing, on
# virtual ranks and on processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_exact_sums.c';
plan skip_all => "$_ is not built" for grep { !-x } map { program_of($_, $source) } qw(fp32 fp64);
forms_hold(forms_of($source, [4], [3]));
done_testing();
