#!/usr/bin/perl
# Tests 01.07 with speeds that the lesson does not use. In one case a device is too slow to get
# work. In the other cases all devices are equal, or the slowest device is the first. Processes
# must give the same bits. tests/test_shares.c tests the shares of random rates and the ideal time.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;

# The test of the shares computes no numbers of a model, so one precision is enough.
my $shares = program_of('fp32', 'tests/test_shares.c');
my $tap = -x $shares ? `$shares` : "not ok - $shares is not built\n";
like($tap, qr/^ok \d+ - \Q$_\E$/m, "shares: $_")
    for 'the shares follow one another and add up to the batch',
    'no step is longer than the bound for whole sequences',
    'the ideal time follows from the speeds of all devices';
my $source = '01_data_parallel/07_balance.c';
SKIP: {
    skip '07_balance is not built in both precisions', 1
        if grep { !-x } map { program_of($_, $source) } qw(fp32 fp64);
    forms_hold(
        forms_of($source, [4, '--slow', '1,1,1,100'], [3, qw(--slow 1)], [5, '--slow', '1000,1,3'])
    );
}
done_testing();
