/* drivers/container.c - a job in a container of its own image, by podman
 *
 * DESIGN. `podman run` with the container's output on our own pipes (the log driver "passthrough"):
 * nothing stands between a program and the keeper. What podman is told of the job is on its
 * command line, but for the environment, which is read from a file in the keeper's memory; podman's
 * own environment is the server's, never the job's, which could lead it elsewhere. podman itself
 * keeps the environment of a container, readable to its user alone, until the container is removed.
 */
#include "drivers/container_int.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "drivers/gpus.h"
#include "drivers/journal.h"
#include "drivers/step.h"
#include "drivers/runtimes.h"

#define INSIDE "/job"
#define PACKAGES "/muster/packages"

enum {
    ASK_SECONDS = 60,           /* for podman's answers: its store may be locked by a pull */
    PULL_SECONDS = 3600,
    NOFILE_MAX = 1 << 20,       /* podman asks for as many */
    NPROC_MAX = 32768,          /* what podman leaves itself */
};

/* ------------------------------------------------------------------ asking podman */

/* What it prints, cut, without the last newline. Returns its exit code; -1: it did not run or did
 * not end in time. */
static int ask(const char *const *argv, char *out, size_t size)
{
    size_t n = 0;
    int fds[2], status = -1;
    double until = clock_seconds() + ASK_SECONDS;

    out[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(fds[1], STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        close_range(3, ~0u, 0);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(fds[1]);
    while (pid > 0) {
        struct pollfd p = { .fd = fds[0], .events = POLLIN };
        char rest[512];
        double left = until - clock_seconds();
        if (left <= 0 || (poll(&p, 1, (int)(left * 1e3) + 1) < 0 && errno != EINTR)) {
            kill(pid, SIGKILL);
            break;
        }
        ssize_t got = p.revents ? n + 1 < size ? read(fds[0], out + n, size - 1 - n)
                                               : read(fds[0], rest, sizeof rest) : -1;
        if (got == 0)
            break;
        if (got > 0 && n + 1 < size)
            n += (size_t)got;
    }
    close(fds[0]);
    if (pid > 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    while (n && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void remove_container(const char *podman, const char *name)
{
    const char *const words[] = { podman, "rm", "--force", "--time", "0", "--", name, NULL };
    char said[256];
    ask(words, said, sizeof said);
}

/* A keeper has a name that no other program has; its number may be another's by now. */
static bool is_keeper(long pid)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "muster-keeper\n");
}

static bool is_gone(long keeper)
{
    return !is_keeper(keeper);
}

static bool is_ours(long keeper)
{
    return keeper == getpid();
}

static void sweep(const char *podman)
{
    const char *const words[] = { podman, "ps", "--all", "--filter", "label=muster.keeper",
                                  "--format", "{{.Names}}", NULL };
    OWN_MEM char *names = malloc(1 << 16);
    char *save = NULL;

    if (!names || ask(words, names, 1 << 16) != 0)
        return;
    for (char *name = strtok_r(names, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
        const char *number = strrchr(name, '-');
        long pid = number ? strtol(number + 1, NULL, 10) : 0;
        if (pid > 0 && !is_keeper(pid)) {
            remove_container(podman, name);
            limits_sweep();
        }
    }
    container_unbind(is_gone);  /* what was in those containers is gone now */
}

void container_sweep(void)
{
    char podman[PATH_MAX];
    if (runtimes_program("podman", podman))
        sweep(podman);
}

/* What podman goes by: the server's own, and nothing of the job's. */
static void keep_env(struct task *t)
{
    static const char *const names[] = {
        "PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CONTAINERS_CONF",
        "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "DBUS_SESSION_BUS_ADDRESS",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "no_proxy" };
    json_object_clear(t->env);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            task_set(t, names[i], getenv(names[i]));
}

/* ------------------------------------------------------------------ is it here? */

/* No option, no place on the disk that podman would read an image from. */
static int check_name(const char *image, struct err *err)
{
    static const char *const transports[] = { "dir:", "oci:", "oci-archive:", "docker-archive:",
                                              "docker-daemon:", "containers-storage:", "sif:" };
    bool good = isalnum((unsigned char)image[0]) && strlen(image) <= 500;
    for (const char *p = image; good && *p; p++)
        good = isalnum((unsigned char)*p) || strchr("._-/:@", *p);
    for (size_t i = 0; good && i < sizeof transports / sizeof transports[0]; i++)
        good = strncmp(image, transports[i], strlen(transports[i])) != 0;
    return good && !strstr(image, "://")
               ? 0
               : err_set(err, ERR_INVALID, "image: \"%.200s\" is no name of an image "
                         "(REGISTRY/NAME:TAG)", image);
}

static int pull(const struct task_order *o, const struct container *c, const char *image,
                task_step *step, void *arg, struct err *err)
{
    struct task t;
    int code = 0;

    journal_say(o->journal, "fetching image %s", image);
    journal_flush(o->journal);
    if (task_init_step(&t, o, err) < 0)
        return -(int)err->code;
    keep_env(&t);
    t.outside = true;
    t.time_limit_s = PULL_SECONDS;
    task_arg(&t, "%s", c->podman);
    task_arg(&t, "pull");
    task_arg(&t, "--quiet");
    task_arg(&t, "docker://%s", image);
    int rc = step(arg, &t, &code, err);
    task_done(&t);
    if (rc == 0 && code)
        rc = err_set(err, ERR_MISSING,
                     "image %s could not be fetched (the log's last lines say why)", image);
    return rc;
}

/* crun refuses to run where version 2 of control groups has a controller and version 1 the rest. */
static bool needs_runc(void)
{
    char text[8], path[PATH_MAX];
    OWN_FD int fd = open("/sys/fs/cgroup/unified/cgroup.controllers", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, text, sizeof text) > 1 && runtimes_program("runc", path);
}

/* podman takes 50 ms to answer. Where its images are in the usual place, what it has can be read
 * there: a name that occurs nowhere is not here. */
static bool may_be_here(const char *image)
{
    static const char *const files[] = { "overlay-images/images.json", "vfs-images/images.json",
                                         "btrfs-images/images.json", "zfs-images/images.json" };
    const char *home = getenv("HOME"), *slash = strrchr(image, '/');
    char root[PATH_MAX / 2], path[PATH_MAX], name[256];

    if (getenv("CONTAINERS_STORAGE_CONF") || access("/etc/containers/storage.conf", F_OK) == 0)
        return true;            /* they may be anywhere */
    if (geteuid() == 0)
        snprintf(root, sizeof root, "/var/lib/containers/storage");
    else
        snprintf(root, sizeof root, "%s/.local/share/containers/storage", home ? home : "");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(slash ? slash + 1 : image, ":@"),
             slash ? slash + 1 : image);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        OWN_MEM char *text = NULL;
        struct err none;
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        if (files_read(path, 64 << 20, &text, NULL, &none) == 0 &&
            (strstr(text, name) || strstr(image, "@") || strspn(image, "0123456789abcdef") >= 12))
            return true;
    }
    return false;
}

static bool is_here(const struct container *c, const char *image)
{
    const char *const words[] = { c->podman, "image", "exists", "--", image, NULL };
    char said[256];
    return ask(words, said, sizeof said) == 0;
}

/* Several workers of a Python module are one group, which this machine's muster starts. */
static bool has_group(const json_t *spec)
{
    const json_t *max = json_object_get(json_object_get(spec, "workers"), "max");
    return json_object_get(spec, "python") && json_integer_value(max) > 1;
}

static int take(const struct task_order *o, const char *image, struct container *c)
{
    const char *const words[] = { c->podman, "image", "inspect", "--format",
                                  "{{.Config.WorkingDir}}", "--", image, NULL };
    if (ask(words, c->home, sizeof c->home) != 0 || c->home[0] != '/' || !c->home[1])
        c->home[0] = '\0';
    c->runc = needs_runc();
    c->run = true;
    journal_say(o->journal, "image %s runs as a container (podman)", image);
    journal_flush(o->journal);
    return 0;
}

int container_choose(const struct task_order *o, task_step *step, void *arg, struct container *out,
                     struct err *err)
{
    const char *image = json_string_value(json_object_get(o->spec, "image"));
    struct runtime_image row;

    *out = (struct container){ 0 };
    if (!image)
        return 0;
    if (check_name(image, err) < 0 || runtimes_image(o->data_dir, image, &row, err) < 0)
        return -(int)err->code;
    bool program = runtimes_program("podman", out->podman);
    bool fits = !row.never && !has_group(o->spec);
    out->own_user = row.own_user;
    if (program && fits) {
        if (may_be_here(image) && is_here(out, image)) {
            sweep(out->podman);
            return take(o, image, out);
        }
        if (row.pull)
            return pull(o, out, image, step, arg, err) < 0 ? -(int)err->code : take(o, image, out);
    }
    if (!row.has_row && fits)
        return err_set(err, ERR_MISSING,
                       "image %s is neither on this machine (%s) nor described (muster image add) "
                       "nor has it a row in the table runtimes.yaml that says what to run in its "
                       "place",
                       image, program ? "fetch it: podman pull" : "podman is not installed");
    if (row.plain)
        journal_say(o->journal, "image %s is not here; this machine's own system, in a sandbox, "
                    "stands for it (runtimes.yaml)", image);
    else
        journal_say(o->journal, "image %s is not run as a container%s: %s", image,
                    row.never ? " (runtimes.yaml)"
                    : fits    ? ", since it is not on this machine"
                              : "",
                    row.has_row ? "its row in runtimes.yaml says what is used"
                                : "it runs in the sandbox of this machine");
    journal_flush(o->journal);
    out->plain = row.plain;
    return 0;
}

/* ------------------------------------------------------------------ podman's command line */

/* The job's number, the attempt's and the keeper's: "muster-7-1-4711". */
static void name_it(const char *dir, char *out, size_t size)
{
    const char *attempt = strrchr(dir, '/'), *job = attempt;
    while (job && job > dir && job[-1] != '/')
        job--;
    int n = snprintf(out, size, "muster-%.*s-%.20s-%d", job ? (int)(attempt - job) : 0,
                     job ? job : "", attempt ? attempt + 1 : dir, (int)getpid());
    for (int i = 0; i < n && i < (int)size - 1; i++)
        if (!isalnum((unsigned char)out[i]) && !strchr("_.-", out[i]))
            out[i] = '_';
}

/* A system that does not let us raise limits refuses podman's own defaults. */
static void add_ulimits(struct task *t)
{
    static const struct { int what; const char *name; rlim_t most; } limits[] = {
        { RLIMIT_NOFILE, "nofile", NOFILE_MAX }, { RLIMIT_NPROC, "nproc", NPROC_MAX } };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit r;
        if (getrlimit(limits[i].what, &r) < 0)
            continue;
        rlim_t n = r.rlim_max < limits[i].most ? r.rlim_max : limits[i].most;
        task_arg(t, "--ulimit=%s=%llu:%llu", limits[i].name, (unsigned long long)n,
                 (unsigned long long)n);
    }
}

static void add_user(const struct task_order *o, const struct container *c, struct task *t)
{
    task_arg(t, "--security-opt=label=disable");        /* /job is the server's file system */
    if (c->own_user) {
        chmod(o->work, 0777);   /* whoever it is; the directory above is closed to others */
        return;
    }
    task_arg(t, "--security-opt=no-new-privileges");
    task_arg(t, "--cap-drop=all");
    if (geteuid() == 0) {
        task_arg(t, "--user=%u:%u", o->user, o->user);
        if (lchown(o->work, SANDBOX_USER, SANDBOX_USER) < 0)
            chmod(o->work, 0777);
    } else {
        task_arg(t, "--userns=keep-id");
    }
}

static int add_volume(struct task *t, const char *from, const char *to, bool writable,
                      struct err *err)
{
    if (strpbrk(from, ":,"))
        return err_set(err, ERR_INVALID, "%s: podman takes no path with ':' or ','", from);
    task_arg(t, "--volume=%s:%s:%s", from, to, writable ? "rw" : "ro");
    return 0;
}

/* Lines of NAME=VALUE in memory, which podman reads by the keeper's descriptor. */
static int add_env(const struct task_order *o, const json_t *more, struct task *t, struct err *err)
{
    const json_t *const all[] = { more, o->env, json_object_get(o->spec, "env") };
    OWN_JSON json_t *env = json_object();
    OWN_BUF text = BUF_INIT;
    static const char *const proxies[] = { "http_proxy", "https_proxy", "no_proxy" };
    const char *name;
    json_t *value;

    for (size_t i = 0; i < sizeof proxies / sizeof proxies[0]; i++)
        json_object_set(env, proxies[i], json_object_get(t->env, proxies[i]));
    for (int i = 0; i < 3; i++)
        json_object_update(env, (json_t *)all[i]);
    json_object_foreach(env, name, value) {
        const char *v = json_string_value(value);
        if (!v || !*name || name[strcspn(name, "=*# \t\n")])
            continue;           /* podman would read something else */
        if (strchr(v, '\n'))
            return err_set(err, ERR_INVALID,
                           "env.%.64s: a value of several lines cannot be given to a container",
                           name);
        buf_printf(&text, "%s=%s\n", name, v);
    }
    if (buf_ok(&text, err) < 0)
        return -(int)err->code;
    int fd = memfd_create("job-environment", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text.data ? text.data : "", text.n) != (ssize_t)text.n)
        return err_set(err, ERR_AGAIN, "no memory for the environment of a job");
    /* It stays open as long as the keeper lives. */
    task_arg(t, "--env-file=/proc/%d/fd/%d", (int)getpid(), fd);
    return 0;
}

/* Its own, as the vendor's table of devices names them, with the driver's libraries; without such a
 * table the nodes alone. */
static void add_gpus(struct task *t, const struct task_order *o)
{
    const struct gpus *g = o->gpus;
    const char *node;

    if (access("/etc/cdi/nvidia.yaml", F_OK) == 0 || access("/run/cdi/nvidia.yaml", F_OK) == 0) {
        for (int i = 0; g && i < g->n; i++)
            task_arg(t, "--device=nvidia.com/gpu=%d", g->index[i]);
        return;
    }
    for (int i = 0; (node = gpus_node(g, i)); i++)
        if (access(node, F_OK) == 0)
            task_arg(t, "--device=%s", node);
}

/* The same namespace that a sandbox would have; podman without root may not enter it, and makes one
 * of its own. */
static void add_network(struct task *t, const struct task_order *o)
{
    if (t->network != NETWORK_OUTSIDE || !o->net)
        task_arg(t, "--network=%s", t->network == NETWORK_NONE ? "none" : "host");
    else if (geteuid() == 0)
        task_arg(t, "--network=ns:/proc/%d/fd/%d", (int)getpid(), o->net->net);
    else
        task_arg(t, "--network=slirp4netns:allow_host_loopback=false");
    if (t->network == NETWORK_OUTSIDE && o->net && o->resolver_at[0])
        task_arg(t, "--dns=" NETWORK_RESOLVER);
}

/* ------------------------------------------------------------------ what runs inside */

static void add_words(struct task *t, const json_t *words)
{
    size_t i;
    json_t *word;
    json_array_foreach((json_t *)words, i, word)
        if (json_is_string(word))
            json_array_append(t->argv, word);
}

/* As AI Platform's own images do: the packages are installed, then the module runs. */
static const char install[] =
    "p=$(command -v python3 || command -v python) ||"
    " { echo 'there is no Python in this image' >&2; exit 127; }\n"
    "set --  \"$p\" -m \"$@\"\n"
    "w=\n"
    "[ -d " PACKAGES " ] && w=" PACKAGES "/*/*\n"
    "[ -f /muster/requirements.txt ] && w=\"-r /muster/requirements.txt $w\"\n"
    "if [ -n \"$w\" ]; then\n"
    "    \"$p\" -m pip install --no-input --disable-pip-version-check --no-cache-dir --quiet"
    " --no-warn-script-location --target /tmp/.muster-site $w || exit 1\n"
    "    PYTHONPATH=/tmp/.muster-site${PYTHONPATH:+:$PYTHONPATH}; export PYTHONPATH\n"
    "fi\n"
    "exec \"$@\"\n";

static int add_requirements(const struct task_order *o, struct task *t, struct err *err)
{
    const char *text =
        json_string_value(json_object_get(json_object_get(o->spec, "python"), "requirements"));
    char path[PATH_MAX + 32];

    if (!text || !*text)
        return 0;
    snprintf(path, sizeof path, "%s/requirements.txt", o->dir);
    if (files_write(path, text, strlen(text), err) < 0)
        return -(int)err->code;
    chmod(path, 0644);
    return add_volume(t, path, "/muster/requirements.txt", false, err);
}

static int add_packages(const struct task_order *o, struct task *t, struct err *err)
{
    size_t i;
    json_t *path;
    json_array_foreach((json_t *)o->packages, i, path) {
        const char *text = json_string_value(path), *name = text ? strrchr(text, '/') : NULL;
        char to[PATH_MAX];
        if (!name)
            return err_set(err, ERR_INVALID, "packages[%zu]: must be a path", i);
        snprintf(to, sizeof to, PACKAGES "/%zu%s", i, name);
        if (add_volume(t, text, to, false, err) < 0)
            return -(int)err->code;
    }
    return add_requirements(o, t, err);
}

static int add_python(const struct task_order *o, const char *image, struct task *t,
                      struct err *err)
{
    const json_t *python = json_object_get(o->spec, "python");
    const char *module = json_string_value(json_object_get(python, "module"));
    const char *job_dir = json_string_value(json_object_get(o->spec, "job_dir"));

    if (!module || !*module || *module == '-')
        return err_set(err, ERR_INVALID, "python.module: say which module to run");
    if (add_packages(o, t, err) < 0)
        return -(int)err->code;
    task_arg(t, "--entrypoint=[\"/bin/sh\"]");
    task_arg(t, "--");
    task_arg(t, "%s", image);
    task_arg(t, "-c");
    task_arg(t, "%s", install);
    task_arg(t, "sh");
    task_arg(t, "%s", module);
    add_words(t, json_object_get(python, "args"));
    if (job_dir && *job_dir)
        task_arg(t, "--job-dir=%s", job_dir);
    return 0;
}

/* "entrypoint": the words are arguments of the image's own program; else they are the program. */
static int add_command(const struct task_order *o, const char *image, const json_t *words,
                       struct task *t, struct err *err)
{
    bool own = json_is_true(json_object_get(o->spec, "entrypoint")) || !json_array_size(words);

    if (!own) {
        OWN_JSON json_t *first = json_pack("[O]", json_array_get(words, 0));
        OWN_MEM char *text = first ? json_dumps(first, JSON_COMPACT) : NULL;
        if (!text)
            return err_set(err, ERR_NOMEM, "no memory for a job");
        task_arg(t, "--entrypoint=%s", text);
    }
    task_arg(t, "--");
    task_arg(t, "%s", image);
    OWN_JSON json_t *rest = json_copy((json_t *)words);
    if (!own)
        json_array_remove(rest, 0);
    add_words(t, rest);
    return 0;
}

static void path_of(int fd, char out[PATH_MAX])
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
}

