// no_single_copy.c: a preloaded library (LD_PRELOAD) that forbids a process to read or write the
// memory of another process, as containers often do.
#include <errno.h>
#include <sys/types.h>

struct iovec;
static ssize_t no(void) {
    errno = EPERM;
    return -1;
}
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n,
                         const struct iovec *from, unsigned long m, unsigned long flags) {
    (void)pid, (void)to, (void)n, (void)from, (void)m, (void)flags;
    return no();
}
ssize_t process_vm_writev(pid_t pid, const struct iovec *from, unsigned long n,
                          const struct iovec *to, unsigned long m, unsigned long flags) {
    (void)pid, (void)to, (void)n, (void)from, (void)m, (void)flags;
    return no();
}
