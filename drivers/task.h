/* drivers/task.h - what a job document comes to: a program, its arguments, environment and files
 *
 * A kind of job (command, train, python) is a row of a table. The environment is built from
 * nothing: what the document and the server say, and PATH, HOME, USER, LANG, TMPDIR; the
 * server's own is not in it.
 */
#ifndef MUSTER_DRIVERS_TASK_H
#define MUSTER_DRIVERS_TASK_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "base/err.h"
#include "drivers/limits.h"
#include "drivers/network.h"
#include "drivers/sandbox.h"

struct container;
struct gpus;
struct journal;

/* What was asked for; borrowed. */
struct task_order {
    char dir[PATH_MAX], work[PATH_MAX], data_dir[PATH_MAX];     /* without symbolic links */
    const json_t *spec, *packages;
    const json_t *env;          /* the server's additions */
    const json_t *limits;       /* {"memory", "processes", "disk"}: of struct order */
    int workers;
    bool confined;
    unsigned user;              /* its user and group outside; SANDBOX_USER: as other jobs */
    int user_ns;                /* of that user (drivers/users.h); 0: none */
    const json_t *expose;       /* folders of this machine that every job reads; NULL: none */
    struct journal *journal;    /* what was used in place of what was asked for is said there */
    const struct container *container;  /* what its image comes to; NULL: not looked at */
    const struct gpus *gpus;    /* those that are its own; NULL: none */
    enum network_mode network;
    const struct network *net;  /* NETWORK_OUTSIDE: its namespace */
    char resolver[PATH_MAX], resolver_at[PATH_MAX];     /* a resolv.conf for inside, and the path
                                                           it is seen at; "": the machine's own */
};

struct task {
    json_t *argv;               /* texts */
    json_t *env;                /* name to text */
    json_t *paths;              /* [{"path": ..., "from": ... or "fd": ..., "writable": bool}] */
    char cwd[PATH_MAX];
    enum network_mode network;
    bool outside;               /* in no sandbox: podman makes the job's (drivers/container.h) */
    char container[128];        /* its name; "": none */
    struct limits limits;
    double time_limit_s;        /* 0: none */
    long long disk;             /* bytes that it may write; 0: any */
    char home[PATH_MAX];        /* of the server's user; "": root */
    char run_dir[PATH_MAX];     /* of native training, which can be resized; "": it is not */
    char **argv_list, **env_list;       /* made by task_fill */
    const char *remove[8];      /* the same: what removes a container that its keeper has left */
};

/* Runs a step of the preparation to its end, its output in the job's log. *out_code is its exit
 * code, 128 + signal when killed. ERR_CONFLICT: the job was stopped meanwhile. */
typedef int task_step(void *arg, struct task *step, int *out_code, struct err *err);

int task_make(const struct task_order *o, task_step *step, void *arg, struct task *out,
              struct err *err);
/* The task of a step of the preparation: an empty one, without what the job and the server put
 * into the environment: a builder needs no secrets (drivers/index.h tells it where packages are). */
int task_init_step(struct task *t, const struct task_order *o, struct err *err);
void task_done(struct task *t);

/* Appends to argv; `fmt` as printf. */
void task_arg(struct task *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void task_set(struct task *t, const char *name, const char *value);
/* Symbolic links are resolved first. A path that is not there is left out. */
void task_expose(struct task *t, const char *path, bool writable);
/* `from` seen at another path. */
void task_expose_at(struct task *t, const char *from, const char *path, bool writable);
/* What is open as fd, which stays so until the sandbox is made. */
void task_expose_fd(struct task *t, int fd, const char *path, bool writable);

/* What of this machine a job sees that is neither the system's (sandbox_shows) nor its own: the
 * folders of the setting `expose`, those of programs on the server's PATH, and certificates.
 * Nothing in `hide`. */
void task_expose_machine(struct task *t, const struct task_order *o, const char *const hide[2]);

/* The sandbox of t, which borrows from it. */
int task_fill(struct task *t, const struct task_order *o, struct sandbox *out, struct err *err);

/* ------------------------------------------------------------------ kinds; each in its file */
int task_python(const struct task_order *o, task_step *step, void *arg, struct task *t,
                struct err *err);
/* For a step that is a command: the Python that its document asks for is what it finds on its
 * path. */
int task_environment(const struct task_order *o, task_step *step, void *arg, struct task *t,
                     struct err *err);

#endif
