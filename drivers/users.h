/* drivers/users.h - a user of its own for each job of a server that is root
 *
 * Two jobs that run under one number could kill and trace each other, and so could any other
 * program of that number. A job therefore has a number from a range that nobody else uses
 * (runtimes.yaml, `users`), for its user and its group alike.
 *
 * Files on the disk belong to SANDBOX_USER, whatever the job's number is: steps of a pipeline share
 * volumes, and environments outlive their builders. A user namespace in which SANDBOX_USER and the
 * job's number have changed places is what the two meet in: the job's mounts are mapped by it
 * (ID-mapped mounts), and the job lives in it, so that it sees itself as SANDBOX_USER, too.
 *
 * Invariant: no two running jobs of this machine have the same number, whichever server started
 * them. Each keeper and its init hold a lock on one byte of USERS_LOCK, at the number's place; the
 * kernel lets go of it when both are gone, however they ended. Servers keep out of each other's way
 * by a lock on a second byte, RESERVED further on.
 */
#ifndef MUSTER_DRIVERS_USERS_H
#define MUSTER_DRIVERS_USERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define USERS_LOCK "/run/muster-users.lock"

struct users_range { uint32_t first, last; };

/* Left free by the table of systemd (systemd.io/UIDS-GIDS), below what is negative in 32 bits. */
#define USERS_DEFAULT { 0x70000000u, 0x7fffffffu }

/* ERR_INVALID: it holds numbers that others have (0, SANDBOX_USER, no user at all). */
int users_check(const struct users_range *r, struct err *err);

/* Number `turn` of the range; after the last comes the first. */
uid_t users_nth(const struct users_range *r, uint64_t turn);

/* Is a job running under it? A glance: hold it to be sure. */
bool users_taken(uid_t user);

/* Nobody else reserves it as long as *out_fd is open: for a server, from its choice until the
 * attempt's end. The keeper may hold it meanwhile. ERR_AGAIN: another server has, or a job runs. */
int users_reserve(uid_t user, int *out_fd, struct err *err);

/* It is ours as long as *out_fd is open, in any process. ERR_AGAIN: another job has it. */
int users_hold(uid_t user, int *out_fd, struct err *err);
/* The same for any number of the range that is free. */
int users_pick(const struct users_range *r, uid_t *out, int *out_fd, struct err *err);

/* Under which number processes without rights look into what users sent (drivers/archive.h): that
 * of the caller's job, or one that a server holds. SANDBOX_USER until it is said. */
void users_set_helper(uid_t user);
uid_t users_helper(void);

/* The user namespace in which `user` and SANDBOX_USER have changed places. The caller has one
 * thread. ERR_DENIED: this system does not let us make one. */
int users_namespace(uid_t user, int *out_fd, struct err *err);

/* A detached copy of the mounts at `fd`, with these attributes (MOUNT_ATTR_...) and, for ns > 0,
 * mapped by that namespace. -1 with errno; EINVAL: the file system cannot be mapped. */
int users_mount(int fd, int ns, unsigned long long attributes);

/* Can the file system of `dir` be mapped? */
bool users_fits(const char *dir, int ns);

#endif
