#!/usr/bin/perl
# Every kind of context parallelism, composed with tensor and sequence parallelism, recomputation, backward in halves and ZeRO.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $source = 'tests/test_context.c';
plan skip_all => "$source is not built" if grep { !-x program_of($_, $source) } qw(fp32 fp64);
my @pairs = forms_of($source, [1], [2], [3], [4]);
forms_hold(@pairs);
cmp_ok(scalar @{ $_->{emu}{page}{checks} || [] }, '>=', 80, "$_->{name}: all checks were made") for @pairs;
done_testing();
