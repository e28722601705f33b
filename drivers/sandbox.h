/* drivers/sandbox.h - runs a program that sees little, can change less, and leaves nothing behind
 *
 * Own namespaces for processes, mounts and System V objects (and, without network, for that): made
 * here, not by bubblewrap, which costs some ten milliseconds a job where this costs under one
 * (docs/design/sandbox.md). Inside: another user (65534) without privileges or a way to gain
 * any; of the file system the directories of programs and settings (sandbox_mount.c lists them),
 * read-only, with /tmp, /var/tmp, /dev and /run its own; the paths of `paths` where they are
 * outside, the writable ones writable.
 *
 * The first process inside is ours (`init`): it starts the program, reaps orphans, and when the
 * program ends, or the keeper does, it ends, and the kernel ends all that is left inside with
 * it.
 *
 * Not confined (`confined` false): the program runs as the caller, and init finds what it left
 * behind by being the parent of its orphans.
 */
#ifndef MUSTER_DRIVERS_SANDBOX_H
#define MUSTER_DRIVERS_SANDBOX_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "drivers/limits.h"

enum { SANDBOX_PATHS_MAX = 256, SANDBOX_USER = 65534 };

struct sandbox_path {
    const char *path;           /* inside; absolute, without symbolic links */
    const char *from;           /* outside; NULL: the same */
    int fd;                     /* > 0: what is open as this one, in place of `from` */
    bool writable;
};

struct sandbox {
    char *const *argv, *const *env;
    const char *cwd;
    const char *hide[2];        /* directories that are empty inside but for what `paths` names */
    struct sandbox_path paths[SANDBOX_PATHS_MAX];       /* parents before children */
    int n_paths;
    bool user_namespaces;       /* it may make some */
    int user_ns;                /* a server that is root: of the job's user (drivers/users.h);
                                   0: the job is SANDBOX_USER outside, too */
    bool confined, network;     /* network: as outside, or as net_fd has it; else loopback alone */
    int net_fd, user_fd;        /* > 0: a network namespace, and the user namespace it belongs to
                                   (drivers/network.h); it is entered first */
    long long scratch;          /* bytes of memory for /tmp and /dev/shm together */
    int out, err;               /* where standard output and error go */
    const char *const *abandoned;       /* not confined: what init runs when the keeper has died;
                                           NULL: nothing */
    const char *resize[3];      /* native training: program, "resize", run directory; NULL: none */
    const struct limits_group *limits;
};

/* What init tells the keeper, each as one message. */
enum sandbox_news {
    SANDBOX_STARTED,            /* the program runs */
    SANDBOX_NO_PROGRAM,         /* value: errno of exec */
    SANDBOX_FAILED,             /* text: what could not be set up */
    SANDBOX_RESIZED,            /* value: wait status of `muster resize` */
    SANDBOX_ENDED,              /* value: its wait status */
};
struct sandbox_message {
    enum sandbox_news kind;
    int value;
    double cpu_s;               /* SANDBOX_ENDED: of all that was reaped */
    char text[200];
};

struct sandbox_run {
    pid_t init;
    int talk;                   /* a socket: struct sandbox_message, readable when there is one */
};

/* The caller has one thread. Closes nothing of s. */
int sandbox_start(const struct sandbox *s, struct sandbox_run *out, struct err *err);

/* Runs `resize` inside with this range as its last word; SANDBOX_RESIZED follows. */
void sandbox_resize(const struct sandbox_run *r, int min, int max);
/* SIGTERM to every process inside. */
void sandbox_ask_to_end(const struct sandbox_run *r);
/* Everything inside is dead when it returns; init is reaped. */
void sandbox_end(struct sandbox_run *r, bool confined);

/* Is it among what every job sees of the machine? `path` is without symbolic links. */
bool sandbox_shows(const char *path);

/* ERR_DENIED when this machine does not let us make one. */
int sandbox_check(struct err *err);

#endif
