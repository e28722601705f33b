/* drivers/container.h - a job in a container of its own image, by podman
 *
 * A job that names an image runs as that container where podman is installed and has the image;
 * it is fetched only when the image's row in the table of runtimes says so (drivers/runtimes.h).
 * Where it is not here, its row says what stands for it; an image that is not here and has no row
 * is an error. The job's log says first which it was.
 *
 * Inside is the image, /job (the job's directory, writable), the job's environment and nothing
 * else of this machine. It is nobody (65534) without rights, unless the image's row lets it be the
 * user that the image names; where the server is not root, it is the server's user, in a user
 * namespace. The image's own working directory is kept where it names one, else it is /job.
 *
 * podman runs below the keeper's init, outside of any sandbox: init is the parent of what
 * podman leaves behind (conmon, and below it the container), so killing below init ends all, also
 * when the keeper is killed, and init then removes the container. One that was left when init was
 * killed too is removed before the next container starts and when the server does
 * (container_sweep). Its control groups are made inside that of the job (drivers/limits.h).
 */
#ifndef MUSTER_DRIVERS_CONTAINER_H
#define MUSTER_DRIVERS_CONTAINER_H

#include "drivers/task.h"

/* What is to be done with a job's image. */
struct container {
    bool run;                   /* false: there is none, or its row stands for it */
    bool plain;                 /* its row says: this machine as it is, without a Python of its own */
    bool own_user;
    bool runc;                  /* podman's default cannot run here */
    char podman[PATH_MAX];
    char home[PATH_MAX];        /* the image's working directory; "": none */
};

/* Says in the job's log what it comes to. ERR_MISSING: neither the image nor a row is here. */
int container_choose(const struct task_order *o, task_step *step, void *arg, struct container *out,
                     struct err *err);

/* Makes t, which has its limits and files, run `podman run`. `run` is for what comes before it. */
int container_make(const struct task_order *o, const struct container *c, task_step *run,
                   void *arg, struct task *t, struct err *err);

/* Puts the container's groups into this one. Before task_fill. */
void container_limit(struct task *t, const struct task_order *o, struct limits_group *limits);

/* How it went, once `podman run` has ended or was killed; the container is removed. */
struct container_end {
    bool started;               /* false: podman could not */
    int code;                   /* of its program; 128 + signal when that was killed */
    bool out_of_memory;
    double at;                  /* Unix time of its start */
};
void container_end(const struct task *t, struct container_end *out);

/* Removes containers of keepers that are dead. */
void container_sweep(void);

#endif
