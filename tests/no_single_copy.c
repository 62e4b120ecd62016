// no_single_copy.c: put before a program (LD_PRELOAD), it forbids what containers often forbid: that one process reads
// or writes the memory of another one.
#include <errno.h>
#include <sys/types.h>

struct iovec;
static ssize_t no(void) {
    errno = EPERM;
    return -1;
}
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from, unsigned long m,
                         unsigned long flags) {
    (void)pid, (void)to, (void)n, (void)from, (void)m, (void)flags;
    return no();
}
ssize_t process_vm_writev(pid_t pid, const struct iovec *from, unsigned long n, const struct iovec *to, unsigned long m,
                          unsigned long flags) {
    (void)pid, (void)to, (void)n, (void)from, (void)m, (void)flags;
    return no();
}
