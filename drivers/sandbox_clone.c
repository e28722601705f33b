/* drivers/sandbox_clone.c - the first process of a sandbox: born into its control group and network */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/sandbox_int.h"

static pid_t clone_with(unsigned long flags, const struct limits_group *limits)
{
    struct clone_args args = { .flags = flags,
                               .exit_signal = flags & CLONE_PARENT ? 0 : SIGCHLD };
    int cgroup = limits ? limits_cgroup(limits) : -1;

    if (cgroup < 0)
        return (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = (uint64_t)cgroup;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

/* Below the user namespace of its network. Who has entered one does not leave it: so a child enters
 * it, and by CLONE_PARENT the child's child is ours. */
static pid_t clone_below(unsigned long flags, const struct sandbox *s)
{
    volatile pid_t pid = -1;
    volatile int error = 0;
    const pid_t between = vfork();      /* shares our memory: it tells us the number */

    if (between == 0) {
        if (setns(s->user_fd, CLONE_NEWUSER) < 0 || setns(s->net_fd, CLONE_NEWNET) < 0 ||
            (pid = clone_with(flags | CLONE_PARENT, s->limits)) < 0)
            error = errno;
        if (pid == 0)
            return 0;           /* init, in memory of its own */
        _exit(0);
    }
    if (between < 0)
        return -1;
    while (waitpid(between, NULL, 0) < 0 && errno == EINTR)
        ;
    errno = error;
    return pid;
}

static pid_t clone_in_network(unsigned long flags, const struct sandbox *s)
{
    OWN_FD int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (own < 0 || setns(s->net_fd, CLONE_NEWNET) < 0)
        return -1;
    pid_t pid = clone_with(flags, s->limits);
    int error = errno;
    if (pid && setns(own, CLONE_NEWNET) < 0)
        abort();                /* nothing that a keeper does is right in a job's network */
    errno = error;
    return pid;
}

pid_t sandbox_clone(unsigned long flags, const struct sandbox *s)
{
    if (!s->confined || s->net_fd <= 0)
        return clone_with(flags, s->limits);
    return s->user_fd > 0 ? clone_below(flags, s) : clone_in_network(flags, s);
}
