# Written by tools/setup when its probes passed. Remove it to have them run again.
BLAS_CFLAGS = -I/usr/include/x86_64-linux-gnu/openblas-pthread/ 
BLAS_LIBS = -L/usr/lib/x86_64-linux-gnu/openblas-pthread/ -lopenblas 
