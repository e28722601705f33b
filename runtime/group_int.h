/* runtime/group_int.h - one worker of a group: its environment, its process, its lines */
#ifndef MUSTER_RUNTIME_GROUP_INT_H
#define MUSTER_RUNTIME_GROUP_INT_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "runtime/group.h"

struct stream { int fd; struct buf part; };     /* fd -1: at its end */

struct member {
    int rank;
    pid_t pid;
    bool alive;                 /* started and not yet reaped */
    struct stream stream[2];    /* stdout, stderr */
    int log;
};

/* One start of a group. */
struct start {
    const struct group_job *job;
    int count, size, port;      /* count: of restarts */
    const char *run;            /* absolute */
    int keeper;                 /* workers write their pid there before they run */
    const sigset_t *mask;       /* the signal mask that workers get */
};

/* Called for each whole line; a failure ends the reading. */
typedef int line_fn(void *arg, const struct group_event *e, struct err *err);

void member_init(struct member *m, int rank);
void member_done(struct member *m);             /* closes; the process is not touched */
int member_start(struct member *m, const struct start *s, struct err *err);
/* For one that never ran: takes the log that it would have appended to away again. */
void member_forget(struct member *m, const struct start *s);
/* Takes what `which` (0: stdout, 1: stderr) has now; closes it at its end. */
int member_read(struct member *m, int which, line_fn *tell, void *arg, struct err *err);
/* A last line that has no end, and closes both. */
int member_flush(struct member *m, line_fn *tell, void *arg, struct err *err);

/* The process that kills what is left when this one is killed. *out_fd: write a pid to have its
 * process group killed then, minus the pid to forget it, 0 when all is well; closing it lets the
 * keeper end, which without that 0 looks for what else the run (absolute) has left. */
int keeper_start(const char *run, pid_t *out_pid, int *out_fd, struct err *err);

/* Processes that are this one's since they lost their parent: those that have ended are reaped
 * (not `member`s, whose end is looked at first), or all are killed, but for the keeper. */
void orphans_reap(const struct member *member, int n);
void orphans_end(pid_t keeper);
/* Kills every process of this user's whose environment has the run's MUSTER_RUN. */
void orphans_find(const char *run);

#endif
