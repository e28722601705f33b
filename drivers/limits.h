/* drivers/limits.h - memory, processors and processes that a job may use
 *
 * Control groups where this process may make them (version 1: one group in each of memory, cpu and
 * pids; version 2: one group), rlimits where it may not. A limit of 0 is none. The group is made
 * empty. A process is born into a group of version 2 (limits_cgroup) and joins those of version 1
 * by writing "0" to `tasks` (limits_join): the two ways that do not wait for every processor to
 * pass through the scheduler, which takes ten milliseconds and more.
 */
#ifndef MUSTER_DRIVERS_LIMITS_H
#define MUSTER_DRIVERS_LIMITS_H

#include <stdbool.h>

#include "base/err.h"
#include "base/own.h"

struct limits {
    long long memory;           /* bytes, of all its processes together */
    bool unasked;               /* nobody asked for that memory: it is kept by a group or not at all
                                   (an rlimit counts what is mapped), and swap is not counted */
    double cpu;                 /* processors */
    int pids;                   /* processes and threads */
    bool nested;                /* groups will be made inside (limits_parent) */
};

struct limits_group;

/* `name` is a file name, "muster-...-PID" with the caller's number. One that a killed keeper left
 * is used again. Never fails for want of control groups: limits_join sets rlimits then. */
int limits_open(const char *name, const struct limits *l, struct limits_group **out,
                struct err *err);
/* Removes the group; what is still in it is killed. NULL is fine. */
void limits_free(struct limits_group *g);
static inline void limits_group_own(struct limits_group **g) { limits_free(*g); }

/* Removes the groups that killed keepers left: their names end in the number of a dead process. */
void limits_sweep(void);

/* For a server, before its first job: where its own group of version 2 was handed to it, with
 * nothing else in it, the server moves into a group below, so that there can be jobs beside it. */
void limits_delegate(void);

/* Which limits hold for all processes of a job together? Found out by making a group and joining
 * it. The caller has one thread. */
struct limits_kept { bool memory, cpu, pids; };
void limits_try(struct limits_kept *out);

/* For tests: another folder than /sys/fs/cgroup, another file than /proc/self/cgroup; borrowed. */
void limits_set_tree(const char *groups, const char *own);

/* For clone3's CLONE_INTO_CGROUP; -1: there is none of version 2. Borrowed. */
int limits_cgroup(const struct limits_group *g);
/* The calling process, which has one thread. Before it gives up its rights. */
int limits_join(const struct limits_group *g);
int limits_set_cpu(struct limits_group *g, double cpu);

/* For one that makes groups of its own inside this one, as containers have: its path below the root
 * of every hierarchy; borrowed; NULL: there is none. The processes must not join it themselves. */
const char *limits_parent(struct limits_group *g);

/* Was something in it killed for want of memory? A group that limits_parent was asked of may only
 * know that there was none left: ask where a program was killed. */
bool limits_out_of_memory(const struct limits_group *g);
long long limits_memory_peak(const struct limits_group *g);     /* bytes; -1: not known */

/* Of this machine, or of the container that we are in. */
long long limits_machine_memory(void);

/* "2 GB", "512 MB": as a person would write the number. */
void limits_print_bytes(long long bytes, char *out, size_t size);

#endif
