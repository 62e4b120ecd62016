#!/usr/bin/perl
# Fuzzes the file readers under address and undefined sanitizers. Each reader gets 10^4 inputs, made
# from the files of tests/corpus. No input may lead to a crash, a leak or a large allocation, and
# each reader's own claims must hold (tests/fuzz_*.c). The test uses libFuzzer if clang has it, else
# tests/fuzz_main.c. TEST_ALL=1 takes 10^6 inputs, and uses both. The line "with:" of each fuzz_X.c
# lists the files to compile with fuzz_X.c.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Jobs;
use Test::More;

chdir "$FindBin::Bin/.." or die;
my $runs = $all ? 1_000_000 : 10_000;
my @flags =
    qw(-std=gnu11 -g -O1 -I. -fno-omit-frame-pointer -fno-sanitize-recover=all -ffp-contract=off);

sub compiles {
    return system(join(' ', map { "'$_'" } @_) . " >$work/compiler 2>&1") == 0;
}
{
    open my $f, '>', "$work/empty.c" or die;
    print $f "#include <stddef.h>\n#include <stdint.h>\nint LLVMFuzzerTestOneInput(const uint8_t "
        . "*d, size_t n) { (void)d; (void)n; return 0; }\n"
}
my $lib_fuzzer =
    compiles("clang", "-fsanitize=fuzzer,address,undefined", "-o", "$work/empty", "$work/empty.c");
my @forms = ([gcc => 'gcc', '-fsanitize=address,undefined', 'tests/fuzz_main.c']);
unshift @forms, [libFuzzer => 'clang', '-fsanitize=fuzzer,address,undefined'] if $lib_fuzzer;
@forms = $forms[0] unless $all;
diag("with $forms[0][0]");

# The fuzzer must find the bug of a faulty reader.
my %mistake = (
    'a read beyond the end' => 'volatile uint8_t x = size > 20 ? copy[size] : 0; (void)x;',
    'a leak' => 'if (size > 20) { void *volatile p = malloc(8); p = NULL; (void)p; }',
    'a large allocation' => 'if (size > 20) free(host_alloc((size_t)1 << 30));',
);

sub build {
    my ($form, $name, @sources) = @_;
    my (undef, $compiler, $sanitizer, @driver) = @$form;
    return compiles($compiler, $sanitizer, @flags, '-o', "$work/$name", @sources, @driver,
        qw(-lcjson -lm));
}

sub fuzz {
    my ($form, $name, $corpus, $n) = @_;
    mkdir "$work/found";
    my @words = (
        "$work/$name",
        "-runs=$n",
        '-seed=1',
        $form->[0] eq 'libFuzzer'
        ? (
            '-max_len=4096', '-rss_limit_mb=1024',
            '-malloc_limit_mb=64', '-timeout=60',
            '-print_final_stats=0', '-verbosity=0',
            "-artifact_prefix=$work/", $corpus
            )
        : sort glob "$corpus/*"
    );
    my $job = { words => \@words };
    run_jobs([$job]);
    return $job;
}

for my $form (@forms) {
    mkdir "$work/mistakes";
    { open my $f, '>', "$work/mistakes/one" or die; print $f 'x' x 40 }
    for my $what (sort keys %mistake) {
        open my $f, '>', "$work/mistake.c" or die;
        print $f
            "#include \"tests/fuzz.h\"\nint LLVMFuzzerTestOneInput(const uint8_t *data, size_t "
            . "size) {\n    uint8_t *copy = fuzz_copy(data, size);\n    $mistake{$what}\n    free(copy);\n    return 0;\n}\n";
        close $f or die;
        ok(
            build($form, 'mistake', "$work/mistake.c"),
            "$form->[0]: a reader with $what is compiled"
        ) or diag(slurp("$work/compiler"));
        my $job = fuzz($form, 'mistake', "$work/mistakes", 1000);
        isnt($job->{status}, 0, "$form->[0]: $what is seen") or diag($job->{err});
    }
    for my $source (grep { !/fuzz_main/ } glob 'tests/fuzz_*.c') {
        my ($name) = $source =~ m{tests/(fuzz_\w+)\.c};
        my ($with) = slurp($source) =~ m{^// with: (.*)$}m;
        ok(
            build($form, $name, $source, split ' ', $with),
            "$form->[0]: $name is compiled with $with"
        ) or diag(slurp("$work/compiler"));
        my $corpus = "$work/$name.corpus";    # a copy, because libFuzzer adds its findings
        system('cp', '-r', 'tests/corpus/' . $name =~ s/^fuzz_//r, $corpus) == 0 or die;
        my $job = fuzz($form, $name, $corpus, $runs);
        is($job->{status}, 0, sprintf '%s: %s, %d inputs in %.1f s',
            $form->[0], $name, $runs, $job->{seconds})
            or diag(substr $job->{err}, -6000);
    }
}
done_testing();
