/* drivers/keeper.h - the process that looks after one attempt of a job
 *
 * It outlives the server. It makes the sandbox, writes the log, enforces the limits, and leaves
 * exit.json; drivers/driver.h says what is in the attempt's directory. It has one thread.
 *
 * Its life: lock (handed over by the server, or taken) -> prepare -> run -> exit.json -> end.
 * At any moment SIGTERM, or DIR/stop at the beginning, ends the job: its processes get SIGTERM
 * and, when the time that DIR/stop gives has passed, SIGKILL. SIGUSR1: DIR/resize has changed.
 * If it is killed, the job dies with it.
 */
#ifndef MUSTER_DRIVERS_KEEPER_H
#define MUSTER_DRIVERS_KEEPER_H

#include <stddef.h>

#include "base/err.h"

/* Descriptors that the server leaves to it: DIR/lock, flocked, and the environment of the job
 * as JSON in memory. */
enum { KEEPER_LOCK_FD = 3, KEEPER_ENV_FD = 4 };

/* Returns when exit.json is written. Fails when there is nothing to keep: no order, or another
 * keeper has the directory. */
int keeper_run(const char *dir, struct err *err);

/* A keeper that was started ahead of its job: makes its network for the server of this URL
 * (drivers/network.h; NULL: none), then waits on KEEPER_LOCK_FD, a socket, for one message, the
 * directory with the two descriptors, which are then where keeper_run looks for them. ERR_MISSING:
 * the server has gone, and there will be none. */
int keeper_wait(const char *server, char *out_dir, size_t size, struct err *err);

#endif
