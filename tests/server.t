#!/usr/bin/perl
# Tests the parameter server with several servers, other bounds, other speeds and other links. All
# checks must hold, and processes must give the same bits. tests/test_server.c predicts the log, and
# also has staleness and optimizers that the lesson does not show. Also tests the refused options.
# slow: each form runs in both precisions, and as processes
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my ($source, $more) = ('01_data_parallel/05_parameter_server.c', 'tests/test_server.c');
for my $needed ($source, $more) {
    plan skip_all => "$_ is not built"
        for grep { !-x } map { program_of($_, $needed) } qw(fp32 fp64);
}
my @forms = (
    [3, qw(--servers 2)],
    [5, qw(--servers 2 --staleness 2)],
    [8, qw(--servers 3)],
    [8, qw(--slow 1)],
    [4, qw(--slow 5 --staleness 3)],
    [4, qw(--staleness 0)],
    [6, qw(--link free)],
    [4, qw(--slow 1 --link nvlink --device h100)],
    [4, qw(--staleness 18446744073709551615)]
);
forms_hold(forms_of($_, [4], [5, qw(--servers 2)], @forms)) for $more, $source;

my ($program, @refused) = (program_of('fp32', $source));
for my $bad (
    [1, qr/no rank is left to be a worker; start at least 2 ranks/],
    [3, qr/3 servers on 3 ranks.*at least 4/, qw(--servers 3)],
    [9, qr/start at most 8 ranks/],
    [4, qr/at least 1/, qw(--servers 0)],
    [4, qr/--slow must be/, qw(--slow 0)],
    [4, qr/needs the simulated clock/, qw(--clock wall)]
) {
    my ($ranks, $reason, @options) = @$bad;
    push @refused,
        {
        name => "$ranks ranks @options",
        reason => $reason,
        emu => emu($ranks, $program, @options)
        };
}
run_jobs([map { $_->{emu} } @refused]);
for my $no (@refused) {
    is($no->{emu}{status}, 2, "$no->{name}: refused") or diag(complain($no->{emu}));
    like($no->{emu}{err}, $no->{reason}, "$no->{name}: the message has the reason");
    is(($no->{emu}{err} =~ tr/\n//), 1, "$no->{name}: there is one message");
}
done_testing();