/* A file or folder of ours as the container's user has it: mapped, where the two differ. */
static int bind_path(const char *path, int ns, char out[PATH_MAX], struct err *err)
{
    OWN_FD int fd = ns > 0 ? open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;

    if (ns > 0 && (fd < 0 || container_bind(fd, ns, out, PATH_MAX) < 0))
        return err_set(err, ERR_IO, "%s cannot be mapped for the container's user: %s", path,
                       strerror(errno));
    if (ns <= 0)
        snprintf(out, PATH_MAX, "%s", path);
    return 0;
}

/* Inputs, volumes and /tmp of a step (drivers/step.h). */
static int add_step_files(struct task *t, int ns, struct err *err)
{
    size_t i;
    json_t *path;
    json_array_foreach(t->paths, i, path) {
        const char *from = json_string_value(json_object_get(path, "from"));
        const char *to = json_string_value(json_object_get(path, "path"));
        const int fd = (int)json_integer_value(json_object_get(path, "fd"));
        char source[PATH_MAX] = "";
        if (fd > 0 && container_bind(fd, ns, source, sizeof source) < 0)
            path_of(fd, source);
        else if (fd <= 0 && bind_path(from ? from : to, ns, source, err) < 0)
            return -(int)err->code;
        if (add_volume(t, *source ? source : from ? from : to, to,
                       json_is_true(json_object_get(path, "writable")), err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int add_work(struct task *t, const struct task_order *o, int ns, struct err *err)
{
    char source[PATH_MAX];

    return bind_path(o->work, ns, source, err) < 0
               ? -(int)err->code : add_volume(t, source, INSIDE, true, err);
}

static const char *workdir(const struct task_order *o, const struct container *c)
{
    const json_t *step = json_object_get(o->spec, "step");
    const char *cwd = json_string_value(json_object_get(step, "cwd"));

    if (cwd)
        return cwd;
    if (c->home[0] && !json_object_get(json_object_get(o->spec, "python"), "module"))
        return c->home;
    return step ? "/tmp" : INSIDE;
}

int container_make(const struct task_order *o, const struct container *c, task_step *run,
                   void *arg, struct task *t, struct err *err)
{
    const json_t *step = json_object_get(o->spec, "step");
    OWN_JSON json_t *program = json_deep_copy(json_object_get(o->spec, "command"));
    const char *image = json_string_value(json_object_get(o->spec, "image"));
    bool python = !strcmp(json_string_value(json_object_get(o->spec, "kind")), "python");
    OWN_JSON json_t *more = json_pack("{s:s, s:s}", "HOME", step ? "/tmp" : INSIDE,
                                      "PYTHONUNBUFFERED", "1");

    if (c->own_user)
        json_object_del(more, "HOME");  /* as the image has it for its user */
    if (step) {
        add_words(t, program);
        if (step_prepare(o, run, arg, t, err) < 0)
            return -(int)err->code;
        json_decref(program);
        program = TAKE(t->argv);
        t->argv = json_array();
        snprintf(t->cwd, sizeof t->cwd, "%s", o->work);         /* podman's own */
    }
    name_it(o->dir, t->container, sizeof t->container);
    t->outside = true;
    t->limits.nested = true;
    task_arg(t, "%s", c->podman);
    if (geteuid() == 0)
        task_arg(t, "--cgroup-manager=cgroupfs");       /* which takes any group for a parent */
    if (c->runc)
        task_arg(t, "--runtime=runc");
    task_arg(t, "run");
    task_arg(t, "--name=%s", t->container);
    task_arg(t, "--label=muster.keeper=%d", (int)getpid());
    task_arg(t, "--pull=never");
    task_arg(t, "--http-proxy=false");  /* podman would hand on what it has itself, passwords too */
    task_arg(t, "--log-driver=passthrough");
    task_arg(t, "--shm-size=0");
    add_network(t, o);
    task_arg(t, "--workdir=%s", workdir(o, c));
    add_ulimits(t);
    add_user(o, c, t);
    add_gpus(t, o);
    const int ns = c->own_user ? 0 : o->user_ns;
    int rc = step ? add_step_files(t, ns, err) : add_work(t, o, ns, err);
    if (rc < 0 || add_env(o, more, t, err) < 0)
        return -(int)err->code;
    keep_env(t);
    return python ? add_python(o, image, t, err) : add_command(o, image, program, t, err);
}

/* ------------------------------------------------------------------ limits, and the end */

static void insert_option(struct task *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Behind "run". */
static void insert_option(struct task *t, const char *fmt, ...)
{
    char text[PATH_MAX];
    size_t i = 0;
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    while (strcmp(json_string_value(json_array_get(t->argv, i)), "run"))
        i++;
    json_array_insert_new(t->argv, i + 1, json_string(text));
}

void container_limit(struct task *t, const struct task_order *o, struct limits_group *limits)
{
    const char *parent = geteuid() == 0 ? limits_parent(limits) : NULL;
    const struct limits *l = &t->limits;

    if (parent) {
        insert_option(t, "--cgroup-parent=%s", parent);
        return;
    }
    /* podman without rights has groups of its own, in version 2 alone. */
    if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) < 0) {
        if ((l->memory && !l->unasked) || l->cpu > 0)
            journal_say(o->journal, "its limits are not enforced: this system has no control "
                        "groups that podman could use");
        return;
    }
    if (l->memory)
        insert_option(t, "--memory=%lldb", l->memory);
    if (l->cpu > 0)
        insert_option(t, "--cpus=%.3f", l->cpu);
    if (l->pids)
        insert_option(t, "--pids-limit=%d", l->pids);
}

void container_end(const struct task *t, struct container_end *out)
{
    const char *podman = json_string_value(json_array_get(t->argv, 0));
    const char *const words[] = {
        podman, "container", "inspect", "--format",
        "{{.State.StartedAt.Unix}} {{.State.ExitCode}} {{.State.OOMKilled}}", "--", t->container,
        NULL };
    char said[256], memory[8] = "";
    long long at = 0;
    int code = 0;

    *out = (struct container_end){ 0 };
    if (ask(words, said, sizeof said) == 0 && sscanf(said, "%lld %d %7s", &at, &code, memory) == 3)
        *out = (struct container_end){ .started = at > 0, .code = code, .at = (double)at,
                                       .out_of_memory = !strcmp(memory, "true") };
    remove_container(podman, t->container);
    container_unbind(is_ours);
}
