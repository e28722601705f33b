/* drivers/sandbox_int.h - the parts of a sandbox: its file system, its filter, and process trees
 * without one */
#ifndef MUSTER_DRIVERS_SANDBOX_INT_H
#define MUSTER_DRIVERS_SANDBOX_INT_H

#include <stdbool.h>
#include <sys/types.h>

#include "drivers/sandbox.h"

/* Where the new root is put together. Every system has it, and what it held is hidden anyway. */
#define SANDBOX_NEW "/tmp"

/* Makes the file system of s the root of this mount namespace. NULL, or what could not be done,
 * with errno. */
const char *sandbox_mount(const struct sandbox *s);
/* Makes places in the new root, which can still be written, for paths that have none; fds are what
 * will be seen there. The same result. */
const char *sandbox_room(const struct sandbox *s, const int *fds);
/* What fd is, with all that is mounted in it, at `target`, with these attributes (MOUNT_ATTR_...);
 * ns > 0: mapped by that user namespace, where the file system can be (drivers/users.h). */
int sandbox_bind(int fd, const char *target, int ns, unsigned long long attributes);
int sandbox_bind_at(int fd, int target, int ns, unsigned long long attributes);

/* As clone, into the control group and the network of s. */
pid_t sandbox_clone(unsigned long flags, const struct sandbox *s);

/* From here on neither this process nor what it starts gets through some doors of the kernel. Needs
 * no_new_privs. `namespaces`: the door to user namespaces stays open. As a system call. */
int sandbox_filter(bool namespaces);

/* Every descendant of `pid`, which is a subreaper, so that none has escaped it. */
int tree_signal_below(pid_t pid, int signal);   /* returns how many there were */
void tree_kill_below(pid_t pid);        /* until there are none; zombies are reaped */

#endif
