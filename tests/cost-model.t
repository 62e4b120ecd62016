#!/usr/bin/perl
# Tests the cost model of a model on 1, 2 and 3 tensor-parallel ranks. The parameters, kept
# activations, FLOPs and traffic are compared with measurements and papers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_costs.c';
plan skip_all => "$source is not built" if grep { !-x program_of($_, $source) } qw(fp32 fp64);
my @pairs = forms_of($source, [1], [2], [3]);
forms_hold(@pairs);
is(scalar @{ $_->{emu}{page}{costs} || [] }, 90, "$_->{name}: all costs were compared") for @pairs;
done_testing();
