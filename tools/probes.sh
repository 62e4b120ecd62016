# shellcheck shell=sh disable=SC2034    # the variables are read by the scripts that source this file
# Sourced by setup and doctor: what the build needs, found by trying it, not by package names or fixed folders.
# Each probe leaves the complaint of the failing command in $probe_dir/log.
probe_dir=$(mktemp -d "${TMPDIR:-/tmp}/unsplit-probe.XXXXXX") || exit 3
trap 'rm -rf "$probe_dir"' EXIT
PACKAGES="gcc libc6-dev make libopenmpi-dev openmpi-bin libopenblas-dev pkg-config perl"

# Plain C.
probe_c() {
    printf 'int main(void) { return 0; }\n' >"$probe_dir/c.c"
    "${OMPI_CC:-gcc}" -o "$probe_dir/c" "$probe_dir/c.c" >"$probe_dir/log" 2>&1 && "$probe_dir/c"
}

# MPI's compiler wrapper.
probe_mpi() {
    cat >"$probe_dir/mpi.c" <<'END'
#include <mpi.h>
int main(int argc, char **argv) { int n; MPI_Init(&argc, &argv); MPI_Comm_size(MPI_COMM_WORLD, &n); return MPI_Finalize() + (n != 2); }
END
    "${CC:-mpicc}" -o "$probe_dir/mpi" "$probe_dir/mpi.c" >"$probe_dir/log" 2>&1
}

# CBLAS; sets blas_cflags and blas_libs to the first way that compiles and links.
probe_blas() {
    cat >"$probe_dir/blas.c" <<'END'
#include <cblas.h>
#include <stdio.h>
char *openblas_get_corename(void) __attribute__((weak));
int main(void) {
    double a = 2, b = 3;
    if (openblas_get_corename) puts(openblas_get_corename());
    return cblas_ddot(1, &a, 1, &b, 1) != 6;
}
END
    blas_cflags=$(pkg-config --cflags openblas 2>/dev/null) && blas_libs=$(pkg-config --libs openblas 2>/dev/null) &&
        try_blas && return 0
    for blas_cflags in "" -I/usr/include/openblas; do
        blas_libs=-lopenblas
        try_blas && return 0
    done
    return 1
}
try_blas() {
    # shellcheck disable=SC2086    # several flags in one variable
    "${CC:-mpicc}" $blas_cflags -o "$probe_dir/blas" "$probe_dir/blas.c" $blas_libs >"$probe_dir/log" 2>&1 &&
        "$probe_dir/blas" >>"$probe_dir/log"
}

# The launcher starts two ranks that see each other. Needs probe_mpi's program.
probe_mpirun() {
    [ -x "$probe_dir/mpi" ] && tools/launch 2 "$probe_dir/mpi" >"$probe_dir/log" 2>&1
}

# The TAP harness of the tests.
probe_prove() { perl -MTAP::Harness -e 1 >"$probe_dir/log" 2>&1; }
# Version, and the kernels in use: OpenBLAS has them for several processors and chooses at run time, or as OPENBLAS_CORETYPE says,
# which may well mean half the speed. Needs probe_blas's program.
openblas_version() {
    version=$(pkg-config --modversion openblas 2>/dev/null) && version="OpenBLAS $version" || version="linked with $blas_libs"
    core=$("$probe_dir/blas" 2>/dev/null)
    echo "$version${core:+, kernels for $core${OPENBLAS_CORETYPE:+, as OPENBLAS_CORETYPE demands}}"
}
