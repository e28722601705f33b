/* drivers/sandbox_filter.c - doors of the kernel that no job needs
 *
 * Calls that reach over the walls of a sandbox, or into parts of the kernel that break most often:
 * keys belong to a user, and all jobs are the same one; the others hand the kernel a program or a
 * queue to work off. They are answered as by a kernel that has no such call, so that a library
 * that tries one goes another way. Nothing is listed that PyTorch, Python or a compiler calls.
 *
 * A program for another instruction set of the same machine (32 bits) has numbers of its own; calls
 * above 424 have the same everywhere.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "drivers/sandbox_int.h"

static const unsigned closed[] = {
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
};

#if defined __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#define ARCH_OTHER AUDIT_ARCH_I386
enum { OTHER_NUMBERS = 0x40000000 };    /* x32: the same calls under another name */
static const unsigned closed_other[] = { 286, 287, 288, 357, 336, 374, 425, 426, 427 };
#elif defined __aarch64__
#define ARCH AUDIT_ARCH_AARCH64
#define ARCH_OTHER AUDIT_ARCH_ARM
enum { OTHER_NUMBERS = 0x7fffffff };
static const unsigned closed_other[] = { 309, 310, 311, 386, 364, 388, 425, 426, 427 };
#else
#error "which numbers do the system calls of this processor have?"
#endif

enum { CLOSED = sizeof closed / sizeof closed[0],
       CLOSED_OTHER = sizeof closed_other / sizeof closed_other[0] };

static int add_list(struct sock_filter *f, int n, const unsigned *numbers, int count)
{
    /* Past the rest of the list and its "allow". */
    for (int i = 0; i < count; i++)
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i],
                                              (unsigned char)(count - i), 0);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    return n;
}

int sandbox_filter(void)
{
    struct sock_filter f[CLOSED + CLOSED_OTHER + 16];
    int n = 0;

    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                          offsetof(struct seccomp_data, arch));
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, CLOSED + 5);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                          offsetof(struct seccomp_data, nr));
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, OTHER_NUMBERS, 0, 1);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    n = add_list(f, n, closed, CLOSED);
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH_OTHER, 1, 0);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                          offsetof(struct seccomp_data, nr));
    n = add_list(f, n, closed_other, CLOSED_OTHER);
    struct sock_fprog all = { .len = (unsigned short)n, .filter = f };
    /* Without the flag older kernels make every program that has a filter slower. */
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &all);
}
