/* drivers/sandbox_int.h - the parts of a sandbox: its file system, and process trees without one */
#ifndef MUSTER_DRIVERS_SANDBOX_INT_H
#define MUSTER_DRIVERS_SANDBOX_INT_H

#include <sys/types.h>

#include "drivers/sandbox.h"

/* Makes the file system of s the root of this mount namespace. NULL, or what could not be done,
 * with errno. */
const char *sandbox_mount(const struct sandbox *s);

/* Every descendant of `pid`, which is a subreaper, so that none has escaped it. */
int tree_signal_below(pid_t pid, int signal);   /* returns how many there were */
void tree_kill_below(pid_t pid);        /* until there are none; zombies are reaped */

#endif
