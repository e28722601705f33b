/* drivers/promises.c - what this machine does not let a server keep of what jobs are promised */
#include "drivers/promises.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/limits.h"
#include "drivers/network.h"
#include "drivers/runtimes.h"
#include "drivers/sandbox.h"

/* What a child found out: it has one thread, as making namespaces takes. */
struct facts {
    struct limits_kept limits;
    bool user;
    struct err why;             /* !user */
};

static void try_user(const char *data_dir, struct facts *f)
{
    struct runtimes_sandbox sandbox;
    int lock, ns;
    uid_t user;

    if (runtimes_sandbox(data_dir, &sandbox, &f->why) < 0 ||
        users_pick(&sandbox.users, &user, &lock, &f->why) < 0 ||
        users_namespace(user, &ns, &f->why) < 0)
        return;
    f->user = users_fits(data_dir, ns);
    if (!f->user)
        err_set(&f->why, ERR_DENIED, "the file system of %.200s has no ID-mapped mounts", data_dir);
}

static int find_facts(const char *data_dir, struct facts *out, struct err *err)
{
    int pipes[2];

    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_set(err, ERR_AGAIN, "no pipe to try what this machine gives: %s",
                       strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        struct facts f = { 0 };
        limits_try(&f.limits);
        if (geteuid() == 0)
            try_user(data_dir, &f);
        ssize_t n = write(pipes[1], &f, sizeof f);
        _exit(n != (ssize_t)sizeof f);
    }
    close(pipes[1]);
    ssize_t n = pid < 0 ? 0 : read(pipes[0], out, sizeof *out);
    close(pipes[0]);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    return n == (ssize_t)sizeof *out
               ? 0 : err_set(err, ERR_AGAIN, "what this machine gives could not be tried");
}

/* `fmt` is one text. */
static void add(json_t *list, const char *what, const char *remedy, const char *text)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "what", what, "text", text, "do",
                                          remedy));
}

static void add_limits(json_t *list, const struct limits_kept *kept)
{
    const char *remedy = geteuid() == 0
        ? "let the server make control groups (/sys/fs/cgroup writable)"
        : "start the server as root, or in a control group of version 2 that is its own "
          "(systemd-run --user --scope -p Delegate=yes muster serve)";

    if (!kept->memory)
        add(list, "memory", remedy, "a limit of memory holds for each process of a job alone, not "
            "for all of them together");
    if (!kept->cpu)
        add(list, "cpu", remedy, "a limit of processors is not kept: a job may use all of them");
    if (!kept->pids && geteuid() == 0)
        add(list, "pids", remedy, "the number of a job's processes is not limited");
}

static void add_user(json_t *list, const struct facts *f)
{
    const struct passwd *p = geteuid() ? getpwuid(geteuid()) : NULL;
    char text[700];

    if (geteuid() == 0)
        snprintf(text, sizeof text, "all jobs run as user %d, which other programs may be, too: %s",
                 SANDBOX_USER, f->why.text);
    else
        snprintf(text, sizeof text, "jobs run as the server's own user, %.64s (%u): other programs "
                 "of that user can read and end them", p ? p->pw_name : "without a name",
                 (unsigned)geteuid());
    if (!f->user)
        add(list, "user", geteuid() == 0 ? "put the data directory on ext4, xfs, btrfs or tmpfs, "
            "with Linux 6.3 or later" : "start the server as root", text);
}

static void add_confined(json_t *list, const struct facts *f)
{
    add_user(list, f);
    network_check();
    if (network_missing())
        add(list, "network", "install slirp4netns; where the server is not root let its user open "
            "/dev/net/tun (chmod 666)", network_missing());
}

int promises_broken(const char *data_dir, bool unconfined, json_t **out, struct err *err)
{
    OWN_JSON json_t *list = json_array();
    struct facts f = { 0 };

    if (!list)
        return err_set(err, ERR_NOMEM, "no memory for what cannot be kept");
    limits_delegate();
    if (find_facts(data_dir, &f, err) < 0)
        return -(int)err->code;
    add_limits(list, &f.limits);
    if (unconfined)
        add(list, "sandbox", "start the server without --no-sandbox", "jobs run without a sandbox, "
            "as the server itself");
    else
        add_confined(list, &f);
    *out = TAKE(list);
    return 0;
}

json_t *promises_of(const json_t *broken, const json_t *spec)
{
    const json_t *asked = json_object_get(spec, "resources"), *item;
    json_t *list = json_array();
    size_t i;

    json_array_foreach((json_t *)broken, i, item) {
        const char *what = json_string_value(json_object_get(item, "what"));
        if ((!strcmp(what, "memory") || !strcmp(what, "cpu")) && !json_object_get(asked, what))
            continue;
        if (!strcmp(what, "network") && network_mode(spec) != NETWORK_OUTSIDE)
            continue;
        json_array_append(list, json_object_get(item, "text"));
    }
    return list;
}
