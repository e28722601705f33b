/* drivers/sandbox_filter.c - doors of the kernel that no job needs
 *
 * Calls that reach over the walls of a sandbox, or into parts of the kernel that break most often:
 * keys belong to a user, whom jobs of a server that is not root share; the others hand the kernel a
 * program or a queue to work off. They are answered as by a kernel that has no such call, so that a library
 * that tries one goes another way. Nothing is listed that PyTorch, Python or a compiler calls.
 *
 * User namespaces, unless the job asks for them: in one of its own a program has all capabilities,
 * and so reaches the parts of the kernel that are written for root. clone and unshare are refused
 * by their flag. The flags of clone3 are in memory, where a filter does not see them: that call is
 * answered as by a kernel without it, and libraries then call clone.
 *
 * Sockets of other families than those which a network namespace holds: AF_VSOCK leads to the
 * virtual machine's host and to what listens for it here, whatever network the job has. The 32-bit
 * socketcall has its family in memory, too, and is answered as by a kernel without it; a 32-bit
 * program opens sockets by the call socket alone.
 *
 * A program for another instruction set of the same machine (32 bits) has numbers of its own; calls
 * above 424 have the same everywhere.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "drivers/sandbox_int.h"

static const unsigned closed[] = {
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
};

/* What makes user namespaces, by a flag in the first argument. */
static const unsigned makers[] = { SYS_clone, SYS_unshare };

/* Families that belong to the job's network namespace. */
static const unsigned families[] = { AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET };

#if defined __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#define ARCH_OTHER AUDIT_ARCH_I386
enum { OTHER_NUMBERS = 0x40000000 };    /* x32: the same calls under another name */
static const unsigned closed_other[] = { 286, 287, 288, 357, 336, 374, 425, 426, 427,
                                         102 };
static const unsigned makers_other[] = { 120, 310 };
enum { SOCKET_OTHER = 359 };
#elif defined __aarch64__
#define ARCH AUDIT_ARCH_AARCH64
#define ARCH_OTHER AUDIT_ARCH_ARM
enum { OTHER_NUMBERS = 0x7fffffff };
static const unsigned closed_other[] = { 309, 310, 311, 386, 364, 388, 425, 426, 427,
                                         102 };
static const unsigned makers_other[] = { 120, 337 };
enum { SOCKET_OTHER = 281 };
#else
#error "which numbers do the system calls of this processor have?"
#endif

enum { CLOSED = sizeof closed / sizeof closed[0],
       MAKERS = sizeof makers / sizeof makers[0],
       FAMILIES = sizeof families / sizeof families[0],
       BLOCK_MAX = CLOSED + 1 + MAKERS + 1 + FAMILIES + 1 + 9 };
/* socketcall comes last in the other list; the 64-bit sets have none. */
_Static_assert(sizeof closed_other == sizeof closed + sizeof closed[0] &&
               sizeof makers == sizeof makers_other,
               "each instruction set has its own numbers of the same calls");

/* The numbers of one instruction set. */
struct numbers {
    const unsigned *closed;
    int n_closed;
    const unsigned *makers;
    unsigned socket;
};

static struct sock_filter answer(unsigned what)
{
    return (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what);
}

static struct sock_filter load(unsigned offset)
{
    return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset);
}

static struct sock_filter jump(unsigned kind, unsigned value, int if_true, int if_false)
{
    return (struct sock_filter)BPF_JUMP(BPF_JMP | kind | BPF_K, value, (unsigned char)if_true,
                                        (unsigned char)if_false);
}

/* The calls of one instruction set: a list of comparisons, each with a jump to one of the answers
 * behind the list: allowed, no such call, by the socket's family, by the flag. */
static int add_block(struct sock_filter *f, const struct numbers *calls, bool namespaces)
{
    const int list = calls->n_closed + 1 + (namespaces ? 0 : 1 + MAKERS);
    const int by_family = list + 2, by_flag = by_family + 1 + FAMILIES + 2;
    int n = 0;

    for (int i = 0; i < calls->n_closed; i++, n++)
        f[n] = jump(BPF_JEQ, calls->closed[i], list - n, 0);
    f[n] = jump(BPF_JEQ, calls->socket, by_family - n - 1, 0);
    n++;
    if (!namespaces) {
        f[n] = jump(BPF_JEQ, SYS_clone3, list - n, 0);  /* above 424: the same everywhere */
        n++;
        for (int i = 0; i < MAKERS; i++, n++)
            f[n] = jump(BPF_JEQ, calls->makers[i], by_flag - n - 1, 0);
    }
    f[n++] = answer(SECCOMP_RET_ALLOW);
    f[n++] = answer(SECCOMP_RET_ERRNO | ENOSYS);
    f[n++] = load(offsetof(struct seccomp_data, args[0]));      /* its lower half: little-endian */
    for (int i = 0; i < FAMILIES; i++)
        f[n++] = jump(BPF_JEQ, families[i], FAMILIES - i, 0);
    f[n++] = answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    f[n++] = answer(SECCOMP_RET_ALLOW);
    if (namespaces)
        return n;
    f[n++] = load(offsetof(struct seccomp_data, args[0]));
    f[n++] = jump(BPF_JSET, CLONE_NEWUSER, 0, 1);
    f[n++] = answer(SECCOMP_RET_ERRNO | EPERM);
    f[n++] = answer(SECCOMP_RET_ALLOW);
    return n;
}

int sandbox_filter(bool namespaces)
{
    struct sock_filter f[2 * BLOCK_MAX + 16], own[BLOCK_MAX], other[BLOCK_MAX];
    const struct numbers calls = { closed, CLOSED, makers, SYS_socket };
    const struct numbers calls_other = { closed_other, CLOSED + 1, makers_other, SOCKET_OTHER };
    const int n_own = add_block(own, &calls, namespaces);
    const int n_other = add_block(other, &calls_other, namespaces);
    int n = 0;

    f[n++] = load(offsetof(struct seccomp_data, arch));
    f[n++] = jump(BPF_JEQ, ARCH, 0, n_own + 3);
    f[n++] = load(offsetof(struct seccomp_data, nr));
    f[n++] = jump(BPF_JGE, OTHER_NUMBERS, 0, 1);
    f[n++] = answer(SECCOMP_RET_ERRNO | ENOSYS);
    for (int i = 0; i < n_own; i++)
        f[n++] = own[i];
    f[n++] = jump(BPF_JEQ, ARCH_OTHER, 1, 0);
    f[n++] = answer(SECCOMP_RET_ERRNO | ENOSYS);
    f[n++] = load(offsetof(struct seccomp_data, nr));
    for (int i = 0; i < n_other; i++)
        f[n++] = other[i];
    struct sock_fprog all = { .len = (unsigned short)n, .filter = f };
    /* Without the flag older kernels make every program that has a filter slower. */
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &all);
}
