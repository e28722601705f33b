/* drivers/guard.h - how much of the disk a job takes, and when it is too much
 *
 * The keeper looks from time to time. A look asks the file system how much of it is used, which costs
 * a system call. Only when it has grown by more than the job was short of its limit is the job's tree
 * walked; how long the walk took says how soon the next one may be. The closer the limit or the end of
 * the disk, the sooner the next look: a program that writes 2 GB a second is found in time.
 *
 * What counts: the job's directory (all attempts and staged inputs; not the log, which has a limit
 * of its own), what it adds to folders outside that it may write (volumes), and files that its
 * processes hold open after their last name is gone.
 *
 * When the disk is nearly full (base/room.h), a job that goes on writing is ended: one that has
 * written a quarter or more of what was written since then. Whoever writes little goes on.
 *
 * One thread.
 */
#ifndef MUSTER_DRIVERS_GUARD_H
#define MUSTER_DRIVERS_GUARD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/own.h"

struct guard;

/* Before the program runs. `job_dir` is the directory of all attempts, `limit` bytes; 0: as much as the
 * disk has. */
struct guard *guard_new(const char *job_dir, long long limit);  /* NULL: no memory */
void guard_free(struct guard *g);       /* NULL is fine */
OWN_DEFINE(guard)

/* Paths of a task (drivers/task.h): of those that are writable folders outside of the job's directory,
 * what they have now does not count. */
void guard_add(struct guard *g, const json_t *paths);

/* The program runs: from now on there is something to look at. What folders outside have is measured
 * here and not before, since it may take long. */
void guard_begin(struct guard *g, double now);

/* When to look next, of the same clock as `now`; 0: guard_begin was not called. */
double guard_next(const struct guard *g);

/* True: the job is to be ended; `reason` says why. `init`: the first of its processes, 0: none. The
 * file `full` in the current directory, when there is one, is the server's word that the project has
 * no disk left; its text is the reason. */
bool guard_look(struct guard *g, pid_t init, double now, char *reason, size_t size);

#endif
