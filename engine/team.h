/* engine/team.h - the threads of one process, in step
 *
 * Every member runs the same function (single program, many data) and meets the others at
 * barriers. Between two runs the threads sleep; within a run they spin, since a step may take no
 * more than 25 microseconds. Threads never decide bits: what is split among members is split by
 * output, or by shard.
 */
#ifndef MUSTER_ENGINE_TEAM_H
#define MUSTER_ENGINE_TEAM_H

#include "base/err.h"

enum { TEAM_MAX = 64 };
struct team;

/* `size` threads in all, the caller included; each on a core of its own where there are as many. */
int team_new(int size, struct team **out, struct err *err);
void team_free(struct team *t);
int team_size(const struct team *t);

/* Runs fn(id, arg) on every member, id 0 on the caller; returns when all have returned. */
void team_run(struct team *t, void (*fn)(int id, void *arg), void *arg);

/* Waits for all members; to be called by all, from within a run. */
void team_barrier(struct team *t, int id);

/* Cores this process may use. */
int team_cores(void);

#endif
